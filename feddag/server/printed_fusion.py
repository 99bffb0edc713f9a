"""How the papers get from angles to one distance: Eq. 7-8 as printed, single views, and PACFL's stacked vectors.

The entropy is taken over a distance, so it prefers the view with more contrast, noise or not; and Eq. 7 uses the gate
of the lower-numbered client only. `fusion` is our answer to both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddag.client.signature import Signature
from feddag.errors import FeddagError
from feddag.rng import rng
from feddag.server.cutting import range_of
from feddag.server.similarity import Angles, Floats, data_angles, gradient_angles, min_max, square, stacked_angles

MOST_MLP_CLIENTS = 400
GATED_FUSIONS = ("mlp", "projected")


@dataclass(frozen=True)
class PrintedDistances:
    """One distance per pair, and what it was made of."""

    distances: Floats
    weights: dict[str, NDArray[np.float64]]
    """The gates, where there are any."""
    views: dict[str, Floats]
    """The angles, min-max scaled."""
    ranges: dict[str, tuple[float, float]]
    """What scaling took for 0 and 1 in each view."""


def angles_of(
    signatures: Sequence[Signature],
    fusion: str,
    delta: float,
    known: Sequence[Signature] | None = None,
    angles: Angles = "printed",
) -> dict[str, Floats]:
    """What the papers compare clients by, before it is scaled."""
    if fusion == "stacked":
        return {"stacked": stacked_angles(signatures)}
    if fusion == "gradient":
        return {"gradient": gradient_angles(signatures)}
    data = {"data": data_angles(signatures, delta, known, angles)}
    return data if fusion == "data" else data | {"gradient": gradient_angles(signatures)}


def fuse_as_printed(
    signatures: Sequence[Signature], fusion: str, delta: float, seed: int, angles: Angles = "printed"
) -> PrintedDistances:
    """Distances as the papers print them: angles, min-max scaled, and mixed by gates where the fusion has them."""
    seen = angles_of(signatures, fusion, delta, angles=angles)
    ranges = {name: range_of(view) for name, view in seen.items()}
    views = {name: min_max(view) for name, view in seen.items()}
    if fusion not in GATED_FUSIONS:
        return PrintedDistances(views[fusion], {}, {} if fusion == "stacked" else views, ranges)
    data, gradient = views["data"], views["gradient"]
    gates = mlp_gates(gradient, data, seed) if fusion == "mlp" else projected_gates(gradient, data, rng(seed, "gates"))
    matrix = gated_distances(
        torch.from_numpy(gates).float(), torch.from_numpy(square(gradient)), torch.from_numpy(square(data))
    )
    condensed: Floats = matrix.numpy()[np.triu_indices(len(gates), 1)]
    return PrintedDistances(condensed, {"gradient": gates, "data": 1 - gates}, views, ranges)


def entropy(distances: Tensor) -> Tensor:
    """Eq. 8: the mean entropy of the rows' softmax, of a square matrix."""
    shares = torch.softmax(distances, dim=1)
    return -(shares * torch.log(shares.clamp(min=1e-12))).sum(1).mean()


def gated_distances(gates: Tensor, gradient: Tensor, data: Tensor) -> Tensor:
    """Eq. 7: above the diagonal the row's gate decides, and the lower half mirrors the upper."""
    upper = torch.triu(gates[:, None] * gradient + (1 - gates[:, None]) * data, diagonal=1)
    return upper + upper.T


def newcomer_gate(gradient: Floats, data: Floats) -> float:
    """Algorithm 4, line 11: the gate of least entropy (Eq. 8) for one more row, all other gates being fixed.

    >>> newcomer_gate(np.array([0.0, 1.0], np.float32), np.array([0.5, 0.5], np.float32))
    1.0
    """
    gates = torch.linspace(0, 1, 101)[:, None]
    rows = gates * torch.from_numpy(gradient) + (1 - gates) * torch.from_numpy(data)
    shares = torch.softmax(rows, dim=1)
    return float(gates[int((-(shares * shares.log()).sum(1)).argmin())])


def projected_gates(
    gradient: Floats, data: Floats, generator: np.random.Generator, lr: float = 0.1, steps: int = 1000
) -> NDArray[np.float64]:
    """Algorithm 2's gates: gradient descent on the entropy, clipped to [0, 1], until they no longer move."""
    views = torch.from_numpy(square(gradient)), torch.from_numpy(square(data))
    clients = len(views[0])
    gates = torch.from_numpy(generator.random(clients)).float().requires_grad_()
    for _ in range(steps):
        (grad,) = torch.autograd.grad(entropy(gated_distances(gates, *views)), gates)
        # The loss is a mean over clients, so a gate's gradient falls with their number; the step makes up for it.
        moved = (gates - lr * clients * grad).clamp(0, 1).detach()
        converged = bool((moved - gates).abs().max() < 1e-5)
        gates = moved.requires_grad_()
        if converged:
            break
    return gates.detach().numpy().astype(np.float64)


def mlp_gates(gradient: Floats, data: Floats, seed: int, steps: int = 50) -> NDArray[np.float64]:
    """§3.3's gates: a small network from both matrices to a gate per client, trained by Adam.

    Widths, learning rate and the 50 steps are those of the released code; the paper gives none.
    """
    views = torch.from_numpy(square(gradient)), torch.from_numpy(square(data))
    clients = len(views[0])
    if clients > MOST_MLP_CLIENTS:
        raise FeddagError(
            f"fusion = 'mlp' has 2 x {clients} x {clients} inputs; allowed are {MOST_MLP_CLIENTS} clients"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(2 * clients**2, 128), nn.ReLU(), nn.Linear(128, clients), nn.Sigmoid())
    inputs = torch.cat([view.flatten() for view in views])
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(steps):
        loss = entropy(gated_distances(network(inputs), *views))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        gates: NDArray[np.float64] = network(inputs).numpy().astype(np.float64)
    return gates
