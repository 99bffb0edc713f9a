"""Runs to report on: a real one, and one made by hand with names that try to be markup."""

from pathlib import Path

import numpy as np
import pytest

import feddag
from feddag.records import Event
from feddag.report.recorded import RecordedRun

HOSTILE = (
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "x" * 300,
    "🦊 %{x} $1^2$ </script>",
    "שלום עולם",
    "\u202eevil",
    "\x1b]0;taken\x07[red]bold[/red]",
)
HOSTILE_FILE = "<img src=x onerror=\"document.title='taken'\"> 🦊 שלום.npz"


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedDAG on digits: 12 clients in 3 groups, one of them late, some of them drifting."""
    directory = tmp_path_factory.mktemp("runs") / "feddag-run"
    settings = {"drift_round": 2, "drift_every": 1, "holdout": 0.1, "sharing": "encoder", "similarity": "fused"}
    feddag.run(feddag.Experiment(clients=12, groups=3, epochs=1, rounds=4, workers=1, **settings), directory)
    return directory


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run whose dataset, clients and classes are all called something hostile."""
    folder, draw = tmp_path_factory.mktemp("hostile"), np.random.default_rng(0)
    classes = draw.integers(0, 3, 420)
    content = {"x": draw.normal(size=(420, 6)) + classes[:, None], "y": np.array(HOSTILE)[classes]}
    path = folder / HOSTILE_FILE
    with path.open("wb") as file:  # savez would take the name for an ending
        np.savez(file, client=np.array(HOSTILE)[np.arange(420) % len(HOSTILE)], **content)
    told = {"partition": "natural", "participation": 1.0, "rounds": 2, "epochs": 1, "workers": 1}
    feddag.run(feddag.Experiment(dataset=str(path), **told), folder / "feddag")
    feddag.run(feddag.Experiment(dataset=str(path), **told, method="fedavg"), folder / "fedavg")
    return folder / "feddag"


def made_by_hand(clients: int, names: tuple[str, ...] = (), rounds: int = 3, word: str = "digits") -> RecordedRun:
    """A finished run with four clusters, and everything a page can show."""
    draw = np.random.default_rng(0)
    labels = np.arange(clients) % 4
    pairs = labels[:, None] != labels[None]
    condensed = (pairs + draw.uniform(0, 0.1, (clients, clients)))[np.triu_indices(clients, 1)].astype(np.float32)
    grouping = feddag.group(np.where(pairs, 1.0, 0.1) * (1 - np.eye(clients)))
    silent = condensed.copy()
    silent[::5] = np.nan
    counts = draw.integers(0, 90, (clients, 5))
    diagnostics = grouping.to_arrays() | {
        **{"clients": list(range(clients)), "graph": [(0, 1), (1, 0), (2, 3)], "scores": np.arange(16.0).reshape(4, 4)},
        "views": {"data": condensed, "gradient": silent, "classes": condensed},
        "weights": {name: np.full(clients, 1 / 3) for name in ("classes", "data", "gradient")},
        **{"class_counts": counts, "classes": (word, "b", "c", "d", "e")},
    }
    scores = draw.uniform(0.5, 1, clients).round(6).tolist()
    block = {"mean": 0.75, "std": 0.1, "worst_decile": 0.55, "per_client": scores}
    history = [
        {
            **{"round": number, "accuracy": {"mean": 0.7, "std": 0.1, "worst_decile": 0.5}, "loss": 1 / number},
            **{"clients": list(range(clients)), "per_client": scores, "clusters": labels.tolist()},
            **{"bytes_up": number * 10**6, "bytes_down": number * 10**6, "sample_passes": 1, "seconds": 0.5},
            "missing": {"3": f"died of {word}"} if number == 2 else {},
            "events": [Event("join", (1,), f"client 1 joined cluster {word}").as_record()] if number == 3 else [],
        }
        for number in range(1, rounds + 1)
    ]
    result = {
        **{"method": "feddag", "dataset": word, "partition": "label-skew", "seed": 0, "rounds": rounds, "model": "mlp"},
        **{"clients": clients, "participants": list(range(clients)), "held_out": [], "ari": 1.0},
        **{f"accuracy{suffix}": block for suffix in ("", "_last", "_finetuned", "_best")},
        **{"clusters": labels.tolist(), "truth": labels.tolist(), "bytes_up": 3 * 10**6, "bytes_down": 3 * 10**6},
        "bytes_by_phase": {"up": {"train": 3 * 10**6}, "down": {"train": 3 * 10**6}},
        **{"seconds": 1.5, "versions": {"feddag": "0"}, "partition_checksum": "abc", "answers_missing": 1},
        "key": "0",
    }
    experiment = {"method": "feddag", "dataset": word, "partition": "label-skew", "clients": clients, "rounds": rounds}
    return RecordedRun(
        "by-hand", experiment | {"seed": 0}, f"dataset = {word!r}\n", result, history, diagnostics, names
    )
