"""What is told of a step while it is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from collbench.features.training import trial as steps
from collbench.features.training.step import Op, Program, Step
from collbench.records.types import Operation
from collbench.run.backends import Base, Call, do_nothing
from collbench.run.rank.control import Control
from collbench.run.rank.measure import Samples, Sync
from collbench.run.rank.outcome import CaseOutcome, FailedCase, MeasuredCase, Timing
from collbench.suite.case import Case
from tests.helpers.steps import without_pause

CASE = Case(collective="step", backend="gloo", n=1, nbytes=8, dtype="uint8", subject="x #1")
KNOWN = steps._Known(0, 0, "window")


def make_trial(in_turns: bool = True, **policy: Any) -> steps.StepTrial:
    """One that has only what rounds need, of a single rank."""
    trial = steps.StepTrial.__new__(steps.StepTrial)
    trial._seed = trial._rank = trial._throttled = trial._look = 0
    trial._usable, trial._policy = [], SimpleNamespace(**policy)  # type: ignore[assignment]
    trial._bench = SimpleNamespace(in_turns=in_turns)  # type: ignore[assignment]
    trial._control = SimpleNamespace(decide=lambda values: values)  # type: ignore[assignment]
    return trial


def told(monkeypatch: pytest.MonkeyPatch, *parts: CaseOutcome) -> list[Any]:
    """What is told when the rounds end, whose parts come out like this."""
    heard: list[Any] = []
    trial = make_trial(in_turns=False, sync="auto")
    trial._report_interim = heard.append
    monkeypatch.setattr(trial, "_enough", lambda rounds, seconds: 1)
    monkeypatch.setattr(trial, "_parts", lambda taken, known: list(parts))
    monkeypatch.setattr(steps, "_measure_round", lambda samplers, lots, sync: [])
    monkeypatch.setattr(steps, "_join_rounds", lambda rounds: [])
    sync: Any = SimpleNamespace(scheme="window")
    assert list(trial._rounds([], sync, KNOWN)) == [None]
    return heard


def test_what_there_is_so_far_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    part = MeasuredCase(Timing(stop="cut"))
    assert told(monkeypatch, part, part) == [[part, part]]


def test_a_part_without_a_valid_sample_so_far_is_no_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would count as a case that has ended, and the end as another."""
    assert told(monkeypatch, MeasuredCase(Timing()), FailedCase("none")) == []


@pytest.mark.parametrize(
    ("asked", "late_while", "scheme"),
    [
        ("auto", ("window",), "barrier"),  # late at each start until ranks meet
        ("auto", (), "window"),
        ("window", ("window",), "window"),  # what is asked for stays
    ],
)
def test_rounds_that_all_begin_too_late_are_followed_by_some_that_begin_at_a_barrier(
    monkeypatch: pytest.MonkeyPatch, asked: str, late_while: tuple[str, ...], scheme: str
) -> None:
    trial = make_trial(sync=asked)
    sync = Sync("window", Control(0, 1), None)

    def measure_round(samplers: Any, lots: Any, sync: Any) -> list[Samples]:
        zeros = np.zeros((1, 1), int)
        late = np.array([int(sync.scheme in late_while)])
        return [Samples(zeros, zeros + 1, late, np.zeros(1, int), zeros[:0])]

    monkeypatch.setattr(steps, "_measure_round", measure_round)
    monkeypatch.setattr(trial, "_enough", lambda rounds, seconds: int(len(rounds) == 20))
    samples, _ = without_pause(trial._rounds([], sync, KNOWN))
    assert sync.scheme == scheme
    late = int(samples[0].late.sum())
    assert late == (0 if not late_while else 20 if asked == "window" else steps.FEWEST)


def test_rounds_are_joined_only_where_they_may_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All after each round take a time that grows with the square of their number."""
    settings = {"precision": 1e-9, "min_seconds": 0.0, "max_seconds": 1e6, "max_iters": 400}
    trial = make_trial(sync="auto", iters=None, **settings)
    trial._job = SimpleNamespace(samples=None, seconds=None)  # type: ignore[assignment]
    rng, zeros = np.random.default_rng(0), np.zeros((1, 1), int)
    joined, concatenate = 0, Samples.concatenate

    def join(blocks: Any) -> Samples:
        nonlocal joined
        joined += len(blocks)
        return concatenate(blocks)

    def measure_round(samplers: Any, lots: Any, sync: Any) -> list[Samples]:
        ends = zeros + rng.integers(1000, 2000)
        return [Samples(zeros, ends, zeros[0], zeros[0], zeros[:0])] * 3

    monkeypatch.setattr(Samples, "concatenate", join)
    monkeypatch.setattr(steps, "_measure_round", measure_round)
    samples, stop = without_pause(trial._rounds([], Sync("window", Control(0, 1), None), KNOWN))
    assert (stop, [len(part.late) for part in samples]) == ("max_n", [400] * 3)
    assert joined < 3 * 400 * 400 / 4


@pytest.mark.parametrize(
    ("ops", "others", "ranks", "steps_watched", "everyone"),
    [
        (100, 100, 2, 5, True),
        (3000, 3000, 8, 5, False),
        (8000, 8000, 8, 2, False),
        (30_000, 30_000, 2, 1, False),
        (10, 30_000, 2, 5, False),
    ],
)
def test_where_operations_are_too_many_rank_0_is_watched_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
    ops: int,
    others: int,
    ranks: int,
    steps_watched: int,
    everyone: bool,
) -> None:
    trial, members = make_trial(), ((0,), tuple(range(1, ranks)))
    both = zip(members, (ops, others), strict=True)
    programs = [Program(of, (Op(kind="compute"),) * count) for of, count in both]
    trial._step = Step("x", ranks, tuple(programs))
    trial._control = SimpleNamespace(  # type: ignore[assignment]
        n=ranks,
        collect=lambda value: [value] * ranks,
        broadcast=lambda value: value,
    )
    monkeypatch.setattr(trial, "_once_watched", lambda sync: [[1]])
    watched = trial._watch_steps(Sync("none", Control(0, 1), None))
    assert [len(seen) for seen in watched] == [steps_watched] * (ranks if everyone else 1)


@pytest.mark.parametrize(("ops", "is_timed"), [(200_000, True), (200_001, False)])
def test_of_a_step_with_far_too_many_operations_none_is_timed(
    monkeypatch: pytest.MonkeyPatch, ops: int, is_timed: bool
) -> None:
    """Their times would be a message, and a line of the run, of many megabytes."""
    trial = make_trial(blame=True)
    program = Program((0,), (Op(kind="compute"),) * ops)
    trial._step = Step("x", 1, (program,))
    trial._control = Control(0, 1)
    done: list[str] = []
    monkeypatch.setattr(trial, "_alone", lambda sync, samples: done.append("alone") or {})
    seen = [[1] * ops] * 3
    monkeypatch.setattr(trial, "_once_watched", lambda sync: done.append("watch") or seen)
    monkeypatch.setattr(trial, "_blame", lambda times, sync: done.append("blame"))
    times = trial._time_operations(Sync("none", Control(0, 1), None), [])
    assert done == ["alone", "watch", "blame"] * is_timed
    assert [len(operations) for operations in times] == [ops] * is_timed


def test_ranks_show_life_while_the_longest_operations_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which takes long where there are many."""
    trial, beats = make_trial(), 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    def find(program: Program, times: Any) -> list[Any]:
        assert beats
        return []

    program = Program((0,), (Op(kind="compute"),))
    trial._step, trial._job = Step("x", 1, (program,)), SimpleNamespace(case=CASE)  # type: ignore[assignment]
    trial._ops, trial._beat, trial._rank = [], beat, 1
    monkeypatch.setattr(steps, "list_timed", find)
    monkeypatch.setattr(trial, "_action", lambda part: print)
    monkeypatch.setattr(trial, "_sampler", lambda play: play)
    monkeypatch.setattr(steps, "_measure_round", lambda samplers, lots, sync: [])
    trial._blame([Operation()], Sync("none", Control(0, 1), None))
    assert beats > 1


class Mute(Base):
    """A backend whose calls and messages do nothing."""

    def prepare(self, case: Case, send: torch.Tensor, recv: torch.Tensor) -> Call:
        return Call(do_nothing, None)

    def message(self, sends: bool, buffer: torch.Tensor, peer: int, tag: int) -> Call:
        return Call(do_nothing, None)


def list_sent(monkeypatch: pytest.MonkeyPatch, *ops: Op) -> list[list[torch.Tensor]]:
    """What rank 0 of two sends in each operation, by check."""
    trial = make_trial(check=1, seed=0)
    trial._step, trial._job = Step("x", 2, (Program((0, 1), ops),)), SimpleNamespace(case=CASE)  # type: ignore[assignment]
    trial._sites = {site: Mute() for site in steps._list_used(trial._step, False)}
    trial._on_device, trial._beat = False, do_nothing
    trial._control, trial._finish, trial._checked = Control(0, 1), do_nothing, 0
    trial._ops = trial._prepared()
    monkeypatch.setattr(trial, "_make_call", lambda part: Call(do_nothing, None))
    monkeypatch.setattr(trial, "_wrong", lambda everyone, when: [])
    sent = []
    for number in range(len(steps.CHECKS)):
        trial._check(number)
        sent.append([ready.buffers.send.clone() for ready in trial._ops])
    return sent


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "send"])
def test_each_check_of_a_step_has_data_of_its_own(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Else a library that hands out the results of the step before would pass."""
    messages: dict[str, Any] = {"peer": 1} if kind == "send" else {}
    op = Op(kind=kind, nbytes=4096, dtype="float", **messages)  # type: ignore[arg-type]
    before, after = list_sent(monkeypatch, op, op)
    sent = [*before, *after]
    agree = [(a == b).float().mean() for at, a in enumerate(sent) for b in sent[:at]]
    assert len(agree) == 6 and max(agree) < 0.1


def test_operations_of_unlike_sizes_share_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the sums of a bucket would pass for those of a shorter one."""
    sizes = 8192, 4096
    ops = [Op(kind="all_reduce", nbytes=size, dtype="float", op="sum") for size in sizes]
    for longer, shorter in list_sent(monkeypatch, *ops):
        assert (longer[: len(shorter)] == shorter).float().mean() < 0.1
