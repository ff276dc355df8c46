"""The Triton kernel that walks a tape (_instructions.py): any schedule, over any memory that it
is given the addresses of.

Why what is read is what was meant, in terms of the PTX memory model:

- A rank publishes by release stores, one thread's to each peer that waits, behind a barrier of
  its block: all that the block's threads have read and written comes before the barrier, hence
  before the releases. It stores into the peer's own memory, so that nobody polls a link; only
  these stores cross it (no atomic does, which PCIe may lack), and whom to tell is in the tape.
- A waiting block reads its own memory by acquires, a thread for each peer. One that sees a
  published value (words only grow, and each has one writer) comes after the release; the barrier
  that tells the block's other threads so hands that on to them. Causality order is transitive,
  so their reads see what the peer had written, and what they overwrite, the peer had read.
- Both are of scope ``sys``, or ``gpu`` where all ranks are blocks of one launch on one GPU.
- What is pushed is awaited in the same call: after it nobody writes to anybody.
- Data is loaded past the L1 cache (.cg), which has no use for what is read once.

Every thread takes the same way through the tape: a value that decides anything is read from
memory that does not change during the launch, or is handed to all by a reduction over the whole
block (or a barrier's) or a scalar atomic. Else threads would meet at different barriers.

No wait is endless: after ``limit`` microseconds (looks, in the interpreter), or when another
block of this launch has given up, a block leaves. It says in ``report`` for what it had waited,
and leaves a negative number as its line's base, by which the launches that follow leave at once.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from collbench.run.backends._instructions import ADDRESSES, LENGTH, LINES, WIDE, Opcode
from collbench.suite.case import Case

WARPS = 16

LANES = 32 * WARPS  # peers that an instruction can hold: one a thread

REPORT_WORDS = 6  # 1 once it is written, rank, channel, peer, progress awaited, progress seen

_ROW, _LINES, _WIDE, _LENGTH = map(tl.constexpr, (ADDRESSES, LINES, WIDE, LENGTH))
_STOP, _WAIT, _MOVE, _PUBLISH = (tl.constexpr(int(opcode)) for opcode in list(Opcode)[:4])
_CHECKED = tl.constexpr(1024)  # looks at a line between two at the time, and at other blocks

# Whether any of $2 peers is behind, whose pairs begin at $1 and whose words at $3, on a base of $4:
# warps that have pairs look until nobody is, or 1024 times, and meet all others at the one barrier.
_POLL = """{
    .reg .pred behind, mine, more;
    .reg .u32 thread, left;
    .reg .u64 at, seen, wanted;
    mov.u32 thread, %tid.x;
    setp.lt.u32 mine, thread, $2;
    mov.pred behind, 0;
    mov.u64 seen, 0;
    and.b32 left, thread, -32;
    setp.ge.u32 more, left, $2;
    @more bra told;
    mad.wide.u32 at, thread, 16, $1;
    @mine ld.global.u64 wanted, [at+8];
    @mine ld.global.u64 at, [at];
    mad.lo.u64 at, at, 8, $3;
    add.u64 wanted, wanted, $4;
    mov.u32 left, 1024;
look:
    @mine ld.acquire.SCOPE.global.u64 seen, [at];
    setp.lt.and.s64 behind, seen, wanted, mine;
    vote.sync.any.pred behind, behind, -1;
    sub.u32 left, left, 1;
    setp.ne.and.u32 more, left, 0, behind;
    @more bra look;
told:
    bar.red.or.pred behind, 0, behind;
    selp.u32 $0, 1, 0, behind;
}"""

# $5, a release each, to $2 peers, whose ranks begin at $1: $4 bytes into what the table of
# addresses, from its first line ($3) on, says of each. Where to is read before the barrier.
_PUSH = """{
    .reg .pred mine;
    .reg .u32 thread;
    .reg .u64 at;
    mov.u32 thread, %tid.x;
    setp.lt.u32 mine, thread, $2;
    mad.wide.u32 at, thread, 8, $1;
    @mine ld.global.u64 at, [at];
    mad.lo.u64 at, at, ROW, $3;
    @mine ld.global.u64 at, [at];
    add.u64 at, at, $4;
    bar.sync 0;
    @mine st.release.SCOPE.global.u64 [at], $5;
    mov.u32 $0, 0;
}""".replace("ROW", str(8 * ADDRESSES))

_POLL_GPU, _POLL_SYS, _PUSH_GPU, _PUSH_SYS = (
    tl.constexpr(asm.replace("SCOPE", scope)) for asm in (_POLL, _PUSH) for scope in ("gpu", "sys")
)

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
def _poll(pairs, peers, line, base, scope: tl.constexpr):
    """1 if after many looks any peer's progress is still awaited, else 0; a barrier, too."""
    return tl.inline_asm_elementwise(
        _POLL_GPU if scope == "gpu" else _POLL_SYS,
        "=r,l,r,l,l,~{memory}",
        [pairs, peers, line + 8, base],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _look(used, targets, flags):
    """1 if any peer's progress is still awaited after one look, else 0: what Triton's interpreter
    runs in place of ``_poll``."""
    values = tl.atomic_add(flags, targets * 0, mask=used, sem="acquire", scope="sys")
    return tl.max((used & (values < targets)).to(tl.int32), 0)


@triton.jit
def _awaited(pairs, peers, line, base, lanes: tl.constexpr):
    """The peers that a WAIT names: a mask of those there are, the values to wait for, and pointers
    to the flags that will have them."""
    lane = tl.arange(0, lanes)
    used = lane < peers
    peer = tl.load(pairs + 2 * lane, mask=used, other=0)
    targets = tl.load(pairs + 2 * lane + 1, mask=used, other=0) + base
    return used, targets, (line + 8 + 8 * peer).to(tl.pointer_type(tl.int64))


@triton.jit
def _push(ranks, peers, bases, past, value, lanes: tl.constexpr, scope: tl.constexpr):
    """Release stores to so many peers, behind a barrier."""
    if scope != "none":
        tl.inline_asm_elementwise(
            _PUSH_GPU if scope == "gpu" else _PUSH_SYS,
            "=r,l,r,l,l,l,~{memory}",
            [ranks, peers, bases + _LINES, past, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        lane = tl.arange(0, lanes)
        used = lane < peers
        peer = tl.load(ranks + lane, mask=used, other=0)
        lines = tl.load(bases + peer * _ROW + _LINES, mask=used, other=0)
        flags = (lines + past).to(tl.pointer_type(tl.int64))
        tl.atomic_xchg(flags, peer * 0 + value, mask=used, sem="release", scope="sys")


@triton.jit
def _now(looks, lanes: tl.constexpr, scope: tl.constexpr):
    """Microseconds, the same for all of the block's threads; in the interpreter looks."""
    if scope == "none":
        return looks
    else:
        nanoseconds = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer; // $1",
            "=l,r",
            [tl.arange(0, lanes)],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
        return tl.max(nanoseconds, 0) // 1000


@triton.jit
def _await(
    pairs,
    peers,
    line,
    channel,
    rank,
    base,
    claim,
    report,
    limit,
    lanes: tl.constexpr,
    scope: tl.constexpr,
):
    """Wait until all pairs' progress is reached; whether it was."""
    every: tl.constexpr = _CHECKED if scope == "none" else 1
    looks = 0
    began = tl.zeros((), tl.int64)
    behind = tl.full((), 1, tl.int32)
    is_missing = behind > 0
    if scope == "none":
        used, awaited, where = _awaited(pairs, peers, line, base, lanes)
    while is_missing:
        if scope == "none":
            behind = _look(used, awaited, where)
        else:
            behind = _poll(pairs, peers, line, base, scope)
        is_missing = behind > 0
        looks += 1
        if is_missing & (looks % every == 0):
            now = _now(looks, lanes, scope)
            if looks == every:
                began = now
            others = tl.atomic_add(claim, 0, sem="relaxed", scope="gpu")
            is_missing = (others == 0) & (now - began < limit)
    if behind > 0:  # noqa: SIM102
        if tl.atomic_xchg(claim, 1, sem="relaxed", scope="gpu") == 0:
            _, targets, flags = _awaited(pairs, peers, line, base, lanes)
            lane = tl.arange(0, lanes)
            values = tl.load(flags, mask=lane < peers, other=0, volatile=True)
            missing = tl.where(lane < peers, targets - values, -(1 << 60))
            late = tl.argmax(missing, 0)
            tl.store(report + 1, rank)
            tl.store(report + 2, channel)
            tl.store(report + 3, tl.load(pairs + 2 * late))
            tl.store(report + 4, tl.load(pairs + 2 * late + 1))
            tl.store(report + 5, tl.load(pairs + 2 * late + 1) - tl.max(missing, 0))
            tl.store(report, 1)
    return behind == 0


@triton.jit
def _pointer(operand, bases, kind: tl.constexpr, aligned: tl.constexpr):
    """To what a pair of (address, bytes past it) names. The hint must be true wherever this is
    inlined."""
    address = tl.load(bases + tl.load(operand)) + tl.load(operand + 1)
    return tl.multiple_of(address.to(tl.pointer_type(kind)), aligned)


@triton.jit
def _combine_terms(a, b, op: tl.constexpr, kind: tl.constexpr, work: tl.constexpr):
    first = a.to(work)
    second = b.to(work)
    if op == "prod":
        result = first * second
    elif op == "min":
        result = tl.minimum(first, second)
    elif op == "max":
        result = tl.maximum(first, second)
    elif op == "band":
        result = first & second
    elif op == "bor":
        result = first | second
    elif op == "bxor":
        result = first ^ second
    else:
        tl.static_assert((op == "sum") | (op == "avg"))
        result = first + second
    return result.to(kind)


@triton.jit
def _move(
    at,
    terms,
    bases,
    op: tl.constexpr,
    kind: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
):
    """Tile by tile: all terms in their order, the next one loaded, and where the one after it
    lies, before those before it are combined, then the target. ``packed`` elements of the tape are
    one of ``kind``."""
    length = tl.multiple_of(tl.load(at + 1), grain * packed) // packed
    target = _pointer(at + 2, bases, kind, aligned)
    first = _pointer(at + 4, bases, kind, aligned)
    if op != "none":
        second = _pointer(at + 2 * tl.minimum(3, terms + 1), bases, kind, aligned)
    lane = tl.arange(0, block)
    if terms == 1:
        for begin in range(0, length, block):
            spot = begin + lane
            tl.store(
                target + spot,
                tl.load(first + spot, mask=spot < length, cache_modifier=".cg"),
                mask=spot < length,
            )
    elif op != "none":
        for begin in range(0, length, block):
            spot = begin + lane
            total = tl.load(first + spot, mask=spot < length, cache_modifier=".cg")
            ahead = tl.load(second + spot, mask=spot < length, cache_modifier=".cg")
            pointer = _pointer(at + 2 * tl.minimum(4, terms + 1), bases, kind, aligned)
            for term in range(2, terms):
                later = tl.load(pointer + spot, mask=spot < length, cache_modifier=".cg")
                pointer = _pointer(at + 2 * tl.minimum(term + 3, terms + 1), bases, kind, aligned)
                total = _combine_terms(total, ahead, op, kind, work)
                ahead = later
            tl.store(
                target + spot, _combine_terms(total, ahead, op, kind, work), mask=spot < length
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
    length = tl.multiple_of(tl.load(at + 1), grain)
    target = _pointer(at + 2, bases, kind, aligned)
    by = tl.load(at + 4).to(work)
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
def _worked(
    at,
    opcode,
    flag,
    size,
    bases,
    op: tl.constexpr,
    kind: tl.constexpr,
    wide: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    narrow: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
):
    """A MOVE or a DIVIDE, in wide words where its flag says so."""
    if opcode == _MOVE:
        terms = size // 2 - 2
        if flag != 0:
            _move(at, terms, bases, op, wide, work, block, 16, grain, packed)
        else:
            _move(at, terms, bases, op, kind, work, narrow, 1, 1, 1)
    elif flag != 0:
        _divide(at, bases, kind, work, block, 16, grain)
    else:
        _divide(at, bases, kind, work, narrow, 1, 1)


@triton.jit(do_not_specialize=["first", "limit"])
def walk(
    tape,
    bases,
    claim,
    report,
    first,
    limit,
    op: tl.constexpr,
    kind: tl.constexpr,
    wide: tl.constexpr,
    work: tl.constexpr,
    block: tl.constexpr,
    narrow: tl.constexpr,
    grain: tl.constexpr,
    packed: tl.constexpr,
    lanes: tl.constexpr,
    scope: tl.constexpr,
):
    """Takes one channel (the grid's first axis) of one rank (the second, from ``first`` on) through
    its instructions. ``claim`` (int32) is 0 until a block has given up, ``report`` where it says
    why. Elements are of type ``kind``, combined by ``op`` as ``work``. Where all is on 16
    bytes, which are ``grain`` elements, ``packed`` of them move as one of type ``wide``, ``block``
    of these at once, else ``narrow`` at once, as more would take more registers than there are.
    """
    channel, rank = tl.program_id(0), first + tl.program_id(1)
    at = tape + tl.load(tape + 1 + tl.program_id(1) * tl.num_programs(0) + channel)
    past = channel * tl.load(tape)
    line = tl.load(bases + rank * _ROW + _LINES) + past
    base = tl.load(line.to(tl.pointer_type(tl.int64)))
    head = tl.load(at.to(tl.pointer_type(tl.int32)))
    well = base >= 0
    while well & (head % _WIDE != _STOP):
        here, opcode, flag, size = at, head % _WIDE, head & _WIDE, head >> _LENGTH
        at += size
        head = tl.load(at.to(tl.pointer_type(tl.int32)))
        if opcode == _WAIT:
            if size > 1:
                peers = size // 2
                well = _await(
                    here + 1, peers, line, channel, rank, base, claim, report, limit, lanes, scope
                )
            else:
                tl.debug_barrier()
        elif opcode == _PUBLISH:
            value = base + tl.load(here + 1)
            _push(here + 2, size - 2, bases, past + 8 + 8 * rank, value, lanes, scope)
        else:
            _worked(
                here, opcode, flag, size, bases, op, kind, wide, work, block, narrow, grain, packed
            )
    tl.store(line.to(tl.pointer_type(tl.int64)), tl.where(well, base + (head >> _LENGTH), -1))


INTERPRETED = not isinstance(walk, triton.JITFunction)


def kernel_options(case: Case, virtual: bool) -> dict[str, Any]:
    """The kernel's compile-time arguments for a case, on one GPU or between several. Narrow floats
    are combined as float32 and rounded each time; fp8 that overflows becomes its largest value.
    What is only copied moves in words of 4 bytes at least.
    """
    size = case.type.size
    kind = TYPES[case.dtype] if case.row.reduces else COPIED[size]
    packed = 1 if case.row.reduces else max(1, 4 // size)
    return {
        "op": case.op,
        "kind": kind,
        "wide": kind if packed == 1 else COPIED[4],
        "work": tl.float32 if case.row.reduces and case.type.kind == "float" and size < 4 else kind,
        "block": 512 if INTERPRETED else min(16384, (64 << 10) // (size * packed)),
        "narrow": 512 if INTERPRETED else 2048,
        "grain": max(1, 16 // (size * packed)),
        "packed": packed,
        "lanes": choose_peer_limit(),
        "scope": "none" if INTERPRETED else "gpu" if virtual else "sys",
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }


def choose_peer_limit() -> int:
    """The number of peers that one instruction may name: 8 in Triton's interpreter, else LANES."""
    return 8 if INTERPRETED else LANES
