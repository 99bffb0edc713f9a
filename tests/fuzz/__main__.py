"""Many damaged files: `python -m tests.fuzz COUNT [KIND ...] [--first SEED]`.

Prints for every kind how many were read and how many refused, the slowest and the memory; stops at the first that is
neither, with the seed that makes it again.
"""

import argparse
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import KINDS, damaged_file, outcome

MOST_SECONDS = 60


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    for kind in asked.kinds:
        found: Counter[str] = Counter()
        slowest = 0.0
        with tempfile.TemporaryDirectory() as scratch:
            for seed in range(asked.first, asked.first + asked.count):
                signal.alarm(MOST_SECONDS)  # a hang ends the process
                began = time.monotonic()
                try:
                    found[outcome(kind, damaged_file(kind, seed, Path(scratch)))] += 1
                except BaseException:
                    print(f"kind {kind}, seed {seed}", flush=True)
                    raise
                slowest = max(slowest, time.monotonic() - began)
                shutil.rmtree(Path(scratch) / f"{kind}-{seed}")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{kind}: {dict(found)}, slowest {slowest:.2f} s, memory so far {memory} MB", flush=True)


if __name__ == "__main__":
    main()
