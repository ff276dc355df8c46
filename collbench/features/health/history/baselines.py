"""Levels that were reviewed: files for a repository, which say who accepted what, when and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, UsageError
from collbench.features.health.history.gates import LEARNING, PAST
from collbench.features.health.history.nights import Night, Series
from collbench.features.health.history.ways import find_current
from collbench.machine import environment
from collbench.records import stats
from collbench.survive.encoding import encode_json

SCHEMA = 1


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row's median in nanoseconds over so many ``nights``."""

    median: Annotated[float, msgspec.Meta(gt=0)]
    nights: Annotated[int, msgspec.Meta(ge=1)]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Levels of a machine's rows, by their keys, since the night ``begins``. One that was
    ``accepted`` begins a new segment there; one that was learned is an anchor only. ``commit`` is
    what changed the level, where that is known. Raises ValueError for a night that is not written
    as nights are named, by which they are held against each other.
    """

    schema: int = SCHEMA
    machine: str
    begins: str
    accepted: bool
    reason: str
    commit: str
    who: str
    when: str
    rows: dict[str, Level]

    def __post_init__(self) -> None:
        if date.fromisoformat(self.begins).isoformat() != self.begins:
            raise ValueError(f"night {self.begins!r} is not written as 2026-03-01")


def learn_baseline(
    series: Sequence[Series], reason: str, commit: str, selection: str = ""
) -> Baseline:
    """A baseline of the last nights, for each row those of its last segment, of the way in which it
    was measured last. Raises UsageError where they are too few, whose hint has the ``selection`` of
    a book."""
    nights = {row.key: find_current(row).segments[-1].valid[-PAST:] for row in series if row.nights}
    enough = {key: values for key, values in nights.items() if len(values) >= LEARNING}
    if not enough:
        most = max(map(len, nights.values()), default=0)
        raise UsageError(
            f"no row has {LEARNING} valid nights, at most {most}",
            f"collbench history list{selection} shows why",
        )
    begins = min(values[0].day for values in enough.values())
    return _make_baseline(series, begins, False, reason, commit, enough)


def accept_baseline(
    series: Sequence[Series], begins: str, reason: str, commit: str, selection: str = ""
) -> Baseline:
    """The level that rows have since the night ``begins``. Raises UsageError where none has a valid
    night since, whose hint has the ``selection`` of a book."""
    nights = {
        row.key: [
            night for night in find_current(row).nights if night.day >= begins and night.valid
        ]
        for row in series
        if row.nights
    }
    since = {key: values for key, values in nights.items() if values}
    if not since:
        raise UsageError(
            f"no row has a valid night since {begins}",
            f"collbench history list{selection} shows why",
        )
    return _make_baseline(series, begins, True, reason, commit, since)


def _make_baseline(
    series: Sequence[Series],
    begins: str,
    is_accepted: bool,
    reason: str,
    commit: str,
    nights: dict[str, list[Night]],
) -> Baseline:
    rows = {
        key: Level(math.exp(stats.median([night.value for night in values])), len(values))
        for key, values in nights.items()
    }
    return Baseline(
        machine=series[0].machine,
        begins=begins,
        accepted=is_accepted,
        reason=reason,
        commit=commit,
        who=environment.user_name(),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=dict(sorted(rows.items())),
    )


def render_baseline(baseline: Baseline) -> str:
    """The text of a file for a repository: a line a field, so that differences can be read."""
    return msgspec.json.format(encode_json(baseline), indent=2).decode() + "\n"


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError for what is no baseline, or one without a reason, and CannotRun for what
    cannot be read."""
    try:
        baseline = msgspec.json.decode(files.read_bytes(path, 16 << 20), type=Baseline)
    except OSError as e:
        raise CannotRun(
            f"cannot read {path}: {e.strerror}",
            "give a file that collbench history baseline learn wrote",
        ) from e
    except (ValueError, msgspec.DecodeError, RecursionError) as e:
        raise UsageError(
            f"{path}: {e}", "give a baseline; this is none, or one of another version"
        ) from e
    if not baseline.reason.strip() or baseline.schema != SCHEMA:
        what = (
            "no reason" if baseline.schema == SCHEMA else f"schema {baseline.schema}, not {SCHEMA}"
        )
        raise UsageError(
            f"{path} has {what}", "give a file that collbench history baseline learn wrote"
        )
    return baseline
