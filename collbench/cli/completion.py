"""What a shell completes after an option or in place of an argument: names that are known without
measuring anything. Nothing here imports torch; only names of algorithms need numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from collbench.core.collectives import COLLECTIVES, DTYPES, OPS

if TYPE_CHECKING:
    from collbench.suite.fields import Field

Completion = Callable[[str], list[str]]


def names(kind: str) -> Iterable[str]:
    """The names of a kind: algorithm, backend, collective, dtype, op, run, suite or topic. None of
    any other kind."""
    return NAMES.get(kind, tuple)()


def complete(kind: str = "", choices: Iterable[str] = (), many: bool = False) -> Completion:
    """What typer calls with the word begun so far; of a list (``many``) the last item counts."""

    def found(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",") if many else ("", "", "")
        return [f"{before}{comma}{name}" for name in (*choices, *names(kind))]

    return found


def of_field(row: Field) -> Completion:
    """What completes the option of a row of suite/fields.py."""
    kind = {"backends": "backend", "algorithms": "algorithm"}.get(row.name, row.kind)
    choices = [choice for choice in row.choices if isinstance(choice, str)]
    return complete(kind, choices, row.many)


def _algorithms() -> list[str]:
    from collbench.core import algorithms

    found = [row.name for name in COLLECTIVES for row in algorithms.of(name)]
    return ["native", *dict.fromkeys(found)]


def _backends() -> list[str]:
    from collbench.cli.list_ import BACKENDS

    found = [name for names, _ in BACKENDS for name in names.split(", ")]
    return [name for name in found if name.islower()]


def _suites() -> list[str]:
    from collbench.suite import shipped

    return list(shipped.suites())


def _topics() -> list[str]:
    from collbench.cli.help import pages

    return list(pages())


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "algorithm": _algorithms,
    "backend": _backends,
    "collective": lambda: COLLECTIVES,
    "dtype": lambda: DTYPES,
    "op": lambda: OPS,
    "run": lambda: ("@last", "@last~1"),
    "suite": _suites,
    "topic": _topics,
}
