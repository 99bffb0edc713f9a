"""The server's side of a federation: the same loop as on one machine, with clients that are far away."""

import os
import secrets
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feddag.deploy.app import EXPERIMENT, Task
from feddag.deploy.keys import read_client_keys
from feddag.deploy.preload import plain_logs
from feddag.engines.flower.engine import ExchangePolicy, FlowerEngine
from feddag.engines.flower.grid import GridTransport
from feddag.engines.flower.parts import sooner
from feddag.engines.flower.status import Status
from feddag.errors import FeddagError, counted
from feddag.experiment import Experiment, read_experiment
from feddag.files import write_atomically
from feddag.records import RoundRecord
from feddag.runner.directory import RunDirectory
from feddag.runner.loop import RunContext
from feddag.runner.run import context_of, prepare, run_on

ORPHAN_SECONDS = 30.0


def serve(grid: Any, run_config: Mapping[str, Any], folder: Path) -> None:
    """Run the app in this folder and write everything to the run directory `out`; with `resume`, continue its run."""
    end_with_parent()
    plain_logs()
    if module := sys.modules.get("flwr.superlink.grid.http_grid"):
        sooner(module)
    try:
        _serve(grid, run_config, folder)
    except FeddagError:
        sys.tracebacklimit = 0  # Flower logs the error: its sentence is enough
        raise


def _serve(grid: Any, run_config: Mapping[str, Any], folder: Path) -> None:
    torch.set_num_threads(1)  # as the local engine: sums then run in one order
    experiment, policy = read_experiment(folder / EXPERIMENT, {}), _policy(run_config)
    files, resume = RunDirectory(Path(str(run_config["out"])).expanduser()), bool(run_config["resume"])
    if not resume and files.history.exists():
        raise FeddagError(
            f"run directory '{files.path}' holds a run; go on with it (--run-config 'resume=true') or name another "
            "(--run-config 'out=\"second\"')"
        )
    if resume and files.read_final_result() is not None:
        print(f"feddag: the run in '{files.path}' has finished already")
        return
    context = _context(experiment, Task.read(folder), policy, files)
    with files.locked():
        write_atomically(files.experiment, experiment.to_toml())
        keys = str(run_config.get("keys", ""))
        bound = read_client_keys(Path(keys).expanduser()) if keys else None
        status, name = Status(files.path), _run_name(files, resume)
        engine = FlowerEngine(GridTransport(grid), name, context.clients, policy, keys=bound, status=status)
        engine.gather(lambda text: print(f"feddag: {text}", flush=True))
        run_on(engine, experiment, files, context, resume, _say)


def end_with_parent(grace: float = ORPHAN_SECONDS) -> None:
    """End this process some seconds after the Flower program that started it, or it would keep the run directory.

    Flower ends an app whose SuperLink was killed by an interrupt, which at times hangs in its clean-up. An app that
    was started by hand has no `--parent-pid`, and lives on.
    """
    if "--parent-pid" not in sys.argv:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        time.sleep(grace)
        os._exit(1)  # files are written atomically, and the lock ends with the process

    threading.Thread(target=watch, daemon=True).start()


def _context(experiment: Experiment, task: Task, policy: ExchangePolicy, files: RunDirectory) -> RunContext:
    """What is known about the clients: little, unless the data were divided on this machine to try things out."""
    clients = experiment.clients
    if clients is None:
        raise FeddagError("clients is missing: say how many clients there may be")
    if policy.minimum > clients:
        raise FeddagError(f"run config minimum = {policy.minimum} is not allowed: there are {clients} clients at most")
    trainer = f"{experiment.trainer}, on Flower nodes"
    if files.partition.exists():
        dataset, partition, config = prepare(experiment)
        return replace(context_of(dataset, partition, config), trainer=trainer, minimum=policy.minimum)
    if experiment.method_class.needs_truth:
        raise FeddagError(f"method = '{experiment.method}' needs true groups, and a real federation has none")
    return RunContext(task.model(experiment), trainer, clients, samples=task, minimum=policy.minimum)


def _policy(run_config: Mapping[str, Any]) -> ExchangePolicy:
    values = {}
    for name in ("deadline", "minimum", "patience", "largest-reply"):
        value = run_config[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise FeddagError(f"run config {name} = {value!r} is not allowed: it should be a number above 0")
        values[name] = value
    megabytes = int(values["largest-reply"])
    return ExchangePolicy(float(values["deadline"]), int(values["minimum"]), int(values["patience"]), megabytes * 2**20)


def _run_name(files: RunDirectory, resume: bool) -> str:
    """The name under which nodes keep their memory: new for a new run, the same after a resume."""
    path = files.path / "federation-name"
    if not resume or not path.exists():
        write_atomically(path, secrets.token_hex(8))
    return path.read_text().strip()


def _say(record: RoundRecord) -> None:
    absent = len(record["missing"])
    missing = f", {counted(absent, 'answer')} missing" if absent else ""
    print(f"feddag: round {record['round']}, accuracy {record['accuracy']['mean']:.3f}{missing}", flush=True)
