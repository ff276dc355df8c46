"""MLX as a user measures it: what it does, what it is refused for, and faults planted in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from needs import need_backend
from paths import before
from sweeping import FEW, ONE, read_csv, read_records, run_without, write_suite

from collbench.run.refusal import refuse_case
from collbench.suite.case import Case
from collbench.suite.policy import Policy


@pytest.fixture
def mlx() -> None:
    need_backend("mlx")


@pytest.mark.slow
def test_collectives_have_right_data_or_a_reason(cli, mlx, tmp_path: Path) -> None:
    more = 'dtypes = ["float", "double", "bfloat16", "uint8", "f8e5m2"]\nops = ["sum", "max"]'
    collectives = ("all_reduce", "all_gather", "sendrecv")
    suite = write_suite(tmp_path / "mlx.toml", "mlx", collectives, ranks="3", more=more)
    path, folder = tmp_path / "run.jsonl", tmp_path / "tmp"
    folder.mkdir()
    words = ("--format", "csv", "--output", str(path))
    done = cli("run", str(suite), *words, timeout=250, TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    records = read_records(path)
    measured = [record for record in records if record.status != "skipped"]
    assert {(record.status, record.wrong or 0) for record in measured} == {("ok", 0)}
    assert all(record.checked for record in measured if record.case.nbytes)
    assert {record.case.n for record in measured} == {3}
    assert {r.case.collective for r in measured} == {*collectives}
    assert {row["implementation"] for row in read_csv(done.stdout)} == {"mlx"}
    reasons = {record.note for record in records if record.status == "skipped"}
    assert reasons == {"MLX has no datatype f8e5m2"}
    assert not [*folder.glob("collbench-tmp-*")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"collective": "broadcast"}, "MLX's ring has no broadcast"),
        ({"collective": "reduce_scatter"}, "MLX's ring has no reduce_scatter"),
        ({"op": "prod"}, "MLX has no all_reduce by prod"),
        ({"in_place": True}, "MLX's arrays do not change"),
        ({"algorithm": "ring"}, "leave --algo out"),
        ({"dtype": "f8e4m3"}, "MLX has no datatype f8e4m3"),
        ({"n": 1}, "a ring of MLX has at least two ranks"),
        ({"op": "max"}, ""),
    ],
)
def test_what_it_has_not_is_refused_before_ranks_start(fields, reason: str) -> None:
    given = {"collective": "all_reduce", "n": 2, "nbytes": 64, "op": "sum", **fields}
    refusal = refuse_case(Case(backend="mlx", **given), Policy())
    assert reason in refusal if reason else not refusal


@pytest.mark.slow
def test_messages_longer_than_sockets_hold_pass_each_other(cli, mlx) -> None:
    words = ("--sizes", "16M", "-g", "2", "--no-save", "--format", "csv", *FEW)
    done = cli("sendrecv", "--backend", "mlx", *words)
    assert done.returncode == 0, done.stderr
    assert [row["wrong"] for row in read_csv(done.stdout)] == ["0"]


@pytest.mark.slow
def test_groups_of_a_split_are_measured_at_once(cli, mlx) -> None:
    sizes = ("--sizes", "4K", "-g", "4", "--split", "mod:2", "--no-save", "--format", "csv")
    done = cli("all_gather", "--backend", "mlx", *sizes, *FEW)
    assert done.returncode == 0, done.stderr
    rows = read_csv(done.stdout)
    assert [(row["group"], row["wrong"], row["n"]) for row in rows] == [
        ("0", "0", "2"),
        ("1", "0", "2"),
    ]


@pytest.mark.slow
def test_a_flipped_bit_is_wrong_data(cli, mlx) -> None:
    done = cli(*ONE, "--backend", "mlx", "--inject", "corrupt:1")
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
def test_a_rank_that_ends_is_named(cli, mlx) -> None:
    done = cli(*ONE, "--backend", "mlx", "--inject", "drop:1")
    assert done.returncode == 4, done.stderr
    assert "rank 1 on" in done.stderr and "exited with status 70" in done.stderr


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_run(cli, mlx) -> None:
    done = cli(*ONE, "--backend", "mlx", "--inject", "hang:1", "-T", "5")
    assert done.returncode == 4, done.stderr
    assert "for 5 s" in done.stderr


def test_without_its_package_it_says_what_installs_it(cli, tmp_path: Path) -> None:
    done = run_without(cli, "mlx", tmp_path / "bare", *ONE, "--backend", "mlx")
    assert done.returncode == 5
    assert "mlx is not installed: pip install 'collbench[mlx]'" in done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="mlx brings its library itself elsewhere")
def test_without_its_library_for_cpus_it_says_what_brings_it(cli, tmp_path: Path) -> None:
    (tmp_path / "half" / "mlx").mkdir(parents=True)
    (tmp_path / "half" / "mlx" / "__init__.py").write_text("")
    done = cli(*ONE, "--backend", "mlx", PYTHONPATH=before(tmp_path / "half"))
    assert done.returncode == 5
    assert "mlx has no library for CPUs here" in done.stdout + done.stderr
