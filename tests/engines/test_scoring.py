"""Scores of many clients from those of test blocks: the same bytes as asking each of them, and no block twice."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from feddag import native
from feddag.client.evaluate import Evaluate
from feddag.client.trainer import native_network
from feddag.engines import scoring
from feddag.engines.local import LocalEngine
from feddag.engines.scoring import Scorer
from feddag.engines.worker import Score, Worker, WorkerConfig
from feddag.federation import Job
from feddag.heads import OUT_OF_REACH, without
from feddag.weights import HELD, Ref, Weights
from tests.engines.test_local import federation_of

ONE, OTHER = Ref("one", 1), Ref("other", 1)


class Remembered:
    """Carries out scorings by a rule: a block's row is (the head's number, its number, 10 times its number)."""

    def __init__(self) -> None:
        self.done: list[Score] = []

    def __call__(self, works, costs):
        for work, _ in zip(works, costs, strict=True):
            self.done.append(work)
            rows = [[[float(head is OTHER), b, 10.0 * b] for b in work.blocks] for head in work.heads]
            yield work, torch.tensor(rows).double()


def whole(model: Ref, *blocks: int) -> Score:
    return Score(model, (model,), blocks)


def counts(scorer: Scorer, models: list[Ref], which: list[int], clients: list[int]) -> list[Tensor]:
    tables, place = scorer.counts([(model, model) for model in models], np.array(which), np.array(clients))
    return list(tables[place])


def test_counts_are_put_together_from_the_rows_of_a_clients_blocks(small_data) -> None:
    """The first two clients share blocks 0 to 2, of class 0 to 2; the last has 3 to 5, of class 2 to 0."""
    scorer = Scorer(small_data, Remembered())
    labels = [small_data.block(block)[1][0] for block in small_data.blocks(2)]
    first, second, third = counts(scorer, [ONE, OTHER], [0, 1, 1], [0, 1, 2])
    assert first.tolist() == [[0, 0, 0], [0, 1, 10], [0, 2, 20]]
    assert second.tolist() == [[1, 0, 0], [1, 1, 10], [1, 2, 20]]
    assert third[labels].tolist() == [[1, block, 10 * block] for block in small_data.blocks(2)]


def test_only_what_is_new_is_scored_and_models_that_are_gone_are_forgotten(small_data) -> None:
    worker = Remembered()
    scorer = Scorer(small_data, worker)
    counts(scorer, [ONE], [0], [0])
    assert worker.done == [whole(ONE, 0, 1, 2)]
    counts(scorer, [ONE], [0, 0, 0], [0, 1, 2])
    assert worker.done[1:] == [whole(ONE, 3, 4, 5)]
    before = counts(scorer, [ONE, OTHER], [0, 1], [2, 2])
    assert worker.done[2:] == [whole(OTHER, 3, 4, 5)]
    counts(scorer, [OTHER], [0], [2])
    assert len(worker.done) == 3
    after = counts(scorer, [ONE, OTHER], [0, 1], [2, 2])
    assert worker.done[3:] == [whole(ONE, 3, 4, 5)]
    assert torch.equal(torch.stack(before), torch.stack(after))


def test_heads_over_one_model_share_the_blocks_that_all_of_them_want(small_data) -> None:
    """Clients 0 and 1 have blocks 0 to 2 and client 2 has 3 to 5; only the first two use different heads."""
    worker = Remembered()
    scorer = Scorer(small_data, worker)
    pairs, clients = [(ONE, ONE), (ONE, OTHER)], np.array([0, 1, 2])
    tables, place = scorer.counts(pairs, np.array([0, 1, 1]), clients)
    first, second, third = tables[place]
    assert worker.done == [Score(ONE, (ONE, OTHER), (0, 1, 2)), Score(ONE, (OTHER,), (3, 4, 5))]
    assert first.tolist() == [[0, 0, 0], [0, 1, 10], [0, 2, 20]]
    assert second.tolist() == [[1, 0, 0], [1, 1, 10], [1, 2, 20]]
    assert third[:, 0].tolist() == [1, 1, 1]
    scorer.counts(pairs, np.array([0, 1, 0]), clients)
    assert worker.done[2:] == [Score(ONE, (ONE,), (3, 4, 5))]  # what is known of a head is not scored again


@given(
    wanted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12),
    small=st.sampled_from([0, 6]),
)
def test_whoever_uses_what_no_block_passes_through_a_model_twice(wanted: list[tuple[int, int, int]], small) -> None:
    """Each (model, head, client) is answered by its own blocks, and by scorings that share no (model, block)."""
    data = SimpleNamespace(
        num_classes=3,
        test_y=np.repeat([0, 1, 2, 1], 5),
        block_offsets=np.arange(0, 25, 5),
        block_list=np.array([0, 1, 2, 3, 2]),
        block_list_offsets=np.array([0, 3, 4, 5]),
        blocks=lambda client: [(0, 1, 2), (3,), (2,)][client],
    )
    models, heads = [Ref(f"model {n}", 1) for n in (0, 1)], [Ref(f"head {n}", 1) for n in range(4)]
    done: list[Score] = []

    def score(works, costs):
        for work in works:
            done.append(work)
            rows = [[[models.index(work.model), heads.index(head), b] for b in work.blocks] for head in work.heads]
            yield work, torch.tensor(rows).double()

    pairs = sorted({(model, head) for model, head, _ in wanted})
    which = np.array([pairs.index((model, head)) for model, head, _ in wanted])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scoring, "SMALL_BLOCK", small)
        tables, place = Scorer(data, score).counts(  # type: ignore[arg-type]
            [(models[model], heads[head]) for model, head in pairs], which, np.array([client for *_, client in wanted])
        )
    assert len(done) <= 8 and len({(work.model, b) for work in done for b in work.blocks}) == sum(
        len(work.blocks) for work in done
    )
    for table, (model, head, client) in zip(tables[place], wanted, strict=True):
        expected = torch.zeros(3, 3).double()
        for block in data.blocks(client):
            expected[data.test_y[5 * block]] += torch.tensor([model, head, block]).double()
        assert torch.equal(table, expected)


HOLDS = {0: [0, 1], 1: [1, 2], 2: [0, 2]}


@pytest.fixture
def uneven(small_data, monkeypatch):
    """Three clients, each of which has training samples of two of three classes only."""
    samples = type(small_data).samples

    def of_some_classes(data, client: int):
        x, y = samples(data, client)
        return x, np.resize(HOLDS[client], len(y))

    monkeypatch.setattr(type(small_data), "samples", of_some_classes)
    return small_data


def expected_of(data, config: WorkerConfig, model: Weights) -> list[Tensor]:
    """What each client would tell of the model if it answered only with classes that it holds."""
    absent = [torch.tensor([label not in held for label in range(3)]) for held in HOLDS.values()]
    worker = Worker(data, config, lambda _: {})
    return [worker._score(without(model, flags), data.blocks(client)) for client, flags in enumerate(absent)]


@pytest.mark.parametrize("encoders", [1, 2])
@pytest.mark.parametrize(("kind", "workers"), [("torch", 1), ("torch", 2), ("native", 1), ("native", 3)])
def test_heads_over_a_model_give_the_bytes_of_whole_models(uneven, kind, workers, encoders, worker_config) -> None:
    config = replace(worker_config, model=replace(worker_config.model, encoders=encoders))
    if kind == "native":
        config = replace(
            config, network=native_network(config.model, "native") if native.available() else pytest.skip()
        )
    engine = LocalEngine(uneven, config, workers)
    federation = federation_of(engine, config)
    model = config.model.initial_weights(0, "a")
    jobs = [Job(client, Evaluate((federation.put(model), HELD))) for client in HOLDS]
    expected = expected_of(uneven, config, model)
    for client, reply in enumerate(federation.ask(jobs)):
        assert torch.equal(reply.results[0].arrays["counts"], expected[client])
    assert not torch.equal(expected[0], expected[1])
    engine.close()


@pytest.mark.parametrize("kind", ["worker_config", "native_worker_config"])
def test_the_encoder_is_not_run_once_per_head(uneven, kind: str, request, monkeypatch) -> None:
    """Each test sample passes through it once, and no whole model is put together."""
    config = request.getfixturevalue(kind)
    engine = LocalEngine(uneven, config, workers=1)
    federation = federation_of(engine, config)
    model = federation.put(config.model.initial_weights(0, "a"))
    encoded: list[int] = []
    if kind == "worker_config":
        encoder = engine._pool._worker._trainer._model.encoder
        encoder.register_forward_hook(lambda module, given, made: encoded.append(len(given[0])))
    else:
        called = native._call
        monkeypatch.setattr(native, "_call", lambda name, x, *rest: encoded.append(len(x)) or called(name, x, *rest))
    put, handed = engine.put, []
    monkeypatch.setattr(engine, "put", lambda weights: handed.append(set(weights)) or put(weights))
    federation.ask(Job(client, Evaluate((model, HELD))) for client in HOLDS)
    assert handed == [{"head.weight", "head.bias"}] * 3
    assert sum(encoded) == len(uneven.test_y)
    engine.close()


def test_clients_that_hold_the_same_share_a_head_until_they_hold_others(uneven, worker_config, monkeypatch) -> None:
    engine = LocalEngine(uneven, worker_config, workers=1, drift=(2, uneven))
    federation = federation_of(engine, worker_config)
    model = federation.put(worker_config.model.initial_weights(0, "a"))
    first, second = engine._sent(0, (model, HELD)), engine._sent(1, (model, HELD))
    assert first[0] == second[0] == model and first[1] != second[1] and engine._sent(0, (model, HELD)) == first
    assert engine._handed[first[1]]["head.bias"][2] == OUT_OF_REACH
    monkeypatch.setitem(HOLDS, 0, [1, 2])
    federation.begin_round(2)
    model = federation.put(worker_config.model.initial_weights(0, "a"))
    assert engine._sent(0, (model, HELD)) == engine._sent(1, (model, HELD))
    engine.close()


def test_a_head_that_is_not_linear_is_laid_over_its_model(uneven, worker_config) -> None:
    """It might change in place what other heads are to read."""
    config = replace(worker_config, model=replace(worker_config.model, name=f"{__name__}:with_another_head"))
    engine = LocalEngine(uneven, config, workers=1)
    federation = federation_of(engine, config)
    model = config.model.initial_weights(0, "a")
    replies = federation.ask(Job(client, Evaluate((federation.put(model), HELD))) for client in HOLDS)
    for reply, table in zip(replies, expected_of(uneven, config, model), strict=True):
        assert torch.equal(reply.results[0].arrays["counts"], table)
    engine.close()


class Doubling(nn.Linear):
    """A head that leaves its input other than it was."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


def with_another_head(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Flatten(), Doubling(int(np.prod(shape)), classes)


def test_large_blocks_are_scored_by_themselves_and_small_ones_so_many_at_once(small_data, monkeypatch) -> None:
    """Blocks have five samples each: a part ends where the next block would begin beyond so many."""
    for small, at_once, parts in ((6, 100, [6]), (5, 100, [1] * 6), (6, 10, [1, 2, 2, 1]), (6, 5, [1] * 6)):
        monkeypatch.setattr(scoring, "SMALL_BLOCK", small)
        monkeypatch.setattr(scoring, "AT_ONCE", at_once)
        worker = Remembered()
        counts(Scorer(small_data, worker), [ONE], [0, 0], [0, 2])
        assert [len(work.blocks) for work in worker.done] == parts
        assert [block for work in worker.done for block in work.blocks] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["worker_config", "native_worker_config"])
def test_scores_without_jobs_are_those_of_the_blocks_one_by_one(small_data, kind: str, request) -> None:
    config = request.getfixturevalue(kind)
    engine = LocalEngine(small_data, config, workers=1)
    federation = federation_of(engine, config)
    weights = [config.model.initial_weights(0, name) for name in ("a", "b")]
    models = [federation.put(each) for each in weights]
    alone = [engine._pool._worker._score(weights[client % 2], small_data.blocks(client)) for client in (0, 1, 2)]
    found = federation.counts(models, np.array([0, 1, 0]), np.array([0, 1, 2]))
    assert found is not None
    tables, place = found
    told = tables[place]
    assert torch.equal(told, torch.stack(alone))
    asked = federation.ask(Job(client, Evaluate(models[client % 2])) for client in (0, 1, 2))
    assert torch.equal(torch.stack([reply.results[0].arrays["counts"] for reply in asked]), told)
    engine.close()
