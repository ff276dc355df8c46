"""What `collbench` can do, by name: its table of commands and their options."""

from __future__ import annotations

import inspect

import pytest
from command_lines import every_command

from collbench.cli import main
from collbench.cli.sections import SECTIONS

LISTED = main.list_commands()


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
