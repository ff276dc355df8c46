"""The order in which measured calls add, by the bits of random sums: what algorithms add alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from collbench.core.sums.recognition import (
    Run,
    Sums,
    draw_numbers,
    find_runs,
    list_candidates,
    list_roundings,
    name_runs,
)
from collbench.core.sums.rounding import PERIOD, Floats, Rounding
from collbench.run.rank.bench import Bench
from collbench.run.rank.calls import Slot
from collbench.run.rank.check import BITS, decode_values, encode_values, is_rounded
from collbench.suite.case import Case

MAX_ELEMENTS = 4096  # of an output that are looked at
MANY_RANKS = 16  # above which they are fewer

MAX_NUMBERS = 1 << 17  # random ones of all ranks together

ENOUGH = 2048  # sums of a rank, for which a short buffer is filled anew
MAX_CALLS = 64


def choose_elements(count: int, n: int) -> list[int]:
    """Elements of an output of ``count``, spread evenly from the first to the last."""
    most = MAX_ELEMENTS if n <= MANY_RANKS else max(64, MAX_ELEMENTS * MANY_RANKS // n)
    chosen = np.linspace(0, count - 1, min(count, most)).round().astype(int)
    return list(dict.fromkeys(chosen.tolist()))


def count_calls(elements: int) -> int:
    """Calls that give enough sums to tell orders apart: one but for short buffers."""
    return min(MAX_CALLS, -(-ENOUGH // elements))


def find_adding_names(
    bench: Bench,
    case: Case,
    slot: Slot,
    call: Callable[[], object],
    beat: Callable[[], object],
) -> list[tuple[str, ...]]:
    """By group, the names that fit the sums at every rank, of calls on random floats in the buffers
    of a slot; ``call`` makes one and waits for its end. None where nothing fits, of 2 ranks, which
    have one order, and of results that are not rounded."""
    groups = (bench.backend.control or bench.control).groups
    names: list[tuple[str, ...]] = [()] * len(groups)
    if case.n < 3 or not is_rounded(case):
        return names
    sums = _make_sums(bench, case, slot, call)
    for rounding in list_roundings(case.type, case.op):
        runs = []
        for rank, of_rank in zip(bench.ranks, sums, strict=True):
            beat()
            runs.append((rank, _find_runs(case, rank, of_rank, rounding)))
        everyone = bench.control.collect(runs)
        names = [
            found or _name_group(case, [pair for rank in ranks for pair in everyone[rank]])
            for ranks, found in zip(groups, names, strict=True)
        ]
        if all(names):
            break
    return names


def _find_runs(
    case: Case, rank: int, sums: Sums | None, rounding: Rounding
) -> Sequence[Run] | None:
    """The runs of a rank's output, empty where they cannot be told; None where it has none."""
    if sums is None:
        return None
    candidates = list_candidates(case.collective, case.n, case.root, rank)
    return find_runs(sums, candidates, case.type, case.op, rounding) or []


def _name_group(case: Case, pairs: Iterable[Any]) -> tuple[str, ...]:
    """The names that fit at all ranks of a group, from each rank with its runs."""
    by_rank: list[Sequence[Run] | None] = [None] * case.n
    for rank, runs in pairs:
        by_rank[rank] = None if runs is None else [Run(*run) for run in runs]
    if not any(by_rank) or [] in by_rank:
        return ()
    return name_runs(case.collective, case.n, case.root, by_rank)


def _make_sums(
    bench: Bench, case: Case, slot: Slot, call: Callable[[], object]
) -> list[Sums | None]:
    """What calls make of random numbers, by rank of this process; None of one without an output."""
    elements = choose_elements(case.counts[1], case.n)
    period = min(case.counts[0], PERIOD, MAX_NUMBERS // case.n)
    offsets = [find_output_offset(case, rank) for rank in bench.ranks]
    inputs: list[list[Floats]] = [[] for _ in slot]
    results: list[list[Floats]] = [[] for _ in slot]
    for number in range(count_calls(len(elements))):
        numbers = draw_numbers(
            case.type, case.n, case.op, period, 1000 * bench.policy.seed + number
        )
        for rank, buffers in zip(bench.ranks, slot, strict=True):
            _repeat(buffers.send[: case.counts[0]], numbers[rank])
        bench.backend.finish()
        bench.control.barrier()
        call()
        for index, (offset, buffers) in enumerate(zip(offsets, slot, strict=True)):
            if offset is not None:
                inputs[index].append(numbers[:, (np.array(elements) + offset) % period])
                results[index].append(_read(buffers.recv, elements))
    return [
        Sums(np.stack(of_rank, axis=1), np.stack(got)) if of_rank else None
        for of_rank, got in zip(inputs, results, strict=True)
    ]


def find_output_offset(case: Case, rank: int) -> int | None:
    """Where a rank's output begins in the input; None where it has none."""
    if case.row.rooted and rank != case.root:
        return None
    return rank * case.counts[1] if case.row.total else 0


def _repeat(out: torch.Tensor, numbers: Floats) -> None:
    """Fill a buffer with numbers that its type has, again and again."""
    codes = encode_values(torch.from_numpy(np.ascontiguousarray(numbers)), out)
    for part in torch.split(out.view(BITS[out.element_size()]), len(codes)):
        part.copy_(codes[: len(part)])


def _read(buffer: torch.Tensor, elements: Sequence[int]) -> Floats:
    """Some elements of a buffer, whose type torch may not be able to index."""
    at = torch.tensor(elements, device=buffer.device)
    bits = buffer.view(BITS[buffer.element_size()])[at]
    return np.asarray(decode_values(bits, buffer).numpy())
