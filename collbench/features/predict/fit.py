"""The model's constants from recorded runs: ``T = A alpha + s B beta + s G gamma``
for s bytes.

A, B and G are exact counts of the algorithm (``simulate.count_costs``), or the lower bound's for a
library's own choice, with B as many times that as more was counted than it needs. Nanoseconds and
bytes throughout: alpha in ns a message, beta and gamma in ns a byte. One line seldom holds for all
sizes, so a series is cut where the library seems to change its protocol.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from collbench.core import algorithms, splits
from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import CannotRun, UsageError
from collbench.core.network import Link
from collbench.core.simulate import count_costs
from collbench.features.predict.regression import (
    FEWEST,
    VAGUE,
    Floats,
    bound_by_factors,
    condition_number,
    cut_segments,
    find_known,
    line_columns,
    solve_constants,
)
from collbench.machine import environment
from collbench.records import rows, run_file, stats, store
from collbench.records.case_rows import MANNER
from collbench.records.origins import refuse_fake
from collbench.records.rows import Row
from collbench.records.types import Run, RunFile
from collbench.suite.case import Case
from collbench.suite.sweep import MOST_STEPPED

DRAWS = 1000  # resampled data sets

FEWEST_UNITS = 6  # launches or cycles to resample; fewer scatter by Student's t

CONDITION, MISFIT = 30.0, 0.15

MAX_SPAN = math.log(1000)  # of an interval, as beyond it says nothing


class Estimate(msgspec.Struct, frozen=True):
    """A constant and its 95 % interval."""

    value: float
    lo: float
    hi: float


class Segment(msgspec.Struct, frozen=True):
    """The model over the sizes from ``first`` to ``last``; None for a constant that these do not
    tell.

    Where one segment ends and the next begins lies somewhere between the one's last size and the
    other's first.
    """

    first: int
    last: int
    alpha: Estimate | None
    beta: Estimate | None


class SizeSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One case over all its sizes: ``measured`` medians and what they leave open, as a share;
    ``draws`` (DRAWS, sizes) are medians of resampled data, of which ``resampled`` says what was
    drawn. ``case`` stands for all: its size is 0.

    ``counts`` are A, B, G and ``model`` whose; ``refused`` is why there can be no fit, or empty.
    ``wires`` are equal of series that went over the same wires in the same manner; ``spans_hosts``
    and ``run`` name them.
    """

    case: Case
    sizes: Floats
    measured: Floats
    scale: Floats
    draws: Floats
    resampled: str
    counts: tuple[float, float, float] = (0, 0, 0)
    model: str = ""
    refused: str = ""
    wires: tuple[object, ...] = ()
    spans_hosts: bool = False
    run: str = ""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A series fitted on its own. Its beta holds what reducing costs, too, as no single series can
    tell them apart.

    ``counts`` are A, B and G, by which its constants divide what was measured.
    ``points`` are (size, measured ns, predicted ns). ``worst`` is the largest share by which they
    differ, ``runs`` how often in a row they differ in the same direction, and what chance would
    make of that. Flag ``model_misfit``: three sizes in a row are off by more than 15 %.
    """

    case: Case
    model: str
    counts: tuple[float, float, float] = (0, 0, 0)
    refused: str = ""
    segments: list[Segment] = []
    points: list[tuple[int, float, float]] = []
    resampled: str = ""
    worst: float = 0.0
    runs: tuple[int, float] = (0, 0.0)
    flags: list[str] = []


class LinkFit(msgspec.Struct, frozen=True, kw_only=True):
    """One alpha, beta and gamma for all series that went over the same wires. Intervals hold what
    series differ by, where there are several.

    ``condition`` is that of the three columns, in relative weights and scaled; above 30, gamma is
    None and ``note`` says what to measure. beta then holds what reducing costs.
    """

    name: str
    members: list[str]
    refused: str = ""
    alpha: Estimate | None = None
    beta: Estimate | None = None
    gamma: Estimate | None = None
    condition: float = 0.0
    note: str = ""
    resampled: str = ""
    flags: list[str] = []


def make_series(file: RunFile) -> list[SizeSeries]:
    """A series for every case of a run over its sizes, in the run's order."""
    rng = np.random.default_rng(file.run.policy.seed)
    groups: dict[Case, dict[int, list[Row]]] = {}
    for row in rows.select_fit(rows.make_rows([file])):
        if row.record.times_ns:
            key = msgspec.structs.replace(row.case, nbytes=0)
            moved = 0 if _has_table(row.case) else row.case.moved
            groups.setdefault(key, {}).setdefault(moved, []).append(row)
    return [
        _make_series(file.run, case, sorted(sizes.items()), rng) for case, sizes in groups.items()
    ]


def wire_key(case: Case) -> tuple[object, ...]:
    """What cases of one number of ranks have in common that went over the same wires."""
    at_once = case.groups, case.group, case.of, case.background, case.arrival
    return case.backend, case.dtype, case.mode, case.env, *at_once


def _find_wires(run: Run, case: Case) -> tuple[object, ...]:
    """The wires of a case, the machine, and how calls were timed."""
    machine = environment.make_fingerprint(run.environment, {case.backend})
    manner = (getattr(run.policy, name) for name in (*MANNER, "cache"))
    return (*wire_key(case), machine, *manner)


def _has_table(case: Case) -> bool:
    """Whether a table gives a case's blocks, and so its only size; a file of it may be gone."""
    return case.splits.partition(":")[0] in splits.TABLES


def _make_series(
    run: Run, case: Case, by_size: list[tuple[int, list[Row]]], rng: np.random.Generator
) -> SizeSeries:
    sizes = np.array([size for size, _ in by_size], float)
    launches = [rows.select_deciding(case_rows) for _, case_rows in by_size]
    draws, word = _resample_launches(launches, rng)
    measured = np.array([rows.case_time(launch_rows).median for launch_rows in launches])
    # two standard deviations, whatever the tails of few launches
    low, high = np.quantile(draws, (0.16, 0.84), axis=0)
    scale = np.maximum(0.01, (high - low) / measured)
    counts, model, refused = (0.0, 0.0, 0.0), "", "one rank sends nothing"
    if case.n > 1:
        counts, model, refused = _count_factors(case, launches[-1][0].carried)
    reasons = {
        refused: bool(refused),
        "one rank sends nothing": not counts[0],
        f"{case.collective} moves no data: its time is its latency": not sizes.any(),
        (
            f"a fit of latency and bandwidth takes at least {FEWEST} sizes, and this has"
            f" {len(sizes)}: measure more (-b and -e, or --sizes)"
        ): len(sizes) < FEWEST,
    }
    refused = next((reason for reason, holds in reasons.items() if holds), "")
    world = launches[-1][0].world
    spans_hosts = len({rank.host for rank in world.ranks}) > 1 if world else False
    return SizeSeries(
        case=case,
        sizes=sizes,
        measured=measured,
        scale=scale,
        draws=draws,
        resampled=word,
        counts=counts,
        model=model,
        refused=refused,
        wires=(*_find_wires(run, case), spans_hosts),
        spans_hosts=spans_hosts,
        run=run.id,
    )


def _resample_launches(
    launches: Sequence[Sequence[Row]], rng: np.random.Generator
) -> tuple[Floats, str]:
    """DRAWS medians of each size from resampled data, and what was drawn: the launches that all
    sizes have, or the cycles of the only one; where these are fewer than FEWEST_UNITS, samples
    within them and _draw_offsets of their scatter; samples alone where all sizes have fewer than
    two in common."""
    word = "launches"
    times: list[dict[Any, Floats]] = [
        {row.launch: row.times for row in launch_rows} for launch_rows in launches
    ]
    if all(len(launch_rows) == 1 for launch_rows in launches):
        word = "cycles"
        times = [
            {c.record.case.cycle: rows.join_times([c]) for c in row.fit} for (row,) in launches
        ]
    common = [unit for unit in times[0] if all(unit in of_size for of_size in times)]
    if len(common) < 2:
        draws = [
            np.median([_redraw_medians(row.times, rng) for row in launch_rows], axis=0)
            for launch_rows in launches
        ]
        return np.stack(draws, axis=1), "samples"
    logs = np.log([[np.median(of_size[unit]) for of_size in times] for unit in common])
    if len(common) < FEWEST_UNITS:
        redrawn = [[_redraw_medians(of_size[unit], rng) for of_size in times] for unit in common]
        centre = np.log(redrawn).mean(axis=0).T
        return np.exp(centre + _draw_offsets(logs, rng)), f"{len(common)} {word}"
    drawn = rng.integers(0, len(common), (DRAWS, len(common)))
    return np.exp(np.median(logs[drawn], axis=1)), f"{len(common)} {word}"


def _draw_offsets(logs: Floats, rng: np.random.Generator) -> Floats:
    """DRAWS by which the mean of units (units, sizes) may be off at each size, in logarithms. Any
    combination of sizes, so all alike, is off as Student's t has it of the units' combinations."""
    units = len(logs)
    weights = rng.standard_normal((DRAWS, units)) / math.sqrt(units * (units - 1))
    tails = np.sqrt((units - 1) / rng.chisquare(units - 1, (DRAWS, 1)))
    offsets = tails * (weights @ (logs - logs.mean(axis=0)))
    return np.asarray(np.clip(offsets, -MAX_SPAN, MAX_SPAN), float)


def _redraw_medians(samples: Floats, rng: np.random.Generator) -> Floats:
    """Medians of DRAWS resamplings, each worth N_eff samples: the order statistic that is a
    resample's median lies at a Beta((m + 1) / 2, (m + 1) / 2) share of the samples."""
    shape = (stats.n_eff(samples) + 1) / 2
    return np.asarray(np.quantile(samples, rng.beta(shape, shape, DRAWS)), float)


def _count_factors(case: Case, carried: float) -> tuple[tuple[float, float, float], str, str]:
    """A, B and G, what they are, and why there are none. Links ``carried`` so many times what the
    collective needs."""
    if case.subject:
        return (
            (0.0, 0.0, 0.0),
            "",
            f"only collectives are fitted over sizes, and this is a {case.table.noun}",
        )
    if _has_table(case):
        return (0.0, 0.0, 0.0), "", "a table of blocks has one size, and a fit takes several"
    if case.algorithm == "native":
        bound = COLLECTIVES[case.collective].bound(case.n)
        model = "lower bound" + (f", {carried:.2f}x its bytes" if carried > 1 else "")
        return (bound.alpha, bound.beta * carried, bound.gamma), model, ""
    if case.n > MOST_STEPPED:
        return (0.0, 0.0, 0.0), "exact counts", f"they are made for at most {MOST_STEPPED} ranks"
    try:
        variant = algorithms.find_variant(case.collective, case.algorithm)
    except UsageError as e:  # of a file of somebody's, or of another version
        return (0.0, 0.0, 0.0), "exact counts", e.message
    free = [name for name in variant.algorithm.parameters if name not in dict(variant.given)]
    refused = (
        "its counts are those of equal blocks (--splits uniform)"
        if case.splits not in ("", "uniform")
        else ""
    )
    if free:
        refused = (
            f"its {free[0]} may change with size; fix it: --algo"
            f" {variant.algorithm.name}:{free[0]}=8"
        )
    rounds, most, reduced, _ = map(float, count_costs(variant.schedule(case.n, case.root)))
    share = case.row.moved_share(case.n)  # counts are of the size, and lines go over what is moved
    return (rounds, most / share, reduced / share), "exact counts", refused


def fit_series(series: SizeSeries) -> Fit:
    """A series on its own, in as many segments as it takes."""
    if series.refused:
        return Fit(case=series.case, model=series.model, refused=series.refused)
    parts = cut_segments(series.sizes, series.measured, series.scale)
    columns = line_columns(series.sizes)
    solutions = [
        solve_constants(columns[part], series.measured[part], series.scale[part]) for part in parts
    ]
    predicted = np.concatenate([solution.times for solution in solutions])
    draws, word = _draw_medians(series, predicted, 3 * len(parts) - 1)
    segments = []
    for part, solution in zip(parts, solutions, strict=True):
        spread = solve_constants(
            columns[part], draws[:, part], series.scale[part], start=solution.constants
        )
        tells = find_known(columns[part], series.measured[part], solution)
        alpha, beta = _make_estimates(
            solution.constants / series.counts[:2], spread.constants / series.counts[:2], tells
        )
        first, last = series.sizes[part][[0, -1]]
        segments.append(Segment(int(first), int(last), alpha, beta))
    refused = ""
    if segments[0].alpha is None or segments[-1].beta is None:
        refused = _explain_vague(series, "alpha" if segments[0].alpha is None else "beta")
    off = np.log(series.measured / predicted)
    up = np.sign(off)[off != 0]
    ups, downs = float((up > 0).sum()), float((up < 0).sum())
    return Fit(
        case=series.case,
        model=series.model,
        counts=series.counts,
        refused=refused,
        segments=segments,
        resampled=word,
        flags=_describe_misfit(off),
        points=list(
            zip(
                series.sizes.astype(int).tolist(),
                series.measured.tolist(),
                predicted.tolist(),
                strict=True,
            )
        ),
        worst=float(np.expm1(np.abs(off).max())),
        runs=(
            int((up[1:] != up[:-1]).sum()) + bool(len(up)),
            1 + 2 * ups * downs / max(1.0, ups + downs),
        ),
    )


def _explain_vague(series: SizeSeries, constant: str) -> str:
    """The reason why a constant cannot be told from a series."""
    least, most = int(series.sizes[0]), int(series.sizes[-1])
    growth = series.measured[-1] / series.measured[0]
    if constant == "beta" and growth < 2:
        return f"beta is not identifiable: up to {most} B the time is latency; measure larger sizes"
    if constant == "alpha" and growth > most / least / 2:
        return (
            f"alpha is not identifiable: from {least} B on the time is bandwidth; measure smaller"
            " sizes"
        )
    return (
        f"{constant} is not identifiable: times scatter too much; measure longer, more sizes and"
        " more launches (--launches)"
    )


def _draw_medians(series: SizeSeries, predicted: Floats, used: int) -> tuple[Floats, str]:
    """Resampled medians; where sizes scatter by more than samples can, the model times resampled
    residuals, and times what launches or cycles differ by."""
    residuals = np.log(series.measured / predicted)
    scatter = 1.4826 * float(np.median(np.abs(residuals)))
    # half of what two standard deviations span: draws of two launches have no deviation
    low, high = np.quantile(np.log(series.draws), (0.16, 0.84), axis=0)
    if scatter <= 1.5 * float(np.median((high - low) / 2)):
        return series.draws, series.resampled
    rng = np.random.default_rng(len(residuals))
    centred = residuals - residuals.mean()
    wide = centred * math.sqrt(len(residuals) / max(1, len(residuals) - used))
    draws = predicted * np.exp(rng.choice(wide, (DRAWS, len(wide))))
    if series.resampled == "samples":
        return draws, "residuals"
    return draws * series.draws / np.median(series.draws, axis=0), f"{series.resampled}, residuals"


def _describe_misfit(off: Floats) -> list[str]:
    far = np.abs(np.expm1(off)) > MISFIT
    return ["model_misfit"] if (far[2:] & far[1:-1] & far[:-2]).any() else []


def _make_estimates(
    values: Floats, draws: Floats, tells: npt.NDArray[np.bool_]
) -> list[Estimate | None]:
    """An Estimate of each constant, with an interval from the resampled ``draws``; None for a
    constant that the points do not determine, or whose interval is wider than VAGUE allows."""
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    bounds = zip(values.tolist(), low.tolist(), high.tolist(), tells.tolist(), strict=True)
    return [
        (
            Estimate(value, min(lo, value), max(hi, value))
            if is_determined and hi < lo * math.exp(4 * VAGUE)
            else None
        )
        for value, lo, hi, is_determined in bounds
    ]


def fit_links(all_series: Sequence[SizeSeries]) -> list[LinkFit]:
    """Constants that all series share which went over the same wires, whatever their number of
    ranks. Where reference algorithms or sendrecv were measured, whose counts are exact, a library's
    other collectives stay out, as one cannot know what they do."""
    groups: dict[tuple[object, ...], list[SizeSeries]] = defaultdict(list)
    for series in all_series:
        if not (series.refused or series.case.background):
            groups[series.wires].append(series)
    names = [_name_wires(group[0]) for group in groups.values()]
    return [
        _fit_link(name if names.count(name) == 1 else f"{name} of {_list_runs(group)}", group)
        for name, group in zip(names, groups.values(), strict=True)
    ]


def _name_wires(series: SizeSeries) -> str:
    """The wires of a series in words, without machine and manner."""
    case = series.case
    parts = [case.backend, case.dtype, case.mode, *(f"{k}={v}" for k, v in case.env)]
    parts += [f"{case.groups} group {case.group}"] if case.groups else []
    parts += [case.arrival, "across hosts" if series.spans_hosts else ""]
    return " ".join(filter(None, parts))


def _list_runs(group: Sequence[SizeSeries]) -> str:
    return ", ".join(dict.fromkeys(f"run {series.run}" for series in group))


def _fit_link(name: str, group: list[SizeSeries]) -> LinkFit:
    """The fit of one link's constants to all series over that link at once."""
    exact = [
        series for series in group if series.case.algorithm != "native" or series.case.row.pairwise
    ]
    group = exact or group
    design = np.concatenate(
        [
            np.array(series.counts) * np.stack([series.sizes**0, series.sizes, series.sizes], 1)
            for series in group
        ]
    )
    times, scale = (
        np.concatenate([getattr(series, part) for series in group])
        for part in ("measured", "scale")
    )
    number, note = _fit_gamma(design, times, group)
    design = design[:, : 2 if note else 3]
    solution = solve_constants(design, times, scale)
    ends = np.cumsum([len(series.sizes) for series in group])[:-1]
    modelled = list(zip(group, np.split(solution.times, ends), strict=True))
    drawn = [_draw_medians(series, part, 2) for series, part in modelled]
    spread = solve_constants(
        design,
        np.concatenate([draws for draws, _ in drawn], axis=1),
        scale,
        start=solution.constants,
    )
    tells = find_known(design, times, solution)
    estimates = _make_estimates(solution.constants, spread.constants, tells)
    word = ", ".join(dict.fromkeys(word for _, word in drawn))
    if len(group) > 1:
        owner = np.repeat(np.arange(len(group)), [len(series.sizes) for series in group])
        spans = bound_by_factors(design, times, scale, solution, owner)
        estimates = [_widen_interval(*pair) for pair in zip(estimates, spans.tolist(), strict=True)]
        word += f", and by how {len(group)} series differ"
    alpha, beta, *gamma = estimates
    if gamma and gamma[0] is None:
        note = "gamma is not identifiable: too small beside the rest, or times scatter too much"
    members = [
        f"{series.case.collective} {series.case.label} on {series.case.n}" for series in group
    ]
    return LinkFit(
        name=name,
        members=list(dict.fromkeys(members)),
        alpha=alpha,
        beta=beta,
        gamma=gamma[0] if gamma else None,
        refused="" if alpha and beta else _explain_vague(group[0], "beta" if alpha else "alpha"),
        condition=number,
        note=note,
        resampled=word,
        flags=[
            flag
            for series, part in modelled
            for flag in _describe_misfit(np.log(series.measured / part))
        ][:1],
    )


def _widen_interval(estimate: Estimate | None, span: float) -> Estimate | None:
    """The estimate with an interval at least as wide as ``span`` either way, in logarithms."""
    if estimate is None:
        return None
    value, factor = estimate.value, math.exp(min(span, MAX_SPAN))
    return Estimate(value, min(estimate.lo, value / factor), max(estimate.hi, value * factor))


def _fit_gamma(design: Floats, times: Floats, group: list[SizeSeries]) -> tuple[float, str]:
    """The condition number, and why gamma cannot be told."""
    if not design[:, 2].any():
        return condition_number(design[:, :2], times), "nothing measured reduces: gamma is unknown"
    number = condition_number(design, times)
    if number <= CONDITION:
        return number, ""
    what = ", ".join(
        dict.fromkeys(f"{series.case.collective} {series.case.label}" for series in group)
    )
    return (
        number,
        (
            f"gamma is not identifiable: in {what} it always comes with as much beta, which holds"
            " both; add all_gather and reduce_scatter of one algorithm"
        ),
    )


def link_from(run: str) -> tuple[Link, str]:
    """The link that a recorded run shows, in seconds, and where it comes from. Raises CannotRun
    with the reason, and NoVerdict for a run on fake GPUs."""
    file = run_file.read_digest(store.find_run(run))
    all_series = make_series(file)
    if not all_series:
        refuse_fake(file, "fit")
    fits = fit_links(all_series)
    usable = [link for link in fits if link.alpha and link.beta]
    if not usable:
        reasons = [link_fit.refused for link_fit in fits] + [
            series.refused for series in all_series if series.refused
        ]
        raise CannotRun(
            f"run {file.run.id}: {(reasons or ['it has no times'])[0]}",
            "collbench fit explains each series",
        )
    best = max(usable, key=lambda link: len(link.members))
    constants = [
        estimate.value * 1e-9 if estimate else 0.0
        for estimate in (best.alpha, best.beta, best.gamma)
    ]
    notes = [f"run {file.run.id}: {best.name}, {', '.join(best.members)}"]
    if best.alpha and best.beta:
        notes.append(f"alpha {best.alpha.lo / 1e3:.3g} to {best.alpha.hi / 1e3:.3g} us")
        notes.append(f"1 / beta {1 / best.beta.hi:.3g} to {1 / best.beta.lo:.3g} GB/s")
    return Link(*constants), "; ".join([*notes, *filter(None, [best.note]), *best.flags])
