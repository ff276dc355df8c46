"""What runs say of a night, row by row, and the stretches of nights that may be held against each
other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from collbench.core.errors import UsageError
from collbench.features.health.history.gates import ANCHOR
from collbench.machine import environment
from collbench.records import rows, stats
from collbench.records.case_rows import gather_case_rows
from collbench.records.origins import refuse_fake
from collbench.records.types import RunFile
from collbench.suite.case import Case

LAUNCHES = 3  # that make a night

NOON = timedelta(hours=12)

LAUNCHES_OF_CALLS = "launches of -m"  # a name of the manner, which databases lack that are older

HOSTS = "host_fingerprints"  # beside a run's environment in the database


class NightLaunch(NamedTuple):
    """A row in one launch of a run: its median in nanoseconds, how it was measured, and why it may
    not be judged. ``number`` is that of its world, ``started`` when its run began, in ISO 8601."""

    run: str
    number: int
    day: str
    fingerprint: str
    median: float
    samples: int
    manner: str
    unfit: str
    started: str


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """A row in one night: ``value`` is the logarithm of the median of its launches' medians in
    nanoseconds. Launches that are ``unfit`` count only where all are, and then it says why.

    ``day`` is an ISO date: nights go from noon to noon, UTC, and are named by the day they begin.
    """

    day: str
    value: float
    launches: int
    samples: int
    fingerprint: str
    manner: str
    runs: tuple[str, ...]
    unfit: str = ""
    started: str = ""  # when its first run began, in ISO 8601

    @property
    def unfit_reason(self) -> str:
        """The reason why no level may be judged by this night, or an empty string."""
        return self.unfit or (
            f"{self.launches} of {LAUNCHES} launches" if self.launches < LAUNCHES else ""
        )

    @property
    def valid(self) -> bool:
        """Whether a level may be judged by this night."""
        return not self.unfit_reason


class Stretch(NamedTuple):
    """Nights between which nothing is known to have changed; ``why`` it begins."""

    why: str
    nights: Sequence[Night]

    @property
    def valid(self) -> list[Night]:
        """Nights that may be judged."""
        return [night for night in self.nights if night.valid]


class Review(NamedTuple):
    """A level of a row that was reviewed, the logarithm of its median since the night ``begins``.
    One that was ``accepted`` begins a segment there. ``night`` is the last one before the review,
    and the level is that of its way."""

    begins: str
    reason: str
    accepted: bool
    level: float
    night: Night


class Series(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A row of one machine over all its nights, oldest first. ``reviews`` are its levels that
    were reviewed, oldest first; ``environments`` the facts behind each fingerprint, which is of
    what decides for the row's backend. Of a row that was measured in several ways by turns
    (ways.py), each has a series: its ``way`` in words, why it ``began`` where it is not the first,
    and whether it has ``ended``."""

    machine: str
    case: Case
    nights: Sequence[Night]
    reviews: Sequence[Review] = ()
    environments: Mapping[str, Mapping[str, Any]] = {}
    way: str = ""
    began: str = ""
    ended: bool = False

    @property
    def name(self) -> str:
        """Its key, and its way if there are several."""
        return f"{self.key} ({self.way})" if self.way else self.key

    @property
    def key(self) -> str:
        """The key of its case."""
        return self.case.key

    @cached_property
    def segments(self) -> list[Stretch]:
        """Its nights in stretches, oldest first: a stretch begins where the machine's fingerprint
        or the manner of measuring differs from the night before, and where a level was
        accepted."""
        if not self.nights:
            return []
        begins = {0: self.began or "first night"}
        begins |= {
            index: why
            for index, pair in enumerate(pairwise(self.nights), 1)
            if (why := self._between(*pair))
        }
        ends = [*begins, len(self.nights)]
        return [Stretch(begins[begin], self.nights[begin:end]) for begin, end in pairwise(ends)]

    @property
    def beginnings(self) -> list[Stretch]:
        """The segments that began for a reason: all but the first night's."""
        return self.segments if self.began else self.segments[1:]

    def explain_change(self, index: int) -> str:
        """The reason why the night of this index is of another way than the one before it; empty
        for the first night."""
        return self._between(*self.nights[index - 1 : index + 1]) if index else ""

    def until(self, day: str) -> Series:
        """The series up to the night ``day``, with the levels that begin by then."""
        return msgspec.structs.replace(
            self,
            nights=[night for night in self.nights if night.day <= day],
            reviews=[review for review in self.reviews if review.begins <= day],
        )

    def _between(self, before: Night, after: Night) -> str:
        """The reason why the night ``after`` begins a new stretch, or an empty string."""
        reasons = [
            f"accepted: {review.reason}"
            for review in self.reviews
            if review.accepted and before.day < review.begins <= after.day
        ]
        if before.fingerprint != after.fingerprint:
            reasons.append(self._changed(before.fingerprint, after.fingerprint))
        if (
            before.manner != after.manner and before.manner and after.manner
        ):  # of old databases it is not known
            old, new = (set(night.manner.split(", ")) for night in (before, after))
            reasons.append(
                f"measured otherwise: {', '.join(sorted(old - new))} ->"
                f" {', '.join(sorted(new - old))}"
            )
        return "; ".join(reasons)

    def _changed(self, before: str, after: str) -> str:
        """A phrase for the facts in which fingerprints differ, the first of them."""
        old, new = (self.environments.get(name, {}) for name in (before, after))
        differences = environment.find_differences(old, new, {self.case.backend})
        return environment.list_facts(differences) or f"fingerprint {before} -> {after}"


def run_facts(file: RunFile) -> dict[str, Any]:
    """The run's environment; where there were several hosts, with their fingerprints by backend."""
    hosts: dict[str, set[str]] = {}
    for world in file.worlds:
        for host in world.hosts:
            hosts.setdefault(world.backend, set()).add(host.fingerprint)
    host_lists = {backend: sorted(values) for backend, values in sorted(hosts.items())}
    return file.run.environment | ({HOSTS: host_lists} if host_lists else {})


def run_fingerprint(facts: Mapping[str, Any], backend: str = "") -> str:
    """A run's, by its ``facts``: of what decides rows of ``backend``, or of all."""
    own_digest = environment.make_fingerprint(facts, {backend} if backend else None)
    hosts = facts.get(HOSTS, {})
    hosts = hosts.get(backend) if backend else hosts
    return environment.digest_facts({"own": own_digest, "hosts": hosts}) if hosts else own_digest


def narrow_fingerprint(name: str, facts: Mapping[str, Any], backend: str) -> str:
    """The fingerprint for ``backend`` of a run whose own is ``name``. That stands where ``facts``
    do not make it, as of several hosts in databases of before."""
    return run_fingerprint(facts, backend) if run_fingerprint(facts) == name else name


def night_of(started: str) -> str:
    """The night that a time (ISO, with its offset from UTC) belongs to. Raises UsageError."""
    return (_parse_time(started) - NOON).date().isoformat()


def look_up_night(started: str) -> str:
    """As night_of, but an empty string for what is no time."""
    with suppress(UsageError):
        return night_of(started)
    return ""


def find_night_before(nights: Sequence[Night], when: str) -> Night:
    """The last night that began before the time ``when``. Where none did, as of a level that comes
    from another history, or where ``when`` is not a time, the first one: it stays the same when
    nights are added."""
    try:
        limit = _parse_time(when)
    except UsageError:
        return nights[0]
    return next((n for n in reversed(nights) if _parse_time(n.started) < limit), nights[0])


@lru_cache(1 << 12)
def _parse_time(text: str) -> datetime:
    """A time in ISO 8601, in UTC. Raises UsageError."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as e:
        raise UsageError(f"'{text}' is not a time", "write it as 2026-01-02T03:04:05+00:00") from e


def launches_of(file: RunFile) -> dict[Case, list[NightLaunch]]:
    """Every row of a run, by its case (of cycle 0), launch by launch, each with flags of its own:
    the launches of a night share them (share_flags). Raises UsageError for what is no night's run,
    and NoVerdict for a run on fake GPUs."""
    run = file.run
    if run.pairing:
        raise UsageError(
            f"{run.id} is a side of an experiment",
            "add runs that are measured alike each night",
        )
    if run.policy.inject:
        raise UsageError(
            f"{run.id} was measured with planted faults ({run.policy.inject})",
            "measure the night without --inject",
        )
    refuse_fake(file, "keep")
    night, facts = night_of(run.started), run_facts(file)
    launches: dict[Case, list[NightLaunch]] = {}
    sides = gather_case_rows([file], False, lambda _, case: case.key).values()
    backends = {side.case.backend for side in sides}
    prints = {backend: run_fingerprint(facts, backend) for backend in backends}
    for side in sides:
        case = side.case
        settings = sorted(side.manner.items())
        manner = ", ".join(f"{name} {'/'.join(sorted(values))}" for name, values in settings)
        launches[case] = [
            NightLaunch(
                run.id,
                row.launch.world,
                night,
                prints[case.backend],
                row.median,
                row.samples,
                manner,
                " ".join(row.own_flags),
                run.started,
            )
            for row in sorted(rows.select_fit(side.rows), key=lambda row: row.launch.world)
        ]
    return {case: rows for case, rows in launches.items() if rows}


def merge_nights(launches: Iterable[NightLaunch], prints: Mapping[str, str] = {}) -> list[Night]:
    """Nights of one row, in the order given: launches of one day, fingerprint and manner are one
    night's. ``prints`` are fingerprints that take the place of others. Manners are written as this
    version writes them."""
    together: dict[tuple[str, str, str], list[NightLaunch]] = {}
    for original in launches:
        launch = original._replace(
            fingerprint=prints.get(original.fingerprint, original.fingerprint),
            manner=complete_manner(original.manner),
        )
        together.setdefault((launch.day, launch.fingerprint, launch.manner), []).append(launch)
    return [_make_night(group) for group in together.values()]


def complete_manner(manner: str) -> str:
    """The manner of a kept launch with what earlier versions did not write down and measured as
    today: one call a sample was one launch always. How several calls were launched is not known."""
    if "agg_iters " in manner and ", register " not in manner:
        manner = re.sub(r"(, pin \w+)", r"\1, register 0", manner, count=1)
    if LAUNCHES_OF_CALLS in manner or "agg_iters 1," not in manner:
        return manner
    return manner.replace(", pin ", f", {LAUNCHES_OF_CALLS} one, pin ", 1)


def began_otherwise(before: Night, after: Night) -> bool:
    """Whether two nights of a row are alike but for how its ranks were started: by windows, and
    then by barriers, as they are where ranks come late to windows."""
    old, new = (set(night.manner.split(", ")) for night in (before, after))
    starts = [{word for word in words if word.startswith("start ")} for words in (old, new)]
    return (
        before.fingerprint == after.fingerprint
        and old - starts[0] == new - starts[1]
        and starts[0] == {"start window"}
        and any("barrier" in word for word in starts[1])
    )


def share_flags(launches: Sequence[NightLaunch]) -> list[NightLaunch]:
    """The launches of a row, measured alike, of which each has the flags that all share
    (rows.share_flags)."""
    flags = rows.share_flags(
        [0] * len(launches), [tuple(launch.unfit.split()) for launch in launches]
    )
    return [launch._replace(unfit=" ".join(f)) for launch, f in zip(launches, flags, strict=True)]


def _make_night(launches: Sequence[NightLaunch]) -> Night:
    launches = share_flags(launches)
    fit = [launch for launch in launches if not launch.unfit]
    used, first = fit or launches, launches[0]
    return Night(
        day=first.day,
        value=math.log(stats.median([launch.median for launch in used])),
        launches=len(used),
        samples=sum(launch.samples for launch in used),
        fingerprint=first.fingerprint,
        manner=first.manner,
        runs=tuple(dict.fromkeys(launch.run for launch in launches)),
        unfit="" if fit else first.unfit,
        started=first.started,
    )


def nights_of(files: Sequence[RunFile]) -> dict[str, Night]:
    """The nights that runs of one night make, by the key of each row: of one that was measured in
    several ways, the last that may be judged, else the last."""
    launches_by_case: dict[str, list[NightLaunch]] = {}
    for file in files:
        for case, case_launches in launches_of(file).items():
            launches_by_case.setdefault(case.key, []).extend(case_launches)
    if len(days := {launch.day for group in launches_by_case.values() for launch in group}) > 1:
        raise UsageError(
            f"these runs are of {len(days)} nights: {', '.join(sorted(days))}", "name those of one"
        )
    nights = {key: merge_nights(group) for key, group in launches_by_case.items()}
    return {
        key: next((night for night in reversed(ways) if night.valid), ways[-1])
        for key, ways in nights.items()
    }


def first_level(segment: Stretch) -> float | None:
    """The median of a segment's first valid nights: an anchor where none was reviewed. None before
    there are enough."""
    values = [night.value for night in segment.valid[:ANCHOR]]
    return stats.median(values) if len(values) == ANCHOR else None
