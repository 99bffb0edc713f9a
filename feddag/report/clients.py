"""Client by client: scores, and what each client holds."""

from typing import Any

import numpy as np

from feddag.report.document import Section, drawn, section
from feddag.report.figures import clients as figures
from feddag.report.recorded import RecordedRun
from feddag.weights import ClientId


def clients_section(run: RecordedRun) -> Section | None:
    """Every client's scores, to be sorted and searched."""
    if not run.history:
        return None
    blocks = accuracies_by_client(run)
    first = next(iter(blocks.values()))
    groups, counts = run.clusters(), run.counts()
    truth = run.result["truth"] if run.result else None
    columns: list[dict[str, Any]] = [{"name": "client", "digits": 0}]
    if any(name != str(number) for number, name in enumerate(run.names)):
        columns.append({"name": "name"})
    columns += [{"name": "cluster", "cluster": True}] if groups else []
    columns += [{"name": name, "digits": 3} for name in blocks]  # first, because a telephone shows few columns
    columns += [{"name": "true group", "digits": 0}] if truth else []
    columns += [{"name": "samples", "digits": 0}] if counts else []

    def row(client: ClientId) -> list[Any]:
        cells: dict[str, Any] = {
            "client": client,
            "name": run.names[client] if client < len(run.names) else "",
            "cluster": groups.get(client),
            "true group": truth[client] if truth else None,
            "samples": sum(counts[client]) if client in counts else None,
            **{name: block.get(client) for name, block in blocks.items()},
        }
        return [cells[column["name"]] for column in columns]

    clients = sorted({client for block in blocks.values() for client in block})
    scores = {client: score for client, score in first.items() if score is not None}
    names = {client: run.client_name(client) for client in clients}
    figure = drawn("scores", "accuracy of each client", figures.client_scores(scores, groups, names))
    table = {
        **{"id": "clients-table", "label": "accuracy by client", "search": "find a client"},
        **{"columns": columns, "rows": [row(client) for client in clients]},
    }
    text = "Balanced accuracy of each client. Click a heading to sort; type a number or a name to find a client."
    return section("clients", "Client by client", text, figures=[figure], table=table)


def accuracies_by_client(run: RecordedRun) -> dict[str, dict[ClientId, float | None]]:
    """Scores of each client under a name; while a run is under way those of its last round."""
    if not run.result:
        record = run.history[-1]
        return {"accuracy": dict(zip(record["clients"], record["per_client"], strict=True))}
    result = run.result
    blocks = {
        "accuracy": result["accuracy"],
        "last round": result["accuracy_last"],
        "fine-tuned": result["accuracy_finetuned"],
        "best round": result["accuracy_best"],
    }
    who = result.get("participants", range(result["clients"]))
    found = {title: dict(zip(who, block["per_client"], strict=True)) for title, block in blocks.items() if block}
    if unseen := result.get("accuracy_unseen"):
        found["joined last"] = dict(zip(result["held_out"], unseen["per_client"], strict=True))
    return found


def label_distribution_section(run: RecordedRun) -> Section | None:
    """How much of each class every client holds, as far as it is known."""
    counts, groups = run.counts(), run.clusters()
    if not counts:
        return None
    order = sorted(counts, key=lambda client: (groups.get(client, -1), client))
    table = np.array([counts[client] for client in order], np.int64)
    names = [run.client_name(client) for client in order]
    figure = figures.label_distribution(table, [groups.get(client, -1) for client in order], names, run.class_names())
    where = "cluster by cluster; " if groups else ""
    text = f"Training samples of each class at each client, {where}the brighter the more."
    return section("holdings", "Who holds what", text, figures=[drawn("classes", "clients by classes", figure)])
