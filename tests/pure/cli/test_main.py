"""What `collbench` can do, by name: its table of commands and their options."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from command_lines import every_command

from collbench.cli import main
from collbench.cli.sections import SECTIONS
from collbench.core.errors import CannotRun, NoVerdict, RunBroken, UsageError

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
    assert shown - {*named} == set(), "a place in SECTIONS of cli/sections.py for each of these"
    assert {*named} - shown <= {"help"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("m", "h"), 2),
        (NoVerdict("m", "h"), 3),
        (RunBroken("m", "h"), 4),
        (CannotRun("m", "h"), 5),
        (MemoryError(), 5),
        (KeyError("m"), 70),
    ],
)
@pytest.mark.parametrize("more", [(), ("--debug",)])
def test_debug_adds_a_traceback_and_changes_no_exit_code(
    error: Exception,
    code: int,
    more: tuple[str, ...],
    inside: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    done = inside("ab", *more)
    assert done.returncode == code
    assert ("Traceback" in done.stderr) == bool(more)
    assert "collbench: " in done.stderr and "  hint: " in done.stderr
    nagios = inside("health", "--nagios", *more)
    assert nagios.returncode == (70 if code == 70 else 3)
