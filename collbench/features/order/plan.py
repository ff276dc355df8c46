"""What an order takes before it is looked for: calls and bytes, for --dry-run."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.core.collectives import COLLECTIVES
from collbench.core.text import format_count, format_size, plain_line
from collbench.features.order.calls import choose_strategy, count_all_calls, count_calls
from collbench.features.order.request import SumOrder
from collbench.show.document import Block, Line, Table, make_columns

HEADS = ("order", "pairs", "calls a size", "at most", "in all", "bytes a rank")

MANY = 2000  # calls a size from which on the cheaper way is named

NOTE = (
    "calls a size: those that ask; in all: with proofs and repeats at all sizes, without sizes that"
    " bisection adds"
)


def describe_calls(subjects: Sequence[SumOrder]) -> list[Block]:
    """A line for each order: the calls that ask, expected and at most, and all with the bytes that
    a rank gives in them."""
    lines = []
    remarks: list[str] = []
    for subject in subjects:
        expected, most = count_calls(subject)
        total = count_all_calls(subject)
        each = total / len(subject.sizes)
        nbytes = sum(each * size for size in subject.sizes)
        root = f", root {subject.root}" if COLLECTIVES[subject.collective].rooted else ""
        name = f"{subject.collective}, {subject.dtype}, {subject.op}{root}"
        strategy = choose_strategy(subject)
        cells = (
            plain_line(f"{name}, {format_count(subject.world, 'rank')}"),
            strategy,
            f"{expected:,}",
            f"{max(expected, most):,}",
            f"{total:,}",
            format_size(nbytes),
        )
        lines.append(Line(cells))
        if expected > MANY and strategy == "all":
            remarks.append(f"{name}: {expected:,} calls a size; --pairs adaptive takes fewer")
    return ["", Table(columns=make_columns(HEADS, "ll"), lines=lines), NOTE, *remarks]
