from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from feddag.errors import FeddagError


@contextmanager
def refused(*words: object) -> Iterator[None]:
    """What happens inside must be refused in one sentence that holds all these words."""
    with pytest.raises(FeddagError) as caught:
        yield
    sentence = str(caught.value)
    assert "\n" not in sentence
    for word in words:
        assert str(word) in sentence
