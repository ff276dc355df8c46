"""What collbench's datatypes, reductions and collectives are called in oneCCL."""

from __future__ import annotations

# oneCCL's numbers of what it reduces, and by what
DATATYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 4,
    "uint32": 5,
    "int64": 6,
    "uint64": 7,
    "half": 8,
    "float": 9,
    "double": 10,
    "bfloat16": 11,
}
REDUCTIONS = {"sum": 0, "prod": 1, "min": 2, "max": 3}
# in the order of the shim's enumeration
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_allv",
    "broadcast",
    "reduce",
    "sendrecv",
    "barrier",
)
