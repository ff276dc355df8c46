"""Curves of expected busbw, and the tables (TOML files) that hold them: one file, or a folder of
files that different people keep. A curve above what its links can carry is refused as it is read.
"""

from __future__ import annotations

import bisect
import math
import os
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np

from collbench.core import files
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.core.text import plain_line
from collbench.features.health.findings import Severity
from collbench.suite import toml
from collbench.suite.grammar import parse_size

FILE = Path(__file__).with_name("expectations.toml")

LOW = 0.90  # of what was reached elsewhere: below, there is a hint

Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]  # GB/s

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

Kind = Literal["measured", "threshold", "unofficial"]

CHOICES = {"severity": get_args(Severity), "kind": get_args(Kind)}  # by key

LEARN = "collbench expect learn RUN… -o FILE writes a table; collbench help acceptance shows one"


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """busbw in GB/s by size, of ``collective`` on ``gpus`` GPUs of each of ``nodes`` nodes, or as
    many CPU ranks. ``device`` is a pattern of the GPU's name, ``machine`` one of all hosts' names;
    without a device it is about CPUs. ``backend`` is an implementation, as in ring@gloo, by default
    the library's own choice. ``link`` is a GPU's NVLink rate one way, ``nic`` its share of the
    node's network, both GB/s on the wire; one NVLink domain (``domain``) may hold all nodes
    (MNNVL). ``switch`` adds up data: NVLS, SHARP; None: as it comes.

    Below ``share`` of what is expected there is a finding of this ``severity``; a share by size
    holds on straight lines between these sizes. ``verified``: seen by this project on such a
    machine. ``day`` is when the figure was taken over from ``source``. ``file`` is the table's
    name, which no table gives itself; empty for the curves that come with collbench.
    """

    device: str = ""
    machine: str = ""
    backend: str = ""
    severity: Severity = "hint"
    share: Share | dict[str, Share] = LOW
    gpus: Annotated[int, msgspec.Meta(ge=1)]
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    collective: str = "all_reduce"
    switch: bool | None = False
    domain: bool = False
    link: Rate | None = None
    nic: Rate | None = None
    points: dict[str, Rate]
    source: str
    kind: Kind = "measured"
    day: date
    expires: date = date.max
    verified: bool = False
    file: str = ""

    @property
    def n(self) -> int:
        """Ranks, one on each GPU."""
        return self.gpus * self.nodes

    @property
    def sizes(self) -> list[tuple[int, float]]:
        """Pairs of bytes and GB/s, by size. Raises UsageError for a size that is none."""
        return _sort_sizes(self.points)

    @property
    def machines(self) -> str:
        """Its patterns of the machines that it is about, as one phrase."""
        return ", ".join(filter(None, (self.device, self.machine)))

    @property
    def most(self) -> float:
        """The busbw in GB/s that no links of this kind can exceed; inf where they are not known.

        busbw is F S / t. Each GPU must take in F S over its own links, or as little as (n+1)/n S
        where a switch adds up for all_reduce, half of F S where it adds up or multiplies otherwise.
        Between nodes, of whose data each needs (m-1)/m from elsewhere, twice that for all_reduce
        without a switch, all its NICs together carry it.
        """
        if self.link is None:
            return math.inf
        n, m, row = self.n, self.nodes, COLLECTIVES[self.collective]
        summed = self.collective in ("all_reduce", "reduce_scatter", "all_gather")
        factor = row.busbw(n)
        own_factor = (
            {"all_reduce": (n + 1) / n}.get(self.collective, 1.0)
            if self.switch and summed
            else factor
        )
        inside = self.link + (self.nic or 0.0)
        bound = inside * factor / own_factor
        if m > 1 and not self.domain and self.nic:
            twice = 2 if self.collective == "all_reduce" and not self.switch else 1
            nic_share = (
                self.gpus * (m - 1) / m if self.collective == "all_to_all" else twice * (m - 1) / m
            )
            bound = min(bound, factor * self.gpus * self.nic / nic_share)
        return bound

    @property
    def name(self) -> str:
        """The collective, and the machine, in words."""
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        how = (", in the switch" if self.switch else "") + (
            ", one NVLink domain" if self.domain and self.nodes > 1 else ""
        )
        return f"{self.collective}, {nodes}{self.gpus} x {self.device or self.machine}{how}"

    def at(self, nbytes: int) -> float | None:
        """Between its sizes, on straight lines in logarithms of both; None beyond them, above by
        more than twice."""
        points = self.sizes
        if not points[0][0] <= nbytes <= 2 * points[-1][0]:
            return None
        position = bisect.bisect_right([at for at, _ in points], nbytes)
        if position == len(points):
            return points[-1][1]
        (low, slow), (high, fast) = points[position - 1 : position + 1]
        return slow * math.pow(fast / slow, math.log(nbytes / low) / math.log(high / low))

    def share_at(self, nbytes: int) -> float:
        """The share of what is expected that suffices at a size."""
        if not isinstance(self.share, dict):
            return self.share
        sizes, shares = zip(*_sort_sizes(self.share), strict=True)
        return float(np.interp(math.log(max(nbytes, 1)), np.log(np.maximum(sizes, 1)), shares))

    def limit_at(self, nbytes: int) -> float | None:
        """The least busbw in GB/s that suffices at a size; None where ``at`` has none."""
        expected = self.at(nbytes)
        return None if expected is None else expected * self.share_at(nbytes)


def _sort_sizes(values: Mapping[str, float]) -> list[tuple[int, float]]:
    """Bytes and values, by size. Raises UsageError for a size that is none."""
    return sorted((parse_size(text, "expectations"), value) for text, value in values.items())


def load_tables(path: Path) -> list[Curve]:
    """The curves of a file, or of all files *.toml of a folder, each with its file's name. Raises
    UsageError for a folder without one, and for what is wrong, with file, line and key."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path's raises for a name that is too long
        return [msgspec.structs.replace(curve, file=path.name) for curve in load_curves(path)]
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".toml"))  # noqa: PTH208
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}", "give a folder that you may read") from e
    if not names:
        raise UsageError(
            f"{path}: the folder has no table (*.toml)",
            LEARN,
        )
    return [curve for name in names for curve in load_tables(path / name)]


def load_curves(path: Path = FILE) -> list[Curve]:
    """The curves of a file. Raises UsageError with the line and key that are wrong, and why."""
    hint = "write each [[curve]] as collbench help acceptance shows one"
    try:
        text, document = files.read_toml(path, toml.MOST_BYTES)
    except FileNotFoundError as e:
        raise UsageError(f"{path}: no such file or folder", LEARN) from e
    except OSError as e:
        raise UsageError(
            f"{path}: {e.strerror or first_line(e)}", "give a table that you may read"
        ) from e
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{path}: {first_line(e)}", hint) from e
    entries = document.get("curve")
    if set(document) != {"curve"} or not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: it has no [[curve]], or other tables too", hint)
    curves = []
    for number, entry in enumerate(entries):
        completed = {"switch": None, **entry} if path != FILE and isinstance(entry, dict) else entry
        try:
            if isinstance(entry, dict) and "file" in entry:
                raise msgspec.ValidationError("Object contains unknown field `file`")
            curve = msgspec.convert(completed, Curve)
        except msgspec.ValidationError as e:
            match = re.search(r"field `(\w+)`|`\$\.(\w+)", str(e))
            key = (match[1] or match[2]) if match else ""
            where = _locate_key(text, number, key)
            raise UsageError(f"{path}: {where}: {_explain_value(entry, key, e)}", hint) from e
        if impossible := _find_impossible(curve):
            where = f"{_locate_key(text, number, impossible[0])}: {curve.name}"
            raise UsageError(
                f"{path}: {where}: {impossible[1]}",
                "check that it is busbw in GB/s, not algbw of several GPUs",
            )
        curves.append(curve)
    return curves


def _explain_value(entry: Any, key: str, error: msgspec.ValidationError) -> str:
    """The reason why a key's value is not taken, without the place, which the line has; of a key
    with few values, these values."""
    if key in CHOICES and isinstance(entry.get(key), str):
        *others, last = CHOICES[key]
        return f"'{plain_line(entry[key])[:60]}' is not {', '.join(others)} or {last}"
    return first_line(error).partition(" - at `$.")[0]


def _locate_key(text: str, number: int, key: str) -> str:
    """A phrase for the line at which a curve gives ``key``, else at which the curve begins; curves
    are counted from 0."""
    lines = text.splitlines()
    heads = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*curve\s*\]\]", line)]
    begin, end = [*heads, *[len(lines)] * (number + 2)][number : number + 2]
    key_lines = (at for at in range(begin, end) if re.match(rf"\s*[\"']?{key}\b", lines[at]))
    return f"line {next(key_lines, begin) + 1}" + (f", {key}" if key else "")


def _find_impossible(curve: Curve) -> tuple[str, str] | None:
    """The key that cannot be, and why."""
    row = COLLECTIVES.get(curve.collective)
    try:
        sizes = curve.sizes
    except UsageError as error:
        return "points", error.message
    for key, pattern in (("device", curve.device), ("machine", curve.machine)):
        try:
            re.compile(pattern)
        except (re.error, OverflowError) as error:
            return key, f"it is not a regular expression: {error}"
    try:
        curve.share_at(1)
    except UsageError as error:
        return "share", error.message
    except ValueError:
        return "share", "it has no sizes"
    distant = curve.link and curve.nodes > 1 and not curve.domain
    reasons = {
        ("collective", "there is no busbw of such a collective"): not (row and row.moves_data),
        ("device", "neither device nor machine says which machines it is about"): not (
            curve.device or curve.machine
        ),
        ("points", "it has no points"): not sizes,
        ("points", "a size of 0 has no bandwidth"): bool(sizes) and not sizes[0][0],
        ("gpus", "one alone has no busbw"): curve.n < 2,
        ("nic", "several nodes, and no rate of a NIC"): distant and curve.nic is None,
    }
    if wrong := next((reason for reason, holds in reasons.items() if holds), None):
        return wrong
    worst = max(curve.points.values())
    why = f"{worst:g} GB/s is above the {curve.most:.0f} GB/s that its links carry"
    return ("points", why) if worst > curve.most else None
