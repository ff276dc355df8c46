"""What a night says of orders of additions that changed from launch to launch."""

from __future__ import annotations

import msgspec
from factories import night, nightly

from collbench.features.health.checks import table as checks
from collbench.features.health.findings import Finding
from collbench.records.choice import add_names
from collbench.records.types import Record

ROWS = [case for case in nightly() if case.collective in ("all_reduce", "all_gather")]


def ordered(*orders: str, bits: tuple[list[str], ...] = ()) -> Finding | None:
    """What is found of launches whose sums had these orders, each a name or several."""

    def change(made: Record) -> Record:
        if not made.case.row.reduces:
            return made
        chose = add_names(made.chose, orders[made.world].split())
        digests = bits[made.world] if bits else []
        return msgspec.structs.replace(made, chose=chose, bits=digests)

    verdict = checks.judge_night([night(change=change, rows=ROWS)])
    return next((f for f in verdict.findings if f.check == "repeatability"), None)


def test_an_order_that_changed_is_told_with_the_launch_it_changed_at() -> None:
    finding = ordered("doubling swing", "ring", "ring", bits=(["aa"], ["bb"], ["bb"]))
    assert finding and finding.severity == "hint"
    since = "adds as ring since launch 2 (2026-01-01), before as doubling +1"
    assert finding.what.startswith("adds the same floats up to other bits launch by launch")
    assert finding.what.endswith(f"; {since}")
    first = finding.evidence[0]
    assert (first.what, first.value, first.expected) == ("adds as", "ring", "doubling +1")


def test_an_order_that_changed_is_told_without_digests() -> None:
    finding = ordered("ring", "ring", "doubling")
    assert finding and finding.what.startswith("adds in another order launch by launch, in ")
    assert {item.what for item in finding.evidence} == {"adds as"}


def test_an_order_that_changed_again_is_told_launch_by_launch() -> None:
    finding = ordered("ring", "doubling", "ring")
    assert finding
    assert finding.what.endswith("; adds as ring in launches 1, 3, as doubling in launch 2")
    assert [item.value for item in finding.evidence[:2]] == ["doubling", "ring"]


def test_orders_that_are_alike_or_unknown_are_no_finding() -> None:
    assert ordered("ring", "ring", "ring") is None
    assert ordered("ring", "", "ring") is None


def test_what_sums_show_is_not_what_the_library_chose() -> None:
    finding = ordered("ring", "doubling", "doubling")
    assert finding and "the library chose" not in finding.what
