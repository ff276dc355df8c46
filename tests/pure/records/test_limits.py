"""Limits on busbw: which rows meet them, fall short, or show neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import factories
import msgspec
import pytest

from collbench.core.errors import Exit, UsageError
from collbench.records import limits
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case, Limit
from collbench.suite.grammar import parse_limit
from collbench.suite.sweep import Part, Threshold

LARGE = 64 << 20
WANTED = Limit(10.0)  # GB/s, at the largest size


def taking(busbw: float, nbytes: int = LARGE, spread: float = 0.01, **fields: Any) -> Record:
    """A row of an all_reduce on 4 ranks with 40 samples around the time at which it reaches this
    busbw, as GB/s."""
    case = factories.case(nbytes, **fields)
    median = case.size * case.row.busbw(case.n) / busbw
    times = [round(median * (1 + spread * (step * 7 % 41 - 20) / 20)) for step in range(1, 41)]
    return Record(case=case, status="ok", times_ns=times, world=0, sync="window", stop="converged")


def judged(*records: Record, wanted: Limit = WANTED, **match: Any) -> list[limits.Held]:
    return limits.judge_limits(run(*records, wanted=wanted, **match))


def run(*records: Record, wanted: Limit = WANTED, **match: Any) -> RunFile:
    threshold = Threshold(match=Part(**match), min_busbw=(wanted,))
    suite = msgspec.structs.replace(factories.SUITE, thresholds=(threshold,))
    return factories.make_file(records, suite=suite)


def answers(*records: Record, wanted: Limit = WANTED, **match: Any) -> list[str]:
    return [held.answer for held in judged(*records, wanted=wanted, **match)]


@pytest.mark.parametrize(
    ("busbw", "answer", "code"),
    [
        (11.0, "met", Exit.OK),
        (9.0, "short", Exit.BAD),
        (10.0, "not shown", Exit.NO_VERDICT),
    ],
)
def test_a_row_is_judged_by_its_whole_interval(busbw: float, answer: str, code: Exit) -> None:
    (held,) = judged(taking(busbw))
    assert (held.answer, limits.find_limits_exit([held])) == (answer, code)
    assert held.busbw == pytest.approx(busbw, rel=0.01)
    assert held.lo and held.hi and held.lo < held.busbw < held.hi


def test_a_line_has_row_limit_and_what_was_reached_with_its_interval() -> None:
    (held,) = judged(taking(9.0))
    words = limits.describe_held(held)
    assert "all_reduce 64 MiB on 4 ranks, gloo" in words
    assert "10 wanted" in words
    assert "9.0" in words and " to " in words
    assert "in this launch]" in words
    assert "in this launch" not in limits.describe_held(msgspec.structs.replace(held, launches=3))


@pytest.mark.parametrize(
    ("rates", "answer"),
    [
        ((9.4, 9.6, 9.8), "not shown"),  # all three are below, as one of eight such threes would be
        ((9.5, 9.6, 9.7), "short"),
        ((11.2, 11.3, 11.4), "met"),
    ],
)
def test_three_launches_decide_plain_cases_only(rates: Sequence[float], answer: str) -> None:
    records = [
        msgspec.structs.replace(taking(rate, spread=1e-5), world=world)
        for world, rate in enumerate(rates)
    ]
    suite = run(*records).run.suite
    worlds = [factories.world(index=index) for index in range(3)]
    file = factories.make_file(records, worlds, suite=suite)
    (held,) = limits.judge_limits(file, min_launches=3)
    assert (held.answer, held.launches) == (answer, 3)
    assert ("--launches 6" in limits.describe_held(held)) == (answer == "not shown")


def test_without_a_size_the_largest_of_each_table_counts() -> None:
    found = judged(taking(1.0, 1 << 20), taking(11.0), taking(9.0, 1 << 20, backend="shm"))
    assert [(held.answer, "1 MiB" in held.row) for held in found] == [
        ("met", False),
        ("short", True),
    ]


def test_an_average_of_nothing_is_no_pass() -> None:
    barrier = Case(collective="barrier", backend="gloo", n=4, nbytes=0)
    empty = Record(case=barrier, status="ok", times_ns=[1000] * 40, world=0, stop="converged")
    for wanted in (Limit(10.0, average=True), WANTED):
        found = judged(empty, wanted=wanted)
        assert limits.find_limits_exit(found) == Exit.NO_VERDICT
        assert limits.describe_held(found[0])


def test_with_a_size_only_its_rows_count() -> None:
    wanted = Limit(10.0, 1 << 20)
    both = taking(11.0, 1 << 20), taking(12.0, 1 << 20, in_place=True), taking(1.0)
    assert answers(*both, wanted=wanted) == ["met", "met"]


def test_a_size_that_was_not_measured_is_no_pass() -> None:
    found = judged(taking(11.0), wanted=Limit(10.0, 1 << 30))
    assert [held.answer for held in found] == ["no answer"]
    assert "1 GiB" in found[0].row and "no row of this size was measured" in limits.describe_held(
        found[0]
    )
    assert limits.find_limits_exit(found) == Exit.NO_VERDICT


def test_a_limit_that_no_row_matches_is_no_pass() -> None:
    assert answers(taking(11.0), collectives=("broadcast",)) == ["no answer"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"status": "failed", "times_ns": [], "note": "rank 3 died"}, "failed: rank 3 died"),
        ({"status": "skipped", "times_ns": [], "note": "no memory"}, "skipped: no memory"),
        ({"status": "wrong", "wrong": 3}, "wrong"),
        ({"status": "predicted"}, "predicted"),
        ({"times_ns": [10_000] * 5}, "n<6"),
        ({"overhead_ns": 10_000_000}, "overhead!"),
        ({"invalid": {"late start": 100}}, "invalid!"),
    ],
)
def test_a_row_that_cannot_be_relied_on_is_no_pass(changes: Mapping[str, Any], why: str) -> None:
    (held,) = judged(msgspec.structs.replace(taking(11.0), **changes))
    assert held.answer == "no answer" and why in limits.describe_held(held)


@pytest.mark.parametrize("average", [False, True])
def test_launches_of_several_runs_are_counted_together_and_each_once(average: bool) -> None:
    one = run(taking(11.0), wanted=Limit(10.0, average=average))
    other = msgspec.structs.replace(one, run=msgspec.structs.replace(one.run, id="other"))
    for files, answer in (((one,), "no answer"), ((one, one), "no answer"), ((one, other), "met")):
        (held,) = limits.judge_limits(*files, min_launches=2)
        assert held.answer == answer
        assert (answer == "met") or "1 launch, and 2 are needed" in held.why


def planted(record: Record, **changes: Any) -> Record:
    return msgspec.structs.replace(record, injected="slow-rank:1:50%", **changes)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(("busbw", "answer"), [(9.0, "short"), (11.0, "met")])
def test_a_planted_fault_forbids_an_answer_unless_it_is_asked_for(
    average: bool, busbw: float, answer: str
) -> None:
    file = run(planted(taking(busbw)), wanted=Limit(10.0, average=average))
    (held,) = limits.judge_limits(file)
    assert held.answer == "no answer" and "injected" in held.why
    (held,) = limits.judge_limits(file, despite=("injected",))
    assert held.answer == answer


def test_of_launches_with_a_planted_fault_those_decide_that_can_be_relied_on() -> None:
    sound = [planted(taking(busbw, spread=1e-5)) for busbw in (9.5, 9.6, 9.7)]
    cut = planted(taking(30.0), stop="cut")
    records = [
        msgspec.structs.replace(record, world=world) for world, record in enumerate([*sound, cut])
    ]
    worlds = [factories.world(index=index) for index in range(4)]
    suite = run(*records).run.suite
    (held,) = limits.judge_limits(
        factories.make_file(records, worlds, suite=suite), min_launches=3, despite=("injected",)
    )
    assert (held.answer, held.launches) == ("short", 3)


def test_one_rank_has_no_busbw() -> None:
    case = factories.case(LARGE, n=1)
    (held,) = judged(msgspec.structs.replace(taking(11.0), case=case))
    assert held.answer == "no answer" and "no busbw" in held.why


def test_a_form_in_place_that_does_not_exist_is_not_missed() -> None:
    ran = taking(11.0, collective="all_to_all")
    case = msgspec.structs.replace(ran.case, in_place=True)
    absent = Record(case=case, status="skipped", note="all_to_all has no in-place form")
    assert answers(absent, ran) == ["met"]
    assert answers(absent) == ["no answer"]


def test_a_barrier_has_no_limit() -> None:
    barrier = Record(case=factories.case(0, "barrier"), status="ok", times_ns=[1000] * 9)
    assert answers(barrier, taking(11.0)) == ["met"]


def average(*rates: float, wanted: float = 10.0) -> limits.Held:
    records = [taking(rate, LARGE >> place) for place, rate in enumerate(rates)]
    (held,) = judged(*records, wanted=Limit(wanted, average=True))
    return held


def test_an_average_is_that_of_all_rows_of_a_table() -> None:
    assert average(18.0, 4.0).answer == "met"
    assert average(14.0, 4.0).answer == "short"
    assert average(16.0, 4.0).answer == "not shown"


def test_an_average_with_a_row_that_cannot_be_relied_on_is_no_pass() -> None:
    few = msgspec.structs.replace(taking(30.0), times_ns=[10_000] * 5)
    (held,) = judged(few, taking(20.0, 1 << 20), wanted=Limit(10.0, average=True))
    assert held.answer == "no answer" and "1 of 2 rows" in held.why


def test_short_rows_weigh_more_than_rows_without_an_answer() -> None:
    found = judged(taking(9.0), wanted=WANTED) + judged(wanted=WANTED)
    assert limits.find_limits_exit(found) == Exit.BAD


@pytest.mark.parametrize(
    ("text", "limit"),
    [("400", Limit(400.0)), ("0.5@1M", Limit(0.5, 1 << 20)), (" 9 @8", Limit(9.0, 8))],
)
def test_how_a_limit_is_written(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "1G@400G@", "nan", "inf", "4@", "@1M", "4GB", "1e3"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(UsageError, match="--min-busbw"):
        parse_limit(text)


def test_a_case_has_limits_of_every_threshold_that_matches() -> None:
    suite = msgspec.structs.replace(
        factories.SUITE,
        thresholds=(
            Threshold(min_busbw=(Limit(10.0), Limit(8.0, LARGE))),
            Threshold(match=Part(dtypes=("half",)), min_busbw=(WANTED,)),
            Threshold(tau=0.2),
        ),
    )
    held = limits.judge_limits(factories.make_file([taking(9.0)], suite=suite))
    assert [one.answer for one in held] == ["short", "met", "no answer"]
    assert isinstance(taking(9.0).case, Case)
