"""FedMix and FedBR: their losses by hand, against autograd and mixup itself, their FLOPs, and what clients send."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import feddag
from feddag import testing
from feddag.client import unbiased as unbiased_module
from feddag.client.averages import AverageSamples
from feddag.client.flops import costs_of
from feddag.client.step import Result
from feddag.client.trainer import TorchTrainer
from feddag.client.unbiased import UnbiasedLoss, first_projection
from feddag.deploy.policy import NodePolicy
from feddag.engines.flower.wire import WireError
from feddag.methods.fedbr import TrainUnbiased
from feddag.methods.fedmix import MixedLoss, TrainMixed
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Ref
from tests.methods.least_squares import PLAIN, client_of

SPEC = ModelSpec("mlp", (3,), 4)


def smooth() -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A smooth network in float64, a batch, and one mean of samples with its shares of classes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x, y = torch.randn(6, 3).double(), torch.arange(6) % 4
    return network, x, y, torch.randn(1, 3).double(), torch.tensor([[0.4, 0.2, 0.4, 0.0]]).double()


def mixup(network: nn.Module, x: Tensor, y: Tensor, mean: Tensor, shares: Tensor, share: float) -> Tensor:
    scores = network((1 - share) * x + share * mean)
    other = functional.cross_entropy(scores, shares.expand_as(scores))
    return (1 - share) * functional.cross_entropy(scores, y) + share * other


def fedmix(share: float) -> float:
    network, x, y, mean, shares = smooth()
    return MixedLoss(mean, shares, share, np.random.default_rng(0))(network, x, y, 0).item()


def divided_twice(share: float) -> float:
    """The twin with the defect of a public copy: the derivative of a mean is divided by the batch size once more."""
    network, x, y, mean, shares = smooth()
    without = MixedLoss(0 * mean, shares, share, np.random.default_rng(0))(network, x, y, 0).item()
    return without + (fedmix(share) - without) / len(x)


def error_ratio(loss) -> float:
    """By how much the distance to mixup falls when lambda is halved: 4 for an error of second order, 2 for one of
    first."""
    wide, narrow = (abs(loss(share) - mixup(*smooth(), share).item()) for share in (0.02, 0.01))
    return wide / narrow


def test_fedmix_is_mixup_to_first_order_and_a_derivative_divided_twice_is_not() -> None:
    assert error_ratio(fedmix) == pytest.approx(4, abs=0.2)
    assert error_ratio(divided_twice) == pytest.approx(2, abs=0.2)


def test_the_taylor_term_is_the_derivative_in_the_direction_of_the_mean() -> None:
    network, x, y, mean, shares = smooth()
    share, small = 0.3, 1e-5
    without = MixedLoss(0 * mean, shares, share, np.random.default_rng(0))(network, x, y, 0).item()
    ahead, behind = (functional.cross_entropy(network((1 - share) * x + s * mean), y).item() for s in (small, -small))
    along = (1 - share) * (ahead - behind) / (2 * small)
    assert fedmix(share) - without == pytest.approx(share * along, rel=1e-7)


def test_a_step_of_training_is_a_step_along_the_gradient_of_the_mixed_loss() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 3, generator=draw), torch.arange(5) % 4
    mean, shares = torch.randn(1, 3, generator=draw), torch.full((1, 4), 0.25)
    start = SPEC.initial_weights(0, "start")
    client = client_of(x, y, TorchTrainer(SPEC), {"w": start}, PLAIN, num_classes=4)
    trained = TrainMixed(Ref("w", 0), x=mean, y=shares, share=0.2).run(client).weights or {}
    network = SPEC.build()
    network.load_state_dict(start)
    loss = MixedLoss(mean, shares, 0.2, np.random.default_rng(0))(network, x, y, 0)
    for (name, value), slope in zip(start.items(), torch.autograd.grad(loss, list(network.parameters())), strict=True):
        assert torch.allclose(trained[name], value - 0.1 * slope, atol=1e-6)


class Counting(TorchDispatchMode):
    """Counts the arithmetic of every product and convolution that PyTorch does, forward and backward."""

    flops = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        out = function(*arguments, **(named or {}))
        if (count := flop_registry.get(function._overloadpacket)) is not None:
            self.flops += count(*arguments, **(named or {}), out_val=out)
        return out


@pytest.mark.parametrize("spec", [SPEC, ModelSpec("lenet5", (1, 28, 28), 10)], ids=["mlp", "lenet5"])
def test_flops_are_what_pytorch_counts(spec: ModelSpec) -> None:
    network, samples = spec.build(), 3
    x, y = torch.randn(samples, *spec.shape), torch.zeros(samples, dtype=torch.int64)
    loss = MixedLoss(torch.randn(1, *spec.shape), torch.full((1, spec.num_classes), 1.0), 0.1, np.random.default_rng(0))
    with Counting() as counter:
        torch.autograd.grad(loss(network, x, y, 0), list(network.parameters()))
    assert loss.flops(costs_of(spec), [np.arange(samples)]) == counter.flops


# What clients send ----------------------------------------------------------------------------------------------------


def test_means_of_samples_by_hand() -> None:
    x, y = torch.tensor([[0.0], [2.0], [4.0]]), torch.tensor([0, 1, 1])
    client = client_of(x, y, TorchTrainer(ModelSpec("mlp", (1,), 2)), {})
    step = AverageSamples(2, 3)
    result = step.run(client)
    assert result.arrays["x"].tolist() == [[2.0], [2.0]]
    assert result.arrays["y"].flatten().tolist() == pytest.approx([1 / 3, 2 / 3] * 2)
    assert step.problem(result) is None and result.samples == 0
    assert step.problem(Result(arrays={"y": torch.tensor([[1.5, -0.5]])})) == "told shares that cannot be"
    assert AverageSamples(1, 9).run(client).arrays["x"].tolist() == [[2.0]]  # of fewer, all


def test_a_node_that_keeps_its_samples_to_itself_sends_no_means(tmp_path) -> None:
    with pytest.raises(WireError, match="does not allow means of raw samples"):
        NodePolicy().check([AverageSamples(1, 5)], PLAIN, tmp_path)
    NodePolicy(raw_inputs=True).check([AverageSamples(1, 5)], PLAIN, tmp_path)


def told(engine: FakeEngine, client: int, step: AverageSamples, current) -> Result:
    return Result(arrays={"x": torch.full((step.count, 3), float(client)), "y": torch.full((step.count, 4), 0.25)})


def test_fedmix_asks_for_means_once_and_shows_them_in_proportion_to_samples() -> None:
    engine = FakeEngine({0: 10, 1: 30, 2: 60}, answers={AverageSamples: told})
    engine.silent = {2}
    federation, method = testing.started("fedmix", engine, SPEC, averages=2, averaged=3)
    assert sorted(method.held) == [0, 1]
    engine.silent = set()
    before = method.weights
    one_round(federation, method, [0, 1])
    step = engine.jobs[0].steps[0]
    assert set(step.x.flatten().tolist()) == {0.0, 1.0} and step.x.shape == (64, 3) and step.share == 0.1
    assert 0.5 < float(step.x.mean()) < 1  # client 1 has three times as many samples
    assert moved(before, method.weights) == 1.75
    one_round(federation, method, [2])  # it is asked now
    assert sorted(method.held) == [0, 1, 2] and set(engine.jobs[0].steps[0].x.flatten().tolist()) == {0.0, 1.0, 2.0}
    method.leave(federation, [2])
    assert sorted(method.held) == [0, 1]


def test_where_nobody_gives_means_it_is_fedavg() -> None:
    engine = FakeEngine({0: 10, 1: 30}, answers={AverageSamples: lambda *_: Result(arrays={})})
    federation, method = testing.started("fedmix", engine, SPEC)
    before = method.weights
    one_round(federation, method, [0, 1])
    step = engine.jobs[0].steps[0]
    assert not method.held and step.x is None and step.objective(None) is None
    assert moved(before, method.weights) == 1.75


def test_fedmix_tells_its_cost() -> None:
    quick = {"clients": 4, "groups": 2, "rounds": 2, "epochs": 1, "participation": 1.0, "workers": 1}
    mixed, plain = (feddag.run(feddag.Experiment(method=name, **quick)).result for name in ("fedmix", "fedavg"))
    assert mixed["training_flops"] / plain["training_flops"] == pytest.approx(2, abs=0.5)
    means = 20 * 4 * (64 + 10)  # of each client, in float32
    assert mixed["bytes_up"] == plain["bytes_up"] + 4 * (means + 8)


# FedBR ----------------------------------------------------------------------------------------------------------------


def unbiased(spec: ModelSpec, pseudo: int = 4, **more: float) -> UnbiasedLoss:
    draw = np.random.default_rng(0)
    chosen = {"lr": 0.1, "mu": 0.5, "lam": 1.0, "tau": 2.0} | more
    made = torch.from_numpy(draw.normal(size=(pseudo, *spec.shape)).astype(np.float32))
    return UnbiasedLoss(made, first_projection(spec.features(), draw), **chosen)


def test_fedbrs_contrast_by_hand() -> None:
    """Likenesses 1 to the common features and 0 to the own: -log(e^2 / (e^2 + e^0))."""
    loss = UnbiasedLoss(torch.zeros(1, 2), {}, 0.1, 0.5, 1.0, 2.0)
    unbiased_module.LAYERS, before = 0, unbiased_module.LAYERS  # no projection: features as they are
    try:
        loss.common = torch.tensor([[3.0, 0.0]])
        found = loss.contrast({}, torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]]))
    finally:
        unbiased_module.LAYERS = before
    assert float(found) == pytest.approx(-np.log(np.exp(2) / (np.exp(2) + 1)))


def test_the_projection_goes_up_what_the_model_goes_down() -> None:
    loss, network = unbiased(SPEC, lr=0.05), SPEC.build()
    x, y = torch.randn(6, 3), torch.arange(6) % 4
    loss(network, x, y, 0)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)  # it has moved away from the common model
    with torch.no_grad():
        own, faked = network.encoder(x), network.encoder(loss.pseudo)
        before = float(loss.contrast(loss.projection, faked, own[:4]))
        with torch.enable_grad():
            loss.learn(faked, own[:4])
        assert float(loss.contrast(loss.projection, faked, own[:4])) > before


def test_fedbrs_parts_add_up() -> None:
    """Without its two terms it is cross-entropy; evenness is least where every class has the same score."""
    network, x, y = SPEC.build(), torch.randn(6, 3), torch.arange(6) % 4
    plain = unbiased(SPEC, mu=0.0, lam=0.0)(network, x, y, 0)
    assert plain.item() == pytest.approx(functional.cross_entropy(network(x), y).item())
    even = unbiased(SPEC, mu=0.0, lam=2.0)
    assert even(network, x, y, 0).item() > plain.item() + 2 * np.log(4)
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.zeros_(network.head.bias)
    assert even(network, x, y, 0).item() == pytest.approx(3 * np.log(4), rel=1e-5)


@pytest.mark.parametrize("spec", [SPEC, ModelSpec("lenet5", (1, 28, 28), 10)], ids=["mlp", "lenet5"])
def test_fedbrs_flops_are_what_pytorch_counts(spec: ModelSpec) -> None:
    network, loss = spec.build(), unbiased(spec)
    x, y = torch.randn(3, *spec.shape), torch.zeros(3, dtype=torch.int64)
    with Counting() as counter:
        for step in range(2):
            torch.autograd.grad(loss(network, x, y, step), list(network.parameters()))
    assert loss.flops(costs_of(spec), [np.arange(3)] * 2) == counter.flops


def test_fedbr_averages_projections_and_refuses_what_is_none() -> None:
    def train(engine: FakeEngine, client: int, step: TrainUnbiased, current) -> Result:
        start, projection = (engine.resolve(client, source, current) for source in (step.model, step.projection))
        more = {"projection": {name: value + client for name, value in projection.items()}}
        return Result(weights=start, more=more if client < 2 else {"projection": start})

    engine = FakeEngine({0: 10, 1: 30, 2: 60}, answers={AverageSamples: told, TrainUnbiased: train})
    federation, method = testing.started("fedbr", engine, SPEC, pseudo=6, averaged=3)
    assert method.pseudo.shape == (6, 3)
    before = method.projection
    one_round(federation, method, [0, 1, 2])
    assert moved(before, method.projection) == 0.75 and set(federation.missing) == {2}
    assert engine.jobs[0].steps[0].pseudo is method.pseudo
