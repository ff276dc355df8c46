"""What the checks of data and completeness count: only what was compared, and only what ended."""

from __future__ import annotations

from factories import case, make_file, night, record, world

from collbench.core.errors import Exit
from collbench.features.health.checks.data import check_completeness, check_data
from collbench.features.health.night import Night
from collbench.records.types import End, Record, RunFile

DROPPED = "dropped for --budget 40s: not enough for all cases"


def broken_night() -> RunFile:
    """A run that a planted drop ended in its first case, once a budget had dropped another."""
    lost = record(case(0, "barrier"), status="failed", times_ns=[], note="rank 1 exited")
    dropped = record(case(), status="skipped", times_ns=[], note=DROPPED)
    return make_file([lost, dropped], [world()], End(exit=Exit.TIMEOUT, ended="", note="rank 1"))


def test_only_records_whose_data_were_compared_are_counted() -> None:
    def change(made: Record) -> Record:
        return record(made.case, world=made.world) if made.case.nbytes == 1 << 20 else made

    rows = [case(1 << 20), case(1 << 10)]
    note = check_data(Night([night(rows=rows, launches=3, change=change)])).note
    assert note == "1,200 elements of 3 records compared bit for bit"


def test_wrong_records_are_counted_as_compared() -> None:
    file = make_file([record(case(), status="wrong", wrong=2), record(case(8))], [world()])
    assert check_data(Night([file])).note.startswith("0 elements of 1 record compared")


def test_a_case_that_failed_is_not_among_those_that_ended() -> None:
    note = check_completeness(Night([broken_night()])).note
    assert note.startswith("0 cases of 1 run ended; 1 case failed; ")


def test_an_early_end_is_noted_beside_the_case_that_failed() -> None:
    note = check_completeness(Night([broken_night()])).note
    assert f"1 run did not come to an end; 1 skipped: {DROPPED}" in note


def test_the_note_on_a_complete_run_names_no_failure() -> None:
    file = night(rows=[case()], launches=3)
    assert check_completeness(Night([file])).note == "3 cases of 1 run ended"
