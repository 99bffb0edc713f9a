"""Which clusters train one model under different names, and what each calls what."""

from feddag.report.document import Section, section
from feddag.report.recorded import RecordedRun


def families_section(run: RecordedRun) -> Section | None:
    """A row for each cluster that has kin: with whom, and what it calls by another name than the first cluster."""
    family, names = run.diagnostics.get("families", []), run.diagnostics.get("names", [])
    present, classes = sorted(set(run.clusters().values())), run.class_names()
    rows = []
    for cluster in present:
        if cluster >= min(len(family), len(names)):
            continue
        kin = [other for other in present if other < len(family) and family[other] == family[cluster]]
        if len(kin) > 1:
            others = ", ".join(str(other) for other in kin if other != cluster)
            rows.append([cluster, others, renamings(names[cluster], classes)])
    if not rows:
        return None
    text = (
        "These clusters hold things that look alike under different names. They train one model, and each uses it under"
        " its own names; the names of the first cluster are the common ones."
    )
    columns = [{"name": "cluster", "cluster": True}, {"name": "one model with"}, {"name": "its names"}]
    table = {"id": "families", "label": "families of clusters", "columns": columns, "rows": rows, "cards": True}
    return section("families", "Who trains one model under other names", text, table=table)


def renamings(names: list[int], classes: tuple[str, ...] | list[str], most: int = 4) -> str:
    """What a cluster calls by another name, in words.

    >>> renamings([1, 0, 2], ["cat", "dog", "owl"]), renamings([0, 1], ["cat", "dog"])
    ("cat is the others' dog, dog is the others' cat", 'as in the first cluster')
    """
    changed = [(own, common) for own, common in enumerate(names) if own != common and max(own, common) < len(classes)]
    if not changed:
        return "as in the first cluster"
    said = [f"{classes[own]} is the others' {classes[common]}" for own, common in changed[:most]]
    return ", ".join(said) + (f" and {len(changed) - most} more" if len(changed) > most else "")
