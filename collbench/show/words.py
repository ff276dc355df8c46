"""Words that views share: a case on its axes, its line in a table, the meaning of flags, shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from collbench.core.text import bandwidth, counted, duration, plain, settings, size
from collbench.records import derive
from collbench.records.derive import Derived
from collbench.records.types import Record
from collbench.run.reporter import Outcome
from collbench.suite.case import MODES, Case, Skip
from collbench.suite.policy import Policy

AXES = (
    "collective",
    "ranks",
    "groups",
    "group",
    "env",
    "implementation",
    "type",
    "op",
    "root",
    "splits",
    "arrival",
    "cycle",
    "place",
)


OPTIONAL = (
    "device",
    "host",
    "as called",
    "aligned",
    "absorbed",
    "wirebw",
    "ran",
)  # columns of tables for people, where a line has something to say


PLACES = {"out": "out of place", "in": "in place"}


LEFT = (*AXES, "ran", "flags")  # columns of words


OWN = ("status", "note", "wrong", "checked", "rotation", "sync", "call_path_ns")


COLUMNS = (
    *Case.__struct_fields__,
    "implementation",
    "count",
    "size",
    *OWN,
    *Derived.__struct_fields__,
)


MODAL = 3  # of the rows with two modes, this many are told in full


class Flag(NamedTuple):
    """What a flag means, and what to do about it or that nothing is to be done. ``whole``: all rows
    of a process group have it, so that it need not stand with each of them in nccl-tests' text."""

    meaning: str
    remedy: str
    whole: bool = False


FLAGS = {
    "injected": Flag(
        "a fault was planted on purpose (--inject): shows that an alarm fires, and nothing of the"
        " machine",
        "leave --inject out to measure",
        whole=True,
    ),
    "predicted": Flag(
        "computed from a model of the network, not measured",
        "measure it to know",
        whole=True,
    ),
    "oversubscribed": Flag(
        "more ranks than physical cores: times include waiting for a core",
        "take no more ranks than cores (-g) for times to rely on",
        whole=True,
    ),
    "n<6": Flag(
        "fewer than 6 samples: too few for an interval",
        "allow more time ({more_time}) or ask for more samples (-n 20)",
    ),
    "unconverged": Flag(
        "stopped by {limit} before {precision}",
        "allow more ({more}) or ask for less ({less})",
    ),
    "unsteady": Flag(
        "times were still changing when warm-up had to end, and while measuring",
        "warm up for longer (-w 1000)",
    ),
    "skewed": Flag(
        "ranks started apart by more than 5 % of the time (with !: 20 %)",
        "leave a core to each rank and stop other processes; larger sizes are less affected",
    ),
    "arrival-sensitive": Flag(
        "ranks that start together, as here, take another time than a program's, which come as they"
        " may: see the column `as called`",
        "measure what a program sees (--mode host)",
    ),
    "apart": Flag(
        "ranks came apart on purpose (--arrival): times count from the last one's arrival",
        "nothing: compare with --arrival aligned",
        whole=True,
    ),
    "overhead": Flag(
        "measuring itself takes more than 5 % of the time (with !: 20 %)",
        "put several calls into each sample (-m 20)",
    ),
    "invalid": Flag(
        "more than 5 % of the samples were discarded and measured again (with !: 25 %)",
        "stop other processes; --sync barrier where ranks cannot start in time",
    ),
    "bimodal": Flag(
        "times gather around two values (shown), and the median may be neither",
        "read these two in place of the median",
    ),
    "preempted": Flag(
        "other processes were at work, and a rank lost its core in more than 5 % of the samples",
        "stop them, or measure when the machine is idle",
    ),
    "late": Flag(
        "this rank came last far more often than chance explains; the others wait for it",
        "look at what else runs on its host; collbench locate finds slow hosts",
    ),
    "+copy": Flag(
        "the time includes copying the buffer: this library has no out-of-place version",
        "nothing to do; rows in place are without the copy",
    ),
    "imported": Flag(
        "read from another tool's log, which tells less than samples do: never decides a"
        " comparison",
        "nothing to do, or measure again with collbench",
        whole=True,
    ),
    "blocking": Flag(
        "each call's time includes a wait for all ranks (-z 1)",
        "leave -z out for the call alone",
        whole=True,
    ),
    "interpreted": Flag(
        "kernels ran in Triton's interpreter, on CPUs: shows that results are right, and no time",
        "measure on a GPU",
        whole=True,
    ),
    "virtual": Flag(
        "all ranks are virtual ones on one GPU: what an algorithm costs there, not what links"
        " between GPUs do",
        "leave --virtual-ranks out where there are several GPUs",
        whole=True,
    ),
    "shared-gpu": Flag(
        "ranks share a GPU: shows that it runs, not what a machine can do",
        "take no more ranks than GPUs (-g)",
        whole=True,
    ),
    "throttled": Flag(
        "a GPU was held back meanwhile (power, heat, clock): samples of those moments were"
        " replaced",
        "nvidia-smi -q -d PERFORMANCE says why; look at cooling and power limits",
    ),
    "few-buffers": Flag(
        "too little memory for enough buffers: some data may still be in a cache",
        "take smaller sizes (-e) or fewer ranks, or say --cache hot and mean it",
    ),
    "no-effect": Flag(
        "the library did not follow a setting that was asked for; the record's note says which",
        "leave the setting out, or ask for one that the library has here",
    ),
    "no-splits": Flag(
        "the file that said how data is split cannot be read any more: bandwidth is unknown",
        "put the file back where it was",
    ),
}


GENERAL = {  # where the run's own figures are not known, or differ between runs
    "limit": "the limit of time or samples",
    "precision": "the interval was as narrow as asked for",
    "more": "--max-time",
    "more_time": "--max-time",
    "less": "--precision",
}


def figures(policy: Policy, crowded: bool, stops: Collection[str] = ()) -> dict[str, str]:
    """What stands in place of GENERAL for a run: ``crowded`` says whether ranks shared cores,
    ``stops`` for which reasons measuring unconverged rows ended (Record.stop)."""
    limits = policy.resolved(crowded)
    assert limits.precision and limits.max_seconds is not None
    samples, seconds = set(stops) == {"max_n"}, limits.max_seconds
    more_time = f"--max-time {_seconds(_stepped(2 * seconds))}"
    return {
        "limit": f"the limit of {limits.max_iters:,} samples"
        if samples
        else f"--max-time {_seconds(seconds)}",
        "precision": f"±{100 * limits.precision:.2g} %",
        "more": f"max_iters = {round(_stepped(2 * limits.max_iters))} in a suite"
        if samples
        else more_time,
        "more_time": more_time,
        "less": f"--precision {100 * _stepped(2 * limits.precision):.2g}%",
    }


def _stepped(least: float) -> float:
    """The first of 1, 2, 5, 10, 20 ... that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _seconds(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}s"


def kind(flag: str) -> str:
    """A flag without its rank and its exclamation mark."""
    return flag.partition(":")[0].rstrip("!")


def explained(flag: str, known: Mapping[str, str] = GENERAL) -> Flag:
    """What a flag means and what to do, with figures of the run where these are ``known``."""
    found = FLAGS.get(kind(flag)) or Flag("a flag that this version does not know", "update it")
    return found._replace(
        meaning=found.meaning.format_map(known), remedy=found.remedy.format_map(known)
    )


def legend(outcomes: Sequence[Outcome], policy: Policy, crowded: bool) -> list[str]:
    """A line for each flag that occurred, most frequent first: how often, its meaning, and what to
    do."""
    flags = Counter(kind(flag) for _, row in outcomes if row for flag in row.flags)
    stops = {r.stop for r, row in outcomes if row and "unconverged" in row.flags}
    known = figures(policy, crowded, stops)
    lines = [(flag, times, explained(flag, known)) for flag, times in flags.most_common()]
    return [f"{flag} ({times}): {told.meaning}; {told.remedy}" for flag, times, told in lines]


def named(flags: Iterable[str], modes: tuple[float, float] | None) -> list[str]:
    """Flags as they stand with a row: with both modes' times."""
    both = "|".join(duration(mode).replace(" ", "") for mode in modes or ())
    return [f"{flag}:{both}" if flag == "bimodal" else flag for flag in flags]


def doubts(rows: Iterable[derive.Interval]) -> str:
    """Why none of these rows stands for the run: 2 unconverged, 1 bimodal."""
    found = Counter(kind(flag) for row in rows for flag in derive.doubts(row))
    return ", ".join(f"{times} {flag}" for flag, times in found.most_common())


def two_modes(rows: Iterable[tuple[Case, Derived, int]]) -> list[str]:
    """Sentences (see modal) on the bimodal rows whose modes lie farthest apart, and how many there
    are beside; with each row how many calls made a sample."""
    found = [one for one in rows if one[1].modes and "bimodal" in one[1].flags]
    found.sort(key=lambda one: -one[1].modes[1] / one[1].modes[0] if one[1].modes else 0.0)
    varying = axes([case for case, _, _ in found])[0] if found else []
    lines = []
    for case, row, inner in found[:MODAL]:
        words = worded(case)
        named = [words[name] for name in varying if name != "collective" and words[name]]
        what = f"{size(case.size)} {case.collective}" if case.size else case.collective
        lines.append(plain(f"{', '.join([what, *named])}: {modal(row, inner)}"))
    more = len(found) - MODAL
    return lines + ([f"… and {counted(more, 'more row')} with two modes"] if more > 0 else [])


def modal(row: Derived, inner: int) -> str:
    """Which of two modes a program is likely to see, and how often."""
    assert row.modes and row.mode_share is not None
    first, (low, high) = row.mode_share, map(duration, row.modes)
    calls = "calls" if inner == 1 else f"samples of {inner} calls"
    often = "mostly see the first" if first > 0.5 else "mostly see the second"
    seen = often if abs(first - 0.5) > 0.1 else "see both"
    how = ", in stretches" if row.in_stretches else ""
    return (
        f"{first:.0%} of {calls} took about {low}, {1 - first:.0%} about {high}{how}; a program"
        f" will {seen}"
    )


def flat(record: Record, row: Derived | None) -> dict[str, Any]:
    """A record under the names of COLUMNS; derived ones are None where nothing
    is known."""
    case = record.case
    derived = msgspec.structs.asdict(row) if row else {}
    unknown = [
        name for name, value in derived.items() if isinstance(value, float) and math.isnan(value)
    ]
    values = (
        dict.fromkeys(COLUMNS) | msgspec.structs.asdict(case) | derived | dict.fromkeys(unknown)
    )
    own = {name: getattr(record, name) for name in OWN}
    return values | own | {"implementation": case.label, "count": case.count, "size": case.size}


def columns(lines: Sequence[Mapping[str, str]], varying: Sequence[str]) -> list[str]:
    """Names of the columns that a table of ``lines`` (see cells) has, where cases differ along the
    axes ``varying``."""
    idle = {name for name in OPTIONAL if not any(line[name] for line in lines)} | (
        set(AXES) - set(varying)
    )
    return [name for name in lines[0] if name not in idle]


def by_mode(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Modes measure different things, so that nothing shows two of them side by side."""
    chosen = [
        (mode, [o for o in outcomes if o[0].case.mode == mode and o[0].status != "skipped"])
        for mode in MODES
    ]
    return [(mode, members) for mode, members in chosen if members]


def axes(cases: Sequence[Case]) -> tuple[list[str], str]:
    """Names of the axes along which ``cases`` differ, and what they have in common, in words."""
    values = [along(case) for case in cases]
    varying = [name for name in AXES if len({v[name] for v in values}) > 1]
    words = worded(cases[0])
    return varying, ", ".join(words[name] for name in AXES if name not in varying and words[name])


def worded(case: Case) -> dict[str, str]:
    """Values of ``along`` in words that name their axis; none for the cycle."""
    root = f"root {case.root}" if case.root >= 0 else ""
    place = PLACES["in" if case.in_place else "out"]
    words = {"ranks": counted(case.n, "rank"), "root": root, "cycle": "", "place": place}
    if case.groups:
        words |= {
            "groups": f"{counted(case.of, 'group')} by {case.groups}",
            "group": f"group {case.group}",
        }
    return along(case) | words


def along(case: Case) -> dict[str, str]:
    """Where ``case`` stands on each of AXES."""
    return {
        "collective": case.collective,
        "ranks": str(case.n),
        "groups": case.groups,
        "group": str(case.group) if case.groups else "",
        "env": settings(case.env),
        "implementation": case.label,
        "type": case.dtype,
        "op": "" if case.op == "none" else case.op,
        "root": "" if case.root < 0 else str(case.root),
        "splits": case.splits,
        "arrival": case.arrival,
        "cycle": str(case.cycle + 1),
        "place": "in" if case.in_place else "out",
    }


def cells(record: Record, row: Derived | None) -> dict[str, str]:
    """A line of a table for people, by column. Times of wrong data are not shown: they measure
    something else."""
    note = (
        [f"{record.status}: {plain(record.note)}"]
        if record.status in ("failed", "wrong") and record.note
        else []
    )
    flags = named(row.flags, row.modes) if row else []
    shown = row if record.status != "wrong" else None
    place, more = along(record.case), optional(shown, record.case.mode)
    unknown = (
        shown.clock_error
        if shown and shown.skew is not None and shown.skew < shown.clock_error
        else 0
    )
    return {
        **{name: place[name] for name in AXES[:-1]},
        "size": size(record.case.size),
        "place": place["place"],
        "median": duration(shown.median) if shown else "-",
        "±": interval(shown) if shown else "-",
        "device": more["device"],
        "host": more["host"],
        "as called": more["as called"],
        "aligned": more["aligned"],
        "absorbed": more["absorbed"],
        "tail": tail(shown) if shown else "-",
        "N": str(shown.samples or "-") if shown else "-",
        "min": duration(shown.min) if shown else "-",
        "algbw": bandwidth(shown.algbw) if shown else "-",
        "busbw": bandwidth(shown.busbw) if shown else "-",
        "wirebw": more["wirebw"],
        "skew": (unknown and f"<{duration(unknown)}") or duration(shown.skew) if shown else "-",
        "wrong": "-" if record.wrong is None else str(record.wrong),
        "ran": more["ran"],
        "flags": " ".join([*note, *flags]) or ("" if row else record.status),
    }


def optional(row: Derived | None, mode: str) -> dict[str, str]:
    """What few rows have something to say of, by the names of OPTIONAL; times are by the clock that
    made no median."""
    times = {"device": row.device, "host": row.host} if row else {}
    said = {
        name: duration(time)
        for name, time in times.items()
        if time is not None and row and time != row.median
    }
    if row and row.sensitive:
        said["as called" if mode == "isolated" else "aligned"] = duration(row.control)
    if row and row.absorbed is not None:
        said["absorbed"] = f"{row.absorbed:.0%}"
    if row and row.wirebw is not None:
        said["wirebw"] = bandwidth(row.wirebw)
    return {name: said.get(name, "") for name in OPTIONAL} | {
        "ran": plain(row.chose) if row else ""
    }


def reasons(skips: Iterable[Skip], outcomes: Iterable[Outcome] = ()) -> list[tuple[str, int]]:
    """Why cases did not run, most frequent first, with how many; planned skips and those found out
    on the way."""
    late = (
        plain(record.note) or "no reason given"
        for record, _ in outcomes
        if record.status == "skipped"
    )
    return Counter([*(plain(skip.reason) for skip in skips), *late]).most_common()


def interval(row: Derived) -> str:
    """The larger half of the median's 95 % interval, relative to it: ±0.8 %; ±∞ with too few
    samples."""
    half = max(row.hi - row.median, row.median - row.lo) / row.median if row.median else math.inf
    return "±∞" if not math.isfinite(half) else f"±{half:.{1 if half < 0.0995 else 0}%}"


def tail(row: Derived) -> str:
    """The highest quantile that the samples can bound, named; else the maximum, for which see the N
    beside it."""
    named = {"p99": row.p99, "p95": row.p95, "max": None if math.isnan(row.max) else row.max}
    return next(
        (f"{name} {duration(value)}" for name, value in named.items() if value is not None), "-"
    )


def clock(seconds: float) -> str:
    """1:05, or 2:00:00 from an hour up."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )


def story(record: Record) -> str:
    case = record.case
    parts = [f"{size(case.size)}, {axes([case])[1]}, {case.mode}", record.note]
    if record.wrong:
        of = f" of {record.checked:,}" if record.checked else ""
        parts.append(f"{record.wrong:,}{of} elements wrong")
    if first := record.first_wrong:
        place = f"rank {first.rank}, element {first.index}" + (
            f" ({first.when})" if first.when else ""
        )
        parts.append(f"first at {place}: got {first.got}, expected {first.expected}")
    return "; ".join(part for part in parts if part)


def signed(share: float | None) -> str:
    if share is None or math.isnan(share):
        return "-"
    return f"{share:+.1%}" if math.isfinite(share) else ("-∞" if share < 0 else "+∞")


def percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.{1 if share < 0.0995 else 0}%}" if math.isfinite(share) else "∞"


def short(text: str, most: int) -> str:
    return plain(text) if len(text) <= most else plain(text[: most - 1]) + "…"
