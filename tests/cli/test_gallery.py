"""The reports kept under reports/ are what this code makes of the runs kept beside them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from collbench.core.errors import Exit
from collbench.records import run_file

REPORTS = Path(__file__).parents[2] / "reports"
STORIES = sorted((REPORTS / "runs").glob("*/"))
NIGHT, TRACE, ADVICE = "night", "recorded-job", "advice-slow-links"
# What makes a story's page, with its exit code, where that is not `report`; as in the Makefile
MADE = {
    NIGHT: (("health", "--history", "sqlite://"), Exit.OK),
    TRACE: (("trace",), Exit.OK),
    ADVICE: (("advise", "--oversubscribed"), Exit.OK),
}


ANEW = "`make gallery` makes reports/ anew, where this change was meant"


def contents(page: str) -> tuple[Any, str]:
    """A page's figures, as data, and its text without tags, styles and scripts."""
    (figures,) = re.findall(
        r'<script type="application/json"[^>]*id="content"[^>]*>(.*?)</script>', page, re.DOTALL
    )
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return json.loads(figures), " ".join(re.sub(r"<[^>]*>", " ", body).split())


def alike(kept: Any, made: Any, where: str = "") -> None:
    """Equal, numbers to nine digits: another processor may round differently."""
    if isinstance(kept, float) or isinstance(made, float):
        assert made == pytest.approx(kept, rel=1e-9), where
    elif isinstance(kept, list):
        assert len(kept) == len(made), where
        for place, pair in enumerate(zip(kept, made, strict=True)):
            alike(*pair, f"{where}[{place}]")
    elif isinstance(kept, dict):
        assert kept.keys() == made.keys(), where
        for key in kept:
            alike(kept[key], made[key], f"{where}.{key}")
    else:
        assert kept == made, where


def test_there_are_stories() -> None:
    assert STORIES and all(list(story.glob("*.jsonl")) for story in STORIES)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_reports_are_what_this_code_makes_of_their_runs(
    story: Path, bare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # as in reports/: a file of advice says by which command it is made
    shutil.copytree(story, f"runs/{story.name}")
    runs = [str(path) for path in sorted(Path("runs").glob("*/*.jsonl"))]
    command, code = MADE.get(story.name, (("report",), Exit.OK))
    pages = [("-o", f"{story.name}.{suffix}") for suffix in ("html", "md")]
    for outputs in [[word for output in pages for word in output]] if story.name in MADE else pages:
        done = bare(*command, *runs, "--plotlyjs", "directory", *outputs)
        assert done.returncode == code, done.stderr
    page, text = (Path(name) for _, name in pages)
    assert Path("plotly.min.js").stat().st_size > page.stat().st_size
    assert text.read_text() == (REPORTS / text).read_text(), ANEW
    (old_figures, old_text), (new_figures, new_text) = (
        contents(path.read_text()) for path in (REPORTS / page, page)
    )
    alike(old_figures, new_figures, f"{ANEW}: {page} ")
    assert new_text == old_text, ANEW


def test_pages_are_small() -> None:
    assert {path.name for path in REPORTS.glob("*.html")} == {
        "fleet.html",  # of synthetic nodes, by tests/perf/fleet.py
        *(f"{s.name}.html" for s in STORIES),
    }
    small = [REPORTS / f"{name}.html" for name in MADE]
    assert [path.name for path in small if path.stat().st_size > 205_000] == []


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_recorded_runs_name_no_place_of_the_machine_they_come_from(story: Path) -> None:
    for path in story.glob("*.jsonl"):
        if story.name != TRACE:
            assert run_file.read_run(path).command[0] == "collbench"
        assert not re.search(
            r"/(home|root|tmp|work)/", path.read_text().replace("/tmp/collbench", "")
        )
