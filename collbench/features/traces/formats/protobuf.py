"""Protocol buffers, as far as Chakra's traces need them: fields of messages, which come one after
the other with their lengths before.

Encoding: https://protobuf.dev/programming-guides/encoding. Numbers of 64 bits, texts, messages and
packed lists are read and written; groups, which nobody writes, are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from collbench.features.traces.formats.bounded import Stream

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MOST = 1 << 64
Value = int | bytes


class Broken(ValueError):
    """Bytes that are no message."""


def read_messages(stream: Stream) -> Iterator[tuple[int, bytes]]:
    """The messages of a file, each with the offset of its first byte. Raises UsageError."""
    buffer, at, before = b"", 0, 0
    for _ in range(stream.limits.nodes):
        while True:
            try:
                length, begins = read_varint(buffer, at)
                if begins + length <= len(buffer):
                    break
                missing = "it ends within a message"
            except Broken as e:
                length, missing = 0, str(e)
            if length > stream.limits.longest:
                raise stream.refused(before + at, f"a message of {length:,} B")
            if len(buffer) - at > 10 and not length:
                raise stream.refused(before + at, missing)
            piece = stream.more()
            if not piece and at == len(buffer):
                return
            if not piece:
                raise stream.refused(before + at, missing)
            buffer, before, at = buffer[at:] + piece, before + at, 0
        yield before + begins, buffer[begins : begins + length]
        at = begins + length
    raise stream.refused(before + at, f"there are more than {stream.limits.nodes:,} nodes")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, and the byte after it. Raises Broken."""
    value = shift = 0
    for position in range(at, at + 10):
        if position >= len(data):
            raise Broken("it ends within a number")
        byte = data[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value % MOST, position + 1
        shift += 7
    raise Broken("a number of more than 64 bits")


def read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """A message's fields by their numbers: numbers without sign, else bytes. Raises Broken."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == VARINT:
            value, at = read_varint(data, at)
        else:
            if kind == BYTES:
                length, at = read_varint(data, at)
            elif kind in (FIXED64, FIXED32):
                length = 8 if kind == FIXED64 else 4
            else:
                raise Broken(f"a field of kind {kind}")
            if not number or at + length > len(data):
                raise Broken("a field of no number" if not number else "it ends within a field")
            value = data[at : at + length]
            at += length
        yield number, value


def unpack_numbers(value: Value) -> list[int]:
    """The numbers of a repeated field: one, or several packed. Raises Broken."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at)
        numbers.append(number)
    return numbers


def sign_number(number: int) -> int:
    """A number of 64 bits as one with a sign."""
    return number - MOST if number >= MOST >> 1 else number


def write_varint(value: int) -> bytes:
    """A number as it is written."""
    value %= MOST
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def write_field(field_number: int, value: int | float | str | bytes) -> bytes:
    """A field as it is written: a number, a double, a text, or a message."""
    if isinstance(value, float):
        return write_varint(field_number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return write_varint(field_number << 3 | VARINT) + write_varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return write_varint(field_number << 3 | BYTES) + write_varint(len(raw)) + raw


def write_packed(field_number: int, values: Iterable[int]) -> bytes:
    """A field of several numbers; nothing for none."""
    raw = b"".join(map(write_varint, values))
    return write_field(field_number, raw) if raw else b""


def delimit_message(message: bytes) -> bytes:
    """A message with its length before it."""
    return write_varint(len(message)) + message
