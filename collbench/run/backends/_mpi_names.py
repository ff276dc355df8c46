"""What collbench's datatypes and reductions are called in MPI."""

from __future__ import annotations

DATATYPES = {  # that MPI can reduce
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float": "FLOAT",
    "double": "DOUBLE",
}

REDUCTIONS = {
    "sum": "SUM",
    "prod": "PROD",
    "min": "MIN",
    "max": "MAX",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}
