"""Orders as a document: what stands in a table at two widths, and the fields of JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
from factories import (
    DOUBLING,
    LINEAR,
    RING,
    order_file,
    order_pieces,
    order_record,
    order_subject,
    size_order,
    way_of,
)

from collbench.features.order import view as views
from collbench.features.order.findings import Proof, RankPieces, SizeOrder
from collbench.features.order.report import make_order_report
from collbench.features.order.requirements import parse_requirements
from collbench.records.types import Record, RunFile
from collbench.show import markdown, programs, terminal
from collbench.show.document import Document
from collbench.show.views import series

BISECTED = (
    size_order(4),
    size_order(364, bisected=True),
    size_order(368, DOUBLING, bisected=True),
    size_order(65536, DOUBLING),
)


def document(*sizes: SizeOrder, require: str = "", like: RunFile | None = None) -> Document:
    return of_records(order_record(*sizes), require=require, like=like)


def of_records(*records: Record, require: str = "", like: RunFile | None = None) -> Document:
    requirements = parse_requirements([require] if require else [])
    return views.make_document(make_order_report(order_file(*records), requirements, like))


def table(*sizes: SizeOrder, columns: int = 120) -> list[str]:
    """The lines of the first table."""
    lines = terminal.render_text(document(*sizes), columns).splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith("size ")][:1]
    end = next(number for number in range(begin, len(lines)) if not lines[number].strip())
    return [line.rstrip() for line in lines[begin:end]]


# the table


def test_the_answer_is_the_first_line() -> None:
    text = terminal.render_text(document(*BISECTED), 120)
    assert text.startswith("The order changes at 368 B, so that the same numbers can give")


def test_that_nothing_was_decided_is_the_first_line() -> None:
    spent = order_record(dropped=["sizes from 64 B on: 5 s were spent"])
    report = make_order_report(order_file(spent))
    text = terminal.render_text(views.make_document(report), 120)
    assert text.startswith("Nothing was decided: no order was found.\n")
    assert "not decided: sizes from 64 B on: 5 s were spent" in text
    assert report.exit == 3


def test_that_only_a_part_was_decided_is_the_first_line() -> None:
    left_out = ["sizes from 1,024 B on: 5 s were spent", "in place: the library refuses"]
    text = terminal.render_text(of_records(order_record(size_order(64), dropped=left_out)), 120)
    first = "Only a part was decided: --budget left no time for sizes from 1,024 B on.\n"
    assert text.startswith(first)


def test_a_case_without_time_beside_one_that_was_decided_is_told() -> None:
    decided = order_record(size_order(64), op="sum")
    spent = order_record(dropped=["sizes from 64 B on: 5 s were spent"], op="avg")
    text = terminal.render_text(of_records(decided, spent), 120)
    assert text.startswith("Only a part was decided: --budget left no time for 1 case.\n")


def test_sizes_of_one_order_are_one_line() -> None:
    _, _, first, second = table(*BISECTED)
    assert first.startswith("4 to 364 B ") and LINEAR in first
    assert second.startswith("368 B to 64 KiB ") and DOUBLING in second


def test_bits_are_counted_over_the_sizes_of_a_line() -> None:
    assert "100 % of 640" in table(size_order(64), size_order(1024))[-1]


def test_bits_of_other_places_count() -> None:
    assert "100 % of 640" in table(size_order(64), way_of(64))[-1]


def test_pieces_have_a_line_each() -> None:
    _, _, first, *others = table(size_order(64, *RING), size_order(1024, *RING))
    assert "n/4 apart" in first and first.startswith("64 B to 1 KiB")
    assert [line.split()[-1] for line in others] == [*RING]


def test_many_pieces_are_counted() -> None:
    trees = (*RING, *RING, *RING, *RING)
    lines = table(size_order(1024, *trees))
    assert len(lines) == 3 + views.MAX_PIECES + 1
    assert lines[-1].strip() == "and 8 more"


def test_ranks_with_other_orders_have_a_line_each() -> None:
    ranks = [
        RankPieces(ranks=(0, 1, 3), pieces=order_pieces(16, LINEAR)),
        RankPieces(ranks=(2,), pieces=order_pieces(16, DOUBLING)),
    ]
    lines = [line for line in table(size_order(64, ranks=ranks)) if line.startswith("  r")]
    assert [line.split("  ")[1] for line in lines] == ["ranks 0-1, 3", "rank 2"]


def test_an_order_that_is_not_proved_stands_in_brackets() -> None:
    line = table(size_order(64, proof=Proof(right=3199, of=3200, buffers=8)))[-1]
    assert f"[{LINEAR}]" in line and "99.96 % of 3,200" in line


def test_not_all_bits_are_never_100_percent() -> None:
    line = table(size_order(64, proof=Proof(right=10**9 - 1, of=10**9, buffers=8)))[-1]
    assert "99.99 % of 1,000,000,000" in line


def test_a_place_with_another_order_has_a_line() -> None:
    line = table(size_order(64), size_order(64, DOUBLING, in_place=True, varied=True))[-1]
    assert line.startswith("64 B, in place") and DOUBLING in line


def test_a_place_with_another_order_has_a_line_for_all_sizes() -> None:
    others = [size_order(64 << k, DOUBLING, in_place=True, varied=True) for k in range(3)]
    lines = table(size_order(64), size_order(128), size_order(256), *others)
    assert len(lines) == 4
    assert lines[-1].startswith("64 to 256 B, in place") and "doubling" in lines[-1]


def test_errors_are_the_largest_and_the_mean() -> None:
    assert "0.9 (0.3)" in table(size_order(64))[-1]


def test_a_wider_adder_is_told_with_where_it_rounds() -> None:
    pieces = order_pieces(16, LINEAR, adder=53, low="exact{0, 1, 2, 3}", at=((0, 1, 2, 3),))
    line = table(size_order(64, ranks=[RankPieces(ranks=(0, 1, 2, 3), pieces=pieces)]))[-1]
    assert "double, rounded once" in line


def test_a_narrow_table_keeps_sizes_names_and_bits() -> None:
    lines = table(*BISECTED, columns=80)
    head = lines[0]
    assert all(name in head for name in ("size", "pieces", "adds as", "bits predicted"))
    assert "error" not in head and "hidden at 80 columns: adds in, error, ulp" in lines
    assert max(map(len, lines)) <= 80
    assert "100 % of 640" in lines[2]


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_screen(columns: int) -> None:
    sizes = (*BISECTED, size_order(1 << 20, *RING), way_of(64 << 10))
    text = terminal.render_text(document(*sizes), columns)
    assert max(map(len, text.splitlines())) <= columns


def test_long_orders_of_pieces_are_named_where_they_do_not_fit() -> None:
    up = "+".join(["((((((0", *(f"{rank})" for rank in range(1, 7)), "7"])
    down = "+".join(["((((((7", *(f"{rank})" for rank in range(6, 0, -1)), "0"])
    subject = order_subject(world=8)
    file = order_file(
        order_record(size_order(64, up, down, n=8), subject=subject), subjects=[subject]
    )
    text = terminal.render_text(views.make_document(make_order_report(file)), 80)
    assert up not in text
    assert "linear up" in text and "chain to the root" in text


def test_large_orders_are_shapes() -> None:
    tree = "+".join(["(" * 14 + "0+1)", *(f"{rank})" for rank in range(2, 15)), "15"])
    subject = order_subject(world=16)
    size = size_order(64, tree, n=16)
    file = order_file(order_record(size, subject=subject), subjects=[subject])
    text = terminal.render_text(views.make_document(make_order_report(file)), 120)
    assert "chain from 0 up" in text and tree not in text


# several orders, none, and what is required


def test_one_answer_of_several_orders_is_told_once() -> None:
    text = terminal.render_text(
        of_records(order_record(size_order(64)), order_record(size_order(64), backend="mpi")), 120
    )
    assert text.count("The same order at all calls tried.") == 1


def test_answers_of_several_orders_are_named_by_what_differs() -> None:
    broken = size_order(64, proof=Proof(right=1, of=2, buffers=8))
    text = terminal.render_text(
        of_records(order_record(size_order(64)), order_record(broken, backend="mpi")), 120
    )
    assert text.splitlines()[0] == "gloo: The same order at all calls tried."


def test_a_skipped_case_shows_its_reason() -> None:
    record = order_record(status="skipped", note="Invalid scalar type")
    text = terminal.render_text(of_records(record), 120)
    assert "skipped: Invalid scalar type" in text


def test_a_broken_requirement_stands_above_the_table() -> None:
    lines = terminal.render_text(document(*BISECTED, require="same=size"), 120).splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("same=size broken: size: ")]
    assert number < next(n for n, line in enumerate(lines) if line.startswith("size "))


def test_planted_faults_are_told_first() -> None:
    file = order_file(order_record(size_order(64)))
    policy = msgspec.structs.replace(file.run.policy, inject="corrupt:1")
    file = msgspec.structs.replace(file, run=msgspec.structs.replace(file.run, policy=policy))
    text = terminal.render_text(views.make_document(make_order_report(file)), 120)
    assert "corrupt:1" in text.splitlines()[0]


def test_text_of_a_file_steers_nothing() -> None:
    record = order_record(status="failed", note="bad\x1b[31m\nred")
    text = terminal.render_text(of_records(record), 120)
    assert "\x1b" not in text and "bad [31m red" in text


def test_reasons_of_pieces_steer_nothing() -> None:
    pieces = order_pieces(16, "", reason="\x1b[2Jgone")
    ranks = [RankPieces(ranks=(0, 1, 2, 3), pieces=pieces)]
    size = size_order(64, ranks=ranks, proof=Proof(right=0, of=64, buffers=8))
    text = terminal.render_text(document(size), 120)
    assert "\x1b" not in text and "gone" in text


def test_markdown_has_the_table_and_the_library() -> None:
    text = markdown.render_markdown(document(*BISECTED))
    assert "| 4 to 364 B | 1 |" in text and "Gloo 1.0" in text


def test_csv_has_a_row_for_each_piece() -> None:
    lines = programs.as_csv(document(size_order(64, *RING))).splitlines()
    assert len(lines) == 1 + len(RING)


# a report's section


def test_a_report_has_a_section() -> None:
    section = views.make_section(series.make_view([order_file(order_record(*BISECTED))]))
    assert section is not None and len(section.tables) == 2


def test_a_report_of_other_runs_has_none() -> None:
    view = series.make_view([order_file(order_record(status="skipped", note="no"))])
    assert views.make_section(view) is None


# JSON


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class PieceValues(_Strict):
    first: int
    last: int
    tree: str
    low: str
    rounds: Literal["all"] | list[list[int]]
    adds_bits: int
    division: str
    reason: str


class RankValues(_Strict):
    ranks: str
    pieces: list[PieceValues]


class ProofValues(_Strict):
    right: int
    of: int
    buffers: int
    first_wrong: dict[str, Any] | None
    worst_ulp: float | None
    mean_ulp: float | None


class RepeatValues(_Strict):
    calls: int
    changed: list[int]
    changed_count: int
    rarer_than: float | None


class ChangedValues(_Strict):
    calls: int
    changed: int


class CaseValues(_Strict):
    size: int
    count: int
    place: Literal["out", "in"]
    shift: int
    launch: int
    calls: int
    attempts: int
    mode: str
    bisected: bool
    like: bool
    ranks: list[RankValues]
    names: list[str]
    families: list[str]
    signature: str
    proof: ProofValues
    repeats: RepeatValues
    first_calls: ChangedValues
    neighbours: ChangedValues
    digest: str


class ChangeValues(_Strict):
    nbytes: int
    count: int
    after: int
    low: int
    high: int
    exact: bool = False
    moved: bool = False


class CallValues(_Strict):
    nbytes: int
    calls: int
    changed: int
    odd: list[int]
    trees: list[str] = []
    first: int | None = None
    last: int | None = None
    ranks: list[int] = []
    at_start: bool = False


class SpotValues(_Strict):
    what: str
    nbytes: int
    rank: int = -1
    element: int = -1
    was: str = ""
    now: str = ""


class DependenceValues(_Strict):
    value: Literal["same", "differs", "not asked"]
    detail: str
    at: list[int] = []
    number: int = 0
    rarer_than: float = 0.0
    sizes: list[ChangeValues] = []
    calls: list[CallValues] = []
    spots: list[SpotValues] = []
    ways: list[str] = []
    reason: str = ""
    missing: list[int] = []
    launch: int = 0


class OrderValues(_Strict):
    collective: str
    n: int
    backend: str
    algorithm: str
    library: str
    dtype: str
    op: str
    root: int
    setting: dict[str, str]
    answer: str
    proved: bool
    visible: bool
    cases: list[CaseValues]
    depends: dict[str, DependenceValues]
    remarks: list[str]


class RequirementValues(_Strict):
    asked: str
    kept: bool | None
    reason: str


class LikenessValues(_Strict):
    run: str
    order: str
    alike: bool | None
    compared: int
    unproved: list[int]
    first: SpotValues | None


class Schema(_Strict):
    kind: Literal["order"]
    version: Literal[1]
    run: str
    injected: str
    orders: list[OrderValues]
    unmeasured: list[dict[str, str]]
    requires: list[RequirementValues]
    like: list[LikenessValues]
    exit: int


def read(made: Document) -> Schema:
    return msgspec.json.decode(programs.as_json(made).encode(), type=Schema)


def test_json_has_its_schema() -> None:
    like = order_file(order_record(size_order(4, DOUBLING)))
    sizes = (*BISECTED, way_of(4), size_order(1 << 20, *RING))
    values = read(document(*sizes, require="same=size,launch,proved", like=like))
    assert values.orders[0].depends["size"].at == [92, 1 << 18]
    assert [one.kept for one in values.requires] == [False, None, True]
    assert values.like[0].alike is False and values.exit == 1


def test_json_of_what_failed_has_its_schema() -> None:
    values = read(of_records(order_record(status="failed", note="why")))
    assert values.unmeasured[0]["note"] == "why" and values.exit == 3


def test_json_has_trees_as_they_are_read() -> None:
    (order,) = read(document(size_order(64, *RING))).orders
    assert [piece.tree for piece in order.cases[0].ranks[0].pieces] == [*RING]
