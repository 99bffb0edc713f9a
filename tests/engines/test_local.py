"""The local engine: the same bytes for any number of workers, one scoring per model and block, and dying workers."""

import os
import signal
import threading
import time
from dataclasses import dataclass

import pytest
import torch

from feddag.client.evaluate import Evaluate, balanced_accuracies
from feddag.client.step import Client, Result, Step
from feddag.client.train import Anchor, Train
from feddag.engines.local import LocalEngine
from feddag.engines.pools import SHARED_FOLDER
from feddag.federation import Federation, Job
from feddag.weights import Own, Ref, digest


@dataclass(frozen=True)
class Sleep(Step):
    seconds: float

    def run(self, client: Client) -> Result:
        time.sleep(self.seconds)
        return Result(numbers={"samples": len(client.y), "pid": os.getpid()})


@dataclass(frozen=True)
class Where(Step):
    def run(self, client: Client) -> Result:
        return Result(numbers={"thread": threading.get_ident()})


@dataclass(frozen=True)
class Fail(Step):
    def run(self, client: Client) -> Result:
        raise ValueError("a bug in a step")


def federation_of(engine: LocalEngine, worker_config) -> Federation:
    return Federation(engine, worker_config.model, seed=0, participation=1.0)


def rounds_of_training(data, worker_config, workers: int) -> list[str]:
    engine = LocalEngine(data, worker_config, workers)
    federation = federation_of(engine, worker_config)
    try:
        seen = []
        for number in (1, 2):
            federation.begin_round(number)
            model = federation.put(federation.initial_weights())
            replies = federation.ask(Job(c, [Train(model, keep="mine"), Evaluate()]) for c in federation.clients)
            seen += [digest(reply.weights) for reply in replies]
            seen += [digest(reply.results[1].arrays) for reply in replies]
            scored = federation.ask(Job(c, Evaluate(Own("mine"))) for c in federation.clients)
            seen += [digest(reply.results[0].arrays) for reply in scored]
        return seen
    finally:
        engine.close()


def test_one_and_three_workers_give_the_same_bytes(small_data, worker_config) -> None:
    alone = rounds_of_training(small_data, worker_config, workers=1)
    assert alone == rounds_of_training(small_data, worker_config, workers=3)
    assert len(set(alone[:3])) == 3  # three clients, three different models
    assert alone[3:6] == alone[6:9]  # scoring in the job and scoring what was kept agree


def test_one_and_three_native_threads_give_the_same_bytes(small_data, native_worker_config) -> None:
    alone = rounds_of_training(small_data, native_worker_config, workers=1)
    assert alone == rounds_of_training(small_data, native_worker_config, workers=3)
    assert alone[3:6] == alone[6:9]


def test_the_native_trainer_agrees_with_torch(small_data, worker_config, native_worker_config) -> None:
    trained = []
    for config in (worker_config, native_worker_config):
        engine = LocalEngine(small_data, config, workers=1)
        federation = federation_of(engine, config)
        model = federation.put(federation.initial_weights())
        reply = federation.ask([Job(1, [Train(model, anchors=(Anchor(model, 0.1),)), Evaluate()])]).answered[0]
        trained.append((reply.weights, reply.results[1].arrays["counts"]))
        engine.close()
    (expected, expected_counts), (weights, counts) = trained
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(counts, expected_counts, rtol=1e-4, atol=1e-6)


def test_each_model_is_scored_once_per_block(small_data, worker_config, monkeypatch) -> None:
    engine = LocalEngine(small_data, worker_config, workers=1)
    federation = federation_of(engine, worker_config)
    scored = []
    original = engine._pool._worker.do
    monkeypatch.setattr(engine._pool._worker, "do", lambda work: scored.append(work) or original(work))
    model = federation.put(federation.initial_weights())
    first = federation.ask(Job(c, Evaluate(model)) for c in federation.clients)
    # two clients share three class blocks, the third sees the same images under another labelling
    assert sorted(block for work in scored for block in work.blocks) == [0, 1, 2, 3, 4, 5]
    again = federation.ask(Job(c, Evaluate(model)) for c in federation.clients)
    assert sum(len(work.blocks) for work in scored) == 6
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.results[0].arrays["counts"], other.results[0].arrays["counts"])
        assert one.results[0].arrays["counts"][:, 1].tolist() == [5, 5, 5]
    engine.close()


def test_a_killed_worker_is_replaced_and_its_job_runs_again(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=2)
    federation = federation_of(engine, worker_config)
    federation.ask(Job(c, Sleep(0)) for c in federation.clients)  # both workers are up
    victim = next(iter(engine._pool._processes.values())).pid
    threading.Timer(0.3, os.kill, (victim, signal.SIGKILL)).start()
    replies = federation.ask(Job(c, Sleep(0.8)) for c in (0, 1))
    assert [reply.results[0].numbers["samples"] for reply in replies] == [10, 15]
    assert victim not in {reply.results[0].numbers["pid"] for reply in replies}
    engine.close()


def test_a_worker_that_was_killed_while_idle_costs_nothing(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=2)
    federation = federation_of(engine, worker_config)
    federation.ask([Job(0, Sleep(0))])
    for process in list(engine._pool._processes.values()):
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert len(federation.ask(Job(c, Sleep(0)) for c in federation.clients)) == 3
    engine.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bug_in_a_step_is_not_taken_for_a_client_that_left(small_data, worker_config, workers) -> None:
    engine = LocalEngine(small_data, worker_config, workers)
    with pytest.raises((RuntimeError, ValueError), match="a bug in a step"):
        federation_of(engine, worker_config).ask([Job(0, Fail())])
    engine.close()


def test_closing_leaves_no_process_and_no_folder(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=2)
    folder, processes = engine._pool._folder, list(engine._pool._processes.values())
    assert folder.exists()
    engine.close()
    assert not folder.exists()
    assert not any(process.is_alive() for process in processes)


def test_only_abandoned_folders_of_our_own_are_swept(small_data, worker_config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign, abandoned = tmp_path / f"{SHARED_FOLDER}notes", tmp_path / f"{SHARED_FOLDER}old"
    for folder in (foreign, abandoned):
        folder.mkdir()
    (abandoned / "lock").touch()
    first = LocalEngine(small_data, worker_config, workers=2)
    assert foreign.exists() and not abandoned.exists()
    second = LocalEngine(small_data, worker_config, workers=2)
    assert first._pool._folder.exists()  # in use
    first.close()
    second.close()
    assert [path.name for path in tmp_path.iterdir()] == [foreign.name]


@dataclass(frozen=True)
class Choose(Step):
    models: tuple[Ref, ...]
    directions: dict[str, torch.Tensor]

    def run(self, client: Client) -> Result:
        return Result()


def test_only_work_worth_it_goes_to_threads(small_data, native_worker_config, monkeypatch) -> None:
    def threads() -> set[float]:
        engine = LocalEngine(small_data, native_worker_config, workers=2)
        replies = federation_of(engine, native_worker_config).ask([Job(0, Where()), Job(1, Where())])
        engine.close()
        return {reply.results[0].numbers["thread"] for reply in replies}

    assert threading.get_ident() not in threads()
    monkeypatch.setattr("feddag.engines.local.SMALL_JOB", 1e9)
    assert threads() == {threading.get_ident()}


def test_everything_a_step_carries_is_counted(small_data, worker_config) -> None:
    federation = federation_of(LocalEngine(small_data, worker_config, workers=1), worker_config)
    one, two = Ref("a", 100), Ref("b", 10)
    federation.ask([Job(0, [Choose((one, two), {"d": torch.zeros(3)}), Choose((one,), {})])])
    assert federation.traffic.down_by_client == {0: 100 + 10 + 12}
    assert federation.traffic.down == {"train": 100 + 10 + 12}


def test_traffic_is_counted_exactly(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=1)
    federation = federation_of(engine, worker_config)
    model = federation.put(federation.initial_weights())
    size = 4 * (16 * 128 + 128 + 128 * 3 + 3)
    federation.ask([Job(1, [Train(model, send=False), Train(model)])])
    # down: the model once for both steps; up: the second step's weights, a loss each, and the sample count
    assert federation.traffic.down == {"train": size}
    assert federation.traffic.up == {"train": size + 8 + 8 + 8}
    assert federation.traffic.samples == {"train": 2 * 2 * 15}
    with federation.uncounted():
        federation.ask([Job(1, Train(model))])
    assert federation.traffic.up_by_client == {1: size + 24}
    engine.close()


def test_a_model_that_is_no_longer_finite_is_missing(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=1)
    federation = federation_of(engine, worker_config)
    broken = {name: value * float("nan") for name, value in federation.initial_weights().items()}
    good = federation.put(federation.initial_weights())
    replies = federation.ask([Job(0, Train(federation.put(broken))), Job(1, Train(good))])
    assert [reply.client for reply in replies] == [1]
    assert federation.traffic.samples["train"] == 2 * (10 + 15)  # its work was done and sent all the same
    assert replies.missing == federation.missing == {0: "answered with a value that is not finite"}
    engine.close()


def test_two_jobs_for_one_client_are_refused(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=1)
    with pytest.raises(ValueError, match="two jobs"):
        federation_of(engine, worker_config).ask([Job(0, Sleep(0)), Job(0, Sleep(0))])
    engine.close()


def test_a_shifted_client_is_tested_as_it_is_trained(small_data, worker_config) -> None:
    """Client 2 labels the other way round: trained on its own data it is right about its own test labels."""
    engine = LocalEngine(small_data, worker_config, workers=1)
    federation = federation_of(engine, worker_config)
    trained = federation.initial_weights()
    for number in range(1, 15):
        federation.begin_round(number)
        trained = federation.ask([Job(2, Train(federation.put(trained)))]).answered[0].weights
    sent = federation.put(trained)
    own, other = (federation.ask([Job(c, Evaluate(sent))]).answered[0].results[0].arrays["counts"] for c in (2, 0))
    engine.close()
    own_accuracy, other_accuracy = balanced_accuracies(torch.stack([own, other]))
    assert own_accuracy > 0.9
    assert other_accuracy < 0.5  # only the middle class is labelled alike
