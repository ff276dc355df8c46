"""The JSON that nccl-tests writes with ``-J`` (its schema 3), made from our records."""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from collbench.core import files
from collbench.core.errors import CannotRun, UsageError
from collbench.core.text import plain_line, print_message
from collbench.core.version import __version__
from collbench.records import limits
from collbench.records.origins import FAKE, ORIGINS, is_fake
from collbench.records.types import End, Run, RunFile, World
from collbench.run.reporter import Gathered, Outcome
from collbench.show.nccl import (
    AVERAGES,
    DEFAULTS,
    OPS,
    Options,
    has_line,
    make_half,
    pair_cases,
    per_iteration,
    table_of,
)
from collbench.show.nccl_settings import (
    describe_configuration,
    describe_truth,
    library_number,
    local_time,
)
from collbench.suite.case import Case, Skip


class Document(Gathered):
    """``-J``: collects a run and writes it to ``path``, or to path.0, path.1 … so that no file is
    overwritten."""

    needs_samples = True

    def __init__(self, path: Path, options: Options = DEFAULTS) -> None:
        if path.suffix.lower() != ".json":
            raise UsageError(
                f"-J {path}: the name must end in .json",
                f"for example -J {path.stem}.json",
            )
        files.refuse_no_folder(path, "-J")
        self._requested_path, self._options = path, options

    def begin(self, run: Run, cases: Sequence[Case], skips: Sequence[Skip]) -> None:
        """``written`` then holds the name the file gets. Raises CannotRun where there can be
        none."""
        super().begin(run, cases, skips)
        self.written = claim_path(self._requested_path)

    def end(self, end: End, path: Path | None) -> None:
        """Raises CannotRun where the file cannot be written."""
        worlds = list(self.worlds.values())
        write_json(self.written, make_json(self.run, worlds, self.outcomes, end, self._options))
        if self.written != self._requested_path:
            print_message(f"{self._requested_path} exists: wrote {self.written}")


def claim_path(path: Path) -> Path:
    """The first of path, path.0, path.1 … that did not exist, created empty."""
    for name in itertools.chain([path.name], (f"{path.name}.{i}" for i in itertools.count())):
        try:
            files.open_private(path.with_name(name), os.O_EXCL).close()
            return path.with_name(name)
        except FileExistsError:
            continue
        except OSError as e:
            raise CannotRun(
                f"cannot write {path}: {e.strerror}", "choose another place with -J"
            ) from e
    raise AssertionError("endless")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes one line of JSON."""
    try:
        path.write_text(json.dumps(content, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as e:
        raise CannotRun(f"cannot write {path}: {e.strerror}", "the run itself is saved") from e


def make_json(
    run: Run,
    worlds: Sequence[World],
    outcomes: Sequence[Outcome],
    end: End | None,
    options: Options = DEFAULTS,
) -> dict[str, Any]:
    """nccl-tests' JSON, schema 3, with per-iteration lists. ``outcomes`` come in plan order.

    Differences: null for what is not finite or not there; of the environment only what the run
    recorded; ``devices`` lists every rank; ``collbench`` adds, line by line of ``results``, what
    the schema has no place for.
    """
    done = {record.case: (record, row) for record, row in outcomes}
    lines = [
        line for line in pair_cases(done) if any(has_line(done[case]) for case in line.values())
    ]
    blocks = {table_of(line) for line in lines}
    halves = [make_half(done[case], options) for line in lines for case in line.values()]
    bandwidths = [h.busbw for h in halves if h.busbw is not None and not math.isnan(h.algbw)]
    bad = sum(bool(h.wrong) for h in halves)
    config = describe_configuration(run, list(done), max(worlds, key=lambda w: w.n, default=None))
    records = [record for record, _ in outcomes]
    file = RunFile(run=run, worlds=[*worlds], records=records, end=end, path=Path())
    results = limits.judge_limits(file)
    config["per_iter_skip"] = options.per_iter_skip
    failed = [
        f"{record.case.key}: {plain_line(record.note) or record.status}"
        for record in records
        if record.status in ("failed", "wrong")
    ]
    return {
        "version": 3,
        "start_time": local_time(run.started),
        "args": list(run.command),
        "env": [f"{name}={value}" for name, value in run.environment.get("variables", {}).items()],
        "nccl_version": library_number(worlds),
        "config": {key: config[key] for key in config if key != "unalign"},
        "results": [_result_json(line, done, options, len(blocks) > 1) for line in lines],
        "out_of_bounds": {"count": bad, "okay": describe_truth(not bad)},
        "average_bus_bandwidth": _average_json(bandwidths, results),
        "errors": failed + ([plain_line(end.note)] if end and end.exit and end.note else []),
        "end_time": local_time(end.ended if end else ""),
        "collbench": {
            **({"injected": run.policy.inject} if run.policy.inject else {}),
            **({FAKE: ORIGINS[FAKE].reason} if is_fake(file) else {}),
            **({"limits": msgspec.to_builtins(results)} if results else {}),
            "version": __version__,
            "run": run.id,
            "time": f"median over samples of {AVERAGES[options.average][0]}",
            "results": [_extra_json(line, done) for line in lines],
        },
    }


def _average_json(bandwidths: Sequence[float], results: Sequence[limits.Held]) -> dict[str, Any]:
    """What nccl-tests says of the average, and whether it is as wanted, where that is known."""
    answers = {result.answer for result in results if result.average}
    is_decided = answers and answers <= {"met", "short"}
    okay = describe_truth(answers == {"met"}) if is_decided else "unchecked"
    return {
        "bandwidth": _finite_double(statistics.fmean(bandwidths) if bandwidths else 0.0),
        "okay": okay,
    }


def _extra_json(line: Mapping[bool, Case], done: Mapping[Case, Outcome]) -> dict[str, Any]:
    """What the schema has no place for, of a line: flags that occurred; medians in the other
    cadence (ns); ``wire``, times as many bytes counted as needed; ``samples``, of which lists of
    times hold those of which every rank's was kept. Of out of place and in place, null where
    unknown."""
    case = next(iter(line.values()))
    rows = [
        done[line[in_place]][1] if line.get(in_place) in done else None
        for in_place in (False, True)
    ]
    names = ["collective", "backend", "algorithm", "n", "nbytes", "mode", "env", "splits", "cycle"]
    names += ["groups", "group", "of"] if case.groups else []
    names += [name for name in ("arrival", "background") if getattr(case, name)]
    places = zip(("out_of_place", "in_place"), rows, strict=True)
    flags = {in_place: row.flags for in_place, row in places if row and row.flags}
    return {
        **{name: getattr(case, name) for name in names},
        **({"flags": flags} if flags else {}),
        "samples": [row and row.times.samples for row in rows],
        "control": [row and row.control for row in rows],
        "wire": [row and row.wire for row in rows],
    }


def _result_json(
    line: Mapping[bool, Case], done: Mapping[Case, Outcome], options: Options, is_named: bool
) -> dict[str, Any]:
    case = next(iter(line.values()))
    result: dict[str, Any] = {
        "size": case.size,
        "count": case.count,
        "type": case.dtype,
        "redop": OPS.get(case.op, case.op),
        "root": f"{case.root:>6}",
    }
    performed = 0
    for placement, name in ((False, "out_of_place"), (True, "in_place")):
        outcome = done.get(line[placement]) if placement in line else None
        h = make_half(outcome, options)
        result[name] = {
            "cpu_time" if options.cpu_time else "time": _finite_double(h.time),
            "alg_bw": _finite_double(h.algbw),
            "bus_bw": _finite_double(h.busbw or 0.0),
            "nwrong": None if h.wrong is None else float(h.wrong),
        }
        if outcome and outcome[0].times_ns:
            result[f"{name}_per_iter"] = per_iteration(outcome[0], options.per_iter_skip)
            performed = max(performed, len(outcome[0].times_ns) * outcome[0].inner)
    return {
        **result,
        "actual_iterations": performed,
        "experiment_name": ", ".join(table_of(line)) if is_named else "",
    }


def _finite_double(value: float) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None
