"""Suites: sweeps kept in TOML files, the built-in ones shipped with the package and found by name.

Whatever a file says wrongly is a UsageError that names file, table, key and what was expected.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Meta

from collbench.core import algorithms, files, groups, splits
from collbench.core.backend_info import resolve_backend
from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.dtypes import DTYPES, OPS, find_dtype, find_reduction
from collbench.core.errors import UsageError, first_line
from collbench.core.text import print_message, readable_text, suggest_name
from collbench.suite import arrivals, backgrounds, fields, shipped
from collbench.suite.case import Limit
from collbench.suite.fields import Field
from collbench.suite.grammar import (
    MOST_WORLDS,
    expand_envs,
    parse_duration,
    parse_limit,
    parse_share,
    parse_size,
    split_words,
    sweep_sizes,
)
from collbench.suite.measurable import find_measurables
from collbench.suite.policy import Policy
from collbench.suite.sweep import (
    Axes,
    Exclude,
    Override,
    Part,
    Suite,
    Threshold,
    normalise_algorithms,
)

MOST = 1 << 31

HINT = (
    'the smallest suite is [axes] and two lines under it: collectives = ["all_reduce"] and'
    ' sizes = ["8", "64K"]; collbench help suites has all keys'
)

WORDS = {  # what a sweep's complaints call by its options
    "-f/--stepfactor": "factor",
    "-i/--stepbytes": "step",
    "-b": "min",
    "-e": "max",
    "-f": "factor",
    "-i": "step",
}

MOST_BYTES = 1 << 18  # of a file

MOST_VALUES = 10_000  # in a list

MOST_INCLUDES = 100

KEYS = {"envs": "env"}  # where a file has another name for a field

Read = Callable[[Any, str], Any]  # what a value in a file means; the words say where it stands


def built_in() -> dict[str, Suite]:
    """Suites that come with collbench, by name."""
    return {name: _read_suite(path) for name, path in shipped.list_suites().items()}


def load_suite(name: str) -> Suite:
    """The suite in the file ``name``, or the built-in one of that name; what it leaves to the
    machine is still open."""
    suites = shipped.list_suites()
    if name in suites:
        return _read_suite(suites[name])
    path = Path(name)
    is_file = os.path.isfile(name)  # noqa: PTH113 - Path's raises for a name that is too long
    if not is_file or (path.suffix != ".toml" and "/" not in name):
        like = f"write ./{name} for the file here" if is_file else suggest_name(name, suites)
        raise UsageError(
            f"no suite '{name}'", like or f"name a TOML file, or one of {', '.join(suites)}"
        )
    return _read_suite(path)


def _read_suite(path: Path) -> Suite:
    """The suite in a TOML file. Raises UsageError with the key that is wrong."""
    try:
        _, document = files.read_toml(path, MOST_BYTES)
    except (ValueError, RecursionError, OSError) as e:
        raise UsageError(f"{path}: {first_line(e)}", HINT) from e
    document = _resolve_backends(document, path)
    kinds = {kind.table: kind for kind in find_measurables()}
    values = _parse_values(
        document, TOP | {name: _make_table_reader(name) for name in kinds}, str(path)
    )
    parsed = [
        kind.parse(table, where, path)
        for name, kind in kinds.items()
        for table, where in _list_tables(values, name, path)
    ]
    requests = [
        request
        for parsed_table in parsed
        for request in (parsed_table if isinstance(parsed_table, list) else [parsed_table])
    ]
    if "axes" not in values and not requests:
        raise UsageError(f"{path}: it has no [axes], which says what to measure", HINT)
    bare = {} if "collectives" in values.get("axes", {}) or not requests else NO_COLLECTIVES
    values["axes"] = values.get("axes", {})
    policy = _parse_policy(values.get("policy", {}), f"{path}: [policy]")
    axes = _parse_sweep(values["axes"], f"{path}: [axes]", bare)
    includes = [
        _parse_sweep(_inherit_axes(values["axes"], table), where)
        for table, where in _list_tables(values, "include", path)
    ]
    tables: dict[str, Any] = {
        "overrides": [
            _parse_override(t, axes, where) for t, where in _list_tables(values, "override", path)
        ],
        "excludes": [
            _parse_exclude(table, where) for table, where in _list_tables(values, "exclude", path)
        ],
        "thresholds": [
            _parse_threshold(table, where)
            for table, where in _list_tables(values, "threshold", path)
        ],
    }
    sweeps = [axes, *includes, *(override.axes for override in tables["overrides"])]
    if "graph" in values.get("policy", {}):
        _note_unused_graph((mode for sweep in sweeps for mode in sweep.modes), f"{path}: [policy]")
    try:
        return Suite(
            name=readable_text(path.stem),
            axes=axes,
            policy=policy,
            description=values.get("description", ""),
            tags=values.get("tags", ()),
            includes=tuple(includes),
            requests=tuple(requests),
            **{name: tuple(parsed) for name, parsed in tables.items()},
        )
    except ValueError as e:
        raise UsageError(f"{path}: {e}", HINT) from e


def _resolve_backends(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The document with the name of each backend in place of its file (``./my.py``, relative to the
    suite's own). Raises UsageError as resolve_backend does."""

    def resolve(value: Any, where: str) -> Any:
        if isinstance(value, dict):
            return {key: resolve(below, f"{where}, {key}") for key, below in value.items()}
        if isinstance(value, list):
            return [resolve(item, where) for item in value]
        if not isinstance(value, str) or not where.endswith(", backends"):
            return value
        try:
            return resolve_backend(value, path.parent)
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e

    return {
        name: [resolve(table, f"{path}: [[{name}]] {i}") for i, table in enumerate(tables, 1)]
        if isinstance(tables, list)
        else resolve(tables, f"{path}: [{name}]")
        for name, tables in document.items()
    }


def _list_tables(
    values: Mapping[str, Any], name: str, path: Path
) -> Iterator[tuple[dict[str, Any], str]]:
    if len(values.get(name, ())) > MOST_INCLUDES:
        raise UsageError(f"{path}: more than {MOST_INCLUDES} tables [[{name}]]", HINT)
    for number, table in enumerate(values.get(name, ()), 1):
        yield table, f"{path}: [[{name}]] {number}"


def _parse_policy(table: Mapping[str, Any], where: str) -> Policy:
    values = _parse_values(table, POLICY, where)
    if "iters" in values:
        values = {"batch": values["iters"], **values}  # as -n does
    for key, other in (("min_iters", "max_iters"), ("min_seconds", "max_seconds")):
        if values.get(key, 0) > values.get(other, math.inf):
            raise UsageError(
                f"{where}, {key}: {values[key]:,} is larger than {other}, {values[other]:,}",
                f"lower {key} or raise {other}",
            )
    policy = Policy(**values)
    if "max_iters" in values:
        return msgspec.structs.replace(policy, min_iters=min(policy.min_iters, policy.max_iters))
    return msgspec.structs.replace(policy, max_iters=max(policy.min_iters, policy.max_iters))


def _note_unused_graph(modes: Iterable[str], where: str) -> None:
    """Tells that graph sets nothing where no sweep has mode graph: 0.1 took such files."""
    if "graph" not in modes:
        print_message(
            f"{where}: graph sets the replays of mode graph, but no sweep has that mode",
            'add modes = ["graph"] to [axes], or leave graph out',
        )


NO_COLLECTIVES: dict[str, Any] = {"collectives": (), "sizes": ()}


def _inherit_axes(axes: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with what it leaves to [axes]; modes and arrivals, which both say how ranks come to
    a call, give way to each other."""
    if "modes" in table or "arrivals" in table:
        axes = {name: axes[name] for name in axes if name not in ("modes", "arrivals")}
    return {**axes, **table}


def _parse_sweep(
    table: Mapping[str, Any], where: str, bare: Mapping[str, Any] | None = None
) -> Axes:
    """The sweep of a table; one of other kinds alone is ``bare`` of collectives and sizes."""
    needed = dict.fromkeys(() if bare else NO_COLLECTIVES, HINT)
    values = _parse_values(table, AXES, where, needed)
    if "modes" in values and "arrivals" in values:
        raise UsageError(
            f"{where}, modes: arrivals say how ranks come to a call, and so do modes",
            "leave one of them out, or give it in an [[include]]",
        )
    axes = Axes(**{"ranks": (), "backends": (), **(bare or {}), **values})
    _check_algorithms(axes, where)
    return axes


def _check_algorithms(axes: Axes, where: str) -> None:
    try:
        for name in axes.collectives:
            normalise_algorithms(axes, name)
    except UsageError as e:
        raise UsageError(f"{where}, algorithms: {e.message}", e.hint) from e


def _parse_override(table: Mapping[str, Any], axes: Axes, where: str) -> Override:
    """An [[override]] table: the cases that match, and the axes replaced for them. Raises
    UsageError."""
    changeable = {name: read for name, read in LISTS.items() if name != "collectives"}
    hint = 'match = { collectives = ["all_to_all"] }, for example'
    values = _parse_values(table, {"match": _parse_match, **changeable}, where, {"match": hint})
    change = Part(**{name: value for name, value in values.items() if name != "match"})
    if not change.given:
        raise UsageError(
            f"{where}: nothing is replaced",
            f"set one of these beside match: {', '.join(changeable)}",
        )
    _check_algorithms(msgspec.structs.replace(axes, **change.given), where)
    return Override(match=values["match"], axes=change)


def _parse_exclude(table: Mapping[str, Any], where: str) -> Exclude:
    values = _parse_values(table, {**MATCH, "reason": TEXT.read}, where)
    reason = values.pop("reason", "")
    if not values:
        raise UsageError(
            f"{where}: this leaves everything out", f"set at least one of {', '.join(MATCH)}"
        )
    return Exclude(match=_parse_part(values, where), reason=reason)


def _parse_threshold(table: Mapping[str, Any], where: str) -> Threshold:
    readers = {"match": _parse_match, "tau": KINDS["share"].read, "min_busbw": _parse_limits}
    values = _parse_values(table, readers, where)
    if not values.get("tau") and not values.get("min_busbw"):
        hint = 'set tau = "15%" or min_busbw = "400@1G", for example'
        raise UsageError(f"{where}: neither tau nor min_busbw is given", hint)
    return Threshold(**values)


def _parse_limits(given: Any, where: str) -> tuple[Limit, ...]:
    """Limits on busbw: one or several, each a number or a text, which may list some itself."""
    items = given if isinstance(given, list) else [given]
    words = [word for item in map(str, items) for word in split_words(item) or [item]]
    return tuple(parse_limit(word, where) for word in words)


def _parse_values(
    table: Any, readers: Mapping[str, Read], where: str, needed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the keys of a table mean, by field. Each of those ``needed`` has a hint for a table
    without it."""
    for key in (table := TABLE.read(table, where)):
        if key not in readers:
            raise UsageError(
                f"{where}, {key}: there is no such key",
                suggest_name(key, readers) or f"one of {', '.join(readers)}",
            )
    for key, hint in (needed or {}).items():
        if key not in table:
            raise UsageError(f"{where}, {key}: it is missing", hint)
    names = {key: name for name, key in KEYS.items()}
    return {
        names.get(key, key): readers[key](value, f"{where}, {key}") for key, value in table.items()
    }


class Kind(NamedTuple):
    """How a file writes a value: it is of ``type``, and so is what ``parse`` makes of it where it
    is in quotes. Else ``expected`` is told, with the one of ``names`` that is near."""

    type: Any
    expected: str
    parse: Callable[[str, str], Any] = lambda text, where: text
    names: tuple[str, ...] = ()
    most: int | None = None

    def read(self, given: Any, where: str) -> Any:
        """The value under a key, converted. Raises UsageError that names the key."""
        if self.most is not None and isinstance(given, int) and given > self.most:
            raise UsageError(f"{where}: it is more than {self.most}", HINT)
        try:
            value = msgspec.convert(given, self.type)
            if isinstance(value, str):
                value = msgspec.convert(self.parse(value, where), self.type)
        except msgspec.ValidationError as e:
            raise _unlike_error(self.expected, given, where, suggest_name(given, self.names)) from e
        return value


def _unlike_error(expected: str, given: Any, where: str, hint: str = "") -> UsageError:
    excerpt = repr(given)
    excerpt = excerpt if len(excerpt) <= 60 else f"{excerpt[:60]}…"
    return UsageError(f"{where}: expected {expected}, not {excerpt}", hint or HINT)


def _parse_printable(text: str, where: str) -> str:
    """The text, or none where a terminal would not print all of it."""
    return text if text.isprintable() else ""


def _make_name_kind(find: Callable[[str], str], names: Iterable[str]) -> Kind:
    """A name that ``find`` knows, proper or not."""

    def parse(text: str, where: str) -> str:
        try:
            return find(text) if text.isprintable() else ""
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", suggest_name(text, names) or e.hint) from e

    return NAME._replace(parse=parse)


def _parse_algorithm(text: str, where: str) -> str:
    """The name of an algorithm of whatever collective, perhaps with parameters."""
    text = algorithms.spell_algorithm(text)
    names = {"native"} | {
        name for row in algorithms.list_catalogue().values() for name in (row.name, *row.aliases)
    }
    if text.isprintable() and text.partition(":")[0] not in names:
        raise UsageError(
            f"{where}: no collective has an algorithm '{text}'",
            suggest_name(text, names) or "collbench list",
        )
    return _parse_printable(text, where)


def _parse_split(text: str, where: str) -> str:
    try:
        splits.split_matrix(text.strip(), 1, 64, 1)
    except UsageError as e:
        raise UsageError(f"{where}: {e.message.removeprefix('--splits ')}", e.hint) from e
    return text.strip()


def _parse_field(field: Field, given: Any, where: str) -> Any:
    """What a file says of a field: of a list one value or several, or "all"."""
    kind = _find_kind(field)
    if field.kind == "sizes" and isinstance(given, dict):
        return _parse_range(given, where)
    if not field.many:
        return kind.read(given, where)
    if field.every and given in ("all", ["all"]):
        return field.every
    items = given if isinstance(given, list) else [given]
    most = MOST_WORLDS if field.name == "ranks" else MOST_VALUES
    if not 0 < len(items) <= most:
        raise _unlike_error(f"at least one value, and at most {most}", given, where)
    values = tuple(dict.fromkeys(kind.read(item, where) for item in items))
    return expand_envs(values, where) if field.kind == "setting" else values


def _find_kind(field: Field) -> Kind:
    """The kind of values that a field takes, by which they are parsed."""
    if field.choices:
        choices, literal = tuple(map(str, field.choices)), cast(Any, Literal)
        return Kind(literal[field.choices], f"one of {', '.join(choices)}", names=choices)
    if field.kind == "seconds" and field.least:
        return KINDS["seconds"]._replace(
            type=Annotated[float, Meta(ge=field.least, lt=1e7)] | str,
            expected=f'a duration from {field.least:g} s up such as "10s" or 0.5',
        )
    if field.kind != "whole":
        return KINDS[field.kind]
    least = int(field.least or 0)
    expected = f"a whole number from {least} up"
    return Kind(Annotated[int, Meta(ge=least)], expected, most=int(field.most or MOST))


def _parse_range(given: dict[str, Any], where: str) -> tuple[int, ...]:
    """The sizes of a table with min, max, and factor or step. Raises UsageError."""
    values = _parse_values(given, RANGE, where)
    if not {"min", "max"} <= set(values):
        expected = "a list of sizes, or a table with min, max and perhaps factor or step"
        raise _unlike_error(expected, given, where)
    try:
        return sweep_sizes(values["min"], values["max"], values.get("factor"), values.get("step"))
    except UsageError as e:
        message, hint = (
            re.sub("|".join(WORDS), lambda match: WORDS[match[0]], text)
            for text in (e.message, e.hint)
        )
        raise UsageError(f"{where}: {message}", hint) from e


def _parse_match(given: Any, where: str) -> Part:
    return _parse_part(_parse_values(given, MATCH, where), where)


def _parse_part(values: dict[str, Any], where: str) -> Part:
    if values.get("min_size", 0) > values.get("max_size", 1 << 62):
        raise UsageError(
            f"{where}, min_size: it is larger than max_size", "lower min_size or raise max_size"
        )
    return Part(**values)


NAME = Kind(
    Annotated[str, Meta(pattern=r"^[^\s,]+\Z")],
    "a name in quotes without blanks and commas, several of them as a list",
    _parse_printable,
)

TEXT = Kind(Annotated[str, Meta(pattern=r"\S")], "text", lambda text, where: text.strip())

SIZE = Kind(
    Annotated[int, Meta(ge=0)] | str,
    'a size such as 4096 or "1M"',
    parse_size,
    most=(1 << 62) - 1,
)

KINDS: dict[str, Kind] = {
    "flag": Kind(bool, "true or false"),
    "place": Kind(bool, "true or false"),
    "share": Kind(
        Annotated[float, Meta(gt=0, lt=1)] | str, 'a share such as "2%" or 0.02', parse_share
    ),
    "seconds": Kind(
        Annotated[float, Meta(gt=0, lt=1e7)] | str,
        'a duration above 0 such as "10s" or 0.5',
        parse_duration,
    ),
    "size": SIZE,
    "sizes": SIZE,
    "setting": TEXT,
    "split": TEXT._replace(parse=_parse_split),
    "name": NAME,
    "collective": _make_name_kind(lambda word: find_collective(word).name, COLLECTIVES),
    "dtype": _make_name_kind(lambda word: find_dtype(word).name, DTYPES),
    "op": _make_name_kind(find_reduction, OPS),
    "algorithm": NAME._replace(parse=_parse_algorithm),
    "rule": NAME._replace(parse=groups.normalise_rule),
    "arrival": NAME._replace(parse=arrivals.normalise_arrival),
    "background": TEXT._replace(type=str, parse=backgrounds.normalise_background),
}

TABLE = Kind(dict[str, Any], "a table")

RANGE: dict[str, Read] = {
    "min": SIZE.read,
    "max": SIZE.read,
    "factor": Kind(Annotated[float, Meta(gt=1, lt=1e9)], "a number above 1").read,
    "step": SIZE.read,
}


def _make_table_reader(name: str) -> Read:
    return Kind(list[dict[str, Any]], f"tables, each under [[{name}]]").read


def _make_keys(rows: Iterable[Field]) -> dict[str, Read]:
    """Keys of a table, each of which says a field."""
    return {KEYS.get(field.name, field.name): partial(_parse_field, field) for field in rows}


AXES = _make_keys(fields.AXES)

LISTS = _make_keys(field for field in fields.AXES if field.case)

MATCH: dict[str, Read] = {
    **LISTS,
    "roots": partial(_parse_field, Field("axes", "roots", "whole", many=True)),
    "algorithms": partial(_parse_field, Field("axes", "algorithms", "algorithm", many=True)),
    "min_size": SIZE.read,
    "max_size": SIZE.read,
}

POLICY = _make_keys(field for field in fields.POLICY if field.kind != "faults")

TOP: dict[str, Read] = {
    "description": TEXT.read,
    "tags": partial(_parse_field, Field("axes", "tags", "name", many=True)),
    "axes": TABLE.read,
    "policy": TABLE.read,
    **{name: _make_table_reader(name) for name in ("include", "override", "exclude", "threshold")},
}
