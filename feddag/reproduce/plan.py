"""What a table still needs: the runs that are left, how long they will take here, and running them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from feddag.experiment import Experiment
from feddag.records import ResultRecord
from feddag.reproduce.cells import cells_of
from feddag.reproduce.estimate import estimate, in_words, prepared
from feddag.reproduce.published import Published, Scale
from feddag.reproduce.thresholds import Search, find_searches, searched
from feddag.runner.compare import compare_methods, find_results
from feddag.runner.loop import Observer

SEARCH_SECONDS = 20.0
"""A search for groups, roughly: it is not worth a measurement."""

Watching = Callable[[Experiment], AbstractContextManager[Observer]]


class Plan:
    """The cells of a table, what is known of them, and what is left to run; it learns how long runs really take."""

    def __init__(
        self,
        published: Published,
        scale: Scale,
        seeds: Sequence[int],
        runs: Path,
        results: Path,
        *,
        fresh: bool = False,
    ) -> None:
        """Refuses what cannot be run before anything is. `fresh` forgets what is known and runs everything anew."""
        self.published, self.fresh = published, fresh
        self.cells = cells_of(published, scale, seeds)
        self.experiments = {e.key(): e for cell in self.cells for e in cell.experiments}
        self.results: dict[str, ResultRecord] = {}
        self.searches: dict[str, Search] = {}
        self._folders = runs, results
        self._searches = published.shows == "thresholds"
        known = set[str]()
        if not fresh and self._searches:
            self.searches = find_searches(self._folders)
            known = set(self.searches)
        elif not fresh:
            self.results = find_results(self._folders)
            known = set(self.results)
        self.left = {key: experiment for key, experiment in self.experiments.items() if key not in known}
        self._seconds = self._estimate(runs)
        self._expected = self._spent = 0.0

    def _estimate(self, runs: Path) -> dict[str, float]:
        if not self._searches:
            return estimate(self.left.values(), runs)
        return {experiment.key(): SEARCH_SECONDS for experiment, _ in prepared(self.left.values())}

    def sentence(self) -> str:
        """What there is to do, and how long it will take."""
        total = len(self.experiments)
        several = "searches for groups" if self._searches else "runs"
        kind = several if total != 1 else "search for groups" if self._searches else "run"
        if not total:
            return "nothing of this can be run here"
        if not self.left:
            return f"{total} {kind}, {'all ' if total > 1 else ''}already done"
        return f"about {self.time_left()} on this machine: {total} {kind}, {total - len(self.left)} already done"

    def time_left(self) -> str:
        """In words; what was estimated is corrected by how long runs have taken so far."""
        slower = self._spent / self._expected if self._expected else 1.0
        return in_words(slower * sum(self._seconds[key] for key in self.left))

    def carry_out(self, watching: Watching, *, keep: bool = False) -> Iterator[tuple[Experiment, float]]:
        """Run what is left: each experiment when it is done, and the seconds it took. `keep` is as in `compare`."""
        began = time.perf_counter()
        for experiment in self._each(watching, keep):
            key, seconds = experiment.key(), time.perf_counter() - began
            if key in self.left:
                del self.left[key]
                self._expected += self._seconds[key]
                self._spent += seconds
                yield experiment, seconds
            began = time.perf_counter()

    def _each(self, watching: Watching, keep: bool) -> Iterator[Experiment]:
        experiments = list(self.experiments.values())
        if self._searches:
            for experiment, search in searched(experiments, *self._folders, keep=keep, fresh=self.fresh):
                self.searches[experiment.key()] = search
                yield experiment
            return
        for each in compare_methods(experiments, *self._folders, watching, keep=keep, fresh=self.fresh):
            self.results[each.experiment.key()] = each.result
            yield each.experiment
