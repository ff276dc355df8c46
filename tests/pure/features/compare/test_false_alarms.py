"""False alarms of this machine, counted in stored experiments on two alike sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import factories
import pytest
from msgspec.structs import replace

from collbench.features.compare import false_alarms as alarms
from collbench.features.compare.comparison import Comparison, Rules, compare_runs
from collbench.features.compare.false_alarms import Alarms

ROW, RULES = factories.case(), Rules()
QUIET = factories.ratios(*[0.001, -0.002, 0.003, -0.001] * 2)
SUSPECT = factories.ratios(*[0.2, 0.21, 0.22, 0.19] * 2)
SMALL = factories.ratios(*[0.02, 0.021, 0.022, 0.019] * 2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path))
    return tmp_path


def stored(
    home: Path, name: str, rounds: factories.Rounds = QUIET, aa: bool = True, **fields: Any
) -> list[Path]:
    """Both sides of an experiment on ROW alone."""
    files = factories.experiment({ROW: rounds}, aa=aa)
    return [
        factories.saved(
            replace(file, run=replace(file.run, id=f"{name}-{side}", **fields)),
            home,
        )
        for side, file in zip(("base", "head"), files, strict=True)
    ]


def judged(rules: Rules = RULES, **fields: Any) -> Comparison:
    """A comparison of this machine's, itself stored nowhere."""
    base, head = (
        replace(file, run=replace(file.run, **fields))
        for file in factories.experiment({ROW: QUIET})
    )
    return compare_runs(base, head, rules)


def test_what_is_stored_is_judged(home: Path) -> None:
    stored(home, "20260101-a", started="2026-01-01T00:00:00+00:00")
    stored(home, "20260102-b", SUSPECT, started="2026-01-02T00:00:00+00:00")
    stored(home, "20260103-c", SMALL, started="2026-01-02T00:00:00+00:00")
    assert alarms.find_alarms(judged()) == Alarms(
        experiments=3, rows=3, small=1, suspected=1, confirmed=0, last="2026-01-02"
    )


def test_rows_without_a_verdict_are_no_quiet_ones(home: Path) -> None:
    stored(home, "20260101-a", factories.ratios(*[0.4, -0.5, 0.3, -0.2] * 2))
    found = alarms.find_alarms(judged())
    assert found and (found.rows, found.suspected, found.undecided) == (0, 0, 1)


def test_where_nothing_is_stored_nothing_is_counted() -> None:
    assert alarms.find_alarms(judged()) == Alarms()


def test_experiments_on_two_different_sides_say_nothing(home: Path) -> None:
    stored(home, "20260101-a", aa=False)
    assert alarms.find_alarms(judged()) == Alarms()


def test_another_machine_is_not_this_one(home: Path) -> None:
    other = factories.ENVIRONMENT | {"cpu": {"model": "other", "cores": 8, "physical": 8}}
    stored(home, "20260101-a", environment=other)
    assert alarms.find_alarms(judged()) == Alarms()


def test_a_library_that_no_row_uses_makes_no_other_machine(home: Path) -> None:
    libraries = {"torch": "2.6.0", "mpi4py": "4.0.0"}
    stored(home, "20260101-a", environment=factories.ENVIRONMENT | {"libraries": libraries})
    found = alarms.find_alarms(judged())
    assert found and found.experiments == 1


def test_faults_planted_on_purpose_are_no_false_alarms(home: Path) -> None:
    policy = replace(factories.run().policy, inject="delay:rank=1,us=100")
    stored(home, "20260101-a", policy=policy)
    assert alarms.find_alarms(judged()) == Alarms()


def test_a_broken_or_lonely_file_is_passed_over(home: Path) -> None:
    stored(home, "20260101-a")
    stored(home, "20260102-b")[1].unlink()
    (home / "runs" / "20260103-c-base.jsonl").write_text("no run\n")
    found = alarms.find_alarms(judged())
    assert found and (found.experiments, found.last) == (1, "2026-01-02")


@pytest.mark.parametrize("limit", ["MOST", "ROWS"])
def test_the_newest_are_judged_and_older_ones_counted(
    home: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(alarms, limit, 2)
    stored(home, "20260101-a", SUSPECT)
    for name in ("20260102-b", "20260103-c"):
        stored(home, name)
    found = alarms.find_alarms(judged())
    assert found and (found.experiments, found.suspected, found.older) == (2, 0, 1)


def test_a_side_without_the_other_is_no_older_experiment(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "MOST", 1)
    stored(home, "20260101-a")[1].unlink()
    stored(home, "20260102-b")[1].write_text("no run\n")
    for name in ("20260103-c", "20260104-d"):
        stored(home, name)
    found = alarms.find_alarms(judged())
    assert found and (found.experiments, found.older) == (1, 1)


def test_what_matters_is_what_matters_to_the_comparison(home: Path) -> None:
    stored(home, "20260101-a", SUSPECT)
    found = alarms.find_alarms(judged(Rules(tau=0.5)))
    assert found and (found.rows, found.suspected) == (1, 0)


@pytest.mark.parametrize("fields", [{"environment": {}}, {"imported": "nccl-tests"}])
def test_of_an_unknown_machine_nothing_is_known(fields: dict[str, Any]) -> None:
    assert alarms.find_alarms(judged(Rules(across_machines=True), **fields)) is None


def test_experiments_on_fake_gpus_are_not_counted(home: Path) -> None:
    for file in factories.experiment({ROW: QUIET}, aa=True):
        worlds = [replace(world, fake=True) for world in file.worlds]
        factories.saved(replace(file, worlds=worlds), home)
    assert alarms.find_alarms(judged()) == Alarms()
