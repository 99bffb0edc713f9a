"""For people who live in TensorBoard or MLflow: observers that write every round there too."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError, nearest
from feddag.experiment import Experiment
from feddag.records import RoundRecord

Logger = Callable[[RoundRecord], None]


def numbers_of(record: RoundRecord) -> dict[str, float]:
    """The numbers of a round under names that both tools accept.

    >>> block = {"mean": 0.5, "std": 0.1, "worst_decile": 0.2}
    >>> sent = {"bytes_up": 10, "bytes_down": 20, "sample_passes": 3, "seconds": 1.5}
    >>> numbers_of({"accuracy": block, "loss": None, "clusters": [0, 1, None, 0], **sent})["clusters"]
    2
    """
    accuracy = record["accuracy"]
    found: dict[str, float | None] = {
        "accuracy/mean": accuracy["mean"],
        "accuracy/std": accuracy["std"],
        "accuracy/worst_decile": accuracy["worst_decile"],
        "loss": record["loss"],
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "sample_passes": record["sample_passes"],
        "seconds": record["seconds"],
        "clusters": None if record["clusters"] is None else len(set(record["clusters"]) - {None}),
    }
    return {name: value for name, value in found.items() if value is not None}


def tensorboard(directory: Path, experiment: Experiment) -> Logger:
    """Event files in `directory/tensorboard`: `tensorboard --logdir RUN_DIR`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise FeddagError("--log 'tensorboard' needs TensorBoard: pip install 'feddag[loggers]'") from None

    @cache  # made with the first round: a new run wants its directory empty
    def writer() -> Any:
        made: Any = SummaryWriter(str(directory / "tensorboard"))
        made.add_text("experiment", f"```\n{experiment.to_toml()}```")
        return made

    def write(record: RoundRecord) -> None:
        for name, value in numbers_of(record).items():
            writer().add_scalar(name, value, record["round"])
        writer().flush()

    return write


def mlflow(directory: Path, experiment: Experiment) -> Logger:
    """A run in MLflow, wherever MLFLOW_TRACKING_URI says."""
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise FeddagError("--log 'mlflow' needs MLflow: pip install 'feddag[loggers]'") from None
    client = MlflowClient()
    known = client.get_experiment_by_name("feddag")
    run = client.create_run(
        known.experiment_id if known else client.create_experiment("feddag"), run_name=directory.name
    )
    for name, value in experiment.resolved().items():
        client.log_param(run.info.run_id, name, value)

    def write(record: RoundRecord) -> None:
        for name, value in numbers_of(record).items():
            client.log_metric(run.info.run_id, name, value, step=record["round"])
        if experiment.is_over(record["round"], record.get("training_flops", 0)):
            client.set_terminated(run.info.run_id)

    return write


LOGGERS = {"tensorboard": tensorboard, "mlflow": mlflow}


def loggers(names: str, directory: Path, experiment: Experiment) -> list[Logger]:
    """The loggers that a comma-separated list names."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in LOGGERS:
            raise FeddagError(f"--log '{name}' is not one of {', '.join(LOGGERS)}{nearest(name, LOGGERS)}")
    return [LOGGERS[name](directory, experiment) for name in wanted]
