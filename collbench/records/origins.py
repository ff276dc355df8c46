"""Where times come from that are not what GPUs or cores take. Each origin is a flag of its rows;
ORIGINS alone says what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from collbench.core.errors import NoVerdict
from collbench.records.types import Record, RunFile, World

Effect = Literal["apart", "ungated", "excluded"]


class Origin(NamedTuple):
    """``reason`` completes "the rows were". A row of ``effect`` "apart" is compared with its like
    only; "ungated": its time is shown and decides nothing; "excluded": its time stands in its own
    line with the flag, and nothing compares, ranks, fits, limits or keeps it."""

    reason: str
    effect: Effect
    holds: Callable[[Record, World | None], bool]


FAKE = "fake"

ORIGINS: dict[str, Origin] = {
    "predicted": Origin(
        "predicted by a model", "apart", lambda record, _: record.status == "predicted"
    ),
    FAKE: Origin("measured on a fake GPU", "excluded", lambda _, world: bool(world and world.fake)),
    "interpreted": Origin(
        "measured in Triton's interpreter",
        "ungated",
        lambda _, world: bool(world and world.interpreted),
    ),
    "virtual": Origin(
        "measured on virtual ranks of one GPU",
        "ungated",
        lambda _, world: bool(world and world.virtual),
    ),
}


def reasons_by_flag(effect: Effect) -> dict[str, str]:
    """The reasons of the origins with this effect, by their flags."""
    return {flag: origin.reason for flag, origin in ORIGINS.items() if origin.effect == effect}


def explain_unmeasured(file: RunFile) -> str:
    """The reason why a run, or a part of it, is no measurement of a machine; empty where it is."""
    worlds = {world.index: world for world in file.worlds}
    for origin in ORIGINS.values():
        if origin.effect != "ungated" and any(
            origin.holds(record, worlds.get(record.world)) for record in file.records
        ):
            return origin.reason
    return ""


def is_fake(file: RunFile) -> bool:
    """Whether any of a run's process groups was on fake GPUs."""
    return any(world.fake for world in file.worlds)


def select_counting(file: RunFile) -> list[Record]:
    """The records of a run but for those of excluded origins."""
    worlds = {world.index: world for world in file.worlds}
    excluded = reasons_by_flag("excluded")
    return [
        record
        for record in file.records
        if not any(ORIGINS[flag].holds(record, worlds.get(record.world)) for flag in excluded)
    ]


def refuse_fake(file: RunFile, action: str) -> None:
    """Raises NoVerdict where a run was on fake GPUs; ``action`` completes "nothing to"."""
    if is_fake(file):
        raise NoVerdict(
            f"nothing to {action}: the rows of {file.run.id} were {ORIGINS[FAKE].reason}",
            "measure on a GPU",
        )
