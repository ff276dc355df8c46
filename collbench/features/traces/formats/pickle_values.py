"""The values in a pickle of plain data: numbers, texts, lists, tuples and dicts.

Nothing in such a file can name a class or a function, or call anything: each operation is looked up
in the table below, and whatever is not there is refused with its byte, as is a key that is no text,
so that nothing that is deeply nested is ever hashed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from collbench.features.traces.formats.bounded import Stream

MOST = 128 << 20  # bytes of a file
MOST_OPERATIONS = 10_000_000
MARK = object()


class _Read(NamedTuple):
    """How the argument of an operation is read: its fixed length and form, and whether it is the
    length of bytes that follow."""

    length: int
    form: str = ""
    follows: bool = False


# by operation, of protocols 0 to 5: those that torch's pickler and Python's use for plain data
ARGUMENTS = {
    **{code: _Read(0) for code in b"]})(tu210aesN\x85\x86\x87\x88\x89\x94."},
    **{code: _Read(1, "<B") for code in b"\x80Khq"},
    ord("M"): _Read(2, "<H"),
    ord("J"): _Read(4, "<i"),
    ord("G"): _Read(8, ">d"),
    **{code: _Read(4, "<I") for code in b"jr"},
    ord("\x95"): _Read(8, "<Q"),
    **{code: _Read(1, "<B", True) for code in b"\x8c\x8aUC"},
    **{code: _Read(4, "<I", True) for code in b"XTB"},
    ord("\x8b"): _Read(4, "<i", True),
    ord("\x8d"): _Read(8, "<Q", True),
}


class Refused(ValueError):
    """What cannot be read, and the byte where it stands."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


def read_value(stream: Stream) -> Any:
    """The value in a file. Raises UsageError."""
    data = bytearray()
    while piece := stream.more():
        data += piece
        if len(data) > MOST:
            raise stream.refused(MOST, f"a pickle of more than {MOST:,} B")
    try:
        return load_value(data, min(stream.limits.nodes, MOST_OPERATIONS))
    except Refused as e:
        raise stream.refused(e.at, str(e)) from e


def load_value(data: bytes | bytearray, most: int) -> Any:
    """The value that a pickle's operations make, of which there are ``most`` at most. Raises
    Refused."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    at = 0
    for _ in range(most):
        if at >= len(data):
            raise Refused(at, "it ends before its end")
        code, began = data[at], at
        if code not in ARGUMENTS:
            raise Refused(at, f"operation {bytes([code])!r}, which plain data does not need")
        argument, at = _read_argument(data, at + 1, ARGUMENTS[code])
        if code == ord("."):
            if len(stack) != 1:
                raise Refused(began, "it ends with no value, or several")
            return stack[0]
        try:
            _perform_operation(chr(code), argument, stack, memo)
        except (IndexError, KeyError, TypeError, ValueError) as e:
            raise Refused(began, f"operation {chr(code)!r}: {str(e)[:80]}") from e
    raise Refused(at, f"more than {most:,} operations")


def _read_argument(data: bytes | bytearray, at: int, how: _Read) -> tuple[Any, int]:
    end = at + how.length
    if end > len(data):
        raise Refused(at, "it ends within an operation")
    if not how.length:
        return None, end
    value = struct.unpack_from(how.form, data, at)[0]
    if not how.follows:
        return value, end
    if not 0 <= value <= len(data) - end:
        raise Refused(at, f"the file ends before the {value:,} B that it promises here")
    return data[end : end + value], end + value


def _perform_operation(code: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    """Perform one operation of the pickle's machine on its stack. Raises what that raises."""
    if code in VALUES:
        stack.append(VALUES[code](argument))
    elif code in "qr\x94":
        memo[len(memo) if code == "\x94" else argument] = stack[-1]
    elif code in "hj":
        stack.append(memo[argument])
    elif code in SEVERAL:
        stack.append(tuple(_pop_values(stack, SEVERAL[code])))
    elif code == "0":
        stack.pop()
    elif code == "2":
        stack.append(stack[-1])
    elif code == "1":
        _to_mark(stack)
    elif code in "ae":
        values = _to_mark(stack) if code == "e" else _pop_values(stack, 1)
        _expect_kind(stack, list).extend(values)
    elif code in "su":
        values = _to_mark(stack) if code == "u" else _pop_values(stack, 2)
        _expect_kind(stack, dict).update(
            zip(map(_decode_key, values[::2]), values[1::2], strict=True)
        )
    elif code == "t":
        stack.append(tuple(_to_mark(stack)))


VALUES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys("KMJG", lambda number: number),
    **dict.fromkeys(("X", "\x8c", "\x8d"), lambda raw: raw.decode("utf-8", "replace")),
    **dict.fromkeys("UT", lambda raw: raw.decode("latin-1")),
    **dict.fromkeys("BC", bytes),
    **dict.fromkeys(("\x8a", "\x8b"), lambda raw: int.from_bytes(raw[:16], "little", signed=True)),
    "]": lambda _: [],
    "}": lambda _: {},
    ")": lambda _: (),
    "N": lambda _: None,
    "\x88": lambda _: True,
    "\x89": lambda _: False,
    "(": lambda _: MARK,
}
SEVERAL = {"\x85": 1, "\x86": 2, "\x87": 3}


def _pop_values(stack: list[Any], n: int) -> list[Any]:
    values = stack[-n:]
    if len(values) < n or any(value is MARK for value in values):
        raise IndexError("there are too few values")
    del stack[-n:]
    return values


def _to_mark(stack: list[Any]) -> list[Any]:
    values = []
    while (value := stack.pop()) is not MARK:
        values.append(value)
    return values[::-1]


def _expect_kind(stack: list[Any], kind: type) -> Any:
    if type(stack[-1]) is not kind:
        raise TypeError(f"there is no {kind.__name__}")
    return stack[-1]


def _decode_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError("a key is no text")
    return key
