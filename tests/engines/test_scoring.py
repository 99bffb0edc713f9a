"""Scores of many clients from those of test blocks: the same bytes as asking each of them, and no block twice."""

import numpy as np
import pytest
import torch
from torch import Tensor

from feddag.client.evaluate import Evaluate
from feddag.engines import scoring
from feddag.engines.local import LocalEngine
from feddag.engines.scoring import Scorer
from feddag.engines.worker import Score
from feddag.federation import Job
from feddag.weights import Ref
from tests.engines.test_local import federation_of

ONE, OTHER = Ref("one", 1), Ref("other", 1)


class Remembered:
    """Carries out scorings by a rule: a block's row is (the model's number, its number, 10 times its number)."""

    def __init__(self) -> None:
        self.done: list[Score] = []

    def __call__(self, works, costs):
        for work, _ in zip(works, costs, strict=True):
            self.done.append(work)
            yield work, torch.tensor([[float(work.model is OTHER), b, 10.0 * b] for b in work.blocks]).double()


def counts(scorer: Scorer, models: list[Ref], which: list[int], clients: list[int]) -> list[Tensor]:
    tables, place = scorer.counts(models, np.array(which), np.array(clients))
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
    assert worker.done == [Score(ONE, (0, 1, 2))]
    counts(scorer, [ONE], [0, 0, 0], [0, 1, 2])
    assert worker.done[1:] == [Score(ONE, (3, 4, 5))]
    before = counts(scorer, [ONE, OTHER], [0, 1], [2, 2])
    assert worker.done[2:] == [Score(OTHER, (3, 4, 5))]
    counts(scorer, [OTHER], [0], [2])
    assert len(worker.done) == 3
    after = counts(scorer, [ONE, OTHER], [0, 1], [2, 2])
    assert worker.done[3:] == [Score(ONE, (3, 4, 5))]
    assert torch.equal(torch.stack(before), torch.stack(after))


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
