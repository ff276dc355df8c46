"""What `collbench` can do, by name: its table of commands and their options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from collbench.cli import main
from collbench.cli.sections import SECTIONS

LISTED = main.list_commands()


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name, those of groups too."""
    root = typer.main.get_command(main.app)
    left = [(name, root.get_command(None, name)) for name in [*LISTED, "all_reduce"]]  # type: ignore[attr-defined]
    while left:
        name, command = left.pop()
        if hasattr(command, "commands"):
            left += [(f"{name} {below}", found) for below, found in command.commands.items()]
        else:
            yield name, command


@cache
def every_command() -> dict[str, Any]:
    return dict(commands())


@pytest.mark.parametrize("name", LISTED)
def test_the_list_says_of_a_command_what_its_docstring_begins_with(name: str) -> None:
    paragraph, *_ = (inspect.getdoc(main.load_command(name)) or "").split("\n\n")
    assert LISTED[name].summary == " ".join(paragraph.split())


def test_every_option_says_what_it_does() -> None:
    silent = [
        (name, one.name)
        for name, command in every_command().items()
        for one in command.params
        if not getattr(one, "help", None)
    ]
    assert silent == []


def test_every_option_of_a_collective_is_in_one_section_of_its_help() -> None:
    named = [name for names in SECTIONS.values() for name in names]
    params = every_command()["all_reduce"].params
    shown = {one.name for one in params if not getattr(one, "hidden", False)}
    assert len(named) == len({*named})
    assert shown <= {*named} and {*named} - shown <= {"help"}
