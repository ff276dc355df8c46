"""The value of advice for a job, by the sizes that it sends: seconds of a step."""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from collbench.core.errors import CannotRun, UsageError
from collbench.core.feature import load_entries
from collbench.core.text import format_count, format_duration, format_size, plain_line
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series
from collbench.records import run_file, store

STEP = "step"  # the kind of measurable that a step is
RUN = b'{"line":"run",'  # how a run's file begins
MAX_NAMED = 3  # sizes that a sentence names
HINT = "give a trace, a recorded run of a step, a step's file, or what `collbench workload` takes"


class SizeCalls(NamedTuple):
    """The calls of one collective, number of ranks and size that a rank makes in a step.
    ``is_uneven``: the blocks of an all_to_allv differ."""

    collective: str
    n: int
    nbytes: int
    calls: int
    is_uneven: bool = False

    @property
    def label(self) -> str:
        """The calls in words: 48 all_reduce of 25 MiB on 4 ranks."""
        size = f" of {format_size(self.nbytes)}" if self.nbytes else ""
        return f"{self.calls:,} {self.collective}{size} on {format_count(self.n, 'rank')}"


class JobSizes(NamedTuple):
    """What a job's step sends: the calls of the rank with the most, with their datatypes. ``has``
    is what else sets them off from a measurement: groups of some ranks, roots other than 0."""

    name: str
    calls: tuple[SizeCalls, ...]
    dtypes: tuple[str, ...] = ()
    has: tuple[str, ...] = ()


class Saving(NamedTuple):
    """What some calls take in a step by the library's choice, and what advice saves of it, with the
    ends of its interval: ns of one rank. ``setting`` is empty where the library's choice stays."""

    calls: SizeCalls
    spent: float
    saved: float
    lo: float
    hi: float
    setting: str = ""


class Unmeasured(NamedTuple):
    """Calls of which nothing is known, and why."""

    calls: SizeCalls
    why: str


class Worth(NamedTuple):
    """What advice saves of a step of the job ``name``. Times are ns of one rank's step. The
    interval adds up all lower and all upper ends: the widest case. ``unlike`` is how calls may
    differ from those measured, though they count as these."""

    name: str
    savings: tuple[Saving, ...]
    unmeasured: tuple[Unmeasured, ...]
    unlike: tuple[str, ...] = ()

    @property
    def spent(self) -> float:
        """The time that calls of measured sizes take by the library's choice."""
        return sum(saving.spent for saving in self.savings)

    @property
    def saved(self) -> tuple[float, float, float]:
        """The time saved, and the ends of its interval."""
        return (
            sum(saving.saved for saving in self.savings),
            sum(saving.lo for saving in self.savings),
            sum(saving.hi for saving in self.savings),
        )

    @property
    def unmeasured_calls(self) -> float:
        """The share of calls of which nothing is known; 0 where there is no call."""
        return self._unmeasured_share(lambda calls: calls.calls)

    @property
    def unmeasured_bytes(self) -> float:
        """The same of their bytes."""
        return self._unmeasured_share(lambda calls: calls.calls * calls.nbytes)

    def _unmeasured_share(self, count: Any) -> float:
        unmeasured = sum(count(entry.calls) for entry in self.unmeasured)
        total = unmeasured + sum(count(saving.calls) for saving in self.savings)
        return unmeasured / total if total else 0.0


def load_sizes(sources: Sequence[str | Path]) -> JobSizes:
    """The sizes that a job sends in a step, of a trace (a folder or files), a recorded run of a
    step, a step's file, or a step by the name that `collbench workload` takes. Raises UsageError,
    and CannotRun where the features that read these are not installed."""
    return count_sizes(_load_step(sources))


def count_sizes(step: Any) -> JobSizes:
    """The calls of a step (training.step.Step), of the program that makes the most."""
    jobs = [_count_program(step, program) for program in step.programs if program.ranks]

    def weigh(job: JobSizes) -> tuple[int, int]:
        return sum(c.calls for c in job.calls), sum(c.calls * c.nbytes for c in job.calls)

    return max(jobs, key=weigh, default=JobSizes(plain_line(step.name), ()))


def value_advice(advised: Advised, job: JobSizes) -> Worth:
    """What the advice saves of the job's step. Times at sizes between two measured ones are
    interpolated on logarithmic scales; the gain there is that of the nearer size, inside a row, and
    none outside. Nothing is extrapolated."""
    times_by_series = collect_times(advised)
    savings, unmeasured = [], []
    for calls in job.calls:
        series = [s for s in times_by_series if (s.collective, s.n) == (calls.collective, calls.n)]
        why = _refuse_calls(calls, series, times_by_series)
        if why:
            unmeasured.append(Unmeasured(calls, why))
        else:
            spent = calls.calls * interpolate(times_by_series[series[0]], calls.nbytes)
            savings.append(_value_calls(advised.rows, series[0], calls, spent))
    return Worth(job.name, tuple(savings), tuple(unmeasured), tuple(_list_unlike(advised, job)))


def _list_unlike(advised: Advised, job: JobSizes) -> Iterator[str]:
    """How calls of the job may differ from those measured."""
    measured = {form.partition(",")[0] for form in advised.forms.split("; ")}
    if others := [dtype for dtype in job.dtypes if advised.forms and dtype not in measured]:
        yield f"of {', '.join(others)} (measured: {advised.forms})"
    yield from job.has


def describe_worth(worth: Worth) -> tuple[str, ...]:
    """Sentences on what advice is worth for a job, the answer first."""
    if not worth.savings and not worth.unmeasured:
        return (f"{worth.name} has no collective: advice is worth nothing for it.",)
    if not worth.savings:
        return (
            f"What it is worth for {worth.name} is unknown: no call of a step has a measured size.",
            *_describe_unmeasured(worth),
        )
    advised = sorted((s for s in worth.savings if s.setting), key=lambda s: -s.saved)
    if not advised:
        spent = format_duration(worth.spent)
        return (
            f"It saves nothing of a step of {worth.name}: the library's choice stays for all of"
            f" its calls of measured sizes ({spent} a step).",
            *_describe_unmeasured(worth),
        )
    saved, lo, hi = map(format_duration, worth.saved)
    names = _name_calls(saving.calls for saving in advised)
    return (
        f"It saves {saved} [{lo}, {hi}] a step of {worth.name}, of {format_duration(worth.spent)}"
        f" that a rank spends in calls of measured sizes: {names}.",
        "That is at most: a call that overlaps with computing may save less. The interval adds up"
        " all lower and all upper ends, the widest case.",
        *_describe_unlike(worth),
        *_describe_unmeasured(worth),
    )


def collect_times(advised: Advised) -> dict[Series, dict[int, float]]:
    """The default's time in ns by series and size, wherever it was measured beside a setting."""
    gains_by_cell: dict[Cell, list[Gain]] = {}
    for cell, rivals in advised.rivals.items():
        gains_by_cell.setdefault(cell, []).extend(rivals.values())
    for row in advised.rows:
        for gain in row.gains:
            gains_by_cell.setdefault(Cell(row.series, gain.nbytes), []).append(gain)
    for unadvised in advised.unadvised:
        if unadvised.best:
            gains_by_cell.setdefault(unadvised.cell, []).append(unadvised.best)
    times: dict[Series, dict[int, float]] = {}
    for cell, gains in sorted(gains_by_cell.items()):
        if gains:
            median = statistics.median(gain.default for gain in gains)
            times.setdefault(cell.series, {})[cell.nbytes] = median
    return times


def interpolate(times: Mapping[int, float], nbytes: int) -> float:
    """The time at a size, on logarithmic scales between the two measured sizes beside it. Raises
    ValueError outside of the measured sizes."""
    if nbytes in times:
        return times[nbytes]
    low = max((size for size in times if size < nbytes), default=-1)
    high = min((size for size in times if size > nbytes), default=-1)
    if low <= 0 or high < 0:
        raise ValueError(f"{nbytes} B lie outside of the measured sizes")
    share = math.log(nbytes / low) / math.log(high / low)
    return float(times[low] * (times[high] / times[low]) ** share)


def _value_calls(rows: Iterable[Advice], series: Series, calls: SizeCalls, spent: float) -> Saving:
    """What the row for these calls saves of the time spent in them."""
    nbytes = calls.nbytes
    row = next((r for r in rows if r.series == series and r.low <= nbytes <= r.high), None)
    if row is None:
        return Saving(calls, spent, 0.0, 0.0, 0.0)
    gain = min(row.gains, key=lambda g: abs(math.log(max(g.nbytes, 1) / max(nbytes, 1))))
    return Saving(
        calls, spent, spent * gain.gain, spent * gain.lo, spent * gain.hi, setting=row.name
    )


def _refuse_calls(
    calls: SizeCalls, series: Sequence[Series], times: Mapping[Series, Mapping[int, float]]
) -> str:
    """Why nothing is known of some calls; empty where it is."""
    collective = [s for s in times if s.collective == calls.collective]
    if not collective:
        return f"{calls.collective} was not measured"
    if not series:
        measured = "/".join(str(n) for n in sorted({s.n for s in collective}))
        return f"{calls.collective} was measured on {measured} ranks only"
    if calls.is_uneven:
        return "its blocks differ"
    if len(series) > 1:
        nodes = " and ".join(str(s.nodes) for s in sorted(series))
        return f"it was measured on {nodes} hosts, and the job does not say on how many it runs"
    try:
        interpolate(times[series[0]], calls.nbytes)
    except ValueError:
        sizes = [*times[series[0]]]
        return f"measured were {format_size(min(sizes))} to {format_size(max(sizes))}"
    return ""


def _describe_unlike(worth: Worth) -> tuple[str, ...]:
    """A sentence on calls that count as measured though they differ, in a tuple; empty where there
    are none."""
    if not worth.unlike:
        return ()
    return (f"Some calls count as measured, but may differ: {'; '.join(worth.unlike)}.",)


def _describe_unmeasured(worth: Worth) -> tuple[str, ...]:
    """A sentence on the calls of which nothing is known, in a tuple; empty where there are none."""
    if not worth.unmeasured:
        return ()
    by_why: dict[str, list[SizeCalls]] = {}
    for entry in worth.unmeasured:
        by_why.setdefault(entry.why, []).append(entry.calls)
    reasons = "; ".join(f"{_name_calls(calls)}: {why}" for why, calls in by_why.items())
    return (
        f"{_format_share(worth.unmeasured_calls)} of calls with"
        f" {_format_share(worth.unmeasured_bytes)} of bytes are not counted, for lack of a"
        f" measurement: {reasons}.",
    )


def _name_calls(calls: Iterable[SizeCalls]) -> str:
    """Some calls by their labels, the first few."""
    labels = [each.label for each in calls]
    rest = len(labels) - MAX_NAMED
    return ", ".join(labels[:MAX_NAMED]) + (f" and {rest} other sizes" if rest > 0 else "")


def _format_share(share: float) -> str:
    """A share in percent, never rounded to nothing or to all."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{min(percent, 99.9):.2g} %" if percent < 100 else "100 %"


def _count_program(step: Any, program: Any) -> JobSizes:
    """The calls of a program, for the first of its ranks. Those of a single rank move nothing."""
    calls: Counter[tuple[str, int, int, bool]] = Counter()
    dtypes, has = [], []
    for op in program.ops:
        if op.communicates and (n := len(step.members(op.group, program.ranks[0]))) > 1:
            calls[op.kind, n, op.nbytes, len({*op.sends}) > 1] += 1
            dtypes.append(op.dtype)
            has += ["with a root other than 0"] if op.root > 0 else []
            has += ["of several groups at a time"] if op.group else []
    return JobSizes(
        plain_line(step.name),
        tuple(
            SizeCalls(kind, n, nbytes, number, is_uneven)
            for (kind, n, nbytes, is_uneven), number in calls.items()
        ),
        tuple(dict.fromkeys(dtypes)),
        tuple(dict.fromkeys(has)),
    )


def _load_step(sources: Sequence[str | Path]) -> Any:
    kind = load_entries("measurables").get(STEP)
    if kind is None:
        raise CannotRun(
            "sizes of a job cannot be read: the feature training is not installed",
            "install the whole collbench, or leave --sizes-of out",
        )
    if not sources:
        raise UsageError("--sizes-of: no trace is given", HINT)
    paths = [Path(source) for source in sources]
    first = str(sources[0])
    if len(paths) == 1 and (first.startswith("@") or _is_run(paths[0])):
        return _find_recorded(store.find_run(first), kind)
    table: dict[str, Any]
    if not os.path.lexists(first) and len(paths) == 1:  # Path's raise for a name that is too long
        table = {"name": first}
    elif len(paths) == 1 and paths[0].suffix.lower() in (".toml", ".csv"):
        table = {"name": str(paths[0].absolute())}
    else:
        table = {"trace": [str(path.absolute()) for path in paths]}
    return kind.parse(table, "--sizes-of", Path.cwd() / "suite").make_step()


def _is_run(path: Path) -> bool:
    """Whether a file is a run of collbench."""
    try:
        with path.open("rb") as file:
            return file.read(len(RUN)) == RUN
    except OSError:  # the reader of traces says why
        return False


def _find_recorded(path: Path, kind: Any) -> Any:
    """The step that a run measured."""
    subjects = run_file.read_run(path).suite.subjects
    steps = [subject for subject in subjects if isinstance(subject, kind.subject)]
    if len(steps) != 1:
        raise UsageError(f"--sizes-of: {path} has {format_count(len(steps), 'step')}", HINT)
    return steps[0]
