"""Rows that a budget leaves no time for: dropped, named, and with a budget that holds them; before
anything runs and after."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from helpers.experiments import sides, small

from collbench.cli.families import LauncherOptions
from collbench.core.errors import Exit, NoVerdict
from collbench.features.compare import verdict
from collbench.features.compare.ab import forecast
from collbench.features.compare.ab.command import AbOptions, ab
from collbench.features.compare.ab.rounds import Ledger
from collbench.records import paired
from collbench.records.rows import Row
from collbench.run import plan
from collbench.run.jobs import Job
from collbench.run.pace import budget_for
from collbench.suite import grammar

LARGE = 64 << 20
SAME = {"head": "", "aa": True}

pytestmark = pytest.mark.usefixtures("same_software")


def cost(large: bool) -> float:
    """Seconds of a round of a row."""
    return 20.0 if large else 0.5


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of the model cost as much as measured ones, and take no time."""
    note = Ledger.note

    def charge(self: Ledger, world: object, rows: Mapping[str, float], seconds: float) -> None:
        costs = {key: cost(str(LARGE) in key) for key in rows}
        note(self, world, costs, sum(costs.values()))

    monkeypatch.setattr(Ledger, "note", charge)


def experiment(tmp_path: Path, **options: Any) -> Exit:
    """The exit code of an experiment on a model, of a small row and a large one."""
    suite = small(tmp_path, backends='"model"', sizes='"4K", "64M"', iters=20)
    asked: dict[str, Any] = {"base": "algo:ring", "head": "algo:tree", "suite": suite, **options}
    try:
        ab(AbOptions(where=LauncherOptions(), **asked))
    except typer.Exit as left:
        return Exit(left.exit_code)
    return Exit.OK


@pytest.mark.usefixtures("costly")
def test_rows_dropped_for_a_budget_are_named_after_it_in_every_medium(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"x{suffix}" for suffix in (".md", ".json", ".html", ".xml")]
    experiment(tmp_path, **SAME, budget="60s", out=files)
    printed, page, comment = (
        " ".join(text.split())
        for text in (capsys.readouterr().out, files[2].read_text(), files[0].read_text())
    )
    found = json.loads(files[1].read_text())
    (skipped,) = found["skipped"]
    assert skipped["dropped"] and skipped["label"].endswith("64 MiB")
    enough = re.findall(r"--budget (\S+) is enough", skipped["reason"])[0]
    for text in (printed, page, comment):
        assert f"--budget {enough} is enough" in text and "64 MiB" in text
    suite = ElementTree.fromstring(files[3].read_text())[0]
    reasons = [case.get("message", "") for case in suite.iter("skipped")]
    assert any(f"--budget {enough} is enough" in reason for reason in reasons)
    assert (found["rows_total"], len(found["rows"])) == (2, 1)
    experiment(tmp_path, **SAME, budget=enough)
    assert all(record.status != "skipped" for side in sides() for record in side.records)


@pytest.mark.usefixtures("costly")
def test_strict_counts_dropped_rows(tmp_path: Path) -> None:
    assert experiment(tmp_path, **SAME, budget="60s") == Exit.OK
    assert experiment(tmp_path, **SAME, budget="60s", strict=True) == Exit.NO_VERDICT


@pytest.mark.usefixtures("costly")
def test_a_suspicion_that_a_budget_does_not_confirm_decides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiment(tmp_path, budget="5s", tau="5%") == Exit.NO_VERDICT
    text = " ".join(capsys.readouterr().out.split())
    assert "SUSPECT" in text and "too short for 12 pairs" in text


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize("lacking", [0.0, 3411.0])
def test_a_suspicion_needs_a_second_stage_however_far_the_first_scatters(
    lacking: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paired, "count_lacking_pairs", lambda *of: lacking)
    experiment(tmp_path, budget="5s", tau="5%")
    text = " ".join(capsys.readouterr().out.split())
    assert "the undecided row needs about 12 more pairs (6 s); --budget 10s is enough" in text
    assert "too short for 12 pairs; --budget 10s is enough for all suspected rows" in text


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have no verdict, and lack 400 pairs for one."""
    monkeypatch.setattr(verdict, "_class_shift", lambda shift, tau: "INCONCLUSIVE")
    monkeypatch.setattr(paired, "count_lacking_pairs", lambda *of: 400.0)


@pytest.mark.usefixtures("costly", "undecided")
def test_a_budget_that_ends_rounds_of_an_open_row_is_told_in_every_medium(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"x{suffix}" for suffix in (".md", ".json", ".html")]
    assert experiment(tmp_path, **SAME, budget="60s", out=files) == Exit.NO_VERDICT
    note = json.loads(files[1].read_text())["notes"][0]
    assert re.fullmatch(
        r"rounds ended: \d+ s of --budget 60s were left, and the undecided row needs about 400"
        r" more pairs \(200 s\), and 6 s to confirm a change; --budget 5m is enough",
        note,
    )
    for text in (capsys.readouterr().out, files[0].read_text(), files[2].read_text()):
        assert note in " ".join(text.split())


@pytest.mark.usefixtures("costly", "undecided")
def test_the_fastest_of_several_open_rows_is_told(tmp_path: Path) -> None:
    experiment(tmp_path, **SAME, out=[tmp_path / "x.json"])
    note = json.loads((tmp_path / "x.json").read_text())["notes"][0]
    assert "of the default --budget 300s were left, and the fastest of 2 undecided rows" in note
    assert note.endswith("is enough for all")


@pytest.mark.usefixtures("costly", "undecided")
def test_rows_that_flags_leave_undecided_need_no_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Row, "ungated", ("late",))
    experiment(tmp_path, **SAME, budget="60s", out=[tmp_path / "x.json"])
    found = json.loads((tmp_path / "x.json").read_text())
    assert "late: cannot fail" in json.dumps(found) and "rounds ended" not in json.dumps(found)


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize("budget", ["60s", "0"])
def test_no_shortfall_is_told_of_decided_rows_or_without_a_budget(
    budget: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if budget == "0":
        request.getfixturevalue("undecided")
    experiment(tmp_path, **SAME, budget=budget, out=[tmp_path / "x.json"])
    assert "rounds ended" not in (tmp_path / "x.json").read_text()


def test_no_row_within_the_budget_is_no_experiment(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "seconds", lambda self, keys: 100.0 * len(list(keys)))
        with pytest.raises(NoVerdict, match="--budget"):
            experiment(tmp_path, budget="60s", out=[tmp_path / "x.json", tmp_path / "x.xml"])
    found = json.loads((tmp_path / "x.json").read_text())
    assert (found["exit"], len(found["skipped"])) == (Exit.NO_VERDICT, 2)
    assert found["verdict"].startswith("ended early")
    suite = ElementTree.fromstring((tmp_path / "x.xml").read_text())[0]
    assert (suite.get("errors"), suite.get("skipped")) == ("1", "2")


def test_an_experiment_that_breaks_is_green_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the rows that it came to are all the same."""
    from collbench.features.compare.ab.experiment import Experiment

    def interrupt(self: Experiment, rows: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "_decide", interrupt)
    files = [tmp_path / "x.json", tmp_path / "x.xml"]
    assert experiment(tmp_path, **SAME, out=files) == Exit.INTERRUPTED
    found = json.loads((tmp_path / "x.json").read_text())
    assert (found["exit"], found["counts"]) == (Exit.INTERRUPTED, {"SAME": 2})
    assert ElementTree.fromstring((tmp_path / "x.xml").read_text())[0].get("errors") == "1"


@pytest.fixture
def expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs whose estimates are those of ``cost``."""

    def guess(job: Job, policy: object, most: bool = False) -> float:
        return cost(job.case.nbytes == LARGE) * (1 + most) / 2

    monkeypatch.setattr(plan, "estimate_seconds", guess)


@pytest.mark.usefixtures("expensive")
@pytest.mark.parametrize("budget", [40, 100, 150, 180, 250, 1000])
def test_a_dry_run_promises_no_more_than_its_budget(
    budget: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[forecast.Forecast] = []
    guess = forecast.forecast_experiment
    monkeypatch.setattr(
        forecast, "forecast_experiment", lambda *of: made.append(guess(*of)) or made[-1]
    )
    assert experiment(tmp_path, budget=f"{budget}s", dry_run=True) == Exit.OK
    (expected,) = made
    text = " ".join(capsys.readouterr().out.split())
    assert expected.seconds <= budget
    assert [row.jobs["base"].case.nbytes for row in expected.dropped] == [LARGE] * (budget <= 180)
    enough = re.findall(r"--budget (\S+) is enough for all rows", text)
    assert bool(enough) == bool(expected.dropped)
    if enough:
        made.clear()
        experiment(tmp_path, budget=enough[0], dry_run=True)
        assert made[0].dropped == []


@pytest.mark.usefixtures("expensive")
def test_a_dry_run_whose_budget_holds_no_row_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NoVerdict, match="--budget"):
        experiment(tmp_path, budget="10s", dry_run=True)
    assert "2 rows dropped for --budget 10s" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("seconds", [0.1, 3, 29, 47, 48, 49, 100, 950, 1000, 5000])
def test_a_budget_that_holds_so_much_is_one_that_is_understood(seconds: float) -> None:
    assert 1.25 * seconds <= grammar.parse_duration(budget_for(seconds), "--budget")
