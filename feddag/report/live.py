"""The live page of a run under way: served on this machine only, until the run ends."""

import contextlib
import json
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError, counted, one_line
from feddag.report.page import as_json, page
from feddag.report.recorded import read_run
from feddag.report.run import run_document
from feddag.runner.directory import RunDirectory

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 0.5  # between looks at the run directory
IDLE_SECONDS = 10.0  # without a request, after which nobody is taken to look any more
MOST_CONNECTIONS = 16  # at a time, a thread each; a page needs one now and then
SILENT_SECONDS = 5.0  # after which a connection that asks for nothing is closed


@dataclass(frozen=True)
class RunState:
    """Where the run is: what a page asks for twice a second."""

    stamp: str
    """Changes whenever there is something new to show."""
    text: str
    over: bool


def read_state(directory: Path) -> RunState:
    """Whether the run in this directory goes on, has finished or has stopped, and after which round."""
    files = RunDirectory(directory)
    running = files.is_running()  # asked first: a run that ends while we look is then seen as running once more
    rounds = files.count_rounds()
    done = counted(rounds, "round")
    if files.result.exists():
        return RunState(f"finished {rounds}", f"finished after {done}", over=True)
    if not running:
        return RunState(f"stopped {rounds}", f"stopped after {done}; it can be resumed", over=True)
    changed = files.grouping.stat().st_mtime_ns if files.grouping.exists() else 0
    return RunState(f"{rounds} {changed}", f"running, {done} done", over=False)


class LivePage:
    """A server of one run's live page. It answers this machine alone, and only to the names of this machine."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        read_run(directory)  # refuses what is not a run directory before anything is served
        self.directory = directory
        self.seen_the_end = threading.Event()
        self.last_request = time.monotonic()
        try:
            self.server = _Server((LOOPBACK, port), _handler(self))
        except OSError as error:
            raise FeddagError(
                f"--port {port} cannot be used: {error.strerror}; allowed is any free port, or 0"
            ) from None

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server.server_port}/"

    def serve_to_end(self) -> RunState:
        """Serve until the run is over and an open page has seen it, or nobody looks."""
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            while not (state := read_state(self.directory)).over:
                time.sleep(POLL_SECONDS)
            while time.monotonic() < self.last_request + IDLE_SECONDS and not self.seen_the_end.wait(POLL_SECONDS):
                pass
        finally:
            self.server.shutdown()
            self.server.server_close()
        return state

    def answer(self, path: str) -> tuple[str, str] | None:
        """What a path holds, with its type; None if there is no such path."""
        self.last_request = time.monotonic()
        if path == "/state.json":
            state = read_state(self.directory)
            return json.dumps(vars(state)), "application/json"
        if path == "/document.json":
            return as_json(run_document(read_run(self.directory))), "application/json"
        if path == "/":
            return page(run_document(read_run(self.directory)), live=True), "text/html"
        return None


class _Server(ThreadingHTTPServer):
    """A server of few threads: where all are taken, the connection that has been there longest makes room."""

    daemon_threads = True
    request_queue_size = 128  # with the usual 5, a crowd at the door keeps everybody else out for a minute

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._opening = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to answer in a thread, as soon as there is a place for one."""
        while not self._places.acquire(timeout=POLL_SECONDS):
            pass
        with self._opening:
            self._open[request] = None
            if len(self._open) == MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                with contextlib.suppress(OSError):  # it may have ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """All is said: the place is free again."""
        with self._opening:
            known = self._open.pop(request, "none") is None
        super().shutdown_request(request)
        if known:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error; anything else is said in one line of harmless text."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"feddag: the page could not be made: {one_line(repr(error))}", file=sys.stderr)


def _handler(live: LivePage) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_SECONDS

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rpartition(":")[0]
            if host not in (LOOPBACK, "localhost"):  # another site's name that was pointed at this machine
                return self.send_error(403)
            try:
                found = live.answer(self.path.partition("?")[0])
            except FeddagError:
                return self.send_error(503)  # a file is being replaced: the page asks again
            if found is None:
                return self.send_error(404)
            content, kind = found[0].encode(), found[1]
            self.send_response(200)
            for name, value in {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(content)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            if self.path.startswith(("/document.json?finished", "/document.json?stopped")):
                live.seen_the_end.set()
            return None

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the terminal belongs to the person."""

    return Handler
