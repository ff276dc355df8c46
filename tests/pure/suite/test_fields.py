"""The table of what can be asked for, held against the structs that carry it and the options that
are made of it."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from collbench.cli import main
from collbench.cli.options import READ
from collbench.core.collectives import COLLECTIVES
from collbench.suite import toml
from collbench.suite.case import MOST_RANKS, Case
from collbench.suite.fields import AXES, FIELDS, POLICY, Field
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Part

OPEN = {"collectives", "sizes", "ranks"}  # which a sweep must say


def named(rows: tuple[Field, ...]) -> dict[str, Field]:
    return {row.name: row for row in rows}


@pytest.mark.parametrize(("rows", "struct"), [(POLICY, Policy), (AXES, Axes)])
def test_table_and_struct_have_the_same_fields_and_defaults(
    rows: tuple[Field, ...], struct: type[msgspec.Struct]
) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    assert set(named(rows)) == set(fields)
    for name in set(fields) - OPEN:
        assert named(rows)[name].default == fields[name].default, name
        assert type(named(rows)[name].default) is type(fields[name].default), name


def test_choices_and_bounds_of_the_policy_are_those_of_the_table() -> None:
    hints, rows = get_type_hints(Policy, include_extras=True), named(POLICY)
    choices = {name: get_args(h) for name, h in hints.items() if get_origin(h) is Literal}
    assert choices and choices == {name: rows[name].choices for name in choices}
    bounds = {
        name: (meta.ge, meta.le)
        for name, hint in hints.items()
        for part in (hint, *get_args(hint))  # of "a number or none", too
        for meta in getattr(part, "__metadata__", ())
    }
    assert bounds and bounds == {name: (rows[name].least, rows[name].most) for name in bounds}


@pytest.mark.parametrize(
    "row", [row for row in POLICY if row.least is not None], ids=lambda row: row.name
)
def test_a_suite_file_holds_the_bounds_of_the_table(row: Field) -> None:
    with pytest.raises(Exception, match=row.name):
        toml.POLICY[row.name](row.least - 1, row.name)


def test_bounds_of_the_table_are_those_of_a_case() -> None:
    rows = named(AXES)
    assert rows["ranks"].most == MOST_RANKS
    (modes,) = {get_args(get_type_hints(Axes)["modes"])[0]}
    assert get_args(modes) == rows["modes"].choices
    assert {row.case for row in AXES if row.case} <= set(Case.__struct_fields__)
    assert {row.name for row in AXES if row.case} == set(Part.__struct_fields__) - {
        "min_size",
        "max_size",
    }


def test_every_row_can_be_said_somewhere_and_once() -> None:
    flags = [flag for row in FIELDS for flag in row.flags.split()]
    assert len(flags) == len(set(flags))
    assert len(named(FIELDS)) == len(FIELDS)
    keys = {*toml.POLICY, *toml.AXES}
    assert {row.name for row in FIELDS if not row.flags} <= keys | {"envs"}
    assert {row.name for row in POLICY} - set(toml.POLICY) == {"inject"}
    assert {row.kind for row in FIELDS} >= set(READ)


@pytest.mark.parametrize("name", ["all_reduce", "barrier"])
def test_a_command_has_the_options_of_the_table_in_its_order(name: str) -> None:
    group: Any = typer.main.get_command(main.app)
    command = group.get_command(None, name)
    options = {param.name: param for param in command.params if not param.hidden}
    rows = [row for row in FIELDS if row.flags]
    assert list(options) == [row.name for row in rows] and name in COLLECTIVES
    for row in rows:
        option = options[row.name]
        assert [*option.opts, *option.secondary_opts] == row.flags.replace("/", " ").split()
        assert option.help == row.help and option.default == row.command_default


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in FIELDS
        if row.flags
        and row.type in (int, float)
        and not row.free
        and (row.least, row.most) != (None, None)
    ],
    ids=lambda row: row.name,
)
def test_the_command_line_holds_the_bounds_of_the_table(row: Field) -> None:
    flag = row.flags.split()[0]
    for bound, beyond in ((row.least, -1), (row.most, 1)):
        if bound is not None:
            done = CliRunner().invoke(main.app, ["all_reduce", flag, str(bound + beyond)])
            assert done.exit_code == 2 and flag in done.output


def test_what_a_sweep_may_say_with_a_reason_others_may_not() -> None:
    done = CliRunner().invoke(main.app, ["ab", "--aa", "-T", "0"])
    assert done.exit_code == 2 and "-T" in done.output
