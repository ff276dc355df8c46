"""Everything that can run a case. A backend is a module in this package, found by its file name or
in TOGETHER.

A name without a module is taken for a torch.distributed backend (``gloo``, ``nccl``, ``ucc``, a
plug-in's); ``mpi`` is this package's, not torch's.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from collbench.core import algorithms
from collbench.core.errors import UsageError
from collbench.core.groups import placed
from collbench.core.text import near
from collbench.machine import environment, gpu
from collbench.records.types import Choice
from collbench.run.backends import _never, _torch_kernels
from collbench.suite.backgrounds import beside
from collbench.suite.case import Case
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.run.rank.control import Control
    from collbench.run.rank.gpu import Stream


TRANSPORTS = frozenset({"shm", "symm"})  # carry reference algorithms only


VIRTUAL = ("symm",)  # can have all ranks in one process, on one GPU


TOGETHER = {  # backends that share a module
    "torch_one_shot": "torchsymm",
    "torch_two_shot": "torchsymm",
    "torch_multimem": "torchsymm",
    "torch_multimem_one_shot": "torchsymm",
}


TORCHS = ("gloo", "nccl", "ucc", "xccl")  # that torch.distributed itself knows by name


NEVER: dict[str, Callable[[Case], str]] = {  # why a backend runs a case nowhere, or ""
    **dict.fromkeys(TOGETHER, _torch_kernels.why_never),
    **{name: partial(_never.torch_distributed, name=name) for name in TORCHS},
    "mpi": _never.mpi,
    "shm": _never.shm,
    "symm": _never.symm,
}


HEEDED = {  # the backends that a setting whose name begins so may mean something to
    "NCCL_": {"nccl", "ucc", "symm", *TOGETHER},
    "RCCL_": {"nccl", "ucc"},
    "TORCH_NCCL_": {"nccl"},
    "UCC_": {"ucc"},
    "OMPI_": {"mpi"},
    "MPICH_": {"mpi"},
    "I_MPI_": {"mpi"},
    "TRITON_": {"symm"},
}


UNDER_MPIRUN = frozenset({"mpi"})  # ranks of this machine are started by mpirun


GPU_EACH = frozenset({"nccl", *TOGETHER})  # every rank has a GPU


WHOLE = frozenset({"symm", "model", *TOGETHER})  # measure no groups


DIVIDED = frozenset({"shm", "mpi"})  # measure groups of which every rank is in one


class Call(NamedTuple):
    """A prepared call: ``run()`` returns when this rank is done, or on a device when all is issued
    (see finish); ``submit()`` returns a handle with ``wait()``, None where a call cannot be left to
    itself. ``ran`` names a reference algorithm with all its parameters. ``waits`` says that on a
    device, too, ``run()`` returns only when it is done. ``bare()`` is the same call with nothing to
    do, by this rank alone: what is left of ``run()`` without its work. ``note`` is for the record:
    what a reader of its times must know of the call.
    """

    run: Callable[[], object]
    submit: Callable[[], Any] | None
    ran: str = ""
    waits: bool = False
    bare: Callable[[], object] | None = None
    note: str = ""


class Backend(Protocol):
    """What the worker needs of anything that runs collectives. Buffers are 1-D tensors of the
    case's dtype."""

    policy: Policy  # set before open
    control: (
        Control | None
    )  # set before open where the world is divided into groups: that of this rank's
    hosts: Sequence[str]  # set before open: that of each rank, as the world counts them
    shared: bool  # whether this rank shares its GPU with others (once opened)
    interpreted: bool  # whether kernels run in an interpreter
    stream: (
        Stream | None
    )  # where the device puts collectives in order, and its clock (once opened); None on CPUs

    @property
    def device(self) -> Any:
        """The torch device that holds this rank's buffers."""

    @property
    def premultiplies(self) -> bool:
        """Whether avg scales inputs by 1/n before adding, and so may differ from dividing the sum
        by 2 ulp."""

    @property
    def library(self) -> str:
        """Name and version of what does the work."""

    def why_not(self, case: Case) -> str | None:
        """Why this backend cannot run ``case`` on any machine, or None."""

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
        """The same for all ranks at once, where they are virtual ones of this process."""

    def message(self, sends: bool, buffer: Any, peer: int, tag: int) -> Call:
        """A message to a peer of the group, or the receiving of one from it."""

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object] | None:
        """One action that has the library do all these calls of ``case``, none of which shares a
        buffer with another, as one; None where it does each by itself."""

    def align(self) -> None:
        """Issue what brings all ranks' streams to the same point, where there are streams."""

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        """What the library says it ran, of the call made once for that; None, and no call, where it
        says nothing."""

    def finish(self) -> None:
        """Wait until the device has done all that was issued; nothing to do where calls return when
        they are done."""

    def close(self) -> None:
        """Leave the world, or as much of it as was opened where ``open`` raised CannotRun."""


class Base:
    """What most backends answer to the questions that few are asked."""

    policy = Policy()
    control: Control | None = None
    hosts: Sequence[str] = ()
    shared = interpreted = False
    stream: Stream | None = None

    def near(self, control: Control) -> set[int]:
        """The ranks of the group that are on this one's host; none where hosts are not known."""
        hosts = [self.hosts[member] for member in control.members] if self.hosts else []
        return {rank for rank, host in enumerate(hosts) if host == hosts[control.rank]}

    def prepare_all(self, case: Case, sends: Sequence[Any], recvs: Sequence[Any]) -> Call:
        raise NotImplementedError("ranks of this backend are never virtual")

    def message(self, sends: bool, buffer: Any, peer: int, tag: int) -> Call:
        raise NotImplementedError("this backend has no messages from rank to rank")

    def fuse_calls(self, case: Case, calls: Sequence[Call]) -> Callable[[], object] | None:
        return None

    def align(self) -> None:
        pass

    def overheard(self, call: Callable[[], object]) -> Choice | None:
        return None


def find(name: str) -> Backend:
    """The backend called ``name``."""
    module = TOGETHER.get(name, name)
    own = importlib.util.find_spec(f"collbench.run.backends.{module}") and module[0] != "_"
    home = importlib.import_module(f"collbench.run.backends.{module if own else 'torchdist'}")
    backend: Backend = home.create(name)
    return backend


# names of libraries that torch knows under others
ELSEWHERE = {
    "rccl": "nccl: torch's name of RCCL, too",
    "oneccl": "xccl, or ccl with Intel's plug-in for torch, where it is installed",
    "openmpi": "mpi",
    "mpich": "mpi",
}


# datatypes that torch's Gloo refuses but in messages between two ranks
GLOO_LACKS = ("uint32", "uint64", "f8e4m3", "f8e5m2")


def may_be_refused(case: Case) -> bool:
    """Whether the library is known to refuse such a case, which it says only when it is asked."""
    if case.algorithm != "native" or case.row.pairwise:
        return False
    integers = case.type.kind != "float"
    if case.backend == "gloo":
        return case.dtype in GLOO_LACKS or (case.op == "avg" and integers)
    return case.backend == "mpi" and case.op == "sum" and case.dtype in ("int8", "uint8")


def spell(name: str) -> str:
    """A backend's name with '_' for '-', where only that is one of ours."""
    word = name.replace("-", "_")
    return word if word in _known() else name


def refuse_unknown(asked: Iterable[str]) -> None:
    """Raises UsageError for a name that neither this package has nor torch knows. Only a name that
    may be a plug-in's loads torch."""
    known = sorted(_known())
    for name in asked:
        if name not in known and name.lower() not in registered():
            members = [member for member, module in TOGETHER.items() if module == name]
            alike = [one for one in known if one[:1] == name[:1]]  # oneccl is no nccl
            hint = ELSEWHERE.get(name, "") or ("" if members else near(name, alike))
            raise UsageError(
                f"unknown backend '{name}'", hint or f"one of {', '.join(members or known)}"
            )


def idle(settings: Iterable[str], among: Iterable[str]) -> list[str]:
    """Those names of settings that mean nothing to any of the backends ``among``; none where one of
    these is a plug-in's."""
    swept = {*among}
    heeded = {name: [HEEDED[p] for p in HEEDED if name.startswith(p)] for name in settings}
    return [
        name for name, by in heeded.items() if by and swept <= _known() and not swept & {*by[0]}
    ]


def _known() -> set[str]:
    """Backends of this package, and those that torch itself knows by name."""
    modules = {found.name for found in pkgutil.iter_modules(__path__)}
    own = {name for name in modules if name[0] != "_"} - {"torchdist", *TOGETHER.values()}
    return {*own, *TOGETHER, *TORCHS}


def registered() -> set[str]:
    """Backends that torch knows here, plug-ins' among them; none without torch."""
    try:
        import torch.distributed as dist
    except ImportError:
        return set()
    known = dist.Backend.backend_list if dist.is_available() else []
    return {*known} - {"undefined", "fake", *TORCHS}


def missing_gpu() -> tuple[str, str]:
    """Why torch can use no GPU here, and what to do about it; two empty strings where it can."""
    import torch

    name = f"torch {torch.__version__}"
    if torch.cuda.is_available():
        return "", ""
    if not (torch.version.cuda or torch.version.hip):
        return f"{name} is built without CUDA or ROCm", "pytorch.org/get-started names one with it"
    if not environment.gpu_count():
        return "there is no GPU here", "check CUDA_VISIBLE_DEVICES, or docker run --gpus all"
    reason, hint = gpu.refuse_cuda(torch.version.cuda or "0", gpu.driver_cuda())
    if reason:
        return f"{name} is {reason}", hint
    tool = "amd-smi" if torch.version.hip else "nvidia-smi"
    return f"{name} finds no GPU that it can use", f"{tool} shows whether the driver works"


def why_not_here(name: str) -> str:
    """Why no rank of this machine can open the backend ``name``, as far as its torch tells; else an
    empty string."""
    if name not in GPU_EACH | {"ucc", "xccl"} or (name in GPU_EACH and environment.gpu_count()):
        return ""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return f"backend {name} needs torch, which cannot be imported here"
    if name in GPU_EACH:
        reason, hint = missing_gpu()
        there = dist.is_available() and dist.is_nccl_available() and not reason
        reason = reason or f"torch {torch.__version__} has no NCCL"
        ways = "; ".join(filter(None, [hint, "--backend gloo runs on CPUs"]))
        lack = f"needs a GPU that torch can use: {reason} ({ways})"
    else:
        there = dist.is_available() and dist.is_backend_available(name)
        lack = f"is not in this torch, which was built without {name.upper()}"
    return "" if there else f"backend {name} {lack}"


def why_never(case: Case) -> str:
    """Why ``case`` can run on no machine, as far as the backend's name tells; else an empty
    string."""
    scan = case.backend in TORCHS and case.collective == "scan"
    if case.algorithm == "native" and (case.backend in TRANSPORTS or scan):
        lack = (
            "torch.distributed has no scan" if scan else f"{case.backend} has no choice of its own"
        )
        found = [algorithms.find(case.collective, a.name) for a in algorithms.of(case.collective)]
        fit = [variant.name for variant in found if not variant.why_not(case.n)]
        likely = [name for name in ("ring", "recursive_doubling") if name in fit] or fit or ["ring"]
        return f"{lack}: name an algorithm (--algo {likely[0]})"
    if case.backend in NEVER and (reason := NEVER[case.backend](case)):
        return reason
    if case.background and (case.backend in WHOLE or is_predicted(case.backend)):
        return f"{case.backend} does nothing in the background; gloo, nccl, shm and mpi do"
    if beside(case) and case.backend in {*TRANSPORTS, *UNDER_MPIRUN}:
        return f"{case.backend} has no collective in the background; gloo and nccl have"
    if case.op == "premul_sum" and case.algorithm != "native":
        return "premul_sum is an NCCL reduction; reference algorithms have none"
    return ""


def why_not_so(case: Case, policy: Policy) -> str:
    """Why ``case`` cannot run as ``policy`` wants it, as far as the backend's name tells; else an
    empty string."""
    name, among = case.backend, placed(case.groups)
    own = case.algorithm == "native" and not case.row.pairwise
    reasons = {
        f"{name} has no virtual ranks; --backend {' or '.join(VIRTUAL)} has": (
            policy.virtual and name not in VIRTUAL and not is_predicted(name)
        ),
        f"registered buffers (-R) are NCCL's; {name} has none": policy.register and name != "nccl",
        f"{name} measures no groups (--split)": case.groups and (name in WHOLE or policy.virtual),
        f"{name} measures no pairs among more ranks; gloo and nccl do": among and name in DIVIDED,
        (
            f"{name}'s own {case.collective} needs all ranks: "
            "of pairs, sendrecv or an --algo is measured"
        ): among and own,
        "a fault can be planted (--inject) neither in a prediction nor in a CUDA graph": (
            policy.inject and (is_predicted(name) or case.mode == "graph")
        ),
        "the host cannot meet the others after each call (-z 1) of a CUDA graph": (
            case.mode == "graph" and policy.blocking
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def too_few_gpus(case: Case, policy: Policy, gpus: int) -> str:
    """Why one host with so many GPUs has too few for ``case``, else an empty string; 0 stands for
    an unknown number."""
    if case.backend not in GPU_EACH or policy.share_gpu or not 0 < gpus < case.world:
        return ""
    wanted = each_needs_one(case.world, gpus)
    return f"{wanted} (--share-gpu lets ranks share one; --backend gloo runs on CPUs)"


def each_needs_one(ranks: int, gpus: int) -> str:
    return f"{ranks} ranks need a GPU each, and there {'is' if gpus == 1 else 'are'} {gpus}"


def is_predicted(name: str) -> bool:
    """Whether ``name`` computes times instead of measuring them."""
    return name == "model"
