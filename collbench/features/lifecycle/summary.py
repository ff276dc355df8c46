"""Lives and losses of a run over its launches. A launch counts once, whatever was lived in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_size
from collbench.features.lifecycle import KIND, LOSS_KIND, rows
from collbench.features.lifecycle.findings import LossFindings, PhaseFindings
from collbench.features.lifecycle.request import SILENT, Life, Loss
from collbench.records import paired
from collbench.records.flags import EXCLUDED
from collbench.records.origins import is_fake
from collbench.records.rows import Row, make_rows
from collbench.records.stats import median
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case, Setting


class Spread(NamedTuple):
    """What launches took, in ns: the median, and its 95 % interval, infinite of one launch."""

    median: float
    lo: float
    hi: float
    launches: int


class PhaseTime(NamedTuple):
    """A phase over the launches of a run. ``of`` says of which call or how many groups; memory is
    of the rank that took most, a median over launches, None where it is not known."""

    backend: str
    ranks: int
    env: Setting
    phase: str
    of: str
    time: Spread
    resident: float | None
    device: float | None
    parts: dict[str, float]


class LossSummary(NamedTuple):
    """All losses of one way. ``known`` and ``recovered`` are of those that ended well; ``how``
    counts ranks by how they came to know; ``failures`` are the named ones."""

    backend: str
    ranks: int
    env: Setting
    loss: Loss
    kills: int
    recovered: int
    known: Spread | None
    back: Spread | None
    how: dict[str, int]
    doing: dict[str, int]
    failures: list[str]


class LifeSummary(NamedTuple):
    """All that a run has of lives and losses; ``left_out`` are the reasons of what it has not."""

    phases: list[PhaseTime]
    losses: list[LossSummary]
    failures: list[str]
    left_out: list[str]

    @property
    def is_empty(self) -> bool:
        """Whether the run is about something else."""
        return not (self.phases or self.losses or self.failures or self.left_out)

    @property
    def has_time(self) -> bool:
        """Whether any phase or loss was timed."""
        return bool(self.phases) or any(loss.known or loss.back for loss in self.losses)


def summarize_lives(file: RunFile) -> LifeSummary:
    """The lives and losses of a run."""
    find = file.run.suite.subject_finder
    lives: list[tuple[Row, Life]] = []
    losses: list[tuple[Record, Loss]] = []
    for row in make_rows([file], KIND):
        if isinstance(subject := find(row.case), Life):
            lives.append((row, subject))
    for record in file.records:
        if record.case.kind == LOSS_KIND and isinstance(subject := find(record.case), Loss):
            losses.append((record, subject))
    records = [cycle.record for row, _ in lives for cycle in row.cycles]
    left_out = [
        record.note
        for record in records + [record for record, _ in losses]
        if record.status == "skipped"
    ]
    failures = [record.note for record in records if record.status in ("failed", "wrong")]
    excluded = [flag for row, _ in lives for flag in row.unfit if flag in EXCLUDED]
    left_out += [f"{count:,} rows {EXCLUDED[flag]}" for flag, count in Counter(excluded).items()]
    return LifeSummary(
        _summarize_phases(lives),
        _summarize_losses(losses, is_fake(file)),
        list(dict.fromkeys(failures)),
        list(dict.fromkeys(left_out)),
    )


def find_silence(records: Iterable[Record], silent: str) -> str:
    """The first failure of a run that must not pass unseen: a rank that hung, or a loss of which
    the others did not come back; else empty."""
    for record in records:
        lost = record.case.collective in rows.LOSS_TABLE.rows
        if record.status == "failed" and (lost or record.note.startswith(silent)):
            return record.note
    return ""


def judge_lives(file: RunFile) -> Exit:
    """WRONG_DATA where data of a life or a loss were wrong, TIMEOUT where something was silent or
    did not come back, NO_VERDICT where nothing has a time."""
    names = {*rows.TABLE.rows, *rows.LOSS_TABLE.rows}
    if any(r.status == "wrong" and r.case.collective in names for r in file.records):
        return Exit.WRONG_DATA
    if find_silence(file.records, SILENT):
        return Exit.TIMEOUT
    return Exit.OK if summarize_lives(file).has_time else Exit.NO_VERDICT


def spread_launches(times: Sequence[float]) -> Spread:
    """The median over launches, with its interval."""
    return Spread(*paired.bound_launches(times), len(times))


def _describe_part(phase: str, life: Life) -> str:
    """Of what the phase is in this life: a call or a number of groups; else empty."""
    if phase in (rows.FIRST, rows.NTH):
        return f"{life.collective} of {format_size(life.nbytes)}"
    return str(life.groups) if phase == rows.GROUPS else ""


def _summarize_phases(lives: Sequence[tuple[Row, Life]]) -> list[PhaseTime]:
    """Phases in the order of a life, those of one thing pooled over the lives of a launch."""
    found: dict[tuple[str, int, Setting, str, str], list[Row]] = {}
    for phase in rows.PHASES:
        for row, life in lives:
            if row.case.collective == phase and not row.unfit:
                part = _describe_part(phase, life)
                key = row.case.backend, row.case.n, row.case.env, phase, part
                found.setdefault(key, []).append(row)
    ordered = sorted(found.items(), key=lambda item: item[0][:3])
    return [_summarize_phase(key, of_phase) for key, of_phase in ordered]


def _summarize_phase(key: tuple[str, int, Setting, str, str], of_phase: Sequence[Row]) -> PhaseTime:
    by_launch: dict[object, list[float]] = {}
    found: list[PhaseFindings] = []
    for row in of_phase:
        for cycle in row.fit:
            # where a launcher's ranks stay, each life of theirs is still of new processes
            place = (row.launch, cycle.record.case.cycle)
            by_launch.setdefault(place, []).append(cycle.record.times_ns[0])
            found.append(msgspec.convert(cycle.record.findings, PhaseFindings))
    resident = [max(one.resident) for one in found if one.resident]
    device = [max(one.device) for one in found if one.device]
    names = dict.fromkeys(name for one in found for name in one.parts_ns)
    parts = {name: median([one.parts_ns[name] for one in found]) for name in names}
    return PhaseTime(
        *key,
        spread_launches([median(times) for times in by_launch.values()]),
        median(resident) if resident else None,
        median(device) if device else None,
        parts,
    )


def _summarize_losses(
    losses: Sequence[tuple[Record, Loss]], has_no_times: bool
) -> list[LossSummary]:
    found: dict[tuple[str, int, Setting, Loss], list[Record]] = {}
    for record, loss in losses:
        if record.status != "skipped":
            case = record.case
            found.setdefault((case.backend, case.n, case.env, loss), []).append(record)
    summaries = [_summarize_loss(key, records) for key, records in found.items()]
    if not has_no_times:
        return summaries
    return [summary._replace(known=None, back=None) for summary in summaries]


def _list_findings(known: Sequence[Record], back: Sequence[Record]) -> list[LossFindings]:
    """The findings of each kill, however it ended, once: both of its records have them, but one
    that failed in files of earlier versions."""
    by_kill: dict[Case, LossFindings] = {}
    for record in (*known, *back):
        if record.findings:
            kill = msgspec.structs.replace(record.case, collective=rows.KNOWN)
            by_kill.setdefault(kill, msgspec.convert(record.findings, LossFindings))
    return list(by_kill.values())


def _summarize_loss(key: tuple[str, int, Setting, Loss], records: Sequence[Record]) -> LossSummary:
    known = [record for record in records if record.case.collective == rows.KNOWN]
    back = [record for record in records if record.case.collective == rows.RECOVERED]
    timed = [[float(r.times_ns[0]) for r in some if r.status == "ok"] for some in (known, back)]
    how: dict[str, int] = {}
    doing: dict[str, int] = {}
    for found in _list_findings(known, back):
        doing[found.doing] = doing.get(found.doing, 0) + 1
        for rank in found.ranks:
            how[rank.how or "never"] = how.get(rank.how or "never", 0) + 1
    failures = [record.note for record in back if record.status in ("failed", "wrong")]
    return LossSummary(
        *key,
        len(back),
        len(timed[1]),
        spread_launches(timed[0]) if timed[0] else None,
        spread_launches(timed[1]) if timed[1] else None,
        how,
        doing,
        failures,
    )
