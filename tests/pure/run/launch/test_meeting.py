"""The meeting of ranks: who is let in, what is refused in which words, and strangers that connect
to it."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import socket
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from collbench import __version__
from collbench.core.errors import CannotRun, CollbenchError, RunBroken
from collbench.run.launch import awake, connection, folders, host, meeting, rendezvous
from collbench.run.launch.connection import Connection
from collbench.run.launch.environments import Membership
from collbench.run.rank.control import Store, batch_store_requests

KEY = b"one launch's"
SECONDS = 20.0


class InThread:
    """The process in which ranks meet, as a thread of this one."""

    pid = os.getpid()

    def __init__(self, command: list[str], stdin: int, **_: object) -> None:
        control = socket.socket(fileno=os.dup(stdin))
        self._thread = threading.Thread(target=asyncio.run, args=[meeting.serve(control)])
        self._thread.start()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    instead = SimpleNamespace(Popen=InThread, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(host, "subprocess", instead)


class Launch:
    """Ranks as threads of this process, and rank 0's port."""

    def __init__(
        self, n: int, seconds: float = SECONDS, door: meeting.Door = ("127.0.0.1", 0)
    ) -> None:
        listener = meeting.open_listener([door])
        self.door: meeting.Door = door if isinstance(door, Path) else listener.getsockname()
        self.host = host.Host(listener, n, KEY, seconds)
        self.n, self._seconds = n, seconds
        self._threads = ThreadPoolExecutor()

    def come(
        self, *ranks: int, n: int = 0, key: bytes = KEY, seconds: float = 0
    ) -> list[Connection | CollbenchError]:
        """These ranks' connections, or what they were told instead."""

        def one(rank: int) -> Connection | CollbenchError:
            member = Membership("environment", rank, n or self.n, 0, 0)
            try:
                return Connection(member, [self.door], key, seconds or self._seconds)
            except CollbenchError as e:
                return e

        return list(self._threads.map(one, ranks))

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.door, 5)  # type: ignore[arg-type]

    def end(self) -> None:
        self._threads.shutdown()
        self.host.close()


@pytest.fixture
def launch() -> Iterator[Launch]:
    found = Launch(2)
    yield found
    found.end()


def met(found: list[Connection | CollbenchError]) -> list[Connection]:
    assert all(isinstance(one, Connection) for one in found), found
    return found  # type: ignore[return-value]


def test_ranks_meet_and_share_a_store(launch: Launch) -> None:
    first, second = (Store(connection) for connection in met(launch.come(0, 1)))
    assert first._connection.hosts == [socket.gethostname()] * 2
    first.set("a", b"\0\xff raw")
    assert second.get("a") == b"\0\xff raw"
    assert [first.add("n", 2), second.add("n", 3), first.get("n")] == [2, 5, b"5"]
    assert (first.check(["a", "n"]), first.check(["a", "b"]), first.num_keys()) == (True, False, 2)
    assert (second.delete_key("a"), second.delete_key("a"), first.check(["a"])) == (
        True,
        False,
        False,
    )
    assert second.compare_set("c", "", "x") == b"x"
    assert second.compare_set("c", "y", "z") == b"x"
    assert second.compare_set("d", "y", "z") == b"y"
    later = threading.Timer(0.1, lambda: first.set("late", "now"))
    later.start()
    second.wait(["late", "n"])
    assert second.get("late") == b"now"
    with pytest.raises(TimeoutError):
        first.wait(["never"], timedelta(seconds=0.2))
    later.join()


def test_many_values_come_in_as_many_answers_as_they_need(launch: Launch) -> None:
    first, second = (Store(connection) for connection in met(launch.come(0, 1)))
    keys = [f"long {number}" for number in range(5)] + [f"short {number}" for number in range(999)]
    values = [b"x" * (meeting.LINE_LIMIT // 3)] * 5 + [b"y"] * 999
    later = threading.Timer(0.1, lambda: first.multi_set(keys, values))
    later.start()
    assert second.multi_get(keys) == values
    first.append("word", "be")
    second.append("word", b"gin")
    assert (first.get("word"), first.has_extended_api()) == (b"begin", True)
    later.join()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests of all connections, by op."""
    counts: Counter[str] = Counter()
    ask = Connection.ask

    def count(self: Connection, request: meeting.Request, *args: Any) -> meeting.Answer:
        counts[request.op] += 1
        return ask(self, request, *args)

    monkeypatch.setattr(Connection, "ask", count)
    return counts


@pytest.mark.parametrize("settings", [{}, {"GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "0"}])
def test_gloo_asks_once_for_the_addresses_of_all_ranks(
    requests: Counter[str], settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import torch.distributed as dist

    if torch.__version__.startswith("2.6"):
        pytest.skip("Gloo of torch 2.6 asks for each address")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    before, n = dict(os.environ), 4
    launch = Launch(n)
    stores = [Store(connection) for connection in met(launch.come(*range(n)))]

    def connect(rank: int) -> Any:
        group = dist.ProcessGroupGloo(
            dist.PrefixStore("p", stores[rank]), rank, n, timedelta(seconds=SECONDS)
        )
        total = torch.tensor([rank])
        group.allreduce([total]).wait()
        return group, int(total)

    with batch_store_requests(), ThreadPoolExecutor(n) as threads:
        groups = list(threads.map(connect, range(n)))
    assert [total for _, total in groups] == [6] * n
    assert dict(os.environ) == before
    assert {op: requests[op] for op in ("set", "get", "get_many")} == {
        "set": n,
        "get": 0,
        "get_many": n,
    }
    del groups
    launch.end()


def test_who_is_behind_is_known_once_all_have_told_their_place(launch: Launch) -> None:
    first, second = met(launch.come(0, 1))
    first.beat((1, 2, 1, 5))
    assert first.find_behind(SECONDS) == []
    second.beat((1, 2, 1, 4))
    assert second.find_behind(SECONDS) == []  # it waits for this answer
    assert first.find_behind(SECONDS) == launch.host.find_behind() == [1]
    first.beat((1, 2, 1, 4))
    assert first.find_behind(SECONDS) == []
    first.beat((1, 2, 0, 9))  # at an earlier case
    assert second.find_behind(SECONDS) == [0]


def test_a_rank_says_and_is_told_what_nobody_asked_for(launch: Launch) -> None:
    heard: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
    launch.host.on_value = lambda rank, said: heard.put((rank, said))
    _, second = met(launch.come(0, 1))
    second.send(b"w line")
    assert heard.get(timeout=10) == (1, b"w line")
    assert second.receive() == b""  # it was heard
    launch.host.send_to_rank(1, b"run").result(10)
    assert second.receive() == b"run"
    second.close()
    assert heard.get(timeout=10) == (1, None)
    assert launch.host.gone == []


def test_all_know_how_long_their_world_has_had_its_turn(launch: Launch) -> None:
    _, second = met(launch.come(0, 1))
    assert second.awake(10) == launch.host.awake() == meeting.LONGEST
    launch.host.rest()
    assert launch.host.awake() == second.awake(10) == 0
    launch.host.resume()
    assert launch.host.awake() <= second.awake(10) + 0.001 < meeting.LONGEST
    launch.host.close()
    assert second.awake(1) == launch.host.awake() == math.inf


def test_orders_fail_once_the_process_has_ended(launch: Launch) -> None:
    met(launch.come(0, 1))
    assert (launch.host.ended, launch.host.lost(SECONDS)) == ("", "")
    waiting = launch.host.send_to_rank(7, b"for a rank that never comes")
    launch.host.close()
    assert isinstance(waiting.exception(10), OSError)
    assert isinstance(launch.host.send_to_rank(1, b"too late").exception(10), OSError)
    assert launch.host.ended == f"the process in which ranks meet (pid {os.getpid()})"
    assert launch.host.lost(SECONDS) == f"{launch.host.ended} does not answer"
    launch.host.see_off(0.0)


def test_a_process_that_does_not_come_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = SimpleNamespace(wait=lambda: 3)
    instead = SimpleNamespace(Popen=lambda *_, **__: ended, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(host, "subprocess", instead)
    with pytest.raises(CannotRun, match="did not come up: it ended with 3"):
        Launch(2)


def test_torch_takes_the_store_apart_from_its_prefixes(launch: Launch) -> None:
    import torch.distributed as dist

    first, second = (Store(connection) for connection in met(launch.come(0, 1)))
    dist.PrefixStore("p", dist.PrefixStore("q", first)).set("k", b"v")
    assert second.get("q/p/k") == b"v"
    assert dist.PrefixStore("q", second).get("p/k") == b"v"


def test_nobody_is_listened_to_once_all_have_come(launch: Launch) -> None:
    early = launch.stranger()
    met(launch.come(0, 1))
    early.settimeout(5)
    assert b"nonce" in early.recv(100)
    assert early.recv(100) == b""
    with pytest.raises(OSError):
        launch.stranger()


def test_ranks_that_never_come_are_named() -> None:
    launch = Launch(5, seconds=0.5)
    found = launch.come(0, 3)
    here = socket.gethostname()
    words = (
        "not all ranks came together within 0.5 s: ranks 1, 2, 4 never came; ranks 0, 3 came from"
        f" {here}"
    )
    assert [(type(one), str(one)) for one in found] == [(RunBroken, words)] * 2
    launch.end()


def test_a_rank_that_comes_twice_ends_the_launch() -> None:
    launch = Launch(3)
    found = launch.come(0, 1, 1)
    assert all(isinstance(one, CannotRun) for one in found)
    (words,) = {str(one) for one in found}
    who = f"from {socket.gethostname()} (pid {os.getpid()}, environment)"
    assert words == f"rank 1 came twice: {who}, and {who}"
    launch.end()


def test_two_worlds_are_told_apart(launch: Launch) -> None:
    with ThreadPoolExecutor() as pool:
        told_both = [pool.submit(launch.come, rank, n=n) for rank, n in ((0, 2), (3, 4))]
        found = [one for future in told_both for one in future.result()]
    assert all(isinstance(one, CannotRun) for one in found)
    (words,) = {str(one) for one in found}
    assert words.startswith("two worlds: rank ")
    assert "rank 3 on" in words
    assert "one of 4" in words


def test_another_version_is_refused(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor() as pool:
        came, introduce = threading.Event(), Connection._introduce

        def introduce_and_tell(self: Connection, at: socket.socket) -> None:
            introduce(self, at)
            came.set()

        monkeypatch.setattr(Connection, "_introduce", introduce_and_tell)
        waiting = pool.submit(launch.come, 0)
        assert came.wait(SECONDS)
        monkeypatch.setattr("collbench.run.launch.connection.__version__", "0.0.9")
        found = [*launch.come(1), *waiting.result()]
    assert {str(one) for one in found} == {
        f"rank 1 on {socket.gethostname()} runs collbench 0.0.9, rank 0 on {socket.gethostname()}"
        f" {__version__}"
    }


def test_a_rank_that_leaves_before_all_have_come_is_named(launch: Launch) -> None:
    class Leaver(Connection):
        def _connect(self, *given: object) -> None:
            super()._connect(*given)  # type: ignore[arg-type]
            self._lines.close(), self._socket.close()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        Leaver(Membership("environment", 1, 2, 0, 0), [launch.door], KEY, SECONDS)
    (found,) = launch.come(0)
    assert isinstance(found, CannotRun)
    assert (
        f"rank 1 on {socket.gethostname()} left again before all 2 ranks had come" in found.message
    )


class Spy(threading.Thread):
    """A wire-tap: passes one connection on to the meeting, and keeps what the guest has said."""

    def __init__(self, door: meeting.Door) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.door: meeting.Door = self._listener.getsockname()
        self._to, self.heard = door, b""
        self.start()

    def run(self) -> None:
        guest = self._listener.accept()[0]
        host = socket.create_connection(self._to)  # type: ignore[arg-type]
        guest.sendall(host.recv(4096))
        self.heard = guest.recv(4096)
        guest.close(), host.close(), self._listener.close()


GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\n",
    b"\0" * 100 + b"\n",
    b"{}\n",
    b"00 {}\n",
    b"[" * 4000 + b"\n",
    b"\xff\xfe \xff\n",
    b'0 {"rank":0,"n":2,"host":"x","pid":1,"launcher":"","version":"","nonce":""}\n',
)


def garbage(launch: Launch) -> list[socket.socket]:
    found = []
    for line in GARBAGE:
        found.append(launch.stranger())
        found[-1].sendall(line)
    return found


def silence(launch: Launch) -> list[socket.socket]:
    return [launch.stranger() for _ in range(3 * meeting.PENDING)]


def flood(launch: Launch) -> list[socket.socket]:
    found = [launch.stranger() for _ in range(8)]
    for at in found:
        at.settimeout(5)
        with pytest.raises(OSError):
            for _ in range(64):
                at.sendall(b"x" * (1 << 20))
    return found


def halves(launch: Launch) -> list[socket.socket]:
    """Hang up in the middle of everything."""
    for line in (b"", b"ab", b"0 {"):
        with launch.stranger() as at:
            at.sendall(line)
    return []


def replay(launch: Launch) -> list[socket.socket]:
    spy = Spy(launch.door)
    honest = Membership("environment", 1, 2, 0, 0)
    with pytest.raises(RunBroken):
        Connection(honest, [spy.door], KEY, 0.5)
    spy.join(5)
    assert b'"rank":1' in spy.heard
    found = [launch.stranger() for _ in range(3)]
    for at in found:
        at.sendall(spy.heard)
        at.settimeout(5)
        assert b"nonce" in at.recv(4096)
        assert at.recv(4096) == b""
    return found


@pytest.mark.parametrize("strangers", [garbage, silence, flood, halves, replay])
def test_strangers_keep_nobody_from_meeting(strangers, launch: Launch) -> None:
    kept = strangers(launch)
    first, second = (Store(connection) for connection in met(launch.come(0, 1)))
    first.set("a", b"1")
    assert (second.get("a"), second.num_keys()) == (b"1", 1)
    assert launch.host.gone == []
    for at in kept:
        at.close()


def test_another_key_keeps_a_rank_out() -> None:
    launch = Launch(2, seconds=2)
    (other,) = launch.come(1, key=b"another launch's", seconds=0.5)
    assert isinstance(other, RunBroken)
    assert "of another launch, or has another COLLBENCH_TOKEN" in other.message
    (rank0,) = launch.come(0)
    assert isinstance(rank0, RunBroken)
    assert "rank 1 never came" in rank0.message
    assert "did not belong here" in rank0.message
    launch.end()


def test_a_false_rank_0_is_passed_by(launch: Launch) -> None:
    """Something else listens at the first port; a rank tries the next."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as at:
                at.sendall(b'{"nonce":"00"}\n')
                at.recv(4096)
                at.sendall(b"00 {}\n")

        threading.Thread(target=answer, daemon=True).start()
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(launch.come, 0)
            connection = Connection(
                Membership("environment", 1, 2, 0, 0),
                [other.getsockname(), launch.door],
                KEY,
                SECONDS,
            )
            met(waiting.result())
    assert len(connection.hosts) == 2


def test_a_line_that_was_changed_under_way_ends_its_rank_only(launch: Launch) -> None:
    first, second = met(launch.come(0, 1))
    second._socket.sendall(b"0" * 64 + b' {"op":"set","keys":["a"],"value":"eA=="}\n')
    with pytest.raises((ConnectionError, OSError)):
        second.ask(meeting.Request("count"))
    assert Store(first).num_keys() == 0
    assert known_to_be_gone(launch) == [1]


@pytest.mark.parametrize("seconds", [5.0, 500.0])
def test_a_suspension_is_no_silence(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Of the process in which ranks meet, and of those beside it."""
    now = 1000.0
    monkeypatch.setattr(awake, "time", SimpleNamespace(monotonic=lambda: now))
    server = meeting.MeetingServer(None, meeting.Terms(2, KEY, SECONDS), None)  # type: ignore[arg-type]
    server._last_beats = dict.fromkeys((0, 1), server._clock.read())
    server._woke = server._clock.read()
    now += seconds
    assert server._silent(4.0) == []
    assert server._awake() <= awake.GAP_SECONDS
    for _ in range(3):
        now += 1.0
        server._clock.read()
    assert server._silent(4.0) == [0, 1]


def known_to_be_gone(launch: Launch) -> list[int]:
    """The ranks that rank 0 knows to be gone, once there are any."""
    until = time.monotonic() + 10
    while not launch.host.gone and time.monotonic() < until:
        time.sleep(0.01)
    return [hello.rank for hello in launch.host.gone]


def test_a_rank_that_has_gone_is_known_and_one_that_takes_leave_is_not(launch: Launch) -> None:
    first, second = met(launch.come(0, 1))
    second._lines.close(), second._socket.close()
    assert known_to_be_gone(launch) == [1]
    first.close()
    launch.host.close()
    assert len(launch.host.gone) == 1


def test_a_rank_that_does_not_leave_is_named(launch: Launch, capsys) -> None:
    stays, leaves = launch.come(0, 1)
    for each in (stays, leaves):
        assert isinstance(each, Connection)
        each.ask(meeting.Request("count"))
    leaves.close()
    launch.host.see_off(0.05)
    assert "rank 0 on " in (said := capsys.readouterr().err)
    assert "rank 1 on " not in said


def test_all_know_whom_rank_0_has_lost(launch: Launch) -> None:
    silent, asks = launch.come(0, 1)
    for each in (silent, asks):
        assert isinstance(each, Connection)
        each.ask(meeting.Request("count"))
    assert asks.lost(SECONDS, SECONDS) == ""
    time.sleep(0.01)
    assert asks.lost(0.005, SECONDS).startswith("nothing is heard of rank 0 on ")


def test_a_rank_0_that_does_not_answer_is_lost(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting.MeetingServer, "_done", lambda *_: asyncio.Event().wait())
    _, other = met(launch.come(0, 1))
    assert other.lost(SECONDS, 0.05) == f"nothing is heard of rank 0 on {other.hosts[0]}"
    assert not other.ended()


def test_a_rank_0_that_has_ended_is_not_accused_of_silence() -> None:
    brief = Launch(2)
    _, other = met(brief.come(0, 1))
    brief.end()
    gc.collect()  # closes its sockets, as the end of a process does
    assert other.lost(SECONDS, SECONDS) == ""
    assert other.ended()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Launch]:
    """Ranks that meet at a socket's path, where the kernel says who comes: this process."""
    found = Launch(2, door=tmp_path / "meeting")
    yield found
    found.end()


def test_a_stopped_rank_of_this_host_is_named_though_another_thread_waits_for_rank_0(
    beside: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = met(beside.come(0, 1))
    waits = threading.Thread(target=Store(second).get, args=["what the stopped rank is to set"])
    waits.start()
    while second._lock.acquire(blocking=False):
        second._lock.release()
    assert second.lost(SECONDS, 0.05) == ""
    doing = {0: "stopped", os.getpid(): "running"}
    monkeypatch.setattr(meeting, "process_state", doing.get)
    second._pids[0] = 0
    assert second.lost(SECONDS, 0.05) == f"rank 0 on {second.hosts[0]} is stopped (SIGSTOP)"
    Store(first).set("what the stopped rank is to set", "")
    waits.join()


def test_ranks_at_a_socket_of_this_host_know_each_others_processes(beside: Launch) -> None:
    for each in met(beside.come(0, 1)):
        assert each._pids == {0: os.getpid(), 1: os.getpid()}
        assert each.stopped() == ""


def test_ranks_of_another_pid_namespace_are_looked_for_nowhere(
    beside: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection.os, "getpid", lambda: 0)
    assert [each._pids for each in met(beside.come(0, 1))] == [{}, {}]


def test_long_values_are_refused_where_they_are_made(launch: Launch) -> None:
    first, second = (Store(connection) for connection in met(launch.come(0, 1)))
    with pytest.raises(ValueError, match="over the limit"):
        first.set("a", b"x" * meeting.LINE_LIMIT)
    first.set("a", b"x" * (meeting.LINE_LIMIT // 2))
    assert len(second.get("a")) == meeting.LINE_LIMIT // 2


def test_a_port_in_use_is_left_for_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()
        found = meeting.open_listener([taken, ("127.0.0.1", 0)])
        assert found.getsockname()[1] != taken[1]
        found.close()
        with pytest.raises(CannotRun, match=r"cannot listen at 127\.0\.0\.1, port"):
            meeting.open_listener([taken])
    with pytest.raises(CannotRun, match=r"cannot listen at 192\.0\.2\.77"):
        meeting.open_listener([("192.0.2.77", 12345)])


def test_one_host_meets_in_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("long" * 40)
    deep.mkdir()
    monkeypatch.setattr(folders.tempfile, "tempdir", str(deep))
    alone = Membership("torchrun", 0, 1, 0, 1)
    with rendezvous.agree_on_doors(alone, SECONDS) as (places, key):
        kept = host.Host(meeting.open_listener(places), 1, key, SECONDS)
        (folder,) = deep.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        connection = Connection(alone, places, key, SECONDS)
    assert connection.address == ""
    assert Store(connection).num_keys() == 0
    kept.close()
    assert list(deep.iterdir()) == []
    folder.mkdir()
    folder.chmod(0o755)
    with (
        pytest.raises(CannotRun, match="not this user's alone"),
        rendezvous.agree_on_doors(alone, SECONDS),
    ):
        pass


def test_ranks_of_one_host_with_folders_of_their_own_are_told_of_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = [Membership("srun", rank, 2, rank, 2) for rank in range(2)]
    texts = []
    for rank, member in enumerate(launches):
        (own := tmp_path / str(rank)).mkdir()
        monkeypatch.setattr(folders.tempfile, "tempdir", str(own))
        with (
            pytest.raises(RunBroken) as caught,
            rendezvous.agree_on_doors(member, 0.3) as (doors, key),
        ):
            kept = host.Host(meeting.open_listener(doors), 2, key, 0.3) if rank == 0 else None
            Connection(member, doors, key, 0.3)
        if kept:
            kept.close()
        longer = "raise -T, as -T 0.8 (in a suite: timeout = 0.8 in [policy])"
        assert f"and the same TMPDIR, or {longer}" in caught.value.hint
        texts.append(caught.value.message)
    assert "rank 1 never came" in texts[0]
    assert f"did not reach rank 0 at {tmp_path}/1/collbench-tmp-" in texts[1]


def test_a_folder_that_takes_no_sockets_is_named_with_tmpdir(tmp_path: Path) -> None:
    (tmp_path / "meeting").mkdir()  # where a socket cannot be
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(CannotRun) as caught:
        meeting.open_listener([Path(f"/proc/self/fd/{opened}/meeting")])
    os.close(opened)
    assert f"cannot listen at {tmp_path}/meeting: " in caught.value.message
    assert "TMPDIR" in caught.value.hint and "MASTER_ADDR" not in caught.value.hint


class Process:
    """A process, and those above it."""

    def __init__(self, pid: int, *above: str) -> None:
        self.pid, self._above = pid, above

    def parents(self) -> list[SimpleNamespace]:
        above = enumerate(self._above)
        return [
            SimpleNamespace(
                pid=7 if name == "hydra_pmi_proxy" else self.pid - 1 - depth,
                name=lambda name=name: name,
                create_time=lambda: 1.5,
            )
            for depth, name in above
        ]


@pytest.mark.parametrize(
    ("above", "alike"),
    [
        (("hydra_pmi_proxy", "mpiexec.hydra"), True),
        (("bash", "hydra_pmi_proxy", "mpiexec.hydra", "bash"), True),
        (("bash", "bash", "hydra_pmi_proxy"), True),
        (("bash", "sshd"), False),
    ],
)
def test_ranks_of_a_launch_without_a_name_meet_also_below_scripts(
    above: tuple[str, ...], alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous.environments, "job_name", lambda member: "")
    member, names = Membership("mpirun", 0, 2, 0, 2), []
    for pid in (100, 200):
        monkeypatch.setattr(rendezvous.psutil, "Process", lambda pid=pid: Process(pid, *above))
        names.append(rendezvous._local_name(member))
    assert (names[0] == names[1]) is alike


@pytest.mark.parametrize(
    ("named", "address"),
    [("", "10.1.0.1"), ("eth1", "10.2.0.1"), ("eth1,eth0", "10.2.0.1"), ("eth7", "")],
)
def test_an_address_is_of_the_first_interface_named_or_up(
    monkeypatch: pytest.MonkeyPatch, named: str, address: str
) -> None:
    """An address with a label (lo:0) is that of an interface which has no statistics of its own."""
    names = {"lo": "127.0.0.1", "lo:0": "10.9.9.9", "eth9": "10.9.0.1"}
    names |= {"eth0": "10.1.0.1", "eth1": "10.2.0.1"}
    found = {
        name: [SimpleNamespace(family=socket.AF_INET, address=at)] for name, at in names.items()
    }
    up = {name: SimpleNamespace(isup=name != "eth9") for name in ("lo", "eth9", "eth0", "eth1")}
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(rendezvous.psutil, "net_if_stats", lambda: up)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    assert rendezvous.chosen_address() == address


@pytest.mark.parametrize(
    ("default", "named", "has_four", "address"),
    [
        ("eth1", "", True, "10.2.0.1"),
        ("", "", True, "10.1.0.1"),
        ("docker0", "", True, "172.17.0.1"),  # its packets do leave the host
        ("eth1", "eth0", True, "10.1.0.1"),
        ("eth1", "docker0", True, "172.17.0.1"),
        ("eth1", "usb0", True, "169.254.3.1"),
        ("eth0", "", False, "fd00::1"),
        ("", "", False, "fd00::1"),
        ("", "eth1", False, ""),
    ],
)
def test_an_address_is_one_that_leads_here_from_other_hosts(
    monkeypatch: pytest.MonkeyPatch, default: str, named: str, has_four: bool, address: str
) -> None:
    """A BMC's USB device and Docker's bridge come first here, and lead other hosts nowhere."""
    four = {
        "usb0": "169.254.3.1",
        "docker0": "172.17.0.1",
        "eth0": "10.1.0.1",
        "eth1": "10.2.0.1",
    }
    six = {"lo": "::1", "eth1": "fe80::2%eth1", "eth0": "fd00::1"}
    found: dict[str, list[SimpleNamespace]] = {}
    for family, addresses in ((socket.AF_INET, four if has_four else {}), (socket.AF_INET6, six)):
        for name, at in addresses.items():
            entry = SimpleNamespace(family=family, address=at)
            found.setdefault(name, []).append(entry)
    up = {name: SimpleNamespace(isup=True) for name in found}
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: found)
    monkeypatch.setattr(rendezvous.psutil, "net_if_stats", lambda: up)
    monkeypatch.setattr(rendezvous, "find_default_interface", lambda: default)
    monkeypatch.setattr(rendezvous, "is_inner_bridge", lambda name: name == "docker0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    assert rendezvous.chosen_address() == address


def test_a_rank_0_without_an_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "")
    monkeypatch.setattr(rendezvous, "tell_address", lambda _, address, __: (address, "token"))
    with (
        pytest.raises(CannotRun, match="rank 0 has no address that other hosts could reach"),
        rendezvous.agree_on_doors(Membership("mpirun (MPICH)", 0, 2, 0, 0), SECONDS),
    ):
        pass
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("192.0.2.77", 0))])
    with pytest.raises(CannotRun, match=r"has no address on eth7 \(GLOO_SOCKET_IFNAME\)"):
        rendezvous.own_address("gateway")


EVERYWHERE = rendezvous.EVERYWHERE[not socket.has_dualstack_ipv6()]


@pytest.mark.parametrize(
    ("resolved", "own", "listens", "is_noted"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", False),
        ("127.0.1.1", "10.1.2.3", EVERYWHERE, False),
        ("192.0.2.77", "10.1.2.3", EVERYWHERE, True),  # of a service or gateway before the host
        ("", "10.1.2.3", EVERYWHERE, False),  # before the cluster's DNS knows it
    ],
)
def test_rank_0_listens_everywhere_where_others_may_know_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    resolved: str,
    own: str,
    listens: str,
    is_noted: bool,
) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        if not resolved:
            raise socket.gaierror
        return [(0, 0, 0, "", (resolved, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "10.1.2.3")
    monkeypatch.setattr(rendezvous.environment, "host_name", lambda: "node1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1" if resolved == own else "node1")
    first = Membership("environment", 0, 2, 0, 0)
    with rendezvous.agree_on_doors(first, SECONDS) as (doors, _):
        listening = rendezvous.find_listening_doors(first, doors)
    assert {door[0] for door in doors if not isinstance(door, Path)} == {own}
    assert listening == [(listens, door[1]) for door in doors if not isinstance(door, Path)]
    note = "collbench: rank 0 on node1 listens at all its addresses, as none of them is that of"
    assert capsys.readouterr().err.startswith(note) is is_noted


def test_rank_0_listens_only_where_it_has_told_others_or_in_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[meeting.Door] = [("10.1.2.3", 20_000)]
    folder: list[meeting.Door] = [tmp_path / "meeting"]
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert rendezvous.find_listening_doors(Membership("mpirun (MPICH)", 0, 2, 0, 0), told) == told
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.77")
    assert rendezvous.find_listening_doors(Membership("torchrun", 0, 2, 0, 2), folder) == folder
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")  # an interface that somebody has chosen
    assert rendezvous.find_listening_doors(Membership("environment", 0, 2, 0, 0), told) == told


class OfHosts:
    """Ranks of a launch, each with the host and the boot that it says it is of, and the address at
    which it looks for rank 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launch: Launch) -> None:
        self._launch, self._rank = launch, threading.local()
        monkeypatch.setattr(connection.environment, "host_name", lambda: self._rank.host)
        monkeypatch.setattr(connection.environment, "boot_id", lambda: self._rank.boot)

    def come(self, *ranks: tuple[str, str | None, str]) -> list[Connection | CollbenchError]:
        def come_as(rank: int, host: str, boot: str | None, address: str) -> Any:
            self._rank.host, self._rank.boot = host, boot
            member = Membership("environment", rank, self._launch.n, 0, 0)
            assert not isinstance(self._launch.door, Path)
            try:
                return Connection(member, [(address, self._launch.door[1])], KEY, SECONDS)
            except CollbenchError as e:
                return e

        with ThreadPoolExecutor() as pool:
            coming = [pool.submit(come_as, rank, *which) for rank, which in enumerate(ranks)]
            return [future.result() for future in coming]


@pytest.fixture
def three_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfHosts]:
    launch = Launch(3, door=(EVERYWHERE, 0))
    yield OfHosts(monkeypatch, launch)
    launch.end()


def test_gloo_keeps_to_where_another_host_has_reached_rank_0(
    three_hosts: OfHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_address(name: object) -> str:
        return meeting_address(name).replace("127.0.0.3", "10.1.2.3")

    meeting_address = meeting.find_address
    monkeypatch.setattr(meeting, "find_address", find_address)
    came = [("a", "x", "127.0.0.1"), ("a", "x", "127.0.0.2"), ("b", "y", "127.0.0.3")]
    addresses = [connection.address for connection in met(three_hosts.come(*came))]
    assert addresses[:2] == ["10.1.2.3"] * 2
    assert addresses[2].startswith("127.")  # its own


def test_what_forwards_to_loopback_is_no_way_for_gloo(three_hosts: OfHosts) -> None:
    came = [("a", "x", "127.0.0.1"), ("a", "x", "127.0.0.1"), ("b", "y", "127.0.0.3")]
    assert met(three_hosts.come(*came))[0].address == "127.0.0.1"


def test_two_machines_of_one_name_are_refused(three_hosts: OfHosts) -> None:
    came = three_hosts.come(*(("image", boot, "127.0.0.1") for boot in ("x", "y", "x")))
    assert all(isinstance(rank, CannotRun) for rank in came)
    words = {str(rank) for rank in came}
    assert len(words) == 1 and "on two machines that both call themselves image" in words.pop()
    assert {rank.hint for rank in came if isinstance(rank, CannotRun)} == {meeting.NAMES_HINT}


def test_containers_of_one_machine_and_hosts_of_unknown_boots_meet(three_hosts: OfHosts) -> None:
    came = [("a", "x", "127.0.0.1"), ("b", "x", "127.0.0.1"), ("a", None, "127.0.0.1")]
    assert met(three_hosts.come(*came))[0].hosts == ["a", "b", "a"]


def test_rank_0_listens_at_the_address_it_is_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.own_address("localhost") == rendezvous.own_address("127.0.0.1") == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", ("127.0.1.1", 0))])
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "10.1.2.3")
    assert rendezvous.own_address("node1") == "10.1.2.3"
    assert rendezvous.own_address("cafe") == "10.1.2.3"  # a name, in the digits of IPv6


def test_a_pod_listens_before_the_clusters_dns_knows_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "10.1.2.3")
    monkeypatch.setattr(rendezvous.environment, "host_name", lambda: "job-0")
    assert rendezvous.own_address("job-0.job") == "10.1.2.3"
    for other in ("job-1.job", "job"):
        with pytest.raises(CannotRun, match=f"rank 0 on job-0 does not know the host {other} "):
            rendezvous.own_address(other)


@pytest.mark.parametrize(
    ("resolved", "here", "address"),
    [
        ("127.0.1.1", "node1", "10.1.2.3"),
        ("10.1.2.4", "node1", "node1"),
        ("", "node2", "node1"),
        ("", "node1.cluster", "10.1.2.3"),  # beside rank 0, before DNS knows the name
    ],
)
def test_a_rank_on_rank_0s_host_looks_where_that_listens(
    resolved: str, here: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: Any, **__: Any) -> list[Any]:
        if not resolved:
            raise socket.gaierror
        return [(0, 0, 0, "", (resolved, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(rendezvous, "chosen_address", lambda: "10.1.2.3")
    monkeypatch.setattr(rendezvous.environment, "host_name", lambda: here)
    monkeypatch.setenv("MASTER_ADDR", "node1")
    with rendezvous.agree_on_doors(Membership("environment", 1, 2, 0, 0), SECONDS) as (doors, _):
        assert {door[0] for door in doors} == {address}


def test_ports_follow_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLBENCH_TOKEN", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    by_hand, torchrun = (Membership(name, 1, 2, 0, 0) for name in ("environment", "torchrun"))
    with (
        rendezvous.agree_on_doors(by_hand, SECONDS) as (places, key),
        rendezvous.agree_on_doors(by_hand, SECONDS) as (again, _),
    ):
        assert places[0] == ("127.0.0.1", 29400)
        assert places == again
        assert len(places) == 1 + rendezvous.PORTS
    with rendezvous.agree_on_doors(torchrun, SECONDS) as (
        others,
        _,
    ):  # whose agent is at MASTER_PORT
        assert ("127.0.0.1", 29400) not in others
    monkeypatch.setenv("COLLBENCH_TOKEN", "secret")
    with rendezvous.agree_on_doors(by_hand, SECONDS) as (same, other):
        assert (same, other == key) == (places, False)
    monkeypatch.setenv("MASTER_PORT", "high")
    with (
        pytest.raises(CannotRun, match="MASTER_PORT=high"),
        rendezvous.agree_on_doors(by_hand, SECONDS),
    ):
        pass


class Pmi(threading.Thread):
    """The launcher's end of PMI-1 for one process."""

    def __init__(self, space: dict[str, str], answers: bool = True) -> None:
        super().__init__(daemon=True)
        self.ours, theirs = socket.socketpair()
        self.fd = theirs.detach()
        self._space, self._answers = space, answers
        self.start()

    def run(self) -> None:
        with self.ours, self.ours.makefile("r") as lines:
            for line in lines:
                said = dict(word.split("=", 1) for word in line.split())
                if said["cmd"] == "put":
                    self._space[said["key"]] = said["value"]
                value = self._space.get(said.get("key", ""), "")
                rest = {
                    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                    "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_7_0",
                    "put": "cmd=put_result rc=0 msg=success",
                    "barrier_in": "cmd=barrier_out",
                    "get": (
                        f"cmd=get_result rc=0 value={value}"
                        if value
                        else "cmd=get_result rc=-1 msg=key_not_found"
                    ),
                }[said["cmd"]]
                if not self._answers:
                    return
                self.ours.sendall(f"{rest}\n".encode())


def test_pmi_tells_where_rank_0_is(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, str] = {}
    found = []
    for rank, address in ((0, "10.0.0.1"), (1, "")):
        process = Pmi(space)
        monkeypatch.setenv("PMI_FD", str(process.fd))
        found.append(
            rendezvous.tell_address(Membership("mpirun (MPICH)", rank, 2, 0, 0), address, SECONDS)
        )
        os.close(process.fd)
        process.join(5)
        assert not process.is_alive()
    assert found[0] == found[1]
    assert found[0] is not None
    address, token = found[0]
    assert (address, len(token)) == ("10.0.0.1", 32)
    for process, words in ((Pmi({}), "key_not_found"), (Pmi(space, answers=False), "no answer")):
        monkeypatch.setenv("PMI_FD", str(process.fd))
        with pytest.raises(CannotRun, match=words):
            rendezvous.tell_address(Membership("mpirun (MPICH)", 1, 2, 0, 0), "", SECONDS)
        os.close(process.fd)
    monkeypatch.setenv("PMI_FD", "not a number")
    with pytest.raises(CannotRun, match="does not say where rank 0 is"):
        rendezvous.tell_address(Membership("mpirun (MPICH)", 1, 2, 0, 0), "", SECONDS)


def test_a_launcher_that_waits_for_ranks_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("PMI_FD", str(theirs.fileno()))
    with ours, theirs:
        with pytest.raises(RunBroken, match=r"did not learn rank 0's address within 0\.1 s"):
            rendezvous.tell_address(Membership("mpirun (MPICH)", 1, 2, 0, 0), "", 0.1)
        assert os.get_blocking(theirs.fileno())  # MPI's own reads wait


def test_without_any_word_of_rank_0_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(CannotRun, match="rank 0's host is unknown"),
        rendezvous.agree_on_doors(Membership("pbsdsh", 0, 2, 0, 0), SECONDS),
    ):
        pass
