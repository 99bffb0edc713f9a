"""Draws the curves of results.md from the kept results: `make curves` (seconds; needs Chromium)."""

import json
import tempfile
from pathlib import Path
from typing import Any

from kept import kept, read
from playwright.sync_api import sync_playwright
from screenshots import CHROMIUM, keep
from tables import AS_PRINTED, FEDDAG, ORACLE, STAR

from feddag.report.page import plotly
from feddag.report.theme import colour

LABEL_SKEW = "fmnist-label-skew-q0.25"
FIGURES: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "stability": [
        ("feddag-star, the paper's protocol", LABEL_SKEW, STAR, AS_PRINTED),
        ("feddag-star, default", LABEL_SKEW, STAR, {}),
        ("oracle", LABEL_SKEW, ORACLE, {}),
    ],
    "rounds-200": [("feddag", LABEL_SKEW, FEDDAG, {"rounds": 200})],
}


def curve(file: str, method: str, fields: dict[str, Any]) -> list[float]:
    """Accuracy by round of an experiment's kept result, seed 0."""
    by_round: list[float] = read(kept(file, method, [0], **fields)[0])["accuracy_by_round"]
    return by_round


def page(lines: list[tuple[str, str, str, dict[str, Any]]]) -> str:
    """One figure, as wide as a column of text."""
    data = [
        {
            **{"y": curve(file, method, fields), "x0": 1, "name": name, "mode": "lines", "type": "scatter"},
            "line": {"color": colour(number), "width": 2},
        }
        for number, (name, file, method, fields) in enumerate(lines)
    ]
    layout = {
        **{"width": 860, "height": 380, "margin": {"l": 60, "r": 20, "t": 20, "b": 45}, "showlegend": True},
        **{
            "font": {"family": "sans-serif", "size": 14},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        },
        **{"xaxis": {"title": {"text": "round"}}, "yaxis": {"title": {"text": "accuracy"}}},
    }
    drawing = f"Plotly.newPlot('figure', {json.dumps(data)}, {json.dumps(layout)}, {{staticPlot: true}})"
    place = f"<div id=figure style='width: {layout['width']}px; height: {layout['height']}px'></div>"
    return f"<meta charset=utf-8>{place}<script>{plotly()}</script><script>{drawing}</script>"


def main() -> None:
    """Draw and photograph."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        for name, lines in FIGURES.items():
            written = Path(folder) / f"{name}.html"
            written.write_text(page(lines), encoding="utf-8")
            shown = browser.new_page()
            shown.goto(written.as_uri())
            shown.wait_for_selector("#figure .main-svg", timeout=120_000)
            keep(name, shown.locator("#figure").screenshot())
        browser.close()


if __name__ == "__main__":
    main()
