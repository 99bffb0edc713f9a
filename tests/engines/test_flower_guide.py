"""docs/deployment.md as a new user would follow it: every command of it, with three folders for the three machines.

Where nginx is not installed, nodes go to the SuperLink directly. `make test-flower` runs it.
"""

import contextlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import feddag
from feddag.deploy.launch import HOST, end_all, free_port

pytestmark = pytest.mark.skipif("FEDDAG_TEST_FLOWER" not in os.environ, reason="make test-flower runs it")

GUIDE = Path(__file__).parent.parent.parent / "docs" / "deployment.md"
NGINX = os.environ.get("FEDDAG_NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NGINX_AROUND = """daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


class Machines:
    """Three folders, each a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.homes = {name: folder / name for name in ("server", "site-0", "site-1")}
        self.port, self.proxy_port = free_port(), free_port()
        self.has_proxy = NGINX is not None
        self.running: list[subprocess.Popen[bytes]] = []
        for home in self.homes.values():
            home.mkdir()

    def command(self, machine: str, text: str) -> str:
        """What the guide says, with this machine's names for things."""
        server = self.homes["server"]
        text = re.sub(r"scp (\S+) server\.example:(\S+)", rf"cp \1 {server}/\2", text)
        text = re.sub(r"scp server\.example:(\S+) (\S+)", rf"cp {server}/\1 \2", text)
        text = text.replace("server.example:8443", f"{HOST}:{self.proxy_port if self.has_proxy else self.port}")
        text = text.replace("8000", str(self.port)).replace("8443", str(self.proxy_port))
        text = text.replace("/home/me", str(server))
        text = text.replace("CLIENT=0", f"CLIENT={machine[-1]}")
        # feddag is installed already, and no test may install anything
        text = text.replace("pip install '.[flower]'", "python -m pip show --quiet feddag flwr")
        return text.replace("feddag flower node ", f"feddag flower node --host {HOST} --port {free_port()} ")

    def start(self, machine: str, text: str) -> subprocess.Popen[bytes]:
        home = self.homes[machine]
        here = {"HOME": str(home), "FLWR_HOME": str(home / ".flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
        here |= {"FLWR_DISABLE_UPDATE_CHECK": "1", "FEDDAG_RUNTIME_DIR": str(home)}
        here |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        here |= {"CLIENT": machine[-1]} if machine != "server" else {}
        script = f"set -eu\n{self.command(machine, text)}"
        with (home / "log").open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", script],
                cwd=home,
                env=os.environ | here,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, machine: str) -> str:
        return (self.homes[machine] / "log").read_text(errors="replace")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    here = Machines(tmp_path)
    try:
        yield here
    finally:
        for home in here.homes.values():
            end_all([], home / ".flwr")
        for process in here.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def blocks() -> list[tuple[str, str]]:
    section = GUIDE.read_text().split("## Three machines")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def status(machines: Machines, port: int, path: str) -> int:
    """What an empty call is answered with, over TLS with the guide's own certificate."""
    trust = ssl.create_default_context(cafile=str(machines.homes["server"] / "ca.crt"))
    call = urllib.request.Request(f"https://{HOST}:{port}{path}", b"", {"Content-Type": "application/protobuf"})
    try:
        with urllib.request.urlopen(call, context=trust, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def await_port(machines: Machines, port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            status(machines, port, "/")
            return
        except OSError:
            assert time.monotonic() < end, machines.log("server")[-3000:]
            time.sleep(0.2)


def start_proxy(machines: Machines, text: str) -> None:
    folder = machines.homes["server"]
    user = "user root;" if os.getuid() == 0 else ""
    text = NGINX_AROUND.format(folder=folder, user=user, server=machines.command("server", text))
    (folder / "nginx.conf").write_text(text)
    machines.running.append(machines.start("server", f"exec {NGINX} -p {folder} -c {folder}/nginx.conf"))
    await_port(machines, machines.proxy_port)
    for call in ("control/start-run", "control/register-node", "control/list-nodes", "runtime/get-nodes"):
        assert status(machines, machines.proxy_port, f"/v1/{call}") == 403
    # Why the proxy is needed: no login is asked for.
    assert status(machines, machines.port, "/v1/control/list-nodes") == 200


def test_the_guide_as_it_is_written(machines: Machines) -> None:
    steps = blocks()
    assert [language for language, _ in steps].count("sh") >= 9
    for language, text in steps:
        if language == "nginx":
            if machines.has_proxy:
                start_proxy(machines, text)
            continue
        where = "# on each site" if language == "python" else text.splitlines()[0]
        sites = ["site-0", "site-1"]
        [names] = [
            chosen
            for mark, chosen in (("all machines", ["server", *sites]), ("the server", ["server"]), ("each site", sites))
            if mark in where
        ]
        script = f"python - <<'PYTHON'\n{text}PYTHON\n" if language == "python" else text
        for machine in names:
            process = machines.start(machine, script)
            if "stays" in where:
                machines.running.append(process)
                if machine == "server":
                    await_port(machines, machines.port)
            else:
                assert process.wait(timeout=1800) == 0, machines.log(machine)[-3000:]
    finished = feddag.load(machines.homes["server"] / "feddag-run")
    assert finished.result["participants"] == [0, 1] and finished.result["answers_missing"] == 0
    assert finished.accuracy.mean > 0.5
    assert "has finished already" in machines.log("server")
    assert not list(machines.homes["server"].glob("**/data.npz"))
