"""Sizes, sweeps, cases and skips; suites in files; splits; what fits in memory and in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import factories
import msgspec
import numpy as np
import pytest

from collbench.core import splits
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.run import collectives, plan
from collbench.run.memory import RANK_BYTES, Room
from collbench.suite import toml
from collbench.suite.case import Case, Mode
from collbench.suite.grammar import (
    choose_sizes,
    expand_envs,
    parse_duration,
    parse_size,
    sweep_sizes,
)
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Override, Part, Suite, expand_axes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("1K", 1024),
        ("1k", 1024),
        ("3M", 3 << 20),
        ("1G", 1 << 30),
        ("1GiB", 1 << 30),
        ("1GB", 1 << 30),
        ("1.5g", 3 << 29),
        ("1e6", 10**6),
        ("8B", 8),
        (" 2 K ", 2048),
        ("2T", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-8", "8Q", "1 2", "0x10", "8KK"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_size(text)


def test_durations() -> None:
    assert [parse_duration(t) for t in ("90", "90s", "10m", "1.5h")] == [90, 90, 600, 5400]


def test_sweeps() -> None:
    assert sweep_sizes(8, 64) == (8, 16, 32, 64)
    assert sweep_sizes(8, 60) == (8, 16, 32)
    assert sweep_sizes(8, 30, factor=1.5) == (8, 12, 18, 27)
    assert sweep_sizes(8, 29, step=10) == (8, 18, 28)
    assert sweep_sizes(1, 4, factor=1.1) == (1, 2, 3, 4)  # always grows
    assert len(sweep_sizes(8, 1 << 30)) == 28


def test_an_end_below_the_usual_beginning_is_explained() -> None:
    with pytest.raises(UsageError, match="-e 1024 is below -b, which is 32M unless given"):
        choose_sizes(None, 1024, None, None, None)
    assert choose_sizes(8, 32, None, None, None) == (8, 16, 32)


def test_envs_are_a_product() -> None:
    assert expand_envs(["A=1,2", "B=x"]) == ((("A", "1"), ("B", "x")), (("A", "2"), ("B", "x")))
    assert expand_envs([]) == ((),)


case = partial(factories.case, nbytes=4096)


def test_effective_sizes() -> None:
    assert (case(nbytes=10).count, case(nbytes=10).size) == (2, 8)
    gather = case(collective="all_gather", nbytes=1000, n=3, op="none")
    assert (gather.count, gather.counts, gather.size) == (83, (83, 249), 996)
    rounded = case(collective="all_gather", nbytes=1000, n=3, op="none", align=16)
    assert (rounded.count, rounded.size) == (80, 960)


@pytest.mark.parametrize(
    ("collective", "align", "differs"),
    [
        ("all_gather", 16, True),
        ("all_gather", 4, False),  # an element of float
        ("all_reduce", 16, False),  # whose buffer is whole
        ("all_to_allv", 16, False),  # whose blocks are as its splits say
    ],
)
def test_rows_of_other_blocks_have_another_key(collective: str, align: int, differs: bool) -> None:
    plain = case(collective=collective, nbytes=1000, n=3, op="none")
    assert (plain.key != msgspec.structs.replace(plain, align=align).key) == differs


def test_alignment_makes_no_second_case_of_a_whole_buffer() -> None:
    axes = Axes(collectives=("all_reduce", "all_gather"), sizes=(64,), ranks=(2,), in_place=(True,))
    suite = Suite(name="", axes=axes, includes=(msgspec.structs.replace(axes, align=16),))
    assert [c.collective for c in suite.expand()[0]] == ["all_reduce", "all_gather", "all_gather"]


@pytest.mark.parametrize(
    ("ranks", "per_host", "groups", "name"),
    [
        (16, 4, "", "hierarchical:group=4"),
        (16, 8, "", "hierarchical"),  # as it is by default, and was named before
        (8, 8, "", "hierarchical"),  # one host
        (16, 1, "", "hierarchical"),
        (16, 5, "", "hierarchical"),  # no groups of 5
        (16, 4, "mod:2", "hierarchical"),  # not all ranks of a host are in one group
    ],
)
def test_hierarchical_makes_groups_of_a_hosts_ranks(
    ranks: int, per_host: int, groups: str, name: str
) -> None:
    axes = Axes(
        collectives=("all_reduce",),
        sizes=(1 << 20,),
        ranks=(ranks,),
        algorithms=("hierarchical", "ring"),
        per_host=per_host,
        groups=groups,
    )
    assert {case.algorithm for case in expand_axes(axes)[0]} == {name, "ring"}


def test_a_sweep_names_a_reason_for_everything_it_leaves_out() -> None:
    axes = Axes(
        collectives=("all_gather", "reduce", "all_to_all"),
        sizes=(8, 64),
        ranks=(4,),
        roots=(0, 7),
        dtypes=("float", "int32"),
        ops=("sum", "bxor"),
    )
    cases, skips = expand_axes(axes)
    reasons = {skip.reason for skip in skips}
    assert "8 B give a rank no float element; the smallest size is 16 B" in reasons
    assert "root 7 does not exist among 4 ranks" in reasons
    assert "bxor is defined on integers only, not float" in reasons
    assert "all_to_all has no in-place form" in reasons
    assert not {c.key for c in cases} & {s.case.key for s in skips}
    assert {c.root for c in cases if c.collective == "all_gather"} == {-1}
    assert {c.op for c in cases if c.collective == "all_gather"} == {"none"}


def test_a_collective_that_reduces_is_not_measured_without_a_reduction() -> None:
    axes = Axes(collectives=("all_reduce", "broadcast"), sizes=(8,), ranks=(2,), ops=("none",))
    cases, skips = expand_axes(axes)
    assert {case.collective for case in cases} == {"broadcast"}
    (reason,) = {skip.reason for skip in skips}
    assert reason == "all_reduce needs a reduction; 'none' is not one"
    assert "name one (-o): sum, prod" in plan.nothing_runs([reason]).hint


@pytest.mark.parametrize("word", ["recursive-doubling", "recursive_doubling"])
def test_collectives_without_an_algorithm_are_left_out_by_either_spelling(word: str) -> None:
    names = ("all_reduce", "broadcast", "reduce_scatter")  # which has a ring, but none down
    swept = Axes(collectives=names, sizes=(64,), ranks=(2,), algorithms=(word, "ring:down"))
    cases, skips = expand_axes(swept)
    assert {c.algorithm for c in cases} == {"recursive_doubling", "ring:down"}
    assert {c.collective for c in cases} == {"all_reduce"}
    assert {s.case.collective for s in skips} == {"broadcast", "reduce_scatter"}


def test_an_algorithm_of_a_file_matches_by_its_name_without_parameters() -> None:
    of_file = case(algorithm="my-line.py:line:segments=8")
    assert of_file in Part(algorithms=("my-line.py:line",))
    assert of_file not in Part(algorithms=("my-line.py",))


def test_minimum_sizes_are_true() -> None:
    for name, row in COLLECTIVES.items():
        if name in ("barrier", "all_to_allv"):
            continue
        smallest = 4 * (4 if row.total else 1)
        cases, _ = expand_axes(
            Axes(collectives=(name,), sizes=(smallest - 1, smallest), ranks=(4,), in_place=(False,))
        )
        assert [c.nbytes for c in cases] == [smallest]


def test_splits() -> None:
    assert (splits.split_matrix("uniform", 4, 1600, 4) == 100).all()
    spread = splits.split_matrix("spread:1", 4, 1200, 4)
    assert spread.diagonal().tolist() == [0] * 4
    assert spread[0].tolist() == [0, 50, 100, 150]
    assert (spread.sum(1) == 300).all() and (spread.sum(0) == 300).all()
    assert (
        splits.split_matrix("spread:0", 4, 1600, 4) == splits.split_matrix("uniform", 4, 1600, 4)
    ).all()
    zipf = splits.split_matrix("zipf:1", 3, 1100, 1)
    assert zipf[0].tolist() == [600, 300, 200]
    assert splits.count_busiest(zipf) == 1200  # what two others send to rank 0


@pytest.mark.parametrize(
    "spec",
    [
        *("spread:2", "zipf:-1", "zipf:x", "matrix:/nowhere", "triangle", "uniform:3"),
        *("table:", "table:0 64K", "table:1 2/3", "table:1 2", "table:0 4/4 0", "table:-1 1/1 1"),
        *("table:nan 1/1 1", "table:/"),
    ],
)
def test_bad_splits(spec: str) -> None:
    with pytest.raises(UsageError):
        splits.split_matrix(spec, 4, 1600, 4)


def test_a_matrix_file_must_be_square_and_wide_enough(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("4 8\n12 16\n")
    assert splits.split_matrix(f"matrix:{path}", 2, 0, 4).tolist() == [[1, 2], [3, 4]]
    with pytest.raises(UsageError, match="2 x 2"):
        splits.split_matrix(f"matrix:{path}", 3, 0, 4)


def test_a_table_is_written_out_in_bytes_and_read_back() -> None:
    bytes_ = [[0, 64, 8], [12, 0, 4], [0, 0, 0]]
    spec = splits.write_table(bytes_)
    assert spec == "table:0 64 8/12 0 4/0 0 0"
    assert splits.split_matrix(spec, 3, 0, 4).tolist() == [[0, 16, 2], [3, 0, 1], [0, 0, 0]]
    assert splits.split_matrix(spec, 2, 0, 4).tolist() == [[0, 16], [3, 0]]
    assert splits.measure_extent(spec, 3, 0, 4) == (18, 16, 18)
    assert splits.table_bytes(spec, 3) == 72


def test_splits_read_files_only_and_of_bearable_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="it is not a file"):
        splits.split_matrix("matrix:/dev/zero", 2, 64, 4)
    (tmp_path / "m").write_text("1 1\n1 1\n")
    monkeypatch.setattr(splits, "MOST_BYTES", 7)
    with pytest.raises(UsageError, match="more than"):
        splits.split_matrix(f"matrix:{tmp_path / 'm'}", 2, 64, 4)
    with pytest.raises(UsageError, match="too large"):
        splits.split_matrix("uniform", 1 << 20, 64, 4)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"cycles": 10**9}, "more than 50000 cases"),
        (
            {"collectives": ("broadcast",), "ranks": (1 << 20,), "roots": (-1,)},
            "more than 50000 cases",
        ),
        ({"ranks": (10**8,)}, "100000000 ranks are more"),
    ],
)
def test_sweeps_beyond_all_bounds_are_refused_before_they_are_made(
    axes: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        expand_axes(Axes(**{"collectives": ("all_reduce",), "sizes": (8,), "ranks": (2,), **axes}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than 10000 sizes"):
        sweep_sizes(1, 100 << 20, step=1)


def test_what_overrides_make_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.suite.sweep.MOST_CASES", 20)
    whole = Axes(collectives=("all_reduce",), sizes=(8, 16, 32), ranks=(2,))
    every = Override(match=Part(), axes=Part(dtypes=("float", "double", "int8", "half")))
    assert len(expand_axes(whole)[0]) == 6
    with pytest.raises(UsageError, match="more than 20 cases"):
        Suite(name="x", axes=whole, overrides=(every,)).expand()


def room(available: int, cache: int) -> Callable[[Case], Room]:
    return lambda case: Room("on this host", available, cache, case.n, RANK_BYTES)


def test_rotation_shrinks_before_a_size_is_given_up() -> None:
    policy, mib = Policy(), 1 << 20
    one = case(nbytes=64 * mib, n=2)
    own_bytes = collectives.scratch_bytes(one) + collectives.checked_bytes(one)
    needs = 2 * (RANK_BYTES + own_bytes)
    pair = 2 * collectives.buffer_bytes(one, policy)
    cache = 64 * mib

    def fitted(available: int) -> tuple[list[tuple[int, str]], list[str]]:
        jobs, skips = plan.fit_jobs([one], policy, room(available, cache))
        return [(j.rotation, j.cache) for j in jobs], [s.reason for s in skips]

    assert fitted(needs + 9 * pair) == ([(2, "cold")], [])
    assert fitted(needs + pair) == ([(1, "shrunk")], [])
    jobs, reasons = fitted(needs + pair - 1)
    assert jobs == []
    assert f"needs {(needs + pair) >> 20:,} MiB" in reasons[0]
    small = case(nbytes=8, n=2)
    assert plan.fit_jobs([small], policy, room(1 << 40, cache))[0][0].cache == "small"
    assert plan.fit_jobs([small], Policy(cache="hot"), room(1 << 40, cache))[0][0].rotation == 1
    assert plan.fit_jobs([small], Policy(agg_iters=5), room(1 << 40, cache))[0][0].rotation % 5 == 0


def test_worlds_group_and_shuffle_by_the_seed() -> None:
    axes = Axes(collectives=("all_reduce",), sizes=sweep_sizes(8, 1 << 20), ranks=(2, 4), cycles=2)
    jobs, _ = plan.fit_jobs(expand_axes(axes)[0], Policy(), room(1 << 40, 1 << 20))
    first, second = plan.plan_worlds(jobs, Policy(seed=1))
    assert (first.n, second.n) == (2, 4)
    sizes = [j.case.nbytes for j in first.jobs]
    assert sizes != sorted(sizes)
    assert [j.case.cycle for j in first.jobs] == sorted(j.case.cycle for j in first.jobs)
    assert first.jobs == plan.plan_worlds(jobs, Policy(seed=1))[0].jobs
    assert first.jobs != plan.plan_worlds(jobs, Policy(seed=2))[0].jobs
    assert plan.plan_worlds(jobs, Policy(order="size"))[0].jobs == [
        j for j in jobs if j.case.n == 2
    ]


@pytest.mark.parametrize("modes", [("isolated", "streaming"), ("streaming", "isolated")])
def test_each_mode_of_a_sweep_has_its_own_order(modes: tuple[Mode, ...]) -> None:
    axes = Axes(collectives=("reduce",), sizes=sweep_sizes(8, 1 << 20), ranks=(2,), modes=modes)
    jobs, _ = plan.fit_jobs(expand_axes(axes)[0], Policy(), room(1 << 40, 1 << 20))
    (world,) = plan.plan_worlds(jobs, Policy())
    sizes = {m: [j.case.nbytes for j in world.jobs if j.case.mode == m] for m in modes}
    by_size = sorted(sizes["isolated"])
    assert sizes["streaming"] == by_size != sizes["isolated"]


def test_time_limits_grow_with_the_case() -> None:
    jobs, _ = plan.fit_jobs(
        [case(nbytes=8), case(nbytes=1 << 30)], Policy(), room(1 << 40, 1 << 20)
    )
    assert plan.choose_timeout(jobs[:1], Policy()) < plan.choose_timeout(jobs, Policy())
    assert plan.choose_timeout(jobs, Policy(timeout=3)) == 3


def test_built_in_suites_load_and_expand() -> None:
    assert {"smoke", "nccl-tests"} <= set(toml.built_in())
    for name in toml.built_in():
        cases, _ = toml.load_suite(name).expand()
        assert cases
    smoke = toml.load_suite("smoke")
    assert set(smoke.axes.collectives) == set(COLLECTIVES) - {"scan", "all_to_allv"}
    assert smoke.policy.max_seconds == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("description = 1", "description"),
        ("description = 'x'\n[axes]\ncollectives = ['all_reduce']\nranks = [2]", "sizes"),
        (
            (
                "description = 'x'\n[axes]\ncollectives = ['all_reduce']\nranks = ['two']\nsizes ="
                " ['8']"
            ),
            "ranks",
        ),
        (
            "description = 'x'\n[axes]\ncollectives = ['all_reduce']\nranks = [2]\nsizes = ['8Q']",
            "8Q",
        ),
        ("description = 'x'\n[axes]\n[policy]\nspeed = 3", "speed"),
        ("not toml", "line 1"),
    ],
)
def test_a_bad_suite_is_an_error_that_names_file_and_key(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        toml.load_suite(str(path))
    assert str(path) in caught.value.message and words in caught.value.message
    with pytest.raises(UsageError, match="no suite"):
        toml.load_suite("nowhere")


def test_counts_of_a_case_are_whole_numbers_of_elements() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        one = case(
            collective="reduce_scatter",
            nbytes=int(rng.integers(1, 1 << 24)),
            n=int(rng.integers(1, 65)),
            dtype="half",
        )
        assert one.count * one.n * 2 == one.size <= one.nbytes


@pytest.mark.parametrize(
    ("asked", "launched", "ranks"),
    [((), 8, (8,)), ((1,), 8, (8,)), ((4,), 8, (4,)), ((1,), 0, (1,)), ((1, 2), 8, (1, 2))],
)
def test_one_rank_under_a_launcher_is_one_a_process(
    asked: tuple[int, ...], launched: int, ranks: tuple[int, ...]
) -> None:
    axes = Axes(collectives=("all_reduce",), sizes=(8,), backends=("gloo",), ranks=asked)
    assert axes.resolve(launched).ranks == ranks


def test_an_override_of_ranks_keeps_the_rounds_of_pairs() -> None:
    axes = Axes(collectives=("sendrecv",), sizes=(8,), ranks=(4,), groups="pairs")
    fewer = Override(match=Part(), axes=Part(ranks=(2,)))
    cases, _ = Suite(name="x", axes=axes, overrides=(fewer,)).expand()
    assert {case.world for case in cases} == {2}
