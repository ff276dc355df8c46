"""Options of commands, made of the rows that say what can be asked for (suite/fields.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from collbench.cli import completion
from collbench.core.errors import UsageError
from collbench.suite.fields import FIELDS

Family = TypeVar("Family")


class Foreign(NamedTuple):
    """An option of nccl-tests that asks for nothing where its value is among ``neutral`` (any whole
    number where there are none); ``why`` other values are refused, and what to do instead."""

    flags: str
    neutral: tuple[str, ...]
    why: str
    instead: str

    @property
    def name(self) -> str:
        """Its long name without dashes, as "nthreads"."""
        return self.flags.split()[1].removeprefix("--")


FOREIGN = (
    Foreign(
        *("-t --nthreads", ("1",), "threads are not supported; every rank is a process"),
        "use -g {ranks}",
    ),
    Foreign(
        "-p --parallel_init",
        ("0", "1"),
        "must be 0 or 1",
        "leave -p out: ranks start at once in any case",
    ),
    Foreign(
        "-y --stream_null",
        ("0",),
        "not supported: the library has a stream of its own",
        "leave -y out",
    ),
    Foreign(
        *("-D --device_implementation", ("0",), "kernels of NCCL's device API are not supported"),
        "use --backend torch_two_shot and its like, or symm, for kernels in symmetric memory",
    ),
    Foreign(
        "-V --device_cta_count", (), "must be a whole number", "leave -V out: it is about -D alone"
    ),
    Foreign(
        *("-M --memory --memory_report", ("0",), "library memory is not measured"),
        "--dry-run shows buffer memory",
    ),
    Foreign(
        *("-x --cta_policy", ("0",), "only NCCL's environment can set this"),
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
    placeholder = row.placeholder
    if help and not row.metavar and placeholder:  # which may be one value there
        placeholder = placeholder.removesuffix(",…")
    number = row.type in (int, float) and not free
    return typer.Option(
        *row.flags.split(),
        metavar=placeholder,
        min=row.least if number else None,
        max=row.most if number else None,
        help=help or row.help,
        autocompletion=completion.of_field(row),
    )


def list_flags(option: Any) -> list[str]:
    """The flags of an option as it was made by typer.Option; of one that is for --no-x, too, both
    in one word, with a slash. An argument has none."""
    # Typer takes the first flag of an option for its default, where that is in a signature
    return [word for word in (option.default, *(option.param_decls or ())) if word is not ...]


def add_all_options(family: type[Family]) -> type[Family]:
    """The class as a family of an option for each row of the table that has one, and of those of
    nccl-tests that are taken where they ask for nothing."""
    annotations, defaults = {}, {}
    for name, row in _ROWS.items():
        kind = row.type if row.command_default is not None else row.type | None
        annotations[name] = Annotated[kind, make_option(name, free=row.free)]
        defaults[name] = row.command_default
    for foreign in FOREIGN:
        option = typer.Option(*foreign.flags.split(), hidden=True, help=foreign.why)
        annotations[foreign.name], defaults[foreign.name] = Annotated[str, option], ""
    family.__annotations__ = annotations
    for name, default in defaults.items():
        setattr(family, name, default)
    return dataclass(frozen=True, kw_only=True)(family)
