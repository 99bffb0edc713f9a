"""The models that clients chose after the last round, in the terminal and on a run's page."""

from rich.console import Console

from feddag.client.personal import ABOUT
from feddag.console import print_line, show_table
from feddag.records import PersonalRecord, ResultRecord
from feddag.report.document import Section, section
from feddag.report.recorded import RecordedRun

COLUMNS = ("model", "accuracy", "worst decile", "chosen by")


def show_personal(console: Console, result: ResultRecord) -> None:
    """A table of the candidates, if clients had a choice."""
    if (personal := result.get("personal")) is None:
        return
    rows = [
        [name, "-" if mean is None else f"{mean:.3f}", "-" if worst is None else f"{worst:.3f}", str(count)]
        for name, mean, worst, count in candidates(personal)
    ]
    show_table(console, "what clients may use from now on", COLUMNS, rows)
    if silent := sum(choice is None for choice in personal["choice"]):
        print_line(console, f"{silent} clients did not answer, and keep the group's model")


def chosen_accuracy(result: ResultRecord) -> float | None:
    """Of the models that clients chose; None where they had no choice."""
    personal = result.get("personal")
    return None if personal is None else personal["accuracy"]["chosen"]["mean"]


def candidates(personal: PersonalRecord) -> list[tuple[str, float | None, float | None, int]]:
    """Name, accuracy, worst decile and number of choosers: of each candidate, of mixtures, and of what was chosen."""
    known = [name for name in ABOUT if name in personal["accuracy"] or name in personal["chose"]]
    rows: list[tuple[str, float | None, float | None, int]] = []
    for name in known:
        block = personal["accuracy"].get(name)
        rows.append((name, block and block["mean"], block and block["worst_decile"], personal["chose"].get(name, 0)))
    chosen = personal["accuracy"]["chosen"]
    return [*rows, ("chosen", chosen["mean"], chosen["worst_decile"], sum(personal["chose"].values()))]


def personal_section(run: RecordedRun) -> Section | None:
    """The same on a page; None where clients had no choice."""
    personal = run.result.get("personal") if run.result else None
    if personal is None:
        return None
    table = {
        **{"id": "personal-table", "label": "what clients chose", "cards": True},
        "columns": [
            *({"name": name} for name in ("model", "what it is")),
            *({"name": name, "digits": 3} for name in COLUMNS[1:3]),
            {"name": COLUMNS[3], "digits": 0},
        ],
        "rows": [[row[0], ABOUT.get(row[0], "each client's own choice"), *row[1:]] for row in candidates(personal)],
    }
    text = "After the last round each client chose the model it will use, by samples that it had kept from training."
    return section("personal", "What clients chose", text, table=table)
