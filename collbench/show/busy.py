"""What other processes on the machines mean for a run: one sentence, or none where they did
little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from collbench.core.text import format_count, plain_line
from collbench.machine.load import Load
from collbench.records.types import End, Run, RunFile

REMEDY = "stop them or use an idle machine"


def describe_now(load: Mapping[str, Load]) -> str:
    """A sentence on what to expect of numbers under the load of this moment."""
    busy = _find_busiest(load)
    if busy is None:
        return ""
    return f"other processes use {_describe_used(load, busy)}: expect noisy results; {REMEDY}"


class Loaded(Protocol):
    """What others did while a case was measured, and what time that took."""

    @property
    def load(self) -> Mapping[str, Load]: ...
    @property
    def seconds(self) -> float: ...


def describe_run_load(run: Run, records: Iterable[Loaded], end: End | None) -> str:
    """About the busiest host of a run; how busy while measuring decides, where that is known."""
    moments = {
        "while measuring": mean_load(records),
        "before": run.load,
        "after": end.load if end else {},
    }
    readings = [(when, load) for when, load in moments.items() if load]
    busy = _find_busiest(readings[0][1]) if readings else None
    if busy is None:
        return ""
    (when, load), *rest = readings
    later = [f"{_format_amount(other[busy])} {at}" for at, other in rest if busy in other]
    remark = f" ({', '.join(later)})" if later else ""
    return (
        f"other processes used {_describe_used(load, busy)} {when}{remark}: results are noisy;"
        f" {REMEDY}"
    )


def of_files(files: Iterable[RunFile]) -> str:
    """The sentence about the first busy run, and how many others are."""
    descriptions = [
        description for f in files if (description := describe_run_load(f.run, f.records, f.end))
    ]
    more = f" (and in {len(descriptions) - 1} more of the runs)" if len(descriptions) > 1 else ""
    return f"{descriptions[0]}{more}" if descriptions else ""


def mean_load(records: Iterable[Loaded]) -> dict[str, Load]:
    """Mean load by host, over the time that cases took."""
    seconds: defaultdict[str, float] = defaultdict(float)
    used: defaultdict[str, float] = defaultdict(float)
    cpus: dict[str, int] = {}
    for record in records:
        for host, load in record.load.items():
            seconds[host] += record.seconds
            used[host] += record.seconds * load.others
            cpus[host] = load.cpus
    return {host: Load(used[host] / s, cpus[host]) for host, s in seconds.items() if s}


def _find_busiest(load: Mapping[str, Load]) -> str | None:
    """The host with the largest share of its CPUs taken, of those that are busy."""
    busy = [host for host, host_load in load.items() if host_load.busy]
    return max(busy, key=lambda host: load[host].others / load[host].cpus, default=None)


def _describe_used(load: Mapping[str, Load], host: str) -> str:
    """1.3 of 2 CPUs; of several hosts also on which, and how many more are busy."""
    more = sum(host_load.busy for host_load in load.values()) - 1
    on_host = f" on {plain_line(host)}" if len(load) > 1 else ""
    return f"{_format_amount(load[host])} of {load[host].cpus} CPUs{on_host}" + (
        f" (and on {format_count(more, 'more host')})" if more else ""
    )


def _format_amount(load: Load) -> str:
    return f"{min(max(0.0, load.others), load.cpus):.1f}"
