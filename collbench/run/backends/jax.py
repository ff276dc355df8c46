"""JAX on CPUs: collectives of compiled programs, which XLA does over Gloo."""

from __future__ import annotations

import importlib.util
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._jax_names import COLLECTIVES, MISSING
from collbench.suite.case import Case


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._jax import Jax

    return Jax()


def refuse(case: Case) -> str:
    """Why JAX never runs ``case`` in one call with its meaning; else an empty string."""
    ops = COLLECTIVES.get(case.collective, {})
    averages_integers = case.op == "avg" and case.type.kind != "float"
    reasons = {
        "jax runs on CPUs here and cannot be captured in a CUDA graph": case.mode == "graph",
        "jax runs collectives of its own only: leave --algo out": case.algorithm != "native",
        f"JAX has no {case.collective} among its collectives on CPUs": not ops,
        "JAX's arrays do not change, so it does nothing in place (--place out)": case.in_place,
        f"JAX has no {case.collective} by {case.op}": case.op not in ops,
        "JAX averages integers through floats, which rounds them": averages_integers,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def explain_absence() -> str:
    """Why no rank of this machine can open JAX, as far as that is seen without loading it."""
    return "" if importlib.util.find_spec("jax") else MISSING


def find_library() -> str:
    """Name and version of JAX, once it is loaded. Raises CannotRun where it cannot be."""
    from collbench.run.backends._jax import load_jax

    return f"jax {load_jax().__version__}, collectives by Gloo"


INFO = BackendInfo(
    about="JAX on CPUs: collectives of compiled programs, by XLA's Gloo",
    packages=("jax", "jaxlib"),
    settings=("JAX_", "XLA_"),
    threads=2,
    binds=False,  # bound to one core, a call waits for a timer tick
    rank_bytes=512 << 20,
    owns_results=True,
    messages=False,
    background="none",
    averages=True,
    call_path="dispatch of a compiled program",
    refuse=refuse,
    here=explain_absence,
    find=find_library,
)
