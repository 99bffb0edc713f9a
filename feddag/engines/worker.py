"""Does a client's jobs with its samples: used by every engine, in this process, in another one or on a node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from feddag.client.step import Client, Result, perform, to_tensor
from feddag.client.trainer import LocalSettings, Trainer, make_trainer
from feddag.data.clients import ClientData
from feddag.federation import Job
from feddag.models import ModelSpec
from feddag.native import Network
from feddag.system import cores
from feddag.weights import ClientId, Ref, Weights


@dataclass(frozen=True)
class WorkerConfig:
    """What every worker of a run works with: the model, the settings of local training and the seed."""

    model: ModelSpec
    settings: LocalSettings
    seed: int
    network: Network | None = None
    """For the native trainer; None where PyTorch does the work."""
    least_per_class: int = 1
    """Classes of fewer samples are left out of what clients tell about their data, whatever the server asks for."""
    device: str = "cpu"
    """Where PyTorch works."""

    def trainer(self) -> Trainer:
        """A trainer for one worker."""
        return make_trainer(self.model, self.network, self.device)

    def most_workers(self) -> int:
        """How many workers are of use: one per core; on a card one, as each more would take its own memory there."""
        return cores() if self.device == "cpu" else 1

    @property
    def releases_gil(self) -> bool:
        """Whether threads can work side by side: the native trainer releases Python's global lock."""
        return self.network is not None


@dataclass(frozen=True)
class Work:
    """A job as a worker gets it: with the client's memory, and its round and exchange."""

    job: Job
    state: Weights
    moment: tuple[int, int]


@dataclass(frozen=True)
class Score:
    """A model to be scored on some test blocks, with each of some heads in the place of its own."""

    model: Ref
    heads: tuple[Ref, ...]
    """Weights that hold a head, among others or alone: the model itself where it is scored as it is."""
    blocks: tuple[int, ...]


@dataclass
class Done:
    """A finished job, and what the client remembers now if that has changed."""

    results: list[Result]
    state: Weights | None


class Worker:
    """Does work with the samples it is given, in this process or in one of its own."""

    def __init__(self, data: ClientData, config: WorkerConfig, fetch: Callable[[Ref], Weights]) -> None:
        self._data, self._config, self._fetch = data, config, fetch
        self._trainer = config.trainer()

    def do(self, work: Work | Score) -> Done | Tensor:
        """Finish one piece of work."""
        if isinstance(work, Score):
            return self._rows(work)
        x, y = self._data.samples(work.job.client)
        client = Client(
            id=work.job.client,
            x=self._tensor(x),
            y=torch.from_numpy(y.copy()),
            trainer=self._trainer,
            settings=self._config.settings,
            num_classes=int(self._data.num_classes),
            fetch=self._fetch,
            score=lambda weights: self._score(weights, self._data.blocks(work.job.client)),
            test_samples=lambda: self._test_samples(work.job.client),
            seed=self._config.seed,
            moment=work.moment,
            state=work.state,
            least_per_class=self._config.least_per_class,
            stored=x,
            aside=lambda: self._aside(work.job.client),
        )
        results = perform(work.job.steps, client)
        return Done(results, None if client.state is work.state else client.state)

    def _rows(self, work: Score) -> Tensor:
        """heads x blocks x (correct, samples, summed loss)."""
        x, y, sizes = self._data.in_blocks(work.blocks)
        model, heads = self._fetch(work.model), [self._fetch(head) for head in work.heads]
        return self._trainer.score_each(model, heads, self._tensor(x), torch.from_numpy(y), sizes)

    def _score(self, weights: Weights, blocks: Sequence[int]) -> Tensor:
        counts = torch.zeros(int(self._data.num_classes), 3, dtype=torch.float64)
        for block in blocks:
            x, y = self._data.block(block)
            counts += self._trainer.score(weights, self._tensor(x), torch.from_numpy(y.copy()))
        return counts

    def _test_samples(self, client: ClientId) -> tuple[Tensor, Tensor]:
        x, y, _ = self._data.in_blocks(self._data.blocks(client))
        return self._tensor(x), torch.from_numpy(y)

    def _aside(self, client: ClientId) -> tuple[Tensor, Tensor]:
        x, y = self._data.samples_aside(client)
        return self._tensor(x), torch.from_numpy(y.copy())

    def _tensor(self, x: Any) -> Tensor:
        return to_tensor(x, self._data.mean, self._data.std)
