"""What the compiler makes of symm's kernel for GPUs that are not here: Triton brings the assembler
and the disassembler along. Of whatever collbench can be imported, older ones, too."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from collbench.run.backends import _kernel
from collbench.suite.case import Case

Kind = tuple[str, str, str]  # collective, datatype and reduction

POINTERS = {"tape": "*i64", "bases": "*i64", "claim": "*i32", "report": "*i64"}
THREADS = 32 * _kernel.WARPS  # of a block, and of a multiprocessor: no second one fits


def options(kind: Kind, virtual: bool = False) -> dict[str, Any]:
    collective, dtype, op = kind
    case = Case(collective=collective, backend="symm", n=2, nbytes=1024, dtype=dtype, op=op)
    find = _kernel.kernel_options if hasattr(_kernel, "kernel_options") else _kernel.options
    given = (case, virtual)[: len(inspect.signature(find).parameters)]
    found: dict[str, Any] = find(*given)
    return found


@functools.cache
def compiled(kind: Kind, architecture: int, virtual: bool = False) -> Any:
    given = options(kind, virtual)
    launch = {name: given.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    names = _kernel.walk.arg_names
    source = ASTSource(
        _kernel.walk,
        {**POINTERS, "first": "i32", "limit": "i32", **dict.fromkeys(given, "constexpr")},
        {(names.index(name),): value for name, value in given.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS},
    )
    return triton.compile(source, GPUTarget("cuda", architecture, 32), launch)


def disassembled(cubin: bytes, folder: Path, how: str) -> str:
    path = folder / "walk.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, how, path], capture_output=True, text=True, check=True).stdout


def usage(cubin: bytes, folder: Path) -> tuple[int, int]:
    """Registers of a thread, and its bytes of memory for which there were none."""
    told = disassembled(cubin, folder, "-res-usage")
    registers, spilled = map(int, re.findall(r"(?:REG|STACK):(\d+)", told))
    return registers, spilled


def waited_for(ttir: str, names: Sequence[str]) -> dict[str, int]:
    """How many loads must have come, one after the other, before an operation that has one of these
    names. What is in a branch or a loop waits for what decides on it; what was before a loop, or a
    loop hands on to its next turn, is there."""
    came: dict[str, int] = {}
    around, found = [(-1, 0)], dict.fromkeys(names, 0)
    for line in (line.split(" loc(")[0] for line in ttir.splitlines()):
        indent = len(line) - len(line.lstrip())
        if "%" not in line or line[indent] in "}^" or "tt.func" in line:
            continue
        while around[-1][0] >= indent:
            around.pop()
        parts = re.fullmatch(r"\s*(?:(%\S+) = )?(.*)", line)
        assert parts
        name, operation = parts[1] or "", parts[2].partition("iter_args")[0]
        if "scf.while" in operation:
            came.clear()
        needs = re.findall(r"%\w+", operation)
        depth = max([around[-1][1], *(came.get(need, 0) for need in needs)])
        for what in found:
            found[what] = max(found[what], depth if what in operation else 0)
        came[name.partition(":")[0]] = depth + operation.startswith("tt.load")
        if line.endswith("{"):
            around.append((indent, depth))
    return found


class Loop(NamedTuple):
    """A loop that loads data, without loops in it that do: instructions of a turn, bytes by each
    load and store of data, and how many bytes are on their way before anything needs the first."""

    instructions: int
    loads: tuple[int, ...]
    stores: tuple[int, ...]
    ahead: int


_DATA = re.compile(r"(?:@!?U?P\d+ )?(LDG|STG)\.(\S+)")  # loads of data alone pass the L1 cache
_ACCESS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}

Code = list[tuple[int, str]]  # addresses and instructions


def _code(sass: str) -> tuple[Code, list[tuple[int, int]]]:
    """A kernel, and from where to where its loops go."""
    found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?);", sass)
    code = [(int(at, 16), text.strip()) for at, text in found]
    backwards = {
        (int(to, 16), at)
        for at, text in code
        for to in re.findall(r"\bBRA.* (?:`\(\S+\) )?0x([0-9a-f]+)", text)
        if int(to, 16) < at
    }
    return code, sorted(backwards)


def loops(sass: str) -> list[Loop]:
    """Those of a kernel, in order."""
    code, spans = _code(sass)
    spans = [
        (low, high) for low, high in spans if any(_loaded(t) for a, t in code if low <= a <= high)
    ]
    found = []
    for low, high in spans:
        inner = [s for s in spans if s != (low, high) and low <= s[0] and s[1] <= high]
        own = [
            text
            for at, text in code
            if low <= at <= high and not any(s[0] <= at <= s[1] for s in inner)
        ]
        if any(map(_loaded, own)):
            found.append(_loop(own))
    return found


def barriers_of_looks(sass: str) -> int:
    """Barriers in the smallest loop in which progress is looked at."""
    code, spans = _code(sass)
    looking = [at for at, text in code if re.search(r"\bLDG?\.\S*STRONG\.SYS", text)]
    low, high = min(
        (s for s in spans if any(s[0] <= at <= s[1] for at in looking)), key=lambda s: s[1] - s[0]
    )
    return sum(low <= at <= high and bool(re.search(r"\bBAR\.", text)) for at, text in code)


def _loaded(text: str) -> int:
    """Bytes of data that an instruction loads."""
    match = _DATA.match(text)
    return _width(match[2]) if match and match[1] == "LDG" and "STRONG.GPU" in match[2] else 0


def _stored(text: str) -> int:
    match = _DATA.match(text)
    return _width(match[2]) if match and match[1] == "STG" else 0


def _width(suffix: str) -> int:
    return next((_ACCESS[part] for part in suffix.split(".") if part in _ACCESS), 4)


def _loop(own: Sequence[str]) -> Loop:
    loads, stores = (tuple(filter(None, map(of, own))) for of in (_loaded, _stored))
    under_way: set[int] = set()
    ahead = 0
    for text in own:
        registers = [int(number) for number in re.findall(r"\bR(\d+)\b", text)]
        if size := _loaded(text):
            if under_way & {*registers[1:]}:
                break
            under_way |= {*range(registers[0], registers[0] + max(1, size // 4))}
            ahead += size
        elif under_way & {*registers[0 if "ST" in text.split(".")[0] else 1 :]}:
            break
    return Loop(len(own), loads, stores, ahead)
