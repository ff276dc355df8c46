"""Options of commands, made of the rows that say what can be asked for (suite/fields.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from collbench.cli import completion
from collbench.core.errors import UsageError
from collbench.suite.fields import FIELDS

Command = Callable[..., None]


class Foreign(NamedTuple):
    """An option of nccl-tests that asks for nothing where its value is among ``neutral`` (any whole
    number where there are none); ``why`` other values are refused, and what to do instead."""

    flags: str
    neutral: tuple[str, ...]
    why: str
    instead: str

    @property
    def name(self) -> str:
        return self.flags.split()[1].removeprefix("--")


FOREIGN = (
    Foreign(
        *("-t --nthreads", ("1",), "threads are not supported; every rank is a process"),
        "use -g {ranks}",
    ),
    Foreign("-p --parallel_init", ("0", "1"), "it is 0 or 1", "ranks start at once in any case"),
    Foreign("-y --stream_null", ("0",), "the library has a stream of its own", "leave it out"),
    Foreign(
        *("-D --device_implementation", ("0",), "there are no kernels of NCCL's device API"),
        "--backend torch_two_shot and its like, or symm, run kernels in symmetric memory",
    ),
    Foreign("-V --device_cta_count", (), "it is a whole number", "it is about -D alone"),
    Foreign(
        *("-M --memory --memory_report", ("0",), "library memory is not measured"),
        "--dry-run shows buffer memory",
    ),
    Foreign(
        *("-x --cta_policy", ("0",), "set this through NCCL's environment"),
        "--env NCCL_CTA_POLICY=1,2",
    ),
)


def refuse_foreign(given: Mapping[str, Any]) -> None:
    """Raises UsageError where an option of nccl-tests asks for what is not done."""
    for row in FOREIGN:
        value = given.get(row.name, "")
        if value and not (value in row.neutral if row.neutral else value.isdigit()):
            instead = row.instead.replace("{ranks}", _ranks_for(value, given.get("ranks") or "1"))
            raise UsageError(f"{row.flags.split()[0]} {value}: {row.why}", instead)


def _ranks_for(threads: str, gpus: str) -> str:
    """The number of ranks that nccl-tests has with so many threads of so many GPUs."""
    return str(int(threads) * int(gpus)) if threads.isdigit() and gpus.isdigit() else "N"


_ROWS = {field.name: field for field in FIELDS if field.flags}


def make_option(name: str, help: str = "", free: bool = False) -> Any:
    """The option of the row ``name``, with the help of a command that means less by it; a ``free``
    one has no bounds."""
    row = _ROWS[name]
    number = row.type in (int, float) and not free
    return typer.Option(
        *row.flags.split(),
        metavar=row.metavar,
        min=row.least if number else None,
        max=row.most if number else None,
        help=help or row.help,
        autocompletion=completion.of_field(row),
    )


def add_all_options(command: Command) -> Command:
    """Gives a command an option for each row of the table that has one, as typer reads them."""
    given = {"ctx": typer.Context} | {
        name: Annotated[_option_type(name), make_option(name, free=row.free)]
        for name, row in _ROWS.items()
    }
    for row in FOREIGN:
        given[row.name] = Annotated[
            str, typer.Option(*row.flags.split(), hidden=True, help=row.why)
        ]
    command.__annotations__ = given
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=_option_default(name))
            for name, kind in given.items()
        ]
    )
    return command


def share_options(other: Command) -> Callable[[Command], Command]:
    """Gives a command the parameters that are ``other``'s alone, beside its own; it takes them as
    ``given``."""

    def shared(command: Command) -> Command:
        parameters = dict(signature(command).parameters)
        del parameters["given"]
        every = parameters | {
            k: p for k, p in signature(other).parameters.items() if k not in parameters
        }
        del every["request"]
        hints = get_type_hints(other, include_extras=True)
        command.__annotations__ = hints | get_type_hints(command, include_extras=True)
        command.__signature__ = Signature([*every.values()])  # type: ignore[attr-defined]
        return command

    return shared


def _option_type(name: str) -> Any:
    row = _ROWS[name]
    return row.type if row.command_default is not None else row.type | None


def _option_default(name: str) -> Any:
    if name in _ROWS:
        return _ROWS[name].command_default
    return Parameter.empty if name == "ctx" else ""
