"""A process whose life is measured: it loads a library, makes a communicator, calls it and ends,
or goes on without a rank that was killed. What it does it writes down, event by event, with the
moment by the host's monotonic clock.

Nothing of torch is imported before the moment of the start is taken.
"""

from __future__ import annotations

import time

STARTED = time.monotonic_ns()  # as early as it can be taken

import itertools  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import cache, partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import msgspec  # noqa: E402

from collbench.core.errors import first_line  # noqa: E402
from collbench.features.lifecycle.instructions import Event, Instructions  # noqa: E402
from collbench.run.launch.children import die_with_parent  # noqa: E402
from collbench.run.launch.mpirun import RANK  # noqa: E402

if TYPE_CHECKING:
    from collbench.features.lifecycle.libraries import CheckedCall, Library
    from collbench.features.lifecycle.torch_life import Torch

LOOK = 0.01  # seconds between two looks for news of a lost rank


class Diary:
    """The events of this process, a line each, in a file that its parent reads."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, name: str, **values: Any) -> None:
        """Write an event down, at this moment unless ``ns`` says another."""
        event = Event(name=name, **({"ns": time.monotonic_ns()} | values))
        self._file.write(msgspec.json.encode(event).decode() + "\n")


def measure_resident() -> int:
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class LifeOfRank:
    """All phases of a life, on one rank."""

    def __init__(self, given: Instructions, diary: Diary, library: Library) -> None:
        self._given, self._diary, self._library = given, diary, library

    def run(self) -> None:
        """From finding the others to the end."""
        from collbench.features.lifecycle.libraries import make_variants

        given, library = self._given, self._library
        if library.meets:
            self._note("rendezvous", library.join, aligned=False)
        self._note("communicator_init", self._make, aligned=library.meets)
        variants = make_variants(given.collective, given.nbytes, library.world, library.rank)
        call = library.make_call(given.collective, variants)
        call.reset(0)
        self._note("first_call", call.run)
        wrong = call.count_wrong()
        took = self._repeat(call)
        self._diary.write("checked", wrong=wrong + call.count_wrong(), verified=2 * call.elements)
        self._diary.write("phase", phase="nth_call", begin=0, ns=took)
        groups: list[Any] = []
        self._note("new_groups", lambda: groups.extend(map(library.add_group, range(given.groups))))
        for group in reversed(groups):
            library.drop_group(group)
        self._note("communicator_destroy", library.leave)
        self._diary.write("done")

    def _make(self) -> None:
        """Make the communicator; a planted delay is part of it."""
        time.sleep(self._given.delay)
        self._library.make()

    def _repeat(self, call: CheckedCall) -> int:
        """The median of the later half of the calls, in ns. The last one, which is checked, has
        other data than all before."""
        times = []
        for number in range(self._given.calls):
            call.reset(int(number == self._given.calls - 1))
            self._library.align(f"call {number}", self._given.one_clock)
            begin = time.perf_counter_ns()
            call.run()
            times.append(time.perf_counter_ns() - begin)
        late = sorted(times[len(times) // 2 :])
        return late[len(late) // 2]

    def _note(self, phase: str, action: Callable[[], object], aligned: bool = True) -> None:
        """Make a phase happen on all ranks at once, and write down when, with the memory before and
        after."""
        self._diary.write("at", phase=phase)
        if aligned:
            self._library.align(phase, self._given.one_clock)
        resident, device = measure_resident(), self._library.measure_device()
        begin = time.monotonic_ns()
        action()
        end = time.monotonic_ns()
        self._diary.write(
            "phase",
            phase=phase,
            begin=begin,
            ns=end,
            resident=(resident, measure_resident()),
            device=(device, self._library.measure_device()),
        )


class LossOfRank:
    """A rank of a world one of whose ranks is killed."""

    def __init__(self, given: Instructions, diary: Diary, library: Torch) -> None:
        from collbench.features.lifecycle.libraries import make_variants

        self._given, self._diary, self._library = given, diary, library
        self._make_variants = cache(partial(make_variants, "all_reduce", given.nbytes))
        self._lock, self._is_known = threading.Lock(), False
        self._aborted = threading.Event()

    def run(self) -> None:
        """Call until a call fails, then go on with those that are left."""
        given, library = self._given, self._library
        if given.way == "told":
            threading.Thread(target=self._wait_for_news, daemon=True).start()
        try:
            self._diary.write("at", phase="rendezvous")
            library.join()
            self._diary.write("at", phase="communicator_init")
            library.make()
            world, rank = library.world, library.rank
            call = library.make_call("all_reduce", self._make_variants(world, rank))
            for new_rank in range(max(0, rank - 1), min(rank + 1, world - 1)):
                # what recovery needs, which is timed, is ready before a rank is killed
                self._make_variants(world - 1, new_rank, 1)
            self._diary.write("at", phase="calls")
            for number in itertools.count():
                call.reset(number % 2)
                call.run()
                if wrong := call.count_wrong():
                    if self._is_known:  # a call that was aborted has no result
                        break
                    self._diary.write("checked", wrong=wrong, verified=call.elements)
                    return
        except Exception as e:
            if not self._know("error", first_line(e)):
                # a group that is aborted late might be the next one
                self._aborted.wait(given.patience)
        self._recover()

    def _know(self, how: str, text: str) -> bool:
        """Write down, once, how this rank has come to know; whether it did not know before."""
        with self._lock:
            was_known, self._is_known = self._is_known, True
        if not was_known:
            self._diary.write("knows", how=how, text=text[:300])
        return not was_known

    def _wait_for_news(self) -> None:
        """Wait, in a thread, until somebody says that a rank is lost, and have calls give up unless
        they have done so by themselves."""
        news = self._library.open_news()
        while not news():
            time.sleep(LOOK)
        if not self._know("told", "the process that watches it said so"):
            return
        try:
            self._library.abort()
        except Exception as e:  # of a group that is half made, say: its own limit ends the call
            self._diary.write("abort failed", text=first_line(e)[:300])
        finally:
            self._aborted.set()

    def _recover(self) -> None:
        """Make a smaller communicator and call it once."""
        given, library = self._given, self._library
        try:
            self._diary.write("at", phase="destroying what is left")
            if given.way != "shrink":
                library.leave_broken()
            self._diary.write("at", phase="waiting to be notified who is lost")
            lost = library.wait_for_lost()
            self._diary.write("at", phase="making the smaller group")
            library.remake(lost, shrink=given.way == "shrink")
            self._diary.write("at", phase="the smaller group's first all_reduce")
            variants = self._make_variants(library.world, library.rank, 1)
            call = library.make_call("all_reduce", variants)
            call.reset(0)
            call.run()
            at = time.monotonic_ns()
        except Exception as e:
            self._diary.write("failed", text=f"{type(e).__name__}: {first_line(e)}"[:300])
            return
        self._diary.write("recovered", ns=at, wrong=call.count_wrong(), verified=call.elements)
        library.leave()


def live(given: Instructions, started: int = 0) -> None:
    """Live as the instructions say, from ``started`` on, now if that is not known. Does not return
    where a library may have threads that wait for ever."""
    diary = Diary(Path(given.folder) / f"{given.rank}.jsonl")
    diary.write("started", ns=started or time.monotonic_ns(), pid=os.getpid())
    try:
        from collbench.features.lifecycle.libraries import load_library

        diary.write("importing")
        library: Any = load_library(given)  # of losses always torch's: MPI's are refused
        diary.write("imported")
        lives = LossOfRank if given.way else LifeOfRank
        lives(given, diary, library).run()
    except Exception as e:
        diary.write("failed", text=f"{type(e).__name__}: {first_line(e)}"[:300])
        sys.stdout.flush()
        os._exit(1)
    if given.way:
        os._exit(0)


def main() -> None:
    """Live as the instructions say: ``child INSTRUCTIONS``, which are JSON."""
    given = msgspec.json.decode(sys.argv[1], type=Instructions)
    if given.parent:
        die_with_parent(given.parent)
    if given.rank < 0:
        rank = next(int(os.environ[name]) for name in RANK if name in os.environ)
        given = msgspec.structs.replace(given, rank=rank)
    live(given, STARTED)


if __name__ == "__main__":
    main()
