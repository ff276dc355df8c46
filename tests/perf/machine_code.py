"""What the compiler makes of symm's kernel, today and before it was mended:
``python tests/perf/machine_code.py --output reports/machine_code.md``.

Needs Triton and the repository's history, and no GPU. Older kernels come from their commits.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

ARCHITECTURES = {80: "A100", 90: "H100, H200", 100: "B200"}
KINDS = (
    ("all_reduce", "float", "sum"),
    ("all_reduce", "bfloat16", "sum"),
    ("all_gather", "float", "none"),
    ("all_gather", "half", "none"),
)
TREES = {  # from the oldest; "" is what lies here
    "before 16 bytes at once": "614ca3e~1",
    "before progress is pushed": "1611680~1",
    "now": "",
}
HEADS = (  # of columns, of which all but these in words are right-aligned
    (
        *("kernel", "GPU", "what", "loads of 16 B", "narrower", "stores of 16 B", "narrower"),
        *("instructions a 16-byte load", "in flight: thread", "multiprocessor"),
        *("registers", "spilled"),
    ),
    (
        *("kernel", "GPU", "before a first look", "before data", "before a release"),
        *("where a WAIT looks", "barriers in its loop"),
    ),
)
WORDS = ("kernel", "GPU", "what", "where a WAIT looks")
PAGE = """# What symm's kernel is compiled to

{about}. Made by `python tests/perf/machine_code.py --output reports/machine_code.md`, on a machine
without a GPU: Triton compiles for those that are not there. Nothing here was timed. "Before 16
bytes at once" is the kernel of `{first}`, "before progress is pushed" that of `{second}`.

## Data

A thread's turn of the loop that copies a tile (512 threads, one block a multiprocessor), and of the
one that adds up two terms, where everything is on 16 bytes. In flight are the bytes a thread has
asked for before any instruction needs the first of them, times 512 for a multiprocessor: by
Little's law, HBM of 3.35 TB/s (H100) at some 0.6 us takes about 15 KiB of each of 132
multiprocessors, and NVLink less. Loads and stores are of a thread and a turn; instructions are all
of a turn, over the 16-byte pieces it loads.

{data}

## Steps

Loads that must have come one after the other before a WAIT can look for the first time, before the
first data can be loaded, and before progress can be released, counted from an instruction's
beginning: the most of all kinds of data. They are counted in Triton's intermediate code, where an
operation written in assembly is one; loads inside it are added by hand: one before a first look
where a look reads in assembly what to wait for, and a release counts two at least where progress is
pushed (whom to tell, and where). Each takes some 0.2 us from the second-level cache, or
more where it misses. To release, ranks now read whom to tell, and where, which the others used to
read before they looked. Of the barriers in a loop of looks some are met at every 1024th look only.

{steps}
"""


class Code(msgspec.Struct, frozen=True):
    """Of one kernel: loops that move data, by what each does, and loads waited for."""

    kind: str
    architecture: int
    registers: int
    spilled: int
    loops: dict[str, tuple[int, list[int], list[int], int]]
    before: dict[str, int]
    pushed: bool
    barriers: int


def inside(architectures: Sequence[int]) -> list[Code]:
    """All kernels of the collbench that can be imported here."""
    import compiled

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for architecture in architectures:
                asm = compiled.compiled(kind, architecture).asm
                sass = compiled.disassembled(asm["cubin"], Path(folder), "-sass")
                registers, spilled = compiled.usage(asm["cubin"], Path(folder))
                found_loops = compiled.loops(sass)
                given = compiled.options(kind)
                tile = given["block"] // given["grain"] * 16 // compiled.THREADS
                of_bytes = {sum(loop.loads): loop for loop in reversed(found_loops) if loop.stores}
                named = {"copy": of_bytes[tile], "two terms": of_bytes.get(2 * tile)}
                found.append(
                    Code(
                        "-".join(kind[1:]),
                        architecture,
                        registers,
                        spilled,
                        {
                            what: (loop.instructions, [*loop.loads], [*loop.stores], loop.ahead)
                            for what, loop in named.items()
                            if loop and (what == "copy" or kind[2] != "none")
                        },
                        steps(asm["ttir"]),
                        "st.release" in asm["ptx"],
                        compiled.barriers_of_looks(sass),
                    )
                )
    return found


def steps(ttir: str) -> dict[str, int]:
    """Loads before each kind of work, with those of the assembly itself where it has them: a look
    reads its pairs first, and a push whom to tell and, in turn, where, beside how far this is."""
    import compiled

    found = compiled.waited_for(ttir, [" = cg", "ld.acquire", "release"])
    pushes, looks = "st.release" in ttir, "ld.global.u64 wanted" in ttir
    return {
        "look": found["ld.acquire"] + looks,
        "data": found[" = cg"],
        "release": max(found["release"], 2 * pushes),
    }


def of(revision: str, architectures: Sequence[int]) -> list[Code]:
    """What a process of its own finds in this revision."""
    with tempfile.TemporaryDirectory() as folder:
        if revision:
            packed = subprocess.run(
                ["git", "archive", revision, "collbench"], cwd=ROOT, capture_output=True, check=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as files:
                files.extractall(folder, filter="data")
        path = folder if revision else str(ROOT)
        done = subprocess.run(
            [sys.executable, __file__, "--inside", "--architectures", *map(str, architectures)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            check=True,
        )
    return msgspec.json.decode(done.stdout, type=list[Code])


def data(name: str, found: Sequence[Code]) -> Iterator[str]:
    for code in found:
        for what, (instructions, loads, stores, ahead) in code.loops.items():
            wide = [one for one in loads if one == 16], [one for one in stores if one == 16]
            numbers = (
                len(wide[0]),
                len(loads) - len(wide[0]),
                len(wide[1]),
                len(stores) - len(wide[1]),
                f"{instructions / (sum(loads) / 16):.0f}",
                f"{ahead} B",
                f"{ahead * 512 >> 10} KiB",
                code.registers,
                f"{code.spilled} B",
            )
            told = f"{what}, {code.kind}"
            yield row(name, ARCHITECTURES[code.architecture], told, *numbers)


def ordered(name: str, found: Sequence[Code]) -> Iterator[str]:
    for architecture in dict.fromkeys(code.architecture for code in found):
        mine = [code for code in found if code.architecture == architecture]
        most = [max(code.before[what] for code in mine) for what in ("look", "data", "release")]
        where = "its own memory" if mine[0].pushed else "its peers' memory"
        yield row(
            name, ARCHITECTURES[architecture], *most, where, max(code.barriers for code in mine)
        )


def table(heads: Sequence[str], lines: Iterator[str]) -> str:
    rule = row(*("---" if head in WORDS else "--:" for head in heads))
    return "\n".join([row(*heads), rule, *lines])


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--architectures", type=int, nargs="+", choices=ARCHITECTURES, default=[*ARCHITECTURES]
    )
    chosen = parser.parse_args()
    if chosen.inside:
        sys.stdout.buffer.write(msgspec.json.encode(inside(chosen.architectures)))
        return
    found = {name: of(revision, chosen.architectures) for name, revision in TREES.items()}
    about = f"Triton {metadata.version('triton')}, {datetime.now(UTC):%Y-%m-%d}"
    first, second, _ = TREES.values()
    text = PAGE.format(
        about=about,
        first=first,
        second=second,
        data=table(HEADS[0], (line for each in found.items() for line in data(*each))),
        steps=table(HEADS[1], (line for each in found.items() for line in ordered(*each))),
    )
    print(text)
    if chosen.output:
        chosen.output.write_text(text)


if __name__ == "__main__":
    main()
