"""Steps in TOML and CSV: what each key and column does, the way there and back, every mistake, and
that no file, however broken, ends in anything but a UsageError."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.features.training import models, walk
from collbench.features.training import operation_lines as lines
from collbench.features.training import step_files as files
from collbench.features.training.layout import Layout
from collbench.features.training.patterns import compressed, redistribution
from collbench.features.training.step import Op, Program, Step, refuse_step

TRAINING = """
version = 1
world = 8
name = "mine"
assumptions = ["made up"]
[groups]
tp = "order:tp2-dp4/tp"
dp = [[0, 2, 4, 6], [1, 3, 5, 7]]
halves = "0-3;4-7"
[holds]
parameters = "2*8K"
[[phase]]
name = "forward"
repeat = 3
ops = [
  { kind = "compute", flops = 1.8e12 },
  { kind = "all_reduce", group = "tp", count = "8192*4096", dtype = "bf16", wait = "call" },
]
[[phase]]
name = "backward"
ops = [
  { kind = "reduce_scatter", id = "grads", group = "dp", bytes = "1M", reduce = "avg" },
  { kind = "send", ranks = "0;4", group = "halves", peer = 1, bytes = 64, tag = 3 },
  { kind = "recv", ranks = "1;5", group = "halves", peer = 0, bytes = 64, tag = 3 },
  { kind = "compute", after = ["grads"], gap_us = 1.5 },
  { kind = "broadcast", count = 1, dtype = "int32" },
]
"""

ROWS = """#world 4
#group tp 0-1;2-3
# a comment, "of any kind
ranks,op,bytes,dtype,group,reduce,peer,gap_us,after,splits

0-3,all_reduce,4096,float,tp,max,,2.5,,
0;2,send,1K,half,tp,,1,,,
1-3:2,recv,1K,half,tp,,0,,,
0-3,all_to_allv,64,int32,tp,,,,0 1,1;2
"""


def read(folder: Path, text: str | bytes, ending: str = ".toml") -> Step:
    path = folder / f"mine{ending}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.read_step(path)


def ops(step: Step, rank: int) -> list[Op]:
    return [op for program in step.programs if rank in program.ranks for op in program.ops]


def test_toml_with_loops_groups_and_ranks(tmp_path: Path) -> None:
    step = read(tmp_path, TRAINING)
    walk.refuse_deadlock(step)
    assert (step.name, step.world, step.assumptions) == ("mine", 8, ("made up",))
    assert step.groups["tp"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert step.groups["dp"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert step.groups["halves"] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [program.ranks for program in step.programs] == [(0, 4), (1, 5), (2, 3, 6, 7)]
    assert {program.holds["parameters"] for program in step.programs} == {2 * 8192}
    first = ops(step, 0)
    assert [op.kind for op in first] == ["compute", "all_reduce"] * 3 + [
        "reduce_scatter",
        "send",
        "compute",
        "broadcast",
    ]
    reduce = first[1]
    assert (reduce.nbytes, reduce.dtype, reduce.op) == (8192 * 4096 * 2, "bfloat16", "sum")
    assert (reduce.phase, reduce.wait, first[0].lane) == ("forward", "call", "compute")
    assert (first[6].nbytes, first[6].op) == (1 << 20, "avg")
    assert (first[8].after, first[8].compute_ns) == ((6,), 1500)
    assert (first[9].nbytes, first[9].root) == (4, 0)
    assert ops(step, 5)[7].kind == "recv"


def test_csv(tmp_path: Path) -> None:
    step = read(tmp_path, ROWS, ".csv")
    walk.refuse_deadlock(step)
    assert (step.world, step.groups) == (4, {"tp": ((0, 1), (2, 3))})
    assert [program.ranks for program in step.programs] == [(0, 2), (1, 3)]
    gap, reduce, send, exchange = ops(step, 0)
    assert (gap.kind, gap.compute_ns, gap.lane) == ("compute", 2500, "compute")
    assert (reduce.kind, reduce.op, reduce.nbytes) == ("all_reduce", "max", 4096)
    assert (send.kind, send.peer, send.nbytes) == ("send", 1, 1024)
    assert (exchange.sends, exchange.after) == ((1, 2), (1, 2))  # rows 0 and 1, behind the gap


def test_columns_go_by_name_and_the_world_is_as_large_as_its_ranks(tmp_path: Path) -> None:
    text = "group,dtype,bytes,op,ranks\r\n,float,8,allreduce,0-6\r\n"
    step = read(tmp_path, text.encode("utf-8-sig"), ".csv")
    assert step.world == 7
    assert ops(step, 6) == [Op("all_reduce", nbytes=8, dtype="float", op="sum")]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (7, 7),
        ("7", 7),
        ("8192*4096", 8192 * 4096),
        ("2*3+4*5-6/2", 23),
        ("1M / 4", 1 << 18),
        ("9007199254740993", 9007199254740993),
        ("2k", 2048),
    ],
)
def test_arithmetic(said: int | str, meant: int) -> None:
    assert lines.parse_whole(said, "here") == meant


@pytest.mark.parametrize(
    "said",
    [
        "",
        "x",
        "1.5",
        "7/2",
        "1/0",
        "2-3",
        "2**3",
        "(1)",
        "1 2",
        "4611686018427387904",
        "-1",
        "1e3",
        "__import__('os')",
        "1" * 300,
        "*2",
        "2*",
        "\u0663",
    ],
)
def test_what_is_no_number(said: str) -> None:
    with pytest.raises(UsageError, match=r"^here: "):
        lines.parse_whole(said, "here")


@st.composite
def steps(draw: Any) -> Step:
    """Sound steps of any kind, some of them deadlocked, but for nobody to run."""
    world = draw(st.integers(1, 9))
    ranks = draw(st.permutations(range(world)))
    cut = draw(st.integers(0, world))
    groups = {"g": tuple(g for g in (tuple(ranks[:cut]), tuple(ranks[cut:])) if g)}
    free = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), max_size=9).filter(
        lambda word: word[:1] not in ("'", "=", "+", "-", "@", "\t", "\r") and ";" not in word
    )
    programs = []
    alike = draw(st.booleans())
    for members in [tuple(range(world))] if alike else [(rank,) for rank in range(world)]:
        found: list[Op] = []
        for number in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["all_reduce", "all_gather", "barrier", "compute", "wait"]))
            dtype = draw(st.sampled_from(sorted(DTYPES)))
            known = kind in COLLECTIVES
            found.append(
                Op(
                    kind=kind,
                    phase=draw(free),
                    group=draw(st.sampled_from(["", "g"])) if known else "",
                    nbytes=DTYPES[dtype].size * draw(st.integers(0, 1 << 40)) if known else 0,
                    dtype=dtype,
                    op="sum" if kind == "all_reduce" else "none",
                    after=tuple(draw(st.sets(st.integers(0, number - 1)))) if number else (),
                    lane=draw(free) or "compute",
                    wait=draw(st.sampled_from(["call", "later"])),
                    compute_ns=draw(st.integers(0, 10**15)) if kind == "compute" else 0,
                    flops=draw(st.floats(0, 1e30)),
                    touched=draw(st.integers(0, 1 << 61)),
                    source=draw(free),
                )
            )
        holds = draw(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1 << 61)))
        programs.append(Program(members, tuple(found), holds))
    name = draw(free) or "x"
    return Step(name, world, tuple(programs), groups, ("left open",))


def by_rank(step: Step) -> dict[int, tuple[tuple[Op, ...], dict[str, int]]]:
    return {rank: (p.ops, p.holds) for p in step.programs for rank in p.ranks}


def same(ours: Step, theirs: Step) -> bool:
    parts = [(s.name, s.world, s.groups, s.assumptions, by_rank(s)) for s in (ours, theirs)]
    return parts[0] == parts[1]


@settings(max_examples=60, deadline=None)
@given(steps())
def test_any_step_comes_back_from_csv(tmp_path_factory: pytest.TempPathFactory, step: Step) -> None:
    refuse_step(step)
    again = read(tmp_path_factory.getbasetemp(), files.write_step(step), ".csv")
    assert same(again, step)


def test_patterns_come_back_from_csv(tmp_path: Path) -> None:
    gpt2 = models.find_model("gpt2-124m")
    for step in (
        compressed.powersgd(gpt2, Layout(dp=8), compressed.PowerSGD(rank=4)),
        compressed.dalle(models.find_model("dalle-12b").cut(3), Layout(dp=64), compressed.DallE()),
        redistribution.m2n(gpt2, Layout(dp=4), redistribution.M2N("None.None->None.None")),
        read(tmp_path, TRAINING),
    ):
        assert same(read(tmp_path, files.write_step(step), ".csv"), step)


def test_ranks_are_written_short() -> None:
    step = compressed.dalle(
        models.find_model("dalle-12b").cut(1), Layout(dp=1024), compressed.DallE()
    )
    text = files.write_step(step)
    assert "#group machine 0-1016:8;1-1017:8;" in text
    assert "\n0-1023,all_gather," in text


def test_what_could_steer_a_terminal_or_a_spreadsheet_is_not_written() -> None:
    op = Op("barrier", phase="=1+1", source="a\x1b[31m\nb")
    text = files.write_step(Step("x\ny", 1, (Program((0,), (op,)),), {}, ("c\nd",)))
    assert "'=1+1" in text and "a [31m b" in text
    assert text.splitlines()[:3] == ["#name x y", "#world 1", "#assumption c d"]


PHASE = 'world = 2\n[[phase]]\nname = "p"\nops = ['


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("world = 2", "missing required field `phase`", "the smallest"),
        ("[[phase]]\nname='p'\nops=[]", "missing required field `world`", ""),
        ("world = 0\nphase = []", "mine.toml, world: expected `int` >= 1", ""),
        ("world = 2\nphase = 3", "mine.toml, phase: expected `array`", ""),
        ("world = 2\nwrold = 2\nphase = []", "unknown field `wrold`", "did you mean world?"),
        ("version = 2\nworld = 2\nphase = []", "version: invalid enum value 2", ""),
        ("world = 2 2", "Expected newline", ""),
        (PHASE + '{ kind = "all_redcue" }]', "[[phase]] 1, op 1, kind: unknown", "all_reduce?"),
        (PHASE + '{ kind = "barrier" }, { kind = 1 }]', "[[phase]] 1, op 2, kind: expected", ""),
        (PHASE + "{ group = 'g' }]", "[[phase]] 1, op 1: object missing required field `kind`", ""),
        (PHASE + '{ kind = "barrier", grp = "" }]', "unknown field `grp`", ""),
        (PHASE + '{ kind = "barrier", dtype = "fp33" }]', "1, dtype: unknown 'fp33'", "fp32?"),
        (PHASE + '{ kind = "reduce", reduce = "sun" }]', "op 1, reduce: unknown 'sun'", "sum?"),
        (PHASE + '{ kind = "reduce", reduce = "none" }]', "needs a reduction", "name one of sum"),
        (PHASE + '{ kind = "all_reduce", count = "2**9" }]', "op 1, count: '2**9' is no", "8192*"),
        (PHASE + '{ kind = "all_reduce", count = 1, bytes = 2 }]', "op 1: count and bytes", ""),
        (PHASE + '{ kind = "all_reduce", bytes = 3 }]', "op 1: rank 0, op 0 (all_reduce): 3 B", ""),
        (PHASE + '{ kind = "all_reduce", group = "g" }]', "there is no group 'g'", ""),
        (PHASE + '{ kind = "send", peer = 0 }]', "rank 0, op 0 (send): it is with itself", ""),
        (PHASE + '{ kind = "barrier", ranks = "0-2" }]', "1, ranks: there is no rank 2 of 2", ""),
        (
            PHASE + '{ kind = "barrier", ranks = "1-0" }]',
            "op 1, ranks: '1-0' is not a set",
            "0-3;8",
        ),
        (PHASE + '{ kind = "barrier", ranks = "0;0" }]', "'0;0' has a rank twice", ""),
        (PHASE + '{ kind = "barrier", after = ["x"] }]', "1, after: no operation before", "an id"),
        (PHASE + '{ kind = "barrier", id = "7" }]', "op 1, id: '7' is a number", ""),
        (
            PHASE + '{ kind = "barrier", lane = "\\u001b" }]',
            "op 1, lane: it has characters that cannot be printed",
            "",
        ),
        (PHASE + '{ kind = "compute", flops = nan }]', "op 1, flops: expected `float` >= 0", ""),
        (PHASE + '{ kind = "compute", flops = -1.0 }]', "op 1, flops: expected `float` >= 0", ""),
        (PHASE + '{ kind = "compute", wait = "lane" }]', "wait: invalid enum value 'lane'", ""),
        (PHASE + "]\nrepeat = 0", "[[phase]] 1, repeat: expected `int` >= 1", ""),
        (PHASE + '{ kind = "mark" }, { kind = "mark" }]\nrepeat = 1000000', "more than 1,048", ""),
        ("world = 4\ngroups.g = 'order:tp3/tp'\nphase = []", "g: 'order:tp3/tp' is no", ""),
        ("world = 4\ngroups.g = 'order:tp4/tp-tp'\nphase = []", "is not a grid of 4", "order:"),
        ("world = 4\ngroups.g = '0-9'\nphase = []", "groups 'g': there is no rank 9 of 4", ""),
        ("world = 4\ngroups.g = [[0], [0]]\nphase = []", "groups 'g'", ""),
        ("world = 4\ngroups.g = 'tp'\nphase = []", "[groups], g: 'tp' is not a set of ranks", ""),
        ("world = 4\nholds.x = 'y'\nphase = []", "[holds], x: 'y' is not a whole number", ""),
    ],
)
def test_mistakes_in_toml(tmp_path: Path, text: str, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        read(tmp_path, text)
    assert e.value.message.startswith(str(tmp_path / "mine.toml"))
    assert told in e.value.message
    assert hint in e.value.hint


HEAD = "ranks,op,bytes,dtype,group"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("", "mine.csv: it has no header", HEAD),
        ("# only\n", "it has no header", ""),
        ("ranks,op,bytes,dtype", "line 1: the header lacks group", ""),
        (f"{HEAD},reduec", "line 1: unknown column 'reduec'", "did you mean reduce?"),
        (f"{HEAD},op", "line 1: twice the column 'op'", ""),
        (f"{HEAD}\n0,barrier,0,float", "line 2: 4 cells for 5 columns", ""),
        (
            f"{HEAD}\n\n0,all_redcue,0,float,",
            "line 3, kind: unknown",
            "did you mean all_reduce?",
        ),
        (f"{HEAD}\n,barrier,0,float,", "line 2: the ranks or the op are missing", ""),
        (f"{HEAD}\nx,barrier,0,float,", "'x' is not a set of ranks", "0-3;8"),
        (f"{HEAD}\n0-3:0,barrier,0,float,", "'0-3:0' is not a set of ranks", ""),
        (f"{HEAD}\n0-9999999,barrier,0,float,", "is not a set of ranks", ""),
        (f"{HEAD}\n0,barrier,0x9,float,", "line 2, bytes: '0x9' is not a whole number", ""),
        (
            f"{HEAD}\n0,barrier,0,flaot,",
            "line 2, dtype: unknown 'flaot'",
            "did you mean float?",
        ),
        (f"{HEAD},root\n0,reduce,0,float,,one", "line 2, root: expected `int`, got `str`", ""),
        (f"{HEAD},root\n0,reduce,0,float,,1", "line 2: rank 0, op 0 (reduce): root 1 is none", ""),
        (f"{HEAD},after\n0,barrier,0,float,,0", "line 2, after: no operation before is '0'", ""),
        (
            f"{HEAD},splits\n0,all_to_allv,0,float,,1 -2",
            "2, sends[1]: expected `int` >= 0",
            "",
        ),
        (f"{HEAD},splits\n0,all_to_allv,0,float,,1 2", "sends has 2 numbers for 1 members", ""),
        (f"{HEAD},gap_us\n0,barrier,0,float,,-1", "line 2, gap_us: expected `float` >= 0", ""),
        (f"{HEAD},gap_us\n0,barrier,0,float,,inf", "line 2, gap_us: expected `float` <=", ""),
        (
            f"{HEAD},phase\n0,barrier,0,float,,\x1b[31mred",
            "line 2, phase: it has characters that cannot be printed",
            "letters",
        ),
        (f'{HEAD}\n0,"barrier,0,float,', "line 2: unexpected end of data", "quotes"),
        (f"#group tp\n{HEAD}", "line 1, #group: 'tp' is not a set of ranks", ""),
        (f"#world x\n{HEAD}", "line 1, #world: 'x' is not a whole number", ""),
        (f"#world 9M\n{HEAD}", "#world 9437184", "take at most 1,048,576"),
        (f"#world 2\n{HEAD}\n2,barrier,0,float,", "line 3, ranks: there is no rank 2 of 2", ""),
        (f"#holds 0 x y\n{HEAD}", "line 1, #holds: 'y' is not a whole number", ""),
        (f"#world 2\n#holds 0-3 x 1\n{HEAD}", "#holds, ranks: there is no rank 3 of 2", ""),
    ],
)
def test_mistakes_in_csv(tmp_path: Path, text: str, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        read(tmp_path, text, ".csv")
    assert e.value.message.startswith(str(tmp_path / "mine.csv"))
    assert told in e.value.message
    assert hint in e.value.hint


@pytest.mark.parametrize("ending", [".toml", ".csv"])
def test_files_that_are_none(tmp_path: Path, ending: str) -> None:
    for content, told in (
        (b"\xff\xfe", "codec can't decode"),
        (b"#" * (files.MOST_BYTES[ending] + 1), "it is larger than"),
    ):
        with pytest.raises(UsageError, match=told):
            read(tmp_path, content, ending)
    with pytest.raises(UsageError, match="No such file"):
        files.read_step(tmp_path / f"none{ending}")
    with pytest.raises(UsageError, match=r"neither in \.toml nor in \.csv"):
        files.read_step(tmp_path / "x.json")


def test_ranks_are_not_named_without_end(tmp_path: Path) -> None:
    rows = [f"0-{1048575 - n},barrier,0,float," for n in range(5)]
    with pytest.raises(UsageError, match="too many ranks are listed"):
        read(tmp_path, "\n".join([HEAD, *rows]), ".csv")


def test_operations_are_counted_over_all_programs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(lines, "MOST_OPS", 20)
    rows = [f"{n},mark,0,float," for n in range(4)] + ["0-3,mark,0,float,"] * 4
    assert len(read(tmp_path, "\n".join([HEAD, *rows]), ".csv").programs) == 1
    with pytest.raises(UsageError, match="line 10: more than 20 operations"):
        read(tmp_path, "\n".join([HEAD, *rows, rows[-1]]), ".csv")


MUTANTS = [
    b"\x00",
    b'"',
    b"'",
    b",",
    b";",
    b"-",
    b"#",
    b"\n",
    b"=",
    b"[",
    b"]",
    b"{",
    b"}",
    b"0",
    b"9999999999999999999999",
    b"nan",
    b"-1",
    b"1e999",
    b"\xff",
    "\u0663\u2028".encode(),
    b"true",
    b"#group ",
    b"#holds ",
    b"#world 3",
    b"order:",
    b"0-1048575",
    b'"""',
    b"\r",
]


@pytest.mark.parametrize(("ending", "text"), [(".toml", TRAINING), (".csv", ROWS)])
def test_no_mutation_raises_anything_but_a_usage_error(
    tmp_path: Path, ending: str, text: str
) -> None:
    rng = random.Random(7)
    refused = 0
    for _ in range(600):
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 3)):
            at, length = rng.randrange(len(data)), rng.choice([0, 0, 1, 3, 40])
            piece = bytes(data[at : at + length])
            data[at : at + length] = rng.choice([rng.choice(MUTANTS), piece * 2, b""])
        try:
            refuse_step(read(tmp_path, bytes(data), ending))
        except UsageError as e:
            refused += 1
            assert e.message.startswith(str(tmp_path)), e.message
    assert 100 < refused < 600
