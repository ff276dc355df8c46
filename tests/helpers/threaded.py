"""Orders found by ranks that are threads of this process, adding as planted_adders.py has it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from planted_adders import About, reduce_as

from collbench.core.errors import CannotRun
from collbench.features.order.findings import OrderFindings
from collbench.features.order.request import SumOrder
from collbench.features.order.rows import name_row
from collbench.features.order.trial import OrderTrial
from collbench.run.backends import Base, Call, do_nothing
from collbench.run.jobs import Job
from collbench.run.rank.bench import Bench
from collbench.run.rank.outcome import FoundCase, WrongData
from collbench.suite.case import Case
from collbench.suite.policy import Policy


class Meeting:
    """Where n threads lay down something each, and see what all have."""

    def __init__(self, n: int) -> None:
        self._barrier = threading.Barrier(n, timeout=60)
        self._laid: list[Any] = [None] * n
        self.collected = 0

    def meet(self, rank: int, value: Any) -> list[Any]:
        self._laid[rank] = value
        self._barrier.wait()
        found = list(self._laid)
        self._barrier.wait()
        return found

    def give_up(self) -> None:
        self._barrier.abort()


class Control:
    """run.rank.control.Control among threads."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self._meeting = rank, meeting

    def collect(self, value: Any) -> list[Any]:
        self._meeting.collected += self.rank == 0
        texts = self._meeting.meet(self.rank, msgspec.json.encode(value))
        return [msgspec.json.decode(text) for text in texts]

    def decide(self, values: list[int]) -> list[int]:
        decided: list[int] = self.collect(values)[0]
        return decided


REFUSALS = {"unaligned": CannotRun, "raising": ValueError}


class Adding(Base):
    """A backend that adds by a word, or refuses to be prepared off alignment."""

    device = torch.device("cpu")

    def __init__(self, rank: int, meeting: Meeting, word: str) -> None:
        self._rank, self._meeting, self._word, self.calls = rank, meeting, word, 0

    def refuse(self, case: Case) -> str:
        return ""

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        if self._word in REFUSALS and send.data_ptr() % 64:
            raise REFUSALS[self._word]("memory is off alignment")

        def run() -> None:
            self.calls += 1
            inputs = self._meeting.meet(self._rank, send.clone())
            address = recv.data_ptr()
            about = About(
                self._rank, self.calls, case.nbytes, case.in_place, case.cycle, address, case.op
            )
            recv.copy_(reduce_as(self._word, inputs, about))

        return Call(run, None)

    def finish(self) -> None:
        pass


def find_among_threads(
    subject: SumOrder,
    word: str = "plain",
    cycle: int = 0,
    seed: int = 1,
    backend: str = "gloo",
) -> FoundCase | WrongData:
    """What the ranks of a world find of a reduction by what passes for a ``backend``."""
    return play_threads(subject, word, cycle, seed, backend)[0]


def play_threads(
    subject: SumOrder, word: str, cycle: int = 0, seed: int = 1, backend: str = "gloo"
) -> tuple[FoundCase | WrongData, list[Adding], Meeting]:
    """The same, with the backends that were called and how often ranks told each other."""
    n = subject.world
    meeting, outcomes, problems = Meeting(n), [[] for _ in range(n)], []  # type: ignore[var-annotated]
    backends = [Adding(rank, meeting, word) for rank in range(n)]
    case = Case(
        collective=name_row(subject.collective),
        subject=subject.title,
        backend=backend,
        n=n,
        nbytes=subject.sizes[-1],
        dtype="uint8",
        cycle=cycle,
    )
    board = SimpleNamespace(enter=do_nothing, beat=do_nothing, count_calls=do_nothing)

    def work(rank: int) -> None:
        bench = Bench(
            rank,
            [rank],
            backends[rank],
            Control(rank, meeting),  # type: ignore[arg-type]
            board,  # type: ignore[arg-type]
            Policy(seed=seed),
            "barrier",
            None,
        )
        try:
            outcomes[rank] = exhaust(
                OrderTrial(bench, Job(case, 1, "hot", subject=subject), lambda _: None)
            )
        except BaseException as e:
            problems.append(e)
            meeting.give_up()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for problem in sorted(problems, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise problem
    return outcomes[0][0], backends, meeting


def exhaust(trial: OrderTrial) -> Sequence[Any]:
    """The outcomes of a trial, run to its end."""
    steps = trial.run()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Sequence[Any] = end.value
            return found


def read(outcome: FoundCase | WrongData) -> OrderFindings:
    """What was found."""
    return msgspec.convert(outcome.findings, OrderFindings)
