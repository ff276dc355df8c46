"""Forms of calls beside plain ones, for every medium."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collbench.core.text import (
    format_count,
    format_duration,
    format_settings,
    format_size,
    plain_line,
)
from collbench.features.forms.results import FormResult, flatten_result, list_results
from collbench.features.forms.rows import OTHER
from collbench.records.types import RunFile
from collbench.show.document import (
    Block,
    Comment,
    Document,
    Line,
    Section,
    Table,
    make_columns,
    tone_text,
)
from collbench.show.flags import explain_row_flags
from collbench.show.views.series import View, make_table
from collbench.show.words import count_reasons, list_caveats, warn_single_launch

COLUMNS = make_columns(
    ("backend", "ranks", "form", "size", "time", "baseline", "ratio", "95 % of ratio", "flags"),
    "lllrrrrrc",
)
OF_OBJECTS = (
    "time: of a call of objects; baseline: of the collective that moves the same bytes as a tensor."
    " size: bytes of an object."
)
OF_COALESCED = (
    "time: of all calls in one; baseline: of the same calls one after the other. size: bytes of one"
    " call."
)
OF_RATIO = (
    "ratio: time over baseline, which were measured in turns; 95 % of ratio: from the lower end of"
    " time over the upper end of baseline to the opposite, where both 95 % intervals are known."
)


def make_document(file: RunFile) -> Document:
    """The forms of a run."""
    results = list_results(file)
    body: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    if results:
        body += [_make_table("forms of calls", results), tone_text(_make_legend(results), "quiet")]
        body += list_doubts(results, file)
    skipped = [
        (record, None)
        for record in file.records
        if record.status == "skipped" and record.case.collective == OTHER
    ]
    body += [f"{number} skipped: {reason}" for reason, number in count_reasons((), skipped)]
    body += [] if results or skipped else ["no form of a call was measured"]
    rows = [flatten_result(result) for result in results]
    values = {"run": file.run.id, "injected": file.run.policy.inject, "rows": rows}
    title = f"Forms of calls, {file.run.id}"
    return Document(title=title, brief=body, comment=Comment(body), rows=rows, values=values)


def list_doubts(results: Sequence[FormResult], file: RunFile) -> list[str]:
    """How many rows have no ratio, and a line for each flag that occurred."""
    missing = sum(not math.isfinite(result.ratio[0]) for result in results)
    total = format_count(len(results), "row")
    lines = [f"{missing} of {total} without a ratio: a side has no time, as `flags` says"]
    rows = [row for result in results for row in result.rows]
    return lines * bool(missing) + explain_row_flags(rows, file)


def _make_legend(results: Sequence[FormResult]) -> str:
    """What the columns of these results mean."""
    kinds = {bool(result.form.together) for result in results}
    times = [time for result in results for time in (result.time, result.plain) if time]
    alone = warn_single_launch(time.launches for time in times)
    sentences = [OF_OBJECTS] * (False in kinds) + [OF_COALESCED] * (True in kinds) + [OF_RATIO]
    return " ".join(filter(None, [*sentences, alone]))


def make_section(view: View) -> Section | None:
    """The forms of a report's runs; None where there are none."""
    tables: list[Table] = []
    doubts: list[str] = []
    every: list[FormResult] = []
    for number, file in enumerate(view.files):
        if results := list_results(file):
            tables.append(_make_table(view.prefix_run(number, "forms of calls"), results))
            doubts += list_doubts(results, file)
            every += results
    if not tables:
        return None
    sentences = [_make_legend(every), *dict.fromkeys(doubts)]
    return Section(name="forms", title="Forms of calls", sentences=sentences, tables=tables)


def _make_table(title: str, results: Sequence[FormResult]) -> Table:
    return make_table("forms", title, COLUMNS, results, _make_line, what="forms", common=2)


def _make_line(result: FormResult) -> Line:
    form, case = result.form, result.case
    ratio, low, high = result.ratio
    cells = (
        plain_line(" ".join([case.label, format_settings(case.env)])),
        format_count(case.n, "rank"),
        form.label,
        format_size(form.nbytes),
        format_duration(result.time.median if result.time else None),
        format_duration(result.plain.median if result.plain else None),
        f"{ratio:.2f}" if math.isfinite(ratio) else "-",
        f"{low:.2f} to {high:.2f}" if math.isfinite(low) and math.isfinite(high) else "-",
        tone_text(plain_line(result.problem), "bad") if result.problem else result.flags_text,
    )
    return Line(cells)
