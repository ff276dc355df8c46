"""Pages in a real browser: headless Chromium, in which nothing may go wrong and nothing may be
fetched."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import stop_without

Visit = Callable[..., Any]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

PATIENCE = 120_000  # milliseconds, on a machine that does much else


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if importlib.util.find_spec("playwright") is None:
        stop_without("browser", "playwright is not installed")
    if CHROMIUM is None:
        stop_without("browser", "no Chromium on this machine")
    from playwright import sync_api

    sync_api.expect.set_options(timeout=PATIENCE / 4)
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Tab:
    """The tab in which one test after the other opens its pages: where a tab has compiled the same
    plotly.js of the same address before, a page costs a quarter."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._context: Any = None
        self.renew()

    def renew(self) -> None:
        if self._context:
            self._context.close()
        self._context = self._browser.new_context()
        self.page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each page is written, in place of the one before."""
    return tmp_path_factory.mktemp("pages") / "report.html"


@pytest.fixture(scope="session")
def only_tab(browser: Any) -> Tab:
    return Tab(browser)


@pytest.fixture
def tab(only_tab: Tab, request: pytest.FixtureRequest) -> Any:
    """The only tab; a new one where a test is run again."""
    if getattr(request.node, "execution_count", 1) > 1:
        only_tab.renew()
    return only_tab.page


@pytest.fixture
def visit(tab: Any) -> Iterator[Visit]:
    """Open a file. No console message, error, or request for anything but files may have come when
    the test ends. Another file takes the place of the one before."""
    troubles: list[str] = []
    asked: list[str] = []
    heard = {
        "console": lambda message: troubles.append(message.text),
        "pageerror": lambda error: troubles.append(str(error)),
        "request": lambda request: asked.append(request.url),
    }
    for event, listener in heard.items():
        tab.on(event, listener)

    def opened(path: Path, *, width: int = 1000, scheme: str = "light", hash: str = "") -> Any:
        tab.set_viewport_size({"width": width, "height": 800})
        tab.emulate_media(media="null", color_scheme=scheme)
        tab.goto("about:blank")  # lest another hash of the same address were no other page
        tab.goto(path.as_uri() + hash)
        return tab

    yield opened
    for event, listener in heard.items():
        tab.remove_listener(event, listener)
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
