"""Steps of training on real ranks of a launcher."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.features.training.step import Step
from collbench.records.types import Record, World
from collbench.run.jobs import Job, Plan
from collbench.run.launch.local import Launcher
from collbench.run.launch.world import Listener
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite


def play_steps(
    launcher: Launcher,
    steps: Sequence[Step],
    backend: str = "gloo",
    algorithm: str = "native",
    **policy: object,
) -> list[Record]:
    """The records of the parts of steps, one after the other in one world."""
    given = {"iters": 2, "warmup": 1, "timeout": 60.0, "sync": "barrier", **policy}
    settings = Policy(**given)  # type: ignore[arg-type]
    (n,) = {step.world for step in steps}
    axes = Axes(collectives=(), sizes=(), ranks=(n,), backends=(backend,), algorithms=(algorithm,))
    jobs = []
    for step in steps:
        cases, _ = Suite(name="", axes=axes, subjects=(step,)).expand()
        jobs.append(Job(cases[0], 1, "", subject=step))
    plan = Plan(0, backend, n, (), settings, jobs, settings.timeout or 60.0)
    lines: list[World | Record] = []
    launcher.run([plan], Listener(lines.append))
    return [line for line in lines if isinstance(line, Record)]
