"""MPI on real ranks, started by mpirun or by collbench itself: every collective, its algorithms,
and what breaks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from marks import long
from needs import needs_mpi
from paths import before
from relay import Relay
from test_faults import Started, gone, start_warm
from warm import Warm

from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import CannotRun, Exit
from collbench.machine import cpus
from collbench.records import choice, run_file
from collbench.records.types import RunFile
from collbench.run.launch import mpirun
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

PLUGINS = Path(__file__).parent / "plugins"
PATHS = before(PLUGINS)
QUICK = {"iters": 1, "max_seconds": 0.0, "min_seconds": 0.0}
UnderMpirun = Callable[..., tuple[subprocess.CompletedProcess[str], RunFile]]
UNKNOWN = {"half", "bfloat16", "f8e4m3", "f8e5m2"}  # to MPI
SWEEP = (
    "all_reduce",
    "--sizes",
    "4K,8K,16K",
    "-g",
    "2",
    "-N",
    "500",
    "-w",
    "1",
    "--place",
    "out",
    "--backend",
    "mpi",
)

pytestmark = needs_mpi


def cases(**axes: object) -> list[Case]:
    return expand_axes(Axes(**{"backends": ("mpi",), **axes}))[0]  # type: ignore[arg-type]


@pytest.fixture
def started(warm: Warm, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    begun: list[Started] = []

    def start(*args: str, **env: str) -> Started:
        (tmp_path / "tmp").mkdir()
        settings = {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": PATHS, **env}
        begun.append(Started(partial(start_warm, warm), tmp_path / "run.jsonl", *args, **settings))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()


@pytest.fixture
def under_mpirun(relay: Relay, tmp_path: Path) -> UnderMpirun:
    """``under_mpirun(*words, **env)``: ``mpirun -n 2 collbench WORDS`` with the settings of
    collbench's own worlds, and the run it kept."""

    def run(*words: str, **env: str) -> tuple[subprocess.CompletedProcess[str], RunFile]:
        found, path = mpirun.find_mpirun(), tmp_path / "run.jsonl"
        about = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
        is_open = "Open MPI" in about.stdout or "OpenRTE" in about.stdout
        collbench = relay.command if is_open else [sys.executable, "-m", "collbench"]  # PMI_FD
        settings = {**mpirun.SETTINGS, **mpirun.AS_ROOT, **os.environ, "PYTHONPATH": PATHS, **env}
        done = subprocess.run(
            [found, "-n", "2", *collbench, *words, "--output", str(path)],
            env=settings,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done, run_file.read_file(path)

    return run


def test_an_allocation_of_several_hosts_has_all_ranks_here(tmp_path: Path) -> None:
    """Open MPI would ask Slurm to start a daemon on each of them."""
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "srun").chmod(0o755)
    slurm = {"JOB_ID": "7", "JOBID": "7", "NNODES": "2", "TASKS_PER_NODE": "1(x2)"}
    slurm |= dict.fromkeys(("NODELIST", "JOB_NODELIST"), "nowhere1,nowhere2")
    variables = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}}
    program = mpirun.find_mpirun()
    done = subprocess.run(
        [program, "-n", "2", "echo", "here"],
        env=mpirun.make_environment(program, variables, tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["here", "here"], done.stderr


ABSENT = """
import time
from collbench.run.launch import environments, rendezvous
member = environments.detect_variables()
if member.rank:
    time.sleep(100)
rendezvous.tell_address(member, "10.0.0.1", 1.0)
"""


def test_a_rank_that_never_starts_mpi_is_not_waited_for_without_end() -> None:
    done = subprocess.run(
        [mpirun.find_mpirun(), "-n", "2", sys.executable, "-c", ABSENT],
        env={**os.environ, **mpirun.SETTINGS, **mpirun.AS_ROOT, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode, done.stdout
    assert "did not learn rank 0's address within 1 s" in done.stderr


def test_every_collective_is_right_or_refused(measure) -> None:
    n = 2
    axes = {"collectives": tuple(COLLECTIVES), "sizes": (48, 70_000), "roots": (-1,)}
    found = measure(cases(ranks=(n,), **axes), **QUICK)
    for record in found:
        case = record.case
        refused = case.collective == "reduce_scatter" and case.in_place
        assert record.status == ("skipped" if refused else "ok"), (case.key, record.note)
        assert "start of the buffer" in record.note if refused else record.times_ns
        if record.status == "ok" and case.size:
            assert record.wrong == 0 and record.checked > 0
        assert bool(record.call_path_ns) == (record.status == "ok")
    assert {r.case.collective for r in found if r.status == "ok"} == set(COLLECTIVES)
    assert {r.case.root for r in found if r.case.row.rooted} == set(range(n))


@pytest.fixture
def alone(warm: Warm, tmp_path: Path) -> Callable[[str], list[str]]:
    """The lines that a script writes as the one rank of a world, with a ``backend`` to be opened
    and ``call(collective)``, which prepares one."""

    def run(script: str) -> list[str]:
        (path := tmp_path / "alone.py").write_text(ALONE.format(script=script))
        settings = {**mpirun.SETTINGS, **mpirun.AS_ROOT, "PYTHONPATH": PATHS}
        done = warm(script=str(path), **settings)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


ALONE = """
import torch
from collbench.run.backends import _mpi
from collbench.suite.case import Case

backend, recv = _mpi.Mpi(), torch.zeros(2)

def call(collective, **more):
    case = Case(collective=collective, backend="mpi", n=1, nbytes=8, **more)
    return backend.prepare(case, torch.tensor([3.0, 4.0]), recv)

{script}
backend.close()
"""


def test_an_error_of_the_library_is_raised_in_its_own_words(alone) -> None:
    said = alone("""
backend.open(0, 1, 0)
try:
    call("broadcast", root=7).run()
    backend.finish()
except Exception as e:
    print(type(e).__name__, e)
""")
    assert said[0].startswith("Exception ") and "root" in said[0].lower()


def test_where_the_librarys_functions_are_not_found_mpi4py_calls_them_and_it_is_said(
    alone,
) -> None:
    text, bare, result = alone("""
def nowhere(module):
    raise AttributeError("undefined symbol: MPI_Allreduce")

_mpi.bind_functions = nowhere
backend.open(0, 1, 0)
made = call("all_reduce", op="sum")
made.run()
print(backend.library, made.bare, recv.tolist(), sep="\\n")
""")
    assert text.startswith(("Open MPI ", "MPICH ")) and text.endswith(", called through mpi4py")
    assert (bare, result) == ("None", "[3.0, 4.0]")


@pytest.mark.long
def test_what_open_mpi_was_told_to_run_stands_in_the_row(alone, measure) -> None:
    """By its own variables, and only where its dynamic rules are on."""
    if not alone("backend.open(0, 1, 0)\nprint(backend.library)")[0].startswith("Open MPI"):
        pytest.skip("MPICH has no such setting")
    setting = "OMPI_MCA_coll_tuned_allreduce_algorithm"
    (case,) = cases(collectives=("all_reduce",), ranks=(2,), in_place=(True,), sizes=(1024,))
    known = []
    for env in (((setting, "4"), (choice.RULES, "1")), ((setting, "ring"),), ()):
        asked = msgspec.structs.replace(case, env=env)
        (record,) = measure([asked], env=env, **QUICK)
        known.append((record.status, choice.describe_choice(record.chose), setting in record.note))
    assert known == [("ok", "ring", False), ("ok", "", True), ("ok", "", False)]


@pytest.mark.slow
def test_every_datatype_and_reduction_is_right_or_refused_with_a_reason(measure) -> None:
    swept = cases(
        collectives=("all_reduce", "reduce_scatter", "scan", "all_gather", "sendrecv"),
        sizes=(120,),
        ranks=(2,),
        dtypes=tuple(DTYPES),
        ops=tuple(OPS),
        in_place=(False,),
    )
    for record in measure(swept, **QUICK):
        case = record.case
        if "saturates" in record.note:
            assert (case.type.size, case.op, record.status) == (1, "sum", "skipped")
            continue
        unknown_op, unknown_type = (
            case.op in ("avg", "premul_sum"),
            case.row.reduces and case.dtype in UNKNOWN,
        )
        refused = unknown_op or unknown_type
        assert record.status == ("skipped" if refused else "ok"), (case.key, record.note)
        assert (
            not refused or f"MPI has no {'reduction' if unknown_op else 'datatype'}" in record.note
        )


@pytest.mark.slow
def test_uneven_blocks_arrive_whole_in_types_mpi_does_not_know_too(measure) -> None:
    swept = cases(
        collectives=("all_to_allv",),
        sizes=(3000,),
        ranks=(3,),
        splits=("uniform", "zipf:1.2"),
        dtypes=("float", "half"),
    )
    assert [(r.status, r.wrong) for r in measure(swept, **QUICK)] == [("ok", 0)] * 4


@pytest.mark.slow
def test_every_algorithm_is_right_over_mpi_messages(measure) -> None:
    n = 3
    swept: list[Case] = []
    for collective in COLLECTIVES:
        names = tuple(row.name for row in algorithms.list_algorithms(collective))
        axes = {"dtypes": ("float", "half")} if collective != "barrier" else {}
        swept += cases(
            collectives=(collective,),
            algorithms=names,
            sizes=(8 * n, 8 * 1003 * n),
            ranks=(n,),
            roots=(n - 1,),
            **axes,
        )
    found = measure(swept, **QUICK)
    assert [(r.case.key, r.note) for r in found if r.status != "ok" or r.wrong] == []
    assert {r.call_path_ns for r in found} == {None}
    wanted = {
        key for key in algorithms.list_catalogue() if not algorithms.find_variant(*key).refuse(n)
    }
    assert {(r.case.collective, r.case.algorithm) for r in found} == wanted


@pytest.mark.long
def test_large_messages_in_parts_are_right(measure) -> None:
    swept: list[Case] = []
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        names = ("native", "ring", "pairwise", "chain", "halving_doubling")
        known = {row.name for row in algorithms.list_algorithms(collective)} | {"native"}
        swept += cases(
            collectives=(collective,),
            algorithms=tuple(n for n in names if n in known),
            ranks=(3,),
            sizes=((9 << 20) + 12,),
            in_place=(False,),
        )
    assert {(r.status, r.wrong) for r in measure(swept, **QUICK)} == {("ok", 0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [{"agg_iters": 3, "unalign": 3}, long({"blocking": 1, "cpu_time": True})]
)
def test_calls_left_to_themselves_and_options_keep_data_right(
    measure, extra: dict[str, object]
) -> None:
    some = (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_allv",
        "broadcast",
        "reduce",
        "barrier",
    )
    swept = cases(collectives=some, sizes=(4096,), ranks=(2,), modes=("isolated", "streaming"))
    records = measure(swept, iters=4, batch=4, max_seconds=0.2, rotation=3, **extra)
    ran = [record for record in records if record.status != "skipped"]
    assert {record.case.collective for record in ran} == {*some}
    for record in ran:
        assert (record.status, record.wrong or 0) == ("ok", 0), (record.case.key, record.note)
        assert len(record.submit_ns) == (20 if "cpu_time" in extra else 0)


IMPLEMENTATIONS = ["gloo", "ring@gloo", "mpi", "ring@mpi", "ring@shm"]
COMPARED = (
    "all_reduce",
    "--backend",
    "gloo,mpi,shm",
    "--algo",
    "native,ring",
    "-b",
    "8",
    "-e",
    "64K",
    "-f",
    "8192",
    "--cache",
    "hot",
    "-n",
    "3",
    "-w",
    "1",
    "--order",
    "size",
    "--format",
    "csv",
)


def whole(run: RunFile, text: str) -> None:
    header, *rows = text.splitlines()
    assert header not in rows and len(rows) == sum(r.status == "ok" for r in run.records)
    assert (
        list(dict.fromkeys(r.case.label for r in run.records if r.status == "ok"))
        == IMPLEMENTATIONS
    )
    assert {r.note for r in run.records if r.status != "ok"} == {
        "shm has no choice of its own: name an algorithm (--algo ring)"
    }
    assert [w.backend for w in run.worlds] == ["gloo", "mpi", "shm"]
    assert run.worlds[1].library.startswith(("Open MPI ", "MPICH "))
    modes = {r.case.mode for r in run.records if r.case.backend == "mpi" and r.status == "ok"}
    assert modes == {"isolated"} or cpus.core_count() < 2
    assert run.end is not None and run.end.exit == 0


@pytest.mark.slow
def test_libraries_and_algorithms_stand_in_one_table_without_a_launcher(
    cli, tmp_path: Path
) -> None:
    done = cli(*COMPARED, "-g", "2", "--output", str(tmp_path / "run.jsonl"))
    assert done.returncode == 0, done.stderr
    run = run_file.read_file(tmp_path / "run.jsonl")
    whole(run, done.stdout)
    assert {w.launcher for w in run.worlds} == {"local"}


@pytest.mark.slow
def test_libraries_and_algorithms_stand_in_one_table_under_mpirun(
    under_mpirun: UnderMpirun,
) -> None:
    """Ranks that it has bound to a core have the mode of ranks that collbench starts."""
    done, run = under_mpirun(*COMPARED, PRTE_MCA_hwloc_default_binding_policy="core")
    assert done.returncode == 0, done.stderr
    whole(run, done.stdout)
    assert all(w.launcher.startswith("mpirun") for w in run.worlds)


@pytest.mark.slow
def test_ranks_of_another_launcher_are_told_apart_from_mpis(warm: Warm) -> None:
    """Each is alone by MPI's own count."""
    done = warm.join(2, "all_reduce", "--sizes", "1K", "--backend", "mpi", "--no-save")
    assert done.returncode != 0
    assert (
        "of 1, the launcher rank 0 of 2" in done.stderr
        and "use the mpirun of the MPI" in done.stderr
    )


def test_without_an_mpirun_there_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRun) as caught:
        mpirun.find_mpirun(str(tmp_path / "python"))
    assert "needs an mpirun" in caught.value.message and "collbench[mpi]" in caught.value.hint


def test_the_mpirun_beside_python_goes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place in ("near", "far"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mpirun").write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / place / "mpirun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "far"))
    assert mpirun.find_mpirun(str(tmp_path / "near" / "python")) == str(
        tmp_path / "near" / "mpirun"
    )
    assert mpirun.find_mpirun(str(tmp_path / "python")) == str(tmp_path / "far" / "mpirun")


def test_an_mpirun_that_starts_nothing_is_named(
    measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(mpirun, "find_mpirun", lambda python: str(fake))
    with pytest.raises(CannotRun, match="mpirun did not come up: it ended with 3"):
        measure(cases(collectives=("all_reduce",), sizes=(8,), ranks=(2,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "was killed by SIGKILL"), long(signal.SIGSTOP, "is stopped (SIGSTOP)")],
)
def test_a_broken_rank_ends_the_run_and_is_named(
    started, tmp_path: Path, number: int, words: str
) -> None:
    begun = started(*SWEEP, "-T", "3")
    pids = begun.pids()
    begun.wait_for("record")
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    shared = {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line}
    mpiruns = psutil.Process(begun.process.pid).children(recursive=True)
    os.kill(pids[1], number)
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert (
        words in err
        and f"rank 1 on {os.uname().nodename} (pid {pids[1]})" in err
        and " on mpi (case " in err
    )
    assert begun.lines()[-1]["exit"] == 4
    assert gone([*pids, *(process.pid for process in mpiruns)])
    assert shared
    shared = {
        name for name in shared if "mpich_shm" not in name
    }  # MPICH's own ones outlive its killed ranks
    assert not any(map(os.path.exists, shared))
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        long("kill-start", "was killed by SIGKILL while starting up"),
        long("stop-start", "is stopped (SIGSTOP) while starting up"),
        ("starve", "ran out of memory "),
    ],
)
def test_a_rank_that_is_lost_while_it_starts_is_named(
    started, tmp_path: Path, what: str, words: str
) -> None:
    begun = started(*SWEEP, "-T", "5", SABOTAGE=f"{what}:1:0")
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT, err
    assert re.search(rf"rank 1 on {os.uname().nodename} \(pid \d+\) {re.escape(words)}", err)
    assert "while starting up" in err
    assert begun.lines()[-1]["exit"] == 4
    assert not os.listdir(tmp_path / "tmp")  # noqa: PTH208


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "fault"),
    [
        (1, signal.SIGKILL),
        long(0, signal.SIGKILL),
        long(0, signal.SIGSTOP),
        long(1, signal.SIGSTOP),
    ],
)
def test_a_rank_whose_warden_is_hit_is_named(started, rank: int, fault: signal.Signals) -> None:
    begun = started(*SWEEP, "-T", "5")
    place, warden = str(rank), None
    while warden is None:
        assert begun.process.poll() is None
        for process in psutil.Process(begun.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                above, variables = process.parent(), process.environ()
                ours = above is not None and above.name() in ("prterun", "mpirun", "mpiexec")
                if ours and place in (variables.get(name) for name in mpirun.RANK):
                    warden = process
    warden.send_signal(fault)
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT, err
    told = [line for line in err.splitlines() if line.startswith("collbench: rank ")]
    assert len(told) == 1 and told[0].startswith(f"collbench: rank {rank} on "), err


def servers(pids: list[int]) -> list[psutil.Process]:
    """The processes that have forked these ranks."""
    above = [psutil.Process(pid).parent() for pid in pids]
    return [process for process in above if process]


@pytest.mark.slow
def test_ranks_are_forked_by_a_server_that_knows_no_mpi_and_listen_on_loopback_only(
    started,
) -> None:
    """MPICH's mpirun lets its ranks inherit the socket on which it listens."""
    begun = started(*SWEEP)
    pids = begun.pids()
    server, other = servers(pids)
    assert server == other and server.parent() == psutil.Process(begun.process.pid)
    assert "collbench.run.launch.forkserver" in server.cmdline()
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (server.pid, *pids)]
    assert [bool(re.search(r"/libmpi\w*\.so", text)) for text in maps] == [False, True, True]
    assert all(os.getsid(pid) == pid for pid in pids)  # no terminal's Ctrl-C
    above = psutil.Process(begun.process.pid).children()
    ours, inherited = (
        {
            c.laddr
            for one in some
            for c in one.net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        }
        for some in (map(psutil.Process, pids), above)
    )
    assert {address.ip for address in ours - inherited} == {"127.0.0.1"}


@pytest.mark.slow
def test_a_killed_server_of_ranks_is_named(started, tmp_path: Path) -> None:
    begun = started(*SWEEP, "-T", "5")
    pids = begun.pids()
    begun.wait_for("record")
    under = psutil.Process(begun.process.pid).children(recursive=True)
    servers(pids)[0].kill()
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT and "the fork server was killed by SIGKILL, and with" in err, err
    assert gone([*pids, *(process.pid for process in under)])
    assert begun.lines()[-1]["exit"] == 4
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


@pytest.mark.slow
def test_a_stopped_server_of_ranks_is_named(started) -> None:
    begun, server = started(*SWEEP, "-T", "5"), None
    while server is None:
        assert begun.process.poll() is None
        for process in psutil.Process(begun.process.pid).children():
            with suppress(psutil.Error):
                if "collbench.run.launch.forkserver" in process.cmdline():
                    server = process
    server.suspend()
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT
    assert f"the fork server (pid {server.pid}) is stopped (SIGSTOP), with 0 of 2 ranks" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [long("kill-forked", "was killed by SIGKILL"), ("stop-forked", "is stopped (SIGSTOP)")],
)
def test_a_forked_rank_that_is_lost_while_it_starts_is_named(
    started, what: str, words: str
) -> None:
    begun = started(*SWEEP, "-T", "5", SABOTAGE=f"{what}:1:0")
    code, _, err = begun.end()
    assert code == Exit.TIMEOUT, err
    name = rf"rank 1 on {os.uname().nodename} \(pid \d+\)"
    assert re.search(rf"{name} {re.escape(words)} while starting up", err), err


@pytest.mark.long
def test_a_world_that_has_finished_ends_though_a_rank_does_not(started, tmp_path: Path) -> None:
    begun = started(*SWEEP[:5], "-n", "3", *SWEEP[7:], SABOTAGE="linger:1:0")
    code, _, err = begun.end()
    assert code == Exit.OK, err
    assert f"rank 1 on {os.uname().nodename} (pid {begun.pids()[1]}) did not end" in err
    assert begun.lines()[-1]["exit"] == 0
    assert gone(begun.pids())
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(started, tmp_path: Path) -> None:
    begun = started(*SWEEP)
    pids = begun.pids()
    begun.wait_for("record")
    begun.process.send_signal(signal.SIGINT)
    code, _, _ = begun.end()
    assert (code, begun.lines()[-1]["exit"]) == (Exit.INTERRUPTED, 130)
    assert gone(pids)
    assert os.listdir(tmp_path / "tmp") == []  # noqa: PTH208


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["parent", "mpirun"])
def test_no_rank_outlives_what_started_it(started, victim: str) -> None:
    begun = started(*SWEEP)
    pids = begun.pids()
    begun.wait_for("record")
    under = psutil.Process(begun.process.pid).children(recursive=True)
    above = next(p for p in under if p.parent() == begun.process.pid or "-n" in p.cmdline())
    (begun.process if victim == "parent" else above).kill()
    _, _, err = begun.end()
    assert gone([*pids, *(process.pid for process in under)])
    assert victim == "parent" or "mpirun was killed" in err


@pytest.mark.slow
@pytest.mark.parametrize("what", ["corrupt", "raise"])
def test_a_fault_under_mpirun_is_seen_and_ends_the_job(
    under_mpirun: UnderMpirun, what: str
) -> None:
    """Rank 1 gets a wrong element in the first call, or raises in the second case's: calls long
    enough to be timed one by one, and starts that need no repeating, make their number known."""
    sabotage = {"corrupt": "corrupt:1:1", "raise": "raise:1:28"}[what]
    sweep = ("all_reduce", "--sizes", "1M,2M,4M", "--sync", "barrier", "-n", "5", "-w", "1")
    options = ("--order", "size", "--place", "out", "--backend", "saboteur_mpi", "-T", "20")
    done, run = under_mpirun(*sweep, *options, SABOTAGE=sabotage)
    if what == "corrupt":
        assert run.end is not None and run.end.exit == Exit.WRONG_DATA
        if "MPICH" not in run.worlds[0].library:  # whose mpirun may end with 0 all the same
            assert done.returncode == Exit.WRONG_DATA
        assert [r.status for r in run.records] == ["wrong", "ok", "ok"]
        return
    assert done.returncode != 0
    assert "raised ArithmeticError: planted" in done.stderr
    assert run.records[0].status == "ok"
    assert "ok" not in [r.status for r in run.records[1:]]
