"""The pages in a real Chromium: `make test-report`. Skipped where there is no Chromium or no Playwright."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feddag.report import read_run, write_comparison, write_report
from feddag.report.live import LivePage
from feddag.report.page import page as page_of
from feddag.report.run import run_document
from tests.report.conftest import HOSTILE, HOSTILE_FILE, made_by_hand
from tests.report.test_comparison import finished
from tests.report.test_live import go_on, go_to_end, watched_run
from tests.report.test_run import ALL_FIGURES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if not os.environ.get("FEDDAG_TEST_BROWSER"):
    pytest.skip("browser tests run with `make test-report`", allow_module_level=True)
if CHROMIUM is None:
    pytest.skip("there is no Chromium on this machine; on Debian: apt-get install chromium", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
PATIENCE = 120_000  # milliseconds: the machine may be busy


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield started
        started.close()


class Opened:
    """A page, with everything it complained about and asked for."""

    def __init__(self, browser: Any, scheme: str = "light") -> None:
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 900})
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> Any:
        self.page.goto(address)
        self.page.wait_for_selector("body[data-drawn]")
        return self.page

    def outside(self) -> list[str]:
        return [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    made = Opened(browser)
    yield made
    made.page.context.close()


def write(run: Any, path: Path) -> str:
    path.write_text(page_of(run_document(run)), encoding="utf-8")
    return path.as_uri()


def hover(page: Any, figure: str, what: str, number: int = 0) -> str:
    """What the figure says under the pointer."""
    mark = page.locator(f"#{figure} {what}").nth(number)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    label = page.locator(f"#{figure} .hoverlayer .hovertext").first
    for attempt in range(100):  # a figure that is still busy overlooks the pointer
        page.mouse.move(box["x"] + box["width"] / 2 + attempt % 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(200)
        if label.count():
            return str(label.text_content())
    raise AssertionError(f"{figure} says nothing about {what}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_from_disk_silently_with_every_figure(browser: Any, real_run: Path, scheme: str) -> None:
    opened = Opened(browser, scheme)
    page = opened.open(write_report(real_run).as_uri())
    for figure in ALL_FIGURES:
        assert page.locator(f"#{figure} .main-svg").count(), figure
        drawn = page.locator(f"#{figure} .scatterlayer path, #{figure} .heatmaplayer image, #{figure} .barlayer path")
        assert drawn.count(), figure
    ink = page.evaluate("getComputedStyle(document.querySelector('#accuracy .xtitle')).fill")
    assert ink == {"light": "rgb(29, 33, 37)", "dark": "rgb(232, 234, 237)"}[scheme]
    assert opened.complaints == [] and opened.outside() == []
    page.context.close()


def test_pointing_tells_and_choosing_switches(opened: Opened, tmp_path: Path) -> None:
    page = opened.open(write(made_by_hand(12), tmp_path / "page.html"))
    assert "accuracy 0." in hover(page, "scores", ".points path", 0)
    assert "cluster 0: 3 clients" in hover(page, "graph", ".trace:nth-child(2) .points path", 0)
    assert "distance" in hover(page, "proximity", ".heatmaplayer image")
    page.focus("#proximity-choice")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    shown = "document.getElementById('proximity').data.map((trace) => trace.visible)"
    assert page.evaluate(shown) == [False, True, False, False]


def test_clients_are_sorted_and_found(opened: Opened, tmp_path: Path) -> None:
    run = made_by_hand(40, tuple(f"name {number}" for number in range(40)))
    page = opened.open(write(run, tmp_path / "page.html"))
    names = page.locator("#clients-table thead th").all_text_contents()
    column = names.index("accuracy")

    def values() -> list[float]:
        return [float(v) for v in page.locator(f"#clients-table td:nth-child({column + 1})").all_text_contents()]

    button = page.locator("#clients-table thead button").nth(column)
    button.focus()
    page.keyboard.press("Enter")
    assert values() == sorted(values()) and len(values()) == 40
    page.keyboard.press("Enter")
    assert values() == sorted(values(), reverse=True)
    assert page.locator("#clients-table th").nth(column).get_attribute("aria-sort") == "descending"
    page.fill("#clients-table-search", "name 17")
    assert page.locator("#clients-table tbody tr").count() == 1
    page.fill("#clients-table-search", "7")  # a client's number finds it, and names with a 7
    found = page.locator("#clients-table td:nth-child(1)").all_text_contents()
    assert sorted(map(int, found)) == [7, 17, 27, 37]


def shown_as_text(opened: Opened) -> None:
    """Nothing on the page came from a name but text, and the page is no wider than the window."""
    page = opened.page
    assert page.evaluate("document.title") != "taken"
    assert page.locator("main img, header img, main script").count() == 0
    assert page.evaluate("document.scripts.length") == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100
    assert opened.complaints == []


def test_hostile_names_are_text(opened: Opened, tmp_path: Path) -> None:
    page = opened.open(write(made_by_hand(8, HOSTILE, word=HOSTILE[1]), tmp_path / "page.html"))
    shown = page.locator("#clients-table td:nth-child(2)").all_text_contents()
    assert shown[: len(HOSTILE)] == list(HOSTILE)
    labels = page.locator("#classes .ytick text").all_text_contents()
    assert any("client 0 · <script>document" in label for label in labels)
    assert any("🦊 %{x} $1^2$" in label for label in labels)
    assert "client 0 · <script>document" in hover(page, "scores", ".points path", 1)
    shown_as_text(opened)
    assert opened.outside() == []


def test_hostile_names_of_a_real_run_are_text_on_its_page(opened: Opened, hostile_run: Path) -> None:
    page = opened.open(write_report(hostile_run).as_uri())
    assert page.title() == f"feddag on {HOSTILE_FILE}"
    assert set(page.locator("#clients-table td:nth-child(2)").all_text_contents()) == set(HOSTILE)
    assert any("<script>" in label for label in page.locator("#classes .xtick text").all_text_contents())
    shown_as_text(opened)
    assert opened.outside() == []


def test_hostile_names_are_text_in_a_comparison(opened: Opened, hostile_run: Path, tmp_path: Path) -> None:
    runs = [read_run(hostile_run), read_run(hostile_run.parent / "fedavg")]
    page = opened.open(write_comparison(runs, tmp_path / "c.html").as_uri())
    assert page.locator("h2").first.text_content().startswith(HOSTILE_FILE)
    said = {hover(page, "pairs-0", ".points path", number).partition(", seed")[0] for number in range(len(HOSTILE))}
    assert any("<script>" in name or "<img" in name or "🦊" in name for name in said)
    shown_as_text(opened)
    assert opened.outside() == []


def test_hostile_names_are_text_on_a_live_page(opened: Opened, hostile_run: Path) -> None:
    live = LivePage(hostile_run)
    thread = threading.Thread(target=live.serve_to_end)
    thread.start()
    page = opened.open(live.address)
    says(page, "finished after 2 rounds")
    assert page.title() == f"feddag on {HOSTILE_FILE}"
    assert set(page.locator("#clients-table td:nth-child(2)").all_text_contents()) == set(HOSTILE)
    shown_as_text(opened)
    thread.join()


def test_a_thousand_clients_stay_usable(opened: Opened, tmp_path: Path) -> None:
    page = opened.open(write(made_by_hand(1000, rounds=20), tmp_path / "page.html"))
    assert (tmp_path / "page.html").stat().st_size < 8e6  # five of them are plotly.js
    assert all(page.locator(f"#{figure} .main-svg").count() for figure in ALL_FIGURES)
    page.select_option("#proximity-choice", label="gradient")
    assert "and 3 more" in hover(page, "proximity", ".heatmaplayer image")
    assert page.locator("#clients-table tbody tr").count() == 25
    assert page.locator("#clients-table-more").text_content() == "25 of 1000 rows are shown: show all"
    page.fill("#clients-table-search", "987")
    assert page.locator("#clients-table td:nth-child(1)").all_text_contents() == ["987"]
    page.fill("#clients-table-search", "")
    page.click("#clients-table-more")
    assert page.locator("#clients-table tbody tr").count() == 1000
    assert opened.complaints == []


def test_the_page_can_be_printed_and_walked_by_keyboard(opened: Opened, tmp_path: Path) -> None:
    page = opened.open(write(made_by_hand(8), tmp_path / "page.html"))
    reached = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')"))
    assert {"#content", "#learning", "accuracy", "proximity-choice", "clients-table-search"} <= reached
    assert page.pdf().startswith(b"%PDF")
    page.set_viewport_size({"width": 390, "height": 844})
    sync_api.expect(page.locator("#accuracy .main-svg").first).to_have_attribute("width", "366", timeout=PATIENCE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390  # a telephone
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and page.locator("#accuracy .main-svg").first.is_visible()


def test_a_comparison_opens_silently_and_its_axes_can_be_chosen(opened: Opened, tmp_path: Path) -> None:
    runs = [finished(method, seed, 0.8, lr=1) for method in ("a", HOSTILE[0]) for seed in (0, 1)]
    page = opened.open(write_comparison([*runs, finished("a", 0, 0.7, lr=3)], tmp_path / "c.html").as_uri())
    for figure in ("settings", "curves-0", "pairs-0"):
        assert page.locator(f"#{figure} .main-svg").count(), figure
    title = page.locator("#curves-0 .xtitle")
    assert title.text_content() == "round"
    page.select_option("#curves-0-choice", label="megabytes")
    assert title.text_content() == "MB per client, up and down"
    assert ", seed " in hover(page, "pairs-0", ".points path")
    assert opened.complaints == [] and opened.outside() == []


def says(page: Any, state: str) -> None:
    """Wait until the live page says this: its rules forbid the evaluation of text that `wait_for_function` needs."""
    sync_api.expect(page.locator("#state")).to_have_text(state, timeout=PATIENCE)


@pytest.mark.parametrize(("width", "media"), [(1100, "screen"), (390, "screen"), (794, "print")])
def test_every_column_of_a_comparison_is_seen(opened: Opened, width: int, media: str, tmp_path: Path) -> None:
    runs = [finished(method, seed, 0.5 + 0.1 * seed) for method in ("local", "feddag", "oracle") for seed in (0, 1)]
    target = write_comparison(runs, tmp_path / "all.html")
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.emulate_media(media=media)
    page = opened.open(target.as_uri())
    assert "vs oracle" in page.locator("#table-0 thead").text_content()
    for frame in page.locator(".scroll").all():
        inside, outside = frame.evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert inside <= outside
    last = page.locator("#table-0 tbody td:last-child").first
    assert float(last.evaluate("e => parseFloat(getComputedStyle(e).paddingRight)")) >= 5


def test_a_live_page_updates_itself_and_ends_with_the_run(opened: Opened, tmp_path: Path) -> None:
    drawn = "document.getElementById('accuracy').data.at(-1).x.length"
    with watched_run(tmp_path) as (run, watcher, address):
        page = opened.open(address)
        says(page, "running, 1 round done")
        assert page.evaluate(drawn) == 1
        go_on(run)
        says(page, "running, 2 rounds done")
        assert page.evaluate(drawn) == 2
        go_to_end(run)
        says(page, "finished after 3 rounds")
        assert page.evaluate(drawn) == 3
        assert watcher.wait(PATIENCE / 1000) == 0
    assert opened.complaints == [] and all(url.startswith((address, "data:")) for url in opened.requests)
