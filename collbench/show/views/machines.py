"""Machines and settings that runs were made with, and their differences.

GPUs and RDMA adapters stand in words, their wiring in a table like that of nvidia-smi topo -m; all
of it comes from the facts of environment.gather_facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.machine import environment
from collbench.records.types import HostInfo, RunFile, World
from collbench.show.document import Line, Section, Table, make_columns
from collbench.show.views.series import View, make_table
from collbench.suite.policy import Policy

BESIDE = 6  # runs side by side

LONG = 2000  # characters of a fact

STRANGE = (
    AttributeError,
    TypeError,
    ValueError,
    LookupError,
    RecursionError,
)  # what facts of another shape raise

GROUP = make_columns(
    ("group", "library", "launcher", "ranks on", "start", "shared cores"), rest="l"
)


def make_section(view: View) -> Section:
    """Differences first, since they explain others; then the facts of each run, side by side."""
    runs = list(range(len(view.files)))[:BESIDE]
    if not runs:
        return Section(name="environment", title="Environment", sentences=["There is no run."])
    sentences = (
        [f"The first {BESIDE} of {len(view.files)} runs are shown."]
        if len(view.files) > BESIDE
        else []
    )
    columns = make_columns(("", *(view.labels[run] for run in runs)), rest="l")
    differences = _difference_lines(view, runs)
    if len(runs) > 1:
        sentences.append(
            "The runs' machines differ in facts that decide performance: what differs between runs"
            " may be theirs."
            if differences
            else "The runs' machines are the same in all facts that decide performance."
        )
    facts = []
    for name, ask in FACTS.items():
        answers = [_ask_safely(ask, view.files[run]) for run in runs]
        if any(answers):
            facts.append(Line((name, *(answer or "unknown" for answer in answers))))
    worlds = [
        Line(
            _describe_group(view, run, world),
            {"backend": plain_line(world.backend), "ranks": str(world.n)},
            "notice" if world.oversubscribed else "",
        )
        for run in runs
        for world in _distinct_worlds(view.files[run])
    ]
    hosts = _unlike_tables(view, runs)
    tables = [
        *hosts,
        make_table("differences", "What differs", columns, differences),
        make_table("facts", "Runs and machines", columns, facts),
        *_topology_tables(view, runs),
        make_table("worlds", "Process groups", GROUP, worlds, folded=True),
    ]
    return Section(
        name="environment",
        title="Environment",
        sentences=sentences,
        tables=[t for t in tables if t.lines],
        folded=not differences and not any(table.lines for table in hosts),
    )


def describe_machine(file: RunFile) -> list[str]:
    """A run's GPUs or else its processor, its host and begin, as far as its file tells."""
    return [
        answer
        for ask in (_describe_processor, FACTS["host"], _describe_begin)
        if (answer := _ask_safely(ask, file))
    ]


def _describe_processor(file: RunFile) -> str:
    cpu = _find_commit(file, "cpu") or {}
    cores = format_count(cpu["physical"], "core") if cpu.get("physical") else ""
    parts = describe_cards(_find_commit(file, "gpus") or {}) or [str(cpu.get("model") or ""), cores]
    return ", ".join(filter(None, parts))


def _describe_begin(file: RunFile) -> str:
    begin = datetime.fromisoformat(file.run.started)
    if begin.tzinfo is None:  # a log of another tool does not say its zone
        return f"{begin:%d %b %Y %H:%M}"
    return f"{begin.astimezone(UTC):%d %b %Y %H:%M} UTC"


def _topology_tables(view: View, runs: list[int]) -> list[Table]:
    """The paths between GPUs of each machine that has several, once where runs have the same."""
    topologies: dict[int, tuple[tuple[str, ...], list[Line]]] = {}
    for run in runs:
        with suppress(*STRANGE):
            found_here = make_matrix(_find_commit(view.files[run], "gpus") or {})
            if found_here[1] and found_here not in topologies.values():
                topologies[run] = found_here
    return [
        make_table(
            f"topology-{run}",
            view.prefix_run(run, "GPU topology"),
            make_columns(heads, rest="l"),
            lines,
            folded=True,
        )
        for run, (heads, lines) in topologies.items()
    ]


def describe_unlike(view: View) -> list[str]:
    """A sentence for each run on hosts that are not alike."""
    sentences = []
    for run, file in enumerate(view.files):
        if differs := next(
            (w.hosts[0].differs for w in file.worlds if w.hosts and w.hosts[0].differs), None
        ):
            names = ", ".join(plain_line(key) for key in list(differs)[:4]) + (
                " and others" if len(differs) > 4 else ""
            )
            sentences.append(
                view.prefix_run(run, f"The hosts are not alike, see Environment: {names}.")
            )
    return sentences


def _unlike_tables(view: View, runs: list[int]) -> list[Table]:
    """Tables of the facts in which the hosts of a run differ; hosts that are alike share a
    column."""
    tables = []
    for run in runs:
        hosts = next((w.hosts for w in view.files[run].worlds if w.hosts), [])
        by_difference: dict[str, list[HostInfo]] = {}
        for info in hosts:
            by_difference.setdefault(repr(info.differs), []).append(info)
        kinds = list(by_difference.values())[:BESIDE]
        more = (
            f" ({len(by_difference) - BESIDE} more kinds are not shown)"
            if len(by_difference) > BESIDE
            else ""
        )
        columns = make_columns(("", *(_name_hosts(kind) for kind in kinds)), rest="l")
        lines = [
            Line(
                (
                    plain_line(key),
                    *(
                        "unknown"
                        if (value := kind[0].differs.get(key)) is None
                        else format_fact(value)
                        for kind in kinds
                    ),
                ),
                {},
                "notice",
            )
            for key in (hosts[0].differs if hosts else ())
        ]
        title = view.prefix_run(run, f"What differs between hosts{more}")
        tables.append(make_table(f"hosts-{run}", title, columns, lines))
    return tables


def _name_hosts(hosts: list[HostInfo]) -> str:
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    return ", ".join(plain_line(info.host) for info in hosts[:3]) + more


def _difference_lines(view: View, runs: list[int]) -> list[Line]:
    """Every fact in which a run differs from the first, with its value in all."""
    differing: dict[str, dict[int, Any]] = {}
    backends = set[str]().union(*(view.files[run].backends for run in runs))
    for run in runs[1:]:
        for key, first_value, value in environment.find_differences(
            view.files[runs[0]].run.environment, view.files[run].run.environment, backends
        ):
            differing.setdefault(key, {runs[0]: first_value})[run] = value
    lines = []
    for key, values in sorted(differing.items()):
        same = values[runs[0]]
        cells = [values.get(run, same) for run in runs]
        lines.append(
            Line(
                (plain_line(key), *("unknown" if v is None else format_fact(v) for v in cells)),
                {},
                "notice",
            )
        )
    return lines


def _describe_group(view: View, run: int, world: World) -> tuple[str, ...]:
    name = view.prefix_run(run, f"{format_count(world.n, 'rank')}, {plain_line(world.backend)}")
    start = format_duration(world.init_ns) if world.init_ns else ""
    return (
        name,
        plain_line(world.library),
        plain_line(world.launcher),
        _describe_hosts(world),
        start,
        "yes" if world.oversubscribed else "no",
    )


def _distinct_worlds(file: RunFile) -> list[World]:
    """One world of each kind: a comparison opens the same one many times."""
    return list(
        {
            (w.backend, w.n, w.env, w.library, w.oversubscribed): w for w in reversed(file.worlds)
        }.values()
    )[::-1]


def _describe_hosts(world: World) -> str:
    hosts: dict[str, list[str]] = {}
    for info in world.ranks:
        cpus = (
            f"CPU {','.join(map(str, info.cpus[:4]))}{'…' if len(info.cpus) > 4 else ''}"
            if info.cpus
            else ""
        )
        hosts.setdefault(plain_line(info.host), []).append(
            cpus if info.device == "cpu" else plain_line(info.gpu or info.device)
        )
    host_texts = [
        f"{host}: {format_count(len(on), 'rank')}"
        f" ({', '.join(dict.fromkeys(filter(None, on[:8])))})"
        for host, on in hosts.items()
    ]
    return "; ".join(host_texts[:8]) + (
        f"; {format_count(len(host_texts) - 8, 'host')} more" if len(host_texts) > 8 else ""
    )


def _ask_safely(ask: Callable[[RunFile], str], file: RunFile) -> str:
    """An answer, or nothing where a description has another shape, by another version or hand."""
    try:
        return format_fact(ask(file))
    except STRANGE:
        return ""


def format_fact(value: Any) -> str:
    """A fact of any type as one line of at most LONG characters."""
    try:
        return plain_line(str(value))[:LONG]
    except RecursionError:
        return "nested too deeply"


def _find_commit(file: RunFile, *path: str) -> Any:
    value: Any = file.run.environment
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _describe_started(file: RunFile) -> str:
    imported = f"imported from {file.run.imported}" if file.run.imported else ""
    return ", ".join(filter(None, [file.run.started, imported]))


def _describe_ended(file: RunFile) -> str:
    if file.end is None:
        return "cut short: its file has no end"
    return f"{file.end.ended}" + (
        f", exit {file.end.exit}: {file.end.note}" if file.end.exit else ""
    )


def _describe_cpu(file: RunFile) -> str:
    cpu = _find_commit(file, "cpu") or {}
    cores = (
        f"{cpu['cores']} of {format_count(cpu['physical'], 'core')} usable"
        if cpu.get("cores") and cpu.get("physical")
        else ""
    )
    threads = format_count(cpu["logical"], "thread") if cpu.get("smt") else ""
    cache = f"last-level cache {format_size(cpu['llc_bytes'])}" if cpu.get("llc_bytes") else ""
    governor = f"governor {cpu['governor']}" if cpu.get("governor") else ""
    turbo = "" if cpu.get("turbo") is None else f"turbo {'on' if cpu['turbo'] else 'off'}"
    return ", ".join(filter(None, [cpu.get("model"), cores, threads, cache, governor, turbo]))


def _describe_memory(file: RunFile) -> str:
    memory = _find_commit(file, "memory") or {}
    limit = f"limited to {format_size(memory['limit'])}" if memory.get("limit") else ""
    return ", ".join(
        filter(None, [format_size(memory["total"]) if memory.get("total") else "", limit])
    )


def _describe_gpus(file: RunFile) -> str:
    gpus = _find_commit(file, "gpus") or {}
    versions = [
        f"{name} {gpus[key]}"
        for key, name in (("driver", "driver"), ("cuda", "CUDA"))
        if gpus.get(key)
    ]
    return ", ".join([*describe_cards(gpus), *versions]) or ("none" if gpus else "")


def _describe_nics(file: RunFile) -> str:
    nics = {
        name: nic for name, nic in (_find_commit(file, "nics") or {}).items() if nic.get("driver")
    }
    return ", ".join(
        f"{name} ({nic['driver']}" + (f", {nic['mbps'] / 1000:g} Gb/s)" if nic.get("mbps") else ")")
        for name, nic in nics.items()
    )


def _describe_container(file: RunFile) -> str:
    container = _find_commit(file, "container") or {}
    quota = f"{container['cpu_quota']:g} CPUs at most" if container.get("cpu_quota") else ""
    return ", ".join(filter(None, ["yes" if container.get("marks") else "", quota]))


def _describe_git(file: RunFile) -> str:
    revision = _find_commit(file, "git", "revision")
    return (
        f"{revision}{', with changes' if _find_commit(file, 'git', 'dirty') else ''}"
        if revision
        else ""
    )


def _describe_policy(file: RunFile) -> str:
    """Fields of the policy that differ from the defaults."""
    plain_policy = msgspec.structs.asdict(Policy())
    settings = msgspec.structs.asdict(file.run.policy)
    return (
        " ".join(
            f"{name}={value}" for name, value in settings.items() if value != plain_policy[name]
        )
        or "defaults"
    )


def _format_pairs(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in (values or {}).items())


FACTS: dict[str, Callable[[RunFile], str]] = {
    "run": lambda file: file.run.id,
    "tag": lambda file: file.run.tag,
    "started": _describe_started,
    "ended": _describe_ended,
    "command": lambda file: " ".join(file.run.command),
    "policy": _describe_policy,
    "fingerprint": lambda file: (
        environment.make_fingerprint(file.run.environment, file.backends)
        if file.run.environment
        else ""
    ),
    "host": lambda file: _find_commit(file, "host") or "",
    "system": lambda file: ", ".join(
        filter(
            None,
            [_find_commit(file, "os"), _find_commit(file, "kernel"), _find_commit(file, "machine")],
        )
    ),
    "product": lambda file: _find_commit(file, "product") or "",
    "CPU": _describe_cpu,
    "memory": _describe_memory,
    "GPUs": _describe_gpus,
    "GPU links": lambda file: describe_links(_find_commit(file, "gpus") or {}),
    "RDMA": lambda file: ", ".join(describe_adapters(_find_commit(file, "rdma") or {})),
    "network": _describe_nics,
    "container": _describe_container,
    "Python": lambda file: _find_commit(file, "python") or "",
    "libraries": lambda file: _format_pairs(_find_commit(file, "libraries")),
    "variables": lambda file: _format_pairs(_find_commit(file, "variables")),
    "git": _describe_git,
}

Facts = Mapping[str, Any]


def describe_cards(gpus: Facts) -> list[str]:
    """Each kind of GPU with its number, memory and settings; PCIe lanes where fewer are in use than
    there are."""
    kinds = Counter(_describe_card(device) for device in gpus.get("devices") or [])
    return [f"{number} x {kind}" for kind, number in kinds.items()]


def _describe_card(device: Facts) -> str:
    """One phrase on a GPU: name, memory, PCIe, limits and modes, as far as known."""
    lanes, most = device.get("pcie_lanes"), device.get("max_pcie_lanes")
    modes = {name: (device.get(name) or [None])[0] for name in ("ecc", "mig")}
    parts = [
        str(device.get("name")),
        format_size(device["memory"]) if device.get("memory") else "",
        f"PCIe {device['max_pcie']}.0 x{most}" if device.get("max_pcie") and most else "",
        f"only {lanes} lanes in use" if lanes and most and lanes < most else "",
        f"limited to {device['power_limit'] / 1000:g} W" if device.get("power_limit") else "",
        "" if modes["ecc"] is None else f"ECC {'on' if modes['ecc'] else 'off'}",
        "MIG on" if modes["mig"] else "",
        "persistence off" if device.get("persistence") == 0 else "",
    ]
    return plain_line(parts[0]) + (
        f" ({', '.join(rest)})" if (rest := [word for word in parts[1:] if word]) else ""
    )


def describe_links(gpus: Facts) -> str:
    """Paths between GPUs, the most frequent first; empty for fewer than two."""
    rows = gpus.get("links") or []
    paths = Counter(
        str(path or "unknown") for index, row in enumerate(rows) for path in row[index + 1 :]
    )
    if len(paths) == 1:
        return f"{plain_line(next(iter(paths)))} between all {len(rows)}"
    return ", ".join(
        f"{plain_line(path)} between {format_count(number, 'pair')}"
        for path, number in paths.most_common()
    )


def describe_adapters(rdma: Facts) -> list[str]:
    """Each port of an RDMA adapter with its rate, and the way to the nearest GPUs."""
    return [_describe_port(name, port) for name, port in rdma.items()]


def _describe_port(name: str, port: Facts) -> str:
    state = str(port.get("state") or "").rpartition(" ")[2]  # the kernel writes 4: ACTIVE
    near = f"{port['path']} to GPU {', '.join(map(str, port['gpus']))}" if port.get("path") else ""
    details = ", ".join(
        filter(None, [port.get("rate"), "" if state == "ACTIVE" else state.lower(), near])
    )
    return plain_line(f"{name} ({details})" if details else name)


def make_matrix(gpus: Facts) -> tuple[tuple[str, ...], list[Line]]:
    """Heads and lines of the table of paths, with each GPU's CPUs and NUMA node."""
    rows, devices = gpus.get("links") or [], gpus.get("devices") or []
    heads = ("", *(f"GPU {index}" for index in range(len(rows))), "CPUs", "NUMA node")
    lines = []
    for index, (row, device) in enumerate(zip(rows, devices, strict=True)):
        numa = device.get("numa")
        about = (plain_line(str(device.get("cpus") or "?")), "?" if numa is None else str(numa))
        lines.append(
            Line((f"GPU {index}", *(plain_line(str(path or "?")) for path in row), *about))
        )
    return heads, lines
