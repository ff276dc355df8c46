"""What machines of a kind reached elsewhere: hints for a first day without history, never a gate;
and what an operator expects of machines, which may be one (`health --expect`).

The curves are data (expectations.toml), each with its source, how well that is known, and a day
from which on it is called old. A curve above what its links can carry is refused as it is read.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from collbench.core import files
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError, first_line
from collbench.core.text import format_bandwidth, format_size
from collbench.features.health.checks.hosts import Looked
from collbench.features.health.findings import Evidence, Finding, Severity, Subject
from collbench.features.health.night import Night, Timing
from collbench.records.types import Choice
from collbench.suite import toml
from collbench.suite.case_words import describe_case
from collbench.suite.grammar import parse_size

FILE = Path(__file__).with_name("expectations.toml")


LOW = 0.90  # of what was reached elsewhere: below, there is a hint


Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]  # GB/s


Kind = Literal["measured", "threshold", "unofficial"]


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """busbw in GB/s by size, of ``collective`` on ``gpus`` GPUs of each of ``nodes`` nodes, or as
    many CPU ranks. ``device`` is a pattern of the GPU's name, ``machine`` one of all hosts' names;
    without a device it is about CPUs. ``backend`` is an implementation, as in ring@gloo, by default
    the library's own choice. ``link`` is a GPU's NVLink rate one way, ``nic`` its share of the
    node's network, both GB/s on the wire; one NVLink domain (``domain``) may hold all nodes
    (MNNVL). ``switch`` adds up data: NVLS, SHARP; None: as it comes.

    Below ``share`` of what is expected there is a finding of this ``severity``. ``verified``: seen
    by this project on such a machine. ``day`` is when the figure was taken over from ``source``.
    """

    device: str = ""
    machine: str = ""
    backend: str = ""
    severity: Severity = "hint"
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = LOW
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

    @property
    def n(self) -> int:
        """Ranks, one on each GPU."""
        return self.gpus * self.nodes

    @property
    def sizes(self) -> list[tuple[int, float]]:
        """Pairs of bytes and GB/s, by size. Raises UsageError for a size that is none."""
        return sorted(
            (parse_size(text, "expectations"), rate) for text, rate in self.points.items()
        )

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


def load_curves(path: Path = FILE) -> list[Curve]:
    """The curves of a file. Raises UsageError with the line and key that are wrong, and why."""
    hint = "write each [[curve]] as collbench help health shows one"
    try:
        text, document = files.read_toml(path, toml.MOST_BYTES)
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(f"{path}: {first_line(e)}", hint) from e
    entries = document.get("curve")
    if set(document) != {"curve"} or not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: it has no [[curve]], or other tables too", hint)
    curves = []
    for number, entry in enumerate(entries):
        completed = {"switch": None, **entry} if path != FILE and isinstance(entry, dict) else entry
        try:
            curve = msgspec.convert(completed, Curve)
        except msgspec.ValidationError as e:
            key = re.search(r"field `(\w+)`|`\$\.(\w+)", str(e))
            where = _locate_key(text, number, (key[1] or key[2]) if key else "")
            raise UsageError(f"{path}: {where}: {first_line(e)}", hint) from e
        if impossible := _find_impossible(curve):
            where = f"{_locate_key(text, number, impossible[0])}: {curve.name}"
            raise UsageError(
                f"{path}: {where}: {impossible[1]}",
                "check that it is busbw in GB/s, not algbw of several GPUs",
            )
        curves.append(curve)
    return curves


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
        sizes, _ = curve.sizes, [re.compile(text) for text in (curve.device, curve.machine)]
    except UsageError as error:
        return "points", error.message
    except re.error as error:
        key = "machine" if error.pattern == curve.machine else "device"
        return key, f"it is not a regular expression: {error}"
    distant = curve.link and curve.nodes > 1 and not curve.domain
    reasons = {
        ("collective", "there is no busbw of such a collective"): not (row and row.moves_data),
        ("device", "neither device nor machine says which machines it is about"): not (
            curve.device or curve.machine
        ),
        ("points", "it has no points"): not sizes,
        ("gpus", "one alone has no busbw"): curve.n < 2,
        ("nic", "several nodes, and no rate of a NIC"): distant and curve.nic is None,
    }
    if wrong := next((reason for reason, holds in reasons.items() if holds), None):
        return wrong
    worst = max(curve.points.values())
    why = f"{worst:g} GB/s is above the {curve.most:.0f} GB/s that its links carry"
    return ("points", why) if worst > curve.most else None


def check_expectations(
    night: Night, curves: list[Curve] | None = None, today: date | None = None
) -> Looked:
    """Sizes at which a collective stays below what is expected: by the ``curves``, or what was
    reached elsewhere on machines like this one. Of curves that should have failed something and
    that no row says anything of, the first is missing."""
    device, shapes = _describe_machine(night)
    if not shapes or (curves is None and not device):
        return Looked(
            idle="no GPUs of one kind on every host: nothing is known to set them against"
        )
    today = today or date.today()
    relevant = [
        c
        for c in (load_curves() if curves is None else curves)
        if _is_about(c, device, night.hosts) and (c.gpus, c.nodes) in shapes.values()
    ]
    if not relevant:
        kinds = " or ".join(
            f"{nodes} x {per_host}" for per_host, nodes in sorted(set(shapes.values()))
        )
        return Looked(missing=f"no figures are known of {kinds} {device or 'CPU ranks'}")
    chose = {t.record.case.key: t.record.chose for t in reversed(night.records) if t.record.chose}
    findings, checked_keys, used_curves = [], set[str](), set[int]()
    for timing in night.fit:
        for curve, expected in _select_like(relevant, chose, timing, shapes):
            checked_keys.add(timing.case.key)
            used_curves.add(id(curve))
            reached = timing.moved / timing.median * timing.case.row.busbw(timing.case.n)
            if reached < curve.share * expected:
                findings.append(_make_finding(timing, curve, reached, expected, today))
    if not checked_keys:
        return Looked(missing="no row is of a collective and size of which figures are known")
    old = sum(curve.expires < today for curve in relevant)
    unseen = [c.name for c in relevant if c.severity != "hint" and id(c) not in used_curves]
    return Looked(
        f"{len(checked_keys):,} rows set against {len(relevant)} curves"
        + f", {old} of them expired" * bool(old),
        findings,
        missing=f"no row says anything of {unseen[0]}" if unseen else "",
    )


def _describe_machine(night: Night) -> tuple[str, dict[int, tuple[int, int]]]:
    """The GPU's name, empty where there are none; and by the size of a world, how many ranks each
    host has, and hosts, where these are alike and each rank has such a GPU."""
    names = {
        str(device.get("name"))
        for file in night.files
        for device in (file.run.environment.get("gpus") or {}).get("devices") or []
    } | {state.name for record_row in night.records for state in record_row.record.gpus}
    device = names.pop() if len(names) == 1 else ""
    shapes: dict[int, set[tuple[int, int]]] = {}
    for world in (world for file in night.files for world in file.worlds if world.n > 1):
        rank_counts = Counter(info.host for info in world.ranks)
        is_uniform = all(bool(info.gpu) == bool(device) for info in world.ranks)
        if is_uniform and len(set(rank_counts.values())) == 1:
            shapes.setdefault(world.n, set()).add((world.n // len(rank_counts), len(rank_counts)))
    return device, {n: shape.pop() for n, shape in shapes.items() if len(shape) == 1}


def _is_about(curve: Curve, device: str, hosts: list[str]) -> bool:
    """Whether a curve is about such machines."""
    kind = bool(device and re.search(curve.device, device)) if curve.device else True
    return kind and all(re.search(curve.machine, host) for host in hosts)


def _select_like(
    curves: list[Curve],
    chose: Mapping[str, Choice],
    timing: Timing,
    shapes: dict[int, tuple[int, int]],
) -> list[tuple[Curve, float]]:
    """The curves of the case's collective and size that were made the way the library said it ran,
    which ``chose`` has by the key of cases, and what is expected by each; of several of one
    severity that with the lowest at this size."""
    case, lowest = timing.case, dict[Severity, tuple[Curve, float]]()
    for curve in curves:
        is_library = case.algorithm == "native" and (
            case.backend in ("nccl", "rccl") or not curve.device
        )
        if (
            curve.collective == case.collective
            and (case.label == curve.backend if curve.backend else is_library)
            and not (case.groups or case.background)
            and shapes.get(case.n) == (curve.gpus, curve.nodes)
            and curve.switch in (None, _in_switch(chose.get(case.key)))
            and (expected := curve.at(case.size)) is not None
            and expected < lowest.get(curve.severity, (curve, math.inf))[1]
        ):
            lowest[curve.severity] = curve, expected
    return [*lowest.values()]


def _in_switch(chose: Choice | None) -> bool:
    return bool(chose and chose.algorithm.startswith(("NVLS", "CollNet")))


def _make_finding(
    timing: Timing, curve: Curve, reached: float, expected: float, today: date
) -> Finding:
    """The finding for a row that does not reach the busbw that a curve expects (both in GB/s)."""
    provenance = (
        f"{curve.source}, noted {curve.day}, {'verified' if curve.verified else 'not verified'},"
        f" {curve.kind}"
    )
    provenance += ", EXPIRED" if curve.expires < today else ""
    return Finding(
        check="expectation",
        severity=curve.severity,
        subject=Subject("collective", describe_case(timing.case)),
        what=f"reaches {reached / expected:.0%} of what is expected of such machines"
        f" ({provenance})",
        advice=(
            "conditions differ between sites; where history begins, it takes over from these"
            " figures"
            if curve.severity == "hint"
            else "collbench pairs and locate say whether a host or a link is slow"
        ),
        evidence=[
            Evidence(
                what=f"busbw at {format_size(timing.case.size)}",
                value=format_bandwidth(reached),
                unit="GB/s",
                expected=format_bandwidth(expected),
                run=timing.run,
                case=timing.case.key,
            )
        ],
    )
