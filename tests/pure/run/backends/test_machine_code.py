"""What the compiler makes of the kernel for GPUs that are not here (Triton brings the assembler
along): a thread's loads and stores are to be 16 bytes each where a tape says that they may be, and
a step is to wait for as few loads and barriers as it can."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest
import triton
from _pytest.mark import ParameterSet
from compiled import THREADS, Kind, compiled, disassembled, loops, options, usage, waited_for
from marks import long

from collbench.run.backends import _kernel

pytestmark = pytest.mark.skipif(_kernel.INTERPRETED, reason="TRITON_INTERPRET compiles nothing")
SPILLED = {80: 48, 90: 16, 100: 48}  # on A100, H100 and H200, B200: bytes a thread, at most
LATER = 32  # bytes of two terms' tiles that a thread may ask for after it needs the first
KINDS = (  # what is combined, and copies
    ("all_reduce", "float", "sum"),
    ("all_reduce", "bfloat16", "sum"),
    ("all_reduce", "double", "max"),
    ("all_reduce", "int8", "sum"),
    ("all_gather", "float", "none"),
    ("all_gather", "half", "none"),
)


def test_the_kernel_keeps_to_what_triton_3_2_compiles() -> None:
    """No arguments by ``*``, and no function as a compile-time argument."""
    source = ast.parse(Path(_kernel.__file__).read_text())
    kernels = [each for each in source.body if isinstance(each, ast.FunctionDef)]
    jitted = [each for each in kernels if each.decorator_list]
    assert len(jitted) > 10
    assert not [one for each in jitted for one in ast.walk(each) if isinstance(one, ast.Starred)]
    given = [value for kind in KINDS for value in options(kind).values()]
    assert not [value for value in given if isinstance(value, triton.JITFunction)]


SCOPES = {False: "sys", True: "gpu"}  # by whether all ranks are on one GPU


def shown(asked: Iterable[tuple[Kind, int]]) -> list[ParameterSet]:
    """What is compiled for H100 alone, and of its kinds a sum and a copy, unless all are asked for:
    each takes a second."""
    few = (KINDS[0], KINDS[-1])
    return [
        pytest.param(
            *one,
            id=f"{'-'.join(one[0])}-{one[1]}",
            marks=() if one[0] in few and one[1] == 90 else pytest.mark.long,
        )
        for one in asked
    ]


ARCHITECTURES = [90, *(pytest.param(one, marks=pytest.mark.slow) for one in (80, 100))]


def number(pattern: str, ptx: str) -> int:
    """Of instructions with such a name."""
    return len(re.findall(rf"^\s*(?:@\S+ )?{pattern}\s", ptx, re.MULTILINE))


@pytest.mark.parametrize(("kind", "architecture"), shown(product(KINDS, SPILLED)))
def test_data_moves_16_bytes_at_once_from_registers_that_suffice(
    kind: Kind, architecture: int, tmp_path: Path
) -> None:
    found = compiled(kind, architecture)
    given, ptx = options(kind), found.asm["ptx"]
    vectors = given["block"] // given["grain"] // THREADS  # a thread's in a tile
    ways = 1 if kind[2] == "none" else 4  # a copy's, the first two terms', and any later one's
    assert number(r"ld\.global\.cg\.v(4\.b32|2\.b64)", ptx) == ways * vectors
    assert (
        number(r"st\.global\.v(4\.b32|2\.b64)", ptx) >= min(ways, 2) * vectors
    )  # a copy's, and a sum's
    single = given["narrow"] // THREADS  # what is not on 16 bytes, and nothing else
    assert number(r"ld\.global\.cg\.b\d+", ptx) == ways * single
    registers, spilled = usage(found.asm["cubin"], tmp_path)
    assert registers * THREADS <= 65536  # of a multiprocessor: else no block is resident
    assert spilled <= SPILLED[architecture]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_thread_asks_for_all_of_its_tile_before_it_needs_any(
    architecture: int, tmp_path: Path
) -> None:
    """As many bytes of a multiprocessor are on their way at once as hide what memory takes."""
    sass = disassembled(compiled(KINDS[0], architecture).asm["cubin"], tmp_path, "-sass")
    tile = options(KINDS[0])["block"] * 4 // THREADS
    copy, added = (
        next(loop for loop in loops(sass) if sum(loop.loads) == terms * tile) for terms in (1, 2)
    )
    assert {*copy.loads, *copy.stores, *added.loads, *added.stores} == {16}
    assert copy.ahead == tile and added.ahead >= 2 * tile - LATER
    assert added.instructions < 16 * len(added.loads)


@pytest.mark.parametrize("virtual", SCOPES)
@pytest.mark.parametrize("architecture", [90, long(80), long(100)])
def test_what_is_published_is_released_and_what_is_awaited_acquired(
    architecture: int, virtual: bool
) -> None:
    """Where ranks are on several GPUs, at the system's scope, and no atomic leaves the GPU."""
    ptx = compiled(KINDS[0], architecture, virtual).asm["ptx"]
    scope = SCOPES[virtual]
    assert number(rf"st\.release\.{scope}\.global\.u64", ptx) == 1
    assert number(rf"ld\.acquire\.{scope}\.global\.u64", ptx) == 1
    assert len(re.findall(r"\.(?:release|acquire)\b", ptx)) == 2
    assert re.findall(r"\batom\S*", ptx) == ["atom.global.gpu.relaxed.exch.b32"]  # the claim
    before = re.findall(r"bar\.sync|[ls][dt]\.global\S*", ptx[: ptx.index("st.release.")])
    assert before[-1] == "bar.sync"  # between it and all data
    assert ".ftz" not in ptx  # no float is rounded otherwise than on CPUs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_patience_is_counted_by_the_devices_clock(architecture: int) -> None:
    """As looks take longer over a link than in one GPU."""
    ptx = compiled(KINDS[0], architecture).asm["ptx"]
    after = ptx[ptx.index("bar.red") :]
    assert re.findall(r"mov\.u64 \S+, (%globaltimer)", after) == ["%globaltimer"]
    assert "%globaltimer" not in ptx[: ptx.index("bar.red")]  # looks come first


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_who_waits_meets_one_barrier_and_looks_without_any(architecture: int) -> None:
    ptx = compiled(KINDS[0], architecture).asm["ptx"]
    looks = ptx[ptx.index("look:") : ptx.index("told:")]
    assert "ld.acquire" in looks and "bar." not in looks
    steps = re.findall(r"bar\.\w+|\bbra\b|ld\.acquire|vote\.sync", ptx)
    seen = steps.index("ld.acquire")  # and, once nobody is behind, on to what follows
    assert steps[seen : seen + 5] == ["ld.acquire", "vote.sync", "bra", "bar.red", "bra"]
    assert steps.count("bar.red") == 1


@pytest.mark.parametrize(("kind", "architecture"), shown((kind, 90) for kind in KINDS))
def test_a_step_waits_for_few_loads_one_after_the_other(kind: Kind, architecture: int) -> None:
    """Each instruction's head has come before: a MOVE waits for which addresses, and for these; a
    WAIT for its pairs, in the assembly, and a PUBLISH for whom to tell, and where."""
    found = compiled(kind, architecture).asm
    waits = {" = cg": 2, "bar.red": 0, "st.release": 1}  # a cache modifier, by any Triton's name
    assert waited_for(found["ttir"], [*waits]) == waits
    poll, push = (block(found["ptx"], name) for name in ("bar.red", "st.release"))
    assert [number(r"ld\.global\.u64", asm) for asm in (poll, push)] == [2, 2]
    assert push.rindex("ld.global") < push.index("bar.sync")  # while others finish


def block(ptx: str, name: str) -> str:
    """The inline assembly with an instruction of this name."""
    (found,) = (
        asm
        for asm in re.findall(r"begin inline asm(.*?)end inline", ptx, re.DOTALL)
        if name in asm and ".reg" in asm
    )
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES[:2])
def test_the_next_head_is_on_its_way_while_a_rank_waits(architecture: int, tmp_path: Path) -> None:
    """No instruction between the load and a WAIT's barrier needs it (assemblers would copy 64
    bits at once). For B200 the head is among what float sums spill, and is waited for."""
    sass = disassembled(compiled(KINDS[0], architecture).asm["cubin"], tmp_path, "-sass")
    code = re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?);", sass)
    barrier = next(at for at, line in enumerate(code) if "BAR.RED" in line)
    heads = [at for at, line in enumerate(code[:barrier]) if re.match(r"LDG\.E R\d+,", line)]
    assert len(heads) == 2  # the first one's, and the next one's
    (register,) = re.findall(r"LDG\.E (R\d+),", code[heads[1]])
    assert not any(re.search(rf"\b{register}\b", line) for line in code[heads[1] + 1 : barrier])
