"""Much damaged input: `python -m tests.fuzz COUNT [KIND ...] [--first SEED] [--minutes M]`.

Prints for every kind how many were read and how many refused, the slowest and the memory. What is neither is told with
the seed that makes it again, and the exit code is then 1. COUNT is for each kind; with `--minutes` a kind also ends
when its share of the time is over.
"""

import argparse
import collections
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch

from tests.fuzz import KINDS, attempt

MOST_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    asked = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    total, began = collections.Counter[str](), time.monotonic()
    for number, kind in enumerate(asked.kinds):
        share = (60 * asked.minutes - (time.monotonic() - began)) / (len(asked.kinds) - number)
        total += try_many(kind, asked.first, asked.count, share)
    minutes = (time.monotonic() - began) / 60
    print(f"{total.total()} tries of {len(asked.kinds)} kinds in {minutes:.1f} minutes: {dict(total)}", flush=True)
    sys.exit(1 if total["NEITHER"] else 0)


def try_many(kind: str, first: int, count: int, seconds: float) -> collections.Counter[str]:
    """Tries of one kind, until there are so many or the time is over."""
    found: collections.Counter[str] = collections.Counter()
    slowest, began = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(first, first + count):
            signal.alarm(MOST_SECONDS)  # a hang ends the process
            before = time.monotonic()
            if before > began + seconds:
                break
            try:
                found[attempt(kind, seed, Path(scratch))] += 1
            except Exception as error:
                found["NEITHER"] += 1
                print(f"kind {kind}, seed {seed}: {traceback.format_exception(error)[-1].strip()[:500]}", flush=True)
            slowest = max(slowest, time.monotonic() - before)
    signal.alarm(0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    spent = time.monotonic() - began
    print(f"{kind}: {dict(found)} in {spent:.0f} s, slowest {slowest:.2f} s, memory so far {memory} MB", flush=True)
    return found


if __name__ == "__main__":
    main()
