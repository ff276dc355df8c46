"""What the compiler makes of the kernel for GPUs that are not here (Triton brings the assembler
along): a thread's loads and stores are to be 16 bytes each where a tape says that they may be."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from collbench.run.backends import _kernel
from collbench.suite.case import Case

pytestmark = pytest.mark.skipif(_kernel.INTERPRETED, reason="TRITON_INTERPRET compiles nothing")
SPILLED = {80: 48, 90: 0, 100: 48}  # on A100, H100 and H200, B200: bytes a thread, at most
KINDS = (  # what is combined, and copies
    ("all_reduce", "float", "sum"),
    ("all_reduce", "bfloat16", "sum"),
    ("all_reduce", "double", "max"),
    ("all_reduce", "int8", "sum"),
    ("all_gather", "float", "none"),
    ("all_gather", "half", "none"),
)
POINTERS = {"tape": "*i64", "bases": "*i64", "claim": "*i32", "report": "*i64"}
THREADS = 32 * _kernel.WARPS


def options(kind: tuple[str, str, str]) -> dict[str, Any]:
    collective, dtype, op = kind
    case = Case(collective=collective, backend="symm", n=2, nbytes=1024, dtype=dtype, op=op)
    return _kernel.options(case)


def compiled(kind: tuple[str, str, str], architecture: int) -> Any:
    given = options(kind)
    launch = {name: given.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    names = _kernel.walk.arg_names
    source = ASTSource(
        _kernel.walk,
        {**POINTERS, "first": "i32", "limit": "i32", **dict.fromkeys(given, "constexpr")},
        {(names.index(name),): value for name, value in given.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS},
    )
    return triton.compile(source, GPUTarget("cuda", architecture, 32), launch)


def number(pattern: str, ptx: str) -> int:
    """Of instructions with such a name."""
    return len(re.findall(rf"^\s*(?:@\S+ )?{pattern}\s", ptx, re.MULTILINE))


@pytest.mark.parametrize("architecture", SPILLED)
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_data_moves_16_bytes_at_once_from_registers_that_suffice(
    kind: tuple[str, str, str], architecture: int, tmp_path: Path
) -> None:
    found = compiled(kind, architecture)
    given, ptx = options(kind), found.asm["ptx"]
    vectors = given["block"] // given["grain"] // THREADS  # a thread's in a tile
    loads = 4 * vectors  # a copy's, the first two terms', and any later one's
    assert number(r"ld\.global\.cg\.v(4\.b32|2\.b64)", ptx) == loads
    assert number(r"st\.global\.v(4\.b32|2\.b64)", ptx) >= 2 * vectors  # a copy's, and a sum's
    single = given["narrow"] // THREADS  # what is not on 16 bytes, and nothing else
    assert number(r"ld\.global\.cg\.b\d+", ptx) == 4 * single
    assert stack(found.asm["cubin"], tmp_path) <= SPILLED[architecture]


def stack(cubin: bytes, folder: Path) -> int:
    """Bytes a thread for which there were no registers."""
    path = folder / "walk.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    used = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    registers, spilled = map(int, re.findall(r"(?:REG|STACK):(\d+)", used.stdout))
    assert registers * THREADS <= 65536  # of a multiprocessor: else no block is resident
    return spilled


@pytest.mark.parametrize("architecture", SPILLED)
def test_what_is_published_is_released_and_what_is_awaited_acquired(architecture: int) -> None:
    ptx = compiled(KINDS[0], architecture).asm["ptx"]
    assert number(r"atom\.global\.sys\.release\.exch\.b64", ptx) == 1
    assert number(r"ld\.acquire\.sys\.global\.u64", ptx) >= 2  # a first look, and a loop's
    published = ptx.index("atom.global.sys.release.exch.b64")
    before = re.findall(r"bar\.sync|[ls][dt]\.global\S*", ptx[:published])
    assert "bar.sync" in before[-2:]  # between it and all data; the counter's place may be read
    assert ".ftz" not in ptx  # no float is rounded otherwise than on CPUs
