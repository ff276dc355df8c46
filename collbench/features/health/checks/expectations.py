"""What machines of a kind reached elsewhere: hints for a first day without history, never a gate;
and what an operator expects of machines, which may be one (`health --expect`).

In a table the lowest of several curves of one severity holds for a row, as its author knows them
all. Of several tables each must be met, so that the strictest decides; a row of which tables expect
something different is a finding, too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from typing import NamedTuple

from collbench.core.text import format_bandwidth, format_count, format_size
from collbench.features.health.checks.curves import Curve, load_curves
from collbench.features.health.checks.guidelines import is_forced
from collbench.features.health.checks.hosts import CheckResult
from collbench.features.health.findings import Evidence, Finding, Severity, Subject
from collbench.features.health.night import Night, Timing
from collbench.records.case_rows import TAU_DEDICATED
from collbench.records.types import Choice
from collbench.suite.case import Case
from collbench.suite.case_words import describe_case

# Limits of two tables that are closer agree: no comparison of runs would tell them apart, and
# figures read between two sizes of a curve are not known any better.
TOLERANCE = TAU_DEDICATED

MIG = "MIG"  # in the name of a slice of a GPU


class Expected(NamedTuple):
    """What a curve expects of a case, and the least that suffices, in GB/s of busbw."""

    curve: Curve
    busbw: float
    limit: float


class Machine(NamedTuple):
    """Where a night ran: the GPUs' name, empty where there are none; hosts; and by the size of a
    world how many ranks each host has, and hosts. Shapes are those whose hosts are alike and whose
    ranks all have such a GPU, or none."""

    device: str
    hosts: list[str]
    shapes: dict[int, tuple[int, int]]

    def is_subject_of(self, curve: Curve) -> bool:
        """Whether a curve is about such machines, in a shape that they were measured in."""
        return self.has_kind(curve) and (curve.gpus, curve.nodes) in self.shapes.values()

    def has_kind(self, curve: Curve) -> bool:
        """Whether a curve is about such machines."""
        kind = not curve.device or self._is_device(curve.device)
        return kind and all(re.search(curve.machine, host) for host in self.hosts)

    def _is_device(self, pattern: str) -> bool:
        """Whether a curve's pattern means such GPUs. One that does not say MIG means no slice."""
        matches_mig = MIG not in self.device or MIG in pattern
        return bool(self.device and matches_mig and re.search(pattern, self.device))


def check_expectations(
    night: Night, curves: Sequence[Curve] | None = None, today: date | None = None
) -> CheckResult:
    """Sizes at which a collective stays below what is expected: by the ``curves``, or what was
    reached elsewhere on machines like this one. Of curves that should have failed something and
    that no row says anything of, the first is missing."""
    machine = describe_machine(night)
    if not machine.shapes or (curves is None and not machine.device):
        return CheckResult(
            idle="no GPUs of one kind on every host: nothing is known to set them against"
        )
    today = today or date.today()
    relevant = list(filter(machine.is_subject_of, load_curves() if curves is None else curves))
    if not relevant:
        kinds = " or ".join(
            f"{nodes} x {per_host}" for per_host, nodes in sorted(set(machine.shapes.values()))
        )
        return CheckResult(
            missing=f"no figures are known of {kinds} {machine.device or 'CPU ranks'}"
        )
    chose = list_choices(night)
    findings = []
    checked_keys, unknown_keys, matched_ids = set[str](), set[str](), set[int]()
    differing: list[tuple[Timing, Expected, Expected]] = []
    for timing in night.fit:
        expected = match_curves(relevant, chose, timing.case, machine.shapes)
        if not expected:
            continue
        reached = measure_busbw(timing)
        if math.isnan(reached):
            unknown_keys.add(timing.case.key)
            continue
        checked_keys.add(timing.case.key)
        matched_ids.update(id(each.curve) for each in expected)
        for rivals in rank_rivals(expected):
            strictest, laxest = rivals[0], rivals[-1]
            if are_different(strictest, laxest):
                differing.append((timing, strictest, laxest))
            if reached < strictest.limit:
                findings.append(_find_slow(timing, strictest, reached, today))
    gaps = f"{format_count(len(unknown_keys), 'row')} without a busbw" * bool(unknown_keys)
    if not checked_keys:
        return CheckResult(
            missing=gaps or "no row is of a collective and size of which figures are known"
        )
    old = sum(curve.expires < today for curve in relevant)
    unseen = [
        curve.name
        for curve in relevant
        if curve.severity != "hint" and id(curve) not in matched_ids
    ]
    return CheckResult(
        f"{len(checked_keys):,} rows set against {len(relevant)} curves"
        + f", {old} of them expired" * bool(old)
        + f"; {gaps}" * bool(gaps),
        [*findings, *_find_different(differing)],
        missing=f"no row says anything of {unseen[0]}" if unseen else "",
    )


def measure_busbw(timing: Timing) -> float:
    """The busbw in GB/s of a row over its launches; nan where the file that said how data is split
    cannot be read any more."""
    return timing.moved / timing.median * timing.case.row.busbw(timing.case.n)


def list_choices(night: Night) -> dict[str, Choice]:
    """What the library said it ran, by the key of cases."""
    return {t.record.case.key: t.record.chose for t in reversed(night.records) if t.record.chose}


def are_different(one: Expected, other: Expected) -> bool:
    """Whether two limits of a row, the larger first, differ by more than TOLERANCE."""
    return one.limit > other.limit * (1 + TOLERANCE)


def describe_machine(night: Night) -> Machine:
    """The machine of a night's runs. GPUs are named as their ranks name them: the environment has
    all of a host, in the words of NVML or AMD SMI, and no slices."""
    names = {state.name for entry in night.records for state in entry.record.gpus} or {
        str(device.get("name"))
        for file in night.files
        for device in (file.run.environment.get("gpus") or {}).get("devices") or []
    }
    device = names.pop() if len(names) == 1 else ""
    shapes: dict[int, set[tuple[int, int]]] = {}
    for world in (world for file in night.files for world in file.worlds if world.n > 1):
        rank_counts = Counter(info.host for info in world.ranks)
        is_uniform = all(bool(info.gpu) == bool(device) for info in world.ranks)
        if is_uniform and len(set(rank_counts.values())) == 1:
            shapes.setdefault(world.n, set()).add((world.n // len(rank_counts), len(rank_counts)))
    alike = {n: shape.pop() for n, shape in shapes.items() if len(shape) == 1}
    return Machine(device, night.hosts, alike)


def expect_case(
    curves: Sequence[Curve],
    chose: Mapping[str, Choice],
    case: Case,
    shapes: Mapping[int, tuple[int, int]],
) -> list[list[Expected]]:
    """What is expected of a case, for each severity: by each table the lowest limit of its curves
    at this size, the strictest first."""
    return rank_rivals(match_curves(curves, chose, case, shapes))


def match_curves(
    curves: Sequence[Curve],
    chose: Mapping[str, Choice],
    case: Case,
    shapes: Mapping[int, tuple[int, int]],
) -> list[Expected]:
    """What is expected of a case by each curve of its collective and size that was made the way the
    library said it ran, which ``chose`` has by the key of cases; nothing where a setting forced
    that."""
    if is_forced(case):
        return []
    is_native = case.algorithm == "native"
    expected = []
    for curve in curves:
        is_library = is_native and (case.backend in ("nccl", "rccl") or not curve.device)
        if (
            curve.collective == case.collective
            and (case.label == curve.backend if curve.backend else is_library)
            and not (case.groups or case.background)
            and shapes.get(case.n) == (curve.gpus, curve.nodes)
            and curve.switch in (None, is_in_switch(chose.get(case.key)))
            and (busbw := curve.at(case.size)) is not None
        ):
            expected.append(Expected(curve, busbw, busbw * curve.share_at(case.size)))
    return expected


def rank_rivals(expected: Sequence[Expected]) -> list[list[Expected]]:
    """For each severity, by each table the lowest limit, the strictest first."""
    lowest: dict[tuple[Severity, str], Expected] = {}
    for each in expected:
        key = each.curve.severity, each.curve.file
        if key not in lowest or each.limit < lowest[key].limit:
            lowest[key] = each
    by_severity: dict[Severity, list[Expected]] = {}
    for (severity, _), rival in lowest.items():
        by_severity.setdefault(severity, []).append(rival)
    return [sorted(rivals, key=lambda rival: -rival.limit) for rivals in by_severity.values()]


def is_in_switch(chose: Choice | None) -> bool:
    """Whether the switch adds up, as NVLS and SHARP do."""
    return bool(chose and chose.algorithm.startswith(("NVLS", "CollNet")))


def describe_origin(curve: Curve, today: date) -> str:
    """Where a curve is from: its source and table, since when, how well it is known."""
    is_own = bool(curve.file)  # of whose figures its author knows how they were made
    parts = [
        f"{curve.source} in {curve.file}" if is_own else curve.source,
        f"noted {curve.day}",
        "verified" if curve.verified else "" if is_own else "not verified",
        "" if is_own and curve.kind == "measured" else curve.kind,
        "EXPIRED" if curve.expires < today else "",
    ]
    return ", ".join(filter(None, parts))


def _name_check(curve: Curve) -> str:
    """The check that a curve belongs to: `expected` is that of an operator's tables."""
    return "expected" if curve.file else "expectation"


def _find_slow(timing: Timing, expected: Expected, reached: float, today: date) -> Finding:
    """The finding for a row that does not reach the busbw that a curve expects (both in GB/s)."""
    curve = expected.curve
    return Finding(
        check=_name_check(curve),
        severity=curve.severity,
        subject=Subject("collective", describe_case(timing.case)),
        what=f"reaches {reached / expected.busbw:.0%} of what is expected of such machines"
        f" ({describe_origin(curve, today)})",
        advice=(
            "conditions differ between sites; where history begins, it takes over from these"
            " figures"
            if curve.severity == "hint"
            else "collbench pairs and locate say whether a host or a link is slow"
        ),
        evidence=[
            Evidence(
                what=f"busbw at {format_size(timing.case.size)}",
                value=format_bandwidth(reached),
                unit="GB/s",
                expected=format_bandwidth(expected.busbw),
                run=timing.run,
                case=timing.case.key,
            )
        ],
    )


def _find_different(differing: Sequence[tuple[Timing, Expected, Expected]]) -> list[Finding]:
    """A finding for each two tables that ask different things of the same rows."""
    pairs: dict[tuple[str, str], list[tuple[Timing, Expected, Expected]]] = {}
    for timing, strictest, laxest in differing:
        pairs.setdefault((strictest.curve.file, laxest.curve.file), []).append(
            (timing, strictest, laxest)
        )
    findings = []
    for rows in pairs.values():
        timing, strictest, laxest = max(rows, key=lambda row: row[1].limit / row[2].limit)
        more = f", and in {format_count(len(rows) - 1, 'more row')}" if len(rows) > 1 else ""
        proofs = [
            Evidence(
                what=f"{origin.curve.file} ({origin.curve.source}): least busbw",
                value=format_bandwidth(origin.limit),
                unit="GB/s",
                run=timing.run,
                case=timing.case.key,
            )
            for origin in (strictest, laxest)
        ]
        findings.append(
            Finding(
                check=_name_check(strictest.curve),
                severity="hint",
                subject=Subject("collective", describe_case(timing.case)),
                what=f"has two limits: {describe_difference(strictest, laxest)}{more}",
                advice="make the tables agree, or take the one that no longer holds out of the"
                " folder",
                evidence=proofs,
            )
        )
    return findings


def describe_difference(strictest: Expected, laxest: Expected) -> str:
    """By how much the limits of two tables differ, and which of them decides."""
    strict_file, lax_file = strictest.curve.file, laxest.curve.file
    return (
        f"{strict_file} asks for {strictest.limit:.4g} GB/s,"
        f" {strictest.limit / laxest.limit - 1:.0%} more than {lax_file}; {strict_file} decides, as"
        " the stricter one"
    )
