"""What can run on this machine, with the reason for whatever cannot, and how finely it can be
measured here."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import util
from typing import Annotated, Any

import psutil
import typer

from collbench.cli import doctor_hosts
from collbench.cli.doctor_gpus import NO_GPU, Finding, gpu_findings, has_gpus
from collbench.cli.families import Debug, Ssh
from collbench.cli.parameters import make_option
from collbench.core.backend_info import backend_info, list_infos
from collbench.core.errors import CannotRun, CollbenchError, Exit, UsageError
from collbench.core.text import format_count, format_duration
from collbench.machine import cpus, environment, load, memory
from collbench.machine.routes import find_named_interface, resolve_host_name
from collbench.records import stats
from collbench.records.types import Record, World
from collbench.run import plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.run.order import Order, prepare_order
from collbench.show import busy
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

LAUNCHES = 6  # worlds started one after another to see how much identical runs differ


def list_findings() -> Iterator[tuple[str, Iterator[Finding]]]:
    """Findings by what they are needed for, cheap ones first; the last ones start ranks and take
    some seconds."""
    facts = environment.gather_facts()
    yield "This machine", _check_machine(facts)
    yield "CPU ranks", itertools.chain(_check_backends(), [_check_interface()])
    yield "GPU ranks", gpu_findings(facts) if has_gpus(facts) else _check_without_gpus()
    yield "Measuring", itertools.chain([_check_clock()], _check_launches())


def _check_machine(facts: Mapping[str, Any]) -> Iterator[Finding]:
    available, why = memory.memory_limit()
    cores = cpus.core_count()
    cpu = facts["cpu"]
    yield Finding(
        "machine", "note", f"{facts['host']}: {cpu.get('model')}, {cores} physical cores usable"
    )
    governor = cpu.get("governor")
    state = "note" if governor in (None, "performance") else "no"
    yield Finding(
        "cpu governor",
        state,
        f"{governor or 'not visible'}" + (" (clocks will wander)" if state == "no" else ""),
    )
    yield from _check_other_load()
    yield Finding(
        "ranks",
        "note",
        f"up to {format_count(cores, 'rank')} get a core each; with more, rows are flagged"
        " oversubscribed",
    )
    yield Finding("memory", "note", f"{available >> 20:,} MiB for ranks and buffers ({why})")
    swap = psutil.swap_memory().total
    yield Finding(
        "swap",
        "note",
        "none" if not swap else f"{swap >> 20:,} MiB: runs stay clear of it",
    )
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        yield Finding("pinning", "yes", "ranks can be bound to cores")
    except OSError as e:
        yield Finding("pinning", "no", f"{e.strerror}: times will move with the scheduler")


def _check_other_load() -> Iterator[Finding]:
    """Whether others keep this machine busy."""
    measured = load.measure_load()
    trouble = busy.describe_now(measured)
    if measured:
        state = "no" if trouble else "yes"
        yield Finding("idle machine", state, trouble or "other processes use hardly any CPU")


def _check_backends() -> Iterator[Finding]:
    import torch

    from collbench.run.backends import _torchdist
    from collbench.run.refusal import torch_plugins

    yield Finding("torch", "yes", torch.__version__)
    absent = []
    for name, info in list_infos().items():
        if info.gpu:
            continue
        if reason := info.here():
            absent.append(f"{name}: {reason}")
            continue
        try:
            yield Finding(name, "yes", info.find() or info.about)
        except CollbenchError as e:
            yield Finding(name, "no", f"{e.message}: {e.hint}")
    if absent:
        yield Finding("not here", "note", "; ".join(absent))
    for name in sorted(torch_plugins()):
        try:
            yield Finding(
                name, "yes", f"a plug-in, tensors on {_torchdist.choose_device(name).type}"
            )
        except CannotRun as e:
            yield Finding(name, "no", f"a plug-in: {e.message}")
    installed = [name for name in ("mpi4py", "ray") if util.find_spec(name)]
    joining = "torchrun, mpirun and srun are joined when found in the environment"
    yield Finding("launchers", "yes", "; ".join([joining, *(f"{n} is there" for n in installed)]))


def _check_without_gpus() -> Iterator[Finding]:
    """Findings without a GPU: that none is there, and whether symm runs in Triton's interpreter."""
    yield NO_GPU
    reason = backend_info("symm").here()
    yield Finding("symm", "note", reason or "in Triton's interpreter, on CPUs")


def _check_interface() -> Finding:
    """Which interface Gloo takes between hosts: the first that GLOO_SOCKET_IFNAME names, else that
    of the host's name."""
    interface = find_named_interface()
    about = partial(Finding, "gloo between hosts")
    ask = "for several hosts set GLOO_SOCKET_IFNAME"
    if interface and interface not in psutil.net_if_addrs():
        return about("no", f"GLOO_SOCKET_IFNAME={interface}: no such interface")
    if interface:
        return about("yes", f"GLOO_SOCKET_IFNAME={interface}")
    try:
        address = resolve_host_name()
    except OSError as e:
        return about("note", f"this host's name does not resolve ({e}): {ask}")
    names = [
        n
        for n, addresses in psutil.net_if_addrs().items()
        if any(a.address.partition("%")[0] == address for a in addresses)
    ]
    name = names[0] if names else "no local interface"
    if address == "::1" or address.startswith("127."):
        return about("note", f"this host's name resolves to {address} ({name}): {ask}")
    return about("yes", f"{name} ({address}); ranks of one machine stay on lo")


def _check_clock() -> Finding:
    reads = [time.perf_counter_ns() for _ in range(10_000)]
    steps = sorted(after - before for before, after in itertools.pairwise(reads))
    detail = (
        f"{steps[len(steps) // 2]} ns between two reads (99 %: {steps[len(steps) * 99 // 100]} ns),"
        " CLOCK_MONOTONIC"
    )
    return Finding("clock", "note", detail)


def _check_launches() -> Iterator[Finding]:
    """How far identical launches differ, overhead and achieved skew: the same small sweep in
    several fresh worlds of two ranks."""
    axes = Axes(collectives=("all_reduce",), sizes=(64 << 10,), ranks=(2,), in_place=(True,))
    suite = Suite(name="doctor", axes=axes, policy=Policy(iters=200, timeout=30.0))
    try:
        launches = _measure_launches(suite)
    except CollbenchError as e:
        yield Finding("gloo ranks", "no", e.message)
        return
    untimed = [record.note or record.status for _, record in launches if not record.times_ns]
    if untimed:
        yield Finding("gloo ranks", "no", untimed[0])
        return
    medians = [
        stats.median_interval(record.times_ns, len(record.times_ns))[0] / record.inner
        for _, record in launches
    ]
    world, last = launches[-1]
    typical = statistics.median(medians)
    spread = statistics.stdev(medians) / typical
    detail = (
        f"identical launches differ by {spread:.1%} (1 sd of {LAUNCHES} medians, all_reduce 64 KiB,"
        " 2 ranks)"
    )
    yield Finding("repeatable", "yes" if spread < 0.05 else "no", detail)
    yield Finding(
        "harness overhead",
        "note",
        f"{last.overhead_ns} ns a sample ({last.overhead_ns / typical / last.inner:.2%} of the"
        " above)",
    )
    skew = statistics.median(last.skew_ns) if last.skew_ns else 0
    yield Finding(
        "start skew",
        "note",
        f"{format_duration(skew)}, ranks "
        + ("are not aligned" if last.sync == "none" else f"started by {last.sync}")
        + (", oversubscribed" if world.oversubscribed else ""),
    )


def _measure_launches(suite: Suite) -> list[tuple[World, Record]]:
    """Launch the suite LAUNCHES times, without saving it; the world and the record of each launch.
    Raises CannotRun where its case cannot run."""
    prepared = prepare_order(Order(suite=suite, command=[], save=False))
    if not prepared.jobs:
        raise CannotRun(prepared.skips[0].reason)
    lines: list[World | Record] = []
    launcher = Launcher()
    try:
        for _ in range(LAUNCHES):
            launcher.run(plan.plan_worlds(prepared.jobs, suite.policy), Listener(lines.append))
    finally:
        launcher.close()
    worlds = [line for line in lines if isinstance(line, World)]
    return list(zip(worlds, [line for line in lines if isinstance(line, Record)], strict=True))


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The hosts to look at, in place of this machine."""

    hosts: Annotated[
        str,
        make_option("hosts", "Say of these hosts whether --launcher ssh can start ranks there."),
    ] = ""
    ssh: Ssh = ""
    debug: Debug = False


def doctor(options: DoctorOptions) -> None:
    """Say what can run on this machine, and why the rest cannot.

    With --hosts it says of these hosts what is there instead.
    """
    from collbench.show import terminal
    from collbench.show.document import tone_text

    if options.ssh and not options.hosts:
        raise UsageError("--ssh: no hosts are named", "doctor --hosts a,b says what they have")
    if options.hosts:
        findings = list(doctor_hosts.check_hosts(options.hosts, options.ssh))
        for finding in findings:
            terminal.print_finding(*finding)
        is_ready = all(finding.state == "yes" for finding in findings)
        raise typer.Exit(Exit.OK if is_ready else Exit.CANNOT_RUN)
    states: dict[str, str] = {}
    for title, members in list_findings():
        terminal.print_blocks(*[""] * bool(states), tone_text(title, strong=True))
        for finding in members:
            terminal.print_finding(*finding)
            states[finding.what] = finding.state
    terminal.print_blocks(
        "", tone_text(describe_ready(states, cpus.core_count(), environment.gpu_count()))
    )
    alive = "no" not in (states.get("gloo"), states.get("gloo ranks"))
    raise typer.Exit(Exit.OK if alive else Exit.CANNOT_RUN)


def describe_ready(states: Mapping[str, str], cores: int, gpus: int) -> str:
    """Which backends can run, on how many ranks, by the findings' states."""
    works = [
        name
        for name, info in list_infos().items()
        if states.get(name) == "yes" and not info.gpu and not info.predicts
    ]
    works = [name for name in works if name != "gloo" or states.get("gloo ranks") != "no"]
    parts = [f"{', '.join(works)} on {format_count(cores, 'rank')}"] if works else []
    parts += (
        [f"nccl on {format_count(gpus, 'GPU')}"] if states.get("nccl") == "yes" and gpus else []
    )
    return f"Ready: {'; '.join(parts)}." if parts else "Nothing can run here: see above."
