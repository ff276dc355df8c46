"""What a backend can run on no machine, by families of backends. Loads no torch."""

from __future__ import annotations

from collbench.core.collectives import OPS
from collbench.suite.case import Case

MPI_TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float": "FLOAT",
    "double": "DOUBLE",
}


MPI_REDUCTIONS = {
    "sum": "SUM",
    "prod": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}


WAITING = frozenset(
    {"barrier"}
)  # returns when all is done; other calls on NCCL when the current stream is behind them


def torch_distributed(case: Case, name: str) -> str:
    """Why torch's backend ``name`` never runs ``case``; else an empty string."""
    native = case.algorithm == "native"
    if case.mode == "graph" and name != "nccl":
        return f"{name} cannot be captured in a CUDA graph"
    if case.mode == "graph" and native and case.collective in WAITING:
        return f"torch's {case.collective} waits for the device, which a CUDA graph cannot"
    if case.mode == "graph" and case.n == 1 and case.in_place and not _scales(case):
        return "one rank has nothing to do in place (an empty CUDA graph)"
    if case.op == "premul_sum" and native and name != "nccl":
        return f"premul_sum is an NCCL reduction; {name} has none"
    if case.row.pairwise and native and case.n == 1:
        return f"{name} does not send to itself"
    return ""


def _scales(case: Case) -> bool:
    """Whether NCCL multiplies what a rank contributes, even of one rank: its only kernel there."""
    return case.op == "premul_sum" or (case.op == "avg" and case.type.kind == "float")


def mpi(case: Case) -> str:
    """Why MPI never runs ``case``; else an empty string."""
    if case.mode == "graph":
        return "mpi runs on CPUs and cannot be captured in a CUDA graph"
    if case.algorithm != "native":
        return ""
    if case.row.reduces and case.op not in MPI_REDUCTIONS:
        return f"MPI has no reduction {case.op}"
    if case.row.reduces and case.dtype not in MPI_TYPES:
        return f"MPI has no datatype {case.dtype} to reduce"
    if case.in_place and case.collective == "reduce_scatter":
        return (
            "MPI's in-place reduce_scatter leaves results at the start of the buffer, not in"
            " each rank's block"
        )
    return ""


def shm(case: Case) -> str:
    """Why shared memory never runs ``case``; else an empty string."""
    return "shm runs on CPUs and cannot be captured in a CUDA graph" * (case.mode == "graph")


def symm(case: Case) -> str:
    """Why symm's kernel never runs ``case``; else an empty string."""
    divides = case.op in OPS and OPS[case.op].divides
    if divides and case.type.kind != "float" and case.n >> case.type.precision:
        return f"{case.dtype} does not hold {case.n}, by which avg divides"
    return ""
