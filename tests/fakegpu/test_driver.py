"""What the fake's libcuda answers when memory is asked for that is not there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from running import find_environment

ENVIRONMENT = find_environment()
if ENVIRONMENT is None:
    pytest.skip("no fake GPU here: make fake-gpu makes it", allow_module_level=True)

OK, OUT_OF_MEMORY, UNKNOWN = 0, 2, 999
CREATE_TWICE = """
import ctypes, torch
torch.cuda.init()
driver = ctypes.CDLL("libcuda.so.1")
properties = (ctypes.c_ubyte * 64)()  # of device 0
for _ in range(2):
    handle = ctypes.c_uint64()
    size = ctypes.c_size_t(40 << 20)
    print(driver.cuMemCreate(ctypes.byref(handle), size, properties, ctypes.c_uint64(0)))
    RELEASE
"""
RELEASE = "driver.cuMemRelease(handle)"


@pytest.mark.parametrize(
    ("release", "settings", "answers"),
    [
        ("pass", {}, [OK, OK]),
        ("pass", {"FAKE_MIB": "64"}, [OK, OUT_OF_MEMORY]),
        (RELEASE, {"FAKE_MIB": "64"}, [OK, OK]),
        ("pass", {"FAKE_OUT_OF_MEMORY": "0:2"}, [OK, OUT_OF_MEMORY]),
        ("open('lost-0', 'w').close()", {}, [OK, UNKNOWN]),
    ],
)
def test_memory_that_is_not_there_is_refused(
    release: str, settings: dict[str, str], answers: list[int], tmp_path: Path
) -> None:
    assert ENVIRONMENT
    code = CREATE_TWICE.replace("RELEASE", release)
    done = subprocess.run(
        [str(ENVIRONMENT / "bin/fakegpu"), "python", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "FAKE_GPUS": "1", "FAKE_STATE": str(tmp_path), **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [int(line) for line in done.stdout.splitlines()] == answers
