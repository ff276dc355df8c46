"""`collbench ab`: one experiment from its options to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from collbench.cli.families import Debug, Imports, LauncherOptions, RunsTag
from collbench.cli.parameters import make_option
from collbench.core.errors import CannotRun, CollbenchError, Exit, NoVerdict, UsageError
from collbench.core.text import format_clock, plain_line
from collbench.features.compare.command import Strict
from collbench.survive.signals import interrupts

if TYPE_CHECKING:
    from collbench.features.compare.ab.experiment import Order
    from collbench.features.compare.ab.forecast import Forecast
    from collbench.features.compare.comparison import Rules
    from collbench.run.launch.interpreter import SideName, Variant
    from collbench.run.launch.places import Places
    from collbench.run.reporter import Step
    from collbench.suite.sweep import Suite


SIDE = "words: python:PATH, backend:NAME, algo:NAME, git:REV, NAME=VALUE"


@dataclass(frozen=True, kw_only=True)
class AbOptions:
    """The sides to compare, how, and where their runs and the comparison go."""

    base: Annotated[
        str, Option("--base", help=f"One side, {SIDE}. Empty: everything as it is.")
    ] = ""
    head: Annotated[
        str, Option("--head", help="The other side; {tree} is where its git:REV was built.")
    ] = ""
    suite: Annotated[str, Option("--suite", help="A built-in suite's name, or a TOML file.")] = "pr"
    build: Annotated[
        str, Option("--build", help="Shell command that builds a git:REV in its checkout, once.")
    ] = ""
    rebuild: Annotated[bool, Option("--rebuild", help="Build even what was built before.")] = False
    aa: Annotated[
        bool, Option("--aa", help="Compare base with itself: how often is this machine wrong?")
    ] = False
    rounds: Annotated[
        str,
        Option(
            "--rounds", help="Fewest pairs of launches: of all rows, and again of those flagged."
        ),
    ] = "8,12"
    budget: Annotated[
        str,
        make_option(
            "budget",
            "Be done by then: 5m. Undecided rows get what time is left; none of it with 0.",
        ),
    ] = ""
    ranks: Annotated[str, make_option("ranks", "Ranks instead of the suite's; a list.")] = ""
    max_seconds: Annotated[
        str, make_option("max_seconds", "Longest time on a case in a launch. Default 0.25s.")
    ] = ""
    timeout: Annotated[
        float | None,
        make_option("timeout", "Seconds without progress: hung."),
    ] = None
    path: Annotated[str, make_option("paths")] = ""
    imports: Imports = ""
    where: LauncherOptions
    tau: Annotated[
        str, Option("--tau", help="Smallest change that matters. Default: 3% to 10%, by row.")
    ] = ""
    strict: Strict = False
    across_machines: Annotated[
        bool, Option("--across-machines", help="Judge in spite of other hardware.")
    ] = False
    output: Annotated[Path | None, make_option("output", "Folder to save both runs to.")] = None
    out: Annotated[
        list[Path] | None, Option("-o", help="Also write a .md, .html, .json or .xml (JUnit).")
    ] = None
    output_format: Annotated[
        str, make_option("output_format", "Printed: table, md, json, html or junit.")
    ] = "table"
    tag: RunsTag = ""
    dry_run: Annotated[
        bool, make_option("dry_run", "Show what would run; build and run nothing.")
    ] = False
    debug: Debug = False


def ab(options: AbOptions) -> None:
    """Compare two libraries, settings or algorithms, in turns."""
    from collbench.features.compare.ab.experiment import Order
    from collbench.features.compare.comparison import compare_runs
    from collbench.run.launch import folders

    with interrupts, folders.make_private() as folder, ExitStack() as stack:
        places = _join_places(options, folder, stack)
        sides, rules = _parse_sides(options), _make_rules(options)
        _refuse_outputs(options)
        order = Order(
            suite=_make_suite(options, sides),
            variants=sides,
            command=sys.argv,
            rounds=_parse_rounds(options.rounds),
            judge=lambda base, head: compare_runs(base, head, rules, under_way=True).rows,
            budget=_parse_budget(options.budget),
            places=places,
            aa=options.aa,
            output=options.output,
            tag=options.tag,
        )
        if options.dry_run:
            return _show_plan(order)
        order = _build_homes(order, options, folder, stack)
        raise typer.Exit(_execute_order(order, rules, options))


def _join_places(options: AbOptions, folder: Path, stack: ExitStack) -> Places | None:
    """Rank 0's places where a launcher has started this process; another rank keeps one here, and
    then ends."""
    from collbench.run.launch import join, launched

    timeout, dry_run = options.timeout, options.dry_run
    member = join.detect_launcher(options.where.launcher)
    if member and member.rank:
        sides = partial(_parse_sides, options)
        raise typer.Exit(0 if dry_run else launched.serve_place(member, timeout, sides))
    gathered = launched.gather_places(member, timeout, folder) if member and not dry_run else None
    return stack.enter_context(gathered) if gathered else None


def _parse_budget(budget: str) -> float | None:
    from collbench.suite import grammar

    return grammar.parse_duration(budget, "--budget") if budget else None


def _refuse_outputs(options: AbOptions) -> None:
    """Raises UsageError for a tag that could not name a run, or what cannot be written."""
    from collbench.features.compare import command as compare
    from collbench.suite import grammar

    grammar.refuse_tag(options.tag)
    compare.check_outputs(options.output_format, options.out or [])
    if options.output is not None and not options.dry_run:
        _make_output_folder(options.output)


def _make_rules(options: AbOptions) -> Rules:
    from collbench.features.compare.comparison import Rules
    from collbench.suite import grammar

    return Rules(
        tau=grammar.parse_share(options.tau, "--tau") if options.tau else None,
        strict=options.strict,
        across_machines=options.across_machines,
    )


def _make_suite(options: AbOptions, sides: Mapping[SideName, Variant]) -> Suite:
    """The suite with what the command line says in place of it. Raises UsageError where a side's
    backend or algorithm is unknown."""
    from msgspec.structs import replace

    from collbench.cli.options import change_suite
    from collbench.features.compare.ab import variants
    from collbench.suite import toml

    suite = change_suite(
        toml.load_suite(options.suite),
        ngpus=options.ranks,
        max_time=options.max_seconds,
        path=options.path,
        other_backends=[side.backend for side in sides.values() if side.backend],
        launcher=options.where.launcher,
        source=options.where.find_source(),
    )
    for side, variant in sides.items():
        variants.refuse_unknown(variant, suite, f"--{side}")
    if options.timeout is None:
        return suite
    return replace(suite, policy=replace(suite.policy, timeout=options.timeout))


def _build_homes(order: Order, options: AbOptions, folder: Path, stack: ExitStack) -> Order:
    """The order with a home for each side, built where it is a revision, and looked for at all
    places, which ``stack`` gives back."""
    from msgspec.structs import replace

    from collbench.features.compare.ab import variants
    from collbench.run.launch import join

    build = stack.enter_context(closing(variants.Build(options.build, options.rebuild)))
    homes = variants.settle_homes(order.variants, build, folder)
    source = options.where.find_source()
    seconds = order.suite.policy.timeout or join.SECONDS
    places = (
        stack.enter_context(closing(source.hold_places(order.suite, seconds)))
        if source
        else order.places
    )
    if places:
        homes = {name: places.resolve(home, name) for name, home in homes.items()}
    return replace(order, homes=homes, places=places)


def _make_output_folder(output: Path) -> None:
    """Make the folder that both runs go to. Raises UsageError and CannotRun."""
    from collbench.cli.outputs import SUFFIXES

    if output.suffix in SUFFIXES and not output.is_dir():
        raise UsageError(
            f"--output {output}: a file is named, but both runs go to a folder",
            f"name a folder; -o {output} writes the comparison",
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(
            f"--output {output} is a file", "give a folder: ab saves two runs"
        ) from None
    except OSError as e:
        raise CannotRun(
            f"cannot make --output {output}: {e.strerror}", "choose another folder"
        ) from e


def _parse_sides(options: AbOptions) -> dict[SideName, Variant]:
    from collbench.features.compare.ab import variants
    from collbench.suite import toml

    base, head, aa = options.base, options.head, options.aa
    if aa and head:
        raise UsageError("--aa compares --base with itself", "leave --head out")
    if not aa and base == head:
        raise UsageError(
            "--base and --head are the same",
            f"say by what they differ ({variants.EXAMPLE}), or use --aa for a side with itself",
        )
    sides: dict[SideName, Variant] = {
        "base": variants.parse_variant(base, "--base"),
        "head": variants.parse_variant(base if aa else head, "--head"),
    }
    if (options.build or options.rebuild) and not any(side.revision for side in sides.values()):
        raise UsageError(
            f"{'--build' if options.build else '--rebuild'}: no side has a git:REV to build",
            'as in --base "git:main python:{tree}/.venv"',
        )
    collectives = list(toml.load_suite(options.suite).values("collectives"))
    return {
        name: variants.load_files(side, f"--{name}", collectives) for name, side in sides.items()
    }


def _parse_rounds(text: str) -> tuple[int, int]:
    numbers = text.split(",")
    if len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(
            f"--rounds '{text}': two numbers are expected", "for example --rounds 8,12"
        )
    first, second = map(int, numbers)
    if first < 6 or second < 6:
        raise UsageError(
            f"--rounds {text}: fewer than 6 pairs have no 95 % interval",
            "give at least --rounds 6,6",
        )
    return first, second


def _show_plan(order: Order) -> None:
    from collbench.cli.measure import fake_gpus
    from collbench.features.compare.ab import variants
    from collbench.features.compare.ab.experiment import refuse_drop
    from collbench.features.compare.ab.forecast import forecast_experiment
    from collbench.features.compare.ab.matching import SIDES, match_rows, refuse_nothing
    from collbench.features.compare.views import comparison as views
    from collbench.show import terminal

    for name, side in order.variants.items():
        variants.refuse_unfit(side, f"--{name}")
    rows, skips = match_rows(order.suite, order.variants)
    expected = forecast_experiment(order, rows)
    sides = [f"{side}: {order.variants[side].text or 'everything as it is'}" for side in SIDES]
    listed = views.describe_plan(
        [(row.jobs["base"].case, row.jobs["head"].case) for row in rows],
        [(side, skip) for side in SIDES for skip in skips[side]],
        [row.jobs["base"].case for row in expected.dropped],
        expected.reason,
    )
    cases = [job.case for row in rows for job in row.jobs.values()]
    cases += [skip.case for side in SIDES for skip in skips[side]]
    fake = fake_gpus({case.backend for case in cases})
    times = [_describe_time(order, expected)] if expected.rows else []
    terminal.print_blocks(*sides, *listed, *times, *fake)
    refuse_nothing(rows, skips, order.command)
    if not expected.rows:
        raise refuse_drop(expected.reason, order.command, cases)


def _describe_time(order: Order, expected: Forecast) -> str:
    """A sentence on how long the experiment will take, as far as that is known before."""
    from collbench.core.text import format_count
    from collbench.features.compare.ab.rounds import BUDGET

    first, _ = order.rounds
    budget = BUDGET if order.budget is None else order.budget
    most = min(expected.most, budget) if order.budget else expected.most
    about = (
        f"{format_count(len(expected.rows), 'row')}, {first} pairs: about"
        f" {format_clock(expected.seconds)}"
    )
    about += f" (up to {format_clock(most)} if noisy)" if most > expected.seconds else ""
    continuation = f", and until {format_clock(budget)} rows without a verdict"
    return f"{about}; then a second stage for what they flag" + continuation * (
        expected.seconds < budget
    )


def _execute_order(order: Order, rules: Rules, options: AbOptions) -> Exit:
    """Run the experiment, compare its sides and show the result. A broken or interrupted experiment
    is judged as far as it came."""
    from collbench.cli import outputs
    from collbench.features.compare import command as judge
    from collbench.features.compare import comparison as compare
    from collbench.features.compare import false_alarms as alarms
    from collbench.features.compare.ab.experiment import Experiment
    from collbench.features.compare.views import comparison as views
    from collbench.run import session
    from collbench.show.live import Watch

    printed, out = options.output_format, options.out or []
    problem: Exception | None = None
    with Watch() as watch:

        def step(at: Step) -> None:
            interrupts.check()
            watch.step(at)

        experiment = Experiment(order, step)
        try:
            experiment.run()
            code, note = Exit.OK, ""
        except (Exception, KeyboardInterrupt) as e:
            if not experiment.begun:
                raise
            problem, code, note = session.classify_ending(e)
    comparison = None
    try:
        comparison = compare.compare_runs(*experiment.files, rules, under_way=True)
        if code:
            comparison = compare.end_early(comparison, code, note)
        elif experiment.shortfall:
            comparison = compare.add_note(comparison, experiment.shortfall)
        code = comparison.exit
    except (UsageError, NoVerdict):  # it broke before there was anything to compare
        code = code or Exit.NO_VERDICT
    try:
        paths = experiment.end(code, note)
        print(
            f"saved: {plain_line(str(paths[0]))}\n       {plain_line(str(paths[1]))}",
            file=sys.stderr,
        )
    except CollbenchError as e:
        problem = problem or e
    if comparison is not None:
        name = str(experiment.files[0].path) if order.output else experiment.name
        again = judge.command_for_all([name], rules)
        document = views.make_document(
            comparison, alarms=alarms.find_alarms(comparison), again=again
        )
        if problem is None:
            judge.deliver_comparison(comparison, document, printed, out)
        else:  # which is told of once
            outputs.deliver_document(document, printed, out)
    if problem is not None:
        raise problem
    return code
