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
from collbench.show.views.series import View, make_table
from collbench.show.words import count_reasons, list_caveats

COLUMNS = make_columns(
    ("backend", "ranks", "form", "size", "time", "plain", "x plain", "between", "flags"),
    "lllrrrrrl",
)
LEGEND = (
    "time: of a call of objects, or of all small calls in one; plain: of the collective of tensors"
    " with the same bytes, or of the same calls one after the other. Both were measured in turns;"
    " between: the ratio by the ends of their 95 % intervals. size: bytes of an object, or of one"
    " small call."
)


def make_document(file: RunFile) -> Document:
    """The forms of a run."""
    results = list_results(file)
    body: list[Block] = [tone_text(text, "bad") for text in list_caveats(file.run, file.worlds)]
    if results:
        body += [_make_table("forms of calls", results), tone_text(LEGEND, "quiet")]
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


def make_section(view: View) -> Section | None:
    """The forms of a report's runs; None where there are none."""
    tables = [
        _make_table(view.prefix_run(number, "forms of calls"), results)
        for number, file in enumerate(view.files)
        if (results := list_results(file))
    ]
    if not tables:
        return None
    return Section(name="forms", title="Forms of calls", sentences=[LEGEND], tables=tables)


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
        tone_text(plain_line(result.problem), "bad") if result.problem else " ".join(result.flags),
    )
    return Line(cells)
