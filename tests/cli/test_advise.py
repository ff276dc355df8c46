"""`collbench advise`: what it prints and writes, its exit codes, and what it refuses, on runs of a
library, both made up; once on real ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from advising import ALGORITHM, Tiny
from factories import (
    ENVIRONMENT,
    case,
    experiment,
    hosted,
    make_file,
    ratios,
    record,
    saved,
    world,
    write,
)

from collbench.core.errors import Exit
from collbench.features.advise import evidence, formats, libraries
from collbench.features.advise.formats.words import Words
from collbench.features.advise.libraries.other import Other
from collbench.features.advise.tune import confirm
from collbench.features.advise.tune.keeping import Removed
from collbench.features.advise.types import Cell
from collbench.records.types import Pairing, RunFile
from collbench.suite.policy import Policy

SIZES = (1024, 4096, 16384)


class Rules(Words):
    """A file of the made-up library, which can name variables alone."""

    key = "tiny"
    title = "Tiny's rules"
    suffix = ".tiny"
    by_size = True

    def refuse(self, advised: Any) -> str:
        return "it knows no 16 ranks" if any(row.series.n == 16 for row in advised.rows) else ""

    def use(self, path: Path) -> dict[str, str]:
        return {"TINY_RULES": str(path)}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The made-up library with its file, in an empty folder."""
    library = Tiny()
    library.formats = ("tiny", "words")
    known = [library, Other()]

    def find(the_world: Any) -> Any:
        return next(one for one in known if one.is_of(the_world))

    monkeypatch.setattr(evidence, "find_library", find)
    monkeypatch.setattr(formats, "load_formats", lambda: {"tiny": Rules(), "words": Words()})
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def swept(
    factors: Mapping[str, float],
    launches: int = 10,
    name: str = "run",
    n: int = 4,
    per_host: int = 0,
    **fields: Any,
) -> RunFile:
    """A run of fresh launches by algorithm ("": the library's choice), as times the default's; of
    ranks on one host, unless there are so many on each."""
    ranks = hosted(n, per_host or n)
    worlds, records = [], []
    for cycle in range(launches):
        for algorithm, factor in factors.items():
            index = len(worlds)
            env = ((ALGORITHM, algorithm),) if algorithm else ()
            worlds.append(world(index, env=env, n=n, library="Tiny 1.0", ranks=ranks))
            for size in SIZES:
                median = 1e6 * factor * (1 + 0.004 * ((cycle * 7 + index) % 5))
                what = case(size, env=env, cycle=cycle, n=n)
                records.append(record(what, median, world=index))
    return make_file(records, worlds, name=name, **{"policy": Policy(fresh=True), **fields})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run in which ring takes 20 % less time."""
    write(swept({"": 1.0, "ring": 0.8, "tree": 1.1}), tmp_path)
    return tmp_path


def test_the_answer_comes_first(inside, runs: Path) -> None:
    done = inside("advise", str(runs))
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *_ = done.stdout.splitlines()
    assert first == "1 setting is surely faster than Tiny's own choice, at 3 of 3 measured sizes"
    assert second.startswith("  all_reduce on 4 ranks, 1 to 16 KiB: ring takes 20% less time [")
    assert "write it: --write advice.tiny" in done.stdout
    assert "use it:  " not in done.stdout  # there is no file yet
    assert "# Advice by collbench" in done.stdout  # the file's text


def test_a_file_is_written_and_replaced_but_nobody_elses(inside, runs: Path) -> None:
    for _ in range(2):
        done = inside("advise", str(runs), "--write", "rules.tiny")
        assert done.returncode == 0
        assert "wrote rules.tiny, Tiny's rules, 1 row" in done.stdout
        lines = done.stdout.splitlines()
        export = f"export TINY_RULES={runs / 'rules.tiny'}"  # below, where it does not fit beside
        assert [line for line in lines if line.removeprefix("use it:").strip() == export]
        assert "undo it:  unset TINY_RULES" in lines
        assert "use ring" in Path("rules.tiny").read_text()
    Path("rules.tiny").write_text("# mine, about collbench\n")
    done = inside("advise", str(runs), "--write", "rules.tiny")
    assert done.returncode == 2
    assert "was not written by collbench; not overwritten" in done.stderr
    assert "--write" in done.stderr


def test_nothing_faster_is_an_answer(inside, tmp_path: Path) -> None:
    write(swept({"": 1.0, "ring": 1.0}), tmp_path)
    done = inside("advise", str(tmp_path), "--write", "none.tiny")
    assert done.returncode == 0
    assert done.stdout.startswith(
        "nothing is surely faster than Tiny's own choice: 3 sizes decided\n"
    )
    assert "No setting is surely faster" in Path("none.tiny").read_text()


def test_nothing_decided_is_exit_3_and_said_first(inside, tmp_path: Path) -> None:
    write(swept({"": 1.0, "ring": 0.5}, launches=3), tmp_path)
    done = inside("advise", str(tmp_path))
    assert done.returncode == Exit.NO_VERDICT
    assert done.stdout.startswith("nothing could be decided: 3 launches a side\n")
    assert done.stderr == "collbench: nothing could be decided: 3 launches a side\n"
    write(swept({"ring": 0.5}, name="alone"), tmp_path / "other")
    alone = inside("advise", str(tmp_path / "other"))
    assert (alone.returncode, "own choice was not measured" in alone.stdout) == (3, True)


def test_reports_are_written_and_json_has_all(inside, runs: Path) -> None:
    done = inside(
        *("advise", str(runs), "-o", "a.html", "-o", "a.md", "-o", "a.json", "--plotlyjs", "cdn"),
        *("--format", "json"),
    )
    assert done.returncode == 0
    value = json.loads(done.stdout)
    assert value == json.loads(Path("a.json").read_text())
    (row,) = value["rows"]
    assert (row["low"], row["high"], row["env"]) == (1024, 16384, {ALGORITHM: "ring"})
    assert [gain["launches"] for gain in row["gains"]] == [10, 10, 10]
    assert row["lo"] <= row["gain"] <= row["hi"]
    assert value["file"]["use"] == {}  # there is no file yet
    assert "use ring" in value["file"]["text"]
    assert len(value["rivals"]) == 6
    page = Path("a.html").read_text()
    assert '"heatmap"' in page and "Settings by size" in page
    assert "recursive" not in Path("a.md").read_text()
    assert inside("advise", str(runs), "-o", "a.md", "-o", "a.html").returncode == 0  # replaced


def test_both_sides_of_an_experiment_are_read(inside, tmp_path: Path) -> None:
    rounds = {case(size): ratios(*[-0.2 + 0.001 * step for step in range(8)]) for size in SIZES}
    variants = {"base": "", "head": f"{ALGORITHM}=ring"}
    sides = {
        side: {"pairing": Pairing(experiment="e", side=side, variant=text)}  # type: ignore[arg-type]
        for side, text in variants.items()
    }
    for file in experiment(rounds, sides=sides):
        saved(file, tmp_path / "home")
    done = inside("advise", "e-head", "--for", "words", "--format", "json")
    assert done.stderr == ""
    value = json.loads(done.stdout)
    assert value["runs"] == ["e-head", "e-base"]
    assert [row["env"] for row in value["rows"]] == [{ALGORITHM: "ring"}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the runs that measured settings"),
        (("absent",), "no run called 'absent'"),
        (("empty.jsonl",), "is not a run of collbench"),
        (("run.jsonl", "--for", "thing"), "--for"),
        (("run.jsonl", "--tau", "much"), "--tau"),
        (("run.jsonl", "--budget", "5m"), "--budget is the time for --verify"),
        (("run.jsonl", "--verify", "--budget", "soon"), "--budget"),
        (("run.jsonl", "--default", "nccl"), "--default nccl: no run has this backend"),
        (("run.jsonl", "-o", "a.csv"), "a.csv"),
        (("run.jsonl", "--format", "csv"), "--format"),
        (("sixteen.jsonl", "--for", "tiny"), "Tiny's rules cannot hold this advice: it knows no"),
        (("run.jsonl", "--verify", "--write", "empty"), "--write empty is a folder"),
        (("sixteen.jsonl", "--write", "x"), "Tiny's rules cannot hold this advice: it knows no"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    inside, runs: Path, words: tuple[str, ...], message: str
) -> None:
    Path("empty").mkdir()
    Path("empty.jsonl").write_text("")
    write(swept({"": 1.0, "ring": 0.8}, name="sixteen", n=16), runs)
    done = inside("advise", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_folder_without_a_run_has_no_verdict(inside) -> None:
    Path("empty").mkdir()
    done = inside("advise", "empty")
    assert (done.returncode, done.stdout) == (3, "")
    assert "empty has no run" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_what_a_format_cannot_say_is_shown_without_a_file(inside, tmp_path: Path) -> None:
    write(swept({"": 1.0, "ring": 0.8}, n=16), tmp_path)
    done = inside("advise", str(tmp_path))
    assert done.returncode == 0
    assert "no file: Tiny's rules cannot hold this advice: it knows no 16 ranks" in done.stdout


def test_a_format_that_refuses_leaves_undecided_its_exit_code(
    inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rules, "refuse", lambda self, advised: "it needs all sizes")
    write(swept({"": 1.0, "ring": 0.5}, launches=3), tmp_path)
    done = inside("advise", str(tmp_path), "--write", "rules.tiny")
    assert done.returncode == Exit.NO_VERDICT
    assert "no file: Tiny's rules cannot hold this advice: it needs all sizes" in done.stdout
    assert not Path("rules.tiny").exists()


def test_a_verification_removes_what_does_not_hold(
    inside, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for the experiment, which the tests of `tune` are about."""
    requests: list[Any] = []
    code, refuses = Exit.NO_VERDICT, False

    def verify(advised: Any, request: Any) -> Any:
        import msgspec

        requests.append(request)
        cell = Cell(advised.rows[0].series, 1024)
        kind = "wrong" if code == Exit.WRONG_DATA else "undecided"
        why = Removed(cell, "ring", kind, "rank 1 differs", False)
        left = () if code == Exit.NO_VERDICT else advised.rows
        if refuses:
            series = advised.rows[0].series._replace(n=16)
            left = tuple(msgspec.structs.replace(row, series=series) for row in advised.rows)
        kept = msgspec.structs.replace(advised, rows=left, unadvised=())
        return confirm.Verified(kept, (why,), (), code)

    monkeypatch.setattr(confirm, "verify_advice", verify)
    monkeypatch.setattr(evidence.environment, "gather_facts", lambda: ENVIRONMENT)
    done = inside("advise", str(runs), "--verify", "--budget", "90s", "--oversubscribed")
    assert done.returncode == 3
    assert done.stdout.startswith("nothing could be verified: rank 1 differs\n")
    assert "removed: all_reduce, 4 ranks, ring at 1 KiB: rank 1 differs" in done.stdout
    (request,) = requests
    assert (request.budget, request.despite_oversubscription) == (90.0, True)
    assert request.policy.fresh is False
    (axes,) = request.sweeps
    assert (axes.sizes, axes.envs) == (SIZES, ((),))
    code = Exit.WRONG_DATA
    done = inside("advise", str(runs), "--verify")
    assert done.returncode == 7
    assert done.stdout.startswith("wrong data: all_reduce, 4 ranks, ring at 1 KiB: rank 1")
    code, refuses = Exit.OK, True
    done = inside("advise", str(runs), "--verify", "--write", "rules.tiny", "-o", "a.json")
    assert done.returncode == 2  # of which only the verification could know
    assert "Tiny's rules cannot hold this advice: it knows no 16 ranks" in done.stderr
    assert json.loads(Path("a.json").read_text())["removed"]
    assert not Path("rules.tiny").exists()
    code = Exit.INTERRUPTED
    done = inside("advise", str(runs), "--verify", "--write", "rules.tiny")
    assert done.returncode == Exit.INTERRUPTED
    assert "no file: Tiny's rules cannot hold this advice: it knows no 16 ranks" in done.stdout


@pytest.mark.parametrize(
    ("fields", "here", "message"),
    [
        ({"per_host": 2}, {}, "the advice is for several hosts"),
        (
            {},
            {"kernel": "7.0"},
            "--verify: run run was measured elsewhere: the software differs: kernel 6.1.0 -> 7.0",
        ),
        ({}, {"product": "KVM"}, "run run was measured elsewhere: the machines differ: product"),
        ({}, {"variables": {"UCX_TLS": "tcp"}}, "the settings differ: variables.UCX_TLS"),
        ({"environment": {**ENVIRONMENT, "variables": {ALGORITHM: "0"}}}, {}, ""),
    ],
)
def test_advice_for_elsewhere_is_not_verified_here(
    inside,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    here: dict[str, Any],
    message: str,
) -> None:
    """Variables that are settings may differ: the file takes their place."""
    verified: list[Any] = []

    def verify(advised: Any, request: Any) -> Any:
        verified.append(request)
        return confirm.Verified(advised, (), (), Exit.OK)

    monkeypatch.setattr(confirm, "verify_advice", verify)
    monkeypatch.setattr(evidence.environment, "gather_facts", lambda: {**ENVIRONMENT, **here})
    write(swept({"": 1.0, "ring": 0.8}, **fields), tmp_path)
    done = inside("advise", str(tmp_path), "--verify")
    assert done.returncode == (2 if message else 0), done.stderr
    assert message in done.stderr and bool(verified) is not bool(message)


@pytest.mark.parametrize("factors", [{"ring": 0.5}, {"": 1.0, "ring": 1.0}])
def test_without_a_row_there_is_nothing_to_verify(
    inside, tmp_path: Path, factors: Mapping[str, float]
) -> None:
    write(swept(factors), tmp_path)
    done = inside("advise", str(tmp_path), "--verify")
    assert done.returncode == (0 if "" in factors else 3)
    assert "--verify: there is no row to verify" in done.stderr


def test_what_it_is_worth_for_a_job(inside, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collbench.features.advise import worth
    from collbench.features.advise.worth import JobSizes, SizeCalls

    job = JobSizes("job", (SizeCalls("all_reduce", 4, 4096, 50),))
    given: list[Any] = []
    monkeypatch.setattr(worth, "load_sizes", lambda sources: given.append(sources) or job)
    done = inside("advise", str(runs), "--sizes-of", "trace.json")
    assert done.returncode == 0
    assert given == [["trace.json"]]
    assert "It saves 9." in done.stdout.splitlines()[2]  # ms: 50 calls of 1 ms, 20 % less


@pytest.mark.slow
@pytest.mark.long
def test_real_ranks(inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asserted of time: every cell has an answer, and every row is sure."""
    from collbench.features.advise.libraries import find_library

    monkeypatch.undo()
    monkeypatch.setenv("COLLBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(libraries, "MODULES", ("other",))
    monkeypatch.setattr(formats, "MODULES", ("words",))
    monkeypatch.setattr("sys.argv", ["collbench"])
    monkeypatch.setattr(evidence, "find_library", find_library)
    sweep = ("--sizes", "1K,8K,64K,256K", "-g", "2", "--backend", "gloo", "--place", "out")
    rivals = ("--algo", "native,ring,recursive_doubling", "--env", "OMP_NUM_THREADS=1")
    timing = ("--launches", "10", "--max-time", "0.05", "--tag", "settings")
    assert inside("all_reduce", *sweep, *rivals, *timing).returncode == 0
    plain = inside("all_reduce", *sweep, *timing[:-1], "settings")
    assert plain.returncode == 0
    done = inside("advise", "@last", "@last~1", "--format", "json", "--oversubscribed")
    value = json.loads(done.stdout)
    assert done.returncode in (0, 3)
    cells = {(each["nbytes"]) for each in value["unadvised"]}
    cells |= {gain["nbytes"] for row in value["rows"] for gain in row["gains"]}
    assert cells == {1 << 10, 8 << 10, 64 << 10, 256 << 10}
    assert all(each["why"] for each in value["unadvised"])
    for row in value["rows"]:
        assert len(row["gains"]) >= 2
        assert all(gain["p"] <= 0.05 and gain["lo"] > 0 for gain in row["gains"])
