"""Backends that lie, each of them the example with one thing wrong: the check that finds it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from collbench.core import backend_info as backends
from collbench.core.backend_info import backend_info
from collbench.core.errors import Exit
from collbench.features.backends import check
from collbench.features.backends.findings import CheckRow
from collbench.suite.case import Case
from collbench.suite.sweep import Axes, expand_axes

Register = Callable[..., str]
Change = tuple[str, str]
OPENED = 'self.find_group(rank, n).open_group("gloo")'
LOADED = "array, result = send.numpy().copy(), None"
GATHERED = "dist.all_gather_object(arrays, array, group=self._group)\n"
SUMMED = "result = getattr(numpy, REDUCE[case.op]).reduce(arrays)\n"
STORED = "if result is not None:\n"
MADE = "return Call(run, None, load=load, store=store)"


class Lie(NamedTuple):
    """What is changed in the example, the check that fails, and what it says."""

    changes: tuple[Change, ...]
    fails: str
    says: str


ON_RANKS = {
    "a result that load() does not drop": Lie(
        ((LOADED, "array = send.numpy().copy()"),), "stale", "store() brings a result"
    ),
    "a run() that leaves the work to store()": Lie(
        (
            ("        def run() -> None:\n", "        def work() -> None:\n"),
            (STORED, "work()\n            if result is not None:\n"),
            (MADE, "return Call(lambda: None, None, load=load, store=store)"),
        ),
        "stale",
        "store() brings a result",
    ),
    "a run() that a thread goes on with": Lie(
        (
            ("def create(", "THREAD = ThreadPoolExecutor(1)\n\n\ndef create("),
            (
                "from typing import Any\n",
                "from concurrent.futures import ThreadPoolExecutor\nfrom typing import Any\n",
            ),
            ("        def run() -> None:\n", "        def work() -> None:\n"),
            (
                "        def store() -> None:\n",
                "        def run() -> None:\n"
                "            THREAD.submit(work)\n\n"
                "        def store() -> None:\n"
                "            THREAD.submit(int).result()\n",
            ),
            (LOADED, "THREAD.submit(int).result()\n            " + LOADED),
        ),
        "honest",
        "run() took",
    ),
    "an input that is overwritten": Lie(
        ((GATHERED, GATHERED + "            send[-1:] = 0\n"),),
        "input",
        "has changed what was sent",
    ),
    "a first call that is wrong": Lie(
        (
            (
                GATHERED,
                GATHERED
                + "            arrays = arrays if calls else [a[::-1].copy() for a in arrays]\n"
                + "            calls += 1\n",
            ),
            (
                "            nonlocal result\n            arrays",
                "            nonlocal result, calls\n            arrays",
            ),
            ("        result: Any = None\n", "        result: Any = None\n        calls = 0\n"),
        ),
        "first calls",
        "call 1",
    ),
    "a result that worlds share": Lie(
        (
            ("def create(", "LAST: dict[str, Any] = {}\n\n\ndef create("),
            (
                "        def store() -> None:\n",
                "            LAST[case.key] = result\n\n        def store() -> None:\n",
            ),
            ("torch.from_numpy(result)", "torch.from_numpy(LAST[case.key])"),
        ),
        "worlds",
        "wrong with two worlds",
    ),
    "a bare() that raises": Lie(
        ((MADE, "return Call(run, None, bare=lambda: 1 / 0, load=load, store=store)"),),
        "overhead",
        "bare() raises ZeroDivisionError",
    ),
    "memory that is kept": Lie(
        (
            (GATHERED, GATHERED + "            KEPT.append(numpy.ones(1024))\n"),
            ("def create(", "KEPT: list[Any] = []\n\n\ndef create("),
        ),
        "leaks",
        "500 calls keep",
    ),
    "a descriptor that is kept": Lie(
        ((MADE, "import os\n\n        os.dup(2)\n        " + MADE),),
        "leaks",
        "20 prepared calls keep 20 descriptors",
    ),
}

QUICK = ("a result that load() does not drop",)

Ask = Callable[..., list[CheckRow]]


@pytest.fixture
def ask(warm, write_example) -> Ask:
    """``ask(what, name, *changes)``: the rows of a check of the example with parts of its text
    replaced, or without changes of collbench's own backend of this name."""

    def run(what: str, name: str, *changes: Change) -> list[CheckRow]:
        word = str(write_example(name, *changes)) if changes else name
        process = warm.start(what, word, script=__file__)
        out, err = process.communicate(200)
        assert process.wait() == 0, err
        return msgspec.json.decode(out.splitlines()[-1], type=list[CheckRow])

    return run


NOTHING = ("", "")  # is changed


def state_of(rows: list[CheckRow], name: str) -> CheckRow:
    found = [row for row in rows if row.check == name]
    assert found, f"no check {name} among {[row.check for row in rows]}"
    return next((row for row in found if row.state == "failed"), found[0])


@pytest.mark.slow
def test_ranks_find_nothing_in_the_example(ask: Ask) -> None:
    rows = ask("ranks", "honest_one", NOTHING)
    assert {row.state for row in rows} <= {"ok", "note", "skipped"}, rows
    assert {row.check for row in rows} == {
        *("first calls", "stale", "honest", "input", "overhead", "threads", "leaks", "worlds"),
        "output",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lie, id=name, marks=[] if name in QUICK else [pytest.mark.long])
        for name, lie in ON_RANKS.items()
    ],
)
def test_ranks_find_a_lie(ask: Ask, lie: Lie) -> None:
    rows = ask("ranks", "liar", *lie.changes)
    found = state_of(rows, lie.fails)
    assert found.state == "failed" and lie.says in found.text, rows


@pytest.mark.slow
def test_words_on_standard_output_are_told_beside_a_lie(ask: Ask) -> None:
    lie = ON_RANKS["an input that is overwritten"]
    ((_, overwritten),) = lie.changes
    said = "            import os\n\n            os.write(1, b'loaded')\n"
    rows = ask("ranks", "talker", (GATHERED, overwritten + said))
    assert state_of(rows, lie.fails).state == "failed"
    found = state_of(rows, "output")
    assert found.state == "note" and "bytes" in found.text


@pytest.mark.slow
def test_wrong_data_of_one_datatype_is_found(ask: Ask) -> None:
    wrong = "if array.dtype == numpy.int32:\n                    result[-1] += 1\n"
    (row,) = ask("meaning", "off_by_one", (SUMMED, SUMMED + "                " + wrong))
    assert row.state == "failed" and "all_reduce sum of int32" in row.text
    assert not any(word in row.text.split("right")[0] for word in ("float", "double", "int64"))


def make_case(backend: str) -> Case:
    axes = Axes(
        collectives=("all_reduce",),
        sizes=(4096,),
        ranks=(2,),
        backends=(backend,),
        modes=("host",),
        in_place=(False,),
    )
    cases, _ = expand_axes(axes)
    return cases[0]


@pytest.mark.slow
def test_groups_that_are_none_are_found(ask: Ask) -> None:
    """It claims groups and adds up what all ranks have."""
    lies = (
        (OPENED, "None"),
        (
            "arrays: list[Any] = [None] * self._n",
            "arrays: list[Any] = [None] * dist.get_world_size()",
        ),
    )
    (row,) = ask("groups", "no_groups", *lies)
    assert row.state == "failed" and "mod:2" in row.text and "wrong" in row.text, row
    assert [row.state for row in ask("groups", "groups", NOTHING)] == ["ok"]


def test_a_heavy_import_is_found(register: Register) -> None:
    name = register(
        "heavy", ("from typing import Any\n", "from typing import Any\n\nimport torch\n")
    )
    row = check.check_import(name)
    assert row.state == "failed" and "torch" in row.text
    assert check.check_import(register("light")).state in ("ok", "note")


@pytest.mark.slow
@pytest.mark.long
def test_the_command_checks_what_new_wrote(cli: Callable[..., Any], tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    assert cli("backends", "new", str(path)).returncode == 0
    done = cli("backends", "check", str(path), "--quick", "--format", "json", timeout=280)
    told = json.loads(done.stdout)
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    states = {row["check"]: row["state"] for row in told["checks"]}
    assert states["meaning"] == states["planted"] == states["groups"] == states["again"] == "ok"
    assert all(row["meaning"] for row in told["checks"])


@pytest.mark.slow
def test_an_absent_library_is_no_verdict(cli: Callable[..., Any]) -> None:
    done = cli("backends", "check", "xccl")
    assert done.returncode == Exit.NO_VERDICT and "no verdict" in done.stdout
    assert backend_info("xccl").here() in " ".join(done.stdout.split())


@pytest.mark.slow
def test_algorithms_that_not_every_collective_has_are_checked_where_they_are_known(
    ask: Ask,
) -> None:
    rows = ask("ranks", "shm")
    assert [row.text for row in rows if row.state == "failed"] == []
    assert {"ok"} <= {row.state for row in rows}


def answer(what: str, word: str) -> list[CheckRow]:
    """The rows of a check, in a process that was started for it."""
    name = backends.resolve_backend(word)
    if what == "ranks":
        return list(check.ask_ranks(name, quick=True))
    if what == "meaning":
        return [check.judge_meaning(check.sweep_everything(name, quick=True))]
    return [check.check_groups(make_case(name))]


if __name__ == "__main__":
    print(msgspec.json.encode(answer(*sys.argv[1:])).decode())
