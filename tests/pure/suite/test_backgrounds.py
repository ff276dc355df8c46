"""What ranks do in the background of a case, as it is written and what it makes of the case."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import case

from collbench.core.errors import UsageError
from collbench.run.backends import why_never
from collbench.suite import backgrounds, toml
from collbench.suite.sweep import expand, why_not

BESIDE = {"background": "all_to_all"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gem", "did you mean gemm"),
        ("gemm:4M", "can be done"),
        ("barrier", "can be done"),
        ("all_to_all:", "--background"),
        ("all_to_all:4Q", "4Q"),
        ("\x1b[31m", "can be done"),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        backgrounds.spelled(text)
    assert words in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize("text", ["", "none"])
def test_nothing_has_two_names(text: str) -> None:
    assert backgrounds.spelled(text) == ""


def test_a_collective_has_the_cases_size_or_its_own() -> None:
    one = case(1 << 20, in_place=True, algorithm="ring", **BESIDE)
    other = backgrounds.beside(one)
    assert other is not None
    assert (other.collective, other.nbytes, other.algorithm) == ("all_to_all", 1 << 20, "native")
    assert not other.in_place and not other.background
    sized = backgrounds.beside(case(background="broadcast:4M"))
    assert sized is not None
    assert (sized.nbytes, sized.root) == (4 << 20, 0)


@pytest.mark.parametrize("text", ["", *backgrounds.COMPUTING])
def test_computation_is_no_collective(text: str) -> None:
    assert backgrounds.beside(case(background=text)) is None


def test_cases_with_and_without_have_keys_of_their_own() -> None:
    assert case(background="gemm").key == f"{case().key}/beside gemm"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "graph", "background": "gemm"}, "CUDA graph"),
        ({"n": 1, **BESIDE}, "two ranks"),
        ({"groups": "mod:2", "of": 2, **BESIDE}, "no --split"),
    ],
)
def test_what_cannot_be_measured_says_why(fields: dict[str, object], words: str) -> None:
    assert words in why_not(case(**fields))


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
    told = why_never(case(backend=backend, background=background, algorithm=algorithm))
    assert words in told if words else not told


def test_a_suite_sweeps_them(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[axes]\ncollectives = "all_reduce"\nsizes = "1M"\nranks = 2\nin_place = false\n'
        'backends = "gloo"\nbackgrounds = ["none", "gemm", "all_to_all:4M"]\n'
    )
    axes = toml.load(str(path)).axes
    assert axes.backgrounds == ("", "gemm", "all_to_all:4M")
    cases, _ = expand(axes)
    assert [one.background for one in cases] == [*axes.backgrounds]
