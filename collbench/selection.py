"""Parts of a sweep: which cases mean nothing anywhere, and which an exclude, an override or a threshold is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from collbench import algorithms
from collbench.collectives import OPS
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.suite import Case

FIELDS = {  # of Case, by the axis that they are a value of
    "collectives": "collective", "sizes": "nbytes", "ranks": "n", "backends": "backend", "algorithms": "algorithm",
    "dtypes": "dtype", "ops": "op", "roots": "root", "in_place": "in_place", "modes": "mode", "envs": "env",
    "splits": "splits",
}  # fmt: skip
Setting = tuple[tuple[str, str], ...]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    pass


class Part(_Part, frozen=True):
    """Values along some axes; an axis without any is left alone. Sizes are those asked for.

    A case is in it that has one of the values along each axis given: an algorithm by its name with or without
    parameters, a setting of the environment among others.
    """

    collectives: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    roots: tuple[int, ...] = ()
    in_place: tuple[bool, ...] = ()
    modes: tuple[str, ...] = ()
    envs: tuple[Setting, ...] = ()
    splits: tuple[str, ...] = ()
    min_size: int = 0
    max_size: int | None = None

    @property
    def given(self) -> dict[str, tuple[Any, ...]]:
        """The axes that have values."""
        return {axis: values for axis in FIELDS if (values := getattr(self, axis))}

    def __contains__(self, case: Case) -> bool:
        small = self.max_size is None or case.nbytes <= self.max_size
        return small and case.nbytes >= self.min_size and all(_among(case, *axis) for axis in self.given.items())


def _among(case: Case, axis: str, values: tuple[Any, ...]) -> bool:
    if axis == "envs":
        return any(set(setting) <= set(case.env) for setting in values)
    if axis == "algorithms":
        name = case.algorithm.partition(":")[0]
        row = algorithms.catalogue().get((case.collective, name))
        return not {case.algorithm, name, *(row.aliases if row else ())}.isdisjoint(values)
    return getattr(case, FIELDS[axis]) in values


class Exclude(_Part, frozen=True):
    """Cases that are left out: as skips with the reason, or without a trace where there is none."""

    match: Part
    reason: str = ""


class Override(_Part, frozen=True):
    """Other values along some axes for some cases of the sweep."""

    match: Part
    axes: Part


class Threshold(_Part, frozen=True):
    """The smallest relative change of some rows that a comparison judges."""

    match: Part
    tau: float


def why_not(case: Case) -> str:
    """Why ``case`` means nothing on any backend, or an empty string."""
    row = case.row
    if case.in_place and row.in_place is None:
        return f"{row.name} has no in-place form"
    if case.algorithm != "native":
        try:
            reason = algorithms.find(row.name, case.algorithm).why_not(case.n)
        except UsageError as e:
            reason = e.message
        if reason:
            return f"{case.algorithm}: {reason}"
    if row.reduces and OPS[case.op].integers_only and case.type.kind == "float":
        return f"{case.op} is defined on integers only, not {case.dtype}"
    if case.root >= case.n:
        return f"root {case.root} does not exist among {case.n} ranks"
    if row.name != "barrier" and (case.size == 0 or (case.splits and case.moved == 0 and case.n > 1)):
        least = case.type.size * (max(case.n, case.align // case.type.size * case.n) if row.total else 1)
        return f"{case.nbytes} B give a rank no {case.dtype} element; the smallest size is {least} B"
    return ""
