"""The Triton kernel that walks a tape (_instructions.py): any schedule, over any memory that it
is given the addresses of.

Why what is read is what was meant, in terms of the PTX memory model:

- A rank publishes by a release at system scope of one thread, behind a barrier of its block: all
  that the block's threads have read and written comes before the barrier, hence before the
  release.
- A waiting block reads the counters by acquires at system scope. One that sees a published value
  (counters only grow, and each has one writer) comes after the release; a barrier hands that on
  to the block's other threads. Causality order is transitive, so their reads see what the peer
  had written, and what they overwrite, the peer had read.
- Data is loaded past the L1 cache (.cg), which has no use for what is read once.

Every thread takes the same way through the tape: a value that decides anything is read from
memory that does not change during the launch, or is handed to all by a reduction over the whole
block or a scalar atomic. Else threads would meet at different barriers.

No wait is endless: after ``limit`` microseconds (looks, in the interpreter), or when another
block of this launch has given up, a block leaves. It says in ``report`` for what it had waited,
and leaves a negative number as its counters' base, by which the launches that follow leave at once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from collbench.run.backends._instructions import ADDRESSES, COUNTERS, LINE_BYTES, Opcode
from collbench.suite.case import Case

WARPS = 16


# peers that a WAIT can hold: two a thread, so that whatever the layout, all threads take part
LANES = 1024


REPORT_WORDS = 6  # 1 once it is written, rank, channel, peer, progress awaited, progress seen


_ROW = tl.constexpr(ADDRESSES)


_COUNTERS = tl.constexpr(COUNTERS)


_LINE = tl.constexpr(LINE_BYTES)


_WAIT = tl.constexpr(int(Opcode.WAIT))


_MOVE = tl.constexpr(int(Opcode.MOVE))


_PUBLISH = tl.constexpr(int(Opcode.PUBLISH))


_CHECKED = tl.constexpr(1024)  # looks at counters between two at the time, and at other blocks


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _least(a, b):
    return tl.minimum(a, b)


@triton.jit
def _greatest(a, b):
    return tl.maximum(a, b)


@triton.jit
def _and(a, b):
    return a & b


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _xor(a, b):
    return a ^ b


COMBINE = {
    "none": _sum,
    "sum": _sum,
    "avg": _sum,
    "prod": _product,
    "min": _least,
    "max": _greatest,
    "band": _and,
    "bor": _or,
    "bxor": _xor,
}


TYPES = {
    "int8": tl.int8,
    "uint8": tl.uint8,
    "int32": tl.int32,
    "uint32": tl.uint32,
    "int64": tl.int64,
    "uint64": tl.uint64,
    "half": tl.float16,
    "float": tl.float32,
    "double": tl.float64,
    "bfloat16": tl.bfloat16,
    "f8e4m3": tl.float8e4nv,
    "f8e5m2": tl.float8e5,
}


COPIED = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}  # by size: where nothing is combined


@triton.jit
def _look(addresses, interpreted: tl.constexpr):
    """What counters hold, by an acquire each; 0 for those at address 0."""
    if interpreted:
        pointers = addresses.to(tl.pointer_type(tl.int64))
        return tl.atomic_add(
            pointers, addresses * 0, mask=addresses != 0, sem="acquire", scope="sys"
        )
    else:
        return tl.inline_asm_elementwise(
            """{
                .reg .pred there;
                .reg .u64 seen;
                setp.ne.u64 there, $1, 0;
                mov.u64 seen, 0;
                @there ld.acquire.sys.global.u64 seen, [$1];
                mov.u64 $0, seen;
            }""",
            "=l,l",
            [addresses],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )


@triton.jit
def _now(lane, looks, interpreted: tl.constexpr):
    """Microseconds, the same for all of the block's threads; in the interpreter looks."""
    if interpreted:
        return looks
    else:
        nanoseconds = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer; // $1",
            "=l,r",
            [lane],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
        return tl.max(nanoseconds, 0) // 1000


@triton.jit
def _await(
    pairs,
    peers,
    bases,
    channel,
    rank,
    base,
    claim,
    report,
    limit,
    lanes: tl.constexpr,
    interpreted: tl.constexpr,
):
    """Wait until all pairs' progress is reached; whether it was."""
    lane = tl.arange(0, lanes)
    used = lane < peers
    peer = tl.load(pairs + 2 * lane, mask=used, other=0)
    wanted = tl.load(pairs + 2 * lane + 1, mask=used, other=0) + base
    lines = tl.load(bases + peer * _ROW + _COUNTERS, mask=used, other=0)
    addresses = tl.where(used, lines + channel * _LINE, 0)
    seen = _look(addresses, interpreted)
    behind = tl.max((used & (seen < wanted)).to(tl.int32), 0)
    looks = 0
    began = tl.zeros((), tl.int64)
    left = behind > 0
    while left:
        seen = _look(addresses, interpreted)
        behind = tl.max((used & (seen < wanted)).to(tl.int32), 0)
        left = behind > 0
        looks += 1
        if looks % _CHECKED == 0:
            now = _now(lane, looks, interpreted)
            if looks == _CHECKED:
                began = now
            others = tl.atomic_add(claim, 0, sem="relaxed", scope="gpu")
            left = left & (others == 0) & (now - began < limit)
    if behind > 0:  # noqa: SIM102
        if tl.atomic_xchg(claim, 1, sem="relaxed", scope="gpu") == 0:
            late = tl.max(tl.where(used & (seen < wanted), lane, -1), 0)
            tl.store(report + 1, rank)
            tl.store(report + 2, channel)
            tl.store(report + 3, tl.sum(tl.where(lane == late, peer, 0), 0))
            tl.store(report + 4, tl.sum(tl.where(lane == late, wanted - base, 0), 0))
            tl.store(report + 5, tl.sum(tl.where(lane == late, seen - base, 0), 0))
            tl.store(report, 1)
    return behind == 0


@triton.jit
def _pointer(operand, bases, kind: tl.constexpr, aligned: tl.constexpr):
    """To what a pair of (address, bytes past it) names. The hint must be true wherever this is
    inlined."""
    address = tl.load(bases + tl.load(operand)) + tl.load(operand + 1)
    return tl.multiple_of(address.to(tl.pointer_type(kind)), aligned)


@triton.jit
def _combined(a, b, combine: tl.constexpr, kind: tl.constexpr, work: tl.constexpr):
    return combine(a.to(work), b.to(work)).to(kind)


@triton.jit
def _move(
    at,
    bases,
    combine: tl.constexpr,
    kind: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
):
    """Tile by tile: all terms in their order, the next one loaded before those before it are
    combined, then the target. ``packed`` elements of the tape are one of ``kind``."""
    terms = tl.load(at + 1)
    length = tl.multiple_of(tl.load(at + 3), grain * packed) // packed
    target = _pointer(at + 4, bases, kind, aligned)
    first = _pointer(at + 6, bases, kind, aligned)
    lane = tl.arange(0, block)
    if terms == 1:
        for begin in range(0, length, block):
            spot = begin + lane
            tl.store(
                target + spot,
                tl.load(first + spot, mask=spot < length, cache_modifier=".cg"),
                mask=spot < length,
            )
    else:
        second = _pointer(at + 8, bases, kind, aligned)
        for begin in range(0, length, block):
            spot = begin + lane
            total = tl.load(first + spot, mask=spot < length, cache_modifier=".cg")
            ahead = tl.load(second + spot, mask=spot < length, cache_modifier=".cg")
            for term in range(2, terms):
                pointer = _pointer(at + 6 + 2 * term, bases, kind, aligned)
                later = tl.load(pointer + spot, mask=spot < length, cache_modifier=".cg")
                total = _combined(total, ahead, combine, kind, work)
                ahead = later
            tl.store(
                target + spot, _combined(total, ahead, combine, kind, work), mask=spot < length
            )


@triton.jit
def _divide(
    at,
    bases,
    kind: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
    grain: tl.constexpr,
):
    """In place, rounded once; of integers, none of which is negative where it must come out even,
    the whole part."""
    length = tl.multiple_of(tl.load(at + 2), grain)
    target = _pointer(at + 3, bases, kind, aligned)
    by = tl.load(at + 5).to(work)
    lane = tl.arange(0, block)
    for begin in range(0, length, block):
        spot = begin + lane
        value = tl.load(target + spot, mask=spot < length).to(work)
        if work == tl.float32:
            quotient = tl.div_rn(value, by)
        elif work == tl.float64:
            quotient = value / by
        else:
            quotient = value // by
        tl.store(target + spot, quotient.to(kind), mask=spot < length)


@triton.jit
def _waited(
    at,
    well,
    bases,
    channel,
    rank,
    base,
    claim,
    report,
    limit,
    lanes: tl.constexpr,
    interpreted: tl.constexpr,
):
    """A WAIT: whether what it awaits has come, and how long the instruction is."""
    peers = tl.load(at + 1)
    if peers > 0:
        pairs = at + 2
        well = _await(
            pairs, peers, bases, channel, rank, base, claim, report, limit, lanes, interpreted
        )
    tl.debug_barrier()
    return well, 2 + 2 * peers


@triton.jit
def _moved(
    at,
    bases,
    combine: tl.constexpr,
    kind: tl.constexpr,
    wide: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    narrow: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
):
    """A MOVE, in wide words where it says that it may be; how long the instruction is."""
    if tl.load(at + 2) != 0:
        _move(at, bases, combine, wide, work, block, 16, grain, packed)
    else:
        _move(at, bases, combine, kind, work, narrow, 1, 1, 1)
    return 6 + 2 * tl.load(at + 1)


@triton.jit
def _divided(
    at,
    bases,
    kind: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    narrow: tl.constexpr,
    grain: tl.constexpr,
):
    """A DIVIDE; how long the instruction is."""
    if tl.load(at + 1) != 0:
        _divide(at, bases, kind, work, block, 16, grain)
    else:
        _divide(at, bases, kind, work, narrow, 1, 1)
    return 6


@triton.jit(do_not_specialize=["first", "limit"])
def walk(
    tape,
    bases,
    claim,
    report,
    first,
    limit,
    combine: tl.constexpr,
    kind: tl.constexpr,
    wide: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    narrow: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
    lanes: tl.constexpr,
    interpreted: tl.constexpr,
):
    """Takes one channel (the grid's first axis) of one rank (the second, from ``first`` on) through
    its instructions. ``claim`` (int32) is 0 until a block has given up, ``report`` where it says
    why. Elements are of type ``kind``, combined as ``work``. Where all is on 16 bytes, which are
    ``grain`` elements, ``packed`` of them move as one of type ``wide``, ``block`` of these at once,
    else ``narrow`` at once, as more would take more registers than there are.
    """
    channel = tl.program_id(0)
    rank = first + tl.program_id(1)
    program = tl.program_id(1) * tl.num_programs(0) + channel
    at = tl.load(tape + 1 + program)
    end = tl.load(tape + 2 + program)
    line = tl.load(bases + rank * _ROW + _COUNTERS) + channel * _LINE
    counter = line.to(tl.pointer_type(tl.int64))
    base = tl.load(counter + 1)
    well = base >= 0
    while well & (at < end):
        opcode = tl.load(tape + at)
        if opcode == _WAIT:
            here = tape + at
            well, length = _waited(
                here, well, bases, channel, rank, base, claim, report, limit, lanes, interpreted
            )
            at += length
        elif opcode == _MOVE:
            at += _moved(tape + at, bases, combine, kind, wide, work, block, narrow, grain, packed)
        elif opcode == _PUBLISH:
            tl.debug_barrier()
            tl.atomic_xchg(counter, base + tl.load(tape + at + 1), sem="release", scope="sys")
            at += 2
        else:
            at += _divided(tape + at, bases, kind, work, block, narrow, grain)
    tl.store(counter + 1, tl.where(well, base + tl.load(tape), -1))


INTERPRETED = not isinstance(walk, triton.JITFunction)


def options(case: Case) -> dict[str, Any]:
    """The kernel's compile-time arguments for a case. Narrow floats are combined as float32 and
    rounded each time; fp8 that overflows becomes its largest value. What is only copied moves in
    words of 4 bytes at least.
    """
    size = case.type.size
    kind = TYPES[case.dtype] if case.row.reduces else COPIED[size]
    packed = 1 if case.row.reduces else max(1, 4 // size)
    return {
        "combine": COMBINE[case.op],
        "kind": kind,
        "wide": kind if packed == 1 else COPIED[4],
        "work": tl.float32 if case.row.reduces and case.type.kind == "float" and size < 4 else kind,
        "block": 512 if INTERPRETED else min(16384, (64 << 10) // (size * packed)),
        "narrow": 512 if INTERPRETED else 2048,
        "grain": max(1, 16 // (size * packed)),
        "packed": packed,
        "lanes": peers_at_once(),
        "interpreted": INTERPRETED,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }


def peers_at_once() -> int:
    """How many peers a WAIT may hold."""
    return 8 if INTERPRETED else LANES
