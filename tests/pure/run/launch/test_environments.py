"""Which launcher started a process, by its variables alone; and Slurm's lists of hosts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.run.launch import environments
from collbench.run.launch.environments import Membership

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29400",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-a-7@1",
    "PMIX_RANK": "1",
}
HYDRA = {
    "PMI_RANK": "0",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "0",
    "MPI_LOCALNRANKS": "2",
    "PMI_FD": "9",
}
INTEL = {**HYDRA, "I_MPI_MPIRUN": "mpirun", "I_MPI_HYDRA_BRANCH_COUNT": "1"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "n[08-09]",
}
ALONE = {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
FLUX = {
    "FLUX_JOB_ID": "ƒ1",
    "FLUX_TASK_RANK": "2",
    "FLUX_JOB_SIZE": "4",
    "FLUX_TASK_LOCAL_ID": "0",
    "FLUX_JOB_NNODES": "2",
    "PMI_RANK": "2",
    "PMI_SIZE": "4",
    "PMI_FD": "9",
}
BY_HAND = {"MASTER_ADDR": "a", "RANK": "1", "WORLD_SIZE": "2"}
TORQUE = {"PBS_JOBID": "7.a", "PBS_VNODENUM": "3", "PBS_NODENUM": "1", "PBS_NP": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (TORCHRUN, ("torchrun", 3, 8, 1, 2)),
        (OPEN_MPI, ("mpirun (Open MPI)", 1, 4, 1, 4)),
        (HYDRA, ("mpirun (MPICH)", 0, 2, 0, 2)),
        (INTEL, ("mpirun (Intel MPI)", 0, 2, 0, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("mpirun (PMI)", 1, 2, 0, 0)),
        (SLURM, ("srun", 5, 8, 1, 4)),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}, ("srun", 5, 8, 1, 4)),  # --mpi=pmi2
        (
            {**SLURM, "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "4,2"},
            ("srun", 5, 6, 1, 2),
        ),
        (FLUX, ("flux", 2, 4, 0, 0)),
        ({**FLUX, "FLUX_JOB_NNODES": "1"}, ("flux", 2, 4, 0, 4)),
        (BY_HAND, ("environment", 1, 2, 0, 0)),
        (
            {**SLURM, **OPEN_MPI},
            ("mpirun (Open MPI)", 1, 4, 1, 4),
        ),  # an mpirun inside a job is what counts
        ({**SLURM, **TORCHRUN}, ("torchrun", 3, 8, 1, 2)),
        (
            ALONE,
            None,
        ),  # an interactive step starts ranks of its own
        (
            {**ALONE, "PMI_RANK": "0", "PMI_SIZE": "1"},
            None,
        ),  # the same by --mpi=pmi2
        (
            {**ALONE, "PMI_RANK": "1", "PMI_SIZE": "2"},
            ("mpirun (PMI)", 1, 2, 0, 0),
        ),  # an mpirun inside it
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, ("mpirun (PMI)", 0, 1, 0, 0)),
        (
            {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
            None,
        ),  # a batch script
        (TORQUE, None),  # has the same variables in a job's script
    ],
)
def test_launchers_are_told_apart(
    variables: dict[str, str], expected: tuple[object, ...] | None
) -> None:
    assert environments.detect_variables("auto", variables) == expected


def test_a_launcher_may_be_named() -> None:
    both = {**SLURM, **OPEN_MPI, **BY_HAND}
    assert (
        environments.detect_variables("local", both)
        is environments.detect_variables("ray", both)
        is environments.detect_variables("ssh", both)
        is None
    )  # it starts ranks itself
    assert environments.detect_variables("srun", both) == ("srun", 5, 8, 1, 4)
    assert environments.detect_variables("environment", both) == ("environment", 1, 2, 0, 0)
    assert environments.detect_variables("mpirun", HYDRA) == ("mpirun (MPICH)", 0, 2, 0, 2)
    assert environments.detect_variables(
        "srun", {**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    ) == (
        "srun",
        0,
        1,
        1,
        4,
    )
    assert environments.detect_variables("pbs", TORQUE) == ("pbsdsh", 3, 4, 0, 0)


@pytest.mark.parametrize(
    ("wanted", "variables", "named"),
    [
        ("torchrun", BY_HAND, ["TORCHELASTIC_RUN_ID"]),
        ("mpirun", SLURM, ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_SIZE"]),
        (
            "srun",
            TORCHRUN,
            ["SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS or SLURM_NTASKS"],
        ),
        ("flux", {"FLUX_TASK_RANK": "0"}, ["FLUX_JOB_SIZE"]),
        ("environment", {"RANK": "0"}, ["MASTER_ADDR, WORLD_SIZE"]),
        ("pbs", {}, ["PBS_VNODENUM or PBS_NODENUM", "PBS_NP"]),
        ("rsh", {}, ["auto, local, torchrun, mpirun, flux, srun, environment, pbs"]),
    ],
)
def test_what_a_named_launcher_lacks_is_said(
    wanted: str, variables: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        environments.detect_variables(wanted, variables)
    assert all(words in raised.value.message for words in named), raised.value.message
    assert "RANK, " not in raised.value.message or wanted != "torchrun"  # what is set is not named


@pytest.mark.parametrize(
    "variables",
    [{**BY_HAND, "RANK": "two"}, {**BY_HAND, "RANK": "2"}, {**BY_HAND, "WORLD_SIZE": "-1"}],
)
def test_numbers_that_are_none_are_usage_errors(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        environments.detect_variables("auto", variables)


def test_rank_0_is_where_the_launcher_says(tmp_path: Path) -> None:
    def place(variables: dict[str, str], wanted: str = "auto") -> str:
        member = environments.detect_variables(wanted, variables)
        assert member is not None
        return environments.place_of_rank0(member, variables)

    assert place(TORCHRUN) == place(BY_HAND) == "a"
    assert place(SLURM) == "n08"
    assert place({**SLURM, "SLURM_STEP_NODELIST": "n09,n08"}) == "n09"
    assert place({**SLURM, "MASTER_ADDR": "b"}) == "b"
    assert place(OPEN_MPI) == place(HYDRA) == place(FLUX) == ""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\na\nb\nb\n")
    del (slots := {**TORQUE, "PBS_NODEFILE": str(nodes)})["PBS_NP"]
    assert environments.detect_variables("pbs", slots) == Membership("pbsdsh", 3, 4, 0, 0)
    assert place(slots, "pbs") == "a"


def test_launches_have_names_of_their_own() -> None:
    def name(variables: dict[str, str]) -> str:
        member = environments.detect_variables("auto", variables)
        assert member is not None
        return environments.job_name(member, variables)

    assert name(SLURM) != name({**SLURM, "SLURM_STEP_ID": "1"})
    assert name(TORCHRUN) != name({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert name(OPEN_MPI) == "prterun-a-7@1"
    assert name(HYDRA) == name(BY_HAND) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("login", ["login"]),
        ("node[01-03,7],login1", ["node01", "node02", "node03", "node7", "login1"]),
        ("other-[1-2]-ib[0-1]", ["other-1-ib0", "other-1-ib1", "other-2-ib0", "other-2-ib1"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("[1-2]", ["1", "2"]),
        ("a[1].example.org,b", ["a1.example.org", "b"]),
        ("r[0]c[0-1]n[5]", ["r0c0n5", "r0c1n5"]),
    ],
)
def test_lists_of_hosts(text: str, expected: list[str]) -> None:
    assert list(environments.list_slurm_hosts(text)) == expected


@pytest.mark.parametrize(
    "text", ["n[1-", "n1-2]", "n[2-1]", "n[a-b]", "n[]", "n[1,,2]", "a,,b", "a b", "n[[1]]", ",a"]
)
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(UsageError):
        list(environments.list_slurm_hosts(text))


def test_a_list_of_hosts_has_an_end() -> None:
    with pytest.raises(UsageError):
        list(environments.list_slurm_hosts("n[1-999999999]"))
    assert len(list(environments.list_slurm_hosts("n[1-9999]-[1-9999]"))) == environments.HOSTS_MAX


RANGES = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=3
)
PIECES = st.tuples(st.text("abz-.", min_size=1, max_size=3), RANGES)


@given(st.lists(st.lists(PIECES, min_size=1, max_size=2), min_size=1, max_size=3))
def test_any_list_of_hosts_is_expanded(
    names: list[list[tuple[str, list[tuple[int, int, int]]]]],
) -> None:
    """Written as Slurm does and expanded apart from the code under test: (first, further numbers,
    width)."""
    words, expected = [], []
    for pieces in names:
        written, choices = "", []
        for text, ranges in pieces:
            inner = [
                f"{first:0{width}}" + (f"-{first + more:0{width}}" if more else "")
                for first, more, width in ranges
            ]
            written += f"{text}[{','.join(inner)}]"
            numbers = [
                str(at).zfill(max(width, len(str(first))))
                for first, more, width in ranges
                for at in range(first, first + more + 1)
            ]
            choices += [[text], numbers]
        words.append(written)
        expected += ["".join(parts) for parts in itertools.product(*choices)]
    assert list(environments.list_slurm_hosts(",".join(words))) == expected


@given(st.text("n[]-,019 ", max_size=12))
def test_no_text_breaks_the_reader_of_lists(text: str) -> None:
    try:
        found = list(environments.list_slurm_hosts(text))
    except UsageError:
        return
    assert all(name and not set(name) & set("[], ") for name in found)


def test_what_a_launchers_process_starts_is_none_of_the_launchers() -> None:
    told = {"RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "SLURM_PROCID": "1", "PMIX_RANK": "1"}
    told |= {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "1", "MASTER_PORT": "1"}
    kept = {"NCCL_ALGO": "Ring", "OMPI_MCA_btl": "tcp", "CUDA_VISIBLE_DEVICES": "1"}
    assert environments.strip_variables({**told, **kept}) == kept


def test_a_world_of_fresh_ranks_is_a_job_of_its_own() -> None:
    member = environments.Membership("srun", 0, 2, 0, 2)
    told = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert environments.job_name(member, told) == "7-0"
    assert environments.job_name(member, {**told, "COLLBENCH_WORLD": "w"}) == "w"
