"""Certificates and keys for a federation on one machine. For real machines see docs/deployment.md."""

import datetime
import ipaddress
import os
import re
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError
from feddag.weights import ClientId

VALID_DAYS = 30


def write_certificates(folder: Path, host: str) -> None:
    """A certificate authority of our own and a server certificate: ca.crt, server.crt and server.key."""
    x509, hashes, serialization, ec, name_oid = _cryptography()
    folder.mkdir(parents=True, mode=0o700)
    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority = x509.Name([x509.NameAttribute(name_oid.COMMON_NAME, "feddag federation")])

    def certificate(subject: str, key: Any, extensions: list[tuple[Any, bool]]) -> bytes:
        builder = x509.CertificateBuilder(
            issuer_name=authority,
            subject_name=x509.Name([x509.NameAttribute(name_oid.COMMON_NAME, subject)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(minutes=5),
            not_valid_after=now + datetime.timedelta(days=VALID_DAYS),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        signed: bytes = builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return signed

    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    mark = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    link = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    authority_extensions = [(x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (mark, False)]
    server_extensions = [(x509.SubjectAlternativeName(names), False), (link, False)]
    (folder / "ca.crt").write_bytes(certificate("feddag federation", authority_key, authority_extensions))
    (folder / "server.crt").write_bytes(certificate("feddag server", server_key, server_extensions))
    _write_secret(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8, serialization)


def write_node_key(path: Path) -> None:
    """A key that identifies a node, and beside it the public part, in the format of ssh-keygen."""
    _, _, serialization, ec, _ = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH, serialization)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def read_client_keys(folder: Path) -> dict[ClientId, bytes]:
    """Which client has which key: the public keys in a folder, each named after its client (site-0.pub, site-1.pub).

    Keys are given as Flower knows them: PEM.
    """
    _, _, serialization, _, _ = _cryptography()
    found: dict[ClientId, bytes] = {}
    for path in sorted(folder.glob("*.pub")):
        number = re.search(r"(\d+)$", path.stem)
        if number is None:
            continue  # nobody's: whoever has it is no client
        if int(number[1]) in found:
            raise FeddagError(f"keys '{path}' is the second key of client {number[1]}; there should be one")
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise FeddagError(f"keys '{path}' is not a public key as ssh-keygen writes it: {error}") from None
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        found[int(number[1])] = key.public_bytes(serialization.Encoding.PEM, form)
    if not found:
        raise FeddagError(f"keys '{folder}' holds no public key: put site-0.pub, site-1.pub, ... into it")
    return found


def _write_secret(path: Path, key: Any, form: Any, serialization: Any) -> None:
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _cryptography() -> Any:
    """The parts of the cryptography package, which comes with Flower, that are used here."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise FeddagError("Flower is not installed: pip install 'feddag[flower]'") from None
    return x509, hashes, serialization, ec, NameOID
