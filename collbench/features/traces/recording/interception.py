"""Calls of torch.distributed as torch's dispatcher hands them over, from Python and from C++ alike.

Every collective and message of a ``ProcessGroup``, whatever the backend, is an operator of the
library ``c10d`` that goes through the dispatcher. A function of ours for the key ``BackendSelect``,
which stands before all backends and for which these operators have none, sees each call with its
arguments and hands it on to the kernel of the tensors' device. It gives up Python's lock meanwhile,
as Gloo's threads may need it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, Work, distributed_c10d

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES

Arguments = Mapping[str, Any]
KEY = "BackendSelect"
TORCH = torch.__path__[0]
# how ReduceOp numbers them
REDUCTIONS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
WRAPPERS = ("typing_extensions.py", "contextlib.py")
TYPES = {
    **{getattr(torch, dtype.torch): dtype.name for dtype in DTYPES.values()},
    torch.bool: "uint8",
    torch.complex64: "float",
    torch.complex128: "double",
}
FURTHER = (("root_rank", "root"), ("dst", "peer"), ("src", "peer"), ("tag", "tag"))
REDUCING = {name for name, row in COLLECTIVES.items() if row.reduces}
# that return when what they started in C++ has ended
BLOCKING = ("nn/parallel/distributed.py", "torch/distributed/utils.py")


class Said(NamedTuple):
    """What a call asks for, in collbench's words, on a group; ``why`` it cannot be told, else
    nothing."""

    fields: dict[str, Any]
    group: ProcessGroup
    device: str
    waits: bool = False
    why: str = ""


class Row(NamedTuple):
    """How an operator is read: its kind, the argument with the tensors that make its size, by how
    many members they are multiplied, and the one with the tensors that it fills. ``by_lists``: the
    first has lists of tensors, a block of each member."""

    kind: str
    sized_by: str
    fills: str
    times_members: bool = False
    by_lists: bool = False


# by the operators' names; coalesced ones are one call of all their tensors
OPERATORS = {
    "allreduce_": Row("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": Row("all_reduce", "tensors", "tensors"),
    "broadcast_": Row("broadcast", "tensors", "tensors"),
    "reduce_": Row("reduce", "tensors", "tensors"),
    "allgather_": Row("all_gather", "output_tensors", "output_tensors", by_lists=True),
    "_allgather_base_": Row("all_gather", "output_tensor", "output_tensor"),
    "allgather_coalesced_": Row("all_gather", "output_lists", "output_lists"),
    "allgather_into_tensor_coalesced_": Row("all_gather", "outputs", "outputs"),
    "reduce_scatter_": Row("reduce_scatter", "input_tensors", "output_tensors", by_lists=True),
    "_reduce_scatter_base_": Row("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": Row("reduce_scatter", "inputs", "outputs"),
    "alltoall_": Row("all_to_allv", "input_tensors", "output_tensors"),
    "alltoall_base_": Row("all_to_all", "input", "output"),
    "gather_": Row("gather", "input_tensors", "output_tensors", times_members=True),
    "scatter_": Row("scatter", "output_tensors", "output_tensors", times_members=True),
    "send": Row("send", "tensors", "tensors"),
    "recv_": Row("recv", "tensors", "tensors"),
    "recv_any_source_": Row("recv", "tensors", "tensors"),
    "barrier": Row("barrier", "tensor", "tensor"),
    "monitored_barrier_": Row("barrier", "tensor", "tensor"),
}


def list_tensors(given: Any) -> list[Tensor]:
    """The tensors of an argument, which may lie in lists of lists."""
    if isinstance(given, Tensor):
        return [given]
    if not isinstance(given, list | tuple):
        return []
    return [tensor for argument in given for tensor in list_tensors(argument)]


def is_real(tensor: Tensor) -> bool:
    """Whether it has data: those that compilers trace with have none."""
    kind = type(tensor)
    is_plain = kind is Tensor or kind.__torch_dispatch__ is Tensor.__torch_dispatch__
    return is_plain and not torch._is_functional_tensor(tensor) and not tensor.is_meta


def read_call(row: Row, given: Arguments) -> Said | None:
    """The fields of a call; None where its tensors have no data."""
    group = ProcessGroup.unbox(given["process_group"])
    parts = list_tensors(given[row.sized_by])
    filled = parts if row.fills == row.sized_by else list_tensors(given[row.fills])
    first = next(iter(filled or parts), None)
    if first is not None and not is_real(first):
        return None
    device = "cpu" if first is None or first.is_cpu else first.device.type
    waits = not given.get("async_op", True)
    if row.kind == "barrier":
        return Said({"kind": "barrier", "dtype": "uint8"}, group, device, waits)
    fields: dict[str, Any] = {"kind": row.kind, "nbytes": 0}
    for part in parts:
        fields["nbytes"] += part.numel() * part.itemsize
    if row.times_members:
        fields["nbytes"] *= group.size()
    _give_further(fields, given, group)
    if reduces := row.kind in REDUCING:
        fields["op"] = given["reduce_op"]
    why = _give_type(fields, parts, reduces)
    if row.by_lists and any(len({t.numel() for t in blocks}) > 1 for blocks in given[row.sized_by]):
        why = f"{row.kind} of unequal blocks"
    return Said(fields, group, device, waits, why)


def _give_type(fields: dict[str, Any], parts: list[Tensor], reduces: bool) -> str:
    """Gives a call its datatype, and its blocks elements of that; why there is none, else
    nothing."""
    types = {part.dtype for part in parts} or {torch.uint8}
    dtype = next(iter(types))
    name = TYPES.get(dtype) if len(types) == 1 else None
    if name is None and reduces:
        names = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
        return f"{fields['kind']} that reduces {names}"
    fields["dtype"] = name or "uint8"  # which moves the same bytes
    for blocks in ("sends", "receives"):
        if blocks in fields:
            scale = dtype.itemsize // DTYPES[fields["dtype"]].size
            fields[blocks] = tuple(scale * count for count in fields[blocks])
    for part in parts:
        if part.layout is not torch.strided:
            return f"{fields['kind']} of sparse tensors"
    return ""


def name_reduction(op: Any) -> str:
    """collbench's name of a reduction of C++, of which torch takes long to tell; nothing where
    torch does not tell at all, as 2.6."""
    return REDUCTIONS[op.op()] if hasattr(op, "op") else ""


def _give_further(fields: dict[str, Any], given: Arguments, group: ProcessGroup) -> None:
    """Gives a call its root, peer and tag, and the blocks of an exchange."""
    if fields["kind"] == "recv":
        fields["peer"] = -1  # from anybody
    for name, field in FURTHER:
        if name in given:
            fields[field] = given[name]
    if fields["kind"] == "all_to_allv":
        fields["sends"] = tuple(tensor.numel() for tensor in given["input_tensors"])
        fields["receives"] = tuple(tensor.numel() for tensor in given["output_tensors"])
        itemsize = given["input_tensors"][0].itemsize
    elif given.get("input_split_sizes") or given.get("output_split_sizes"):
        n = group.size()
        fields["kind"] = "all_to_allv"
        fields["sends"] = _member_elements(given["input"], given["input_split_sizes"], n)
        fields["receives"] = _member_elements(given["output"], given["output_split_sizes"], n)
        itemsize = given["input"].itemsize
    else:
        return
    fields["nbytes"] = max(sum(fields["sends"]), sum(fields["receives"])) * itemsize


def _member_elements(buffer: Tensor, splits: list[int], n: int) -> tuple[int, ...]:
    """Elements to or from each member, of a buffer that is split by rows; evenly without splits."""
    rows = buffer.size(0) if buffer.dim() else 1
    width = buffer.numel() // rows if rows else 0
    return tuple(split * width for split in splits or [rows // n] * n)


def blocks_until_done(frame: FrameType | None) -> bool:
    """Whether a call from this frame is one of those that C++ starts and waits for before it
    returns, as DDP does with what it broadcasts."""
    return frame is not None and frame.f_code.co_filename.endswith(BLOCKING)


class Lines:
    """Lines of the program, by frames: what is known of their code is kept."""

    def __init__(self) -> None:
        # by id, as code takes long to hash
        self._torchs: dict[int, tuple[CodeType, bool]] = {}

    def line_of(self, frame: FrameType | None) -> str:
        """The line of the program that made a call: the innermost that is not torch's."""
        while frame is not None:
            code = frame.f_code
            origin = self._torchs.get(id(code))
            if origin is None:
                path = code.co_filename
                torchs = path.startswith((TORCH, "<")) or path.endswith(WRAPPERS)
                origin = self._torchs[id(code)] = code, torchs
            if not origin[1]:
                name = code.co_filename.rpartition("/")[2]
                return f"{name}:{frame.f_lineno} {code.co_name}"[:200]
            frame = frame.f_back
        return ""


class Told(Protocol):
    """A listener to calls and waits. What a ``..._begins`` method returns is passed as ``began``
    when that call or wait returns or fails. No method may raise."""

    def call_begins(self, row: Row, given: Arguments, frame: FrameType | None) -> Any:
        """A function of torch is about to be called with ``given``, from the program's ``frame``.
        ``call_returns`` and ``call_fails`` do not follow if this returns None."""

    def call_returns(self, began: Any, boxed: Any, row: Row, given: Arguments) -> None:
        """The call has returned ``boxed``."""

    def call_fails(self, began: Any, error: BaseException) -> None:
        """The call has raised ``error``."""

    def wait_begins(self, work: Work, by_torch: bool) -> Any:
        """The program is about to wait for ``work``; ``by_torch`` if torch calls wait itself."""

    def tensor_wait_begins(self, tensor: Tensor) -> Any:
        """The program is about to wait for the call that fills ``tensor``."""

    def wait_returns(self, began: Any) -> None:
        """The wait is over."""

    def coalescing_begins(self) -> None:
        """Calls that follow are issued together as one."""

    def coalescing_ends(self, work: Work | None) -> None:
        """The calls since ``coalescing_begins`` are issued together; ``work`` is their handle, None
        where torch gave none."""


class Interception:
    """Functions of ours before those of torch, from ``install`` to ``remove``."""

    def __init__(self, listener: Told) -> None:
        self._listener = listener
        self._inside: deque[None] = deque()  # one for each call that is being handed on
        self._libraries: list[Any] = []
        self._replaced: list[tuple[type, str, Any]] = []

    def install(self) -> None:
        """Put functions of ours before those of torch. Raises RuntimeError where another recording
        or tool is in their place, and what torch raises where it is of an unknown version; nothing
        stays installed then."""
        if torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", KEY):
            raise RuntimeError("there is a recording already, or another tool in its place")
        try:
            for name, row in OPERATORS.items():
                if hasattr(torch.ops.c10d, name):  # not all torches have all
                    operator = getattr(torch.ops.c10d, name).default
                    self._register("c10d", name, self._function(operator, row))
            self._register("_c10d_functional", "wait_tensor", self._tensor_wait())
            for kind in _list_subclasses(Work):
                if "wait" in kind.__dict__:
                    self._replace(kind, "wait", self._wait)
            self._replace(ProcessGroup, "_start_coalescing", self._start_coalescing)
            self._replace(ProcessGroup, "_end_coalescing", self._end_coalescing)
        except BaseException:
            self.remove()
            raise

    def remove(self, patience: float = 1.0) -> bool:
        """Restore torch's functions, and return whether that was done: not if another thread stays
        within a call for more than ``patience`` seconds."""
        until = time.monotonic() + patience
        if not self._libraries:
            return True
        while self._inside and time.monotonic() < until:
            time.sleep(0.001)
        if self._inside:
            return False
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)
        while self._libraries:
            self._libraries.pop()._destroy()
        return True

    def _register(self, namespace: str, name: str, function: Callable[..., Any]) -> None:
        library: Any = torch.library.Library  # which has no types
        self._libraries.append(library_part := library(namespace, "IMPL"))
        library_part.impl(name, function, KEY, with_keyset=True)

    def _replace(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, make(original))
        self._replaced.append((owner, name, original))

    def _function(self, operator: Any, row: Row) -> Callable[..., Any]:
        arguments = operator._schema.arguments
        names = [argument.name for argument in arguments]
        usual = {
            argument.name: argument.default_value
            for argument in arguments
            if argument.has_default_value()
        }
        onward, inside = _Onward(operator), self._inside
        begins, returns = self._listener.call_begins, self._listener.call_returns

        def called(keys: Any, *args: Any) -> Any:  # no operator has arguments by name only
            inside.append(None)
            try:
                given = usual | dict(zip(names, args, strict=False))
                began = begins(row, given, sys._getframe().f_back)
                try:
                    result = onward(keys, args)
                except BaseException as e:
                    if began is not None:
                        self._listener.call_fails(began, e)
                    raise
                if began is not None:
                    boxed = result[-1] if isinstance(result, tuple) else result
                    returns(began, boxed, row, given)
                return result
            finally:
                inside.pop()

        return called

    def _tensor_wait(self) -> Callable[..., Any]:
        onward = _Onward(torch.ops._c10d_functional.wait_tensor.default)

        def waited(keys: Any, tensor: Tensor) -> Any:
            self._inside.append(None)
            try:
                began = self._listener.tensor_wait_begins(tensor)
                result = onward(keys, (tensor,))
                if began is not None:
                    self._listener.wait_returns(began)
                return result
            finally:
                self._inside.pop()

        return waited

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        ours = distributed_c10d.__file__

        def wait(work: Work, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe().f_back  # none in a thread of C++
            code = caller.f_code if caller else None
            by_torch = code is not None and code.co_filename == ours and code.co_name != "wait"
            began = self._listener.wait_begins(work, by_torch)
            result = original(work, *args, **kwargs)
            if began is not None:
                self._listener.wait_returns(began)
            return result

        return wait

    def _start_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def start(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            self._listener.coalescing_begins()
            return result

        return start

    def _end_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            result = original(group, *args, **kwargs)
            self._listener.coalescing_ends(result)
            return result

        return end


def _list_subclasses(kind: type) -> Iterator[type]:
    """A class and all that are made of it."""
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for subclass in subclasses:
        yield from _list_subclasses(subclass)


class _Onward:
    """The way to the kernel that an operator has for the device of its tensors."""

    def __init__(self, operator: Any) -> None:
        self._operator, self._call = operator, operator._op_dk
        self._own_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)
        self._exclude = torch._C._ExcludeDispatchKeyGuard
        self._handlers: dict[int, Any] = {}  # what the dispatcher would take, by sets of keys
        # tells of a torch without
        self._find_key(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))

    def __call__(self, keys: Any, args: tuple[Any, ...]) -> Any:
        number = keys.raw_repr()
        if number not in self._handlers:
            self._handlers[number] = self._find_key(keys)
        if (handler := self._handlers[number]) is not None:
            return self._call(handler, *args)
        with self._exclude(self._own_keys):  # as without us, errors and all
            return self._operator(*args)

    def _find_key(self, keys: Any) -> Any:
        """The dispatcher's next key after ours, for which there is a kernel; None without."""
        names, has = torch._C.DispatchKey, torch._C._dispatch_has_kernel_for_dispatch_key
        for key in (
            keys.remove(names.BackendSelect).highestPriorityTypeId(),
            names.CompositeExplicitAutograd,
        ):
            if has(self._operator.name(), key.name):
                return key
        return None


def work_of(boxed: Any) -> Work | None:
    """The work object that an operator returns, as Python has it; None where it returns none."""
    try:
        return Work.unbox(boxed) if boxed is not None else None
    except Exception:  # none, where calls are coalesced
        return None
