"""A page as plain data: a document has sections, a section has figures, a table, or text as typed."""

from typing import Any

from feddag.report.theme import Figure

Document = dict[str, Any]
Section = dict[str, Any]


def section(name: str, title: str, text: str, **content: Any) -> Section:
    """One part of a page: a sentence on what is seen, then figures, a table, or text as typed."""
    return {"id": name, "title": title, "text": text, **content}


def drawn(name: str, label: str, figure: Figure, **more: Any) -> dict[str, Any]:
    """A figure under a name, with a label for those who do not see it."""
    return {"id": name, "label": label, **figure, **more}
