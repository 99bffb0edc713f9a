"""Methods on a level field: the same stabilisers for all, and as much training for each as the costliest takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from feddag.experiment import DEFAULT_METHOD, Experiment
from feddag.methods import find_method
from feddag.records import ResultRecord
from feddag.runner.compare import Compared

STABILISERS = ("sampling", "balanced", "smoothing", "head", "softmax")
PROBE_ROUNDS = 2  # what the second takes, each further one will take; the first may begin with a warm-up

Compare = Callable[[Sequence[Experiment]], Iterable[Compared]]


def stabilisers() -> dict[str, Any]:
    """The fields that are made equal, as the default method has them: it has the most.

    >>> stabilisers()
    {'sampling': 'clusters', 'balanced': True, 'smoothing': 0.7, 'head': 'sharp', 'softmax': 'held'}
    """
    fields = find_method(DEFAULT_METHOD).Settings.model_fields
    return {name: fields[name].default for name in STABILISERS}


def compare_level(experiments: Sequence[Experiment], compare: Compare, probe: Compare) -> list[Compared]:
    """The results of experiments in which every method trains as many FLOPs as the costliest, seed by seed.

    `probe` tells from a few rounds of the first seed which that is. It is run as it stands; all others go on for the
    least number of rounds that take as much. Should another one turn out to be costlier, it is what the others are
    held against. Less than a round's work is no difference: rounds are whole, and clients of unequal quantities are
    drawn. So the last method, which the others are compared with, counts as the costliest if it is one of several.
    """
    rounds = experiments[0].rounds
    costs = {each.experiment.method: _expected(each.result, rounds) for each in probe(_probes(experiments))}
    last = experiments[-1].method
    most = max(costs, key=lambda method: costs[method])
    costliest = most if _costlier(costs[most], costs[last], rounds) else last
    found: dict[int, Compared] = {}
    wanted: dict[int, int] = {}
    turn = [number for number, experiment in enumerate(experiments) if experiment.method == costliest]
    while turn:
        budgeted = [_with_budget(experiments[number], wanted) for number in turn]
        found |= dict(zip(turn, compare(budgeted), strict=True))
        for number, each in found.items():
            if each.result["rounds"] == experiments[number].rounds:  # as it stands
                seed, taken = each.experiment.seed, trained(each.result)
                if _costlier(taken, wanted.get(seed, 0), rounds):
                    wanted[seed] = taken
        turn = [
            number
            for number, experiment in enumerate(experiments)
            if number not in found or trained(found[number].result) < wanted[experiment.seed]
        ]
    return [found[number] for number in range(len(experiments))]


def trained(result: ResultRecord) -> int:
    """The training FLOPs of a run; 0 for a result that is too old to tell."""
    return result.get("training_flops", 0)


def level_note(runs: Sequence[tuple[Mapping[str, Any], ResultRecord]]) -> str:
    """What was made equal and what it took, in one line; runs are the fields of experiments and their results."""
    fields = runs[0][0]
    same = ", ".join(f"{name} = {str(fields[name]).lower()}" for name in STABILISERS if name in fields)
    wanted = [flops for told, _ in runs if (flops := told.get("training_flops"))]
    wanted = wanted or [trained(result) for _, result in runs]  # they were level as they stood
    rounds: dict[str, set[int]] = {}
    for _, result in runs:
        rounds.setdefault(result["method"], set()).add(result["rounds"])
    each = ", ".join(f"{method} {span(taken)} rounds" for method, taken in rounds.items())
    return f"level: the same stabilisers ({same}), rounds extended to {_teraflops(wanted)} TFLOP: {each}"


def _probes(experiments: Sequence[Experiment]) -> list[Experiment]:
    short = {"rounds": PROBE_ROUNDS, "drift_round": 0, "finetune": False}
    return [each.with_(**short) for each in experiments if each.seed == experiments[0].seed]


def _expected(result: ResultRecord, rounds: int) -> float:
    """The FLOPs of so many rounds, from those of a few."""
    by_round = result["training_flops_by_round"]
    return by_round[-1] + (rounds - len(by_round)) * (by_round[-1] - by_round[-2])


def _costlier(flops: float, others: float, rounds: int) -> bool:
    """Whether that is a round's work more, or anything beside nothing."""
    return flops > others * (1 + 1 / rounds)


def _with_budget(experiment: Experiment, wanted: Mapping[int, int]) -> Experiment:
    return experiment.with_(training_flops=wanted[experiment.seed]) if wanted else experiment


def _teraflops(flops: Sequence[int]) -> str:
    low, high = (f"{value / 1e12:.3g}" for value in (min(flops), max(flops)))
    return low if low == high else f"{low}-{high}"


def span(numbers: Iterable[int]) -> str:
    """One number, or the least and the largest of several.

    >>> span([3, 3]), span([2, 5, 4])
    ('3', '2-5')
    """
    known = sorted(numbers)
    return str(known[0]) if known[0] == known[-1] else f"{known[0]}-{known[-1]}"
