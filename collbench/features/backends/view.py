"""Checks of a backend, for every medium."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from collbench.core.errors import Exit
from collbench.core.text import format_count
from collbench.features.backends.findings import MEANINGS, CheckRow
from collbench.show.document import (
    Block,
    Column,
    Comment,
    Document,
    Line,
    Table,
    Tone,
    tone_text,
)

TONES: dict[str, Tone] = {"ok": "good", "note": "notice", "skipped": "quiet", "failed": "bad"}
COLUMNS = (Column("check", "left"), Column("result", "left"), Column("what was seen", "wrap"))


def judge_rows(rows: Sequence[CheckRow]) -> tuple[Exit, str]:
    """The exit code of a check, and its verdict in a sentence."""
    counts = Counter(row.state for row in rows)
    if failed := [row.check for row in rows if row.state == "failed"]:
        return Exit.BAD, f"{format_count(len(failed), 'check')} failed: {', '.join(failed)}"
    skipped = ", ".join(row.check for row in rows if row.state == "skipped")
    if counts["ok"] + counts["note"] < 2 or "meaning" in skipped:
        return Exit.NO_VERDICT, f"no verdict, as nothing could be checked of: {skipped or 'all'}"
    tail = f"; not checked: {skipped}" if skipped else ""
    noted = f", {counts['note']} of them with a note" if counts["note"] else ""
    return Exit.OK, f"{counts['ok'] + counts['note']} checks passed{noted}{tail}"


def make_document(name: str, origin: str, rows: Sequence[CheckRow], quick: bool) -> Document:
    """The checks of a backend, as a table with the verdict first."""
    code, verdict = judge_rows(rows)
    tone: Tone = {Exit.OK: "good", Exit.BAD: "bad"}.get(code, "notice")  # type: ignore[assignment]
    lines = [
        Line([row.check, tone_text(row.state, TONES[row.state]), row.text or "-"]) for row in rows
    ]
    head = f"backend {name} ({origin}){', quick' if quick else ''}"
    brief: list[Block] = [
        tone_text(f"{head}: {verdict}", tone, strong=True),
        Table(columns=COLUMNS, lines=lines, overflow="stack"),
    ]
    return Document(
        title=head,
        verdict=verdict,
        brief=brief,
        comment=Comment(brief),
        values={
            "backend": name,
            "origin": origin,
            "quick": quick,
            "verdict": verdict,
            "exit": int(code),
            "checks": [
                {**msgspec.to_builtins(row), "meaning": MEANINGS.get(row.check, "")} for row in rows
            ],
        },
    )
