"""What _kernel.py does with a tape, in a few lines of Python: one instruction at a time, on numpy
arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

import numpy as np

from collbench.run.backends._instructions import Opcode

Instruction = tuple[int, ...]


def decoded(words: np.ndarray, program: int) -> list[Instruction]:
    """One list of a tape, cut into instructions."""
    at, end = (int(word) for word in words[1 + program : 3 + program])
    found = []
    while at < end:
        opcode, first = int(words[at]), int(words[at + 1])
        length = {
            Opcode.WAIT: 2 + 2 * first,
            Opcode.MOVE: 6 + 2 * first,
            Opcode.PUBLISH: 2,
            Opcode.DIVIDE: 6,
        }[opcode]
        found.append(tuple(words[at : at + length].tolist()))
        at += length
    assert at == end
    return found


def walk(
    instructions: list[Instruction],
    own: tuple[int, int],
    base: int,
    counters: MutableMapping[tuple[int, int], int],
    at: Callable[[int, int, int], np.ndarray],
) -> Iterator[bool]:
    """One call of ``own`` = (rank, channel); yields whether it got anywhere. ``at(address, past,
    count)`` are elements in memory; whole numbers only."""
    for opcode, *words in instructions:
        if opcode == Opcode.WAIT:
            for peer, progress in zip(words[1::2], words[2::2], strict=True):
                while counters[peer, own[1]] < base + progress:
                    yield False
        elif opcode == Opcode.MOVE:
            terms, _, count, *pairs = words
            target, *values = (
                at(*pair, count) for pair in zip(pairs[::2], pairs[1::2], strict=True)
            )
            assert len(values) == terms
            total = values[0].copy()
            for value in values[1:]:
                yield True
                total = total + value
            target[:] = total
        elif opcode == Opcode.PUBLISH:
            assert counters[own] < base + words[0]
            counters[own] = base + words[0]
        else:
            _, count, address, past, divisor = words
            target = at(address, past, count)
            target //= divisor
        yield True
