"""Variables that say how an algorithm runs which another variable chooses: exported, they are a
part of settings."""

from __future__ import annotations

import pytest
from factories import ENVIRONMENT, case, hosted, make_file, record, world

from collbench.features.advise.evidence import Terms, gather_evidence
from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.libraries.openmpi import DYNAMIC, PREFIX

LIBRARIES = {library.key: library for library in load_libraries()}


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
    worlds, records = [], []
    for cycle in range(10):
        for env in ((), chain):
            index = len(worlds)
            about = {"backend": "mpi", "library": "Open MPI v5.0.11", "ranks": hosted(4, 4)}
            worlds.append(world(index, env=env, **about))
            what = case(1024, "broadcast", backend="mpi", env=env, cycle=cycle)
            records.append(record(what, 1e6 + index, world=index))
    exported = {f"{PREFIX}bcast_algorithm_chain_fanout": "8"}
    facts = {**ENVIRONMENT, "variables": exported}
    found = gather_evidence([make_file(records, worlds, environment=facts)], Terms())
    assert {*found.names.values()} == {"default", "chain/x8"}
