"""What of a run that was cut short need not be measured again."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from collbench.core.errors import UsageError
from collbench.records.derive import NO_TIME_LEFT
from collbench.run import resumption


def test_what_failed_and_what_a_budget_dropped_is_measured_again() -> None:
    done, wrong, lost, late, never, cut = factories.sized(6)
    file = factories.make_file(
        [
            factories.record(done),
            factories.record(wrong, status="wrong"),
            factories.record(lost, status="failed"),
            factories.record(late, status="skipped", times_ns=[], note=f"{NO_TIME_LEFT} 3s"),
            factories.record(never, status="skipped", times_ns=[], note="gloo has none"),
            factories.record(cut, stop="cut"),
        ]
    )
    assert [record.case for record in resumption.Resumption(file).kept_records] == [
        done,
        wrong,
        never,
    ]


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PATH"])
def test_a_file_sets_no_variable_that_could_run_anything(tmp_path: Path, name: str) -> None:
    suite = factories.suite(envs=((("NCCL_ALGO", "Ring"),), ((name, "evil"),)))
    path = factories.saved(factories.make_file([], suite=suite), tmp_path)
    with pytest.raises(UsageError, match=f"it would set {name}, which a file must not"):
        resumption.find_resumable(str(path))
