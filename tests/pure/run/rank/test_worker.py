"""What a rank asks before it measures: whether its check of data finds anything."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from collbench.core.errors import CannotRun
from collbench.features.training.step import Op, Program, Step
from collbench.records.types import GpuState
from collbench.run.backends import Base, Call
from collbench.run.jobs import Job, Plan
from collbench.run.launch.board import Board
from collbench.run.pace import BudgetPace, Pace
from collbench.run.plan import plan_worlds
from collbench.run.rank import worker
from collbench.run.rank.bench import Bench
from collbench.run.rank.control import Control
from collbench.run.rank.cores import Cores
from collbench.run.rank.measure import Steps
from collbench.run.rank.outcome import AboutCase, CaseOutcome, FailedCase, WrongData
from collbench.run.rank.worker import Place, Worker
from collbench.suite.case import Case
from collbench.suite.policy import Policy
from tests.helpers.steps import without_pause

RIGHT = Case(collective="all_reduce", backend="gloo", n=2, nbytes=64, op="sum")
BARRIER = Case(collective="barrier", backend="gloo", n=2, nbytes=0)
STEP = Step(
    name="two types",
    world=2,
    programs=(
        Program(
            ranks=(0, 1),
            ops=(
                Op(kind="all_reduce", nbytes=64, dtype="float"),
                Op(kind="all_reduce", nbytes=64, dtype="half"),
            ),
        ),
    ),
)


def asked(
    monkeypatch: pytest.MonkeyPatch, jobs: Sequence[Job], check: int = 1
) -> tuple[list[str], list[str]]:
    """Why each job cannot be verified, where data of type half cannot; and the types tried."""
    tried: list[str] = []

    def why_blind(dtype: str, device: str) -> str:
        tried.append(dtype)
        return "nothing was found" if dtype == "half" else ""

    monkeypatch.setattr(worker, "why_blind", why_blind)
    made: Any = Worker.__new__(Worker)
    made._policy, made._control, made._blind = Policy(check=check), Control(0, 1), {}
    made._backend = SimpleNamespace(device="cuda:0")
    return [made._why_unverified(job) for job in jobs], tried


class TwoHosts(Control):
    """The control of rank 0 of two, which are on a host each."""

    def collect(self, value: Any) -> list[Any]:
        return ["a", "b"]


@pytest.mark.parametrize("field", ["background", "groups"])
@pytest.mark.parametrize("pace", [Pace(), BudgetPace(60.0, Policy(), lambda job: None)])
def test_groups_by_host_are_held_against_the_hosts_whenever_jobs_come(
    pace: Pace, field: str
) -> None:
    rule = {"background": "all_to_all@node:2", "groups": "pairs:node:2 0/2"}[field]
    changes: Any = {field: rule}
    case = replace(RIGHT, collective="sendrecv", op="none", **changes)
    (plan,) = plan_worlds([Job(case, 1, "cold")], Policy())
    made: Any = Worker.__new__(Worker)
    made._plan, made._policy, made._backend = pace.open_plan(plan), Policy(), Base()
    made._control = made._group = TwoHosts(0, 2)
    with pytest.raises(CannotRun, match="needs 2 consecutive ranks on each host"):
        made._divide()


HALF = Case(collective="all_gather", backend="gloo", n=2, nbytes=64, dtype="half")
BLIND = (
    "not verified: rank 0 misses errors in data on cuda:0: nothing was found; -c 0 measures without"
)


def settle_scheme(sync: str) -> str:
    """How ranks start together whose clocks cannot be compared."""
    made: Any = Worker.__new__(Worker)
    made._policy, made._backend = Policy(sync=sync), SimpleNamespace(stream=None)  # type: ignore[arg-type]
    made.setup, made._plan = Place(0, 1, 0, 1, "torchrun"), Plan(0, "gloo", 1, (), Policy(), [], 60)
    made._board, made._control, made._ranks = Board.create(1)[0], Control(0, 1), range(1)
    world = SimpleNamespace(oversubscribed=False, cramped=False)
    scheme: str = made._benched(world, SimpleNamespace(trouble="no connection"), None).scheme
    return scheme


def test_a_barrier_takes_the_place_of_a_window_that_no_clock_allows() -> None:
    assert settle_scheme("auto") == "barrier"
    with pytest.raises(CannotRun, match="--sync window: no connection"):
        settle_scheme("window")


@pytest.mark.parametrize("text", ["clocks locked at 1410 of 1980 MHz", ""])
def test_the_library_of_a_world_says_that_clocks_are_locked(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    watch = SimpleNamespace(find_lock=lambda stream: text, read=lambda: GpuState(index=0, name="x"))
    monkeypatch.setattr(worker.gpu, "open_watch", lambda device: watch)
    monkeypatch.setattr(worker.gpu, "describe_device", lambda device: f"{device} Fast GPU")
    monkeypatch.setattr(worker.gpu, "is_fake", lambda device: False)
    made: Any = Worker.__new__(Worker)
    made._control = made._group = Control(0, 1)
    made._backend = SimpleNamespace(
        stream=object(), device="cuda:0", library="NCCL 2.30.7", shared=False, interpreted=False
    )
    made.setup, made._ranks, made._policy = Place(0, 1, 0, 1, "local"), range(1), Policy()
    made._plan = Plan(0, "nccl", 1, (), Policy(), [], 60.0)
    _, states = made._watch()
    world = made._describe(Cores(False, False), 0, states, None)
    assert world.library == ", ".join(filter(None, ("NCCL 2.30.7", text)))


def test_a_check_is_tried_once_for_each_element_type(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(case, 1, "cold") for case in (RIGHT, BARRIER, HALF, RIGHT, HALF)]
    assert asked(monkeypatch, jobs) == (["", "", BLIND, "", BLIND], ["float", "half"])


def test_a_step_is_verified_in_all_its_element_types(monkeypatch: pytest.MonkeyPatch) -> None:
    of_step = replace(RIGHT, collective="step", subject=STEP.title, op="none", dtype="uint8")
    jobs = [Job(of_step, 1, "cold", subject=STEP)]
    assert asked(monkeypatch, jobs) == ([BLIND], ["float", "half"])


def test_what_runs_in_the_background_is_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = replace(BARRIER, dtype="half", background="all_gather:1M")
    assert asked(monkeypatch, [Job(beside, 1, "cold")])[0] == [BLIND]


def test_nothing_is_tried_where_nothing_is_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, [Job(HALF, 1, "cold")], check=0) == ([""], [])


@pytest.mark.parametrize(
    "error", [RuntimeError, TypeError, ValueError, BufferError, NotImplementedError]
)
def test_what_a_library_raises_when_it_is_tried_is_its_reason(error: type[Exception]) -> None:
    """As torch lends no 8-bit floats by DLPack: BufferError."""

    class Refusing(Base):
        library = "Library 1.0"

        def prepare(self, case: Case, send: Any, recv: Any) -> Call:
            raise error("planted")

    made: Any = Worker.__new__(Worker)
    made._verdicts, made._control, made._backend = {}, Control(0, 1), Refusing()
    made._policy, made._plan = Policy(), Plan(0, "library", 2, (), Policy(), [], 60.0)
    assert made._probe(RIGHT, [0]) == "Library 1.0 refuses all_reduce of float: planted"


@pytest.mark.parametrize(
    ("backend", "device", "l2", "cache"),
    [
        ("ucc", "cuda:1", 10 << 20, "cold"),
        ("ucc", "cuda:1", 50 << 20, "small"),
        ("vendor", "cuda:1", None, "small"),
        ("ucc", "cpu", None, "cold"),
        ("vendor", "meta", None, "small"),
        ("nccl", "cuda:1", 50 << 20, "cold"),  # its plan knew the GPU
    ],
)
def test_data_is_cold_where_it_outgrows_the_cache_of_the_device_that_was_opened(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: str, l2: int | None, cache: str
) -> None:
    facts = SimpleNamespace(**({"L2_cache_size": l2} if l2 else {}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    job = Job(replace(RIGHT, backend=backend, nbytes=16 << 20), 2, "cold")
    assert worker.judge_cache(job, torch.device(device), Policy()) == cache


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("NCCL error in: X.cpp:93, invalid usage (run with NCCL_DEBUG=WARN)\nLast error:\n", True),
        ("NCCL error in: X.cpp:93, invalid argument\nLast error:\nroot 7 of 2 ranks", True),
        ("NCCL error, internal error\nLast error:\nError : no algorithm/protocol available", True),
        ("NCCL error, unhandled cuda error\nLast error:\nCuda failure 1 'invalid argument'", False),
        ("NCCL error, remote process exited", False),
    ],
)
def test_nccl_refuses_by_its_own_code_not_by_what_cuda_said(message: str, refused: bool) -> None:
    assert bool(worker.REFUSED.match(message)) == refused


class Asking:
    """A trial, and its runner, with this outcome; it asks for planted faults or does not."""

    def __init__(self, asks: bool, outcome: CaseOutcome) -> None:
        self._asks, self._outcome = asks, outcome

    def make_trial(self, bench: Bench, *_: object) -> Asking:
        if self._asks:
            bench.planted()
        return self

    def run(self) -> Steps[list[CaseOutcome]]:
        yield
        return [self._outcome]


@pytest.mark.parametrize("outcome", [WrongData(1, "wrong"), FailedCase("no samples")])
@pytest.mark.parametrize("inject", ["", "corrupt:1"])
@pytest.mark.parametrize("asks", [True, False])
def test_a_trial_that_never_asks_for_the_faults_of_inject_gets_no_time(
    monkeypatch: pytest.MonkeyPatch, asks: bool, inject: str, outcome: CaseOutcome
) -> None:
    monkeypatch.setattr(worker, "runner_of", lambda case: Asking(asks, outcome))
    made: Any = Worker.__new__(Worker)
    made._policy, made.setup, made._sites = Policy(inject=inject), Place(0, 2, 0, 2, "local"), None
    made._backend = Base()
    board = Board.create(1)[0]
    bench = Bench(0, [0], made._backend, Control(0, 1), board, made._policy, "barrier", None)
    job = Job(RIGHT, 1, "hot")
    (record,) = without_pause(made._measured(job, bench, AboutCase(0, "", inject)))
    told = "cases do not support --inject; leave it out" in record.note
    is_replaced = bool(inject) and not asks and isinstance(outcome, WrongData)
    assert told == is_replaced
    assert is_replaced or record.note in ("wrong", "no samples")
