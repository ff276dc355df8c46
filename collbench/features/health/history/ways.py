"""Nights of a row that was measured in several ways, as with two versions of a library by turns:
each way has a history of its own.

A way is all that decides times (nights.Series: the fingerprint and the manner of measuring). Ways
that follow each other, as by an upgrade, are one history of several segments. Ways between which
nights go to and fro are histories side by side. A way that comes back within RETURN days goes on
with its own; later it begins anew, as a machine changes with time in ways that nobody writes down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from collbench.features.health.history.gates import PAST
from collbench.features.health.history.nights import Night, Review, Series
from collbench.machine import environment

RETURN = 30  # days within which a way that comes back goes on with its history


class _Epoch(NamedTuple):
    """Nights of one way, by their indices in the series."""

    way: tuple[str, str]
    indices: list[int]


class Past(NamedTuple):
    """Values of the nights that a night may be held against, oldest first, and the way in which
    they were measured, in words; empty where there is one way only."""

    values: list[float]
    way: str


def split_ways(series: Series) -> list[Series]:
    """The histories of a row, in the order in which they begin: itself, where its nights do not go
    to and fro between ways. A reviewed level is of one of them."""
    tracks = _make_tracks(series, _list_epochs(series.nights))
    if len(tracks) < 2:
        return [series]
    reviewed = [_find_reviewed(series.nights, review) for review in series.reviews]
    days = {day: index for index, day in enumerate(dict.fromkeys(n.day for n in series.nights))}
    ways = []
    for label, track in zip(_label_tracks(series, tracks), tracks, strict=True):
        indices = _list_indices(track)
        pairs = zip(series.reviews, reviewed, strict=True)
        part = replace(series, reviews=[review for review, index in pairs if index in indices])
        ways.append(
            replace(
                part,
                nights=[series.nights[index] for index in indices],
                way=label,
                began=part.explain_change(indices[0]),
                ended=_has_ended([days[series.nights[index].day] for index in indices], len(days)),
            )
        )
    return ways


def find_past(series: Series, tonight: Night) -> Past:
    """The last valid nights that ``tonight`` may be held against: earlier ones of its way and
    segment."""
    earlier = [night for night in series.nights if night.day < tonight.day]
    for way in split_ways(replace(series, nights=[*earlier, tonight])):
        if way.nights[-1] is tonight:
            nights = way.segments[-1].nights[:-1]
            return Past([night.value for night in nights if night.valid][-PAST:], way.way)
    return Past([], "")


def find_current(series: Series) -> Series:
    """The history of the way in which the last night was measured."""
    if not series.nights:
        return series
    latest = series.nights[-1]
    return next(way for way in split_ways(series) if any(n is latest for n in way.nights))


def _find_reviewed(nights: Sequence[Night], review: Review) -> int | None:
    """The index of the last night by that before the review that was measured in its way; None if
    the series does not go so far."""
    last = review.night
    way = last.fingerprint, last.manner
    for index in range(len(nights) - 1, -1, -1):
        night = nights[index]
        if night.day <= last.day and (night.fingerprint, night.manner) == way:
            return index
    return None


def _list_indices(track: Iterable[_Epoch]) -> list[int]:
    return [index for epoch in track for index in epoch.indices]


def _list_epochs(nights: Sequence[Night]) -> list[_Epoch]:
    """Nights by way, in the order of their first ones: a way that was away for more than RETURN
    days, while others were measured, comes back as another epoch."""
    manners: dict[str, str] = {}  # of old databases it is not known, and no difference
    for night in reversed(nights):
        manners[night.fingerprint] = night.manner or manners.get(night.fingerprint, "")
    epochs: list[_Epoch] = []
    open_: dict[tuple[str, str], _Epoch] = {}
    for index, night in enumerate(nights):
        if night.manner:
            manners[night.fingerprint] = night.manner
        way = night.fingerprint, manners[night.fingerprint]
        epoch = open_.get(way)
        if epoch and epoch.indices[-1] < index - 1:
            away = date.fromisoformat(night.day) - date.fromisoformat(nights[epoch.indices[-1]].day)
            epoch = None if away.days > RETURN else epoch
        if epoch is None:
            epoch = open_[way] = _Epoch(way, [])
            epochs.append(epoch)
        epoch.indices.append(index)
    return epochs


def _make_tracks(series: Series, epochs: Sequence[_Epoch]) -> list[list[_Epoch]]:
    """Epochs that follow each other, together: each goes on with that track, of those that have
    ended before it, from which it differs in the fewest facts, of these the last to end."""
    tracks: list[list[_Epoch]] = []
    for epoch in epochs:
        ended = [track for track in tracks if track[-1].indices[-1] < epoch.indices[0]]
        best = min(
            ended,
            key=lambda track: (
                len(_find_differences(series, track[-1].way, epoch.way)),
                -track[-1].indices[-1],
            ),
            default=None,
        )
        if best is None:
            tracks.append([epoch])
        else:
            best.append(epoch)
    return tracks


def _facts_of(series: Series, way: tuple[str, str]) -> dict[str, Any]:
    """All that decides times of a way, by name."""
    fingerprint, manner = way
    facts = environment.select_relevant(
        series.environments.get(fingerprint, {}), {series.case.backend}
    )
    told = dict(word.rpartition(" ")[::2] for word in manner.split(", ") if word)
    return {**facts, **told}


def _find_differences(series: Series, one: tuple[str, str], other: tuple[str, str]) -> list[str]:
    a, b = _facts_of(series, one), _facts_of(series, other)
    return [name for name in {*a, *b} if a.get(name) != b.get(name)]


def _label_tracks(series: Series, tracks: Sequence[Sequence[_Epoch]]) -> list[str]:
    """What each track has that others have not, by the last way of each; where no fact tells them
    apart, its fingerprint."""
    facts = [_facts_of(series, track[-1].way) for track in tracks]
    names = sorted({name for of_track in facts for name in of_track})
    differing = [n for n in names if any(f.get(n) != facts[0].get(n) for f in facts)]
    labels = [_join_facts(of_track, differing) for of_track in facts]
    if len(set(labels)) < len(labels):
        return [
            f"{label} fingerprint {track[-1].way[0]}".strip()
            for label, track in zip(labels, tracks, strict=True)
        ]
    return labels


def _join_facts(facts: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first facts on one line: libraries.torch 2.12.0, python 3.11."""
    shown = [
        f"{name} {facts[name]}" if name in facts else f"no {name}"
        for name in names[: environment.NAMED]
    ]
    more = len(names) - environment.NAMED
    return ", ".join(shown) + f" and {more} more" * (more > 0)


def _has_ended(positions: Sequence[int], nights: int) -> bool:
    """Whether a way, measured in the nights of these positions, is measured no more: it is missing
    for as long as it ever was in its last nights."""
    recent = sorted(set(positions))[-PAST:]
    gap = max((b - a for a, b in pairwise(recent)), default=1)
    return 0 < nights - 1 - recent[-1] >= gap
