"""The warning of settings that give wrong results for operations that do not commute."""

from __future__ import annotations

import pytest
from advised import advised, flatten, row

from collbench.features.advise.formats.openmpi import FORMATS
from collbench.features.advise.libraries.openmpi import FUNCTIONS, LIBRARY, PREFIX
from collbench.features.advise.libraries.unordered import describe_unordered, warn_unordered
from collbench.features.advise.types import Advice


def one(collective: str, number: int) -> Advice:
    env = ((f"{PREFIX}{FUNCTIONS[collective].word}_algorithm", str(number)),)
    return row(LIBRARY, collective, 4, 8, 64, env)


@pytest.mark.parametrize(
    ("collective", "wrong"),
    [("all_reduce", (2, 4, 5)), ("reduce", (2, 3, 4, 5)), ("broadcast", ())],
)
def test_it_is_in_notes_and_file_where_such_a_setting_is_advised(collective, wrong) -> None:
    for number in range(1, 7):
        made = advised(LIBRARY, [one(collective, number)])
        warning = describe_unordered(made)
        assert bool(warning) == (number in wrong)
        noted = warn_unordered(warn_unordered(made))
        assert noted.notes == ((warning,) if warning else ())
        for text in (FORMATS[0].write(made), FORMATS[0].write(noted)):
            assert flatten(text).count("WRONG RESULTS") == (number in wrong)


def test_it_names_the_settings_and_what_else_they_change() -> None:
    rows = [one("all_reduce", 4), one("all_reduce", 3), one("reduce", 3)]
    assert (
        "commute = 0): ring of all_reduce, pipeline of reduce, and of reduce_scatter, which calls"
        " it. Not for jobs"
    ) in describe_unordered(advised(LIBRARY, rows))
