"""reports/README.md names each file beside it, with the day and the scripts that made it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from planted_losses import digest_real

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
TEXT = (REPORTS / "README.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "collbench/cli/pages").glob("*.md")}
ROWS = dict(re.findall(r"^\| \[([\w.-]+)\]\([^)]*\) \| (.*) \|$", TEXT, re.MULTILINE))


def test_each_file_is_named() -> None:
    kept = {path.name for path in REPORTS.iterdir()} - {"README.md"}
    assert {name for name in kept if not re.search(rf"\b{re.escape(name)}\b", TEXT)} == set()


def test_each_file_that_is_named_is_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert links and [link for link in links if not (REPORTS / link).exists()] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_when_its_file_was_made_and_by_which_scripts(name: str) -> None:
    _, day, by = ROWS[name].split(" | ")
    said = re.findall(r"20\d\d-\d\d-\d\d", (REPORTS / name).read_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", day) and (not said or day in said)
    scripts = re.findall(r"`(\w+\.py)`", by)
    assert scripts or "`make lab`" in by
    folders = ROOT / "tests/perf", ROOT / "tests/fakegpu"
    assert [s for s in scripts if not any((folder / s).exists() for folder in folders)] == []


def test_what_make_makes_again_is_said_so() -> None:
    """A row names the target that writes its file, and no other."""
    made = {}
    for target, recipe in re.findall(
        r"^(\w+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    ):
        made |= dict.fromkeys(re.findall(r"--output reports/([\w.]+)", recipe), target)
    assert made
    said = {name: re.search(r"`make (\w+)`", row) for name, row in ROWS.items()}
    assert {name: match[1] for name, match in said.items() if match} == made


def test_gate_power_was_made_of_the_runs_that_are_there() -> None:
    digests = re.findall(r"SHA-256 (\w+)", (REPORTS / "gate-power.md").read_text())
    assert digests == [digest_real()], "python tests/perf/gate_power.py makes it anew"


INTERVAL = re.compile(r"(\d\.\d+)\s+\[(\d\.\d+),\s+(\d\.\d+)\]")


def quoted() -> list[tuple[str, str, tuple[float, ...]]]:
    """Page, the report that it names next, and a figure with its interval."""
    return [
        (name, report[1], tuple(map(float, found.groups())))
        for name, text in PAGES.items()
        for found in INTERVAL.finditer(text)
        if (report := re.compile(r"`reports/(\w+\.md)`").search(text, found.end()))
    ]


def test_pages_quote_figures() -> None:
    assert {report for _, report, _ in quoted()} == {"recording.md", "replay.md", "workload.md"}


@pytest.mark.parametrize(("page", "report", "figure"), quoted())
def test_a_figure_that_a_page_quotes_is_in_its_report(
    page: str, report: str, figure: tuple[float, ...]
) -> None:
    text = (REPORTS / report).read_text().replace("|", " ")
    there = [tuple(map(float, found.groups())) for found in INTERVAL.finditer(text)]
    assert any(
        all(abs(a - b) < 0.0051 for a, b in zip(figure, each, strict=True)) for each in there
    )
