"""Orders of two runs: the first place where one adds otherwise than a recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.core.text import format_count, plain_line
from collbench.features.order.judgement import (
    JudgedOrder,
    Judgement,
    Launch,
    Placed,
    Spot,
    find_spot,
    is_unknown,
    pair_placed,
)
from collbench.features.order.wording import (
    describe_spot,
    describe_subject,
    list_sizes,
    name_launch,
)


class Likeness(NamedTuple):
    """An order held against the one of another run. ``compared`` counts sizes and ways of which
    both are known; ``spot`` is the first that differs, with the order there recorded first;
    ``missing`` are sizes asked for that are not compared, ``unproved`` those at which an order is
    not known: one that was recorded without proof, or one that was not found."""

    order: JudgedOrder
    other: JudgedOrder | None
    compared: int
    spot: Spot | None
    missing: tuple[int, ...] = ()
    unproved: tuple[int, ...] = ()

    @property
    def is_alike(self) -> bool | None:
        """Whether all is alike; None where what was compared is, and that is not all."""
        if self.spot:
            return False
        return None if self.missing or self.unproved or not self.compared else True


def compare_orders(judgement: Judgement, recorded: Judgement) -> list[Likeness]:
    """Each order of a run with the recorded one of the same case; where there is none, with the
    only one of the same collective, ranks, type, reduction and root, as another library's is."""
    return [_compare_order(order, recorded.orders) for order in judgement.orders]


def _compare_order(order: JudgedOrder, recorded: Sequence[JudgedOrder]) -> Likeness:
    other = _find_counterpart(order, recorded)
    if other is None:
        return Likeness(order, None, 0, None)
    recorded_items = _list_found(other.first)
    compared = 0
    spots: list[Spot] = []
    missing: set[int] = set()
    unproved: set[int] = set()
    for launch in order.launches:
        pairs = pair_placed(recorded_items, _list_found(launch))
        missing |= {*order.subject.sizes} - {item.order.nbytes for _, item in pairs}
        for base, head in pairs:
            where = ", ".join(filter(None, [name_launch(order, launch), head.way]))
            spot = find_spot([(base, head)], where)
            if spot and (base.is_proved or spot.element >= 0):
                spots.append(spot)
            elif not base.is_proved or is_unknown(base, head):
                unproved.add(head.order.nbytes)
                continue
            compared += 1
    first = next(iter(spots), None)
    return Likeness(order, other, compared, first, *(tuple(sorted(s)) for s in (missing, unproved)))


def _list_found(launch: Launch) -> list[Placed]:
    return [item for item in launch.placed if item.ranks]


def _find_counterpart(order: JudgedOrder, recorded: Sequence[JudgedOrder]) -> JudgedOrder | None:
    like = [other for other in recorded if _describe_what(other) == _describe_what(order)]
    exact = [other for other in like if _describe_who(other) == _describe_who(order)]
    if exact or len(like) == 1:
        return (exact or like)[0]
    return None


def _describe_what(order: JudgedOrder) -> tuple[object, ...]:
    subject = order.subject
    return subject.collective, subject.world, subject.dtype, subject.op, subject.root


def _describe_who(order: JudgedOrder) -> tuple[object, ...]:
    return order.case.backend, order.case.algorithm, order.case.env


def describe_likeness(likeness: Likeness, run: str) -> str:
    """What came of the comparison, in a sentence."""
    subject = describe_subject(likeness.order)
    if likeness.other is None:
        return plain_line(f"{subject}: {run} has no such order")
    who = likeness.other.case
    other = "" if who.label == likeness.order.case.label else f" ({who.label})"
    unproved = f"{list_sizes(likeness.unproved)}, where an order is not proved"
    if likeness.compared == 0 and likeness.unproved:
        return plain_line(f"{subject}: not known whether as in {run}{other}, at {unproved}")
    if likeness.compared == 0:
        return plain_line(f"{subject}: {run} has none of these sizes")
    if likeness.spot is None:
        count = format_count(likeness.compared, "comparison")
        text = f"{subject}: as in {run}{other}, in {count} by size and place of buffers"
        if likeness.missing:
            text += f"; not compared at {list_sizes(likeness.missing)}"
        if likeness.unproved:
            text += f"; not known at {unproved}"
        return plain_line(text)
    text = describe_spot(likeness.spot).removeprefix(": ")
    return plain_line(f"{subject}: another order than in {run}{other}: {text}")
