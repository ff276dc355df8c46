"""What a run's transfers came to: latency, bandwidth and rate, over the launches of a case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from collbench.core.text import clear_unknown, format_settings
from collbench.features.p2p import KIND
from collbench.features.p2p.measurable import Transfer
from collbench.records import stats
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
from collbench.records.types import Record, RunFile
from collbench.suite.case import Case


class TransferResult(NamedTuple):
    """A case of a transfer and its rows, one a launch; ``time`` is None where none is fit. Times
    in ns a message."""

    transfer: Transfer
    case: Case
    rows: list[Row]
    time: CaseTime | None

    @property
    def median(self) -> float:
        """ns a message; nan where nothing was measured."""
        return self.time.median if self.time else math.nan

    @property
    def half_width(self) -> float:
        """The larger half of the median's interval, as a share of it."""
        if self.time is None:
            return math.nan
        return stats.half_width(self.time.median, self.time.lo, self.time.hi)

    @property
    def bandwidth(self) -> float:
        """GB/s of one message after the other, of a pair one way; of incast and outcast through
        rank 0."""
        share = 1 if self.transfer.kind_of.is_paired else self.transfer.flows
        return share * self.case.nbytes / self.median

    @property
    def total_bandwidth(self) -> float:
        """GB/s of all pairs, both ways."""
        return self.transfer.flows * self.case.nbytes / self.median

    @property
    def rate(self) -> float:
        """Messages a second of all ranks together."""
        return self.transfer.flows / self.median * 1e9

    @property
    def flags(self) -> list[str]:
        """Flags of any launch that is shown."""
        rows = select_fit(self.rows) or self.rows
        return list(dict.fromkeys(flag for row in rows for flag in row.flags))

    @property
    def problem(self) -> str:
        """That data were wrong in any launch, or why there is no time; or an empty string."""
        if self.wrong:
            return ": ".join(filter(None, ["wrong", self.wrong[0].note]))
        if self.time:
            return ""
        row = self.rows[0]
        return ": ".join(filter(None, [" ".join(row.unfit), row.record.note]))

    @property
    def wrong(self) -> list[Record]:
        """The records with wrong data, of any launch."""
        return list_wrong(self.rows)


def list_results(file: RunFile) -> list[TransferResult]:
    """The transfers of a run, by pattern and then as tables for programs are sorted."""
    find_subject = file.run.suite.subject_finder
    rows = make_rows([file], KIND)
    results = []
    for case, launches in group_rows(rows, lambda row: row.case).items():
        transfer = find_subject(case)
        if isinstance(transfer, Transfer) and not were_skipped(launches):
            time = case_time(launches) if select_fit(launches) else None
            results.append(TransferResult(transfer, case, launches, time))
    return sorted(results, key=_reading_key)


def _reading_key(result: TransferResult) -> tuple[Any, ...]:
    transfer, case = result.transfer, result.case
    order = case.reading_order
    names = transfer.window, transfer.pairs, case.label, case.n, case.env
    return order[0], *names, case.nbytes, order


def flatten_result(result: TransferResult) -> dict[str, Any]:
    """A result as plain values for programs; None for what is not known."""
    transfer, case, time = result.transfer, result.case, result.time
    records = [cycle.record for row in result.rows for cycle in row.cycles]
    wrong = [record.wrong for record in records if record.wrong is not None]
    record = result.wrong[0] if result.wrong else result.rows[0].record
    latency = result.median / 1e3 if transfer.kind_of.is_latency else math.nan
    return clear_unknown(
        {
            "pattern": transfer.pattern,
            "window": transfer.window or None,
            "pairs": transfer.pairs_text,
            "implementation": case.label,
            "ranks": case.n,
            "env": format_settings(case.env),
            "size": case.nbytes,
            "status": record.status,
            "time_us": result.median / 1e3,
            "lo_us": time.lo / 1e3 if time else math.nan,
            "hi_us": time.hi / 1e3 if time else math.nan,
            "latency_us": latency,
            "bandwidth_gbs": result.bandwidth,
            "total_gbs": result.total_bandwidth,
            "messages_per_s": result.rate,
            "samples": time.samples if time else 0,
            "launches": time.launches if time else 0,
            "checked": sum(record.checked for record in records),
            "wrong": sum(wrong) if wrong else None,
            "flags": " ".join(result.flags),
            "note": result.problem or record.note,
        }
    )


def select_varying(results: Sequence[TransferResult]) -> dict[str, bool]:
    """Whether results differ in what a table has an extra column for."""
    texts = {
        "pairs": [result.transfer.pairs_text for result in results if result.transfer.pairs],
        "ranks": [str(result.case.n) for result in results],
        "backend": [result.case.label for result in results],
        "setting": [format_settings(result.case.env) for result in results],
    }
    return {name: len(set(values)) > 1 for name, values in texts.items()}
