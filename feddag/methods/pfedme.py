"""pFedMe: personal models beside a common one that is pulled towards them (T. Dinh et al., NeurIPS 2020).

A client's own model theta minimises its loss + lambda / 2 * ||theta - w||^2, in K steps on each batch; after each batch
its copy of the common model w moves towards theta: gradient descent on the Moreau envelope of the client's loss.

Clients send their copies of w and keep theta; nothing has to be known in advance. Eta is the experiment's `lr`. Only
sampled clients compute: in the paper all do, and the answers of some are used. Clients count alike, as in the paper
(the released code weighs by samples), and there is no decay but the experiment's (the code hides one of 0.001).
"""

from dataclasses import dataclass, replace

import torch
from pydantic import Field

from feddag.client.loss import Pull
from feddag.client.step import Client, Result, Step
from feddag.client.train import Train, batches_of
from feddag.federation import Replies
from feddag.heads import without
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import ClientId, Ref, Served, Weights, used

PERSONAL = "personal"


@dataclass(frozen=True)
class TrainEnvelope(Train):
    """Lines 5-9 of Algorithm 1: theta from each batch, then w <- w - eta * lambda * (w - theta)."""

    pull: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.09

    def run(self, client: Client) -> Result:
        settings = self.settings(client.settings)
        inner = replace(settings, lr=self.inner_lr, momentum=0.0)
        theta = common = client.weights(self.model)
        batches, losses = batches_of(client, settings), []
        for turn, batch in enumerate(batches):
            pull = [Pull(common, self.pull)]
            steps = [batch] * self.inner_steps
            theta, loss = client.fit(theta, steps, inner, pulls=pull, held=self.held, draw=turn + 1)
            common = towards(common, theta, settings.lr * self.pull)
            losses.append(loss[:1])
        client.current = common
        client.keep(PERSONAL, without(theta, client.absent(settings, self.held)), self.smoothing)
        return Result(
            weights=common,
            numbers={"loss": float(torch.cat(losses).mean())},
            arrays={"losses": torch.cat(losses).double()} if self.losses else {},
            samples=self.inner_steps * sum(map(len, batches)),
        )


def towards(start: Weights, end: Weights, share: float) -> Weights:
    """A share of the way from some weights to others; counters of a user's layers are those of the end.

    >>> towards({"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}, 0.25)
    {'w': tensor([1.5000])}
    """
    return {
        name: value + share * (end[name] - value) if value.is_floating_point() else end[name]
        for name, value in start.items()
    }


class PFedMe(FedAvg):
    """Algorithm 1; each client uses the personal model that it made last, or the common one before."""

    name = "pfedme"
    family = "personalised"
    cost = 5.0
    paper = "T. Dinh et al., NeurIPS 2020"

    class Settings(MethodSettings):
        pull: float = Field(15.0, gt=0, description="lambda: pull of the personal towards the common model")
        inner_steps: int = Field(5, ge=1, description="K: steps of the personal model on each batch")
        inner_lr: float = Field(0.09, gt=0, description="learning rate of the personal model")
        server_lr: float = Field(1.0, gt=0, description="beta: how far the server goes towards the clients' mean")

    _settings: Settings

    def local_work(self, model: Ref) -> Step:
        own = self._settings
        return TrainEnvelope(
            model, pull=own.pull, inner_steps=own.inner_steps, inner_lr=own.inner_lr, smoothing=own.smoothing
        )

    def combined(self, replies: Replies) -> Weights | None:
        if not len(replies):
            return None
        mean = self.mean(list(replies), self.weights, by_samples=False)
        return mean if self._settings.server_lr == 1 else towards(self.weights, mean, self._settings.server_lr)

    def model_of(self, client: ClientId) -> Served:
        return (*self.layers(), used(PERSONAL, self._settings.smoothing))
