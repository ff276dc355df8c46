"""What a report and a terminal say of a case is of all its launches, and of like cases alone."""

from __future__ import annotations

from typing import Any

import factories
import msgspec
import pytest
from factories import case, make_file, record, world

from collbench.records import points
from collbench.records.derive import derive_row
from collbench.records.types import Record, RunFile, ToolTime
from collbench.run.reporter import Gathered
from collbench.show import figures
from collbench.show.views import best, extremes, gauges, measured, series, summary
from collbench.show.views import run as report
from collbench.suite.case import Case

KIB = 1 << 10
LATE = "one-late:500us"


def timed(what: Case, median: float = 1e6, **fields: Any) -> Record:
    """Forty samples close to the median, in ns."""
    times = [round(median * (1 + 0.0004 * (i % 7 - 3))) for i in range(40)]
    return record(what, **{"times_ns": times, "world": 0, **fields})


def launched(*medians: float, what: Case | None = None, **fields: Any) -> RunFile:
    """A run of a launch for each of the medians."""
    records = [
        timed(msgspec.structs.replace(what or case(KIB), cycle=i), m, world=i, **fields)
        for i, m in enumerate(medians)
    ]
    hosts = factories.ranks(["h"] * 4)
    return make_file(records, [world(i, ranks=hosts) for i in range(len(medians))])


def closing_lines(file: RunFile) -> list[str]:
    """The sentences on extremes at the end of a run on a terminal."""
    gathered = Gathered()
    gathered.begin(file.run, [each.case for each in file.records], [])
    for each in file.worlds:
        gathered.world(each)
    for each in file.records:
        gathered.record(each, derive_row(each, file.worlds[each.world]))
    gathered.end(factories.ENDED, None)
    return [str(line) for line in extremes.describe_best(gathered, gathered.outcomes)]


def cells_of(file: RunFile, where: str, name: str) -> list[tuple[str, ...]]:
    """The cells of a table of the file's report."""
    document = report.make_document([file])
    (found,) = (part for part in document.sections if part.name == where)
    (table,) = (table for table in found.tables if table.name == name)
    return [tuple(map(str, line.cells)) for line in table.lines]


def test_a_terminal_has_the_median_over_launches_as_a_report_has() -> None:
    file = launched(*(1e6 + 4e4 * step for step in range(5)))
    (line,) = closing_lines(file)
    assert line.startswith("all_reduce, isolated: 1.08 ms ±7.")
    assert cells_of(file, "summary", "answers")[0][1] == "1.08 ms"


class CountedRun(int):
    """The number of a run, which counts how often it is looked up."""

    looked = 0

    def __hash__(self) -> int:
        CountedRun.looked += 1
        return int.__hash__(self)


def test_a_series_is_named_without_looking_through_all_others() -> None:
    (point,) = series.make_view([make_file([timed(case(KIB))], [world()])]).points
    many = [
        msgspec.structs.replace(point, run=CountedRun(0), case=case(KIB, n=n))
        for n in range(2, 102)
    ]
    CountedRun.looked = 0
    made = series._make_series(many, ["one"])
    assert len({one.name for one in made}) == len(many)
    assert CountedRun.looked < 10 * len(many)


def test_a_report_ranks_implementations_once_and_formats_what_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [case(8 << i, algorithm=name) for i in range(6) for name in ("native", "ring")]
    ranked, rank = [], points._rank_group
    monkeypatch.setattr(points, "_rank_group", lambda group: [ranked.append(group), rank(group)][1])
    formatted, format_optional = [], measured.format_optional
    monkeypatch.setattr(
        measured, "format_optional", lambda *row: [formatted.append(row), format_optional(*row)][1]
    )
    monkeypatch.setattr(series, "MOST", 3)
    document = report.make_document([make_file([timed(each) for each in cases], [world()])])
    assert {"best", "bandwidth"} <= {section.name for section in document.sections}
    assert (len(ranked), len(formatted)) == (6, 3)


def test_an_invalid_launch_does_not_hide_the_others() -> None:
    file = launched(1e6, 1.01e6, 1.02e6)
    file.records[0] = timed(case(KIB), 5e5, invalid={"late start": 30})
    (line,) = closing_lines(file)
    assert line.startswith("all_reduce, isolated: 1.01 ms ±")
    assert cells_of(file, "summary", "answers")[0][1].startswith("1.01 ms")


@pytest.mark.parametrize("sizes", [(8,), (8, KIB)])
def test_ranks_that_come_apart_are_no_floor_and_no_peak(sizes: tuple[int, ...]) -> None:
    records = [timed(case(size), 1e5) for size in sizes]
    records += [timed(case(size, arrival=LATE), 1e3) for size in sizes]
    file = make_file(records, [world()])
    floor, peak, *_ = cells_of(file, "summary", "answers")
    (line,) = closing_lines(file)
    assert floor[1] == "100 µs" and "one-late" not in floor[2] + peak[2]
    assert "100 µs" in line and "one-late" not in line


def test_ranks_that_all_come_apart_have_a_floor_and_a_peak() -> None:
    file = make_file([timed(case(8, arrival=LATE), 1e3)], [world()])
    assert cells_of(file, "summary", "answers")[0][1] == "1.00 µs"


def test_ranks_that_come_apart_have_no_efficiency() -> None:
    records = [
        timed(case(size, name), 1e4 + size)
        for size in (8, KIB)
        for name in ("sendrecv", "all_reduce")
    ]
    apart = [
        timed(case(size, name, arrival=LATE), 1e2 + size)
        for size in (8, KIB)
        for name in ("sendrecv", "all_reduce")
    ]
    rows = cells_of(make_file([*records, *apart], [world()]), "efficiency", "merits")
    assert len(rows) == 2


def test_each_library_is_judged_in_all_its_cases() -> None:
    records = []
    for size, gloo, mpi in ((8, 1, 2), (64, 1, 2), (512, 3, 2), (KIB, 3, 2)):
        for label, times in (("gloo", gloo), ("mpi", mpi)):
            records.append(timed(case(size, backend=label), 1e4 * times))
        records.append(timed(case(size, algorithm="ring"), 9e4))
    found = best.make_section(series.make_view([make_file(records, [world()])]))
    assert found and found.sentences[:2] == [
        "gloo is the fastest in 2 of 4 cases, slower than another in 2 (at most 1.5x, all_reduce of"
        " 512 B).",
        "mpi is the fastest in 2 of 4 cases, slower than another in 2 (at most 2x, all_reduce of"
        " 8 B).",
    ]


def test_what_ties_with_the_best_is_tied() -> None:
    records = [timed(case(8, backend=name), 1e4) for name in ("gloo", "mpi")]
    records.append(timed(case(8, algorithm="ring"), 9e4))
    found = best.make_section(series.make_view([make_file(records, [world()])]))
    assert found and found.sentences[:2] == [
        f"{name} is the fastest in 0 of 1 case, tied in 1." for name in ("gloo", "mpi")
    ]


def test_outliers_and_tails_are_of_all_launches() -> None:
    file = launched(1e6, 1e6)
    file.records[1].times_ns[5] = 9_000_000
    view = series.make_view([file])
    found = measured.make_outliers(view)
    assert found is not None
    ((*_, outliers, samples, _, ratio),) = (line.cells for line in found.tables[0].lines)
    assert (outliers, samples, ratio) == ("1", "80", "9.0")
    assert found.figures[0].caption.endswith("Of several launches, the first is drawn.")
    assert any("max 9.00 ms" in line for line in figures.hover_lines(view.points[0]))


def test_two_modes_of_a_later_launch_are_told() -> None:
    file = launched(1e6, 1e6)
    file.records[1].times_ns[:] = [(1000 if i < 70 else 4000) * (1000 + i % 7) for i in range(100)]
    (line,) = summary.describe_modes(series.make_view([file]))
    assert line.startswith("1 KiB all_reduce: two speeds: 1.00 ms")


def test_as_called_and_aligned_are_both_of_all_launches() -> None:
    file = launched(1e6, 1.2e6, 1.4e6)
    for each, control in zip(file.records, (8, 4, 4), strict=True):
        each.control_ns[:] = [control * 10**6] * 20
    ((_, _, _, called, aligned, factor, _),) = cells_of(file, "arrival", "cadence")
    assert (called, aligned, factor) == ("4.00 ms", "1.20 ms", "3.3x")


def test_a_case_sensitive_in_few_launches_is_not_in_the_table() -> None:
    file = launched(1e6, 1e6, 1e6)
    file.records[0].control_ns[:] = [8_000_000] * 20
    assert "arrival" not in [part.name for part in report.make_document([file]).sections]


def lateness(median: int) -> dict[str, Any]:
    """Rank 1 of 4 comes late by almost half the time."""
    starts = [
        [i % 3 + (median * 2 // 5 if rank == 1 else 0) for i in range(60)] for rank in range(4)
    ]
    durations = [[median - start for start in by_rank] for by_rank in starts]
    return {"times_ns": [median] * 60, "per_rank": durations, "starts_ns": starts}


def test_planned_lateness_is_not_among_late_ranks() -> None:
    here = world(ranks=factories.ranks(["h"] * 4))
    own = record(case(KIB), world=0, **lateness(10_000))
    apart = record(case(KIB, arrival=LATE), world=0, **lateness(90_000))
    alone, both = (
        cells_of(make_file(records, [here]), "skew", "late") for records in ([own], [own, apart])
    )
    assert alone == both and both[0][-1] == "1 of 1"


def test_late_ranks_of_the_first_launch_alone_are_said_to_be() -> None:
    file = launched(1e4, 1e4, **lateness(10_000))
    (found,) = (part for part in report.make_document([file]).sections if part.name == "skew")
    assert "in each case's first launch" in found.tables[0].note


@pytest.mark.parametrize(("broken", "doubts"), [(1, 0), (2, 1)])
def test_a_gauge_counts_the_doubts_for_which_a_case_decides_no_verdict(
    broken: int, doubts: int
) -> None:
    file = launched(1e6, 1e6, 1e6)
    for each in file.records[:broken]:
        msgspec.structs.force_setattr(each, "injected", "slow-rank:3:20%")
    (gauge,) = (g for g in gauges.list_run_gauges([file]) if g.name == "collbench_case_doubts")
    assert [value for _, value in gauge.values] == [doubts]


NOTHING = {
    "barriers of a stream": timed(case(0, "barrier", mode="streaming")),
    "one rank": timed(case(KIB, n=1, mode="streaming")),
    "an imported log of one rank": Record(
        case=case(KIB, n=1, mode="streaming"), status="ok", told=ToolTime(time=1000.5)
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_report_without_a_floor_a_peak_or_data_has_no_table_of_them(name: str) -> None:
    imported = "nccl-tests" if "log" in name else ""
    file = make_file([NOTHING[name]], [world()], imported=imported)
    found = next(p for p in report.make_document([file]).sections if p.name == "summary")
    assert not {"answers", "best-of"} & {table.name for table in found.tables}


def test_one_imported_run_among_several_does_not_speak_for_all() -> None:
    log = make_file(
        [Record(case=case(), status="ok", told=ToolTime(time=9.0))], imported="OSU", name="r1"
    )
    own = make_file([timed(case(), checked=8, wrong=0)], [world()], name="r2")
    document = report.make_document([log, own])
    assert document.verdict == (
        "2 cases measured, all results correct; 1 of them imported from OSU; fields missing in the"
        " log stay empty."
    )
    unverified = make_file([timed(case())], [world()], name="r2")
    assert "not all results were verified" in report.make_document([log, unverified]).verdict


def meeting(pair_round: int, *, index: int, size: int = KIB, **fields: Any) -> Case:
    """A pair of four ranks, in one of the three rounds of which each has two pairs."""
    rule = f"pairs {pair_round}/4"
    return case(size, "sendrecv", n=2, groups=rule, group=index, of=2, **fields)


def pair_figures(*records: Record) -> list[figures.Figure]:
    found = measured.make_pairs(series.make_view([make_file(records, [world()])]))
    return list(found.figures) if found else []


def test_a_pair_has_one_rate_of_its_largest_size_and_counts_once() -> None:
    records = [timed(meeting(0, index=0, size=size), 1e3) for size in (64, KIB)]
    (figure,) = pair_figures(*records)
    low, high = sorted(records[0].case.pair)
    assert figure.caption == "busbw of 1 pair of ranks, each at its largest size."
    assert figure.data[0]["z"] == [[None, 1.024], [1.024, None]]
    assert figure.data[0]["x"] == [f"rank {low}", f"rank {high}"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "half"}, "half"),
        ({"env": (("A", "1"),)}, "A=1"),
        ({"in_place": True}, "in place"),
        ({"arrival": LATE}, LATE),
    ],
)
def test_unlike_cases_of_pairs_have_matrices_of_their_own(
    fields: dict[str, Any], words: str
) -> None:
    rounds = [(number, index) for number in range(3) for index in range(2)]
    plain = [timed(meeting(number, index=index), 1e3) for number, index in rounds]
    other = [timed(meeting(number, index=index, **fields), 2e3) for number, index in rounds]
    first, second = pair_figures(*plain, *other)
    assert words in first.title + second.title
    rates = {figure.data[0]["z"][0][1] for figure in (first, second)}
    assert rates == {1.024, 0.512}
    assert all("6 pairs" in figure.caption for figure in (first, second))


def test_pairs_alone_are_not_pairs_at_once() -> None:
    alone = case(KIB, "sendrecv", n=2, groups="alone 0/4")
    drawn = pair_figures(timed(alone, 1e3), timed(meeting(0, index=0), 2e3))
    assert [figure.title.rpartition(", ")[2] for figure in drawn] in (
        ["alone", "pairs"],
        ["pairs", "alone"],
    )


def test_launches_of_a_pair_are_one_rate() -> None:
    file = launched(1e3, 2e3, 3e3, what=meeting(0, index=0))
    found = measured.make_pairs(series.make_view([file]))
    assert found and found.figures[0].data[0]["z"][0][1] == pytest.approx(0.512)


def test_ways_of_a_pair_are_told_apart_where_one_rank_sends() -> None:
    sent = [
        case(KIB, "broadcast", n=2, root=root, groups="pairs 0/4", group=0, of=2) for root in (0, 1)
    ]
    (figure,) = pair_figures(timed(sent[0], 1e3), timed(sent[1], 2e3))
    z = figure.data[0]["z"]
    assert {z[0][1], z[1][0]} == {1.024, 0.512} and "2 pairs" in figure.caption
