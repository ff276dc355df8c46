"""What NCCL's ranks need besides NCCL: a GPU each, or a share of one, and on demand memory that it
has registered."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collbench.core.errors import CannotRun, first_line
from collbench.machine import environment, sysfs, topology
from collbench.machine.variables import set_defaults
from collbench.run.backends._torch_refusal import missing_gpu
from collbench.run.rank import gpu, ncclog
from collbench.run.rank.control import Control
from collbench.run.rank.cores import near_gpu
from collbench.run.rank.stream import Cuda
from collbench.run.refusal import describe_gpu_lack

SHARING = 2, 30  # the first NCCL with several ranks on a GPU, by NCCL_MULTI_RANK_GPU_ENABLE

BLOCKS = 16  # of NCCL's on a GPU that ranks share: too many wait for each other for ever

MPS = "/tmp/nvidia-mps"  # unless CUDA_MPS_PIPE_DIRECTORY names another folder

NVML = "libnvidia-ml.so.1"

# How torch maps symmetric memory where no kernel needs multicast: GPUs that choose_seat has told
# apart may have one number, as where each rank sees only its own, and a switch that is down does no
# harm. With the second one torch sets no multicast up, so kernels that need it do without both.
WITHOUT_MULTICAST = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
}

NOT_READY = "system not yet initialized"  # CUDA's error 802

OPTIONS = ("", "ncclCommRegister (-R 1)", "symmetric windows (-R 2)")

SINCE = ("", "2.7", "2.9")  # the first torch that can

NO_ALLOCATOR = (
    "NCCL mem allocator is not supported"  # torch's words, on GPUs without multicast, too
)


class Seat(NamedTuple):
    """A rank's GPU; how many ranks at most share one in this world, and how."""

    device: torch.device
    sharers: int
    how: str = ""


def choose_seat(
    control: Control, local_rank: int, sharing: bool, backend: str, of_nccl: bool = True
) -> Seat:
    """A GPU for this rank, of those that it sees (all ranks call this together). Where a host has
    more ranks than GPUs and ``sharing`` is allowed they take turns, which NCCL, if ranks are
    ``of_nccl``, must hear of before it is started. Raises CannotRun, on all ranks alike."""
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    version = nccl_version() if gpu_count else (0, 0)
    host_name, name = environment.host_name(), ""
    if gpu_count:  # containers of one machine may have host names of their own
        index = local_rank % gpu_count
        device = torch.cuda.get_device_properties(index).uuid
        if of_nccl and not torch.version.hip:
            # it goes by PCI addresses, of which a GPU's MIG instances have one
            device = gpu.pci_address(torch.device("cuda", index)) or device
        name = f"{environment.boot_id() or host_name} {device}"
    everyone = control.collect([host_name, name, version, *missing_gpu()])
    for host, _, _, reason, hint in everyone:
        if reason:
            raise CannotRun(
                f"backend {backend} needs a GPU that torch can use; on {host} {reason}",
                f"{hint}; --backend gloo runs on CPUs",
            )
    ranks = Counter(host for host, *_ in everyone)
    seats = Counter(host for host, _ in {(host, name) for host, name, *_ in everyone})
    crowded = {host: gpus for host, gpus in seats.items() if gpus < ranks[host]}
    oldest = min(tuple(version) for _, _, version, *_ in everyone)
    too_old = of_nccl and oldest < SHARING
    for host, gpus in crowded.items():
        if not sharing:
            newer = f" with {library_name()} {format_version(SHARING)} or newer" * too_old
            raise CannotRun(
                f"{describe_gpu_lack(ranks[host], gpus)} on {host}",
                f"ask for fewer with -g, or add --share-gpu{newer}",
            )
    if crowded and too_old:
        raise CannotRun(
            f"{library_name()} {format_version(oldest)} puts one rank on a GPU;"
            f" {format_version(SHARING)} and newer can"
            " share it",
            f"install a newer torch or {library_name()}, or use --backend gloo",
        )
    how = ""
    most = max(Counter(name for _, name, *_ in everyone).values())
    if crowded:
        how = f", up to {most} ranks a GPU" + " by turns" * (not has_mps())
    if crowded and of_nccl:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        # NCCL 2.30 itself turns NVLS off only where the last two ranks share a GPU
        switch = os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        limit = os.environ.setdefault("NCCL_MAX_CTAS", str(max(1, BLOCKS // most)))
        how += f", NCCL_MAX_CTAS={limit}, NCCL_NVLS_ENABLE={switch}"
    return Seat(torch.device("cuda", local_rank % gpu_count), most, how)


def settle_stream(device: torch.device, control: Control, pin: bool) -> Cuda:
    """The stream of a device that this thread has to itself from now on; with ``pin``, it keeps to
    CPUs near the device (all ranks call this together)."""
    if pin:
        pci = gpu.pci_address(device)
        near_gpu(control, topology.cpus_near(pci, sysfs.ROOT) if pci else ())
    torch.cuda.set_device(device)
    return Cuda(device)


def has_mps() -> bool:
    """Whether NVIDIA's MPS lets several processes work on a GPU at once; else they take slices of
    its time, of milliseconds."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", MPS), "control").exists()


def require_nvml(what: str = "torch's symmetric memory") -> None:
    """Raise CannotRun where NVIDIA's management library cannot be loaded, which ``what`` needs.
    NCCL asks it for its GPU, and fails; torch for the fabric of symmetric memory, and without it
    ends the process by SIGSEGV (torch 2.14)."""
    if torch.version.hip:
        return
    try:
        ctypes.CDLL(NVML)
    except OSError as e:
        raise CannotRun(
            f"{what} needs NVML, and {NVML} cannot be loaded",
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility in a container",
        ) from e


def map_symmetric(
    control: Control, nbytes: int, device: torch.device, group: Any, multicast: bool
) -> tuple[torch.Tensor, Any]:
    """Memory of this rank that all ranks of the group map, and torch's handle of it (all ranks call
    this together); at one address of all beside where kernels need ``multicast``, for which every
    rank must see all GPUs. Raises CannotRun on all ranks alike."""
    with control.refusing_alike(), _guard_mapping():
        symmetric = symmetric_memory()
        memory: torch.Tensor = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
    with (
        control.refusing_alike(),
        _guard_mapping(),
        # torch looks at them at each rendezvous, and other backends here want others
        set_defaults({} if multicast else WITHOUT_MULTICAST),
    ):
        handle = symmetric.rendezvous(memory, group)
    return memory, handle


@contextmanager
def _guard_mapping() -> Iterator[None]:
    """Raise CannotRun for what torch raises within."""
    try:
        yield
    except RuntimeError as e:
        if "out of memory" in str(e):
            raise CannotRun(
                f"no memory for symmetric buffers: {first_line(e)}", "take smaller sizes (-e)"
            ) from e
        if NOT_READY in str(e):
            raise CannotRun(
                "the NVSwitch fabric is not up", "systemctl status nvidia-fabricmanager says why"
            ) from e
        raise CannotRun(
            f"the GPUs do not map each other's memory: {first_line(e)}",
            "use --backend nccl, or --backend symm --virtual-ranks, which needs one GPU only",
        ) from e


def symmetric_memory() -> Any:
    """torch's module of that. Raises CannotRun without NVML."""
    require_nvml()
    os.environ.setdefault("TORCH_SYMMMEM_IMPLICIT_POOL", "0")  # which keeps what is let go
    from torch.distributed import _symmetric_memory

    return _symmetric_memory


def has_multicast(device: torch.device) -> bool:
    """Whether a switch can reach all GPUs' memory by one address. Raises ImportError or
    RuntimeError where torch has no symmetric memory."""
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    return _SymmetricMemory.has_multicast_support(DeviceType.CUDA, device.index)


def nccl_version() -> tuple[int, ...]:
    """Major, minor and patch of the NCCL that is loaded. torch itself knows only the one it was
    built with."""
    ask, code = ncclog.find_loaded("ncclGetVersion"), ctypes.c_int()
    if ask is None or ask(ctypes.byref(code)):
        return built_nccl_version()
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def built_nccl_version() -> tuple[int, ...]:
    """Major, minor and patch of the NCCL whose headers torch was built with."""
    return tuple(torch.cuda.nccl.version()[:3])  # type: ignore[no-untyped-call]


def library_name() -> str:
    """The name of the library that torch calls nccl: RCCL where torch is built for ROCm."""
    return "RCCL" if torch.version.hip else "NCCL"


def format_version(version: tuple[int, ...]) -> str:
    """A version with dots between its numbers."""
    return ".".join(map(str, version))


def lacks_multicast(device: torch.device) -> bool:
    """Whether no switch does that, or this torch knows of none."""
    try:
        return not has_multicast(device)
    except (ImportError, RuntimeError):
        return True


class Registered:
    """Memory from NCCL's own allocator, registered with a group's communicator: one allocation at a
    time. ``level`` is nccl-tests' -R: 1 locally, 2 as a symmetric window (which NCCL may do without
    where GPUs cannot reach each other). ``control`` is of all ranks, whatever their groups.
    """

    def __init__(self, group: Any, control: Control, device: torch.device, level: int) -> None:
        self._nccl, self._device, self._level = group._get_backend(device), device, level
        self._control = control
        self._pool: Any = None
        # it takes a communicator to register with
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        self.allocate(1)  # so that what cannot work is known before any case

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes for buffers (all ranks call this together); those of the last time must be out of
        use. Raises CannotRun on all ranks alike, and before any of them waits for the others in a
        registration."""
        self.release()
        torch.cuda.empty_cache()  # which NCCL's own allocations cannot reach
        with self._control.refusing_alike():
            try:
                pool = torch.cuda.MemPool(self._nccl.mem_allocator)
                with torch.cuda.use_mem_pool(pool):
                    memory = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            except (AttributeError, RuntimeError) as e:
                raise CannotRun(*self._reason(e)) from e
        with self._control.refusing_alike():
            try:
                self._nccl.register_mem_pool(pool, **{"symm": True} if self._level == 2 else {})
            except (AttributeError, TypeError, RuntimeError) as e:
                raise CannotRun(*self._reason(e)) from e
        self._pool = pool
        return memory

    def _reason(self, error: Exception) -> tuple[str, str]:
        if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error):
            return (
                f"no memory for registered buffers: {first_line(error)}",
                "smaller sizes, or leave -R out",
            )
        if NO_ALLOCATOR in str(error) and lacks_multicast(self._device):
            gpu_name = torch.cuda.get_device_name(self._device)
            return (
                "torch registers memory only where GPUs have NVLink multicast (NVSwitch);"
                f" {gpu_name} has none here",
                "leave -R out",
            )
        if isinstance(error, RuntimeError):
            library = f"{library_name()} {format_version(nccl_version())}"
            return f"{library} refuses {OPTIONS[self._level]}: {first_line(error)}", "leave -R out"
        missing = f"torch {torch.__version__} does not offer {OPTIONS[self._level]}"
        return missing, f"torch {SINCE[self._level]} does"

    def release(self) -> None:
        if self._pool is not None:
            torch.cuda.synchronize(self._device)
            self._nccl.deregister_mem_pool(self._pool)
            self._pool = None
