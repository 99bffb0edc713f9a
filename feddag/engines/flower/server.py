"""The server's side of a federation: the same loop as on one machine, with clients that are far away."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddag.data.partitions import Partition
from feddag.engines.flower.app import EXPERIMENT, Task
from feddag.engines.flower.engine import FlowerEngine, Terms
from feddag.engines.flower.grid import GridCarrier
from feddag.errors import FeddagError
from feddag.experiment import read_experiment
from feddag.history import Record, RunDirectory, write_atomically
from feddag.run import Setting, run_on


def serve(grid: Any, run_config: Mapping[str, Any], folder: Path) -> None:
    """Run the app in this folder, leaving everything in the run directory `out`; with `resume`, go on with it."""
    experiment = read_experiment(folder / EXPERIMENT, {})
    files = RunDirectory(Path(str(run_config["out"])).expanduser())
    resume = bool(run_config["resume"])
    terms = _terms(run_config)
    if not resume and files.history.exists():
        raise FeddagError(f"run directory '{files.path}' holds a run; give a new one, or go on with resume = true")
    if resume and files.read_result() is not None:
        print(f"feddag: the run in '{files.path}' has finished already")
        return
    task = Task.read(folder)
    with files.locked():
        write_atomically(files.experiment, experiment.to_toml())
        clients = experiment.clients
        if clients is None:
            raise FeddagError("clients is missing: say how many nodes there may be")
        if terms.minimum > clients:
            raise FeddagError(
                f"run config minimum = {terms.minimum} is not allowed: there are {clients} clients at most"
            )
        setting = Setting(
            task.model(experiment), f"{experiment.trainer}, on Flower nodes", clients, minimum=terms.minimum
        )
        if files.partition.exists():  # the data were divided on this machine, to try things out
            partition = Partition.load(files.partition)
            known = {"truth": partition.truth, "held_out": partition.held_out}
            setting = Setting(**vars(setting) | known | {"partition_checksum": partition.checksum()})
        if experiment.method_class.needs_truth and setting.truth is None:
            raise FeddagError(f"method = '{experiment.method}' needs true groups, and a real federation has none")
        engine = FlowerEngine(GridCarrier(grid), _run_name(files, resume), clients, terms)
        engine.gather()
        run_on(engine, experiment, files, setting, resume, _say)


def _terms(run_config: Mapping[str, Any]) -> Terms:
    values = {}
    for name in ("deadline", "minimum", "patience", "largest-reply"):
        value = run_config[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise FeddagError(f"run config {name} = {value!r} is not allowed: it should be a number above 0")
        values[name] = value
    megabytes = int(values["largest-reply"])
    return Terms(float(values["deadline"]), int(values["minimum"]), int(values["patience"]), megabytes * 2**20)


def _run_name(files: RunDirectory, resume: bool) -> str:
    """What nodes keep their memory under: a new name for a new run, the same after a resume."""
    path = files.path / "federation-name"
    if not resume or not path.exists():
        write_atomically(path, secrets.token_hex(8))
    return path.read_text().strip()


def _say(record: Record) -> None:
    missing = f", {len(record['missing'])} answers missing" if record["missing"] else ""
    print(f"feddag: round {record['round']}, accuracy {record['accuracy']['mean']:.3f}{missing}", flush=True)
