"""What _kernel.py does with a tape, in a few lines of Python: one instruction at a time, on numpy
arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

import numpy as np

from collbench.run.backends._instructions import LENGTH, WIDE, Opcode

Instruction = tuple[int, ...]


def decoded(words: np.ndarray, program: int) -> list[Instruction]:
    """One list of a tape, cut into instructions, up to its STOP; each begins with its opcode, how
    many peers or terms it has, and, where data moves, whether it is wide."""
    at, end = (int(word) for word in words[1 + program : 3 + program])
    found: list[Instruction] = []
    while (opcode := Opcode(int(words[at]) % WIDE)) != Opcode.STOP:
        length, wide = int(words[at]) >> LENGTH, int(words[at]) & WIDE != 0
        given = words[at + 1 : at + length].tolist()
        assert len(given) == length - 1 and at + length < end
        found.append(
            {
                Opcode.WAIT: (opcode, len(given) // 2, *given),
                Opcode.MOVE: (opcode, (len(given) - 3) // 2, wide, *given),
                Opcode.PUBLISH: (opcode, len(given) - 1, *given),
                Opcode.DIVIDE: (opcode, wide, *given),
            }[opcode]
        )
        at += length
    assert at == end - 1
    return found


def span(words: np.ndarray) -> int:
    """By how much a call raises the base: what every list's STOP says."""
    (found,) = {int(words[end - 1]) >> LENGTH for end in words[2 : int(words[1])].tolist()}
    return found


def walk(
    instructions: list[Instruction],
    own: tuple[int, int],
    base: int,
    progress: MutableMapping[tuple[int, int, int], int],
    at: Callable[[int, int, int], np.ndarray],
) -> Iterator[bool]:
    """One call of ``own`` = (rank, channel); yields whether it got anywhere.
    ``progress[rank, channel, peer]`` is what a peer has told a rank, ``at(address, past, count)``
    are elements in memory; whole numbers only."""
    rank, channel = own
    for opcode, *words in instructions:
        if opcode == Opcode.WAIT:
            for peer, wanted in zip(words[1::2], words[2::2], strict=True):
                while progress[rank, channel, peer] < base + wanted:
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
            for peer in words[2:]:
                assert progress[peer, channel, rank] < base + words[1]
                progress[peer, channel, rank] = base + words[1]
                yield True
        else:
            _, count, address, past, divisor = words
            target = at(address, past, count)
            target //= divisor
        yield True
