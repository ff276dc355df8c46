"""Experiments whose ranks are started at the places of a launcher's processes, on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from experiments import ended, sides, small
from marks import long
from warm import Started, Warm

from collbench.core.errors import Exit, UsageError
from collbench.records import store


@pytest.fixture
def suite(tmp_path: Path):
    def write(sizes: str = '"4K"', backends: str = '"gloo"', iters: int = 6) -> str:
        return small(tmp_path, sizes=sizes, backends=backends, iters=iters)

    return write


@contextmanager
def by_hand(warm: Warm, *words: str, n: int = 2) -> Iterator[list[Started]]:
    """A process for each place, as somebody would start them; nothing ends one for another."""
    processes = [
        warm.start(
            "ab",
            *words,
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "COLLBENCH_TOKEN": str(os.getpid()),
                "RANK": str(rank),
                "WORLD_SIZE": str(n),
            },
        )
        for rank in range(n)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_two_worlds_take_turns_under_torchrun(torchrun, suite) -> None:
    words = ("--head", "X=1", "--tau", "99%", "--rounds", "6,6", "--budget", "0")
    done = torchrun("ab", "--suite", suite(iters=100), *words, timeout=400)
    base, head = sides()
    assert base.end and base.end.exit in (Exit.OK, Exit.NO_VERDICT), done.stderr
    assert (done.returncode == 0) == (base.end.exit == Exit.OK)
    assert head.run.pairing and head.run.pairing.variant == "X=1"
    for file in (base, head):
        assert [world.round for world in file.worlds] == list(range(6))
        assert {(w.launcher, w.together, len(w.hosts)) for w in file.worlds} == {
            ("torchrun", "turns", 0)
        }
        assert [record.status for record in file.records] == ["ok"] * 6
    for one, other in zip(base.records, head.records, strict=True):
        assert max(one.started, other.started) < min(ended(one), ended(other)).isoformat()
    pids = [{rank.pid for rank in world.ranks} for f in (base, head) for world in f.worlds]
    assert len(set.union(*pids)) == 2 * 2 * 6
    assert done.stdout.count("collbench compare") == 1


def test_what_is_refused_is_told_once_and_ends_all_with_one_code(warm: Warm) -> None:
    with by_hand(warm, "--aa", "--rounds", "5,6") as processes:
        told = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [Exit.USAGE] * 2
    assert "fewer than 6 pairs" in told[0][1]
    assert told[1] == ("", "")


@pytest.mark.slow
def test_mpi_is_left_out_with_what_to_do(warm: Warm, suite) -> None:
    with by_hand(warm, "--suite", suite(backends='"mpi"'), "--aa") as processes:
        _, err = processes[0].communicate(timeout=100)
        assert processes[1].wait(60) == processes[0].returncode == Exit.CANNOT_RUN
    assert "without a launcher it brings an mpirun of its own" in err


def test_an_interpreter_is_looked_for_at_every_place(warm: Warm, suite, tmp_path: Path) -> None:
    """Here it is the same at all; what is wrong with it is told with its host."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with by_hand(warm, "--suite", suite(), "--head", f"python:{python}") as processes:
        _, err = processes[0].communicate(timeout=100)
        assert processes[1].wait(60) == processes[0].returncode == Exit.CANNOT_RUN
    assert f"--head: {python} cannot run collbench" in err
    assert store.list_saved() == []


def begun(processes: Sequence[Started], launches: int) -> list[int]:
    """Pids of ranks of both sides, once each has begun so many launches."""
    until = time.monotonic() + 200
    while True:
        assert time.monotonic() < until, "it never came"
        assert processes[0].poll() is None, processes[0].communicate()
        with suppress(UsageError):
            files = sides() if len(store.list_saved()) > 1 else ()
            if files and all(len(file.worlds) >= launches for file in files):
                return [r.pid for f in files for r in f.worlds[-1].ranks]
        time.sleep(0.05)


@pytest.mark.long
def test_a_place_that_is_killed_is_named_and_nothing_is_left(warm: Warm, suite) -> None:
    options = ("--suite", suite(iters=400), "--aa", "--rounds", "60,6", "-T", "60")
    with by_hand(warm, *options) as processes:
        ranks = begun(processes, 2)
        processes[1].send_signal(signal.SIGKILL)
        _, err = processes[0].communicate(timeout=60)
    assert processes[0].returncode == Exit.TIMEOUT, err
    assert "rank 1 on " in err and "was lost" in err and "has ended" in err
    base, head = sides()
    assert base.end and base.end.exit == Exit.TIMEOUT
    assert [record.status for record in head.records[:1]] == ["ok"]
    assert gone(ranks)


def gone(pids: Sequence[int], seconds: float = 10) -> bool:
    """Whether they are, or soon will be: the kernel ends them for their parents."""
    until = time.monotonic() + seconds
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "codes", "words"),
    [
        (signal.SIGINT, (Exit.INTERRUPTED, Exit.INTERRUPTED), ""),
        long(signal.SIGKILL, (-signal.SIGKILL, Exit.TIMEOUT), "lost rank 0 on "),
    ],
)
def test_places_end_with_rank_0(
    warm: Warm, suite, how: int, codes: tuple[int, int], words: str
) -> None:
    options = ("--suite", suite(iters=400), "--aa", "--rounds", "60,6", "-T", "60")
    with by_hand(warm, *options) as processes:
        ranks = begun(processes, 1)
        processes[0].send_signal(how)
        told = [process.communicate(timeout=60) for process in processes]
    assert tuple(process.returncode for process in processes) == codes, told
    assert words in told[1][1] and told[1][0] == ""
    assert gone(ranks[1:2])
