"""What flags mean, and what to do about them, with the figures of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from collbench.core.text import format_count, format_duration, plain_line
from collbench.records import store
from collbench.records.derive import Derived
from collbench.records.flags import (
    BIMODAL,
    DISPATCH,
    FEW,
    FLAGS,
    INVALID,
    UNCONVERGED,
    WIRE,
    Flag,
    FlaggedTime,
    find_call_path,
    flag_kind,
    list_doubts,
    list_remarks,
    look_up,
)
from collbench.records.rows import Row
from collbench.records.types import RunFile, is_budgeted
from collbench.run.reporter import Outcome
from collbench.run.resumption import describe_remedy
from collbench.suite.policy import Policy
from collbench.suite.suite_keys import replace_options

GENERAL = {  # where the run's own figures are not known, or differ between runs
    "ran_out": "reached the limit of time or samples",
    "precision": "the precision asked for",
    "more": "--max-time",
    "enough": "allow more time (--max-time) or ask for more samples (-n 20)",
    "less": "--precision",
    "why": "",
    "call_path": "its dispatch of a call",
    "again": "collbench run --resume RUN measures it again",
}
BUDGET = {
    "ran_out": "ran out of --budget",
    "more": "--budget",
    "enough": "allow more time (--budget) or ask for more samples (-n 20)",
}


def fill_limits(
    policy: Policy,
    crowded: Collection[bool],
    stops: Collection[str] = (),
    command: Collection[str] = (),
) -> dict[str, str]:
    """The text in place of GENERAL for a run: ``crowded`` says of each group of ranks whether it
    had fewer cores than threads that must run, ``stops`` for which reasons measuring unconverged
    rows ended (Record.stop), and ``command`` what the run was asked with."""
    limits = policy.resolved(any(crowded))
    assert limits.precision and limits.max_seconds is not None
    samples, seconds = set(stops) == {"max_n"}, limits.max_seconds
    more_time = f"--max-time {_format_seconds(_round_up_step(2 * seconds))}"
    ways = [f"allow more time ({more_time})"] * (not policy.iters or bool(stops))
    ways += ["ask for more samples (-n 20)"] * (not policy.iters or not stops)
    return {
        **GENERAL,
        "ran_out": f"reached the limit of {limits.max_iters:,} samples"
        if samples
        else f"ran out of --max-time {_format_seconds(seconds)}",
        "precision": format_precision(policy, crowded, " %"),
        "more": f"max_iters = {round(_round_up_step(2 * limits.max_iters))} in a suite"
        if samples
        else more_time,
        "enough": " or ".join(ways),
        "less": f"--precision {100 * _round_up_step(2 * limits.precision):.2g}%",
        "why": "; more busy threads than cores" if crowded and all(crowded) else "",
        **(BUDGET if is_budgeted(command) else {}),
    }


def format_precision(policy: Policy, crowded: Collection[bool], percent: str) -> str:
    """The precision asked for; both where groups of ranks of both kinds (see ``fill_limits``)
    ran."""
    precisions = {policy.resolved(kind).precision or 0.0 for kind in crowded or (False,)}
    return " or ".join(f"±{100 * precision:.2g}{percent}" for precision in sorted(precisions))


def _round_up_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _format_seconds(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}s"


def explain_flag(
    flag: str, limits: Mapping[str, str] = GENERAL, command: Sequence[str] = ()
) -> Flag:
    """A flag with its meaning and remedy, in which the run's ``limits`` stand for placeholders, for
    a run with this command line."""
    row, again = look_up(flag), "{again}"  # a whole command, whose options stay as they are
    remedy = replace_options(row.remedy.format_map({**limits, "again": again}), command)
    return row._replace(
        meaning=row.meaning.format_map(limits), remedy=remedy.replace(again, limits["again"])
    )


def explain_doubts(
    outcomes: Sequence[Outcome],
    policy: Policy,
    crowded: Collection[bool],
    command: Sequence[str] = (),
    besides: Collection[str] = (),
    *,
    again: str,
) -> list[str]:
    """A line for each doubt that occurred, most frequent first: how often, its meaning, and what to
    do; one for all remarks together. Flags ``besides`` these are said elsewhere. ``again`` says how
    the run is continued with (resumption.describe_remedy)."""
    rows = [row for _, row in outcomes if row]
    doubted = Counter(flag_kind(flag) for row in rows for flag in list_doubts(row))
    for flag in besides:
        del doubted[flag]
    stops = {r.stop for r, row in outcomes if row and UNCONVERGED in row.flags}
    limits = fill_limits(policy, crowded, stops, command) | _name_call_paths(outcomes)
    limits["again"] = again
    explained = {flag: explain_flag(flag, limits, command) for flag in doubted}
    sentences = [
        f"{flag} ({times}): {explained[flag].meaning}; {explained[flag].remedy}"
        for flag, times in doubted.most_common()
    ]
    return [*sentences, *explain_remarks(rows, limits, command, besides)]


def explain_row_flags(rows: Iterable[Row], file: RunFile) -> list[str]:
    """A line for each doubt of these rows of a run, as ``explain_doubts`` has them."""
    outcomes = [(cycle.record, cycle.derived) for row in rows for cycle in row.cycles]
    crowded = {world.cramped for world in file.worlds}
    again = describe_remedy(file.run, store.run_name(file.path))
    doubts = explain_doubts(outcomes, file.run.policy, crowded, file.run.command, again=again)
    return [f"flagged: {plain_line(line)}" for line in doubts]


MARK = "·"  # of a row of which there is a remark


def _name_call_paths(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The text in place of GENERAL's of what calls pay, of the backends whose rows say so."""
    backends = {record.case.backend for record, row in outcomes if row and DISPATCH in row.flags}
    paths = [f"{find_call_path(name)} ({name})" for name in sorted(backends)]
    return {"call_path": ", ".join(paths)} if paths else {}


def explain_remarks(
    rows: Iterable[Derived],
    limits: Mapping[str, str],
    command: Sequence[str] = (),
    besides: Collection[str] = (),
) -> list[str]:
    """One line with all remarks and in how many rows each is, most frequent first; the only one is
    explained. One that is a doubt of other rows is a remark by its lesser degree, and says so."""
    rows = list(rows)
    remarks = Counter(flag_kind(flag) for row in rows for flag in list_remarks(row))
    doubted = {flag_kind(flag) for row in rows for flag in list_doubts(row)}
    for flag in besides:
        del remarks[flag]
    if not remarks:
        return []
    names = [
        f"{flag} ({times}{' more, too small for a doubt' * (flag in doubted)})"
        for flag, times in remarks.most_common()
    ]
    if len(names) > 1:
        return [
            f"{MARK} remarks, no doubts: {', '.join(names)}; collbench help flags explains them"
        ]
    row = explain_flag(next(iter(remarks)), limits, command)
    return [f"{MARK} {names[0]}: {row.meaning}; {row.remedy}"]


def common_flags(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """The flags that are said once for all rows, or all rows of a placement, in place of in each,
    by kind with these rows in words: those of a process group, and those of MOST rows. A flag that
    stays is none."""
    timed = [(record.case.in_place, row) for record, row in outcomes if row]
    scopes = {
        "all rows": [row for _, row in timed],
        "rows out of place": [row for in_place, row in timed if not in_place],
        "rows in place": [row for in_place, row in timed if in_place],
    }
    common: dict[str, str] = {}
    for flag in FLAGS:
        kinds = [{flag_kind(row_flag) for row_flag in row.flags} for _, row in timed]
        total = sum(flag.name in row_kinds for row_kinds in kinds)
        for scope, rows in scopes.items():
            flagged = sum(flag.name in map(flag_kind, row.flags) for row in rows)
            enough = len(rows) >= FEWEST_ROWS or flag.of_group
            if (
                total
                and flagged == total
                and flagged > MOST * len(rows)
                and enough
                and not flag.stays
            ):
                most = (
                    scope
                    if flagged == len(rows)
                    else f"{flagged} of {len(rows)} {scope}".replace("all ", "")
                )
                common.setdefault(flag.name, most)
    return common


MOST, FEWEST_ROWS = 0.8, 5


def common_lines(
    outcomes: Sequence[Outcome], policy: Policy, crowded: Collection[bool]
) -> list[str]:
    """A sentence for each of common_flags; that intervals are wide they show themselves."""
    stops = {r.stop for r, row in outcomes if row and UNCONVERGED in row.flags}
    limits = fill_limits(policy, crowded, stops) | _name_call_paths(outcomes)
    return [
        f"{scope}: {name}, {explain_flag(name, limits).meaning}"
        for name, scope in common_flags(outcomes).items()
        if name != UNCONVERGED
    ]


def name_flags(row: Derived, among: Iterable[str] | None = None) -> list[str]:
    """A row's flags as its line shows them, or those of them ``among`` which it is asked: bimodal
    with both modes' times, wire with its factor."""
    modes = row.times.modes.times if row.times.modes else ()
    both = "|".join(format_duration(mode).replace(" ", "") for mode in modes)
    more = {BIMODAL: f"bimodal:{both}", WIRE: f"wire:{row.carried:.2f}x"}
    return [more.get(flag, flag) for flag in (row.flags if among is None else among)]


def letter_flags(flags: Iterable[str]) -> list[str]:
    """Flags by their letters: B for bimodal, L1 for late:1, S! for skewed!. One without a letter
    keeps its name."""
    return [
        (look_up(flag).letter or flag_kind(flag))
        + flag.partition(":")[2].rstrip("!") * (flag_kind(flag) == "late")
        + "!" * flag.endswith("!")
        for flag in flags
    ]


def why_unknown(times: Sequence[FlaggedTime]) -> str:
    """Why none of these times is known, with how many there are of each reason."""
    reasons = Counter(
        "fewer than 6 samples"
        if FEW in time.flags
        else "over 25 % of samples discarded"
        if INVALID in time.flags
        else "wider than ±50 %"
        for time in times
    )
    return ", ".join(
        f"{reason}: {format_count(number, 'row')}" for reason, number in reasons.items()
    )
