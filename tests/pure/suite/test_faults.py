"""Faults planted on purpose: what may be asked for, what a rank then does, and that nothing hides
it."""

from __future__ import annotations

import msgspec
import pytest
import torch
from factories import case, experiment, ratios

from collbench.core.errors import UsageError
from collbench.features.compare.comparison import Rules, compare_runs
from collbench.records import derive
from collbench.records.flags import FLAGS_BY_NAME, UNGATED
from collbench.run.backends import Call
from collbench.run.rank import calls
from collbench.run.rank.calls import Planted
from collbench.run.refusal import refuse_case
from collbench.suite import faults as inject
from collbench.suite.case import Case
from collbench.suite.faults import Fault, describe_planted
from collbench.suite.policy import Policy


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", []),
        ("slow-rank:3:20%", [Fault("slow-rank", 3, 0.2)]),
        ("jitter:0:150%", [Fault("jitter", 0, 1.5)]),
        ("late:1:5ms", [Fault("late", 1, 0.005)]),
        ("corrupt:2, hang:0,drop:7", [Fault("corrupt", 2), Fault("hang", 0), Fault("drop", 7)]),
    ],
)
def test_what_may_be_planted(text: str, faults: list[Fault]) -> None:
    assert inject.parse_faults(text) == faults


@pytest.mark.parametrize(
    "text",
    [
        "slow-rank",
        "slow-rank:3",
        "slow-rank:x:20%",
        "slow-rank:3:20",
        "slow-rank:3:0%",
        "slow-rank:3:-5%",
        "late:1",
        "late:1:20%",
        "corrupt",
        "corrupt:1:5",
        "hang:-1",
        "explode:1",
        "slow-rank:3:20%,",
        "jitter:1:1e9%",
    ],
)
def test_what_may_not(text: str) -> None:
    with pytest.raises(UsageError):
        inject.parse_faults(text)


@pytest.mark.parametrize(
    ("ranks", "more", "why"),
    [
        (3, {}, "no rank 3 among 3"),
        (4, {"agg_iters": 2}, "-m"),
        (4, {"cpu_time": True}, "-C"),
        (4, {"virtual": True}, "--virtual"),
    ],
)
def test_where_nothing_can_be_planted(ranks: int, more: dict[str, int], why: str) -> None:
    ring = Case(collective="all_reduce", backend="gloo", n=ranks, nbytes=8, op="sum")
    with pytest.raises(UsageError, match=why):
        inject.refuse_faults([ring], Policy(inject="slow-rank:3:20%", **more))  # type: ignore[arg-type]
    inject.refuse_faults([ring], Policy(**more))  # type: ignore[arg-type]


def test_neither_predictions_nor_graphs_take_faults() -> None:
    case = Case(collective="all_reduce", backend="gloo", n=4, nbytes=8, op="sum")
    assert not refuse_case(case, Policy(inject="drop:1"))
    for changed in ({"backend": "model"}, {"backend": "nccl", "mode": "graph"}):
        other = Case(
            **{
                "collective": "all_reduce",
                "backend": "gloo",
                "n": 4,
                "nbytes": 8,
                "op": "sum",
                **changed,
            }
        )  # type: ignore[arg-type]
        assert "planted" in refuse_case(other, Policy(inject="drop:1"))


class Clock:
    """Time passes where somebody sleeps, and a little where somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        self.now += 1e-5
        return self.now


def test_slow_is_longer_by_the_share_and_late_is_not_in_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(calls, "time", clock)

    def measure(*faults: Fault) -> tuple[float, float]:
        """The seconds by which a rank comes late to a call of 20 ms, and those of its call."""
        planted = Planted(list(faults), 1, lambda: None)
        made = planted.within(Call(lambda: clock.sleep(0.02), lambda: None), torch.zeros(4))
        assert made.submit is None and made.waits
        began = clock.now
        planted.tarry()
        started = clock.now
        made.run()
        return started - began, clock.now - started

    slow, late = Fault("slow-rank", 0, 1.0), Fault("late", 0, 0.03)
    assert measure(slow) == pytest.approx((0, 0.04), abs=1e-3)
    assert measure(slow, slow) == pytest.approx((0, 0.06), abs=1e-3)
    assert measure(late) == pytest.approx((0.03, 0.02), abs=1e-3)


def test_a_flipped_bit_is_in_what_the_first_call_received() -> None:
    for kind in (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.int64,
        torch.uint8,
    ):
        received = torch.ones(4, dtype=kind)
        call = Planted([Fault("corrupt", 0)], 1, lambda: None).within(
            Call(lambda: None, None), received
        )
        call.run(), call.store()
        assert received[0] != 1 and (received[1:] == 1).all()
        call.store(), call.run(), call.store()
        assert received[0] != 1  # once, not back
    empty = torch.ones(0)
    call = Planted([Fault("corrupt", 0)], 1, lambda: None).within(Call(lambda: None, None), empty)
    call.run(), call.store()


def test_a_library_that_brings_its_result_later_does_not_hide_a_flipped_bit() -> None:
    received = torch.zeros(4)
    call = Call(lambda: None, None, store=lambda: received.fill_(1))
    planted = Planted([Fault("corrupt", 0)], 1, lambda: None).within(call, received)
    planted.run(), planted.store()
    assert received[0] != 1 and (received[1:] == 1).all()
    planted.run(), planted.store()
    assert (received == 1).all()


def test_a_planted_fault_marks_every_row_and_forbids_a_verdict() -> None:
    assert "injected" in FLAGS_BY_NAME and "injected" in UNGATED
    base, head = experiment({case(): ratios(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)})
    run = msgspec.structs.replace(head.run, policy=Policy(inject="drop:1"))
    assert "drop:1" in describe_planted(run.policy.inject) and describe_planted("") == ""
    bad = msgspec.structs.replace(head, run=run)
    assert "planted on purpose: --inject drop:1" in compare_runs([base], [bad], Rules()).reason
    marked = msgspec.structs.replace(head.records[0], injected="drop:1")
    row = derive.derive_row(marked)
    assert row and "injected" in row.flags and not row.gateable
