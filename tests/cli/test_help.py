"""Pages that come with the program: every command in them is one that it takes, every file in them
one that it reads."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from collbench.cli.help import pages
from collbench.cli.main import app
from collbench.suite import toml
from collbench.workload import files

PAGES = {name: page.read_text(encoding="utf-8") for name, page in pages().items()}
COMMANDS = [
    line.partition("#")[0].removeprefix("$ ").strip()
    for text in PAGES.values()
    for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.removeprefix("$ ").startswith("collbench ")
]
SHORT = [line for line in COMMANDS if "--show" in line or "--link" in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_pages_are_taken(command: str) -> None:
    """Raises a usage error where an option or an argument is none of theirs."""
    _, name, *words = shlex.split(command)
    group = typer.main.get_command(app)
    found = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
    assert found is not None
    found.make_context(name, words)


@pytest.mark.parametrize("command", SHORT)
def test_short_commands_of_pages_run(command: str, bare) -> None:
    done = bare(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr


def test_files_of_pages_are_read(tmp_path: Path) -> None:
    blocks = [
        block
        for text in PAGES.values()
        for block in re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        if "[[phase]]" in block:
            assert files.read(path).world
        else:
            assert toml.load(str(path)).workloads


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_about_in_its_first_line(name: str) -> None:
    assert re.match(r"# \S.{10,90}\n\n\S", PAGES[name])


def test_topics_are_listed_with_their_titles(bare) -> None:
    done = bare("help")
    assert all(name in done.stdout for name in PAGES)
    assert "Training steps" in done.stdout


def test_a_page_in_a_pipe_is_its_text(bare) -> None:
    assert bare("help", "workloads").stdout == PAGES["workloads"]


def test_help_of_a_command_is_that_of_its_option(bare) -> None:
    assert bare("help", "workload").stdout.strip() == bare("workload", "--help").stdout.strip()


@pytest.mark.parametrize(
    ("word", "hint"), [("worklods", "did you mean workloads?"), ("\x1b[1m", "lists the topics")]
)
def test_what_is_neither_is_refused(word: str, hint: str, bare) -> None:
    done = bare("help", word)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_tables_of_a_page_fit_100_columns(name: str) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGES[name], re.DOTALL | re.MULTILINE)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 96
