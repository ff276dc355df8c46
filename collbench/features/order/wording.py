"""Sentences on judged orders: what each dimension shows, the answer in front, and remarks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, DType
from collbench.core.sums.probes import WIDER, is_order_void
from collbench.core.sums.rounding import EXACT
from collbench.core.text import format_count, format_size, plain_line
from collbench.features.order.findings import Piece
from collbench.features.order.judgement import (
    CallChange,
    Dependence,
    JudgedOrder,
    Launch,
    Placed,
    SizeChange,
    Spot,
    is_exact,
)
from collbench.features.order.naming import head_of, list_names
from collbench.features.order.signature import describe_starts
from collbench.show.document import Weight

ADDER_NAMES = {
    8: "bfloat16",
    11: "half",
    24: "float",
    53: "double",
    64: "64 bits",
    113: "113 bits",
}

MAX_CHANGES = 3  # that a line names


class Answer(NamedTuple):
    """What an order comes to, in one sentence, and whether that is good or bad."""

    sentence: str
    weight: Weight


def format_bytes(nbytes: int) -> str:
    """A size that loses no byte: 364 B, 1,304 B, 64 KiB."""
    short = format_size(nbytes)
    number, unit = short.split()
    scale = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}[unit]
    return short if float(number) * (1 << scale) == nbytes else f"{nbytes:,} B"


def format_range(first: int, last: int) -> str:
    """Sizes from one to another: 4 to 364 B, 368 B to 64 KiB."""
    low, high = format_bytes(first), format_bytes(last)
    if first == last:
        return low
    return (
        f"{low.split()[0]} to {high}" if low.split()[1] == high.split()[1] else f"{low} to {high}"
    )


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks as numbers and ranges: 0-3, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def format_share(share: float) -> str:
    """A share in percent with two digits: 1.5 %, 63 %, 0.03 %."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def join_words(words: Sequence[str]) -> str:
    """The words as a list: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def name_adder(piece: Piece, dtype: DType) -> str:
    """In what a piece's sums are added, and where they are rounded to the element type; "-" where
    that does not show."""
    if not piece.shows_adder:
        return "-"
    if piece.adder == dtype.precision:
        name = dtype.name
    else:
        name = "exact" if piece.adder == EXACT else ADDER_NAMES.get(piece.adder, "")
        name = name or f"{piece.adder} bits"
    if piece.at:
        whole = [tuple(sorted(leaves)) for leaves in piece.at]
        tree = piece.parsed
        once = tree is not None and whole == [tuple(tree.leaves)]
        name += ", rounded once" if once else ", rounded between"
    divided = {"after": ", divided after", "before": ", divided before"}
    return name + divided.get(piece.division, "")


# dimensions


def describe_dependence(order: JudgedOrder, dependence: Dependence) -> str:
    """What shows that an order depends on something, or how it was looked for."""
    if dependence.value == "not asked":
        return plain_line(dependence.reason)
    same = dependence.value == "same"
    text = {
        "size": _describe_size,
        "position": _describe_position,
        "rank": _describe_rank,
        "call": _describe_calls,
        "launch": _describe_launches,
        "neighbours": _describe_neighbours,
        "place": _describe_place,
        "setting": _describe_settings,
    }[dependence.dimension](order, dependence, same)
    return plain_line("; ".join(filter(None, [text, describe_missing(dependence)])))


def describe_missing(dependence: Dependence) -> str:
    """The sizes at which a dimension was not asked that is the same at others, or at which an order
    is not known; "" for none."""
    is_tree = dependence.dimension in ("size", "position", "rank")
    missing = {"known" if is_tree else "asked": dependence.missing}
    sizes = {**missing, **({"known": dependence.unknown} if dependence.unknown else {})}
    return "; ".join(f"not {word} at {list_sizes(of)}" for word, of in sizes.items() if of)


def list_sizes(sizes: Sequence[int]) -> str:
    """The first few sizes: 4 KiB, 16 KiB, 64 KiB and 4 more."""
    return join_words(_cut([format_bytes(size) for size in sizes]))


def _find_launch(order: JudgedOrder, dependence: Dependence) -> Launch:
    """The launch whose sizes or positions a dependence tells."""
    numbered = (launch for launch in order.launches if launch.number == dependence.launch)
    return next(numbered, order.first)


def name_launch(order: JudgedOrder, launch: Launch) -> str:
    """A launch, where it is not the first one: launch 2."""
    return f"launch {launch.number + 1}" if launch.number != order.first.number else ""


def _describe_size(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    if same:
        return f"at {format_count(dependence.number, 'size')}"
    launch = _find_launch(order, dependence)
    text = _describe_sizes(launch, order, dependence)
    return ": ".join(filter(None, [name_launch(order, launch), text]))


def _describe_sizes(launch: Launch, order: JudgedOrder, dependence: Dependence) -> str:
    """The sizes from which on a launch adds otherwise."""
    changes = [change for change in dependence.sizes if not change.moved]
    if not changes:
        name = find_common_name(order, launch)
        return "boundaries of pieces move with the size" + (
            f"; by name: {name} wherever there are several pieces" * bool(name)
        )
    text = _list_changes(changes)
    assumed = [change for change in changes if (change.low, change.high) != _ends(change)]
    if len(changes) == 1 and assumed:
        low, high = changes[0].low, changes[0].high
        text += f", one change assumed between {format_range(low, high).replace(' to ', ' and ')}"
    elif assumed:
        text += ", one change assumed between sizes tried"
    moved = len(changes) < len(dependence.sizes)
    return text + "; elsewhere boundaries of pieces move" * moved


def _ends(change: SizeChange) -> tuple[int, int]:
    return change.after, change.nbytes


def _list_changes(changes: Sequence[SizeChange]) -> str:
    """Where the order becomes another one: at sizes known to the element, or between two."""
    exact = [
        f"{format_bytes(change.nbytes)} ({format_count(change.count, 'element')})"
        for change in changes
        if change.exact
    ]
    between = [
        format_range(change.after, change.nbytes).replace(" to ", " and ")
        for change in changes
        if not change.exact
    ]
    parts = [f"at {join_words(_cut(exact))}"] * bool(exact)
    parts += [f"between {join_words(_cut(between))}"] * bool(between)
    return f"changes {', and '.join(parts)}"


def _cut(words: Sequence[str]) -> list[str]:
    """The first few words, and how many more there are."""
    more = len(words) - MAX_CHANGES
    return [*words[:MAX_CHANGES], *[f"{more} more"] * (more > 0)]


def find_common_name(order: JudgedOrder, launch: Launch) -> str:
    """A name that a launch's order has at all sizes with several pieces; "" where there is none."""
    base = launch.base
    pieced = [item for item in base if any(len(group.pieces) > 1 for group in item.ranks)]
    heads = [
        [head_of(name) for name in list_names(order.look_up_names(item))] for item in pieced or base
    ]
    common = set.intersection(*map(set, heads)) if heads else set()
    return next((head for head in heads[0] if head in common), "") if common else ""


def _describe_position(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    if same:
        return "at each size"
    spot = dependence.spots[0]
    launch = _find_launch(order, dependence)
    where = ", ".join(filter(None, [name_launch(order, launch), format_bytes(spot.nbytes)]))
    if spot.what:
        return f"each rank's block is added in another order ({where})"
    item = next(item for item in launch.base if item.order.nbytes == spot.nbytes)
    pieces = max((group.pieces for group in item.ranks), key=len)
    return f"{format_count(len(pieces), 'piece')}, {describe_starts(pieces)} ({where})"


def _describe_rank(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    if same:
        return f"on {format_count(dependence.number, 'rank')}"
    return _list_spots(dependence.spots)


def _describe_calls(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    if same:
        return _describe_rarity(dependence, "call")
    parts = [_describe_changed(change) for change in dependence.calls]
    return "; ".join(_cut(parts))


def _describe_rarity(dependence: Dependence, what: str) -> str:
    count = f"{dependence.number:,} {what}{'es' if what == 'launch' else 's'}"
    share = format_share(dependence.rarer_than)
    plural = what + ("es" if what == "launch" else "s")
    return f"no change in {count}: rarer than {share} of {plural} (95 %)"


def _describe_changed(change: CallChange) -> str:
    calls = format_count(change.calls, "repeat")
    if change.at_start:
        calls = f"the first {format_count(change.calls, 'call')}"
    text = f"{change.changed:,} of {calls} at {format_bytes(change.nbytes)} gave other bits"
    text += " than later ones" * change.at_start
    if rhythm := describe_rhythm(change.odd):
        text += f": {rhythm}"
    if change.first is not None and change.last is not None:
        where = f"element {change.first}"
        if change.last > change.first:
            where = f"elements {change.first} to {change.last}"
        text += f", {where}"
    return text + (f", which then add as {join_words(_cut(change.trees))}" if change.trees else "")


def describe_rhythm(calls: Sequence[int]) -> str:
    """Numbers of calls in words: "calls 1 to 3", "every 50th" where gaps are equal, from the first
    on."""
    if len(calls) > 1 and calls[-1] - calls[0] == len(calls) - 1:
        return f"calls {calls[0]:,} to {calls[-1]:,}"
    gaps = {after - before for before, after in pairwise(calls)}
    if len(calls) > 2 and len(gaps) == 1:
        (gap,) = gaps
        ending = {1: "st", 2: "nd", 3: "rd"}.get(gap % 10, "th")
        ending = "th" if gap % 100 in (11, 12, 13) else ending
        since = "" if calls[0] == gap else f", from call {calls[0]} on"
        return f"every {gap}{ending}{since}"
    if not calls:
        return ""
    return f"call{'s' * (len(calls) > 1)} {join_words(_cut([str(call) for call in calls]))}"


def _describe_launches(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    return _describe_rarity(dependence, "launch") if same else _list_spots(dependence.spots)


def _describe_neighbours(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    if same:
        return _describe_rarity(dependence, "call")
    spot = dependence.spots[0]
    where = f"element {spot.element} of rank {spot.rank}" if spot.element >= 0 else "some"
    return (
        f"{where} changed in {spot.what} calls with other data around it"
        f" ({format_bytes(spot.nbytes)})"
    )


def _describe_place(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    return ", ".join(dependence.ways) if same else _list_spots(dependence.spots)


def _describe_settings(order: JudgedOrder, dependence: Dependence, same: bool) -> str:
    return f"in {dependence.number} settings" if same else _list_spots(dependence.spots)


def _list_spots(spots: Sequence[Spot]) -> str:
    return "; ".join(_cut([describe_spot(spot) for spot in spots]))


def describe_spot(spot: Spot) -> str:
    """Where two orders differ first, with both."""
    text = f"{spot.what}: {format_bytes(spot.nbytes)}"
    if spot.element < 0:
        return f"{text}, other bits or another proof"
    where = f"{text}, element {spot.element}"
    if spot.was == spot.now:
        return f"{where}: rounded otherwise"
    return f"{where}: {spot.now}, not {spot.was}"


# the answer


def describe_answer(order: JudgedOrder) -> Answer:
    """What a reader wants to know first: whether an element's sum can change, and by what."""
    if trouble := _describe_trouble(order):
        return Answer(plain_line(trouble), "bad")
    differing = {d.dimension: d for d in order.depends.values() if d.value == "differs"}
    sentences = {
        "call": _describe_change(order),
        "rank": "Ranks get different sums of the same numbers, so that copies drift apart",
        "neighbours": "An element's sum changes with what other elements hold",
        "launch": "Another launch can give other bits of the same data",
        "place": "An element's sum is rounded otherwise with buffers " + _list_ways(order),
        "setting": "Another setting can give other bits of the same data",
    }
    causes = [dimension for dimension in sentences if dimension in differing]
    if "size" in differing:
        causes.append("size")
    if causes:
        text = sentences.get(causes[0]) or _describe_growth(order, differing["size"])
        others = [f"by {cause}" for cause in causes[1:]]
        text += f"; it differs {join_words(others)}, too" * bool(others)
        weight: Weight = "bad" if causes[0] in ("call", "rank", "neighbours") else "notice"
        return Answer(plain_line(f"{text}."), weight)
    text = _describe_sameness(order)
    if order.missing:
        return Answer(plain_line(f"{text}; left out: {list_sizes(order.missing)}."), "notice")
    return Answer(plain_line(f"{text}."), "good")


def _describe_change(order: JudgedOrder) -> str:
    """That calls of the same data differ, and which do."""
    changes = order.depends["call"].calls
    if changes and all(change.at_start for change in changes):
        first, found = changes[0], [item for item in order.first.base if item.order.ranks]
        now = {piece.tree for item in found for group in item.ranks for piece in group.pieces}
        calls = describe_rhythm(first.odd).capitalize()
        if first.trees and len(now) == 1:
            return f"{calls} add as {first.trees[0]}, later ones as {now.pop()}"
        return f"{calls} add otherwise than later ones"
    return "Calls of the same data give other bits"


def _list_ways(order: JudgedOrder) -> str:
    return join_words(_cut([spot.what for spot in order.depends["place"].spots][:1]))


def _describe_trouble(order: JudgedOrder) -> str:
    """Why an order is not known, or not for sure; "" where it is."""
    if order.wrong:
        return f"Results are no sums of the inputs: {order.wrong}."
    call = order.depends["call"]
    if not order.is_found:
        if call.value == "differs":
            changed = call.calls[0]
            return (
                f"No fixed order: {changed.changed:,} of"
                f" {format_count(changed.calls, 'repeat')} gave other bits."
            )
        missing = {item.order.nbytes for item in order.placed if not item.is_found}
        sizes = {item.order.nbytes for item in order.placed}
        of = f" at {len(missing)} of {format_count(len(sizes), 'size')}"
        return f"No order was found{of}."
    if not order.is_proved:
        right, total = count_predicted(order.placed)
        return f"An order is seen, not proved: {total - right:,} of {total:,} bits are others."
    if not order.is_visible:
        is_product = order.subject.op == "prod"
        why = "products in a wider adder lose nearly nothing" if is_product else "sums are exact"
        return f"No order is visible: {why}, and right in all of {_format_total(order)}."
    return ""


def _format_total(order: JudgedOrder) -> str:
    return f"{count_predicted(order.placed)[1]:,}"


def count_predicted(placed: Iterable[Placed]) -> tuple[int, int]:
    """Bits of elements that were predicted, and all that were looked at."""
    proofs = [item.order.proof for item in placed]
    return sum(proof.right for proof in proofs), sum(proof.of for proof in proofs)


def _describe_growth(order: JudgedOrder, dependence: Dependence) -> str:
    changes = [change for change in dependence.sizes if not change.moved]
    if not changes:
        name = find_common_name(order, _find_launch(order, dependence))
        by_name = f"; where it has several pieces, all add as {name}" if name else ""
        return (
            "An element's order depends on its place in the buffer and on the buffer's"
            f" size{by_name}"
        )
    exact = [format_bytes(change.nbytes) for change in changes if change.exact]
    where = f"at {exact[0]}" if exact else f"above {format_bytes(changes[0].after)}"
    more = f", and at {format_count(len(changes) - 1, 'more size')}" * (len(changes) > 1)
    return (
        f"The order changes {where}{more}, so that the same numbers can give other bits: fix the"
        " algorithm (--env) or the size"
    )


def _describe_sameness(order: JudgedOrder) -> str:
    """What was the same, of sizes, calls and launches; a single one is not named."""
    tried = [
        word
        for dimension, word in (("size", "sizes"), ("call", "calls"), ("launch", "launches"))
        if order.depends[dimension].value == "same"  # type: ignore[index]
    ]
    over = f" at all {join_words(tried)} tried" if tried else " where it was tried"
    position = order.depends["position"]
    if any(spot.what for spot in position.spots):
        return f"Each rank's block has an order of its own, the same{over}"
    if position.value == "differs":
        return f"An element's order depends on its place in the buffer, and is the same{over}"
    return f"The same order{over}"


# remarks


def list_remarks(order: JudgedOrder) -> list[str]:
    """Sentences on what qualifies an order: what could not be seen, what was left out, what is
    wrong."""
    remarks = [
        *_describe_limits(order),
        *_describe_invisible(order),
        *_describe_unproved(order),
        *_describe_reasons(order),
        *_describe_unknown(order),
        *_describe_left_out(order),
    ]
    return [plain_line(remark) for remark in dict.fromkeys(remarks)]


def _describe_limits(order: JudgedOrder) -> list[str]:
    """What keeps names from telling more."""
    return [names.note for names in order.names.values() if names and names.note]


def _list_pieces(order: JudgedOrder) -> list[Piece]:
    return [p for item in order.placed for group in item.ranks for p in group.pieces]


def _describe_invisible(order: JudgedOrder) -> list[str]:
    """Why no order shows where sums are exact: a theorem, or the range of the type."""
    exact = [piece for piece in _list_pieces(order) if is_exact(piece.tree)]
    if not exact:
        return []
    subject, dtype = order.subject, DTYPES[order.subject.dtype]
    is_product = subject.op == "prod"
    if not is_product and is_order_void(dtype, subject.world):
        return [
            f"{format_count(subject.world, 'rank')} of {dtype.name} added in float lose nothing:"
            " any order gives these bits"
        ]
    right, total = count_predicted(order.placed)
    visible = max(piece.visible for piece in exact)
    text = f"exact: no order visible (adders of up to {visible} bits would show)"
    if right == total:
        what = "Products" if is_product else "Sums"
        text += f". {what} are correctly rounded, in {right:,} of {total:,}"
    remarks = [text]
    if dtype.precision < visible < 53:
        name = ADDER_NAMES.get(visible, f"{visible} bits")
        wider = ADDER_NAMES.get(WIDER.get(visible, 53), "a wider one")
        remarks.append(f"{dtype.name} cannot show adders wider than {name}: exact, or in {wider}")
    return remarks


def _describe_unproved(order: JudgedOrder) -> list[str]:
    """What was predicted otherwise, where it began, and what that may be."""
    remarks = []
    found = [(launch, item) for launch in order.launches for item in launch.placed]
    for launch, item in found:
        proof = item.order.proof
        if not item.is_found or proof.is_complete:
            continue
        where = [name_launch(order, launch), format_bytes(item.order.nbytes), item.way]
        size = ", ".join(filter(None, where))
        if proof.of == 0:
            remarks.append(f"{size}: an order is seen, and no sums were predicted")
            continue
        text = f"{size}: an order is seen, but {proof.of - proof.right:,} of {proof.of:,} bits are"
        text += " others (compensated? another rounding? fused with something? looks at data?)"
        if first := proof.first_wrong:
            text += f"; first at element {first.element} of rank {first.rank}: got {first.got},"
            text += f" expected {first.expected}"
        remarks.append(text)
    return _cut(remarks)


def _describe_reasons(order: JudgedOrder) -> list[str]:
    """Why pieces have no tree, the first size of each reason."""
    sizes: dict[str, str] = {}
    for item in order.placed:
        for group in item.ranks:
            for piece in group.pieces:
                if not piece.tree and piece.reason:
                    sizes.setdefault(piece.reason, format_bytes(item.order.nbytes))
    return _cut([f"{size}: {reason}" for reason, size in sizes.items()])


def _describe_unknown(order: JudgedOrder) -> list[str]:
    """That no name fits, with the first such tree."""
    for names in order.names.values():
        if names is None or list_names(names):
            continue
        for piece in names.pieces:
            if not (piece.families or piece.has_one_order or is_exact(str(piece.tree))):
                return [f"unknown: {piece.order}. Tell us the library and version (--format md)"]
    return []


def _describe_left_out(order: JudgedOrder) -> list[str]:
    """What was asked for and not done, or more than once."""
    dropped = [text for launch in order.launches for text in launch.findings.dropped]
    cuts = [
        f"{format_bytes(item.order.nbytes)}: {item.order.repeats.cut}"
        for item in order.placed
        if item.order.repeats.cut
    ]
    again = [item.order for item in order.placed if item.order.attempts > 1]
    asked = [
        f"{format_bytes(o.nbytes)}: answers contradicted each other, asked {o.attempts} times"
        for o in again
    ]
    return [
        *(f"left out: {text}" for text in dict.fromkeys(dropped)),
        *_cut([*dict.fromkeys(cuts)]),
        *_cut([*dict.fromkeys(asked)]),
    ]


def describe_subject(order: JudgedOrder) -> str:
    """The order's case in words, as a title: collective, ranks, backend, type, reduction."""
    subject, case = order.subject, order.case
    root = f"root {subject.root}" if COLLECTIVES[subject.collective].rooted else ""
    parts = [
        f"order of {subject.collective}",
        format_count(subject.world, "rank"),
        case.label,
        subject.dtype,
        subject.op,
        root,
        *(f"{name}={value}" for name, value in case.env),
    ]
    return plain_line(", ".join(filter(None, parts)))
