"""Open MPI itself reads the files of rules that are written for it: which algorithm ran is told by
the messages that it sent, as the library counts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from advised import advised, row
from marks import long
from needs import need_mpi

from collbench.features.advise.formats import choose
from collbench.features.advise.formats.openmpi import FORMATS
from collbench.features.advise.libraries.openmpi import DYNAMIC, FUNCTIONS, LIBRARY, PREFIX
from collbench.features.advise.libraries.unordered import UNORDERED
from collbench.features.advise.types import Advice, Series, Variables
from collbench.run.launch import mpirun

pytestmark = pytest.mark.slow
(FORMAT,) = FORMATS
HELPERS = Path(__file__).parents[1] / "helpers"
LOW, MIDDLE, HIGH = 1008, 4096, 20_000  # all are multiples of 16
UNDIVIDED = ("all_reduce", "broadcast", "reduce")

# Up to MIDDLE and beyond it, algorithms whose messages are not those of the library's choice.
SETTINGS = {
    4: {
        "all_reduce": ("ring", "segmented_ring/512"),
        "broadcast": ("pipeline/512", "scatter_allgather_ring"),
        "all_gather": ("ring", "bruck"),
        "all_to_all": ("modified_bruck",),
        "reduce": ("pipeline/512", "linear"),
        "reduce_scatter": ("recursive_doubling",),
        "barrier": ("double_ring",),
    },
    2: {
        "all_reduce": ("ring", "basic_linear"),
        "broadcast": ("pipeline/512", "pipeline/256"),
        "reduce": ("pipeline/512", "pipeline/256"),
    },
}
Cases = list[tuple[str, int]]
Messages = dict[tuple[str, int], Any]


def make_env(collective: str, word: str) -> Variables:
    function, (name, _, segment) = FUNCTIONS[collective], word.partition("/")
    base = f"{PREFIX}{function.word}_algorithm"
    env = [(base, str(function.algorithms.index(name) + 1)), (DYNAMIC, "1")]
    return tuple(sorted([*env, *([(f"{base}_segmentsize", segment)] if segment else [])]))


def make_rows(n: int) -> list[Advice]:
    bounds = ((LOW, MIDDLE), (MIDDLE + 1, HIGH))
    return [
        row(LIBRARY, collective, n, *bound, make_env(collective, word))
        if collective != "barrier"
        else row(LIBRARY, collective, n, 0, 0, make_env(collective, word))
        for collective, words in SETTINGS[n].items()
        for bound, word in zip(bounds, words, strict=False)
    ]


def make_cases(collectives: Sequence[str]) -> Cases:
    """Sizes on both sides of every bound: as near as blocks of bytes for each rank allow."""
    cases = []
    for collective in collectives:
        if collective == "barrier":
            cases.append((collective, 0))
            continue
        step = 1 if collective in UNDIVIDED else 16
        after = 1 if collective in UNDIVIDED else 16
        sizes = (16, LOW - step, LOW, MIDDLE, MIDDLE + after, HIGH, HIGH + after, 1 << 17)
        cases += [(collective, nbytes) for nbytes in sizes]
    return cases


def count_messages(n: int, cases: Cases, env: dict[str, str]) -> Messages:
    """The messages of each case on ``n`` ranks with these variables."""
    counted = run_program("mpi_messages.py", n, cases, env)
    return dict(zip(cases, counted, strict=True))


@cache
def count_defaults(n: int, *collectives: str) -> Messages:
    """The messages of the library's own choices on ``n`` ranks."""
    return count_messages(n, make_cases(collectives), {})


def run_program(name: str, n: int, cases: Sequence[Any], env: dict[str, str]) -> Any:
    """What a program of the helpers prints for each case on ``n`` ranks with these variables."""
    need_mpi()
    settings = {**os.environ, **mpirun.SETTINGS, **mpirun.AS_ROOT, **env}
    settings["OMPI_MCA_pml_monitoring_enable"] = "1"
    command = [
        mpirun.find_mpirun(),
        "-n",
        str(n),
        sys.executable,
        str(HELPERS / name),
        json.dumps(cases),
    ]
    done = subprocess.run(
        command, env=settings, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with rules for two and for four ranks."""
    path = tmp_path_factory.mktemp("rules") / f"rules{FORMAT.suffix}"
    path.write_text(FORMAT.write(advised(LIBRARY, [*make_rows(2), *make_rows(4)])))
    return path


@pytest.mark.parametrize("n", [4, long(2)])
def test_the_library_runs_what_the_file_says(path: Path, n: int) -> None:
    rows, rules = make_rows(n), FORMAT.read(path.read_text())
    cases = make_cases(list(SETTINGS[n]))
    ran = count_messages(n, cases, FORMAT.use(path))
    default = count_defaults(n, *SETTINGS[n])
    by_name = {("", collective): default for collective in SETTINGS[n]}
    for index in (0, 1):
        chosen = {name: words[index] for name, words in SETTINGS[n].items() if index < len(words)}
        env = dict(pair for name, word in chosen.items() for pair in make_env(name, word))
        forced = count_messages(n, [case for case in cases if case[0] in chosen], env)
        for each in rows:
            if each.series.collective in chosen and each.setting.env == make_env(
                each.series.collective, chosen[each.series.collective]
            ):
                by_name[each.name, each.series.collective] = forced
    told = set()
    for case, messages in ran.items():
        name = choose(rules, Series(case[0], n, 1), case[1])
        assert messages == by_name[name, case[0]][case], (case, name)
        if messages != default[case]:
            told.add((case[0], name))
    assert told == {(each.series.collective, each.name) for each in rows}  # each one was seen


def test_for_other_numbers_of_ranks_the_library_chooses(path: Path) -> None:
    names = ("all_reduce", "broadcast", "all_gather", "reduce", "barrier")
    assert count_messages(3, make_cases(names), FORMAT.use(path)) == count_defaults(3, *names)


def test_a_file_without_rows_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "none.conf"
    path.write_text(FORMAT.write(advised(LIBRARY, [])))
    cases = make_cases(list(SETTINGS[4]))
    assert count_messages(4, cases, FORMAT.use(path)) == count_defaults(4, *SETTINGS[4])


def test_it_is_known_what_is_wrong_for_operations_that_do_not_commute(tmp_path: Path) -> None:
    """Each algorithm at a size of its own, in one job; the library's own choice at 64 bytes."""
    lines, expected = ["2"], {}
    for name in ("all_reduce", "reduce"):
        algorithms = FUNCTIONS[name].algorithms
        lines += [f"{FUNCTIONS[name].number}", "1", "0", f"{len(algorithms) + 1}", "0 0 0 0"]
        expected[f"{name} 64"] = True
        for number, algorithm in enumerate(algorithms, 1):
            lines.append(f"{1024 * number} {number} 0 0")
            expected[f"{name} {1024 * number}"] = algorithm not in UNORDERED["openmpi"][name]
    path = tmp_path / "rules.conf"
    path.write_text("\n".join(lines) + "\n")
    cases = [key.split() for key in expected]
    done = run_program("mpi_unordered.py", 4, cases, FORMAT.use(path))
    assert dict(zip(expected, done, strict=True)) == expected
