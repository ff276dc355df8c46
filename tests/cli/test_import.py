"""`collbench import` as a user runs it: files in, runs out that the other commands know."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.core.errors import Exit
from collbench.records import run_file, store

OSU = """# OSU MPI Allreduce Latency Test v7.4
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       3.25              2.00              5.50        1000
8                       3.30              2.10              5.75        1000
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "osu.log"
    path.write_text(OSU)
    return path


def test_an_imported_run_is_listed_reported_and_compared_like_any_other(
    bare, log: Path, tmp_path: Path
) -> None:
    done = bare("import", str(log), "--ranks", "4", "--tag", "mine", "--host", "node7")
    assert done.returncode == 0 and done.stderr == ""
    first, saved, following = done.stdout.splitlines()
    assert first.endswith("osu.log: 2 records of all_reduce, 4 ranks (OSU Micro-Benchmarks 7.4)")
    assert Path(saved.partition("saved: ")[2]) == store.list_saved()[0]
    assert following == f"next: collbench report {store.list_saved()[0].stem}"
    file = run_file.read_file(store.find_run("mine"))
    assert file.run.imported == "OSU Micro-Benchmarks 7.4" and file.run.environment == {
        "host": "node7",
        "variables": {},
    }
    assert "-imported-" in file.run.id and file.end and file.end.exit == 0
    assert "mine" in bare("runs").stdout
    report = bare("report", "@last", "-o", str(tmp_path / "r.html"))
    assert report.returncode == 0, report.stderr
    assert "OSU Micro-Benchmarks 7.4" in (tmp_path / "r.html").read_text()
    assert bare("import", str(log), "-g", "4").returncode == 0
    compared = bare("compare", "@last~1", "@last", "--format", "json")
    assert compared.returncode == Exit.NO_VERDICT, compared.stderr
    assert [row["verdict"] for row in json.loads(compared.stdout)["rows"]] == ["INCONCLUSIVE"] * 2
    assert "--across-machines" in compared.stderr
    told = bare("compare", "@last~1", "@last", "--across-machines")
    assert told.returncode == Exit.NO_VERDICT, told.stderr
    assert told.stdout.count("INCONCLUSIVE") == 2
    assert "identical" not in told.stdout


def test_where_no_run_is_saved_the_list_says_so(bare) -> None:
    done = bare("runs")
    assert done.returncode == 0
    assert "no run is saved yet" in done.stdout


@pytest.mark.parametrize("collective", ["all_to_allv", "barrier", "reduce"])
def test_own_text_and_json_of_a_whole_run_come_back(bare, tmp_path: Path, collective: str) -> None:
    saved = tmp_path / "out.json"
    done = bare(
        collective,
        "-b",
        "1K",
        "-e",
        "64K",
        "-g",
        "2,4",
        "--backend",
        "model",
        "--algo",
        "native",
        "--format",
        "nccl",
        "-J",
        str(saved),
    )
    assert done.returncode == 0, done.stderr
    text = tmp_path / "out.txt"
    text.write_text(done.stdout)
    before = [
        r for r in run_file.read_file(store.find_run("@last")).records if r.status == "predicted"
    ]
    assert before
    again = bare("import", str(text), str(saved))
    assert again.returncode == 0, again.stderr
    ids = [line.rpartition("/")[2] for line in again.stdout.splitlines() if "saved:" in line]
    assert ids == [path.name for path in store.list_saved()[-2:]]  # in the order given
    assert again.stdout.endswith(f"next: collbench compare {' '.join(i[:-6] for i in ids)}\n")
    assert "not understood" not in again.stdout and again.stderr == ""
    for path in store.list_saved()[-2:]:
        kept = {r.case.key: r for r in run_file.read_file(path).records if r.told}
        assert {r.case.size for r in before} == {r.case.size for r in kept.values()} and len(
            kept
        ) == len(before)
        for r in kept.values():
            times = [
                b.times_ns[0]
                for b in before
                if (b.case.n, b.case.size, b.case.in_place)
                == (r.case.n, r.case.size, r.case.in_place)
            ]
            assert any(abs(r.told.time - t) <= 5.1 + 1e-4 * t for t in times)
            assert r.status == "predicted"


def test_shown_as_csv_unknown_columns_are_empty(log: Path, bare) -> None:
    bare("import", str(log), "-g", "4")
    code = "\n".join(
        [
            "import sys",
            "import collbench",
            "from collbench.records import derive, run_file, store",
            "from collbench.show import programs",
            "file = run_file.read_file(store.find_run('@last'))",
            "out = programs.Csv(sys.stdout)",
            "out.begin(file.run, [], [])",
            "for r in file.records: out.record(r, derive.derive_row(r))",
            "out.end(file.end, None)",
            "frame = collbench.frame(file)",
            "assert frame['min'].isna().all() and (frame['median'] == [5500, 5750]).all()",
        ]
    )
    done = bare("-c", code)
    assert done.returncode == 0, done.stderr
    first, _ = csv.DictReader(io.StringIO(done.stdout))
    assert (first["min"], first["mad"], first["median"], first["samples"], first["mean"]) == (
        "",
        "",
        "5500.0",
        "1000",
        "5500.0",
    )


def test_standard_input_and_a_file_of_ones_own_choice_which_is_never_overwritten(
    bare, log: Path, tmp_path: Path
) -> None:
    target = tmp_path / "mine.jsonl"
    words = ["-g", "2", "--output", str(target)]
    command = [sys.executable, "-m", "collbench", "import", "-", *words]
    read = subprocess.run(command, input=OSU, capture_output=True, text=True, check=False)
    assert read.returncode == Exit.OK, read.stderr
    again = bare("import", str(log), *words)
    assert (
        again.returncode == Exit.USAGE
        and "never overwritten" in again.stderr
        and len(run_file.read_file(target).records) == 2
        and store.list_saved() == []
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nowhere.log",), "cannot read"),
        (("{log}",), "how many ranks"),
        (("{log}", "--from", "xml"), "not one of"),
        (("{log}", "{log}", "-g", "4", "--output", "x.jsonl"), "give a folder"),
        (("{log}", "{void}", "-g", "4"), "not a log of a known kind"),
    ],
)
def test_bad_input_is_told_in_words_and_leaves_no_run_behind(
    bare, log: Path, args: tuple[str, ...], words: str
) -> None:
    void = log.with_name("void.log")
    void.write_text("nothing here\n")
    done = bare("import", *(arg.format(log=log, void=void) for arg in args))
    assert done.returncode == Exit.USAGE
    assert (
        words in done.stderr
        and "Traceback" not in done.stderr
        and len(done.stderr.splitlines()) <= 2
    )
    assert store.list_saved() == []


def test_nothing_from_a_log_steers_the_terminal_or_lands_in_a_report_unescaped(
    bare, tmp_path: Path
) -> None:
    evil = "\x1b[31m<script>alert(1)</script>"
    text = "\n".join(
        [
            "# nccl-tests version 2.19.6 nccl-headers=23004 nccl-library=23004",
            f"# Collective test starting: all_reduce_perf{evil}",
            (
                "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters:"
                " 20 validation: 1"
            ),
            *(
                f"#  Rank  {r} Group  0 Pid  1{r} on {evil} device  {r} [0000:0{r}:00] {evil}|"
                for r in range(2)
            ),
            "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
            "4096 1024 float sum -1 10.00 0.41 0.41 0 10.00 0.41 9.99 0",
            f"8192 2048 {evil} sum -1 10.00",
            "8192 2048 evil\x1b sum -1",
            "8192 2048 float\x9b31m -1",
            "# Out of bounds values : 0 OK",
        ]
    )
    path = tmp_path / "evil.log"
    path.write_text(text)
    done = bare("import", str(path))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert (
        "busbw 9.99 is not what 2 ranks make of 4096 B" in done.stderr and "--ranks" in done.stderr
    )
    page = tmp_path / "page.html"
    assert bare("report", "@last", "-o", str(page)).returncode == 0
    assert "<script>alert(1)" not in page.read_text()


def test_wrong_data_in_a_log_exits_7_and_is_saved(inside, tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20\n"
        "#  Rank  0 Group  0 Pid  1 on n device  0 [0000:00:00] x\n"
        "#  Rank  1 Group  0 Pid  1 on n device  1 [0000:01:00] x\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        "4096 1024 float sum -1 10.00 0.41 0.41 9 10.00 0.41 0.41 0\n"
        "# Out of bounds values : 1 FAILED\n"
    )
    done = inside("import", str(path))
    assert done.returncode == Exit.WRONG_DATA
    assert "1 record is wrong (9 elements)" in done.stderr
    assert [record.status for record in run_file.read_file(store.find_run("@last")).records] == [
        "wrong",
        "ok",
    ]


OSU_ROW = "# OSU MPI Allreduce Latency Test v7.2\n# Size       Avg Latency(us)\n4096      9.00\n"
NCCL_ROW = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20\n"
    "#  Rank  0 Group  0 Pid  1 on n device  0 [0000:00:00] x\n"
    "#  Rank  1 Group  0 Pid  1 on n device  1 [0000:01:00] x\n"
    "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    "4096 1024 float sum -1 10.00 0.41 0.41 0 10.00 0.41 0.41 0\n"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("osu_allreduce", OSU_ROW + "DATA VALIDATION ERROR: osu_allreduce exited with status 1\n"),
        ("all_reduce", NCCL_ROW + "# Out of bounds values : 3 FAILED\n"),
    ],
)
def test_failed_checks_that_no_row_shows_are_told_once(
    name: str, text: str, inside, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.log"
    path.write_text(text)
    done = inside("import", str(path), "-g", "2")
    assert done.returncode == Exit.WRONG_DATA
    assert len(re.findall(r"checks? of the data failed", done.stdout + done.stderr)) == 1
