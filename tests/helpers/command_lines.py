"""Every command of collbench, with its options, as typer builds it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from collbench.cli import main

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


def list_options(name: str) -> set[str]:
    """The options of a command, in all their spellings."""
    params = every_command()[name].params
    return {word for param in params for word in (*param.opts, *param.secondary_opts)}
