"""Suites: sweeps kept in TOML files, the built-in ones shipped with the package and found by name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from collbench.errors import UsageError
from collbench.suite import Axes, Policy, Suite, parse_size, sweep

FOLDERS = (Path(__file__).parent / "suites", Path(__file__).parent.parent / "suites")  # in a wheel; in a checkout


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A suite as written: ``axes.sizes`` is a list ("8", "1M") or a table (min, max, factor)."""

    description: str
    axes: dict[str, Any]
    policy: Policy = Policy()


def built_in() -> dict[str, str]:
    """Names of the shipped suites, and what each is for."""
    paths = sorted(path for folder in FOLDERS if folder.is_dir() for path in folder.glob("*.toml"))
    return {path.stem: _read(path).description for path in paths}


def load(name: str) -> Suite:
    """The suite in the file ``name``, or the built-in one of that name. Errors name file, key and what was expected."""
    places = [Path(name), *(folder / f"{name}.toml" for folder in FOLDERS)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise UsageError(f"no suite '{name}'", f"a TOML file, or one of {', '.join(built_in())}")
    found = _read(path)
    try:
        axes = msgspec.convert({**found.axes, "sizes": _sizes(found.axes.get("sizes"))}, Axes)
    except (msgspec.ValidationError, UsageError) as e:
        raise UsageError(f"{path}: [axes] {e}", "see the built-in suites for examples") from e
    return Suite(name=path.stem, axes=axes, policy=found.policy)


def _read(path: Path) -> _File:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: {e}", "see the built-in suites for examples") from e


def _sizes(given: Any) -> tuple[int, ...]:
    match given:
        case [*words]:
            return tuple(parse_size(str(word), "sizes") for word in words)
        case {"min": least, "max": most, "factor": int() | float() as factor}:
            return sweep(parse_size(str(least)), parse_size(str(most)), factor)
        case {"min": least, "max": most, **rest} if not rest:
            return sweep(parse_size(str(least)), parse_size(str(most)))
    raise UsageError("sizes: expected a list of sizes, or a table with min, max and perhaps factor")
