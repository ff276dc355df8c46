"""Variables that a run was started with: which are settings, which are a detail of one, and which
make runs unlike."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from factories import ENVIRONMENT, case, hosted, make_file, record, world

from collbench.features.advise.evidence import Terms, gather_evidence
from collbench.features.advise.judgement import judge_evidence
from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.libraries.openmpi import DYNAMIC, PREFIX
from collbench.features.advise.types import Variables
from collbench.records.types import RunFile
from collbench.suite.policy import Policy

LIBRARIES = {library.key: library for library in load_libraries()}
OPEN_MPI, INTEL = "Open MPI v5.0.11", "Intel(R) MPI Library 2021.18"
SIZES = (1024, 4096, 16384)


def launched(
    library: str,
    collective: str,
    envs: Mapping[Variables, float],
    exported: Mapping[str, str] = {},
    name: str = "run",
) -> RunFile:
    """Ten launches of each setting, started with some variables; each takes so many times 1 ms."""
    worlds, records = [], []
    for cycle in range(10):
        for env, factor in envs.items():
            index = len(worlds)
            about = {"backend": "mpi", "library": library, "ranks": hosted(4, 4)}
            worlds.append(world(index, env=env, **about))
            for size in SIZES:
                what = case(size, collective, backend="mpi", env=env, cycle=cycle)
                median = 1e6 * factor * (1 + 0.004 * ((cycle * 7 + index) % 5))
                records.append(record(what, median, world=index))
    facts = {**ENVIRONMENT, "variables": {**exported}}
    return make_file(records, worlds, name=name, policy=Policy(fresh=True), environment=facts)


@pytest.mark.parametrize(
    ("key", "collective", "name", "is_detail"),
    [
        ("openmpi", "broadcast", f"{PREFIX}bcast_algorithm_chain_fanout", True),
        ("openmpi", "all_reduce", f"{PREFIX}reduce_algorithm_segmentsize", True),  # which it calls
        ("openmpi", "broadcast", f"{PREFIX}dynamic_rules_filename", False),
        ("openmpi", "broadcast", "UCX_TLS", False),
        ("mpich", "all_reduce", "MPIR_CVAR_ALLREDUCE_RECEXCH_KVAL", True),
        ("mpich", "all_reduce", "MPIR_CVAR_ALLREDUCE_SHORT_MSG_SIZE", False),
        ("mpich", "all_reduce", "MPIR_CVAR_BCAST_TREE_KVAL", False),
        ("intelmpi", "reduce", "I_MPI_ADJUST_REDUCE_SEGMENT", True),
        ("intelmpi", "reduce", "I_MPI_ADJUST_REDUCE_SCATTER_SEGMENT", False),
        ("oneccl", "all_reduce", "CCL_ALLREDUCE_2D_CHUNK_COUNT", True),
        ("oneccl", "all_reduce", "CCL_WORKER_COUNT", False),
        ("nccl", "all_reduce", "NCCL_MAX_CTAS", True),
        ("nccl", "sendrecv", "NCCL_MAX_CTAS", False),
        ("nccl", "all_reduce", "NCCL_BUFFSIZE", False),
        ("other", "all_reduce", "UCX_TLS", False),
    ],
)
def test_a_detail_is_told_from_a_choice(
    key: str, collective: str, name: str, is_detail: bool
) -> None:
    assert LIBRARIES[key].is_detail(collective, name) is is_detail


def test_a_chain_has_the_fan_out_that_was_exported() -> None:
    """Else a file would say fan-out 4, which was not measured."""
    chain = ((f"{PREFIX}bcast_algorithm", "2"), (DYNAMIC, "1"))
    exported = {f"{PREFIX}bcast_algorithm_chain_fanout": "8"}
    file = launched(OPEN_MPI, "broadcast", {(): 1.0, chain: 0.8}, exported)
    found = gather_evidence([file], Terms())
    assert {*found.names.values()} == {"default", "chain/x8"}
    assert [row.name for row in judge_evidence(found).rows] == ["chain/x8"]


def test_a_run_that_was_started_with_a_setting_is_a_rival_of_one_without() -> None:
    first = launched(INTEL, "all_reduce", {(): 1.0})
    ring = {"I_MPI_ADJUST_ALLREDUCE": "8"}
    second = launched(INTEL, "all_reduce", {(): 0.8}, ring, "second")
    for files in ([first, second], [second, first]):
        found = gather_evidence(files, Terms())
        assert (found.notes, {*found.runs}) == ((), {"run", "second"})
        assert {*found.names.values()} == {"default", "preset 8"}
        (row,) = judge_evidence(found).rows
        assert (row.name, row.gains[0].is_paired, row.gains[0].launches) == ("preset 8", False, 10)


@pytest.mark.parametrize(
    "name", ["I_MPI_ADJUST_BCAST", "I_MPI_ADJUST_ALLREDUCE_SEGMENT", "UCX_TLS"]
)
def test_variables_that_are_no_setting_of_what_was_measured_make_runs_unlike(name: str) -> None:
    first = launched(INTEL, "all_reduce", {(): 1.0})
    second = launched(INTEL, "all_reduce", {(): 0.8}, {name: "1"}, "second")
    found = gather_evidence([first, second], Terms())
    assert found.runs == ("run",)
    assert found.notes[0].startswith("run second is left out: the settings differ")


def test_a_setting_that_was_exported_is_no_part_of_the_librarys_own_choice() -> None:
    """Of another collective than the one with a default."""
    both = {"I_MPI_ADJUST_ALLREDUCE": "8"}
    reduced = launched(INTEL, "all_reduce", {(): 1.0}, both)
    file = launched(INTEL, "broadcast", {(): 1.0}, both)
    records = [*file.records, *reduced.records]
    found = gather_evidence(
        [make_file(records, file.worlds, environment=file.run.environment)], Terms()
    )
    assert (found.notes, {*found.names.values()}) == ((), {"default", "preset 8"})
