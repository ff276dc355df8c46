"""Rank 0's side of the process in which ranks meet (meeting.py): its start, its end, and what only
rank 0 asks and hears of it."""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from collbench.core.errors import CannotRun
from collbench.core.text import print_message
from collbench.run.launch.board import LEAVE_SECONDS
from collbench.run.launch.children import bound_command, module_command
from collbench.run.launch.meeting import Hello, News, Order, Terms
from collbench.survive.signals import STOPPING

ANSWER_SECONDS = 5.0  # of the process itself, which waits for nothing


@contextmanager
def _hold_signals() -> Iterator[None]:
    """A process that is started within gets no signal before it says how it takes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Host:
    """The process in which ranks meet. ``gone`` are ranks that left without saying so, those first
    that left first. ``on_value`` is called, in a thread of this object, with a rank and what that
    rank sends unasked, or None when the rank leaves. ``ended`` names the process once it has ended.

    It holds no file of this process's but the listener, and writes nowhere. Raises CannotRun where
    it does not come up.
    """

    def __init__(self, listener: socket.socket, n: int, key: bytes, seconds: float) -> None:
        self.gone: list[Hello] = []
        self.on_value: Callable[[int, bytes | None], None] = lambda rank, value: None
        self.ended = ""
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._answers: dict[int, Future[News]] = {}
        self._control, theirs = socket.socketpair()
        command = module_command(sys.executable, "collbench.run.launch.meeting")
        with listener, theirs, _hold_signals():
            self._process = subprocess.Popen(
                # it is not killed with rank 0, but goes on to clean up after it
                bound_command(sys.executable, signal.SIGCONT, os.getpid(), *command),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is rank 0's to handle
            )
            terms = msgspec.json.encode(Terms(n, key, seconds))
            with suppress(OSError):  # it has ended, and its first line will be missing
                socket.send_fds(self._control, [terms], [listener.fileno()])
        self._lines = self._control.makefile("rb")
        if not self._first_line():
            raise CannotRun(
                "the process in which ranks meet did not come up: it ended with"
                f" {self._process.wait()}",
                f"{sys.executable} -c 'import collbench.run.launch.meeting' tells why",
            )
        self._thread = threading.Thread(target=self._read, daemon=True, name="collbench-host")
        self._thread.start()

    def _first_line(self) -> bytes:
        try:
            return self._lines.readline()
        except OSError:
            return b""

    def _read(self) -> None:
        with suppress(OSError):
            for line in self._lines:
                self._take(msgspec.json.decode(line, type=News))
        self.ended = f"the process in which ranks meet (pid {self._process.pid})"
        for number in list(self._answers):
            self._fail(number, ConnectionError(self.ended))

    def _take(self, news: News) -> None:
        if news.number and news.trouble:
            self._fail(news.number, OSError(news.trouble))
        elif news.number:
            self._answers.pop(news.number).set_result(news)
        elif news.trouble:
            print_message(f"fault where ranks meet: {news.trouble}")
        else:
            if news.gone:
                self.gone.append(news.gone)
            self.on_value(news.rank, news.value)

    def _fail(self, number: int, error: OSError) -> None:
        if waiting := self._answers.pop(number, None):
            waiting.set_exception(error)

    def _order(
        self,
        op: Literal["tell", "rest", "resume", "awake", "lost", "behind", "end_stopped", "see_off"],
        rank: int = -1,
        value: bytes = b"",
        seconds: float = 0.0,
    ) -> Future[News]:
        answer: Future[News] = Future()
        with self._lock:
            order = Order(next(self._numbers), op, rank, value, seconds)
            self._answers[order.number] = answer
            try:
                self._control.sendall(msgspec.json.encode(order) + b"\n")
            except OSError as e:
                self._fail(order.number, e)
        return answer

    def send_to_rank(self, rank: int, value: bytes) -> Future[News]:
        """Tell a rank what it has not asked for; done once it is sent."""
        return self._order("tell", rank, value)

    def rest(self) -> None:
        """Note that the world waits for its turn among worlds, so that no rank is expected to
        move."""
        self._order("rest")

    def resume(self) -> None:
        """Note that the world's turn has begun, so that ranks are expected to move."""
        self._order("resume")

    def awake(self) -> float:
        """Seconds since the world's turn began; infinity where the process does not say."""
        try:
            return self._order("awake").result(ANSWER_SECONDS).seconds
        except OSError:
            return math.inf

    def lost(self, seconds: float) -> str:
        """The ranks that are stopped, else those that have been silent for so long, and in words
        what is wrong with them, or with the process; "" where nothing is."""
        try:
            return self._order("lost", seconds=seconds).result(ANSWER_SECONDS).text
        except OSError:
            return f"the process in which ranks meet (pid {self._process.pid}) does not answer"

    def find_behind(self) -> list[int]:
        """The ranks that are not as far as the foremost; none where the process does not say."""
        try:
            return self._order("behind").result(ANSWER_SECONDS).ranks
        except OSError:
            return []

    def end_stopped(self) -> None:
        """Kill stopped ranks of this host, for which a launcher would wait: SIGTERM does nothing to
        them."""
        with suppress(OSError):
            self._order("end_stopped").result(ANSWER_SECONDS)

    def see_off(self, seconds: float) -> None:
        """Wait for all to leave. Ranks that do not are named, and killed where they are surely
        processes of this host."""
        with suppress(OSError):
            late = self._order("see_off", seconds=seconds).result(seconds + ANSWER_SECONDS)
            for name in late.names:
                print_message(f"{name} did not leave within {seconds:g} s of the last case")

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._lines.close()
        self._control.close()
        try:
            self._process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
