"""What the fake GPU makes of symm's kernel, against two that execute it too: Triton's interpreter,
and, where that cuts off narrow floats that a GPU rounds, torch's own rounding."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from running import find_environment

torch = pytest.importorskip("torch")

from walk_values import COUNT, NARROW_FLOATS, TERMS, make_term  # noqa: E402

HERE = Path(__file__).parent
ENVIRONMENT = find_environment()
if ENVIRONMENT is None:
    pytest.skip("no fake GPU here: make fake-gpu makes it", allow_module_level=True)
ROUNDED_BY_TORCH = ("bfloat16", "f8e4m3", "f8e5m2")
LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}  # what overflows becomes
COMBINE = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def run_values(device: str, **settings: str) -> dict[str, str]:
    assert ENVIRONMENT
    command = [str(ENVIRONMENT / "bin/fakegpu"), "python", str(HERE / "walk_values.py"), device]
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), **settings}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def round_by_torch(dtype: str, op: str) -> bytes:
    """The terms combined one after the other, each time rounded by torch's CPU."""
    kind = NARROW_FLOATS[dtype]

    def rounded(value: torch.Tensor) -> torch.Tensor:
        limit = LARGEST.get(dtype, float("inf"))
        return value.clamp(-limit, limit).to(kind).float()

    bits = [
        torch.frombuffer(bytearray(make_term(dtype, i)), dtype=torch.uint8) for i in range(TERMS)
    ]
    first, *others = (part.view(kind).float() for part in bits)
    for other in others:
        first = rounded(COMBINE[op](first, other))
    if op == "avg":
        first = rounded(first / TERMS)
    return bytes(first.to(kind).view(torch.uint8).numpy())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_datatype_and_reduction() -> None:
    fake, interpreted = run_values("cuda"), run_values("cpu", TRITON_INTERPRET="1")
    assert len(fake) > 100
    different = []
    for name, digits in fake.items():
        dtype, op, width = name.split()
        if dtype in ROUNDED_BY_TORCH:
            count = COUNT // 16 * 16 if width == "wide" else COUNT
            size = 2 if dtype == "bfloat16" else 1
            shift = 0 if width == "wide" else 1
            got = bytes.fromhex(digits)[shift : shift + count * size]
            if got != round_by_torch(dtype, op)[: count * size]:
                different.append(name)
        elif digits != interpreted[name]:
            different.append(name)
    assert different == []
