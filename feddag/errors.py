"""The one exception a user is meant to see: a single clear sentence, shown without a traceback, exit code 2."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

LINE_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
NOT_FOR_A_TERMINAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class FeddagError(Exception):
    """Something the user can mend. Its text is one sentence that says what is wrong and what is allowed."""


def harmless(text: str) -> str:
    """Text without what a terminal would obey: control characters, and those that turn the writing direction.

    Half a character, as a file's name or JSON may hold, is left out as well: no terminal can show it.

    >>> harmless("\\x1b[2J\\u202e[red] שלום 🦊")
    '�[2J�[red] שלום 🦊'
    """
    return NOT_FOR_A_TERMINAL.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str, longest: int = 2000) -> str:
    """Harmless text in one line: what every error is shown as.

    >>> one_line("a name\\nof two lines\\x07")
    'a name of two lines�'
    """
    return short(harmless(LINE_BREAKS.sub(" ", text)), longest)


def short(value: object, longest: int = 80) -> str:
    """What a sentence quotes of something that may be of any length.

    >>> short("abcdef", 4), short(12)
    ('abc…', '12')
    """
    try:
        text = str(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= longest else text[: longest - 1] + "…"


def counted(number: int, word: str) -> str:
    """So many of something, in words that agree.

    >>> counted(1, "cluster"), counted(5, "cluster")
    ('1 cluster', '5 clusters')
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def listed(items: Sequence[str]) -> str:
    """Several things in a sentence.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A closing hint with the nearest valid spelling, or nothing when nothing is near.

    >>> nearest("fedavgg", ["fedavg", "oracle"])
    "; did you mean 'fedavg'?"
    >>> nearest("zzz", ["fedavg"])
    ''
    """
    close = get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
