"""Parts of Flower's messages, fetched sooner and not for ever. Flower is an extra: it is imported late.

Flower announces a message before all of its parts have arrived. Who fetches it then looks for a part that is not there
after one second, two, four, and so on for hours: a second lost in every exchange, and a server that hangs when a node
is killed while it sends its answer.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

FIRST_LOOK, SLOWEST_LOOK = 0.05, 1.0
STALLED_SECONDS = 60.0  # without any new part of a message: then it is lost, and the client is asked again


def sooner(module: ModuleType) -> bool:
    """Let this module of Flower's fetch parts so; whether it could be told to."""
    usual = getattr(module, "pull_objects", None)
    if not callable(usual):
        return False
    module.pull_objects = partial(fetch, usual)  # type: ignore[attr-defined]
    return True


def fetch(
    usual: Callable[..., dict[str, bytes]],
    object_ids: Sequence[str],
    pull_object_fn: Callable[[str], bytes],
    *,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> dict[str, bytes]:
    """All parts of a message, by Flower's own function; a message of which no new part comes is given up."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError

    last = clock()

    def pull(part: str) -> bytes:
        nonlocal last
        try:
            content = pull_object_fn(part)
        except ObjectUnavailableError:
            if clock() > last + STALLED_SECONDS:
                raise ObjectPullError(part, "no part of its message came for a minute") from None
            raise
        last = clock()
        return content

    paced = {"initial_backoff": FIRST_LOOK, "backoff_cap": SLOWEST_LOOK, "max_tries_per_object": None}
    return usual(object_ids, pull_object_fn=pull, **(options | paced))
