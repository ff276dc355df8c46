"""Orders of a run, judged: on what the order of an element's additions depends, as far as that was
asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.sums.names import Names
from collbench.core.sums.trees import parse_tree
from collbench.features.order import KIND
from collbench.features.order.findings import (
    OrderFindings,
    Piece,
    RankPieces,
    Repeats,
    SizeOrder,
    read_findings,
)
from collbench.features.order.naming import name_found
from collbench.features.order.request import SumOrder, label_way
from collbench.features.order.signature import (
    Difference,
    find_difference,
    is_moved,
    order_of,
    sign_order,
)
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case

Dimension = Literal["size", "position", "rank", "call", "launch", "neighbours", "place", "setting"]
DIMENSIONS: tuple[Dimension, ...] = (
    *("size", "position", "rank", "call", "launch", "neighbours", "place", "setting"),
)

Value = Literal["same", "differs", "not asked"]

CONFIDENCE = 0.95

MAX_CALLS = 1000  # numbers of calls that differed which are kept of a size


class SizeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A size from which on the order is another than ``after`` bytes have. It is known to the
    element where the sizes between them hold no whole element (``exact``), by bisection between
    ``low`` and ``high``, which assumes one change there. ``moved``: only boundaries of pieces are
    elsewhere."""

    nbytes: int
    count: int
    after: int
    low: int
    high: int
    exact: bool = False
    moved: bool = False


class CallChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Repeats at a size whose bits were others: ``changed`` of ``calls``, those of the numbers
    ``odd`` (the first ones), and the orders that give these bits, as far as known. ``at_start``:
    they were the first calls at this size, held against later ones."""

    nbytes: int
    calls: int
    changed: int
    odd: tuple[int, ...]
    trees: tuple[str, ...] = ()
    first: int | None = None
    last: int | None = None
    ranks: tuple[int, ...] = ()
    at_start: bool = False


class Spot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where two orders differ first: at what size, in which way to place buffers or in which launch
    or setting (``what``), and the element; the orders there are empty where only bits differ."""

    what: str
    nbytes: int
    rank: int = -1
    element: int = -1
    was: str = ""
    now: str = ""


class Dependence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the order depends on a ``dimension``, and what shows it. ``number``: how many calls
    or launches were alike, or ways and settings compared; ``rarer_than``: a change that was not
    seen in them happens in a smaller share, at 95 %; 0 where that is not bounded. ``reason``: why
    it was not asked; ``missing``: the sizes at which it was not, though it is the same at others;
    ``unknown``: those at which it was, and an order was not found. ``launch``: the one whose sizes
    or positions are told."""

    dimension: Dimension
    value: Value
    number: int = 0
    rarer_than: float = 0.0
    sizes: tuple[SizeChange, ...] = ()
    calls: tuple[CallChange, ...] = ()
    spots: tuple[Spot, ...] = ()
    ways: tuple[str, ...] = ()
    reason: str = ""
    missing: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    launch: int = 0


Key = tuple[int, bool, int]  # bytes, in place, elements off alignment

# ranks that have the same, and the tree and length of each of their pieces
Trees = tuple[tuple[tuple[int, ...], tuple[tuple[str, int], ...]], ...]


class Placed(NamedTuple):
    """The order at one size, in one way to place buffers, with the pieces of the aligned one out of
    place where they are the same."""

    order: SizeOrder
    ranks: Sequence[RankPieces]

    @property
    def key(self) -> Key:
        """The size and how buffers were placed."""
        return self.order.nbytes, self.order.in_place, self.order.shift

    @property
    def way(self) -> str:
        """How buffers were placed, in words; "" for out of place and aligned."""
        return describe_way(self.order.in_place, self.order.shift)

    @property
    def signature(self) -> str:
        """The digest by which it is compared."""
        return sign_order(self.ranks, self.order.proof)

    @property
    def trees(self) -> Trees:
        """By ranks that have the same, the tree and length of each of their pieces, which names
        are chosen by."""
        return tuple(
            (group.ranks, tuple((piece.tree, piece.length) for piece in group.pieces))
            for group in self.ranks
        )

    @property
    def adders(self) -> frozenset[int]:
        """Bits of the adders that were found."""
        return frozenset(p.adder for group in self.ranks for p in group.pieces if p.tree)

    @property
    def is_found(self) -> bool:
        """Whether every piece has a tree."""
        return bool(self.ranks) and all(p.tree for group in self.ranks for p in group.pieces)

    @property
    def is_tried(self) -> bool:
        """Whether every piece has a tree, and random numbers were predicted by them."""
        return self.is_found and self.order.proof.of > 0

    @property
    def is_proved(self) -> bool:
        """Whether every piece has a tree, and these predict all bits of random numbers."""
        return self.is_found and self.order.proof.is_complete


class Launch(NamedTuple):
    """What one launch found: in all ways, by size; ``base`` are those of each size that others are
    held against. ``wrong``: what was no sum of the inputs, in words; "" if nothing was."""

    number: int
    findings: OrderFindings
    placed: list[Placed]
    base: list[Placed]
    library: str
    wrong: str = ""


class JudgedOrder(NamedTuple):
    """The order of a collective on a backend in one setting of the environment, over its launches;
    ``names`` of all of its trees, and ``missing`` sizes that were asked for and not looked at."""

    case: Case
    subject: SumOrder
    launches: list[Launch]
    depends: dict[Dimension, Dependence]
    names: dict[Trees, Names | None]
    missing: tuple[int, ...] = ()

    @property
    def first(self) -> Launch:
        """The launch whose orders are shown."""
        return self.launches[0]

    def look_up_names(self, item: Placed) -> Names | None:
        """The names of an order that a launch found."""
        return self.names.get(item.trees)

    @property
    def placed(self) -> list[Placed]:
        """Everything that any launch found."""
        return [placed for launch in self.launches for placed in launch.placed]

    @property
    def wrong(self) -> str:
        """What was no sum of the inputs, in words; "" if nothing was."""
        return next((launch.wrong for launch in self.launches if launch.wrong), "")

    @property
    def is_found(self) -> bool:
        """Whether there is a tree for every element."""
        return bool(self.placed) and all(placed.is_found for placed in self.placed)

    @property
    def is_proved(self) -> bool:
        """Whether all bits of all random buffers were predicted."""
        return bool(self.placed) and all(placed.is_proved for placed in self.placed)

    @property
    def is_visible(self) -> bool:
        """Whether some sum has an order that shows in its bits."""
        return any(
            p.tree and not is_exact(p.tree) and not is_hidden(p, self.subject)
            for placed in self.placed
            for group in placed.ranks
            for p in group.pieces
        )


class UnmeasuredOrder(NamedTuple):
    """An order that was asked for, of which nothing was found, and why."""

    case: Case
    subject: SumOrder | None
    status: str
    reason: str


class Judgement(NamedTuple):
    """All orders of a run, and those of which nothing is known."""

    orders: list[JudgedOrder]
    unmeasured: list[UnmeasuredOrder]


def judge_orders(file: RunFile) -> Judgement:
    """The orders of a run, in the order of its cases, each setting of the environment by itself."""
    find_subject = file.run.suite.subject_finder
    libraries = {world.index: world.library for world in file.worlds}
    launches: dict[Case, list[Launch]] = {}
    subjects: dict[Case, SumOrder] = {}
    unmeasured: list[UnmeasuredOrder] = []
    records = {record.case: record for record in file.records if record.case.kind == KIND}
    for case, record in sorted(records.items(), key=lambda item: item[0].cycle):
        subject = find_subject(case)
        subject = subject if isinstance(subject, SumOrder) else None
        findings = read_findings(record)
        if subject is None or findings is None or not _is_readable(findings, subject.world):
            unmeasured.append(_make_unmeasured_order(record, subject))
            continue
        if record.status not in ("ok", "wrong"):
            unmeasured.append(_make_unmeasured_order(record, subject))
        key = replace(case, cycle=0)
        subjects[key] = subject
        launches.setdefault(key, []).append(
            _gather_launch(record, findings, libraries.get(record.world, ""))
        )
    orders = []
    for key, own in launches.items():
        settings = [
            (other, found)
            for other, found in launches.items()
            if replace(other, env=key.env) == key
        ]
        orders.append(_judge_order(key, subjects[key], own, settings))
    return Judgement(orders, unmeasured)


def _is_readable(findings: OrderFindings, n: int) -> bool:
    """Whether there is something, and a file of another's making has pieces of n ranks, one after
    the other, and trees that can be read."""
    groups = [group for order in findings.sizes for group in order.ranks]
    pieces = [piece for group in groups for piece in group.pieces]
    trees = {piece.tree for piece in pieces} | {piece.low for piece in pieces}
    try:
        leaves = {leaf for text in trees if text for leaf in parse_tree(text).leaves}
    except UsageError:
        return False
    ranks = {rank for group in groups for rank in group.ranks}
    in_order = all(
        group.ranks
        and group.pieces
        and all(piece.first <= piece.last for piece in group.pieces)
        and all(a.last < b.first for a, b in pairwise(group.pieces))
        for group in groups
    )
    is_asked = any(not order.like for order in findings.sizes)
    return is_asked and in_order and leaves | ranks <= {*range(n)}


def _make_unmeasured_order(record: Record, subject: SumOrder | None) -> UnmeasuredOrder:
    """A record without findings, and the reason that it gives."""
    findings = read_findings(record)
    dropped = "; ".join(findings.dropped) if findings else ""
    nothing = "nothing was found" if subject else "what it asked for is not known"
    reason = record.note or dropped or nothing
    return UnmeasuredOrder(record.case, subject, record.status, reason)


def _gather_launch(record: Record, findings: OrderFindings, library: str) -> Launch:
    base: dict[int, SizeOrder] = {}
    for order in sorted(findings.sizes, key=lambda order: (order.nbytes, order.varied)):
        if not order.like:
            base.setdefault(order.nbytes, order)
    placed = [
        Placed(order, base[order.nbytes].ranks if order.like else order.ranks)
        for order in findings.sizes
        if not order.like or order.nbytes in base
    ]
    placed.sort(key=lambda item: item.key)
    own = [Placed(order, order.ranks) for _, order in sorted(base.items())]
    wrong = (record.note or "wrong data") if record.status == "wrong" else ""
    return Launch(record.case.cycle, findings, placed, own, library, wrong)


def _judge_order(
    case: Case, subject: SumOrder, launches: list[Launch], settings: list[tuple[Case, list[Launch]]]
) -> JudgedOrder:
    depends = (
        _judge_each(_judge_size, subject, launches),
        _judge_each(_judge_position, subject, launches),
        _judge_rank(subject, launches),
        _judge_calls(subject, launches),
        _judge_launches(subject, launches),
        _judge_neighbours(subject, launches),
        _judge_place(subject, launches),
        _judge_settings(case, subject, launches, settings),
    )
    by_trees = {item.trees: item.ranks for launch in launches for item in launch.placed}
    names = {trees: name_found(subject, ranks) for trees, ranks in by_trees.items()}
    by_dimension = {dependence.dimension: dependence for dependence in depends}
    missing = _list_missing(subject, launches)
    return JudgedOrder(case, subject, launches, by_dimension, names, missing)


NO_ORDER = "no order was found"

LEFT_OUT = "asked for, and left out"

ONE_ELEMENT = "buffers have one element"


def _list_missing(
    subject: SumOrder,
    launches: Iterable[Launch],
    has: Callable[[Placed], object] = lambda item: True,
) -> tuple[int, ...]:
    """The sizes asked for that a launch does not have, or of which it does not have something."""
    there = [{item.order.nbytes for item in launch.base if has(item)} for launch in launches]
    return tuple(size for size in subject.sizes if any(size not in sizes for sizes in there))


def _list_unfound(subject: SumOrder, launches: Iterable[Launch]) -> tuple[int, ...]:
    return _list_missing(subject, launches, lambda item: item.is_found)


def _judge_each(
    judge: Callable[[SumOrder, Launch], Dependence], subject: SumOrder, launches: Sequence[Launch]
) -> Dependence:
    """What the first launch shows, or the first one in which it differs."""
    found = [(launch.number, judge(subject, launch)) for launch in launches]
    for number, dependence in found:
        if dependence.value == "differs":
            return replace(dependence, launch=number)
    first = found[0][1]
    if first.value == "not asked":
        return first
    return replace(first, missing=_list_unfound(subject, launches))


def _judge_size(subject: SumOrder, launch: Launch) -> Dependence:
    """Sizes from which on an element that both have is added otherwise."""
    found = [item for item in launch.base if item.is_found]
    if len(found) < 2:
        reason = NO_ORDER if len(launch.base) > 1 else "-b and -e give one size"
        return Dependence(dimension="size", value="not asked", reason=reason)
    asked = [item.order.nbytes for item in found if not item.order.bisected]
    divided = COLLECTIVES[subject.collective].total
    unit = DTYPES[subject.dtype].size * (subject.world if divided else 1)
    changes = []
    for before, after in pairwise(found):
        if find_difference(before.ranks, after.ranks) is None:
            continue
        nbytes, former = after.order.nbytes, before.order.nbytes
        changes.append(
            SizeChange(
                nbytes=nbytes,
                count=after.order.count,
                after=former,
                low=max((size for size in asked if size <= former), default=former),
                high=min((size for size in asked if size >= nbytes), default=nbytes),
                exact=nbytes - former <= unit,
                moved=is_moved(before.ranks, after.ranks),
            )
        )
    value: Value = "differs" if changes else "same"
    return Dependence(dimension="size", value=value, number=len(found), sizes=tuple(changes))


def _judge_position(subject: SumOrder, launch: Launch) -> Dependence:
    """Whether a buffer has more than one order, at the largest size where it has; of collectives
    that divide the buffer, over all ranks' blocks."""
    found = [item for item in launch.base if item.is_found]
    if not found:
        return Dependence(dimension="position", value="not asked", reason=NO_ORDER)
    if found[-1].order.count < 2:
        return Dependence(dimension="position", value="not asked", reason=ONE_ELEMENT)
    divided = COLLECTIVES[subject.collective].total
    for item in reversed(found):
        blocks = {tuple(map(order_of, group.pieces)) for group in item.ranks}
        if any(len(block) > 1 for block in blocks):
            spot = Spot("", item.order.nbytes)
            return Dependence(dimension="position", value="differs", spots=(spot,))
        if divided and len(blocks) > 1:
            spot = Spot("blocks", item.order.nbytes)
            return Dependence(dimension="position", value="differs", spots=(spot,))
    return Dependence(dimension="position", value="same", number=len(found))


UNLIKE = {  # collectives whose ranks get different sums
    "reduce_scatter": "each rank has another block",
    "scan": "each rank adds another number of ranks",
    "reduce": "only the root has the result",
}


def _judge_rank(subject: SumOrder, launches: Sequence[Launch]) -> Dependence:
    """Whether ranks with the same sums add them in different orders."""
    if reason := UNLIKE.get(subject.collective, ""):
        return Dependence(dimension="rank", value="not asked", reason=reason)
    found = [item for launch in launches for item in launch.placed if item.is_found]
    if not found:
        return Dependence(dimension="rank", value="not asked", reason=NO_ORDER)
    spots = []
    for item in found:
        first, *others = sorted(item.ranks, key=lambda group: group.ranks)
        pairs = [
            (other.ranks[0], pair)
            for other in others
            if (pair := find_difference([first], [replace(other, ranks=first.ranks)]))
        ]
        spots += [
            _make_spot(f"rank {rank}", item.order.nbytes, pair._replace(rank=rank))
            for rank, pair in pairs
        ]
    return Dependence(
        dimension="rank",
        value="differs" if spots else "same",
        number=subject.world,
        spots=tuple(spots[:MAX_SPOTS]),
        missing=() if spots else _list_unfound(subject, launches),
    )


MAX_SPOTS = 8


def _judge_calls(subject: SumOrder, launches: Sequence[Launch]) -> Dependence:
    """Whether calls of the same data gave other bits, the first ones of a size included."""
    placed = [item.order for launch in launches for item in launch.placed]
    repeated = [order for order in placed if order.repeats.calls]
    changes = [_make_call_change(order, order.repeats) for order in repeated]
    changes += [_make_call_change(order, order.first_calls, at_start=True) for order in placed]
    changed = tuple(change for change in changes if change.changed)
    if not (repeated or changed):
        reason = LEFT_OUT if subject.repeats else "--repeats 200"
        return Dependence(dimension="call", value="not asked", reason=reason)
    number = min((order.repeats.calls for order in repeated), default=0)
    missing = _list_missing(subject, launches, lambda item: item.order.repeats.calls)
    return _make_frequency("call", number, bool(changed), missing, calls=changed)


def _make_call_change(order: SizeOrder, repeats: Repeats, at_start: bool = False) -> CallChange:
    """What is to be known of the calls of a size that gave other bits."""
    calls = sorted({call for odd in repeats.odd for call in odd.calls})
    return CallChange(
        nbytes=order.nbytes,
        calls=repeats.calls,
        changed=repeats.changed,
        odd=tuple(calls[:MAX_CALLS]),
        trees=tuple(dict.fromkeys(odd.tree for odd in repeats.odd if odd.tree)),
        first=min((odd.first for odd in repeats.odd), default=None),
        last=max((odd.last for odd in repeats.odd), default=None),
        ranks=tuple(sorted({rank for odd in repeats.odd for rank in odd.ranks})),
        at_start=at_start,
    )


def bound_rarity(number: int) -> float:
    """The share of calls or launches below which a change stays unseen in so many, at 95 %."""
    return float(1 - (1 - CONFIDENCE) ** (1 / number))


def _make_frequency(
    dimension: Dimension,
    number: int,
    differs: bool,
    missing: tuple[int, ...],
    calls: tuple[CallChange, ...] = (),
    spots: tuple[Spot, ...] = (),
) -> Dependence:
    """What so many calls or launches show, and how rare a change must be that they do not."""
    return Dependence(
        dimension=dimension,
        value="differs" if differs else "same",
        number=number,
        rarer_than=0.0 if differs else bound_rarity(number),
        calls=calls,
        spots=spots,
        missing=() if differs else missing,
    )


def _judge_launches(subject: SumOrder, launches: Sequence[Launch]) -> Dependence:
    """Whether another launch found another order, or other bits of the same data."""
    first, *others = launches
    compared = [
        (launch, pairs) for launch in others if (pairs := pair_placed(first.placed, launch.placed))
    ]
    if not compared:
        return Dependence(dimension="launch", value="not asked", reason="--launches 3")
    precision = DTYPES[subject.dtype].precision
    spots = [
        spot
        for launch, pairs in compared
        if (spot := find_spot(pairs, f"launch {launch.number + 1}", precision))
    ]
    number = len(compared) + 1
    keys = [{item.key for item in launch.placed} for launch in launches]
    every = {key for own in keys for key in own}
    uncommon = {key[0] for key in every if not all(key in own for own in keys)}
    missing = _list_missing(subject, launches, lambda item: item.order.nbytes not in uncommon)
    shown = tuple(spots[:MAX_SPOTS])
    dependence = _make_frequency("launch", number, bool(spots), missing, spots=shown)
    unknown = _list_unknown(pair for _, pairs in compared for pair in pairs)
    return dependence if spots else replace(dependence, unknown=unknown)


def pair_placed(base: Iterable[Placed], head: Iterable[Placed]) -> list[tuple[Placed, Placed]]:
    """What two launches, settings or runs have of the same size and way, where both have an
    order or bits."""
    by_key = {item.key: item for item in base}
    return [(by_key[item.key], item) for item in head if item.key in by_key]


def find_spot(pairs: Iterable[tuple[Placed, Placed]], what: str, precision: int = 0) -> Spot | None:
    """The first of the pairs whose orders differ, or, where the ``precision`` of elements is given,
    whose bits of the same data do: numbers are drawn for all wider adders that were found. Trees
    that predict all bits of one and not of the other have other bits; where a tree is missing, or
    was not tried, that is not known (is_unknown)."""
    for base, head in pairs:
        nbytes = base.order.nbytes
        if base.signature != head.signature:
            if pair := find_difference(_list_trees(base.ranks), _list_trees(head.ranks)):
                return _make_spot(what, nbytes, pair)
            if base.is_tried and head.is_tried and base.is_proved != head.is_proved:
                return Spot(what, nbytes)
        digests = (base.order.digest, head.order.digest)
        is_same_data = not (base.adders ^ head.adders) - {precision}
        if precision and is_same_data and all(digests) and digests[0] != digests[1]:
            return Spot(what, nbytes)
    return None


def is_unknown(base: Placed, head: Placed) -> bool:
    """Whether two orders in which find_spot sees no difference may be others all the same."""
    return base.signature != head.signature and not (base.is_tried and head.is_tried)


def _list_unknown(pairs: Iterable[tuple[Placed, Placed]]) -> tuple[int, ...]:
    """The sizes of pairs that may be different orders, or not."""
    return tuple(sorted({base.order.nbytes for base, head in pairs if is_unknown(base, head)}))


def _list_trees(ranks: Iterable[RankPieces]) -> list[RankPieces]:
    """The pieces that have a tree."""
    return [replace(group, pieces=[p for p in group.pieces if p.tree]) for group in ranks]


def _make_spot(what: str, nbytes: int, pair: Difference) -> Spot:
    return Spot(what, nbytes, pair.rank, pair.element, pair.base.tree, pair.head.tree)


def _judge_neighbours(subject: SumOrder, launches: Sequence[Launch]) -> Dependence:
    """Whether an element's bits changed with what other elements hold, in buffers that have any."""
    alone = DTYPES[subject.dtype].size  # bytes of an element
    orders = [
        item.order
        for launch in launches
        for item in launch.placed
        if item.order.neighbours.calls and item.order.nbytes > alone
    ]
    if not orders:
        reason = LEFT_OUT if subject.repeats else "--repeats 200"
        if subject.sizes[-1] <= alone:
            reason = ONE_ELEMENT
        return Dependence(dimension="neighbours", value="not asked", reason=reason)
    spots = [
        Spot(
            f"{order.neighbours.changed} of {order.neighbours.calls}",
            order.nbytes,
            -1 if order.neighbours.rank is None else order.neighbours.rank,
            -1 if order.neighbours.first is None else order.neighbours.first,
        )
        for order in orders
        if order.neighbours.changed
    ]
    number = min(order.neighbours.calls for order in orders)
    missing = _list_missing(subject, launches, lambda item: item.order.neighbours.calls)
    missing = tuple(size for size in missing if size > alone)
    shown = tuple(spots[:MAX_SPOTS])
    return _make_frequency("neighbours", number, bool(spots), missing, spots=shown)


def _judge_place(subject: SumOrder, launches: Sequence[Launch]) -> Dependence:
    """Whether buffers in place, or off alignment, are added otherwise."""
    spots: dict[str, Spot] = {}
    ways: dict[str, None] = {}
    pairs: list[tuple[Placed, Placed]] = []
    for launch in launches:
        base = {item.order.nbytes: item for item in launch.base}
        for item in launch.placed:
            own = base[item.order.nbytes]
            if item.key == own.key:
                continue
            way = describe_way(item.order.in_place, item.order.shift) or "out of place"
            ways[way] = None
            if item.order.like:
                continue
            pairs.append((own, item))
            if spot := find_spot(pairs[-1:], way):
                spots.setdefault(way, spot)
    if not ways:
        is_requested = len(subject.places) * len(subject.shifts) > 1
        reason = LEFT_OUT if is_requested else "--place out,in --shift 0,1"
        return Dependence(dimension="place", value="not asked", reason=reason)
    return Dependence(
        dimension="place",
        value="differs" if spots else "same",
        ways=tuple(ways),
        spots=tuple(spots.values()),
        missing=() if spots else _list_unplaced(subject, launches),
        unknown=() if spots else _list_unknown(pairs),
    )


def _list_unplaced(subject: SumOrder, launches: Iterable[Launch]) -> tuple[int, ...]:
    """The sizes asked for that a launch did not try in every way to place buffers that was asked
    for, but those that the library refuses."""
    missing = set()
    for launch in launches:
        there = {item.key for item in launch.placed}
        dropped = launch.findings.dropped
        for way in subject.ways:
            refused = any(text.startswith(f"{label_way(*way)}: ") for text in dropped)
            if not refused:
                missing |= {size for size in subject.sizes if (size, *way) not in there}
    return tuple(size for size in subject.sizes if size in missing)


def describe_way(in_place: bool, shift: int) -> str:
    """How buffers are placed, in words, with elements off alignment; "" for out of place and
    aligned."""
    off = f"{shift} off" if shift else ""
    return " ".join(filter(None, ["in place" * in_place, off]))


def _judge_settings(
    case: Case,
    subject: SumOrder,
    launches: Sequence[Launch],
    settings: Sequence[tuple[Case, Sequence[Launch]]],
) -> Dependence:
    """Whether another setting of the environment has another order than this one."""
    others = [
        (other, pairs)
        for other, found in settings
        if other != case and (pairs := _pair_launches(launches, found))
    ]
    if not others:
        return Dependence(dimension="setting", value="not asked", reason="--env NAME=V1,V2")
    spots = [
        spot for other, pairs in others if (spot := find_spot(pairs, describe_setting(other, case)))
    ]
    everyone = [launch for _, found in settings for launch in found]
    return Dependence(
        dimension="setting",
        value="differs" if spots else "same",
        number=len(others) + 1,
        spots=tuple(spots[:MAX_SPOTS]),
        missing=() if spots else _list_missing(subject, everyone),
        unknown=() if spots else _list_unknown(pair for _, found in others for pair in found),
    )


def _pair_launches(
    launches: Iterable[Launch], others: Iterable[Launch]
) -> list[tuple[Placed, Placed]]:
    """What each launch has in common with another setting's, the first with the first."""
    return [
        pair
        for launch, other in zip(launches, others, strict=False)
        for pair in pair_placed(launch.base, other.base)
    ]


def describe_setting(case: Case, other: Case) -> str:
    """What a case sets, less what another sets, too."""
    own = [f"{name}={value}" for name, value in case.env if (name, value) not in other.env]
    return " ".join(own) or "without settings"


def is_hidden(piece: Piece, subject: SumOrder) -> bool:
    """Whether a piece is of products in a wider adder, rounded once: no number cancels what they
    lose there, so that any order gives the same bits but for one in thousands."""
    is_wide = piece.adder != DTYPES[subject.dtype].precision
    return subject.op == "prod" and is_wide and len(piece.at) <= 1


def is_exact(tree: str) -> bool:
    """Whether a tree is one node that adds all without loss, so that no order shows."""
    return tree.startswith("exact{") and not any(mark in tree[6:] for mark in "+{")
