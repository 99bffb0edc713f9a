"""The loop: sample clients, let the method do a round, evaluate, record, checkpoint."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from feddag.answers import far_beyond
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Engine, Federation, Traffic
from feddag.methods import method_label
from feddag.models import ModelSpec
from feddag.records import DriftReport, ResultRecord, RoundRecord
from feddag.runner.directory import RunDirectory
from feddag.runner.evaluation import Evaluation
from feddag.runner.personal import Personal
from feddag.runner.results import (
    DECIMALS,
    Accuracy,
    block,
    drift_report,
    over_rounds,
    placed_right,
    score_groups,
    tail,
    traffic_block,
    versions,
    volatility,
)
from feddag.runner.serving import SampleFormat
from feddag.runner.trees import save_tree
from feddag.weights import ClientId

SCHEMA = 1
MOST_TIMES = 1000  # the rounds that were asked for, on the way to FLOPs that were asked for
SUSPECT = 10.0  # times the usual largest weight, in a round after which models cannot be used

Observer = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class RunContext:
    """What a run is told beside its experiment: the network, what trains it, and what is known about the clients."""

    model: ModelSpec
    trainer: str
    clients: int
    """How many there are or may be."""
    truth: tuple[int, ...] | None = None
    """The true group of each client, where the data were divided by us."""
    truth_at_end: tuple[int, ...] | None = None
    """The same after the last round: clients may have drifted."""
    held_out: tuple[ClientId, ...] = ()
    drifting: tuple[ClientId, ...] = ()
    """Who holds other data after the drift."""
    attackers: tuple[ClientId, ...] = ()
    """Who lies, where an experiment has clients that do."""
    partition_checksum: str | None = None
    class_counts: NDArray[np.int64] | None = None
    """How many samples of each class each client holds, where that is known: clients x classes."""
    samples: SampleFormat | None = None
    """What samples look like, how they are normalised, and what the classes are called, where that is known."""
    minimum: int = 0
    """Fewest usable answers of an exchange; with fewer the run stops and can be resumed."""


class Loop:
    """One run under way."""

    def __init__(
        self,
        experiment: Experiment,
        files: RunDirectory,
        context: RunContext,
        engine: Engine,
        observer: Observer | None,
    ) -> None:
        self.experiment, self.files, self.context = experiment, files, context
        self.engine, self.observer = engine, observer
        kind = experiment.method_class
        truth = dict(enumerate(context.truth)) if kind.needs_truth and context.truth is not None else None
        self.federation = Federation(
            engine,
            context.model,
            experiment.seed,
            experiment.participation,
            truth,
            context.held_out,
            context.minimum,
            experiment.rounds,
        )
        if tell := getattr(observer, "answered", None):
            engine.watch = lambda done, of: tell(self.federation.phase, self.federation.round, done, of)
        self._make_method()
        self.key = experiment.key()
        self.present: tuple[ClientId, ...] = ()
        self.began = time.perf_counter()
        self.seconds_before = 0.0  # spent before a resume
        self.joined = False  # whether clients that were held out have joined, after the last round
        self.tuned = False  # whether clients have chosen what they use from now on
        self.explained: dict[ClientId, int] | None = None  # the groups that grouping.safetensors tells about

    def run_to_end(self, resume: bool) -> ResultRecord:
        """All rounds that are not done yet, and the result."""
        done = self._restore() if resume else None
        self.method.setup(self.federation)
        if done is None:
            self.present = self.federation.clients
            self.method.start(self.federation)
            self.personal.start()
            self._explain()
            self.checkpoint(0)
        number = done or 0
        while not self._is_over(number):
            began = time.perf_counter()
            record = self._rounds(number)
            number = record["round"]
            record["seconds"] = round(time.perf_counter() - began, 4)
            self.files.append(record)
            if self.method.clusters() != self.explained:
                self._explain()
            self.checkpoint(number)
            if self.observer:
                self.observer(record)
        if "by_round" in self.method.diagnostics():  # these have gone on since clusters last changed
            self._explain()
        return self._result()

    def _is_over(self, done: int) -> bool:
        wanted, taken = self.experiment.training_flops, self.federation.traffic.flops.total()
        over = self.experiment.is_over(done, taken)
        if not over and done >= (MOST_TIMES if taken else 1) * self.experiment.rounds:
            raise FeddagError(f"training_flops = {wanted} is out of reach: {done} rounds took {taken} to train")
        return over

    def _rounds(self, done: int) -> RoundRecord:
        """Rounds up to the next that is scored; if models are then of no use, again without whoever caused it."""
        every = self.experiment.evaluate_every
        while True:
            number, peaks, missing = done, dict[ClientId, float](), dict[ClientId, str]()
            while number == done or not (number % every == 0 or self._is_over(number)):
                number += 1
                self._round(number)
                peaks = {**peaks, **{c: max(peak, peaks.get(c, 0.0)) for c, peak in self.federation.peaks.items()}}
                missing |= self.federation.missing
            record = self._record(number, missing)
            culprits = far_beyond(peaks, SUSPECT) if self.evaluation.unusable else []
            if not culprits:
                return record
            self._undo(number, culprits)

    def _round(self, number: int) -> None:
        self.federation.begin_round(number)
        if 0 < self.experiment.join_round <= number:
            self.federation.admit(self.context.held_out)
        self._welcome()
        sampled = self.method.sample(self.federation)
        self.method.round(self.federation, sampled)
        self.personal.round(sampled)
        for client, times in self.method.suspects().items():
            text = f"client {client} sent an update {times:.0f} times as long as usual"
            self.federation.tell("fault", text, [client])

    def _undo(self, number: int, culprits: Sequence[ClientId]) -> None:
        """Go back to before the round, and leave these clients out of it."""
        barred, traffic = self.federation.barred, self.federation.traffic
        self._make_method()
        self._restore()
        self.federation.traffic = traffic  # what travelled has travelled
        self.began = time.perf_counter()
        self.method.setup(self.federation)
        self.federation.barred = barred | dict.fromkeys(culprits, "left out: its weights made the models unusable")
        text = f"round {number} was undone: weights of client {', '.join(map(str, culprits))} made the models unusable"
        self.federation.tell("fault", text, culprits)

    def _make_method(self) -> None:
        self.method = self.experiment.method_class(self.experiment.settings)
        self.evaluation = Evaluation(self.federation, self.method)
        self.personal = Personal(self.experiment, self.federation, self.method)

    def _welcome(self) -> None:
        """Tell the method who came and who went since the last round."""
        before, self.present = self.present, self.federation.clients
        if before is self.present:
            return
        if gone := sorted(set(before) - set(self.present)):
            self.method.leave(self.federation, gone)
        if newcomers := sorted(set(self.present) - set(before)):
            self.method.join(self.federation, newcomers)

    def _explain(self) -> None:
        """Write down what a report needs beside the history: what led to the groups, and who holds which classes."""
        known = {"class_counts": self.context.class_counts, "classes": getattr(self.context.samples, "classes", None)}
        save_tree(self.files.grouping, {**self.method.diagnostics(), **known}, durable=False)
        self.explained = _copied(self.method.clusters())

    def _record(self, number: int, missing: dict[ClientId, str]) -> RoundRecord:
        scores, loss = self.evaluation.scores(self.present)
        accuracy = Accuracy.over(scores)
        traffic = self.federation.traffic
        clusters = self.method.clusters()
        return {
            "round": number,
            "accuracy": {"mean": accuracy.mean, "std": accuracy.std, "worst_decile": accuracy.worst_decile},
            "loss": None if loss is None else round(loss, DECIMALS),
            "clients": list(self.present),
            "per_client": list(accuracy.per_client),
            "clusters": None if clusters is None else [clusters.get(client) for client in self.present],
            "bytes_up": traffic.up.total(),
            "bytes_down": traffic.down.total(),
            "sample_passes": traffic.samples.total(),
            "training_flops": traffic.flops.total(),
            "missing": {str(client): reason for client, reason in missing.items()},
            "events": [event.as_record() for event in self.federation.events()],
        }

    def checkpoint(self, number: int) -> None:
        """Keep all that a resume needs, and the models."""
        counters = vars(self.federation.traffic).items()
        traffic = {
            name: (list(counter), list(counter.values())) for name, counter in counters
        }  # pairs are slow to save
        tree = {
            "key": self.key,
            "present": self.present,
            "method": self.method.state_dict(),
            "traffic": traffic,
            "missing": dict(self.federation.missing),
            "barred": dict(self.federation.barred),
            "chosen": dict(self.evaluation.chosen),
            "model": astuple(self.context.model),
            "holds_states": self.engine.holds_states,
            "joined": self.joined,
            **({} if (held := self._held()) is None else {"classes_held": held}),
            **({"tuned": self.tuned, "common": self.personal.state_dict()} if self.personal.tried else {}),
            "seconds": self._seconds(),
        }
        self.files.save_checkpoint(number, tree, self.engine.states(), self.method.held)

    def _held(self) -> Tensor | None:
        """Which classes each client holds, where models answer only with these and it is known here."""
        return None if self.experiment.settings.softmax == "all" else self.engine.held()

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _restore(self) -> int | None:
        """Go back to the last whole round; returns its number, None if there is none."""
        saved = self.files.load_checkpoint()
        if saved is None:
            self.files.rewind(None)
            return None
        tree = saved.tree
        if tree["key"] != self.key:
            raise FeddagError(
                f"run directory '{self.files.path}' belongs to another experiment, or its data have changed"
            )
        self.files.rewind(tree)
        self.seconds_before = tree["seconds"]
        self.method.load_state_dict(tree["method"])
        self.method.held = saved.held
        self.personal.load_state_dict(tree.get("common", {}))
        self.engine.restore(saved.states)
        self.present = tuple(tree["present"])
        self.explained = _copied(self.method.clusters())
        self.federation.traffic = Traffic(**{name: _counter(counts) for name, counts in tree["traffic"].items()})
        self.federation.missing = dict(tree["missing"])
        self.federation.barred = dict(tree.get("barred", {}))
        self.evaluation.chosen = dict(tree["chosen"])
        return int(tree["round"])

    def _result(self) -> ResultRecord:
        clients = self.present
        history = self.files.read_history()
        truth = self.context.truth_at_end
        rounds = history[-1]["round"]
        self.federation.begin_round(rounds + 1)
        blocks: dict[str, Accuracy | None] = {
            "accuracy": over_rounds(np.mean, tail(history), clients),
            "accuracy_last": over_rounds(np.mean, history[-1:], clients),
            "accuracy_finetuned": self._finetuned(clients),
            "accuracy_best": over_rounds(np.max, history, clients),
        }
        if self.context.attackers:
            honest = [client for client in clients if client not in self.context.attackers]
            blocks["accuracy_honest"] = over_rounds(np.mean, tail(history), honest)
        late = self.context.held_out
        joined, unseen = (late, ()) if self.experiment.join_round else ((), late)
        if joined:
            blocks["accuracy_joined"] = over_rounds(np.mean, tail(history), joined)
        if unseen:
            self.federation.admit(unseen)
            self.method.join(self.federation, unseen)
            self.joined = True
            blocks["accuracy_unseen"] = block(self.evaluation.scores(unseen)[0])
            blocks["accuracy_unseen_finetuned"] = self._finetuned(unseen)
        personal = self.personal.choose([*clients, *unseen], self.evaluation)
        self.tuned = personal is not None
        clusters = self.method.clusters()
        counts, told = self.context.class_counts, self.method.diagnostics()
        clustering = None if clusters is None else score_groups(clusters, truth, counts, told)
        right = None
        if clusters is not None and truth is not None and late:
            right = placed_right(clusters, truth, sorted(set(clients).difference(late)), late)
        found = {
            "schema": SCHEMA,
            "key": self.key,
            **{name: getattr(self.experiment, name) for name in ("method", "dataset", "partition", "seed")},
            **({"method_name": method_label(self.experiment.method)} if ":" in self.experiment.method else {}),
            "rounds": rounds,
            "model": self.context.model.name,
            "clients": self.context.clients,
            "participants": list(clients),
            "held_out": list(unseen),
            **({"joined": list(joined)} if joined else {}),
            **{name: block.as_record() if block else None for name, block in blocks.items()},
            **({} if personal is None else {"personal": personal}),
            "accuracy_by_round": [record["accuracy"]["mean"] for record in history],
            "volatility": volatility(history, clients),
            **({"attackers": list(self.context.attackers)} if self.context.attackers else {}),
            "clusters": None if clusters is None else [clusters.get(client) for client in range(self.context.clients)],
            "truth": None if truth is None else list(truth),
            "ari": clustering and clustering["ari"],
            "clustering": clustering,
            "unseen_placed_right": right,
            "drift": self._drift(history) if self.context.drifting else None,
            **traffic_block(self.federation.traffic, self.context.model, self.context.clients),
            "training_flops_by_round": [record.get("training_flops", 0) for record in history],
            "answers_missing": sum(len(record["missing"]) for record in history),
            "partition_checksum": self.context.partition_checksum,
            "seconds": round(self._seconds(), 3),
            "versions": versions() | {"trainer": self.context.trainer},
        }
        return cast("ResultRecord", found)

    def _finetuned(self, clients: Sequence[ClientId]) -> Accuracy | None:
        if not self.experiment.finetune:
            return None
        with self.federation.in_phase("local epochs"):  # for whoever watches: measurements are not counted
            return block(self.evaluation.scores(clients, finetuned=True)[0])

    def _drift(self, history: Sequence[RoundRecord]) -> DriftReport:
        drifting = self.context.drifting
        others = sorted(set(self.present).difference(drifting))
        return drift_report(history, self.experiment.drift_round, drifting, others)


def _counter(counts: dict[str | ClientId, int] | tuple[list[str | ClientId], list[int]]) -> Counter[Any]:
    """As a checkpoint has it: names and counts, or, from an older version, both in a dict."""
    return Counter(counts if isinstance(counts, dict) else dict(zip(*counts, strict=True)))


def _copied(clusters: dict[ClientId, int] | None) -> dict[ClientId, int] | None:
    return None if clusters is None else dict(clusters)
