"""The closing lines of a run: the questions a person asks when it has ended, answered from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from collbench.formats import (
    FLAGS,
    Gathered,
    Outcome,
    axes,
    bandwidth,
    counted,
    duration,
    interval,
    plain,
    reasons,
    size,
    worded,
)
from collbench.inject import planted
from collbench.records import Record
from collbench.suite import Case

Line = tuple[Literal["", "bad", "notice", "quiet"], str]
SHOWN = 5  # of the cases that went wrong, this many are told in full


def clock(seconds: float) -> str:
    """1:05, or 2:00:00 from an hour up."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def summary(told: Gathered) -> list[Line]:
    """What went wrong, the best of each collective and mode, who came late, what the flags that occurred mean, what
    was left out and why, what was verified, and where it is kept. Each line with its weight; all text is plain."""
    lines: list[Line] = [("bad", planted(told.run.policy.inject))] if planted(told.run.policy.inject) else []
    lines += [*_trouble(told), *_best(told.outcomes), *_late(told), *_legend(told.outcomes)]
    lines += [("quiet", f"{number} skipped: {reason}") for reason, number in reasons(told.skips, told.arrived)]
    lines += _verified(told)
    if told.path is None:
        return [*lines, ("", "not saved")]
    return [*lines, ("", f"saved: {plain(str(told.path))} (collbench runs lists all)")]


def _trouble(told: Gathered) -> Iterable[Line]:
    for status, title in (("wrong", "WRONG DATA"), ("failed", "FAILED")):
        bad = [record for record, _ in told.outcomes if record.status == status]
        if bad:
            yield "bad", f"{title} in {len(bad)} of {counted(len(told.arrived), 'case')}"
            yield from (("bad", f"  {plain(_story(record))}") for record in bad[:SHOWN])
        if len(bad) > SHOWN:
            yield "bad", f"  … and {len(bad) - SHOWN} more"
    if told.ended and told.ended.exit and told.ended.note:
        yield (
            "bad",
            f"ended early, after {len(told.arrived)} of {counted(len(told.cases), 'case')}: {plain(told.ended.note)}",
        )


def _story(record: Record) -> str:
    case = record.case
    parts = [f"{size(case.size)}, {axes([case])[1]}, {case.mode}", record.note]
    if record.wrong:
        of = f" of {record.checked:,}" if record.checked else ""
        parts.append(f"{record.wrong:,}{of} elements wrong")
    if first := record.first_wrong:
        place = f"rank {first.rank}, element {first.index}" + (f" ({first.when})" if first.when else "")
        parts.append(f"first at {place}: got {first.got}, expected {first.expected}")
    return "; ".join(part for part in parts if part)


def _best(outcomes: Sequence[Outcome]) -> Iterable[Line]:
    good = [(record.case, row) for record, row in outcomes if row and record.status in ("ok", "predicted")]
    for mode, name in dict.fromkeys((case.mode, case.collective) for case, _ in good):
        mine = [(case, row) for case, row in good if (case.mode, case.collective) == (mode, name)]
        varying, _ = axes([case for case, _ in mine])
        case, row = min(mine, key=lambda pair: pair[1].median)
        words = f"{name}, {mode}: latency floor {duration(row.median)} {interval(row)} at {_point(case, varying)}"
        rates = [(row.busbw, case, row) for case, row in mine if row.busbw is not None]
        if rates:
            most, case, row = max(rates, key=lambda rate: rate[0])
            words += f"; peak busbw {bandwidth(most)} GB/s {interval(row)} at {_point(case, varying)}"
        yield "", plain(words)


def _point(case: Case, varying: Sequence[str]) -> str:
    values = worded(case)
    named = ", ".join(values[name] for name in varying if values[name])
    return size(case.size) + (f" ({named})" if named else "")


def _late(told: Gathered) -> Iterable[Line]:
    late = Counter((record.world, row.late_rank) for record, row in told.arrived if row and row.late_rank is not None)
    for (index, rank), times in late.most_common():
        world = told.worlds.get(index)
        host = next((info.host for info in world.ranks if info.rank == rank), "?") if world else "?"
        of = sum(record.world == index and rank in record.case.members for record, _ in told.arrived)
        group = f" of {world.n} ({world.backend})" if world and len(told.worlds) > 1 else ""
        yield "notice", f"slowest: rank {rank}{group} on {plain(host)} came late in {times} of {counted(of, 'case')}"


def _legend(outcomes: Sequence[Outcome]) -> Iterable[Line]:
    found = Counter(flag.split(":")[0].rstrip("!") for _, row in outcomes if row for flag in row.flags)
    for flag, number in found.most_common():
        yield "notice", f"{flag} ({number}): {FLAGS.get(flag, 'a flag that this version does not know')}"


def _verified(told: Gathered) -> Iterable[Line]:
    checked = sum(record.checked for record, _ in told.arrived)
    if checked and not any(record.wrong for record, _ in told.arrived):
        yield "", f"{checked:,} elements verified, none wrong"
    elif not checked and any(record.status == "ok" for record, _ in told.arrived):
        yield "notice", "data was not verified"
