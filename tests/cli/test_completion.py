"""What the shell completes: commands, options and names, in bash, zsh and fish, without torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from forked import Server

from collbench.cli import completion, list_
from collbench.cli.main import list_commands
from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.suite import toml

BIN = Path(sys.executable).parent
SCRIPT = shutil.which("collbench", path=BIN)
HEAVY = ("torch", "numpy", "pandas", "plotly")
ALONE = """
import os, sys
sys.argv = ["collbench"]
os.environ["_COLLBENCH_COMPLETE"] = "complete_bash"
os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = sys.stdin.read().splitlines()
from collbench.cli.main import main
try:
    main()
finally:
    print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


def bash(line: str) -> dict[str, str]:
    place = len(line.split(" ")) - 1
    return {
        "_COLLBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(place),
    }


def zsh(line: str) -> dict[str, str]:
    return {"_COLLBENCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}


def fish(line: str) -> dict[str, str]:
    return {
        "_COLLBENCH_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }


@pytest.mark.parametrize("shell", [bash, zsh, fish])
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("collbench all_r", "all_reduce"),
        ("collbench rep", "report"),
        ("collbench report --png", "--png"),
        ("collbench history tr", "trend"),
        ("collbench history trend --ma", "--machine"),
        ("collbench help la", "launchers"),
        ("collbench run ni", "nightly"),
        ("collbench ab --suite sm", "smoke"),
        ("collbench show all_re", "all_reduce"),
        ("collbench show all_reduce sw", "swing"),
        ("collbench all_reduce --algo ring,double_t", "ring,double_tree"),
        ("collbench all_reduce --backend gloo,torch_t", "gloo,torch_two_shot"),
        ("collbench all_reduce -d float,bf", "float,bfloat16"),
        ("collbench all_reduce --mode st", "streaming"),
        ("collbench compare @last~", "@last~1"),
    ],
)
def test_words_are_completed(bare: Server, shell, line: str, word: str) -> None:
    done = bare(**shell(line))
    assert word in done.stdout


def test_bash_gets_the_words_that_fit_and_no_others(bare: Server) -> None:
    words = [name for name in (*COLLECTIVES, *list_commands()) if name.startswith("re")]
    assert {"reduce", "report"} < {*words}
    assert bare(**bash("collbench re")).stdout.split() == words


def test_where_nothing_fits_bash_is_left_to_complete_files(bare: Server) -> None:
    assert bare(**bash("collbench run mine")).stdout.split() == []


@pytest.mark.parametrize(
    "line",
    [
        "collbench ",
        "collbench all_reduce --",
        "collbench run ",
        "collbench help ",
        "collbench all_reduce --backend ",
    ],
)
def test_completing_loads_nothing_heavy(line: str) -> None:
    """Names of algorithms alone need numpy, as their modules do."""
    given = bash(line)
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(heavy=HEAVY)],
        input=f"{given['COMP_WORDS']}\n{given['COMP_CWORD']}",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split()
    assert done.stderr.split() == []


def test_names_of_algorithms_are_those_that_there_are() -> None:
    found = set(completion.find_name_source("algorithm")())
    assert found == {
        "native",
        *(one.name for name in COLLECTIVES for one in algorithms.list_algorithms(name)),
    }


def test_names_of_suites_are_those_that_load() -> None:
    assert set(completion.find_name_source("suite")()) == set(toml.built_in())


def test_names_of_backends_are_those_that_list_shows() -> None:
    _, *rows = list_.list_tables()["Backends"]
    assert [*completion.find_name_source("backend")(), "NAME"] == [name for name, _ in rows]


@pytest.mark.skipif(SCRIPT is None, reason="collbench is not installed here")
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script(tmp_path: Path) -> None:
    """The script that is installed, read by a bash, whose words then come from this collbench."""
    script = """
        source <(collbench --show-completion)
        COMP_WORDS=(collbench prov) COMP_CWORD=1
        _collbench_completion collbench
        echo "got ${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={"PATH": f"{BIN}:/usr/bin:/bin", "SHELL": "/bin/bash", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "got prove" in done.stdout, done.stderr
