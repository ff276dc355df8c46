"""Settings that give wrong results for operations that do not commute.

A library's own choice asks whether the operation commutes. A rule or a variable does not, and only
some algorithms then fall back to another one. No run of collbench has such operations. Measured
with products of affine maps on 2 to 5 ranks, Open MPI 5.0 and Intel MPI 2021.18; MPICH's trees ask,
as they are written (formats/mpich.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from collbench.features.advise.types import Advised

UNORDERED: Mapping[
    str, Mapping[str, tuple[str, ...]]
] = {  # by library and collective: names without what follows "/"
    "openmpi": {
        "all_reduce": ("nonoverlapping", "ring", "segmented_ring"),
        "reduce": ("chain", "pipeline", "binary", "binomial"),
    },
    "intelmpi": {"reduce_scatter": ("preset 2",)},  # where ranks are a power of two
}
CALLERS = {("openmpi", "reduce"): "reduce, and of reduce_scatter, which calls it"}


def describe_unordered(advised: Advised) -> str:
    """A warning of such settings among rows and fills; empty where there are none."""
    table = UNORDERED.get(advised.library, {})
    names = dict.fromkeys(
        f"{row.name} of {CALLERS.get((advised.library, collective), collective)}"
        for row in (*advised.rows, *advised.fills)
        if (collective := row.series.collective) in table
        and row.name.partition("/")[0] in table[collective]
    )
    if not names:
        return ""
    return (
        "WRONG RESULTS for operations that do not commute (MPI_Op_create with commute = 0):"
        f" {', '.join(names)}. Not for jobs that have such operations of their own; all of MPI's"
        " (MPI_SUM, MPI_MAX, ...) commute."
    )


def warn_unordered(advised: Advised) -> Advised:
    """The advice with this warning among its notes."""
    warning = describe_unordered(advised)
    if not warning or warning in advised.notes:
        return advised
    return msgspec.structs.replace(advised, notes=(warning, *advised.notes))
