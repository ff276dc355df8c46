"""Families of options become the signature that Typer reads, and are filled from a command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer import Argument, Context, Option
from typer.testing import CliRunner

from collbench.cli.command import make_app, make_command
from collbench.cli.families import SaveOptions
from collbench.cli.parameters import make_option
from collbench.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Where:
    ranks: Annotated[str, Option("-g", "--ranks", help="Ranks.")] = "2"
    host: Annotated[str, Option("--host", help="A host.")] = ""


@dataclass(frozen=True, kw_only=True)
class Walk:
    name: Annotated[str, Argument(metavar="ALGORITHM", help="A name.")]
    where: Where
    steps: Annotated[int, Option("-n", min=1, help="Steps.")] = 3


@dataclass(frozen=True, kw_only=True)
class Hosts(Where):
    host: Annotated[str, Option("--host", help="Another text.")] = "here"


def options_of(function: Any) -> dict[str, Any]:
    """The options and arguments of a command by name, in the order of its help."""
    command: Any = typer.main.get_command(make_app({"walk": function}))
    return {option.name: option for option in command.params if option.name != "help"}


def calls_of(function_of: Any, *words: str) -> tuple[list[Any], Any]:
    """With what ``function_of`` a list of calls was called by these words, and the result."""
    calls: list[Any] = []
    return calls, CliRunner().invoke(make_app({"walk": function_of(calls)}), [*words])


def make_walk(calls: list[Any]) -> Any:
    def walk(options: Walk) -> None:
        """Walk."""
        calls.append(options)

    return walk


def test_a_family_stands_where_its_field_does() -> None:
    assert [*options_of(make_walk([]))] == ["name", "ranks", "host", "steps"]


def test_families_stand_in_the_order_of_a_functions_parameters() -> None:
    def walk(first: SaveOptions, second: Where) -> None: ...

    names = ["output", "save", "tag", "dry_run", "ranks", "host"]
    assert [*options_of(walk)] == names


def test_an_option_has_the_default_and_the_bounds_of_its_field() -> None:
    options = options_of(make_walk([]))
    assert (options["steps"].default, options["steps"].min, options["steps"].opts) == (3, 1, ["-n"])
    assert options["name"].required and not options["ranks"].required


def test_a_family_that_says_an_option_in_other_words_keeps_its_place() -> None:
    def walk(where: Hosts) -> None: ...

    options = options_of(walk)
    assert [*options] == ["ranks", "host"]
    assert (options["host"].help, options["host"].default) == ("Another text.", "here")


def test_families_are_filled_from_the_command_line() -> None:
    calls, done = calls_of(make_walk, "ring", "-g", "4", "-n", "7")
    assert done.exit_code == 0
    assert calls == [Walk(name="ring", where=Where(ranks="4"), steps=7)]


def test_a_command_that_asks_for_its_context_gets_it() -> None:
    def make(calls: list[Any]) -> Any:
        def walk(ctx: Context, where: Where) -> None:
            calls.append((ctx.info_name, where.ranks))

        return walk

    calls, _ = calls_of(make)
    assert calls == [("walk", "2")]


def test_an_option_that_is_given_as_nothing_is_refused() -> None:
    calls, done = calls_of(make_walk, "ring", "--host", " ")
    assert isinstance(done.exception, UsageError) and "--host is empty" in done.exception.message
    assert calls == []


def test_a_name_in_two_families_is_refused() -> None:
    def walk(first: Where, second: Hosts) -> None: ...

    with pytest.raises(TypeError, match=r"walk.*ranks"):
        make_command(walk)


@pytest.mark.parametrize("flag", ["-g", "--ranks", "--save", "--no-save"])
def test_a_flag_in_two_families_is_refused(flag: str) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Again:
        gears: Any = 1

    Again.__annotations__["gears"] = Annotated[int, Option(flag, help="Gears.")]

    def walk(first: Any, second: Any, third: Any) -> None: ...

    walk.__annotations__ = {"first": Where, "second": SaveOptions, "third": Again}
    with pytest.raises(TypeError, match=f"{flag} stands twice"):
        make_command(walk)


def test_a_row_of_the_table_is_an_option_of_a_family() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Seeds:
        seed: Any = 1

    Seeds.__annotations__["seed"] = Annotated[int, make_option("seed", "Less.")]

    def walk(options: Any) -> None: ...

    walk.__annotations__ = {"options": Seeds}
    seed = options_of(walk)["seed"]
    assert (seed.opts, seed.min, seed.help) == (["--seed"], 0, "Less.")


def test_an_argument_completes_what_its_metavar_names() -> None:
    completed = options_of(make_walk([]))["name"].shell_complete(None, "")
    assert "ring" in {item.value for item in completed}
