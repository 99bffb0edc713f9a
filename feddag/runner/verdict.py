"""What a result means, in one sentence: what was found, whether it is any good, and what to do next."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from feddag.errors import FeddagError, counted, listed
from feddag.experiment import Experiment
from feddag.files import LARGEST_TOML, read_plain
from feddag.records import ResultRecord
from feddag.runner.checked import parse_experiment, read_result
from feddag.runner.naming import compare_command

BASELINES = {
    "local": "training alone",
    "fedavg": "one model for all",
    "oracle": "knowing the true groups",
}
SIMPLE = ("local", "fedavg")  # what anybody could do without groups
CLEAR, FAIR = 0.5, 0.25  # mean silhouettes from which groups are called so, as in `server.confidence`
SAME = 0.01  # a smaller difference of accuracy is called none
WORTH_TUNING = 0.02
FAR_BEHIND = 0.2  # the worst tenth of the clients, behind the mean
MAY_DIFFER = {"method", "workers", "trainer", "training_flops"}  # between runs that are held against each other

Level = Literal["good", "poor", "plain"]


@dataclass(frozen=True)
class Verdict:
    """A result in words. `level` says whether it worked, where that is known."""

    level: Level
    found: str
    worth: str
    next: str

    @property
    def headline(self) -> str:
        """Without what to do next."""
        began = {"good": "It worked: ", "poor": "It did not pay: ", "plain": ""}[self.level]
        said = f"{began}{self.found}; {self.worth}"
        return said[0].upper() + said[1:] + "."

    def __str__(self) -> str:
        return f"{self.headline} Next: {self.next}"


def verdict(
    result: ResultRecord, known: Sequence[ResultRecord] = (), how_to_compare: str = "feddag compare"
) -> Verdict:
    """What a result means. `known` are results of baselines on the same partition.

    >>> block = {"mean": 0.9, "std": 0.0, "worst_decile": 0.85, "per_client": [0.9, 0.9]}
    >>> result = {"method": "feddag", "clients": 2, "clusters": [0, 0], "truth": None, "ari": None, "seed": 0,
    ...           "accuracy": block, "accuracy_finetuned": {**block, "mean": 0.99}}
    >>> print(verdict(result, [{**result, "method": "fedavg", "clusters": None}]))
    No groups: clients differ, but not in groups; accuracy 0.900, as good as one model for all (fedavg, 0.900). Next: \
local epochs add 9 points: serve tuned models
    """
    beside = {each["method"]: each["accuracy"]["mean"] for each in known if each["method"] in BASELINES}
    beside = {name: beside[name] for name in BASELINES if name in beside and name != result["method"]}
    mean = result["accuracy"]["mean"]
    simple = [beside[name] for name in SIMPLE if name in beside]
    level: Level = "plain"
    if simple and result["method"] not in BASELINES and abs(mean - max(simple)) > SAME:
        level = "good" if mean > max(simple) else "poor"
    return Verdict(level, _found(result), _worth(result, beside), _next(result, beside, how_to_compare))


def verdict_of(directory: Path, fields: dict[str, Any], result: ResultRecord, runs: Path | None = None) -> Verdict:
    """The same of a run in its directory, beside the baselines that lie next to it; `fields` are its experiment's.

    `runs` is what that folder is called from where somebody would type what to do next.
    """
    command = "feddag compare"
    if ":" not in fields["method"]:  # else its defaults could be told only by importing it
        with contextlib.suppress(FeddagError):  # fields may be those of another version
            command = compare_command(fields, [*SIMPLE, fields["method"]], runs or directory.parent)
    return verdict(result, known_baselines(directory, fields, result), command)


def method_name(told: Mapping[str, object]) -> str:
    """What the method of a result or an experiment is called; one of the user's own by its name, or by its class.

    >>> method_name({"method": "mine:ByHead"}), method_name({"method": "mine:ByHead", "method_name": "by-head"})
    ('ByHead', 'by-head')
    """
    return str(told.get("method_name") or str(told["method"]).rpartition(":")[2])


def _found(result: ResultRecord) -> str:
    if result["clusters"] is None:
        says = {"local": "every client trained alone", "fedavg": "one model for all clients"}
        return says.get(result["method"], f"{method_name(result)} makes no groups")
    who = [client for client, group in enumerate(result["clusters"]) if group is not None]
    groups = len({result["clusters"][client] for client in who})
    true = None if result["truth"] is None else len(set(result["truth"]))
    if result["method"] == "oracle":
        return f"the {true} true groups were given"
    if groups <= 1 and true is not None and true > 1:
        return f"no groups found where there are {true}"
    if groups <= 1:
        return "no groups: clients differ, but not in groups" if _tuning(result) else "no groups: clients are alike"
    if groups == len(who) and true != groups:
        return "no groups: every client is unlike all others" + (f", where there are {true} groups" if true else "")
    if true is None or result["ari"] is None:
        scores = result.get("clustering")
        return _clearly(groups, scores.get("silhouette") if scores else None)
    if result["ari"] > 0.999:
        return f"{groups} groups found, exactly the true ones"
    how = "almost" if result["ari"] >= 0.8 else "partly" if result["ari"] >= 0.3 else "not"
    return f"{groups} groups found, {how} the {counted(true, 'true one')} (ARI {result['ari']:.2f})"


def _clearly(groups: int, silhouette: float | None) -> str:
    if silhouette is None:
        return f"{groups} groups found"
    how = "clear" if silhouette >= CLEAR else "fairly clear" if silhouette >= FAIR else ""
    return (
        f"{groups} {how} groups found" if how else f"{groups} groups found, hardly apart (silhouette {silhouette:.2f})"
    )


def _worth(result: ResultRecord, beside: dict[str, float]) -> str:
    block = result["accuracy"]
    if not beside:
        return f"accuracy {block['mean']:.3f}, and {block['worst_decile']:.3f} in the worst tenth of clients"
    relations: dict[str, list[str]] = {}
    for name, other in beside.items():
        by = block["mean"] - other
        how = "as good as" if abs(by) <= SAME else "better than" if by > 0 else "worse than"
        relations.setdefault(how, []).append(f"{BASELINES[name]} ({name}, {other:.3f})")
    said = [f"{how} {listed(names)}" for how, names in relations.items()]
    return f"accuracy {block['mean']:.3f}, {', '.join(said)}"


def _next(result: ResultRecord, beside: dict[str, float], how_to_compare: str) -> str:
    """At most two things to do, what matters most first."""
    mean = result["accuracy"]["mean"]
    steps = []
    better = [name for name in SIMPLE if name in beside and beside[name] - mean > SAME]
    if better:
        best = max(better, key=lambda name: beside[name])
        steps.append(f"use {best}, which is {_points(beside[best] - mean)} better here")
    if gain := _tuning(result):
        steps.append(f"local epochs add {_points(gain)}: serve tuned models")
    if _still_rises(result.get("accuracy_by_round", [])):
        steps.append("accuracy still rises: run more rounds")
    if result["accuracy"]["worst_decile"] <= mean - FAR_BEHIND:
        worst = result["accuracy"]["worst_decile"]
        steps.append(f"the worst tenth of clients has {worst:.3f}: look at them client by client")
    if not beside and result["method"] not in SIMPLE:
        steps.append(f"see what training alone and one model for all give: {how_to_compare}")
    return "; ".join(steps[:2]) or "use the models (feddag predict, feddag export)"


def _tuning(result: ResultRecord) -> float:
    """What a client's own local epochs add to the model it has, where that is worth the work; else 0."""
    tuned = result["accuracy_finetuned"]
    gain = tuned["mean"] - result["accuracy"]["mean"] if tuned and result["method"] != "local" else 0.0
    return gain if gain >= WORTH_TUNING else 0.0


def _still_rises(by_round: Sequence[float]) -> bool:
    """Whether the last fifth of the rounds has brought more than nothing."""
    fifth = len(by_round) // 5
    if not fifth:
        return False
    late, before = by_round[-fifth:], by_round[-2 * fifth : -fifth]
    return sum(late) / fifth - sum(before) / fifth > SAME


def _points(difference: float) -> str:
    """A difference of accuracy in per cent.

    >>> _points(0.093), _points(0.0104)
    ('9 points', '1 point')
    """
    return counted(round(100 * difference), "point")


def known_baselines(directory: Path, fields: dict[str, Any], result: ResultRecord) -> list[ResultRecord]:
    """Results of baselines on the same partition, trained in the same way, from the folder that a run lies in."""
    found = []
    for path in sorted(directory.resolve().parent.glob("*/experiment.toml")):
        with contextlib.suppress(FeddagError, OSError):  # another run there may be damaged, or nobody's business
            text = read_plain(path, LARGEST_TOML)
            if not any(f'"{name}"'.encode() in text for name in BASELINES):
                continue  # most are of other methods: quicker than to read what they say
            other, _ = parse_experiment(path)
            if other["method"] not in BASELINES or not _alike(fields, other):
                continue
            beside = read_result(path.with_name("result.json"))
            if beside and beside["partition_checksum"] == result["partition_checksum"] is not None:
                found.append(beside)
    return found


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two experiments differ at most in the method and in what is only its own."""
    may = MAY_DIFFER | ({"rounds"} if one.get("training_flops") or other.get("training_flops") else set())
    shared = (set(one) & set(other) & set(Experiment.model_fields)) - may
    return all(one[name] == other[name] for name in shared)
