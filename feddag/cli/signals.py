"""Being told to stop: by Ctrl-C, by `kill`, or by a terminal that was closed. The exit code is 128 + the signal's.

Imports nothing heavy: this has to be in place before anything else is loaded.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from feddag.errors import one_line

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))  # Windows
IMPORTING = "<frozen importlib"
AGAIN_SECONDS = 0.05


class Stopped(BaseException):
    """The program was told to stop. Not an Exception: nothing that goes on after errors may go on after this."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number


class _Manner:
    """How to stop now."""

    def __init__(self) -> None:
        self.sentence: Callable[[], str] = lambda: "stopped"
        self.at_once = True


_manner = _Manner()


def listen() -> None:
    """From now on a signal to stop ends the program cleanly; one that is ignored (`nohup`) still is."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _swallowed


def _swallowed(what: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised while an object is deleted: a signal that came just then is sent again."""
    if isinstance(what.exc_value, Stopped):
        again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), what.exc_value.code - 128))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(what)


def leave() -> None:
    """All is done: from now on a signal ends the program as it ends any other."""
    for number in STOPPING:
        if signal.getsignal(number) == _stop:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise Stopped; but inside of an import, where Python swallows exceptions here and there, end at once."""
    while _manner.at_once and frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            stop(_manner.sentence(), 128 + number)
        frame = frame.f_back
    raise Stopped(number)


@contextlib.contextmanager
def stopping_says(sentence: Callable[[], str]) -> Iterator[None]:
    """Whoever is told to stop inside says this."""
    before, _manner.sentence = _manner.sentence, sentence
    try:
        yield
    finally:
        _manner.sentence = before


@contextlib.contextmanager
def never_at_once() -> Iterator[None]:
    """Inside there is something to take down, other programs for example: it always gets the chance to."""
    before, _manner.at_once = _manner.at_once, False
    try:
        yield
    finally:
        _manner.at_once = before


def stop(sentence: str, code: int) -> NoReturn:
    """End at once with one sentence. Every finished round is on disk; threads in the native trainer cannot be asked."""
    complain(sentence)
    with contextlib.suppress(OSError, ValueError):  # whoever read it may be gone
        sys.stdout.flush()
    os._exit(code)


def complain(sentence: str) -> None:
    """One line of harmless text on stderr, whatever names stand in it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"feddag: {one_line(sentence)}", file=sys.stderr, flush=True)
