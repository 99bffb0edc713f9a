"""When does FedGWC split, and does it find the groups? On digits, 30 clients, of whom 9 take part in a round.

python experiments/fedgwc_splits.py                      # fedgwc in every setting, seeds 300-304
python experiments/fedgwc_splits.py fedgwc-paper,fedgwc-released "one distribution,clean and noisy"
python experiments/fedgwc_splits.py fedgwc "one distribution" 300-339
python experiments/fedgwc_splits.py fedgwc-paper "one distribution" 300-304 epsilon=0.001

The rule was made on seeds 100-199. The last columns ask whether losses hold any trace of the true groups at all,
whoever looks for it. Levels: in how many runs the groups explain more of the clients' losses before the first split
than 95 % of random groups of the same sizes do, and the median share that they explain. Movements: the same for how
much more clients of a group move together than others, from round to round.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feddag
from feddag.fields import parse_setting
from feddag.runner.trees import load_tree
from feddag.server import comovement
from feddag.server.split_test import blocks

SETTINGS: dict[str, dict[str, Any]] = {
    "one distribution": {"partition": "iid"},
    "clean and noisy": {"partition": "heterogeneity-mix", "mix_kind": "domains", "mix": "50,50,0"},
    "clean and blurred": {"partition": "heterogeneity-mix", "mix_kind": "domains", "mix": "50,0,50"},
    "clean, noisy, blurred": {"partition": "heterogeneity-mix", "mix_kind": "domains", "mix": "40,30,30"},
    "10 % all, 90 % one class": {"partition": "heterogeneity-mix", "mix": "10,0,90"},
    "10 % all, 90 % Dirichlet": {"partition": "heterogeneity-mix", "mix": "10,90,0"},
    "40 % all, 30 % Dirichlet, 30 % one class": {"partition": "heterogeneity-mix", "mix": "40,30,30"},
    "three concepts": {"partition": "concept-shift", "concepts": 3},
    "three corruptions": {"partition": "feature-skew", "corruptions": 3},
    "label skew": {"partition": "label-skew", "groups": 3, "label_fraction": 0.3},
    "Dirichlet": {"partition": "dirichlet"},
}
COMMON: dict[str, Any] = {
    **{"clients": 30, "participation": 0.3, "rounds": 60, "epochs": 3, "batch_size": 16},
    **{"finetune": False, "workers": 1},
}
PERMUTATIONS = 999


def explained(levels: np.ndarray, truth: np.ndarray) -> float:
    """The share of the scatter of clients (clients x steps) that lies between groups."""
    off = levels - levels.mean(axis=0)
    between = sum((truth == group).sum() * off[truth == group].mean(axis=0) ** 2 for group in set(truth))
    return float(between.sum() / (off**2).sum())


def trace(directory: Path, truth: list[int] | None, first_split: int) -> list[tuple[float, bool]]:
    """What the true groups explain of mean losses, and of movements, and whether it is more than chance."""
    if truth is None or len(set(truth)) < 2:
        return []
    evidence = load_tree(max(directory.glob("checkpoints/*.safetensors")))["method"]["evidence"]
    seen: dict[int, list[np.ndarray]] = {}
    rounds = [entry for entry in evidence.get("rounds", ()) if entry[0] <= first_split]
    if not rounds:
        return []
    steps = min(losses.shape[1] for _, _, losses in rounds)  # of clients of unequal size: as many as all did
    logs, present = np.zeros((len(rounds), len(truth))), np.zeros((len(rounds), len(truth)), bool)
    for number, (_, clients, losses) in enumerate(rounds):
        values = blocks(np.asarray(losses), steps)
        scaled = (values - values.mean(axis=0)) / (values.std(axis=0) + 1e-12)
        for client, row in zip(clients, scaled, strict=True):
            seen.setdefault(client, []).append(row)
        logs[number, clients], present[number, clients] = np.log(values.mean(axis=1) + comovement.FLOOR), True
    groups, draw = np.array([truth[client] for client in sorted(seen)]), np.random.default_rng(0)
    levels = np.stack([np.mean(seen[client], axis=0) for client in sorted(seen)])
    logs, present = logs[:, sorted(seen)], present[:, sorted(seen)]
    moves = comovement.together(comovement.Slow(present).surprises(logs), present)
    shares: tuple[Callable[[np.ndarray], float], ...] = (
        lambda own: explained(levels, own),
        lambda own: comovement.explained(*moves, own)[0],
    )
    told = []
    for share in shares:
        beaten = sum(share(draw.permutation(groups)) >= share(groups) for _ in range(PERMUTATIONS))
        told.append((share(groups), (beaten + 1) / (PERMUTATIONS + 1) <= 0.05))
    return told


def main(methods: str = "fedgwc", settings: str = "", seeds: str = "300-304", *fields: str) -> None:
    first, last = map(int, seeds.split("-"))
    header = ("setting", "method", "runs that split", "first split, round", "clusters", "ARI", "levels", "movements")
    print("| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|")
    chosen = [settings] if settings in SETTINGS else [name for name in SETTINGS if not settings or name in settings]
    for name, method in [(name, method) for name in chosen for method in methods.split(",")]:
        rounds, found, ari, traces = [], [], [], []
        for seed in range(first, last + 1):
            own = {**SETTINGS[name], **COMMON, **dict(map(parse_setting, fields))}
            with tempfile.TemporaryDirectory() as folder:
                run = feddag.run(feddag.Experiment(method=method, seed=seed, **own), Path(folder) / "r")
                events = [(r["round"], e) for r in run.history for e in r["events"] if isinstance(e, dict)]
                splits = [number for number, event in events if event["kind"] == "split"]
                traces.append(trace(Path(folder) / "r", run.result["truth"], splits[0] if splits else 10**9))
            rounds += splits[:1]
            found.append(len(set(run.clusters or ())))
            ari.append(run.result["ari"])
        known = list(zip(*(one for one in traces if one), strict=True))
        said = [
            f"{sum(sure for _, sure in kind)} of {len(kind)}, {statistics.median(share for share, _ in kind):.2f}"
            for kind in known
        ]
        scores = " ".join("-" if score is None else f"{score:.2f}" for score in ari[:10])
        print(
            f"| {name} | `{method}` | {len(rounds)} of {last + 1 - first} | {' '.join(map(str, rounds)) or '-'} "
            f"| {' '.join(map(str, found[:10]))} | {scores} | {' | '.join(said) or '- | -'} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
