"""Results of symm's kernel for every datatype and reduction: ``python walk_values.py cuda`` on the
fake GPU, ``TRITON_INTERPRET=1 python walk_values.py cpu`` in Triton's interpreter. Prints JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from collbench.core.dtypes import DTYPES, OPS
from collbench.run.backends import _instructions, _kernel
from collbench.run.backends._instructions import LENGTH, WIDE, Opcode
from collbench.suite.case import Case

COUNT = 1003  # elements of a term: no multiple of a vector
TERMS = 3
ROOM = 16 << 10  # bytes from one term to the next
NARROW_FLOATS = {"half": torch.float16, "bfloat16": torch.bfloat16}
NARROW_FLOATS |= {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}


def make_term(dtype: str, seed: int) -> bytes:
    """Random values of every magnitude, as they lie in memory; no NaN."""
    random = np.random.default_rng(seed)
    row = DTYPES[dtype]
    if row.kind != "float":
        return random.bytes(COUNT * row.size)
    values = random.standard_normal(COUNT) * np.exp2(random.integers(-12, 13, COUNT))
    if dtype in NARROW_FLOATS:
        narrow = torch.from_numpy(values).float().clamp(-400, 400).to(NARROW_FLOATS[dtype])
        return bytes(narrow.view(torch.uint8).numpy())
    return values.astype(np.float32 if row.size == 4 else np.float64).tobytes()


def write_tape(op: str, wide: bool) -> np.ndarray:
    """Combine all terms into the first one's place and, for avg, divide it."""
    shift = 0 if wide else 1  # bytes, so that nothing is aligned
    count = COUNT // 16 * 16 if wide else COUNT
    flag = WIDE if wide else 0
    pairs = [number for term in range(TERMS) for number in (0, ROOM * (term + 1) + shift)]
    move = [count, 0, shift, *pairs]
    words = [((1 + len(move)) << LENGTH) | flag | Opcode.MOVE, *move]
    if OPS[op].divides:
        divide = [count, 0, shift, TERMS]
        words += [((1 + len(divide)) << LENGTH) | flag | Opcode.DIVIDE, *divide]
    words += [1 << LENGTH | Opcode.STOP]
    return np.array([_instructions.line_bytes(1), 3, 3 + len(words), *words], np.int64)


def run_kernel(device: str, dtype: str, op: str, wide: bool) -> str:
    """The target's bytes after one launch, as hexadecimal digits."""
    shift = 0 if wide else 1
    memory = torch.zeros(ROOM * (TERMS + 1) + 64, dtype=torch.uint8)
    for term in range(TERMS):
        data = torch.frombuffer(bytearray(make_term(dtype, term)), dtype=torch.uint8)
        begin = ROOM * (term + 1) + shift
        memory[begin : begin + len(data)] = data
    memory = memory.to(device)
    line = torch.zeros(_instructions.line_bytes(1), dtype=torch.uint8, device=device)
    bases = np.zeros((1, _instructions.ADDRESSES), np.int64)
    bases[0, 0], bases[0, _instructions.LINES] = memory.data_ptr(), line.data_ptr()
    case = Case(
        collective="all_reduce", backend="symm", n=TERMS, nbytes=1 << 12, dtype=dtype, op=op
    )
    _kernel.walk[1, 1](
        torch.from_numpy(write_tape(op, wide)).to(device),
        torch.from_numpy(bases).to(device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.zeros(_kernel.REPORT_WORDS, dtype=torch.int64, device=device),
        0,
        1_000_000,
        **_kernel.kernel_options(case, True),
    )
    result = memory.cpu()[: ROOM // 2].numpy().tobytes()
    return result[: COUNT * DTYPES[dtype].size + shift].hex()


def main() -> None:
    device = sys.argv[1]
    results = {}
    for dtype, row in DTYPES.items():
        for op in sorted(set(OPS) - {"premul_sum"}):
            if OPS[op].integers_only and row.kind == "float":
                continue
            for wide in (False, True):
                results[f"{dtype} {op} {'wide' if wide else 'narrow'}"] = run_kernel(
                    device, dtype, op, wide
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
