"""What backends run on no machine is known from their names, before any rank starts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from factories import case

from collbench.core.backend_info import PLUGIN, backend_info
from collbench.run import refusal


@pytest.mark.parametrize(
    ("backend", "fields", "words"),
    [
        ("gloo", {"mode": "graph"}, "gloo cannot be captured in a CUDA graph"),
        ("shm", {"mode": "graph", "algorithm": "ring"}, "shm runs on CPUs"),
        ("mpi", {"mode": "graph"}, "mpi runs on CPUs"),
        ("nccl", {"mode": "graph"}, ""),
        ("nccl", {"mode": "graph", "collective": "barrier", "op": "none"}, "barrier waits"),
        ("gloo", {"op": "premul_sum"}, "gloo has none"),
        ("nccl", {"op": "premul_sum"}, ""),
        ("nccl", {"op": "avg", "dtype": "f8e4m3", "n": 200}, "1/200, which is 0.00586 in f8e4m3"),
        ("nccl", {"op": "avg", "dtype": "f8e4m3", "n": 1024}, "1/1024, which is 0 in f8e4m3"),
        ("nccl", {"op": "avg", "dtype": "f8e4m3", "n": 200, "algorithm": "ring"}, ""),
        ("nccl", {"op": "avg", "dtype": "f8e4m3", "n": 512}, ""),
        ("nccl", {"op": "avg", "dtype": "half", "n": 200}, ""),
        ("ucc", {"op": "avg", "dtype": "f8e4m3", "n": 200}, "1/200, which is 0.00586 in f8e4m3"),
        ("gloo", {"op": "avg", "dtype": "f8e4m3", "n": 200}, ""),
        ("nccl", {"collective": "sendrecv", "op": "none", "n": 1}, "does not send to itself"),
        ("mpi", {"op": "avg"}, "MPI has no reduction avg"),
        ("mpi", {"dtype": "bfloat16"}, "MPI has no datatype bfloat16"),
        ("mpi", {"dtype": "bfloat16", "algorithm": "ring"}, ""),
        ("mpi", {"collective": "reduce_scatter", "in_place": True}, "in-place reduce_scatter"),
        ("symm", {"op": "avg", "dtype": "int8", "n": 130, "algorithm": "ring"}, "int8 does not"),
        ("torch_two_shot", {"algorithm": "ring"}, "reference algorithms run on symm"),
    ],
)
def test_what_a_name_tells(backend: str, fields: dict[str, object], words: str) -> None:
    reason = refusal.refuse_anywhere(case(backend=backend, **fields))
    assert words in reason and bool(reason) == bool(words)


@pytest.mark.parametrize("algorithm", ["native", "ring"])
@pytest.mark.parametrize("premultiplies", [True, False])
def test_what_multiplies_by_an_inverse_is_refused_types_without_it(
    premultiplies: bool, algorithm: str
) -> None:
    """Whatever the backend: its own avg could not be verified."""
    backend: Any = SimpleNamespace(premultiplies=premultiplies, refuse=lambda case: "")
    average = case(backend="jax", op="avg", dtype="f8e4m3", n=200, algorithm=algorithm)
    reason = refusal.refuse_opened(average, backend)
    known = refusal.refuse_anywhere(average)
    is_refused = premultiplies and algorithm == "native"
    assert ("0.00586 in f8e4m3: use sum" in reason) == is_refused
    assert is_refused or reason == known


def test_what_is_known_of_backends_loads_none_of_their_libraries() -> None:
    code = (
        "import sys; from collbench.core.backend_info import backend_info, backend_names\n"
        "infos = [backend_info(name) for name in backend_names()]\n"
        "heavy = {'torch', 'triton', 'mpi4py', 'ray'} & {*sys.modules}\n"
        "sys.exit(str(heavy) if heavy or len(infos) < 12 else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_name_of_no_module_is_a_plug_ins() -> None:
    for name in ("ccl", "_wire", "os.path", "Gloo", ""):
        assert backend_info(name) is PLUGIN
