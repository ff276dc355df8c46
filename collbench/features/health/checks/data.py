"""Checks of data: what was wrong, what differed between two calls, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count, plain_line
from collbench.features.health.checks.hosts import RANK, SHOWN, CheckResult
from collbench.features.health.checks.orders import (
    describe_change,
    has_order,
    is_changed,
    list_launches,
    make_order_evidence,
)
from collbench.features.health.findings import Finding, Subject
from collbench.features.health.night import (
    Night,
    NightRecord,
    list_several,
    locate_rank,
    make_evidence,
)
from collbench.records import store
from collbench.records.choice import describe_heard
from collbench.records.derive import is_broken, is_without_samples
from collbench.records.types import RunFile
from collbench.run.resumption import format_command
from collbench.suite.case_words import describe_case


def check_data(night: Night) -> CheckResult:
    """Every element that came out wrong, by the rank that has the first of each case."""
    wrong = [entry for entry in night.records if entry.record.status == "wrong"]
    compared = [e for e in night.records if e.record.checked or e.record.status == "wrong"]
    if not compared:
        return CheckResult(missing="nothing verified yet")
    by_subject: dict[Subject, list[NightRecord]] = defaultdict(list)
    for entry in wrong:
        first = entry.record.first_wrong
        by_subject[
            locate_rank(entry.world, first.rank) if first else Subject("cluster", "unknown rank")
        ].append(entry)
    return CheckResult(
        f"{sum(entry.record.checked for entry in compared):,} elements of"
        f" {format_count(len(compared), 'record')} compared bit for bit",
        [_find_wrong(subject, members) for subject, members in by_subject.items()],
    )


def _find_wrong(subject: Subject, members: Sequence[NightRecord]) -> Finding:
    """The finding for records of wrong data, with the first wrong element of some of them."""
    evidence = [
        make_evidence(
            entry,
            f"element {first.index} at rank {first.rank}{' ' * bool(first.when)}{first.when}",
            first.got,
            first.expected,
        )
        for entry in members[:SHOWN]
        if (first := entry.record.first_wrong)
    ]
    total = sum(entry.record.wrong or 0 for entry in members)
    return Finding(
        check="data",
        severity="critical",
        subject=subject,
        sure=1.0,
        evidence=evidence,
        what=f"received wrong data: {format_count(total, 'element')} in {_name_cases(members)}",
        advice=(
            "take the host out of service: memory, GPU or link corrupts data. A case with few ranks"
            " tells which"
        ),
    )


def check_repeatability(night: Night) -> CheckResult:
    """Whether the same floats are added up to the same result, to the bit, by two calls and by all
    launches; and whether all launches add in one order."""
    by_case: dict[str, list[NightRecord]] = defaultdict(list)
    for entry in night.records:
        if entry.record.bits or has_order(entry):
            by_case[entry.record.case.key].append(entry)
    if not by_case:
        return CheckResult(
            missing="no run keeps digests of sums that have to be rounded (policy: bitwise = true)"
            " or their order (adds_as = true)"
        )
    by_label: dict[str, list[NightRecord]] = defaultdict(list)
    for members in by_case.values():
        if _has_other_bits(members) or is_changed(members):
            by_label[members[0].record.case.label] += members
    launches = max(map(len, by_case.values()))
    has_digests = any(entry.record.bits for members in by_case.values() for entry in members)
    note = (
        f"sums of {format_count(len(by_case), 'case')}"
        f"{' by two calls' * has_digests} in each of {format_count(launches, 'launch')}"
    )
    return CheckResult(note, [_find_unlike(label, members) for label, members in by_label.items()])


def _has_other_bits(entries: Iterable[NightRecord]) -> bool:
    """Whether the results that are kept of a case differ."""
    return len({digest for entry in entries for digest in entry.record.bits}) > 1


def _find_unlike(label: str, every: Sequence[NightRecord]) -> Finding:
    """The finding for a collective that adds the same floats up to different bits, or in different
    orders."""
    by_case: dict[str, list[NightRecord]] = defaultdict(list)
    for entry in every:
        by_case[entry.record.case.key].append(entry)
    cases = dict.fromkeys(msgspec.structs.replace(entry.record.case, cycle=0) for entry in every)
    calls = any(len(entry.record.bits) > 1 for entry in every)
    orders = [list_launches(members) for members in by_case.values()]
    changes = list_several(dict.fromkeys(filter(None, map(describe_change, orders))))
    chosen = {describe_heard(entry.record.chose) for entry in every} - {""}
    why = f"; the library chose {list_several(sorted(chosen))}" if len(chosen) > 1 else ""
    has_other_bits = any(map(_has_other_bits, by_case.values()))
    what = "adds the same floats up to other bits" if has_other_bits else "adds in another order"
    return Finding(
        check="repeatability",
        severity="hint",
        subject=Subject("collective", label),
        what=(
            f"{what} {'call by call' if calls else 'launch by launch'}, in"
            f" {list_several(map(describe_case, cases))}{why}{changes and f'; {changes}'}"
        ),
        advice=(
            "its order of adding changes: fix algorithm and ranks' places for results that can be"
            " repeated. If nothing changes there, suspect memory or links"
        ),
        evidence=[
            *[item for launches in orders for item in make_order_evidence(launches)][:SHOWN],
            *[
                make_evidence(entry, "digest", ", ".join(entry.record.bits))
                for entry in every
                if entry.record.bits
            ][:SHOWN],
        ],
    )


def _advise_after_failure(file: RunFile) -> str:
    """Advice on a host where cases of a run failed."""
    command = format_command(file.run, store.run_name(file.path))
    rest = f"; {command} measures what is missing" if command else ""
    return f"see dmesg and the processes of that host{rest}"


def check_completeness(night: Night) -> CheckResult:
    """Cases that hung, died or raised, and runs that did not come to their end."""
    failed = [entry for entry in night.records if is_broken(entry.record)]
    empty = sum(is_without_samples(entry.record) for entry in failed)
    by_subject: dict[Subject, list[NightRecord]] = defaultdict(list)
    for entry in failed:
        if not is_without_samples(entry.record):
            by_subject[_find_accused(entry)].append(entry)
    findings = [
        Finding(
            check="completeness",
            severity="critical",
            subject=subject,
            what=f"is where {format_count(len(members), 'case')} failed: {_name_cases(members)}",
            advice=_advise_after_failure(members[0].file),
            evidence=[
                make_evidence(entry, "failed", plain_line(entry.record.note))
                for entry in members[:SHOWN]
            ],
        )
        for subject, members in by_subject.items()
    ]
    short = [why for file in night.files if (why := _describe_end(file.end, file.run.id))]
    if short and not findings:
        return CheckResult(missing=list_several(short))
    skipped = Counter(
        entry.record.note for entry in night.records if entry.record.status == "skipped"
    )
    broken = len(failed) - empty
    note = (
        f"{format_count(len(night.records) - skipped.total() - broken, 'case')} of"
        f" {format_count(len(night.files), 'run')} ended"
    )
    note += f"; {format_count(broken, 'case')} failed" * bool(broken)
    note += f"; {format_count(len(short), 'run')} did not come to an end" * bool(short)
    note += f"; {format_count(empty, 'case')} without a valid sample" * bool(empty)
    note += "".join(
        f"; {times:,} skipped: {plain_line(why)}" for why, times in skipped.most_common(2)
    )
    return CheckResult(note, findings)


def _name_cases(members: Iterable[NightRecord]) -> str:
    return list_several(dict.fromkeys(describe_case(entry.record.case) for entry in members))


def _describe_end(end: Any, name: str) -> str:
    if end is None:
        return f"{name} was cut short: its file has no end"
    return (
        f"{name} ended with {end.exit}: {plain_line(end.note)}"
        if end.exit not in (Exit.OK, Exit.WRONG_DATA)
        else ""
    )


def _find_accused(entry: NightRecord) -> Subject:
    """The one rank that the note of a failed record names, if it names one."""
    ranks = set(RANK.findall(entry.record.note))
    return (
        locate_rank(entry.world, int(ranks.pop()))
        if len(ranks) == 1
        else Subject("cluster", "no one rank alone")
    )
