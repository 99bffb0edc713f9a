"""Several views of how unlike clients are, made into one.

`printed_mlp` and `printed_projection` are Eq. 7-8 as they stand in the paper. The entropy is taken over a distance, so
it prefers the view with more contrast, noise or not; and Eq. 7 uses the gate of the lower-numbered client only. `fused`
is ours: each view first groups the clients by itself, and counts for a client as much as that grouping is clear there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddag.errors import FeddagError
from feddag.server.clustering import Cut, Linkage, build_tree, clarity, cut_by_noise, silhouettes
from feddag.server.similarity import Floats, square

MOST_CLIENTS_OF_THE_MLP = 400
SILENT_BELOW = 0.5  # a view that is less than half as clear as the clearest is not heard
MUDDLED_BELOW = 0.9  # silhouette of the groups by several views, as a share of the best by one of them
LEAST_WEIGHT = 1e-3  # where no view is clear, all count the same


@dataclass(frozen=True)
class Fusion:
    """One distance per pair, and how much each view counted for each client (rows sum to 1)."""

    distances: Floats
    weights: dict[str, NDArray[np.float64]]
    cuts: dict[str, Cut]
    """The grouping that each view gave by itself."""


def fused(views: Mapping[str, Floats], linkage: Linkage = "average", muddled_below: float = MUDDLED_BELOW) -> Fusion:
    """The mean of the views, each weighted by how clearly it groups the two clients; a view that is nan is left out.

    Views may be clear about different things, and together show the finer groups. Where they only blur each other, as
    domains and the classes that small clients happen to hold do, the clearest view decides alone
    (`muddled_below = 0`: never).
    """
    cuts = {name: cut_by_noise(view, build_tree(view, linkage)) for name, view in views.items()}
    clear = {name: clarity(view, cuts[name].labels) for name, view in views.items()}
    best = max(clear, key=lambda name: float(clear[name].mean()))
    least = SILENT_BELOW * clear[best].mean()
    heard = {name: value + LEAST_WEIGHT for name, value in clear.items() if value.mean() >= least}
    weights = _shares(heard, views)
    distances = blend(views, weights)
    if len(heard) > 1 and muddled_below > 0:
        together = silhouettes(distances, cut_by_noise(distances, build_tree(distances, linkage)).labels).mean()
        alone = max(silhouettes(views[name], cuts[name].labels).mean() for name in heard)
        if together < muddled_below * alone:
            weights = _shares({best: heard[best]}, views)
            distances = blend(views, weights)
    return Fusion(distances, weights, cuts)


def _shares(heard: Mapping[str, NDArray[np.float64]], views: Mapping[str, Floats]) -> dict[str, NDArray[np.float64]]:
    total = np.sum(list(heard.values()), axis=0)
    return {name: heard[name] / total if name in heard else np.zeros_like(total) for name in views}


def blend(views: Mapping[str, Floats], weights: Mapping[str, NDArray[np.float64]]) -> Floats:
    """The weighted mean of the views; a pair's weight is the mean of its two clients'.

    A pair that no heard view knows is at distance 0: such pairs are then kept apart, or not, by what others say.

    >>> views = {"a": np.array([1.0], np.float32), "b": np.array([0.0], np.float32)}
    >>> blend(views, {"a": np.array([1.0, 0.5]), "b": np.array([0.0, 0.5])}).tolist()
    [0.75]
    """
    clients = len(next(iter(weights.values())))
    blended = np.empty_like(next(iter(views.values())))
    end = 0
    for client in range(clients - 1):  # row by row: there may be too many pairs for several arrays of them
        start, end = end, end + clients - 1 - client
        total, weight = np.zeros(end - start, np.float32), np.zeros(end - start, np.float32)
        for name, view in views.items():
            gate = weights[name].astype(np.float32)
            seen = view[start:end]
            pair = (gate[client] + gate[client + 1 :]) / 2 * ~np.isnan(seen)
            total += pair * np.nan_to_num(seen)
            weight += pair
        blended[start:end] = total / np.maximum(weight, 1e-30)
    return blended


# As printed ----------------------------------------------------------------------------------------------------------


def entropy(distances: Tensor) -> Tensor:
    """Eq. 8: the mean entropy of the rows' softmax, of a square matrix."""
    shares = torch.softmax(distances, dim=1)
    return -(shares * torch.log(shares.clamp(min=1e-12))).sum(1).mean()


def mixed(gates: Tensor, gradient: Tensor, data: Tensor) -> Tensor:
    """Eq. 7: above the diagonal the row's gate decides, and below it the same values stand again."""
    upper = torch.triu(gates[:, None] * gradient + (1 - gates[:, None]) * data, diagonal=1)
    return upper + upper.T


def gate_of_newcomer(gradient: Floats, data: Floats) -> float:
    """Algorithm 4, line 11: the gate of least entropy (Eq. 8) for one more row, all other gates being fixed.

    >>> gate_of_newcomer(np.array([0.0, 1.0], np.float32), np.array([0.5, 0.5], np.float32))
    1.0
    """
    gates = torch.linspace(0, 1, 101)[:, None]
    rows = gates * torch.from_numpy(gradient) + (1 - gates) * torch.from_numpy(data)
    shares = torch.softmax(rows, dim=1)
    return float(gates[int((-(shares * shares.log()).sum(1)).argmin())])


def printed_projection(
    gradient: Floats, data: Floats, generator: np.random.Generator, lr: float = 0.1, steps: int = 1000
) -> NDArray[np.float64]:
    """Algorithm 2's gates: gradient descent on the entropy, clipped to [0, 1], until they no longer move."""
    views = torch.from_numpy(square(gradient)), torch.from_numpy(square(data))
    clients = len(views[0])
    gates = torch.from_numpy(generator.random(clients)).float().requires_grad_()
    for _ in range(steps):
        (slope,) = torch.autograd.grad(entropy(mixed(gates, *views)), gates)
        # The loss is a mean over clients, so a gate's slope falls with their number; the step makes up for it.
        moved = (gates - lr * clients * slope).clamp(0, 1).detach()
        still = bool((moved - gates).abs().max() < 1e-5)
        gates = moved.requires_grad_()
        if still:
            break
    return gates.detach().numpy().astype(np.float64)


def printed_mlp(gradient: Floats, data: Floats, seed: int, steps: int = 50) -> NDArray[np.float64]:
    """§3.3's gates: a small network from both matrices to a gate per client, trained by Adam.

    Widths, learning rate and the 50 steps are those of the released code; the paper gives none.
    """
    views = torch.from_numpy(square(gradient)), torch.from_numpy(square(data))
    clients = len(views[0])
    if clients > MOST_CLIENTS_OF_THE_MLP:
        raise FeddagError(
            f"fusion = 'mlp' has 2 x {clients} x {clients} inputs; allowed are {MOST_CLIENTS_OF_THE_MLP} clients"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2 * clients**2, 128), nn.ReLU(), nn.Linear(128, clients), nn.Sigmoid())
    inputs = torch.cat([view.flatten() for view in views])
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(steps):
        loss = entropy(mixed(network(inputs), *views))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        gates: NDArray[np.float64] = network(inputs).numpy().astype(np.float64)
    return gates
