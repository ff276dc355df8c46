"""Shared memory that calls itself by an address in memory of its process."""

from __future__ import annotations

import ctypes

from collbench.run.backends._shm import SharedMemory


def create(name: str) -> SharedMemory:
    found = SharedMemory()
    found.library = hex(ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0)
    return found
