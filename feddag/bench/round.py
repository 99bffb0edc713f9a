"""How long one federated round takes, in feddag and in other frameworks given the same work.

FedAvg with all clients, one local epoch of SGD (lr 0.01, momentum 0.5): the same network, first weights, samples and
batch size everywhere. A round is training and averaging, without evaluation or checkpoint. The first round is timed
from when samples and imports are loaded, so it includes a framework's start-up; of later rounds the median is given.
A framework whose final model has not learnt does not count. The native trainer, which the others are compared with, is
measured before and after them, because machines are not equally fast at all times.

Other frameworks are optional. They run in processes of their own, with the Python that FEDDAG_PEER_PYTHON names (by
default this one), so that they may be installed in an environment of their own.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddag._version import __version__
from feddag.bench import peers
from feddag.bench.common import CORES, native_network, shown, split_into_clients, synthetic_dataset
from feddag.bench.train import MODELS
from feddag.client.evaluate import mean_loss
from feddag.client.step import to_tensor
from feddag.client.trainer import LocalSettings, TorchTrainer
from feddag.data.clients import ClientData
from feddag.data.datasets import load
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.errors import FeddagError
from feddag.federation import Federation
from feddag.files import write_atomically
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import Weights

CASES = (("M1", 10), ("M1", 64), ("mlp", 10))
REFERENCE = "feddag native"
FRAMEWORKS = (REFERENCE, "feddag torch", *peers.PEERS)
PEER_TIMEOUT = 1800.0
LEARNT = 0.95  # the final loss is below this share of the first one
COLUMNS = ("framework", "version", "model", "batch", "first round s", "later rounds s", "to feddag", "loss", "remark")


@dataclass(frozen=True)
class Outcome:
    """Seconds of each round, the first with its start-up, and the final global model."""

    seconds: list[float]
    final: Weights
    version: str


class SkippedError(Exception):
    """A framework that is not installed, or did not do the work; the text says why."""


def measure(
    cases: Sequence[tuple[str, int]] = CASES,
    frameworks: Sequence[str] = FRAMEWORKS,
    rounds: int = 6,
    clients: int = 20,
    samples: int = 600,
) -> list[dict[str, Any]]:
    """A row for each case (model, batch size) and framework; `skipped` says why a framework has no numbers.

    M1 trains on synthetic pixels, `samples` for each client; mlp on scikit-learn's digits, divided equally.
    """
    if rounds < 2:
        raise FeddagError(f"rounds = {rounds} is not possible: at least 2 are needed, one for start-up")
    for name in frameworks:
        if name not in FRAMEWORKS:
            raise FeddagError(f"frameworks: '{name}' is not measured; allowed are {', '.join(FRAMEWORKS)}")
    for model, _ in cases:
        if model not in peers.NETWORKS:
            raise FeddagError(f"cases: '{model}' is not measured; allowed are {', '.join(peers.NETWORKS)}")
    rows: list[dict[str, Any]] = []
    for model, batch_size in cases:
        case = _measure(model, batch_size, frameworks, rounds, clients, samples)
        ours = next((row["later"] for row in case if row["framework"] == REFERENCE), None)
        rows += [row | {"ratio": row["later"] and ours and round(row["later"] / ours, 2)} for row in case]
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            *(row["framework"], row["version"] or "-", row["model"], str(row["batch_size"])),
            *(shown(row["first"], 3), shown(row["later"], 4), shown(row["ratio"], 1, "x")),
            *(shown(row["loss_after"], 3), row["skipped"] or ""),
        ]
        for row in rows
    ]


def _measure(
    model: str, batch_size: int, frameworks: Sequence[str], rounds: int, clients: int, samples: int
) -> list[dict[str, Any]]:
    spec = MODELS[model]
    dataset = load("digits") if model == "mlp" else synthetic_dataset(clients * samples, spec.shape)
    data = split_into_clients(dataset, [len(part) for part in np.array_split(dataset.y_train, clients)])
    settings = LocalSettings(epochs=1, batch_size=batch_size, lr=peers.LR, momentum=peers.MOMENTUM, weight_decay=0.0)
    first = spec.initial_weights(0, "model")  # what Federation.initial_weights gives
    x, y = to_tensor(data.x, data.mean, data.std), torch.from_numpy(data.y)

    def loss(weights: Weights) -> float:
        return mean_loss(TorchTrainer(spec).score(weights, x, y))

    def run(name: str, folder: Path) -> Outcome:
        if name in peers.PEERS:
            return _peer(name, folder, rounds)
        return _feddag(data, WorkerConfig(spec, settings, 0), name == REFERENCE, rounds)

    before = loss(first)
    rows = []
    with tempfile.TemporaryDirectory(prefix="feddag-bench-") as folder:
        _write_work(Path(folder), data, first, model, batch_size)
        for name in frameworks:
            row: dict[str, Any] = {"framework": name, "version": None, "model": model, "batch_size": batch_size}
            row |= {"clients": clients, "samples": len(y), "rounds": rounds, "first": None, "later": None}
            row |= {"seconds": [], "loss_before": round(before, 4), "loss_after": None, "skipped": None}
            try:
                outcome = run(name, Path(folder))
                row |= {"version": outcome.version, "loss_after": round(loss(outcome.final), 4)}
                if not row["loss_after"] < LEARNT * before:
                    raise SkippedError(f"it has not learnt: the loss went from {before:.3f} to {row['loss_after']:.3f}")
                row |= {"first": outcome.seconds[0], "later": statistics.median(outcome.seconds[1:])}
                row |= {"seconds": outcome.seconds}
            except SkippedError as reason:
                row["skipped"] = str(reason)
            rows.append(row)
        for row in rows:
            if row["framework"] == REFERENCE and row["later"]:
                row["seconds"] += run(REFERENCE, Path(folder)).seconds[1:]
                row["later"] = statistics.median(row["seconds"][1:])
    return rows


def _feddag(data: ClientData, config: WorkerConfig, natively: bool, rounds: int) -> Outcome:
    network = native_network(config.model) if natively else None
    if natively and network is None:
        raise SkippedError("there is no native trainer here")
    clock = peers.Clock()
    engine = LocalEngine(data, WorkerConfig(config.model, config.settings, config.seed, network), CORES)
    try:
        federation = Federation(engine, config.model, config.seed, participation=1.0)
        method = FedAvg(MethodSettings())
        method.start(federation)
        for number in range(1, rounds + 1):
            federation.begin_round(number)
            method.round(federation, method.sample(federation))
            clock.round_done()
    finally:
        engine.close()
    return Outcome(clock.seconds(), method.weights, __version__)


def _write_work(folder: Path, data: ClientData, first: Weights, model: str, batch_size: int) -> None:
    """Put the work where a peer's process finds it (see `peers.Work`)."""
    np.save(folder / "x.npy", to_tensor(data.x, data.mean, data.std).contiguous().numpy())
    np.save(folder / "y.npy", data.y)
    np.save(folder / "offsets.npy", data.offsets)
    peers.save_weights(folder / "first.npz", first)
    about = {"model": model, "num_classes": int(data.num_classes), "batch_size": batch_size}
    write_atomically(folder / "about.json", json.dumps(about | {"clients": len(data.offsets) - 1}))


def _peer(name: str, folder: Path, rounds: int) -> Outcome:
    """Run a peer's process to its end and read what it leaves."""
    python = os.environ.get("FEDDAG_PEER_PYTHON") or sys.executable
    workers = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={CORES}") if name == "pfl" else ()
    command = [python, *workers, peers.__file__, name, str(folder), str(rounds)]
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
        )
    except OSError as error:
        raise FeddagError(f"FEDDAG_PEER_PYTHON = '{python}' cannot be run: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=PEER_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise SkippedError(f"it did not finish within {PEER_TIMEOUT:.0f} s") from None
    finally:
        if process.poll() is None:
            _end(process)
    report = _last_json(output)
    if report is None:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no message")
        raise SkippedError(f"it failed with exit code {process.returncode}: {told[:200]}")
    if "skipped" in report:
        raise SkippedError(report["skipped"])
    final = peers.load_weights(folder / f"{name}.npz")
    return Outcome([report["first"], *report["later"]], final, report["version"])


def _end(process: subprocess.Popen[str]) -> None:
    """End it and its workers: with SIGTERM, and after a while with SIGKILL."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            return


def _last_json(output: str) -> dict[str, Any] | None:
    """The last line that is a JSON object; frameworks print lines of their own around it.

    >>> _last_json('hello\\n{"first": 1.5}\\nbye\\n')
    {'first': 1.5}
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return None
