"""FedDAG as printed and as released: the round by hand, and what each asks of clients and of the grouping."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag import testing
from feddag.cli import main
from feddag.client.warmup import MakeSignature
from feddag.errors import FeddagError
from feddag.federation import Federation
from feddag.methods import all_methods, find_method
from feddag.methods.feddag import FedDAGStar
from feddag.methods.feddag_published import PAPER, RELEASED
from feddag.testing import moved
from feddag.weights import ClientId, only
from tests.methods.pretend import SINGLE, SPEC, TWO, Pretend

ROOT = Path(__file__).parents[2]
THREE = {0: [0], 1: [1], 2: [2]}


def begun(
    name: str, held: dict[ClientId, list[int]], seed: int = 0, **settings: Any
) -> tuple[Pretend, Federation, FedDAGStar]:
    kind = find_method(name)
    engine = Pretend(held, kind.encoders == 1)
    model = SPEC if kind.encoders == 2 else SINGLE
    # A pretended signature has as many vectors as it likes; the network of gates is not what is tried here.
    wanted = {"vectors": 3, "vector_share": 0.0, "fusion": "data"} | settings
    federation, method = testing.started(name, engine, model, seed=seed, **wanted)
    assert isinstance(method, FedDAGStar)
    return engine, federation, method


def warm_up(engine: Pretend) -> MakeSignature:
    [step] = {job.steps[0] for job in engine.jobs}
    assert isinstance(step, MakeSignature)
    return step


def test_every_line_of_the_presets_differs_from_ours() -> None:
    ours = find_method("feddag").Settings().model_dump()
    for preset in (PAPER, RELEASED):
        same = {name for name, value in preset.items() if ours[name] == value}
        # Said all the same, beside what they belong to.
        assert same <= {"vectors", "primary_start", "secondary_beside", "learner_encoders"}


def test_the_printed_warm_up() -> None:
    engine, _, _ = begun("feddag-paper", TWO)
    step = warm_up(engine)
    assert (step.steps, step.rounds, step.epochs) == (20, 1, 0)  # two rounds of ten steps
    assert not step.balanced and not step.halves and step.inputs == "raw" and step.per_class is None
    assert step.send and step.parts == ("encoder",)  # Eq. 22 needs them


def test_the_released_warm_up_keeps_its_encoders() -> None:
    engine, federation, method = begun("feddag-released", TWO)
    step = warm_up(engine)
    assert (step.rounds, step.epochs) == (2, 10) and not step.send
    start = federation.initial_weights()
    for model in method.groups.trained.values():  # an untrained start that all share, twice; heads of their own
        for name, value in only(start, ("encoder",)).items():
            assert torch.equal(model[name], value) and torch.equal(model[name.replace("encoder", "secondary")], value)
    one, other = method.groups.trained[0]["head.weight"], method.groups.trained[1]["head.weight"]
    assert not torch.equal(one, other)


def test_a_start_of_each_clients_own() -> None:
    engine, federation, _ = begun("feddag-paper", TWO, warmup_start="own")
    starts = [engine.weights[job.steps[0].model.digest] for job in engine.jobs]
    assert torch.equal(starts[1]["head.weight"], federation.initial_weights("client 1")["head.weight"])
    assert not torch.equal(starts[0]["head.weight"], starts[1]["head.weight"])


def test_a_printed_round_by_hand() -> None:
    engine, federation, method = begun("feddag-paper", THREE, clusters=3)
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2])
    # Eq. 18: each cluster moves as its client did, by 1, 2 and 3. Eq. 21: the sum of what both sources moved.
    assert [moved(before[z], method.groups.trained[z], "encoder") for z in range(3)] == [1, 2, 3]
    assert [moved(before[z], method.groups.trained[z], "secondary") for z in range(3)] == [5, 4, 3]
    sent = engine.weights[engine.jobs[0].steps[1].model[1].digest]  # to cluster 0: the sum of its two learners
    name = next(name for name in sent if name.startswith("secondary"))
    assert torch.allclose(sent[name], before[1][name] + before[2][name])
    assert set(only(sent, ("head",))) == set()  # against the source's own classifier
    # Eq. 15: clients use the secondary encoder as the round left it.
    assert moved(before[0], method.model_of(0), "secondary") == 5


@pytest.mark.parametrize(("served", "expected"), [("known", 0), ("latest", 4)])
def test_which_secondary_encoder_clients_use(served: str, expected: float) -> None:
    _, federation, method = begun("feddag-paper", THREE, clusters=3, secondary_served=served)
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2])
    assert moved(before[1], method.model_of(1), "secondary") == expected


def asked(monkeypatch: pytest.MonkeyPatch, name: str, **settings: Any) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    def noted(signatures: Any, **how: Any) -> feddag.Grouping:
        seen.append(how)
        return feddag.group(signatures, **how)

    monkeypatch.setattr("feddag.server.membership.group", noted)
    begun(name, TWO, **settings)
    return seen[0]


def test_how_groups_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = asked(monkeypatch, "feddag-paper", fusion="mlp")
    assert (printed["fusion"], printed["angles"], printed["linkage"]) == ("mlp", "printed", "single")
    assert (printed["cut"].rule, printed["cut"].threshold, printed["alignment"]) == (None, None, "paper")
    released = asked(monkeypatch, "feddag-released", fusion="mlp")
    assert (released["angles"], released["cut"].threshold) == ("released", 0.4)
    assert (released["alignment"], released["absent"], released["sources"]) == ("none", "none", 2)


def test_gates_and_ties_are_drawn_by_the_runs_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [asked(monkeypatch, "feddag-paper", seed=seed)["seed"] for seed in (0, 7)] == [0, 7]
    gates = [
        begun("feddag-paper", TWO, seed=seed, fusion="mlp")[2].membership.grouping.weights_["data"].tolist()
        for seed in (0, 0, 7)
    ]
    assert gates[0] == gates[1] != gates[2]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threshold": 0.5, "clusters": 3}, "threshold = 0.5 and clusters = 3: give one of the two"),
        (
            {"similarity": "fused", "warmup_halves": False},
            "warmup_halves = false needs similarity = 'data' or a printed fusion",
        ),
        ({"fusion": "mlp", "cut": "noise"}, "cut = 'noise' needs fusion = 'clarity'"),
    ],
)
def test_what_contradicts_itself_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FeddagError, match=sentence):
        feddag.Experiment(**settings)


def test_a_fixed_number_of_clusters_is_kept() -> None:
    assert len(begun("feddag", {n: [n % 4] for n in range(8)}, fusion="clarity", clusters=2)[2].groups.trained) == 2


def test_a_user_compares_all_three_forms_with_the_true_groups(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of docs/methods.md."""
    command = "feddag compare --methods feddag-paper,feddag-released,feddag,oracle --clients 10 --rounds 3"
    assert command in (ROOT / "docs/methods.md").read_text()
    monkeypatch.setattr(sys, "argv", [*command.split(), "--json", "all.json", "--no-report"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    results = json.loads(Path("all.json").read_text())
    paper, released, ours, oracle = results
    assert [one["method"] for one in results] == ["feddag-paper", "feddag-released", "feddag", "oracle"]
    assert len({tuple(one["truth"]) for one in results}) == 1 == oracle["ari"]  # the same clients in all
    # As published nobody has our stabilisers, and two encoders are trained after a warm-up.
    assert ours["accuracy"]["mean"] > max(one["accuracy"]["mean"] for one in (paper, released, oracle))
    assert min(paper["training_flops"], released["training_flops"]) > 2 * oracle["training_flops"]
    warm = [one["training_flops_by_phase"].get("warm-up", 0) for one in results]
    assert warm[1] > warm[0] > 0 == warm[2] == warm[3]


def test_ablations_of_the_paper_are_named() -> None:
    assert {"feddag-paper", "feddag-paper-star", "feddag-paper-dagger", "feddag-released"} <= set(all_methods())
    engine, federation, star = begun("feddag-paper-star", TWO)
    federation.begin_round(1)
    star.round(federation, [0])
    assert len(engine.jobs[0].steps) == 1
    _, federation, dagger = begun("feddag-paper-dagger", TWO)
    federation.begin_round(1)
    before = dict(dagger.groups.trained)
    dagger.round(federation, [0, 1, 2, 3])
    assert moved(before[0], dagger.groups.trained[0], "secondary") == 2.5  # by its own clients
