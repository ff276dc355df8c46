"""How settings are named where a library's own words do not reach."""

from __future__ import annotations

from collbench.features.advise.types import Setting, Variables

DEFAULT = "default"


def name_with(word: str, setting: Setting, rest: Variables) -> str:
    """A setting's name: the library's ``word`` for it, an algorithm of collbench's own if there is
    one, and the variables that the library does not know."""
    parts = [f"{setting.algorithm}@{setting.backend}"] if setting.algorithm != "native" else []
    parts += [word] if word else []
    return " ".join([*parts, *(f"{name}={value}" for name, value in rest)]) or DEFAULT


def format_bytes(nbytes: int) -> str:
    """A size as one word: 128K, 1M, 1000."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if nbytes and nbytes % scale == 0:
            return f"{nbytes // scale}{unit}"
    return str(nbytes)
