"""The calls of a rank in the order of its program, which several threads make, until they are
written: with their ends, as far as these can be learned without holding up anybody."""

from __future__ import annotations

import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from collbench.features.traces.formats import own
from collbench.features.traces.recording.interception import name_reduction
from collbench.features.traces.types import Call, Interval, Lost, State
from collbench.features.training.step import POINT_TO_POINT, WORLD

MOST_CALLS = 500_000  # of a recording
MOST_HELD = 50_000  # calls in memory that are not written yet
MOST_UNWAITED = 1024  # works of the job that are kept until they are waited for
MOST_UNREAD = 32  # reductions that are kept as C++ has them, to be read together
HELD_S = 10.0  # until a call that has not ended is written without its end
UNTOLD = (
    f"torch {torch.__version__} does not tell which reduction a call makes: all are recorded as"
    " sum; a newer torch tells"
)
WAITED_LATE = "waits for calls that were issued more than an iteration before"

Clock = Callable[[], int]
Line = Call | own.Note


def make_clock() -> Clock:
    """Nanoseconds since the epoch, without the steps of the wall clock after now."""
    offset = time.time_ns() - time.perf_counter_ns()
    return lambda: time.perf_counter_ns() + offset


class ScriptLine(NamedTuple):
    """The line of the script that warnings are shown at: the one that began the recording."""

    file: str
    line: int

    def warn(self, message: str) -> None:
        """Warn of ``message``. Raises it where warnings are errors."""
        text = f"collbench.record: {message}"
        warnings.warn_explicit(text, RuntimeWarning, self.file, self.line)


class Seen:
    """A call or a wait at its place in the trace, from when it was issued until it is written.
    ``work`` is kept until it is waited for. ``pending``: when it ends will be seen. ``state`` is as
    it was written last, ``begun`` when it was issued as the file has it from before."""

    __slots__ = (
        "begins",
        "begun",
        "device",
        "done",
        "ends",
        "fields",
        "future",
        "index",
        "issued",
        "pending",
        "state",
        "waits",
        "work",
    )

    def __init__(self, fields: dict[str, Any], index: int, issued: int) -> None:
        self.fields, self.index, self.issued = fields, index, issued
        self.begins = self.ends = self.begun = -1
        self.waits = self.done = False
        self.state: State = ""
        self.pending = True
        self.device = "cpu"
        self.work: Work | None = None
        self.future: Any = None  # of its work, until that is done

    def ended(self, now: int) -> None:
        """Note that the call has ended, at the latest at ``now`` (ns). When it ended on a device is
        unknown."""
        if self.device == "cpu":
            self.begins = self.issued
            self.ends = now if self.ends < 0 else min(self.ends, now)
        self.done = True

    @property
    def under_way(self) -> bool:
        """Whether it is a call, and known not to have ended."""
        is_call = self.fields["kind"] != "wait"
        return is_call and self.pending and self.ends < 0 and self.device == "cpu"

    @property
    def may_end(self) -> bool:
        """Whether its end has not been seen, and may be when somebody waits for it."""
        return not self.done and (self.pending or self.work is not None)

    @property
    def call(self) -> Call:
        """The call as it is written, with the times that are known by now."""
        state: State = "started" if self.under_way else ""
        return Call(
            **self.fields,
            issued_ns=self.issued,
            begins_ns=self.begins,
            ends_ns=self.ends,
            waits=self.waits,
            state=state,
        )


class Program:
    """What a rank has done so far. What can be written leaves it, so that no more than
    ``MOST_HELD`` calls are in memory."""

    def __init__(self, now: Clock, place: ScriptLine) -> None:
        self._now, self._place = now, place
        self._warned = False  # that reductions are not known
        self._lock = threading.RLock()  # a signal's handler may come within, and communicate
        self._calls: deque[Seen] = deque()
        self._notes: list[Line] = []
        self._overdue: list[Seen] = []  # written, and have not ended
        self._unread: list[dict[str, Any]] = []  # calls whose reduction is as C++ has it
        self._count = self._iteration = 0  # calls so far, and when the iteration began
        self._new = 0  # calls of the iteration, lost ones among them
        self._numbers: dict[str, int] = {}  # calls of each group so far
        self._members: dict[str, tuple[int, ...]] = {}
        self._group_names: dict[
            int, tuple[weakref.ref[ProcessGroup], str | None]
        ] = {}  # by their ids
        self._lost: dict[str, list[int]] = {}  # calls and bytes, by why
        self._works: dict[int, list[Seen]] = {}  # by the ids of their works
        self._filled: dict[int, Seen] = {}  # by the address of what a call fills
        # works that are no longer kept, though nobody waited for them
        self._forgotten: weakref.WeakSet[Work] = weakref.WeakSet()
        self._forgotten_fills: set[int] = set()  # addresses of what their calls fill
        self._tasks: dict[int, list[Seen]] = {}  # calls of backward passes
        self._observers: dict[str, queue.SimpleQueue[tuple[Seen, Any] | None]] = {}
        self._threads: list[threading.Thread] = []  # of the observers

    def add(self, fields: dict[str, Any], group: ProcessGroup, why: str = "") -> Seen | None:
        """A call more; None where it is lost, as for a reason ``why``."""
        with self._lock:
            self._new += 1
            name = self._name(group)
            if name is None:
                why = "the members of its group are unknown, or others than before under its name"
            why = why or self._full()
            if why or name is None:
                self.lose(why, fields.get("nbytes", 0))
                return None
            if fields["kind"] not in POINT_TO_POINT:
                fields["number"] = self._numbers[name]
                self._numbers[name] += 1
            fields["group"] = name
            if "op" in fields:
                self._unread.append(fields)
                if len(self._unread) >= MOST_UNREAD:
                    self._read()
            return self._append(fields)

    def _read(self) -> None:
        """Reads reductions: together, as that is quick only from the second on, but few of them.
        What is kept of C++ lies between the job's buffers, which then may find no room where they
        had it, and take pages anew in each step."""
        unread, self._unread = self._unread, []
        for fields in unread:
            name = name_reduction(fields["op"])
            fields["op"] = name or "sum"  # of which bytes are the same
            if not name and not self._warned:
                self._warned = True
                self._place.warn(UNTOLD)

    def take_back(self, call: Seen, error: str) -> list[Line]:
        """Forget a call that raised an error instead of being made: no other rank sees anything of
        it. Returns the lines to write, so that the file of a job that is killed later does not have
        it as begun. It stays where another thread has made a later collective of its group, which
        has the next number."""
        with self._lock:
            self.lose(f"{call.fields['kind']} raised {error}, which is no call", calls=0)
            call.pending, call.done = False, True
            group, number = call.fields["group"], call.fields.get("number", -1)
            if number >= 0 and self._numbers[group] > number + 1:
                return []
            if number >= 0:
                self._numbers[group] = number
            if self._calls and self._calls[-1] is call:
                self._calls.pop()
                self._count -= 1
            else:  # another thread has gone on: a mark keeps the place
                call.fields = {"kind": "mark"}
            return [own.Note(back=(call.index, call.begun))]

    def wait(self, calls: list[Seen], began: int = -1) -> Seen | None:
        """A wait for these calls."""
        with self._lock:
            if why := self._full():
                self.lose(why, 0)
                return None
            after = tuple(sorted(call.index for call in calls))
            phase = calls[0].fields.get("phase", "")
            wait = self._append({"kind": "wait", "dtype": "uint8", "after": after, "phase": phase})
            wait.issued = began if began >= 0 else wait.issued
            return wait

    def lose(self, why: str, nbytes: int = 0, calls: int = 1) -> None:
        """Calls are lost."""
        with self._lock:
            lost = self._lost.setdefault(why, [0, 0])
            lost[0] += calls
            lost[1] += nbytes
            self._new += calls

    def _full(self) -> str:
        if self._count >= MOST_CALLS:
            return f"more than {MOST_CALLS:,} calls"
        is_full = len(self._calls) >= MOST_HELD
        return f"more than {MOST_HELD:,} calls that could not be written in time" if is_full else ""

    def _append(self, fields: dict[str, Any]) -> Seen:
        observed = Seen(fields, self._count, self._now())
        self._count += 1
        self._calls.append(observed)
        return observed

    def _name(self, group: ProcessGroup) -> str | None:
        """The name of a group, which is looked up when it is seen first, and whenever another one
        is where it was in memory."""
        entry = self._group_names.get(id(group))
        if entry is None or entry[0]() is not group:
            entry = self._group_names[id(group)] = weakref.ref(group), self._looked_up(group)
        return entry[1]

    def _looked_up(self, group: ProcessGroup) -> str | None:
        """The name of a group, which is noted when it is seen first; None where nobody knows who
        is in it, or a group of others had its name: torch counts anew when the job ends all of its
        groups and makes others."""
        name = WORLD if group is dist.group.WORLD else str(group.group_name)
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
        except (KeyError, ValueError):
            return None
        if self._members.setdefault(name, ranks) != ranks:
            return None
        if name not in self._numbers:
            self._numbers[name] = 0
            self._notes.append(own.Note(group=name, ranks=ranks, described=str(group.group_desc)))
        return name

    @property
    def has_new_calls(self) -> bool:
        """Whether the iteration under way has any call, be it one that is lost."""
        return self._new > 0

    def mark_fake(self) -> None:
        """Notes that this rank's GPU is a fake."""
        with self._lock:
            self._notes.append(own.Note(fake=True))

    def iterated(self, step: Interval) -> None:
        """An iteration has ended. Its mark is written with the next lines, so that a job that is
        killed later keeps it."""
        with self._lock:
            self._read()
            self._notes.append(own.Note(step=step))
            self._tasks.clear()
            self._forget_calls()
            self._iteration, self._new = self._count, 0

    def _forget_calls(self) -> None:
        """Let go of the works of calls that were made before this iteration, and of the addresses
        of what they, and calls that were waited for, fill."""
        filled, self._filled = self._filled, {}
        for address, call in filled.items():
            if call.work is not None and call.index >= self._iteration:
                self._filled[address] = call
            elif call.work is not None and len(self._forgotten_fills) < MOST_HELD:
                self._forgotten_fills.add(address)
        for key in [key for key, calls in self._works.items() if calls[0].index < self._iteration]:
            if (work := self._works[key][0].work) is not None:
                self._forgotten.add(work)
            self._pop_calls(key)

    def in_task(self, call: Seen, task: int) -> bool:
        """Whether it is the first call of a backward pass."""
        with self._lock:
            first = task not in self._tasks
            self._tasks.setdefault(task, []).append(call)
            return first

    def under_way(self, work: Work, calls: list[Seen]) -> None:
        """Note that ``work`` is the handle of these calls, which the job may wait for."""
        with self._lock:
            for call in calls:
                if call.work is not None:
                    self._pop_calls(id(call.work))
                call.work = work
            self._works[id(work)] = calls
            if len(self._works) > MOST_UNWAITED:
                self._pop_calls(next(iter(self._works)))
                why = f"waits for calls that more than {MOST_UNWAITED} came after"
                self.lose(f"{why}, before they were waited for", calls=0)

    def _pop_calls(self, key: int) -> list[Seen]:
        """The calls of a work, which is forgotten, as torch may give its id to another."""
        calls = self._works.pop(key, [])
        for call in calls:
            call.work = None
        return calls

    def waited(self, work: Work) -> list[Seen]:
        """The calls that this work does, which are waited for now."""
        with self._lock:
            if work in self._forgotten:
                self._forgotten.discard(work)
                self.lose(WAITED_LATE, calls=0)
            calls = self._pop_calls(id(work))
            for call in calls:
                call.pending = True
            return calls

    def fills(self, call: Seen, given: Iterable[Tensor]) -> None:
        """The call's outcome is in these tensors."""
        with self._lock:
            for address in (tensor.data_ptr() for tensor in given):
                self._filled[address] = call
                self._forgotten_fills.discard(address)
            while len(self._filled) > MOST_HELD:
                del self._filled[next(iter(self._filled))]

    def filled(self, tensor: Tensor) -> Seen | None:
        """The call whose outcome a tensor is, which is waited for now."""
        with self._lock:
            address = tensor.data_ptr()
            if address in self._forgotten_fills:
                self._forgotten_fills.discard(address)
                self.lose(WAITED_LATE, calls=0)
            call = self._filled.pop(address, None)
            if call is not None:
                call.pending = True
                if call.work is not None:
                    self._pop_calls(id(call.work))
            return call

    def left_by(self, task: int) -> list[Seen]:
        """The calls of a backward pass that nobody waited for, and that are done."""
        with self._lock:
            calls = [call for call in self._tasks.pop(task, []) if call.work is not None]
            done = [call for call in calls if call.device != "cpu" or _is_done(call)]
            for call in done:
                self._pop_calls(id(call.work))
        return done

    def watch(self, call: Seen, work: Work) -> None:
        """Learns when a call ends."""
        try:
            future = work.get_future()
        except RuntimeError:  # a library without: the end is known when the call is waited for
            return
        call.future = future
        group = call.fields["group"]
        with self._lock:
            if group not in self._observers:
                self._observers[group] = queue.SimpleQueue()
                about = (self._observers[group], self._now)
                name = "collbench-ends"
                thread = threading.Thread(target=_observe_calls, args=about, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._observers[group].put((call, future))

    @property
    def watching(self) -> bool:
        """Whether there are calls whose end is still to be learned."""
        with self._lock:
            return any(observed.future is not None for observed in self._calls)

    def begin(self, observed: Seen) -> list[Line]:
        """The lines to write before a call is handed on, so that the file of a job that crashes in
        it has it, with its group."""
        with self._lock:
            notes, self._notes = self._notes, []
            fields = {name: value for name, value in observed.fields.items() if name != "op"}
        observed.begun = observed.issued
        call = Call(**fields, issued_ns=observed.begun, waits=observed.waits)
        return [*notes, own.Note(begun=(observed.index, call))]

    def ready(self) -> list[Line]:
        """The calls that can be written: no call before them may still change."""
        now = self._now()
        old = now - int(HELD_S * 1e9)
        with self._lock:
            self._read()
            lines = [*self._notes, *self._list_late()]
            self._notes = []
            while self._calls and (self._calls[0].done or self._calls[0].issued < old):
                call = (observed := self._calls.popleft()).call
                lines.append(call)
                observed.state = call.state
                if observed.may_end and len(self._overdue) < MOST_HELD:
                    self._overdue.append(observed)
            until = self._calls[0].issued if self._calls else now
        lacks = any(calls for calls, _ in self._lost.values())
        return lines if lacks else [*lines, own.Note(until=until)]

    def _list_late(self) -> list[Line]:
        """What calls that were written before have come to since: they are waited for, or have
        ended, and messages came from a rank."""
        lines: list[Line] = []
        overdue, self._overdue = self._overdue, []
        for observed in overdue:
            may_end, ends = observed.may_end, observed.ends  # in this order: others set ends first
            is_begun = ends < 0 and not observed.state and observed.under_way
            if is_begun:
                observed.state = "started"
            if is_begun or ends >= 0:
                peer = observed.fields.get("peer", -1)
                lines.append(own.Note(late=(observed.index, ends), peer=peer))
            if may_end and ends < 0:
                self._overdue.append(observed)
        return lines

    def rest(self, broken: bool = False) -> list[Line]:
        """All lines not written yet, with what was lost and the end. ``broken``: the job
        itself has ended, not only the recording."""
        with self._lock:
            self._read()
            lines = [*self._notes, *self._list_late(), *(observed.call for observed in self._calls)]
            lines += [own.Note(lost=Lost(why, *sums)) for why, sums in self._lost.items()]
        return [*lines, own.Note(ended=self._now(), broken=broken)]

    def close(self, patience: float) -> None:
        """Lets go of all that belongs to the job, and returns when observing threads have ended,
        or after ``patience`` seconds: one that comes out of torch while Python ends would abort
        the process ("terminate called without an active exception")."""
        self._let_go()
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _let_go(self) -> None:
        with self._lock:
            for observed in self._observers.values():
                observed.put(None)
            for key in [*self._works]:
                self._pop_calls(key)
            for collection in (
                self._filled,
                self._forgotten,
                self._forgotten_fills,
                self._tasks,
                self._observers,
                self._calls,
                self._notes,
                self._overdue,
            ):
                collection.clear()


def _is_done(call: Seen) -> bool:
    """Whether those who wait for its future have gone on; its work says so a little later."""
    future = call.future
    return call.done if future is None else bool(future.done())


def _observe_calls(observed: queue.SimpleQueue[tuple[Seen, Any] | None], now: Clock) -> None:
    """Note when each of a group's calls ends, in their order; an observing thread runs this."""
    while (item := observed.get()) is not None:
        observed_call, future = item
        try:
            future.wait()
        except Exception:  # of the call: the job is told of it
            observed_call.done = True
        else:
            observed_call.ended(now())
        observed_call.future = None
        del item, observed_call, future  # what they hold is the job's
