"""Why a case cannot run, as far as that is known before ranks start; and names of backends that
nobody has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from collbench.core import algorithms
from collbench.core.backend_info import (
    BackendInfo,
    backend_info,
    backend_names,
    list_capable,
    list_infos,
)
from collbench.core.backend_sources import list_imports
from collbench.core.errors import UsageError
from collbench.core.groups import count_placed_ranks
from collbench.core.paths import refuse_path
from collbench.core.text import suggest_name
from collbench.machine import environment
from collbench.suite.backgrounds import background_case
from collbench.suite.case import Case
from collbench.suite.policy import Policy

if TYPE_CHECKING:
    from collbench.run.backends import Backend


class Place(NamedTuple):
    """Where cases are to run, as far as it is known. ``gpus`` is the number of GPUs of its one
    host, 0 where that is not known; ``absent`` says by backend why it cannot be opened there;
    ``launcher`` what has started the ranks, where that rules out mpirun."""

    gpus: int = 0
    absent: Mapping[str, str] = {}
    launcher: str = ""


ANYWHERE = Place()


def this_machine(backends: Iterable[str]) -> Place:
    """This machine, for these backends."""
    absent = {name: backend_info(name).here() for name in backends}
    return Place(environment.gpu_count(), absent)


def refuse_case(case: Case, policy: Policy, machine: Place = ANYWHERE) -> str:
    """Why a case cannot run: what the first rule says that refuses it, else an empty string."""
    info = backend_info(case.backend)
    return next(filter(None, (rule(case, info, policy, machine) for rule in RULES)), "")


def refuse_anywhere(case: Case) -> str:
    """Why a case can run on no machine, by any policy; else an empty string."""
    info = backend_info(case.backend)
    if case.algorithm == "native" and (not info.native or case.collective in info.lacks):
        return _ask_for_algorithm(case, info)
    if reason := "" if case.subject else info.refuse(case):  # else its calls are asked about
        return reason
    if case.background and info.background == "none":
        others = list_capable(lambda other: other.background != "none")
        return f"{case.backend} does nothing in the background; {others} do"
    if background_case(case) and info.background == "computation":
        others = list_capable(lambda other: other.background == "any")
        return f"{case.backend} has no collective in the background; {others} have"
    if case.op == "premul_sum" and case.algorithm != "native":
        return "premul_sum is an NCCL reduction; reference algorithms have none"
    return ""


def refuse_opened(case: Case, backend: Backend) -> str:
    """Why an opened backend cannot run a case, or not by values that can be verified; else an empty
    string."""
    if reason := refuse_anywhere(case) or backend.refuse(case):
        return reason
    multiplies = backend.premultiplies and case.op == "avg" and case.algorithm == "native"
    return case.type.refuse_inverse(case.n) if multiplies else ""


def _refuse_anywhere(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    return refuse_anywhere(case)


def _ask_for_algorithm(case: Case, info: BackendInfo) -> str:
    lack = (
        f"torch.distributed has no {case.collective}"
        if info.native
        else f"{case.backend} has no choice of its own"
    )
    variants = [
        algorithms.find_variant(case.collective, a.name)
        for a in algorithms.list_algorithms(case.collective)
    ]
    fit = [variant.name for variant in variants if not variant.refuse(case.n)]
    likely = [name for name in ("ring", "recursive_doubling") if name in fit] or fit or ["ring"]
    return f"{lack}: name an algorithm (--algo {likely[0]})"


def _refuse_virtual_ranks(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if not policy.virtual or info.virtual_ranks:
        return ""
    having = list_capable(lambda other: other.virtual_ranks)
    return f"{case.backend} has no virtual ranks; --backend {having} has"


def _refuse_registration(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if not policy.register or info.registers:
        return ""
    return f"registered buffers (-R) are NCCL's; {case.backend} has none"


def _refuse_groups(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    pairs = count_placed_ranks(case.groups)
    if case.groups and (info.groups == "none" or policy.virtual):
        return f"{case.backend} measures no groups (--split)"
    if pairs and info.groups == "partition":
        others = list_capable(lambda other: other.groups == "any")
        return f"{case.backend} measures no pairs among more ranks; {others} do"
    if pairs and case.algorithm == "native" and not case.row.pairwise:
        return (
            f"{case.backend}'s own {case.collective} needs all ranks: "
            "of pairs, sendrecv or an --algo is measured"
        )
    return ""


def _refuse_faults(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if policy.inject and (info.predicts or case.mode == "graph"):
        return "a fault can be planted (--inject) neither in a prediction nor in a CUDA graph"
    return ""


def _refuse_blocking(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if policy.blocking and case.mode == "graph":
        return "the host cannot meet the others after each call (-z 1) of a CUDA graph"
    return ""


def _refuse_path(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    return refuse_path(case.env, case.backend)


def _refuse_launcher(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if machine.launcher and info.launch == "mpirun":
        return f"{case.backend} needs ranks that mpirun has started, not {machine.launcher}"
    return ""


def _refuse_few_gpus(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if info.gpu != "each" or policy.share_gpu or not 0 < machine.gpus < case.world:
        return ""
    lack = describe_gpu_lack(case.world, machine.gpus)
    return (
        f"{lack} (--share-gpu lets ranks share one, in a suite share_gpu = true in [policy];"
        " --backend gloo runs on CPUs)"
    )


def describe_gpu_lack(ranks: int, gpus: int) -> str:
    """Why ranks that need a GPU each cannot run."""
    return f"{ranks} ranks need a GPU each, and there {'is' if gpus == 1 else 'are'} {gpus}"


def _refuse_absent(case: Case, info: BackendInfo, policy: Policy, machine: Place) -> str:
    if any(name in info.settings for name, _ in case.env):
        return ""  # a setting that may make up for what is not there: TRITON_INTERPRET
    return machine.absent.get(case.backend, "")


Rule = Callable[[Case, BackendInfo, Policy, Place], str]
RULES: tuple[Rule, ...] = (  # in the order in which they are asked
    _refuse_launcher,
    _refuse_absent,
    _refuse_anywhere,
    _refuse_path,
    _refuse_virtual_ranks,
    _refuse_registration,
    _refuse_groups,
    _refuse_faults,
    _refuse_blocking,
    _refuse_few_gpus,
)

# names of libraries that torch knows under others
ALIASES = {
    "rccl": "nccl: torch's name of RCCL, too",
    "ccl": "oneccl on CPUs; xccl on Intel's GPUs; ccl is torch's name where Intel's plug-in is",
    "openmpi": "mpi",
    "mpich": "mpi",
}


def spell_backend(name: str) -> str:
    """A backend's name with '_' for '-', where only that is one of ours."""
    word = name.replace("-", "_")
    return word if word in backend_names() else name


def refuse_unknown_backends(names: Iterable[str]) -> None:
    """Raises UsageError for a name that neither this package nor an installed one has, no file that
    was named, and torch does not know either. Only a name that may be a plug-in's loads torch; one
    that modules are to register on ranks (--import) is theirs to refuse. Entries that do not keep
    the contract are refused with their reason."""
    backend_list = backend_names()
    for name in names:
        if name in backend_list:
            backend_info(name)
        elif not list_imports() and name.lower() not in torch_plugins():
            candidates = [
                other for other in backend_list if other[:1] == name[:1]
            ]  # hccl is no nccl
            hint = ALIASES.get(name, "") or suggest_name(name, candidates)
            raise UsageError(
                f"unknown backend '{name}'",
                hint
                or f"one of {', '.join(backend_list)}; or ./FILE.py with one, or --import MODULE"
                " that registers it with torch",
            )


def torch_plugins() -> set[str]:
    """Backends that others have registered with torch here; none without torch."""
    try:
        import torch.distributed as dist
    except ImportError:
        return set()
    names = dist.Backend.backend_list if dist.is_available() else []
    return {*names} - {"undefined", "fake", *backend_names()}


def ineffective_settings(settings: Iterable[str], backends: Iterable[str]) -> list[str]:
    """Names of settings that some backend of this package reads, but none of ``backends``. Empty
    where one of these is a plug-in, whose settings are not known."""
    swept, infos = {*backends}, list_infos()
    if not swept <= {*infos}:
        return []
    ineffective = []
    for setting in settings:
        readers = {name for name, info in infos.items() if setting.startswith(info.settings)}
        if readers and not readers & swept:
            ineffective.append(setting)
    return ineffective
