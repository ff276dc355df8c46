"""Options that would do nothing, exclude each other or are empty: told or refused before anything
is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_file, night, write

SWEEP = ("-b", "8", "-e", "8", "-g", "2", "--backend", "model")
DRY = (*SWEEP, "--dry-run")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("all_reduce", *DRY, "--share-gpu"), "--share-gpu means nothing to model"),
        (("all_reduce", *DRY, "--env", "NCCL_ALGO=Ring,Tree"), "NCCL_ALGO means nothing to model"),
        (
            (
                "all_reduce",
                *SWEEP[:-1],
                "gloo,shm",
                "--algo",
                "ring",
                "--env",
                "OMPI_MCA_x=1",
                "--dry-run",
            ),
            "OMPI_MCA_x means nothing to gloo or shm",
        ),
        (("all_reduce", *DRY, "--env", "I_MPI_X=1"), "I_MPI_X means nothing to model"),
        (("all_reduce", *DRY, "--env", "MPIR_CVAR_X=1"), "MPIR_CVAR_X means nothing to model"),
        (("all_reduce", *DRY, "--splits", "zipf:1"), "--splits means nothing to all_reduce"),
        (("broadcast", *DRY, "-o", "max"), "-o means nothing to broadcast"),
        (("all_gather", *DRY, "-r", "1"), "-r means nothing to all_gather"),
        (("barrier", *DRY, "-d", "half"), "-d means nothing to barrier"),
        (("barrier", *DRY), "-e means nothing to barrier"),
        (("barrier", *DRY[4:], "--sizes", "1K"), "--sizes means nothing to barrier"),
        (("barrier", *DRY[4:], "--place", "in"), "--place means nothing to barrier"),
        (("all_reduce", *DRY, "--align", "4K"), "--align means nothing to all_reduce"),
        (("all_reduce", *SWEEP, "--no-save", "--tag", "x"), "--tag x finds nothing: --no-save"),
    ],
)
def test_an_option_that_does_nothing_says_so_in_a_line(bare, words, note: str) -> None:
    done = bare(*words)
    assert done.returncode == 0
    assert f"collbench: {note}" in done.stderr


def test_a_suites_setting_that_does_nothing_is_told_too(bare, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    axes = 'collectives = ["all_reduce"]\nsizes = [8]\nenv = ["NCCL_ALGO=Ring"]\n'
    suite.write_text(f'description = "x"\n[axes]\n{axes}')
    done = bare("run", str(suite), "--backend", "model", "-g", "2", "--dry-run")
    assert "collbench: NCCL_ALGO means nothing to model\n" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("all_reduce", *DRY, "-o", "max", "-d", "half"),
        ("all_reduce", *DRY, "--env", "OMP_NUM_THREADS=1,2"),
        ("all_reduce", *DRY, "--env", "GLOO_SOCKET_IFNAME=lo"),
        ("all_to_allv", *DRY, "--splits", "zipf:1", "-b", "1K", "-e", "1K"),
        ("broadcast", *DRY, "-r", "1"),
        ("barrier", *DRY[4:]),
        ("all_gather", *DRY, "-b", "1K", "-e", "1K", "--align", "16"),
    ],
)
def test_what_does_something_is_not_told(bare, words: tuple[str, ...]) -> None:
    done = bare(*words)
    assert done.returncode == 0 and "means nothing" not in done.stderr


def test_a_side_that_sets_what_nobody_heeds_is_refused(bare) -> None:
    done = bare(
        "ab", "--head", "NCCL_ALGO=Ring", "--suite", "pr", "--dry-run", CUDA_VISIBLE_DEVICES=""
    )
    assert done.returncode == 2
    assert "--head: NCCL_ALGO means nothing to gloo or shm" in done.stderr


def test_only_given_twice_names_both(bare) -> None:
    words = ("run", "smoke", "--backend", "model", "-g", "4", "--dry-run")
    done = bare(*words, "--only", "all_reduce", "--only", "broadcast,barrier")
    found = {line.split(",")[0] for line in done.stdout.splitlines() if ", isolated" in line}
    assert found == {"all_reduce", "broadcast", "barrier"}


def test_only_leaves_steps_out(bare, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    axes = 'collectives = ["all_reduce", "broadcast"]\nsizes = 8\nbackends = "gloo"\nranks = 2'
    suite.write_text(f'[axes]\n{axes}\n[[workload]]\nname = "toy:ddp"\n')
    words = ("run", str(suite), "--dry-run")
    every, one = (bare(*words, *only).stdout for only in ((), ("--only", "bcast")))
    assert "\n7 cases" in every and "\n2 cases" in one and "broadcast" in one


@pytest.mark.parametrize("suite", ["order", "lifecycle"])
def test_only_has_a_hint_where_a_suite_has_no_collectives(bare, suite: str) -> None:
    done = bare("run", suite, "--only", "all_reduce", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.endswith("it has no collectives: leave --only out\n")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "smoke", "--dry-run"),
        ("order", "all_reduce", "--dry-run"),
        ("tune", "all_reduce", "--dry-run"),
        ("locate", "--dry-run"),
        ("health", "--inject", "slow:1:1ms"),
        ("all_reduce", *DRY),
    ],
)
def test_a_budget_without_time_is_refused(bare, words: tuple[str, ...]) -> None:
    done = bare(*words, "--budget", "0")
    assert done.returncode == 2
    assert "--budget: '0' leaves no time" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_reduce", *SWEEP, "--no-save", "--output", "x.jsonl"), "--output and --no-save"),
        (("run", "smoke", "--no-save", "--output", "x.jsonl"), "--output and --no-save"),
        (("pairs", "--no-save", "--output", "x.jsonl", "-g", "4"), "--output and --no-save"),
        (("locate", "--no-save", "--output", "x.jsonl", "-g", "4"), "--output and --no-save"),
        (("all_reduce", *SWEEP, "--output", "-"), "--output -: a run cannot be saved to standard"),
        (("all_reduce", "--sizes", "8", "-f", "4"), "--sizes and -f/-i exclude each other"),
        (("all_reduce", "--sizes", "8", "-i", "4"), "--sizes and -f/-i exclude each other"),
    ],
)
def test_options_that_exclude_each_other_are_refused(bare, words, message: str) -> None:
    for more in ((), ("--dry-run",)):
        done = bare(*words, *more)
        assert (done.returncode, message in done.stderr, done.stdout) == (2, True, "")


@pytest.mark.parametrize("tag", ["@last", "@x", "a,b", "x" * 101, " x"])
@pytest.mark.parametrize(
    "words", [("all_reduce", *SWEEP), ("run", "smoke"), ("pairs",), ("ab", "--aa"), ("import", "-")]
)
def test_a_tag_that_could_not_name_a_run_is_refused(bare, words, tag: str) -> None:
    done = bare(*words, "--tag", tag)
    assert done.returncode == 2
    assert "could not name a run" in done.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("all_reduce", "-b", ""), "-b"),
        (("all_reduce", "--minbytes", " "), "-b"),
        (("all_reduce", "--sizes", ""), "--sizes"),
        (("all_reduce", "--backend", ""), "--backend"),
        (("all_reduce", "-d", ""), "-d"),
        (("all_reduce", "-d", ","), "-d"),
        (("all_reduce", "--tag", ""), "--tag"),
        (("all_reduce", "--env", ""), "--env"),
        (("run", "smoke", "--backend", ""), "--backend"),
        (("run", "smoke", "--only", ""), "--only"),
        (("run", ""), "SUITE"),
        (("pairs", "--backend", ""), "--backend"),
        (("history", "trend", "--only", ""), "--only"),
        (("predict", "all_reduce", "-b", ""), "-b"),
        (("show", "all_reduce", ""), "ALGORITHM"),
    ],
)
def test_an_option_given_as_nothing_is_refused(bare, words, option: str) -> None:
    done = bare(*words)
    assert done.returncode == 2
    assert f"collbench: {option} is empty\n" in done.stderr


def test_a_side_may_be_empty(bare) -> None:
    assert bare("ab", "--base", "", "--aa", "--suite", "pr", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--node-ranks", "8"), "--node-ranks"),
        (("--node-ranks", "1", "--show"), "--node-ranks"),
        (("--inside", "nvlink"), "--inside"),
        (("--show", "--tflops", "100"), "--show --tflops"),
        (("--tflops", "100", "--dry-run"), "tflops=100"),
        (("--tflops", "100", "--compute", "copy", "--dry-run"), "tflops=100"),
    ],
)
def test_an_option_for_predictions_is_refused_where_a_step_is_run(bare, words, named: str) -> None:
    """It is expected to make the step short, and would not."""
    done = bare("workload", "ddp:toy", "-g", "2", *words)
    assert done.returncode == 2
    assert f"{named} has no effect" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--link", "ib200", "--inside", "nvlink", "--node-ranks", "2", "--tflops", "100"),
        ("--compute", "sleep", "--tflops", "0.1", "--dry-run"),
    ],
)
def test_what_has_an_effect_on_a_step_is_taken(bare, words) -> None:
    assert bare("workload", "ddp:toy", "-g", "2", *words).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("all_reduce", "-b", "8", "-e", "1G", "-f", "1e308", *DRY[4:]), ""),
        (("all_reduce", "-b", "8", "-e", "16", "--place", "out,in", *DRY[4:]), ""),
        (("p2p", "-f", "0", "--dry-run", "-g", "2"), "-f 0 never grows"),
        (("workload", "ddp:toy", "--show", "--scale", "1e-999999999"), "not a part of a step"),
        (("pairs", "-g", "2", "-n", "1048577", "--dry-run"), "1048577"),
        (("predict", "all_reduce", "--network", f"two-level:{10**20}"), "is not a network"),
        (("show", "all_reduce", "native", "--on", "gllo"), "gllo"),
        (("show", "all_reduce", "native", "--on", "gloo", "-n", "20000"), "more than 64 ranks"),
        (("ab", "--aa", "--build", "false", "--dry-run"), "--build: no side has a git:REV"),
        (
            ("lifecycle", "--kill", "1", "--groups", "9", "--dry-run", "-g", "2"),
            "--groups has no effect with --kill",
        ),
        (
            ("lifecycle", "--kill", "1", "--kill-at", "2h", "--dry-run", "-g", "3"),
            "more than an hour",
        ),
        (("workload", "ddp:toy", "--show", "--tag", "x"), "--tag has no effect where a step"),
        (
            ("workload", "ddp:toy", "--show", "--output", "x.md"),
            "--output has no effect with --format table",
        ),
        (("workload", "ddp:toy", "--compute", "sleep", "--tflops", "1e-320"), "for days"),
        (
            ("accept", "--verify", "c.html", "@last", "-o", "p.md"),
            "--verify takes runs and nothing",
        ),
        (("pairs", "--resume", "@last", "-g", "8"), "--resume is given with -g"),
        (("order", "all_reduce", "-d", "foo"), "one of int8"),
    ],
)
def test_a_value_that_cannot_be_or_has_no_effect_is_refused(bare, words, says: str) -> None:
    done = bare(*words)
    assert done.returncode == (2 if says else 0), done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("p2p", "-b", "64", "--pairs", "all", "--env", "X=1"), "-b, --pairs, --env have"),
        (("p2p", "--no-save"), "--no-save has"),
        (("lifecycle", "--kill", "1", "--launches", "2"), "--kill, --launches have"),
        (("pairs", "--one-way", "--resume", "@last"), "--one-way, --resume have"),
        (("order", "-d", "half", "--budget", "60s"), "-d, --budget have"),
        (("overlap", "--with", "copy"), "--with has"),
    ],
)
def test_an_option_about_measuring_is_refused_where_a_recorded_run_is_shown(
    bare, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command, *options = words
    path = str(write(make_file([]), tmp_path))
    done = bare(command, path, *options)
    assert done.returncode == 2
    assert f"collbench: {said} no effect where a recorded run is shown" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("p2p", "--format", "csv"),
        ("lifecycle", "--format", "md"),
        ("pairs", "--topology", "racks.toml"),
        ("order", "--require", "proved", "--like", "run.jsonl"),
        ("overlap", "--format", "md"),
    ],
)
def test_what_has_an_effect_where_a_recorded_run_is_shown_is_taken(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The run has nothing of the kind, which is told after options."""
    monkeypatch.chdir(tmp_path)
    Path("racks.toml").write_text('[hosts]\nnode0 = "rack1"\n')
    command, *options = words
    done = inside(command, str(write(night(name="run"), tmp_path)), *options)
    assert done.returncode == 2
    assert "run has " in done.stderr and "no effect" not in done.stderr


def test_a_counted_step_is_written_where_output_says(bare, tmp_path: Path) -> None:
    path = tmp_path / "step.csv"
    done = bare("workload", "ddp:toy", "--show", "--format", "csv", "--output", str(path))
    assert done.returncode == 0, done.stderr
    assert path.read_text().startswith("#name ") and f"wrote {path}" in done.stdout


@pytest.mark.parametrize("line", ['dtype = ["float", "half"]', "dtype = 5", 'op = ["sum"]'])
def test_a_table_of_an_order_has_one_type(bare, tmp_path: Path, line: str) -> None:
    suite = tmp_path / "x.toml"
    suite.write_text(
        f'description = "x"\n[[order]]\ncollective = "all_reduce"\nsizes = [4]\n{line}\n'
    )
    done = bare("run", str(suite), "--dry-run")
    assert done.returncode == 2 and "not one name" in done.stderr, done.stderr


def test_a_place_below_a_file_is_named(bare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "et")
    done = bare("workload", "ddp:toy", "--show", "--format", "chakra", "--output", place)
    assert done.returncode == 5, done.stderr
    assert str(tmp_path / "file") in done.stderr and "a file is where" in done.stderr
