"""MPICH's algorithms, and its trees of choices: written into the library's own, and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from advised import advised, assert_misread, find_differences, make_mpich_tree, row, some_rows
from factories import world
from hypothesis import HealthCheck, given, settings

from collbench.core.errors import UsageError
from collbench.features.advise.formats import choose, mpich
from collbench.features.advise.formats.files import refuse_files, write_files
from collbench.features.advise.libraries.mpich import FUNCTIONS, LIBRARY
from collbench.features.advise.types import Series, Setting, Variables

(FORMAT,) = mpich.FORMATS
COLLECTIVES = tuple(FUNCTIONS)
RING = ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "ring")
FREE = ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "mpir")


@pytest.fixture(autouse=True)
def tree(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mpich, "find_tree", make_mpich_tree)
    monkeypatch.setattr(mpich, "find_library", lambda: None)
    yield


def one(low: int = 8, high: int = 64, n: int = 4, env: Variables = (RING, FREE), **more: Any):
    return row(LIBRARY, "all_reduce", n, low, high, env, **more)


def write(*rows: Any) -> str:
    return FORMAT.write(advised(LIBRARY, rows))


@given(some_rows(LIBRARY, COLLECTIVES))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_read_back_chooses_the_rows_and_nothing_else(rows) -> None:
    assert find_differences(LIBRARY, FORMAT, rows) == []


def test_all_other_choices_stay_as_they_are_built_in() -> None:
    text = write(one())
    generic, shared = mpich._split_trees(text)
    built_in = make_mpich_tree()
    chain = generic.pop("collective=allreduce")["comm_type=intra"]
    own = built_in.pop("collective=allreduce")["comm_type=intra"]
    assert generic == built_in
    assert list(chain) == ["comm_size<=3", "comm_size<=4", "comm_size=any"]
    assert chain["comm_size<=3"] == chain["comm_size=any"] == own
    assert list(chain["comm_size<=4"]) == [
        *("avg_msg_size<=7", "avg_msg_size<=64", "avg_msg_size=any"),
    ]
    assert set(shared) == {
        f"collective={each}" for each in ("bcast", "barrier", "allreduce", "reduce")
    }
    assert "/* all_reduce, 4 ranks, 8 B to 64 B: ring, 14.0% less time" in text


def test_no_rows_are_a_file_that_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text(write())
    assert FORMAT.read(path.read_text()) == [] and FORMAT.use(path) == {}


def test_the_second_tree_lies_beside_the_file_and_belongs_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mpich.json"
    write_files(FORMAT, advised(LIBRARY, [one()]), path)
    used = FORMAT.use(path)
    assert used["MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"] == str(path)
    beside = Path(used["MPIR_CVAR_CH4_POSIX_COLL_SELECTION_TUNING_JSON_FILE"])
    tree = json.loads(mpich._blank_comments(beside.read_text()))
    assert tree == mpich._split_trees(path.read_text())[1]
    beside.write_text("{}")
    with pytest.raises(UsageError, match="not the one"):
        FORMAT.use(path)
    with pytest.raises(UsageError, match="not written by collbench"):
        refuse_files(FORMAT, path)
    beside.unlink()
    for absent in (path, tmp_path / "absent.json"):
        with pytest.raises(UsageError):
            FORMAT.use(absent)
    assert [each.name for each in tmp_path.iterdir()] == ["mpich.json"]  # nothing was written


def test_advice_without_rows_takes_the_second_tree_away(tmp_path: Path) -> None:
    path = tmp_path / "mpich.json"
    write_files(FORMAT, advised(LIBRARY, [one()]), path)
    write_files(FORMAT, advised(LIBRARY, []), path)
    assert [each.name for each in tmp_path.iterdir()] == ["mpich.json"] and FORMAT.use(path) == {}


def test_the_tree_of_a_library_is_the_largest_that_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "libmpi.so.12"
    small = {"collective=allgather": {"composition=MPIDI_Allgather": {}}}
    texts = [json.dumps(each).encode() for each in (small, make_mpich_tree())]
    path.write_bytes(b"\x7fELF\0" + texts[0] + b"\0\0" + texts[1] + b"\0rest")
    assert mpich.read_tree(path) == make_mpich_tree()
    path = tmp_path / "other.so"
    path.write_bytes(b"\x7fELF\0")
    assert mpich.read_tree(path) == {}


def test_only_what_bears_on_a_collective_stays() -> None:
    other = ("MPIR_CVAR_BCAST_INTRA_ALGORITHM", "binomial")
    auto = ("MPIR_CVAR_ALLREDUCE_COMPOSITION", "auto")
    own = ("UCX_TLS", "tcp")
    assert LIBRARY.reduce("all_reduce", (RING, other, auto, own)) == (RING, own)
    assert (
        LIBRARY.reduce("reduce", (("MPIR_CVAR_REDUCE_SCATTER_BLOCK_INTRA_ALGORITHM", "x"),)) == ()
    )
    for collective in FUNCTIONS:
        for n in (2, 3, 4):
            listed = LIBRARY.list_settings(collective, n, "")
            assert 2 <= len(listed) < 10
            assert [LIBRARY.reduce(collective, each) for each in listed] == list(listed)
    names = [
        LIBRARY.name_setting("all_reduce", Setting(backend="mpi", env=env))
        for env in ((RING, FREE), (FREE,), (RING,), ())
    ]
    assert names == ["ring", "mpir", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring", "default"]


def test_it_is_told_by_what_its_worlds_say() -> None:
    assert LIBRARY.is_of(world(backend="mpi", library="MPICH 5.0.2"))
    assert not LIBRARY.is_of(world(backend="mpi", library="Open MPI 5.0.11"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([one(env=(RING,))], "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM holds for all sizes"),
        ([one(nodes=1), one(nodes=2)], "hosts"),
        ([one(high=1 << 31)], "numbers end"),
        ([row(LIBRARY, "scan", 4, 8, 64, (("UCX_TLS", "tcp"),))], "no size of scan"),
        ([one(backend="gloo")], "backend gloo"),
    ],
)
def test_what_trees_cannot_say_is_refused(rows, reason: str) -> None:
    assert reason in FORMAT.refuse(advised(LIBRARY, rows))


def test_without_the_library_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpich, "find_tree", dict)
    assert "has no MPICH to read them from" in FORMAT.refuse(advised(LIBRARY, [one()]))


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (("", ""), 0, ""),
        (('"comm_size<=3"', '"comm_size<=9"'), 1, "comm_size<=4 is out of order"),
        (('"comm_size<=4"', '"comm_size<=99999"'), 1, "out of order, or too large"),
        (('"comm_size<=4"', '"com_size<=4"'), 1, "'com_size<=4' is no bound"),
        (('"avg_msg_size<=64"', '"avg_msg_size<=6"'), 1, "avg_msg_size<=6 is out of order"),
        (('"avg_msg_size<=64"', '"avg_msg_size<=99999999999"'), 1, "is no bound"),
        (('"avg_msg_size<=64"', '"total_msg_size<=64"'), 1, "is no bound of avg_msg_size"),
        (("Allreduce_intra_ring", "Allreduce_intra_rnig"), 1, "is no algorithm of all_reduce"),
    ],
)
def test_what_the_library_would_refuse_is_told_with_its_line(change, line, reason) -> None:
    text = write(one())
    changed = text.replace(*change, 1) if line else text
    if not line:
        assert choose(FORMAT.read(changed), Series("all_reduce", 4, 1), 8) == "ring"
        assert FORMAT.read(changed.replace("\n", "\r\n")) == FORMAT.read(changed)
        return
    with pytest.raises(UsageError) as error:
        FORMAT.read(changed)
    assert error.value.message.startswith("line ") and reason in error.value.message


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("size", 1), ("\n{", 2), ("{}\n", 1), ("{}{}{}", 1), ("[]{}", 1), ("größe", 1)],
)
def test_what_is_no_pair_of_trees_is_told_with_its_line(text: str, line: int) -> None:
    assert_misread(FORMAT, text, line)
