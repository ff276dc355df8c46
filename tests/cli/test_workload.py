"""`collbench workload`, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import collbench

RECORDED = Path(collbench.__file__).parents[1] / "reports/runs/training-step/fsdp2.jsonl"


def test_without_a_name_all_there_are_are_listed(bare) -> None:
    done = bare("workload")
    assert done.returncode == 0
    for word in ("ddp:gpt2-124m", "megatron:llama3-405b", "zero3", "deepseek-v3"):
        assert word in done.stdout


def test_a_step_is_counted(bare) -> None:
    done = bare("workload", "ddp:gpt2-124m", "--show")
    assert done.returncode == 0
    for words in (
        "8 ranks",
        "all_reduce",
        "474.7 MiB",
        "830.7 MiB",
        "no deadlock",
        "memory a rank",
    ):
        assert words in done.stdout


def test_programs_get_bytes_by_phase_and_group(bare) -> None:
    done = bare("workload", "fsdp2:llama3-8b", "--show", "--format", "json")
    found = json.loads(done.stdout)
    (forward,) = [part for part in found["parts"] if part["phase"] == "forward"]
    assert (forward["kind"], forward["ops"], forward["nbytes"]) == (
        "all_gather",
        33,
        16_060_522_496,
    )


def test_the_step_itself_is_read_again(bare, tmp_path: Path) -> None:
    first = bare("workload", "toy:ddp", "--show", "--format", "csv").stdout
    path = tmp_path / "step.csv"
    path.write_text(first)
    again = bare("workload", str(path), "--show", "--format", "csv")
    assert (again.returncode, again.stdout) == (0, first)


def test_simulators_get_a_file_a_rank(bare, tmp_path: Path) -> None:
    chakra = ("--show", "--format", "chakra")
    done = bare("workload", "toy:ddp", "-g", "3", *chakra, "--output", str(tmp_path / "et"))
    assert (done.returncode, "3 files" in done.stdout) == (0, True)
    names = sorted(path.name for path in (tmp_path / "et").iterdir())
    assert names == ["comm_group.json", "step.0.et", "step.1.et", "step.2.et"]


@pytest.mark.parametrize("words", [("toy:ddp",), ()])
def test_files_for_simulators_need_a_step_and_a_folder(bare, words: tuple[str, ...]) -> None:
    done = bare("workload", *words, "--show", "--format", "chakra")
    assert (done.returncode, "--output FOLDER" in done.stderr) == (2, True)


def test_a_prediction_says_what_it_rests_on(bare) -> None:
    done = bare(
        *("workload", "megatron:llama3-70b", "--link", "ib200", "--node-ranks", "8"),
        *("--tflops", "400"),
    )
    told = " ".join(done.stdout.split())
    assert "predicted: a step takes" in told
    assert "hosts of 8 ranks" in told
    assert "400 TFLOP/s a rank" in told


def test_gaps_that_a_file_names_are_predicted_without_a_rate(bare, tmp_path: Path) -> None:
    path = tmp_path / "step.csv"
    path.write_text(
        "ranks,op,bytes,dtype,group,reduce,gap_us\n0-1,compute,0,,,,40000\n"
        "0-1,all_reduce,1048576,float,,sum,0\n"
    )
    told = " ".join(bare("workload", str(path), "--link", "ib200").stdout.split())
    assert "computation alone 40.0 ms" in told
    assert "computation as long as the step says" in told


def test_a_recorded_step_is_predicted_beside_what_it_took(bare) -> None:
    link = ("--link", "alpha=30us,bandwidth=1GB", "--tflops", "2")
    found = json.loads(bare("workload", str(RECORDED), *link, "--format", "json").stdout)
    predicted, measured = found["forecast"], found["measured"]
    assert measured["rounds"] == 50
    ratio = measured["communication_ns"] / predicted["communication_ns"]
    told = bare("workload", str(RECORDED), *link).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("communication"))
    assert line.split()[-1] == f"{ratio:.2f}"
    assert "backward, dp" in told
    counted = bare("workload", str(RECORDED), "--show").stdout
    assert "reduce_scatter" in counted
    assert "measured" not in counted


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("toy:ddp", "--compute", "sleep"), "nothing says how long"),
        (("toy:ddp", "--compute", "dream"), "--compute"),
        (("toy:ddp", "--scale", "2"), "--scale 2: this is not a part of a step"),
        (("toy:ddp", "--slice", "tp"), "--slice tp"),
        (("toy:ddp", "--backend", "glo"), "did you mean gloo?"),
        (("toy:ddp", "-n", "5", "--max-time", "2s"), "-n fixes the rounds"),
        (("toy:ddp", "-n", "5", "--budget", "60s"), "fixes the repetitions that --budget"),
        (("toy:ddp", "--budget", "soon"), "--budget"),
        (("toy:ddp", "--format", "nccl"), "--format"),
        (("toy:ddp", "--no-save", "--output", "x.jsonl"), "exclude each other"),
        (("megatron:llama3-8b", "-g", "3"), "3 ranks are no multiple of tp=2"),
        (("m2n:dp.None->tp.None", "-g", "8"), "8 ranks are given, and m2n: llama3-8b"),
        (("megatron:llama3-8b", "--slice", "tp", "--show", "-g", "4"), "4 ranks are given, and"),
        (("ddp:gpt2", "--show"), "did you mean gpt2-124m?"),
        (("fspd2:llama3-8b", "--show"), "did you mean fsdp2:llama3-8b?"),
        (("ddp:toy", "--show", "--layout", "ddp=2"), "did you mean dp?"),
        (("ddp:toy", "--show", "--options", "bucket_cap=2"), "did you mean bucket_cap_mb?"),
        (("megatron:gpt2-124m", "--show", "--layout", "tp=8"), "12 heads are not divisible by 8"),
        (("megatron:llama3-8b", "--show", "--layout", "tp=3"), "3"),
        (("megatron:llama3-8b", "--show", "-g", "7"), "7 ranks are no multiple of tp=2"),
        (("ddp:gpt2-124m", "--show", "--options", "hook=zip"), "hook=zip"),
        (("ddp:gpt2-124m", "--show", "--layers", "13"), "has 12 layers, not 13"),
        (("x.toml", "--show"), "x.toml"),
        (("ddp:toy", "--show", "--format", "html"), "--format"),
        (("ddp:toy", "--link", "warp9"), "warp9"),
        ((str(RECORDED),), "a recorded run cannot be run again"),
        ((str(RECORDED), "--show", "-g", "4"), "a run has its step as it was measured"),
        ((str(RECORDED), "--show", "--scale", "1/2"), "a run has its step as it was measured"),
        (("@last", "--show"), "no run"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(bare, asked: tuple[str, ...], words: str) -> None:
    done = bare("workload", *asked)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_what_would_run_is_shown_with_what_it_takes(bare) -> None:
    done = bare("workload", "ddp:gpt2-124m", "--scale", "1/64", "-g", "2", "--dry-run")
    assert done.returncode == 0
    for words in ("ddp:gpt2-124m scale=1/64", "step", "computation", "communication", "3 cases"):
        assert words in done.stdout


@pytest.mark.slow
def test_what_is_too_large_says_which_part_would_fit(bare) -> None:
    done = bare("workload", "ddp:gpt3-175b", "-g", "8", "--dry-run")
    assert done.returncode == 5
    for words in ("a rank needs 666,493 MiB", "MiB are available; --scale 1/"):
        assert words in done.stderr


def test_a_step_that_would_never_end_is_refused_with_the_circle(bare, tmp_path: Path) -> None:
    path = tmp_path / "ring.csv"
    path.write_text(
        "ranks,op,bytes,dtype,group,peer,wait\n"
        "0,send,8,float,,1,call\n0,recv,8,float,,1,call\n"
        "1,send,8,float,,0,call\n1,recv,8,float,,0,call\n"
    )
    done = bare("workload", str(path), "--show")
    assert done.returncode == 2
    assert "deadlock: rank 0 waits in op 0" in done.stderr
