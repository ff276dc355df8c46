"""Commands about algorithms that run no ranks: show, prove, predict, fit, export. Heavy imports stay inside them."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from collbench.errors import Exit, UsageError

if TYPE_CHECKING:
    from collbench.algorithms import Variant

Option, Argument = typer.Option, typer.Argument


def show(
    name: Annotated[str, Argument(metavar="COLLECTIVE", help="As in `collbench list`.")],
    algorithm: Annotated[str, Argument(metavar="ALGORITHM", help="ring, or with parameters: chain:segments=4.")],
    n: Annotated[int | None, Option("-n", "--ranks", min=1, help="Ranks. Default 4, or those of --values.")] = None,
    root: Annotated[int, Option("-r", "--root", min=0, help="Root rank.")] = 0,
    rank: Annotated[int | None, Option("--rank", min=0, help="Only what this rank gets, sends and holds.")] = None,
    step: Annotated[int | None, Option("--step", min=0, help="Only this step, and the state before it.")] = None,
    values: Annotated[str, Option("--values", help="What ranks start with: 2,4,6;1,2,3;4,8,12.")] = "",
    html: Annotated[Path | None, Option("--html", help="Write a page with a slider over the steps instead.")] = None,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Draw an algorithm's steps, in the terminal or as a page with a slider."""
    from collbench import algorithms, console, spacetime

    given = spacetime.parse(values) if values else None
    n = n or (len(given) if given else 4)
    schedule = algorithms.find(name, algorithm).schedule(n, root)
    frames = list(spacetime.frames(schedule, given or spacetime.example(schedule)))
    steps = len(frames) - 1
    for what, value, most in (("rank", rank, n - 1), ("step", step, steps)):
        if value is not None and value > most:
            where = f"{schedule.collective} {schedule.name} for {n} ranks"
            raise UsageError(f"--{what}: there is no {what} {value} in {where}", f"0 to {most}")
    if html:
        from collbench import spacetime_html, store

        store.save(html, spacetime_html.page(schedule, frames), "--html")
        return console.show(f"wrote {html}: {steps} steps")
    shown = frames
    if step is not None:
        shown = [frames[max(0, step - 1)]._replace(moves=None), *frames[max(1, step) : step + 1]]
    console.show(spacetime.draw(schedule, shown, rank), *spacetime.legend(schedule, shown))
    if shown[-1].step == steps:
        console.show(spacetime.in_words(spacetime.outcome(schedule, frames[-1]), n))


def prove(
    name: Annotated[str | None, Argument(metavar="[COLLECTIVE]", help="Default: all.")] = None,
    algorithm: Annotated[str | None, Argument(metavar="[ALGORITHM]", help="Default: all of them.")] = None,
    n: Annotated[str, Option("-n", "--ranks", help="Numbers of ranks: 1..33, or 2,4,8.")] = "1..33",
    root: Annotated[str, Option("-r", "--root", help="Root rank, or all. Default: 0 and the middle one.")] = "",
    hazards: Annotated[bool, Option("--hazards", help="List cells that a step both reads and writes.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Check algorithms by counting contributions, for many numbers of ranks."""
    from collbench import algorithms, console
    from collbench.collectives import COLLECTIVES, collective

    numbers = _ranks(n)
    if root not in ("", "all") and not root.isdecimal():
        raise UsageError(f"--root: '{root}' is no rank", "a whole number, or all")
    wrong = right = 0
    for owner in [collective(name).name] if name else COLLECTIVES:
        chosen = [algorithms.find(owner, algorithm)] if algorithm else map(algorithms.Variant, algorithms.of(owner))
        proofs = [_proof(variant, numbers, root) for variant in chosen]
        head = ("algorithm", "right for n =", "wrong", "hazards", "paper")
        lines = [line for p in proofs for line in (*p.faults, *p.left_out, *(p.hazards if hazards else ()))]
        console.show(console.listing({owner: [head, *(proof.row(bool(algorithm)) for proof in proofs)]}), *lines, "")
        wrong += sum(len(proof.faults) for proof in proofs)
        right += sum(len(proof.right) for proof in proofs)
    if wrong or not right:
        raise typer.Exit(Exit.WRONG_DATA if wrong else Exit.NO_VERDICT)


class _Proof(NamedTuple):
    """What ``prove`` found out about one algorithm: for which ranks it is right, and lines on all else."""

    name: str
    paper: str
    right: list[int]
    faults: list[str]
    left_out: list[str]
    hazards: list[str]
    cells: int

    def row(self, alone: bool) -> tuple[str, ...]:
        authors, year, *_ = [*re.split(r" (?=\d{4},)", self.paper), ""]
        first, _, others = authors.partition(", ")
        short = f"{first} et al. {year[:4]}" if year and "," in others else f"{authors} {year[:4]}"
        paper = self.paper if alone else textwrap.shorten(short, 36, placeholder=" …")
        return self.name, _spans(self.right).replace(",", ", ") or "-", str(len(self.faults)), str(self.cells), paper


def _proof(variant: Variant, numbers: Sequence[int], root: str) -> _Proof:
    from collbench import schedule
    from collbench.collectives import COLLECTIVES

    proof = _Proof(variant.name, variant.algorithm.paper, [], [], [], [], 0)
    rooted, left_out, cells = COLLECTIVES[variant.algorithm.collective].rooted, dict[int, str](), 0
    for n in numbers:
        roots = sorted({0, n // 2}) if not root else range(n) if root == "all" else [int(root)]
        reason = variant.why_not(n) or (f"there is no rank {root}" if rooted and roots[0] >= n else None)
        if reason:
            left_out[n] = reason
            continue
        known = len(proof.faults)
        for plan in [variant.schedule(n, r) for r in (roots if rooted else [0])]:
            where = f"  {plan.name} n={n}" + f" root={plan.root}" * rooted
            proof.faults.extend(f"{where}: {fault}" for fault in schedule.prove(plan))
            if len(proof.faults) == known:
                found = schedule.hazards(plan)
                cells += len(found)
                for step, both in itertools.groupby(found, lambda hazard: hazard.step):
                    words = ", ".join(f"rank {hazard.rank} cell {hazard.cell}" for hazard in both)
                    proof.hazards.append(f"{where}: step {step} reads and writes {words}")
        if len(proof.faults) == known:
            proof.right.append(n)
    if left_out:
        first = min(left_out)
        proof.left_out.append(f"  {variant.name}: not for {_spans(left_out)}: {left_out[first]}")
    return proof._replace(cells=cells)


def _ranks(text: str) -> list[int]:
    """``1..33`` or ``2,4,8``, or both together."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\.\.(\d+))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= 4096:
            raise UsageError(f"-n: '{part.strip()}' is no number of ranks up to 4096", "as in 1..33 or 2,4,8")
        found.update(range(low, high + 1))
    return sorted(found)


def _spans(numbers: Iterable[int]) -> str:
    """[1, 2, 3, 5] as 1..3,5."""
    runs = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ",".join(str(low) if low == high else f"{low}{',' if high == low + 1 else '..'}{high}" for low, high in ends)


def predict(
    name: Annotated[str, Argument(metavar="COLLECTIVE", help="As in `collbench list`.")],
    n: Annotated[int, Option("-n", "--ranks", min=2, help="Ranks.")] = 8,
    minbytes: Annotated[str, Option("-b", "--minbytes", help="Smallest size; K, M and G are 1024-based.")] = "8",
    maxbytes: Annotated[str, Option("-e", "--maxbytes", help="Largest size, included. Default 1G, or -b.")] = "",
    stepfactor: Annotated[float, Option("-f", "--stepfactor", help="Multiply sizes by this; 1.5 works.")] = 2.0,
    algo: Annotated[str, Option("--algo", help="ring, chain:segments=8, a list, or all.")] = "all",
    network: Annotated[str, Option("--network", help="flat, ring, two-level:8, torus:4x8, fat-tree:16:2.")] = "flat",
    link: Annotated[str, Option("--link", help="eth10, eth25, ib100, ib200 (the default), nvlink; ib200,alpha=5us; "
                                "or alpha=2us,bandwidth=25GB.")] = "",
    inside: Annotated[str, Option("--inside", help="The link inside nodes of a two-level network.")] = "nvlink",
    source: Annotated[str, Option("--from", help="Take the link from this recorded run, as `fit` does.")] = "",
    counts: Annotated[bool, Option("--counts", help="Show rounds and bytes as fractions instead.")] = False,
    output_format: Annotated[str, Option("--format", help="table, json or csv.")] = "table",
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Predict times on a model network: per algorithm and size, crossovers, bounds."""
    from collbench import algorithms, console, forecast, grammar, networks, options, simulate
    from collbench.collectives import collective

    row = collective(name)
    options.choice("--format", output_format, ("table", *forecast.TEXTS))
    if counts and output_format != "table":
        raise UsageError("--counts comes as a table only", "leave --format out")
    smallest = grammar.parse_size(minbytes, "-b")
    largest = grammar.parse_size(maxbytes, "-e") if maxbytes else max(smallest, 1 << 30)
    sizes = grammar.sweep(smallest, largest, stepfactor) if row.factor != "-" else (0,)
    speed, note = networks.parse_link(link or "ib200"), ""
    if source:
        from collbench import fit

        if link:
            raise UsageError("--from and --link both say what the link is", "give one of them")
        speed, note = fit.link_from(source)
    model = networks.parse(network, n, speed, networks.parse_link(inside, "--inside"))
    words = [found.name for found in algorithms.of(row.name)] if algo == "all" else algo.split(",")
    view = simulate.forecast(row, n, model, [algorithms.find(row.name, word) for word in words], sizes)
    where = f"{network} network" + f", {inside} inside nodes" * isinstance(model, networks.TwoLevel)
    title = f"predicted: {row.name}, {n} ranks, {where}, {forecast.in_words(speed)}{'; ' * bool(note)}{note}"
    if output_format in forecast.TEXTS:
        return typer.echo(forecast.TEXTS[output_format](view, sizes, title))
    console.show(*(forecast.counts_table if counts else forecast.table)(view, sizes, title))


def fit(
    runs: Annotated[list[str] | None, Argument(metavar="RUN…", help="@last, @last~1, an id, a tag or a file.")] = None,
    backend: Annotated[str, Option("--backend", help="Only this backend.")] = "",
    output_format: Annotated[str, Option("--format", help="table or json.")] = "table",
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Fit latency and bandwidth of the model to recorded runs."""
    from collbench import console, fitted, options, store
    from collbench import fit as fitting

    options.choice("--format", output_format, ("table", "json"))
    files = [store.read(store.find(run)) for run in runs or ["@last"]]
    found = [one for file in files for one in fitting.series(file) if backend in ("", one.case.backend)]
    if not found:
        raise UsageError(f"there are no times{f' of {backend}' * bool(backend)} to fit", "collbench runs lists runs")
    fits, links = [fitting.fit(one) for one in found], fitting.links(found)
    if output_format == "json":
        typer.echo(fitted.as_json(fits, links))
    else:
        console.show(*fitted.table(fits, links))
    if all(one.refused for one in fits):
        raise typer.Exit(Exit.NO_VERDICT)


def export(
    collective: Annotated[str, Argument(help="As in `collbench list`.")],
    algorithm: Annotated[str, Argument(help="ring, chain:segments=64 …")],
    n: Annotated[int, Option("-n", "--ranks", min=1, help="Ranks.")] = 8,
    root: Annotated[int, Option("-r", "--root", min=0, help="Root rank.")] = 0,
    to: Annotated[str, Option("--to", help="msccl (XML), goal (LogGOPSim), dot (Graphviz) or json.")] = "json",
    nbytes: Annotated[str, Option("--bytes", help="Size of the collective, for goal.")] = "1M",
    output: Annotated[Path | None, Option("-o", "--output", help="Write to this file instead of the terminal.")] = None,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Write an algorithm's schedule for other tools: MSCCL XML, GOAL, DOT or JSON."""
    from collbench import algorithms, store
    from collbench import export as exports
    from collbench.grammar import parse_size

    if to not in exports.FORMATS:
        raise UsageError(f"--to '{to}' is unknown", f"one of {', '.join(exports.FORMATS)}")
    schedule = algorithms.find(collective, algorithm).schedule(n, root)
    text = exports.FORMATS[to](schedule, parse_size(nbytes, "--bytes"))
    if output is None:
        return typer.echo(text, nl=False)
    store.save(output, text)
