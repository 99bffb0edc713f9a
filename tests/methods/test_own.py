"""What a method written outside the package meets: its key, its memory, its own steps, what it may serve."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag.errors import FeddagError
from feddag.models import MixtureOfModels
from feddag.runner.directory import RunDirectory
from tests.engines.in_process import run_on_nodes

QUICK = {"clients": 4, "groups": 2, "rounds": 3, "epochs": 1, "participation": 1.0, "workers": 1, "finetune": False}
FEDAVG = "from feddag.methods.fedavg import FedAvg\n"


@pytest.fixture(autouse=True)
def _own_modules(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules that a test writes are forgotten with it."""
    monkeypatch.syspath_prepend(in_tmp)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(in_tmp)):
            del sys.modules[name]


class Stop(Exception):
    pass


def stop_after(number: int) -> Any:
    def observer(record: Any) -> None:
        if record["round"] == number:
            raise Stop

    return observer


def test_the_key_covers_all_of_the_users_own_code() -> None:
    Path("helper.py").write_text("AMOUNT = 1\n")
    Path("base.py").write_text(f"{FEDAVG}import helper\nclass Base(FedAvg):\n    name = 'base'\n")
    Path("mine.py").write_text("from base import Base\nclass Mine(Base):\n    name = 'mine'\n")
    key = feddag.Experiment(method="mine:Mine", **QUICK).key()
    assert feddag.Experiment(method="mine:Mine", **QUICK).key() == key
    for file in ("helper.py", "base.py", "mine.py"):
        text = Path(file).read_text()
        Path(file).write_text(text + "# changed\n")
        assert feddag.Experiment(method="mine:Mine", **QUICK).key() != key, file
        Path(file).write_text(text)
    Path("package").mkdir()
    Path("package/__init__.py").write_text("")
    Path("package/inner.py").write_text("X = 1\n")
    Path("package/method.py").write_text(f"{FEDAVG}from . import inner\nclass Mine(FedAvg):\n    name = 'mine'\n")
    key = feddag.Experiment(method="package.method:Mine", **QUICK).key()
    Path("package/inner.py").write_text("X = 2\n")
    assert feddag.Experiment(method="package.method:Mine", **QUICK).key() != key


def test_setup_makes_what_is_not_remembered_for_start_and_resume(in_tmp: Path) -> None:
    Path("private.py").write_text(
        f"{FEDAVG}class Private(FedAvg):\n"
        "    name = 'private'\n"
        "    def setup(self, federation):\n"
        "        self._half = federation.rounds / 2\n"
        "    def round(self, federation, sampled):\n"
        "        super().round(federation, sampled)\n"
        "        if federation.round > self._half:\n"
        "            federation.tell('other', f'past half of {federation.rounds}')\n"
    )
    experiment = feddag.Experiment(method="private:Private", **QUICK)
    with pytest.raises(Stop):
        feddag.run(experiment, in_tmp / "r", observer=stop_after(1))
    run = feddag.run(experiment, in_tmp / "r", resume=True)
    assert [[event["text"] for event in record["events"]] for record in run.history] == [
        [],
        ["past half of 3"],
        ["past half of 3"],
    ]


def test_models_that_the_server_holds_for_clients_are_files_of_their_own(in_tmp: Path) -> None:
    Path("held.py").write_text(
        f"{FEDAVG}class Held(FedAvg):\n"
        "    name = 'held'\n"
        "    def round(self, federation, sampled):\n"
        "        super().round(federation, sampled[:1] if federation.round == 2 else sampled)\n"
        "    def combined(self, replies):\n"
        "        self.held |= {reply.client: reply.weights for reply in replies}\n"
        "        return super().combined(replies)\n"
        "    def model_of(self, client):\n"
        "        return self.held.get(client, self.weights)\n"
    )
    experiment = feddag.Experiment(method="held:Held", **QUICK | {"rounds": 2})
    run = feddag.run(experiment, in_tmp / "r")
    files = sorted(path.name for path in (in_tmp / "r/held").iterdir())
    assert files == [  # round 2 wrote only the one that had changed; round 1's of client 0 is for the checkpoint before
        "client-000000-round-000001.safetensors",
        "client-000000-round-000002.safetensors",
        "client-000001-round-000001.safetensors",
        "client-000002-round-000001.safetensors",
        "client-000003-round-000001.safetensors",
    ]
    saved = RunDirectory(in_tmp / "r").load_checkpoint()
    assert saved is not None and "held" not in saved.tree["method"] and len(saved.held) == 4
    assert torch.equal(run.network(2).state_dict()["head.bias"], saved.held[2]["head.bias"])
    with pytest.raises(Stop):
        feddag.run(experiment, in_tmp / "again", observer=stop_after(1))
    resumed = feddag.run(experiment, in_tmp / "again", resume=True)
    assert resumed.result["accuracy"] == run.result["accuracy"]


SERVES = (
    "from feddag import Method\n"
    "from feddag.client.train import Train\n"
    "from feddag.federation import Job\n"
    "from feddag.server.aggregate import weighted_mean\n"
    "from feddag.weights import Choice, Mixture\n"
    "class Two(Method):\n"
    "    name = 'two'\n"
    "    def start(self, federation):\n"
    "        self.models = [federation.initial_weights('a'), federation.initial_weights('b')]\n"
    "    def round(self, federation, sampled):\n"
    "        for number, model in enumerate(list(self.models)):\n"
    "            half = [client for client in sampled if client % 2 == number]\n"
    "            ref = federation.put(model)\n"
    "            self.models[number] = weighted_mean(federation.ask(Job(c, Train(ref)) for c in half)) or model\n"
    "    def model_of(self, client):\n"
    "        return {serves}\n"
)


def test_a_method_of_ones_own_trains_in_balanced_batches_and_refuses_what_it_does_not_do(in_tmp: Path) -> None:
    Path("alone.py").write_text(SERVES.format(serves="self.models[client % 2]"))
    plain = feddag.run(feddag.Experiment(method="alone:Two", **QUICK))
    balanced = feddag.run(feddag.Experiment(method="alone:Two", balanced=True, **QUICK))
    assert balanced.result["accuracy"] != plain.result["accuracy"]
    with pytest.raises(FeddagError, match=r"smoothing = 0.5 does nothing with method = 'alone:Two'"):
        feddag.Experiment(method="alone:Two", smoothing=0.5)


def test_a_client_may_use_a_mixture_of_models(in_tmp: Path, monkeypatch) -> None:
    Path("mixing.py").write_text(SERVES.format(serves="Mixture(tuple(self.models), (0.25, 0.75))"))
    fields = QUICK | {"finetune": True}
    experiment = feddag.Experiment(method="mixing:Two", **fields)
    run = feddag.run(experiment, in_tmp / "r")
    mixed = run.network(1)
    assert isinstance(mixed, MixtureOfModels) and mixed.shares == (0.25, 0.75)
    x = torch.randn(5, 1, 8, 8)
    one, other = (torch.softmax(member(x), 1) for member in mixed.models)
    torch.testing.assert_close(mixed(x).exp(), 0.25 * one + 0.75 * other)
    assert run.result["accuracy_finetuned"] is None  # a mixture has no single model to train on
    (in_tmp / "there").mkdir()
    there = run_on_nodes(experiment, in_tmp / "there", monkeypatch)
    assert there.result["accuracy"] == run.result["accuracy"]


def test_a_client_may_choose_its_model_by_its_training_samples(in_tmp: Path) -> None:
    Path("choosing.py").write_text(SERVES.format(serves="Choice(tuple(self.models))"))
    Path("alone.py").write_text(SERVES.format(serves="self.models[client % 2]"))
    fields = QUICK | {"partition": "label-skew", "rounds": 6, "epochs": 3, "finetune": True}
    choosing = feddag.run(feddag.Experiment(method="choosing:Two", **fields), in_tmp / "r")
    fixed = feddag.run(feddag.Experiment(method="alone:Two", **fields))
    assert choosing.accuracy.mean >= fixed.accuracy.mean
    assert choosing.result["accuracy_finetuned"] is not None
    assert choosing.result["samples_scored"] == 0  # measuring is not the method's work
    models = [choosing.network(client).state_dict()["head.bias"] for client in range(4)]
    assert len({tuple(model.tolist()) for model in models}) == 2


OWN_STEP = '''
from dataclasses import dataclass
from feddag.client.step import Result, Step
from feddag.client.train import Train
from feddag.federation import Job
from feddag.methods.fedavg import FedAvg
from feddag.server.aggregate import mean_of
from feddag.weights import Ref

@dataclass(frozen=True)
class Weigh(Step):
    """Samples count by their loss under two models; the second model's head travels back beside the first's."""
    models: tuple

    def run(self, client):
        losses = [client.losses(client.weights(model)) for model in self.models]
        client.scratch["by loss"] = losses[0] + losses[1]
        client.current = client.weights(self.models[0])
        first, second = map(client.weights, self.models)
        return Result(more={"first": first, "second": second}, scored=2 * len(client.y))

class Weighing(FedAvg):
    name = "weighing"
    def start(self, federation):
        super().start(federation)
        self.other = federation.initial_weights("other")
    def local_work(self, model):
        return [Weigh((model, self._ref)), Train(sample_weights="by loss", losses=True, steps=3, lr=0.05)]
    def round(self, federation, sampled):
        self._ref = federation.put(self.other)
        super().round(federation, sampled)
    def combined(self, replies):
        replies = list(replies)
        assert all(reply.results[1].arrays["losses"].shape == (3,) for reply in replies)
        assert all(set(reply.results[0].more) == {"first", "second"} for reply in replies)
        return super().combined(replies)
'''


@pytest.mark.parametrize("trainer", ["torch", "auto"])
def test_steps_of_ones_own_pass_things_on_and_send_several_models(trainer: str, in_tmp: Path, monkeypatch) -> None:
    Path("weighing.py").write_text(OWN_STEP)
    experiment = feddag.Experiment(method="weighing:Weighing", **QUICK, trainer=trainer, batch_size=4)
    run = feddag.run(experiment)
    assert run.result["answers_missing"] == 0
    assert run.result["sample_passes"] == 3 * 4 * 3 * 4 and run.result["samples_scored"] > 0
    (in_tmp / "there").mkdir()
    there = run_on_nodes(experiment, in_tmp / "there", monkeypatch)
    assert there.result["accuracy"] == run.result["accuracy"]
    assert there.result["bytes_up"] == run.result["bytes_up"]


def test_truth_is_for_methods_that_need_it(in_tmp: Path) -> None:
    Path("curious.py").write_text(
        f"{FEDAVG}class Curious(FedAvg):\n"
        "    name = 'curious'\n"
        "    def start(self, federation):\n"
        "        super().start(federation)\n"
        "        assert federation.truth is None\n"
        "class Told(FedAvg):\n"
        "    name = 'told'\n"
        "    needs_truth = True\n"
        "    def start(self, federation):\n"
        "        super().start(federation)\n"
        "        assert len(federation.truth) == 4\n"
    )
    for name in ("Curious", "Told"):
        feddag.run(feddag.Experiment(method=f"curious:{name}", **QUICK | {"rounds": 1}))


def test_a_method_without_a_model_for_a_newcomer_is_told_so(in_tmp: Path) -> None:
    Path("forgetful.py").write_text(
        f"{FEDAVG}class Forgetful(FedAvg):\n"
        "    name = 'forgetful'\n"
        "    def start(self, federation):\n"
        "        super().start(federation)\n"
        "        self.known = {client: 0 for client in federation.clients}\n"
        "    def model_of(self, client):\n"
        "        return [self.weights][self.known[client]]\n"
    )
    with pytest.raises(FeddagError, match="method 'forgetful' has no model for client"):
        feddag.run(feddag.Experiment(method="forgetful:Forgetful", **QUICK, holdout=0.3))
