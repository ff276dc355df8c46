"""What a shell completes after an option or in place of an argument: names that are known without
measuring anything. Nothing here imports torch; only names of algorithms need numpy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS

if TYPE_CHECKING:
    from typer.models import ParameterInfo

    from collbench.suite.fields import Field

Completion = Callable[[str], list[str]]


def add_completion(row: ParameterInfo) -> ParameterInfo:
    """The row of an option or an argument with what completes it, where KINDS has that."""
    # where a row has no default its first name stands
    placeholder = row.metavar or str(row.default)
    if (kind := KINDS.get(placeholder)) is None:
        return row
    row = copy.copy(row)
    row.autocompletion = _make_completion(find_name_source(kind), many=kind == "algorithm")
    return row


def of_field(row: Field) -> Completion:
    """The completion of the option of a row of suite/fields.py."""
    kind = {"backends": "backend", "algorithms": "algorithm"}.get(row.name, row.kind)
    choices = [choice for choice in row.choices if isinstance(choice, str)]
    return _make_completion(lambda: [*choices, *find_name_source(kind)()], row.many)


def find_name_source(kind: str) -> Callable[[], Iterable[str]]:
    """The function that gives the names of a kind: algorithm, backend, collective, dtype, op, run
    or suite. There are none of any other kind."""
    return NAMES.get(kind, tuple)


def _make_completion(list_names: Callable[[], Iterable[str]], many: bool = False) -> Completion:
    """The function that typer calls with the word begun so far; of a list (``many``) the last item
    counts."""

    def complete(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",") if many else ("", "", "")
        return [f"{before}{comma}{name}" for name in list_names()]

    return complete


def _list_algorithms() -> list[str]:
    from collbench.core import algorithms

    names = [row.name for name in COLLECTIVES for row in algorithms.list_algorithms(name)]
    return ["native", *dict.fromkeys(names)]


def _list_backends() -> list[str]:
    from collbench.core.backend_info import backend_names

    return backend_names()


def _list_suites() -> list[str]:
    from collbench.suite import shipped

    return list(shipped.list_suites())


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "algorithm": _list_algorithms,
    "backend": _list_backends,
    "collective": lambda: COLLECTIVES,
    "dtype": lambda: DTYPES,
    "op": lambda: OPS,
    "run": lambda: ("@last", "@last~1"),
    "suite": _list_suites,
}

KINDS = {  # by what an argument is called in help, or an option
    "COLLECTIVE": "collective",
    "[COLLECTIVE]": "collective",
    "COLLECTIVE|RUN": "collective",
    "ALGORITHM": "algorithm",
    "[ALGORITHM]": "algorithm",
    "--algo": "algorithm",
    "SUITE": "suite",
    "--suite": "suite",
    "RUN": "run",
    "RUN…": "run",
    "[RUN]": "run",
    "BASE": "run",
    "HEAD": "run",
}
