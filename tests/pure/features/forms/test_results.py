"""What runs of forms come to, from made-up times."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_file, world
from msgspec.structs import replace

from collbench.features.forms.measurable import FORMS, make_requests
from collbench.features.forms.results import flatten_result, list_results
from collbench.features.forms.rows import PLAIN
from collbench.features.forms.view import make_document, make_section
from collbench.records.types import Record, RunFile
from collbench.show import terminal
from collbench.show.views.series import make_view
from collbench.suite.sweep import Axes, Suite


def measured(times: tuple[int, int] = (30_000, 10_000), **fields: Any) -> RunFile:
    """A run of 8 x all_reduce of 16 B, which took so many ns in one and apart."""
    (request,) = make_requests(["all_reduce"], [16], [8])
    subject = FORMS.resolve(request, 2, True, ["gloo"])
    axes = Axes(collectives=(), sizes=(), ranks=(2,), backends=("gloo",))
    suite = Suite(name="forms", axes=axes, subjects=(subject,))
    cases, _ = suite.expand()
    records = [
        Record(
            case=case,
            **{
                "status": "ok",
                "times_ns": [round(times[case.index] * wobble) for wobble in (0.9, 1, 1.1)] * 9,
                **fields,
            },
            world=0,
        )
        for case in cases
    ]
    return make_file(records, [world(n=2)], suite=suite)


def test_the_form_is_held_against_the_plain_one() -> None:
    (result,) = list_results(measured())
    values = flatten_result(result)
    assert (values["time_us"], values["plain_us"]) == pytest.approx((30, 10))
    assert values["ratio"] == pytest.approx(3)
    assert values["ratio_lo"] < 3 < values["ratio_hi"]


def test_wrong_data_has_no_ratio_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = measured(status="wrong", times_ns=[], note="2 wrong elements")
    (result,) = list_results(file)
    assert flatten_result(result)["ratio"] is None
    assert "wrong: 2 wrong elements" in terminal.render_text(make_document(file))


@pytest.mark.parametrize("plain", [False, True])
def test_wrong_data_of_a_later_launch_is_said_beside_the_ratio(plain: bool) -> None:
    file = measured(checked=5)
    change = {"status": "wrong", "times_ns": [], "note": "2 wrong elements", "wrong": 2}
    more = [
        replace(record, world=1, **(change if (record.case.collective == PLAIN) == plain else {}))
        for record in file.records
    ]
    worlds = [world(n=2), world(n=2, index=1)]
    (result,) = list_results(make_file([*file.records, *more], worlds, suite=file.run.suite))
    values = flatten_result(result)
    assert values["ratio"] == pytest.approx(3) and values["checked"] == 20
    assert values["note"] == f"{'apart' if plain else 'in one'}: wrong: 2 wrong elements"


def test_a_plain_form_without_a_time_leaves_no_ratio() -> None:
    file = measured()
    records = [record for record in file.records if record.case.collective != PLAIN]
    (result,) = list_results(make_file(records, file.worlds, suite=file.run.suite))
    values = flatten_result(result)
    assert values["time_us"] == pytest.approx(30) and values["ratio"] is None


def test_the_side_that_has_no_time_is_named_and_rows_without_a_ratio_counted() -> None:
    file = measured()
    plain = [
        replace(record, invalid={"late start": 50}) if record.case.collective == PLAIN else record
        for record in file.records
    ]
    file = make_file(plain, file.worlds, suite=file.run.suite)
    (result,) = list_results(file)
    assert result.problem == "apart: invalid!"
    text = terminal.render_text(make_document(file))
    assert "1 of 1 row without a ratio" in text
    assert "flagged: invalid (1): more than 5 %" in text


def test_a_flag_of_one_side_is_named_with_it() -> None:
    file = measured()
    records = [
        replace(record, times_ns=record.times_ns[:3]) if record.case.collective == PLAIN else record
        for record in file.records
    ]
    (result,) = list_results(make_file(records, file.worlds, suite=file.run.suite))
    assert "apart: n<6" in result.flags_text


def test_a_report_has_a_table_and_one_without_forms_none() -> None:
    section = make_section(make_view([measured()]))
    assert section and "8 x all_reduce" in section.tables[0].lines[0].cells
    assert make_section(make_view([make_file([])])) is None


def test_nothing_measured_is_said() -> None:
    assert "no form of a call was measured" in terminal.render_text(make_document(make_file([])))
