"""What stands where a command takes a collective or a run; what reporters are told."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from collbench.cli.measure import choose_gravest
from collbench.cli.options import find_subject, make_reporter
from collbench.core.errors import Exit, UsageError
from collbench.show import nccl


def test_a_subject_is_a_collective_or_a_run(home: Path) -> None:
    factories.saved(factories.make_file([], name="1-a-f575"), home)
    assert find_subject("allreduce", ()) == "all_reduce"
    found = find_subject("1-a-f575", ())
    assert isinstance(found, Path) and found.stem == "1-a-f575"


@pytest.mark.parametrize(
    ("what", "hint"), [("all_redce", "did you mean all_reduce?"), ("zzz", "one of reduce, scan")]
)
def test_what_is_neither_is_refused_with_what_there_is(what: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_subject(what, ("reduce", "scan"))
    assert raised.value.message == f"'{what}' is no collective and no run"
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("codes", "gravest"),
    [
        ([Exit.NO_VERDICT, Exit.BAD], Exit.BAD),
        ([Exit.OK, Exit.NO_VERDICT], Exit.NO_VERDICT),
        ([], Exit.OK),
        ([Exit.BAD, Exit.WRONG_DATA], Exit.WRONG_DATA),
    ],
)
def test_no_verdict_hides_nothing_that_is_bad(codes: list[Exit], gravest: Exit) -> None:
    assert choose_gravest(codes) == gravest


@pytest.mark.parametrize(
    ("name", "asked", "needed"),
    [
        ("nccl", nccl.DEFAULTS, False),
        ("nccl", nccl.Options(average=1), True),
        ("nccl", nccl.Options(cpu_time=True), True),
        ("nccl", nccl.Options(per_iter=True), True),
        ("imb", nccl.DEFAULTS, True),
        *((name, nccl.DEFAULTS, False) for name in ("table", "json", "csv", "md")),
    ],
)
def test_a_reporter_gets_each_ranks_samples_where_it_shows_something_of_them(
    tmp_path: Path, name: str, asked: nccl.Options, needed: bool
) -> None:
    assert make_reporter(name, options=asked).needs_samples == needed
    assert make_reporter(name, tmp_path / "out.json", asked).needs_samples
