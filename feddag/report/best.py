"""Which method is best, and how sure that is: what a comparison says first."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from feddag.errors import counted, listed
from feddag.records import ResultRecord
from feddag.runner.verdict import SAME, method_name

TOLD_THE_GROUPS = "oracle"
ByMethod = Mapping[str, Sequence[ResultRecord]]  # under the names that they are shown by


def shown_names(results: Iterable[ResultRecord]) -> dict[str, str]:
    """What each method is called: its own name, but where two of them share one, as the experiment says.

    >>> shown_names([{"method": "a:Mine"}, {"method": "fedavg"}])
    {'a:Mine': 'Mine', 'fedavg': 'fedavg'}
    >>> shown_names([{"method": "a:Mine"}, {"method": "b:Mine"}])
    {'a:Mine': 'a:Mine', 'b:Mine': 'b:Mine'}
    """
    names = {result["method"]: method_name(result) for result in results}
    taken = Counter(names.values())
    return {method: name if taken[name] == 1 else method for method, name in names.items()}


def clearly_best(scores: Sequence[Sequence[float]]) -> int | None:
    """Which has the highest mean by more than the larger standard deviation of it and the next; None if none has.

    >>> clearly_best([[0.9, 0.92], [0.7, 0.72]]), clearly_best([[0.9, 0.92], [0.88, 0.92]])
    (0, None)
    """
    if len(scores) < 2:
        return None
    order = np.argsort([-np.mean(values) for values in scores], kind="stable")
    first, second = scores[order[0]], scores[order[1]]
    if min(len(first), len(second)) < 2:
        return None  # a single run has no spread
    spread = max(np.std(first, ddof=1), np.std(second, ddof=1))
    return int(order[0]) if np.mean(first) - np.mean(second) > spread else None


def say_best(by_method: ByMethod) -> str:
    """One sentence on methods in one setting, by their accuracy over seeds; `oracle` is told apart from the others.

    >>> result = {"seed": 0, "accuracy": {"mean": 0.9}}
    >>> say_best({"a": [result | {"method": "a"}], "b": [{"seed": 0, "accuracy": {"mean": 0.7}, "method": "b"}]})
    'a is ahead: 0.900 against b 0.700. One seed does not tell how sure that is.'
    """
    means = {name: float(np.mean(_accuracies(results))) for name, results in by_method.items()}
    told = {name: means[name] for name, results in by_method.items() if results[0]["method"] == TOLD_THE_GROUPS}
    ranked = sorted((name for name in means if name not in told), key=lambda name: -means[name]) or list(told)
    best, others = ranked[0], [f"{name} {means[name]:.3f}" for name in ranked[1:]]
    against = f" against {listed(others)}" if others else ""
    seeds = min(len(results) for results in by_method.values())
    if not others:
        said = f"{best} has {means[best]:.3f}"
    elif seeds < 2 and means[best] - means[ranked[1]] <= SAME:
        said = f"{best} and {ranked[1]} are as good: {means[best]:.3f}{against}"
    elif seeds < 2:
        said = f"{best} is ahead: {means[best]:.3f}{against}"
    elif clearly_best([_accuracies(by_method[name]) for name in ranked]) == 0:
        said = f"{best} is clearly best: {means[best]:.3f}{against}"
    else:
        said = f"no clear winner over {counted(seeds, 'seed')}: {best} has {means[best]:.3f}{against}"
    known = [f"; knowing the true groups (oracle) {means[name]:.3f}" for name in told if name != best]
    sure = " One seed does not tell how sure that is." if seeds < 2 and others else ""
    return f"{said[0].upper() if said.startswith('no ') else said[0]}{said[1:]}{''.join(known)}.{sure}"


def say_best_of_settings(settings: Sequence[ByMethod]) -> str:
    """The same over several settings: in how many of them each method is clearly best."""
    winners: Counter[str] = Counter()
    for by_method in settings:
        names = [name for name, results in by_method.items() if results[0]["method"] != TOLD_THE_GROUPS]
        best = clearly_best([_accuracies(by_method[name]) for name in names])
        winners[names[best] if best is not None else ""] += 1
    clear = [f"{name} in {times}" for name, times in winners.most_common() if name]
    if not clear:
        return f"No method is clearly best in any of {len(settings)} settings."
    without = f"; no clear winner in {winners['']}" if winners[""] else ""
    return f"Clearly best: {listed(clear)} of {len(settings)} settings{without}."


def _accuracies(results: Sequence[ResultRecord]) -> list[float]:
    return [result["accuracy"]["mean"] for result in results]
