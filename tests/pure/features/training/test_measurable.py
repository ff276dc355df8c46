"""Training steps in suites: what a file says of them, and the cases that come of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from collbench.cli import options
from collbench.core.errors import UsageError
from collbench.features.compare.ab import matching
from collbench.features.traces.formats import own
from collbench.features.traces.types import Call, RankTrace
from collbench.machine import cpus
from collbench.run.launch.interpreter import Variant
from collbench.run.order import Order, prepare_order
from collbench.suite import toml

STEPS = """
[axes]
ranks = [2]
backends = ["gloo", "mpi"]
[[workload]]
name = "ddp:gpt2-124m"
scale = "1/64"
compute = "none"
[[workload]]
name = "own.csv"
"""
OWN = "ranks,op,bytes,dtype,group\n0-1,all_reduce,4096,float,\n"


def suite(tmp_path: Path, text: str = STEPS) -> Path:
    (tmp_path / "own.csv").write_text(OWN)
    path = tmp_path / "steps.toml"
    path.write_text(text)
    return path


def test_steps_are_cases_of_every_backend(tmp_path: Path) -> None:
    read = toml.load_suite(str(suite(tmp_path)))
    cases, skips = read.expand()
    assert not skips
    assert [case.collective for case in cases[:3]] == ["step", "computation", "communication"]
    names = {case.subject.partition(" #")[0] for case in cases}
    assert names == {"ddp:gpt2-124m scale=1/64 compute=none", "own"}
    assert {case.backend for case in cases} == {"gloo", "mpi"}
    assert len(cases) == 2 * 2 * 3


def test_a_hyphen_in_the_name_of_an_algorithm_makes_no_second_case(tmp_path: Path) -> None:
    read = toml.load_suite(str(suite(tmp_path)))
    both = ("recursive-doubling", "recursive_doubling")
    axes = msgspec.structs.replace(read.axes, algorithms=both)
    cases, _ = msgspec.structs.replace(read, axes=axes).expand()
    assert ({case.algorithm for case in cases}, len(cases)) == ({both[1]}, 2 * 2 * 3)


def test_what_a_run_keeps_of_them_is_what_was_run(tmp_path: Path) -> None:
    settled = toml.load_suite(str(suite(tmp_path))).resolve()
    assert not settled.requests
    assert settled.resolve() == settled
    assert {step.title for step in settled.subjects} == {
        case.subject for case in settled.expand()[0]
    }


def test_a_step_has_its_own_number_of_ranks_where_the_user_gave_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it does not fit the ranks that there are."""
    monkeypatch.setattr(cpus, "core_count", lambda: 2)
    step = '[[workload]]\nname = "megatron:llama3-70b"\nlayers = 4\nlayout = "tp=4,pp=1,dp=2"\n'
    read = toml.load_suite(str(suite(tmp_path, f'{step}[axes]\nbackends = "gloo"\n')))
    changed = options.change_suite(read)
    assert ({case.n for case in changed.expand()[0]}, changed.largest_world) == ({8}, 8)
    with pytest.raises(UsageError, match="no multiple of tp=4"):
        options.change_suite(read, ngpus="2")


@pytest.mark.parametrize("ngpus", ["", "2,4"])
def test_ranks_of_a_suite_are_not_those_of_a_file_or_a_slice(tmp_path: Path, ngpus: str) -> None:
    """A preset runs on each of them."""
    names = ['"own.csv"', '"megatron:llama3-70b"\nslice = "tp"\nlayers = 4', '"toy:ddp"']
    tables = [f"[[workload]]\nname = {name}\n" for name in names]
    axes = f"[axes]\nranks = {'[2]' if ngpus else '[2, 4]'}\nbackends = 'gloo'\n"
    read = toml.load_suite(str(suite(tmp_path, axes + "".join(tables))))
    subjects = options.change_suite(read, ngpus=ngpus).subjects
    worlds = sorted((step.name.partition(" ")[0], step.world) for step in subjects)
    assert worlds == [("ddp:toy", 2), ("ddp:toy", 4), ("megatron:llama3-70b", 8), ("own", 2)]


def test_ranks_of_the_command_line_are_those_that_requests_are_asked_with(tmp_path: Path) -> None:
    (path := tmp_path / "loss.toml").write_text("[[lifecycle_loss]]\nrank = 3\n")
    assert options.change_suite(toml.load_suite(str(path)), ngpus="4").subjects[0].world == 4


def test_a_file_may_hold_steps_alone_or_beside_collectives(tmp_path: Path) -> None:
    alone = suite(tmp_path, '[[workload]]\nname = "toy:ddp"\n')
    assert {case.collective for case in toml.load_suite(str(alone)).expand()[0]} == {
        "step",
        "computation",
        "communication",
    }
    text = STEPS.replace("[axes]", '[axes]\ncollectives = ["all_reduce"]\nsizes = ["1K"]')
    beside = toml.load_suite(str(suite(tmp_path, text))).expand()[0]
    assert {case.collective for case in beside} > {"all_reduce", "step"}


@pytest.mark.parametrize(
    ("change", "words", "hint"),
    [
        (('"1/64"', '"2"'), "[[workload]] 1: --scale 2", "1/16"),
        (("scale", "scales"), "unknown field `scales`", "did you mean scale?"),
        (('"ddp:gpt2-124m"', '"ddp:gpt2"'), "[[workload]] 1", "gpt2-124m"),
        (('"own.csv"', '"none.csv"'), "none.csv", ""),
        (('"none"', '"sleep"'), "nothing says how long", "--tflops"),
        (('"none"', '"gemm"\ntflops = 100'), "tflops=100 has no effect", "compute=sleep"),
    ],
)
def test_what_is_wrong_is_told_with_its_table(
    tmp_path: Path, change: tuple[str, str], words: str, hint: str
) -> None:
    path = suite(tmp_path, STEPS.replace(*change, 1))
    with pytest.raises(UsageError) as error:
        toml.load_suite(str(path)).expand()
    assert words in error.value.message
    assert hint in error.value.hint


def test_an_experiment_has_a_row_for_each_step(tmp_path: Path) -> None:
    read = toml.load_suite(str(suite(tmp_path, STEPS.replace(', "mpi"', ""))))
    sides = {"base": Variant(text=""), "head": Variant(text="X=1", env=(("X", "1"),))}
    rows, _ = matching.match_rows(read, sides)  # type: ignore[arg-type]
    assert len(rows) == 2
    for row in rows:
        assert all(job.subject and job.case.is_leader for job in row.jobs.values())


def test_a_step_is_prepared_once_for_all_its_parts(tmp_path: Path) -> None:
    read = toml.load_suite(str(suite(tmp_path, STEPS.replace(', "mpi"', ""))))
    prepared = prepare_order(Order(suite=read, command=()))
    assert len(prepared.jobs) == 2
    assert len(prepared.cases) == 6
    assert not prepared.skips


TRACED = """
[axes]
backends = "gloo"
[[workload]]
trace = "job"
gaps = "none"
scale = "1/2"
"""


def traced(tmp_path: Path, text: str = TRACED) -> Path:
    (tmp_path / "job").mkdir()
    for rank in range(2):
        writer = own.Writer(tmp_path / "job" / own.file_name(rank), RankTrace(rank, 2))
        writer.write([Call("all_reduce", nbytes=256, dtype="float", op="sum")] * 2)
        writer.close()
    return suite(tmp_path, text)


def test_a_trace_is_a_step_of_a_suite(tmp_path: Path) -> None:
    read = toml.load_suite(str(traced(tmp_path)))
    (step,) = read.resolve().subjects
    assert (step.name, step.world) == ("replay:job gaps=none scale=1/2", 2)
    assert options.change_suite(read, ngpus="4").subjects == (step,)
    assert [op.nbytes for op in step.programs[0].ops] == [128]
    rows, _ = matching.match_rows(read, {side: Variant(text=side) for side in ("base", "head")})  # type: ignore[arg-type]
    assert [job.subject for job in rows[0].jobs.values()] == [step, step]


@pytest.mark.parametrize(
    ("change", "words", "hint"),
    [
        (
            ("gaps", 'name = "toy:ddp"\ngaps'),
            "name: it cannot be set for a trace",
            "leave name out",
        ),
        (('"none"', '"most"'), "--gaps most", "x0.5"),
        (('"none"', "1"), "[[workload]] 1", ""),
        (("gaps", "gap"), "unknown field `gap`", ""),
        (('"job"', '"no-job"'), "no-job", ""),
        (('"job"', "3"), "trace", ""),
        (('trace = "job"', 'name = "toy:ddp"'), "unknown field `gaps`", ""),
        (('trace = "job"', "step = {}"), "step: there is no such key", "trace"),
    ],
)
def test_what_is_wrong_with_a_trace_is_told_with_its_table(
    tmp_path: Path, change: tuple[str, str], words: str, hint: str
) -> None:
    path = traced(tmp_path, TRACED.replace(*change, 1))
    with pytest.raises(UsageError) as error:
        toml.load_suite(str(path)).expand()
    assert words in error.value.message
    assert hint in error.value.hint
