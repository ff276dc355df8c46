"""Steps and schedules as traces, to be written in others' formats, and read beside them: each
rank's program as calls, its groups by their names.

A trace has no place for lanes; a step is replayed best as what it is (``collbench workload FILE``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from collbench.core.errors import UsageError
from collbench.features.traces.types import Call, RankTrace, Trace
from collbench.features.training import step_files as files
from collbench.features.training.step import WORLD, Op, Step

if TYPE_CHECKING:
    from collbench.core.export import Message
    from collbench.core.schedule import Schedule

MOST = 4_000_000  # calls of all ranks


def read_step_file(path: Path) -> Trace:
    """The step in a file, as a trace of all its ranks. Raises UsageError."""
    return trace_of_step(files.read_step(path))


def trace_of_step(step: Step) -> Trace:
    """A trace of the calls of each rank of a step. Raises UsageError where that is too much."""
    calls = sum(len(program.ranks) * len(program.ops) for program in step.programs)
    if calls > MOST:
        raise UsageError(
            f"{step.name}: {calls:,} operations of all ranks, more than {MOST:,}",
            "take fewer ranks, or use --layers and --slice",
        )
    ranks = {rank: program for program in step.programs for rank in program.ranks}
    return Trace(
        "step",
        tuple(
            RankTrace(
                rank=rank,
                world=step.world,
                calls=_list_calls(ranks[rank].ops) if rank in ranks else (),
                groups=_list_groups(step, rank),
                marked=((0, len(ranks[rank].ops) if rank in ranks else 0),),
                source=step.name,
            )
            for rank in range(step.world)
        ),
        step.assumptions,
    )


def of_schedule(schedule: Schedule, nbytes: int) -> Trace:
    """A trace of the messages of each rank of a schedule, for a collective of this size: messages
    that wait for those whose data they carry. Raises UsageError."""
    from collbench.core import export

    everyone = {WORLD: tuple(range(schedule.n))}
    title = f"{schedule.collective} {schedule.name}"
    return Trace(
        "schedule",
        tuple(
            RankTrace(
                rank=rank,
                world=schedule.n,
                calls=tuple(map(_message_call, messages)),
                groups=everyone,
                source=title,
            )
            for rank, messages in enumerate(export.list_messages(schedule, nbytes))
        ),
    )


def _message_call(message: Message) -> Call:
    """A message as a call; a copy within the rank takes no time."""
    if message.peer < 0:
        return Call("mark", after=tuple(message.needs))
    return Call(
        kind="send" if message.sends else "recv",
        nbytes=message.nbytes,
        dtype="uint8",
        peer=message.peer,
        tag=message.step,
        after=tuple(message.needs),
        phase=f"step {message.step}",
    )


def _list_groups(step: Step, rank: int) -> dict[str, tuple[int, ...]]:
    """The groups that a rank is in."""
    of_all = {WORLD: tuple(range(step.world))}
    return of_all | {
        name: group for name, family in step.groups.items() for group in family if rank in group
    }


def _list_calls(ops: tuple[Op, ...]) -> tuple[Call, ...]:
    """Operations as calls."""
    return tuple(
        Call(
            kind=op.kind,
            group=op.group,
            nbytes=op.nbytes,
            dtype=op.dtype,
            op=op.op,
            root=op.root,
            peer=op.peer,
            tag=op.tag,
            sends=op.sends,
            length_ns=op.compute_ns or -1,
            after=op.after,
            waits=op.wait == "call" and op.communicates,
            flops=op.flops,
            touched=op.touched,
            phase=op.phase,
            source=op.source,
        )
        for op in ops
    )
