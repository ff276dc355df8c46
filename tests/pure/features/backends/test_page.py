"""The page on backends has all that their contract has."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
from factories import case

from collbench.core.backend_info import CONTRACT, BackendInfo
from collbench.core.errors import CannotRun, Exit
from collbench.features.backends import check
from collbench.features.backends.check import Finished, is_abandoned, judge_fault
from collbench.features.backends.findings import MEANINGS, CheckRow, State
from collbench.features.backends.rig import Footprint
from collbench.features.backends.trial import _list_grown
from collbench.features.backends.view import judge_rows
from collbench.run.backends import Call, _skeleton
from collbench.run.order import Order
from collbench.run.reporter import Gathered

PAGE = (resources.files("collbench.cli") / "pages" / "backends.md").read_text()


def rows_of(title: str) -> set[str]:
    """The first cells of the table under a heading or a sentence, without arguments."""
    part = PAGE.partition(title)[2]
    table = part[part.index("|---") :].split("\n\n")[0]
    return {re.split(r"[`(|]", line.strip("| `"))[0].strip() for line in table.splitlines()[1:]}


def test_the_page_has_all_fields_and_checks() -> None:
    assert rows_of("## INFO") == {*BackendInfo._fields}
    assert rows_of("`prepare` returns a `Call`") == {*Call._fields}
    assert rows_of("## Checked") == {*MEANINGS}
    assert f"contract={CONTRACT}" in PAGE and f"contract={CONTRACT}" in _example()


def _example() -> str:
    return Path(_skeleton.__file__).read_text()


def test_the_example_is_as_long_as_the_page_says() -> None:
    lines = len(_example().splitlines())
    said = re.search(r"writes a file of (\d+) lines", PAGE)
    assert said and abs(int(said[1]) - lines) <= 10


def rows(*states: State) -> list[CheckRow]:
    return [
        CheckRow(check=name, state=state, text="")
        for name, state in zip(MEANINGS, states, strict=False)
    ]


@pytest.mark.parametrize(
    ("states", "code", "says"),
    [
        (("ok", "ok", "note"), Exit.OK, "3 checks passed, 1 of them with a note"),
        (("ok", "ok", "skipped"), Exit.OK, "not checked: first calls"),
        (("ok", "failed", "ok"), Exit.BAD, "1 check failed: meaning"),
        (("ok", "skipped"), Exit.NO_VERDICT, "no verdict"),
        (("note", "skipped", "ok", "ok"), Exit.NO_VERDICT, "no verdict"),
        ((), Exit.NO_VERDICT, "no verdict"),
    ],
)
def test_a_verdict_needs_what_decides_it(states: tuple[State, ...], code: Exit, says: str) -> None:
    got, verdict = judge_rows(rows(*states))
    assert got == code and says in verdict


@pytest.mark.parametrize(
    ("fault", "trouble", "seconds", "says"),
    [
        ("drop:1", "rank 1 on h (pid 3) exited with 70 while measuring", 3.0, ""),
        ("drop:1", "rank 0 on h (pid 3) exited with 70 while measuring", 3.0, "not named"),
        ("hang:1", "rank 1 on h has not moved for 5 s", 8.0, ""),
        ("hang:1", "rank 1 on h has not moved for 5 s", 80.0, "it took 80 s"),
        ("hang:1", "", 1.0, "was not reported"),
        ("corrupt:1", "", 1.0, "was not found"),
    ],
)
def test_a_fault_must_be_told_of_the_right_rank_in_time(
    fault: str, trouble: str, seconds: float, says: str
) -> None:
    said = judge_fault(fault, Finished([], (), [], trouble, seconds), 45.0)
    assert says in said and bool(says) == bool(said)


NO_ROOM = "no case can run here: 2 ranks need a GPU each, and there is 1"


@pytest.mark.parametrize(("opened", "state"), [(False, "skipped"), (True, "failed")])
def test_a_backend_that_this_machine_cannot_open_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, opened: bool, state: State
) -> None:
    """One that opens and then refuses every call may be wrong."""

    def execute(order: Order, make_reporter: Callable[[], Gathered]) -> None:
        reporter = make_reporter()
        if opened:
            reporter.worlds = {0: object()}  # type: ignore[dict-item]
        raise CannotRun(NO_ROOM)

    monkeypatch.setattr(check.session, "execute_order", execute)
    row = check.judge_meaning(check.sweep_everything("nccl", quick=True))
    assert row.state == state and NO_ROOM in row.text


def test_a_backend_that_refuses_everything_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.refusal, "refuse_anywhere", lambda case: "nothing is supported")
    row = check.judge_meaning(check.sweep_everything("gloo", quick=True))
    assert row.state == "failed" and NO_ROOM.partition(":")[0] in row.text


@pytest.mark.parametrize("gpus", [1, 3])
def test_groups_are_not_checked_where_there_is_no_gpu_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.setattr(check.environment, "gpu_count", lambda: gpus)
    row = check.check_groups(case(64, backend="nccl"))
    assert row.state == "skipped" and "4 ranks need a GPU each" in row.text


def test_both_of_two_commands_at_once_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Command:
        returncode = 1

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def communicate(self) -> tuple[str, str]:
            ended.append(1)
            return "", "planted"

    monkeypatch.setattr(check.subprocess, "Popen", Command)
    row = check._check_again(case(64))
    assert row.state == "failed" and "planted" in row.text and len(ended) == 2


@pytest.fixture
def shared() -> Iterator[Path]:
    """A page of shared memory, of this user."""
    path = Path("/dev/shm") / f"collbench-test-{os.getpid()}"
    path.write_bytes(b"\0" * mmap.PAGESIZE)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def own_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the user's only one."""
    maps = Path("/proc/self/maps")
    monkeypatch.setattr(check, "_has_unseen_sharers", lambda: False)
    monkeypatch.setattr(check, "_read_own_maps", lambda: iter([maps.read_text()]))


@pytest.mark.usefixtures("own_maps")
def test_memory_that_somebody_shares_is_not_left_behind(shared: Path) -> None:
    assert is_abandoned(str(shared)) and is_abandoned("process 7")
    with shared.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert not is_abandoned(str(shared))
    shared.unlink()
    assert not is_abandoned(str(shared))


@pytest.mark.usefixtures("own_maps")
def test_memory_that_others_may_share_unseen_is_not_left_behind(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(check.os, "getuid", lambda: os.geteuid() + 1)  # the file is another user's
        assert not is_abandoned(str(shared))

    def refuse() -> Iterator[str]:
        raise PermissionError
        yield ""

    with monkeypatch.context() as unreadable:
        unreadable.setattr(check, "_read_own_maps", refuse)
        assert not is_abandoned(str(shared))
    monkeypatch.setattr(check, "_has_unseen_sharers", lambda: True)
    assert not is_abandoned(str(shared))


def test_what_grows_is_told_with_what_made_it_grow() -> None:
    before = Footprint(100 << 20, 0, 9, 3, 500)
    assert _list_grown(before, before._replace(mappings=510), "5 calls") == []
    assert _list_grown(before, before._replace(resident=101 << 20), "5 calls") == []
    more = Footprint(100 << 20, 3 << 20, 10, 4, 511)
    assert _list_grown(before, more, "5 calls") == [
        "5 calls keep 3.0 MiB",
        "5 calls keep 1 descriptors",
        "5 calls keep 1 threads",
        "5 calls keep 11 mappings",
    ]
