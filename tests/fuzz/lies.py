"""Files that are whole and say something that is not so, or that no honest file says; by kind."""

import gzip
import io
import json
import math
import pickle
import pickletools
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save

from tests.data.readers import Hostile
from tests.fuzz.damage import Random

Lie = Callable[[Random, Path], None]
NUMBERS = (0, -1, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, [], {}, "", "three", "\udc80", 0, -1, 61, 1.5, 1e308, 10**30, math.nan, math.inf),
    *([[]], [1, [2]], [{}], {"x": [], "y": []}, "f1", ["f1", "f1"], [3] * 5, [[0.5] * 784] * 3, "a" * 5000),
)


def any_of(random: Random, choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


# npz -----------------------------------------------------------------------------------------------------------------


def npy(header: str, content: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


def npz_of_strange_arrays(random: Random, path: Path) -> None:
    strange: dict[str, Any] = {
        "x": [
            np.full((20, 3), any_of(random, (np.nan, np.inf, -np.inf, 1e300))),
            random.bytes(60).hex(),
            np.zeros((20, *(1,) * int(random.integers(0, 30)))),
            np.zeros((20, 3), any_of(random, ("c16", "M8[s]", "V3", "S3", "?", "f2", ">u8", "i1", "U2"))),
            np.zeros((int(random.integers(0, 40)), int(random.integers(0, 3)))),
            np.zeros((20, 2, 2, 7), np.uint8),
            np.array([{}] * 20, dtype=object),
        ],
        "y": [
            np.full(20, any_of(random, (-(2**63), 2**63 - 1, -1))),
            np.full(20, 2**64 - 1, np.uint64),
            np.frombuffer(random.bytes(80), any_of(random, ("<U1", ">U1", "<i4", "<f4"))),
            np.array([Hostile(print, "run")] * 20, dtype=object),
            np.zeros((20, any_of(random, (0, 1, 2)))),
            np.array(["a\0b", "\x1b[2J"] * 10),
        ],
    }
    held: dict[str, Any] = {"x": np.arange(60).reshape(20, 3), "y": np.arange(20) % 2}
    name = any_of(random, ("x", "y", "client", "domain", "classes", "domains", "x_train", "y_test", "z"))
    held[name] = any_of(random, strange["x" if name.startswith("x") else "y"])
    np.savez_compressed(path, allow_pickle=True, **held)


def npz_of_strange_entries(random: Random, path: Path) -> None:
    shape = tuple(int(any_of(random, NUMBERS)) for _ in range(int(random.integers(0, 4))))
    headers = [
        str(
            {"descr": any_of(random, ("<f8", "|u1", "<U9", "<U0", "|O", "|V0")), "fortran_order": False, "shape": shape}
        ),
        "(" * 9000,
        "{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,)}",
        str({"descr": [("a", "<i4"), ("b", "|O")], "fortran_order": True, "shape": (2,)}),
        "",
    ]
    names = ("x.npy", "y.npy", "../x.npy", "/etc/x.npy", "x", "x.npy/", "x_train.npy", "y.npy", "\udcff.npy", "a" * 300)
    packing = any_of(random, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    good = io.BytesIO()
    np.save(good, np.arange(20) % 2)
    with zipfile.ZipFile(path, "w", packing) as archive:
        for name in ("x.npy", "y.npy", any_of(random, names)):
            entry = npy(any_of(random, headers), random.bytes(int(random.integers(0, 99))), int(random.integers(1, 4)))
            info = zipfile.ZipInfo(name.encode(errors="replace").decode())  # of the same date at any time
            archive.writestr(info, good.getvalue() if random.random() < 0.4 else entry, packing)


# idx, pickles, images ------------------------------------------------------------------------------------------------


def idx_of_strange_sides(random: Random, path: Path) -> None:
    sides = [int(any_of(random, NUMBERS)) % 2**32 for _ in range(int(random.integers(0, 6)))]
    head = struct.pack(f">HBB{len(sides)}I", 0, any_of(random, (8, 8, 8, 13)), len(sides), *sides)
    content = head + random.bytes(int(random.integers(0, 200)))
    path.write_bytes(gzip.compress(content, mtime=0) if random.random() < 0.5 else content)


def gz_of_zeros(random: Random, path: Path) -> None:
    """A few kilobytes that become some megabytes, in several members or with something behind them."""
    content = struct.pack(">HBBI", 0, 8, 1, 2**24) + bytes(2**22)
    path.write_bytes(
        gzip.compress(content, mtime=0) * int(random.integers(1, 3)) + random.bytes(int(random.integers(0, 3)))
    )


def strange_pickle(random: Random, path: Path) -> None:
    nested: Any = [0]
    for _ in range(40):
        nested = [nested, nested]  # 2^40 elements, if it were unfolded
    labels = any_of(random, (nested, [10**30], [-1], [1.5], "text", {1: 2}, [True], None, [0] * 5, list(range(3000))))
    data = any_of(random, (np.zeros((1, 3072), np.uint8), np.zeros((1, 3), np.uint8), Hostile(print, "run"), nested))
    held = any_of(random, ({b"data": data, b"fine_labels": labels}, {b"data": data}, nested, [], {(1, 2): [{}] * 3000}))
    path.write_bytes(pickle.dumps(held, protocol=int(random.integers(0, 6))))


def random_pickle(random: Random, path: Path) -> None:
    codes = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
    chosen = [
        any_of(random, codes) + random.bytes(int(random.integers(0, 4))) for _ in range(int(random.integers(1, 60)))
    ]
    path.write_bytes(b"".join(chosen) + b".")


def png_of_strange_size(random: Random, path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    width, height = (int(any_of(random, (0, 1, 8, 100, 5000, 9400, 60_000, 2**31 - 1))) for _ in range(2))
    header = struct.pack(">IIBBBBB", width, height, any_of(random, (1, 8, 16)), any_of(random, (0, 2, 3, 6)), 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(5000)))
    text = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(2**21))) if random.random() < 0.3 else b""
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + text + body + chunk(b"IEND", b""))


def image_of_another_kind(random: Random, path: Path) -> None:
    held = io.BytesIO()
    kind, mode = any_of(random, ("PNG", "GIF", "TIFF", "JPEG", "ICO", "PDF", "EPS")), any_of(random, ("RGB", "L"))
    Image.new(mode, (any_of(random, (1, 8, 500)), 8)).save(held, kind)
    scripts = (b"", b"#!/bin/sh\ntrue\n", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>")
    path.write_bytes(held.getvalue() if random.random() < 0.8 else any_of(random, scripts))


# text ----------------------------------------------------------------------------------------------------------------


def _replaced(random: Random, node: Any) -> Any:
    """The same structure with another value somewhere in it."""
    if not isinstance(node, dict | list) or not node or random.random() < 0.25:
        return any_of(random, VALUES)
    if isinstance(node, dict):
        key = any_of(random, list(node))
        changed = {name: value for name, value in node.items() if name != key or random.random() < 0.9}
        return changed | {key: _replaced(random, node[key])}
    at = int(random.integers(len(node)))
    return [*node[:at], *([_replaced(random, node[at])] * int(random.integers(1, 3))), *node[at + 1 :]]


def json_with_another_value(random: Random, path: Path) -> None:
    path.write_text(json.dumps(_replaced(random, json.loads(path.read_text()))))


def csv_with_other_cells(random: Random, path: Path) -> None:
    cells = (
        "",
        "u",
        "a",
        "../a",
        "/etc/passwd",
        "\0",
        '"',
        "\udc80",
        "é",
        "1" * 30,
        "-1",
        ",",
        "\r",
        "a" * 140_000,
        "nul\n",
    )
    lines = [",".join(any_of(random, cells) for _ in range(int(random.integers(1, 6)))) for _ in range(4)]
    head = any_of(
        random, ("user_id,image_id,class", "image_id,class", "user_id,user_id,class,image_id", "", "\ufeffuser_id")
    )
    text = "\n".join([head, *lines, "u,a,1"])
    path.write_bytes(text.encode(any_of(random, ("utf-8", "utf-16", "latin-1")), errors="replace"))


# archives ------------------------------------------------------------------------------------------------------------


def tar_of_strange_members(random: Random, path: Path) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for _ in range(int(random.integers(1, 4))):
            name = any_of(random, ("a", "../a", "/tmp/a", "a/../../b", "a/b", "", ".", "made.tar.gz", "x" * 300))
            member = tarfile.TarInfo(name)
            member.type = any_of(random, (b"0", b"5", b"1", b"2", b"3", b"6", b"S", b"x", b"L"))
            member.linkname = any_of(random, ("a", "/etc/passwd", "../.."))
            member.size = int(any_of(random, (0, 100, 2**20)))
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    path.write_bytes(held.getvalue())


# signatures and matrices ---------------------------------------------------------------------------------------------


def signature_of_strange_arrays(random: Random, path: Path) -> None:
    arrays: dict[str, Any] = {
        "vectors": np.zeros((3, 3, 5), np.float32),
        "counts": np.full(3, 4),
        "reliability": np.full(3, 0.5, np.float32),
        "update": np.zeros(4, np.float32),
        "update_reliability": np.zeros((), np.float32),
    }
    name = any_of(random, (*arrays, "more"))
    shape = any_of(random, ((), (0,), (3,), (3, 3, 5), (3, 500, 5), (0, 3, 5), (3, 0, 0), (4,)))
    kind = any_of(random, (np.float32, np.int64, np.float64, np.bool_, np.uint8, np.float16))
    values = (0, 1, -1, 2, 1e30, np.finfo(np.float32).max, np.nan, np.inf, 2**62, 1e-40)
    value = any_of(random, values)
    with np.errstate(all="ignore"):
        other = np.full(shape, value).astype(kind)
        same = None if name == "more" else np.full(arrays[name].shape, value).astype(arrays[name].dtype)
    arrays[name] = other if same is None or random.random() < 0.4 else same
    if random.random() < 0.1:
        del arrays[name]
    path.write_bytes(save(arrays))


def signature_with_another_header(random: Random, path: Path) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    entry = header[any_of(random, list(header))]
    if random.random() < 0.5:
        entry["shape"] = [int(any_of(random, NUMBERS)) for _ in range(int(random.integers(0, 4)))]
    elif random.random() < 0.5:
        entry["data_offsets"] = sorted(abs(int(any_of(random, NUMBERS))) for _ in range(2))
    else:
        entry["dtype"] = any_of(random, ("F64", "BF16", "F8_E4M3", "BOOL", "U8", "I64", "F32", "X9"))
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", any_of(random, (len(text),) * 5 + NUMBERS) % 2**64) + text + content[8 + length :]
    )


def strange_matrix(random: Random, path: Path) -> None:
    size = int(random.integers(0, 6))
    given = random.random((size, size))
    given = given + given.T
    choice = int(random.integers(8))
    if choice == 0 and size:
        given[random.integers(size), random.integers(size)] = any_of(random, (np.nan, np.inf, -1, 1e300, -0.0, 1e-320))
    elif choice == 1:
        given = given.astype(any_of(random, ("U9", "c16", "?", "i1", "f2", "u8", "M8[s]", "S4")))
    elif choice == 2:
        given = np.zeros(any_of(random, ((), (0,), (3,), (2, 3), (10**6, 1), (2, 2, 2), (0, 3), (1, 1))))
    elif choice == 3:
        path.with_name("as objects").touch()
    elif choice == 4:
        np.fill_diagonal(given, 0)
        given *= any_of(random, (1e38, 1e-38, 1e300, 0, -1, 1e-310))
    elif choice == 5:
        given = np.full((size, size), any_of(random, (0, 1, np.nan, np.inf, -1, 3e38)))
        np.fill_diagonal(given, 0)
    np.save(path, given)


LIES: dict[str, list[Lie]] = {
    "npz": [npz_of_strange_arrays, npz_of_strange_entries],
    "idx": [idx_of_strange_sides],
    "idx.gz": [idx_of_strange_sides, gz_of_zeros],
    "cifar-python": [strange_pickle, random_pickle],
    "cifar-c": [
        lambda random, path: npz_of_strange_arrays(random, path),
        lambda random, path: strange_matrix(random, path),
    ],
    "png": [png_of_strange_size, image_of_another_kind],
    "leaf": [json_with_another_value],
    "csv": [csv_with_other_cells],
    "tar": [tar_of_strange_members],
    "signature": [signature_of_strange_arrays, signature_with_another_header],
    "matrix": [strange_matrix],
}
