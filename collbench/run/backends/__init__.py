"""Everything that can run a case. A backend is a module in this package that imports nothing heavy:
its INFO says what is known of it without loading it (core/backend_info.py), ``create(name)`` makes
it. Modules that begin with ``_`` do the work. Files and packages from outside do the same.

A name without a module is taken for a torch.distributed backend, a plug-in's; ``mpi`` is this
package's, not torch's.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from collbench.core.backend_info import find_module
from collbench.core.errors import CannotRun as CannotRun
from collbench.records.types import Choice
from collbench.suite.case import Case
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.run.rank.control import Control
    from collbench.run.rank.stream import Stream


# what backends raise where the library refuses a call
REFUSALS = (RuntimeError, TypeError, ValueError, NotImplementedError, BufferError)
REFUSED = re.compile(  # what NCCL cannot do; what CUDA said of it comes behind
    r"(?:(?!Last error:).)*?(?:invalid argument|invalid usage)|.*no algorithm/protocol",
    re.IGNORECASE | re.DOTALL,
)


def do_nothing(*_: object) -> None:
    """What a call has to do where there is nothing."""


class Call(NamedTuple):
    """A prepared call: on CPUs ``run()`` returns when this rank's result is there; on a device it
    may return once all is issued, and the backend's ``finish()`` is called. ``submit()`` returns a
    handle with ``wait()``, None where a call cannot be left to itself. ``ran`` names a reference
    algorithm with all its parameters. ``waits`` says that on a device, too, ``run()`` returns only
    when it is done. ``bare()`` is the same call with nothing to do, by this rank alone: what is
    left of ``run()`` without its work. ``note`` is for the record: what a reader of its times must
    know of the call.

    ``load`` and ``store`` are for libraries that cannot work in torch's memory, and are never
    timed. ``load()`` hands ``send``, which has been filled, to the library and drops any earlier
    result. ``store()`` copies the result of the last ``run()`` to ``recv``; where nothing ran since
    ``load()``, it leaves ``recv`` unchanged.
    """

    run: Callable[[], object]
    submit: Callable[[], Any] | None
    ran: str = ""
    waits: bool = False
    bare: Callable[[], object] | None = None
    note: str = ""
    load: Callable[[], object] = do_nothing
    store: Callable[[], object] = do_nothing

    def run_with_data(self, finish: Callable[[], object] = do_nothing) -> None:
        """Make the call on what ``send`` holds now, and have its result in ``recv``. ``finish`` is
        the backend's."""
        self.load()
        self.run()
        finish()
        self.store()


class Message(NamedTuple):
    """A message to a ``peer`` of the group, or the receiving of one from it, into ``buffer``."""

    sends: bool
    buffer: Any
    peer: int
    tag: int


class Backend(Protocol):
    """What the worker needs of anything that runs collectives. Buffers are 1-D tensors of the
    case's dtype."""

    policy: Policy  # set before open
    # set before open where the world is divided into groups: that of this rank's
    control: Control | None
    hosts: Sequence[str]  # set before open: that of each rank, as the world counts them
    shared: bool  # whether this rank shares its GPU with others (once opened)
    interpreted: bool  # whether kernels run in an interpreter
    # where the device puts collectives in order, and its clock (once opened); None on CPUs
    stream: Stream | None

    @property
    def device(self) -> Any:
        """The torch device that holds this rank's buffers."""

    @property
    def premultiplies(self) -> bool:
        """Whether the library's own avg multiplies by 1/n, inputs before they are added or their
        sum, and so may differ from dividing the sum by 2 ulp."""

    @property
    def library(self) -> str:
        """Name and version of what does the work."""

    def refuse(self, case: Case) -> str:
        """Why this backend, once opened, cannot run ``case``; else an empty string."""

    def copies_first(self, case: Case) -> bool:
        """Whether the timed call starts with a copy, for want of such an out-of-place
        collective."""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        """Join the world, or the group in it that ``rank`` and ``n`` are of; called once, before
        any prepare, by all ranks. Raises CannotRun with the reason."""

    def allocate(self, nbytes: int) -> Any:
        """A 1-D uint8 tensor for all buffers of one case, which all ranks cut up alike; the last is
        out of use. Raises CannotRun, as prepare does, on all ranks alike: the case is skipped."""

    def prepare(self, case: Case, send: Any, recv: Any) -> Call:
        """Resolve everything that can be resolved before the clock starts. In place, both views
        share memory."""

    def prepare_all(self, case: Case, sends: Sequence[Any], recvs: Sequence[Any]) -> Call:
        """Prepare one call that does the case for all ranks, which are virtual ones of this
        process; ``sends`` and ``recvs`` have a buffer for each rank."""

    def message(self, sends: bool, buffer: Any, peer: int, tag: int) -> Call:
        """A message to a peer of the group, or the receiving of one from it."""

    def message_batch(self, messages: Sequence[Message]) -> Call:
        """These messages at once, and the wait until all are done. What is one message here may be
        one of several at its peer."""

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object] | None:
        """One action that has the library do all these calls of ``case``, none of which shares a
        buffer with another, as one; None where it does each by itself."""

    def align(self) -> None:
        """Issue what brings all ranks' streams to the same point, where there are streams."""

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        """The algorithm that the library says it ran in a call made once for that; None, and no
        call, where it says nothing."""

    def finish(self) -> None:
        """Wait until the device has done all that was issued; nothing to do where calls return when
        they are done. Raises what a call could not: once where the library refused it, again where
        the device can do no more."""

    def close(self) -> None:
        """Leave the world, or as much of it as was opened where ``open`` raised CannotRun."""

    def leave(self) -> None:
        """Leave what this process joined at its first world of this library. All ranks call it,
        after they have closed the last one."""


class Base:
    """Defaults for a backend's methods. A backend defines ``open`` and ``prepare`` itself, and sets
    ``library`` in ``open``: name and version of what does the work, and each setting that it had to
    choose."""

    policy = Policy()
    control: Control | None = None
    hosts: Sequence[str] = ()
    shared = interpreted = False
    stream: Stream | None = None
    premultiplies = False
    library = ""

    @cached_property
    def device(self) -> Any:
        """The CPU."""
        import torch

        return torch.device("cpu")

    def refuse(self, case: Case) -> str:
        return ""

    def copies_first(self, case: Case) -> bool:
        return False

    def allocate(self, nbytes: int) -> Any:
        import torch

        from collbench.run.rank.control import make_world_control

        if self.device.type == "cpu":
            return torch.empty(nbytes, dtype=torch.uint8)
        with make_world_control().refusing_alike():  # one rank's GPU may have less room
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def find_group(self, rank: int, n: int) -> Control:
        """The ranks that ``open`` is for: this one's group of a world that is divided, else all."""
        from collbench.run.rank.control import Control

        return self.control or Control(rank, n)

    def find_free_address(self) -> str:
        """``address:port`` that is free just now, on the interface by which all ranks reach this
        one. Raises CannotRun."""
        from collbench.run.backends._addresses import find_free_address

        return find_free_address()

    def near(self, control: Control) -> set[int]:
        """The ranks of the group that are on this one's host; none where hosts are not known."""
        hosts = [self.hosts[member] for member in control.members] if self.hosts else []
        return {rank for rank, host in enumerate(hosts) if host == hosts[control.rank]}

    def prepare_all(self, case: Case, sends: Sequence[Any], recvs: Sequence[Any]) -> Call:
        raise NotImplementedError("ranks of this backend are never virtual")

    def message(self, sends: bool, buffer: Any, peer: int, tag: int) -> Call:
        raise NotImplementedError("this backend has no messages from rank to rank")

    def message_batch(self, messages: Sequence[Message]) -> Call:
        calls = [self.message(*message) for message in messages]
        if len(calls) == 1:
            return calls[0]
        starts = [call.submit for call in calls if call.submit]
        if len(starts) < len(calls):
            raise NotImplementedError("this backend has no message that is left to itself")

        def run() -> None:
            for work in [start() for start in starts]:
                work.wait()

        return Call(run, None)

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object] | None:
        return None

    def align(self) -> None:
        pass

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        return None


def find_backend(name: str) -> Backend:
    """The backend called ``name``: this package's, else torch's of that name."""
    module = find_module(name) or importlib.import_module(f"{__name__}._torchdist")
    backend: Backend = module.create(name)
    return backend
