"""What two things at once make of each other, from made-up rounds."""

from __future__ import annotations

import pytest
from factories import case, make_file, world
from msgspec.structs import replace

from collbench.core.errors import Exit
from collbench.features.overlap import command, judgement
from collbench.features.overlap import view as views
from collbench.features.overlap.judgement import Overlapped, judge_overlaps
from collbench.features.predict import fit
from collbench.records.points import comparison_key
from collbench.records.types import Background, Record
from collbench.show.views import series

WOBBLE = (0.99, 1.01, 1.0, 0.995, 1.005, 1.002, 0.998, 1.003)
ALONE, OWN = 1_000_000, 400_000  # ns of the collective, and of what is in its background


def rows(slower: float, other: float, rounds: int = 8, **fields: object) -> list[Record]:
    found = []
    for cycle, wobble in enumerate(WOBBLE[:rounds]):
        alone = case(cycle=cycle)
        took = round(ALONE * wobble)
        found.append(Record(case=alone, status="ok", times_ns=[took] * 9))
        found.append(
            Record(
                case=replace(alone, background="copy"),
                status="ok",
                times_ns=[round(took * slower * (1 + 0.001 * (cycle % 3)))] * 9,
                background=Background(
                    alone_ns=[OWN] * 5, during_ns=[round(OWN * other * wobble)] * 5
                ),
            )
        )
    return found


def judged(*records: Record) -> list[Overlapped]:
    return judge_overlaps(make_file([*records], [world()]))


@pytest.mark.parametrize(
    ("slower", "other", "verdict"),
    [
        (1.0, 1.0, "hides"),
        (1.5, 1.0, "shares"),
        (1.5, 1.5, "shares"),
        (2.0, 2.0, "no verdict"),
        (2.5, 2.5, "hinders"),
        (1.2, 9.0, "hinders"),
    ],
)
def test_more_or_less_gets_done_than_one_after_the_other(
    slower: float, other: float, verdict: str
) -> None:
    (one,) = judged(*rows(slower, other))
    assert one.verdict == verdict
    assert one.slower.lo <= slower * 1.002 and slower <= one.slower.hi
    assert one.other.lo <= other <= one.other.hi
    assert one.both.estimate == pytest.approx(1 / slower + 1 / other, rel=0.01)


def test_a_run_without_backgrounds_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "select_counting", lambda file: pytest.fail("looked through"))
    assert judge_overlaps(make_file([r for r in rows(1.0, 1.0) if not r.background])) == []


def test_too_few_rounds_bound_nothing_and_decide_nothing() -> None:
    (one,) = judged(*rows(3.0, 3.0, rounds=5))
    assert (one.rounds, one.verdict) == (5, "no verdict")
    assert "[" not in " ".join(views._format_cells(one))


@pytest.mark.parametrize(("rounds", "code"), [(5, Exit.NO_VERDICT), (8, Exit.OK)])
def test_a_run_without_any_verdict_exits_3(rounds: int, code: Exit) -> None:
    file = make_file(rows(3.0, 3.0, rounds=rounds), [world()])
    assert command._show_run(file, "csv") == code


def test_a_background_that_was_skipped_is_no_verdict_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    skipped = [
        replace(row, status="skipped", times_ns=[], background=None, note="gloo has no scan")
        if row.case.background
        else row
        for row in rows(1.0, 1.0)
    ]
    assert command._show_run(make_file(skipped, [world()]), "csv") == Exit.NO_VERDICT
    assert "in the background: gloo has no scan" in capsys.readouterr().err


def test_one_verdict_is_enough() -> None:
    undecided = rows(2.0, 2.0)
    decided = [
        replace(r, case=replace(r.case, background="sleep")) for r in rows(1.0, 1.0) if r.background
    ]
    file = make_file([*undecided, *decided], [world()])
    assert {row.verdict for row in judge_overlaps(file)} == {"no verdict", "hides"}
    assert command._show_run(file, "csv") == Exit.OK


def test_a_round_without_the_collective_alone_is_left_out() -> None:
    records = rows(1.5, 1.5)
    (one,) = judged(*records[1:])
    assert one.rounds == len(WOBBLE) - 1


def test_what_never_ended_during_the_calls_tells_nothing() -> None:
    records = [
        replace(r, background=Background(alone_ns=[OWN] * 5, during_ns=[])) if r.background else r
        for r in rows(1.5, 1.5)
    ]
    assert judged(*records) == []


def test_what_gets_done_between_calls_is_no_part_of_what_gets_done_beside_them() -> None:
    """The two take turns, so that nothing is gained; half of the time no call was under way."""
    records = [
        replace(r, background=Background(alone_ns=[OWN] * 3, during_ns=[OWN * 4 // 3] * 3))
        if r.background
        else r
        for r in rows(2.0, 1.0)
    ]
    (as_before,) = judged(*records)
    assert as_before.verdict == "shares"
    records = [
        replace(r, background=replace(r.background, went_ns=2 * sum(r.times_ns)))
        if r.background
        else r
        for r in records
    ]
    (one,) = judged(*records)
    assert one.other.estimate == pytest.approx(2, rel=0.01)
    assert one.both.estimate == pytest.approx(1, rel=0.01) and one.verdict != "shares"
    still = [
        replace(r, background=replace(r.background, during_ns=[9 * OWN])) if r.background else r
        for r in records
    ]
    assert judged(*still)[0].verdict == "hinders"


def test_each_launch_is_a_round() -> None:
    once = rows(1.5, 1.5)
    launches = [replace(record, world=launch) for launch in (0, 1) for record in once]
    (one,) = judge_overlaps(make_file(launches, [world(index=launch) for launch in (0, 1)]))
    assert one.rounds == 2 * len(WOBBLE)


def test_more_rows_widen_intervals_so_that_all_hold_together() -> None:
    records = rows(1.5, 1.0)
    others = [
        replace(r, case=replace(r.case, background=name))
        for name in ("gemm", "sleep")
        for r in records
        if r.background
    ]
    (alone,), (first, *_) = judged(*records), judged(*records, *others)
    assert first.slower.hi - first.slower.lo > alone.slower.hi - alone.slower.lo


def test_rows_with_a_background_are_set_against_none_without() -> None:
    points = series.make_view([make_file(rows(1.5, 1.25, rounds=1), [world()])]).points
    assert len({comparison_key(point) for point in points}) == 2


def test_links_are_fitted_to_what_ran_alone() -> None:
    sizes = [1 << power for power in range(10, 24, 2)]
    alone = [case(size, "sendrecv") for size in sizes]
    every = [replace(one, background=name) for name in ("", "gemm") for one in alone]
    records = [
        Record(
            case=one, status="ok", times_ns=[10_000 + one.nbytes * (2 if one.background else 1)] * 9
        )
        for one in every
    ]
    (link,) = fit.fit_links(fit.make_series(make_file(records, [world()])))
    assert link.beta is not None
    assert link.beta.value == pytest.approx(1.0, rel=0.01)


def test_the_table_says_what_each_makes_of_the_other() -> None:
    file = make_file(rows(1.5, 1.25), [world()])
    document = views.make_document(file, judge_overlaps(file))
    (row,) = document.rows
    assert row["background"] == "copy"
    assert (row["slower"], row["background_slower"]) == (
        pytest.approx(1.5, rel=0.01),
        pytest.approx(1.25, rel=0.01),
    )
    assert row["verdict"] == "shares"


def test_nothing_is_judged_of_a_fake_gpu() -> None:
    records = [replace(one, world=0) for one in rows(1.5, 1.5)]
    assert judge_overlaps(make_file(records, [world()]))
    assert judge_overlaps(make_file(records, [world(fake=True)])) == []


def test_intervals_hold_by_column() -> None:
    """A row has three, each at the level that makes its column's hold together."""
    assert "intervals of a column hold" in views.LEGEND
