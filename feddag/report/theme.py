"""What figures share: colours, text that is only ever text, and arrays in a compact form."""

import base64
import html
from typing import Any

import numpy as np
from numpy.typing import NDArray

Figure = dict[str, Any]

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#7B61C4", "#56B4E9", "#8A8A8A")
"""Okabe and Ito's colours, but for yellow and black, which drown in a light or a dark page. Labels say the rest."""
DASHES = ("solid", "dash", "dot", "dashdot")
"""Of lines, four colours each: of two that are alike, such as the two blues, only one is solid."""
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")
GREY = "#888888"
SHADE = "rgba(136,136,136,0.18)"
SCALE = "Cividis"
LEGEND = {"orientation": "h", "y": 1.04, "yanchor": "bottom"}
LONGEST_NAME = 28


def colour(number: int) -> str:
    """The colour of a cluster (or of a method in a comparison), the same in every figure.

    A negative number stands for no cluster.

    >>> colour(0) == colour(8), colour(0) == colour(1), colour(-1) == GREY
    (True, False, True)
    """
    return PALETTE[number % len(PALETTE)] if number >= 0 else GREY


def symbol(number: int) -> str:
    """Tells clusters of the same colour apart."""
    return SYMBOLS[max(0, number) // len(PALETTE) % len(SYMBOLS)]


def dash(number: int) -> str:
    """How the line of a cluster (or of a method) is drawn: thin lines show little of their colour.

    >>> dash(0), dash(6), dash(8)
    ('solid', 'dash', 'dot')
    """
    return DASHES[number // 4 % len(DASHES)]


def faint(number: int) -> str:
    """The same colour for an area behind lines.

    >>> faint(0)
    'rgba(0,114,178,0.18)'
    """
    red, green, blue = bytes.fromhex(colour(number)[1:])
    return f"rgba({red},{green},{blue},0.18)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits beside a figure.

    >>> short("abcdef", 4)
    'abc…'
    """
    return name if len(name) <= longest else name[: longest - 1] + "…"


def plain(text: str, longest: int = LONGEST_NAME) -> str:
    """Text for a figure, which would take tags for markup and dollars for formulas; its writing direction is its own.

    >>> plain("<b>")
    '\\u2068&lt;b&gt;\\u2069'
    """
    return f"\u2068{html.escape(short(text, longest)).replace('$', '&#36;')}\u2069"


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """Numbers as plotly.js takes them in bulk: a tenth of the size of text.

    >>> packed(np.array([[1, 2]], np.uint8))
    {'dtype': 'u1', 'bdata': 'AQI=', 'shape': '1, 2'}
    """
    kinds = {"float32": "f4", "uint8": "u1", "int32": "i4"}
    content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    shape = {"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {}
    return {"dtype": kinds[str(array.dtype)], "bdata": content, **shape}


def averaged(matrix: NDArray[Any], most: int) -> tuple[NDArray[np.float32], int]:
    """A square matrix of at most so many rows: means of blocks that leave out gaps, and how many rows are in one.

    >>> averaged(np.array([[0.0, 1, 2], [1, np.nan, 3], [2, 3, 4]]), 2)[0].tolist()
    [[0.6666666865348816, 2.5], [2.5, 4.0]]
    """
    clients = len(matrix)
    block = -(-clients // most)
    if block <= 1:
        return matrix.astype(np.float32), 1
    starts = np.arange(0, clients, block)
    known = ~np.isnan(matrix)

    def sums(values: NDArray[Any]) -> NDArray[Any]:
        return np.add.reduceat(np.add.reduceat(values, starts, 0), starts, 1)

    total, count = sums(np.where(known, matrix, 0.0)), sums(known.astype(float))
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float32] = np.where(count > 0, total / count, np.nan).astype(np.float32)
    return means, block
