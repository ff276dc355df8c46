"""Pages in a real browser: headless Chromium, in which nothing may go wrong and nothing may be
fetched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Visit = Callable[..., Any]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Visit]:
    """Open a file. No console message, error, or request for anything but files may have come when
    the test ends."""
    troubles: list[str] = []
    asked: list[str] = []
    contexts = []

    def opened(path: Path, *, width: int = 1000, scheme: str = "light", hash: str = "") -> Any:
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        )
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: troubles.append(message.text))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(path.as_uri() + hash)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
