"""Schedules and steps written as Chakra's traces."""

from __future__ import annotations

from pathlib import Path

from collbench.core.export import Writer
from collbench.core.schedule import Schedule
from collbench.features.traces import from_steps as steps
from collbench.features.traces.formats import chakra_writer as chakra_files
from collbench.features.training.step import Step


def write_schedule(schedule: Schedule, nbytes: int, folder: Path, name: str) -> str:
    """Writes a schedule's messages, a file a rank: what there is to say of it."""
    return chakra_files.write_ranks(folder, name, steps.of_schedule(schedule, nbytes).ranks)


def write_step(step: Step, folder: Path) -> str:
    """Writes a step's operations, a file a rank: what there is to say of it."""
    return chakra_files.write_ranks(folder, "step", steps.trace_of_step(step).ranks)


CHAKRA = Writer(write_schedule, write_step)
