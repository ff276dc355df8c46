"""JAX: programs of one collective each, compiled before the clock starts, on one CPU device a rank.

JAX's arrays do not change. What a program reads is torch's memory, lent by DLPack, and what it
returns is XLA's, from which results are copied after the clock. A process joins JAX's world once
and leaves it after its last world here; groups are meshes of their ranks' devices.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from collbench.core.errors import CannotRun, first_line
from collbench.run.backends import Base, Call
from collbench.run.backends._addresses import find_free_address
from collbench.run.backends._jax_names import COLLECTIVES, MISSING
from collbench.run.rank.control import Control, make_world_control
from collbench.suite.case import Case

AXIS = "ranks"
ALIGNED = 64  # bytes: XLA reads other memory by way of a copy
JOINING = 60  # seconds
LEAVING = 5  # seconds that a rank waits for the others to leave, which all are about to
PATIENCE = 1 << 20  # seconds: -T says how long ranks may stand still

Tensor = torch.Tensor

# the jax module while this process is in its world, else empty
_joined: list[Any] = []


def load_jax() -> Any:
    """The module, set up for CPUs and all datatypes. Raises CannotRun with the reason."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import jax
    except ImportError as e:
        if getattr(e, "name", "") == "jax":
            raise CannotRun(*MISSING.split(": ", 1)) from e
        raise CannotRun(
            f"jax cannot be loaded: {first_line(e)}", "pip install 'collbench[jax]'"
        ) from e
    jax.config.update("jax_enable_x64", True)  # without it doubles become floats
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM
    platforms = jax.config.jax_platforms
    if platforms != "cpu":
        raise CannotRun(
            f"JAX_PLATFORMS={platforms}: backend jax measures CPUs", "leave JAX_PLATFORMS out"
        )
    collectives = jax.config.jax_cpu_collectives_implementation
    if collectives != "gloo":
        raise CannotRun(
            f"JAX_CPU_COLLECTIVES_IMPLEMENTATION={collectives}: backend jax has Gloo only",
            "leave it out",
        )
    return jax


def offer_address(control: Control) -> str:
    """Address and free port for a service of rank 0, on the interface of the control group; the
    same at all ranks. Raises CannotRun, on all ranks alike."""
    address = ""
    with control.refusing_alike():
        if control.rank == 0:
            address = find_free_address()
    told: str = control.broadcast(address)
    return told


class Jax(Base):
    """Collectives of jax.lax within shard_map."""

    premultiplies = True  # XLA turns a division by a constant into a product

    def __init__(self) -> None:
        self.library = "jax"
        self._programs: dict[tuple[object, ...], Callable[..., Any]] = {}

    def refuse(self, case: Case) -> str:
        if self.policy.unalign:
            return f"JAX copies inputs that are not aligned to {ALIGNED} bytes: leave -u out"
        return ""

    def open(self, rank: int, n: int, local_rank: int) -> None:
        world = make_world_control()
        with world.refusing_alike():
            self._jax = load_jax()
        if not self._jax.distributed.is_initialized():
            self._join_world(world)
        devices = {device.process_index: device for device in self._jax.devices()}
        joined = self._jax.process_index(), len(devices), self._jax.local_device_count()
        if joined != (world.rank, world.n, 1):
            raise CannotRun(
                f"JAX is rank {joined[0]} of {joined[1]} with {joined[2]} devices, not rank"
                f" {world.rank} of {world.n} with one",
                "leave XLA_FLAGS and JAX_NUM_CPU_DEVICES out",
            )
        self._device, self._devices = devices[world.rank], devices
        import jaxlib

        self.library = f"jax {self._jax.__version__}, jaxlib {jaxlib.__version__}, x64, Gloo by XLA"

    def _join_world(self, world: Control) -> None:
        address = offer_address(world)
        try:
            self._jax.distributed.initialize(
                address,
                world.n,
                world.rank,
                local_device_ids=[],
                coordinator_bind_address=address,
                initialization_timeout=JOINING,
                heartbeat_timeout_seconds=PATIENCE,
                shutdown_timeout_seconds=LEAVING,
            )
            self._jax.devices()
        except (RuntimeError, ValueError) as e:
            raise CannotRun(
                f"jax.distributed.initialize at {address}: {first_line(e)}",
                "collbench doctor says what runs here",
            ) from e
        _joined.append(self._jax)
        # JAX leaves at exit, too, and would wait there for ranks that are gone
        if clean_up := getattr(sys.modules.get("jax._src.api"), "clean_up", None):
            atexit.unregister(clean_up)

    def prepare(self, case: Case, send: Tensor, recv: Tensor) -> Call:
        jax = self._jax
        members = self.control.members if self.control else range(len(self._devices))
        mesh = jax.sharding.Mesh([self._devices[member] for member in members], (AXIS,))
        own = jax.sharding.Mesh([self._device], (AXIS,))
        over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
        dtype = jax.numpy.dtype(case.type.torch)
        program = self._compile_program(case, mesh, len(send), dtype)
        nothing = self._compile_program(case, own, 1, dtype)
        zero = jax.device_put(
            np.zeros(1, dtype), jax.sharding.NamedSharding(own, jax.sharding.PartitionSpec(AXIS))
        )
        lend = self._make_lender(send, dtype)
        given: Any = None
        result: Any = None

        def load() -> None:
            nonlocal given, result
            result = None
            given = jax.make_array_from_single_device_arrays(
                (len(send) * len(members),), over, [lend()]
            )

        def run() -> None:
            nonlocal result
            result = program(given).block_until_ready()

        def store() -> None:
            if result is not None:
                made = np.asarray(result.addressable_shards[0].data)
                np.copyto(recv.view(torch.uint8).numpy(), made.view(np.uint8))

        def run_bare() -> None:
            nothing(zero).block_until_ready()

        load()
        return Call(run, None, bare=run_bare, load=load, store=store)

    def _compile_program(self, case: Case, mesh: Any, count: int, dtype: Any) -> Callable[..., Any]:
        """The program of ``case`` for ``count`` elements of each rank of a mesh."""
        members = tuple(device.id for device in mesh.devices.flat)
        key = case.collective, case.op, count, dtype, members
        if key in self._programs:
            return self._programs[key]
        jax = self._jax
        spec = jax.sharding.PartitionSpec(AXIS)
        function = partial(
            getattr(jax.lax, COLLECTIVES[case.collective][case.op]),
            axis_name=AXIS,
            **_list_arguments(case, len(members)),
        )
        sharded = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        shape = jax.ShapeDtypeStruct(
            (count * len(members),), dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
        )
        if len(self._programs) > 64:
            self._programs.clear()
        self._programs[key] = jax.jit(sharded).lower(shape).compile()
        return self._programs[key]

    def _make_lender(self, send: Tensor, dtype: Any) -> Callable[[], Any]:
        """A function that makes an array of what ``send`` holds, in the same memory. Raises
        CannotRun where JAX would copy it."""
        if not len(send):
            return lambda: self._jax.device_put(np.zeros(0, dtype), self._device)
        try:
            array = self._jax.dlpack.from_dlpack(send, self._device, copy=False)
        except ValueError as e:
            unaligned = f"JAX copies inputs that are not aligned to {ALIGNED} bytes"
            other = f"JAX cannot read torch's memory: {first_line(e)}"
            raise CannotRun(unaligned if send.data_ptr() % ALIGNED else other) from e
        if array.unsafe_buffer_pointer() != send.data_ptr() or array.dtype != dtype:
            raise CannotRun(f"JAX copies {send.dtype} from torch's memory", "take another datatype")
        return partial(self._jax.dlpack.from_dlpack, send, self._device, copy=False)

    def leave(self) -> None:
        if _joined:  # the last thing that all ranks do: a rank that leaves early aborts the others
            _joined.pop().distributed.shutdown()


def _list_arguments(case: Case, n: int) -> dict[str, Any]:
    """What a function of jax.lax takes beside the array and the axis."""
    if case.collective == "all_to_all":
        return {"split_axis": 0, "concat_axis": 0, "tiled": True}
    if case.collective == "sendrecv":
        return {"perm": [(rank, (rank + 1) % n) for rank in range(n)]}
    return {"tiled": True} if case.collective in ("all_gather", "reduce_scatter") else {}
