"""Which tables of kept results there are: a row names an experiment, and what was changed in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kept import MOMENTUM, Row

from experiments.ingredients import INGREDIENTS, OTHERS, RATES, STEPPED, STEPPED_ON, TAKEN_APART, VALIDATED


@dataclass(frozen=True)
class Table:
    """The text of the first column's head, the other columns' names (`vs METHOD`: paired difference), and the rows."""

    head: str
    columns: Sequence[str]
    rows: Sequence[Row]


LOCAL, FEDAVG, ORACLE = "local", "fedavg", "oracle"
STAR, DAGGER, FEDDAG = "feddag-star", "feddag-dagger", "feddag"
PLAIN = ["accuracy", "worst decile", "after local epochs", "best over rounds", "MB up / down per client"]
WHOLE = ["accuracy", "worst decile", "after local epochs", "volatility", "sample passes", "groups found", "paper"]
SIX = (LOCAL, FEDAVG, STAR, DAGGER, FEDDAG, ORACLE)


def named(fields: Mapping[str, Any]) -> str:
    """Fields as they are typed after `--set`.

    >>> named({"source_updates": "sum", "balanced": False})
    '`source_updates=sum balanced=false`'
    """
    return "`" + " ".join(f"{name}={str(value).lower()}" for name, value in fields.items()) + "`"


PRINTED: dict[str, dict[str, str]] = {  # Tables 2-5, 10, 11 and 13 of the paper
    "fmnist-label-skew-q0.25": {FEDAVG: "0.531", STAR: "0.928", DAGGER: "0.926", FEDDAG: "0.938"},
    "fmnist-label-skew-0.3-q1.0": {FEDAVG: "0.772", FEDDAG: "0.984"},
    "fmnist-concept-shift": {FEDAVG: "0.427", STAR: "0.860", DAGGER: "0.859", FEDDAG: "0.889"},
    "fmnist-dirichlet": {FEDAVG: "0.473", STAR: "0.897", FEDDAG: "0.919"},
    "cifar10-label-skew": {FEDAVG: "0.420", STAR: "0.887", DAGGER: "0.888", FEDDAG: "0.908"},
    "cifar10-concept-shift": {FEDAVG: "0.429", STAR: "0.678", DAGGER: "0.675", FEDDAG: "0.699"},
    "pacs-unseen": {FEDAVG: "0.385", FEDDAG: "0.803"},
    "fmnist-newcomers": {FEDDAG: "0.968"},
}
CONCEPTS = {"partition": "concept-shift"}
AT_ONCE = {"secondary_beside": "cluster"}
VISITS = {"sharing": "encoder"}
AS_PRINTED = {"sampling": "all", "balanced": False, "smoothing": 0.0}
SHARING_AS_PRINTED = {
    **{"classifier": "source", "learner_encoders": "sum", "source_updates": "sum"},
    **{"secondary_start": "random", "sources": 2, "alignment": "paper"},
}
SHARING_AS_RELEASED = {
    **{"classifier": "source", "secondary_start": "copy", "sources": 2},
    **{"secondary_beside": "own", "source_updates": "sequence"},
}
PAPER, RELEASED = "feddag-paper", "feddag-released"
SMALL = {
    "small-label-skew-0.2-q1": "label skew 0.2, quantity 1",
    "small-label-skew-0.2-q0.25": "label skew 0.2, quantity 0.25",
    "small-label-skew-0.3-q1": "label skew 0.3, quantity 1",
    "small-label-skew-0.3-q0.25": "label skew 0.3, quantity 0.25",
    "small-concept-shift": "concept shift",
    "small-dirichlet": "Dirichlet 0.25",
}


JUDGED = {"validation": 0.2, "evaluate": "validation"}
FEDAC_PULLS: Sequence[Mapping[str, Any]] = (
    {"pull": 0.1, "pull_encoder": 0.1},
    {"pull": 1.0, "pull_encoder": 0.1},
    {"pull": 0.1, "pull_encoder": 1.0},
    {"pull": 0.1, "pull_encoder": 10.0},
    {"pull": 10.0, "pull_encoder": 0.1},
)
AT_EQUAL_WORK = {
    "small-concept-shift": "concept shift",
    "small-label-skew-0.2-q0.25": "label skew 0.2, quantity 0.25",
    "small-label-skew-0.2-q1": "label skew 0.2",
    "small-label-skew-0.3-q1": "label skew 0.3",
    "small-label-skew-0.3-q0.25": "label skew 0.3, quantity 0.25",
    "small-dirichlet": "Dirichlet 0.25",
    "small-tenth": "a tenth, label skew 0.2",
    "cifar10-few": "a fifth of CIFAR-10",
    "small-pacs": "PACS, domains",
    "small-corruptions": "4 corruptions",
}
FULL_SIZE = {
    "fmnist-concept-shift": "Fashion-MNIST, concept shift",
    "cifar10-concept-shift": "CIFAR-10, concept shift",
    "fmnist-label-skew-q1.0": "Fashion-MNIST, label skew 0.2",
}


def at_equal_work(files: Iterable[str], others: Mapping[str, tuple[str, Mapping[str, Any]]]) -> list[Row]:
    """`feddag` and what `experiments.ingredients` holds against it."""
    return [
        Row(file, method, label, fields=fields, seeds=range(5), costliest=FEDDAG)
        for file in files
        for label, (method, fields) in ({f"`{FEDDAG}`": (FEDDAG, {})} | dict(others)).items()
    ]


def small(*methods: str, costliest: str = "") -> list[Row]:
    """Every small setting with these methods, over seeds 0 to 4; where nothing is renamed `feddag-star` is `feddag`."""
    return [
        Row(file, method, f"{setting}: `{method}`", seeds=range(5), costliest=costliest)
        for file, setting in SMALL.items()
        for method in methods
        if method != STAR or file == "small-concept-shift"
    ]


def rows_of(file: str, *methods: str, seeds: Sequence[int] = (0, 1, 2)) -> list[Row]:
    return [Row(file, method, paper=PRINTED.get(file, {}).get(method, ""), seeds=seeds) for method in methods]


def chosen(method: str, *variants: Mapping[str, Any]) -> list[Row]:
    """Rows of the small federation on which options are chosen."""
    return [
        Row("cifar10-options", method, named(fields) if fields else "as it is", fields=fields, seeds=(100,))
        for fields in variants
    ]


TABLES = {
    "small, as published": Table(
        "a quarter of Fashion-MNIST, seeds 0-4",
        ["accuracy", "vs feddag", "worst decile", "groups found", "TFLOP", "MB up / down per client"],
        small(FEDAVG, ORACLE, PAPER, RELEASED, FEDDAG),
    ),
    "small, level": Table(
        "the same, level",
        ["accuracy", "vs feddag", "worst decile", "rounds", "TFLOP", "MB up / down per client"],
        small(FEDAVG, ORACLE, STAR, FEDDAG, costliest=FEDDAG),
    ),
    "FedAC": Table(
        "CIFAR-10, 100 clients, LeNet-5, 200 rounds, seeds 0-2",
        ["accuracy", "vs fedavg", "worst decile", "groups found", "MB up / down per client"],
        [
            Row(file, method, f"{setting}: {label or f'`{method}`'}", fields=fields)
            for file, setting in (("fedac-dirichlet", "Dirichlet 0.1"), ("fedac-classes", "three classes"))
            for method, label, fields in (
                (FEDAVG, "", {}),
                ("fedper", "", {}),
                ("ifca", "", {}),
                *(("fedac", f"`fedac`, K = {k} at first", {"clusters": k}) for k in (1, 3, 10)),
            )
        ],
    ),
    "FedAC, pulls": Table(
        "three classes, seed 100, validation samples",
        ["accuracy", "worst decile", "groups found"],
        [
            Row("fedac-classes", "fedac", f"{named(fields)}", fields={**JUDGED, **fields}, seeds=(100,))
            for fields in FEDAC_PULLS
        ]
        + [Row("fedac-classes", "fedper", "`fedper`", fields=JUDGED, seeds=(100,))],
    ),
    "FedGWC and FedAC, as published": Table(
        "a quarter of Fashion-MNIST, seeds 0-4",
        ["accuracy", "vs feddag", "worst decile", "groups found", "TFLOP", "MB up / down per client"],
        small("fedgwc", "fedac", FEDDAG),
    ),
    "FedGWC and FedAC, level": Table(
        "the same, level",
        ["accuracy", "vs feddag", "worst decile", "rounds", "TFLOP", "MB up / down per client"],
        small("fedgwc", "fedac", FEDDAG, costliest=FEDDAG),
    ),
    "more rounds, level": Table(
        "concept shift, level, seeds 0-2",
        ["accuracy", "vs oracle", "worst decile", "TFLOP", "MB up / down per client"],
        [
            Row(file, method, f"{rounds} rounds: `{method}`", costliest=FEDDAG)
            for file, rounds in (
                ("small-concept-shift", 15),
                ("small-concept-shift-60", 60),
                ("small-concept-shift-200", 200),
            )
            for method in (ORACLE, FEDDAG)
        ],
    ),
    "FedGWC and FedAC, 60 rounds": Table(
        "level, seeds 0-2",
        ["accuracy", "vs feddag", "worst decile", "groups found", "rounds", "TFLOP"],
        [
            Row(file, method, f"{setting}: `{method}`", costliest=FEDDAG)
            for file, setting in {
                "small-label-skew-60": "label skew 0.2, quantity 0.25",
                "small-concept-shift-60": "concept shift",
            }.items()
            for method in (FEDAVG, ORACLE, "fedgwc", "fedac", FEDDAG)
        ],
    ),
    "baselines, quantity 0.25": Table(
        "quantity 0.25", PLAIN, rows_of("fmnist-label-skew-q0.25", LOCAL, FEDAVG, ORACLE)
    ),
    "baselines, quantity 1": Table(
        "quantity 1", PLAIN, rows_of("fmnist-label-skew-q1.0", LOCAL, FEDAVG, PAPER, RELEASED, FEDDAG, ORACLE)
    ),
    "label skew 0.2": Table("label skew 0.2, quantity 0.25", WHOLE, rows_of("fmnist-label-skew-q0.25", *SIX)),
    "label skew 0.3": Table("label skew 0.3, quantity 1", WHOLE, rows_of("fmnist-label-skew-0.3-q1.0", *SIX)),
    "concept shift": Table(
        "concept shift",
        WHOLE,
        [
            *rows_of("fmnist-concept-shift", *SIX[:4], PAPER, RELEASED),
            Row("fmnist-concept-shift", FEDDAG, f"`{FEDDAG}`, {named(VISITS)}", fields=VISITS),
            *rows_of("fmnist-concept-shift", FEDDAG, ORACLE),
        ],
    ),
    "Dirichlet": Table("Dirichlet 0.25", WHOLE, rows_of("fmnist-dirichlet", *SIX[:-1])),
    "CIFAR-10, label skew": Table(
        "label skew 0.2, quantity 0.25, seed 0", WHOLE, rows_of("cifar10-label-skew", *SIX, seeds=(0,))
    ),
    "CIFAR-10, concept shift": Table(
        "concept shift, seed 0", WHOLE, rows_of("cifar10-concept-shift", *SIX, seeds=(0,))
    ),
    "PACS": Table(
        "PACS, seed 0",
        ["accuracy", "newcomers", "newcomers after local epochs", "placed right", "groups found", "paper"],
        rows_of("pacs-unseen", FEDAVG, STAR, FEDDAG, seeds=(0,)),
    ),
    "feature skew": Table(
        "small, seeds 0-2",
        ["accuracy", "worst decile", "vs oracle", "groups found", "MB up / down per client", "TFLOP"],
        [
            Row(file, method, f"{setting}: `{method}`", seeds=range(3))
            for file, setting in {
                "small-corruptions": "CIFAR-10, 4 corruptions",
                "small-pacs": "PACS",
                "small-office": "Office-Caltech-10",
            }.items()
            for method in (LOCAL, FEDAVG, ORACLE, FEDDAG)
        ],
    ),
    "20 corruptions": Table(
        "a quarter of CIFAR-10, 20 corruptions, seeds 0-2",
        ["accuracy", "newcomers", "newcomers after local epochs", "placed right", "groups found", "TFLOP"],
        rows_of("small-20-corruptions", FEDAVG, ORACLE, PAPER, FEDDAG),
    ),
    "little data, level": Table(
        "a fifth of CIFAR-10, 40 clients, level",
        ["accuracy", "vs feddag", "worst decile", "rounds", "TFLOP", "MB up / down per client"],
        [Row("cifar10-few", method, costliest=FEDDAG) for method in (FEDAVG, ORACLE, FEDDAG)],
    ),
    "little data": Table(
        "a fifth of CIFAR-10, 40 clients",
        WHOLE[:-1],
        [
            *rows_of("cifar10-few", STAR, DAGGER),
            Row("cifar10-few", FEDDAG, f"`{FEDDAG}`, {named(VISITS)}", fields=VISITS),
            *rows_of("cifar10-few", FEDDAG),
            Row("cifar10-few", DAGGER, f"`{DAGGER}`, {named(AT_ONCE)}", fields=AT_ONCE),
            Row("cifar10-few", STAR, f"`{STAR}`, 60 rounds", fields={"rounds": 60}),
        ],
    ),
    "equal passes": Table(
        "Fashion-MNIST, seed 0",
        ["accuracy", "worst decile", "volatility", "sample passes"],
        [
            Row(
                file,
                method,
                f"{name}: `{method}`, {rounds} rounds" + (f", {named(fields)}" if fields else ""),
                fields={"rounds": rounds, **fields},
                seeds=(0,),
            )
            for name, file in (("label skew 0.2", "fmnist-label-skew-q0.25"), ("concept shift", "fmnist-concept-shift"))
            for method, rounds, fields in ((STAR, 30, {}), (STAR, 60, {}), (DAGGER, 30, {}), (FEDDAG, 30, VISITS))
        ],
    ),
    "200 rounds": Table(
        "label skew 0.2, quantity 0.25, seed 0",
        ["accuracy", "worst decile", "after local epochs", "best over rounds", "volatility", "sample passes"],
        [
            Row(
                "fmnist-label-skew-q0.25", FEDDAG, f"`{FEDDAG}`, {rounds} rounds", fields={"rounds": rounds}, seeds=(0,)
            )
            for rounds in (30, 200)
        ],
    ),
    "newcomers": Table(
        "80 clients, then 20",
        ["accuracy", "newcomers", "newcomers after local epochs", "placed right", "paper"],
        rows_of("fmnist-newcomers", FEDDAG),
    ),
    "growth": Table(
        "30 clients, and 10 more from round 6 of 20 on, seeds 0-2",
        ["accuracy", "of those who joined", "worst decile", "groups found", "MB up / down per client"],
        [
            Row(file, method, f"{setting}: `{method}`{shown}", fields=fields)
            for file, setting in {
                "small-growth": "label skew 0.2, quantity 0.25",
                "small-growth-concepts": "concept shift",
            }.items()
            for method, shown, fields in (
                (FEDAVG, "", {}),
                ("ifca", "", {}),
                (FEDDAG, "", {}),
                (FEDDAG, ", `regroup_after=10`", {"regroup_after": 10}),
                (ORACLE, "", {}),
            )
        ],
    ),
    "drift": Table(
        "a fifth changes",
        ["noticed", "false alarms", "drifting: before", "at", "after", "others: after"],
        [Row("fmnist-drift", FEDDAG, "looking for drift"), Row("fmnist-drift-ignored", FEDDAG, "not looking")],
    ),
    "options of sharing": Table(
        "`feddag`, seed 100, validation samples",
        ["accuracy", "worst decile", "volatility"],
        [
            Row("cifar10-options", STAR, f"`{STAR}`", seeds=(100,)),
            Row("cifar10-options", DAGGER, f"`{DAGGER}`", seeds=(100,)),
            Row("cifar10-options", DAGGER, f"`{DAGGER}`, {named(AT_ONCE)}", fields=AT_ONCE, seeds=(100,)),
            *chosen(
                FEDDAG,
                {},
                {"scores": "own"},
                {"classifier": "source"},
                {"learner_encoders": "sum"},
                {"source_updates": "sum"},
                {"source_updates": "sequence"},
                {"secondary_start": "random"},
                {"secondary_start": "copy"},
                {"classifier": "source", "secondary_beside": "own"},
                {"sampling": "all"},
                {"exchange": "borrow"},
                {"sources": 2},
                {"alignment": "paper"},
                {"schedule": "5:1"},
                {"schedule": "1:1"},
                SHARING_AS_PRINTED,
                SHARING_AS_RELEASED,
            ),
        ],
    ),
    "options under concept shift": Table(
        "concept shift, seed 100, validation samples",
        ["accuracy", "worst decile", "volatility"],
        [
            Row("cifar10-options", method, f"`{method}`{shown}", fields=CONCEPTS | fields, seeds=(100,))
            for method, shown, fields in (
                (STAR, "", {}),
                (FEDDAG, "", {}),
                (FEDDAG, ", `scores=own`", {"scores": "own"}),
            )
        ],
    ),
    "protocols": Table(
        "Fashion-MNIST, label skew 0.2, seed 0",
        ["accuracy", "worst decile", "after local epochs", "best over rounds", "volatility"],
        [
            Row("fmnist-label-skew-q0.25", STAR, f"`{STAR}`, {named(AS_PRINTED)}", fields=AS_PRINTED, seeds=(0,)),
            *rows_of("fmnist-label-skew-q0.25", STAR, FEDDAG, ORACLE, seeds=(0,)),
        ],
    ),
    "balanced batches": Table(
        "seeds 100 and 101, validation samples",
        ["accuracy", "worst decile", "volatility"],
        [
            Row("cifar10-options", method, f"`{method}`{shown}", fields=fields, seeds=(100, 101))
            for method in (STAR, FEDDAG)
            for shown, fields in (("", {}), (", `balanced=false`", {"balanced": False}))
        ],
    ),
    "options of stability": Table(
        "`feddag-star`, seed 100, validation samples",
        ["accuracy", "worst decile", "volatility"],
        [
            *chosen(
                STAR,
                AS_PRINTED,
                {},
                {"sampling": "all"},
                {"balanced": False},
                {"smoothing": 0.0},
                {"smoothing": 0.9},
            ),
            *chosen(
                MOMENTUM,
                {"server_momentum": 0.9},
                {"server_momentum": 0.5},
                {"server_momentum": 0.9, "smoothing": 0.0},
                {"server_momentum": 0.5, "smoothing": 0.0},
            ),
        ],
    ),
}


SMALL_ROWS = at_equal_work(AT_EQUAL_WORK, OTHERS)
FULL_ROWS = at_equal_work(FULL_SIZE, OTHERS)
INGREDIENT_ROWS = at_equal_work(TAKEN_APART, {label: (FEDDAG, fields) for label, fields in INGREDIENTS.items()})

RATE_ROWS = [
    Row(file, FEDDAG, f"{AT_EQUAL_WORK[file]}: {label}", fields={**fields, **VALIDATED, "lr": lr}, seeds=(100, 101))
    for file in STEPPED_ON
    for label, fields in STEPPED.items()
    for lr in RATES
]


def all_rows() -> list[Row]:
    """Every row of every table, whichever way it is shown."""
    return [
        *(row for table in TABLES.values() for row in table.rows),
        *SMALL_ROWS,
        *FULL_ROWS,
        *INGREDIENT_ROWS,
        *RATE_ROWS,
    ]
