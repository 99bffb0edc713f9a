"""The tables that come with feddag, and what a file has to look like."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from feddag.errors import FeddagError
from feddag.methods import all_methods
from feddag.reproduce.cells import NOT_YET, cells_of
from feddag.reproduce.published import Published, all_published, find_published, read_published

SHIPPED = all_published()
LATER = {
    *("pacfl", "cfl-gp", "fedsoft", "fedrc", "fedgwc", "fedbr", "fedmix", "per-fedavg", "fblg"),
    *("fedper", "fedgroup", "fl-hc", "cgpfl", "fesem", "pfedme", "fedgwc-pfedme", "fedgwc-per-fedavg"),
}
"""Methods of the paper's tables that are not in every version."""
SMALLEST = """
title = "one cell"
paper = "nobody, Table 0"

[experiment]
rounds = 9
lr = 0.5

[small]
rounds = 3
clients = 3

[[column]]
name = "few"
dataset = "digits"
clients = 4
small = { clients = 2 }

[[row]]
name = "FedProx"
method = "fedprox"
mu = 0.5
paper = [[12.5, 0.25]]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "table.toml"
    path.write_text(text)
    return path


def test_a_cell_takes_fields_from_the_table_its_column_its_row_and_the_scale(tmp_path: Path) -> None:
    published = read_published(write(tmp_path, SMALLEST))
    (at_paper,) = cells_of(published, "paper", [5])
    (at_small,) = cells_of(published, "small", [0, 1])
    fields = ("method", "dataset", "rounds", "clients", "lr", "seed")
    wanted = ("fedprox", "digits", 9, 4, 0.5, 5)
    assert tuple(getattr(at_paper.experiments[0], name) for name in fields) == wanted
    assert at_paper.experiments[0].settings.mu == 0.5
    assert [(e.rounds, e.clients, e.seed) for e in at_small.experiments] == [(3, 2, 0), (3, 2, 1)]
    assert at_paper.printed == [12.5, 0.25]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[[12.5, 0.25]]", "[[12.5, 0.25], [1, 1]]", "row 'FedProx' has 2 figures in 'paper' for 1 columns"),
        ("[[12.5, 0.25]]", "[[125, 0.25]]", "row.0.paper.0.0: Input should be less than or equal to 100"),
        ("[[12.5, 0.25]]", "[[1, 2, 3]]", "row.0.paper.0: List should have at most 2 items"),
        ("[[12.5, 0.25]]", "['12.5']", "row.0.paper.0.0: Input should be a valid number"),
        ('name = "FedProx"', "", "row.0.name: Field required"),
        ("title = ", "titel = ", "title: Field required"),
        ("[small]", "[smal]", "smal: Extra inputs are not permitted"),
        ('title = "one cell"', 'title = "one cell"\nat = [3]', "'at' names the rounds"),
        ('title = "one cell"', 'title = "x"\nshows = "accuracy_by_round"', "'at' names the rounds"),
        ('title = "one cell"', 'title = "x"\nshows = "loss"', "shows: Input should be 'accuracy'"),
        ("mu = 0.5", "curve = [{clusters = [1], loss = [0.5]}]", "a curve that is not as long as 'alphas'"),
        ("[[row]]", '[[row]]\nname = "FedProx"\nmethod = "fedavg"\n\n[[row]]', "two rows are called 'FedProx'"),
        ("[experiment]", "[experiment", "is not valid TOML"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in SMALLEST
    with pytest.raises(FeddagError) as refused:
        read_published(write(tmp_path, SMALLEST.replace(old, new)))
    assert sentence in str(refused.value) and str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("mu = 0.5", "mue = 0.5", "row 'FedProx', column 'few': 'mue' is not a field of an experiment"),
        ("mu = 0.5", "eps1 = 0.5", "row 'FedProx', column 'few': 'eps1' is not a field of method = 'fedprox'"),
        ("lr = 0.5", "lr = -1", "row 'FedProx', column 'few': lr = -1 is not allowed"),
    ],
)
def test_a_cell_that_cannot_be_meant_is_refused_with_its_place(tmp_path: Path, old: str, new: str, sentence) -> None:
    published = read_published(write(tmp_path, SMALLEST.replace(old, new)))
    with pytest.raises(FeddagError) as refused:
        cells_of(published, "paper", [0])
    assert str(refused.value).startswith(sentence)


def test_figures_may_lack_a_deviation_or_be_absent(tmp_path: Path) -> None:
    column = '[[column]]\nname = "more"\ndataset = "digits"\n\n[[row]]'
    text = SMALLEST.replace("[[row]]", column).replace("[[12.5, 0.25]]", "[12.5, []]")
    assert [cell.printed for cell in cells_of(read_published(write(tmp_path, text)), "paper", [0])] == [[12.5], []]


def test_a_method_that_is_not_here_yet_is_no_mistake(tmp_path: Path) -> None:
    published = read_published(write(tmp_path, SMALLEST.replace('"fedprox"', '"fed-of-tomorrow"')))
    (cell,) = cells_of(published, "small", [0])
    assert cell.why_not == NOT_YET and cell.experiments == () and cell.printed == [12.5, 0.25]


def test_names_are_found_and_mistyped_ones_answered() -> None:
    assert find_published("feddag-figure-5") is not None
    assert find_published("feddag-table-4").paper == "FedDAG (ICLR 2026), Table 4"
    with pytest.raises(FeddagError, match="did you mean 'feddag-table-4'"):
        find_published("fedag-table-4")


# What comes with feddag ----------------------------------------------------------------------------------------------


def test_all_tables_and_figures_are_there_in_order() -> None:
    figures = ["feddag-figure-2", "feddag-figure-3", "feddag-figure-4"]
    gwc = [*(f"fedgwc-table-{number}" for number in (1, 2, 3, 4, 6, 7, 9)), *(f"fedgwc-figure-{n}" for n in (4, 5, 6))]
    shown = {
        "feddag": [*(f"feddag-table-{number}" for number in range(1, 20)), *figures],
        "fedac": ["fedac-table-1", "fedac-figure-3", "fedac-figure-4"],
        "fedgwc": gwc,
    }
    for method, names in shown.items():
        assert [name for name in SHIPPED if name.startswith(f"{method}-")] == names
    assert len(SHIPPED) == sum(map(len, shown.values()))
    assert SHIPPED["feddag-table-19"].also == ["feddag-figure-5"]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_cell_of_a_known_method_is_a_valid_experiment(name: str, scale: Any) -> None:
    published = SHIPPED[name]
    cells = cells_of(published, scale, [0])
    assert len(cells) == len(published.row) * len(published.column)
    for cell in cells:
        assert cell.row.method in LATER or cell.row.method in all_methods()
        assert (cell.why_not == NOT_YET) == (cell.row.method not in all_methods())
    printed = any(row.paper or row.curve or row.scores for row in published.row)
    assert printed == ("figure" not in name or name == "fedgwc-figure-6")  # whose caption says: one cluster


def test_fedacs_scale_is_fedacs() -> None:
    wanted = {"clients": 100, "participation": 0.25, "rounds": 1000, "steps": 5, "batch_size": 32, "lr": 0.01}
    for name in ("fedac-table-1", "fedac-figure-3", "fedac-figure-4"):
        assert wanted.items() <= SHIPPED[name].experiment.items(), name
    by_name = {row.name: row for row in SHIPPED["fedac-table-1"].row}
    assert by_name["FedAC"].paper == [[74.88, 0.65], [81.29, 0.61], [51.28, 0.35], [64.53, 0.34]]


def test_the_paper_scale_is_the_papers() -> None:
    wanted = {"participation": 0.2, "epochs": 10, "batch_size": 10, "lr": 0.01, "momentum": 0.5, "weight_decay": 1e-4}
    for name in (name for name in SHIPPED if name.startswith("feddag")):
        fields = SHIPPED[name].experiment
        assert {field: fields[field] for field in wanted} == wanted, name
        assert fields["clients"] == (1000 if name == "feddag-table-12" else 100), name
        short = name in ("feddag-table-13", "feddag-table-18", "feddag-figure-3")
        assert fields["rounds"] == (80 if short else 200), name


def test_fedgwcs_paper_scale_is_its_papers() -> None:
    wanted = {"steps": 7, "batch_size": 64, "momentum": 0.0, "weight_decay": 4e-4}
    rounds = {"table-2": 1000, "table-6": 10000, "table-7": 10000, "figure-4": 10000, "figure-5": 10000}
    for name in (name for name in SHIPPED if name.startswith("fedgwc")):
        fields = SHIPPED[name].experiment
        assert {field: fields[field] for field in wanted} == wanted, name
        expected = rounds.get(name.removeprefix("fedgwc-"), 10000 if "figure" in name else 20000)
        assert fields["rounds"] == expected, name
        if name != "fedgwc-table-2":
            own = {"clients": 100, "participation": 0.1, "lr": 0.01, "model": "fedgwc-cnn", "test": "mix"}
            assert {field: fields[field] for field in own} == own, name
    femnist = next(column for column in SHIPPED["fedgwc-table-1"].column if column.dataset == "femnist47")
    said = {"clients": 400, "rounds": 3000, "steps": 8, "model": "lenet5", "heterogeneous": 0.01}
    assert {name: (femnist.model_extra or {})[name] for name in said} == said


def printed_by_experiment(published: Published) -> dict[str, tuple[float, ...]]:
    found = {}
    for row in published.row:
        for number, column in enumerate(published.column):
            if (figure := row.printed(number)) and row.method != "feddag-released":
                found[repr(sorted(published.fields_of(row, column, "paper").items()))] = tuple(figure)
    return found


def test_tables_that_repeat_a_setting_agree_but_where_the_paper_does_not() -> None:
    """A figure that was copied wrongly would stand alone here; these are the paper's own disagreements."""
    seen: dict[str, dict[tuple[float, ...], list[str]]] = {}
    for name, published in SHIPPED.items():
        if not name.startswith("feddag"):
            continue
        for setting, figure in printed_by_experiment(published).items():
            seen.setdefault(setting, {}).setdefault(figure, []).append(name.removeprefix("feddag-table-"))
    twice = [figures for figures in seen.values() if sum(map(len, figures.values())) > 1]
    apart = {frozenset(chain.from_iterable(figures.values())) for figures in twice if len(figures) > 1}
    assert len(twice) > 20
    assert apart == {frozenset(tables) for tables in (("1", "10"), ("2", "16"), ("10", "17"), ("1", "10", "17"))}


def test_some_scores_as_printed() -> None:
    six = {row.name: row.scores for row in SHIPPED["fedgwc-table-6"].row}
    assert (six["FedGWC"][2].clusters, six["FedGWC"][2].was, six["FeSEM"][2].wadb) == (3, [0.6, 0.1], [20.6, 7.1])
    seven = {row.name: row.scores for row in SHIPPED["fedgwc-table-7"].row}
    assert [scores.rand[0] for scores in seven["FedGWC"]] == [1.0, 1.0, 0.9]
    one = {row.name: row.scores for row in SHIPPED["fedgwc-table-1"].row}
    assert one["FedGWC"][0].accuracy == [53.4, 0.4] and one["FedAvg"][1].accuracy == [76.6, 0.1]
    nine = {row.name: row.paper for row in SHIPPED["fedgwc-table-9"].row}
    assert nine["FedGWC over FedAvgM"] == [[50.5, 0.3], [83.3, 0.4]] and nine["FedAvg"][1] == [76.0, 0.1]


def test_some_figures_as_printed() -> None:
    four = SHIPPED["feddag-table-4"]
    by_name = {row.name: row for row in four.row}
    assert by_name["FedAvg"].paper[0] == [42.02, 1.17] and by_name["IFCA"].paper[7] == [56.33, 0.40]
    assert [column.name for column in four.column][::7] == ["CIFAR-10, 20 %", "CIFAR-100, 30 %"]
    curve = SHIPPED["feddag-table-19"].row[0].curve[1]
    assert dict(zip(SHIPPED["feddag-table-19"].alphas, curve.clusters, strict=True))[0.2] == 11
    assert curve.loss[-1] == 0.141
