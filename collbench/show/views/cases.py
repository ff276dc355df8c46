"""A run's cases on a terminal: the header, the table that grows while the run goes on, its closing
lines; plans, and lists of runs."""

from __future__ import annotations

import itertools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collbench.core import algorithm_files
from collbench.core.backend_info import backend_info
from collbench.core.errors import Exit
from collbench.core.text import bandwidth, clock, counted, duration, plain, size
from collbench.core.version import __version__
from collbench.records import store
from collbench.records.derive import NO_TIME_LEFT, Derived
from collbench.records.flags import (
    PREEMPTED,
    UNCONVERGED,
    Flag,
    doubts,
    flag_kind,
    is_known,
    is_wide,
    is_without_interval,
    look_up,
    remarks,
)
from collbench.records.origins import FAKE
from collbench.records.store import Outline
from collbench.records.types import End, Run, World
from collbench.run.reporter import Gathered, Outcome, PlanRow
from collbench.show.busy import sentence
from collbench.show.document import Block, Cell, Document, Line, Table, Tone, Weight, Words, toned
from collbench.show.flags import (
    MARK,
    common_flags,
    common_lines,
    legend,
    lettered,
    named,
    precision,
    why_unknown,
)
from collbench.show.views import best as choice
from collbench.show.views import series
from collbench.show.views.summary import single_call
from collbench.show.words import (
    AXES,
    LEFT,
    along,
    axes,
    by_mode,
    caveats,
    cells,
    columns,
    interval,
    movements,
    notes,
    reasons,
    reserved,
    story,
    two_modes,
    worded,
)
from collbench.suite.case import Case

HEADS = {
    "collective": "",
    "place": "",
    "implementation": "impl",
    "algbw": "algbw\nGB/s",
    "busbw": "busbw\nGB/s",
    "wirebw": "wirebw\nGB/s",
}


QUIET = ("min", "algbw", "skew", "N")  # columns


DROPPED = (
    "min",
    "skew",
    "algbw",
    "wrong",
    "tail",
    "N",
    "ran",
)  # columns given up on a narrow terminal, in this order


SHOWN = 5  # of the cases that went wrong, this many are told in full


def header(run: Run, cases: Sequence[Case], worlds: Mapping[int, World]) -> list[Words]:
    """Three lines: what runs; where and on which library; how it is measured."""
    varying, constant = axes(cases) if cases else ([], "nothing to run")
    what = [constant] if constant else []
    if cases and (most := max(case.size for case in cases)):
        least = min(case.size for case in cases)
        what.append(size(most) if least == most else f"{size(least)} to {size(most)}")
    for name in varying:
        values = list(dict.fromkeys(along(case)[name] for case in cases))
        words = [v for v in values if v and name != "place"]
        few = ", ".join(words[:4]) + (" …" if len(words) > 4 else "")
        cycles = counted(len(words), "launch" if run.policy.fresh else "cycle")
        told = {"ranks": f"{few} ranks", "root": f"roots {few}", "cycle": cycles}
        what.append(told.get(name, few))
    policy = run.policy
    crowded = {world.cramped for world in worlds.values()}
    limits = policy.resolved(any(crowded))
    how = [
        " and ".join(dict.fromkeys(case.mode for case in cases)),
        f"{policy.sync} sync",
        f"{policy.cache} cache",
    ]
    how.append(
        f"{policy.iters} iterations"
        if policy.iters
        else f"precision {precision(policy, crowded, '%')}, at most {limits.max_seconds:g} s a case"
    )
    where = " · ".join(plain(part) for part in _machine(run, worlds) if part)
    lines = [
        toned(f"collbench {__version__}  ", strong=True) + plain(" · ".join(filter(None, what))),
        toned(where, "quiet"),
        toned(plain(" · ".join(how)), "quiet"),
    ]
    return [*lines, *(toned(text, "bad") for text in caveats(run, worlds.values()))]


def _machine(run: Run, worlds: Mapping[int, World]) -> list[str]:
    hosts = list(dict.fromkeys(info.host for world in worlds.values() for info in world.ranks))
    about = run.environment
    cpu, gpus = about.get("cpu") or {}, (about.get("gpus") or {}).get("devices") or []
    name = hosts[0] if hosts else str(about.get("host") or "")
    kinds = Counter(str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping))
    libraries = [world.library or world.backend for world in worlds.values()]
    return [
        name + (f" and {len(hosts) - 1} more hosts" if len(hosts) > 1 else ""),
        ", ".join(f"{number} x {kind}" for kind, number in kinds.items()),
        f"{cpu['model']}, {cpu.get('physical', '?')} cores" if cpu.get("model") else "",
        ", ".join(dict.fromkeys(libraries)),
        ", ".join(dict.fromkeys(world.launcher for world in worlds.values())),
    ]


def table(
    mode: str,
    outcomes: Sequence[Outcome],
    cases: Sequence[Case],
    live: bool = False,
    fresh: bool = False,
) -> Table:
    """A line per case of ``mode``. Axes along which ``cases``, the plan, do not vary have no column
    (the header names them), nor has what no line says anything of (words.OPTIONAL); what else does
    not fit goes in the order of DROPPED, but never a count of wrong elements. Cycles of ``fresh``
    ranks are launches."""
    planned = [case for case in cases if case.mode == mode]
    varying, constant = axes(planned or [record.case for record, _ in outcomes])
    lines = [cells(*outcome) for outcome in outcomes]
    names = columns(lines, varying, reserved(outcomes))
    several = len({case.mode for case in cases}) > 1
    groups = [[line[name] for name in names if name in AXES and name != "place"] for line in lines]
    changes = [
        not live and before != after for before, after in itertools.pairwise([groups[0], *groups])
    ]
    ruled = 4 * sum(changes) <= len(lines)
    wrong = any(record.wrong for record, _ in outcomes)
    common = common_flags(outcomes)
    own = [_own_doubts(row, common) if row else [] for _, row in outcomes]
    return Table(
        title=f"{mode}: {constant}" if several else "",
        heads=tuple("launch" if fresh and n == "cycle" else HEADS.get(n, n) for n in names),
        lines=[
            _line(
                outcome, [line[name] for name in names], names.index("±"), change and ruled, common
            )
            for outcome, line, change in zip(outcomes, lines, changes, strict=True)
        ],
        align="".join("l" if name in LEFT else "r" for name in names),
        quiet=tuple(HEADS.get(name, name) for name in QUIET),
        dropped=tuple(HEADS.get(name, name) for name in DROPPED if not (name == "wrong" and wrong)),
        brief=tuple(
            _brief(row, doubted, common) if row and record.status not in BAD else ""
            for (record, row), doubted in zip(outcomes, own, strict=True)
        ),
        key=_key(flag for doubted in own for flag in doubted),
    )


BAD = ("wrong", "failed")  # the status of a row that has no time to show


def common(told: Gathered, outcomes: Sequence[Outcome]) -> list[Words]:
    """What most rows have, said once above their table."""
    crowded = {world.cramped for world in told.worlds.values()}
    return [
        toned(plain(text), "quiet") for text in common_lines(outcomes, told.run.policy, crowded)
    ]


def _own_doubts(row: Derived, common: Mapping[str, str]) -> list[str]:
    """The doubts that stand in a row's line: those that are not said once for all."""
    return [flag for flag in doubts(row) if flag_kind(flag) not in common]


def _mark(row: Derived, common: Mapping[str, str]) -> Words:
    """A dim mark where there is a remark; that its interval is wide, that shows."""
    own = {flag_kind(flag) for flag in remarks(row)} - common.keys() - {UNCONVERGED}
    return toned(MARK if own else "", "quiet")


def _brief(row: Derived, doubted: Sequence[str], common: Mapping[str, str]) -> Words:
    """The last cell where there is no room for words."""
    return _flagged(lettered(doubted), _mark(row, common))


def _key(flags: Iterable[str]) -> str:
    """What letters stand for, in the order of FLAGS."""
    rows: list[Flag] = [look_up(flag) for flag in dict.fromkeys(map(flag_kind, flags))]
    return ", ".join(f"{row.letter} {row.name}" for row in rows if row.letter)


def _line(
    outcome: Outcome,
    values: Sequence[str],
    interval_index: int,
    ruled: bool,
    common: Mapping[str, str],
) -> Line:
    """A line of the table, with colour for a wide interval and for doubts, which stand last."""
    record, row = outcome
    if row is None or record.status in BAD:
        weight: Weight = "bad" if record.status in BAD else ""
        return Line(tuple(values), weight=weight, ruled=ruled, single=True)
    cells: list[Cell] = [*values]
    if is_wide(row) and not is_without_interval(row):
        cells[interval_index] = toned(values[interval_index], "notice")
    cells[-1] = _flagged(named(row, _own_doubts(row, common)), _mark(row, common))
    return Line(tuple(cells), ruled=ruled, single=True)


def _flagged(flags: Sequence[str], mark: Words) -> Words:
    line = toned("")
    for index, flag in enumerate(flags):
        line = line + (" " if index else "") + toned(flag, "notice", flag.endswith("!"))
    return line + (" " if flags and str(mark) else "") + mark


ENDED = {Exit.TIMEOUT: "hung or killed"}  # how runs end, where an exit's name does not say it


def saved(files: Sequence[tuple[str, Outline]], of: int = 0) -> Document:
    """Saved runs, oldest first, with the name each answers to, none while it is running, and how it
    ended; of ``of`` in all."""
    heads = ("name", "id", "tag", "cases", "size", "ended", "arguments")
    lines, rows = [], list[dict[str, Any]]()
    for name, file in files:
        ended = "running" if file.running else _ended(file.end)
        arguments = plain(" ".join(file.run.command[1:]))
        names = [plain(text) for text in (name, file.run.id, file.run.tag)]
        values = (*names, file.cases, file.nbytes, ended, arguments, file.run.started, file.fake)
        rows.append(dict(zip((*heads, "started", FAKE), values, strict=True)))
        tone: Tone = "quiet" if ended == "ok" else "bad" if file.end else "notice"
        fake = toned(", fake GPU" if file.fake else "", "bad")
        told = str(file.cases), size(file.nbytes), toned(ended, tone) + fake, arguments
        cells: list[Cell] = [*names, *told]
        lines.append(Line(cells, single=True))
    whole = ("name", "id", "cases", "ended")
    more = f"{len(files):,} of {of:,} runs; --last {of} shows all" if of > len(files) else ""
    table = Table(
        heads=heads, lines=lines, align="llcrrlc", dropped=("size",), whole=whole, note=more
    )
    return Document(title="Saved runs", brief=[table], rows=rows, values={"runs": rows, "of": of})


def _ended(end: End | None) -> str:
    if end is None:
        return "cut short"
    if end.exit not in [*Exit]:
        return f"exit {end.exit}"
    return ENDED.get(Exit(end.exit)) or Exit(end.exit).name.lower().replace("_", " ")


MOST_PLANNED = 1000  # lines of --dry-run


PLANNED = (
    "moved/call: what the busiest rank sends or receives in a call",
    "memory/rank: buffers, and 256 MiB for Python and libraries",
    "buffers: send/receive pairs used in rotation, so that data is not cached",
)


def plan(
    rows: Sequence[PlanRow], starting: float = 0.0, fresh: bool = False, cores: int = 0
) -> list[Block]:
    """Blocks of --dry-run: what all cases share, each with the memory and time it will take, then
    the sum, with the seconds that ``starting`` ranks takes. Cycles, launches where ranks are
    ``fresh``, that are all alike are listed once. ``cores``: those that all ranks are to share, 0
    where that is not known."""
    cycle, run = "launch" if fresh else "cycle", [row for row in rows if not row.skipped]
    cycles = Counter(row.case.cycle for row in rows)
    alike = len(cycles) > 1 == len({*cycles.values()})
    listed = [row for row in rows if row.case.cycle == 0] if alike else rows
    varying, constant = axes([row.case for row in listed]) if rows else ([], "")
    constant += f"; each of {counted(len(cycles), cycle)}" * alike
    lines = []
    for row in listed[:MOST_PLANNED]:
        values = worded(row.case)
        values["cycle"] = f"{cycle} {row.case.cycle + 1}"
        words = [values[name] for name in varying if values[name]]
        label = plain(", ".join([*words, row.case.mode]))
        if row.skipped:
            why = toned(label) + toned(f": {plain(row.skipped)}", "notice")
            lines.append(Line((why, size(row.case.nbytes), "", "", "", "")))
        else:
            memory = (size(row.case.size), size(row.moved), size(row.bytes_per_rank))
            time = duration(row.seconds * 1e9 or None)
            lines.append(Line((label, *memory, str(row.rotation), time)))
    heads = ("case", "size", "moved/call", "memory/rank", "buffers", "time")
    about, longest = (sum(row.seconds for row in run), sum(row.most for row in run))
    total = f"{counted(len(run), 'case')}, about {clock(starting + about)}"
    total += f" (up to {clock(starting + longest)} if noisy)" * (longest > about)
    total += f", of which {clock(starting)} to start ranks" * (starting > 0)
    most = size(max((row.bytes_per_rank for row in run), default=0))
    return [
        toned(plain(constant), strong=True),
        Table(heads=heads, lines=lines, align="w"),
        *([f"and {len(listed) - MOST_PLANNED:,} more"] if listed[MOST_PLANNED:] else []),
        *(toned(words, "quiet") for words in PLANNED if run),
        f"{total}, at most {most} a rank; {len(rows) - len(run)} skipped",
        *_may_be_refused([row.case for row in run]),
        *_crowded([row.case for row in run], cores),
    ]


def _crowded(cases: Sequence[Case], cores: int) -> list[Words]:
    """How many of the planned cases have more ranks than there are cores."""
    crowded = [case for case in cases if case.world > cores and case.backend != "model"]
    if not (crowded and cores):
        return []
    where = f"{counted(max(case.world for case in crowded), 'rank')} on {counted(cores, 'core')}"
    flagged = f"{counted(len(crowded), 'row')} will be flagged oversubscribed"
    return [noticed(f"{where}: {flagged}, which is not fit for claims; -g {cores} fits")]


def _may_be_refused(cases: Sequence[Case]) -> list[Words]:
    """Which of the planned cases a run may skip, as the library says so only when it is asked."""
    unsure = [case for case in cases if backend_info(case.backend).may_refuse(case)]
    names = dict.fromkeys(f"{case.dtype} {case.op}".removesuffix(" none") for case in unsure)
    libraries = ", ".join(dict.fromkeys(case.backend for case in unsure))
    text = f"{libraries} may refuse {counted(len(unsure), 'case')} of these: {', '.join(names)}"
    return [noticed(plain(text))] if unsure else []


def summary(told: Gathered) -> list[Words]:
    """What went wrong, how busy others kept the machine, floor and peak of each collective and
    mode, rows with two modes, who came late, what the flags that occurred mean, what is noted of
    cases, what was left out and why, what was verified, and where it is kept."""
    lines = [toned(text, "bad") for text in caveats(told.run, told.worlds.values())]
    counting = [(record, row) for record, row in told.outcomes if not (row and FAKE in row.flags)]
    lines += [*_trouble(told), *map(noticed, filter(None, [busy(told)])), *_best(told, counting)]
    lines += [*map(noticed, _modal(counting)), *_late(told, counting)]
    lines += arrivals(counting, told.worlds)
    lines += map(noticed, (*explained(told), *movements(told.outcomes)))
    lines += [toned(f"note: {line}", "quiet") for line in notes(told.outcomes)]
    lines += [
        toned(f"{number} skipped: {reason}", "quiet")
        for reason, number in reasons(told.skips, told.arrived)
    ]
    lines += [*map(noticed, dropped(told)), *_verified(told)]
    return [*lines, *map(toned, kept(told))]


def kept(told: Gathered) -> list[str]:
    """Where a run is kept, by the name that finds it again; of one that ended early how to go
    on."""
    if told.path is None:
        return ["not saved"]
    ours = told.path.parent == store.home() / "runs"
    lines = [f"saved: {plain(told.path.stem if ours else str(told.path))}"]
    if told.ended and told.ended.exit and len(told.arrived) < len(told.cases):
        name = "@last" if ours else shlex.quote(str(told.path))
        files = ",".join(algorithm_files.list_words(told.run.command))
        more = f" --algo {shlex.quote(files)}" if files else ""
        lines.append(plain(f"continue with: collbench run --resume {name}{more}"))
    return lines


def best(told: Gathered) -> list[Table]:
    """The fastest at each size, where there is a choice; a table a mode."""
    if len({record.case.label for record, _ in told.arrived}) < 2:
        return []
    return choice.tables(series.view([told.file]))


def noticed(text: str) -> Words:
    return toned(text, "notice")


def busy(told: Gathered) -> str:
    return sentence(told.run, (record for record, _ in told.arrived), told.ended)


def explained(told: Gathered) -> list[str]:
    """A line for each doubt that occurred, one for remarks (flags.legend); what stands above the
    tables not again."""
    crowded = {world.cramped for world in told.worlds.values()}
    above = [common_flags(outcomes) for _, outcomes in by_mode(told.outcomes)]
    everywhere = set.intersection(*map(set, above)) - {UNCONVERGED} if above else set()
    return legend(told.outcomes, told.run.policy, crowded, told.run.command, everywhere)


def _modal(outcomes: Sequence[Outcome]) -> list[str]:
    return two_modes((record.case, row, record.inner) for record, row in outcomes if row)


def dropped(told: Gathered) -> list[str]:
    """The cases for which a budget left no time, by name, in at most one line."""
    cases = [r.case for r, _ in told.arrived if r.note.startswith(NO_TIME_LEFT)]
    varying, _ = axes(cases) if cases else ([], "")
    named = [name for name in varying if name != "cycle"]
    words = Counter(
        " ".join(filter(None, [size(case.size), *(worded(case)[name] for name in named)]))
        for case in cases
    )
    times = [f"{name} (x{number})" if number > 1 else name for name, number in words.items()]
    return [plain(f"dropped: {', '.join(times)}")] if times else []


def _trouble(told: Gathered) -> Iterable[Words]:
    for status, title in (("wrong", "WRONG DATA"), ("failed", "FAILED")):
        bad = [record for record, _ in told.outcomes if record.status == status]
        if bad:
            yield toned(f"{title} in {len(bad)} of {counted(len(told.arrived), 'case')}", "bad")
            yield from (toned(f"  {plain(story(record))}", "bad") for record in bad[:SHOWN])
        if len(bad) > SHOWN:
            yield toned(f"  … and {len(bad) - SHOWN} more", "bad")
    if told.ended and told.ended.exit and told.ended.note:
        yield toned(
            f"ended early, after {len(told.arrived)} of {counted(len(told.cases), 'case')}:"
            f" {plain(told.ended.note)}",
            "bad",
        )


def _best(told: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    good = [
        (record.case, row)
        for record, row in outcomes
        if row and record.status in ("ok", "predicted") and not record.case.subject
    ]
    for mode, name in dict.fromkeys((case.mode, case.collective) for case, _ in good):
        mine = [(case, row) for case, row in good if (case.mode, case.collective) == (mode, name)]
        varying, _ = axes([case for case, _ in mine])
        if len({case.size for case, _ in mine}) == 1:
            world = told.worlds.get(next(r.world for r, _ in outcomes if r.case == mine[0][0]))
            asked = told.run.policy.resolved(bool(world and world.cramped)).precision
            fixed = told.run.policy.iters is not None
            known = [_only_size(mine, varying, None if fixed else asked)]
        else:
            known = [_floor(mine, varying)] if single_call(mine[0][0], told.run.policy) else []
            known += _peak(mine, varying)
        if known:
            yield toned(plain(f"{name}, {mode}: {'; '.join(known)}"))


Timed = Sequence[tuple[Case, Derived]]


def _only_size(rows: Timed, varying: Sequence[str], precision: float | None) -> str:
    """The fastest row where there is one size, and whether it is less precise than asked for."""
    chosen = fastest(rows)
    if chosen is None:
        return f"time at {size(rows[0][0].size)} not known{_unknown(rows)}"
    case, row = chosen
    rate = f", busbw {bandwidth(row.busbw)} GB/s" if row.busbw is not None else ""
    half = row.half_width
    vague = precision is not None and math.isfinite(half) and half > precision
    less = f": less precise than the ±{100 * (precision or 0):.2g} % asked for" if vague else ""
    return f"{_given(duration(row.times.median), case, row, varying)}{rate}{less}"


def _floor(rows: Timed, varying: Sequence[str]) -> str:
    """The least time at the smallest size, where latency is all that there is."""
    least = min(case.size for case, _ in rows)
    smallest = [(case, row) for case, row in rows if case.size == least]
    if (chosen := fastest(smallest)) is None:
        return f"latency floor not known at {size(least)}{_unknown(smallest)}"
    case, row = chosen
    return f"latency floor {_given(duration(row.times.median), case, row, varying)}"


def _peak(rows: Timed, varying: Sequence[str]) -> list[str]:
    """The highest bus bandwidth."""
    rated = [(case, row) for case, row in rows if row.busbw is not None]
    if not rated:
        return []
    if (chosen := highest(rated)) is None:
        return [f"peak busbw not known{_unknown(rated)}"]
    case, row = chosen
    return [f"peak busbw {_given(f'{bandwidth(row.busbw)} GB/s', case, row, varying)}"]


def fastest(rows: Timed) -> tuple[Case, Derived] | None:
    """The row of the least time that is known: one without a doubt, unless one with a doubt took
    surely less."""
    known = [(case, row) for case, row in rows if is_known(row)]
    if not known:
        return None
    good = [pair for pair in known if not doubts(pair[1])]
    surely = [
        pair for pair in known if good and pair[1].times.hi < min(row.times.lo for _, row in good)
    ]
    return min(surely or good or known, key=lambda pair: pair[1].times.median)


def highest(rows: Timed) -> tuple[Case, Derived] | None:
    """The same of the highest bus bandwidth."""
    known = [(case, row) for case, row in rows if is_known(row)]
    if not known:
        return None
    good = [pair for pair in known if not doubts(pair[1])]
    most = max((_upper_busbw(row) for _, row in good), default=math.inf)
    surely = [pair for pair in known if _lower_busbw(pair[1]) > most]
    return max(surely or good or known, key=lambda pair: pair[1].busbw or 0.0)


def _upper_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.lo if row.times.lo > 0 else math.inf


def _lower_busbw(row: Derived) -> float:
    return (row.busbw or 0.0) * row.times.median / row.times.hi


def _given(figure: str, case: Case, row: Derived, varying: Sequence[str]) -> str:
    """A figure with its interval, where, and why to doubt it."""
    sure = "" if is_without_interval(row) else f" {interval(row.half_width)}"
    doubted = f" ({', '.join(named(row, flags))})" if (flags := doubts(row)) else ""
    return f"{figure}{sure} at {_point(case, varying)}{doubted}"


def _unknown(rows: Timed) -> str:
    return f" ({why_unknown([row for _, row in rows])})"


def _point(case: Case, varying: Sequence[str]) -> str:
    values = worded(case)
    named = ", ".join(values[name] for name in varying if values[name])
    return size(case.size) + (f" ({named})" if named else "")


def _late(told: Gathered, outcomes: Sequence[Outcome]) -> Iterable[Words]:
    late = Counter(
        (record.world, row.late_rank)
        for record, row in outcomes
        if row and row.late_rank is not None
    )
    for (index, rank), times in late.most_common():
        world = told.worlds.get(index)
        host = next((info.host for info in world.ranks if info.rank == rank), "?") if world else "?"
        of = sum(
            record.world == index and rank in record.case.members for record, _ in told.arrived
        )
        group = f" of {world.n} ({world.backend})" if world and len(told.worlds) > 1 else ""
        where = plain(host)
        doubted = any(
            row.late_rank == rank and "late" in map(flag_kind, doubts(row))
            for record, row in outcomes
            if row and record.world == index
        )
        yield toned(
            f"late: rank {rank}{group} ({where}) in {times} of {counted(of, 'row')}",
            "notice" if doubted else "quiet",
        )


def arrivals(outcomes: Sequence[Outcome], worlds: Mapping[int, World]) -> Iterable[Words]:
    """One sentence for each mode in which it matters how ranks come to a call: by how much at most,
    why if that is known, and which of the two times a program sees."""
    for mode, members in by_mode(outcomes):
        found = [
            (record, row, row.control / row.times.median)
            for record, row in members
            if row and row.sensitive and row.control
        ]
        if not found:
            continue
        record, row, ratio = max(found, key=lambda each: max(each[2], 1 / each[2]))
        world = worlds.get(record.world)
        first, second = row.times.median, row.control or 0.0
        together, called = (first, second) if mode == "isolated" else (second, first)
        why = " (other processes were at work)" * (PREEMPTED in row.flags)
        if world and world.cramped:
            ranks, library = counted(record.case.n, "rank"), plain(record.case.label)
            why = f" (too few cores for {ranks} of {library})"
        hint = "; --mode host measures what a program sees" if mode == "isolated" else ""
        yield toned(
            f"{len(found)} of {counted(len(members), 'row')} in mode {mode} depend on when ranks"
            f" arrive: {_point(record.case, ['implementation', 'place'])} takes {duration(called)}"
            f" as called, {duration(together)} if all ranks start together"
            f" ({max(ratio, 1 / ratio):.1f}x){why}{hint}",
            "quiet",
        )


def _verified(told: Gathered) -> Iterable[Words]:
    checked = sum(record.checked for record, _ in told.arrived)
    if checked and not any(record.wrong for record, _ in told.arrived):
        yield toned(f"{checked:,} elements verified, none wrong")
    elif not checked and any(record.status == "ok" for record, _ in told.arrived):
        yield toned("data was not verified", "notice")
