"""Calls of a library's C functions, one after the other without Python between them.

A call by ctypes takes 0.2 to 0.5 us beside what the function does, which is as much as MPI takes
for 8 bytes. Here each call's arguments are loaded by machine code that was made before the clock,
for x86-64 under Linux (System V's calling convention); elsewhere, and where the system gives no
executable memory, there is none, and calls are made by ctypes one by one.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Action = Callable[[], object]

MAX_ARGUMENTS = 14  # six in registers, the others in the frame

FRAME = 8 * (MAX_ARGUMENTS - 6)  # bytes; a multiple of 16, as the stack must be at a call

REGISTERS = tuple(map(bytes.fromhex, ("48bf", "48be", "48ba", "48b9", "49b8", "49b9")))  # mov r, n


class LibraryCall(partial[object]):
    """A call by ctypes, its arguments made, which also knows them as numbers: the function's
    address, and what is in its registers and on its stack. ``keeps`` is what they point to."""

    address: int
    numbers: tuple[int, ...]
    keeps: tuple[object, ...]

    @classmethod
    def of(
        cls, function: Any, arguments: Sequence[Any], numbers: Sequence[int], *keeps: object
    ) -> LibraryCall:
        """The call of a function of ctypes with ``arguments``, which are ``numbers`` to C."""
        call = cls(function, *arguments)
        call.address = ctypes.cast(function, ctypes.c_void_p).value or 0
        call.numbers, call.keeps = tuple(numbers), keeps
        return call


class CallLoop:
    """Machine code of calls that take turns. Call compile_loop, which may refuse."""

    def __init__(self, calls: Sequence[LibraryCall]) -> None:
        code, self._starts = write_loop(calls)
        memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        memory.write(code)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        run: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(self._base)
        run.keeps = memory, calls  # the code and its arguments live as long as an action
        self._run = run

    def make_batch(self, first: int, count: int) -> LibraryCall:
        """One action that makes ``count`` calls, beginning with the ``first`` of the loop's; itself
        a call that other loops may hold."""
        start = self._base + self._starts[first % len(self._starts)]
        arguments = ctypes.c_void_p.from_param(start), ctypes.c_size_t(count)
        return LibraryCall.of(self._run, arguments, (start, count), self)


def compile_loop(calls: Sequence[Action]) -> CallLoop | None:
    """The loop of these calls; None where some are no LibraryCall, or there cannot be any here."""
    known = [call for call in calls if isinstance(call, LibraryCall)]
    if len(known) < len(calls) or not known or not is_supported():
        return None
    if max(len(call.numbers) for call in known) > MAX_ARGUMENTS:
        return None
    try:
        return CallLoop(known)
    except OSError:  # a hardened kernel gives no memory that is writable and executable
        return None


def join_calls(calls: Sequence[Action]) -> Action:
    """One action that makes these calls in order: a LibraryCall where they are such, and there is
    machine code here."""
    if len(calls) == 1:
        return calls[0]
    if loop := compile_loop(calls):
        return loop.make_batch(0, len(calls))
    made = tuple(calls)

    def run() -> None:
        for call in made:
            call()

    return run


def is_supported() -> bool:
    """Whether this process can run what write_loop writes."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32


def write_loop(calls: Sequence[LibraryCall]) -> tuple[bytes, list[int]]:
    """Machine code of a C function ``void run(void *start, size_t count)``, and the offsets at
    which each call begins, for ``start``. After ``count`` calls, one at least, it returns."""
    code = bytearray.fromhex("53")  # push rbx
    code += bytes.fromhex("4883ec") + bytes([FRAME])  # sub rsp, FRAME
    code += bytes.fromhex("4889f3ffe7")  # mov rbx, rsi; jmp rdi
    leave = len(code)
    code += bytes.fromhex("4883c4") + bytes([FRAME])  # add rsp, FRAME
    code += bytes.fromhex("5bc3")  # pop rbx; ret
    starts = []
    for call in calls:
        starts.append(len(code))
        for number, place in zip(call.numbers[6:], range(0, FRAME, 8), strict=False):
            code += bytes.fromhex("48b8") + pack_number(number)  # mov rax, number
            code += bytes.fromhex("48894424") + bytes([place])  # mov [rsp + place], rax
        for number, register in zip(call.numbers, REGISTERS, strict=False):
            code += register + pack_number(number)
        code += bytes.fromhex("48b8") + pack_number(call.address)
        code += bytes.fromhex("ffd048ffcb")  # call rax; dec rbx
        code += bytes.fromhex("0f84") + pack_jump(leave, len(code) + 6)  # jz leave
    code += bytes.fromhex("e9") + pack_jump(starts[0], len(code) + 5)  # jmp to the first call
    return bytes(code), starts


def pack_number(number: int) -> bytes:
    """The eight bytes of an argument, negative or not."""
    return struct.pack("<Q", number % (1 << 64))


def pack_jump(target: int, after: int) -> bytes:
    """A jump's distance, from the instruction ``after`` it."""
    return struct.pack("<i", target - after)
