"""NCCL itself, on a machine without a GPU: as far as its log goes it needs none. What is heard of
it there is all that does not need a device: no choice of an algorithm."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import ctypes, json, os, sys
library = ctypes.CDLL(sys.argv[1])

class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]

def found():  # the first call of a process reads the environment, and says so
    return library.ncclGetUniqueId(ctypes.byref(name))

def refused():  # a communicator of ranks that there are not, or without a driver
    return library.ncclCommInitRank(ctypes.byref(handle), 2, name, 5)

from collbench.run.backends import _cuda
from collbench.run.rank import ncclog
name, handle, before = Id(), ctypes.c_void_p(), dict(os.environ)
listener = ncclog.start_listening()
told = {"version": _cuda.nccl_version(), "why_not": listener.why_not}
for at, call in enumerate((found, refused, refused)):
    told[f"before {at}"] = listener._turn(True)
    told[f"code {at}"] = call()
    told[f"heard {at}"] = listener._turn(False)
listener.close()
told["kept"] = before == dict(os.environ)
told["choice"] = listener.overheard(refused)
listener.close()
refused()
with open(sys.argv[2], "w") as file:
    json.dump(told, file)
"""


def libraries() -> Iterator[Path]:
    """Those that $NCCL_LIBRARIES names, else that of the wheel which CUDA builds of torch bring."""
    if named := os.environ.get("NCCL_LIBRARIES"):
        yield from map(Path, named.split(os.pathsep))
    elif importlib.util.find_spec("nvidia"):
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from Path(folder).glob("lib/libnccl.so.2")


FOUND = sorted(libraries())
pytestmark = pytest.mark.skipif(
    not FOUND, reason="no libnccl here (pip install nvidia-nccl-cu12, or NCCL_LIBRARIES=PATH:PATH)"
)


def heard(
    library: Path, folder: Path, **settings: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """What the program above was told by this NCCL, which writes to standard output what it tells
    nobody else, and the program's output."""
    told = folder / "told"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library, told],
        env={**kept, "NCCL_SOCKET_IFNAME": "lo", **settings},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return json.loads(told.read_text()), done


@pytest.mark.parametrize("library", FOUND, ids=lambda path: path.parents[3].name)
def test_it_is_heard_at_every_turn_and_nowhere_else(library: Path, tmp_path: Path) -> None:
    told, done = heard(library, tmp_path)
    assert told["version"] >= [2, 24] and told["why_not"] == ""
    assert "NCCL INFO NCCL_SOCKET_IFNAME set" in told["heard 0"]
    for turn in ("1", "2"):  # a file of its own each time, which NCCL opens anew
        assert told[f"code {turn}"] != 0 and told[f"heard {turn}"].count("NCCL WARN") >= 1
    assert not any(told[f"before {turn}"] for turn in "012")
    assert told["kept"] and told["choice"] is None
    assert "NCCL" not in done.stdout + done.stderr  # nor afterwards: the user asked for nothing


@pytest.mark.parametrize("library", FOUND, ids=lambda path: path.parents[3].name)
def test_warnings_that_the_user_asked_for_reach_the_user(library: Path, tmp_path: Path) -> None:
    told, done = heard(library, tmp_path, NCCL_DEBUG="WARN")
    passed_on = done.stderr.count("NCCL WARN")
    assert passed_on == sum(told[f"heard {turn}"].count("NCCL WARN") for turn in "012") + 1
    assert "NCCL INFO" in told["heard 0"] and "NCCL INFO" not in done.stdout + done.stderr
    assert done.stdout.count("NCCL WARN") == 1  # NCCL's own, once all is as the user had it
