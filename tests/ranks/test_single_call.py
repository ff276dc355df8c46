"""One call of a long case before others are measured to the end, on ranks of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.core.errors import Exit
from collbench.records import run_file
from collbench.records.derive import Derived
from collbench.records.types import Record
from collbench.run import pace, session
from collbench.run.order import Order
from collbench.run.reporter import Reporter
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


class Events(Reporter):
    """Notes what it is told of cases."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Record]] = []

    def show_coarse(self, record: Record, row: Derived | None) -> None:
        assert row is not None
        self.events.append(("called", record))

    def record(self, record: Record, row: Derived | None) -> None:
        self.events.append(("measured", record))


@pytest.mark.parametrize("algorithm", ["native", "ring"])
def test_calls_come_first_and_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    monkeypatch.setattr(pace, "LONG_RUN", 0.0)
    monkeypatch.setattr(pace, "LONG_CASE", 0.0)
    axes = Axes(
        collectives=("all_reduce",),
        backends=("gloo",),
        algorithms=(algorithm,),
        sizes=(1 << 16, 1 << 12),
        ranks=(2,),
        in_place=(False, True),
    )
    suite = Suite(name="x", axes=axes, policy=Policy(max_seconds=0.1))
    path, told = tmp_path / "run.jsonl", Events()
    order = Order(suite=suite, command=["collbench"], output=path)
    assert session.execute_order(order, lambda: told) == Exit.OK
    called = [record for what, record in told.events[:2]]
    assert [what for what, _ in told.events] == ["called"] * 2 + ["measured"] * 4
    assert [(r.case.nbytes, r.case.in_place) for r in called] == [(1 << 12, True), (1 << 16, True)]
    assert all(r.times_ns == [r.setup_ns] and r.wrong is None for r in called)
    saved = [record for record in run_file.read_file(path).records if record.status == "ok"]
    assert len(saved) == 4 and all(r.wrong == 0 and r.checked for r in saved)
    assert not {r.setup_ns for r in called} & {r.setup_ns for r in saved}  # made anew, on others
