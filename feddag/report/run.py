"""What stands on a run's page, section by section."""

import shlex
from pathlib import Path

from feddag.errors import FeddagError, counted, short
from feddag.report.clients import clients_section, label_distribution_section
from feddag.report.document import Document, Section, drawn, section
from feddag.report.events import events_by_round, timeline_section
from feddag.report.families import families_section
from feddag.report.figures import rounds as figures
from feddag.report.grouping import graph_section, grouping_sections
from feddag.report.personal import personal_section
from feddag.report.recorded import RecordedRun
from feddag.report.terminal import asks_how_uneven
from feddag.report.theme import PALETTE
from feddag.runner.naming import differences
from feddag.runner.verdict import method_name


def run_document(run: RecordedRun) -> Document:
    """Everything on the page of one run, as plain data."""
    made = [
        _learning(run),
        *grouping_sections(run),
        label_distribution_section(run),
        graph_section(run),
        families_section(run),
        clients_section(run),
        personal_section(run),
        _traffic(run),
        timeline_section(run),
        _experiment(run),
    ]
    return {
        **_headline(run),
        **{"subtitle": _subtitle(run), "tiles": _tiles(run), "palette": PALETTE},
        "sections": [section for section in made if section],
    }


def _headline(run: RecordedRun) -> Document:
    """What is said first: what the result means or, of a run under way, how far it is."""
    experiment = run.experiment
    title = f"{method_name(run.result or experiment)} on {Path(str(experiment.get('dataset'))).name}"
    if run.result:
        meant = run.verdict(Path())  # typed next to the run directory; a page tells no place on this machine
        return {"title": title, "headline": meant.headline, "next": meant.next, "level": meant.level}
    sofar = f", accuracy {run.history[-1]['accuracy']['mean']:.3f} so far" if run.history else ""
    return {"title": title, "headline": f"{run.rounds} of {experiment.get('rounds')} rounds are done{sofar}."}


def _subtitle(run: RecordedRun) -> str:
    said = run.experiment
    state = "" if run.result else f", {run.rounds} done"
    known = run.result["clients"] if run.result else said.get("clients") or len(run.names)
    clients = counted(known, "client") if known else "all clients"
    how = f"{said.get('partition')}, {clients}, {said.get('rounds')} rounds{state}"
    return f"{run.name}: {how}, seed {said.get('seed')}"


def _tiles(run: RecordedRun) -> list[dict[str, str]]:
    result, last = run.result, run.history[-1] if run.history else None
    tiles: list[tuple[str, str, str]] = []
    if result:
        block, tuned = result["accuracy"], result["accuracy_finetuned"]
        note = f"± {block['std']:.3f} over clients; last tenth of the rounds"
        tiles.append(("balanced accuracy", f"{block['mean']:.3f}", note))
        tiles.append(("worst tenth of clients", f"{block['worst_decile']:.3f}", "mean of their accuracy"))
        if tuned:
            tiles.append(("fine-tuned", f"{tuned['mean']:.3f}", "after each client's own local epochs"))
    elif last:
        note = f"± {last['accuracy']['std']:.3f} over clients; after round {last['round']}"
        tiles.append(("balanced accuracy", f"{last['accuracy']['mean']:.3f}", note))
    clusters = run.clusters()
    if clusters:
        true = len(set(result["truth"])) if result and result["truth"] else None
        note = "true number unknown" if true is None else counted(true, "true group")
        tiles.append(("clusters", str(len(set(clusters.values()))), note))
    if result and result["ari"] is not None:
        tiles.append(("adjusted Rand index", f"{result['ari']:.3f}", "1: the true groups, 0: chance"))
    scores = result.get("clustering") if result else None
    if result and scores and asks_how_uneven(result) and scores["was"] is not None and scores["wadb"] is not None:
        said = f"{scores['was']:.2f} / {scores['wadb']:.2f}"
        tiles.append(("WAS / WADB", said, "how alike class mixes are inside clusters: best 1 / 0"))
    seconds = result["seconds"] if result else sum(record.get("seconds", 0.0) for record in run.history)
    tiles.append(("time", f"{seconds:.1f} s", counted(run.rounds, "round")))
    sent = result or last
    if sent:
        up, down = sent["bytes_up"] / 1e6, sent["bytes_down"] / 1e6
        tiles.append(("traffic", f"{up + down:.1f} MB", f"{up:.1f} from and {down:.1f} to all clients"))
    return [{"label": label, "value": value, "note": note} for label, value, note in tiles]


def _learning(run: RecordedRun) -> Section | None:
    if not run.history or all(score is None for record in run.history for score in record["per_client"]):
        return None
    told = {
        number: [event.text for event in events if event.kind != "fault"]
        for number, events in events_by_round(run).items()
    }
    figure = figures.learning(run.history, {number: texts for number, texts in told.items() if texts})
    text = "Each client is scored on its own test samples. The grey area leaves out the best and the worst tenth."
    return section("learning", "Learning", text, figures=[drawn("accuracy", "accuracy and loss by round", figure)])


def _traffic(run: RecordedRun) -> Section | None:
    if not run.result:
        return None
    figure = drawn("traffic", "megabytes by phase", figures.traffic(run.result["bytes_by_phase"]))
    text = "Payload of all messages. Measuring (evaluation, fine-tuning) is not counted."
    return section("communication", "Communication", text, figures=[figure])


def _experiment(run: RecordedRun) -> Section:
    lines = []
    if run.result:
        lines = [f"# {name} {value}" for name, value in run.result["versions"].items()]
        if run.result["partition_checksum"]:
            lines.append(f"# partition {run.result['partition_checksum']}")
    command = f"feddag run {shlex.quote(f'{run.name}/experiment.toml')}"
    text = "Typed next to the run directory, this command repeats the run bit for bit on the same kind of machine."
    every = {"title": "all fields and versions", "code": "\n".join([run.toml.rstrip(), *lines])}
    return section("experiment", "The experiment", text + _unusual(run), command=command, details=every)


def _unusual(run: RecordedRun) -> str:
    """Which fields are not what they are by default; nothing where that could be told only by importing the method."""
    if ":" in str(run.experiment.get("method")):
        return ""
    try:
        differing = differences(run.experiment)
    except FeddagError:  # fields of another version, or of anybody's making
        return ""
    said = ", ".join(f"{name} = {short(value)}" for name, value in differing.items())
    return f" Not as by default: {said}." if said else " All fields are as by default."
