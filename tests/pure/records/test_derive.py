"""Runs written and read back; names that find them; columns derived from raw values, flags among
them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import factories
import msgspec
import pytest
from factories import world

import collbench
from collbench.core.errors import UsageError
from collbench.machine.load import Load
from collbench.records import derive, flags, run_file, store
from collbench.records.case_rows import CaseRows
from collbench.records.flags import FLAGS
from collbench.records.types import End, GpuState, RankInfo, Record, Run
from collbench.show.flags import explain_doubts, explain_flag
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

CASE = Case(collective="all_reduce", backend="gloo", n=4, nbytes=1 << 20, op="sum")
SUITE = Suite(
    name="all_reduce", axes=Axes(collectives=("all_reduce",), sizes=(1 << 20,), ranks=(4,))
)


def run(name: str = "20260101-000000-x", **fields: object) -> Run:
    return factories.run(name, **{"started": "", "environment": {}, **fields})


def measured(times: list[int], **fields: object) -> Record:
    return Record(case=CASE, status="ok", world=0, times_ns=times, **fields)  # type: ignore[arg-type]


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    lines = [
        world(),
        measured([100, 200], per_rank=[[1, 2]] * 4, invalid={"late start": 1}),
        End(exit=0, ended="now"),
    ]
    writer = run_file.Writer(tmp_path / "a.jsonl", run())
    for line in lines:
        writer.write(line)
    writer.close()
    found = run_file.read_file(tmp_path / "a.jsonl")
    assert [found.worlds[0], found.records[0], found.end] == lines
    kinds = [json.loads(line)["line"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert kinds == ["run", "world", "record", "end"]


class Listed(list[RankInfo]):
    """A world's ranks, which counts how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[RankInfo]:
        self.passes += 1
        return super().__iter__()


def test_ranks_of_a_large_world_are_not_gone_through_for_every_record() -> None:
    ranks = Listed(world().ranks)
    shared = msgspec.structs.replace(world(), ranks=ranks)
    found = derive.derive_row(measured([100, 200] * 20), shared)
    assert found is not None and found.wirebw is None and ranks.passes == 0
    launches = [SimpleNamespace(ran=True, world=shared)] * 9
    assert not CaseRows(CASE, launches, {}, {}).on_gpu and ranks.passes == 1  # type: ignore[arg-type]


def test_a_run_cut_short_loses_only_its_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    writer = run_file.Writer(path, run())
    writer.write(measured([1] * 10))
    writer.write(measured([2] * 10))
    path.write_bytes(path.read_bytes()[:-20])
    found = run_file.read_file(path)
    assert [r.times_ns[0] for r in found.records] == [1]
    assert found.end is None


def test_unknown_fields_are_refused_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_file.Writer(path, run())
    with path.open("a") as f:
        f.write('{"line":"end","exit":0,"ended":"","mood":"fine"}\n')
    with pytest.raises(UsageError, match=r"a\.jsonl, line 2: .*mood"):
        run_file.read_file(path)


ROWS = [[1, 2]] * 4


@pytest.mark.parametrize(
    ("fields", "case", "words"),
    [
        ({}, {"collective": "nonesuch"}, "reduction 'nonesuch'"),
        ({}, {"dtype": "int3\x1b[31m"}, r"'int3\\x1b\[31m'"),
        ({}, {"op": "xor"}, "'xor' - at"),
        ({}, {"n": 0}, "case.n"),
        ({}, {"n": 1 << 21}, "case.n"),
        ({}, {"nbytes": -8}, "case.nbytes"),
        ({}, {"nbytes": 10**40}, "case.nbytes"),
        ({}, {"align": 0}, "case.align"),
        ({"inner": 0}, {}, "inner"),
        ({"overhead_ns": 10**400}, {}, ""),
        ({"times_ns": [1, -1]}, {}, "times_ns"),
        ({"invalid": {"late": -2}}, {}, "invalid"),
        ({"per_rank": ROWS[:2]}, {}, "not of all 4 ranks"),
        ({"per_rank": ROWS, "starts_ns": [[1]] * 4}, {}, "not as many of each"),
        ({"per_rank": [[1], [1, 2], [1], [1]]}, {}, "not as many of each"),
        ({"told": {"time": 1e308}}, {}, "told.time"),
        ({"told": {"time": -1.0}}, {}, "told.time"),
        ({"first_wrong": {"deep": 1}}, {}, "first_wrong"),
    ],
)
def test_a_run_of_another_hand_is_refused_with_file_and_line(
    tmp_path: Path, fields: dict[str, object], case: dict[str, object], words: str
) -> None:
    path = tmp_path / "a.jsonl"
    line = {"line": "record", "status": "ok", "times_ns": [1, 2], **fields}
    line["case"] = {**msgspec.to_builtins(CASE), **case}
    path.write_text(f"{msgspec.json.encode(run()).decode()}\n{json.dumps(line)}\n")
    for read in (run_file.read_file, run_file.read_digest):
        with pytest.raises(UsageError, match=f"a.jsonl, line 2: .*{words}"):
            read(path)


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = msgspec.json.encode(run()).decode()
    path.write_text(
        first.replace('"environment":{}', '"environment":{"a":' + "[" * 9999 + "]" * 9999 + "}")
        + "\n"
    )
    for read in (run_file.read_file, run_file.read_run):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            read(path)


def test_names_find_runs(home: Path) -> None:
    for name, tag in (("20260101-a", ""), ("20260102-b", "nightly"), ("20260103-c", "")):
        run_file.Writer(home / "runs" / f"{name}.jsonl", run(name, tag=tag)).close()
    assert store.find_run("@last").stem == "20260103-c"
    assert store.find_run("@last~2").stem == "20260101-a"
    assert store.find_run("nightly").stem == "20260102-b"
    assert store.find_run("20260102").stem == "20260102-b"
    assert store.find_run(str(home / "runs" / "20260101-a.jsonl")).stem == "20260101-a"
    for name in ("@last~3", "weekly"):
        with pytest.raises(UsageError):
            store.find_run(name)
    (home / "runs" / "20260104-d.jsonl").write_text('{"line":"run","of":"another version"}\n')
    assert (
        store.find_run("nightly").stem == "20260102-b"
    )  # what cannot be read does not hide what can
    with pytest.raises(UsageError, match="unknown field"):
        run_file.read_run(store.find_run("@last"))


def test_columns() -> None:
    row = derive.derive_row(
        measured([1000, 1100, 1200, 1050, 1150, 1075, 1125, 1090] * 10, inner=10), world()
    )
    assert row is not None
    assert row.times.samples == 80
    assert row.times.lo <= row.times.median <= row.times.hi
    assert row.times.median == pytest.approx(109.5)
    assert row.algbw == pytest.approx((1 << 20) / row.times.median)
    assert row.busbw == pytest.approx(row.algbw * 1.5)
    assert row.times.p95 is not None and row.times.p99 is None
    assert row.flags == ()
    assert row.gateable


def test_one_rank_and_a_barrier_have_no_bus_bandwidth() -> None:
    alone = Record(
        case=Case(collective="all_reduce", backend="gloo", n=1, nbytes=8, op="sum"),
        status="ok",
        times_ns=[1] * 9,
    )
    barrier = Record(
        case=Case(collective="barrier", backend="gloo", n=4, nbytes=0),
        status="ok",
        times_ns=[1] * 9,
    )
    for record in (alone, barrier):
        row = derive.derive_row(record)
        assert row is not None and row.busbw is None


def test_nothing_is_derived_of_what_was_not_measured() -> None:
    assert derive.derive_row(Record(case=CASE, status="skipped", note="why")) is None
    assert derive.derive_row(Record(case=CASE, status="wrong", wrong=3)) is None


def held_back(*reasons: str) -> list[GpuState]:
    return [GpuState(index=0, name="x", throttle=reasons)]


STEADY = [10_000 + 10 * (i % 7) for i in range(100)]
BUSY, QUIET = {"h": Load(1.0, 2)}, {"h": Load(0.1, 2)}
LATE = [[10_000] * 100, [5_000] * 100, *[[10_000] * 100] * 2]


@pytest.mark.parametrize(
    ("fields", "flag", "gateable"),
    [
        ({"skew_ns": [600] * 100}, "skewed", True),
        ({"skew_ns": [3000] * 100}, "skewed!", False),
        ({"overhead_ns": 600}, "overhead", True),
        ({"overhead_ns": 3000}, "overhead!", False),
        ({"invalid": {"late start": 10}}, "invalid", True),
        ({"invalid": {"late start": 50}}, "invalid!", False),
        ({"steady": False, "times": [9_000] * 3 + [11_000] * 3}, "unsteady", True),
        ({"preempted": 6, "load": BUSY}, "preempted", True),
        ({"stop": "budget"}, "unconverged", True),
        ({"stop": "cut"}, "cut-short", False),
        ({"cache": "shrunk"}, "few-buffers", True),
        ({"copies_first": True}, "+copy", True),
        ({"times": [t * (1 + (i % 10 < 3)) for i, t in enumerate(STEADY)]}, "bimodal", True),
        ({"times": STEADY[:4]}, "n<6", False),
        ({"per_rank": LATE}, "late:1", True),
        ({"gpus": held_back("sw_power_cap", "hw_slowdown")}, "throttled", True),
    ],
)
def test_flags(fields: dict[str, object], flag: str, gateable: bool) -> None:
    row = derive.derive_row(measured(**{"times": STEADY, **fields}), world())  # type: ignore[arg-type]
    assert row is not None
    assert row.flags == (flag,)
    assert row.gateable is gateable


@pytest.mark.parametrize(
    ("mode", "waited", "flags"),
    [
        ("streaming", 0.04, ("launch-bound",)),
        ("streaming", 0.06, ()),
        ("streaming", None, ()),  # on CPUs, or by an older version
        ("host", 0.0, ()),
    ],
)
def test_a_stream_for_which_no_host_waited_is_the_hosts_time(
    mode: str, waited: float | None, flags: tuple[str, ...]
) -> None:
    record = measured(STEADY, waited=waited)
    record = msgspec.structs.replace(record, case=msgspec.structs.replace(CASE, mode=mode))
    row = derive.derive_row(record, world())
    assert row is not None and row.flags == flags


@pytest.mark.parametrize(
    ("backend", "path", "flags"),
    [
        ("jax", 0.06, ("dispatch",)),
        ("mlx", 0.06, ("dispatch",)),
        ("jax", 0.04, ()),
        ("jax", None, ()),  # of an older version
        ("mpi", 0.5, ()),  # says nothing of what calls pay
        ("nobodys", 0.5, ()),
    ],
)
def test_a_call_that_is_mostly_the_way_into_a_library_is_flagged(
    backend: str, path: float | None, flags: tuple[str, ...]
) -> None:
    nanoseconds = None if path is None else round(path * STEADY[0])
    record = measured(STEADY, call_path_ns=nanoseconds)
    record = msgspec.structs.replace(record, case=msgspec.structs.replace(CASE, backend=backend))
    row = derive.derive_row(record, world())
    assert row is not None and row.flags == flags
    assert row.gateable


def test_the_flag_of_dispatch_names_what_is_paid() -> None:
    record = measured(STEADY, call_path_ns=STEADY[0])
    record = msgspec.structs.replace(record, case=msgspec.structs.replace(CASE, backend="jax"))
    outcomes = [(record, derive.derive_row(record, world()))]
    (line,) = explain_doubts(outcomes, Policy(), [False], again="measure anew")
    assert "dispatch (1): " in line and "dispatch of a compiled program (jax)" in line


ASIDE = {
    "a broadcast": ({"case": factories.case(collective="broadcast")}, {}),
    "arrivals on purpose": ({"case": msgspec.structs.replace(CASE, arrival="one-late:50us")}, {}),
    "few samples": ({"times_ns": STEADY[:19], "per_rank": [row[:19] for row in LATE]}, {}),
    "cores that ranks share": ({}, {"oversubscribed": True}),
}


@pytest.mark.parametrize(("fields", "about"), [({}, {}), *ASIDE.values()], ids=["none", *ASIDE])
def test_records_that_name_nobody_are_known_by_what_they_are(
    fields: dict[str, object], about: dict[str, object]
) -> None:
    record = msgspec.structs.replace(measured(STEADY, per_rank=LATE), **fields)
    row = derive.derive_row(record, world(**about))
    assert row is not None
    names = derive.names_ranks(record, world(**about), (0.0, 5_000.0))
    assert (names, row.late_rank) == ((False, None) if fields or about else (True, 1))


TWO = [t * (1 + 0.06 * (i % 10 < 4)) for i, t in enumerate(STEADY)]


@pytest.mark.parametrize(
    "fields",
    [
        {"steady": False},  # warm-up's noise, of which nothing is left
        {"preempted": 500, "load": QUIET},  # by the library's own threads
        {"preempted": 500},  # by whom, an older version did not look
        {"preempted": 5, "load": BUSY},  # of a hundred samples
        {"gpus": held_back("sw_power_cap")},  # for which no sample is replaced
        {"gpus": held_back("package_power_limit")},
    ],
)
def test_what_does_not_matter_is_no_flag(fields: dict[str, object]) -> None:
    row = derive.derive_row(measured(STEADY, stop="converged", **fields), world())
    assert row is not None and row.flags == ()


def test_ranks_that_share_cores_preempt_each_other() -> None:
    row = derive.derive_row(measured(STEADY, preempted=500, load=BUSY), world(oversubscribed=True))
    assert row is not None and row.flags == ("oversubscribed",)


@pytest.mark.parametrize(("stop", "flags"), [("converged", ()), ("fixed", ("bimodal",))])
def test_two_modes_within_the_interval_asked_for_do_not_matter(
    stop: str, flags: tuple[str, ...]
) -> None:
    """With four samples in ten the interval reaches from one mode into the other."""
    times = [round(t) for t in TWO[:40]]
    row = derive.derive_row(measured(times, stop=stop), world())
    assert (
        row is not None
        and row.times.modes
        and row.times.lo <= row.times.modes.times[0] < row.times.modes.times[1] <= row.times.hi
    )
    assert row.flags == flags


def test_modes_come_with_their_share_and_order() -> None:
    slow = [t * 2 for t in STEADY[:30]]
    row = derive.derive_row(measured(STEADY[:70] + slow), world())
    assert row is not None
    assert (row.times.modes.share, row.times.modes.in_stretches) == (0.7, True)
    every_third = [t * (1 + (7 * i % 10 < 3)) for i, t in enumerate(STEADY)]
    mixed = derive.derive_row(measured(every_third), world())
    assert mixed is not None and mixed.times.modes
    assert (mixed.times.modes.share, mixed.times.modes.in_stretches) == (0.7, False)


def test_every_flag_is_explained_with_a_remedy() -> None:
    for flag in FLAGS:
        told = explain_flag(flag.name)
        assert told.meaning and told.remedy and "{" not in told.meaning + told.remedy


def test_no_two_flags_share_a_name_or_a_letter() -> None:
    words = [word for flag in FLAGS for word in (flag.name, flag.letter) if word]
    twice = [word for word in {*words} if words.count(word) > 1]
    assert twice == [], "a name or `letter` of two rows in records/flags.py"


def flagged(*names: str, half: float = 0.01, late_share: float = 0.0) -> derive.Derived:
    row = derive.derive_row(measured(STEADY), world())
    assert row is not None
    bounds = {"lo": (1 - half) * row.times.median, "hi": (1 + half) * row.times.median}
    return factories.replace_derived(row, flags=names, late_share=late_share, **bounds)


@pytest.mark.parametrize(
    "flag",
    [
        *("bimodal", "invalid", "invalid!", "skewed", "skewed!", "n<6", "cut-short", "wire"),
        *("oversubscribed", "overhead!", "injected", "a flag of a later version"),
    ],
)
def test_a_doubt_is_one_however_narrow_the_interval(flag: str) -> None:
    assert flags.list_doubts(flagged(flag)) == [flag] and flags.list_remarks(flagged(flag)) == []


@pytest.mark.parametrize("flag", ["+copy", "unconverged", "preempted", "predicted", "overhead"])
def test_a_remark_is_no_doubt_however_wide_the_interval(flag: str) -> None:
    row = flagged(flag, half=0.4)
    assert flags.list_doubts(row) == [] and flags.list_remarks(row) == [flag]


def test_unsteady_and_late_are_doubts_from_a_size_on() -> None:
    assert flags.list_doubts(flagged("unsteady", half=0.05)) == []
    assert flags.list_doubts(flagged("unsteady", half=0.15)) == ["unsteady"]
    assert flags.list_doubts(flagged("late:1", late_share=0.1)) == []
    assert flags.list_doubts(flagged("late:1", late_share=0.3)) == ["late:1"]


def test_how_late_a_rank_came_is_a_share_of_the_time() -> None:
    row = derive.derive_row(measured(STEADY, per_rank=LATE), world())
    assert row is not None and row.late_rank == 1
    assert row.late_share == pytest.approx(row.lateness[1] / row.times.median)


@pytest.mark.parametrize(
    ("names", "half", "without"),
    [
        ((), 0.01, False),
        ((), math.inf, False),
        (("imported",), 0.01, False),
        (("imported",), math.inf, True),
        (("predicted",), math.inf, True),
    ],
)
def test_only_what_has_no_samples_has_no_interval(
    names: tuple[str, ...], half: float, without: bool
) -> None:
    assert flags.is_without_interval(flagged(*names, half=half)) is without


def test_oversubscribed_rows_never_gate_and_name_nobody() -> None:
    late = measured(STEADY, per_rank=LATE)
    row = derive.derive_row(late, world(oversubscribed=True))
    assert row is not None
    assert row.flags == ("oversubscribed",) and not row.gateable and row.late_rank is None


def test_the_frame_has_a_line_per_case_and_launch(tmp_path: Path) -> None:
    writer = run_file.Writer(tmp_path / "a.jsonl", run())
    writer.write(world())
    writer.write(measured(STEADY))
    writer.write(Record(case=CASE, status="skipped", note="why"))
    table = collbench.frame(tmp_path / "a.jsonl")
    assert table["status"].tolist() == ["ok", "skipped"]
    assert table["median"][0] == pytest.approx(10_030)
    assert math.isnan(table["median"][1])
    assert {"run", "collective", "implementation", "busbw", "flags", "note"} <= set(table.columns)


@pytest.mark.parametrize("mode", ["isolated", "host"])
@pytest.mark.parametrize(
    ("control", "sensitive"),
    [
        ([3000] * 20, True),
        ([350] * 20, True),  # whichever is the longer
        ([1200] * 20, False),  # 20 % apart
        ([1000, 9000] * 10, False),  # whose interval reaches the other median
        ([3000] * 4, False),  # too few for one
        ([], False),
    ],
)
def test_what_depends_on_arrival_shows_both_medians(
    mode: str, control: list[int], sensitive: bool
) -> None:
    case = msgspec.structs.replace(CASE, mode=mode)
    record = msgspec.structs.replace(
        measured([990, 1000, 1010] * 10, control_ns=control, sync="window"), case=case
    )
    row = derive.derive_row(record)
    assert row is not None and row.sensitive is sensitive
    assert (row.control is None) is (not control)
    # only what no program sees decides nothing
    flagged = sensitive and mode == "isolated"
    assert ("arrival-sensitive" in row.flags, row.gateable) == (flagged, not flagged)


def test_a_streams_control_is_of_calls_of_its_own_and_says_nothing_of_arrival() -> None:
    case = msgspec.structs.replace(CASE, mode="streaming")
    record = measured([20_000] * 30, inner=20, control_ns=[3000] * 20, control_inner=10)
    row = derive.derive_row(msgspec.structs.replace(record, case=case))
    assert row is not None and (row.times.median, row.control) == (1000, 300)
    assert not row.sensitive and "arrival-sensitive" not in row.flags


def apart(whole: list[int], together: list[int]) -> derive.Derived:
    """Ranks 50 us apart, with times from the first arrival, and of calls that start together."""
    record = Record(
        case=msgspec.structs.replace(CASE, arrival="one-late:50us"),
        status="ok",
        world=0,
        sync="window",
        times_ns=[6_000] * len(whole),
        glob_ns=whole,
        skew_ns=[50_000] * len(whole),
        control_ns=together,
    )
    row = derive.derive_row(record, world())
    assert row is not None
    return row


def test_what_ranks_spread_over_may_be_absorbed() -> None:
    """30 us of 50 cost nothing."""
    row = apart([30_000] * 8, [10_000] * 20)
    assert row.times.median == 6_000 and row.skew == 50_000
    assert row.absorbed == pytest.approx(1 - (30_000 - 10_000) / 50_000)
    assert "apart" in row.flags and "skewed!" not in row.flags and not row.gateable


@pytest.mark.parametrize(
    "together",
    [
        [90_000] * 20,  # as slow as no call that comes apart: another mode
        [5_000, 40_000] * 10,  # whose median may be either
    ],
)
def test_what_was_absorbed_is_not_known_where_the_control_does_not_say(together: list[int]) -> None:
    assert apart([30_000] * 8, together).absorbed is None


def test_a_second_visit_takes_the_place_of_the_first_in_its_world(tmp_path: Path) -> None:
    first, other = measured([100] * 8), measured([100] * 8)
    other = msgspec.structs.replace(other, world=1)
    second = msgspec.structs.replace(measured([100] * 16), again=True)
    writer = run_file.Writer(tmp_path / "a.jsonl", run())
    for line in (world(), world(1), first, other, second):
        writer.write(line)
    writer.close()
    assert run_file.read_file(writer.path).records == [other, second]
    assert [len(each.times_ns) for each in run_file.read_digest(writer.path).records] == [8, 16]


@pytest.mark.parametrize(
    ("status", "blocking", "flagged"),
    [("ok", 0, False), ("ok", 1, True), ("ok", 2, False), ("predicted", 1, False)],
)
def test_a_wait_for_all_ranks_within_the_time_is_a_remark(
    status: str, blocking: int, flagged: bool
) -> None:
    suite = msgspec.structs.replace(SUITE, policy=Policy(blocking=blocking))
    record = msgspec.structs.replace(measured([1000] * 40), status=status)
    row = derive.derive_in_run(record, world(), suite)
    assert row and ("blocking" in row.flags) == flagged
