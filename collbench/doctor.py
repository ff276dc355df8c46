"""What can run on this machine, with the reason for whatever cannot, and how finely it can be measured here."""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from importlib import util
from typing import Any

import psutil

from collbench import algorithms, environment, gpu_findings, plan, session, stats
from collbench import catalogue as catalogue_of_suites
from collbench.collectives import COLLECTIVES
from collbench.errors import CannotRun, CollbenchError, Exit
from collbench.gpu_findings import Finding
from collbench.launch import mpirun
from collbench.launch.local import Launcher
from collbench.records import Record, World
from collbench.suite import Axes, Policy, Suite

LAUNCHES = 6  # worlds started one after another to see how much identical runs differ


def findings() -> Iterator[Finding]:
    """All of them, cheap ones first; the last ones start ranks and take some seconds."""
    found = environment.gather()
    yield from _machine(found)
    yield from _backends()
    yield from gpu_findings.findings(found)
    yield _interface()
    yield _clock()
    yield from _measured()


def _machine(found: Mapping[str, Any]) -> Iterator[Finding]:
    available, why = environment.memory_limit()
    cores = environment.core_count()
    cpu = found["cpu"]
    yield Finding("machine", "note", f"{found['host']}: {cpu.get('model')}, {cores} physical cores usable")
    governor = cpu.get("governor")
    state = "note" if governor in (None, "performance") else "no"
    yield Finding(
        "cpu governor", state, f"{governor or 'not visible'}" + (" (clocks will wander)" if state == "no" else "")
    )
    yield Finding("ranks", "note", f"up to {cores} with a core each; more are tagged oversubscribed")
    yield Finding("memory", "note", f"{available >> 20:,} MiB for ranks and buffers ({why})")
    swap = psutil.swap_memory().total
    yield Finding(
        "swap", "note" if not swap else "no", "none" if not swap else f"{swap >> 20:,} MiB: runs stay clear of it"
    )
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
        yield Finding("pinning", "yes", "ranks can be bound to cores")
    except OSError as e:
        yield Finding("pinning", "no", f"{e.strerror}: times will move with the scheduler")


def _backends() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    from collbench.backends import shm

    yield Finding("torch", "yes", torch.__version__)
    yield Finding(
        "gloo", *(("yes", "CPU ranks") if dist.is_gloo_available() else ("no", "this torch was built without it"))
    )
    yield _mpi()
    ucc = dist.is_ucc_available()
    yield Finding("ucc", "yes" if ucc else "no", "" if ucc else "this torch was built without UCC")
    missing = shm.why_not_here()
    yield Finding("shm", "no" if missing else "yes", missing or "reference algorithms in memory the ranks share")
    yield Finding("model", "yes", "predicted times, needs nothing")
    there = [name for name in ("mpi4py", "ray") if util.find_spec(name)]
    yield Finding(
        "launchers",
        "yes",
        "; ".join(
            ["torchrun, mpirun and srun are joined when found in the environment", *(f"{n} is there" for n in there)]
        ),
    )


def _mpi() -> Finding:
    from collbench.backends import mpi

    try:
        return Finding("mpi", "yes", f"{mpi.spoken(mpi.load().Get_library_version())}, ranks by {mpirun.find()}")
    except CannotRun as e:
        return Finding("mpi", "no", f"{e.message}: {e.hint}")


def _interface() -> Finding:
    """Which interface Gloo takes between hosts: the one named in GLOO_SOCKET_IFNAME, else that of the host's name."""
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    if named:
        state = "yes" if named in psutil.net_if_addrs() else "no"
        return Finding(
            "gloo between hosts",
            state,
            f"GLOO_SOCKET_IFNAME={named}" + ("" if state == "yes" else ": no such interface"),
        )
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError as e:
        return Finding("gloo between hosts", "no", f"this host's name does not resolve ({e}); set GLOO_SOCKET_IFNAME")
    names = [n for n, found in psutil.net_if_addrs().items() if any(a.address == address for a in found)]
    name = names[0] if names else "no local interface"
    if address.startswith("127."):
        return Finding("gloo between hosts", "no", f"the host's name is {address} ({name}): set GLOO_SOCKET_IFNAME")
    return Finding("gloo between hosts", "yes", f"{name} ({address}); ranks of one machine stay on lo")


def _clock() -> Finding:
    reads = [time.perf_counter_ns() for _ in range(10_000)]
    steps = sorted(after - before for before, after in itertools.pairwise(reads))
    detail = (
        f"{steps[len(steps) // 2]} ns between two reads (99 %: {steps[len(steps) * 99 // 100]} ns), CLOCK_MONOTONIC"
    )
    return Finding("clock", "note", detail)


def _measured() -> Iterator[Finding]:
    """Overhead, achieved skew and A=A noise: the same small sweep in several fresh worlds of two ranks."""
    axes = Axes(collectives=("all_reduce",), sizes=(64 << 10,), ranks=(2,), in_place=(True,))
    suite = Suite(name="doctor", axes=axes, policy=Policy(iters=200, timeout=30.0))
    try:
        found = _launches(suite)
    except CollbenchError as e:
        yield Finding("gloo ranks", "no", e.message)
        return
    medians = [stats.median_interval(record.times_ns, len(record.times_ns))[0] / record.inner for _, record in found]
    world, last = found[-1]
    typical = statistics.median(medians)
    spread = statistics.stdev(medians) / typical
    detail = f"identical launches differ by {spread:.1%} (1 sd of {LAUNCHES} medians, all_reduce 64 KiB, 2 ranks)"
    yield Finding("noise, A = A", "note" if spread < 0.05 else "no", detail)
    yield Finding(
        "harness overhead",
        "note",
        f"{last.overhead_ns} ns a sample ({last.overhead_ns / typical / last.inner:.2%} of the above)",
    )
    skew = statistics.median(last.skew_ns) if last.skew_ns else 0
    yield Finding(
        "start skew",
        "note",
        f"{skew / 1000:.1f} us by {last.sync}" + (", oversubscribed" if world.oversubscribed else ""),
    )


def _launches(suite: Suite) -> list[tuple[World, Record]]:
    prepared = session.prepare(session.Order(suite=suite, command=[], save=False))
    if not prepared.jobs:
        raise CannotRun(prepared.skips[0].reason)
    lines: list[World | Record] = []
    launcher = Launcher()
    try:
        for _ in range(LAUNCHES):
            for world in plan.worlds(prepared.jobs, suite.policy):
                launcher.run(world, lines.append, lambda job, phase: None)
    finally:
        launcher.close()
    worlds = [line for line in lines if isinstance(line, World)]
    return list(zip(worlds, [line for line in lines if isinstance(line, Record)], strict=True))


def run() -> Exit:
    """Print the findings as they come; 5 if not even Gloo ranks can run."""
    from collbench import console

    alive = True
    for finding in findings():
        console.finding(*finding)
        alive = alive and (finding.what, finding.state) not in (("gloo", "no"), ("gloo ranks", "no"))
    return Exit.OK if alive else Exit.CANNOT_RUN


def catalogue() -> dict[str, list[tuple[str, ...]]]:
    """What `list` shows: tables by title, a header row first."""
    rows: list[tuple[str, ...]] = [("name", "busbw factor", "in place", "meaning")]
    rows += [(c.name, c.factor, c.in_place or "-", c.meaning) for c in COLLECTIVES.values()]
    backends: list[tuple[str, ...]] = [
        ("name", "what it is"),
        ("gloo", "torch.distributed on CPUs; algorithms by its messages (ring@gloo)"),
        ("nccl", "torch.distributed on NVIDIA GPUs; algorithms by its messages (ring@nccl)"),
        ("mpi", "MPI by mpi4py on CPUs; algorithms by its messages (ring@mpi)"),
        ("shm", "algorithms in memory the ranks of one host share (ring@shm)"),
        ("symm", "algorithms in memory that GPUs reach each other's, by one Triton kernel (ring@symm)"),
        ("torch_one_shot, torch_two_shot", "torch's own all_reduce kernels in such memory"),
        ("torch_multimem, torch_multimem_one_shot", "the same, with the switch adding up (NVLS)"),
        ("NAME", "any other backend torch.distributed knows under that name (ucc, a plug-in's)"),
        ("model", "predicted times on a flat network: the lower bound, and algorithms (ring@model)"),
    ]
    named: list[tuple[str, ...]] = [("collective", "algorithms (--algo), with their parameters")]
    named += [(name, ", ".join(map(algorithms.spelling, algorithms.of(name)))) for name in COLLECTIVES]
    suites: list[tuple[str, ...]] = [("name", "tags", "what it is for")]
    suites += [(s.name, ", ".join(s.tags), s.description) for s in catalogue_of_suites.built_in().values()]
    return {"Collectives": rows, "Algorithms": named, "Backends": backends, "Suites": suites}
