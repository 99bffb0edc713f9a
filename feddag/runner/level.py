"""Methods on a level field: the same stabilisers for all, and as much training for each as the costliest takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from feddag.experiment import DEFAULT_METHOD, Experiment
from feddag.methods import find_method
from feddag.records import ResultRecord
from feddag.runner.compare import Compared

STABILISERS = ("sampling", "balanced", "smoothing", "head", "softmax")
PROBE = {"rounds": 2, "steps": 5, "finetune": False, "drift_round": 0, "join_round": 0, "evaluate_every": 1}
"""What tells how costly a round is: the first may begin with a warm-up, the second is like all further ones. Equally
many steps for everybody, because who is drawn may hold much more than others."""
COSTLIER = 1.5  # times what a round of the last method takes, so that two encoders count and a probe's chance does not

Compare = Callable[[Sequence[Experiment]], Iterable[Compared]]


def stabilisers(method: str = DEFAULT_METHOD) -> dict[str, Any]:
    """The fields that are made equal, as a method has them; the default method has the most.

    >>> stabilisers()
    {'sampling': 'clusters', 'balanced': True, 'smoothing': 0.7, 'head': 'sharp', 'softmax': 'own'}
    """
    fields = find_method(method).Settings.model_fields
    return {name: fields[name].default for name in STABILISERS}


def compare_level(experiments: Sequence[Experiment], compare: Compare, probe: Compare) -> list[Compared]:
    """The results of experiments in which every method trains as many FLOPs as the costliest, seed by seed.

    The last method, which the others are compared with, counts as the costliest unless another one takes half as much
    again; `probe` tells from two rounds of the first seed. The costliest is run as it stands, all others for the least
    number of rounds that take as much.
    """
    costs = {each.experiment.method: _of_a_round(each.result) for each in probe(_probes(experiments))}
    last = experiments[-1].method
    most = max(costs, key=lambda method: costs[method])
    costliest = most if costs[most] > COSTLIER * costs[last] else last
    standing = list(compare([each for each in experiments if each.method == costliest]))
    wanted = {each.experiment.seed: trained(each.result) for each in standing}
    budgeted = [each.with_(training_flops=wanted[each.seed]) for each in experiments if each.method != costliest]
    found = {(each.experiment.method, each.experiment.seed): each for each in [*standing, *compare(budgeted)]}
    return [found[each.method, each.seed] for each in experiments]


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
    return f"level: the same stabilisers ({same}), trained for {_teraflops(wanted)} TFLOP: {each}"


def _probes(experiments: Sequence[Experiment]) -> list[Experiment]:
    return [each.with_(**PROBE) for each in experiments if each.seed == experiments[0].seed]


def _of_a_round(result: ResultRecord) -> int:
    """The FLOPs of a round after the first."""
    by_round = result["training_flops_by_round"]
    return by_round[-1] - by_round[-2]


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
