"""What a run costs as the number of clients grows while 20 or 100 of them take part in a round.

Each case is a whole run as a user starts it (partition, training, averaging, evaluation of every client, history,
checkpoint) with FedAvg on synthetic pixels, in a process of its own so that its peak memory is its own.

Time inside local training is the wall time spent in calls of the native trainer, summed over calls and divided by the
number of worker threads. Everything else of a round's time counts as outside: evaluation, checkpoint, converting
pixels, averaging, and also threads that wait because no client is left for them. Where other programs use the cores,
the calls take longer and the share outside looks smaller than it is. The first round is left out, and set-up is
reported on its own.

Processor seconds are those of the whole process in a round: other programs on the same cores lengthen them less than
the time on the clock.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feddag import native
from feddag.bench.common import CORES, in_own_process, peak_mb, shown, synthetic_dataset
from feddag.client import trainer
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.runner.run import run

PARTICIPANTS = 20  # in a round, unless a case says otherwise
COLUMNS = (
    *("case", "clients", "rounds/s", "s/round", "processor s/round", "outside training s", "outside training"),
    *("set-up s", "peak MB"),
)


@dataclass(frozen=True)
class Case:
    """One run: how many clients, with how many samples of which shape, training what for how long."""

    name: str
    clients: int
    samples: int
    shape: tuple[int, ...]
    model: str
    epochs: int
    rounds: int
    participants: int = PARTICIPANTS
    every: int = 1
    """Rounds from one scoring of every client to the next."""
    test: Literal["classes", "mix", "own"] = "classes"
    """Which samples a client is scored on; "own" are nobody else's."""

    def __post_init__(self) -> None:
        if self.rounds < 2 * self.every:
            raise FeddagError(
                f"rounds = {self.rounds} is not possible: one scoring is needed for start-up, and another"
            )
        if self.clients < 1:
            raise FeddagError(f"clients = {self.clients} is not possible: at least 1 is needed")


def many(clients: int, rounds: int = 6) -> Case:
    """Many small clients: 8x8 pixels, 10 samples each, mlp, one epoch."""
    return Case("mlp 8x8", clients, 10, (1, 8, 8), "mlp", 1, rounds)


def usual(rounds: int = 4, samples: int = 600) -> Case:
    """The papers' setting: 100 clients with 600 samples of 28x28 pixels each, lenet5, ten epochs."""
    return Case("lenet5 28x28", 100, samples, (1, 28, 28), "lenet5", 10, rounds)


def most(rounds: int = 40, test: Literal["classes", "own"] = "classes") -> Case:
    """As many as there may be: 100 of 100,000 small clients a round, all of them scored every tenth round."""
    name = "mlp 8x8, own test samples" if test == "own" else "mlp 8x8"
    return Case(name, 100_000, 10, (1, 8, 8), "mlp", 1, rounds, participants=100, every=10, test=test)


CASES = (many(100), many(1_000), many(10_000), most(), most(test="own"), usual())


def measure(cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """A row for each case: rounds per second, seconds outside local training, peak memory."""
    return [
        in_own_process("feddag.bench.scale", dataclasses.asdict(case), f"the run of {case.clients} clients")
        for case in cases
    ]


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            *(row["case"], shown(row["clients"]), shown(row["rounds_per_second"], 2)),
            *(shown(row["seconds_per_round"], 3), shown(row["processor_seconds"], 3), shown(row["outside_seconds"], 3)),
            shown(row["outside_share"] and 100 * row["outside_share"], 1, " %"),
            *(shown(row["setup_seconds"], 1), shown(row["peak_mb"])),
        ]
        for row in rows
    ]


class Stopwatch:
    """Adds up the wall time of calls, also of calls at the same time in several threads."""

    def __init__(self, function: Any) -> None:
        self.seconds, self._function, self._lock = 0.0, function, threading.Lock()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._function(*arguments, **named)
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - began


def run_case(case: Case) -> dict[str, Any]:
    """Measure a case in this process; `peak_mb` is the most this process has held."""
    training = Stopwatch(trainer.NativeTrainer.fit)
    moments: list[tuple[float, float, float]] = []  # at the end of a round: time, seconds in training, processor time
    with tempfile.TemporaryDirectory(prefix="feddag-bench-") as folder:
        pixels = synthetic_dataset(case.clients * case.samples, case.shape)
        file = Path(folder) / "pixels.npz"
        np.savez(file, **{name: getattr(pixels, name) for name in ("x_train", "y_train", "x_test", "y_test")})
        del pixels
        experiment = Experiment(
            dataset=str(file),
            method="fedavg",
            partition="iid",
            clients=case.clients,
            participation=min(1.0, case.participants / case.clients),
            model=case.model,
            epochs=case.epochs,
            rounds=case.rounds,
            evaluate_every=case.every,
            test=case.test,
            finetune=False,
            workers=CORES,
        )
        trainer.NativeTrainer.fit = lambda *given, **named: training(*given, **named)  # type: ignore[method-assign]
        try:
            began = time.perf_counter()
            run(
                experiment,
                Path(folder) / "run",
                observer=lambda record: moments.append((time.perf_counter(), training.seconds, time.process_time())),
            )
        finally:
            trainer.NativeTrainer.fit = training._function  # type: ignore[method-assign]  # noqa: SLF001
    times, inside, processor = np.diff(moments, axis=0).T / case.every
    outside = np.maximum(0.0, times - inside / CORES) if native.available() else None
    seconds = statistics.median(times.tolist())
    return {
        "case": case.name,
        "clients": case.clients,
        "participants": min(case.clients, case.participants),
        "evaluate_every": case.every,
        "rounds": case.rounds,
        "epochs": case.epochs,
        "samples_per_client": case.samples,
        "workers": CORES,
        "rounds_per_second": round(1 / seconds, 3),
        "seconds_per_round": round(seconds, 5),
        "processor_seconds": round(statistics.median(processor.tolist()), 5),
        "outside_seconds": None if outside is None else round(float(np.median(outside)), 5),
        "outside_share": None if outside is None else round(float(np.median(outside / times)), 4),
        "setup_seconds": round(moments[0][0] - began - seconds, 3),
        "peak_mb": round(peak_mb(), 1),
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(run_case(Case(**asked | {"shape": tuple(asked["shape"])}))))
