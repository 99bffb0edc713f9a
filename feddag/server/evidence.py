"""When FedGWC splits a cluster, and into which parts: as printed, as released, or by two tests of its losses.

The first is that of `comovement`: which clients' losses go up and down together. The second, of `split_test`: whose
losses are near each other. Where the first finds groups, they are taken: levels may show only some of them.

Both kinds of evidence know clients by name, and a cluster's matrix is that of its members: so children inherit rows and
columns (Algorithm 1, line 18) by being asked for theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from feddag.records import Diagnostics
from feddag.server.comovement import find_movers
from feddag.server.interaction import (
    Floats,
    affinity,
    best_split,
    gaussian_rewards,
    min_max,
    pair_rewards,
    perception_distances,
    updated,
)
from feddag.server.split_test import LEAST_SIZE, Present, blocks, find_groups, interactions, scaled_affinity
from feddag.stateful import Stateful
from feddag.weights import ClientId

Parts = list[list[ClientId]]
"""The parts of a cluster; a single one where it stays whole."""
CHANGE = "mean squared change of the interaction matrix"

MEMORY = 200  # rounds whose losses are kept: older ones tell about a model that is long gone
FIRST_LOOK, NEXT_LOOK = 10, 1.5  # rounds before the first test, and how much longer until each further one
LEAST_SEEN = 5  # rounds of a client, on average: a test may know earlier that there are groups, but not who is in which
MOVERS = 0.1  # of the level is for the test of movements, which loses little by it; the rest for that of levels


class Seen(NamedTuple):
    """What a cluster's server saw in a round."""

    round: int
    cluster: int
    members: list[ClientId]
    sampled: list[ClientId]
    """Those of them that answered, two at least."""
    losses: Floats
    """Of these: clients x steps."""
    samples: list[int]
    """How many each of these holds."""


def common_steps(losses: Sequence[torch.Tensor]) -> Floats:
    """Clients x steps, as many steps as all of them did: `steps` gives clients of unequal size equally many.

    >>> common_steps([torch.tensor([3.0, 2.0]), torch.tensor([1.0])]).tolist()
    [[3.0], [1.0]]
    """
    return np.stack([own[: min(map(len, losses))].double().numpy() for own in losses])


def parts_of(members: Sequence[ClientId], labels: NDArray[np.int64]) -> Parts:
    """Clients by label, the largest part first.

    >>> parts_of([4, 7, 9], np.array([0, 1, 1]))
    [[7, 9], [4]]
    """
    parts = [[client for client, own in zip(members, labels, strict=True) if own == label] for label in set(labels)]
    return sorted(parts, key=lambda part: (-len(part), part))


def shown(
    clients: list[ClientId], interactions: Floats, affinity: Floats, changes: Mapping[str, Sequence[Sequence[float]]]
) -> Diagnostics:
    """For a report: matrices as distances, so that what is near 0 belongs together, and how the matrix settled."""
    pairs = np.triu_indices(len(clients), 1)
    views = {"interaction": 1 - ((interactions + interactions.T) / 2)[pairs], "affinity": 1 - affinity[pairs]}
    curves = {name: np.array(rows) for name, rows in changes.items()}
    return {"clients": clients, "views": views, "by_round": {CHANGE: curves}}


class SettledMatrix(Stateful):
    """Eq. 3's interaction matrix, whose clusters are sought when it hardly moves any more."""

    def __init__(self, form: Literal["paper", "released"], *, alpha: float, epsilon: float, beta: float, most: int):
        self._form, self._alpha, self._epsilon, self._beta, self._most = form, alpha, epsilon, beta, most
        self.clients: list[ClientId] = []
        self.matrix = torch.zeros((0, 0), dtype=torch.float64)
        self.mse: dict[int, float] = {}
        self.patience: dict[int, int] = {}
        self.changes = torch.zeros((0, 3), dtype=torch.float64)
        """Round, cluster, mean squared error."""

    def observe(self, seen: Seen) -> None:
        """Eq. 1 and 3, and how far the matrix moved."""
        old, cluster = self.interactions(seen.members), seen.cluster
        places = [seen.members.index(client) for client in seen.sampled]
        alpha = self._alpha or len(seen.sampled) / len(seen.members)
        if self._form == "paper":
            new = updated(old, places, gaussian_rewards(seen.losses), alpha)
            self.mse[cluster] = float(((new - old) ** 2).mean())  # over all pairs of the cluster
        else:
            rewards = gaussian_rewards(seen.losses, seen.samples)
            new = updated(old, places, rewards / rewards.sum(), alpha)
            moved = float(((new - old)[np.ix_(places, places)] ** 2).mean())  # over the sampled pairs
            self.mse[cluster] = (1 - alpha) * self.mse.get(cluster, 1.0) + alpha * moved
        rows = self._rows(seen.members)
        self.matrix = self.matrix.clone()
        self.matrix[np.ix_(rows, rows)] = torch.from_numpy(new)
        latest = torch.tensor([[seen.round, cluster, self.mse[cluster]]], dtype=torch.float64)
        self.changes = torch.cat([self.changes, latest])
        self.patience[cluster] = self.patience.get(cluster, 0) + 1 if self.mse[cluster] < self._epsilon else 0

    def parts(self, seen: Seen, generator: np.random.Generator) -> Parts:
        """Algorithm 2, where the matrix has settled; its `if` stands after the loop, where it can be decided."""
        cluster, members, per_round = seen.cluster, seen.members, len(seen.sampled)
        patience = 1 if self._form == "paper" else max(1, round(len(members) / per_round))
        if len(members) < 3 or self.patience[cluster] < patience:
            return [members]
        most = self._most if self._form == "paper" else min(self._most, len(members) // per_round)
        score, labels = best_split(
            self.affinity(members), most, scored_on="affinity" if self._form == "paper" else "embedding"
        )
        if self._form == "released":
            self.mse[cluster] = 1.0  # it has to settle again before the next attempt
        return [members] if score > 1 else parts_of(members, labels)

    def divided(self, numbers: Sequence[int]) -> None:
        """A cluster has been divided into these: each settles afresh (line 19)."""
        for number in numbers:
            self.mse[number], self.patience[number] = 1.0, 0

    def diagnostics(self) -> Diagnostics:
        """For all that ever took part; two or fewer have no perception vectors."""
        if len(self.clients) < 3:
            return {}
        clusters = sorted({int(cluster) for cluster in self.changes[:, 1]})
        changes = {f"cluster {n}": self.changes[self.changes[:, 1] == n][:, [0, 2]].tolist() for n in clusters}
        return shown(self.clients, self.interactions(self.clients), self.affinity(self.clients), changes)

    def interactions(self, members: Sequence[ClientId]) -> Floats:
        """The interaction matrix of these clients."""
        self._know(members)
        rows = self._rows(members)
        return self.matrix.numpy()[np.ix_(rows, rows)]

    def affinity(self, members: Sequence[ClientId]) -> Floats:
        """Eq. 4; the released code scales the matrix and compares its columns."""
        matrix = self.interactions(members)
        return affinity(perception_distances(matrix if self._form == "paper" else min_max(matrix.T)), self._beta)

    def _rows(self, members: Sequence[ClientId]) -> list[int]:
        place = {client: number for number, client in enumerate(self.clients)}
        return [place[client] for client in members]

    def _know(self, members: Sequence[ClientId]) -> None:
        """Rows and columns for clients that had none: zeros, or 1 / K^2 as released."""
        new = [client for client in members if client not in set(self.clients)]
        if not new:
            return
        before = len(self.clients)
        self.clients = [*self.clients, *new]
        first = 0.0 if self._form == "paper" else 1 / len(self.clients) ** 2
        grown = torch.full((len(self.clients),) * 2, first, dtype=torch.float64)
        grown[:before, :before] = self.matrix
        self.matrix = grown


class LossHistory(Stateful):
    """The losses of recent rounds, which are tested for groups now and then, ever more rarely."""

    def __init__(self, *, level: float, beta: float, most: int):
        self._level, self._beta, self._most = level, beta, most
        self.rounds: list[tuple[int, list[ClientId], torch.Tensor]] = []
        """Round, clients, and their losses: clients x blocks of steps."""
        self.age: dict[int, int] = {}
        """Rounds that each cluster has been seen in since it was founded or divided."""
        self.next_look: dict[int, int] = {}
        self.looks: dict[int, int] = {}

    def observe(self, seen: Seen) -> None:
        """Remember a round's losses."""
        kept = [entry for entry in self.rounds if entry[0] > seen.round - MEMORY]
        self.rounds = [*kept, (seen.round, seen.sampled, torch.from_numpy(blocks(seen.losses)))]
        self.age[seen.cluster] = self.age.get(seen.cluster, 0) + 1

    def parts(self, seen: Seen, generator: np.random.Generator) -> Parts:
        """The groups that the cluster's losses show. Whoever was never seen is in none."""
        cluster, members, age = seen.cluster, seen.members, self.age[seen.cluster]
        if age < self.next_look.get(cluster, FIRST_LOOK):
            return [members]
        known, losses, present = self.of(members)
        if len(known) < 2 * LEAST_SIZE or present.sum() < LEAST_SEEN * len(members):
            return [members]
        self.next_look[cluster] = int(np.ceil(NEXT_LOOK * age))
        self.looks[cluster] = self.looks.get(cluster, 0) + 1
        # Every look is another chance for chance: 1/2 + 1/6 + 1/12 + ... of the level add up to all of it. The test of
        # movements knows no level below 0.001, so it may split one more of a thousand clusters at each look.
        level = self._level / (self.looks[cluster] * (self.looks[cluster] + 1))
        labels = find_movers(losses, present, self._most, MOVERS * level, generator)
        if labels is None:
            labels = find_groups(losses, present, self._most, (1 - MOVERS) * level, self._beta, generator)
        return [members] if labels is None else parts_of(known, labels)

    def divided(self, numbers: Sequence[int]) -> None:
        """A cluster has been divided into these: each is looked at again when it has trained for a while."""
        for number in numbers:
            self.age[number], self.next_look[number], self.looks[number] = 0, FIRST_LOOK, 0

    def of(self, members: Sequence[ClientId]) -> tuple[list[ClientId], Floats, Present]:
        """What is known of these clients: rounds x clients x steps, and who was there, in rounds with two or more."""
        wanted = set(members)
        rounds = [entry for entry in self.rounds if len(wanted & set(entry[1])) > 1]
        seen = sorted({client for _, sampled, _ in rounds for client in sampled} & wanted)
        place = {client: number for number, client in enumerate(seen)}
        steps = min((losses.shape[1] for _, _, losses in rounds), default=0)
        known, present = np.zeros((len(rounds), len(seen), steps)), np.zeros((len(rounds), len(seen)), bool)
        for number, (_, sampled, losses) in enumerate(rounds):
            for client, row in zip(sampled, blocks(losses.numpy(), steps), strict=True):
                if client in place:
                    known[number, place[client]], present[number, place[client]] = row, True
        return seen, known, present

    def changes(self) -> list[tuple[int, float]]:
        """Round by round, the mean squared change of the mean rewards of all pairs: none where they have settled."""
        place = {
            client: n for n, client in enumerate({client: 0 for _, sampled, _ in self.rounds for client in sampled})
        }
        matrix, meetings = np.zeros((len(place),) * 2), np.zeros((len(place),) * 2)
        moved: dict[int, float] = {}
        for number, sampled, losses in self.rounds:
            pairs = np.ix_([place[client] for client in sampled], [place[client] for client in sampled])
            meetings[pairs] += 1
            step = (pair_rewards(losses.numpy()) - matrix[pairs]) / meetings[pairs]
            matrix[pairs] += step
            moved[number] = moved.get(number, 0.0) + float((step**2).sum())
        return [(number, total / len(place) ** 2) for number, total in moved.items()]

    def diagnostics(self) -> Diagnostics:
        """For all that are remembered."""
        seen, losses, present = self.of(sorted({client for _, sampled, _ in self.rounds for client in sampled}))
        if len(seen) < 3:
            return {}
        kernel = scaled_affinity(losses, present, self._beta)
        return shown(seen, interactions(losses, present)[0], kernel, {"all clients": self.changes()})
