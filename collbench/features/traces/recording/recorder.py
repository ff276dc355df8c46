"""What a training job asks of the network, recorded while it runs, with one line in its script.

Each rank writes its collectives and messages, in the order of the program, with group, size,
datatype, reduction, root, peer, tag, blocks, when they were issued and when they ended, and its
waits, to a file that ``collbench trace`` and ``collbench replay`` read
(``traces/formats/own.py``).

A call is in the file before the library has it, so that a job that crashes leaves it, and again
with its end, by a thread, within two seconds of that.

``interception`` says how calls are seen. Whatever the backend, those of Python and of C++ pass
there, with their group, in every thread: DDP's reducer, FSDP, DTensor, functional collectives,
compiled code. Torch's profiler, with or without an ExecutionTraceObserver, sees the same operators
but not their groups on Gloo, and every other operator, too. A recorded call took 0.4 to 1.8 ms
more of a CPU, mostly as nothing of it is in a cache by then (tests/perf/recording.py).

Times are nanoseconds since the epoch: the wall clock when recording began, from then on the
monotonic one. On CPUs a call that is not waited for at once ends when its future does, seen by a
thread a group that waits for one after the other: it is late where Gloo, which has two threads,
ends a later one first, and by what it takes to get Python's lock.

Waits are those of ``Work.wait``, of functional collectives, and of the end of a backward pass for
calls made in it that nobody has waited for and that are done by then (on a device: made by then),
as DDP's reducer waits in C++. What DDP broadcasts in C++ is recorded as waited for one by one.

What it cannot see: when a device moves data (``ends_ns`` is unknown there) and computes; waits by
``Work.get_future().wait()``, or two iterations after the call (which is told); the end of messages
of Gloo that are not waited for; calls that pass by torch.distributed (NCCL, MPI or NVSHMEM called
directly, symmetric memory), calls of a Python ``ProcessGroup`` with methods of its own, and those
that a captured CUDA graph repeats. Calls that a library makes within one (Gloo's barrier is an
all_reduce) are the one call. Tensors without data, as compilers trace with, are left out.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work
from torch.optim.optimizer import register_optimizer_step_post_hook

from collbench.core import files
from collbench.core.errors import first_line
from collbench.core.text import format_count, print_message, readable_text
from collbench.features.traces.formats import own
from collbench.features.traces.recording.interception import (
    Arguments,
    Interception,
    Lines,
    Row,
    blocks_until_done,
    is_real,
    list_tensors,
    read_call,
    work_of,
)
from collbench.features.traces.recording.program import (
    Program,
    ScriptLine,
    Seen,
    make_clock,
)
from collbench.features.traces.types import RankTrace
from collbench.features.training.step import POINT_TO_POINT
from collbench.machine.gpu import is_fake

PAUSE_S = 2.0  # between two looks for what can be written
AT_ONCE_S = 1.0  # until a call that cannot be made raises its error
PATIENCE_S = 5.0  # at the end, for calls that have not ended, and for the disk
JOIN_S = 1.0  # at the end, for threads that have nothing more to do
PACKAGE = f"{Path(files.__file__).parents[1]}/"

P = ParamSpec("P")
T = TypeVar("T")


def make_harmless(
    method: Callable[Concatenate[Recorder, P], T],
) -> Callable[Concatenate[Recorder, P], T | None]:
    """The method, which does nothing where recording has ended or in a child, and ends it with a
    warning where it fails: nothing that goes wrong in here reaches the job."""

    @wraps(method)
    def guarded(recorder: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        if recorder.over or os.getpid() != recorder.pid:
            return None
        try:
            return method(recorder, *args, **kwargs)
        except Exception as e:
            recorder.give_up(e)
            return None

    return guarded


class Recorder:
    """A recording of this process's rank, from its making on; a context, which ends it.

    An iteration ends with ``step()``; until that is called first, with each step of the optimizer
    that is the first to make one (``optimizer``). ``after`` so many iterations it begins, and ends
    ``steps`` later.
    """

    def __init__(
        self, folder: str | os.PathLike[str], steps: int, after: int, optimizer: bool = True
    ) -> None:
        self.pid, self.over = os.getpid(), False
        self._folder, self._steps, self._after = folder, steps, after
        self._of_optimizer = optimizer
        self._now = make_clock()
        self._place = _find_script(sys._getframe())
        self._program = Program(self._now, self._place)
        self._interception, self._lines = Interception(self), Lines()
        self._began = -1  # this iteration, while recording
        self._passed, self._by_hand = 0, False
        self._optimizer: int | None = None
        self._hook: Any = None
        self._writer: threading.Thread | None = None
        self._wake = threading.Event()
        self._local = threading.local()
        self._opening = threading.RLock()
        self._file: own.Writer | None = None
        self._knows_gpu = False
        self._said_why = False  # that it failed
        self._broken = False  # ended with the job, or by an error
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None
    ) -> None:
        self._broken = kind is not None and not self.over
        self.close()

    def step(self) -> None:
        """An iteration ends here."""
        by_optimizer, self._by_hand = 0 if self._by_hand else self._passed, True
        if by_optimizer > 1:
            reason = f"{by_optimizer} steps of the optimizer were one iteration: optimizer=False"
            self.give_up(reason)
        if by_optimizer != 1:  # else its step has ended this iteration already
            self._iterated()

    def close(self) -> None:
        """Ends it, and returns when all is written."""
        if os.getpid() != self.pid:
            return
        self._end()
        with suppress(Exception):
            if self._writer is not None:
                self._writer.join(2 * PATIENCE_S)
            atexit.unregister(self._exits)

    def _exits(self) -> None:
        """The job ends."""
        self._broken = not self.over
        self.close()

    def give_up(self, error: BaseException | str) -> None:
        """Ends it with a warning; the job goes on."""
        self.over = True
        self._wake.set()
        if self._said_why:
            return
        self._said_why = True
        self._program.lose("the recorder failed: what came later is not in it", calls=0)
        why = error if isinstance(error, str) else f"{type(error).__name__}: {first_line(error)}"
        complaint = f"{why}; nothing more is recorded, the job goes on"
        try:
            self._place.warn(complaint)
        except Exception:  # where warnings are errors
            print_message(f"record: {complaint}")

    @make_harmless
    def _start(self) -> None:
        """Check the settings, and begin to record at once or after the iterations to be passed.
        Raises ValueError, RuntimeError and what the folder raises."""
        if self._steps < 1 or self._after < 0:
            raise ValueError("steps is from 1 on, after from 0")
        if not dist.is_available():
            raise RuntimeError("this torch has no torch.distributed")
        self._folder = Path(self._folder).absolute()  # the job may go to another folder
        files.make_folder(self._folder)
        if self._of_optimizer:
            self._hook = register_optimizer_step_post_hook(self._optimized)
        atexit.register(self._exits)
        if self._after == 0:
            self._begin()

    def _begin(self) -> None:
        """Begin to record, and remove the file of an earlier recording."""
        if dist.is_initialized():
            own.remove_file(Path(self._folder), dist.get_rank())
        self._interception.install()
        self._writer = threading.Thread(target=self._write, name="collbench-record", daemon=True)
        self._writer.start()
        self._began = self._now()

    def _optimized(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._optimizer = self._optimizer or id(optimizer)
        if self._by_hand or id(optimizer) != self._optimizer:
            return
        if self.over or self._writer is None or self._has_new_calls():
            self._iterated()

    @make_harmless
    def _has_new_calls(self) -> bool:
        """Whether a step of the optimizer ends an iteration: DeepSpeed has it step for each group
        of parameters, without a call between."""
        if not self._program.has_new_calls:
            self._program.lose("steps of the optimizer that no call came before", calls=0)
        return self._program.has_new_calls

    def _iterated(self) -> None:
        if self.over:  # by a failure: hooks go where no call is under way
            self._end(patience=0)
        self._count_iteration()

    @make_harmless
    def _count_iteration(self) -> None:
        """Count an iteration that has ended, and begin or end the recording where that was the
        number asked for."""
        self._passed += 1
        if self._began >= 0:
            now = self._now()
            self._program.iterated((self._began, now))
            self._began = now
            if self._passed >= self._after + self._steps:
                self._end()
        elif self._passed >= self._after:
            self._begin()

    def _end(self, patience: float = 1.0) -> None:
        """Ends the recording; the rest is written beside the job."""
        try:
            if self._hook is not None:
                self._hook.remove()
                self._hook = None
            if not self._interception.remove(patience):
                self.give_up("another thread is within a call, so that hooks stay in place")
            if self._writer is None:
                self.give_up(self._explain_empty_recording())
        except Exception as e:
            self.give_up(e)
        self.over = True
        self._local = threading.local()  # which holds works of the job
        self._wake.set()

    def _explain_empty_recording(self) -> str:
        """Why the recording ended before it began."""
        if not self._passed:
            return "no iteration ended: is recorder.step() called in each?"
        iterations = format_count(self._passed, "iteration")
        return f"{iterations} ended, and after={self._after} leaves out more: give a smaller after"

    @make_harmless
    def call_begins(self, row: Row, given: Arguments, frame: FrameType | None) -> Seen | None:
        """Add a call to the program that is recorded, with the line of the program that makes it;
        None for a call that is not recorded."""
        self._local.at_once = None  # which nobody in Python waits for any more
        what = read_call(row, given)
        if what is None:
            return None
        file = self._file or self._open(what.device)
        self._mark_fake_gpu()
        if self._knows_gpu and torch.cuda.is_current_stream_capturing():
            self._program.lose("calls that a CUDA graph captures; their repetitions are not seen")
            return None
        task = torch._C._current_graph_task_id()
        if task != -1:
            what.fields["phase"] = "backward"
        what.fields["source"] = self._lines.line_of(frame)
        observed = self._local.last = self._program.add(what.fields, what.group, what.why)
        if observed is None:
            return None
        observed.device, observed.waits = what.device, what.waits
        if task != -1 and not what.waits and self._program.in_task(observed, task):
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._backward_done(task))
        if task == -1 and not what.waits and blocks_until_done(frame):
            observed.waits = True
        file.append(self._program.begin(observed))
        observed.issued = self._now()
        return observed

    def _open(self, device: str) -> own.Writer:
        """The file of this rank, which is made with the first call. Raises what the folder
        raises."""
        with self._opening:  # of several threads, and of a signal's handler
            if self._file is None:
                about = _describe_rank(device)
                path = Path(self._folder) / own.file_name(about.rank)
                self._file = own.Writer(path, about)
            return self._file

    def _mark_fake_gpu(self) -> None:
        """Marks the recording once this process uses a GPU that is a fake."""
        if self._knows_gpu or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        self._knows_gpu = True
        if is_fake(torch.cuda.get_device_name()):
            self._program.mark_fake()

    @make_harmless
    def call_returns(self, observed: Seen, boxed: Any, row: Row, given: Arguments) -> None:
        """Note how a call that has returned ends: at once, with the work in ``boxed``, or together
        with the calls that it is issued with."""
        coalesced = getattr(self._local, "coalesced", None)
        at_once = not given.get("async_op", True)
        if at_once and boxed is not None and coalesced is None:
            self._local.at_once = observed, boxed  # its wait comes next, if there is one
            observed.done = observed.device != "cpu"  # when it ends is not known
            return None
        work = work_of(boxed)
        if coalesced is not None:
            coalesced.append(observed)
            observed.pending = False
        elif work is None:
            observed.waits = True
            return observed.ended(self._now())
        collective = observed.fields["kind"] not in POINT_TO_POINT
        if work is not None and (at_once or not observed.waits):
            self._program.under_way(work, [observed])
        if observed.device != "cpu":
            observed.done = True  # when it ends is not known
        elif collective and not at_once and work is not None:
            self._program.watch(observed, work)
        if not at_once and not observed.waits:
            observed.pending = observed.future is not None or observed.ends >= 0
        if collective and not at_once and not observed.waits:
            self._program.fills(observed, list_tensors(given[row.fills]))
        return None

    @make_harmless
    def call_fails(self, observed: Seen, error: BaseException) -> None:
        """A call that raised an error at once is none; one that did later has waited for others,
        who may know of it."""
        if self._file is not None and self._now() - observed.issued < AT_ONCE_S * 1e9:
            self._file.append(self._program.take_back(observed, type(error).__name__))

    @make_harmless
    def wait_begins(self, work: Work, by_torch: bool) -> Waiting | None:
        """Add a wait for the calls that ``work`` is the handle of, unless it is part of the call
        (``by_torch``); None where none of them is recorded."""
        calls = self._program.waited(work) or self._at_once(work)
        if not calls:
            return None
        if by_torch and calls == [getattr(self._local, "last", None)]:
            calls[0].waits = True  # as dist.send does
        if all(call.waits for call in calls):
            return Waiting(None, calls, work)
        return Waiting(self._program.wait(calls), calls, work)

    def _at_once(self, work: Work) -> list[Seen]:
        """The call that this thread made last to be waited for at once, if that is its work."""
        latest = getattr(self._local, "at_once", None)
        if latest is None or work_of(latest[1]) is not work:
            return []
        self._local.at_once = None
        return [latest[0]]

    @make_harmless
    def tensor_wait_begins(self, tensor: Tensor) -> Waiting | None:
        """Add a wait for the call that fills ``tensor``; None where no recorded call does."""
        call = self._program.filled(tensor) if is_real(tensor) else None
        return Waiting(self._program.wait([call]), [call], None) if call else None

    @make_harmless
    def wait_returns(self, began: Waiting) -> None:
        """Note that a wait and its calls end now, and which rank a message came from."""
        now = self._now()
        for call in began.calls:
            if began.work is not None and call.fields.get("peer") == -1:
                call.fields["peer"] = began.work._source_rank()
            call.ended(now)
        if began.wait is not None:
            began.wait.ended(now)

    @make_harmless
    def coalescing_begins(self) -> None:
        """Collect the calls of this thread that follow, as they are issued together."""
        self._local.coalesced = []

    @make_harmless
    def coalescing_ends(self, work: Work | None) -> None:
        """Note that ``work`` is the handle of the calls collected since coalescing began."""
        calls, self._local.coalesced = getattr(self._local, "coalesced", None), None
        if calls and work is not None:
            self._program.under_way(work, calls)

    @make_harmless
    def _backward_done(self, task: int) -> None:
        """Called at the end of a backward pass, before C++ code of torch waits for calls there: has
        ``_backward_waited`` called after it."""
        began = self._now()
        torch.autograd.Variable._execution_engine.queue_callback(
            lambda: self._backward_waited(task, began)
        )

    @make_harmless
    def _backward_waited(self, task: int, began: int) -> None:
        """Add the wait at the end of a backward pass, from ``began`` (ns) until its calls have
        ended; DDP then copies buckets back to gradients."""
        if calls := self._program.left_by(task):
            self.wait_returns(Waiting(None, calls, None))
            if wait := self._program.wait(calls, began):
                ends = max(call.ends for call in calls)
                wait.ended(max(began, ends) if ends >= 0 else self._now())

    def _write(self) -> None:
        """Write recorded calls to the file as they end, until the recording is over; the writing
        thread runs this."""
        try:
            while not self.over:
                self._wake.wait(PAUSE_S)
                if self._file is not None:  # else marks of iterations are kept for the file
                    self._file.write(self._program.ready())
            until = time.monotonic() + PATIENCE_S
            while self._program.watching and time.monotonic() < until:
                time.sleep(0.01)
            lines = self._program.rest(self._broken)
            if self._file is None:
                self.give_up("no call between ranks was made, so that there is no file")
            else:
                self._file.write(lines)
        except Exception as e:
            self.give_up(e)
        finally:
            with suppress(OSError):
                if self._file is not None:
                    self._file.close()
            self._program.close(JOIN_S)


def _find_script(frame: FrameType | None) -> ScriptLine:
    """The innermost line that is not collbench's."""
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE) and frame.f_back:
        frame = frame.f_back
    return (
        ScriptLine(frame.f_code.co_filename, frame.f_lineno) if frame else ScriptLine("script", 1)
    )


def _describe_rank(device: str) -> RankTrace:
    """A trace of this rank without calls: its number, world, host, and backend of that device: a
    group has several where it was made without naming one, or with cpu:gloo,cuda:nccl."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    backend = backends.get(device, str(dist.get_backend()))
    rank, world = dist.get_rank(), dist.get_world_size()
    return RankTrace(rank, world, host=readable_text(socket.gethostname()), backend=backend)


class Waiting(NamedTuple):
    """A wait that is under way, None where it is part of its call; the calls; their work."""

    wait: Seen | None
    calls: list[Seen]
    work: Work | None
