"""Worlds of real ranks for tests, and the planted faults of plugins/."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from needs import need_mpi
from paths import before
from played import play_steps
from relay import Relay, find_agent
from warm import Warm

from collbench.features.order.findings import OrderFindings, read_findings
from collbench.features.order.request import SumOrder
from collbench.features.training.step import Step
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

PLUGINS = Path(__file__).parent / "plugins"
Measure = Callable[..., list[Record]]
Play = Callable[..., list[Record]]
Ask = Callable[..., list[Record]]
FindOrders = Callable[..., list[OrderFindings]]
Launched = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(warm: Warm) -> Warm:
    """``collbench ARGS``, forked from a process that has loaded all: how a command comes up is
    for others to test."""
    return warm


@pytest.fixture(scope="session")
def relay(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """``relay.command`` is what a launcher may start as it would start collbench."""
    found = Relay(warm, tmp_path_factory.mktemp("relay") / "at")
    yield found
    found.close()


@pytest.fixture(scope="session")
def mpi() -> None:
    """For tests marked ``needs_mpi``."""
    need_mpi()


@pytest.fixture
def torchrun(warm: Warm, relay: Relay) -> Launched:
    """``torchrun(*words, **env)``: ``collbench WORDS`` on two ranks, under torch's own agent."""

    def run(*words: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        options = ("--nproc-per-node", "2", "--rdzv-backend", "c10d")
        meeting = ("--rdzv-endpoint", "localhost:0", "--no-python")
        started = (*options, *meeting, *relay.command, *words)
        return warm(*started, script=find_agent(), timeout=timeout, **env)

    return run


@pytest.fixture(scope="session")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where saboteurs of ``launcher`` read what to do: a setting in the environment would need a
    server of its own."""
    return tmp_path_factory.mktemp("sabotage") / "fault"


@pytest.fixture(scope="session")
def launcher(fault: Path) -> Iterator[Launcher]:
    """One fork server for the whole session, with the plugins: each world costs only its forks."""
    path = before(PLUGINS)
    found = Launcher(settings={**os.environ, "PYTHONPATH": path, "SABOTAGE_FILE": str(fault)})
    yield found
    found.close()


@pytest.fixture
def measure(launcher: Launcher, fault: Path) -> Measure:
    """``measure(cases, **policy)``: the records of cases of one world, two samples each unless told
    otherwise, without a deadline that a busy machine may miss. ``sabotage`` is for saboteurs."""

    def run(
        cases: Sequence[Case],
        rotation: int = 2,
        env: tuple[tuple[str, str], ...] = (),
        sabotage: str = "",
        split: str = "",
        **policy: object,
    ) -> list[Record]:
        fault.write_text(sabotage)
        settings = Policy(**{"iters": 2, "warmup": 0, "timeout": 60.0, "sync": "barrier", **policy})  # type: ignore[arg-type]
        jobs = [Job(case, rotation, "small") for case in cases]
        limit = settings.timeout or 60.0
        plan = Plan(0, cases[0].backend, cases[0].world, env, settings, jobs, limit, split)
        lines: list[World | Record] = []
        launcher.run([plan], Listener(lines.append))
        assert isinstance(lines[0], World)
        return [line for line in lines if isinstance(line, Record)]

    return run


@pytest.fixture
def play(launcher: Launcher, fault: Path) -> Play:
    """``play(step)``: the records of its parts, of two rounds unless told otherwise."""

    def run(step: Step, *given: str, sabotage: str = "x:9:9", **policy: object) -> list[Record]:
        fault.write_text(sabotage)
        return play_steps(launcher, [step], *given, **policy)

    return run


@pytest.fixture
def ask(launcher: Launcher, fault: Path) -> Ask:
    """``ask((subject, algorithm), ...)``: the records of orders in one world."""

    def run(
        *asked: tuple[SumOrder, str],
        backend: str = "shm",
        env: tuple[tuple[str, str], ...] = (),
        sabotage: str = "x:9:9",
        **policy: object,
    ) -> list[Record]:
        fault.write_text(sabotage)
        settings = Policy(**{"timeout": 60.0, **policy})  # type: ignore[arg-type]
        world = asked[0][0].world
        jobs = []
        for subject, algorithm in asked:
            axes = Axes(
                collectives=(),
                sizes=(),
                ranks=(world,),
                backends=(backend,),
                algorithms=(algorithm,),
                envs=(env,),
            )
            cases, _ = Suite(name="", axes=axes, subjects=(subject,)).expand()
            jobs += [Job(case, 1, "hot", subject=subject) for case in cases]
        plan = Plan(0, backend, world, env, settings, jobs, settings.timeout or 60.0)
        lines: list[World | Record] = []
        launcher.run([plan], Listener(lines.append))
        return [line for line in lines if isinstance(line, Record)]

    return run


@pytest.fixture
def find_orders(ask: Ask) -> FindOrders:
    """``find_orders((subject, algorithm), ...)``: what was found, once all have an order."""

    def run(*asked: tuple[SumOrder, str], **options: object) -> list[OrderFindings]:
        records = ask(*asked, **options)
        assert [(r.status, r.note) for r in records] == [("ok", "")] * len(asked)
        found = [read_findings(record) for record in records]
        return [findings for findings in found if findings]

    return run
