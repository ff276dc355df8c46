"""What machine, software and settings this is, never a secret. What cannot be read is None or
absent, not an error.

Reading what the kernel says of a machine in files under /proc and /sys: what cannot be read is
None or empty.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import math
import os
import platform
import re
import socket
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collbench.core.backend_info import backend_info, backend_names
from collbench.core.text import plain_line
from collbench.core.version import __version__
from collbench.machine import amd, secrets, topology
from collbench.machine.sysfs import (
    cpu_list,
    find_in_file,
    hash_identity,
    read_integer,
    read_kib,
    read_text,
)

# key path, value in one environment, value in another; None where absent
Difference = tuple[str, Any, Any]


ROOT = Path("/")


CPUS = "sys/devices/system/cpu"


LIBRARIES = ("torch", "numpy")  # packages that every backend uses


NAMED = 3  # facts that one line names


SOFTWARE = re.compile(r"libraries\..+|python|kernel|gpus\.(driver|cuda)")


CONTAINER_MARKS = (
    ".dockerenv",
    "run/.containerenv",
    ".singularity.d",
    "var/run/secrets/kubernetes.io",
)


# limit, what is used of it, what of that is page cache the kernel can drop (a line of memory.stat)
CGROUP_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.high", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


# but for Open MPI's own word of where mpirun was called: it decides nothing, and names people
ALLOWED = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|TORCH|OMP|FI|MPICH|I_MPI|OMPI_MCA(?!_initial_wdir$)|HIP|HSA|ROCR)_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID)|PBS_JOBID|FLUX_JOB_ID|MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK"
)


# what a scheduler's and a launcher's values look like: anybody may set them to anything
VALUES = {
    "SLURM_JOB_ID": r"\d+([_+]\d+)?",
    "PBS_JOBID": r"\d+(\[\d*\])?(\.[\w.-]+)?",
    "FLUX_JOB_ID": r"\d+|ƒ\w{1,16}",
    **dict.fromkeys(("SLURM_NNODES", "SLURM_NTASKS", "SLURM_PROCID"), r"\d+"),
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"), r"\d+"),
}


DEVICE_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{8,}", re.IGNORECASE)


# key paths of what decides performance and stays the same on an unchanged machine
RELEVANT = re.compile(
    r"kernel|machine|product|python|libraries\..+|numa\.\d+\.cpus|memory\.(limit|huge_pages)|gpus\.(driver|cuda)"
    r"|cpu\.(model|sockets|physical|logical|smt|cores|llc_bytes|governor|turbo|max_mhz)"
    r"|container\.(cpu_quota|marks\.\d+)|gpus\.links\..+"
    r"|gpus\.devices\.\d+\.(name|memory|max_\w+|power_limit|nvlinks|numa|(mig|ecc)\.0|\w+_partition)"
    r"|nics\..+\.(driver|mbps|mtu)|rdma\..+\.(rate|link|firmware)|variables\.(?!.*(DEBUG|_LOG|DUMP|COMM_ID|HOSTID))"
    r"((NCCL|RCCL|GLOO|UCX|TORCH|OMP|FI|MPICH|I_MPI|CUDA|HIP|HSA|ROCR)_\w+|OMPI_MCA_(btl|coll|hwloc|mpi|mtl|opal|osc|pml|smsc)\w*)"
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
        "cpu": _cpu_facts(root),
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
            "limit": min((limit for limit, _, _ in _memory_cgroups(root)), default=None),
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
        (*LIBRARIES, *(name for b in backend_names() for name in backend_info(b).packages))
    )
    wheels = {
        name: next(iter(importlib.metadata.distributions(name=name)), None) for name in packages
    }
    libraries = {
        "collbench": __version__,
        **{name: wheel.version for name, wheel in wheels.items() if wheel},
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
    users = {name for name in backend_names() if package in backend_info(name).packages}
    return backends is None or not users or not users.isdisjoint(backends)


def make_fingerprint(
    environment: Mapping[str, Any], backends: Collection[str] | None = None
) -> str:
    """Twelve hexadecimal digits, equal where everything that decides performance of ``backends``
    is (None: of all)."""
    return digest_facts(_select_relevant(environment, backends))


def find_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], backends: Collection[str] | None = None
) -> list[Difference]:
    """Every fact by which the fingerprints for ``backends`` differ, in order of key paths."""
    old, right = _select_relevant(a, backends), _select_relevant(b, backends)
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
    return {**_select_relevant(gather_facts(None, root)), "clock_source": source}


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
    """This machine's name."""
    return socket.gethostname()


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


def usable_cpus(root: Path = ROOT) -> list[int]:
    """CPUs to place ranks on, best first: one of each physical core, then second threads; as many
    as the quota."""
    ordered = [
        c
        for thread in itertools.zip_longest(*by_core(list_affinity(root), root))
        for c in thread
        if c is not None
    ]
    return ordered[: math.ceil(cpu_quota(root) or len(ordered))]


def core_count(root: Path = ROOT) -> int:
    """Physical cores that can be busy at once: those in the affinity mask, or the CPU quota rounded
    up if less."""
    allowed = frozenset(os.sched_getaffinity(0))
    return _core_count(allowed) if root == ROOT else len(by_core(usable_cpus(root), root))


def launched_core_count(ranks: int) -> int:
    """Physical cores of the ``ranks`` that a launcher started on this host: core_count, but where
    the launcher (the parent process) may use more CPUs than this rank, it has bound each rank to
    its own: they have as many each, and no more than the launcher."""
    rank_cores = core_count()
    try:
        launcher = os.sched_getaffinity(os.getppid())
    except OSError:
        return rank_cores
    bound = launcher > os.sched_getaffinity(0)
    return min(rank_cores * ranks, len(by_core(sorted(launcher), ROOT))) if bound else rank_cores


@functools.lru_cache(maxsize=8)
def _core_count(_: frozenset[int]) -> int:
    """Kept for each mask: it takes milliseconds, and planning asks of every case."""
    return len(by_core(usable_cpus(ROOT), ROOT))


def numa_of(cpu: int, root: Path = ROOT) -> int:
    """The NUMA node of a CPU, -1 where the kernel does not tell."""
    return next((int(node.name[4:]) for node in (root / CPUS / f"cpu{cpu}").glob("node[0-9]*")), -1)


def llc_bytes(root: Path = ROOT) -> int | None:
    """Sum of the last-level caches that CPUs of the affinity mask can reach, each counted once."""
    counted, total = set[int](), 0
    for cpu in list_affinity(root):
        indices = () if cpu in counted else (root / CPUS / f"cpu{cpu}/cache").glob("index*")
        for _, last in sorted((read_integer(index / "level") or 0, index) for index in indices)[
            -1:
        ]:
            total += (read_integer(last / "size", r"(\d+)K") or 0) << 10
            counted |= {cpu, *cpu_list(last / "shared_cpu_list")}
    return total or None


def gpu_count(root: Path = ROOT) -> int:
    """GPUs this process may use, by their device nodes and CUDA_VISIBLE_DEVICES; AMD's as
    amd.list_gpu_nodes has them. Loads no library."""
    nodes = len(list((root / "dev").glob("nvidia[0-9]*")))
    if not nodes:
        return amd.count_visible(len(amd.list_gpu_nodes(root)), os.environ)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(nodes)))).split(",")
    # -1 ends the list
    return min(nodes, len(list(itertools.takewhile(re.compile(r"\s*\w").match, visible))))


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs' worth of time the tightest cgroup grants, None for no limit."""
    files = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    texts = (
        " ".join(read_text(group / file) or "" for file in files)
        for group in _list_cgroups("cpu", root)
    )
    grants = (re.fullmatch(r" ?(\d+) (\d+) *", text) for text in texts)
    return min((int(grant[1]) / int(grant[2]) for grant in grants if grant), default=None)


def memory_limit(root: Path = ROOT) -> tuple[int, str]:
    """Bytes this process tree may still take without swapping or being killed, less a reserve, and
    what limits it."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [
        (
            read_kib(root / "proc/meminfo", "MemAvailable") or free,
            "memory available on this machine",
        )
    ]
    limits += [(free, name) for _, free, name in _memory_cgroups(root)]
    space = read_integer(root / "proc/self/limits", r"^Max address space\s+(\d+)")
    if space is not None:
        limits.append(
            (
                space - (read_kib(root / "proc/self/status", "VmSize") or 0),
                "address space limit (ulimit -v)",
            )
        )
    bytes_left, why = min(limits)
    return max(0, bytes_left - max(512 << 20, bytes_left * 3 // 100)), why


def select_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Allow-listed variables whose names do not smell of secrets, values masked."""
    return {
        k: mask_text(environ[k])
        if re.fullmatch(VALUES.get(k, ".*"), environ[k], re.DOTALL)
        else "***"
        for k in sorted(environ)
        if ALLOWED.fullmatch(k) and not secrets.is_name_of_one(k)
    }


def list_foreign_variables(names: Iterable[str]) -> list[str]:
    """Those that are no settings of the libraries that are measured: such may run anything."""
    return sorted({name for name in names if not ALLOWED.fullmatch(name)})


def mask_text(text: str) -> str:
    """``text`` without what looks like a secret (secrets.mask_secrets); GPU UUIDs are hashed."""
    hidden = DEVICE_UUID.sub(lambda m: hash_identity(m[0]), text)
    return secrets.mask_secrets(hidden)


def _select_relevant(
    environment: Mapping[str, Any], backends: Collection[str] | None = None
) -> dict[str, Any]:
    """Key paths and values that go into the fingerprint for ``backends``. Null equals absent; a NIC
    without a driver is virtual."""
    nic_items = nics.items() if isinstance(nics := environment.get("nics"), Mapping) else ()
    nics = {name: nic for name, nic in nic_items if isinstance(nic, Mapping) and nic.get("driver")}
    return {
        k: v
        for k, v in _flatten({**environment, "nics": nics}).items()
        if v is not None and RELEVANT.fullmatch(k) and fact_decides(k, backends)
    }


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping | list | tuple):
        return {path: value}
    deep = path.count(".") > 20  # as no fact of ours, but maybe one by another hand
    items = () if deep else value.items() if isinstance(value, Mapping) else enumerate(value)
    return {
        k: v
        for key, inner in items
        for k, v in _flatten(inner, f"{path}.{key}".lstrip(".")).items()
    }


def _cpu_facts(root: Path) -> dict[str, Any]:
    """``cores`` may be busy at once, ``list_affinity`` is where this thread may run; the rest is
    the whole machine's."""
    at, allowed = root / CPUS, list_affinity(root)
    cpus = cpu_list(at / "online") or allowed
    cores = by_core(cpus, root)
    governors = {read_text(at / f"cpu{cpu}/cpufreq/scaling_governor") or "" for cpu in allowed} - {
        ""
    }
    turbo = (
        (at / file, on) for file, on in (("intel_pstate/no_turbo", "0"), ("cpufreq/boost", "1"))
    )
    return {
        "model": find_in_file(
            root / "proc/cpuinfo", r"^(?:model name\s*: |(?=CPU part))(.+)"
        ),  # Arm's have but a number
        "sockets": (
            len(
                {read_integer(at / f"cpu{core[0]}/topology/physical_package_id") for core in cores}
                - {None}
            )
            or None
        ),
        "physical": len(cores),
        "logical": len(cpus),
        "smt": len(cpus) > len(cores),
        "affinity": allowed,
        "cores": core_count(root),
        "llc_bytes": llc_bytes(root),
        "governor": ",".join(sorted(governors)) or None,
        "max_mhz": (
            (read_integer(at / f"cpu{allowed[0]}/cpufreq/cpuinfo_max_freq") or 0) // 1000 or None
        ),
        "turbo": next((read_text(file) == on for file, on in turbo if file.exists()), None),
    }


def list_affinity(root: Path = ROOT) -> list[int]:
    """CPUs the calling thread may run on, ascending."""
    allowed = set(
        cpu_list(root / "proc/thread-self/status", r"^Cpus_allowed_list:\s*(.*)")
    ) or os.sched_getaffinity(0)
    return sorted(allowed & set(cpu_list(root / CPUS / "online")) or allowed)


def by_core(cpus: Iterable[int], root: Path = ROOT) -> list[list[int]]:
    """``cpus`` grouped by the physical core they are threads of, in their order; of unknown
    siblings, a core each."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings = cpu_list(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(tuple(siblings) or (cpu,), []).append(cpu)
    return list(cores.values())


def _memory_cgroups(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, bytes left under it, name) of every memory limit that holds for this process, its own
    and inherited."""
    for group, (limit_file, used_file, cache) in itertools.product(
        _list_cgroups("memory", root), CGROUP_MEMORY
    ):
        limit, used = read_integer(group / limit_file), read_integer(group / used_file) or 0
        if (
            limit is not None and limit < 1 << 60
        ):  # version 1 writes "no limit" as the largest multiple of a page
            droppable = min(used, read_integer(group / "memory.stat", rf"^{cache} (\d+)") or 0)
            yield limit, limit - used + droppable, f"{limit_file} of /{group.relative_to(root)}"


def _list_cgroups(controller: str, root: Path) -> list[Path]:
    """This process's groups and all above them, versions 1 and 2; in a container, as far as they
    are mounted."""
    groups: list[Path] = []
    for controllers, path in re.findall(
        r"^\d+:(.*?):/(.*)", read_text(root / "proc/self/cgroup") or "", re.MULTILINE
    ):
        if not controllers or controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / (controller if controllers else "")
            groups += [
                group for group in (top / path, *(top / path).parents) if group.is_relative_to(top)
            ]
    return groups


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
            command.split(), cwd=cwd, capture_output=True, text=True, timeout=1, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {"revision": None, "dirty": None}
    revision = re.search(r"^# branch.oid ([0-9a-f]+)$", git.stdout, re.MULTILINE)
    return {
        "revision": revision and revision[1],
        "dirty": bool(re.search(r"^[^#]", git.stdout, re.MULTILINE)),
    }
