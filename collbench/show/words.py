"""Words that views share: a case on its axes, its line in a table, the meaning of flags, shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from collbench.core.text import (
    format_bandwidth,
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.records.derive import Derived
from collbench.records.flags import BIMODAL, WIRE, is_without_interval
from collbench.records.origins import FAKE, ORIGINS
from collbench.records.path_proof import prove_path
from collbench.records.time_summary import TimeSummary
from collbench.records.traffic import is_silent
from collbench.records.types import Record, Run, World
from collbench.run.reporter import Outcome
from collbench.show.flags import name_flags
from collbench.suite.case import KEYS, MODES, Case, Skip
from collbench.suite.faults import describe_planted

AXES = (
    "collective",
    "workload",
    "ranks",
    "groups",
    "group",
    "env",
    "implementation",
    "type",
    "op",
    "root",
    "splits",
    "background",
    "arrival",
    "cycle",
    "place",
)

OPTIONAL = (
    "device",
    "host",
    "isolated",
    "as called",
    "aligned",
    "absorbed",
    "wirebw",
    "wire",
    "ran",
)  # columns of tables for people, where a line has something to say

PLACES = {"out": "out of place", "in": "in place"}

OWN = ("status", "note", "wrong", "checked", "rotation", "cache", "sync", "call_path_ns")

DERIVED = (  # fields of Derived, its TimeSummary and its Modes
    *(name for name in TimeSummary.__struct_fields__ if name not in ("severe_outliers", "modes")),
    *("t_glob", "skew", "overhead", "algbw", "busbw", "severe_outliers", "late_rank", "modes"),
    *("flags", "gateable", "lateness", "host", "device", "chose", "wirebw", "clock_error"),
    *("slow_rank", "control", "sensitive", "absorbed", "mode_share", "in_stretches", "wire"),
    *("carried", "moves", "late_share"),
)

COLUMNS = (
    *KEYS,
    "implementation",
    "count",
    "size",
    "order",
    *OWN,
    *DERIVED,
)

MODAL = 3  # of the rows with two modes, this many are told in full


def list_caveats(run: Run, worlds: Iterable[World]) -> list[str]:
    """Sentences that every output of a run has before all else: that faults were planted, or that
    GPUs were fake."""
    fake = any(world.fake for world in worlds)
    about = f"FAKE: {ORIGINS[FAKE].reason}, whose times mean nothing (flag {FAKE})"
    return [*filter(None, [describe_planted(run.policy.inject)]), *[about] * fake]


def two_modes(rows: Iterable[tuple[Case, Derived, int]]) -> list[str]:
    """Sentences (see modal) on the bimodal rows whose modes lie farthest apart, and how many there
    are beside; with each row how many calls made a sample."""
    bimodal = [row for row in rows if row[1].times.modes and BIMODAL in row[1].flags]
    bimodal.sort(key=lambda row: -_ratio_of_modes(row[1]))
    varying = split_axes([case for case, _, _ in bimodal])[0] if bimodal else []
    lines = []
    for case, row, inner in bimodal[:MODAL]:
        axis_words = word_axes(case)
        details = [
            axis_words[name] for name in varying if name != "collective" and axis_words[name]
        ]
        what = f"{format_size(case.size)} {case.collective}" if case.size else case.collective
        lines.append(plain_line(f"{', '.join([what, *details])}: {describe_modes(row, inner)}"))
    more = len(bimodal) - MODAL
    return lines + ([f"… and {format_count(more, 'more row')} with two modes"] if more > 0 else [])


def _ratio_of_modes(row: Derived) -> float:
    first, second = row.times.modes.times if row.times.modes else (1.0, 0.0)
    return second / first


def describe_modes(row: Derived, inner: int) -> str:
    """How calls divide between two modes."""
    modes = row.times.modes
    assert modes
    first, (low, high) = modes.share, map(format_duration, modes.times)
    calls = "calls" if inner == 1 else f"samples of {inner} calls"
    how = ", in stretches" if modes.in_stretches else ""
    return f"two speeds: {low} ({first:.0%} of {calls}) and {high} ({1 - first:.0%}){how}"


def flatten_record(record: Record, row: Derived | None, order: int | None = None) -> dict[str, Any]:
    """A record under the names of COLUMNS, the one measured after ``order`` others; derived values
    are None where nothing is known."""
    case = record.case
    derived = _derived_values(row) if row else {}
    unknown = [
        name for name, value in derived.items() if isinstance(value, float) and math.isnan(value)
    ]
    values = dict.fromkeys(COLUMNS) | case.values_by_key | derived | dict.fromkeys(unknown)
    own_values = {name: getattr(record, name) for name in OWN}
    derived_names = {"implementation": case.label, "count": case.count, "size": case.size}
    return values | own_values | derived_names | {"order": order}


def _derived_values(row: Derived) -> dict[str, Any]:
    """What is derived of a record, by DERIVED."""
    times, modes = row.times, row.times.modes
    values = msgspec.structs.asdict(times) | msgspec.structs.asdict(row)
    values |= {
        "modes": modes and modes.times,
        "mode_share": modes and modes.share,
        "in_stretches": modes and modes.in_stretches,
    }
    return {name: values[name] for name in DERIVED}


CONTROLS = {"isolated": "as called", "host": "aligned"}  # the column of the other cadence, by mode


def reserved_columns(outcomes: Iterable[Outcome]) -> set[str]:
    """The columns that a table keeps for what later rows may say: it does not move while it
    grows."""
    return {
        CONTROLS[record.case.mode]
        for record, row in outcomes
        if row and row.control is not None and record.case.mode in CONTROLS
    }


def choose_columns(
    lines: Sequence[Mapping[str, str]], varying: Sequence[str], required: Collection[str] = ()
) -> list[str]:
    """Names of the columns that a table of ``lines`` (see cells) has, where cases differ along the
    axes ``varying``. The ``required`` ones are always among them."""
    idle = {
        name for name in OPTIONAL if name not in required and not any(line[name] for line in lines)
    }
    idle |= set(AXES) - set(varying)
    return [name for name in lines[0] if name not in idle]


def by_mode(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Outcomes by mode: modes measure different things, and no table mixes them."""
    chosen = [
        (mode, [o for o in outcomes if o[0].case.mode == mode and o[0].status != "skipped"])
        for mode in MODES
    ]
    return [(mode, members) for mode, members in chosen if members]


def split_axes(cases: Sequence[Case]) -> tuple[list[str], str]:
    """Names of the axes along which ``cases`` differ, and what they have in common, in words."""
    values = [axis_values(case) for case in cases]
    varying = [name for name in AXES if len({v[name] for v in values}) > 1]
    constant_words = word_axes(cases[0])
    return varying, ", ".join(
        constant_words[name] for name in AXES if name not in varying and constant_words[name]
    )


def split_modes(cases: Sequence[Case]) -> dict[str, tuple[list[str], str]]:
    """The axes of the cases of each mode, as ``split_axes`` has them."""
    modes = dict.fromkeys(case.mode for case in cases)
    return {mode: split_axes([case for case in cases if case.mode == mode]) for mode in modes}


def word_axes(case: Case) -> dict[str, str]:
    """Values of ``axis_values`` in words that name their axis; none for the cycle."""
    root = f"root {case.root}" if case.root >= 0 else ""
    values = {"ranks": format_count(case.n, "rank"), "root": root, "cycle": ""}
    values |= {} if case.subject else {"place": PLACES["in" if case.in_place else "out"]}
    if case.groups:
        values |= {
            "groups": f"{format_count(case.of, 'group')} by {case.groups}",
            "group": f"group {case.group}",
        }
    return axis_values(case) | values


def axis_values(case: Case) -> dict[str, str]:
    """Where ``case`` stands on each of AXES."""
    return {
        "collective": case.collective,
        "workload": case.subject,
        "ranks": str(case.n),
        "groups": case.groups,
        "group": str(case.group) if case.groups else "",
        "env": format_settings(case.env),
        "implementation": case.label.removesuffix("@"),  # where backends are what sides differ in
        "type": "" if case.subject else case.dtype,
        "op": "" if case.op == "none" else case.op,
        "root": "" if case.root < 0 else str(case.root),
        "splits": case.splits,
        "background": case.background,
        "arrival": case.arrival,
        "cycle": str(case.cycle + 1),
        "place": "" if case.subject else "in" if case.in_place else "out",
    }


def format_cells(record: Record, row: Derived | None) -> dict[str, str]:
    """A line of a table for people, by column. Times of wrong data are not shown: they measure
    something else."""
    note = (
        [f"{record.status}: {plain_line(record.note)}"]
        if record.status in ("failed", "wrong") and record.note
        else []
    )
    flags = name_flags(row) if row else []
    shown_row = row if record.status != "wrong" else None
    axis_texts, more = axis_values(record.case), format_optional(shown_row, record.case.mode)
    exact = shown_row is not None and is_without_interval(shown_row)
    unknown = (
        shown_row.clock_error
        if shown_row and shown_row.skew is not None and shown_row.skew < shown_row.clock_error
        else 0
    )
    return {
        **{name: axis_texts[name] for name in AXES[:-1]},
        "size": format_size(record.case.size),
        "place": axis_texts["place"],
        "median": format_duration(shown_row.times.median) if shown_row else "-",
        "±": format_interval(shown_row.half_width) if shown_row and not exact else "-",
        "device": more["device"],
        "host": more["host"],
        "isolated": more["isolated"],
        "as called": more["as called"],
        "aligned": more["aligned"],
        "absorbed": more["absorbed"],
        "tail": format_tail(shown_row) if shown_row else "-",
        "N": str(shown_row.times.samples or "-") if shown_row else "-",
        "min": format_duration(shown_row.times.min) if shown_row else "-",
        "algbw": format_bandwidth(shown_row.algbw) if shown_row else "-",
        "busbw": format_bandwidth(shown_row.busbw) if shown_row else "-",
        "wirebw": more["wirebw"],
        "wire": more["wire"],
        "skew": (unknown and f"<{format_duration(unknown)}") or format_duration(shown_row.skew)
        if shown_row
        else "-",
        "wrong": "-" if record.wrong is None else str(record.wrong),
        "ran": more["ran"],
        "flags": " ".join([*note, *flags]) or ("" if row else record.status),
    }


def read_optional(row: Derived, mode: str) -> dict[str, Any]:
    """What a row has for OPTIONAL columns; ``host`` and ``device`` are times by the clock that the
    median does not use."""
    values: dict[str, Any] = {}
    for name, time in (("device", row.device), ("host", row.host)):
        if time is not None and time != row.times.median:
            values[name] = time
    if row.control is not None and mode == "streaming":
        values["isolated"] = row.control
    if row.sensitive:
        values[CONTROLS.get(mode, "aligned")] = row.control
    if row.absorbed is not None:
        values["absorbed"] = row.absorbed
    if row.wirebw is not None:
        values["wirebw"] = row.wirebw
    if row.wire is not None and not is_silent(row.wire):
        values["wire"] = row.wire
    if chose := plain_line(row.chose):
        values["ran"] = chose
    return values


OPTIONAL_FORMATS: dict[str, Callable[[Any], str]] = {
    "absorbed": "{:.0%}".format,
    "wirebw": format_bandwidth,
    "wire": "{:.2f}".format,
    "ran": str,
}


def format_optional(row: Derived | None, mode: str) -> dict[str, str]:
    """Cells of OPTIONAL columns, empty where a row has no such value (``read_optional``)."""
    values = read_optional(row, mode) if row else {}
    texts = {
        name: OPTIONAL_FORMATS.get(name, format_duration)(value) for name, value in values.items()
    }
    return dict.fromkeys(OPTIONAL, "") | texts


def list_movements(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each collective and implementation that sends more bytes than its table has, with
    the reason at its last size."""
    moves_of = {
        (record.case.collective, record.case.label, record.case.n): plain_line(row.moves)
        for record, row in outcomes
        if row and WIRE in row.flags
    }
    return [
        f"{label}, {format_count(n, 'rank')}: {moves}" for (_, label, n), moves in moves_of.items()
    ]


MAX_NOTES = 8


def count_notes(outcomes: Iterable[Outcome]) -> list[str]:
    """Notes of cases that went well, each once, most frequent first, and in how many cases; at most
    MAX_NOTES lines, and one that counts the rest."""
    noted = Counter(note for record, _ in outcomes for note in notes_of(record))
    lines = [
        f"{note} ({format_count(times, 'case')})" for note, times in noted.most_common(MAX_NOTES)
    ]
    rest = len(noted) - len(lines)
    count = format_count(rest, "more note")
    more = f"{count}; collbench report RUN shows them all if the run is saved"
    return [*lines, *[more] * (rest > 0)]


def notes_of(record: Record) -> list[str]:
    """Notes of a case that went well; none of an imported one, whose notes are the importer's."""
    good = record.status == "ok" and record.told is None
    path = [plain_line(prove_path(record).sentence)] if good else []
    notes = plain_line(record.note).split("; ") if good and record.note else []
    return [*notes, *filter(None, path)]


def count_reasons(skips: Iterable[Skip], outcomes: Iterable[Outcome] = ()) -> list[tuple[str, int]]:
    """Why cases did not run, most frequent first, with how many; planned skips and those found out
    on the way."""
    late = (
        plain_line(record.note) or "no reason given"
        for record, _ in outcomes
        if record.status == "skipped"
    )
    return Counter([*(plain_line(skip.reason) for skip in skips), *late]).most_common()


def format_interval(half: float) -> str:
    """The larger half of the median's 95 % interval, relative to it: ±0.8 %; ±∞ with too few
    samples."""
    return "±∞" if not math.isfinite(half) else f"±{half:.{1 if half < 0.0995 else 0}%}"


def warn_single_launch(launches: Iterable[int]) -> str:
    """A sentence that the interval of one launch, which is of its samples, may not hold another's
    time; "" where all times are of several launches."""
    numbers = {*launches}
    subject = "Times" if numbers == {1} else "Some times"
    return f"{subject} come from 1 launch: another may differ by more than ±." * (1 in numbers)


def format_tail(row: Derived) -> str:
    """The highest quantile that the samples bound, with its name; else the maximum."""
    tails = {
        "p99": row.times.p99,
        "p95": row.times.p95,
        "max": None if math.isnan(row.times.max) else row.times.max,
    }
    return next(
        (f"{name} {format_duration(value)}" for name, value in tails.items() if value is not None),
        "-",
    )


def tell_story(record: Record) -> str:
    """A record that failed or was wrong, in one line: its case, why, and the first wrong
    element."""
    case = record.case
    parts = [f"{format_size(case.size)}, {split_axes([case])[1]}, {case.mode}", record.note]
    if record.wrong:
        total = f" of {record.checked:,}" if record.checked else ""
        parts.append(f"{record.wrong:,}{total} elements wrong")
    if first := record.first_wrong:
        location = f"rank {first.rank}, element {first.index}" + (
            f" ({first.when})" if first.when else ""
        )
        parts.append(f"first at {location}: got {first.got}, expected {first.expected}")
    return "; ".join(part for part in parts if part)


def format_signed(share: float | None) -> str:
    """A relative change as a percentage with its sign; ``-`` where there is none."""
    if share is None or math.isnan(share):
        return "-"
    return f"{share:+.1%}" if math.isfinite(share) else ("-∞" if share < 0 else "+∞")


def format_percent(share: float | None) -> str:
    """A share as a percentage, with a decimal below 10 %; ``-`` where there is none."""
    if share is None:
        return "-"
    return f"{share:.{1 if share < 0.0995 else 0}%}" if math.isfinite(share) else "∞"


def shorten_text(text: str, most: int) -> str:
    """Text on one line, cut to ``most`` characters with an ellipsis."""
    return plain_line(text) if len(text) <= most else plain_line(text[: most - 1]) + "…"
