"""What launchers tell the processes they start: who a process is among how many, and where rank 0
is.

A table with a row for each launcher; nothing here opens a file or a socket, but for PBS's list of
hosts.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.core.text import format_count, plain_line

Variables = Mapping[str, str]

HOSTS_MAX = 1 << 16  # a list of hosts that names more is a mistake

INSIDE = "is this shell inside a job that set it?"


class Membership(NamedTuple):
    """What a launcher's environment says of this process; ``local_n`` 0 where it does not say who
    shares the host."""

    launcher: str
    rank: int
    n: int
    local_rank: int
    local_n: int


class Launcher(NamedTuple):
    """How a launcher's processes are told apart. Fields name variables, ``A|B`` the first that is
    set.

    ``signs`` are those only it sets; ``job`` are those that together name the launch on this host,
    where there are any. ``local_n`` may also be a function of all variables. ``host`` finds rank
    0's, if not by MASTER_ADDR.
    """

    name: str
    title: str
    signs: tuple[str, ...]
    rank: str
    n: str
    local_rank: str
    local_n: str | Callable[[Variables], int]
    job: tuple[str, ...] = ()
    host: Callable[[Variables], str] = lambda variables: ""
    is_detectable: bool = True  # by its variables alone


def _list_slurm_counts(variables: Variables) -> list[int]:
    """Tasks of each node, as SLURM_STEP_TASKS_PER_NODE says: ``4(x2),3``. Empty where it cannot be
    read."""
    counts: list[int] = []
    for part in _first_value(variables, "SLURM_STEP_TASKS_PER_NODE|SLURM_TASKS_PER_NODE").split(
        ","
    ):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None or int(match[2] or 1) > HOSTS_MAX:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def count_most_local(member: Membership) -> int:
    """The ranks of the host that has most of them: known of srun; else those of this host, 0 where
    the launcher does not say."""
    counts = _list_slurm_counts(os.environ) if member.launcher == "srun" else []
    return max(counts, default=member.local_n)


def slurm_local(variables: Variables) -> int:
    """Tasks on this task's node; SLURM_NODEID counts from 0."""
    counts = _list_slurm_counts(variables)
    node = variables.get("SLURM_NODEID", "" if len(set(counts)) > 1 else "0")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 0


def slurm_host(variables: Variables) -> str:
    """The first host of a Slurm job or step; "" where none is named."""
    return next(
        list_slurm_hosts(
            _first_value(variables, "SLURM_STEP_NODELIST|SLURM_JOB_NODELIST|SLURM_NODELIST")
        ),
        "",
    )


def pbs_hosts(variables: Variables) -> list[str]:
    """A line of the node file for each slot; on most PBS systems only the job's first host has that
    file."""
    try:
        return Path(variables["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):
        return []


def _flux_local(variables: Variables) -> int:
    return (
        _first_number(variables, "FLUX_JOB_SIZE") if variables.get("FLUX_JOB_NNODES") == "1" else 0
    )


def _one_pbs_host(variables: Variables) -> int:
    return len(names) if len(set(names := pbs_hosts(variables))) == 1 else 0


# Flux and srun may speak PMI as well, so that they come before Hydra; an mpirun inside a Slurm, PBS
# or Flux job counts
LAUNCHERS = (
    Launcher(
        "torchrun",
        "torchrun",
        ("TORCHELASTIC_RUN_ID",),
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    ),
    Launcher(
        "mpirun",
        "mpirun (Open MPI)",
        ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE|OMPI_MCA_ess_base_jobid",),
    ),
    Launcher(
        "flux",
        "flux",
        ("FLUX_TASK_RANK",),
        "FLUX_TASK_RANK",
        "FLUX_JOB_SIZE",
        "FLUX_TASK_LOCAL_ID",
        _flux_local,
        ("FLUX_JOB_ID",),
    ),
    Launcher(
        "mpirun",
        "mpirun (Intel MPI)",
        ("PMI_RANK", "I_MPI_HYDRA_HOST_FILE|I_MPI_MPIRUN|I_MPI_HYDRA_UUID"),
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
    ),
    Launcher(
        "mpirun",
        "mpirun (MPICH)",
        ("PMI_RANK", "MPI_LOCALRANKID"),
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
    ),
    Launcher(
        "srun",
        "srun",
        ("SLURM_STEP_ID",),
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS|SLURM_NTASKS",
        "SLURM_LOCALID",
        slurm_local,
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        slurm_host,
    ),
    Launcher(
        "mpirun",
        "mpirun (PMI)",
        ("PMI_RANK",),
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
        "MPI_LOCALNRANKS",
    ),
    Launcher(
        "environment",
        "environment",
        ("MASTER_ADDR",),
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    ),
    # a job's script itself has all that pbsdsh's tasks have, so that it has to be asked for
    Launcher(
        "pbs",
        "pbsdsh",
        (),
        "PBS_VNODENUM|PBS_NODENUM",
        "PBS_NP",
        "",
        _one_pbs_host,
        ("PBS_JOBID",),
        lambda variables: next(iter(pbs_hosts(variables)), ""),
        is_detectable=False,
    ),
    # their ranks are told who they are (keeper.py); a command with these launchers is none of them
    Launcher("ray", "ray", (), "", "", "", "", is_detectable=False),
    Launcher("ssh", "ssh", (), "", "", "", "", is_detectable=False),
)

STARTING = ("local", "ray", "ssh")  # launchers by which a command starts ranks itself

NAMES = ("auto", "local", *dict.fromkeys(launcher.name for launcher in LAUNCHERS))


def detect_variables(
    launcher: str = "auto", variables: Variables = os.environ
) -> Membership | None:
    """The launcher this process was started by, or None when it should start its own ranks.

    Raises UsageError where the variables of ``launcher`` are missing or are not numbers.
    """
    if launcher not in NAMES:
        raise UsageError(f"--launcher: '{launcher}' is not one of {', '.join(NAMES)}")
    if launcher in STARTING:
        return None
    rows = [
        row
        for row in LAUNCHERS
        if launcher == row.name or (launcher == "auto" and row.is_detectable)
    ]
    for row in rows:
        if all(_first_value(variables, name) for name in (*row.signs, row.rank, row.n)) or _is_pbs(
            row, variables
        ):
            member = _read_member(row, variables)
            if launcher == "auto" and _is_interactive(row, member, variables):
                continue
            return member
    if launcher != "auto":
        lacking = (
            [name for name in (*row.signs, row.rank, row.n) if not _first_value(variables, name)]
            for row in rows
        )
        missing = dict.fromkeys(
            ", ".join(dict.fromkeys(names)).replace("|", " or ") for names in lacking
        )
        raise UsageError(
            f"--launcher {launcher}: not set: {'; or '.join(missing)}",
            f"check that {launcher} has started this process",
        )
    return None


def _is_interactive(row: Launcher, member: Membership, variables: Variables) -> bool:
    """Whether srun, which may speak PMI as well, has started one task: a step in which a user
    works, and a command starts ranks of its own."""
    by_srun = row.name == "srun" or row.signs == ("PMI_RANK",)
    return by_srun and member.n == 1 and bool(variables.get("SLURM_STEP_ID"))


def describe_member(member: Membership) -> str:
    """How many ranks a launcher started, with the variables that say so."""
    row = next(row for row in LAUNCHERS if row.title == member.launcher)
    variables = [name for name in row.n.split("|") if name in os.environ]
    values = ", ".join(plain_line(f"{name}={os.environ[name]}") for name in variables)
    by = f" (by {values})" if values else ""
    return f"{member.launcher} started {format_count(member.n, 'rank')}{by}"


def name_launcher(launcher: str) -> str:
    """The launcher, by its title, under which a command has to be started; empty where the command
    starts ranks itself."""
    titles = {row.title for row in LAUNCHERS} - {*STARTING}
    return launcher if launcher in titles else ""


# the hint where ranks do not find each other
STARTED_ALIKE = "check that all ranks were started with the same command line"


def hint_limit(seconds: float, factor: float = 2.5) -> str:
    """What to do where a limit of so many seconds has passed that -T sets."""
    longer = f"{round(factor * seconds, 1):g}"
    return f"raise -T, as -T {longer} (in a suite: timeout = {longer} in [policy])"


def refuse_other_ranks(member: Membership, name: str, n: int) -> None:
    """Raises UsageError for what runs on another number of ranks than a launcher started."""
    if n != member.n:
        count = format_count(n, "rank")
        raise UsageError(
            f"{name} has {count}: {describe_member(member)}",
            f"start {count}, or --launcher local starts that many ranks on this host",
        )


def _is_pbs(row: Launcher, variables: Variables) -> bool:
    return row.name == "pbs" and bool(_first_value(variables, row.rank) and pbs_hosts(variables))


def _read_member(row: Launcher, variables: Variables) -> Membership:
    n = (
        _first_number(variables, row.n)
        if _first_value(variables, row.n)
        else len(pbs_hosts(variables))
    )
    local_rank = (
        _first_number(variables, row.local_rank) if _first_value(variables, row.local_rank) else 0
    )
    if callable(row.local_n):
        local_n = row.local_n(variables)
    else:
        local_n = (
            _first_number(variables, row.local_n) if _first_value(variables, row.local_n) else 0
        )
    rank = _first_number(variables, row.rank)
    if not 0 <= rank < n:
        raise UsageError(f"{row.title} says that this is rank {rank} of {n}", INSIDE)
    return Membership(row.title, rank, n, local_rank, local_n)


def row_of(member: Membership) -> Launcher:
    """The launcher that started this rank."""
    return next(row for row in LAUNCHERS if row.title == member.launcher)


def strip_variables(variables: Variables) -> dict[str, str]:
    """The variables without those by which a launcher tells its processes apart and lets them meet:
    what such a process starts is none of the launcher's."""
    variable_names = {
        name
        for row in LAUNCHERS
        for names in (*row.signs, row.rank, row.n, row.local_rank, row.local_n, *row.job)
        if isinstance(names, str)
        for name in (*names.split("|"), "MASTER_PORT")
    }
    return {
        name: value
        for name, value in variables.items()
        if name not in variable_names and not re.match(r"(PMI|PMIX|TORCHELASTIC)_", name)
    }


def place_of_rank0(member: Membership, variables: Variables = os.environ) -> str:
    """Name or address of rank 0's host, "" where the launcher does not tell. MASTER_ADDR, if set,
    is believed."""
    return variables.get("MASTER_ADDR", "") or row_of(member).host(variables)


def job_name(member: Membership, variables: Variables = os.environ) -> str:
    """A name all ranks of this launch agree on, no other launch has, and which is no secret; ""
    where there is none."""
    in_keeper = ("COLLBENCH_WORLD",) if "COLLBENCH_WORLD" in variables else ()  # (keeper.py)
    values = [_first_value(variables, name) for name in in_keeper or row_of(member).job]
    return "-".join(values) if all(values) else ""


def _first_value(variables: Variables, names: str) -> str:
    return next((variables[name] for name in names.split("|") if variables.get(name)), "")


def _first_number(variables: Variables, names: str) -> int:
    text = _first_value(variables, names)
    if not re.fullmatch(r"\d{1,9}", text):
        raise UsageError(f"{names.replace('|', ' or ')}={text} is not a number", INSIDE)
    return int(text)


def list_slurm_hosts(text: str) -> Iterator[str]:
    """The hosts of a Slurm list, in order: ``node[01-03,7],other-[1-2]-ib[0-1]``. Raises
    UsageError.

    Numbers keep their width; of several brackets in a name, the last one runs fastest. At most
    HOSTS_MAX are given.
    """
    names = (name for word in _split_outside_brackets(text) for name in _expand_word(word))
    yield from itertools.islice(names, HOSTS_MAX)


def _split_outside_brackets(text: str) -> list[str]:
    """The parts of a list of hosts, split at commas outside brackets. Raises UsageError."""
    parts = re.findall(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+", text)
    if ",".join(parts) != text:
        raise UsageError(
            f"'{text[:200]}' is not a list of hosts as Slurm writes it",
            "write it as node[01-03,7],login1",
        )
    return parts


def _expand_word(word: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", word)  # text and ranges in turn
    choices = [_expand_numbers(piece) if at % 2 else [piece] for at, piece in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _expand_numbers(text: str) -> list[str]:
    """``01-03,7`` is 01, 02, 03, 7."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
        if (
            match is None
            or not 0 <= (last := int(match[2] or match[1])) - int(match[1]) < HOSTS_MAX
        ):
            raise UsageError(
                f"'[{text[:200]}]' is not a range of hosts as Slurm writes it",
                "write it as [01-03,7]",
            )
        numbers += [f"{number:0{len(match[1])}}" for number in range(int(match[1]), last + 1)]
    return numbers
