"""Options of commands, made of the rows that say what can be asked for (suite/fields.py)."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from collbench.suite.fields import FIELDS

Command = Callable[..., None]


_ROWS = {field.name: field for field in FIELDS if field.flags}


def option(name: str, help: str = "") -> Any:
    """The option of the row ``name``, with the help of a command that means less by it."""
    row = _ROWS[name]
    number = row.type in (int, float)
    return typer.Option(
        *row.flags.split(),
        metavar=row.metavar,
        min=row.least if number else None,
        max=row.most if number else None,
        help=help or row.help,
    )


def every(command: Command) -> Command:
    """Gives a command an option for each row of the table that has one, as typer reads them."""
    given = {"ctx": typer.Context} | {name: Annotated[_type(name), option(name)] for name in _ROWS}
    command.__annotations__ = given
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=_default(name))
            for name, kind in given.items()
        ]
    )
    return command


def _type(name: str) -> Any:
    row = _ROWS[name]
    return row.type if row.said is not None else row.type | None


def _default(name: str) -> Any:
    return _ROWS[name].said if name in _ROWS else Parameter.empty
