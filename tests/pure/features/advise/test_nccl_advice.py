"""From runs on GPUs to the files of NCCL's tuner and of engines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from factories import case, hosted, make_file, record, world
from tuner_plugin import Said
from tuner_twin import Twin

from collbench.features.advise import evidence
from collbench.features.advise.evidence import Terms, gather_evidence
from collbench.features.advise.formats import choose
from collbench.features.advise.formats.engines import FORMATS as ENGINES
from collbench.features.advise.formats.nccl import FORMATS, FUNCTIONS
from collbench.features.advise.judgement import judge_evidence
from collbench.features.advise.libraries.nccl import LIBRARY
from collbench.features.advise.libraries.other import LIBRARY as OTHER
from collbench.features.advise.types import Advised, Series, Variables
from collbench.records.types import Choice, RunFile
from collbench.suite.policy import Policy

EXAMPLE = FORMATS[0]
SIZES = (1 << 10, 64 << 10, 1 << 20, 64 << 20)
TREE = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"))
LL = Choice(algorithm="Ring", protocol="LL", channels=4)
SIMPLE = Choice(algorithm="Ring", protocol="Simple", channels=24)
HEARD = dict(zip(SIZES, (LL, LL, SIMPLE, SIMPLE), strict=True))
EIGHT = Series("all_reduce", 8, 1)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL, and any other one."""
    known = (LIBRARY, OTHER)
    monkeypatch.setattr(
        evidence, "find_library", lambda world: next(lib for lib in known if lib.is_of(world))
    )


def measured(
    collective: str,
    factors: Mapping[tuple[str, Variables], Mapping[int, float]],
    dtype: str = "float",
) -> RunFile:
    """Ten fresh launches of each backend and setting, by size so many times the default's time."""
    worlds, records = [], []
    device = hosted(8, 8, "cuda")
    for cycle in range(10):
        for (backend, env), by_size in factors.items():
            index = len(worlds)
            library = "NCCL 2.30.7 (torch 2.13)" if backend == "nccl" else "torch 2.13"
            given = {"backend": backend, "n": 8, "env": env, "library": library, "ranks": device}
            worlds.append(world(index, **given))
            for nbytes, factor in by_size.items():
                fields = {"backend": backend, "env": env, "cycle": cycle, "dtype": dtype}
                what = case(nbytes, collective, n=8, **fields)
                median = 1e6 * factor * (1 + 0.004 * ((cycle * 7 + index) % 5))
                ran = HEARD[nbytes] if not env and backend == "nccl" else None
                records.append(record(what, median, world=index, chose=ran))
    return make_file(records, worlds, name=f"run-{collective}", policy=Policy(fresh=True))


def judge(*files: RunFile) -> Advised:
    return judge_evidence(gather_evidence(files, Terms()))


@pytest.fixture(scope="module")
def own() -> list[RunFile]:
    """What NCCL chooses for all collectives but all_reduce."""
    even = dict.fromkeys(SIZES, 1.0)
    names = [name for name in FUNCTIONS if name != "all_reduce"]
    return [measured(name, {("nccl", ()): even}) for name in names]


def test_a_faster_tree_is_in_the_plug_ins_file_and_all_else_is_as_nccl_chose(
    own: list[RunFile],
) -> None:
    tree = dict(zip(SIZES, (1.3, 0.7, 0.7, 1.3), strict=True))
    runs = measured("all_reduce", {("nccl", ()): dict.fromkeys(SIZES, 1.0), ("nccl", TREE): tree})
    given = judge(runs, *own)
    assert EXAMPLE.refuse(given) == ""
    twin = Twin(EXAMPLE.write(given), 8, 1)
    assert [twin.ask("all_reduce", nbytes) for nbytes in SIZES] == [
        Said("Ring", "LL", 0),
        Said("Tree", "LL128", 0),
        Said("Tree", "LL128", 0),
        Said("Ring", "Simple", 0),
    ]
    cannot = ("Tree", "LL128")
    assert twin.ask("all_reduce", SIZES[1], cannot) == Said("Ring", "LL", 0)
    assert twin.ask("all_reduce", SIZES[2], cannot) == Said("Ring", "Simple", 0)
    for name in FUNCTIONS:
        if name != "all_reduce":
            assert twin.ask(name, SIZES[0]) == Said("Ring", "LL", 0)
            assert twin.ask(name, SIZES[3]) == Said("Ring", "Simple", 0)
    assert "chooses for broadcast, reduce" in EXAMPLE.refuse(judge(runs))


def test_a_faster_kernel_is_in_the_engines_tables() -> None:
    faster = dict(zip(SIZES, (0.7, 0.7, 0.7, 1.3), strict=True))
    even = dict.fromkeys(SIZES, 1.0)
    sides = {("nccl", ()): even, ("torch_multimem", ()): faster}
    given = judge(measured("all_reduce", sides, "bfloat16"))
    assert given.backend == "nccl"
    plain = msgspec.structs.replace(judge(measured("all_reduce", sides)), device="H200")
    assert "for bfloat16 only, and these runs are of float" in ENGINES[0].refuse(plain)
    for engine in ENGINES[:2]:
        assert "is none that they have" in engine.refuse(given)
        known = Advised(
            **{**{f: getattr(given, f) for f in given.__struct_fields__}, "device": "H200"}
        )
        assert engine.refuse(known) == ""
        rules = engine.read(engine.write(known))
        assert [choose(rules, EIGHT, nbytes) for nbytes in SIZES] == [*["torch_multimem"] * 3, ""]
