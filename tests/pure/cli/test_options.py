"""What stands where a command takes a collective or a run."""

from __future__ import annotations

from pathlib import Path

import factories
import pytest

from collbench.cli.measure import choose_gravest
from collbench.cli.options import find_subject
from collbench.core.errors import Exit, UsageError


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
