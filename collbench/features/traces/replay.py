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
from collbench.features.traces.types import EARLIER, FAKE_GPU, HOST, Lost, RankTrace, Trace
from collbench.features.training.operation_lines import MOST_OPS, Names
from collbench.features.training.step import LOCAL, Op, Program, Recorded, Step, refuse_step
from collbench.features.training.step_files import format_ranks

MOST_LOST = 0.01  # of bytes; of calls, where their bytes are unknown
MOST_TOLD = 5  # reasons for which calls are lost
LAUNCHES = (
    "computation between calls has the host's times: where a GPU computes, those of launching it"
    " (a trace of torch.profiler has the GPU's)"
)
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
        """The factor for gaps. Raises UsageError."""
        match = re.fullmatch(r"x(\d{1,4}(?:\.\d{1,6})?|\.\d{1,6})", self.gaps)
        if self.gaps not in ("keep", "none") and not match:
            raise UsageError(
                f"--gaps {self.gaps[:40]}: this is not a way to replay gaps", f"use {GAPS}"
            )
        return float(match[1]) if match else float(self.gaps == "keep")

    @property
    def description(self) -> str:
        """The part of the step's name that says what makes it another step."""
        fields = {"gaps": self.gaps} if self.gaps != "keep" else {}
        fields |= {"ranks": self.ranks, "iteration": self.iteration, "rebalance": self.rebalance}
        return "".join(f" {name}={value}" for name, value in fields.items() if value)


AS_IT_WAS = Asked()


def replay_files(paths: Sequence[Path], request: Asked = AS_IT_WAS) -> Step:
    """The step that the trace in these files or folders holds. Raises UsageError."""
    from collbench.features.traces.formats import (
        recognise as reading,  # whose formats take time to load
    )

    request.factor  # noqa: B018 refused before anything is read
    trace = reading.read_trace(paths, request.form, from_ops=request.from_ops)
    path = paths[0].resolve()
    return step_of(trace, request, f"replay:{(path if len(paths) == 1 else path.parent).name}")


def step_of(trace: Trace, request: Asked = AS_IT_WAS, name: str = "trace") -> Step:
    """The step that a trace holds. Raises UsageError where it lacks or contradicts what a step
    needs."""
    factor = request.factor
    selected = _select_ranks(trace, request.ranks)
    inside = {*selected}
    ranks = tuple(rank for rank in trace.ranks if rank.rank in inside)
    _refuse_cut(trace, ranks, request.partial)
    if not any(call.kind not in LOCAL for rank in ranks for call in rank.calls):
        raise UsageError(
            f"{name}: it has no operation between ranks", "give a trace of ranks that communicate"
        )
    _refuse_missing(trace, selected, request.assume_symmetric)
    choice = take_iteration(replace(trace, ranks=ranks), request.iteration)
    lost, is_complete = _describe_lost(ranks, request.partial, choice.is_whole)
    spans = choice.iteration.places
    matches = join_calls(ranks, spans, inside, Uneven(request.assume_even, bool(request.rebalance)))
    if not matches.calls:
        hint = "choose --ranks that form whole groups, or another --iteration"
        raise UsageError(f"{name}{request.description}: nothing is left of the trace", hint)
    families = Families(ranks, matches.calls)
    writers = [make_writer(rank, matches.calls, families, factor) for rank in ranks]
    written = [
        writer.write(*span)
        for writer, *span in zip(writers, spans, choice.iteration.times, strict=True)
    ]
    programs = dict(zip((rank.rank for rank in ranks), written, strict=True))
    untold = sum(writer.untold for writer in writers)
    assumptions = [*trace.assumptions, choice.description, *lost, *matches.assumptions]
    assumptions += [FAKE_GPU] * any(rank.fake for rank in ranks)
    assumptions += [f"{rank.source} is cut at {rank.cut}" for rank in ranks if rank.cut]
    assumptions += [f"{unread.source} is not used: {unread.why}" for unread in trace.unread]
    assumptions += _describe_waits(written, sum(writer.inferred for writer in writers))
    assumptions += _describe_untold(untold, choice.recorded)
    by_host = any(rank.backend and rank.backend not in HOST and not rank.busy for rank in ranks)
    assumptions += [LAUNCHES] * (by_host and factor > 0)
    if missing := sorted(inside - {*programs}):
        programs |= complete_programs(families, programs, missing)
        assumptions.append(
            f"ranks {format_ranks(missing)} are not in the trace: they do what the others do"
        )
    if sum(map(len, programs.values())) > MOST_OPS:
        raise UsageError(
            f"{name}: more than {MOST_OPS:,} operations", "choose some with --iteration or --ranks"
        )
    as_it_was = (
        factor == 1 and len(selected) == trace.world and is_complete and not (untold or by_host)
    )
    step = Step(
        name=f"{printable_text(name)}{request.description}",
        world=len(selected),
        programs=_merge_programs(programs, selected),
        groups=families.on(selected),
        assumptions=tuple(assumptions),
        recorded=choice.recorded if as_it_was else None,
    )
    refuse_step(step)
    return step


def _select_ranks(trace: Trace, selection: str) -> tuple[int, ...]:
    """The ranks that are replayed, in order. Raises UsageError."""
    worlds = {rank.world: rank.rank for rank in trace.ranks}
    if len(worlds) > 1:
        worlds_text = [f"rank {rank} of {world}" for world, rank in sorted(worlds.items())]
        raise UsageError(
            f"ranks of several jobs: {', '.join(worlds_text)}", "give the trace of one job"
        )
    if not selection:
        return tuple(range(trace.world))
    selected = tuple(sorted(Names().ranks(selection, "--ranks")))
    if selected[-1] >= trace.world:
        raise UsageError(
            f"--ranks {selection[:40]}: there is no rank {selected[-1]}",
            f"choose from 0 to {trace.world - 1}",
        )
    return selected


def _refuse_cut(trace: Trace, ranks: Sequence[RankTrace], partial: bool) -> None:
    """Raises UsageError for a file that is cut, unless its part is asked for; recordings of
    collbench are written call by call, and lose what came later only."""
    cut = next((rank for rank in ranks if rank.cut), None)
    if cut and not partial and trace.form != FORM:
        raise UsageError(f"{cut.source} is cut at {cut.cut}", "add --partial to replay the rest")


def _refuse_missing(trace: Trace, selected: Sequence[int], assumed: bool) -> None:
    """Raises UsageError where ranks are missing and nobody says that they do as the others."""
    present = [rank.rank for rank in trace.ranks]
    missing = [rank for rank in selected if rank not in {*present}]
    if missing and not assumed:
        raise UsageError(
            f"of {format_count(trace.world, 'rank')} the trace lacks {format_ranks(missing)[:200]}",
            f"give the files of all ranks, --ranks {format_ranks(present)[:200]} for what these do"
            " among themselves, or --assume-symmetric if all ranks do the same",
        )


def _describe_lost(
    ranks: Sequence[RankTrace], partial: bool, is_whole: bool
) -> tuple[list[str], bool]:
    """What is left out, in words, and whether that is nothing. Raises UsageError where it is too
    much; calls before all others count where the trace is taken as a whole."""
    lost = [loss for rank in ranks for loss in rank.lost]
    nbytes, calls = 0, 0
    for rank in ranks:
        for at, call in enumerate(rank.calls):
            nbytes, calls = nbytes + call.nbytes, calls + (call.kind not in LOCAL)
            if why := explain_unknown(rank, call):
                where = call.source or f"rank {rank.rank}, call {at}"
                lost.append(Lost(f"{where}: {why}", 1, call.nbytes))
                nbytes, calls = nbytes - call.nbytes, calls - 1
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for loss in lost:
        sums[loss.why][0] += loss.calls
        sums[loss.why][1] += loss.nbytes
    gone = sum(loss.nbytes for loss in lost)
    bare = sum(
        loss.calls for loss in lost if not loss.nbytes and (is_whole or loss.why not in EARLIER)
    )
    share = max(gone / max(1, gone + nbytes), bare / max(1, bare + calls))
    sentences = [
        f"left out: {printable_text(why)}"
        f" ({format_count(n, 'call')}{f', {format_size(b)}' if b else ''})"
        if n
        else printable_text(why)
        for why, (n, b) in sorted(sums.items(), key=lambda entry: -entry[1][1])
    ]
    if len(sentences) > MOST_TOLD:
        sentences[MOST_TOLD:] = [f"left out: {len(sentences) - MOST_TOLD} kinds of calls more"]
    if share > MOST_LOST and not partial:
        what = "calls" if bare / max(1, bare + calls) == share else "bytes"
        raise UsageError(
            f"{share:.1%} of the trace's {what} cannot be replayed: {'; '.join(sentences)}",
            "add --partial to replay the rest",
        )
    return sentences, not any(loss.calls for loss in lost)


def _describe_waits(written: Sequence[Sequence[Op]], inferred: int) -> list[str]:
    """A sentence, in a list, on operations that the trace has no wait for, and the waits assumed
    for them; empty without any."""
    number = sum(map(_count_unwaited, written))
    by_assumption = {
        "the trace has no wait for some operations: they are waited for where nothing else went on"
        " until they ended": inferred,
        "the trace has no wait for some operations: they are waited for at the step's end, and"
        " where ranks waited before it they compute": number,
    }
    return [
        f"{assumption} ({format_count(n, 'call')})" for assumption, n in by_assumption.items() if n
    ]


def _count_unwaited(ops: Sequence[Op]) -> int:
    """The number of operations that no wait covers: their own, one for all, or that of a later
    operation of their lane. Any ``after`` counts as one."""
    number, waited = 0, {call for op in ops for call in op.after}
    lanes: set[tuple[str, str]] = set()  # of which a later one is waited for
    for at, op in reversed([*enumerate(ops)]):
        if op.kind == "wait" and not op.after:
            break
        if op.communicates and (op.wait == "call" or at in waited):
            lanes.add((op.group, op.lane))
        number += op.communicates and (op.group, op.lane) not in lanes
    return number


def _describe_untold(number: int, recorded: Recorded | None) -> list[str]:
    """A sentence, in a list, that the trace does not tell all that was computed; empty where it
    does."""
    if number:
        what = format_count(number, "call")
        return [f"what was computed after {what} is left out: the trace has no time of their end"]
    return [] if recorded else ["the trace has no times of a whole iteration"]


def _merge_programs(
    programs: Mapping[int, Sequence[Op]], selected: Sequence[int]
) -> tuple[Program, ...]:
    """Programs by the new numbers of their ranks; of those that differ by their sources only, the
    first."""
    by_program: dict[tuple[Op, ...], list[int]] = defaultdict(list)
    for number, rank in enumerate(selected):
        by_program[tuple(replace(op, source="") for op in programs[rank])].append(number)
    return tuple(
        Program(tuple(ranks), tuple(programs[selected[ranks[0]]])) for ranks in by_program.values()
    )
