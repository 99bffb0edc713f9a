"""Clients on this machine: many jobs at once on all cores, the same bytes for any number of workers."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from feddag.client.step import Result
from feddag.data.clients import ClientData
from feddag.engines.pools import make_pool
from feddag.engines.scoring import Headed, Scorer
from feddag.engines.worker import Done, Score, Work, WorkerConfig
from feddag.federation import Engine, Ints, Job, Reply
from feddag.heads import HEAD, without
from feddag.weights import HELD, ClientId, ModelSource, Own, Ref, Source, Weights, digest, kept, nbytes, only

SMALL_JOB = 2e6  # samples x parameters; below it, native training takes less than two threads lose to Python's lock


class LocalEngine(Engine):
    """All clients in simulation, one client to a worker at a time.

    A single worker works in this thread. Several are threads if the native trainer does the training, because it
    releases Python's lock, and processes of one thread each if PyTorch does.
    """

    def __init__(
        self, data: ClientData, config: WorkerConfig, workers: int = 1, drift: tuple[int, ClientData] | None = None
    ) -> None:
        """With `drift` = (round, data), clients hold those data from that round on."""
        self._data, self._drift = data, drift
        self._config, self._workers = config, workers
        built = config.model.build()
        self._parameters = sum(weights.numel() for weights in built.state_dict().values())
        self._linear_head = type(built.head) is nn.Linear
        self._states: dict[ClientId, tuple[int, Weights]] = {}
        self._handed: dict[Ref, Weights] = {}  # in this round
        self._heads: dict[tuple[Ref, bytes], Ref] = {}  # of these, where classes are out of reach
        self._absent: dict[ClientId, Tensor] = {}
        self._population = tuple(range(len(data.offsets) - 1))
        # One thread per worker: sums then run in one order whatever the number of cores.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = make_pool(data, config, workers)
        self._scorer = self._make_scorer()

    def population(self) -> tuple[ClientId, ...]:
        return self._population

    def put(self, weights: Weights) -> Ref:
        ref = Ref(digest(weights), nbytes(weights))
        self._handed[ref] = weights
        self._pool.put(ref, weights)
        return ref

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        only_scoring = [all(step.only_scores() is not None for step in job.steps) for job in jobs]
        replies = self._score(list(itertools.compress(jobs, only_scoring)))
        others = [job for job, scoring in zip(jobs, only_scoring, strict=True) if not scoring]
        works = [Work(job, self._states.get(job.client, (0, {}))[1], (round, exchange)) for job in others]
        for work, done in self._do(works, [self._data.size(job.client) for job in others]):
            assert isinstance(work, Work)
            assert isinstance(done, Done)
            client = work.job.client
            if done.state is not None:
                self._states[client] = (round, done.state)
            replies.append(Reply(client, done.results, self._data.size(client)))
        return replies, {}

    def begin_round(self, round: int) -> None:
        self._handed, self._heads = {}, {}
        self._pool.forget_weights()
        if self._drift is not None and round >= self._drift[0]:
            self._data, self._drift, self._absent = self._drift[1], None, {}
            self._pool.close()
            self._pool = make_pool(self._data, self._config, self._workers)
            self._scorer = self._make_scorer()

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return dict(self._states)

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        self._states = dict(states)

    def close(self) -> None:
        self._pool.close()
        torch.set_num_threads(self._threads_before)

    def counts(self, models: Sequence[Ref], which: Ints, clients: Ints) -> tuple[Tensor, Ints]:
        return self._scorer.counts([(model, model) for model in models], which, clients)

    def held(self) -> Tensor:
        return ~torch.stack([self._lacks(client) for client in self._population])

    def _score(self, jobs: Sequence[Job]) -> list[Reply]:
        """Jobs that only score models, put together from the scores of test blocks."""
        if not jobs:
            return []
        sent = [[self._sent(job.client, step.only_scores()) for step in job.steps] for job in jobs]
        distinct = {model: number for number, model in enumerate(dict.fromkeys(m for models in sent for m in models))}
        which = np.array([distinct[model] for models in sent for model in models], np.int64)
        clients = np.repeat([job.client for job in jobs], [len(models) for models in sent])
        tables, place = self._scorer.counts(list(distinct), which, clients)
        counts = iter(tables[torch.from_numpy(place)])
        return [
            Reply(
                job.client,
                [Result(arrays={"counts": next(counts)}, scored=self._scorer.samples(job.client)) for _ in models],
                self._data.size(job.client),
            )
            for job, models in zip(jobs, sent, strict=True)
        ]

    def _sent(self, client: ClientId, source: ModelSource) -> Headed:
        if isinstance(source, Ref):
            return source, source
        sources = source if isinstance(source, tuple) else (source,)
        match sources:
            case (Ref() as model, Own() as own) if own == HELD and self._linear_head:
                return model, self._held_head(model, client)
        whole: Weights = {}
        for layer in sources:
            whole = without(whole, self._lacks(client)) if layer == HELD else whole | self._layer(client, layer)
        ref = self.put(whole)
        return ref, ref

    def _held_head(self, model: Ref, client: ClientId) -> Ref:
        """A model's head for somebody who holds what this client holds: many share it."""
        lacks = self._lacks(client)
        key = model, lacks.numpy().tobytes()
        if key not in self._heads:
            self._heads[key] = self.put(only(without(self._handed[model], lacks), (HEAD,)))
        return self._heads[key]

    def _lacks(self, client: ClientId) -> Tensor:
        if client not in self._absent:
            lacks = torch.ones(int(self._data.num_classes), dtype=torch.bool)
            lacks[np.unique(self._data.samples(client)[1])] = False
            self._absent[client] = lacks
        return self._absent[client]

    def _layer(self, client: ClientId, source: Source) -> Weights:
        assert source is not None
        if isinstance(source, Own):
            return kept(self._states.get(client, (0, {}))[1], source.name)
        return self._handed[source]

    def _make_scorer(self) -> Scorer:
        def score(works: Sequence[Score], costs: Sequence[int]) -> Iterator[tuple[Score, Tensor]]:
            for work, rows in self._do(works, costs):
                assert isinstance(work, Score)
                assert isinstance(rows, Tensor)
                yield work, rows

        return Scorer(self._data, score)

    def _do(self, works: Sequence[Work | Score], costs: Sequence[int]) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        longest_first = sorted(range(len(works)), key=lambda number: -costs[number])
        done = self._pool.do([works[number] for number in longest_first], self._is_small(works, costs))
        for number, each in enumerate(done, 1):
            yield each
            if self.watch:
                self.watch(number, len(works))

    def _is_small(self, works: Sequence[Work | Score], costs: Sequence[int]) -> bool:
        samples: float = sum(costs) / max(1, len(costs))
        if works and isinstance(works[0], Work):
            local = self._config.settings
            samples = samples * local.epochs if local.steps is None else local.steps * local.batch_size
        return bool(samples * self._parameters < SMALL_JOB)
