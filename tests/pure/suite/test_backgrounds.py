"""What ranks do in the background of a case, as it is written and what it makes of the case."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import case

from collbench.core.errors import UsageError
from collbench.run import refusal
from collbench.suite import backgrounds, toml
from collbench.suite.sweep import expand_axes, refuse_case

BESIDE = {"background": "all_to_all"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gem", "did you mean gemm"),
        ("gemm:4M", "cannot be done"),
        ("barrier", "cannot be done"),
        ("all_to_all:", "--background"),
        ("all_to_all:4Q", "4Q"),
        ("all_to_all@", "unknown grouping"),
        ("all_to_all@mid:2", "unknown grouping"),
        ("all_to_all@mod", "unknown grouping"),
        ("all_to_all@pairs", "leaves ranks out"),
        ("gemm@mod:2", "cannot be done"),
        ("\x1b[31m", "cannot be done"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        backgrounds.normalise_background(text)
    assert words in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("text", ["", "none"])
def test_nothing_has_two_names(text: str) -> None:
    assert backgrounds.normalise_background(text) == ""


def test_a_collective_has_the_cases_size_or_its_own() -> None:
    one = case(1 << 20, in_place=True, algorithm="ring", **BESIDE)
    other = backgrounds.background_case(one)
    assert other is not None
    assert (other.collective, other.nbytes, other.algorithm) == ("all_to_all", 1 << 20, "native")
    assert not other.in_place and not other.background
    sized = backgrounds.background_case(case(background="broadcast:4M"))
    assert sized is not None
    assert (sized.nbytes, sized.root) == (4 << 20, 0)


@pytest.mark.parametrize(
    ("text", "spelled", "n", "family"),
    [
        ("all_to_all", "all_to_all", 4, ((0, 1, 2, 3),)),
        ("all_to_all@%2", "all_to_all@mod:2", 2, ((0, 2), (1, 3))),
        ("all_to_all:1M@div:2", "all_to_all:1M@div:2", 2, ((0, 1), (2, 3))),
        ("all_to_all:1M@/2#1", "all_to_all:1M@div:2#1", 2, ((2, 3),)),
    ],
)
def test_a_collective_is_in_groups_of_its_own(
    text: str, spelled: str, n: int, family: tuple[tuple[int, ...], ...]
) -> None:
    assert backgrounds.normalise_background(text) == spelled
    one = case(background=spelled, n=2, groups="div:2", of=2)
    other = backgrounds.background_case(one)
    assert other is not None
    assert (other.n, other.groups, other.of, other.group) == (n, "", 1, 0)
    assert backgrounds.parse_background(spelled).family(one.world) == family


@pytest.mark.parametrize(
    ("background", "group", "ranks"),
    [
        ("all_to_all@div:2", 1, 2),  # the same ranks
        ("all_to_all@mod:2", 1, 2),  # a grid
        ("all_to_all@div:2#1", 0, 0),  # others
        ("all_to_all@div:2#1", 1, 2),
        ("all_to_all@mod:2#0", 1, 1),
        ("", 0, 0),
    ],
)
def test_ranks_that_do_both_are_counted(background: str, group: int, ranks: int) -> None:
    one = case(n=2, groups="div:2", of=2, group=group, background=background)
    assert backgrounds.count_ranks(one) == ranks


@pytest.mark.parametrize("text", ["", *backgrounds.COMPUTING])
def test_computation_is_no_collective(text: str) -> None:
    assert backgrounds.background_case(case(background=text)) is None


def test_cases_with_and_without_have_keys_of_their_own() -> None:
    assert case(background="gemm").key == f"{case().key}/beside gemm"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "graph", "background": "gemm"}, "CUDA graph"),
        ({"n": 1, **BESIDE}, "two ranks"),
        ({"n": 2, "groups": "pairs 0/4", "of": 2, **BESIDE}, "no pairs"),
        ({"background": "all_to_all@div:1"}, "two ranks"),
        ({"background": "all_to_all@div:3"}, "not equally large"),
        ({"background": "all_to_all@div:2#2"}, "div:2 has no group #2: it divides 4 ranks"),
    ],
)
def test_what_cannot_be_measured_says_why(fields: dict[str, object], words: str) -> None:
    assert words in refuse_case(case(**fields))


@pytest.mark.parametrize(
    ("backend", "background", "words"),
    [
        ("symm", "gemm", "does nothing in the background"),
        ("model", "sleep", "does nothing in the background"),
        ("shm", "all_to_all", "no collective in the background"),
        ("mpi", "all_to_all", "no collective in the background"),
        ("mpi", "copy", ""),
        ("gloo", "all_to_all", ""),
    ],
)
def test_backends_that_have_none_say_so(backend: str, background: str, words: str) -> None:
    algorithm = "ring" if backend in ("symm", "shm") else "native"
    told = refusal.refuse_anywhere(
        case(backend=backend, background=background, algorithm=algorithm)
    )
    assert words in told if words else not told


def test_a_suite_sweeps_them(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[axes]\ncollectives = "all_reduce"\nsizes = "1M"\nranks = 2\nin_place = false\n'
        'backends = "gloo"\nbackgrounds = ["none", "gemm", "all_to_all:4M"]\n'
    )
    axes = toml.load_suite(str(path)).axes
    assert axes.backgrounds == ("", "gemm", "all_to_all:4M")
    cases, _ = expand_axes(axes)
    assert [one.background for one in cases] == [*axes.backgrounds]
