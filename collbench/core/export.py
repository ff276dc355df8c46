"""Schedules for other tools: MSCCL's XML for msccl-executor-nccl and RCCL, GOAL for LogGOPSim, a
DOT drawing, and JSON.

A step's reads see the state before it. XML and GOAL know no steps, only operations in order and
what each waits for, so a cell that is read and overwritten in one step is copied to scratch first
and read from there (``remove_hazards``). Nothing then waits for a message of its own step: no order
of execution, and no lack of buffers, can deadlock.

Facts of the formats: MSCCL's runtime (microsoft/msccl, graph/topo.cc and msccl_interpreter.h),
LogGOPSim's txt2bin.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collbench.core.errors import CannotRun, UsageError
from collbench.core.schedule import Moves, Schedule, expect_outputs, find_hazards, join_neighbours

COLLS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}

# of MSCCL's runtime: cells in an operation, operations in a thread block, blocks on a GPU, peers on
# a channel
MOST_CELLS, MOST_STEPS, MOST_BLOCKS, MOST_PEERS = 71, 256, 216, 32

NAME, VERSION = "collbench schedule", 1  # of the JSON form


def remove_hazards(schedule: Schedule) -> Schedule:
    """The schedule with no cell both read and overwritten in a step: before such a step another one
    copies the cell to a scratch cell, which lies after the row's own."""
    width, hazards = schedule.width, find_hazards(schedule)
    used = np.zeros((schedule.n, width), bool)
    for hazard in hazards:
        used[hazard.rank, hazard.cell] = True
    slots = width + used.cumsum(axis=1) - 1
    by_step = {
        step: list(group) for step, group in itertools.groupby(hazards, lambda hazard: hazard.step)
    }

    def steps() -> Iterator[Moves]:
        for number, moves in enumerate(schedule.steps()):
            src, dst, chunk, into, reduce = moves.arrays()
            is_saved = np.zeros(slots.shape, bool)
            if number in by_step:
                ranks, cells = np.array(
                    [(hazard.rank, hazard.cell) for hazard in by_step[number]]
                ).T
                is_saved[ranks, cells] = True
                yield Moves(ranks, ranks, cells, slots[ranks, cells])
            yield Moves(
                src, dst, np.where(is_saved[src, chunk], slots[src, chunk], chunk), into, reduce
            )

    return schedule._replace(steps=steps)


class _Transfer(NamedTuple):
    src: int
    dst: int
    chunk: Sequence[int]
    into: Sequence[int]
    reduce: bool


class _Op(NamedTuple):
    """A transfer as one of its ranks sees it (``peer`` -1: within it) and the earlier operations of
    that rank, by their places in its list, that it must wait for."""

    transfer: _Transfer
    peer: int
    sends: bool
    step: int
    needs: list[int]


def _list_operations(n: int, steps: Iterable[list[_Transfer]]) -> list[list[_Op]]:
    """Every rank's operations, each needing those that made what it reads and those done with what
    it overwrites."""
    ops: list[list[_Op]] = [[] for _ in range(n)]
    written: list[dict[int, int]] = [{} for _ in range(n)]
    readers: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(n)]

    def add(rank: int, op: _Op, reads: Sequence[int], writes: Sequence[int]) -> None:
        number = len(ops[rank])
        needs = {written[rank][cell] for cell in (*reads, *writes) if cell in written[rank]}
        needs.update(*(readers[rank].pop(cell, []) for cell in writes))
        needs -= {implied for need in needs for implied in ops[rank][need].needs}
        ops[rank].append(op._replace(needs=sorted(needs)))
        written[rank].update(dict.fromkeys(writes, number))
        for cell in reads:
            readers[rank][cell].append(number)

    for step, transfers in enumerate(steps):
        for transfer in transfers:
            src, dst, chunk, into, _ = transfer
            if src == dst:
                add(src, _Op(transfer, -1, False, step, []), chunk, into)
            else:
                add(src, _Op(transfer, dst, True, step, []), chunk, ())
                add(dst, _Op(transfer, src, False, step, []), (), into)
    return ops


def write_msccl_executor(schedule: Schedule, nbytes: int) -> str:
    """MSCCL's XML for the runtimes that are maintained, msccl-executor-nccl and RCCL, in place
    where the collective can be; what an input in place holds afterwards is not defined.

    A thread block per peer and direction, one more for local copies. The file holds for any size:
    ``nbytes`` is not used. Raises CannotRun for what the runtimes have no place for.
    """
    row, n = schedule.row, schedule.n
    if not schedule.has_data or row.uneven:
        reason = "has blocks of different length" if row.uneven else "moves no data"
        raise CannotRun(
            f"MSCCL moves equal chunks, and {row.name} {reason}",
            "use --to json or --to goal, which can express it",
        )
    if row.name not in COLLS:
        raise CannotRun(
            f"MSCCL's executor and RCCL run no {row.name} of this form",
            "use --to json or --to goal, which can express it",
        )
    _refuse_too_large(schedule)
    sent, got = row.counts(n, schedule.cells)
    first = "o" if row.in_place == "block of recv" else "i"
    # the row's cells from here on are in the other buffer
    second = sent if row.in_place is None else schedule.width
    buffers = {first: 0, "o": second + 1} if row.in_place is None else {first: 0}
    buffers["s"] = schedule.width + 2
    sizes = _write_attributes({"i_chunks": sent, "o_chunks": got})
    lines = [f"<algo {_write_attributes(_describe_algorithm(schedule, sent, got))}>"]
    steps = (
        _join_transfers(moves, second, schedule.width) for moves in remove_hazards(schedule).steps()
    )
    for rank, ops in enumerate(_list_operations(n, steps)):
        blocks = _make_thread_blocks(ops, buffers)
        _refuse_beyond_limits(schedule, max(map(len, blocks.values()), default=0), len(blocks))
        ends = [
            s["dstoff"] + s["cnt"] for block in blocks.values() for s in block if s["dstbuf"] == "s"
        ]
        lines.append(f'  <gpu id="{rank}" {sizes} s_chunks="{max(ends, default=0)}">')
        for number, ((send, recv), block) in enumerate(blocks.items()):
            distance = (send - rank if recv < 0 else rank - recv) % n if max(send, recv) >= 0 else 1
            lines.append(
                f'    <tb id="{number}" send="{send}" recv="{recv}"'
                f' chan="{(distance - 1) // MOST_PEERS}">'
            )
            lines += [f"      <step {_write_attributes(step)}/>" for step in block]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _describe_algorithm(schedule: Schedule, sent: int, got: int) -> dict[str, Any]:
    """Attributes of the whole algorithm."""
    row, n = schedule.row, schedule.n
    return {
        "name": f"{schedule.name}_{n}"[:63],
        "proto": "Simple",
        "nchannels": max(0, n - 2) // MOST_PEERS + 1,
        "nchunksperloop": max(sent, got),
        "ngpus": n,
        "coll": COLLS[row.name],
        "inplace": int(row.in_place is not None),
        "outofplace": int(row.in_place is None),
        "minBytes": 0,
        "maxBytes": 1 << 40,
    }


def _write_attributes(values: dict[str, Any]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in values.items())


def _join_transfers(moves: Moves, second: int, width: int) -> list[_Transfer]:
    """Neighbouring cells as one transfer, up to MSCCL's limit. Cells become addresses, which leave
    a gap between buffers, so that no transfer crosses from one buffer into the next."""
    src, dst, chunk, into, reduce = moves.arrays()
    chunk, into = (cell + (cell >= second) + (cell >= width) for cell in (chunk, into))
    runs = join_neighbours(Moves(src, dst, chunk, into, reduce))
    return [
        _Transfer(
            src,
            dst,
            range(chunk, chunk + length)[at:][:MOST_CELLS],
            range(into, into + length)[at:][:MOST_CELLS],
            reduce,
        )
        for src, dst, chunk, into, length, reduce in zip(
            *(field.tolist() for field in runs), strict=True
        )
        for at in range(0, length, MOST_CELLS)
    ]


def _make_thread_blocks(
    ops: list[_Op], buffers: dict[str, int]
) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Thread blocks by the peers that they (send to, receive from). A block's order is its steps'
    order; what else a step needs it waits for: one wait a step, more in steps before it that do
    nothing."""
    blocks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    last_waited: dict[
        tuple[tuple[int, int], tuple[int, int]], int
    ] = {}  # the last step of another that a block waited for
    at: list[tuple[tuple[int, int], int]] = []
    numbers: dict[tuple[int, int], int] = {}
    for op in ops:
        peers = (op.peer, -1) if op.sends else (-1, op.peer)
        block = blocks.setdefault(peers, [])
        numbers.setdefault(peers, len(numbers))
        waits: dict[tuple[int, int], int] = {}
        for other, step in (at[need] for need in op.needs):
            if other != peers and step > last_waited.get((peers, other), -1):
                waits[other] = last_waited[peers, other] = step
        for other, step in waits.items():
            blocks[other][step]["hasdep"] = 1
        depends = [(numbers[other], step) for other, step in waits.items()] or [(-1, -1)]
        for depid, deps in depends:
            block.append({"s": len(block), **_NOP, "depid": depid, "deps": deps, "hasdep": 0})
        block[-1] |= _describe_step(op, buffers)
        at.append((peers, len(block) - 1))
    return blocks


_NOP = {"type": "nop", "srcbuf": "i", "srcoff": -1, "dstbuf": "o", "dstoff": -1, "cnt": 0}


def _describe_step(op: _Op, buffers: dict[str, int]) -> dict[str, Any]:
    """A step of a thread block for MSCCL's XML, by attribute. MSCCL pairs messages by their order,
    so only this rank's offsets count."""
    chunk, into, reduce = op.transfer.chunk[0], op.transfer.into[0], op.transfer.reduce
    if op.peer >= 0:
        chunk = into = chunk if op.sends else into
    kind = (
        ("re" if reduce else "cpy")
        if op.peer < 0
        else "s"
        if op.sends
        else "rrc"
        if reduce
        else "r"
    )
    (srcbuf, srcoff), (dstbuf, dstoff) = (
        _locate_address(address, buffers) for address in (chunk, into)
    )
    return {
        "type": kind,
        "srcbuf": srcbuf,
        "srcoff": srcoff,
        "dstbuf": dstbuf,
        "dstoff": dstoff,
        "cnt": len(op.transfer.chunk),
    }


def _locate_address(address: int, buffers: dict[str, int]) -> tuple[str, int]:
    name = max((name for name in buffers if buffers[name] <= address), key=buffers.__getitem__)
    return name, address - buffers[name]


def _refuse_too_large(schedule: Schedule) -> None:
    """Raises CannotRun where the messages alone pass a limit, before any is worked out."""
    messages: Counter[int] = Counter()  # by the two ranks
    for moves in schedule.steps():
        src, dst = moves.arrays()[:2]
        messages.update(np.unique(src * schedule.n + dst).tolist())
        _refuse_beyond_limits(schedule, max(messages.values(), default=0), 0)
    ends = [Counter(divmod(pair, schedule.n)[way] for pair in messages) for way in (0, 1)]
    _refuse_beyond_limits(
        schedule, 0, max(ends[0][rank] + ends[1][rank] for rank in range(schedule.n)) - 1
    )


def _refuse_beyond_limits(schedule: Schedule, longest: int, blocks: int) -> None:
    """Raises CannotRun for more steps in a thread block, or more blocks on a GPU, than there may
    be."""
    what = f"{schedule.collective} {schedule.name}"
    if longest > MOST_STEPS:
        raise CannotRun(
            f"{what} takes more steps between two ranks than the {MOST_STEPS} that MSCCL allows",
            "take fewer ranks or segments",
        )
    if blocks > MOST_BLOCKS:
        raise CannotRun(
            f"{what} takes more thread blocks than the {MOST_BLOCKS} that MSCCL allows",
            "take fewer ranks",
        )


class Message(NamedTuple):
    """All that a rank sends another in a step, or gets (``peer`` -1: a copy within it), and the
    earlier ones of its rank, by their places in its list, that must be there before."""

    peer: int
    sends: bool
    nbytes: int
    step: int
    needs: list[int]


def list_messages(schedule: Schedule, nbytes: int) -> list[list[Message]]:
    """Every rank's messages, for a collective of this size.

    A block's bytes are divided over its cells as evenly as whole bytes allow; a barrier's messages
    have one byte. Raises UsageError where a cell would be empty: simulators take no messages of 0
    bytes.
    """
    blocks = schedule.n if schedule.row.total else 1
    block = nbytes // blocks if schedule.has_data else 1
    if block < schedule.cells:
        least = schedule.cells * blocks
        hint = f"give --bytes {least} or more for {schedule.name} on {schedule.n} ranks"
        raise UsageError(f"{nbytes} B are too few: some cells would be empty", hint)
    bounds = [block * cell // schedule.cells for cell in range(schedule.cells + 1)]

    def size(op: _Op) -> int:
        cells = [cell % schedule.cells for cell in op.transfer.into]
        return sum(bounds[cell + 1] - bounds[cell] for cell in cells)

    ranks = _list_operations(schedule.n, map(_merge_moves, remove_hazards(schedule).steps()))
    return [
        [Message(op.peer, op.sends, size(op), op.step, op.needs) for op in ops] for ops in ranks
    ]


def write_goal(schedule: Schedule, nbytes: int) -> str:
    """GOAL text for LogGOPSim: a message for all that a rank sends another in a step, tagged with
    the step's number.

    ``nbytes`` is the collective's size. Local copies are ``calc 0``; reducing costs nothing here.
    Raises UsageError where a cell would be empty.
    """
    lines = [f"num_ranks {schedule.n}", ""]
    for rank, ops in enumerate(list_messages(schedule, nbytes)):
        lines.append(f"rank {rank} {{")
        for number, op in enumerate(ops):
            way = f"send {op.nbytes}b to" if op.sends else f"recv {op.nbytes}b from"
            lines.append(
                f"l{number}: " + ("calc 0" if op.peer < 0 else f"{way} {op.peer} tag {op.step}")
            )
            lines += [f"l{number} requires l{need}" for need in op.needs]
        lines += ["}", ""]
    return "\n".join(lines)


def _merge_moves(moves: Moves) -> list[_Transfer]:
    """A transfer for each pair of ranks, of all moves between the two."""
    cells: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for src, dst, chunk, into, _ in moves:
        chunks, intos = cells.setdefault((src, dst), ([], []))
        chunks.append(chunk)
        intos.append(into)
    return [_Transfer(src, dst, *both, False) for (src, dst), both in cells.items()]


def write_dot(schedule: Schedule, nbytes: int) -> str:
    """A graph for Graphviz: time runs down, node ``r2s3`` is rank 2 before step 3, arrows are
    labelled with cells.

    ``0-3 to 8-11`` says which cells go where (one range where they keep their places); dashed and
    ``+``: reduces.
    """
    steps = [join_neighbours(moves) for moves in schedule.steps()]
    lines = [
        f'digraph "{schedule.collective} {schedule.name}" {{',
        "  node [shape=point]; edge [fontsize=9];",
    ]
    rows = (
        " ".join(f"r{rank}s{step};" for rank in range(schedule.n)) for step in range(len(steps) + 1)
    )
    lines += [f"  {{ rank=same; {row} }}" for row in rows]
    lines += [f'  r{rank}s0 [shape=plaintext, label="rank {rank}"];' for rank in range(schedule.n)]
    for step, runs in enumerate(steps):
        stays = "[weight=9, color=gray, arrowhead=none];"
        lines += [f"  r{rank}s{step} -> r{rank}s{step + 1} {stays}" for rank in range(schedule.n)]
        for src, dst, chunk, into, length, reduce in zip(
            *(field.tolist() for field in runs), strict=True
        ):
            spans = dict.fromkeys(
                f"{at}-{at + length - 1}" if length > 1 else f"{at}" for at in (chunk, into)
            )
            label = f'label="{"+" * reduce}{" to ".join(spans)}"{", style=dashed" * reduce}'
            lines.append(f"  r{src}s{step} -> r{dst}s{step + 1} [{label}];")
    return "\n".join([*lines, "}"]) + "\n"


def as_json(schedule: Schedule, nbytes: int) -> str:
    """The schedule itself. All reads of a step see the state before it; its moves are [src, dst,
    chunk, into, length, reduce]: cells chunk, chunk + 1 … of rank src go to cells into, into + 1 …
    of rank dst, or are combined with them.

    ``inputs[rank]`` and ``outputs[rank]`` are [first, end) of a rank's row of ``width`` cells
    before and after; an output is null where the collective leaves it undefined. ``cells`` is how
    many make up a block; root -1 is none.
    """
    ranks, places = range(schedule.n), (schedule.input_cells, schedule.output_cells)
    inputs, outputs = (
        [[cells(rank).start, cells(rank).stop] for rank in ranks] for cells in places
    )
    defined = expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    head = {
        "format": NAME,
        "version": VERSION,
        "collective": schedule.collective,
        "algorithm": schedule.name,
        "n": schedule.n,
        "root": schedule.root,
        "cells": schedule.cells,
        "width": schedule.width,
        "inputs": inputs,
        "outputs": [None if defined[rank] is None else outputs[rank] for rank in ranks],
    }
    moves = (
        zip(*(field.tolist() for field in join_neighbours(moves)), strict=True)
        for moves in schedule.steps()
    )
    steps = ",\n".join(f"    {json.dumps(list(step))}" for step in moves)
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    return "\n".join(["{", *lines, '  "steps": [', steps, "  ]", "}"]) + "\n"


FORMATS: dict[str, Callable[[Schedule, int], str]] = {
    "msccl-executor": write_msccl_executor,
    "goal": write_goal,
    "dot": write_dot,
    "json": as_json,
}


class Writer(NamedTuple):
    """A format that is a folder with a file a rank: ``write_schedule`` takes a schedule, the bytes
    that it is for, the folder and the files' name, ``write_step`` a training step and the folder;
    both say what they wrote. They raise UsageError and CannotRun."""

    write_schedule: Callable[[Schedule, int, Path, str], str]
    write_step: Callable[[Any, Path], str]
