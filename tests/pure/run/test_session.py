"""A run's file has its end whatever comes, from the moment in which there is one."""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import factories
import msgspec
import pytest

from collbench.cli import main
from collbench.core.errors import CannotRun, CollbenchError, Exit, RunBroken, UsageError
from collbench.features.training import presets
from collbench.features.training.overlap import find_overlaps
from collbench.features.training.step import Op, Program
from collbench.machine import environment
from collbench.records import rows, run_file
from collbench.records.derive import NO_TIME_LEFT, NOT_VERIFIED
from collbench.records.types import End, Record, Run, World
from collbench.run import pace, session
from collbench.run.jobs import Job, Plan
from collbench.run.launch import environments
from collbench.run.launch import world as worlds
from collbench.run.launch.board import Phase
from collbench.run.launch.local import FreshRanks
from collbench.run.launch.watch import RankWatch
from collbench.run.launch.world import Listener
from collbench.run.order import Order, prepare_order
from collbench.run.reporter import Gathered, Reporter, Several
from collbench.run.resumption import Resumption
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Skip, Suite
from collbench.survive.signals import interrupts

GATHERED = functools.cache(environment.gather_facts)

AS_RANK_0 = environments.Membership("srun", 0, 2, 0, 2)


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "MALLOC_ARENA_MAX"]
)
def test_a_launchers_ranks_take_no_variable_that_they_read_when_they_started(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = (("NCCL_ALGO", "Ring"), (name, "./new"))
    axes = Axes(collectives=("all_reduce",), sizes=(8,), ranks=(2,), envs=(env,))
    order = Order(suite=Suite(name="x", axes=axes), command=[])
    for earlier in ("", "./old"):
        monkeypatch.setenv(name, earlier)
        with pytest.raises(UsageError, match=rf"--env {name}=\./new: a process reads") as raised:
            session._refuse_what_fresh_ranks_need(AS_RANK_0, order)
        assert f"export {name}" in raised.value.hint
    monkeypatch.setenv(name, "./new")
    session._refuse_what_fresh_ranks_need(AS_RANK_0, order)


@pytest.fixture(autouse=True)
def same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is looked over once for all runs."""
    monkeypatch.setattr(environment, "gather_facts", GATHERED)


SUITE = Suite(
    name="x",
    axes=Axes(collectives=("all_reduce",), backends=("model",), sizes=(8, 64), ranks=(2,)),
)


class Disturbed(Reporter):
    """Of whose ``begin`` something comes."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what = what

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        self._what()


def run(path: Path, what: Callable[[], object]) -> Exit:
    order = Order(suite=SUITE, command=["collbench"], output=path)
    return session.execute_order(order, lambda: Disturbed(what))


def test_a_signal_while_a_run_begins_leaves_its_file_an_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyboardInterrupt), interrupts:
        assert run(path, lambda: os.kill(os.getpid(), signal.SIGHUP)) == Exit.INTERRUPTED
        interrupts.check()
    found = run_file.read_file(path)
    assert found.end and (found.end.exit, found.end.note) == (Exit.INTERRUPTED, "interrupted")
    assert found.records == []


def test_a_run_that_cannot_be_saved_is_refused_before_anything_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("of others\n")
    with pytest.raises(UsageError, match="exists"):
        run(path, lambda: pytest.fail("shown"))
    assert path.read_text() == "of others\n"


def test_a_whole_run_has_the_end_of_its_verdict(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert run(path, lambda: None) == Exit.OK
    found = run_file.read_file(path)
    assert found.end and found.end.exit == Exit.OK and len(found.records) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_launchers_ranks_do_not_predict_beside_what_they_measure(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 would start ranks of its own for the backend that measures, and the others end."""
    member = environments.Membership("mpirun", rank, 2, rank, 2)
    monkeypatch.setattr(session.join, "detect_launcher", lambda _: member)
    both = msgspec.structs.replace(
        SUITE, axes=msgspec.structs.replace(SUITE.axes, backends=("gloo", "model"))
    )
    with pytest.raises(UsageError, match="--backend gloo,model: model predicts"):
        session.execute_order(Order(suite=both, command=[]), Reporter)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EPROTO, "Protocol error"),
        MemoryError(),
        ValueError("planted"),
        CannotRun("planted"),
        UsageError("planted"),
    ],
    ids=repr,
)
def test_followers_end_with_the_exit_code_of_rank_0(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OSError of a kind that nobody expects is a bug in collbench, at rank 0 as at others."""
    ends: list[Exit] = []
    monkeypatch.setattr(main, "print_message", lambda *_: None)
    world = session.join.Joined(environments.Membership("mpirun", 0, 2, 0, 2), 1.0)
    monkeypatch.setattr(world, "load", functools.partial(_raise, error))
    monkeypatch.setattr(world, "end_followers", ends.append)
    monkeypatch.setattr(session, "choose_world", lambda *_: world)
    with pytest.raises(type(error)) as raised:
        session.execute_order(Order(suite=STEPS, command=[]), Reporter)
    assert raised.value is error
    known = isinstance(error, CollbenchError)
    assert ends == [error.exit if known else main._handle_error(error)]


def _raise(error: Exception) -> None:
    raise error


STEPS = Suite(
    name="steps",
    axes=Axes(collectives=(), sizes=(), ranks=(2,), backends=("gloo",)),
    subjects=(presets.find_step("toy:ddp", world=2),),
)


class Ended(worlds.World):
    """Ranks that tell of so many rounds of a step before they end so."""

    def __init__(self, rounds: int, end: BaseException) -> None:
        self._rounds, self._end = rounds, end

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        (plan,) = plans
        listener.accept(factories.world(index=plan.index, n=2))
        (job,) = plan.jobs or listener.next_jobs()
        for rounds in range(1, self._rounds + 1):
            for each in job.case.siblings:
                record = factories.record(each, times_ns=[1000] * rounds, stop="cut")
                listener.accept(msgspec.structs.replace(record, world=plan.index))
        if isinstance(self._end, RunBroken):
            listener.lost(plan, self._end)
        raise self._end


def ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, end: BaseException, **more: object
) -> Exit:
    monkeypatch.setattr(session, "choose_world", lambda *_: Ended(rounds, end))
    asked = {"suite": STEPS, "command": ["collbench"], "output": path, **more}
    return session.execute_order(Order(**asked), lambda: Disturbed(lambda: None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EPROTO, "Protocol error"),
        MemoryError(),
        ValueError("planted"),
    ],
    ids=repr,
)
def test_a_run_ends_in_its_file_as_its_process_does(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr(main, "print_message", lambda *_: None)
    with pytest.raises(type(error)) as raised:
        ended(path, monkeypatch, 1, error)
    assert raised.value is error
    found = run_file.read_file(path)
    assert found.end and found.end.exit == main._handle_error(error)


def test_rounds_of_an_interrupted_step_are_kept_and_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    assert ended(path, monkeypatch, 7, KeyboardInterrupt()) == Exit.INTERRUPTED
    found = run_file.read_file(path)
    assert [(r.status, len(r.times_ns)) for r in found.records] == [("ok", 7)] * 3
    assert {r.note for r in found.records} == {"cut short after 7 rounds: interrupted"}
    (one,) = find_overlaps(found.records)
    assert len(one.step_record.times_ns) == 7
    assert rows.select_gateable(rows.make_rows([found])) == []


@pytest.mark.parametrize(("budget", "told"), [(None, 3), (60.0, 0)])
def test_a_budget_says_itself_how_long_a_run_takes(
    budget: float | None, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Record] = []

    class Hearing(Reporter):
        def show_interim(self, record: Record) -> None:
            heard.append(record)

    monkeypatch.setattr(session, "choose_world", lambda *_: Ended(1, KeyboardInterrupt()))
    order = Order(suite=STEPS, command=["collbench"], output=tmp_path / "run.jsonl", budget=budget)
    session.execute_order(order, Hearing)
    assert len(heard) == told


def test_rounds_before_a_rank_was_lost_are_kept_with_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(RunBroken):
        ended(path, monkeypatch, 7, RunBroken("rank 1 was killed", "", 0))
    found = run_file.read_file(path)
    assert [(r.status, r.note, len(r.times_ns)) for r in found.records] == [
        ("failed", "rank 1 was killed", 7)
    ] * 3
    assert rows.select_fit(rows.make_rows([found])) == []


class Hung(worlds.World):
    """Ranks of a launcher that stand still before their world is open."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        error = RunBroken("rank 1 has not moved for 30 s")
        listener.lost(plans[0], error)
        raise error


def test_rank_0_says_what_to_do_of_a_hang(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session._Session, "_finish", lambda self, code, note: None)
    hung = RunBroken("not all reached each other", "set GLOO_SOCKET_IFNAME")
    session._Session.__new__(session._Session)._hung(hung)
    assert "not all reached each other\n  hint: set GLOO_SOCKET_IFNAME" in capsys.readouterr().err


@pytest.mark.parametrize("budget", [None, 60.0])
def test_all_cases_of_a_world_that_broke_before_it_opened_have_failed(
    budget: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr(session, "choose_world", lambda *_: Hung())
    order = Order(suite=STEPS, command=["collbench"], output=path, budget=budget)
    with pytest.raises(RunBroken):
        session.execute_order(order, lambda: Disturbed(lambda: None))
    found = run_file.read_file(path)
    assert {(r.status, r.note) for r in found.records} == {
        ("failed", "rank 1 has not moved for 30 s")
    }
    assert len(found.records) == 3
    assert found.end and found.end.exit == Exit.TIMEOUT


def test_rounds_too_few_for_an_interval_are_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    assert ended(path, monkeypatch, 5, KeyboardInterrupt()) == Exit.INTERRUPTED
    assert run_file.read_file(path).records == []
    assert "cut short after 5 rounds, which are too few to keep" in capsys.readouterr().err


def test_a_step_that_was_cut_short_is_measured_again_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    ended(path, monkeypatch, 7, KeyboardInterrupt())
    again = run_file.read_file(path)
    assert prepare_order(Order(suite=STEPS, command=(), resumed=again)).jobs
    ended(path, monkeypatch, 9, KeyboardInterrupt(), resumed=again)
    assert [len(record.times_ns) for record in run_file.read_file(path).records] == [9] * 3
    assert run_file.read_outline(path).cases == 3


SWEEP = Suite(name="sweep", axes=Axes(collectives=("all_reduce",), sizes=(8, 64), ranks=(2,)))


class Passing(worlds.World):
    """Ranks whose samples do not suffice in a first pass, and which end so after it."""

    def __init__(self, end: BaseException | None) -> None:
        self._end, self.jobs, self.launches = end, list[Case](), 0

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        self.launches += 1
        for plan in plans:
            listener.accept(factories.world(index=plan.index, n=2))
            jobs = list(plan.jobs) or listener.next_jobs()
            while jobs:
                self.jobs += [job.case for job in jobs]
                for job in jobs:
                    record = factories.record(job.case, stop="budget", seconds=0.2)
                    listener.accept(msgspec.structs.replace(record, world=plan.index))
                if self._end:
                    raise self._end
                jobs = listener.next_jobs()


def pass_over(
    path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException | None, **more: object
) -> tuple[Exit, list[Case]]:
    ranks = Passing(end)
    monkeypatch.setattr(session, "choose_world", lambda *_: ranks)
    monkeypatch.setattr("collbench.run.resumption.refuse_another_machine", lambda *_: None)
    asked = {"suite": SWEEP, "command": ["collbench"], "output": path, **more}
    return session.execute_order(Order(**asked), lambda: Disturbed(lambda: None)), ranks.jobs  # type: ignore[arg-type]


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_is_resumed_goes_on_with_its_second_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    path = tmp_path / "run.jsonl"
    code, jobs = pass_over(path, monkeypatch, KeyboardInterrupt())
    assert code == Exit.INTERRUPTED
    first = run_file.read_file(path)
    assert {r.stop for r in first.records} == {"cut"}
    assert {r.note for r in first.records} == {"interrupted before its second pass"}
    assert len(first.records) == len(jobs)
    if killed:  # before it could say so
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:1] + [x for x in lines[1:-1] if '"again":true' not in x]))
    again = run_file.read_file(path)
    code, more = pass_over(path, monkeypatch, None, resumed=again)
    assert (code, set(more)) == (Exit.OK, set(jobs))
    whole = run_file.read_file(path)
    assert whole.end and whole.end.exit == Exit.OK
    assert sorted(r.case.key for r in whole.records) == sorted(case.key for case in jobs)
    assert {r.stop for r in whole.records} == {"budget"}
    assert run_file.read_outline(path).cases == len(jobs)


def drop_end(path: Path) -> None:
    """Make the file that of a part that was killed before it could say so."""
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"stop":"cut"' not in line]
    path.write_text("".join(kept[:-1]))


@pytest.mark.parametrize("is_killed_first", [False, True])
def test_a_killed_part_without_a_budget_of_a_run_with_one_goes_on_with_its_second_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed_first: bool
) -> None:
    path = tmp_path / "run.jsonl"
    command = ["collbench", "--budget", "60s"]
    _, first = pass_over(path, monkeypatch, KeyboardInterrupt(), budget=60.0, command=command)
    if is_killed_first:
        drop_end(path)
    begun = run_file.read_file(path)
    assert len(begun.records) == 1 and Resumption(begun).cut_off == []
    _, later = pass_over(path, monkeypatch, KeyboardInterrupt(), resumed=begun)
    drop_end(path)
    killed = run_file.read_file(path)
    assert {record.case for record in Resumption(killed).cut_off} == {*later} != set()
    assert not {*first} & {*later}
    _, last = pass_over(path, monkeypatch, None, resumed=killed)
    assert {*last} == {*later}


def test_a_killed_part_with_a_budget_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    pass_over(path, monkeypatch, KeyboardInterrupt(), budget=60.0)
    pass_over(path, monkeypatch, KeyboardInterrupt(), resumed=run_file.read_file(path), budget=60.0)
    drop_end(path)
    killed = run_file.read_file(path)
    assert len(killed.records) == 2 and Resumption(killed).cut_off == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_file_of_a_run_that_is_refused_for_its_hosts_keeps_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    path = tmp_path / "run.jsonl"
    pass_over(path, monkeypatch, KeyboardInterrupt(), budget=60.0)
    if is_killed:
        drop_end(path)
    before = run_file.read_file(path)
    refusal = UsageError("on other hosts")
    monkeypatch.setattr(session, "_refuse_hosts", lambda *_: _raise(refusal))
    monkeypatch.setattr(Passing, "run", lambda ranks, plans, listener: listener.met(["a", "b"]))
    with pytest.raises(UsageError, match="on other hosts"):
        pass_over(path, monkeypatch, None, resumed=before, budget=60.0)
    assert run_file.read_file(path).end == before.end


@pytest.mark.parametrize("budget", [None, 60.0])
def test_a_part_without_time_drops_what_has_no_samples_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    path = tmp_path / "run.jsonl"
    pass_over(path, monkeypatch, KeyboardInterrupt(), budget=budget)
    begun = run_file.read_file(path)
    assert pass_over(path, monkeypatch, None, resumed=begun, budget=1e-4) == (Exit.OK, [])
    whole = run_file.read_file(path).records
    assert [record for record in whole if record.times_ns] == begun.records
    dropped = {record.note for record in whole if not record.times_ns}
    enough = "--budget 10s is enough for all (estimated)"
    note = f"{NO_TIME_LEFT} 0.0001s: not enough for all cases; {enough}"
    assert dropped == ({note} if budget else set())


class Fresh(FreshRanks):
    """Ranks of their own for each plan that needs any."""

    def measure(self, plan: Plan, listener: Listener) -> None:
        Passing(None).run([plan], listener)

    def started(self, plan: Plan, listener: Listener) -> AbstractContextManager[RankWatch]:
        pytest.fail("no process is started")


@pytest.mark.parametrize("budget", [None, 60.0])
@pytest.mark.parametrize("backends", [("model", "gloo"), ("gloo", "model")])
def test_predictions_have_no_pace_beside_measurements(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backends: tuple[str, str],
    budget: float | None,
) -> None:
    """Whether cases are measured within a budget, or all of them last."""
    for name in ("LONG_RUN", "LONG_CASE", "AT_ONCE"):
        monkeypatch.setattr(pace, name, -1.0)
    monkeypatch.setattr(session, "choose_world", lambda *_: Fresh())
    axes = msgspec.structs.replace(SWEEP.axes, backends=backends)
    suite = msgspec.structs.replace(SWEEP, axes=axes)
    order = Order(suite=suite, command=(), output=tmp_path / "run.jsonl", budget=budget)
    assert session.execute_order(order, lambda: Disturbed(lambda: None)) == Exit.OK
    records = run_file.read_file(tmp_path / "run.jsonl").records
    found = {(r.case.backend, r.case.size, r.case.in_place): r.status for r in records}
    statuses = {"model": "predicted", "gloo": "ok"}
    assert found == {
        (backend, size, in_place): statuses[backend]
        for backend in backends
        for size in (8, 64)
        for in_place in (False, True)
    }


@pytest.mark.parametrize("budget", [None, 60.0])
def test_fresh_cycles_are_launches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    """With a budget, too, which opens plans without their jobs."""
    ranks = Passing(None)
    monkeypatch.setattr(session, "choose_world", lambda *_: ranks)
    monkeypatch.setattr(session, "Launcher", Passing)
    suite = msgspec.structs.replace(
        SWEEP, policy=Policy(fresh=True), axes=msgspec.structs.replace(SWEEP.axes, cycles=3)
    )
    order = Order(suite=suite, command=(), output=tmp_path / "run.jsonl", budget=budget)
    assert session.execute_order(order, lambda: Disturbed(lambda: None)) == Exit.OK
    assert ranks.launches == 3
    assert {case.cycle for case in ranks.jobs} == {0, 1, 2}


def test_an_interrupted_run_that_lacks_nothing_is_whole_once_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    pass_over(path, monkeypatch, None)
    lines = path.read_text().splitlines(keepends=True)
    end = End(exit=Exit.INTERRUPTED, ended="2026-01-01T00:00:00+00:00", note="interrupted")
    path.write_text("".join(lines[:-1]) + msgspec.json.encode(end).decode() + "\n")
    code, jobs = pass_over(path, monkeypatch, None, resumed=run_file.read_file(path))
    found = run_file.read_file(path)
    assert (code, jobs, found.end and found.end.exit) == (Exit.OK, [], Exit.OK)


class Needing(Gathered):
    needs_samples = True


class Measured(worlds.World):
    """Ranks whose samples were kept."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        listener.accept(factories.world(index=plans[0].index, n=2))
        for job in plans[0].jobs:
            listener.accept(factories.record(job.case, per_rank=[[9] * 20, [8] * 20], wrong=0))


@pytest.mark.parametrize(("needing", "kept"), [([], 0), ([Needing], 2)])
def test_each_ranks_samples_are_kept_for_reporters_that_need_them(
    monkeypatch: pytest.MonkeyPatch, needing: list[type[Gathered]], kept: int
) -> None:
    """Else a run of many ranks fills the memory."""
    monkeypatch.setattr(session, "choose_world", lambda *_: Measured())
    gathered = Gathered()
    reporters = Several(gathered, *(make() for make in needing))
    order = Order(suite=SWEEP, command=["collbench"], save=False)
    assert session.execute_order(order, lambda: reporters) == Exit.OK
    assert gathered.arrived
    assert {len(record.per_rank) for record, _ in gathered.arrived} == {kept}
    assert all(row and len(row.lateness) == 2 for _, row in gathered.arrived)
    assert all(record.times_ns for record, _ in gathered.arrived)


class Leaving(Reporter):
    """Standard output whose reader goes away when it is told of one kind of news."""

    def __init__(self, news: str, out: SimpleNamespace) -> None:
        setattr(self, news, lambda *_: setattr(out, "closed_early", True))


class Endless(worlds.World):
    """Ranks that tell of a single call, of a phase and of a step that is still measured, and go on
    for as long as anybody listens."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        listener.accept(factories.world(index=plans[0].index, n=2))
        (job, *_) = plans[0].jobs
        for _ in range(10):
            listener.accept(factories.record(job.case))
            listener.accept(factories.record(job.case, stop="cut"))
            listener.tick(job.case, Phase.MEASURING)
        pytest.fail("measured for nobody")


@pytest.mark.parametrize("news", ["show_coarse", "show_interim", "phase", "world"])
def test_a_run_that_nothing_keeps_ends_once_nobody_reads_any_news_of_it(
    monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    out = SimpleNamespace(closed_early=False)
    monkeypatch.setattr(session.sys, "stdout", out)
    monkeypatch.setattr(session, "choose_world", lambda *_: Endless())
    monkeypatch.setattr(session.TwoPassPace, "accept_coarse", lambda *_: True)
    order = Order(suite=SWEEP, command=["collbench"], save=False)
    assert session.execute_order(order, lambda: Leaving(news, out)) == Exit.INTERRUPTED


def test_a_run_that_nobody_reads_ends_although_samples_of_a_case_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are shown, to nobody, where the run ends."""
    out = SimpleNamespace(closed_early=False)
    monkeypatch.setattr(session.sys, "stdout", out)
    monkeypatch.setattr(session, "choose_world", lambda *_: Ended(7, AssertionError("goes on")))
    order = Order(suite=STEPS, command=["collbench"], save=False)
    assert session.execute_order(order, lambda: Leaving("show_interim", out)) == Exit.INTERRUPTED


class Cutting(Passing):
    """Ranks while whose first record is written somebody cuts the run's file."""

    def __init__(self, path: Path) -> None:
        super().__init__(None)
        self._path = path

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        def cut(line: World | Record) -> None:
            listener.line(line)
            if isinstance(line, Record):
                os.truncate(self._path, 0)

        super().run(plans, listener._replace(line=cut))


def test_a_run_that_lost_what_it_held_says_how_to_measure_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a run.jsonl"
    monkeypatch.setattr(session, "choose_world", lambda *_: Cutting(path))
    order = Order(suite=SWEEP, command=["collbench"], output=path)
    with pytest.raises(CannotRun, match="was cut while it was written") as caught:
        session.execute_order(order, lambda: Disturbed(lambda: None))
    assert f"collbench run --resume '{path}' measures what the file lacks" in caught.value.hint
    assert "free some space" not in caught.value.hint
    lacking = run_file.read_file(path)
    pass_over(path, monkeypatch, None, resumed=lacking)
    whole = run_file.read_file(path)
    assert len(whole.records) > len(lacking.records)
    assert whole.end and whole.end.exit == Exit.OK


class Blind(worlds.World):
    """Ranks whose check finds nothing in data of type half."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        for plan in plans:
            listener.accept(factories.world(index=plan.index, n=2))
            for case in (case for job in plan.jobs for case in job.case.siblings):
                note = f"{NOT_VERIFIED}rank 0 misses errors" if case.dtype == "half" else ""
                fields = {"status": "failed", "times_ns": [], "note": note} if note else {}
                record = factories.record(case, **{"times_ns": [1000] * 20, **fields})
                listener.accept(msgspec.structs.replace(record, world=plan.index))


def measure_blindly(path: Path, monkeypatch: pytest.MonkeyPatch, *dtypes: str) -> Exit:
    monkeypatch.setattr(session, "choose_world", lambda *_: Blind())
    axes = msgspec.structs.replace(SWEEP.axes, dtypes=dtypes)
    suite = Suite(name="blind", axes=axes, policy=Policy(iters=20))
    order = Order(suite=suite, command=["collbench"], output=path)
    return session.execute_order(order, lambda: Disturbed(lambda: None))


@pytest.mark.parametrize("dtypes", [("half",), ("float", "half"), ("half", "float")])
def test_a_run_that_could_not_verify_some_of_its_data_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtypes: tuple[str, ...]
) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(CannotRun, match="rank 0 misses errors"):
        measure_blindly(path, monkeypatch, *dtypes)
    found = run_file.read_file(path)
    assert found.end and found.end.exit == Exit.CANNOT_RUN
    assert {r.case.dtype for r in found.records if r.status == "ok"} == {*dtypes} - {"half"}


def test_a_run_that_verified_all_of_its_data_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure_blindly(tmp_path / "run.jsonl", monkeypatch, "float") == Exit.OK


@pytest.mark.parametrize(("ns", "told"), [(0, ""), (200e9, "toy")])
def test_a_step_of_minutes_is_told_of_before_its_first_call(
    ns: float, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step = msgspec.structs.replace(
        presets.find_step("toy:ddp", world=2),
        compute="sleep",
        programs=(Program((0, 1), (Op(kind="compute", compute_ns=round(ns)),)),),
    )
    (case, *_), _ = Suite(
        name="", axes=Axes(collectives=(), sizes=(), ranks=(2,)), subjects=(step,)
    ).expand()
    session._tell_of_long_calls([Job(case, 1, "", subject=step)])
    said = capsys.readouterr().err
    assert (told in said and "--scale" in said and "estimated" in said) if told else not said


class Corrupting(worlds.World):
    """Ranks that give wrong data."""

    def run(self, plans: Sequence[Plan], listener: Listener) -> None:
        (plan,) = plans
        listener.accept(factories.world(index=plan.index, n=2))
        (job,) = plan.jobs or listener.next_jobs()
        for each in job.case.siblings:
            listener.accept(
                factories.record(each, status="wrong", wrong=1, times_ns=[], world=plan.index)
            )


def test_wrong_data_is_told_though_the_file_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def close(self: run_file.Writer) -> None:
        self.trouble = "cannot write it: Disk quota exceeded"

    monkeypatch.setattr(run_file.Writer, "close", close)
    monkeypatch.setattr(session, "choose_world", lambda *_: Corrupting())
    order = Order(suite=STEPS, command=["collbench"], output=tmp_path / "run.jsonl")
    code = session.execute_order(order, lambda: Disturbed(lambda: None))
    assert code == Exit.WRONG_DATA
    assert "Disk quota exceeded" in capsys.readouterr().err


def test_a_signal_after_a_rank_was_lost_hides_neither_the_rank_nor_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher ends rank 0 as soon as another rank has died."""
    heard: list[End] = []

    class Late(Reporter):
        def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
            monkeypatch.setattr(session, "time_now", signal_first)

        def end(self, end: End, path: Path | None) -> None:
            heard.append(end)

    def signal_first() -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "now"

    error = RunBroken("rank 1 was killed", "", 0)
    monkeypatch.setattr(session, "choose_world", lambda *_: Ended(7, error))
    order = Order(suite=STEPS, command=["collbench"], output=tmp_path / "run.jsonl")
    with pytest.raises(RunBroken, match="rank 1 was killed"), interrupts:
        session.execute_order(order, Late)
    assert [end.exit for end in heard] == [Exit.TIMEOUT]
