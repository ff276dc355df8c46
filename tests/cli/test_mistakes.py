"""Mistakes in a command line, and ways to write it that mean the same."""

from __future__ import annotations

import msgspec
import pytest

from collbench.core import algorithms
from collbench.core.errors import Exit, UsageError
from collbench.run import refusal
from collbench.suite import grammar


@pytest.mark.parametrize(
    ("args", "given", "hint"),
    [
        (("all_reduce", "100M"), "100M", "--sizes 100M"),
        (("all_reduce", "ring"), "ring", "--algo ring"),
        (("all_reduce", "-n", "0"), "-n 0", ""),
        (("all_reduce", "-n", "many"), "-n many", ""),
        (("all_reduce", "-c=-1"), "-c", ""),
        (("all_reduce", "--json"), "--json", "--format json"),
        (("compare", "a", "b", "--json"), "--json", "--format json"),
        (("all_reduce", "--export-json", "x"), "--export-json", "-J"),
        (("all_reduce", "-v"), "-v", "collbench --version"),
        (("-v",), "-v", "collbench --version"),
        (("all_reduce", "--np", "2"), "--np", "-g 2"),
        (("all_reduce", "-np", "2"), "-np", "-g 2"),
        (("all_reduce", "--warmup", "2"), "--warmup", "-w"),
        (("all_reduce", "--runs", "2"), "--runs", "-n"),
        (("compare", "a", "b", "--threshold", "2"), "--threshold", "--tau"),
        (("compare", "a", "b", "--fail-on", "2"), "--fail-on", "--min-busbw"),
        (("compare",), "BASE", "collbench compare BASE [HEAD]"),
        (("show", "all_reduce"), "ALGORITHM", "collbench show COLLECTIVE ALGORITHM"),
        (("all_reduce", "--backend"), "--backend", ""),
        (("all_reduce", "--no-save=3"), "--no-save", ""),
        (("all_reduce", "--bakend", "gloo"), "--bakend", "--backend"),
        (("history", "lst"), "lst", ""),
        (("all_reduce", "-m", "4:1048576", "-i", "9", "-x", "2", "-f"), "4:1048576", "-e 1048576"),
        (("osu_allreduce",), "osu_allreduce", "the command is collbench all_reduce; use -b A"),
        (("osu_ibcast", "-m", "4:8"), "-m 4:8", "the command is collbench broadcast; use -b 4"),
        (("osu_latency",), "osu_latency", "the command is collbench p2p"),
        (("osu_hello",), "osu_hello", "hint: use -b"),
        (("busbw",), "busbw", "it is a topic: collbench help busbw"),
        (
            ("predict", "all_reduce", "-n", "8,64"),
            "-n 8,64",
            "run the command once for 8 and once for 64",
        ),
        (("predict", "all_reduce", "-n", "8,16,64"), "8,16,64", "once for each of 8, 16, 64"),
        (("predict", "all_reduce", "-n", "1"), "-n 1", "hint: give -n 2 or more"),
        (("predict", "all_reduce", "-n", "x"), "-n x", "hint: give -n one number"),
        (("backends", "fetch", "gloo"), "--wheels is missing", "hint: give --wheels: collbench"),
        (("predict", "--link"), "--link needs a value", "predict --help says what --link takes"),
        (("all_reduce", "-t", "2", "-g", "3"), "-t 2", "-g 6"),
        (("all_reduce", "-s", "8"), "-s", "--sizes 1M,64M"),
        (("all_reduce", "--env", "A=1", "--env", "A=2"), "A is given twice", "A=V1,V2"),
        (("all_reduce", "--max-time", "0"), "leaves no time", "10s"),
        (("run", "pr", "--max-time", "0s"), "leaves no time", "10s"),
        (("workload", "ddp:resnet50", "--max-time", "0"), "leaves no time", "10s"),
        (("ab", "--suite", "pr", "--sizes", "8"), "--sizes", "collbench help suites"),
        (("ab", "--suite", "pr", "-b", "8"), "-b", "collbench help suites"),
        (("all_reduce", "-d", "floaty"), "floaty", "float"),
        (("predict", "all_reduce", "--network", "ib200"), "ib200", "--link ib200"),
    ],
)
def test_a_mistake_is_one_line_with_a_hint(
    inside, args: tuple[str, ...], given: str, hint: str
) -> None:
    done = inside(*args)
    assert done.returncode == Exit.USAGE and done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith("collbench: ") and given in first
    assert second.startswith("  hint: ") and hint in second


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-n", "20", "--precision", "1%", "--mode", "isolated"), True),
        (("-n", "20", "--precision", "1%", "--mode", "isolated,streaming"), False),
        (("-n", "20", "--mode", "isolated"), False),
        (("--precision", "1%", "--mode", "isolated"), False),
    ],
)
def test_a_precision_that_fixed_samples_do_not_heed_is_told(
    inside, options: tuple[str, ...], told: bool
) -> None:
    done = inside("all_reduce", "--sizes", "1K", "-g", "2", *options, "--dry-run")
    assert done.returncode == Exit.OK
    assert ("--precision means nothing to -n, which fixes the samples" in done.stderr) == told


def test_no_hint_names_an_option_that_the_command_lacks(inside) -> None:
    assert "--format" not in inside("show", "all_reduce", "ring", "--json").stderr


@pytest.mark.parametrize(
    "args",
    [
        ("all-reduce", "--algo", "recursive-doubling", "--max-time", "1s", "--dry-run"),
        ("all_reduce_perf", "--warmup-iters", "3", "--dry-run", "--backend", "model"),
        ("all_reduce", "--op", "premul-sum", "--max_time", "1s", "--dry_run"),
        ("show", "all-reduce", "recursive-doubling"),
        ("predict", "all-gather", "--algo", "recursive-doubling"),
    ],
)
def test_a_dash_may_stand_for_an_underscore(inside, args: tuple[str, ...]) -> None:
    model = ("--backend", "model", "-b", "8", "-e", "8")
    done = inside(*args, *(model if "--max" in " ".join(args) else ()))
    assert done.returncode == 0, done.stderr


def test_a_backend_with_dashes_is_the_one_with_underscores() -> None:
    assert refusal.spell_backend("torch-one-shot") == "torch_one_shot"
    assert refusal.spell_backend("my-plugin") == "my-plugin"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10sec", 10),
        ("1h30m", 5400),
        ("1h30", 5400),
        ("2 min", 120),
        ("1m30s", 90),
        ("1h 5m 2s", 3902),
        ("2hours", 7200),
        ("1.5h", 5400),
        ("20", 20),
        ("5ms", 0.005),
    ],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert grammar.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "10x", "1m1h", "1h1h", "10 20", "1.5.5", "-1s", "5ms3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        grammar.parse_duration(text)


@pytest.mark.parametrize(("size", "count"), [("1MB", 1), ("1mb", 1), ("1MiB", 0), ("1M", 0)])
def test_it_is_said_once_that_mb_is_mib(inside, size: str, count: int) -> None:
    args = ("-b", size, "-e", size, "--backend", "model", "--dry-run")
    assert inside("all_reduce", *args).stderr.count("1 MiB") == count


@pytest.mark.parametrize(
    ("args", "sizes"),
    [
        (("-b", "100M"), [100 << 20]),
        (("--sizes", "3M,8"), [3 << 20, 8]),
        (("-b", "8", "-e", "24", "-i", "8"), [8, 16, 24]),
        (("-b", "16M"), [16 << 20, 32 << 20]),
    ],
)
def test_predict_takes_sizes_as_measuring_does(
    inside, args: tuple[str, ...], sizes: list[int]
) -> None:
    done = inside("predict", "all_reduce", *args, "--algo", "ring", "--format", "json")
    rows = msgspec.json.decode(done.stdout)["predictions"]
    assert [row["size"] for row in rows] == sizes


@pytest.mark.parametrize("name", ["ccl", "hccl", "cncl"])
def test_a_library_is_not_taken_for_another(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        refusal.refuse_unknown_backends([name])
    assert "did you mean" not in refused.value.hint


def test_a_slip_in_a_backends_name_is_noticed() -> None:
    with pytest.raises(UsageError) as refused:
        refusal.refuse_unknown_backends(["glo"])
    assert "gloo" in refused.value.hint


def test_two_algorithms_of_one_name_are_an_error() -> None:
    first, second, *_ = algorithms.list_algorithms("all_reduce")
    twin = second._replace(name=first.name)
    algorithms.refuse_repeated([first, second])
    with pytest.raises(ValueError, match=first.name):
        algorithms.refuse_repeated([first, twin])
    with pytest.raises(ValueError, match=first.name):
        algorithms.refuse_repeated([first, second._replace(aliases=(first.name,))])


def test_help_of_backend_names_mpi(inside) -> None:
    assert " mpi," in inside("all_reduce", "--help").stdout


def test_help_begins_with_ten_options_that_everybody_needs(inside) -> None:
    text = inside("all_reduce", "--help").stdout
    first, *_ = text.partition("First options:")[2].partition("Where ranks run:")
    wanted = ("-b", "-e", "-f", "-g", "-d", "-o", "--backend", "--algo", "-n", "--output")
    flags = [line.split()[0].rstrip(",") for line in first.splitlines() if line.startswith("  -")]
    assert flags == [*wanted]


def test_help_has_a_crontab_line_a_nagios_command_and_node_exporters_folder(inside) -> None:
    text = inside("help", "outputs").stdout
    assert "* * *" in text and "flock" in text and "COLLBENCH_HOME=" in text
    assert "define command" in text and "--nagios" in text
    assert "--collector.textfile.directory=" in text


@pytest.mark.parametrize(
    ("dtype", "op", "backend", "count"),
    [
        ("f8e4m3,float", "sum", "gloo", 1),
        ("int32", "avg,sum", "gloo", 1),
        ("int8,int32", "sum", "mpi", 1),
        ("float,half", "sum", "gloo", 0),
    ],
)
def test_a_dry_run_says_which_cases_the_library_may_refuse(
    inside, dtype: str, op: str, backend: str, count: int
) -> None:
    sizes = ("-b", "1K", "-e", "1K", "--place", "out", "-g", "2")
    args = ("all_reduce", *sizes, "-d", dtype, "-o", op, "--backend", backend, "--dry-run")
    text = inside(*args).stdout
    assert ("may refuse" in text) == bool(count)
    assert not count or f"may refuse {count} case of these" in text


@pytest.mark.parametrize(("ranks", "cores", "rows"), [("2", 2, 0), ("3", 2, 1), ("2,64", 2, 1)])
def test_a_dry_run_says_how_many_rows_have_more_ranks_than_cores(
    inside, monkeypatch: pytest.MonkeyPatch, ranks: str, cores: int, rows: int
) -> None:
    monkeypatch.setattr("collbench.machine.cpus.core_count", lambda: cores)
    text = inside("all_reduce", "--sizes", "1K", "--place", "out", "-g", ranks, "--dry-run").stdout
    assert ("oversubscribed" in text) == bool(rows)
    assert not rows or f"{rows} row will be flagged" in text
