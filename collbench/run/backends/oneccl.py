"""oneCCL on CPUs: Intel's library, without a launcher and without MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._oneccl_names import COLLECTIVES, DATATYPES, REDUCTIONS
from collbench.suite.case import Case


def create(name: str) -> Any:
    """The backend, not opened."""
    from collbench.run.backends._oneccl import OneCcl

    return OneCcl()


def fetch(wheels: Path) -> str:
    """Lay out oneCCL of the wheels in a folder; a sentence that says where it lies. Raises
    UsageError where one of them is missing or damaged."""
    from collbench.run.backends._oneccl_files import lay_out_wheels

    folder = lay_out_wheels(wheels)
    return f"oneCCL {folder.name} lies in {folder}"


def refuse(case: Case) -> str:
    """Why oneCCL never runs ``case``; else an empty string."""
    if case.mode == "graph":
        return "oneccl runs on CPUs here and cannot be captured in a CUDA graph"
    if case.algorithm != "native":
        return "oneccl runs its own algorithms alone; gloo and mpi run reference algorithms"
    return "" if case.subject else _refuse_collective(case)


def _refuse_collective(case: Case) -> str:
    if case.collective not in COLLECTIVES:
        return f"oneCCL has no {case.collective}"
    if case.row.reduces and case.op not in REDUCTIONS:
        return f"oneCCL has no reduction {case.op} on CPUs"
    if case.row.moves_data and case.dtype not in DATATYPES:
        return f"oneCCL has no datatype {case.dtype}"
    return ""


def refuse_here() -> str:
    """Why oneCCL is not to be had here; else an empty string."""
    from collbench.run.backends import _oneccl_files

    return _oneccl_files.refuse_here()


def find() -> str:
    """The oneCCL that ranks use here. Raises CannotRun where there is none."""
    from collbench.run.backends import _oneccl_files

    library = _oneccl_files.find_library()
    return f"oneCCL {library.version} in {library.ccl.parent}"


INFO = BackendInfo(
    about="Intel's oneCCL on CPUs, over shared memory and libfabric",
    packages=("oneccl-cpu", "impi-rt"),
    settings=("CCL_", "FI_"),
    threads=1,
    messages=False,
    groups="partition",
    background="computation",
    call_path="a pointer passed to C++ by ctypes, and oneCCL's schedule of a call",
    refuse=refuse,
    here=refuse_here,
    find=find,
)
