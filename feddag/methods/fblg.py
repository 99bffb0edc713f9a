"""FBLG: one model, trained by clients whose loss is high, who hold much, and who are unlike (Xu et al., IJCAI 2024).

Before training, every client trains once on its own and tells what its model makes of noise; the less two of these
differ, the nearer are two clients in a graph. In a round, of the clients with the highest loss those take part whose
sizes and distances sum to the most: an integer programme.

Clients send an embedding of noise once, a loss in every round, and their models where they take part. Nothing has to be
known in advance, but everybody is asked in every round. The released code needs a Gurobi licence and stops its search
by the clock: here SciPy solves the same programme, within a number of nodes, so that a run can be repeated. Likeness is
scaled over pairs of clients (the code's range begins at its diagonal of zeros), losses are those of training samples,
and the noise is drawn beside the data, where samples are normalised, not measured on the server's test samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from feddag.client.evaluate import Choose
from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.federation import Federation, Job
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.models import ModelSpec
from feddag.rng import rng
from feddag.server.diversity import graph_distances, most_diverse
from feddag.weights import ClientId

NOISE = 64  # samples of it


@dataclass(frozen=True)
class EmbedNoise(Step):
    """The mean of what the encoder makes of noise, which is the same for all clients."""

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"embedding": (model.features(),)}

    def sends(self) -> bool:
        return False

    def run(self, client: Client) -> Result:
        noise = rng(client.seed, "noise").normal(size=(NOISE, *client.x.shape[1:]))
        found = client.trainer.features(client.weights(None), torch.from_numpy(noise.astype(np.float32)))
        return Result(arrays={"embedding": found.double().mean(0)}, scored=NOISE)


class FBLG(FedAvg):
    """FedAvg with clients that are chosen by loss, size and distance."""

    name = "fblg"
    sends = "model; all, a loss; once, an embedding"
    paper = "Xu et al., IJCAI 2024"

    class Settings(MethodSettings):
        candidates: float = Field(0.5, gt=0, le=1, description="share of the clients, by loss, that are chosen from")

    _settings: Settings

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.embeddings: dict[ClientId, Tensor] = {}
        self.describe(federation)

    def describe(self, federation: Federation) -> None:
        """Ask whoever has not told its embedding yet: it trains once from the first weights, for nothing else."""
        unknown = [client for client in federation.clients if client not in self.embeddings]
        first = federation.put(self.initial_weights(federation))
        with federation.in_phase("warmup"):
            jobs = (Job(client, [Train(first, send=False), EmbedNoise()]) for client in unknown)
            for reply in federation.ask(jobs, optional=True):
                self.embeddings[reply.client] = reply.results[-1].arrays["embedding"]

    def sample(self, federation: Federation) -> list[ClientId]:
        """The best set among the candidates; whoever does not tell its loss is none."""
        self.describe(federation)
        look = Choose((federation.put(self.weights),))
        with federation.in_phase("losses"):
            known = (client for client in federation.clients if client in self.embeddings)
            replies = list(federation.ask((Job(client, look) for client in known), optional=True))
        if not replies:
            return super().sample(federation)
        everybody = len(federation.clients)
        count = max(1, round(federation.participation * everybody))
        replies.sort(key=lambda reply: (-float(reply.results[0].arrays["losses"][0]), reply.client))
        chosen = replies[: max(count, round(self._settings.candidates * everybody))]
        places = {client: place for place, client in enumerate(sorted(self.embeddings))}
        rows = [places[reply.client] for reply in chosen]
        apart = graph_distances(np.stack([self.embeddings[client].numpy() for client in places]))[np.ix_(rows, rows)]
        samples = np.array([reply.samples for reply in chosen], float)
        pairs = max(1, len(chosen) * (len(chosen) - 1))
        taken = most_diverse(apart / pairs, (samples / samples.sum()).tolist(), count)
        return sorted(chosen[place].client for place in taken)

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        for client in gone:
            self.embeddings.pop(client, None)
