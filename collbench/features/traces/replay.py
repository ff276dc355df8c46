"""A trace as a step that can be counted, run and predicted: one iteration of the job, with the
calls, the waits and the computing between them that its ranks had.

What a rank waited for others in the trace is no computing: it waits anew where it is replayed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.core.text import format_count, format_size, printable_text
from collbench.features.traces.formats.own import FORM
from collbench.features.traces.groups import Families, complete_programs, explain_unknown
from collbench.features.traces.iterations import take_iteration
from collbench.features.traces.matching import Uneven, join_calls
from collbench.features.traces.program import make_writer
from collbench.features.traces.types import FAKE_GPU, Lost, RankTrace, Trace
from collbench.features.training.operation_lines import MOST_OPS, Names
from collbench.features.training.step import LOCAL, Op, Program, Recorded, Step, refuse_step
from collbench.features.training.step_files import format_ranks

MOST_LOST = 0.01  # of bytes; of calls, where their bytes are unknown
MOST_TOLD = 5  # reasons for which calls are lost
GAPS = "keep, none, or x0.5 for half of each"


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a trace is taken: what becomes of the computing between calls (``gaps``), on which
    ``ranks``, which ``iteration``, what may be assumed of what the trace lacks, and how it is
    read."""

    gaps: str = "keep"
    ranks: str = ""
    iteration: str = ""
    assume_symmetric: bool = False
    assume_even: bool = False
    rebalance: Literal["", "mean"] = ""
    partial: bool = False
    from_ops: bool = False
    form: str = ""

    @property
    def factor(self) -> float:
        """What gaps are multiplied by. Raises UsageError."""
        match = re.fullmatch(r"x(\d{1,4}(?:\.\d{1,6})?|\.\d{1,6})", self.gaps)
        if self.gaps not in ("keep", "none") and not match:
            raise UsageError(f"--gaps {self.gaps[:40]}: that is no share of them", GAPS)
        return float(match[1]) if match else float(self.gaps == "keep")

    @property
    def words(self) -> str:
        """What of it makes another step, as the step's name has it."""
        fields = {"gaps": self.gaps} if self.gaps != "keep" else {}
        fields |= {"ranks": self.ranks, "iteration": self.iteration, "rebalance": self.rebalance}
        return "".join(f" {name}={said}" for name, said in fields.items() if said)


AS_IT_WAS = Asked()


def replay_files(paths: Sequence[Path], asked: Asked = AS_IT_WAS) -> Step:
    """The step that the trace in these files or folders holds. Raises UsageError."""
    from collbench.features.traces.formats import (
        recognise as reading,  # whose formats take time to load
    )

    asked.factor  # noqa: B018 refused before anything is read
    trace = reading.read_trace(paths, asked.form, from_ops=asked.from_ops)
    path = paths[0].resolve()
    return step_of(trace, asked, f"replay:{(path if len(paths) == 1 else path.parent).name}")


def step_of(trace: Trace, asked: Asked = AS_IT_WAS, name: str = "trace") -> Step:
    """The step that a trace holds. Raises UsageError where it lacks or contradicts what a step
    needs."""
    factor = asked.factor
    kept = _select_ranks(trace, asked.ranks)
    inside = {*kept}
    ranks = tuple(rank for rank in trace.ranks if rank.rank in inside)
    _refuse_cut(trace, ranks, asked.partial)
    lost, whole = _describe_lost(ranks, asked.partial)
    if not any(call.kind not in LOCAL for rank in ranks for call in rank.calls):
        raise UsageError(f"{name}: there is no operation between ranks in it", "another trace")
    _refuse_missing(trace, kept, asked.assume_symmetric)
    taken = take_iteration(replace(trace, ranks=ranks), asked.iteration)
    spans = taken.iteration.places
    joined = join_calls(ranks, spans, inside, Uneven(asked.assume_even, bool(asked.rebalance)))
    if not joined.calls:
        hint = "ranks that form whole groups, or another --iteration"
        raise UsageError(f"{name}{asked.words}: nothing is left of the trace", hint)
    families = Families(ranks, joined.calls)
    writers = [make_writer(rank, joined.calls, families, factor) for rank in ranks]
    written = [
        each.write(*span) for each, *span in zip(writers, spans, taken.iteration.times, strict=True)
    ]
    programs = dict(zip((rank.rank for rank in ranks), written, strict=True))
    untold = sum(each.untold for each in writers)
    assumptions = [*trace.assumptions, taken.words, *lost, *joined.assumptions]
    assumptions += [FAKE_GPU] * any(rank.fake for rank in ranks)
    assumptions += [f"{each.source} is cut at {each.cut}" for each in ranks if each.cut]
    assumptions += [f"{each.source} is not used: {each.why}" for each in trace.unread]
    assumptions += _describe_waits(written, sum(each.inferred for each in writers))
    assumptions += _describe_untold(untold, taken.recorded)
    if missing := sorted(inside - {*programs}):
        programs |= complete_programs(families, programs, missing)
        assumptions.append(
            f"ranks {format_ranks(missing)} are not in the trace: they do what the others do"
        )
    if sum(map(len, programs.values())) > MOST_OPS:
        raise UsageError(f"{name}: more than {MOST_OPS:,} operations", "--iteration, or --ranks")
    as_it_was = factor == 1 and len(kept) == trace.world and whole and not untold
    made = Step(
        name=f"{printable_text(name)}{asked.words}",
        world=len(kept),
        programs=_merge_programs(programs, kept),
        groups=families.on(kept),
        assumptions=tuple(assumptions),
        recorded=taken.recorded if as_it_was else None,
    )
    refuse_step(made)
    return made


def _select_ranks(trace: Trace, said: str) -> tuple[int, ...]:
    """The ranks that are replayed, in order. Raises UsageError."""
    worlds = {rank.world: rank.rank for rank in trace.ranks}
    if len(worlds) > 1:
        told = [f"rank {rank} of {world}" for world, rank in sorted(worlds.items())]
        raise UsageError(f"ranks of several jobs: {', '.join(told)}", "the trace of one job")
    if not said:
        return tuple(range(trace.world))
    kept = tuple(sorted(Names().ranks(said, "--ranks")))
    if kept[-1] >= trace.world:
        raise UsageError(
            f"--ranks {said[:40]}: there is no rank {kept[-1]}", f"0 to {trace.world - 1}"
        )
    return kept


def _refuse_cut(trace: Trace, ranks: Sequence[RankTrace], partial: bool) -> None:
    """Raises UsageError for a file that is cut, unless its part is asked for; recordings of
    collbench are written call by call, and lose what came later only."""
    cut = next((rank for rank in ranks if rank.cut), None)
    if cut and not partial and trace.form != FORM:
        raise UsageError(f"{cut.source} is cut at {cut.cut}", "--partial replays the rest")


def _refuse_missing(trace: Trace, kept: Sequence[int], assumed: bool) -> None:
    """Raises UsageError where ranks are missing and nobody says that they do as the others."""
    there = [rank.rank for rank in trace.ranks]
    missing = [rank for rank in kept if rank not in {*there}]
    if missing and not assumed:
        raise UsageError(
            f"of {format_count(trace.world, 'rank')} the trace lacks {format_ranks(missing)[:200]}",
            f"the files of all ranks, --ranks {format_ranks(there)[:200]} for what these do among"
            " themselves, or --assume-symmetric if all ranks do the same",
        )


def _describe_lost(ranks: Sequence[RankTrace], partial: bool) -> tuple[list[str], bool]:
    """What is left out, in words, and whether that is nothing. Raises UsageError where it is too
    much."""
    lost = [each for rank in ranks for each in rank.lost]
    nbytes, calls = 0, 0
    for rank in ranks:
        for at, call in enumerate(rank.calls):
            nbytes, calls = nbytes + call.nbytes, calls + (call.kind not in LOCAL)
            if why := explain_unknown(rank, call):
                where = call.source or f"rank {rank.rank}, call {at}"
                lost.append(Lost(f"{where}: {why}", 1, call.nbytes))
                nbytes, calls = nbytes - call.nbytes, calls - 1
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in lost:
        sums[each.why][0] += each.calls
        sums[each.why][1] += each.nbytes
    gone = sum(each.nbytes for each in lost)
    bare = sum(each.calls for each in lost if not each.nbytes)
    share = max(gone / max(1, gone + nbytes), bare / max(1, bare + calls))
    told = [
        f"left out: {printable_text(why)}"
        f" ({format_count(n, 'call')}{f', {format_size(b)}' if b else ''})"
        if n
        else printable_text(why)
        for why, (n, b) in sorted(sums.items(), key=lambda one: -one[1][1])
    ]
    if len(told) > MOST_TOLD:
        told[MOST_TOLD:] = [f"left out: {len(told) - MOST_TOLD} kinds of calls more"]
    if share > MOST_LOST and not partial:
        what = "calls" if bare / max(1, bare + calls) == share else "bytes"
        raise UsageError(
            f"{share:.1%} of the trace's {what} cannot be replayed: {'; '.join(told)}",
            "--partial replays the rest",
        )
    return told, not any(each.calls for each in lost)


def _describe_waits(written: Sequence[Sequence[Op]], inferred: int) -> list[str]:
    """What is taken for granted of operations that the trace has no wait for."""
    number = 0
    for ops in written:
        waits = {at: op.after for at, op in enumerate(ops) if op.kind == "wait"}
        waited = {each for after in waits.values() for each in after}
        last = max((at for at, after in waits.items() if not after), default=-1)
        number += sum(
            op.communicates and op.wait == "later" and at not in waited and at > last
            for at, op in enumerate(ops)
        )
    told = {
        "the trace has no wait for some operations: they are waited for where nothing else went on"
        " until they ended": inferred,
        "the trace has no wait for some operations: they are waited for at the step's end": number,
    }
    return [f"{words} ({format_count(n, 'call')})" for words, n in told.items() if n]


def _describe_untold(number: int, recorded: Recorded | None) -> list[str]:
    """That the trace does not tell all that was computed."""
    if number:
        what = format_count(number, "call")
        return [f"what was computed after {what} is left out: the trace has no time of their end"]
    return [] if recorded else ["the trace has no times of a whole iteration"]


def _merge_programs(
    programs: Mapping[int, Sequence[Op]], kept: Sequence[int]
) -> tuple[Program, ...]:
    """Programs by the new numbers of their ranks; of those that differ by their sources only, the
    first."""
    alike: dict[tuple[Op, ...], list[int]] = defaultdict(list)
    for number, rank in enumerate(kept):
        alike[tuple(replace(op, source="") for op in programs[rank])].append(number)
    return tuple(Program(tuple(of), tuple(programs[kept[of[0]]])) for of in alike.values())
