"""What of a run that was cut short need not be measured again."""

from __future__ import annotations

import factories

from collbench.records.derive import NO_TIME_LEFT
from collbench.run import resume


def test_what_failed_and_what_a_budget_dropped_is_measured_again() -> None:
    done, wrong, lost, late, never = factories.sized(5)
    file = factories.run_file(
        [
            factories.record(done),
            factories.record(wrong, status="wrong"),
            factories.record(lost, status="failed"),
            factories.record(late, status="skipped", times_ns=[], note=f"{NO_TIME_LEFT} 3s"),
            factories.record(never, status="skipped", times_ns=[], note="gloo has none"),
        ]
    )
    assert [record.case for record in resume.standing(file)] == [done, wrong, never]
