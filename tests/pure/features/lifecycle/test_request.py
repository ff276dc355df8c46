"""What the command line of `lifecycle` and suites ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collbench.cli.families import LauncherOptions, SaveOptions
from collbench.core.backend_info import backend_info
from collbench.core.errors import UsageError
from collbench.features.lifecycle.command import (
    KillOptions,
    LifecycleOptions,
    LifeOptions,
    make_suite,
)
from collbench.features.lifecycle.measurable import LIVES, LOSSES, LifeRequest, LossRequest
from collbench.features.lifecycle.request import Life, Loss
from collbench.features.lifecycle.rows import INIT, LOSS_TABLE, PHASES, TABLE
from collbench.features.lifecycle.runner import LOSS_RUNNER, RUNNER
from collbench.suite import toml
from collbench.suite.case import Case


def options(**fields: Any) -> LifecycleOptions:
    lives = {name: fields.pop(name) for name in [*fields] if hasattr(LifeOptions, name)}
    kills = {name: fields.pop(name) for name in [*fields] if hasattr(KillOptions, name)}
    return LifecycleOptions(
        **{"ngpus": "2", "backend": "gloo", **fields},
        lives=LifeOptions(**lives),
        kills=KillOptions(**kills),
        where=LauncherOptions(),
        saving=SaveOptions(),
    )


def requests(**fields: Any) -> tuple[Any, ...]:
    return make_suite(options(**fields)).requests


def test_a_life_for_each_number_of_groups_and_each_further_call() -> None:
    lives = requests(groups="1,4,16", sizes="1K,1M")
    pairs = [(life.groups, life.nbytes) for life in lives]
    assert pairs == [(1, 1 << 10), (4, 1 << 10), (16, 1 << 10), (1, 1 << 20)]


def test_collectives_times_sizes_are_calls() -> None:
    lives = requests(groups="1", sizes="1K,2K", collective="all_reduce,all_gather")
    assert len(lives) == 4


@pytest.mark.parametrize("more", [{}, {"kill": 1}])
def test_each_number_of_ranks_has_its_lives(more: dict[str, Any]) -> None:
    suite = make_suite(options(ngpus="2,4", **more)).resolve()
    cases, _ = suite.expand()
    assert {case.n for case in cases} == {2, 4}
    found = {case: suite.subject_finder(case) for case in cases}
    assert all(subject and subject.world == case.n for case, subject in found.items())


def test_six_launches_are_the_default_and_one_kill() -> None:
    assert make_suite(options()).axes.cycles == 6
    assert make_suite(options(kill=1)).axes.cycles == 1


def test_launches_are_fresh() -> None:
    assert make_suite(options(launches=3)).policy.fresh


def test_a_kill_has_a_loss_for_each_way() -> None:
    losses = requests(kill=1, kill_at="0.5", way="rebuild,notified", timeout=7.0)
    assert [(loss.victim, loss.at, loss.way, loss.limit) for loss in losses] == [
        (1, 0.5, "rebuild", 7.0),
        (1, 0.5, "told", 7.0),
    ]


@pytest.mark.parametrize("way", ["notified", "told"])
def test_a_suite_takes_the_way_as_people_and_as_files_write_it(way: str) -> None:
    request = LOSSES.parse({"rank": 1, "way": way}, "suite.toml", Path("suite.toml"))
    loss = LOSSES.resolve(request, 3, True, ["gloo"])
    assert (loss.way, loss.way_name) == ("told", "notified")


@pytest.mark.parametrize("at", ["", "random"])
def test_the_moment_is_random_unless_it_is_said(at: str) -> None:
    assert requests(kill=0, kill_at=at)[0].at == -1.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"way": "notified"}, "--way has no effect without --kill"),
        ({"kill_at": "1"}, "--kill-at has no effect without --kill"),
        ({"kill": 1, "way": "pray"}, "--way"),
        ({"kill": 1, "kill_at": "soon"}, "--kill-at"),
        ({"groups": "0"}, "--groups"),
        ({"groups": ""}, "need a value each"),
        ({"groups": "99999"}, "1024"),
        ({"sizes": "1"}, ">= 4"),
        ({"sizes": "9999G"}, "<= "),
        ({"collective": "scan"}, "scan"),
        ({"inject": "late:1:5ms,corrupt:1"}, "--inject corrupt: lifecycle plants only late faults"),
        ({"inject": "late:1:5ms", "kill": 1}, "--inject late has no effect with --kill"),
        ({"timeout": 1e9}, "86400"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        make_suite(options(**fields))
    assert words in error.value.message


def test_a_rank_that_is_not_there_cannot_be_killed() -> None:
    with pytest.raises(UsageError, match="no rank 2 among 2"):
        LOSSES.resolve(LossRequest(victim=2), 2, True, ("gloo",))


def test_one_rank_leaves_none_to_know() -> None:
    with pytest.raises(UsageError):
        LOSSES.resolve(LossRequest(victim=0), 1, True, ("gloo",))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"groups": "many"}, "groups"),
        ({"gruops": 1}, "gruops: there is no such key"),
        ({"size": "1 furlong"}, "size"),
        ({"calls": 0}, "calls"),
        ({"collective": "gather"}, "collective"),
    ],
)
def test_a_suites_table_is_checked(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as error:
        LIVES.parse(table, "x.toml: [[lifecycle]] 1", Path("x.toml"))
    assert error.value.message.startswith("x.toml: [[lifecycle]] 1: ")
    assert words in error.value.message


def test_a_suites_table_says_a_size_in_words() -> None:
    assert LIVES.parse({"size": "64K"}, "", Path()) == LifeRequest(nbytes=64 << 10)


def test_the_built_in_suite_is_of_fresh_launches() -> None:
    suite = toml.load_suite("lifecycle")
    assert (len(suite.requests), suite.axes.cycles, suite.policy.fresh) == (2, 6, True)


def test_lives_that_differ_have_titles_that_differ() -> None:
    lives = [
        Life(world=2),
        Life(world=2, groups=4),
        Life(world=2, calls=3),
        Life(world=2, nbytes=8),
        Life(world=2, nbytes=(1 << 20) + 4),
        Life(world=2, collective="broadcast"),
        Life(world=2, limit=7.0),
    ]
    assert len({life.title for life in lives}) == len(lives)
    losses = [
        Loss(world=2),
        Loss(world=2, way="told"),
        Loss(world=2, at=1.0),
        Loss(world=2, nbytes=(1 << 20) + 4),
        Loss(world=2, limit=7.0),
    ]
    assert len({loss.title for loss in losses}) == len(losses)


def life_case(backend: str, algorithm: str = "native") -> Case:
    return Case(
        collective=INIT,
        subject="life",
        backend=backend,
        n=2,
        nbytes=8,
        algorithm=algorithm,
        dtype="uint8",
    )


@pytest.mark.parametrize("backend", ["gloo", "nccl", "mpi"])
def test_libraries_have_lives(backend: str) -> None:
    assert RUNNER.refuse(life_case(backend), Life(world=2), lambda case: "") == ""


@pytest.mark.parametrize("backend", ["shm", "symm", "model"])
def test_what_is_no_librarys_communicator_is_refused_with_a_reason(backend: str) -> None:
    assert backend_info(backend)
    assert backend in RUNNER.refuse(life_case(backend), Life(world=2), lambda case: "")


def test_mpis_ranks_are_not_killed() -> None:
    assert "mpirun ends all" in LOSS_RUNNER.refuse(life_case("mpi"), Loss(world=2), lambda case: "")


def test_only_nccl_shrinks() -> None:
    shrink = Loss(world=2, way="shrink")
    assert "not here" in LOSS_RUNNER.refuse(life_case("gloo"), shrink, lambda case: "")
    assert LOSS_RUNNER.refuse(life_case("nccl"), shrink, lambda case: "") == ""


def test_each_phase_has_a_row_and_a_launch_one_sample() -> None:
    assert {*PHASES} == {*TABLE.rows}
    assert next(iter(TABLE.rows)) == INIT
    assert TABLE.once and LOSS_TABLE.once
