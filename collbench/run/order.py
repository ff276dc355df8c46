"""A run as it is asked for, and what of it would run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from collbench.core.backend_info import backend_info
from collbench.records.types import Record, RunFile
from collbench.run import memory, plan, refusal
from collbench.run.jobs import Job
from collbench.run.launch import join
from collbench.run.launch.places import PlaceSource
from collbench.run.reporter import PlanRow
from collbench.run.resumption import Resumption
from collbench.run.runner import runner_of
from collbench.suite import faults
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy
from collbench.suite.sweep import Suite


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is asked for."""

    suite: Suite
    command: Sequence[str]  # the words it was asked with
    named_axes: tuple[str, ...] | None = None  # as of Run
    save: bool = True
    output: Path | None = None  # file or folder to save to; None: where runs are kept
    tag: str = ""
    budget: float | None = None  # seconds for all of it
    resumed: RunFile | None = None  # the run to go on with
    launcher: str = "auto"
    source: PlaceSource | None = None  # who gives places for ranks on other hosts
    # asked once all cases are done: those that the run's one world goes on with; empty: it ends
    next_cases: Callable[[], Sequence[Case]] | None = None

    @property
    def place_seconds(self) -> float:
        """How long places for ranks may take to be free."""
        return self.suite.policy.timeout or join.SECONDS


class Prepared(msgspec.Struct, frozen=True):
    """What of an order would run."""

    suite: Suite  # with its final policy
    jobs: list[Job]
    skips: list[Skip]  # what is left out, and why
    cases: list[Case]  # of the table, in its order, with those that a resumed run has done
    earlier: Resumption


def prepare_order(order: Order, at: memory.Rooms | None = None) -> Prepared:
    """Jobs and skips of an order, with repetitions cut to its budget. Launches nothing."""
    suite = order.suite.resolve()
    every, skips = suite.expand()
    if order.resumed and not suite.names_modes:
        every = _keep_modes(every, order.resumed)
        left_out = _keep_modes([skip.case for skip in skips], order.resumed)
        skips = [Skip(case, skip.reason) for case, skip in zip(left_out, skips, strict=True)]
    faults.refuse_faults(every, suite.policy)
    elsewhere = order.source or join.detect_launcher(
        order.launcher
    )  # ranks may be on several hosts
    machine = refusal.Place() if elsewhere else refusal.this_machine(suite.values("backends"))
    rooms = at or partial(_measure_room_alike, elsewhere.local_n if elsewhere else 0)
    if order.source:
        machine = machine._replace(launcher=order.source.name)
    find_subject = suite.subject_finder

    def find_refusal(case: Case) -> str:
        subject = find_subject(case)
        refuse_call = refusal.refuse_anywhere
        refusal_reason = runner_of(case).refuse(case, subject, refuse_call) if subject else ""
        return refusal_reason or refusal.refuse_case(case, suite.policy, machine)

    never = {case: reason for case in every if (reason := find_refusal(case))}
    skips += [Skip(case, reason) for case, reason in never.items()]
    earlier = Resumption(order.resumed)
    done = earlier.kept_cases
    leading = [case for case in every if case.is_leader]  # and stands for its siblings
    jobs, no_room = fit_to_host(
        [
            case
            for case in leading
            if case not in never
            and not (case in done and earlier.undone_cases.isdisjoint(case.siblings))
        ],
        suite.policy,
        rooms,
        find_subject,
    )
    skips += [Skip(case, skip.reason) for skip in no_room for case in skip.case.siblings]
    untold = [skip for skip in skips if skip.case not in done]
    shown_cases = {case for job in jobs for case in job.case.siblings}
    shown_cases |= {line.case for line in earlier.reported if isinstance(line, Record)}
    cases = [case for case in every if case in shown_cases]
    return Prepared(suite, jobs, untold, cases, earlier)


def _keep_modes(cases: Sequence[Case], resumed: RunFile) -> list[Case]:
    """Cases of default modes, in those that the run has measured: by the cores of its hosts, and in
    another version, others may be the default now."""
    measured = [record.case for record in resumed.records if not record.case.subject]
    modes = {(case.backend, case.world): case.mode for case in measured}
    return [
        case
        if case.subject or (mode := modes.get((case.backend, case.world), case.mode)) == case.mode
        else msgspec.structs.replace(case, mode=mode)
        for case in cases
    ]


def _measure_room_alike(local_n: int, backend: str, n: int, policy: Policy) -> memory.Room:
    """The room that ranks would share if hosts of ``local_n`` ranks, 0 for all, were like this."""
    return memory.measure_room(backend, min(n, local_n or n), policy)


def fit_to_host(
    cases: Sequence[Case],
    policy: Policy,
    at: memory.Rooms | None = None,
    find_subject: Callable[[Case], Any] = lambda case: None,
) -> tuple[list[Job], list[Skip]]:
    """Jobs for the cases that fit the memory of this host or its GPUs, in their order, and skips
    for the rest."""
    measured = [c for c in cases if not backend_info(c.backend).predicts]
    measure_room = cache(lambda backend, n: (at or memory.measure_room)(backend, n, policy))
    jobs, no_room = plan.fit_jobs(
        measured, policy, lambda case: measure_room(case.backend, case.world), find_subject
    )
    fitting = {id(job.case): job for job in jobs}
    return [
        fitting.get(id(c)) or Job(c, 1, "")
        for c in cases
        if backend_info(c.backend).predicts or id(c) in fitting
    ], no_room


def plan_rows(prepared: Prepared) -> list[PlanRow]:
    """The rows of --dry-run."""
    policy = prepared.suite.policy
    rows = [
        PlanRow(
            case=case,
            rotation=job.rotation,
            seconds=plan.estimate_seconds(job, policy) if case.is_leader else 0.0,
            most=plan.estimate_seconds(job, policy, most=True) if case.is_leader else 0.0,
            bytes_per_rank=runner_of(case).measure_memory(job, policy),
            moved=round(job.case.row.busbw(job.case.n) * job.case.moved),
        )
        for job in prepared.jobs
        for case in job.case.siblings[::-1]
    ]
    return rows + [PlanRow(case=skip.case, skipped=skip.reason) for skip in prepared.skips]


def refuse_nothing(prepared: Prepared, command: Sequence[str]) -> None:
    """Raises CannotRun where there is nothing to run by this command line."""
    if not prepared.jobs:
        raise plan.nothing_runs([skip.reason for skip in prepared.skips], command)
