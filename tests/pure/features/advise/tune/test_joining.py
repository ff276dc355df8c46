"""Settings of several collectives in one world."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.features.advise.libraries.openmpi import LIBRARY as OPENMPI
from collbench.features.advise.libraries.other import LIBRARY as OTHER
from collbench.features.advise.tune import joining
from collbench.features.advise.types import Series, Variables
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Suite

SIZES = (8, 64)
REDUCE, BROADCAST = Series("all_reduce", 2, 1), Series("broadcast", 2, 1)


def tuned(word: str, number: int) -> Variables:
    return (
        (f"OMPI_MCA_coll_tuned_{word}_algorithm", str(number)),
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", "1"),
    )


def field(*series: tuple[Series, Sequence[Variables]]) -> joining.Field:
    return {each: dict.fromkeys(settings, SIZES) for each, settings in series}


def test_settings_of_two_collectives_share_worlds() -> None:
    reduces = [tuned("allreduce", number) for number in (1, 3, 4)]
    broadcasts = [tuned("bcast", number) for number in (1, 6)]
    joints = joining.join_settings(OPENMPI, field((REDUCE, reduces), (BROADCAST, broadcasts)))
    assert len(joints) == 3
    for joint in joints:
        for name in joint.sizes:
            seen = OPENMPI.reduce(name, joint.env)
            assert seen in [OPENMPI.reduce(name, env) for env in (*reduces, *broadcasts)]
    met = [(name, OPENMPI.reduce(name, joint.env)) for joint in joints for name in joint.sizes]
    assert len(met) == len(set(met)) == 5


def test_a_setting_that_another_collective_sees_has_a_world_of_its_own() -> None:
    # non-overlapping all_reduce calls broadcast as that is set
    calling, called = [tuned("allreduce", 2)], [tuned("bcast", 1)]
    joints = joining.join_settings(OPENMPI, field((REDUCE, calling), (BROADCAST, called)))
    assert len(joints) == 2


def test_variables_of_unknown_libraries_are_joined_only_where_they_are_the_same() -> None:
    settings: list[Variables] = [(("X", "1"),), (("X", "2"),)]
    joints = joining.join_settings(OTHER, field((REDUCE, settings), (BROADCAST, settings)))
    assert [joint.env for joint in joints] == settings
    assert all(set(joint.sizes) == {"all_reduce", "broadcast"} for joint in joints)
    apart = joining.join_settings(OTHER, field((REDUCE, settings[:1]), (BROADCAST, settings[1:])))
    assert len(apart) == 2


def test_numbers_of_ranks_share_no_world() -> None:
    four = REDUCE._replace(n=4)
    settings = [tuned("allreduce", 3)]
    joints = joining.join_settings(OPENMPI, field((four, settings), (REDUCE, settings)))
    assert [joint.n for joint in joints] == [2, 4]


def test_the_default_is_measured_where_anything_competes() -> None:
    sizes = {REDUCE: {tuned("allreduce", 3): (8,), tuned("allreduce", 4): (64, 512)}}
    (default,) = joining.list_defaults(sizes)
    assert (default.n, default.env, default.sizes) == (2, (), {"all_reduce": (8, 64, 512)})
    assert joining.list_defaults({REDUCE: {}}) == []


def test_the_suite_has_each_case_once() -> None:
    reduces, broadcasts = [tuned("allreduce", 3)], [tuned("bcast", 1)]
    competing = field((REDUCE, reduces), (BROADCAST, broadcasts))
    joints = [
        *joining.list_defaults(competing),
        *joining.join_settings(OPENMPI, competing),
    ]
    axes = Axes(
        collectives=("all_reduce", "broadcast"),
        sizes=SIZES,
        ranks=(2,),
        backends=("mpi",),
        in_place=(False,),
    )
    suite = joining.make_suite("tune", joints, axes, Suite(name="x", axes=axes, policy=Policy()))
    cases, skips = suite.expand()
    assert not skips
    assert len(cases) == len({(case.collective, case.nbytes, case.env) for case in cases}) == 8
    assert {len(case.env) for case in cases} == {0, 3}  # the switch, and one for each collective


def test_numbers_of_ranks_take_turns() -> None:
    joints = [joining.Joint(n=n, env=(("X", str(at)),), sizes={}) for n in (4, 2) for at in (1, 2)]
    turns = [(joint.n, joint.env[0][1]) for joint in joining.take_turns(joints)]
    assert turns == [(2, "1"), (4, "1"), (2, "2"), (4, "2")]
