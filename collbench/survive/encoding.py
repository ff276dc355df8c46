"""JSON of values that may hold text that is not UTF-8, as a file's name or a library's message."""

from __future__ import annotations

from typing import Any

import msgspec

from collbench.core.text import readable_text

_encoder = msgspec.json.Encoder()


def encode_json(value: Any) -> bytes:
    """The value as JSON, with U+FFFD for each byte of a text that is not UTF-8."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_make_readable(msgspec.to_builtins(value)))


def _make_readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable_text(value)
    if isinstance(value, dict):
        return {_make_readable(key): _make_readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_readable(item) for item in value]
    return value
