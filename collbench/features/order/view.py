"""Orders of a run as a document: the answer, a line for each order of additions, on what it
depends, and what was required."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.core.dtypes import DTYPES
from collbench.core.sums.names import Names
from collbench.core.text import format_count, plain_line
from collbench.core.version import __version__
from collbench.features.order.findings import SPENT, Piece, RankPieces
from collbench.features.order.judgement import (
    Dependence,
    JudgedOrder,
    Judgement,
    Launch,
    Placed,
    UnmeasuredOrder,
    bound_rarity,
    judge_orders,
)
from collbench.features.order.likeness import Likeness, describe_likeness
from collbench.features.order.naming import describe_piece, list_names
from collbench.features.order.report import OrderReport
from collbench.features.order.requirements import RequirementResult
from collbench.features.order.signature import are_even, describe_starts, list_starts, outline_order
from collbench.features.order.wording import (
    Answer,
    count_predicted,
    describe_answer,
    describe_dependence,
    describe_subject,
    format_range,
    format_ranks,
    list_remarks,
    name_adder,
)
from collbench.show.document import (
    Block,
    Cell,
    Column,
    Comment,
    Document,
    Line,
    Section,
    Table,
    Tone,
    make_columns,
    tone_text,
)
from collbench.show.views.machines import describe_machine
from collbench.show.views.series import View
from collbench.show.words import list_caveats

COLUMNS = (  # the last is the one from which a terminal takes what is lacking
    Column("size", "left"),
    Column("pieces"),
    Column("order", "left"),
    Column("adds as", "cut"),
    Column("adds in", "left", priority=2),
    Column("bits predicted"),
    Column("error, ulp", "left", priority=3),
)

ORDER = 2  # the column of orders

MAX_NARROW = 24  # characters of orders that narrow tables keep

DIMENSION_COLUMNS = make_columns(("depends on", "", ""), "llw")

MAX_PIECES = 8  # of a size, which have a line each

MAX_NAMED = 4  # orders that a sentence names

MAX_TREE = 60  # characters of an order in a table

NOTE = (
    "n: elements of a buffer; error: of a sum, in units of its last place (ulp), the largest and"
    " (the mean)"
)

TONES: dict[str, Tone] = {"same": "good", "differs": "notice", "not asked": "quiet"}


class SizeBlock(NamedTuple):
    """Sizes in a row that are added alike, in one way to place buffers."""

    items: list[Placed]

    @property
    def first(self) -> Placed:
        """The smallest of them."""
        return self.items[0]

    @property
    def label(self) -> str:
        """The sizes, and the way if it is not the usual one."""
        low, high = (item.order.nbytes for item in (self.items[0], self.items[-1]))
        way = self.first.way if self.first.order.varied else ""
        return ", ".join(filter(None, [format_range(low, high), way]))


def make_document(report: OrderReport) -> Document:
    """What came of a run, for every medium."""
    file, judgement = report.file, report.judgement
    caveats: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    answers = _list_answers(judgement.orders)
    body: list[Block] = []
    for order in judgement.orders:
        body += [*_describe_head(order), *_make_blocks(order)]
    unmeasured = list(_describe_unmeasured(judgement.unmeasured))
    results = [*_describe_requirements(report.requirements), *_describe_likenesses(report)]
    machine = plain_line(" · ".join([f"collbench {__version__}", *describe_machine(file)]))
    nothing = [] if judgement.orders or unmeasured else ["no order was looked for in this run"]
    first = [*caveats, *_describe_undecided(judgement), *answers, *results]
    brief = [*first, tone_text(machine, "quiet"), *nothing, *body, *unmeasured]
    return Document(
        title=f"Orders of additions, {file.run.id}",
        brief=brief,
        comment=Comment(brief),
        rows=list(_list_rows(judgement.orders)),
        values=_make_values(report),
    )


def make_section(view: View) -> Section | None:
    """The section on a report's runs; None where no order was found in them."""
    tables: list[Table] = []
    sentences: list[str] = []
    for number, file in enumerate(view.files):
        for order in judge_orders(file).orders:
            title = view.prefix_run(number, describe_subject(order))
            sentences.append(f"{title}: {describe_answer(order).sentence}")
            tables.append(replace(_make_table(order), title=title, note=NOTE))
            tables.append(replace(_make_dependences(order), title=f"{title}, what it depends on"))
            sentences += list_remarks(order)
    if not tables:
        return None
    return Section(name="order", title="Orders of additions", sentences=sentences, tables=tables)


def _describe_undecided(judgement: Judgement) -> Iterator[Block]:
    """That nothing was decided; else what --budget left undecided."""
    if not judgement.orders:
        if judgement.unmeasured:
            yield tone_text("Nothing was decided: no order was found.", "notice", strong=True)
        return
    launches = [launch for order in judgement.orders for launch in order.launches]
    undecided = dict.fromkeys(text for launch in launches for text in launch.findings.undecided)
    lost = [case for case in judgement.unmeasured if case.reason.endswith(SPENT)]
    parts = [*undecided, *([format_count(len(lost), "case")] if lost else [])]
    if parts:
        shown = ", ".join(parts[:MAX_NAMED]) + ", and more" * (len(parts) > MAX_NAMED)
        text = f"Only a part was decided: --budget left no time for {shown}."
        yield tone_text(text, "notice", strong=True)


def _list_answers(orders: Sequence[JudgedOrder]) -> list[Block]:
    """A sentence for each order, once for those that have the same, which it names where there are
    several."""
    tones: dict[str, Tone] = {"bad": "bad", "notice": "notice", "good": "good"}
    labels = _label_orders(orders)
    by_answer: dict[Answer, list[str]] = {}
    for order, label in zip(orders, labels, strict=True):
        by_answer.setdefault(describe_answer(order), []).append(label)
    blocks: list[Block] = []
    for answer, names in by_answer.items():
        some = list(filter(None, names))[:MAX_NAMED]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        name = f"{'; '.join(some)}{more}: " if len(by_answer) > 1 and some else ""
        blocks.append(tone_text(name + answer.sentence, tones.get(answer.weight, ""), strong=True))
    return blocks


def _label_orders(orders: Sequence[JudgedOrder]) -> list[str]:
    """Names of orders, by what they do not have in common."""
    parts = [describe_subject(order).split(", ") for order in orders]
    common = set.intersection(*map(set, parts)) if parts else set()
    return [", ".join(part for part in own if part not in common) for own in parts]


def _describe_head(order: JudgedOrder) -> list[Block]:
    """What was asked, of which library."""
    sizes = [item.order.nbytes for item in order.first.base]
    title = f"{describe_subject(order)} · {format_range(sizes[0], sizes[-1])}"
    library = order.first.library or order.case.backend
    base = [item.order for item in order.first.base]
    asked = [size for size in base if not size.bisected] or base
    most = max(asked, key=lambda size: size.calls)
    parts = [
        library,
        f"{format_count(most.calls, 'probe')}, {format_count(most.proof.buffers, 'proof')} and"
        f" {format_count(max(size.repeats.calls for size in asked), 'repeat')} a size",
        format_count(len(order.launches), "launch") * (len(order.launches) > 1),
    ]
    return [
        "",
        tone_text(plain_line(title), strong=True),
        tone_text(plain_line(" · ".join(filter(None, parts))), "quiet"),
        "",
    ]


def _make_blocks(order: JudgedOrder) -> list[Block]:
    remarks = [tone_text(remark, "quiet") for remark in list_remarks(order)]
    return [
        _make_table(order),
        "",
        _make_dependences(order),
        *([""] if remarks else []),
        *remarks,
    ]


def _make_table(order: JudgedOrder) -> Table:
    """A line for each stretch of sizes that are added alike, and below it one for each piece."""
    lines: list[Line] = []
    for block in _list_size_blocks(order):
        lines += _make_lines(order, block)
    columns = list(COLUMNS)
    if max(len(str(line.cells[ORDER])) for line in lines) > MAX_NARROW:
        columns[ORDER] = columns[ORDER]._replace(priority=1)
    return Table(columns=columns, lines=lines)


def _list_size_blocks(order: JudgedOrder) -> Iterator[SizeBlock]:
    """Sizes of one order together; then other ways to place buffers that have another order."""

    def outline(item: Placed) -> tuple[object, ...]:
        names = order.look_up_names(item)
        return outline_order(item.ranks), item.order.proof.is_complete, names and names.phrase

    for _, items in groupby(order.first.base, outline):
        yield SizeBlock(list(items))
    base = {item.order.nbytes: item.signature for item in order.first.base}
    others = [
        item
        for item in order.first.placed
        if item.order.varied and not item.order.like and item.signature != base[item.order.nbytes]
    ]
    others.sort(key=lambda item: item.key[1:])
    for _, items in groupby(others, lambda item: (item.way, *outline(item))):
        yield SizeBlock(list(items))


def _make_lines(order: JudgedOrder, block: SizeBlock) -> Iterator[Line]:
    """The line of a block, and one for each rank's piece where there are several."""
    item, dtype = block.first, DTYPES[order.subject.dtype]
    pieces = [(group, piece) for group in item.ranks for piece in group.pieces]
    names = order.look_up_names(item)
    brackets = not item.order.proof.is_complete
    telling = [piece for _, piece in pieces if piece.shows_adder or not piece.tree]
    adders = list(dict.fromkeys(name_adder(piece, dtype) for piece in telling))
    several = len(pieces) > 1
    text = _summarise_pieces(item.ranks) if several else ""
    if len(pieces) == 1:
        text = _format_order(pieces[0][1], order, brackets)
    counts = {len(group.pieces) for group in item.ranks}
    yield Line(
        (
            block.label,
            "-".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
            if counts
            else "-",
            text or "-",
            plain_line(names.phrase) if names else "-",
            plain_line(" or ".join(adders)) or "-",
            _format_proof(block, order),
            _format_error(block.items),
        )
    )
    for number, (group, piece) in enumerate(pieces if several else []):
        if number == MAX_PIECES:
            rest = f"  and {len(pieces) - MAX_PIECES:,} more"
            yield Line(("", "", rest, "", "", "", ""))
            break
        label = _label_piece(item.ranks, group, piece)
        own = name_adder(piece, dtype) if len(adders) > 1 else ""
        text = _format_order(piece, order, brackets)
        name = _name_piece(names, piece, len(text) > MAX_NARROW)
        yield Line((f"  {label}", "", text, name, own, "", ""))


def _summarise_pieces(ranks: Sequence[RankPieces]) -> str:
    """How the pieces of a buffer lie, and that ranks differ."""
    starts = list(dict.fromkeys(describe_starts(group.pieces) for group in ranks))
    ranks_text = "another at each rank" if len(ranks) > 1 else ""
    return ", ".join(filter(None, [*starts[:1], ranks_text]))


def _label_piece(ranks: Sequence[RankPieces], group: RankPieces, piece: Piece) -> str:
    """Whose piece it is, and where it begins."""
    who = ""
    if len(ranks) > 1:
        who = f"rank{'s' * (len(group.ranks) > 1)} {format_ranks(group.ranks)}"
    number, count = group.pieces.index(piece), len(group.pieces)
    where = ""
    if count > 1:
        where = f"from {list_starts(group.pieces)[number]}"
        if are_even(group.pieces):
            where = f"piece {number + 1} of {count}"
    return ", ".join(filter(None, [who, where]))


def _name_piece(names: Names | None, piece: Piece, is_long: bool) -> str:
    """The names of one tree among those of its order, where the order has none as a whole, or where
    a narrow table cannot show the tree."""
    if names is None or (not is_long and list_names(names)):
        return ""
    match = next((named for named in names.pieces if str(named.tree) == piece.tree), None)
    return plain_line(match.phrase) if match else ""


def _format_order(piece: Piece, order: JudgedOrder, brackets: bool) -> str:
    """An order in a table, in brackets where it is not proved."""
    text = plain_line(describe_piece(piece, order.subject))
    if len(text) > MAX_TREE:
        text = f"{text[: MAX_TREE - 1]}…"
    if not text:
        return "none"
    return f"[{text}]" if brackets else text


def _format_error(items: Iterable[Placed]) -> str:
    proofs = [item.order.proof for item in items]
    worst = [proof.worst_ulp for proof in proofs if proof.worst_ulp is not None]
    mean = [proof.mean_ulp for proof in proofs if proof.mean_ulp is not None]
    if not worst:
        return "-"
    text = _format_ulp(max(worst))
    return f"{text} ({_format_ulp(sum(mean) / len(mean))})" if mean else text


def _format_ulp(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _format_proof(block: SizeBlock, order: JudgedOrder) -> Cell:
    """How many bits of random numbers came true, at these sizes and in all ways like them."""
    sizes = {item.order.nbytes for item in block.items}
    items = block.items
    if not block.first.order.varied:
        ways = [i for i in order.first.placed if i.order.like and i.order.nbytes in sizes]
        items = [*items, *ways]
    right, total = count_predicted(items)
    if not total:
        return "-"
    percent = 100.0 if right == total else min(99.99, int(10_000 * right / total) / 100)
    text = f"{percent:.4g} % of {total:,}"
    return text if right == total else tone_text(text, "bad")


def _make_dependences(order: JudgedOrder) -> Table:
    """A line for each thing on which an order may depend."""
    lines = [
        Line(
            (
                dependence.dimension,
                tone_text(dependence.value, TONES[dependence.value]),
                describe_dependence(order, dependence),
            )
        )
        for dependence in order.depends.values()
    ]
    return Table(columns=DIMENSION_COLUMNS, lines=lines)


def _describe_unmeasured(cases: Iterable[UnmeasuredOrder]) -> Iterator[Block]:
    """Cases of which nothing was found, with their reasons."""
    for unmeasured in cases:
        status = "not decided" if unmeasured.status == "ok" else unmeasured.status
        text = f"{_label_unmeasured(unmeasured)}: {status}: {unmeasured.reason}"
        tone: Tone = "bad" if unmeasured.status in ("failed", "wrong") else "notice"
        yield tone_text(plain_line(text), tone)


def _label_unmeasured(unmeasured: UnmeasuredOrder) -> str:
    subject, case = unmeasured.subject, unmeasured.case
    what = f"{subject.collective}, {subject.dtype}, {subject.op}" if subject else case.subject
    env = " ".join(f"{name}={value}" for name, value in case.env)
    return ", ".join(filter(None, [what, case.label, env]))


def _describe_requirements(results: Iterable[RequirementResult]) -> Iterator[Block]:
    """Requirements, each with its answer; where it is broken, where, and by which orders."""
    for result in results:
        answer = {True: "kept", False: "broken", None: "no verdict"}[result.kept]
        tones: dict[bool | None, Tone] = {True: "good", False: "bad", None: "notice"}
        tone = tones[result.kept]
        reason = f": {result.reason}" if result.reason else ""
        yield tone_text(plain_line(f"{result.requirement} {answer}{reason}"), tone)


def _describe_likenesses(report: OrderReport) -> Iterator[Block]:
    """Orders held against another run."""
    for likeness in report.likenesses:
        tones: dict[bool | None, Tone] = {True: "good", False: "bad", None: "notice"}
        tone = tones[likeness.is_alike]
        yield tone_text(describe_likeness(likeness, report.like), tone)
    for unmeasured in report.uncompared:
        text = f"{_label_unmeasured(unmeasured)}: not known whether as in {report.like}"
        yield tone_text(plain_line(text), "notice")


# for programs


def _make_values(report: OrderReport) -> dict[str, Any]:
    """The document for JSON."""
    run = report.file.run
    return {
        "kind": "order",
        "version": 1,
        "run": run.id,
        "injected": run.policy.inject,
        "orders": [_order_values(order) for order in report.judgement.orders],
        "unmeasured": [
            {"case": u.case.label, "subject": u.case.subject, "status": u.status, "note": u.reason}
            for u in report.judgement.unmeasured
        ],
        "requires": [
            {"asked": str(result.requirement), "kept": result.kept, "reason": result.reason}
            for result in report.requirements
        ],
        "like": [_likeness_values(likeness, report.like) for likeness in report.likenesses],
        "exit": int(report.exit),
    }


def _order_values(order: JudgedOrder) -> dict[str, Any]:
    """An order with all its sizes, ways and launches."""
    subject, answer = order.subject, describe_answer(order)
    return {
        "collective": subject.collective,
        "n": subject.world,
        "backend": order.case.backend,
        "algorithm": order.case.algorithm,
        "library": order.first.library,
        "dtype": subject.dtype,
        "op": subject.op,
        "root": subject.root,
        "setting": dict(order.case.env),
        "answer": answer.sentence,
        "proved": order.is_proved,
        "visible": order.is_visible,
        "cases": [
            _case_values(order, launch, item) for launch in order.launches for item in launch.placed
        ],
        "depends": {
            name: _dependence_values(order, dependence)
            for name, dependence in order.depends.items()
        },
        "remarks": list_remarks(order),
    }


def _case_values(order: JudgedOrder, launch: Launch, item: Placed) -> dict[str, Any]:
    size, names = item.order, order.look_up_names(item)
    repeats, proof = size.repeats, size.proof
    return {
        "size": size.nbytes,
        "count": size.count,
        "place": "in" if size.in_place else "out",
        "shift": size.shift,
        "launch": launch.number,
        "calls": size.calls,
        "attempts": size.attempts,
        "mode": size.strategy,
        "bisected": size.bisected,
        "like": size.like,
        "ranks": [
            {
                "ranks": format_ranks(group.ranks),
                "pieces": [_piece_values(piece) for piece in group.pieces],
            }
            for group in item.ranks
        ],
        "names": list(names.references) if names else [],
        "families": list(names.families) if names else [],
        "signature": item.signature,
        "proof": {
            "right": proof.right,
            "of": proof.of,
            "buffers": proof.buffers,
            "first_wrong": proof.first_wrong and msgspec.to_builtins(proof.first_wrong),
            "worst_ulp": proof.worst_ulp,
            "mean_ulp": proof.mean_ulp,
        },
        "repeats": {
            "calls": repeats.calls,
            "changed": sorted({call for odd in repeats.odd for call in odd.calls}),
            "changed_count": repeats.changed,
            "rarer_than": bound_rarity(repeats.calls)
            if repeats.calls and not repeats.changed
            else None,
        },
        "first_calls": {"calls": size.first_calls.calls, "changed": size.first_calls.changed},
        "neighbours": {"calls": size.neighbours.calls, "changed": size.neighbours.changed},
        "digest": size.digest,
    }


def _piece_values(piece: Piece) -> dict[str, Any]:
    rounds: object = [list(leaves) for leaves in piece.at] if piece.at else "all"
    return {
        "first": piece.first,
        "last": piece.last,
        "tree": piece.tree,
        "low": piece.low,
        "rounds": rounds,
        "adds_bits": piece.adder if piece.shows_adder else None,
        "division": piece.division,
        "reason": piece.reason,
    }


def _dependence_values(order: JudgedOrder, dependence: Dependence) -> dict[str, Any]:
    """A dependence: its value, in words, and what shows it."""
    shown = msgspec.to_builtins(dependence)
    del shown["dimension"]
    detail = describe_dependence(order, dependence)
    at = [change.count for change in dependence.sizes if not change.moved]
    return {**shown, "detail": detail, **({"at": at} if at else {})}


def _likeness_values(likeness: Likeness, run: str) -> dict[str, Any]:
    return {
        "run": run,
        "order": describe_subject(likeness.order),
        "alike": likeness.is_alike,
        "compared": likeness.compared,
        "unproved": list(likeness.unproved),
        "first": likeness.spot and msgspec.to_builtins(likeness.spot),
    }


def _list_rows(orders: Iterable[JudgedOrder]) -> Iterator[dict[str, Any]]:
    """A row for each piece of each rank, of every size, way and launch."""
    for order in orders:
        for launch in order.launches:
            for item in launch.placed:
                for group in item.ranks:
                    for piece in group.pieces:
                        yield _flatten_piece(order, launch, item, group, piece)


def _flatten_piece(
    order: JudgedOrder, launch: Launch, item: Placed, group: RankPieces, piece: Piece
) -> dict[str, Any]:
    subject, size, names = order.subject, item.order, order.look_up_names(item)
    return {
        "collective": subject.collective,
        "implementation": order.case.label,
        "ranks": subject.world,
        "dtype": subject.dtype,
        "op": subject.op,
        "root": subject.root,
        "setting": " ".join(f"{name}={value}" for name, value in order.case.env),
        "launch": launch.number,
        "nbytes": size.nbytes,
        "count": size.count,
        "place": "in" if size.in_place else "out",
        "shift": size.shift,
        "of_ranks": format_ranks(group.ranks),
        "first": piece.first,
        "last": piece.last,
        "tree": piece.tree,
        "adds_bits": piece.adder if piece.shows_adder else None,
        "adds_as": names.phrase if names else "",
        "predicted": size.proof.right,
        "predicted_of": size.proof.of,
        "signature": item.signature,
    }
