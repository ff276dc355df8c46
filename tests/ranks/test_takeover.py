"""A forked rank is as what mpirun has started for it, or is a fresh process; its warden stands in
for it under mpirun to its end."""

from __future__ import annotations

import ast
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collbench.core.errors import CannotRun
from collbench.run.launch import forkserver, local, takeover, warden
from collbench.run.launch.forkserver import Note

Request = dict[str, Any]
SOON = 60.0  # seconds
SCRIPT = Path(warden.__file__)
ASKS = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
import warden
request = warden.gather_request()
at = socket.socket(fileno=int(sys.argv[2]))
request["descriptors"].remove(at.fileno())
at.send(repr(request).encode())
folder = os.open(".", os.O_PATH)
socket.send_fds(at, [b"files"], [folder, *request["descriptors"]])
at.recv(1)
"""


@contextmanager
def asked(*before: str, **options: Any) -> Iterator[tuple[Request, list[int]]]:
    """The request and open files of a process that COMMAND... has begun."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [*before, sys.executable, "-I", "-S", "-c", ASKS, str(SCRIPT.parent)]
    files = [theirs.fileno(), *options.pop("pass_fds", [])]
    with (
        ours,
        theirs,
        subprocess.Popen([*command, str(theirs.fileno())], pass_fds=files, **options) as process,
    ):
        ours.settimeout(SOON)
        request = ast.literal_eval(ours.recv(1 << 20).decode())
        _, fds, _, _ = socket.recv_fds(ours, 64, 64)
        try:
            yield request, fds
        finally:
            ours.send(b"x")
            process.wait(SOON)
            for fd in fds:
                os.close(fd)


def lived(act: Callable[[], object]) -> Any:
    """What ``act`` returns in a process that is forked from this one."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reads)
            os.set_inheritable(writes, False)
            result = act()
        except BaseException as e:
            result = f"{type(e).__name__}: {e}"
        os.write(writes, repr(result).encode())
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as file:  # noqa: PTH123
        text = file.read().decode()
    os.waitpid(pid, 0)
    return ast.literal_eval(text)


def stand_in(request: Request, fds: list[int]) -> dict[str, Any]:
    """Take over, and tell what there is then."""
    folder, *files = takeover.move_descriptors([os.dup(fd) for fd in fds], [400])
    takeover.take_over(request, folder, files)
    numbers = request["descriptors"]
    return {
        "request": warden.gather_request(),
        "folder": str(Path.cwd()),
        "texts": {number: os.pread(number, 64, 0) for number in numbers if number > 2},
        "session": os.getsid(0) == os.getpid(),
    }


def test_a_forked_process_takes_over_all_that_the_other_was_given(tmp_path: Path) -> None:
    def begin() -> None:
        os.umask(0o27)
        os.nice(3)
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (999, 1000))
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR2, signal.SIGRTMIN + 1])

    with ExitStack() as stack:
        opened = stack.enter_context((tmp_path / "file").open("w+b"))
        opened.write(b"of mpirun")
        opened.flush()
        number = os.dup2(opened.fileno(), 333)
        stack.callback(os.close, number)
        env = {"PMI_RANK": "1", "NAME": "value \udcff\n'", "PATH": os.environ["PATH"]}
        request, fds = stack.enter_context(
            asked(
                *("env", "-u", "LC_CTYPE"),
                preexec_fn=begin,
                env=env,
                cwd=tmp_path,
                pass_fds=[number],
                stdout=subprocess.DEVNULL,
            )
        )
        os.close(number)
        found = lived(lambda: stand_in(request, fds))
        os.dup2(opened.fileno(), 333)
    assert isinstance(found, dict), found
    assert found["request"] == request | {"descriptors": found["request"]["descriptors"]}
    assert set(request["descriptors"]) <= set(found["request"]["descriptors"])
    assert 333 in request["descriptors"] and found["texts"][333] == b"of mpirun"
    assert request["umask"] == 0o27 and request["nice"] == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert len(request["cores"]) == 1 and request["environ"][b"NAME"] == b"value \xff\n'"
    assert request["limits"][resource.RLIMIT_NOFILE] == (999, 1000)
    assert int(request["ignored"], 16) >> (signal.SIGUSR1 - 1) & 1
    assert int(request["blocked"], 16) >> (signal.SIGUSR2 - 1) & 1
    assert found["folder"] == str(tmp_path) and found["session"]


def test_what_ends_a_process_by_default_ends_the_forked_one() -> None:
    """The server ignores Ctrl-C, and hears of its children's ends."""

    def take_signals(request: Request, fds: list[int]) -> list[str]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        stand_in(request, fds)
        numbers = (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE)
        return [str(signal.getsignal(number)) for number in numbers]

    with asked(stdout=subprocess.DEVNULL) as (request, fds):
        found = lived(lambda: take_signals(request, fds))
    ways = [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN]
    assert found == [str(way) for way in ways]


NO_NEW = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_right_that_was_given_up_before_cannot_be_taken_over() -> None:
    with asked(sys.executable, "-c", NO_NEW) as (request, fds):
        assert lived(lambda: stand_in(request, fds)) == (
            "CannotRun: NoNewPrivs: 0 here, 1 of mpirun's process"
        )


def test_a_birthmark_that_differs_is_refused() -> None:
    request = warden.gather_request()
    takeover.refuse_unlike(request)
    marks = request["birthmarks"]
    assert marks["Uid"] and marks["pid"] and marks["mnt"] and marks["cgroup file"]
    for name in marks:
        with pytest.raises(CannotRun, match=name):
            takeover.refuse_unlike(request | {"birthmarks": marks | {name: "another"}})


def test_a_number_that_another_file_has_is_not_taken_from_it() -> None:
    def conflict(request: Request, fds: list[int]) -> object:
        os.dup2(0, 333)
        return stand_in(request, fds)

    with ExitStack() as stack:
        os.dup2(0, 333)
        request, fds = stack.enter_context(asked(pass_fds=[333]))
        os.close(333)
        assert lived(lambda: conflict(request, fds)) == "CannotRun: descriptor 333 is in use"
        os.dup2(0, 333)
    os.close(333)


def test_only_what_mpi_alone_reads_may_differ() -> None:
    own = {b"PMI_RANK": b"1", b"OMPI_MCA_btl": b"x", b"TMPDIR": b"/x", b"UCX_TLS": b"tcp"}
    shared = [b"LD_PRELOAD", b"LD_LIBRARY_PATH", b"PYTHONPATH", b"OMP_NUM_THREADS", b"PATH"]
    shared += [b"NCCL_DEBUG", b"CUDA_VISIBLE_DEVICES", b"MALLOC_ARENA_MAX", b"MKL_NUM_THREADS"]
    rest = dict.fromkeys(shared, b"x")
    assert takeover.select_shared({**own, **rest}) == rest


def write_request(folder: Path, **variables: str) -> int:
    path = folder / "request"
    environ = {name.encode(): value.encode() for name, value in variables.items()}
    path.write_text(repr(warden.gather_request() | {"environ": environ}))
    return os.open(path, os.O_RDONLY)


def test_a_server_serves_those_who_have_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Started:
        def __init__(self, env: dict[bytes, bytes], python: str) -> None:
            self.env, self.closed, self.process = env, False, subprocess.Popen(["sleep", "600"])

        def close(self) -> None:
            self.closed = True
            self.process.kill()
            self.process.wait()

    monkeypatch.setattr(local, "ForkServer", Started)
    servers = local.MpiServer(sys.executable)

    def find(is_first: bool, **variables: str) -> Any:
        fd = write_request(tmp_path, **variables)
        try:
            return servers.find_server(fd, is_first)
        finally:
            os.close(fd)

    first = find(True, PMI_RANK="0", LD_LIBRARY_PATH="/a")
    assert first.env[b"LD_LIBRARY_PATH"] == b"/a" and b"PMI_RANK" not in first.env
    assert find(False, PMI_RANK="1", LD_LIBRARY_PATH="/a") is first
    assert find(False, PMI_RANK="1", LD_LIBRARY_PATH="/b") is None
    assert find(True, PMI_RANK="1", LD_LIBRARY_PATH="/a", OMPI_MCA_btl="self") is first
    second = find(True, PMI_RANK="1", LD_LIBRARY_PATH="/b")
    assert second is not first and first.closed and not second.closed
    second.process.kill()
    second.process.wait()
    third = find(True, LD_LIBRARY_PATH="/b")
    assert third is not second
    servers.close()
    assert third.closed


def garble(text: str, how: str) -> str:
    """A request's text: cut, or something else."""
    lacking = {name: value for name, value in ast.literal_eval(text).items() if name != "cores"}
    ways = {
        "cut": text[: len(text) // 2],
        "empty": "",
        "no dict": "[1, 2]",
        "no literal": "open('/etc/passwd')",
        "unhashable": "{[]: 1}",
        "another kind": repr(ast.literal_eval(text) | {"cores": "all"}),
        "lacking": repr(lacking),
    }
    return ways[how]


GARBLED = ("cut", "empty", "no dict", "no literal", "unhashable", "another kind", "lacking")


@pytest.mark.parametrize("how", GARBLED)
def test_a_request_that_cannot_be_read_gets_no_server(tmp_path: Path, how: str) -> None:
    (tmp_path / "request").write_text(garble(repr(warden.gather_request()), how))
    fd = os.open(tmp_path / "request", os.O_RDONLY)
    with pytest.raises(ValueError, match="the launcher's request cannot be read"):
        takeover.read_request(fd)
    assert local.MpiServer("no-such-python").find_server(fd, True) is None
    os.close(fd)


def test_a_process_that_must_differ_from_ours_gets_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server would load torch first, and then refuse each rank."""
    monkeypatch.setattr(local, "ForkServer", lambda *_: pytest.fail("a server was started"))
    request = warden.gather_request()
    for name in request["birthmarks"]:
        marks = request["birthmarks"] | {name: "another"}
        (tmp_path / "request").write_text(repr(request | {"birthmarks": marks}))
        fd = os.open(tmp_path / "request", os.O_RDONLY)
        assert local.MpiServer(sys.executable).find_server(fd, True) is None, name
        os.close(fd)


@pytest.mark.parametrize("fault", [*GARBLED, "too few files"])
def test_a_rank_whose_request_is_garbled_says_so_and_is_left_to_its_warden(
    tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = repr(warden.gather_request() | {"descriptors": [0, 1, 2]})
    (tmp_path / "request").write_text(text if fault == "too few files" else garble(text, fault))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(SOON)
    pid = os.fork()
    if pid == 0:
        ours.close()
        request = os.open(tmp_path / "request", os.O_RDONLY)
        adopted = forkserver.Adopted(forkserver.Adopt(1, 2), os.dup(0), theirs.detach(), request)
        try:
            adopted.become_rank([os.dup(0), os.open(".", os.O_PATH)])
        finally:
            os._exit(9)
    theirs.close()
    with ours:
        answer = ours.recv(4096)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert answer.startswith(b"fresh: the launcher's ")
    err = capfd.readouterr().err
    assert (
        err.startswith("collbench: rank 1 is started anew: the launcher's ") and "Trace" not in err
    )


class World:
    """A warden, what it says to the launching process, and its mpirun."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.notes = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self.notes.bind(str(folder / "notes"))
        self.notes.settimeout(SOON)
        self.mpirun = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(self.mpirun.kill)
        command = [sys.executable, "-I", "-S", str(SCRIPT), "PMI_RANK", str(folder / "notes")]
        self.process = stack.enter_context(
            subprocess.Popen(
                [*command, str(self.mpirun.pid), "echo", "anew"],
                env={**os.environ, "PMI_RANK": "3"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self.process.kill)
        note, (at, self.request) = self.hear(2)
        assert note == Note(3, warden=self.process.pid)
        stack.callback(os.close, self.request)
        self.server = stack.enter_context(socket.socket(fileno=at))
        self.server.settimeout(SOON)
        self.rank = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(self.rank.kill)

    def hear(self, n: int = 0) -> tuple[Note, list[int]]:
        data, fds, _, _ = socket.recv_fds(self.notes, 65536, 2)
        assert len(fds) == n
        return msgspec.json.decode(data, type=Note), fds

    def bear(self) -> socket.socket:
        """Tell the warden that its rank is there; the launching process's end of the channel."""
        self.server.send(b"ready")
        _, fds, _, _ = socket.recv_fds(self.server, 64, 250)
        assert len(fds) == 2 + len(takeover.read_request(self.request)["descriptors"])
        for fd in fds:
            os.close(fd)
        process = os.pidfd_open(self.rank.pid)
        socket.send_fds(self.server, [b"born %d" % self.rank.pid], [process])
        os.close(process)
        note, (channel,) = self.hear(1)
        assert note == Note(3, pid=self.rank.pid, forked=True)
        return socket.socket(fileno=channel)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.mark.parametrize("answer", [b"", b"fresh: another user", b"ended 9"])
def test_a_warden_becomes_what_makes_a_fresh_rank(world: World, answer: bytes) -> None:
    """Where there is no server, where that has another user, or a rank died before it was born."""
    if answer:
        world.server.send(b"ready")
        for fd in socket.recv_fds(world.server, 64, 250)[1]:
            os.close(fd)
        world.server.send(answer)
    world.server.close()
    assert world.process.communicate(timeout=SOON)[0] == "anew\n"
    assert not select.select([world.notes], [], [], 0)[0]


@pytest.mark.parametrize("status", [0, 7 << 8, signal.SIGKILL])
def test_a_warden_tells_of_its_ranks_end(world: World, status: int) -> None:
    with world.bear():
        world.server.send(b"ended %d" % status)
        assert world.hear() == (Note(3, status=status), [])
        assert world.process.wait(SOON) == 0


def test_a_warden_hands_on_what_terminates_it(world: World) -> None:
    with world.bear():
        world.process.terminate()
        assert world.rank.wait(SOON) == -signal.SIGTERM
        assert world.process.poll() is None
        world.server.send(b"ended 15")
        assert world.hear() == (Note(3, status=15), [])


def test_a_warden_whose_server_is_lost_ends_without_a_word(world: World) -> None:
    with world.bear():
        world.server.close()
        assert world.process.wait(SOON) == 1
        assert not select.select([world.notes], [], [], 0)[0]


def test_a_forked_rank_ends_with_mpirun_whose_end_is_the_news(world: World) -> None:
    with world.bear():
        world.mpirun.kill()
        assert world.rank.wait(SOON) == -signal.SIGKILL
        assert world.process.wait(SOON) == 0
        assert not select.select([world.notes], [], [], 0)[0]


def test_a_forked_rank_ends_with_the_launching_process(world: World) -> None:
    world.bear().close()
    assert world.rank.wait(SOON) == -signal.SIGKILL
    world.server.send(b"ended 9")
    assert world.hear() == (Note(3, status=9), [])


def test_a_warden_whose_mpirun_ends_before_there_is_a_rank_waits_for_none(world: World) -> None:
    """Nobody has what mpirun gave it either, by whose end mpirun goes on."""
    world.mpirun.kill()
    assert world.process.communicate(timeout=SOON)[0] == "anew\n"  # which finds mpirun gone
