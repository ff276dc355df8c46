"""What machine, software and settings this is, never a secret. What cannot be read is None or
absent, not an error.

Reading what the kernel says of a machine in files under /proc and /sys: what cannot be read is
None or empty.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import itertools
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.core.backend_info import list_files, list_infos, list_settings
from collbench.core.text import plain_line, readable_text
from collbench.core.version import __version__
from collbench.machine import amd, topology
from collbench.machine.cpus import cpu_facts, cpu_quota
from collbench.machine.memory import list_memory_limits
from collbench.machine.sysfs import (
    ROOT,
    find_in_file,
    hash_identity,
    read_integer,
    read_kib,
    read_text,
)
from collbench.machine.variables import ALLOWED, select_variables

# key path, value in one environment, value in another; None where absent
Difference = tuple[str, Any, Any]

LIBRARIES = ("torch", "numpy")  # packages that every backend uses

NAMED = 3  # facts that one line names

SOFTWARE = re.compile(r"libraries\..+|python|kernel|gpus\.(driver|cuda)")

CONTAINER_MARKS = (
    ".dockerenv",
    "run/.containerenv",
    ".singularity.d",
    "var/run/secrets/kubernetes.io",
)

# parts of names of settings that change what is told, or are new at each launch, not how fast it is
QUIET = "DEBUG|_LOG|DUMP|COMM_ID|HOSTID|HYDRA_|_UUID"

# key paths of what decides performance and stays the same on an unchanged machine
RELEVANT = re.compile(
    r"kernel|machine|product|python|libraries\..+|numa\.\d+\.cpus|memory\.(limit|huge_pages)|gpus\.(driver|cuda)"
    r"|cpu\.(model|sockets|physical|logical|smt|cores|llc_bytes|governor|turbo|max_mhz)"
    r"|container\.(cpu_quota|marks\.\d+)|gpus\.links\..+"
    r"|gpus\.devices\.\d+\.(name|memory|max_\w+|power_limit|nvlinks|numa|(mig|ecc)\.0|\w+_partition)"
    r"|nics\..+\.(driver|mbps|mtu)|rdma\..+\.(rate|link|firmware)|variables\.(?!.*(" + QUIET + "))"
    r"((NCCL|RCCL|GLOO|UCX|TORCH|OMP|FI|MPICH|MPIR_CVAR|I_MPI|CUDA|HIP|HSA|ROCR)_\w+|OMPI_MCA_(btl|coll|hwloc|mpi|mtl|opal|osc|pml|smsc)\w*)"
)


def gather_facts(command_cwd: Path | None = None, root: Path = ROOT) -> dict[str, Any]:
    """Everything known, as JSON: of the git repository around ``command_cwd``, of files under
    ``root``, of NVML."""
    gpus = topology.gpu_facts(root)
    return {
        "host": host_name(),
        "boot_id": boot_id(root),
        "os": find_in_file(root / "etc/os-release", r'^PRETTY_NAME="?([^"\n]+)')
        or platform.system(),
        "kernel": read_text(root / "proc/sys/kernel/osrelease"),
        "machine": platform.machine(),
        "product": read_text(root / "sys/class/dmi/id/product_name"),
        "cpu": cpu_facts(root),
        "numa": {
            node.name[4:]: {
                "cpus": read_text(node / "cpulist"),
                "memory": read_kib(node / "meminfo", "MemTotal"),
            }
            for node in sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
        },
        "memory": {
            "total": read_kib(root / "proc/meminfo", "MemTotal"),
            "available": read_kib(root / "proc/meminfo", "MemAvailable"),
            "swap": read_kib(root / "proc/meminfo", "SwapTotal"),
            "limit": min((limit for limit, _, _ in list_memory_limits(root)), default=None),
            "huge_pages": find_in_file(
                root / "sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"
            ),
        },
        "container": {
            "cpu_quota": cpu_quota(root),
            "marks": [m for m in CONTAINER_MARKS if (root / m).exists()],
        },
        "gpus": gpus,
        "nics": _nic_facts(root),
        "rdma": topology.rdma_facts(root, gpus["devices"]),
        "git": _git_facts(command_cwd),
        **gather_software(os.environ),
    }


def gather_software(environ: Mapping[str, str]) -> dict[str, Any]:
    """The software of a run: an interpreter (its version, and those of installed packages by their
    metadata) and settings contribute."""
    packages = dict.fromkeys(
        (*LIBRARIES, *(name for info in list_infos().values() for name in info.packages))
    )
    wheels = {
        name: next(iter(importlib.metadata.distributions(name=name)), None) for name in packages
    }
    libraries = {
        "collbench": __version__,
        **{name: wheel.version for name, wheel in wheels.items() if wheel},
        **{file.label: file.version for file in list_files().values()},
    }
    return {
        "python": platform.python_version(),
        "libraries": libraries,
        "variables": select_variables(environ),
    }


def fact_decides(fact: str, backends: Collection[str] | None) -> bool:
    """Whether what stands at a key path may change times of one of ``backends``: all but versions
    of libraries that none of them uses. None stands for all backends."""
    package = fact.removeprefix("libraries.")
    users = {name for name, info in list_infos().items() if package in info.packages}
    users |= {name for name, file in list_files().items() if package == file.label}
    return backends is None or package in LIBRARIES or not users or not users.isdisjoint(backends)


def make_fingerprint(
    environment: Mapping[str, Any], backends: Collection[str] | None = None
) -> str:
    """Twelve hexadecimal digits, equal where everything that decides performance of ``backends``
    is (None: of all)."""
    return digest_facts(select_relevant(environment, backends))


def find_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], backends: Collection[str] | None = None
) -> list[Difference]:
    """Every fact by which the fingerprints for ``backends`` differ, in order of key paths."""
    old, right = select_relevant(a, backends), select_relevant(b, backends)
    return [
        (k, old.get(k), right.get(k)) for k in sorted({*old, *right}) if old.get(k) != right.get(k)
    ]


def list_facts(differences: Sequence[Difference]) -> str:
    """The first facts on one line: libraries.torch 2.12.0 -> 2.13.0, python 3.11 -> 3.12."""
    facts = [
        f"{fact} {_shorten_value(old)} -> {_shorten_value(new)}"
        for fact, old, new in differences[:NAMED]
    ]
    more = len(differences) - NAMED
    return ", ".join(facts) + f" and {more} more" * (more > 0)


def explain_differences(differences: Sequence[Difference]) -> str:
    """The facts that differ, the first with their values, on one line; empty where none does."""
    kinds = {
        "the software differs"
        if SOFTWARE.fullmatch(fact)
        else "the settings differ"
        if fact.startswith("variables.")
        else "the machines differ"
        for fact, _, _ in differences
    }
    return f"{' and '.join(sorted(kinds))}: {list_facts(differences)}" if kinds else ""


def _shorten_value(value: Any) -> str:
    return "absent" if value is None else plain_line(str(value))[:40]


def host_facts(root: Path = ROOT) -> dict[str, Any]:
    """Facts by key path that hosts of one world are compared by: all that decides performance, and
    what keeps the time."""
    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return {**select_relevant(gather_facts(None, root)), "clock_source": source}


def digest_facts(of_host: Mapping[str, Any]) -> str:
    """A short digest by which hosts of the same facts are found; 12 hexadecimal digits."""
    return hash_identity(json.dumps(of_host, sort_keys=True))[:12]


def find_odd_hosts(hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The facts in which hosts differ, for each host in order; None where the host lacks the
    fact."""
    keys = sorted({key for of_host in hosts for key in of_host})
    differing = [
        key for key in keys if any(of_host.get(key) != hosts[0].get(key) for of_host in hosts)
    ]
    return [{key: of_host.get(key) for key in differing} for of_host in hosts]


def host_name() -> str:
    """The name of this machine."""
    return readable_text(socket.gethostname())


def user_name() -> str:
    """The user's name, or number where it has none, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def boot_id(root: Path = ROOT) -> str | None:
    """A hash that is equal for all containers on one kernel, and new after each boot."""
    return (
        hash_identity(boot)
        if (boot := read_text(root / "proc/sys/kernel/random/boot_id"))
        else None
    )


def same_clock_domain_key(root: Path = ROOT) -> str:
    """Equal for processes that share CLOCK_MONOTONIC: one boot, one time namespace. Equal to
    nothing if unknown."""
    return f"{boot_id(root) or os.urandom(8).hex()} {(root / 'proc/self/ns/time').resolve().name}"


def gpu_count(root: Path = ROOT) -> int:
    """GPUs this process may use, by their device nodes and CUDA_VISIBLE_DEVICES; AMD's as
    amd.list_gpu_nodes has them. Loads no library."""
    nodes = len(list((root / "dev").glob("nvidia[0-9]*")))
    if not nodes:
        return len(amd.select_visible(amd.list_gpu_nodes(root), os.environ))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(nodes)))).split(",")
    # what is no GPU here ends the list: -1, a number that is too high, Slurm's NoDevFiles
    numbered = (re.fullmatch(r"\s*(?:(\d{1,6})|(?:GPU|MIG)-[\w/-]+)\s*", word) for word in visible)
    usable = itertools.takewhile(lambda m: m and int(m[1] or 0) < nodes, numbered)
    return min(nodes, len(list(usable)))


def _is_relevant(fact: str) -> bool:
    """Whether what stands at a key path decides performance."""
    if RELEVANT.fullmatch(fact):
        return True
    setting = fact.removeprefix("variables.")
    is_known = setting == fact or ALLOWED.fullmatch(setting)  # of which RELEVANT names all
    return not is_known and setting.startswith(list_settings()) and not re.search(QUIET, setting)


def select_relevant(
    environment: Mapping[str, Any], backends: Collection[str] | None = None
) -> dict[str, Any]:
    """Key paths and values that go into the fingerprint for ``backends``. Null equals absent; a NIC
    without a driver is virtual."""
    nic_items = nics.items() if isinstance(nics := environment.get("nics"), Mapping) else ()
    nics = {name: nic for name, nic in nic_items if isinstance(nic, Mapping) and nic.get("driver")}
    return {
        k: v
        for k, v in _flatten({**environment, "nics": nics}).items()
        if v is not None and _is_relevant(k) and fact_decides(k, backends)
    }


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists, by their path with dots."""
    if not isinstance(value, Mapping | list | tuple):
        return {path: value}
    deep = path.count(".") > 20  # as no fact of ours, but maybe one by another hand
    items = () if deep else value.items() if isinstance(value, Mapping) else enumerate(value)
    return {
        k: v
        for key, inner in items
        for k, v in _flatten(inner, f"{path}.{key}".lstrip(".")).items()
    }


def _nic_facts(root: Path) -> dict[str, dict[str, Any]]:
    """Network interfaces; ``mbps`` as negotiated, None where the driver does not tell."""
    return {
        nic.name: {
            "driver": driver.resolve().name if (driver := nic / "device/driver").exists() else None,
            "mbps": read_integer(nic / "speed", r"^(\d+)"),
            "mtu": read_integer(nic / "mtu"),
            "up": read_text(nic / "operstate") in ("up", "unknown"),
            "loopback": read_integer(nic / "type") == 772,  # ARPHRD_LOOPBACK
        }
        for nic in sorted((root / "sys/class/net").glob("*"))
    }


def _git_facts(cwd: Path | None) -> dict[str, Any]:
    """Commit of the repository around ``cwd`` and whether tracked files differ from it; given up
    after one second."""
    command = (
        "git --no-optional-locks -c core.fsmonitor=false status --porcelain=v2 --branch"
        " --untracked-files=no"
    )
    try:
        git = subprocess.run(
            command.split(),
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=1,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {"revision": None, "dirty": None}
    revision = re.search(r"^# branch.oid ([0-9a-f]+)$", git.stdout, re.MULTILINE)
    return {
        "revision": revision and revision[1],
        "dirty": bool(re.search(r"^[^#]", git.stdout, re.MULTILINE)),
    }
