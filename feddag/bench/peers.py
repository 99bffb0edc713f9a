"""The same federated rounds in other frameworks: `PYTHON peers.py NAME FOLDER ROUNDS`, one process for each.

Run as a file, because the frameworks may be installed where feddag is not: it needs only NumPy and PyTorch.
FOLDER holds the work that `feddag.bench.round` wrote: samples, first weights, batch size. The last line printed is
JSON: when the first round ended, and seconds of each later one. The final weights go to FOLDER/NAME.npz.
"""

import json
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Shape = tuple[int, ...]
Weights = dict[str, Tensor]
LR = 0.01
MOMENTUM = 0.5


def m1(shape: Shape, num_classes: int) -> tuple[nn.Module, nn.Module]:
    """M1: two 5x5 convolutions of 16 and 32 channels and one dense layer; 29k parameters for 28x28x1."""
    encoder = nn.Sequential(
        *(nn.Conv2d(shape[0], 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    )
    return encoder, nn.Linear(32 * (shape[1] // 4) * (shape[2] // 4), num_classes)


def mlp(shape: Shape, num_classes: int) -> tuple[nn.Module, nn.Module]:
    """The package's `mlp`, written out here because feddag may not be installed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 128), nn.ReLU()), nn.Linear(128, num_classes)


NETWORKS: dict[str, Callable[[Shape, int], tuple[nn.Module, nn.Module]]] = {"M1": m1, "mlp": mlp}


class Work:
    """The work in the folder; small enough to send to another process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = json.loads((folder / "about.json").read_text())
        self.model_name, self.num_classes = about["model"], about["num_classes"]
        self.batch_size, self.clients = about["batch_size"], about["clients"]

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """One client's samples, read from disk."""
        offsets = np.load(self.folder / "offsets.npy")
        part = slice(offsets[client], offsets[client + 1])
        x, y = (np.load(self.folder / f"{name}.npy", mmap_mode="r")[part] for name in "xy")
        return torch.from_numpy(x.copy()), torch.from_numpy(y.copy())

    def first_weights(self) -> Weights:
        """What the global model starts from."""
        return load_weights(self.folder / "first.npz")

    def model(self) -> nn.Module:
        """The network with its first weights."""
        encoder, head = NETWORKS[self.model_name](tuple(self.samples(0)[0].shape[1:]), self.num_classes)
        model = nn.Sequential(OrderedDict(encoder=encoder, head=head))
        model.load_state_dict(self.first_weights())
        return model


def save_weights(path: Path, weights: Weights) -> None:
    """Into an .npz file, an array for each tensor."""
    arrays: dict[str, Any] = {name: value.numpy() for name, value in weights.items()}
    np.savez(path, **arrays)


def load_weights(path: Path) -> Weights:
    """What `save_weights` saved."""
    with np.load(path, allow_pickle=False) as held:
        return {name: torch.from_numpy(held[name]) for name in held.files}


def one_epoch(model: nn.Module, samples: Iterable[tuple[Tensor, Tensor]]) -> None:
    """What most federated frameworks run for every client: an SGD step for each batch of a DataLoader."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for x, y in samples:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def batches(x: Tensor, y: Tensor, size: int) -> DataLoader[tuple[Tensor, ...]]:
    """The samples in shuffled batches."""
    return DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)


class Clock:
    """Notes when rounds end; what came before the first is start-up."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def round_done(self) -> None:
        self.moments.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of each round, the first with its start-up."""
        return np.diff(self.moments).tolist()


def flower(work: Work, rounds: int) -> tuple[list[float], Weights]:
    """Flower's simulation on Ray: one single-threaded actor per core, the frameworks' own FedAvg."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # type: ignore[import-not-found,unused-ignore]
    from flwr.clientapp import ClientApp  # type: ignore[import-not-found,unused-ignore]
    from flwr.serverapp import ServerApp  # type: ignore[import-not-found,unused-ignore]
    from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found,unused-ignore]
    from flwr.simulation import run_simulation  # type: ignore[import-not-found,unused-ignore]

    clock, final = Clock(), {}
    client_app, server_app = ClientApp(), ServerApp()

    def fit(message: Any, context: Any) -> Any:
        x, y = work.samples(int(context.node_config["partition-id"]))
        model = work.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        one_epoch(model, batches(x, y, work.batch_size))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    def serve(grid: Any, context: Any) -> None:
        def after_round(number: int, arrays: Any) -> None:
            if number:  # 0 is the model before the first round
                clock.round_done()

        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=work.clients)
        first = ArrayRecord(work.first_weights())
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds, evaluate_fn=after_round)
        final.update(result.arrays.to_torch_state_dict())

    client_app.train()(fit)
    server_app.main()(serve)
    cores = os.cpu_count() or 1
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(server_app, client_app, num_supernodes=work.clients, backend_config=backend)
    return clock.seconds(), final


def pfl(work: Work, rounds: int) -> tuple[list[float], Weights]:
    """Apple's pfl: FederatedAveraging on the simulated backend; under torchrun, one worker per core."""
    from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found,unused-ignore]
    from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found,unused-ignore]
    from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found,unused-ignore]
    from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found,unused-ignore]
    from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found,unused-ignore]
    from pfl.data.dataset import Dataset  # type: ignore[import-not-found,unused-ignore]
    from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found,unused-ignore]
    from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found,unused-ignore]
    from pfl.hyperparam.base import NNTrainHyperParams  # type: ignore[import-not-found,unused-ignore]
    from pfl.metrics import Metrics  # type: ignore[import-not-found,unused-ignore]
    from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found,unused-ignore]

    at_hand = [work.samples(client) for client in range(work.clients)]
    clock = Clock()

    class RoundDone(TrainingProcessCallback):  # type: ignore[misc,unused-ignore]
        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> tuple[bool, Any]:
            clock.round_done()
            return False, Metrics()

    def shuffled(client: int) -> Any:
        x, y = at_hand[client]
        order = torch.randperm(len(y))
        return Dataset((x[order], y[order]), user_id=str(client))

    network = work.model()
    network.loss = lambda x, y: nn.functional.cross_entropy(network(x), y)  # type: ignore[assignment]
    network.metrics = lambda x, y: {}  # type: ignore[assignment]
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", list(range(work.clients))))
    FederatedAveraging().run(
        # Evaluation happens in round 0 only, which no setting can avoid and `network.metrics` keeps empty.
        NNAlgorithmParams(rounds, evaluation_frequency=10**9, train_cohort_size=work.clients, val_cohort_size=None),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=work.batch_size, local_num_epochs=1, local_learning_rate=LR),
        callbacks=[RoundDone()],
        send_metrics_to_platform=False,
    )
    return clock.seconds(), dict(network.state_dict())


def fedlab(work: Work, rounds: int) -> tuple[list[float], Weights]:
    """FedLab's standalone pipeline: clients one after the other, torch on all threads."""
    for name in ("torchvision", "torchvision.transforms"):  # imported for its ready-made datasets, not used here
        sys.modules[name] = MagicMock()
    from fedlab.contrib.algorithm.fedavg import (  # type: ignore[import-not-found,unused-ignore]
        FedAvgSerialClientTrainer,
        FedAvgServerHandler,
    )
    from fedlab.core.standalone import StandalonePipeline  # type: ignore[import-not-found,unused-ignore]

    at_hand = [work.samples(client) for client in range(work.clients)]
    clock = Clock()

    class Loaders:
        def get_dataloader(self, client: int, batch_size: int) -> Any:
            return batches(*at_hand[client], batch_size)

    class Trainer(FedAvgSerialClientTrainer):  # type: ignore[misc,unused-ignore]
        def train(self, model_parameters: Any, train_loader: Any) -> Any:
            # Its own optimiser has no momentum, and would carry one from client to client.
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM)
            return super().train(model_parameters, train_loader)

    class Pipeline(StandalonePipeline):  # type: ignore[misc,unused-ignore]
        def evaluate(self) -> None:
            clock.round_done()

    trainer = Trainer(work.model(), work.clients)
    trainer.setup_dataset(Loaders())
    trainer.setup_optim(1, work.batch_size, LR)
    handler = FedAvgServerHandler(work.model(), rounds, 1.0)
    Pipeline(handler, trainer).main()
    return clock.seconds(), dict(handler.model.state_dict())


PEERS: dict[str, tuple[str, Callable[[Work, int], tuple[list[float], Weights]]]] = {
    "flower": ("flwr", flower),
    "pfl": ("pfl", pfl),
    "fedlab": ("fedlab", fedlab),
}


def main(name: str, folder: str, rounds: str) -> None:
    """Run one peer, save its final weights, and print what `feddag.bench.round` reads."""
    package, run = PEERS[name]
    rank = int(os.environ.get("RANK", "0"))  # which of several worker processes this is
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(rank)  # each worker shuffles in its own way
    try:
        seconds, final = run(Work(Path(folder)), int(rounds))
    except ImportError as error:
        print(json.dumps({"skipped": f"{package} cannot be imported: {error}"}), flush=True)
        return
    if rank == 0:
        save_weights(Path(folder) / f"{name}.npz", final)
        print(json.dumps({"version": version(package), "first": seconds[0], "later": seconds[1:]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
