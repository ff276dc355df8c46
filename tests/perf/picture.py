"""README's picture: the first figure of a report of the gallery, in a headless Chromium.

python tests/perf/picture.py [--report reports/algorithms.html] [--output reports/algorithms.png]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1280, 620


def picture(report: Path, output: Path) -> None:
    """Writes what a window shows that is scrolled to the first figure."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.resolve().as_uri())
        figure = page.locator("figure").first
        figure.evaluate("it => it.scrollIntoView()")  # only what is seen is drawn
        figure.locator(".main-svg").first.wait_for(state="attached")
        page.wait_for_timeout(1000)
        page.screenshot(path=output)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, default=Path("reports/algorithms.html"))
    parser.add_argument("--output", type=Path, default=Path("reports/algorithms.png"))
    given = parser.parse_args()
    picture(given.report, given.output)
