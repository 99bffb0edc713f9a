"""The one exception a user is meant to see: a single clear sentence, shown without a traceback, exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class FeddagError(Exception):
    """Something the user can mend. Its text is one sentence that says what is wrong and what is allowed."""


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A closing hint with the nearest valid spelling, or nothing when nothing is near.

    >>> nearest("fedavgg", ["fedavg", "oracle"])
    "; did you mean 'fedavg'?"
    >>> nearest("zzz", ["fedavg"])
    ''
    """
    close = get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
