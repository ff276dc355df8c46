"""A life, or a loss, on the rank that starts a process for it and watches it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import numpy as np

from collbench.core.backend_sources import list_imports
from collbench.core.errors import CannotRun, first_line
from collbench.core.text import format_duration
from collbench.features.lifecycle import rows
from collbench.features.lifecycle.findings import LossFindings, PhaseFindings, RankLoss
from collbench.features.lifecycle.instructions import Instructions
from collbench.features.lifecycle.request import (
    LATE_HINT,
    SILENT,
    WINDOW,
    Life,
    Loss,
    refuse_faults,
)
from collbench.features.lifecycle.torch_life import LOADED, LOOK, make_store
from collbench.features.lifecycle.watching import (
    STARTING,
    Watched,
    open_nursery,
    wait_while,
    watch_fork,
    watch_life,
)
from collbench.machine import environment
from collbench.run.jobs import Job
from collbench.run.launch.board import Phase
from collbench.run.rank.bench import Bench
from collbench.run.rank.clock_links import control_address, listen_at
from collbench.run.rank.outcome import (
    CaseOutcome,
    FailedCase,
    MeasuredCase,
    SkippedCase,
    Timing,
    WrongData,
)

LOOK_SHARE = 0.25  # of the time since it began, a wait lasts until its next look at the store
PATIENCE = 3.0  # a library's own limit for waiting is this part of a life's
NO_MEETING = "MPI_Init finds the other ranks itself: its time is in communicator_init"

Blocks = Generator[None, None, Sequence[CaseOutcome]]


class _Watcher:
    """What watching a life and a loss have in common."""

    def __init__(self, bench: Bench, job: Job) -> None:
        self._bench, self._case = bench, job.case
        self._hosts = bench.control.collect(environment.host_name())
        self._one_host = len(set(self._hosts)) == 1
        self._beat = partial(bench.board.beat, bench.rank)
        self._store: Any = None

    def _open_store(self) -> tuple[str, int]:
        """The address of a store that rank 0 serves, for the processes to meet at."""
        answer: Any = None
        if self._bench.rank == 0:
            try:
                address = "127.0.0.1" if self._one_host else control_address()
                self._store, port = _serve_any_store(address)
                answer = [address, port]
            except (OSError, RuntimeError) as e:
                answer = [f"no store to meet at: {first_line(e)}", 0]
        address, port = self._bench.control.broadcast(answer)
        if not port:
            raise CannotRun(address, "set GLOO_SOCKET_IFNAME to an interface")
        if self._store is None:
            limit = timedelta(seconds=STARTING)
            self._store = make_store(
                address, port, is_master=False, wait_for_workers=False, timeout=limit
            )
        return address, port

    def _come_to(self, point: str, ranks: int = 1) -> None:
        """Report that so many ranks have come to a point. The last of all ranks opens it."""
        with suppress(RuntimeError):  # rank 0 has ended, and its store with it
            if self._store.add(f"came to {point}", ranks) == self._case.n:
                self._store.set(point, "")

    def _wait_for(
        self, point: str, seconds: float, is_open: Callable[[], bool] = lambda: True
    ) -> None:
        """Wait until a point is in the store, as long as something is open, at most so long, and
        show that this rank is alive. The store is asked ever more rarely, as the lives that are
        measured use it, too; its own wait would print warnings."""
        begun = next_look = time.monotonic()

        def is_waiting() -> bool:
            nonlocal next_look
            if not is_open():
                return False
            now = time.monotonic()
            if now < next_look:
                return True
            next_look = now + min(LOOK, LOOK_SHARE * (now - begun))
            return not self._store.check([point])

        with suppress(RuntimeError):  # rank 0 has ended, and its store with it
            wait_while(is_waiting, seconds, self._beat)

    def _wait_for_loading(self, watched: Watched) -> bool:
        """Wait until the processes that this rank watches have loaded their library, or ended;
        whether they have within STARTING. The last rank to know lets others go on (LOADED)."""

        def is_loading() -> bool:
            watched.look()
            has_loaded = all(watched.find(rank, "imported") for rank in watched.ranks)
            return not (has_loaded or watched.ended)

        in_time = wait_while(is_loading, STARTING, self._beat)
        self._come_to(LOADED, len(watched.ranks))
        return in_time

    def _instruct(self, limit: float, **more: Any) -> Instructions:
        """What the process in this rank's place is told."""
        bench = self._bench
        local_rank = self._hosts[: bench.rank].count(self._hosts[bench.rank])
        return Instructions(
            rank=bench.rank,
            world=self._case.n,
            local_rank=local_rank,
            backend=self._case.backend,
            folder="",
            parent=0,
            address=self._open_store(),
            one_clock=self._one_host,
            limit=limit,
            patience=limit / PATIENCE,
            imports=tuple(list_imports()),
            **more,
        )


class LifeTrial(_Watcher):
    """A run.runner.Trial of a life."""

    def __init__(self, bench: Bench, job: Job) -> None:
        super().__init__(bench, job)
        self._life: Life = job.subject

    def run(self) -> Blocks:
        """One life on all ranks, and what each phase took."""
        bench, life = self._bench, self._life
        under_mpi = self._case.backend == "mpi"
        if under_mpi and not self._one_host:
            raise CannotRun(
                "a life on MPI is started by an mpirun on one host, and these ranks are on several",
                "measure it on one host",
            )
        if reason := refuse_faults(bench.policy.inject):
            raise CannotRun(reason, LATE_HINT)
        bench.board.enter(bench.rank, Phase.MEASURING)
        yield
        delay = sum(fault.amount for fault in bench.list_faults())
        given = self._instruct(
            life.limit,
            collective=life.collective,
            nbytes=life.nbytes,
            calls=life.calls,
            groups=life.groups,
            delay=delay,
        )
        mine: dict[str, Any] = {}
        with bench.control.refusing_alike():
            try:
                if bench.rank == 0 or not under_mpi:
                    mine = self._watch(given)
            except CannotRun:
                self._come_to(LOADED)  # others wait for it there
                raise
            finally:
                self._come_to("the end")
            self._wait_for("the end", 2 * STARTING + life.limit)
        reports = bench.control.collect(mine)
        bench.board.enter(bench.rank, Phase.REPORTING)
        if bench.rank:
            return []
        return self._make_outcomes({k: v for report in reports for k, v in report.items()})

    def _watch(self, given: Instructions) -> dict[str, Any]:
        """Start the process and see it through; what each rank that it makes has to report."""
        with watch_life(given) as (watched, began):

            def is_open() -> bool:
                watched.look()
                return not watched.ended

            limit = STARTING
            in_time = self._wait_for_loading(watched)
            if in_time:
                self._wait_for(LOADED, limit, is_open)
                limit = given.limit
                in_time = wait_while(is_open, limit, self._beat)
            watched.look()
            exceeded = 0.0 if in_time else limit
            return {
                str(rank): self._report(watched, rank, began, exceeded) for rank in watched.ranks
            }

    def _report(self, watched: Watched, rank: int, began: int, exceeded: float) -> dict[str, Any]:
        """The events that one rank has written, and why it did not come to its end: a limit of so
        many seconds may be ``exceeded``."""
        events = watched.events[rank]
        report: dict[str, Any] = {
            "began": began,
            "events": [msgspec.to_builtins(event) for event in events],
            "trouble": "",
        }
        if failed := watched.find(rank, "failed"):
            report["trouble"] = f"rank {rank}, {watched.last_phase(rank)}: {failed.text}"
        elif not watched.find(rank, "done"):
            doing = watched.last_phase(rank)
            why = watched.last_complaint() or f"it ended with status {watched.process.poll()}"
            hung = f"{SILENT}: rank {rank} has not come past {doing} in {exceeded:g} s"
            report["trouble"] = hung if exceeded else f"rank {rank}, {doing}: {why}"
        return report

    def _make_outcomes(self, reports: dict[str, Any]) -> Sequence[CaseOutcome]:
        """An outcome for each phase, by its row."""
        by_rank = [reports[str(rank)] for rank in range(self._case.n)]
        # others waited for the rank that came least far
        least_first = sorted(by_rank, key=_count_begun)
        troubles = [report["trouble"] for report in least_first if report["trouble"]]
        events = [report["events"] for report in by_rank]
        checks = [event for of_rank in events for event in of_rank if event["name"] == "checked"]
        verified = sum(check["verified"] for check in checks)
        if wrong := sum(check.get("wrong", 0) for check in checks):
            note = f"{wrong:,} wrong elements in the first or the last {self._life.collective}"
            note = "; ".join([note, *troubles[:1]])
            return [WrongData(wrong, note, None, verified)] * len(rows.TABLE.rows)
        if troubles:
            first = next((text for text in troubles if text.startswith(SILENT)), troubles[0])
            return [FailedCase(first)] * len(rows.TABLE.rows)
        return [self._make_outcome(row, by_rank, verified) for row in rows.TABLE.rows]

    def _make_outcome(self, row: str, by_rank: list[Any], verified: int) -> CaseOutcome:
        """The outcome of one phase."""
        events = [report["events"] for report in by_rank]
        if row == rows.START:
            return _measure_start(by_rank)
        if row == rows.JOIN and self._case.backend == "mpi":
            return SkippedCase(NO_MEETING)
        phases = [_find(of_rank, "phase", row) for of_rank in events]
        begins, ends = zip(*((p.get("begin", 0), p["ns"]) for p in phases), strict=True)
        each = [end - begin for begin, end in zip(begins, ends, strict=True)]
        if self._one_host and row != rows.NTH:
            took = max(ends) - max(begins)
        else:  # the last one to come to the rendezvous waits least there
            took = min(each) if row == rows.JOIN else max(each)
        found = PhaseFindings(
            resident=_list_growth(phases, "resident"),
            device=_list_growth(phases, "device"),
            ranks_ns=each,
        )
        checked = row in (rows.FIRST, rows.NTH)
        return MeasuredCase(
            Timing(times=[max(1, took)], per_rank=[[ns] for ns in each], stop="fixed"),
            verified=verified if checked else 0,
            wrong=0 if checked else None,
            findings=msgspec.to_builtins(found),
        )


def _count_begun(report: Any) -> int:
    """The phases that a rank has begun."""
    return sum(event["name"] == "at" for event in report["events"])


def _find(events: list[Any], name: str, phase: str = "") -> Any:
    return next(e for e in events if e["name"] == name and (not phase or e["phase"] == phase))


def _report_wrong(watched: Watched, rank: int) -> dict[str, int]:
    """The wrong elements for which a rank stopped calling before it knew of any loss."""
    checked = watched.find(rank, "checked")
    return {
        "wrong_before": checked.wrong if checked else 0,
        "verified_before": checked.verified if checked else 0,
    }


def _list_growth(phases: Sequence[Any], kind: str) -> list[int]:
    """What each rank's memory has grown by; nothing where it is not measured."""
    pairs = [phase.get(kind, (0, 0)) for phase in phases]
    return [after - before for before, after in pairs] if any(map(any, pairs)) else []


def _measure_start(by_rank: list[Any]) -> MeasuredCase:
    """The start of processes, of which each has a moment of its own."""
    starts, ready, each = (
        [_find(report["events"], name)["ns"] - report["began"] for report in by_rank]
        for name in ("started", "importing", "imported")
    )
    slowest = each.index(max(each))
    parts = {
        "interpreter": starts[slowest],
        "collbench": ready[slowest] - starts[slowest],
        "library": each[slowest] - ready[slowest],
    }
    found = PhaseFindings(ranks_ns=each, parts_ns=parts)
    return MeasuredCase(
        Timing(times=[max(each)], per_rank=[[ns] for ns in each], stop="fixed"),
        findings=msgspec.to_builtins(found),
    )


class LossTrial(_Watcher):
    """A run.runner.Trial of a loss."""

    def __init__(self, bench: Bench, job: Job) -> None:
        super().__init__(bench, job)
        self._loss: Loss = job.subject

    def run(self) -> Blocks:
        """One loss, and what became of the ranks that were left."""
        bench, loss = self._bench, self._loss
        if bench.policy.inject:
            raise CannotRun("--inject has no effect on the loss of a rank", "leave --inject out")
        if not self._one_host:
            raise CannotRun(
                "the loss of a rank is timed by one host's clock, and these ranks are on several",
                "measure it on one host",
            )
        bench.board.enter(bench.rank, Phase.MEASURING)
        yield
        with bench.control.refusing_alike():
            open_nursery(self._beat)
        given = self._instruct(loss.limit, nbytes=loss.nbytes, way=loss.way)
        with ExitStack() as stack:
            with bench.control.refusing_alike():
                watched = stack.enter_context(watch_fork(given, self._beat))
            mine = self._lose(watched) if bench.rank == loss.victim else self._survive(watched)
            reports = bench.control.collect(mine)
        bench.board.enter(bench.rank, Phase.REPORTING)
        return [] if bench.rank else self._make_outcomes(reports)

    def _choose_moment(self) -> float:
        """Seconds after the victim has loaded its library: the same in a run of the same seed."""
        if self._loss.at >= 0:
            return self._loss.at
        lots = np.random.default_rng([self._bench.policy.seed, self._case.cycle, self._case.n])
        return float(lots.uniform(0.0, WINDOW))

    def _lose(self, watched: Watched) -> dict[str, Any]:
        """Kill the process of this rank, and tell the others once it has ended."""
        rank = self._bench.rank

        self._wait_for_loading(watched)
        imported = watched.find(rank, "imported")
        if imported is None:
            self._store.set("lost", str(rank))
            return {"trouble": f"rank {rank} did not start: {watched.last_complaint()}"}
        self._wait_for(LOADED, STARTING)
        loaded = time.monotonic_ns()
        moment = loaded + round(1e9 * self._choose_moment())
        wait_while(lambda: time.monotonic_ns() < moment, 3600.0, self._beat)
        watched.look()
        if watched.ended:
            self._store.set("lost", str(rank))
            failed = watched.find(rank, "failed")
            text = failed.text if failed else watched.last_complaint()
            trouble = f"rank {rank} ended before it was killed: {text}"
            return {"trouble": trouble, **_report_wrong(watched, rank)}
        killed = watched.kill()
        watched.process.wait()
        watched.look()
        self._store.set("lost", str(rank))
        return {
            "killed": killed,
            "at": killed - loaded,
            "doing": watched.last_phase(rank),
            **_report_wrong(watched, rank),
        }

    def _survive(self, watched: Watched) -> dict[str, Any]:
        """See a process through that another one leaves behind, up to the limit."""
        rank, limit = self._bench.rank, self._loss.limit
        self._wait_for_loading(watched)

        def is_open() -> bool:
            watched.look()
            return not watched.ended

        self._wait_for("lost", STARTING + max(WINDOW, self._loss.at) + limit, is_open)
        wait_while(is_open, limit, self._beat)
        ended = watched.ended
        watched.look()
        found = {name: watched.find(rank, name) for name in ("knows", "recovered", "failed")}
        return {
            **{name: msgspec.to_builtins(event) for name, event in found.items() if event},
            "last": watched.last_phase(rank),
            "ended": ended,
            **_report_wrong(watched, rank),
            "complaint": watched.last_complaint() if ended else "",
        }

    def _make_outcomes(self, reports: Sequence[Any]) -> Sequence[CaseOutcome]:
        """What there is to say of knowing and of coming back."""
        loss = self._loss
        lost = reports[loss.victim]
        if before := sum(report.get("wrong_before", 0) for report in reports):
            verified = sum(report.get("verified_before", 0) for report in reports)
            note = f"{before:,} wrong elements in the all_reduce before a rank was lost"
            return [WrongData(before, note, None, verified)] * 2
        if "trouble" in lost:
            return [FailedCase(lost["trouble"])] * 2
        if early := _name_early(reports, lost["killed"]):
            return [FailedCase(early)] * 2
        ranks = [
            self._describe_rank(rank, report, lost["killed"])
            for rank, report in enumerate(reports)
            if rank != loss.victim
        ]
        found = LossFindings(victim=loss.victim, at_ns=lost["at"], doing=lost["doing"], ranks=ranks)
        wrong = sum(report.get("recovered", {}).get("wrong", 0) for report in reports)
        verified = sum(report.get("recovered", {}).get("verified", 0) for report in reports)
        findings = msgspec.to_builtins(found)
        silent = self._name_silent(ranks)
        known = _time_loss([rank.known_ns for rank in ranks], silent, findings)
        if wrong:
            note = f"{wrong:,} wrong elements in the all_reduce of the ranks that were left"
            return [known, WrongData(wrong, note, None, verified, findings)]
        # who never knew keeps the others from coming back
        reason = silent or self._name_lost(ranks)
        back = _time_loss([rank.recovered_ns for rank in ranks], reason, findings, verified)
        return [known, back]

    def _describe_rank(self, rank: int, report: Any, killed: int) -> RankLoss:
        knows, back = report.get("knows", {}), report.get("recovered")
        trouble = report.get("failed", {}).get("text", "")
        if not trouble and back is None:
            trouble = report["complaint"] or "it ended by itself"
            if not report["ended"]:
                trouble = f"it was still {report['last']} after {self._loss.limit:g} s"
        return RankLoss(
            rank=rank,
            how=knows.get("how", ""),
            text=knows.get("text", ""),
            # a rank that was told before the kill had returned knows at once
            known_ns=max(1, knows["ns"] - killed) if knows else None,
            recovered_ns=max(1, back["ns"] - killed) if back else None,
            last=report["last"],
            trouble=trouble,
        )

    def _name_silent(self, ranks: Sequence[RankLoss]) -> str:
        """The first rank that never knew, in words; empty where all did."""
        silent = next((rank for rank in ranks if rank.known_ns is None), None)
        if silent is None:
            return ""
        return (
            f"{SILENT}: rank {silent.rank} did not know within {self._loss.limit:g} s that rank"
            f" {self._loss.victim} was gone: {silent.trouble or silent.last}"
        )

    def _name_lost(self, ranks: Sequence[RankLoss]) -> str:
        """The first rank that did not come back, in words; empty where all did."""
        lost = next((rank for rank in ranks if rank.recovered_ns is None), None)
        if lost is None:
            return ""
        knew = (
            f"knew after {format_duration(lost.known_ns)}"
            if lost.known_ns is not None
            else "never knew"
        )
        return f"{SILENT}: rank {lost.rank} {knew} and did not come back: {lost.trouble}"


def _name_early(reports: Sequence[Any], killed: int) -> str:
    """The first rank that failed before the victim was killed, in words; empty where none did. One
    that was told has no error of its own."""
    for rank, report in enumerate(reports):
        for event in (report.get("knows", {}), report.get("failed", {})):
            if event.get("how") != "told" and event.get("ns", killed) < killed:
                return f"rank {rank} failed before the kill: {event['text']}"
    return ""


def _time_loss(
    times: Sequence[int | None], reason: str, findings: dict[str, Any], verified: int = 0
) -> CaseOutcome:
    """The time of the slowest rank, or the reason why some rank has none."""
    whole = [ns for ns in times if ns is not None]
    if reason or len(whole) < len(times):
        return FailedCase(reason, findings=findings)
    return MeasuredCase(
        Timing(times=[max(whole)], per_rank=[], stop="fixed"),
        verified=verified,
        wrong=0 if verified else None,
        findings=findings,
    )


def _serve_any_store(address: str) -> tuple[Any, int]:
    """A store at a free port of the address, and the port: one without libuv where torch was built
    without, or its store that uses libuv takes no socket (until 2.6). Raises OSError and
    RuntimeError."""
    try:
        return _serve_store(address)
    except RuntimeError as e:
        if "libuv" not in str(e):
            raise
    return _serve_store(address, use_libuv=False)


def _serve_store(address: str, **settings: bool) -> tuple[Any, int]:
    """A store at a free port of the address, and the port. Raises OSError and RuntimeError."""
    listener = listen_at(address)
    port = listener.getsockname()[1]
    limit = timedelta(seconds=STARTING)
    store = make_store(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=limit,
        master_listen_fd=listener.detach(),
        **settings,
    )
    return store, port
