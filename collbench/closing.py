"""What a comparison comes to: its exit code, and a sentence that says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from collbench.errors import Exit
from collbench.formats import counted, size
from collbench.ruling import UNTIMED, Verdict

if TYPE_CHECKING:
    from collbench.compare import Judged

NAMED = 3  # rows that a sentence names
SHORT: dict[Verdict, str] = {
    "IMPROVED": "faster", "SUSPECT": "suspect", "INCONCLUSIVE": "without a verdict", "INVALID": "invalid",
}  # fmt: skip


class Outcome(NamedTuple):
    """Rows as judged; those that head computed wrongly, those that lack a verdict which was due; why nothing compares,
    if so; and whether a row's implementation names it, or is by what the sides differ."""

    rows: Sequence[Judged]
    wrong: Sequence[Judged]
    due: Sequence[Judged]
    apart: str
    labelled: bool

    @property
    def of(self) -> str:
        return f"of {counted(len(self.rows), 'row')}"


def close(found: Outcome) -> tuple[Exit, str]:
    """The exit code, and why in one sentence."""
    if found.wrong:
        return Exit.WRONG_DATA, f"head computed wrong results in {_some(found, found.wrong)}"
    if bad := _bad(found, [row for row in found.rows if row.gates]):
        return Exit.BAD, bad
    if found.apart:
        return Exit.NO_VERDICT, f"no verdict: {found.apart} (--across-machines compares all the same)"
    if all(row.verdict in UNTIMED for row in found.rows):
        return Exit.NO_VERDICT, "no verdict: no row has times on both sides that compare"
    if found.due:
        cause = f" ({found.due[0].why})" if found.due[0].why else ""
        return Exit.NO_VERDICT, f"no verdict on {_some(found, found.due)}{cause}"
    return Exit.OK, _fine(found)


def _bad(found: Outcome, rows: Sequence[Judged]) -> str:
    """What of these rows is slower or gone, in words."""
    slower = sorted((row for row in rows if row.verdict == "REGRESSED"), key=lambda row: -(row.delta or 0))
    gone = [row for row in rows if row.verdict == "GONE"]
    words = []
    if slower:
        least = {f"{100 * row.tau:g}%" for row in slower}
        much = f"{least.pop()} or more" if len(least) == 1 else "what matters there"
        words.append(_some(found, slower, f"slower than base by {much}"))
    if gone:
        words.append(f"{_some(found, gone, 'gone')} ({gone[0].why})")
    return "; ".join(words)


def _fine(found: Outcome) -> str:
    number = Counter(row.verdict for row in found.rows)
    if number["INCONCLUSIVE"] == len(found.rows):
        return f"no verdict on any {found.of}: {found.rows[0].why or 'intervals reach over zero and what matters'}"
    bad = _bad(found, found.rows)
    parts = [f"{bad}; that may not fail this comparison" if bad else f"none {found.of} is found slower by what matters"]
    return "; ".join(parts + [f"{number[verdict]} {word}" for verdict, word in SHORT.items() if number[verdict]])


def _some(found: Outcome, rows: Sequence[Judged], what: str = "") -> str:
    """How many rows, what they are, and the first of them by name, slower ones with their change."""
    names = []
    for row in rows[:NAMED]:
        parts = [row.case.collective, row.case.label if found.labelled else ""]
        parts.append(size(row.case.size) if row.case.size else "")
        parts.append("in place" if row.case.in_place else "")
        parts.append(f"{row.delta:+.1%}" if row.verdict == "REGRESSED" and row.delta is not None else "")
        names.append(" ".join(filter(None, parts)))
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    is_what = f" {'is' if len(rows) == 1 else 'are'} {what}" if what else ""
    return f"{len(rows)} {found.of}{is_what}: {', '.join(names)}{more}"


def false_alarms(rows: Sequence[Judged]) -> str:
    """Whether an experiment on two alike sides found more changes than it may."""
    found = Counter(row.verdict for row in rows)
    confirmed = found["REGRESSED"] + found["IMPROVED"]
    kept = "within" if found["SUSPECT"] * 50 <= max(50, len(rows)) and not confirmed else "beyond"
    return (
        f"A/A: both sides are the same, so that every change is false: {found['SUSPECT']} suspected and {confirmed} "
        f"confirmed in {counted(len(rows), 'row')}, {kept} the limit of one suspicion in 50 rows and none confirmed; "
        f"{sum(row.gates for row in rows)} of them could have failed"
    )
