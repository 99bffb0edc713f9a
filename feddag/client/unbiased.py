"""FedBR's loss: a model that calls pseudo-data every class alike, with features that stay like the common model's."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from feddag.client.flops import HEAD, LayerCost, training_flops
from feddag.client.loss import Batches
from feddag.models import Model
from feddag.weights import Weights

PROJECTION = "projection"
LAYERS, NAMES = 3, ("weight", "bias")


def first_projection(features: int, draw: np.random.Generator) -> Weights:
    """Random weights of a network from features to as many, by two hidden layers of twice the width."""
    widths = (features, 2 * features, 2 * features, features)
    made: Weights = {}
    for layer in range(LAYERS):
        inputs, outputs = widths[layer : layer + 2]
        for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            values = draw.uniform(-1, 1, shape) / np.sqrt(inputs)
            made[f"{PROJECTION}.{layer}.{name}"] = torch.from_numpy(values.astype(np.float32))
    return made


def projected(weights: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """What the projection makes of features."""
    for layer in range(LAYERS):
        z = functional.linear(z if layer == 0 else z.relu(), *(weights[f"{PROJECTION}.{layer}.{n}"] for n in NAMES))
    return z


class UnbiasedLoss:
    """Cross-entropy + mu * contrast + lambda * unevenness; before each, the projection takes a step up the contrast."""

    def __init__(self, pseudo: Tensor, projection: Weights, lr: float, mu: float, lam: float, tau: float) -> None:
        self.pseudo, self.projection = pseudo, projection
        self.lr, self.mu, self.lam, self.tau = lr, mu, lam, tau

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
        assert isinstance(model, Model)
        encoder, head, pseudo = model.encoder, model.head, self.pseudo.to(x)
        if step == 0:  # the model is still the common one
            with torch.no_grad():
                self.common = encoder(pseudo).flatten(1)
        own, faked = encoder(x).flatten(1), encoder(pseudo).flatten(1)
        partner = own[torch.arange(len(pseudo), device=x.device) % len(own)]
        self.learn(faked.detach(), partner.detach())
        here = {name: value.to(x) for name, value in self.projection.items()}
        contrast = self.contrast(here, faked, partner)
        scores = head(faked)
        uneven = functional.cross_entropy(scores, torch.full_like(scores, 1 / scores.shape[1]))
        return functional.cross_entropy(head(own), y) + self.mu * contrast + self.lam * uneven

    def contrast(self, projection: Weights, faked: Tensor, own: Tensor) -> Tensor:
        """-log(exp(tau * likeness to the common features) / (that + exp(tau * likeness to the own))), on average."""
        seen = projected(projection, faked)
        common = functional.cosine_similarity(seen, projected(projection, self.common))
        same = functional.cosine_similarity(seen, projected(projection, own))
        return functional.softplus(self.tau * (same - common)).mean()

    def learn(self, faked: Tensor, own: Tensor) -> None:
        """A step of the projection up the contrast: it looks for what makes local features differ."""
        leaves = {name: value.clone().to(faked).requires_grad_() for name, value in self.projection.items()}
        slopes = torch.autograd.grad(self.contrast(leaves, faked, own), list(leaves.values()))
        for value, slope in zip(self.projection.values(), slopes, strict=True):
            value.add_(slope.cpu(), alpha=self.lr)

    def flops(self, layers: Sequence[LayerCost], batches: Batches) -> int:
        samples, pseudo = sum(map(len, batches)), len(self.pseudo)
        once = pseudo * sum(layer.forward for layer in layers if layer.part != HEAD)
        passed = samples + pseudo * len(batches)
        matrices = [2 * value.numel() for name, value in self.projection.items() if name.endswith(NAMES[0])]
        forward, first = sum(matrices), matrices[0]
        # up: three inputs forward and back, to the first layer's weights; down: forward, and back by two of the inputs
        steps = 3 * forward + 3 * (2 * forward - first) + 3 * forward + 2 * forward
        return once + training_flops(layers, (), passed, passed) + len(batches) * pseudo * steps
