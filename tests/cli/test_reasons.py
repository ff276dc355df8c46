"""What cannot run says what would, and which case it is; sizes that a file gives are the file's."""

from __future__ import annotations

from pathlib import Path

import pytest

TWO = ("-b", "8", "-e", "8", "-g", "2", "--dry-run")


@pytest.mark.parametrize(
    ("words", "reason", "hint"),
    [
        (("scan", *TWO), "has no scan: name an algorithm (--algo recursive_doubling)", "doctor"),
        (("scan", *TWO, "--backend", "shm"), "name an algorithm (--algo recursive_doubling)", ""),
        (("all_reduce", *TWO, "--backend", "symm"), "symm needs ", "doctor"),
        (("all_reduce", *TWO, "--backend", "shm"), "name an algorithm (--algo ring)", ""),
        (("broadcast", *TWO, "--backend", "shm"), "name an algorithm (--algo linear)", ""),
        (
            ("broadcast", *TWO, "-r", "7"),
            "root 7 does not exist among 2 ranks",
            "hint: choose -r below",
        ),
        (("all_reduce", "--sizes", "64T", "-g", "2", "--dry-run"), "64 TiB on 2 ranks", "smaller"),
        (("all_reduce", *TWO, "-o", "band"), "defined on integers only", "hint: use -d int32"),
        (("sendrecv", *TWO, "--place", "in"), "no in-place form", "hint: use --place out"),
        (("sendrecv", *TWO, "--backend", "shm"), "name an algorithm", "doctor"),
    ],
)
def test_where_nothing_runs_a_remedy_is_named(bare, words, reason: str, hint: str) -> None:
    done = bare(*words, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 5
    assert reason in done.stderr
    assert hint in done.stderr


@pytest.mark.parametrize("name", ["scan", "all_reduce", "broadcast", "gather"])
def test_the_algorithm_that_is_named_runs(bare, name: str) -> None:
    told = bare(name, *TWO, "--backend", "shm").stderr
    algorithm = told.partition("(--algo ")[2].partition(")")[0]
    assert bare(name, *TWO, "--backend", "shm", "--algo", algorithm).returncode == 0


@pytest.fixture
def traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("traffic.txt").write_text("0 2097152\n1048576 0\n")
    return tmp_path / "traffic.txt"


SPLITS = ("all_to_allv", "-g", "2", "--place", "out", "--backend", "model", "--format", "csv")


@pytest.mark.usefixtures("traffic")
def test_a_matrix_has_one_row_of_its_own_size(bare) -> None:
    done = bare(*SPLITS, "--splits", "matrix:traffic.txt", "-b", "1K", "-e", "4K")
    head, *rows = (line.split(",") for line in done.stdout.splitlines())
    assert [row[head.index("nbytes")] for row in rows] == ["2097152"]
    assert "its sizes are the table's, whatever -b, -e and --sizes say" in done.stderr


@pytest.mark.usefixtures("traffic")
def test_beside_a_matrix_other_splits_are_swept(bare) -> None:
    done = bare(*SPLITS, "--splits", "uniform,matrix:traffic.txt", "-b", "1K", "-e", "4K")
    head, *rows = (line.split(",") for line in done.stdout.splitlines())
    sizes = [row[head.index("nbytes")] for row in rows]
    assert sorted(sizes) == ["1024", "2048", "2097152", "4096"]


@pytest.mark.usefixtures("traffic")
def test_without_sizes_a_matrix_is_not_remarked(bare) -> None:
    done = bare(*SPLITS, "--splits", "matrix:traffic.txt")
    assert done.returncode == 0 and "the table's" not in done.stderr


def test_where_a_zipfs_size_comes_from_is_told(bare) -> None:
    done = bare(*SPLITS, "--splits", "zipf:1.2", "-b", "1K", "-e", "1K")
    assert "size is the largest buffer, that of the rank that gets most" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("0 1\n1 0\n", 5, "matrix:bad.txt gives no rank a float element (4 B) to send"),
        ("0 nan\n1 0\n", 2, "bad.txt holds a number that is not finite"),
        ("0 inf\n1 0\n", 2, "bad.txt holds a number that is not finite"),
        ("", 2, "bad.txt is"),
        (None, 2, "cannot read bad.txt: there is no such file"),
    ],
)
def test_a_matrix_that_cannot_be_is_told(bare, traffic: Path, text, code, reason) -> None:
    if text is not None:
        traffic.with_name("bad.txt").write_text(text)
    done = bare(*SPLITS, "--splits", "matrix:bad.txt", "--dry-run")
    assert done.returncode == code
    assert reason in done.stderr
    assert "Warning" not in done.stderr
