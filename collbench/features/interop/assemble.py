"""Runs made of what logs of other tools say."""

from __future__ import annotations

from typing import Any

from collbench.core.text import format_count
from collbench.features.interop.importers import Reading, device_name
from collbench.machine import variables
from collbench.records import store
from collbench.records.types import End, Record, Run, World
from collbench.suite.sweep import Axes, Suite


def assemble_runs(
    reading: Reading, tag: str = "", index: int = 0
) -> list[Run | World | Record | End]:
    """The lines of a run's file. Without an End where the log was cut short. Runs made in one
    millisecond sort by ``index``."""
    cases = [record.case for record in reading.records]
    values: dict[str, Any] = {
        name: tuple(dict.fromkeys(getattr(case, field) for case in cases))
        for name, field in (
            ("collectives", "collective"),
            ("ranks", "n"),
            ("backends", "backend"),
            ("algorithms", "algorithm"),
            ("dtypes", "dtype"),
            ("in_place", "in_place"),
            ("modes", "mode"),
            ("envs", "env"),
            ("backgrounds", "background"),
        )
    }
    axes = Axes(
        sizes=tuple(sorted({case.nbytes for case in cases})),
        cycles=max(case.cycle for case in cases) + 1,
        ops=tuple(dict.fromkeys(case.op for case in cases if case.op != "none")),
        roots=tuple(dict.fromkeys(case.root for case in cases if case.root >= 0)),
        splits=tuple(dict.fromkeys(case.splits for case in cases if case.splits)),
        **values,
    )
    run = Run(
        id=store.new_id(f"imported-{index:02x}"),
        started=reading.started or next((r.started for r in reading.records if r.started), ""),
        command=variables.mask_words(reading.command),
        suite=Suite(
            name="imported", axes=axes, policy=reading.policy, description=describe_average(reading)
        ),
        policy=reading.policy,
        environment=_make_environment(reading),
        tag=variables.mask_text(tag),
        imported=reading.tool,
    )
    wrong = reading.failures or any(record.status == "wrong" for record in reading.records)
    note = (
        f"{format_count(reading.failures, 'check')} of the data failed" if reading.failures else ""
    )
    end = [End(exit=7 if wrong else 0, ended=reading.ended, note=note)] if reading.closed else []
    return [run, *reading.worlds, *reading.records, *end]


def describe_average(reading: Reading) -> str:
    """The bus bandwidths that the log's tables end with, in words; "" where there is none."""
    heading = "Average bus bandwidth in the log: "
    averages = list(dict.fromkeys(reading.averages))
    return (
        f"{heading}{', '.join(averages[:9])}{', …' * bool(averages[9:])} GB/s" if averages else ""
    )


def _make_environment(reading: Reading) -> dict[str, Any]:
    """Name and GPUs of the first host, and those variables that are recorded of own runs too."""
    ranks = reading.worlds[0].ranks if reading.worlds else []
    host = (ranks[0].host if ranks else "") or reading.request.host
    names = [device_name(rank) for rank in ranks if rank.host == ranks[0].host]
    return {
        **({"host": host} if host else {}),
        **({"gpus": {"devices": [{"name": name} for name in names]}} if any(names) else {}),
        "variables": variables.select_variables(reading.settings),
    }
