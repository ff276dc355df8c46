"""What machines of a kind reached elsewhere: hints for a first day without history, never a gate.

The curves are data (expectations.toml), each with its source, how well that is known, and a day
from which on it is called old. A curve above what its links can carry is refused as it is read.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.core.text import bandwidth, size
from collbench.judge.health.findings import Evidence, Finding, Subject
from collbench.judge.health.hosts import Looked
from collbench.judge.health.night import Night, Timing, named
from collbench.suite.grammar import parse_size

FILE = Path(__file__).with_name("expectations.toml")


LOW = 0.90  # of what was reached elsewhere: below, there is a hint


Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]  # GB/s


Kind = Literal["measured", "threshold", "unofficial"]


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """busbw in GB/s by size, of ``collective`` on ``gpus`` GPUs of each of ``nodes`` nodes.
    ``device`` is a pattern of the GPU's name. ``link`` is a GPU's NVLink rate one way, ``nic`` its
    share of the node's network, both GB/s on the wire; one NVLink domain (``domain``) may hold all
    nodes (MNNVL). ``switch`` adds up data: NVLS, SHARP.

    ``verified``: seen by this project on such a machine. ``day`` is when the figure was taken over
    from ``source``.
    """

    device: str
    gpus: Annotated[int, msgspec.Meta(ge=1)]
    nodes: Annotated[int, msgspec.Meta(ge=1)] = 1
    collective: str = "all_reduce"
    switch: bool = False
    domain: bool = False
    link: Rate
    nic: Rate | None = None
    points: dict[str, Rate]
    source: str
    kind: Kind = "measured"
    day: date
    expires: date
    verified: bool = False

    @property
    def n(self) -> int:
        return self.gpus * self.nodes

    @property
    def sizes(self) -> list[tuple[int, float]]:
        return sorted(
            (parse_size(text, "expectations"), rate) for text, rate in self.points.items()
        )

    @property
    def most(self) -> float:
        """The busbw in GB/s that no links of this kind can exceed.

        busbw is F S / t. Each GPU must take in F S over its own links, or as little as (n+1)/n S
        where a switch adds up for all_reduce, half of F S where it adds up or multiplies otherwise.
        Between nodes, of whose data each needs (m-1)/m from elsewhere, twice that for all_reduce
        without a switch, all its NICs together carry it.
        """
        n, m, row = self.n, self.nodes, COLLECTIVES[self.collective]
        summed = self.collective in ("all_reduce", "reduce_scatter", "all_gather")
        factor = row.busbw(n)
        own = (
            {"all_reduce": (n + 1) / n}.get(self.collective, 1.0)
            if self.switch and summed
            else factor
        )
        inside = self.link + (self.nic or 0.0)
        bound = inside * factor / own
        if m > 1 and not self.domain and self.nic:
            twice = 2 if self.collective == "all_reduce" and not self.switch else 1
            each = (
                self.gpus * (m - 1) / m if self.collective == "all_to_all" else twice * (m - 1) / m
            )
            bound = min(bound, factor * self.gpus * self.nic / each)
        return bound

    @property
    def name(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        how = (", in the switch" if self.switch else "") + (
            ", one NVLink domain" if self.domain and self.nodes > 1 else ""
        )
        return f"{self.collective}, {nodes}{self.gpus} x {self.device}{how}"

    def at(self, nbytes: int) -> float | None:
        """Between its sizes, on straight lines in logarithms of both; None beyond them, above by
        more than twice."""
        known = self.sizes
        if not known[0][0] <= nbytes <= 2 * known[-1][0]:
            return None
        place = bisect.bisect_right([at for at, _ in known], nbytes)
        if place == len(known):
            return known[-1][1]
        (low, slow), (high, fast) = known[place - 1 : place + 1]
        return slow * math.pow(fast / slow, math.log(nbytes / low) / math.log(high / low))


def load(path: Path = FILE) -> list[Curve]:
    """All curves. Raises UsageError that names the curve which cannot be, and why."""
    try:
        said = tomllib.loads(path.read_text("utf-8")).get("curve", [])
        curves = msgspec.convert(said, list[Curve])
    except (OSError, ValueError, msgspec.ValidationError) as e:
        raise UsageError(
            f"{path}: {first_line(e)}", "each [[curve]] is as those that come with collbench"
        ) from e
    for curve in curves:
        if why := _impossible(curve):
            raise UsageError(
                f"{path}: {curve.name}: {why}",
                "is its unit GB/s, and busbw, not algbw of several GPUs?",
            )
    return curves


def _impossible(curve: Curve) -> str:
    if (row := COLLECTIVES.get(curve.collective)) is None or not row.moves_data:
        return "there is no busbw of such a collective"
    try:
        if not curve.sizes:
            return "it has no points"
    except UsageError as error:
        return error.message
    if curve.nodes > 1 and not curve.domain and curve.nic is None:
        return "several nodes, and no rate of a NIC"
    worst = max(curve.points.values())
    return (
        f"{worst:g} GB/s is above the {curve.most:.0f} GB/s that its links carry"
        if worst > curve.most
        else ""
    )


def check(night: Night, curves: list[Curve] | None = None, today: date | None = None) -> Looked:
    """Sizes at which a collective stays below 90 % of what was reached elsewhere on machines like
    this one."""
    kind = _kind(night)
    if kind is None:
        return Looked(
            idle="no GPUs of one kind on every host: nothing is known to set them against"
        )
    device, gpus, nodes = kind
    today = today or date.today()
    mine = [
        c
        for c in (load() if curves is None else curves)
        if re.search(c.device, device) and (c.gpus, c.nodes) == (gpus, nodes)
    ]
    if not mine:
        return Looked(missing=f"no figures are known of {nodes} x {gpus} {device}")
    found, looked = [], 0
    for timing in night.fit:
        curve = _like(mine, night, timing)
        expected = curve.at(timing.case.size) if curve else None
        if curve and expected:
            looked += 1
            reached = timing.moved / timing.median * timing.case.row.busbw(timing.case.n)
            found += (
                [_finding(timing, curve, reached, expected, today)]
                if reached < LOW * expected
                else []
            )
    if not looked:
        return Looked(missing="no row is of a collective and size of which figures are known")
    old = sum(curve.expires < today for curve in mine)
    return Looked(
        f"{looked:,} rows set against {len(mine)} curves" + f", {old} of them expired" * bool(old),
        found,
    )


def _kind(night: Night) -> tuple[str, int, int] | None:
    """The GPU's name, how many of them on each host, and hosts; None where that is not one kind of
    machine."""
    names = {
        device.get("name")
        for file in night.files
        for device in (file.run.environment.get("gpus") or {}).get("devices") or []
    } | {state.name for told in night.records for state in told.record.gpus}
    worlds = [world for file in night.files for world in file.worlds if world.n > 1]
    shapes = {
        tuple(
            sorted(
                len(list(ranks))
                for _, ranks in itertools.groupby(sorted(info.host for info in world.ranks))
            )
        )
        for world in worlds
        if all(info.device.startswith("cuda") for info in world.ranks)
    }
    shape = shapes.pop() if len(shapes) == 1 else ()
    name = names.pop() if len(names) == 1 else None
    return (str(name), shape[0], len(shape)) if name and shape and len(set(shape)) == 1 else None


def _like(curves: list[Curve], night: Night, timing: Timing) -> Curve | None:
    """The curve of the case's collective that was made the way the library said it ran; of several
    the lowest."""
    case = timing.case
    fitting = [c for c in curves if (c.collective, c.n) == (case.collective, case.n)]
    if case.backend not in ("nccl", "rccl") or case.algorithm != "native":
        return None
    chose = next(
        (t.record.chose for t in night.records if t.record.case.key == case.key and t.record.chose),
        None,
    )
    in_switch = bool(chose and chose.algorithm.startswith(("NVLS", "CollNet")))
    return min(
        (c for c in fitting if c.switch == in_switch),
        key=lambda c: max(c.points.values()),
        default=None,
    )


def _finding(timing: Timing, curve: Curve, reached: float, expected: float, today: date) -> Finding:
    told = (
        f"{curve.source}, noted {curve.day}, {'verified' if curve.verified else 'not verified'},"
        f" {curve.kind}"
    )
    told += ", EXPIRED" if curve.expires < today else ""
    return Finding(
        check="expectation",
        severity="hint",
        subject=Subject("collective", named(timing.case)),
        what=f"reaches {reached / expected:.0%} of what such machines reached elsewhere ({told})",
        advice=(
            "conditions differ between sites; where history begins, it takes over from these"
            " figures"
        ),
        evidence=[
            Evidence(
                what=f"busbw at {size(timing.case.size)}",
                value=bandwidth(reached),
                unit="GB/s",
                expected=bandwidth(expected),
                run=timing.run,
                case=timing.case.key,
            )
        ],
    )
