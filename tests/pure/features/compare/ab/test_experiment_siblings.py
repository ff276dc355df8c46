"""What one job measures together is kept of all, whatever becomes of the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from factories import record
from helpers.experiments import sides, small

from collbench.cli.families import LauncherOptions
from collbench.core.errors import Exit, RunBroken
from collbench.features.compare.ab.command import AbOptions, ab
from collbench.features.compare.ab.experiment import Experiment
from collbench.records.types import Record

pytestmark = pytest.mark.usefixtures("same_software")


def experiment(folder: Path) -> Exit:
    """The exit code of an experiment of one row of two groups."""
    suite = Path(small(folder, backends='"shm"', ranks="4"))
    suite.write_text(suite.read_text().replace("[policy]", 'groups = "mod:2"\n[policy]'))
    with pytest.raises(typer.Exit) as left:
        ab(AbOptions(where=LauncherOptions(), base="algo:ring", head="algo:tree", suite=str(suite)))
    return Exit(left.value.exit_code)


@pytest.mark.parametrize("wrong", [0, 1])
def test_wrong_data_that_the_pilot_finds_in_any_group_exits_7(
    wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ranks tell it: the other group is skipped."""

    def launch(self: Experiment, launch: Any, step: object) -> None:
        for case in launch.plan.jobs[0].case.siblings:
            found = record(case, 1e6)
            if launch.side.name == "head":
                found = Record(case=case, status="skipped", note=f"group {wrong} had wrong data")
                if case.group == wrong:
                    found = Record(case=case, status="wrong", wrong=1)
            launch.on_line(found)

    monkeypatch.setattr(Experiment, "_launch", launch)
    assert experiment(tmp_path) == Exit.WRONG_DATA
    base, head = sides()
    assert [found.status for found in base.records] == ["ok", "ok"]
    assert {found.case.group: found.status for found in head.records} == {
        wrong: "wrong",
        1 - wrong: "skipped",
    }


def test_a_rank_that_breaks_fails_the_case_of_every_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = RunBroken("rank 3 died", job=0)

    def launch(self: Experiment, launch: Any, step: Any) -> None:
        self._listener(launch.side, launch.on_line, step).lost(launch.plan, broken)
        raise broken

    monkeypatch.setattr(Experiment, "_launch", launch)
    with pytest.raises(RunBroken):
        experiment(tmp_path)
    base, _ = sides()
    assert [(found.case.group, found.status) for found in base.records] == [
        (1, "failed"),
        (0, "failed"),
    ]
