"""Suites: sweeps kept in TOML files, the built-in ones shipped with the package and found by name.

Whatever a file says wrongly is a UsageError that names file, table, key and what was expected.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from collbench import algorithms, groups, splits
from collbench.collectives import COLLECTIVES, OPS, collective, reduction
from collbench.dtypes import DTYPES, dtype
from collbench.errors import UsageError, first_line
from collbench.grammar import expand_envs, parse_duration, parse_share, parse_size, sweep
from collbench.selection import Exclude, Override, Part, Threshold
from collbench.suite import MODES, MOST_RANKS, Axes, Policy, Suite, spelled

PACKAGE = Path(__file__).parent
MOST = 1 << 31
HINT = "collbench run --help says how a suite is written; the built-in ones are examples"

Read = Callable[[Any, str], Any]  # what a value in a file means; the words say where it stands


def built_in() -> dict[str, Suite]:
    """The shipped suites by name."""
    return {name: _read(path) for name, path in _shipped().items()}


def load(name: str) -> Suite:
    """The suite in the file ``name``, or the built-in one of that name; what it leaves to the machine is still open."""
    shipped = _shipped()
    if name in shipped:
        return _read(shipped[name])
    path = Path(name)
    if not path.is_file() or (path.suffix != ".toml" and "/" not in name):
        near = f"write ./{name} for the file here" if path.is_file() else _near(name, shipped)
        raise UsageError(f"no suite '{name}'", near or f"a TOML file, or one of {', '.join(shipped)}")
    return _read(path)


def _shipped() -> dict[str, Path]:
    """Of a wheel, within the package; of a checkout, beside it, where any other package's files may lie too."""
    beside = [PACKAGE.parent / "suites"] if (PACKAGE.parent / "pyproject.toml").is_file() else []
    paths = sorted(path for folder in (PACKAGE / "suites", *beside) for path in folder.glob("*.toml"))
    return {path.stem: path for path in paths}


def _read(path: Path) -> Suite:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as e:
        raise UsageError(f"{path}: {first_line(e)}", HINT) from e
    said = _values(document, TOP, str(path))
    missing = [name for name in ("description", "axes") if name not in said]
    if missing:
        raise UsageError(f"{path}: there is no {missing[0]}", HINT)
    policy = _policy(said.get("policy", {}), f"{path}: [policy]")
    axes = _sweep(said["axes"], f"{path}: [axes]")
    further = [_sweep({**said["axes"], **table}, where) for table, where in _each(said, "include", path)]
    return Suite(
        name=path.stem, axes=axes, policy=policy, description=said["description"], tags=said.get("tags", ()),
        includes=tuple(further),
        overrides=tuple(_override(table, axes, where) for table, where in _each(said, "override", path)),
        excludes=tuple(_exclude(table, where) for table, where in _each(said, "exclude", path)),
        thresholds=tuple(_threshold(table, where) for table, where in _each(said, "threshold", path)),
    )  # fmt: skip


def _each(said: Mapping[str, Any], name: str, path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    for number, table in enumerate(said.get(name, ()), 1):
        yield table, f"{path}: [[{name}]] {number}"


def _policy(table: Mapping[str, Any], where: str) -> Policy:
    said = _values(table, POLICY, where)
    if "iters" in said:
        if "max_seconds" in said:
            raise UsageError(f"{where}, max_seconds: iters fixes the repetitions that it would choose", "give one")
        said = {"batch": said["iters"], **said}  # as -n does
    return Policy(**said)


def _sweep(table: Mapping[str, Any], where: str) -> Axes:
    said = _values(table, {**AXES, "align": _size, "cycles": _whole(1), "groups": _rule}, where)
    missing = [name for name in ("collectives", "sizes") if name not in said]
    if missing:
        raise UsageError(f"{where}, {missing[0]}: there are none", HINT)
    axes = Axes(**{"ranks": (), "backends": (), **said})
    _check_algorithms(axes, where)
    return axes


def _check_algorithms(axes: Axes, where: str) -> None:
    try:
        for name in axes.collectives:
            spelled(axes, name)
    except UsageError as e:
        raise UsageError(f"{where}, algorithms: {e.message}", e.hint) from e


def _override(table: Mapping[str, Any], axes: Axes, where: str) -> Override:
    changeable = {name: read for name, read in AXES.items() if name != "collectives"}
    said = _values(table, {"match": _match, **changeable}, where)
    if "match" not in said:
        raise UsageError(f"{where}, match: there is none", 'match = { collectives = ["all_to_all"] }, for example')
    change = Part(**{name: value for name, value in said.items() if name != "match"})
    if not change.given:
        raise UsageError(f"{where}: nothing is replaced", f"beside match, one of {', '.join(changeable)}")
    _check_algorithms(msgspec.structs.replace(axes, **change.given), where)
    return Override(match=said["match"], axes=change)


def _exclude(table: Mapping[str, Any], where: str) -> Exclude:
    said = _values(table, {**MATCH, "reason": _text}, where)
    reason = said.pop("reason", "")
    if not said:
        raise UsageError(f"{where}: this leaves everything out", f"at least one of {', '.join(MATCH)}")
    return Exclude(match=_part(said, where), reason=reason)


def _threshold(table: Mapping[str, Any], where: str) -> Threshold:
    said = _values(table, {"match": _match, "tau": _share}, where)
    if "tau" not in said:
        raise UsageError(f"{where}, tau: there is none", 'tau = "15%", for example')
    return Threshold(**{"match": Part(), **said})


def _values(table: Any, known: Mapping[str, Read], where: str) -> dict[str, Any]:
    """What the keys of a table mean, by field."""
    table = _table(table, where)
    for key in table:
        if key not in known:
            raise UsageError(f"{where}, {key}: there is no such key", _near(key, known) or f"one of {', '.join(known)}")
    return {FIELDS.get(key, key): known[key](value, f"{where}, {key}") for key, value in table.items()}


def _expected(what: str, given: Any, where: str, hint: str = "") -> UsageError:
    shown = repr(given)
    return UsageError(f"{where}: expected {what}, not {shown[:60]}{'…' * (len(shown) > 60)}", hint or HINT)


def _near(word: Any, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(word), list(names), 1)
    return f"did you mean {found[0]}?" if found else ""


def _list(one: Read, every: tuple[Any, ...] = ()) -> Read:
    """One or several; ``every`` are meant by "all"."""

    def read(given: Any, where: str) -> tuple[Any, ...]:
        if every and given in ("all", ["all"]):
            return every
        items = given if isinstance(given, list) else [given]
        if not items:
            raise _expected("at least one value", given, where)
        return tuple(dict.fromkeys(one(item, where) for item in items))

    return read


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise _expected("text", given, where)
    return given.strip()


def _word(given: Any, where: str) -> str:
    if not isinstance(given, str) or not given or any(c.isspace() or c == "," or not c.isprintable() for c in given):
        raise _expected("a name in quotes, several of them as a list", given, where)
    return given


def _known(find: Callable[[str], str], names: Iterable[str]) -> Read:
    """A name that ``find`` knows, proper or not."""

    def read(given: Any, where: str) -> str:
        word = _word(given, where)
        try:
            return find(word)
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", _near(word, names) or e.hint) from e

    return read


def _one_of(*allowed: Any) -> Read:
    def read(given: Any, where: str) -> Any:
        if type(given) is not type(allowed[0]) or given not in allowed:
            raise _expected(f"one of {', '.join(map(str, allowed))}", given, where, _near(given, map(str, allowed)))
        return given

    return read


def _whole(least: int, most: int = MOST) -> Read:
    def read(given: Any, where: str) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or given < least:
            raise _expected(f"a whole number from {least} up", given, where)
        if given > most:
            raise UsageError(f"{where}: it is more than {most}", HINT)
        return given

    return read


def _rule(given: Any, where: str) -> str:
    return groups.spelled(_word(given, where), where)


def _flag(given: Any, where: str) -> bool:
    if not isinstance(given, bool):
        raise _expected("true or false", given, where)
    return given


def _size(given: Any, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise _expected('a size such as 4096 or "1M"', given, where)
    return parse_size(str(given), where)


def _sizes(given: Any, where: str) -> tuple[int, ...]:
    if not isinstance(given, dict):
        return tuple(_list(_size)(given, where))
    said = _values(given, {"min": _size, "max": _size, "factor": _factor, "step": _size}, where)
    if not {"min", "max"} <= set(said):
        raise _expected("a list of sizes, or a table with min, max and perhaps factor or step", given, where)
    try:
        return sweep(said["min"], said["max"], said.get("factor"), said.get("step"))
    except UsageError as e:
        raise UsageError(f"{where}: {e.message}", e.hint) from e


def _factor(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 1 < given < 1e9:
        raise _expected("a number above 1", given, where)
    return float(given)


def _seconds(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise _expected('a duration such as "10s" or 0.5', given, where)
    value = parse_duration(given, where) if isinstance(given, str) else float(given)
    if not 0 < value < 1e7:
        raise _expected("a duration above 0", given, where)
    return value


def _share(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, str | float):
        raise _expected('a share such as "2%" or 0.02', given, where)
    return parse_share(str(given), where)


def _algorithm(given: Any, where: str) -> str:
    """The name of an algorithm of whatever collective, perhaps with parameters."""
    word = _word(given, where)
    names = {"native"} | {name for row in algorithms.catalogue().values() for name in (row.name, *row.aliases)}
    if word.partition(":")[0] not in names:
        raise UsageError(f"{where}: no collective has an algorithm '{word}'", _near(word, names) or "collbench list")
    return word


def _splits(given: Any, where: str) -> str:
    text = _text(given, where)
    try:
        splits.matrix(text, 1, 64, 1)
    except UsageError as e:
        raise UsageError(f"{where}: {e.message.removeprefix('--splits ')}", e.hint) from e
    return text


def _env(given: Any, where: str) -> Any:
    return expand_envs(_list(_text)(given, where), where)


def _match(given: Any, where: str) -> Part:
    return _part(_values(given, MATCH, where), where)


def _part(said: dict[str, Any], where: str) -> Part:
    if said.get("min_size", 0) > said.get("max_size", 1 << 62):
        raise UsageError(f"{where}, min_size: it is larger than max_size", "no size is between them")
    return Part(**said)


def _table(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _expected("a table", given, where)
    return given


def _tables(given: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(table, dict) for table in given):
        name = where.rpartition(", ")[2]
        raise _expected(f"tables, each under [[{name}]]", given, where)
    return given


FIELDS = {"env": "envs"}  # of Axes and Part, where a key has another name
AXES: dict[str, Read] = {
    "collectives": _list(_known(lambda word: collective(word).name, COLLECTIVES)), "sizes": _sizes,
    "ranks": _list(_whole(1, MOST_RANKS)), "backends": _list(_word), "algorithms": _list(_word),
    "dtypes": _list(_known(lambda word: dtype(word).name, DTYPES), tuple(DTYPES)),
    "ops": _list(_known(reduction, OPS), tuple(OPS)), "roots": _list(_whole(0), (-1,)), "in_place": _list(_flag),
    "modes": _list(_one_of(*MODES)), "env": _env, "splits": _list(_splits),
}  # fmt: skip
MATCH: dict[str, Read] = {
    **AXES, "roots": _list(_whole(0)), "algorithms": _list(_algorithm), "min_size": _size, "max_size": _size
}  # fmt: skip
POLICY: dict[str, Read] = {
    "iters": _whole(1), "warmup": _whole(0), "precision": _share, "max_seconds": _seconds, "min_seconds": _seconds,
    "min_iters": _whole(1), "max_iters": _whole(1), "batch": _whole(1), "graph": _whole(1),
    "sync": _one_of("auto", "window", "barrier", "device"), "cache": _one_of("cold", "hot"),
    "order": _one_of("auto", "size", "shuffled"), "check": _whole(0), "seed": _whole(0), "agg_iters": _whole(1),
    "unalign": _whole(0), "blocking": _one_of(0, 1), "cpu_time": _flag, "pin": _flag, "timeout": _seconds,
    "virtual": _flag, "share_gpu": _flag, "register": _one_of(0, 1, 2), "fresh": _flag,
    "bitwise": _flag,
}  # fmt: skip
TOP: dict[str, Read] = {
    "description": _text, "tags": _list(_word), "axes": _table, "policy": _table, "include": _tables,
    "override": _tables, "exclude": _tables, "threshold": _tables,
}  # fmt: skip
