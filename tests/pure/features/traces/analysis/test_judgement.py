"""What a trace does not tell is told, with what follows."""

from __future__ import annotations

import pytest
from factories import call, calls_of, trace
from msgspec.structs import replace

from collbench.features.traces.analysis.judgement import judge_trace
from collbench.features.traces.types import EARLIER, Lost, Trace
from collbench.features.traces.views import trace as view

TIMED = [call(span=(0, 10), number=1)]


def lacks(made: Trace) -> dict[str, str]:
    return {lack.what: lack.so for lack in judge_trace(made).lacks}


def test_a_trace_that_tells_all_lacks_nothing() -> None:
    made = trace(TIMED, TIMED, busy=((0, 5),), steps=((0, 10),))
    assert judge_trace(made).lacks == ()


def test_ranks_that_are_not_there_are_named() -> None:
    made = trace(TIMED, None, None, TIMED)
    assert judge_trace(made).missing == (1, 2)
    assert "no trace of ranks 1,2, of 4" in lacks(made)


def test_what_readers_lost_is_added_up_over_ranks() -> None:
    made = trace(TIMED, TIMED)
    ranks = tuple(
        replace(rank, lost=(Lost(f"no group (dump_{rank.rank}: record 3)", calls=2, nbytes=1024),))
        for rank in made.ranks
    )
    found = lacks(Trace("", ranks))
    told = found["lost: no group (dump_0: record 3)"]
    assert told.startswith("4 calls of 2 KiB, ranks 0,1:")


@pytest.mark.parametrize("why", EARLIER)
def test_calls_lost_before_all_others_are_told_and_leave_the_verdict(why: str) -> None:
    made = trace(TIMED, TIMED)
    lost = (Lost(why, calls=90_000),)
    verdict = judge_trace(Trace("", tuple(replace(rank, lost=lost) for rank in made.ranks)))
    assert view.make_headline(verdict).text.startswith("no hang: all ranks made the same calls and")
    assert verdict.is_complete
    assert any(lack.what == f"lost: {why}" for lack in verdict.lacks)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (calls_of("all_reduce"), "no times of operations"),
        ([*TIMED, *calls_of("barrier", first=2)], "no times of 1 of 2 operations"),
        ([call(span=(0, 10))], "operations of world have no numbers"),
        (calls_of("all_reduce", group="x"), "who is in x is not in the trace"),
        (calls_of("all_to_allv"), "no splits of 2 all_to_allv calls"),
        (calls_of("broadcast", root=-1), "no root of 2 calls"),
        ([call("send", peer=1)], "2 messages without their other half"),
        (TIMED, "no iterations are marked"),
        (
            [replace(call(number=1), length_ns=9)],
            "when operations began and ended is not known, only how long they took",
        ),
        (TIMED, "neither computation nor waits have times"),
    ],
)
def test_what_is_not_told_is_told(program: list, words: str) -> None:  # type: ignore[type-arg]
    other = [replace(each, peer=0) if each.peer == 1 else each for each in program]
    assert words in lacks(trace(program, other))


def test_one_rank_alone_tells_nothing_of_others() -> None:
    assert "one rank only" in lacks(trace(TIMED))


def test_clocks_that_are_not_one_are_told() -> None:
    assert any(what.startswith("no common clock") for what in lacks(trace(TIMED, TIMED, host="")))


def test_ranks_whose_trace_ends_before_others_are_told() -> None:
    longer = [*TIMED, call(span=(10, 20), number=2)]
    assert "operations on world that others have and rank 1 not" in lacks(trace(longer, TIMED))


@pytest.mark.parametrize(("form", "surely"), [("collbench", False), ("flight", True)])
def test_numbers_of_recordings_that_began_apart_are_no_sure_disagreement(
    form: str, surely: bool
) -> None:
    every = [("broadcast", {}), ("all_reduce", {}), ("broadcast", {})]
    found = judge_trace(trace(calls_of(*every), calls_of(*every[1:]), form=form))
    assert found.disagreements
    assert found.disagree is surely


def test_a_disagreement_that_hung_the_job_is_told_once() -> None:
    usual = calls_of("all_reduce", state="started")
    found = judge_trace(
        trace(usual, calls_of("all_gather", state="started"), usual, backend="nccl")
    )
    assert found.hang
    assert found.disagreements == ()


def test_a_disagreement_of_a_job_that_went_on_is_told() -> None:
    usual = calls_of("all_reduce")
    found = judge_trace(trace(usual, calls_of("all_gather"), usual))
    assert found.hang is None
    assert [meeting.number for meeting in found.disagreements] == [1]


def test_operations_without_numbers_of_traces_that_begin_apart_are_no_sure_disagreement() -> None:
    usual = calls_of("all_reduce", "all_gather", "all_reduce", number=-1)
    found = judge_trace(trace(usual, usual[1:], usual))
    assert found.disagreements
    assert not found.disagree


def test_operations_without_numbers_of_which_ranks_have_as_many_are_one() -> None:
    usual, odd = calls_of("all_reduce", number=-1), calls_of("all_gather", number=-1)
    assert judge_trace(trace(usual, odd, usual)).disagree


def test_a_disagreement_beside_a_call_that_one_rank_lost_is_no_sure_one() -> None:
    usual, odd = calls_of("all_reduce", number=-1), calls_of("all_gather", number=-1)
    made = trace(usual, odd, usual)
    lossy = replace(made.ranks[1], lost=(Lost("unreadable", calls=1),))
    found = judge_trace(replace(made, ranks=(made.ranks[0], lossy, made.ranks[2])))
    assert found.disagreements
    assert not found.disagree


def test_a_trace_without_an_operation_is_no_pass() -> None:
    found = judge_trace(trace([], []))
    assert not found.communicates
    assert view.make_headline(found).weight == "notice"
    assert view.make_headline(judge_trace(trace(TIMED, TIMED))).weight == "good"
