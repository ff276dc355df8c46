"""`collbench ab`: one experiment from its options to its exit code."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.errors import CannotRun, CollbenchError, Exit, UsageError

if TYPE_CHECKING:
    from collbench.rounds import Order
    from collbench.variants import Name, Variant
    from collbench.watch import Step

Option = typer.Option
SIDE = "words: python:PATH, backend:NAME, algo:NAME, git:REV, NAME=VALUE"


def ab(
    base: Annotated[str, Option("--base", help=f"One side, {SIDE}. Empty: everything as it is.")] = "",
    head: Annotated[str, Option("--head", help="The other side; {tree} is where its git:REV was built.")] = "",
    suite: Annotated[str, Option("--suite", help="A built-in suite's name, or a TOML file.")] = "pr",
    build: Annotated[str, Option("--build", help="Shell command that builds a git:REV in its checkout, once.")] = "",
    rebuild: Annotated[bool, Option("--rebuild", help="Build even what was built before.")] = False,
    aa: Annotated[bool, Option("--aa", help="Compare base with itself: how often is this machine wrong?")] = False,
    rounds: Annotated[
        str, Option("--rounds", help="Paired launches of all rows, and (more if need be) of flagged.")
    ] = "8,12",
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks instead of the suite's; a list.")] = "",
    max_time: Annotated[str, Option("--max-time", help="Longest time on a case in a launch. Default 0.25s.")] = "",
    timeout: Annotated[float | None, Option("-T", "--timeout", min=0.1, help="Seconds without progress: hung.")] = None,
    tau: Annotated[str, Option("--tau", help="Smallest change that matters. Default: 3% to 10%, see README.")] = "",
    strict: Annotated[bool, Option("--strict", help="Rows without a verdict fail, with exit code 3.")] = False,
    across_machines: Annotated[bool, Option("--across-machines", help="Judge in spite of other hardware.")] = False,
    output: Annotated[Path | None, Option("--output", help="Folder to save both runs to.")] = None,
    out: Annotated[list[Path] | None, Option("-o", help="Also write a .md, .html, .json or .xml (JUnit).")] = None,
    output_format: Annotated[str, Option("--format", help="Printed: table, md, json, html or junit.")] = "table",
    tag: Annotated[str, Option("--tag", help="A name to find the runs by.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run; build and run nothing.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:
    """Compare two libraries, settings or algorithms fairly: paired launches, in turns, on one machine."""
    import msgspec

    from collbench import catalogue, grammar, judge, options, variants
    from collbench import rounds as experiments
    from collbench.compare import Rules
    from collbench.launch import join
    from collbench.variants import Build

    if member := join.detect():
        raise CannotRun(f"ab starts ranks of its own, and {member.launcher} has started this one", "run it without")
    sides = _sides(base, head, aa)
    judge.check(output_format, out or [])
    if output is not None and not dry_run:
        _folder(output)
    wanted = options.changed(catalogue.load(suite), ngpus=ngpus, max_time=max_time)
    if timeout is not None:
        wanted = msgspec.structs.replace(wanted, policy=msgspec.structs.replace(wanted.policy, timeout=timeout))
    rules = Rules(
        tau=grammar.parse_share(tau, "--tau") if tau else None, strict=strict, across_machines=across_machines
    )
    order = experiments.Order(
        suite=wanted,
        variants=sides,
        command=sys.argv,
        rounds=_rounds(rounds),
        rules=rules,
        aa=aa,
        output=output,
        tag=tag,
    )
    if dry_run:
        return _show_plan(order)
    with _Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="collbench-ab-") as folder:
        homes = variants.homes(sides, Build(build, rebuild), Path(folder))
        order = msgspec.structs.replace(order, homes=homes)
        raise typer.Exit(_execute(order, interrupts, out or [], output_format))


def _folder(output: Path) -> None:
    """Make the folder that both runs go to. Raises UsageError and CannotRun."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"--output {output} is a file", "ab saves two runs: give a folder") from None
    except OSError as e:
        raise CannotRun(f"cannot make --output {output}: {e.strerror}", "choose another folder") from e


def _sides(base: str, head: str, aa: bool) -> dict[Name, Variant]:
    from collbench import variants

    if aa and head:
        raise UsageError("--aa compares --base with itself", "leave --head out")
    if not aa and base == head:
        raise UsageError(
            "--base and --head are the same",
            f"say by what they differ ({variants.EXAMPLE}), or --aa to compare a side with itself",
        )
    return {"base": variants.parse(base, "--base"), "head": variants.parse(base if aa else head, "--head")}


def _rounds(text: str) -> tuple[int, int]:
    numbers = text.split(",")
    if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--rounds '{text}': two numbers are expected", "for example --rounds 8,12")
    first, second = map(int, numbers)
    if first < 6 or second < 6:
        raise UsageError(f"--rounds {text}: fewer than 6 pairs have no 95 % interval", "at least --rounds 6,6")
    return first, second


def _show_plan(order: Order) -> None:
    from collbench import console, plan
    from collbench.formats import counted
    from collbench.rounds import SIDES, rows
    from collbench.summary import clock

    found, skips = rows(order)
    launches = 2 * order.rounds[0]
    policy = order.piloted
    seconds = launches * sum(plan.seconds(row.jobs[side], policy) for row in found for side in SIDES) / len(SIDES)
    sides = [f"{side}: {order.variants[side].text or 'everything as it is'}" for side in SIDES]
    listed = [f"  {row.key}" for row in found]
    left_out = [f"  {side}, left out: {skip.case.key}: {skip.reason}" for side in SIDES for skip in skips[side]]
    about = f"{counted(len(found), 'row')}, {order.rounds[0]} paired launches: about {clock(seconds)}"
    console.show(*sides, f"{about}, and a second stage for what it flags", *listed, *left_out)


def _execute(order: Order, interrupts: _Interrupts, out: list[Path], output_format: str) -> Exit:
    """Run, compare, show. A broken or interrupted experiment is judged as far as it came."""
    from collbench import compare, judge
    from collbench.rounds import Experiment
    from collbench.watch import Watch

    problem: CollbenchError | None = None
    with Watch() as watch:

        def step(at: Step) -> None:
            interrupts.check()
            watch.step(at)

        experiment = Experiment(order, step)
        try:
            experiment.run()
            code, note = Exit.OK, ""
        except KeyboardInterrupt:
            code, note = Exit.INTERRUPTED, "interrupted"
        except CollbenchError as e:
            problem, code, note = e, e.exit, e.message
    comparison = None
    try:
        comparison = compare.compare(*experiment.files, order.rules, under_way=True)
        code = code or comparison.exit
    except UsageError:  # it broke before there was anything to compare
        code = code or Exit.NO_VERDICT
    try:
        paths = experiment.end(code, note)
        print(f"saved: {paths[0]}\n       {paths[1]}", file=sys.stderr)
    except CollbenchError as e:
        problem = problem or e
    if comparison is not None:
        judge.tell(comparison, output_format, out)
    if problem is not None:
        raise problem
    return code


class _Interrupts:
    """Ctrl-C, and termination alike: at once, or at the next step where the exception was lost on its way (Python drops
    those raised in destructors)."""

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> _Interrupts:
        self._before = [(number, signal.signal(number, self._stop)) for number in (signal.SIGINT, signal.SIGTERM)]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt
