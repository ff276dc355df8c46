"""MLX on CPUs: collectives of its ring, over TCP."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._mlx_names import COLLECTIVES, CORELESS, MISSING
from collbench.suite.case import Case

LACKS = ("f8e4m3", "f8e5m2")


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._mlx import Mlx

    return Mlx()


def refuse(case: Case) -> str:
    """Why MLX never runs ``case`` in one call with its meaning; else an empty string."""
    ops = COLLECTIVES.get(case.collective, {})
    reasons = {
        "mlx runs on CPUs here and cannot be captured in a CUDA graph": case.mode == "graph",
        "mlx runs collectives of its own only: leave --algo out": case.algorithm != "native",
        f"MLX's ring has no {case.collective}": not ops,
        "MLX's arrays do not change, so it does nothing in place (--place out)": case.in_place,
        f"MLX has no {case.collective} by {case.op}": case.op not in ops,
        f"MLX has no datatype {case.dtype}": case.dtype in LACKS,
        "a ring of MLX has at least two ranks": case.n == 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def explain_absence() -> str:
    """Why no rank of this machine can open MLX, as far as that is seen without loading it."""
    spec = importlib.util.find_spec("mlx")
    if not spec:
        return MISSING
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if sys.platform == "linux" and not any((f / "lib" / "libmlx.so").exists() for f in folders):
        return CORELESS
    return ""


def find_library() -> str:
    """Name and version of MLX, once it is loaded. Raises CannotRun where it cannot be."""
    from collbench.run.backends._mlx import load_mlx

    return f"mlx {load_mlx().__version__}, ring"


INFO = BackendInfo(
    about="MLX on CPUs: collectives of its ring, over TCP",
    packages=("mlx", "mlx-cpu"),
    settings=("MLX_",),
    threads=2,
    binds=False,
    owns_results=True,
    messages=False,
    groups="partition",
    worlds="one",
    background="none",
    call_path="dispatch of an array's evaluation",
    refuse=refuse,
    here=explain_absence,
    find=find_library,
)
