"""What a run's forms came to: the time of each, and what the form costs over the plain one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from msgspec.structs import replace

from collbench.core.text import clear_unknown, format_settings
from collbench.features.forms import KIND
from collbench.features.forms.measurable import Form
from collbench.features.forms.rows import OTHER, PLAIN
from collbench.records.rows import (
    CaseTime,
    Row,
    case_time,
    group_rows,
    list_wrong,
    make_rows,
    select_fit,
    were_skipped,
)
from collbench.records.types import RunFile
from collbench.suite.case import Case


class FormResult(NamedTuple):
    """A form, its case (the leader's), the rows of it and of the plain one, and the times of both,
    None where no row is fit."""

    form: Form
    case: Case
    rows: list[Row]
    time: CaseTime | None
    plain: CaseTime | None

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The form's median over the plain one's, and bounds of it by the intervals of both; nan
        where one is not known."""
        if self.time is None or self.plain is None:
            return math.nan, math.nan, math.nan
        ours, plain = self.time, self.plain
        ends = ours.lo, ours.hi, plain.lo, plain.hi
        ratio = ours.median / plain.median
        if not all(0 < end < math.inf for end in ends):
            return ratio, math.nan, math.nan
        return ratio, ours.lo / plain.hi, ours.hi / plain.lo

    @property
    def flags(self) -> list[str]:
        """Flags of any row that is shown."""
        return list(dict.fromkeys(flag for row in self.rows for flag in row.flags))

    @property
    def flags_text(self) -> str:
        """The flags of both sides, then those of one with its name."""
        flags_by_side: dict[str, list[str]] = {"": []}
        for flag in self.flags:
            sides = {self._name_side(row) for row in self.rows if flag in row.flags}
            flags_by_side.setdefault("".join(sides) if len(sides) == 1 else "", []).append(flag)
        texts = {side: " ".join(flags) for side, flags in flags_by_side.items() if flags}
        return "; ".join(f"{side}: {text}" if side else text for side, text in texts.items())

    def _name_side(self, row: Row) -> str:
        return self.form.sides[row.case.collective == PLAIN]

    @property
    def problem(self) -> str:
        """That data were wrong in any launch, or why a time is missing, and of which side; or an
        empty string."""
        for row in self.rows:
            for record in list_wrong([row]):
                text = ": ".join(filter(None, ["wrong", record.note]))
                return f"{self._name_side(row)}: {text}"
        if self.time and self.plain:
            return ""
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if row.unfit:
                text = ": ".join(filter(None, [" ".join(row.unfit), row.record.note]))
                reasons.setdefault(text, []).append(self._name_side(row))
        return "; ".join(
            f"{' and '.join(dict.fromkeys(sides))}: {text}" for text, sides in reasons.items()
        )


def list_results(file: RunFile) -> list[FormResult]:
    """The forms of a run, in the order of tables for programs."""
    find_subject = file.run.suite.subject_finder
    rows = make_rows([file], KIND)
    results = []
    for case, both in group_rows(rows, lambda row: replace(row.case, collective=OTHER)).items():
        form = find_subject(case)
        if not isinstance(form, Form) or were_skipped(both):
            continue
        times = []
        for name in (OTHER, PLAIN):
            fit = select_fit(row for row in both if row.case.collective == name)
            times.append(case_time(fit) if fit else None)
        results.append(FormResult(form, case, both, *times))
    return sorted(results, key=_reading_key)


def _reading_key(result: FormResult) -> tuple[Any, ...]:
    form, case = result.form, result.case
    return form.together, form.collective, case.label, case.n, case.env, form.nbytes


def flatten_result(result: FormResult) -> dict[str, Any]:
    """A result as plain values for programs; None for what is not known."""
    form, case = result.form, result.case
    ratio, low, high = result.ratio
    return clear_unknown(
        {
            "form": form.label,
            "collective": form.collective,
            "together": form.together or None,
            "implementation": case.label,
            "ranks": case.n,
            "env": format_settings(case.env),
            "size": form.nbytes,
            "time_us": result.time.median / 1e3 if result.time else math.nan,
            "plain_us": result.plain.median / 1e3 if result.plain else math.nan,
            "ratio": ratio,
            "ratio_lo": low,
            "ratio_hi": high,
            "samples": result.time.samples if result.time else 0,
            "checked": sum(cycle.record.checked for row in result.rows for cycle in row.cycles),
            "flags": " ".join(result.flags),
            "note": result.problem,
        }
    )
