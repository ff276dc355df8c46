"""The page of `collbench show --html` in a real browser, without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collbench.cli import main

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

Open = Callable[..., Any]
CELLS = "#drawing .heatmap-label"


@pytest.fixture
def page(visit: Callable[..., Any], tmp_path: Path) -> Open:
    """Write and open the page that ``show`` makes of these arguments."""

    def opened(*args: str, width: int = 1000, scheme: str = "light") -> Any:
        path = tmp_path / "page.html"
        done = CliRunner().invoke(main.app, ["show", *args, "--html", str(path)])
        assert done.exit_code == 0, done.output
        tab = visit(path, width=width, scheme=scheme)
        tab.locator(CELLS).first.wait_for(state="attached")
        return tab

    return opened


def expect_cells(tab: Any, *texts: object) -> None:
    sync_api.expect(tab.locator(CELLS)).to_have_text([str(text) for text in texts])


def expect_words(tab: Any, words: str) -> None:
    sync_api.expect(tab.locator("#words")).to_contain_text(words)


def test_the_slider_leads_to_the_result(page: Open) -> None:
    tab = page("all_reduce", "ring", "--values", "2,4,6;1,2,3;4,8,12")
    expect_words(tab, "Step 1 of 4")
    tab.locator("#slider").fill("0")
    expect_cells(tab, 2, 4, 6, 1, 2, 3, 4, 8, 12)
    expect_words(tab, "Before the first step")
    tab.locator("#slider").fill("2")
    expect_cells(tab, 7, 12, 6, 1, 14, 9, 5, 8, 21)
    expect_words(
        tab,
        "Step 2 of 4: rank 0 sends cell 1 to rank 1, which adds it; rank 1 sends cell 2 to rank 2,"
        " which adds it; rank 2 sends cell 0 to rank 0, which adds it. Now each cell is complete"
        " on exactly one rank.",
    )
    tab.locator("#slider").fill("4")
    expect_cells(tab, *[7, 14, 21] * 3)
    expect_words(tab, "Step 4 of 4")
    assert "every rank ends with [7, 14, 21]" in tab.locator("ul").text_content()


def test_arrows_are_drawn_where_cells_move(page: Open) -> None:
    tab = page("all_reduce", "ring", "-n", "4")
    heads = tab.locator("#drawing .scatterlayer .point")
    tab.locator("#slider").fill("0")
    sync_api.expect(heads).to_have_count(0)
    colours = []
    for step, first in ((1, "1"), (4, "16")):
        tab.locator("#slider").fill(str(step))
        sync_api.expect(tab.locator(CELLS).first).to_have_text(first)
        boxes = heads.evaluate_all(
            "all => all.map(one => [one.getBoundingClientRect().width, one.style.fill])"
        )
        drawn = [fill for width, fill in boxes if width > 4]
        assert len(drawn) == 4
        colours.append(set(drawn))
    assert colours[0].isdisjoint(colours[1])  # added, then copied


def test_buttons_step_and_play(page: Open) -> None:
    tab = page("broadcast", "binomial", "-n", "4")
    expect_words(tab, "Step 1 of 2")
    tab.get_by_label("one step back").click()
    expect_words(tab, "Before the first step")
    tab.get_by_label("one step on").click()
    expect_words(tab, "Step 1 of 2")
    tab.get_by_label("one step back").click()
    play = tab.locator("#play")
    play.click()
    sync_api.expect(play).to_have_text("Pause")
    expect_words(tab, "Step 2 of 2")
    sync_api.expect(play).to_have_text("Play")
    play.click()
    expect_words(tab, "Before the first step")
    play.click()
    sync_api.expect(play).to_have_text("Play")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_scrolls_the_drawing_and_not_the_page(page: Open, scheme: str) -> None:
    tab = page("all_reduce", "ring", "-n", "12", width=400, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.evaluate("document.getElementById('scroll').scrollWidth") > 400
    ink, paper = (
        tab.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    label = tab.locator("#drawing .ytick text").first.evaluate("one => getComputedStyle(one).fill")
    assert label == ink != paper


def test_the_page_says_what_is_undefined(page: Open) -> None:
    tab = page("gather", "linear", "-n", "4", "--root", "2")
    assert (
        "gather leaves the output of ranks other than 2 undefined"
        in tab.locator("ul").text_content()
    )
