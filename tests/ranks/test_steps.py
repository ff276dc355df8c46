"""Steps of training on real ranks: every operation's data is right, what is not is named, and the
three parts are measured in the same rounds."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from paths import before
from played import play_steps

from collbench.core.errors import Exit, RunBroken
from collbench.features.training import presets, reshape
from collbench.features.training import step_files as files
from collbench.features.training.overlap import divide_phases, find_overlaps
from collbench.features.training.step import Grid, Op, Program, Step
from collbench.records import run_file
from collbench.records.types import Record
from collbench.run.launch.local import Launcher

PLUGINS = Path(__file__).parent / "plugins"
Play = Callable[..., list[Record]]
CALL = {"nbytes": 4096, "dtype": "float", "op": "sum"}


def small(name: str, layout: str, options: str = "", layers: int = 2) -> Step:
    made = presets.find_step(name, layout, options, None, layers)
    made = reshape.scale_step(made, Fraction(1, 4096))
    return reshape.replace_averages(reshape.set_computation(made, "none", 0), "gloo")


def buckets(count: int = 4, **more: object) -> Step:
    """All-reduces that are waited for at the end, on two ranks."""
    ops = [Op(kind="all_reduce", source=f"bucket {k}", **{**CALL, **more}) for k in range(count)]  # type: ignore[arg-type]
    return Step("buckets", 2, (Program((0, 1), (*ops, Op(kind="wait"))),), {"dp": ((0, 1),)})


STEPS = {
    "ddp": lambda: small("ddp:gpt2-124m", "dp=2"),
    "fsdp2": lambda: small("fsdp2:llama3-8b", "dp=2"),
    "hsdp": lambda: small("fsdp2:llama3-8b", "dp=4", "replicas=2"),
    "zero3": lambda: small("zero3:llama3-8b", "dp=2"),
    "powersgd": lambda: small("powersgd:gpt2-124m", "dp=2", "rank=2"),
    "int8": lambda: small("int8:gpt2-124m", "dp=2"),
    "encoded": lambda: small("encoded:gpt2-124m", "dp=2"),
    "tensor": lambda: small("megatron:llama3-8b", "tp=2,dp=2"),
    "pipeline": lambda: small("megatron:llama3-8b", "tp=1,pp=2,dp=1,micro_batches=4"),
    "interleaved": lambda: small(
        "megatron:llama3-8b", "tp=1,pp=2,dp=1,chunks=2,micro_batches=4", layers=4
    ),
    "context": lambda: small("megatron:llama3-8b", "tp=1,cp=2,dp=1"),
    "matmul": lambda: small("matmul2:toy", "dp=4"),
}


def play_all(
    launcher: Launcher, steps: dict[str, Step], backend: str = "gloo"
) -> dict[str, list[Record]]:
    """The records of steps by name: those of as many ranks are played in one world."""
    found = {}
    for n in {step.world for step in steps.values()}:
        names = [name for name, step in steps.items() if step.world == n]
        records = play_steps(launcher, [steps[name] for name in names], backend)
        assert len(records) == 3 * len(names)
        found |= {name: records[3 * at : 3 * at + 3] for at, name in enumerate(names)}
    return found


QUICK = ("ddp", "fsdp2", "pipeline")


@pytest.fixture(scope="module")
def quick_patterns(launcher: Launcher) -> dict[str, list[Record]]:
    """The records of the quick ones of STEPS."""
    return play_all(launcher, {name: STEPS[name]() for name in QUICK})


@pytest.fixture(scope="module")
def patterns(launcher: Launcher) -> dict[str, list[Record]]:
    """The records of the others."""
    return play_all(launcher, {name: STEPS[name]() for name in sorted({*STEPS} - {*QUICK})})


@pytest.mark.parametrize("name", QUICK)
def test_the_data_of_every_operation_of_a_quick_pattern_is_right(
    name: str, quick_patterns: dict[str, list[Record]]
) -> None:
    check_all(quick_patterns[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*STEPS} - {*QUICK}))
def test_the_data_of_every_operation_of_a_pattern_is_right(
    name: str, patterns: dict[str, list[Record]]
) -> None:
    check_all(patterns[name])


def check_all(records: list[Record]) -> None:
    assert [(r.case.collective, r.status) for r in records] == [
        ("communication", "ok"),
        ("computation", "ok"),
        ("step", "ok"),
    ]
    assert records[-1].checked > 0
    assert {len(record.times_ns) for record in records} == {2}


@pytest.mark.slow
def test_steps_run_on_mpi(launcher: Launcher) -> None:
    names = ("ddp", "pipeline", "fsdp2")
    for records in play_all(launcher, {name: STEPS[name]() for name in names}, "mpi").values():
        assert [r.status for r in records] == ["ok"] * 3
        assert records[-1].checked > 0


def test_reference_algorithms_carry_a_step_over_shared_memory(play: Play) -> None:
    records = play(STEPS["ddp"](), "shm", "ring")
    assert [r.status for r in records] == ["ok"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_messages_and_rooted_operations_are_right(backend: str, play: Play, tmp_path: Path) -> None:
    path = tmp_path / "mixed.csv"
    path.write_text(
        "#world 3\n"
        "ranks,op,bytes,dtype,group,reduce,root,peer,tag\n"
        "0,send,4096,float,,,,2,1\n0,send,2048,double,,,,2,2\n"
        "2,recv,4096,float,,,,0,1\n2,recv,2048,double,,,,0,2\n"
        "0-2,broadcast,4096,int32,,,1,,\n0-2,reduce,4096,float,,sum,2,,\n"
        "0-2,all_gather,12288,float,,,,,\n0-2,reduce_scatter,12288,float,,sum,,,\n"
        "0-2,all_to_all,12288,int64,,,,,\n0-2,wait,0,float,,,,,\n"
    )
    records = play(files.read_step(path), backend)
    assert [(r.status, r.note) for r in records] == [("ok", "")] * 3
    # what each rank receives, and the root alone of a reduction
    assert records[-1].checked == 2 * (
        1024 + 256 + 3 * 1024 + 1024 + 3 * 3072 + 3 * 1024 + 3 * 1536
    )


def test_an_operation_that_rank_0_is_alone_in_is_run_and_checked(
    play: Play, tmp_path: Path
) -> None:
    path = tmp_path / "unequal.csv"
    path.write_text(
        "#group g 0;1-2\nranks,op,bytes,dtype,group,reduce\n0-2,all_reduce,4096,float,g,sum\n"
    )
    records = play(files.read_step(path))
    assert [(r.status, r.note) for r in records] == [("ok", "")] * 3
    assert records[-1].checked == 2 * 2 * 1024


PLANTED = {
    "swap:1:1": (1, 1),  # what; the first operation that is wrong, and how many ranks see it
    "short:-1:2": (2, 0),
    "stale:0:3": (3, 0),
    "drop:-1:0": (0, 0),
}


@pytest.mark.parametrize("sabotage", PLANTED)
def test_an_operation_with_wrong_data_is_named(sabotage: str, play: Play) -> None:
    at, rank = PLANTED[sabotage]
    *others, whole = play(buckets(), "muddler", sabotage=sabotage)
    assert whole.status == "wrong"
    assert whole.first_wrong is not None
    assert f"first in op {at} (all_reduce of 4096 B float" in whole.note
    assert {record.status for record in others} == {"skipped"}
    if not sabotage.startswith("swap"):
        assert f"on rank {rank} at" in whole.note


def test_the_result_of_an_earlier_step_is_wrong(play: Play) -> None:
    """As of a library that reads what a peer has left in its buffer."""
    gather = Op(kind="all_gather", nbytes=4096, dtype="float", wait="call")
    step = Step("gather", 2, (Program((0, 1), (gather,)),))
    whole = play(step, "muddler", sabotage="replay:0:0")[-1]
    assert whole.status == "wrong"
    assert "wrong elements after timing, first in op 0" in whole.note
    assert "on rank 0 at" in whole.note


def test_an_operation_in_the_wrong_group_is_named(play: Play) -> None:
    grid = Grid({"tp": 2, "dp": 2})
    ops = [Op(kind="all_reduce", group=group, wait="call", **CALL) for group in ("dp", "tp")]  # type: ignore[arg-type]
    groups = {name: grid.groups(name) for name in ("tp", "dp")}
    step = Step("grid", 4, (Program((0, 1, 2, 3), tuple(ops)),), groups)
    whole = play(step, "muddler", sabotage="elsewhere:-1:1")[-1]
    assert whole.status == "wrong"
    assert "on tp" in whole.note


@pytest.mark.slow
def test_an_operation_that_one_rank_leaves_out_ends_the_run_and_is_told(play: Play) -> None:
    with pytest.raises(Exception, match=r"hang in the same call|has not moved"):
        play(buckets(wait="call"), "muddler", sabotage="drop:1:3", timeout=4.0)


def test_computation_takes_its_time_and_communication_does_not(play: Play) -> None:
    ops = (Op(kind="compute", compute_ns=3_000_000), Op(kind="all_reduce", **CALL))  # type: ignore[arg-type]
    step = reshape.set_computation(Step("x", 2, (Program((0, 1), ops),)), "sleep", 0)
    *_, computation, whole = play(step)
    assert min(computation.times_ns) >= 3_000_000
    assert min(whole.times_ns) >= 3_000_000


@pytest.mark.slow
def test_every_kind_of_computation_is_played(launcher: Launcher) -> None:
    ops = (
        Op(kind="compute", compute_ns=100_000),
        Op(kind="compute", flops=5e7, touched=1 << 20, compute_ns=1000),
        Op(kind="all_reduce", **CALL),  # type: ignore[arg-type]
    )
    step = Step("x", 2, (Program((0, 1), ops),))
    kinds = ("auto", "gemm", "copy", "spin", "sleep", "none")
    found = play_all(launcher, {kind: reshape.set_computation(step, kind, 0) for kind in kinds})
    assert {kind: [r.status for r in found[kind]] for kind in kinds} == {
        kind: ["ok"] * 3 for kind in kinds
    }


def test_operations_are_seen_to_begin_and_to_end(play: Play) -> None:
    step = buckets()
    records = play(step, iters=6)
    (one,) = find_overlaps(records)
    seen = one.step_record.operations
    assert [len(of) for of in seen] == [5, 5]
    for op in seen[0][:4]:
        assert op.begins_ns
        assert all(0 < b < e for b, e in zip(op.begins_ns, op.ends_ns, strict=True))
    assert len(seen[0][0].alone_ns) == 7
    (part,) = divide_phases(step, seen[0])
    assert (part.kind, part.ops, part.nbytes) == ("all_reduce", 4, 4 * 4096)
    assert 0 < part.waited <= part.busy


@pytest.mark.parametrize("name", ["ddp", pytest.param("pipeline", marks=pytest.mark.slow)])
def test_operations_are_left_out_of_steps_one_by_one(name: str, play: Play) -> None:
    """By all that meet in them, messages too: else the step would not end."""
    *_, whole = play(STEPS[name](), blame=True)
    assert whole.status == "ok"
    left_out = [each for each in whole.operations[0] if each.without_ns]
    assert 1 <= len(left_out) <= 5
    assert {len(each.without_ns) for each in left_out} == {len(left_out[0].with_ns)}
    assert len(left_out[0].with_ns) >= 6


def test_a_group_of_one_rank_does_nothing(play: Play) -> None:
    ops = (Op(kind="all_reduce", group="alone", **CALL), Op(kind="all_reduce", **CALL))  # type: ignore[arg-type]
    step = Step("x", 2, (Program((0, 1), ops),), {"alone": ((0,), (1,))})
    whole = play(step)[-1]
    assert whole.status == "ok"
    assert whole.checked == 2 * 2 * 1024  # of the other one, before and after


def test_a_datatype_that_the_library_cannot_reduce_is_never_replaced(tmp_path: Path, cli) -> None:
    path = tmp_path / "step.csv"
    path.write_text("ranks,op,bytes,dtype,group,reduce\n0-1,all_reduce,4096,f8e4m3,,sum\n")
    done = cli("workload", str(path), "--output", str(tmp_path / "run.jsonl"))
    assert done.returncode == 5
    assert "refuses all_reduce of f8e4m3" in done.stderr
    run = run_file.read_file(tmp_path / "run.jsonl")
    assert [record.status for record in run.records] == ["skipped"] * 3


@pytest.mark.slow
def test_a_step_under_a_launcher_and_its_file(warm, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    command = ["workload", "fsdp2:llama3-8b", "--layers", "1", "--scale", "1/4096"]
    command += ["--compute", "none", "-n", "6", "--output", str(path)]
    done = warm.join(2, *command)
    assert done.returncode == 0, done.stderr
    assert "exposed communication" in done.stdout
    run = run_file.read_file(path)
    assert [record.status for record in run.records] == ["ok"] * 3
    (step,) = run.run.suite.subjects
    assert step.title == run.records[0].case.subject
    assert msgspec.json.decode(msgspec.json.encode(step), type=Step) == step


def test_a_fault_that_is_planted_in_a_step_is_caught(play: Play) -> None:
    *_, whole = play(buckets(), inject="corrupt:1")
    assert whole.status == "wrong"
    assert "first in op 0 (all_reduce of 4096 B float" in whole.note
    assert "on rank 1 at 0" in whole.note


@pytest.mark.slow
@pytest.mark.parametrize("what", ["kill", "raise"])
def test_a_rank_that_is_lost_in_a_step_is_named(what: str, play: Play) -> None:
    with pytest.raises(RunBroken, match="rank 1"):
        play(buckets(wait="call"), "saboteur", sabotage=f"{what}:1:6", timeout=30.0)


@pytest.mark.slow
def test_a_step_that_has_no_memory_on_one_rank_is_refused_on_all(play: Play) -> None:
    records = play(buckets(), "saboteur", sabotage="no-memory:1:4096", timeout=30.0)
    assert {record.status for record in records} == {"skipped"}
    assert all(record.note.startswith("rank 1 on ") for record in records)


@pytest.mark.slow
def test_a_run_of_steps_goes_on_with_what_is_missing(tmp_path: Path, cli) -> None:
    path = tmp_path / "run.jsonl"
    words = ["toy:ddp", "-g", "2", "-n", "2", "--env", "GLOO_X=1,2", "--output", str(path)]
    assert cli("workload", *words).returncode == 0
    lines = path.read_text().splitlines()
    kept = [at for at, line in enumerate(lines) if '"line":"record"' in line][:3]
    path.write_text("\n".join(lines[: kept[-1] + 1]) + "\n")
    done = cli("run", "--resume", str(path))
    assert done.returncode == 0, done.stderr
    run = run_file.read_file(path)
    assert len({record.case for record in run.records}) == len(run.records) == 6
    assert {record.status for record in run.records} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "code"), [("interrupt", 130), ("kill", 4)])
def test_rounds_that_were_finished_outlive_the_end_of_a_run(
    what: str, code: int, tmp_path: Path, cli
) -> None:
    """In the twelfth round, of a fifth of a second each; the run then goes on."""
    step, path = tmp_path / "step.csv", tmp_path / "run.jsonl"
    step.write_text(
        "ranks,op,bytes,dtype,group,reduce,wait,gap_us\n"
        "0-1,compute,0,,,,,100000\n0-1,all_reduce,4096,float,,sum,call,0\n"
    )
    words = [str(step), "--backend", "saboteur", "--compute", "sleep", "-n", "12", "-w", "1"]
    settings = {"PYTHONPATH": before(PLUGINS)}
    done = cli(*("workload", *words, "--output", str(path)), **settings, SABOTAGE=f"{what}:1:24")
    assert done.returncode == code, done.stderr
    assert "cut short: of" in done.stdout
    kept = run_file.read_file(path).records
    assert {record.stop for record in kept} == {"cut"}
    (rounds,) = {len(record.times_ns) for record in kept}
    assert 6 <= rounds <= 11
    done = cli("run", "--resume", str(path), **settings, SABOTAGE="kill:9:9")
    assert done.returncode == 0, done.stderr
    whole = run_file.read_file(path).records
    assert [(record.status, len(record.times_ns)) for record in whole] == [("ok", 12)] * 3


def test_a_step_says_how_long_it_will_take_before_its_first_round(tmp_path: Path, cli) -> None:
    """Interrupted in the second round after it warmed up."""
    step = tmp_path / "step.csv"
    step.write_text(
        "ranks,op,bytes,dtype,group,reduce,wait,gap_us\n"
        "0-1,compute,0,,,,,100000\n0-1,all_reduce,4096,float,,sum,call,0\n"
    )
    words = [str(step), "--backend", "saboteur", "--compute", "sleep", "-n", "500", "-w", "1"]
    done = cli("workload", *words, PYTHONPATH=before(PLUGINS), SABOTAGE="interrupt:1:6")
    assert done.returncode == 130, done.stderr
    assert "a step takes 1" in done.stderr and "500 rounds of its 3 parts" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [("workload", "toy:ddp"), ("overlap", "all_reduce")])
def test_what_a_budget_does_not_hold_is_dropped_and_named(
    command: tuple[str, ...], tmp_path: Path, cli
) -> None:
    place = str(tmp_path / "run.jsonl")
    short = cli(*command, "-g", "2", "--budget", "0.02s", "--output", place)
    assert short.returncode == Exit.CANNOT_RUN, short.stderr
    records = run_file.read_file(Path(place)).records
    assert records and {record.status for record in records} == {"skipped"}
    assert all("--budget 0.02s" in record.note for record in records)


@pytest.mark.slow
def test_a_suite_of_steps_is_run_and_compared_in_turns(tmp_path: Path, cli) -> None:
    suite = tmp_path / "steps.toml"
    suite.write_text(
        '[axes]\nranks = [2]\nbackends = ["gloo"]\n[policy]\niters = 2\nwarmup = 1\n'
        '[[workload]]\nname = "toy:ddp"\ncompute = "none"\n'
    )
    done = cli(
        *("ab", "--suite", str(suite), "--base", "", "--head", "COLLBENCH_X=1"),
        *("--rounds", "6,6", "--budget", "0", "--tau", "99%", "--format", "json"),
    )
    assert done.returncode in (0, 3), done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["case"]["collective"] for row in rows} == {"step", "computation", "communication"}
    assert {row["pairs"] for row in rows} >= {6}
