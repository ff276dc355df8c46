"""Options of `collbench history` that select rows, as hints print them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from collbench.suite.case import Case


def select_rows(cases: Sequence[Case]) -> str:
    """The options that select the rows of these cases, and of a machine's rows as few others as
    they can."""
    sizes = [case.nbytes for case in cases]
    values = {
        "--only": ",".join(dict.fromkeys(case.collective for case in cases)),
        "-b": _format_size(min(sizes)),
        "-e": _format_size(max(sizes)),
        "--backend": ",".join(dict.fromkeys(case.backend for case in cases)),
        "-g": ",".join(dict.fromkeys(str(case.n) for case in cases)),
    }
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in values.items())


def _format_size(nbytes: int) -> str:
    """The very number of bytes, with the largest unit that divides it."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)
