"""Files of others as they are read: a piece at a time, unpacked, and within bounds, so that no file
takes more memory than its largest value, whatever it says.

What is not within the bounds is refused with a UsageError that names file and byte.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import msgspec

from collbench.core.errors import UsageError, first_line

MOST_BYTES = 4 << 30  # of a file, unpacked
MOST_NODES = 50_000_000
LONGEST = 16 << 20  # bytes of a value that is read whole
LONGEST_LINE = 1 << 20
DEEP = 32  # lists and objects within each other
PIECE = 1 << 20
HINT = "check that the file is whole, and of the format that --from says"

T = TypeVar("T")


class CutError(UsageError):
    """A file that ends before its end, at the byte ``at``."""

    def __init__(self, message: str, hint: str, at: int) -> None:
        super().__init__(message, hint)
        self.at = at


class Limits(NamedTuple):
    """How much of a file is read."""

    nbytes: int = MOST_BYTES
    nodes: int = MOST_NODES
    longest: int = LONGEST


class Stream:
    """The bytes of a file from its beginning, unpacked where they are gzip's. ``rank`` is the one
    that the file's name tells, -1 for none."""

    def __init__(
        self,
        path: Path,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        rank: int = -1,
    ) -> None:
        self.path, self.limits, self.rank = path, limits, rank
        self.given = 0  # bytes so far
        self._file = _open_packed(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, where: TracebackType | None
    ) -> None:
        self._file.close()

    def more(self) -> bytes:
        """The next piece; nothing at the end. Raises UsageError."""
        try:
            piece = self._file.read1(PIECE)
        except EOFError as e:
            raise self.cut(self.given, "the packed file is cut") from e
        except (OSError, zlib.error) as e:
            raise self.refused(self.given, first_line(e)) from e
        self.given += len(piece)
        if self.given > self.limits.nbytes:
            what = f"it has more than {self.limits.nbytes:,} B unpacked"
            raise self.refused(self.limits.nbytes, what, "take less of it, or one rank at a time")
        return piece

    def read_all(self) -> bytes:
        """The rest of the file, if it is no longer than a value may be. Raises UsageError."""
        pieces = []
        while piece := self.more():
            pieces.append(piece)
            if sum(map(len, pieces)) > self.limits.longest:
                raise self.refused(self.limits.longest, f"more than {self.limits.longest:,} B")
        return b"".join(pieces)

    def lines(self) -> Iterator[str]:
        """Line after line, without ends. Raises UsageError for one that is no text, or too long."""
        rest, number = b"", 0
        while piece := self.more():
            *complete, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                raise self.refused(self.given, f"a line of more than {LONGEST_LINE:,} B")
            for line in complete:
                number += 1
                yield self._text(line, number)
        yield self._text(rest, number + 1)

    def _text(self, line: bytes, number: int) -> str:
        if number > self.limits.nodes:
            raise self.refused(self.given, f"there are more than {self.limits.nodes:,} lines")
        try:
            return line.decode().rstrip("\r").removeprefix("\ufeff")
        except UnicodeDecodeError as e:
            raise UsageError(f"{self.path}: line {number}: it is no text", HINT) from e

    def refused(self, at: int, why: str, hint: str = HINT) -> UsageError:
        """An error that names the byte."""
        return UsageError(f"{self.path}: byte {at:,}: {why}", hint)

    def cut(self, at: int, why: str) -> CutError:
        """The error of a file that ends too early, with the byte."""
        return CutError(f"{self.path}: byte {at:,}: {why}", HINT, at)


def _open_packed(path: Path) -> BufferedReader | gzip.GzipFile:
    try:
        raw = path.open("rb")
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror or first_line(e)}", HINT) from e
    if not packed:
        return raw
    raw.close()
    return gzip.GzipFile(path)


def read_head(path: Path, nbytes: int = 1 << 16) -> bytes:
    """The first bytes of a file, unpacked, even if it is cut; b"" where it cannot be read."""
    with suppress(OSError, zlib.error), path.open("rb") as file:
        raw = file.read(max(nbytes, 1 << 16))
        packed = raw.startswith(b"\x1f\x8b")
        return zlib.decompressobj(31).decompress(raw, nbytes) if packed else raw[:nbytes]
    return b""


def _nested_pattern(depth: int) -> str:
    """The pattern of a list or an object, of whatever kinds of brackets, without going back."""
    string = r'"(?:[^"\\]++|\\.)*+"'
    pattern = r"[{\[][^{}\[\]]*+[}\]]"
    for _ in range(depth):
        pattern = rf'[{{\[](?:[^{{}}\[\]"]++|{string}|{pattern})*+[}}\]]'
    return pattern


VALUE = re.compile(
    rf'{_nested_pattern(DEEP)}|"(?:[^"\\]++|\\.)*+"|[^\s{{}}\[\],:"]++(?=[\s{{}}\[\],:"])'.encode(),
    re.DOTALL,
)
OR_DEEP = f"or has lists and objects more than {DEEP} deep"
SPACE = re.compile(rb"[ \t\r\n]*+")

TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^\s{}\[\],:"]++', re.DOTALL)
LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|[\x00-\x1f\\]')


def mend_json(raw: bytes) -> bytes:
    """A value of JSON as its writer meant it: in strings, bytes that are no text and characters
    that have to be escaped are replaced; numbers that JSON does not have (nan, inf) are null."""

    def mend(token: re.Match[str]) -> str:
        if token[0].startswith('"'):
            return ESCAPE.sub(lambda part: part[0] if len(part[0]) > 1 else "?", token[0])
        return token[0] if LITERAL.fullmatch(token[0]) else "null"

    return TOKEN.sub(mend, bytes(raw).decode(errors="replace")).encode()


class Element(NamedTuple):
    """A value of a list of the outermost object (of the list itself, where ``key`` is empty), and
    the byte where it begins."""

    key: str
    at: int
    raw: bytes


class Json:
    """JSON value by value: the elements of those lists of the outermost object that are named, and
    all else of it in ``header``, undecoded."""

    def __init__(self, stream: Stream, *lists: str) -> None:
        self.stream, self.lists = stream, lists
        self.header: dict[str, bytes] = {}
        self._buffer, self._at, self._before, self._header_bytes = b"", 0, 0, 0

    def __iter__(self) -> Iterator[Element]:
        first = self._next()
        if self._buffer.startswith(b"\xef\xbb\xbf"):
            self._at = 3
            first = self._next()
        if first == b"[":
            yield from self._elements("")
        elif first == b"{":
            yield from self._object()
        else:
            raise self._refused("it is no JSON object or list")
        if self._next():
            raise self._refused("there is more after its end")

    def decoded(self, key: str, kind: type[T], default: T) -> T:
        """The header's value of a key. Raises UsageError."""
        return self.decode(self.header[key], kind, key) if key in self.header else default

    def decode(self, raw: bytes, kind: type[T], what: str) -> T:
        """A value, mended where it is no JSON. Raises UsageError."""
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            return msgspec.json.decode(mend_json(raw), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
            raise UsageError(f"{self.stream.path}: {what[:40]}: {first_line(e)}", HINT) from e

    def _object(self) -> Iterator[Element]:
        self._at += 1
        if self._next() == b"}":
            self._at += 1
            return
        while True:
            key = self._key()
            if self._next() == b"[" and key in self.lists:
                yield from self._elements(key)
            else:
                self.header[key] = self._value()
                self._header_bytes += len(self.header[key]) + len(key)
                if self._header_bytes > 2 * self.stream.limits.longest:
                    raise self._refused("it has too much beside its lists")
            if self._closed(b"}"):
                return

    def _key(self) -> str:
        at = self._position
        if not self._next():
            raise self.stream.cut(at, "it ends before its end")
        if self._next() != b'"':
            raise self._refused("a name is missing")
        raw = self._value()
        try:
            key = str(msgspec.json.decode(raw, type=str))
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise self.stream.refused(at, first_line(e)) from e
        if not self._next():
            raise self.stream.cut(at, "it ends before its end")
        if self._next() != b":":
            raise self._refused("a colon is missing")
        self._at += 1
        if len(self.header) >= 1000:
            raise self._refused("it has more than 1,000 names")
        return key

    def _elements(self, key: str) -> Iterator[Element]:
        self._at += 1
        if self._next() == b"]":
            self._at += 1
            return
        number = 0
        while True:
            number += 1
            if number > self.stream.limits.nodes:
                raise self._refused(f"there are more than {self.stream.limits.nodes:,} nodes")
            self._next()
            at = self._position
            yield Element(key, at, self._value())
            if self._closed(b"]"):
                return

    def _closed(self, bracket: bytes) -> bool:
        """Whether that was the last; a comma is passed."""
        character = self._next()
        if not character:
            raise self.stream.cut(self._position, "it ends before its end")
        if character not in (b",", bracket):
            raise self._refused("a comma is missing")
        self._at += 1
        return character == bracket

    def _value(self) -> bytes:
        """The whole value that is next. Raises UsageError."""
        if self._next() in (b"}", b"]", b",", b":"):
            raise self._refused("a value is missing")
        longest = self.stream.limits.longest
        while not (match := VALUE.match(self._buffer, self._at)):
            if len(self._buffer) - self._at > longest:
                raise self._refused(f"a value has more than {longest:,} B, {OR_DEEP}")
            if not self._fill():
                raise self.stream.cut(self._position, f"it ends within a value, {OR_DEEP}")
        if len(match[0]) > longest:
            raise self._refused(f"a value has more than {longest:,} B")
        self._at = match.end()
        return match[0]

    def _next(self) -> bytes:
        """The next byte that is no space, which is not passed; nothing at the end."""
        while True:
            match = SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._fill():
                return b""

    def _fill(self) -> bool:
        piece = self.stream.more()
        self._before += self._at
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)

    @property
    def _position(self) -> int:
        return self._before + self._at

    def _refused(self, why: str) -> UsageError:
        return self.stream.refused(self._position, why)
