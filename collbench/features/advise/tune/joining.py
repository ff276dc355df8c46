"""Settings of several collectives in the environment of one world, as far as each counts for its
own collective alone: a world takes seconds to start, whatever it measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from collbench.features.advise.libraries import Library
from collbench.features.advise.types import Series, Variables
from collbench.suite.sweep import Axes, Suite

Sizes = tuple[int, ...]
# who competes in a series, and at which sizes; (), the default, only where nothing else does
Field = Mapping[Series, Mapping[Variables, Sizes]]


class Joint(msgspec.Struct, frozen=True, kw_only=True):
    """A world of ``n`` ranks: its environment, and the sizes that it measures of each
    collective. The library's own choice has the empty environment."""

    n: int
    env: Variables
    sizes: dict[str, Sizes]


def join_settings(library: Library, field: Field) -> list[Joint]:
    """As few worlds as hold every setting of the field once, but for the default: each with the
    first it fits, largest series first. A setting fits where every collective of the world sees its
    own setting only."""
    joints: list[Joint] = []
    for series, sizes_by_setting in sorted(field.items(), key=lambda item: -len(item[1])):
        for setting, sizes in sizes_by_setting.items():
            if not setting:
                continue
            joint = Joint(n=series.n, env=setting, sizes={series.collective: sizes})
            for index, other in enumerate(joints):
                if both := _merge(library, other, joint):
                    joints[index] = both
                    break
            else:
                joints.append(joint)
    return take_turns(joints)


def take_turns(joints: Sequence[Joint]) -> list[Joint]:
    """Worlds of all numbers of ranks by turns, so that none is left out where time runs out."""
    counts: Counter[int] = Counter()
    turns: list[tuple[int, int, int, Joint]] = []
    for joint in joints:
        turns.append((counts[joint.n], joint.n, len(turns), joint))
        counts[joint.n] += 1
    return [joint for *_, joint in sorted(turns, key=lambda turn: turn[:3])]


def _merge(library: Library, one: Joint, other: Joint) -> Joint | None:
    """Both in one world; None where that changes what a collective sees."""
    if one.n != other.n or one.sizes.keys() & other.sizes.keys():
        return None
    mine, theirs = dict(one.env), dict(other.env)
    if any(theirs.get(name, value) != value for name, value in mine.items()):
        return None
    env = tuple({**mine, **theirs}.items())
    for joint in (one, other):
        for collective in joint.sizes:
            if library.reduce(collective, env) != library.reduce(collective, joint.env):
                return None
    return Joint(n=one.n, env=env, sizes={**one.sizes, **other.sizes})


def list_defaults(field: Field) -> list[Joint]:
    """A world for each number of ranks in which all choice is the library's, at every size at
    which anything competes."""
    sizes: dict[int, dict[str, set[int]]] = {}
    for series, sizes_by_setting in field.items():
        at = {size for each in sizes_by_setting.values() for size in each}
        if at:
            sizes.setdefault(series.n, {}).setdefault(series.collective, set()).update(at)
    return [
        Joint(n=n, env=(), sizes={name: tuple(sorted(at)) for name, at in by_collective.items()})
        for n, by_collective in sorted(sizes.items())
    ]


def make_suite(name: str, joints: Sequence[Joint], axes: Axes, suite: Suite) -> Suite:
    """The suite that measures these worlds; all else is as ``axes`` and ``suite`` have it."""
    swept = [
        msgspec.structs.replace(
            axes, collectives=tuple(names), sizes=sizes, ranks=(joint.n,), envs=(joint.env,)
        )
        for joint in joints
        for sizes, names in _group_collectives(joint).items()
    ]
    first, *others = swept
    return msgspec.structs.replace(suite, name=name, axes=first, includes=tuple(others))


def _group_collectives(joint: Joint) -> dict[Sizes, list[str]]:
    groups: dict[Sizes, list[str]] = {}
    for collective, sizes in joint.sizes.items():
        groups.setdefault(sizes, []).append(collective)
    return groups
