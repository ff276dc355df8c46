"""What was measured on a fake GPU carries the word in every output, and nothing is ranked by it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from factories import ENDED, case, experiment, make_file, night, ratios, record, run, world
from msgspec.structs import replace
from rich.console import Console

from collbench.core.errors import Exit
from collbench.features.compare.comparison import Rules, compare_runs
from collbench.features.compare.views import comparison
from collbench.features.health.checks import table as checks
from collbench.features.health.views import health
from collbench.records import rows as rows_
from collbench.records.derive import derive_row
from collbench.records.types import End, Record, RunFile
from collbench.run.reporter import Reporter
from collbench.show import html, live, markdown, nccl, nccl_json, programs, terminal
from collbench.show.document import Document
from collbench.show.views import run as report

WORD = "measured on a fake GPU"
FAKE = world(backend="nccl", fake=True, library="NCCL 2.30.7")
REAL = world(backend="nccl", library="NCCL 2.30.7")
CASES = [
    case(size, backend="nccl", algorithm=algorithm)
    for size in (1 << 10, 1 << 20)
    for algorithm in ("native", "ring")
]


def records(**fields: Any) -> list[Record]:
    return [record(what, 1e4 + what.nbytes, world=0, **fields) for what in CASES]


def heard(reporter: Reporter, on: Any = FAKE, end: End = ENDED) -> None:
    reporter.begin(run(), CASES, [])
    reporter.world(on)
    for each in records():
        reporter.record(each, derive_row(each, on))
    reporter.end(end, None)


def written(make: Callable[[io.StringIO], Reporter], on: Any) -> str:
    heard(make(out := io.StringIO()), on)
    return out.getvalue()


def table(on: Any) -> str:
    return written(lambda out: live.LiveTable(Console(file=out, width=200)), on)


LIVE: dict[str, Callable[[Any], str]] = {
    "table": table,
    "nccl": lambda on: written(nccl.Text, on),
    "json": lambda on: written(programs.Json, on),
    "csv": lambda on: written(programs.Csv, on),
    "md": lambda on: written(programs.Markdown, on),
}


@pytest.mark.parametrize("name", ["table", "nccl", "md", "json", "csv"])
def test_each_output_of_a_run_has_the_word_where_a_gpu_is_fake(name: str) -> None:
    assert "fake" in LIVE[name](FAKE)
    assert "fake" not in LIVE[name](REAL).lower()


@pytest.mark.parametrize("name", ["table", "nccl", "md"])
def test_what_people_read_says_that_times_mean_nothing(name: str) -> None:
    assert f"FAKE: {WORD}, whose times mean nothing" in LIVE[name](FAKE)


def test_formats_that_are_piped_say_so_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard(live.Status())
    assert WORD in capsys.readouterr().err


def test_nccl_tests_text_says_so_in_the_header_and_at_the_end_as_comments() -> None:
    lines = LIVE["nccl"](FAKE).strip().splitlines()
    said = [at for at, line in enumerate(lines) if line.startswith(f"# FAKE: {WORD}")]
    first = next(at for at, line in enumerate(lines) if line.startswith("# Collective test"))
    assert len(said) == 2 and said[0] < first and said[1] == len(lines) - 1
    rows = [line for line in lines if not line.startswith("#") and line]
    real = [line for line in LIVE["nccl"](REAL).splitlines() if not line.startswith("#") and line]
    assert rows == real


def test_the_json_of_nccl_tests_says_so(tmp_path: Path) -> None:
    reporter = nccl_json.Document(tmp_path / "out.json")
    heard(reporter)
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["collbench"]["fake"] == WORD
    assert all("fake" in each["flags"]["out_of_place"] for each in made["collbench"]["results"])


def test_every_row_of_csv_and_json_has_the_flag_and_does_not_gate() -> None:
    rows = list(csv.DictReader(io.StringIO(LIVE["csv"](FAKE))))
    assert len(rows) == len(CASES)
    assert all("fake" in row["flags"].split() and row["gateable"] == "False" for row in rows)
    made = json.loads(LIVE["json"](FAKE))
    assert made["fake"] is True and all("fake" in row["flags"] for row in made["records"])
    assert "fake" not in json.loads(LIVE["json"](REAL))


@pytest.mark.parametrize("words", ["Best at each size", "peak busbw", "latency floor"])
def test_a_terminal_ranks_nothing_of_a_fake_gpu(words: str) -> None:
    assert words not in table(FAKE)


def test_a_terminal_ranks_what_is_real() -> None:
    shown = table(REAL)
    assert "Best at each size" in shown and "peak busbw" in shown


def pages(*files: RunFile) -> Document:
    return report.make_document(files)


def test_a_report_shows_no_time_of_a_fake_gpu() -> None:
    made = pages(make_file(records(), [FAKE]))
    assert made.verdict == f"4 cases {WORD}, whose times mean nothing."
    names = [section.name for section in made.sections]
    assert "best" not in names and "efficiency" not in names and "left-out" in names
    text = html.render_page(made)
    assert WORD in text
    assert "best" in [one.name for one in pages(make_file(records(), [REAL])).sections]


@pytest.mark.parametrize(("on", "drawn"), [(FAKE, False), (REAL, True)])
def test_a_report_draws_no_pairs_of_a_fake_gpu(on: Any, drawn: bool) -> None:
    meet = {"backend": "nccl", "n": 2, "groups": "pairs 0/4", "of": 2}
    both = [record(case(64, "sendrecv", group=group, **meet), world=0) for group in (0, 1)]
    assert ("pairs" in [one.name for one in pages(make_file(both, [on])).sections]) is drawn


def test_a_report_of_wrong_data_says_first_that_it_is_wrong() -> None:
    made = pages(make_file(records(status="wrong", wrong=1), [FAKE]))
    assert made.verdict == "4 of 4 cases gave wrong data." and made.weight == "bad"
    assert any(WORD in str(words) for words in made.sections[0].sentences)


def test_a_frame_has_no_times_and_the_word() -> None:
    made = rows_.make_frame([make_file(records(), [FAKE])])
    assert set(made["unfit"]) == {"fake"} and made["median"].isna().all()


def text_of(document: Document) -> list[str]:
    """A document in every medium."""
    return [
        terminal.render_text(document, 200),
        markdown.render_markdown(document, 1 << 20),
        html.render_page(document),
        programs.as_json(document),
        programs.render_junit(document),
    ]


@pytest.mark.parametrize("sides", [(FAKE, FAKE), (FAKE, REAL), (REAL, FAKE)])
@pytest.mark.parametrize("rules", [Rules(), Rules(across_machines=True, gate_unpaired=True)])
def test_nothing_is_compared_with_a_fake_gpu(sides: tuple[Any, Any], rules: Rules) -> None:
    base, head = (
        make_file(records(), [each], name=name)
        for each, name in zip(sides, ("base", "head"), strict=True)
    )
    found = compare_runs(base, head, rules)
    assert found.exit == Exit.NO_VERDICT
    assert found.reason == f"no verdict: nothing to compare: the rows were {WORD}"
    assert {row.verdict for row in found.rows} == {"INVALID"}
    assert not any(row.gates or row.delta is not None for row in found.rows)
    made = comparison.make_document(found)
    assert all(WORD in text for text in text_of(made))


def test_a_row_that_head_lacks_is_not_gone_where_base_is_a_fake_gpu() -> None:
    base = make_file(records(), [FAKE], name="base")
    head = make_file(records()[:1], [REAL], name="head")
    found = compare_runs(base, head, Rules(gate_unpaired=True))
    assert found.exit == Exit.NO_VERDICT and {row.verdict for row in found.rows} == {"INVALID"}


def test_of_a_mixed_run_a_comparison_says_which_rows_are_of_a_fake_gpu() -> None:
    both = [*records(), record(case(), world=1)]
    sides = [make_file(both, [FAKE, world(1)], name=name) for name in ("base", "head")]
    found = compare_runs(*sides, Rules())
    assert found.exit == Exit.NO_VERDICT and found.reason.startswith("no verdict on 4 of 5 rows")
    assert found.reason.endswith(f"({WORD})")


def test_wrong_data_of_a_fake_gpu_fails_a_comparison() -> None:
    base = make_file(records(), [FAKE], name="base")
    head = make_file(records(status="wrong", wrong=1, note="1 wrong"), [FAKE], name="head")
    found = compare_runs(base, head, Rules())
    assert found.exit == Exit.WRONG_DATA
    assert {row.why for row in found.rows} == {"wrong results on head: 1 wrong"}


def test_health_has_the_word_in_every_output() -> None:
    made = health.make_document(checks.judge_night([night(worlds={"fake": True})]))
    outputs = [*text_of(made), programs.render_line(made), made.line]
    assert all(WORD in text for text in outputs)
    assert "collbench_health_fake 1\n" in programs.render_prometheus(made)
    ElementTree.fromstring(programs.render_junit(made))
    real = health.make_document(checks.judge_night([night()]))
    assert "collbench_health_fake 0\n" in programs.render_prometheus(real)


def test_no_round_of_an_experiment_on_a_fake_gpu_decides_or_is_measured_again() -> None:
    sides = experiment({case(): ratios(*[0.5] * 8)})
    real = compare_runs(*sides, Rules())
    assert real.rows[0].suspected
    fake = [
        replace(side, worlds=[replace(one, fake=True) for one in side.worlds]) for side in sides
    ]
    found = compare_runs(*fake, Rules())
    assert found.paired and found.exit == Exit.NO_VERDICT
    assert not found.rows[0].suspected and not found.aggregates
    assert WORD in str(comparison.make_document(found).comment)
