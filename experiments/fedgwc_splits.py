"""When does FedGWC split, and does it find the groups? On digits, 30 clients, of whom 9 take part in a round.

python experiments/fedgwc_splits.py                      # fedgwc in every setting, seeds 100-104
python experiments/fedgwc_splits.py fedgwc-paper,fedgwc-released "one distribution,clean and noisy"
python experiments/fedgwc_splits.py fedgwc "one distribution" 100-149
"""

import sys
from typing import Any

import feddag

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


def main(methods: str = "fedgwc", settings: str = ",".join(SETTINGS), seeds: str = "100-104") -> None:
    first, last = map(int, seeds.split("-"))
    print("| setting | method | runs that split | first split, round | clusters | ARI |\n| --- " + "| --- " * 5 + "|")
    chosen = [name for name in SETTINGS if name in settings]
    for name, method in [(name, method) for name in chosen for method in methods.split(",")]:
        rounds, found, ari = [], [], []
        for seed in range(first, last + 1):
            run = feddag.run(feddag.Experiment(method=method, seed=seed, **SETTINGS[name], **COMMON))
            splits = [
                r["round"] for r in run.history for e in r["events"] if isinstance(e, dict) and e["kind"] == "split"
            ]
            rounds += splits[:1]
            found.append(len(set(run.clusters or ())))
            ari.append(run.result["ari"])
        scores = " ".join("-" if score is None else f"{score:.2f}" for score in ari[:10])
        print(
            f"| {name} | `{method}` | {len(rounds)} of {last + 1 - first} | {' '.join(map(str, rounds)) or '-'} "
            f"| {' '.join(map(str, found[:10]))} | {scores} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
