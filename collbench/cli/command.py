"""Commands as Typer takes them: the one place that makes a signature, out of families of options.

A family is a frozen dataclass. Each field is annotated with its Option or Argument, or is itself a
family, whose options then stand in its place. A command is a function that takes families::

    @dataclass(frozen=True, kw_only=True)
    class FitOptions:
        runs: Runs = None
        backend: Annotated[str, Option("--backend", help="Only this backend.")] = ""
        debug: Debug = False

    def fit(options: FitOptions) -> None:
        \"""Fit latency and bandwidth of the model to recorded runs.\"""
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, get_args, get_type_hints

from typer import Context, Typer
from typer.core import TyperCommand

from collbench.cli.completion import add_completion
from collbench.cli.parameters import list_flags
from collbench.core.errors import UsageError

ALGORITHM_OPTIONS = {"algo", "algorithm", "algorithms"}
BACKEND_OPTIONS = {"backend", "backends"}

MAY_BE_EMPTY = ("--base", "--head", "--title")


def make_command(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` as Typer calls it: with a parameter for each option of its families, in their
    order, and a context, which ``function`` need not take. Raises TypeError where a name or a flag
    stands twice."""
    hints = get_type_hints(function)
    families = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = [
        Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=Context),
        *(parameter for family in families.values() for parameter in _list_parameters(family)),
    ]
    _refuse_twice(function, parameters)

    @wraps(function)
    def command(ctx: Context, **values: Any) -> None:
        _refuse_empty(ctx)
        _load_backends(values)
        _load_algorithms(ctx, values)
        context = {"ctx": ctx} if "ctx" in hints else {}
        function(**context, **{name: _fill(family, values) for name, family in families.items()})

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _list_parameters(family: Any) -> Iterator[Parameter]:
    """A parameter for each option of a family and of those inside it."""
    for name, hint in get_type_hints(family, include_extras=True).items():
        if is_dataclass(hint):
            yield from _list_parameters(hint)
            continue
        kind, option = get_args(hint)
        yield Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[kind, add_completion(option)],
            default=getattr(family, name, Parameter.empty),
        )


def _refuse_twice(function: Callable[..., None], parameters: list[Parameter]) -> None:
    """Raises TypeError where two options have the same name or the same flag."""
    name_counts = Counter(parameter.name for parameter in parameters)
    for parameter in parameters[1:]:
        option = get_args(parameter.annotation)[1]
        name_counts.update(flag for word in list_flags(option) for flag in word.split("/"))
    if twice := [word for word, count in name_counts.items() if count > 1]:
        raise TypeError(f"{function.__qualname__}: {', '.join(twice)} stands twice")


def _fill(family: Any, values: Mapping[str, Any]) -> Any:
    """The family with the values of the command line, and so the families inside it."""
    return family(
        **{
            name: _fill(hint, values) if is_dataclass(hint) else values[name]
            for name, hint in get_type_hints(family).items()
        }
    )


def _load_backends(values: dict[str, Any]) -> None:
    """Have modules imported, here and on ranks, that register backends (--import), and backends in
    files of the user's own (./my.py) known from here on, by the names that then stand in
    ``values``."""
    if modules := values.get("imports"):
        from collbench.core.backend_sources import import_modules
        from collbench.suite.grammar import split_words

        import_modules(split_words(modules))
    for key in values.keys() & BACKEND_OPTIONS:
        spelling = values[key]
        if spelling and ".py" in str(spelling):
            from collbench.core.backend_info import resolve_backend
            from collbench.suite.grammar import split_words

            values[key] = ",".join(map(resolve_backend, split_words(spelling)))


def _load_algorithms(ctx: Context, values: dict[str, Any]) -> None:
    """Have algorithms in files of the user's own (./line.py:line) known from here on, by the names
    that then stand in ``values``."""
    for key in values.keys() & ALGORITHM_OPTIONS:
        spelling = values[key]
        if spelling and ".py:" in str(spelling):
            from collbench.core import algorithms
            from collbench.core.collectives import map_collective_names

            given = (values.get(key) for key in ("name", "collective", "what"))
            name = next((word for word in given if word), ctx.info_name) or ""
            owner = map_collective_names().get(name, "")
            values[key] = algorithms.add_file(spelling, owner)


def _refuse_empty(ctx: Context) -> None:
    """Raises UsageError for an option that was given as nothing, as an unset variable is."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.params.get(name)
        values = given if isinstance(given, list | tuple) else [given]
        source = ctx.get_parameter_source(name)
        on_command_line = source is not None and source.name == "COMMANDLINE"
        blank = any(isinstance(word, str) and not word.strip(" ,") for word in values)
        flag = parameter.opts[0]
        if on_command_line and blank and flag not in MAY_BE_EMPTY:
            label = flag if flag.startswith("-") else getattr(parameter, "metavar", "") or flag
            raise UsageError(
                f"{label} is empty", "give it a value or leave it out; is a variable not set?"
            )


def make_app(
    commands: Mapping[str, Callable[..., None]],
    text: str | None = None,
    kind: type[TyperCommand] = TyperCommand,
) -> Typer:
    """An app of these commands, by their names; ``text`` in place of their docstrings."""
    app = Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    for name, function in commands.items():
        app.command(name, cls=kind, help=text)(make_command(function))
    return app
