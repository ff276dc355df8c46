"""How sizes, durations, shares and settings of the environment are written, on the command line and
in suites."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Sequence

from collbench.core.errors import UsageError
from collbench.core.text import UNITS, is_readable
from collbench.machine.variables import mask_text
from collbench.suite.case import Limit, Setting

MOST_SIZES = 10_000  # in one sweep

DEFAULT_SIZE = 32 << 20  # bytes, where a sweep begins and ends as in nccl-tests

MOST_WORLDS = 1000  # settings of the environment, of which each needs ranks of its own

DURATIONS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

LONG_UNITS = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m", "mins": "m"} | {
    "minute": "m",
    "minutes": "m",
    "hr": "h",
    "hrs": "h",
    "hour": "h",
    "hours": "h",
    "usec": "us",
    "msec": "ms",
}

SPAN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str, what: str = "size") -> int:
    """Bytes in ``text``: a number and K, M, G or T (1024-based, either case; a following B or iB is
    allowed)."""
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d*)?(?:e\d+)?|\.\d+)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE
    )
    if not match:
        raise UsageError(
            f"{what}: '{text}' is not a size",
            "give a number of bytes, or with K, M, G: 8, 64K, 1.5G",
        )
    size = float(match[1]) * UNITS[match[2].lower()]
    if size >= 1 << 62:
        raise UsageError(f"{what}: '{text}' is more than any machine holds")
    return int(size)


def parse_time_limit(text: str, what: str) -> float:
    """Seconds of a duration, above 0. Raises UsageError."""
    if not (seconds := parse_duration(text, what)):
        raise UsageError(f"{what}: '{text}' leaves no time", "give a duration, as in 10s")
    return seconds


def parse_duration(text: str, what: str = "duration") -> float:
    """Seconds in ``text``: 90, 90s, 10sec, 5ms, 1.5h or 1h30m, where the last unit may be left
    out."""
    spans, at = [], 0
    for match in SPAN.finditer(text.strip()):
        if match.start() != at:
            break
        spans.append((float(match[1]), match[2].lower()))
        at = match.end()
    units = [LONG_UNITS.get(unit, unit) for _, unit in spans]
    if len(units) > 1 and not units[-1]:
        units[-1] = {"h": "m", "m": "s"}.get(units[-2], "?")
    scales = [DURATIONS.get(unit, 0.0) for unit in units]
    falling = all(a > b for a, b in itertools.pairwise(scales))
    if not spans or at != len(text.strip()) or not all(scales) or not falling:
        raise UsageError(
            f"{what}: '{text}' is not a duration", "give seconds, or with s, m, h: 90, 10m, 1h30m"
        )
    return sum(value * scale for (value, _), scale in zip(spans, scales, strict=True))


def parse_share(text: str, what: str = "share") -> float:
    """A share between 0 and 1: 2% or 0.02."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(
            f"{what}: '{text}' is not a share between 0 and 1", "for example 1% or 0.01"
        )
    return value


def parse_limit(text: str, what: str = "--min-busbw", may_have_size: bool = True) -> Limit:
    """The limit in ``text``: GB/s, and after an @ the size at which they are wanted, where it may
    have one."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:@(.*))?", text)
    if not match or not 0 < float(match[1]) < 1e9 or not (may_have_size or match[2] is None):
        raise UsageError(
            f"{what}: '{text}': expected GB/s as a number" + ", optionally @SIZE" * may_have_size,
            "for example 400@1G,9@1M"
            if may_have_size
            else "for example 400; to limit a size: --min-busbw 400@1G",
        )
    return Limit(float(match[1]), None if match[2] is None else parse_size(match[2], what))


def expand_envs(settings: Sequence[str], what: str = "--env") -> tuple[Setting, ...]:
    """The product of ``K=V1,V2`` settings, one tuple of (name, value) pairs per world."""
    axes: list[list[tuple[str, str]]] = []
    for setting in settings:
        name, equals, values = setting.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UsageError(
                f"{what}: '{setting}' is not NAME=VALUE[,VALUE…]", "for example NCCL_ALGO=Ring,Tree"
            )
        if not is_readable(setting):
            raise UsageError(
                f"{what}: the value of {name} is not UTF-8, which no run's file keeps",
                f"export {name} instead",
            )
        if mask_text(setting) != setting:
            raise UsageError(
                f"{what}: {name} has a secret or a GPU's UUID, which no run's file keeps",
                f"export {name} instead",
            )
        if any(name == other for ((other, _), *_) in axes):
            raise UsageError(
                f"{what}: {name} is given twice, and a process has one value of it",
                f"values that take turns are one setting: {name}=V1,V2",
            )
        axes.append([(name, value) for value in values.split(",")])
    if math.prod(map(len, axes)) > MOST_WORLDS:
        raise UsageError(
            f"{what}: more than {MOST_WORLDS} combinations of settings",
            "give fewer: each has ranks of its own",
        )
    return tuple(itertools.product(*axes))


DECIMAL = re.compile(r"\d[\d.]*\s*[kmgt]b", re.IGNORECASE)  # 1MB, which elsewhere is 10^6 bytes


def choose_sizes(
    smallest: int | None,
    largest: int | None,
    factor: float | None,
    step: int | None,
    listed: tuple[int, ...] | None,
) -> tuple[int, ...]:
    """The sizes that -b, -e, -f, -i and --sizes ask for. Raises UsageError."""
    if listed is not None and (factor is not None or step is not None):
        raise UsageError("--sizes and -f/-i exclude each other", "give a list or a sweep")
    if listed is None:
        if smallest is None and largest is not None and largest < DEFAULT_SIZE:
            raise UsageError(
                f"-e {largest} is below -b, which is {DEFAULT_SIZE >> 20}M unless given",
                f"give -b, too: -b 8 -e {largest}",
            )
        smallest = DEFAULT_SIZE if smallest is None else smallest
        largest = max(smallest, DEFAULT_SIZE) if largest is None else largest
        if factor is not None and step is not None:  # as in nccl-tests -f counts, and 1 is none
            factor, step = (None, step) if factor == 1 else (factor, None)
        return sweep_sizes(smallest, largest, factor, step)
    if smallest is not None or largest is not None:
        raise UsageError("--sizes and -b/-e exclude each other", "give a list or a sweep")
    if len(listed) > MOST_SIZES:
        raise UsageError(f"--sizes: more than {MOST_SIZES} sizes", "make several runs")
    return listed


def sweep_sizes(
    smallest: int, largest: int, factor: float | None = None, step: int | None = None
) -> tuple[int, ...]:
    """Sizes from ``smallest`` to ``largest`` inclusive, times ``factor`` (2 unless told) or plus
    ``step``."""
    if factor is not None and step is not None:
        raise UsageError(
            "-f/--stepfactor and -i/--stepbytes exclude each other", "leave out -f or -i"
        )
    if smallest > largest:
        raise UsageError(f"-b {smallest} is larger than -e {largest}", "lower -b or raise -e")
    if step is not None and step <= 0:
        raise UsageError("-i/--stepbytes must be positive", "for example -i 1M")
    if smallest == largest and smallest >= 0:
        return (smallest,)  # which nothing has to grow to
    if step is None and smallest <= 0:
        raise UsageError(
            "-b 0 never grows by a factor", "start at the size of one element, for example -b 4"
        )
    factor = 2.0 if factor is None else factor
    if step is None and not 1 < factor < math.inf:
        raise UsageError(
            f"-f {factor:g} never grows",
            "give a factor above 1 (1.5 works too), or use -i for an additive step",
        )
    sizes = [smallest]
    while True:
        following = (
            sizes[-1] + step
            if step is not None
            else max(int(min(sizes[-1] * factor, largest + 1)), sizes[-1] + 1)
        )
        if following > largest:
            return tuple(sizes)
        if len(sizes) == MOST_SIZES:
            raise UsageError(f"more than {MOST_SIZES} sizes", "take a larger factor or step")
        sizes.append(following)


def sweep_to_end(smallest: int, largest: int, factor: float) -> tuple[int, ...]:
    """As sweep_sizes by a factor, but ``largest`` itself is always the last."""
    return tuple(dict.fromkeys((*sweep_sizes(smallest, largest, factor), largest)))


MOST_TAG = 100  # characters


def refuse_tag(tag: str) -> None:
    """Raises UsageError for a tag that could not be given where a run is named."""
    if tag.startswith("@") or "," in tag or len(tag) > MOST_TAG or tag != tag.strip():
        excerpt = tag if len(tag) <= 40 else f"{tag[:40]}…"
        raise UsageError(
            f"--tag '{excerpt}' could not name a run",
            f"take up to {MOST_TAG} characters without commas, and not @ first: nightly-2026",
        )


def split_words(text: str) -> list[str]:
    """The words of a comma-separated list, without blanks around them; empty ones are left out, so
    that "" gives an empty list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def list_words(value: object) -> list[str] | None:
    """A suite's list of texts and whole numbers, or one of them, as texts; None for anything
    else."""
    values = value if isinstance(value, list) else [value]
    usable = [str(v) for v in values if isinstance(v, str) or type(v) is int]
    return usable if len(usable) == len(values) else None


MOST_DIGITS = 100  # of a whole number; Python itself reads 4300


def parse_integer(option: str, text: str, least: int = 0) -> int:
    """A whole number from ``least`` up. Raises UsageError."""
    if not text.isdecimal() or len(text) > MOST_DIGITS or int(text) < least:
        raise UsageError(f"{option}: '{text[:40]}' is not a whole number from {least} up")
    return int(text)


def parse_choice(option: str, text: str, allowed: Collection[str]) -> str:
    """``text`` if it is among ``allowed``. Raises UsageError."""
    if text not in allowed:
        raise UsageError(f"{option}: '{text}' is not one of {', '.join(allowed)}")
    return text
