"""Presets that leave data one path between ranks (--path), as settings of the libraries that are
measured. Whether data went there is another matter, which records/path_proof.py tells.

NCCL's variables are those of its manual; NCCL takes loopback only where it is named. Open MPI goes
by TCP with pml ob1 and btl self,tcp, where coll/sm and coll/han would share memory all the same;
MPICH takes ranks of a host for those of others by MPIR_CVAR_NOLOCAL, Intel MPI leaves memory out by
I_MPI_FABRICS=ofi, and both then go by libfabric or UCX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

VARIABLE = "COLLBENCH_PATH"  # among a case's settings: the preset that they come from
NIC = "{nic}"  # in a value: the interface that this host's default route goes by

Settings = tuple[tuple[str, str], ...]

_MPI_BY_TCP = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_coll": "^sm,han",
    "MPIR_CVAR_NOLOCAL": "1",
    "I_MPI_FABRICS": "ofi",
    "FI_PROVIDER": "tcp",
    "UCX_TLS": "self,tcp",
}
_NO_NVLINK = "{backend} runs on CPUs, between which there is no NVLink"
_NCCL_BY_NETWORK = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NET_DISABLE_INTRA": "0",
}


class Preset(NamedTuple):
    """A path: what it leaves, the settings of each backend for it, and the reason of those that
    have none."""

    meaning: str
    settings: Mapping[str, Mapping[str, str]]
    reasons: Mapping[str, str] = {}


PRESETS: dict[str, Preset] = {
    "nvlink-only": Preset(
        "between GPUs over NVLink: no PCIe, no memory of the host, no network",
        {"nccl": {"NCCL_P2P_LEVEL": "NVL", "NCCL_SHM_DISABLE": "1", "NCCL_NET_DISABLE_INTRA": "1"}},
        {"gloo": _NO_NVLINK, "mpi": _NO_NVLINK},
    ),
    "nic-only": Preset(
        "through network cards, also between ranks of a host",
        {
            "nccl": _NCCL_BY_NETWORK,
            "gloo": {"GLOO_SOCKET_IFNAME": NIC},
            "mpi": {
                **_MPI_BY_TCP,
                "OMPI_MCA_btl_tcp_if_include": NIC,
                "FI_TCP_IFACE": NIC,
                "UCX_NET_DEVICES": NIC,
            },
        },
    ),
    "loopback-nic": Preset(
        "through one host's loopback interface",
        {
            "nccl": {**_NCCL_BY_NETWORK, "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"},
            "gloo": {"GLOO_SOCKET_IFNAME": "lo"},
            "mpi": {
                **_MPI_BY_TCP,
                "OMPI_MCA_btl_tcp_if_include": "lo",
                "FI_TCP_IFACE": "lo",
                "UCX_NET_DEVICES": "lo",
            },
        },
    ),
    "shm-off": Preset(
        "by anything but memory that ranks of a host share",
        {"nccl": {"NCCL_SHM_DISABLE": "1"}, "mpi": _MPI_BY_TCP},
        {"gloo": "gloo shares no memory between ranks: there is nothing to turn off"},
    ),
}

NAMES = tuple(PRESETS)


def expand_path(name: str, backends: Iterable[str], nic: str) -> Settings:
    """The settings of a preset for these backends, and the preset's name among them."""
    settings: dict[str, str] = {VARIABLE: name}
    for backend in backends:
        settings |= PRESETS[name].settings.get(backend, {})
    return tuple((key, value.replace(NIC, nic)) for key, value in settings.items())


def list_card_names(name: str, backends: Iterable[str]) -> list[str]:
    """The variables by which a preset names this host's interface to some of these backends."""
    return [
        variable
        for backend in backends
        for variable, value in PRESETS[name].settings.get(backend, {}).items()
        if NIC in value
    ]


def find_path(env: Iterable[tuple[str, str]]) -> str:
    """The preset that a case's settings come from; empty where they come from none."""
    return dict(env).get(VARIABLE, "")


def refuse_path(env: Iterable[tuple[str, str]], backend: str) -> str:
    """Why a backend has nothing to set for the preset of a case; else an empty string."""
    name = find_path(env)
    if not name:
        return ""
    preset = PRESETS.get(name)
    if preset is None:
        return f"{VARIABLE}={name}: there is no such path; one of {', '.join(NAMES)}"
    if backend in preset.settings:
        return ""
    reason = preset.reasons.get(backend, "{backend} has no setting that decides it")
    return f"--path {name}: {reason.format(backend=backend)}"


def strip_preset(env: Iterable[tuple[str, str]]) -> Settings:
    """Settings without those that their preset's name stands for."""
    env = tuple(env)
    preset = PRESETS.get(find_path(env))
    names = {name for settings in preset.settings.values() for name in settings} if preset else ()
    return tuple((name, value) for name, value in env if name not in names)
