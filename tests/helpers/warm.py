"""Commands of collbench in processes of their own, forked from one that has loaded collbench and
torch once; so are the fork servers from which such a command has its ranks.

A command so started has its own pid, environment, folder and pipes, ends by the same signals, and
its ranks are forked as ever. What a Python does before it has loaded its modules is left out: of
that, and of settings that libraries read when they are loaded, a process of Python's own tells: a
command or server whose PYTHON variables differ becomes one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

import numpy as np

import collbench.__main__
from collbench.run.launch import early, forkserver, local
from collbench.run.launch.children import die_with_parent
from collbench.survive.signals import STOPPING, interrupts

COLLBENCH = "collbench"
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000  # of setns(2)
LIBRARIES = ("OMP_", "MKL_", "KMP_", "LD_", "TORCH", "PYTORCH")  # what begins so is read on load
PYTHON = ("PYTHON",)
NOT_HEEDED = ("PYTHONPATH", "PYTHONSAFEPATH")  # added to sys.path here; commands have -P
LOOPBACK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")  # the launcher adds
AT_LOAD = dict(os.environ)


class Forked:
    """A child of this process that was forked from it, as subprocess.Popen has it."""

    def __init__(self, pid: int) -> None:
        self.pid, self._told = pid, os.pidfd_open(pid)
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            self.returncode = self._find_status()
            self._close()
        return self.returncode

    def _find_status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _close(self) -> None:
        os.close(self._told)

    def poll(self) -> int | None:
        """Its exit status, or None while it goes on."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Started(Forked):
    """A command under way, a child of the process from which it was forked. Its ``stdout`` and
    ``stderr`` are read as text."""

    def __init__(self, args: Sequence[str], told: IO[str], pipes: Sequence[IO[str]]) -> None:
        self.args, self._told = list(args), told  # type: ignore[assignment]
        self.stdout, self.stderr = pipes
        self.returncode = None
        self.pid = int(told.readline())

    def _find_status(self) -> int:
        return os.waitstatus_to_exitcode(int(self._told.readline()))  # type: ignore[attr-defined]

    def _close(self) -> None:
        self._told.close()  # type: ignore[attr-defined]

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it still prints, once it has ended. Raises subprocess.TimeoutExpired."""
        until = time.monotonic() + (timeout or 1e6)
        texts = ["", ""]

        def read(place: int, pipe: IO[str]) -> None:
            with suppress(ValueError, OSError):  # closed already
                texts[place] = pipe.read()

        readers = [
            threading.Thread(target=read, args=(place, pipe), daemon=True)
            for place, pipe in enumerate((self.stdout, self.stderr))
            if pipe and not pipe.closed
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(until - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(max(until - time.monotonic(), 0))
        for pipe in (self.stdout, self.stderr):
            if pipe:
                pipe.close()
        return texts[0], texts[1]

    def __enter__(self) -> Started:
        return self

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        self.communicate()


class Warm:
    """``warm(*args, **env)`` runs ``collbench ARGS`` to its end; the result has returncode, stdout
    and stderr. ``warm.start`` returns it under way."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(Path(collbench.__file__).parents[1]), str(Path(__file__).parent)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "warm", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._at = ours

    def start(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        script: str = COLLBENCH,
        network: int = 0,
        like: int = 0,
    ) -> Started:
        """``collbench ARGS``, or the script at a path, with this whole environment, or the
        present one; in the network of the process that has the pid ``network``, if not here, and
        with the cores and the host name of the one that has the pid ``like``."""
        settings = dict(os.environ if env is None else env)
        order = json.dumps([script, args, settings, str(Path.cwd()), network, like]).encode()
        pipes = [os.pipe() for _ in range(3)]
        try:
            socket.send_fds(self._at, [order], [write for _, write in pipes])
        finally:
            for _, write in pipes:
                os.close(write)
        out, err, told = [os.fdopen(read, errors="replace") for read, _ in pipes]
        return Started([script, *args], told, (out, err))

    def __call__(
        self, *args: str, timeout: float = 120, script: str = COLLBENCH, **env: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, env={**os.environ, **env}, script=script)
        try:
            out, err = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    def join(
        self,
        n: int,
        *args: str,
        timeout: float = 120,
        script: str = COLLBENCH,
        network: int = 0,
        **env: str,
    ) -> subprocess.CompletedProcess[str]:
        """``collbench ARGS``, or a script, in n processes with the variables that torchrun gives
        them, as one result: all that was printed, and 1 where one of them failed."""
        place = {"LOCAL_WORLD_SIZE": str(n), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1"}
        place |= {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), "TORCHELASTIC_RESTART_COUNT": "0"}
        with socket.create_server(("127.0.0.1", 0)) as free:
            place |= {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free.getsockname()[1])}
        ranks = [{"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(n)]
        common = {**os.environ, **place, **env}
        processes = [
            self.start(*args, env=common | at, script=script, network=network) for at in ranks
        ]
        try:
            said = [process.communicate(timeout) for process in processes]
        finally:
            for process in processes:
                process.kill()
        code = int(any(process.wait() for process in processes))
        texts = ["".join(text) for text in zip(*said, strict=True)]
        return subprocess.CompletedProcess([script, *args], code, *texts)

    def close(self) -> None:
        """End the process from which commands are forked."""
        self._at.close()
        self._process.wait()


def serve(at: socket.socket) -> None:
    """Fork a process for each order, and tell of their ends, until nobody can send one."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}  # where each child's end is told
    while True:
        ready = select.select([at, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_ends(told)
        if at in ready:
            data, fds, _, _ = socket.recv_fds(at, 1 << 20, 3)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                at.close()
                for fd in (woken, wake, fds.pop(), *told.values()):
                    os.close(fd)
                _become_command(*json.loads(data), fds)
            *outputs, told[pid] = fds
            for fd in outputs:
                os.close(fd)
            with suppress(BrokenPipeError):  # nobody wants to know
                os.write(told[pid], f"{pid}\n".encode())


def _tell_of_ends(told: dict[int, int]) -> None:
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with suppress(BrokenPipeError):
            os.write(told[pid], f"{status}\n".encode())
        os.close(told.pop(pid))


def _become_command(
    script: str,
    args: list[str],
    env: dict[str, str],
    folder: str,
    network: int,
    like: int,
    outputs: list[int],
) -> NoReturn:
    """What a forked process does: it ends as the command does."""
    _forget()
    os.chdir(folder)
    _enter_namespace(network, "net", CLONE_NEWNET)
    _enter_namespace(like, "uts", CLONE_NEWUTS)
    os.sched_setaffinity(0, os.sched_getaffinity(like))  # of 0: its own
    os.environ.clear()
    os.environ.update(env)
    _add_paths(env)
    np.random.seed()
    _open_streams(*outputs)
    for fd in outputs:
        os.close(fd)
    if _needs_another_python(env):
        command = ["-m", "collbench"] if script == COLLBENCH else [script]
        os.execve(sys.executable, [sys.executable, *command, *args], env)
    program = collbench.__main__.__file__ if script == COLLBENCH else script
    sys.argv = [program, *args]
    early.LoadingServer = ForkedLoadingServer  # type: ignore[misc]
    local.ForkServer = ForkedForkServer  # type: ignore[misc]  # a keeper of places has threads
    _end_after(
        collbench.__main__.main
        if script == COLLBENCH
        else lambda: runpy.run_path(script, run_name="__main__")
    )


def _enter_namespace(pid: int, kind: str, flag: int) -> None:
    """Go where the process ``pid`` is, if there is one and it is elsewhere."""
    theirs, ours = Path(f"/proc/{pid}/ns/{kind}"), Path(f"/proc/self/ns/{kind}")
    if pid and theirs.readlink() != ours.readlink():
        with theirs.open() as place:
            if ctypes.CDLL(None).setns(place.fileno(), flag):
                raise OSError(f"cannot enter the namespace {theirs}")


def _add_paths(env: Mapping[str, str]) -> None:
    """Has modules looked for as PYTHONPATH says, and customises this Python if one of them does."""
    new = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    sys.path[:0] = filter(None, new)
    importlib.invalidate_caches()
    if _is_customised(env):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")


def _is_customised(env: Mapping[str, str]) -> bool:
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    return any((Path(path) / "sitecustomize.py").exists() for path in paths)


def _end_after(main: Callable[[], object]) -> NoReturn:
    """Ends this process as Python does after ``main``, but for taking its modules down."""
    status = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _forget() -> None:
    """Forgets what the process has been told to do at signals and at its end."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGALRM, *STOPPING):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_streams(out: int, err: int) -> None:
    """Standard input is empty, and both outputs are as Python opens those that are no terminal."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((nothing, out, err)):
        os.dup2(fd, number)
    os.close(nothing)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _needs_its_own(env: Mapping[str, str]) -> bool:
    """Whether a Python would heed settings as it starts, or libraries as they load, that are not
    those of this process; where an experiment finds collbench does not matter, which is loaded."""
    if _is_customised(env) and _select_read(env) != _select_read(os.environ):
        return True
    loaded = _select(env, LIBRARIES) != _select(AT_LOAD, LIBRARIES)
    paths = _select(env, ("PYTHONPATH",)) != _select(os.environ, ("PYTHONPATH",))
    return loaded or paths or _needs_another_python(env)


def _select_read(env: Mapping[str, str]) -> dict[str, str]:
    """What customises this Python by: any variable, unless it names those in READS."""
    names = getattr(sys.modules.get("sitecustomize"), "READS", None)
    found = _select(env, ("",))
    return found if names is None else {n: value for n, value in found.items() if n in names}


def _needs_another_python(env: Mapping[str, str]) -> bool:
    """Whether a Python heeds other settings as it starts than the one that loaded all: where its
    own environment was changed since, that is not what it heeded."""
    mine, theirs = (
        {name: value for name, value in settings.items() if name.startswith(PYTHON)}
        for settings in (AT_LOAD, env)
    )
    return any(
        mine.get(name) != theirs.get(name) for name in {*mine, *theirs}.difference(NOT_HEEDED)
    )


def _select(env: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    paths = env.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(part for part in paths if Path(part).name != "collbench-alone")
    settings = {"OMP_NUM_THREADS": "1", **env, "PYTHONPATH": path, "PYTHONSAFEPATH": ""}
    return {k: v for k, v in settings.items() if k.startswith(prefixes) and k not in LOOPBACK}


class ForkedLoadingServer(early.LoadingServer):
    """A fork server that is forked from a command that was, unless it needs a Python of its own."""

    def _start_process(self, theirs: socket.socket) -> Any:
        settings = {name: value for name, value in self.env.items() if isinstance(name, str)}
        is_other = self.python != sys.executable or len(settings) < len(self.env)
        if is_other or _needs_its_own(settings):
            return super()._start_process(theirs)
        parent, err = os.getpid(), sys.__stderr__.fileno()  # type: ignore[union-attr]
        pid = os.fork()
        if pid == 0:
            die_with_parent(parent)
            _become_fork_server(theirs, settings, err)
        return Forked(pid)


class ForkedForkServer(local.ForkServer):
    """A fork server that is forked, unless another was started early."""

    def __init__(
        self,
        env: Mapping[str, str] | Mapping[bytes, bytes],
        python: str = sys.executable,
        loading: early.LoadingServer | None = None,
    ) -> None:
        super().__init__(env, python, loading or ForkedLoadingServer(env, python))


def _become_fork_server(control: socket.socket, env: Mapping[str, str], err: int) -> NoReturn:
    _forget()
    atexit._clear()
    interrupts.__init__()  # type: ignore[misc]
    _open_streams(err, err)
    fd = control.detach()
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [forkserver.__file__, str(fd)]
    _end_after(forkserver.main)


def main() -> None:
    for folder in ("core", "survive", "machine", "suite", "records", "show", "cli", "features"):
        package = importlib.import_module(f"collbench.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("launch.fresh", "launch.join", "rank.worker", "session"):
        importlib.import_module(f"collbench.run.{name}")
    gc.collect()
    gc.freeze()  # a child need not look through what it did not make
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
