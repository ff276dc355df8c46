"""Every collective on real Gloo ranks: verified, refused with the library's reason, or caught when
it is wrong."""

from __future__ import annotations

import os

import pytest
from marks import long

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.records import run_file, stats, store
from collbench.records.derive import derive_row
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

LACKING = {
    "uint32",
    "uint64",
    "f8e4m3",
    "f8e5m2",
}  # Gloo knows no such scalar, but sends and receives their bytes
WITH_DATA = sorted(set(COLLECTIVES) - {"barrier", "scan"})


def cases(**axes: object) -> list[Case]:
    given = {"modes": ("isolated",), **axes}
    return expand_axes(Axes(**given))[0]  # type: ignore[arg-type]


SIZES = (48, 1000, 70_000)


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (2, (1000,)),
        pytest.param(3, (1000,), marks=pytest.mark.slow),
        pytest.param(1, SIZES, marks=pytest.mark.slow),
        pytest.param(2, SIZES, marks=pytest.mark.slow),
        pytest.param(4, (48,), marks=pytest.mark.slow),
        long(3, SIZES),
        long(4, SIZES),
    ],
)
def test_every_collective_is_right_for_any_number_of_ranks(
    measure, n: int, sizes: tuple[int, ...]
) -> None:
    found = measure(
        cases(collectives=tuple(COLLECTIVES), sizes=sizes, ranks=(n,), roots=(-1,)),
    )
    for record in found:
        lacking = record.case.collective == "scan" or (
            record.case.collective == "sendrecv" and n == 1
        )
        assert record.status == ("skipped" if lacking else "ok"), (record.case.key, record.note)
        assert record.note if lacking else record.times_ns
        if record.status == "ok" and record.case.size:
            assert record.wrong == 0
            assert record.checked > 0
    assert {r.case.collective for r in found if r.status == "ok"} >= set(WITH_DATA) - (
        {"sendrecv"} if n == 1 else set()
    )


OTHERS = ("reduce_scatter", "all_gather", "sendrecv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "ops_by_collectives"),
    [
        (2, {("all_reduce",): tuple(OPS), OTHERS: ("sum",)}),
        long(3, {("all_reduce", *OTHERS): tuple(OPS)}),
    ],
    ids=["most", "all"],
)
def test_every_datatype_and_reduction_is_right_or_refused_with_a_reason(
    measure, n: int, ops_by_collectives: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    axes = {"sizes": (120,), "ranks": (n,), "dtypes": tuple(DTYPES), "in_place": (False,)}
    swept = []
    for collectives, ops in ops_by_collectives.items():
        swept += cases(collectives=collectives, ops=ops, **axes)
    for record in measure(swept, iters=1):
        case = record.case
        refused = (
            (case.dtype in LACKING and case.collective != "sendrecv")
            or (case.op == "avg" and case.type.kind != "float")
            or case.op == "premul_sum"
        )
        assert record.status == ("skipped" if refused else "ok"), (case.key, record.note)
        assert not refused or "gloo" in record.note.lower()


def test_uneven_splits_arrive_whole(measure, tmp_path) -> None:
    table = tmp_path / "matrix.txt"
    table.write_text("0 64 8\n16 0 0\n400 4 4\n")
    splits = ("uniform", "spread:0.5", "spread:1", "zipf:1.2", f"matrix:{table}")
    found = measure(cases(collectives=("all_to_allv",), sizes=(3000,), ranks=(3,), splits=splits))
    assert [r.status for r in found] == ["ok"] * len(splits)
    by_splits = {r.case.splits: r.case for r in found}
    assert (
        by_splits["zipf:1.2"].moved > by_splits["uniform"].moved
    )  # the popular rank receives more


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [{}, {"agg_iters": 3}, {"unalign": 3}, {"blocking": 1}, {"cpu_time": True}, {"check": 3}],
)
def test_modes_and_options_keep_data_right(measure, extra: dict[str, object]) -> None:
    modes = ("isolated", "streaming", "host")
    swept = cases(collectives=("all_reduce",), sizes=(4096,), ranks=(2,), modes=modes)
    found = measure(swept, iters=4, batch=4, max_seconds=0.2, rotation=3, **extra)
    assert {record.case.mode for record in found} == set(modes)
    for record in found:
        mode = record.case.mode
        assert (record.status, record.wrong) == ("ok", 0)
        assert record.sync in ("window", "barrier") if mode != "host" else record.sync == "none"
        assert record.inner >= (4 if mode == "streaming" else 1) * extra.get("agg_iters", 1)
        assert len(record.submit_ns) == (20 if "cpu_time" in extra else 0)


@pytest.mark.parametrize("mode", ["isolated", "streaming"])
def test_calls_that_torch_hands_over_as_one_are_right(measure, mode: str) -> None:
    """In place and out of place, in sums that the calls before would spoil."""
    swept = cases(
        collectives=("all_reduce", "all_gather", "reduce_scatter", "broadcast"),
        sizes=(4096,),
        ranks=(2,),
        backends=("fusing",),
        modes=(mode,),
    )
    found = measure(swept, iters=1, batch=1, agg_iters=3, rotation=3, max_seconds=0.2)
    assert {(r.status, r.wrong) for r in found} == {("ok", 0)}, [r.note for r in found]
    assert {r.case.in_place for r in found} == {False, True} and {r.inner % 3 for r in found} == {0}


TO_THE_ROOT = ("reduce", "gather")


@pytest.mark.parametrize(("call", "when"), [(1, "before timing"), (7, "after timing")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_corrupt_element_is_caught(measure, rank: int, call: int, when: str) -> None:
    """The saboteur flips one bit of the last element that rank 1 (or the root) receives, in every
    case, in its first call or its last timed one."""
    some = TO_THE_ROOT if rank == 0 else tuple({*WITH_DATA} - {*TO_THE_ROOT})
    swept = cases(collectives=some, sizes=(1024,), ranks=(2,), backends=("saboteur",))
    once = {"rotation": 1, "warmup": 5, "iters": 1}
    records = measure(swept, **once, sabotage=f"corrupt-each:{rank}:{call}")
    assert [record.case for record in records] == swept
    for case, record in zip(swept, records, strict=True):
        assert (record.status, record.wrong, record.times_ns) == ("wrong", 1, []), case.key
        assert record.first_wrong is not None
        assert (record.first_wrong.rank, record.first_wrong.when) == (rank, when)
        assert record.first_wrong.index == case.counts[1] - 1
        assert record.first_wrong.got != record.first_wrong.expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collectives", "dtypes"),
    [
        (("all_reduce", "reduce_scatter"), ("float", "int32")),
        long(
            ("all_reduce", "reduce", "reduce_scatter", "all_gather"), ("float", "bfloat16", "int32")
        ),
    ],
    ids=["most", "all"],
)
def test_sums_that_must_be_rounded_come_out_alike(
    measure, collectives: tuple[str, ...], dtypes: tuple[str, ...]
) -> None:
    """Call by call and launch by launch; in place, too. Of what is exact in any order nothing is
    kept."""
    swept = cases(
        collectives=collectives,
        sizes=(70_000,),
        ranks=(3,),
        dtypes=dtypes,
        ops=("sum", "max"),
    )
    first, second = (measure(swept, iters=1, bitwise=True) for _ in range(2))
    assert [record.bits for record in first] == [record.bits for record in second]
    kept = [record for record in first if record.bits]
    assert {record.case for record in kept} == {
        case for case in swept if case.row.reduces and case.dtype != "int32" and case.op == "sum"
    }
    assert all(len(record.bits) == 1 and record.wrong == 0 for record in kept)
    assert len({record.bits[0] for record in kept}) == len(kept)  # no two cases share data


@pytest.mark.slow
def test_a_sum_that_comes_out_otherwise_is_noticed(measure) -> None:
    """The saboteur flips a bit in each call in turn. Those compared with what is expected are
    wrong; of the last two, which are compared with each other, either shows."""
    (case,) = cases(
        collectives=("all_reduce",),
        sizes=(1024,),
        ranks=(2,),
        backends=("saboteur",),
        in_place=(False,),
    )
    told = []
    for call in range(1, 20):
        settings = {"rotation": 1, "iters": 2, "warmup": 1, "bitwise": True}
        (record,) = measure([case], sabotage=f"corrupt:1:{call}", **settings)
        told.append((record.status, len(record.bits)))
        if told[-1] == ("ok", 1) and ("ok", 2) in told:
            break
    assert told[0] == ("wrong", 0) and told[-3:] == [("ok", 2), ("ok", 2), ("ok", 1)]


@pytest.mark.slow
def test_a_library_that_stops_delivering_is_caught(measure) -> None:
    """From the sixth call of a case on it does nothing; what earlier calls left must not pass for
    the result of later ones."""
    swept = cases(
        collectives=("all_reduce", "all_gather"),
        sizes=(1024,),
        ranks=(2,),
        backends=("saboteur",),
        ops=("sum", "max"),
        modes=("isolated", "streaming"),
    )
    records = measure(swept, rotation=2, iters=10, max_seconds=0.2, sabotage="lazy-each:0:6")
    assert [(r.case, r.status, r.times_ns) for r in records] == [(c, "wrong", []) for c in swept]


def test_no_valid_sample_is_a_failure_not_a_time(measure) -> None:
    swept = cases(
        collectives=("all_reduce",),
        sizes=(64,),
        ranks=(2,),
        in_place=(False,),
        backends=("saboteur",),
    )
    (record,) = measure(swept, iters=3, sabotage="never-in-time:0:0", sync="window")
    assert (record.status, record.times_ns) == ("failed", [])
    assert record.invalid == {"late start": 9} and "late start" in record.note


def test_nothing_is_verified_by_a_check_that_misses_a_flipped_bit(measure) -> None:
    swept = cases(
        collectives=("all_reduce", "barrier"),
        sizes=(64,),
        ranks=(2,),
        in_place=(False,),
        backends=("saboteur",),
    )
    data, barrier = measure(swept, sabotage="blind:1:0")
    assert (data.status, data.checked, data.wrong) == ("failed", 0, None)
    assert data.note == (
        "not verified: rank 1 misses errors in data on cpu: a flipped bit was not found (1000"
        " elements of float); -c 0 measures without"
    )
    assert barrier.status == "ok"
    unchecked, _ = measure(swept, sabotage="blind:1:0", check=0)
    assert (unchecked.status, unchecked.wrong) == ("ok", None)


def test_the_slowest_rank_makes_the_sample(measure) -> None:
    swept = cases(collectives=("all_reduce",), sizes=(4096,), ranks=(3,), in_place=(False,))
    (record,) = measure(swept, iters=30)
    assert len(record.per_rank) == 3
    slowest = [max(times) for times in zip(*record.per_rank, strict=True)]
    assert slowest == record.times_ns
    for t_max, t_glob, skew in zip(record.times_ns, record.glob_ns, record.skew_ns, strict=True):
        assert t_max <= t_glob <= t_max + skew


@pytest.mark.slow
def test_all_ranks_stop_together_when_the_median_is_known(measure) -> None:
    swept = cases(collectives=("all_reduce",), sizes=(64,), ranks=(2,), in_place=(False,))
    (record,) = measure(swept, iters=None, warmup=None, precision=0.5, min_seconds=0.01)
    assert record.stop == "converged"
    assert len(record.times_ns) >= 20
    (record,) = measure(swept, iters=None, warmup=None, precision=1e-9, max_iters=60)
    assert record.stop == "max_n"


@pytest.mark.slow
def test_a_rank_that_comes_late_is_named(measure) -> None:
    """In host mode nothing aligns the ranks: the late one finds the others waiting, and its calls
    are the shortest."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks on one core are both late")
    swept = cases(
        collectives=("all_reduce",),
        sizes=(4096,),
        ranks=(2,),
        modes=("host",),
        in_place=(False,),
        backends=("saboteur",),
    )
    for late in (0, 1):
        (record,) = measure(swept, iters=100, sabotage=f"straggle:{late}:0")
        assert (
            stats.find_straggler(record.per_rank) == late
        )  # from durations alone, as across hosts
        assert stats.find_straggler(record.per_rank, record.starts_ns) == late


@pytest.mark.slow
def test_ranks_come_as_the_arrival_says(cli) -> None:
    cli(
        *("all_reduce", "--sizes", "4K", "-g", "2", "--place", "out", "-n", "12", "-w", "2"),
        *("--sync", "barrier", "--arrival", "aligned,natural,one-late:20ms,random:20ms"),
    )
    file = run_file.read_file(store.find_run("@last"))
    rows = {record.case.arrival or record.case.mode: record for record in file.records}
    assert set(rows) == {"isolated", "host", "one-late:20ms", "random:20ms"}
    late = rows["one-late:20ms"]
    pairs = zip(late.times_ns, late.glob_ns, strict=True)
    assert all(after < whole for after, whole in pairs)
    last = [starts.index(max(starts)) for starts in zip(*late.starts_ns, strict=True)]
    assert {0, 1} == set(last)  # they take turns
    assert all(record.control_ns and record.status == "ok" for record in rows.values())
    row = derive_row(late, file.worlds[0])
    assert row is not None and "apart" in row.flags and not row.gateable
