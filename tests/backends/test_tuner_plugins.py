"""Files of tuners, read by the tuners themselves: NCCL's example plug-in and NCCLX's tuner.

Neither is of this project. COLLBENCH_TEST_NCCL_TUNER names a built libnccl-tuner-example.so,
COLLBENCH_TEST_NCCLX_TUNER a library of NCCLX's meta/tuner with ncclTunerPlugin_v5.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from advised import advise_by_chance
from tuner_plugin import FUNCTIONS, Said, opened
from tuner_twin import TRAPS, Twin, list_whole

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Rule, choose
from collbench.features.advise.formats.nccl import END, FORMATS
from collbench.features.advise.libraries.nccl import name_choice
from collbench.features.advise.types import Advised, Series

pytestmark = pytest.mark.slow
EXAMPLE, _, NCCLX = FORMATS
VARIABLES = {"nccl": "COLLBENCH_TEST_NCCL_TUNER", "ncclx": "COLLBENCH_TEST_NCCLX_TUNER"}


def find_plugin(key: str) -> str:
    path = os.environ.get(VARIABLES[key], "")
    if not path:
        pytest.skip(f"{VARIABLES[key]} names no built tuner of {key.upper()}")
    return path


def list_edges(given: Advised, rules: list[Rule]) -> list[int]:
    bounds = {bound for rule in rules for bound in (rule.low, rule.high or END)}
    bounds |= {each.cell.nbytes for each in given.unadvised}
    bounds |= {gain.nbytes for row in given.rows for gain in row.gains}
    edges = {bound + step for bound in bounds for step in (-1, 0, 1)}
    return sorted(size for size in edges if 0 <= size <= 2**63 - 1)


def name_said(said: Said) -> str:
    return name_choice(said.algorithm, said.protocol, said.channels)


@pytest.mark.parametrize("key", ["nccl", "ncclx"])
def test_the_tuner_runs_at_every_bound_what_the_rules_say(key: str, tmp_path: Path) -> None:
    plugin = find_plugin(key)
    form = {"nccl": EXAMPLE, "ncclx": NCCLX}[key]
    path = tmp_path / "tuner.csv"
    asked = 0
    for seed in range(60):
        given = advise_by_chance(seed)
        path.write_text(form.write(given))
        rules = list(form.read(path.read_text()))
        series = given.unadvised[0].cell.series if given.unadvised else given.rows[0].series
        with opened(plugin, form.use(path), series.n, series.nodes) as tuner:
            assert tuner.status == 0
            for nbytes in list_edges(given, rules):
                for collective in FUNCTIONS:
                    here = Series(collective, series.n, series.nodes)
                    said = name_said(tuner.ask(collective, nbytes))
                    assert said == choose(rules, here, nbytes)
                    asked += 1
    assert asked > 1000


def test_the_example_passes_over_a_row_that_nccl_cannot_run(tmp_path: Path) -> None:
    plugin = find_plugin("nccl")
    path = tmp_path / "tuner.conf"
    for seed in range(20):
        given = advise_by_chance(seed)
        path.write_text(EXAMPLE.write(given))
        for row in given.rows:
            with opened(plugin, EXAMPLE.use(path), row.series.n, row.series.nodes) as tuner:
                said = tuner.ask(row.series.collective, row.low)
                instead = tuner.ask(row.series.collective, row.low, said[:2])
            assert name_said(said) == row.name
            assert instead.channels != 1 or instead.algorithm == ""


def test_the_example_gives_one_channel_to_what_has_no_row(tmp_path: Path) -> None:
    path = tmp_path / "tuner.conf"
    path.write_text("allreduce,0,99,tree,ll,-1,2,16,-1,-1\n")
    with opened(find_plugin("nccl"), EXAMPLE.use(path), 16, 2) as tuner:
        assert tuner.ask("all_reduce", 99) == Said("Tree", "LL", 1)
        assert tuner.ask("all_reduce", 100) == Said(channels=1)
        assert tuner.ask("broadcast", 99) == Said(channels=1)


@pytest.mark.parametrize(("row", "size", "said"), TRAPS)
def test_each_trap_is_what_the_example_does(
    row: str, size: int, said: Said, tmp_path: Path
) -> None:
    path = tmp_path / "tuner.conf"
    path.write_text(list_whole(row), newline="")
    with opened(find_plugin("nccl"), EXAMPLE.use(path), 16, 2) as tuner:
        assert tuner.ask("all_reduce", size) == said


def test_the_example_is_its_twin_on_broken_files_and_none_of_them_is_taken_wrongly(
    tmp_path: Path,
) -> None:
    """The twin of tests/pure says what the plug-in says; and whatever reading does not refuse has
    the plug-in do what the rules say."""
    plugin = find_plugin("nccl")
    path = tmp_path / "tuner.conf"
    taken = 0
    for seed in range(400):
        luck = random.Random(seed)
        given = advise_by_chance(luck.randrange(8))
        text = break_text(luck, EXAMPLE.write(given))
        path.write_text(text, newline="")
        series = given.unadvised[0].cell.series if given.unadvised else given.rows[0].series
        try:
            rules = EXAMPLE.read(text)
        except UsageError:
            rules = None
        twin = Twin(text, series.n, series.nodes)
        with opened(plugin, EXAMPLE.use(path), series.n, series.nodes) as tuner:
            for _ in range(40):
                nbytes = luck.choice((luck.randrange(1 << 30), 8 << luck.randrange(40)))
                collective = luck.choice(FUNCTIONS)
                said = tuner.ask(collective, nbytes)
                assert twin.ask(collective, nbytes) == said
                if rules is not None:
                    here = Series(collective, series.n, series.nodes)
                    assert name_said(said) == choose(rules, here, nbytes)
                    taken += 1
    assert taken > 100


def break_text(luck: random.Random, text: str) -> str:
    """The file with a few characters or fields changed."""
    for _ in range(luck.randint(0, 2)):
        place = luck.randrange(len(text))
        change = luck.choice(("", ",", ",,", " ", "9", "-1", "x", "\n", "#", "\t", "," + "0" * 300))
        text = text[:place] + change + text[place + luck.randint(0, 2) :]
    return text


def test_ncclx_does_not_open_with_what_reading_refuses(tmp_path: Path) -> None:
    plugin = find_plugin("ncclx")
    path = tmp_path / "tuner.csv"
    row, refused = "allgather,[0,8],ring,simple,-1,2,8", 0
    for broken in ("", "x", "[9,1]", "[1;2]", "rings", "*x"):
        for field in ("allgather", "[0,8]", "ring", "simple", "-1"):
            path.write_text(row.replace(field, broken, 1) + "\n")
            with opened(plugin, NCCLX.use(path), 16, 2) as tuner:
                status = tuner.status
            if status != 0:
                refused += 1
                with pytest.raises(UsageError):
                    NCCLX.read(path.read_text())
    assert refused > 10
