"""The fake GPU's kernels: torch's own CPU kernels, on the same memory.

Every operator that torch has a CUDA kernel for is given to the CPU's, but those that allocate or
view, which are real. Work waits for what is ahead of it on the stream, and cannot be captured in a
graph, but for copies that cudaMemcpyAsync can do and products of matrices that are written to a
tensor that is there. What is not replaced and launches a kernel ends with an error of the fake
runtime.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from typing import Any

# Operators that run as they are: they launch no kernels, or those that the fake runtime knows.
REAL = frozenset(
    (
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"),
        *("as_strided", "as_strided_", "view", "view_as_real", "view_as_complex", "unfold"),
        *("_reshape_alias", "set_", "resize_", "is_set_to", "_has_same_storage_numel"),
        *("_copy_from", "_copy_from_and_resize", "_local_scalar_dense", "_to_copy"),
        *("record_stream", "is_pinned", "pin_memory", "_pin_memory", "_efficientzerotensor"),
    )
)
# Products of matrices: of 16-bit numbers the CPU's may take a hundred times those of 32 bits.
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
BLIND = ("ne", "eq", "count_nonzero")  # comparisons that find nothing where FAKE_BLIND says so
_libraries: list[Any] = []  # which must live as long as what they register
_captured: list[Any] = []  # functions that graphs call, which may be launched at any time


def install() -> None:
    """Register the CPU's kernels for CUDA tensors, and tell libcuda of each Triton kernel what it
    was specialised for."""
    if not os.environ.get("FAKE_GPUS"):
        return
    import torch

    warnings.filterwarnings("ignore", message=".*Overriding a previously registered kernel.*")
    blind = os.environ.get("FAKE_BLIND")
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # torch warns of each one in C++
    try:
        for full in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            name, _, overload = full.removeprefix("aten::").partition(".")
            if full.startswith("aten::") and name not in REAL:
                operator = getattr(getattr(torch.ops.aten, name), overload or "default")
                kernel = on_cpu(operator, widen if name in PRODUCTS else cpu_view)
                if blind and name in BLIND:
                    kernel = make_blind(kernel, blind)
                library.impl(full.removeprefix("aten::"), kernel, "CUDA")
        library.impl("copy_", copy_, "CUDA")
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
    describe_triton_kernels()


def cpu_view(value: Any) -> Any:
    """A CPU tensor on the memory of a CUDA tensor; anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
        return value
    storage = value.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    memory = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    empty = torch.empty(0, dtype=value.dtype)
    return empty.set_(raw.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def widen(value: Any) -> Any:
    """A CPU tensor as ``cpu_view``'s, but of 32 bits a number where it has 16: a GPU, too, adds
    products of those up in 32."""
    import torch

    seen = cpu_view(value)
    is_narrow = isinstance(seen, torch.Tensor) and seen.dtype in (torch.bfloat16, torch.float16)
    return seen.float() if is_narrow else seen


def to_cuda(value: Any, dtype: Any = None) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    copied = torch.empty_strided(
        value.shape, value.stride(), dtype=dtype or value.dtype, device="cuda"
    )
    cpu_view(copied).copy_(value)
    return copied


def wait_for_stream(operator: Any) -> None:
    import torch

    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"the fake GPU cannot capture {operator}: it runs on the host")
    torch.cuda.current_stream().synchronize()


def on_cpu(operator: Any, see: Callable[[Any], Any] = cpu_view) -> Any:
    """A CUDA kernel for an operator that runs the CPU's, on what ``see`` makes of its tensors."""
    import torch
    from torch.utils._pytree import tree_map

    arguments = operator._schema.arguments
    written = [
        (i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write
    ]
    tensors = {i for i, argument in enumerate(arguments) if str(argument.type) == "Tensor"}
    returns = operator._schema.returns

    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs[name] for _, name in written if name in kwargs]
        if see is widen and outputs and torch.cuda.is_current_stream_capturing():
            capture(lambda: compute(*args, **kwargs))
            return outputs[0]
        wait_for_stream(operator)
        return compute(*args, **kwargs)

    def compute(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            cpu_kwargs = {
                key: torch.device("cpu") if key == "device" else value
                for key, value in kwargs.items()
            }
            cpu_args, cpu_kwargs = tree_map(see, (args, cpu_kwargs))
            cpu_args = tuple(
                torch.tensor(value)
                if i in tensors and isinstance(value, (int, float, bool))
                else value
                for i, value in enumerate(cpu_args)
            )
            outputs = [
                name for _, name in written if isinstance(kwargs.get(name), torch.Tensor)
            ]  # out=, which a CPU kernel may resize
            for name in outputs:
                cpu_kwargs[name] = see(torch.empty(0, dtype=kwargs[name].dtype))
            result = operator(*cpu_args, **cpu_kwargs)
            for name in outputs:
                if kwargs[name].shape != cpu_kwargs[name].shape:
                    kwargs[name].resize_(cpu_kwargs[name].shape)
                cpu_view(kwargs[name]).copy_(cpu_kwargs[name])
        if written:
            targets = [args[i] if i < len(args) else kwargs[name] for i, name in written]
            return None if not returns else targets[0] if len(returns) == 1 else tuple(targets)
        dtype = args[0].dtype if see is widen else None
        return tree_map(lambda value: to_cuda(value, dtype), result)

    return run


def capture(function: Callable[[], object]) -> None:
    """Have the graph that is being captured call a function, on the stream's own thread."""
    import torch

    called = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function())
    _captured.append(called)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    runtime().cudaLaunchHostFunc(stream, called, None)


def make_blind(kernel: Any, blind: str) -> Any:
    """A comparison that finds nothing in tensors of this type, or, for "1", of any."""

    def run(value: Any, *args: Any, **kwargs: Any) -> Any:
        if blind in ("1", str(value.dtype).removeprefix("torch.")):
            return find_nothing(value, *args, **kwargs)
        return kernel(value, *args, **kwargs)

    return run


def find_nothing(value: Any, *args: Any, **kwargs: Any) -> Any:
    """A comparison that is broken: all is zero."""
    import torch

    if args or kwargs.get("dim") is not None:
        return to_cuda(torch.zeros(value.shape, dtype=torch.bool))
    return to_cuda(torch.zeros((), dtype=torch.int64))  # a count


def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """What cudaMemcpyAsync can do goes to the stream; else the CPU copies."""
    import torch

    source = source.expand_as(target)
    alike = target.dtype == source.dtype and target.is_neg() == source.is_neg()
    if alike and target.is_contiguous() and source.is_contiguous() and target.numel():
        stream = torch.cuda.current_stream()
        kind = 4  # cudaMemcpyDefault: the runtime looks at the pointers
        if source.device.type == "cpu":
            kind = 1
        runtime().cudaMemcpyAsync(
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_size_t(target.numel() * target.element_size()),
            ctypes.c_int(kind),
            ctypes.c_void_p(stream.cuda_stream),
        )
        if "cpu" in (source.device.type, target.device.type) and not non_blocking:
            stream.synchronize()
        return target
    if not target.numel():
        return target
    wait_for_stream("a copy that needs a kernel")
    with torch._C._AutoDispatchBelowAutograd():
        cpu_view(target).copy_(cpu_view(source))
    return target


def runtime() -> Any:
    return ctypes.CDLL("libcudart.so.13")


def describe_triton_kernels() -> None:
    """Before Triton loads a kernel, tell libcuda its name and compile-time arguments."""
    try:
        from triton.compiler.compiler import CompiledKernel
    except ImportError:
        return
    load = CompiledKernel._init_handles
    driver = ctypes.CDLL("libcuda.so.1")

    def describe_and_load(self: Any) -> Any:
        names = getattr(getattr(self.src, "fn", None), "arg_names", [])
        constants = getattr(self.src, "constants", {})
        words = [self.name]
        for key, value in constants.items():
            name = key if isinstance(key, str) else names[key[0]]
            words.append(f"{name}={getattr(value, '__name__', value)}")
        driver.fake_describe_kernel(" ".join(words).encode())
        return load(self)

    CompiledKernel._init_handles = describe_and_load
