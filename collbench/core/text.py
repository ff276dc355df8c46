from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from collbench.core.paths import strip_preset

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

SPELLED = {  # of as many characters where they are drawn with
    **dict.fromkeys("─━═╌┄", "-"),
    **dict.fromkeys("│┃║╎┆", "|"),
    **dict.fromkeys("┼┌┐└┘├┤┬┴╭╮╯╰╋╪╫╬", "+"),
    **dict.fromkeys("→▶►⟶⇒", ">"),
    **dict.fromkeys("←◀◄⟵", "<"),
    **dict.fromkeys("↑▲", "^"),
    **dict.fromkeys("↓▼", "v"),
    **dict.fromkeys("█▇▆▅▓", "#"),
    **dict.fromkeys("▄▃▂▁▒░", "="),
    **dict.fromkeys("·•∙", "."),
    **{"µ": "u", "μ": "u", "±": "+-", "×": "x", "α": "alpha", "β": "beta", "γ": "gamma"},
    **{"∞": "inf", "…": "...", "≥": ">=", "≤": "<=", "½": "1/2", "²": "2", "–": "-", "—": "-"},
    **{"✓": "v", "✗": "x", "⚑": "!", "⚠": "!", "’": "'", "“": '"', "”": '"', "\u00a0": " "},
}


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs: what stands for characters that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(SPELLED.get(character, "?") for character in lacking), error.end


def format_size(nbytes: float) -> str:
    """A size in words: 8 B, 1.5 KiB, 64 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} TiB"


def format_duration(ns: float | None) -> str:
    """A time of so many ns, with three significant digits and the unit that suits: 28.4 µs, 1.00
    ms, 0 ns; "-" for None and for what is not finite."""
    if ns is None or not math.isfinite(ns):
        return "-"
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        value = float(f"{ns / scale:.3g}")
        if value < 1000:
            return f"{value:.{0 if value >= 100 or not value else 1 if value >= 10 else 2}f} {unit}"
    return f"{ns / 1e9:.{2 if ns < 9.995e9 else 1 if ns < 99.95e9 else 0}f} s"


def format_bandwidth(value: float | None) -> str:
    """GB/s with three or four digits; n/a where there is no such bandwidth, or it is not known."""
    if value is None or math.isnan(value):
        return "n/a"
    limits = (
        (1e-9, 0),
        (9.5e-6, 6),
        (9.5e-5, 5),
        (0.00095, 4),
        (0.0995, 3),
        (9.995, 2),
        (999.95, 1),
        (math.inf, 0),
    )
    return f"{value:.{next(decimals for limit, decimals in limits if value <= limit)}f}"


def format_settings(env: Iterable[tuple[str, str]]) -> str:
    """Environment variables as a shell takes them: A=1 B=2; of a path's preset its name."""
    return " ".join(f"{name}={value}" for name, value in strip_preset(env))


def plain_line(text: str) -> str:
    """``text`` on one line, without anything that could steer a terminal or break a line-based
    format."""
    return printable_text(text).strip()


def printable_text(text: str) -> str:
    """``text`` with a space for each character that is not printed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def readable_text(text: str) -> str:
    """``text`` as UTF-8 can hold it: U+FFFD for each byte that Python could not decode, as of a
    path, a variable or an argument."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def is_readable(text: str) -> bool:
    """Whether UTF-8 can hold ``text`` as it is."""
    return readable_text(text) == text


def print_message(message: str, hint: str = "") -> None:
    """Prints to standard error what a person is to know and may do: whatever files, hosts and
    libraries had to say in it steers no terminal. It is given up where nothing can be printed."""
    lines = [
        f"collbench: {plain_line(message)}\n",
        *([f"  hint: {plain_line(hint)}\n"] if hint else []),
    ]
    with suppress(OSError, ValueError):
        if sys.stderr:
            sys.stderr.write("".join(lines))
            sys.stderr.flush()


def inert_cell(value: Any) -> Any:
    """A text as no spreadsheet takes it for a formula, wherever it cuts a line; all else as it
    is."""
    return (
        re.sub(r"(^|[;\t\r\n])(?=[=+\-@\t\r])", r"\1'", value) if isinstance(value, str) else value
    )


def clear_unknown(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with None for every number that is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def escape_markdown(text: str) -> str:
    """``text`` as Markdown that shows it literally, in a table cell and on GitHub too: no entity,
    no formula, nobody mentioned."""
    text = re.sub(r"([\\`*_\[\]<>|~#$])", r"\\\1", plain_line(text)).replace("&", "&amp;")
    return re.sub(r"(?<![\w.])@(?=\w)", "@\u200b", text)


def suggest_name(word: Any, names: Iterable[str]) -> str:
    """A question with the one of ``names`` that ``word`` may have meant; empty where none is like
    it."""
    matches = difflib.get_close_matches(str(word).lower(), list(names), 1)
    return f"did you mean {matches[0]}?" if matches else ""


def format_count(number: int, what: str) -> str:
    """A number with its noun: 1 row, 2 rows, 1,200 rows."""
    return f"{number:,} {what}{'' if number == 1 else 'es' if what.endswith('ch') else 's'}"


def format_clock(seconds: float) -> str:
    """A time of so many seconds: 1:05, or 2:00:00 from an hour up."""
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
    )
