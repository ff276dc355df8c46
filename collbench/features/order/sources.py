"""Recorded orders for other features, in types of the kernel."""

from __future__ import annotations

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.sums.recorded import RecordedOrder, RecordedOutput, RecordedPiece
from collbench.core.text import format_size, plain_line
from collbench.features.order import KIND
from collbench.features.order.findings import Piece, SizeOrder, read_findings
from collbench.features.order.request import SumOrder
from collbench.features.order.rows import SUFFIX
from collbench.records import run_file, store
from collbench.records.types import Record, RunFile


def load_orders(run: str, collective: str, nbytes: int | None) -> list[RecordedOrder]:
    """The orders of a collective that a run found in its first launch, out of place and aligned
    where it was asked so, at a size, by default the largest. Raises UsageError where there is
    none."""
    file = run_file.read_file(store.find_run(run))
    found = [
        (subject, record, size)
        for record in file.records
        if record.case.kind == KIND and record.case.cycle == 0
        for subject in [file.run.suite.subject_finder(record.case)]
        if isinstance(subject, SumOrder) and subject.collective == collective
        for size in _list_sizes(record)
    ]
    if not found:
        names = sorted({_name_collective(record) for record in file.records} - {""})
        raise UsageError(
            f"{file.run.id} has no order of {collective}",
            f"it has {', '.join(names)}" if names else f"collbench order {collective} finds one",
        )
    sizes = sorted({size.nbytes for _, _, size in found})
    wanted = sizes[-1] if nbytes is None else nbytes
    if wanted not in sizes:
        raise UsageError(
            f"{file.run.id} has no order of {collective} at {format_size(wanted)}",
            f"it has {', '.join(map(format_size, sizes))}",
        )
    return [
        _make_order(file, subject, record, size)
        for subject, record, size in found
        if size.nbytes == wanted
    ]


def _name_collective(record: Record) -> str:
    """The collective whose order a record is of; empty for others."""
    return record.case.collective.removesuffix(SUFFIX) if record.case.kind == KIND else ""


def _list_sizes(record: Record) -> list[SizeOrder]:
    """What a record has of each size, with its buffers in the first way."""
    findings = read_findings(record)
    return [size for size in findings.sizes if size.is_base and size.ranks] if findings else []


def _make_order(file: RunFile, subject: SumOrder, record: Record, size: SizeOrder) -> RecordedOrder:
    dtype = DTYPES[subject.dtype]
    library = next((world.library for world in file.worlds if world.index == record.world), "")
    root = f"root {subject.root}" if subject.root >= 0 else ""
    env = " ".join(f"{name}={value}" for name, value in record.case.env)
    words = (subject.collective, format_size(size.nbytes), f"{subject.world} ranks", dtype.name)
    where = (subject.op, root, record.case.label, library, env, f"run {file.run.id}")
    outputs = [
        RecordedOutput(group.ranks, [_make_piece(piece) for piece in group.pieces])
        for group in size.ranks
    ]
    return RecordedOrder(
        title=plain_line(", ".join(filter(None, (*words, *where)))),
        collective=subject.collective,
        n=subject.world,
        dtype=dtype,
        op=subject.op,
        nbytes=size.nbytes,
        outputs=outputs,
        right=size.proof.right,
        of=size.proof.of,
    )


def _make_piece(piece: Piece) -> RecordedPiece:
    return RecordedPiece(piece.first, piece.last, piece.parsed, piece.rounding, piece.reason)
