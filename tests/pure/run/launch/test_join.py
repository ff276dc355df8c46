"""What differs between the hosts of a run: found, and told before all else of the machines."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import case, record, run, world

from collbench.core.errors import CannotRun, Exit, RunBroken
from collbench.machine import environment
from collbench.records.types import HostInfo, RunFile, World
from collbench.run.jobs import Plan
from collbench.run.launch import join
from collbench.run.launch.board import Board, Place
from collbench.run.launch.environments import Membership
from collbench.run.launch.meeting import Hello
from collbench.run.launch.world import Listener
from collbench.run.rank import worker
from collbench.show.document import Section
from collbench.show.views import run as sections
from collbench.suite.policy import Policy


def of(*worlds: World) -> RunFile:
    return RunFile(
        run=run("r"), worlds=list(worlds), records=[record(case(), 1e6)], end=None, path=Path("r")
    )


def told(*files: RunFile) -> tuple[Section, Section]:
    found = {section.name: section for section in sections.make_document(files).sections}
    return found["summary"], found["environment"]


def test_only_what_differs_is_kept_of_each_host() -> None:
    alike = {"kernel": "6.1", "cpu.governor": "performance", "numa.0.cpus": "0-7"}
    other = {
        "kernel": "6.8",
        "cpu.governor": "performance",
        "nics.eth0.mbps": 100_000,
        "numa.0.cpus": "0-7",
    }
    assert environment.find_odd_hosts([alike, alike]) == [{}, {}]
    assert environment.find_odd_hosts([alike, other, alike]) == [
        {"kernel": "6.1", "nics.eth0.mbps": None},
        {"kernel": "6.8", "nics.eth0.mbps": 100_000},
        {"kernel": "6.1", "nics.eth0.mbps": None},
    ]
    assert environment.digest_facts(alike) != environment.digest_facts(other)


def test_hosts_are_compared_by_what_a_worlds_backend_uses() -> None:
    facts = {"a": {"kernel": "6.1"}, "b": {"kernel": "6.1", "libraries.mpi4py": "4.1.2"}}
    for backend, same in (("gloo", True), ("mpi", False)):
        one, other = join.describe_hosts(facts, backend)
        assert (one.host, other.host) == ("a", "b")
        assert (one.fingerprint == other.fingerprint) == same
        assert other.differs == ({} if same else {"libraries.mpi4py": "4.1.2"})


def test_hosts_are_compared_by_their_clock_source_too(tmp_path: Path) -> None:
    at = tmp_path / "sys/devices/system/clocksource/clocksource0"
    at.mkdir(parents=True)
    (at / "current_clocksource").write_text("hpet\n")
    facts = environment.host_facts(tmp_path)
    assert facts["clock_source"] == "hpet"
    assert "libraries.torch" in facts
    assert not {"host", "boot_id"} & set(facts)


def test_hosts_that_differ_come_first() -> None:
    slow, fast = {"kernel": "6.1", "driver": None}, {"kernel": "6.8", "driver": "570"}
    hosts = [
        HostInfo(host=f"n{i}", fingerprint="0", differs=slow if i == 5 else fast) for i in range(7)
    ]
    summary, machines = told(of(world(hosts=hosts)))
    assert "The hosts are not alike, see Environment: kernel, driver." in summary.sentences
    first = machines.tables[0]
    assert (first.title, first.heads) == (
        "What differs between hosts",
        ("", "n0, n1, n2 and 3 more", "n5"),
    )
    assert [line.cells for line in first.lines] == [
        ("kernel", "6.8", "6.1"),
        ("driver", "570", "unknown"),
    ]


def test_hosts_that_are_alike_are_no_news() -> None:
    alike = [HostInfo(host=name, fingerprint="0") for name in "ab"]
    for worlds in ([world()], [world(hosts=alike)]):
        summary, machines = told(of(*worlds))
        assert not any("not alike" in words for words in summary.sentences)
        assert "hosts" not in " ".join(table.name for table in machines.tables)


@pytest.mark.parametrize(
    ("in_turns", "awake", "rests"),
    [
        (True, 0.0, True),  # it waits for its turn
        (True, 29.0, True),
        (True, 31.0, False),  # hung in its turn
        (True, math.inf, False),  # it had one and all, or rank 0 does not say
        (False, 0.0, False),
    ],
)
def test_a_world_that_waits_for_its_turn_is_not_hung(
    in_turns: bool, awake: float, rests: bool
) -> None:
    plan = Plan(0, "gloo", 1, (), Policy(), [], 30.0, in_turns=in_turns)
    board, fd = Board.create(1)
    meeting = SimpleNamespace(awake=lambda limit: awake, connection=At())
    member = Membership("torchrun", 0, 1, 0, 1)
    watchdog = join.MemberWatch(board, member, meeting, plan, Listener(lambda line: None))  # type: ignore[arg-type]
    assert watchdog.has_rested() is rests
    os.close(fd)


class Ended(BaseException):
    """The end of a watchdog's process."""


class At:
    """A connection of rank 0's or another's, as a watchdog has it."""

    hosts = ("a", "a")

    def __init__(self, ended: bool = False, stopped: str = "") -> None:
        self._ended, self._stopped = ended, stopped
        self.waited = 0.0

    def beat(self, place: Place) -> None:
        return

    def stopped(self) -> str:
        return self._stopped

    def ended(self, within: float) -> bool:
        self.waited += within
        return self._ended


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a watchdog says of a world of two ranks that stand still; its process ends then."""

    def says(
        rank: int,
        lost: str,
        at: At,
        places: tuple[int, int] = (1, 1),
        behind: Sequence[int] | None = None,
    ) -> str:
        heard: list[str] = []
        board, fd = Board.create(2)
        os.close(fd)
        for each, calls in enumerate(places):
            board.count_calls(each, calls)
        plan = Plan(0, "gloo", 2, (), Policy(), [], 1e-9)
        found = SimpleNamespace(
            lost=lambda seconds: lost, find_behind=lambda limit: behind, connection=at, host=None
        )
        listener = Listener(lambda line: None, hung=lambda error: heard.append(error.message))
        local_n = 2 if behind is None else 1
        member = Membership("mpirun", rank, 2, rank, local_n)
        watchdog = join.MemberWatch(board, member, found, plan, listener)  # type: ignore[arg-type]
        monkeypatch.setattr(watchdog._stop, "wait", lambda seconds: False)
        with pytest.raises(Ended):
            watchdog.run()
        (said,) = heard
        return said.partition(" for ")[0].partition(" while ")[0]

    def ends(code: int) -> None:
        assert code == Exit.TIMEOUT
        raise Ended

    monkeypatch.setattr(os, "_exit", ends)
    monkeypatch.setattr(environment, "host_name", lambda: "a")
    return says


def test_a_board_has_its_room_on_the_disk(tmp_path: Path) -> None:
    """A rank that wrote where the disk has none would be killed."""
    path = tmp_path / "board"
    join._make_board(path, 1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_a_full_disk_for_a_board_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", find_no_room)
    with pytest.raises(CannotRun, match="No space left on device") as caught:
        join._make_board(tmp_path / "board", 512)
    assert "TMPDIR" in caught.value.hint


def test_rank_0_names_who_is_behind_or_nobody(verdict: Callable[..., str]) -> None:
    assert verdict(0, "", At(), (2, 1)) == "rank 1 on a has not moved"
    assert verdict(0, "", At()) == "all 2 ranks hang in the same call"
    assert verdict(0, "rank 1 on a is stopped", At(), (1, 2)) == "rank 1 on a is stopped"


def test_ranks_on_several_hosts_go_by_what_all_have_told(verdict: Callable[..., str]) -> None:
    assert verdict(0, "", At(), (1, 0), [1]) == "rank 1 on a has not moved"
    assert verdict(0, "", At(), (1, 0), []) == "all 2 ranks hang in the same call"


@pytest.mark.parametrize(("local_n", "sharers"), [(8, 8), (0, 256), (512, 256)])
def test_memory_and_links_are_shared_by_the_ranks_of_this_host(local_n: int, sharers: int) -> None:
    joined = join.Joined(Membership("torchrun", 0, 256, 0, local_n), 1.0)
    assert joined.room("gloo", 256, Policy()).sharers == sharers
    assert joined.count_sharers(256) == sharers


@pytest.mark.parametrize(("counts", "sharers"), [("1,8", 8), ("4(x2),3", 4), ("what", 1)])
def test_under_slurm_the_fullest_host_counts(
    monkeypatch: pytest.MonkeyPatch, counts: str, sharers: int
) -> None:
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", counts)
    joined = join.Joined(Membership("srun", 0, 9, 0, 1), 1.0)
    assert joined.count_sharers(9) == sharers


def test_others_accuse_nobody_where_rank_0_has_spoken(verdict: Callable[..., str]) -> None:
    assert verdict(1, "", At(ended=True), (1, 2)).startswith("rank 1 on a lost another rank")


def test_a_rank_0_that_says_nothing_in_its_time_is_named(verdict: Callable[..., str]) -> None:
    assert verdict(1, "", At(), (2, 1)) == "nothing is heard of rank 0 on a"


@pytest.mark.parametrize(("lost", "waits"), [("rank 0", False), ("rank 1", True)])
def test_others_end_after_rank_0_but_where_that_is_lost(
    verdict: Callable[..., str], lost: str, waits: bool
) -> None:
    """A launcher accuses who ends first, and ends rank 0 before it can speak."""
    at = At()
    assert verdict(1, f"{lost} on a is stopped", at) == f"{lost} on a is stopped"
    assert (at.waited > 0) == waits


def test_a_rank_that_only_left_first_is_not_accused_where_one_is_stopped() -> None:
    gone = SimpleNamespace(gone=[Hello(1, 4, "a", 9, "mpirun", "")], ended="")
    peer = RuntimeError("Connection closed by peer")
    for stopped, words in (
        ("rank 3 on a is stopped", "lost others, as rank 3 on a is stopped"),
        ("", "lost rank 1 on a (the launcher says why)"),
    ):
        meeting = join.Meeting(At(stopped=stopped), gone)  # type: ignore[arg-type]
        assert join._blame_rank(peer, meeting) == words


def test_a_network_error_is_told_where_nobody_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL has one code for both."""
    monkeypatch.setattr(join, "_MOMENT", 0.0)
    refused = RuntimeError(
        "NCCL error in: X.cpp:77, remote process exited or there was a network error\n"
        "ncclRemoteError: a call failed\nLast error:\nconnect returned Connection refused"
    )
    for gone, words in (
        ([], r"lost another rank \(.*\): NCCL error.*: connect returned Connection refused"),
        ([Hello(1, 4, "a", 9, "mpirun", "")], r"lost rank 1 on a \(the launcher says why\)"),
    ):
        host = SimpleNamespace(gone=gone, ended="")
        meeting = join.Meeting(At(), host)  # type: ignore[arg-type]
        assert re.fullmatch(words, join._blame_rank(refused, meeting))


@pytest.mark.parametrize("step", ["_share_refusal", "_agree_on_plans"])
def test_a_rank_that_loses_rank_0_before_any_plan_says_so(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault of collbench's: exit code 4, and no traceback."""
    meeting = SimpleNamespace(
        host=None,
        gone=lambda: "rank 0 on h0",
        connection=SimpleNamespace(hosts=["h0", "h1"], stopped=lambda: ""),
    )

    def lose(*_: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(join, "hold_meeting", lambda *_: nullcontext(meeting))
    monkeypatch.setattr(join, "divert_stdout", lambda: None)
    monkeypatch.setattr(join.Joined, "_share_refusal", lambda *_: False)
    monkeypatch.setattr(join.Joined, step, lose)
    ranks = join.Joined(Membership("srun", 1, 2, 0, 1), 5.0)
    with pytest.raises(RunBroken, match=r"rank 1 of 2 on .* lost rank 0 on h0"):
        ranks.run([], Listener(lambda line: None))


@pytest.mark.parametrize(
    ("local_n", "timeout", "seconds"),
    [
        (0, 20.0, join.SECONDS),
        (8, 20.0, join.SECONDS),
        (8, 600.0, 600.0),
        (0, None, join.SECONDS),
        (16, 20.0, 20.0),  # ranks of one host load torch from one cache
    ],
)
def test_ranks_of_several_hosts_have_time_to_load_torch(
    local_n: int, timeout: float | None, seconds: float
) -> None:
    assert join.meeting_seconds(timeout, Membership("torchrun", 0, 16, 0, local_n)) == seconds


@pytest.mark.parametrize(
    ("seconds", "n", "limit"), [(120.0, 2, 120.0), (120.0, 2048, 512.0), (5.0, 8, 5.0)]
)
def test_large_worlds_have_longer_to_reach_each_other(seconds: float, n: int, limit: float) -> None:
    assert join.connecting_seconds(seconds, n) == limit


def test_a_rank_that_follows_says_what_to_do_of_a_hang(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: join.Joined, plans: Sequence[Plan], listener: Listener) -> None:
        listener.hung(RunBroken("not all reached each other", "set GLOO_SOCKET_IFNAME"))

    monkeypatch.setattr(join.Joined, "run", run)
    monkeypatch.setattr(join.interrupts, "leave_to_the_system", lambda: None)
    join.follow_rank_0(Membership("torchrun", 2, 4, 0, 2), 1.0)
    assert "not all reached each other\n  hint: set GLOO_SOCKET_IFNAME" in capsys.readouterr().err


def hosts_with(**values: Sequence[str | None]) -> dict[str, dict[str, object]]:
    """The facts of two hosts with these settings, and their kernels."""
    return {
        host: {"kernel": host}
        | {
            f"variables.{name}": of_hosts[place]
            for name, of_hosts in values.items()
            if of_hosts[place] is not None
        }
        for place, host in enumerate(("a", "b"))
    }


@pytest.mark.parametrize(
    ("launcher", "hint"),
    [
        ("mpirun (Open MPI)", ": mpirun -x NCCL_ALGO -x NCCL_PROTO"),
        ("srun", ": srun --export=ALL"),
        ("torchrun", ""),
    ],
)
def test_settings_that_differ_between_hosts_are_named_with_the_remedy(
    launcher: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = hosts_with(NCCL_ALGO=("Ring", None), NCCL_PROTO=("LL", ""), NCCL_NTHREADS=("64", "64"))
    join.note_unlike_settings(facts, launcher)
    assert capsys.readouterr().err.splitlines() == [
        "collbench: settings differ between hosts, and ranks may hang or get wrong data: NCCL_ALGO"
        " is Ring on a, not set on b; NCCL_PROTO is LL on a, empty on b",
        f"  hint: have all hosts get the same{hint}",
    ]


def test_many_settings_that_differ_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    join.note_unlike_settings(hosts_with(**{f"NCCL_S{i}": ("1", "2") for i in range(9)}), "srun")
    assert "NCCL_S2 is 1 on a, 2 on b and 6 more\n" in capsys.readouterr().err


def test_settings_that_name_a_hosts_devices_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    facts = hosts_with(
        NCCL_SOCKET_IFNAME=("eth0", "ens3"),
        CUDA_VISIBLE_DEVICES=("0,1", "2,3"),
        I_MPI_INFO_NUMA_NODE_NUM=("1", "2"),
    )
    join.note_unlike_settings(facts, "srun")
    join.note_unlike_settings({}, "srun")
    assert capsys.readouterr().err == ""
    join.note_unlike_settings(hosts_with(NCCL_IB_HCA=("mlx5_0", None)), "srun")
    assert "NCCL_IB_HCA is mlx5_0 on a, not set on b" in capsys.readouterr().err


@pytest.fixture
def run_plans(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``run_plans(live, *backends)``: has one joined rank run a plan of each backend, for which a
    worker calls ``live`` with the plan and whether it is the backend's last."""

    def run(live: Callable[[Plan, bool], None], *backends: str) -> None:
        class FakeWorker:
            is_open = True

            def __init__(self, setup: object, plan: Plan, *_: object, is_last: bool) -> None:
                self._plan, self._is_last = plan, is_last

            def run(self) -> None:
                live(self._plan, self._is_last)

        plans = [
            Plan(index, name, 1, (("OF_PLAN", str(index)),), Policy(), [], 30.0)
            for index, name in enumerate(backends)
        ]
        connection = SimpleNamespace(hosts=["a"])
        meeting = join.Meeting(connection, None)  # type: ignore[arg-type]
        setup = SimpleNamespace(local_rank=0, local_n=1)
        watch = SimpleNamespace(start=lambda: None, end=lambda: None)
        monkeypatch.setattr(worker, "Worker", FakeWorker)
        monkeypatch.setattr(join, "hold_meeting", lambda *_: nullcontext(meeting))
        monkeypatch.setattr(join, "divert_stdout", lambda: None)
        monkeypatch.setattr(join, "MemberWatch", lambda *_: watch)
        monkeypatch.setattr(join.Joined, "_share_refusal", lambda *_: False)
        agreed = setup, None, None, None, plans
        monkeypatch.setattr(join.Joined, "_agree_on_plans", lambda *_: agreed)
        ranks = join.Joined(Membership("torchrun", 0, 1, 0, 1), 5.0)
        ranks.run([], Listener(lambda line: None))
        assert ranks.opened == len(plans)

    return run


def test_each_plan_finds_its_process_as_the_first_one_did(
    run_plans: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever an earlier one has bound it to, or set where the user had not."""
    bound = {0, 1, 2, 3}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*bound})
    monkeypatch.setenv("OF_USER", "1")
    found: list[tuple[set[int], dict[str, str | None]]] = []

    def bind(pid: int, cpus: set[int]) -> None:
        bound.clear()
        bound.update(cpus)

    def live(plan: Plan, is_last: bool) -> None:
        names = "OF_USER", "OF_PLAN", "OF_LIBRARY"
        found.append(({*bound}, {name: os.environ.get(name) for name in names}))
        os.sched_setaffinity(0, {plan.index})
        del os.environ["OF_USER"]
        os.environ.update(OF_LIBRARY="chosen", OF_PLAN="changed")

    monkeypatch.setattr(os, "sched_setaffinity", bind)
    run_plans(live, "mpi", "gloo", "jax")
    assert found == [
        ({0, 1, 2, 3}, {"OF_USER": "1", "OF_PLAN": str(index), "OF_LIBRARY": None})
        for index in range(3)
    ]
    assert bound == {0, 1, 2, 3} and "OF_LIBRARY" not in os.environ


def test_a_process_leaves_a_library_after_its_last_plan(run_plans: Callable[..., None]) -> None:
    told: list[tuple[str, bool]] = []
    run_plans(lambda plan, is_last: told.append((plan.backend, is_last)), "jax", "gloo", "jax")
    assert told == [("jax", False), ("gloo", True), ("jax", True)]
