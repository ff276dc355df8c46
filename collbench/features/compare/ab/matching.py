"""Rows of an experiment: cases of both sides, matched by all but what the sides differ in, and what
both can run alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.core.errors import UsageError
from collbench.features.compare.ab.variants import apply_variant
from collbench.records.types import ONE_SIDED, Record, strip_case
from collbench.run import plan, refusal
from collbench.run.jobs import Job
from collbench.run.launch.interpreter import SideName, Variant
from collbench.run.launch.places import Places
from collbench.run.order import fit_to_host
from collbench.run.plan import list_needs
from collbench.run.runner import runner_of
from collbench.suite import sweep
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Suite

SIDES: tuple[SideName, SideName] = ("base", "head")

WARM_SECONDS = 0.1

FEWEST_SAMPLES, MOST_SAMPLES = 20, 400  # of a launch

BETWEEN = 2.5e-4  # seconds from a sample to the next, about


class Row(NamedTuple):
    """A row of the experiment: what it is joined on, each side's job, and under which names it is
    judged, one for each group of ranks that measures it at once."""

    key: str
    jobs: dict[SideName, Job]
    judged_keys: Sequence[str]


def by_world(rows: Sequence[Row], policy: Policy) -> dict[object, list[Row]]:
    """Rows by what they need of a world on either side."""
    worlds: dict[object, list[Row]] = {}
    for row in rows:
        both = tuple(list_needs(row.jobs[name].case, policy) for name in SIDES)
        worlds.setdefault(both, []).append(row)
    return worlds


def fix_counts(
    jobs: dict[SideName, Job], pilots: Sequence[Record], policy: Policy
) -> dict[SideName, Job]:
    """Jobs with the calls a sample and warm-up that the pilots found enough, and as many samples as
    the time of a case allows, the same on both sides: a launch that costs a tenth of a second
    before its first sample is no place to save samples."""
    streaming = pilots[0].case.mode == "streaming"
    inner = None if streaming else max(record.inner for record in pilots) // policy.agg_iters
    samples = policy.iters if policy.fixes_samples(pilots[0].case.mode) else None
    slowest = max(
        float(np.median(record.times_ns)) / (1 if streaming else record.inner) for record in pilots
    )
    warmup = min(
        max(record.warmup for record in pilots), max(5, math.ceil(WARM_SECONDS * 1e9 / slowest))
    )
    sample = max(float(np.median(record.times_ns)) for record in pilots) / 1e9 + BETWEEN
    most = min(MOST_SAMPLES, math.ceil((policy.max_seconds or 0.0) / sample))
    fixed = {
        "samples": samples or max(FEWEST_SAMPLES, most),
        "warmup": warmup if policy.warmup is None else policy.warmup,
        "inner": inner,
        "control": False,  # the pilot has had one
    }
    return {name: msgspec.structs.replace(job, **fixed) for name, job in jobs.items()}


def match_rows(
    suite: Suite, variants: Mapping[SideName, Variant], places: Places | None = None
) -> tuple[list[Row], dict[SideName, list[Skip]]]:
    """Rows that both sides may run, on ``places`` if given, else on this machine, and the cases
    that each side leaves out. Raises UsageError where two rows of a side are one of the other."""
    suite = suite.resolve()
    cases, left_out = suite.expand()
    cases = [case for case in cases if not case.cycle]  # rounds repeat them
    left_out = [skip for skip in left_out if not skip.case.cycle]
    swept, given = (
        {name for env in envs for name, _ in env}
        for envs in (
            {case.env for case in cases},
            {variant.env for variant in variants.values()},
        )
    )
    if clash := swept & given:
        raise UsageError(
            f"the suite sweeps {', '.join(sorted(clash))}, which a side sets",
            "take it out of the suite, or out of --base and --head",
        )
    differs = {field for variant in variants.values() for field in variant.differs}
    jobs: dict[SideName, dict[str, Job]] = {}
    skips: dict[SideName, list[Skip]] = {name: list(left_out) for name in SIDES}
    policy, find_subject = suite.policy, suite.subject_finder
    for name in SIDES:
        side_cases = apply_variant(cases, variants[name])
        elsewhere = variants[name].python or places  # whose torch nobody has asked
        machine = (
            refusal.Place()
            if elsewhere
            else refusal.this_machine({case.backend for case in side_cases})
        )
        reasons = {
            case: _refuse_case(case, find_subject(case))
            or refusal.refuse_case(case, policy, machine)
            or (places.refuse(case) if places else "")
            for case in side_cases
        }
        possible = [case for case in side_cases if not reasons[case] and case.is_leader]
        skips[name] += [Skip(case, reason) for case, reason in reasons.items() if reason]
        fitting, no_room = fit_to_host(
            possible, policy, places.room if places else None, find_subject
        )
        skips[name] += [Skip(case, skip.reason) for skip in no_room for case in skip.case.siblings]
        jobs[name] = {strip_case(job.case, differs): job for job in fitting}
        if len(jobs[name]) < len(fitting):
            other = SIDES[1 - SIDES.index(name)]
            raise UsageError(
                f"--{other} sets one value of what the suite sweeps for --{name}: its rows cannot"
                " be told apart",
                f"set it for --{name} too (backend:…, algo:…)",
            )
    keys = [key for key in jobs["base"] if key in jobs["head"]]
    for name in SIDES:
        one_sided = [job.case for key, job in jobs[name].items() if key not in keys]
        skips[name] += [Skip(case, ONE_SIDED) for one in one_sided for case in one.siblings]
    return [
        _equalise_buffers(key, {name: jobs[name][key] for name in SIDES}, differs) for key in keys
    ], skips


def _refuse_case(case: Case, subject: Any) -> str:
    """The reason why a case is invalid or its subject cannot be run; else an empty string."""
    if subject is None:
        return sweep.refuse_case(case)
    return runner_of(case).refuse(case, subject, refusal.refuse_anywhere)


def refuse_nothing(
    rows: Sequence[Row], skips: Mapping[SideName, Sequence[Skip]], command: Sequence[str]
) -> None:
    """Raises CannotRun where there is no row that both sides may run, which names the side where
    one alone has the reason."""
    if not rows:
        base, head = ({skip.reason for skip in skips[side]} - {ONE_SIDED} for side in SIDES)
        one_sided = [f"base: {why}" for why in base - head] + [
            f"head: {why}" for why in head - base
        ]
        raise plan.nothing_runs(sorted([*(base & head), *one_sided]) or [ONE_SIDED], command)


def _equalise_buffers(key: str, jobs: dict[SideName, Job], differs: Collection[str]) -> Row:
    """A row whose sides have equally many buffers taking turns."""
    least = min(jobs.values(), key=lambda job: job.rotation)
    even = {
        name: msgspec.structs.replace(j, rotation=least.rotation, cache=least.cache)
        for name, j in jobs.items()
    }
    return Row(key, even, [strip_case(sibling, differs) for sibling in least.case.siblings])
