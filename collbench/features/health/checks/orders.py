"""In which order the launches of a night add, as rows tell it of their sums (policy: adds_as), and
where that changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from collbench.features.health.findings import Evidence
from collbench.features.health.history.nights import look_up_night
from collbench.features.health.night import NightRecord, list_several, make_evidence
from collbench.records.choice import describe_adding


class OrderedLaunch(NamedTuple):
    """A launch of a case, numbered from 1 by its time, with the algorithms that add as it does."""

    number: int
    entry: NightRecord
    order: str

    @property
    def day(self) -> str:
        """The day of its night, empty if unknown."""
        return look_up_night(self.entry.file.run.started)


def list_launches(entries: Iterable[NightRecord]) -> list[OrderedLaunch]:
    """The launches of a case of which it is known how they add, in the order of time."""
    ordered = sorted(entries, key=lambda entry: (entry.file.run.started, entry.record.world))
    numbered = [
        OrderedLaunch(number, entry, describe_adding(entry.record.chose))
        for number, entry in enumerate(ordered, 1)
    ]
    return [launch for launch in numbered if launch.order]


def is_changed(entries: Iterable[NightRecord]) -> bool:
    """Whether launches of a case add in orders of different names."""
    choices = [entry.record.chose for entry in entries]
    return len({choice.adds_as for choice in choices if choice and choice.adds_as}) > 1


def has_order(entry: NightRecord) -> bool:
    """Whether it is known of a record how it adds."""
    return bool(entry.record.chose and entry.record.chose.adds_as)


def describe_change(launches: Sequence[OrderedLaunch]) -> str:
    """From which launch on a case adds otherwise, or in which launches it adds how; empty where
    nothing changed."""
    stretches = _list_stretches(launches)
    if len(stretches) == 2:
        before, now = (stretch[0] for stretch in stretches)
        since = f"launch {now.number}" + (f" ({now.day})" if now.day else "")
        return f"adds as {now.order} since {since}, before as {before.order}"
    by_order: dict[str, list[str]] = {}
    for launch in launches:
        by_order.setdefault(launch.order, []).append(str(launch.number))
    if len(by_order) < 2:
        return ""
    parts = [
        f"as {order} in launch{'es' * (len(numbers) > 1)} {list_several(numbers, 5)}"
        for order, numbers in by_order.items()
    ]
    return f"adds {', '.join(parts)}"


def make_order_evidence(launches: Sequence[OrderedLaunch]) -> list[Evidence]:
    """Each change of a case's order: the order from then on, and the one before."""
    stretches = _list_stretches(launches)
    return [
        make_evidence(now[0].entry, "adds as", now[0].order, before[0].order)
        for before, now in pairwise(stretches)
    ]


def _list_stretches(launches: Sequence[OrderedLaunch]) -> list[list[OrderedLaunch]]:
    """Launches that follow each other and add alike."""
    return [list(stretch) for _, stretch in groupby(launches, key=lambda launch: launch.order)]
