"""The tree along which a library adds, drawn piece by piece, as a recorded run found it; with
numbers added along it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from collbench.core.dtypes import DType
from collbench.core.errors import UsageError
from collbench.core.sums.recorded import RecordedOrder, RecordedPiece
from collbench.core.sums.rounding import EXACT, Rounding, evaluate_tree, round_values
from collbench.core.sums.trees import Join, SumTree, fold_tree, join_trees, make_leaf, measure_shape
from collbench.core.text import format_count
from collbench.features.study.drawing import parse_values
from collbench.show.document import Block, Document, tone_text

MAX_DEPTH = 10  # additions below each other that are drawn as a tree; of more, one after the other

MAX_LINES = 150  # of a tree

MAX_PIECES = 8  # of an output, and outputs

MAX_BRANCH = 40  # characters of a sum that is added to a long one


class Node(NamedTuple):
    """A node of a tree with its children, or a leaf, a rank. ``number`` counts nodes, children
    before parents; ``is_rounded``: its sum is rounded to the element
    type."""

    children: tuple[Node, ...]
    kind: str
    rank: int
    number: int
    leaf_count: int
    is_rounded: bool
    text: str


class Sums(NamedTuple):
    """Numbers added along a tree, as they are written: what ranks give, the sum at each node by its
    number, and the result beside the exact one."""

    leaves: Sequence[str]
    nodes: Sequence[str]
    result: str
    exact: str


def make_nodes(tree: SumTree, rounding: Rounding) -> Node:
    """The root of a tree, with the nodes below."""
    number = 0

    def add_node(join: Join, children: Sequence[tuple[Node, int]]) -> tuple[Node, int]:
        nonlocal number
        mask = sum(below for _, below in children)
        is_rounded = rounding.at is None and rounding.adder != EXACT
        if rounding.at is not None:
            is_rounded = mask in rounding.at
        node = Node(
            tuple(child for child, _ in children),
            join.kind,
            -1,
            number,
            sum(child.leaf_count for child, _ in children),
            is_rounded or mask == whole,
            "",
        )
        number += 1
        return node, mask

    whole = sum(1 << rank for rank in tree.leaves)
    leaf = fold_tree(
        tree, lambda rank: (Node((), "", rank, -1, 1, False, str(rank)), 1 << rank), add_node
    )
    return leaf[0]


def parse_numbers(text: str, order: RecordedOrder) -> list[float]:
    """The numbers of --values, one a rank, rounded to the element type. Raises UsageError."""
    lists = parse_values(text)
    numbers = lists[0] if len(lists) == 1 else [number for row in lists for number in row]
    if len(numbers) != order.n:
        raise UsageError(
            f"--values: {format_count(len(numbers), 'number')} for {order.n} ranks",
            "give one number a rank: 1,2.5,-3,4",
        )
    values = np.array(numbers, float)
    limit = 2.0 ** min(order.dtype.emax, 1023)
    if not (np.isfinite(values) & (abs(values) <= limit)).all():
        raise UsageError(
            f"--values: {order.dtype.name} has no such number", f"they are at most {limit:.3g} here"
        )
    rounded = round_values(values, order.dtype.precision, order.dtype.emin)
    return [float(value) for value in rounded]


def add_along(
    tree: SumTree, numbers: Sequence[float], order: RecordedOrder, rounding: Rounding
) -> Sums:
    """Numbers of ranks, added along a tree."""
    dtype, partials = order.dtype, list[float]()
    inputs = {rank: np.array([number]) for rank, number in enumerate(numbers)}

    def watch(mask: int, partial: Any) -> None:
        partials.append(float(partial[0]))

    along = (inputs, dtype, order.op)
    result = evaluate_tree(tree, *along, rounding, order.n, watch)
    exactly = join_trees("exact", map(make_leaf, tree.leaves)) if len(tree.leaves) > 1 else tree
    division = rounding.division and "after"
    once = evaluate_tree(exactly, *along, Rounding(EXACT, division=division), order.n)
    wide = 53 if rounding.at is not None or rounding.adder == EXACT else dtype.precision
    return Sums(
        [_format_number(number, dtype.precision) for number in numbers],
        [_format_number(partial, wide) for partial in partials],
        _format_result(float(result[0]), dtype),
        _format_result(float(once[0]), dtype),
    )


def _format_number(value: float, bits: int) -> str:
    """A number of so many bits of significand."""
    return f"{value:.{math.ceil(bits * math.log10(2)) + 1}g}"


def _format_result(value: float, dtype: DType) -> str:
    if abs(value) >= 2.0 ** min(dtype.emax + 1, 1023):
        return "inf" if value > 0 else "-inf"
    return _format_number(value, dtype.precision)


def draw_tree(
    tree: SumTree, rounding: Rounding, op: str = "sum", sums: Sums | None = None
) -> list[str]:
    """A line for each rank and each node of a tree, parents above; of deep ones a line for each
    addition to the longest sum, first ones above. A star is where the sum is rounded to the element
    type."""
    root = make_nodes(tree, rounding)
    sign = "x" if op == "prod" else "+"
    deep = measure_shape(tree).depth > MAX_DEPTH
    lines = list(_draw_spine(root, sign) if deep else _draw_branches(root, sign))
    hidden = len(lines) - MAX_LINES
    shown = lines[:MAX_LINES]
    width = max(len(text) for text, _ in shown)
    drawn = [f"{text:<{width}}  {_value_of(node, sums)}".rstrip() for text, node in shown]
    return [*drawn, f"and {hidden:,} more lines"] if hidden > 0 else drawn


def _value_of(node: Node, sums: Sums | None) -> str:
    if sums is None:
        return ""
    return sums.nodes[node.number] if node.children else sums.leaves[node.rank]


def _label_node(node: Node, sign: str) -> str:
    if not node.children:
        return str(node.rank)
    return (sign if node.kind == "two" else node.kind) + "*" * node.is_rounded


def _draw_branches(node: Node, sign: str, own: str = "", below: str = "") -> Iterator[Any]:
    """The lines of a node and of those below, each with its node; ``own`` stands before the node's
    line, ``below`` before the others."""
    yield own + _label_node(node, sign), node
    for child in node.children:
        last = child is node.children[-1]
        branch = ("└─ ", "   ") if last else ("├─ ", "│  ")
        yield from _draw_branches(child, sign, below + branch[0], below + branch[1])


def _draw_spine(root: Node, sign: str) -> Iterator[Any]:
    """The lines of the longest sum, from its first rank on, each with its node."""
    spine = [root]
    while spine[-1].children:
        spine.append(max(spine[-1].children, key=lambda child: child.leaf_count))
    yield str(spine[-1].rank), spine[-1]
    for child, node in zip(reversed(spine), list(reversed(spine))[1:], strict=False):
        others = [_name_branch(other, sign) for other in node.children if other is not child]
        word = sign if node.kind == "two" else node.kind
        yield f"{word} {', '.join(others)}{' *' * node.is_rounded}", node


def _name_branch(node: Node, sign: str) -> str:
    """A sum that is added to another, as text or by the number of its ranks."""
    text = _write_branch(node, sign) if node.leaf_count <= MAX_BRANCH // 3 else ""
    if node.leaf_count == 1:
        return text
    return f"({text})" if 0 < len(text) <= MAX_BRANCH else f"({node.leaf_count} ranks)"


def _write_branch(node: Node, sign: str) -> str:
    if not node.children:
        return str(node.rank)
    parts = [
        f"({text})" if child.leaf_count > 1 and child.kind == "two" else text
        for child in node.children
        for text in [_write_branch(child, sign)]
    ]
    return sign.join(parts) if node.kind == "two" else f"{node.kind}{{{', '.join(parts)}}}"


def describe_rounding(rounding: Rounding, dtype: DType) -> str:
    """The meaning of stars in a tree, in a sentence."""
    divided = {
        "after": "avg divides the sum by the number of ranks, in the adder",
        "rounded": "avg divides the rounded sum by the number of ranks",
        "before": f"avg multiplies inputs by 1/n first, in {dtype.name}",
        "within": "avg multiplies inputs by 1/n first, in the adder",
    }.get(rounding.division, "")
    if rounding.at is None and rounding.adder == dtype.precision:
        text = f"*: the sum is rounded to {dtype.name}"
    elif rounding.adder == EXACT:
        text = f"*: the sum is rounded to {dtype.name}; elsewhere nothing is lost"
    else:
        text = (
            f"*: the sum is rounded to {dtype.name}; elsewhere it has {rounding.adder} bits of"
            " significand"
        )
    return "; ".join(filter(None, [text, divided]))


def make_document(
    orders: Sequence[RecordedOrder], rank: int | None = None, values: str = ""
) -> Document:
    """The trees of recorded orders, of all ranks or one, piece by piece, with numbers of ``values``
    added along each."""
    brief: list[Block] = []
    for order in orders:
        brief += [tone_text(f"order of {order.title}", strong=True)]
        right = f"{order.right:,} of {order.of:,} bits of random sums predicted"
        brief += [tone_text(right, "quiet" if order.right == order.of > 0 else "notice")]
        numbers = parse_numbers(values, order) if values else None
        outputs = [o for o in order.outputs if rank is None or rank in o.ranks]
        for output in outputs[:MAX_PIECES]:
            label = f"rank{'s' * (len(output.ranks) > 1)} {format_ranks(output.ranks)}"
            brief += ["", f"{label}: {format_count(len(output.pieces), 'piece')}"]
            for piece in output.pieces[:MAX_PIECES]:
                brief += _draw_piece(piece, order, numbers)
            brief += _count_more(len(output.pieces), "pieces")
        brief += [*_count_more(len(outputs), "outputs"), ""]
        brief += _list_signs(order, outputs[:MAX_PIECES])
    return Document(title=f"order of {orders[0].collective}", brief=brief)


def _draw_piece(
    piece: RecordedPiece, order: RecordedOrder, numbers: Sequence[float] | None
) -> list[Block]:
    if piece.tree is None:
        reason = piece.reason or "no order was found"
        return ["", f"  elements {piece.first} to {piece.last}: {reason}"]
    sums = None if numbers is None else add_along(piece.tree, numbers, order, piece.rounding)
    text = str(piece.tree)
    head = f"elements {piece.first} to {piece.last}"
    head += f": {text}" if len(text) <= MAX_BRANCH else ""
    drawn = draw_tree(piece.tree, piece.rounding, order.op, sums)
    lines: list[Block] = ["", f"  {head}", *(f"    {line}" for line in drawn)]
    if sums:
        lines += [f"  result {sums.result}; exact and rounded once {sums.exact}"]
    return lines


def _count_more(count: int, what: str) -> list[Block]:
    return [f"and {count - MAX_PIECES:,} more {what}"] if count > MAX_PIECES else []


def _list_signs(order: RecordedOrder, outputs: Sequence[Any]) -> list[Block]:
    """The meanings of the stars in all pieces, each once."""
    pieces = [piece for output in outputs for piece in output.pieces if piece.tree]
    signs = [describe_rounding(piece.rounding, order.dtype) for piece in pieces]
    return [tone_text(text, "quiet") for text in dict.fromkeys(signs)]


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks as 0-3 or 0, 2, 5."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
