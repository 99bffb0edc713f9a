"""Makes the pictures of report.md again: `make screenshots` (a minute or two; needs Chromium)."""

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import feddag
from feddag.report import read_run, write_comparison, write_report

IMAGES = Path(__file__).parent / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RUN = {
    "clients": 30,
    "rounds": 40,
    "epochs": 1,
    "label_fraction": 0.3,
    "drift_round": 12,
    "drift_every": 4,
    "holdout": 0.1,
}


def a_run(folder: Path) -> Path:
    """One run in which something happens: clients drift on the way, and some come late."""
    feddag.run(feddag.Experiment(**RUN), folder / "digits-feddag")
    return folder / "digits-feddag"


def a_comparison(folder: Path) -> list[Path]:
    """Three methods, two kinds of difference, three seeds."""
    runs = []
    for partition in ("label-skew", "concept-shift"):
        for method in ("fedavg", "feddag", "oracle"):
            for seed in (0, 1, 2):
                runs.append(folder / f"{partition}-{method}-{seed}")
                told = {"partition": partition, "method": method, "seed": seed, "rounds": 20, "epochs": 2}
                feddag.run(feddag.Experiment(**told), runs[-1])
    return runs


def keep(name: str, png: bytes) -> None:
    """Save a picture, packed as small as it gets without loss."""
    IMAGES.mkdir(exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size // 1000} kB")


def opened(browser: Any, page: Path, scheme: str = "light", width: int = 1100, height: int = 900) -> Any:
    """A page from disk, drawn."""
    made = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": height}).new_page()
    made.goto(page.as_uri())
    made.wait_for_selector("body[data-drawn]", timeout=120_000)
    made.add_style_tag(content="nav { position: static !important }")  # it would lie over a figure
    return made


def main() -> None:
    """Run, report, photograph."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        run = a_run(Path(folder))
        one = write_report(run)
        several = write_comparison([read_run(each) for each in a_comparison(Path(folder))], Path(folder) / "all.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        page = opened(browser, one, height=1090)
        keep("run", page.screenshot())
        for section in ("proximity-matrix", "number", "teaching"):
            keep(section, page.locator(f"#{section}").screenshot())
        keep("night", opened(browser, one, "dark", 390, 760).screenshot())
        page = opened(browser, several)
        keep("comparison", page.screenshot())
        browser.close()
        shown = subprocess.run(
            [sys.executable, "-m", "feddag", "show", run], capture_output=True, text=True, check=True
        )
        print(shown.stdout)


if __name__ == "__main__":
    main()
