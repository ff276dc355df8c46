"""A case in words."""

from __future__ import annotations

from collbench.core.text import format_count, format_size, plain_line
from collbench.suite.case import Case


def describe_case(case: Case) -> str:
    """A case in words: all_reduce 1 MiB on 8 ranks, ring@gloo."""
    what = f"{case.collective} {format_size(case.size)}" if case.size else case.collective
    rest = [
        case.label,
        *([] if case.dtype == "float" or not case.size else [case.dtype]),
        *(["in place"] if case.in_place else []),
        *(f"{k}={v}" for k, v in case.env),
    ]
    return plain_line(f"{what} on {format_count(case.n, 'rank')}, {', '.join(rest)}")
