"""Options and arguments, a row each: a parameter of a command's function, what the command line
calls it, and its help text. A command's row counts before the row of its group, and that before
the row of all."""

from __future__ import annotations

import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints

from typer import Argument, Context, Option, Typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from collbench.cli.completion import add_completion
from collbench.cli.parameters import make_option
from collbench.core.errors import UsageError

ALGORITHM_OPTIONS = {"algo", "algorithm", "algorithms"}

MAY_BE_EMPTY = ("--base", "--head", "--title")


SIDE = "words: python:PATH, backend:NAME, algo:NAME, git:REV, NAME=VALUE"


OPTIONS: Mapping[str, Mapping[str, ParameterInfo]] = {
    "": {
        "name": Argument(metavar="COLLECTIVE", help="As in `collbench list`."),
        "root": Option("-r", "--root", min=0, help="Root rank."),
        "debug": Option("--debug", help="Show a traceback with an error."),
        "output_format": Option("--format", help="table or json."),
        "runs": Argument(metavar="RUN…", help="@last, @last~1, an id, a tag or a file."),
        "output": Option("--output", help="Save the run to this file or folder."),
        "ngpus": Option(
            "-g",
            "--ngpus",
            "--ranks",
            help="Ranks on this machine. Default: all GPUs, else all cores.",
        ),
        "launcher": Option("--launcher", help="As for `collbench all_reduce`."),
        "timeout": Option(
            "-T", "--timeout", min=0.1, help="Seconds without progress after which a run is hung."
        ),
        "inject": Option(
            "--inject",
            help=("Plant faults, as in `collbench all_reduce --inject`. Marks all that is shown."),
        ),
        "save": Option("--save/--no-save", help="Keep the run's records."),
        "plotlyjs": Option(
            "--plotlyjs",
            help=(
                "inline: a page needs nothing else; directory: plotly.min.js beside it, for"
                " several pages; cdn: from the network."
            ),
        ),
        "tag": Option("--tag", help="A name to find the run by."),
        "backend": Option(
            "--backend",
            help="gloo, nccl or another of torch's. Default: nccl with GPUs, else gloo.",
        ),
    },
    "show": {
        "algorithm": Argument(
            metavar="ALGORITHM",
            help="ring, or with parameters: chain:segments=4; native with --on.",
        ),
        "n": Option("-n", "--ranks", min=1, help="Ranks. Default 4, or those of --values."),
        "rank": Option("--rank", min=0, help="Only what this rank gets, sends and holds."),
        "step": Option("--step", min=0, help="Only this step, and the state before it."),
        "values": Option("--values", help="What ranks start with: 2,4,6;1,2,3;4,8,12."),
        "on": Option(
            "--on",
            help=(
                "Run it once on this backend instead, and show every rank's buffers; ALGORITHM"
                " native is the library's own."
            ),
        ),
        "html": Option("--html", help="Write a page with a slider over the steps instead."),
    },
    "prove": {
        "name": Argument(metavar="[COLLECTIVE]", help="Default: all."),
        "algorithm": Argument(metavar="[ALGORITHM]", help="Default: all of them."),
        "n": Option("-n", "--ranks", help="Numbers of ranks: 1..33, or 2,4,8."),
        "root": Option("-r", "--root", help="Root rank, or all. Default: 0 and the middle one."),
        "hazards": Option("--hazards", help="List cells that a step both reads and writes."),
    },
    "predict": {
        "n": Option("-n", "--ranks", min=2, help="Ranks."),
        "minbytes": Option(
            "-b", "--minbytes", help="Smallest size; K, M and G are 1024-based. Default 8."
        ),
        "maxbytes": Option(
            "-e", "--maxbytes", help="Largest size, included. Default 32M, or -b; without -b, 1G."
        ),
        "stepfactor": make_option("stepfactor"),
        "stepbytes": make_option("stepbytes"),
        "listed": make_option("listed"),
        "algo": Option("--algo", help="ring, chain:segments=8, a list, or all."),
        "network": Option("--network", help="flat, ring, two-level:8, torus:4x8, fat-tree:16:2."),
        "link": Option(
            "--link",
            help="ib200 (default), eth10, eth25, ib100, nvlink; or alpha=2us,bandwidth=25GB.",
        ),
        "inside": Option("--inside", help="The link inside nodes of a two-level network."),
        "source": Option("--from", help="Take the link from this recorded run, as `fit` does."),
        "counts": Option("--counts", help="Show rounds and bytes as fractions instead."),
        "output_format": Option("--format", help="table, json or csv."),
    },
    "fit": {
        "backend": Option("--backend", help="Only this backend."),
    },
    "export": {
        "collective": Argument(metavar="COLLECTIVE", help="As in `collbench list`."),
        "algorithm": Argument(metavar="ALGORITHM", help="ring, chain:segments=64 …"),
        "n": Option("-n", "--ranks", min=1, help="Ranks."),
        "to": Option(
            "--to",
            help=(
                "msccl (XML), msccl-executor (the same for msccl-executor-nccl and RCCL), goal"
                " (LogGOPSim), dot (Graphviz), json, or chakra (a trace a rank, in folder -o)."
            ),
        ),
        "nbytes": Option("--bytes", help="Size of the collective, for goal and chakra."),
        "output": Option("-o", "--output", help="Write to this file instead of the terminal."),
    },
    "pairs": {
        "run": Argument(metavar="[RUN]", help="Show this run's pairs and measure nothing."),
        "large": Option("--large", help="Size for bandwidth."),
        "small": Option("--small", help="Size for latency; 0 = none."),
        "among": Option(
            "--among",
            help="all, node (on one host), inter (on two) or rail (of one place on two).",
        ),
        "alone": Option(
            "--one-at-a-time", help="No two pairs at once: what links can do that others share."
        ),
        "one_way": Option(
            "--one-way",
            help=(
                "Each direction of a pair by itself, one after the other: twice as many"
                " measurements. Default: both at once."
            ),
        ),
        "topology": Option(
            "--topology",
            help=('Which rack hosts are in: TOML or JSON, a table [hosts] with node01 = "rack1".'),
        ),
        "iters": Option("-n", "--iters", min=1, help="Samples of each pair."),
        "warmup": Option("-w", "--warmup_iters", min=0, help="Samples before, not counted."),
        "resume": Option(
            "--resume", metavar="RUN", help="Continue with this run, which was cut short."
        ),
        "output_format": Option("--format", help="table, json, csv or md."),
        "dry_run": Option("--dry-run", help="Show what would run, and what it takes."),
    },
    "overlap": {
        "what": Argument(metavar="COLLECTIVE|RUN", help="Or a recorded run, to show again."),
        "beside": Option(
            "--with", help="sleep, spin, gemm, copy, or collectives: all_to_all@mod:2; a list."
        ),
        "split": make_option("groups"),
        "sizes": Option("--sizes", help="A list."),
        "backend": make_option("backends"),
        "algorithm": make_option("algorithms"),
        "dtype": Option("-d", "--datatype", help="As in `collbench list`."),
        "rounds": Option("-n", "--rounds", min=1, max=200, help="6 bound 1 row, 12 bound 100."),
        "max_time": Option("--max-time", help="Longest time spent on a row in a round."),
        "budget": make_option("budget", "Fit all rounds into this time, by fewer samples: 60s."),
        "output_format": Option("--format", help="table, json, csv or md."),
        "dry_run": Option("--dry-run", help="Show what would run, and what it takes."),
    },
    "locate": {
        "size": Option("--size", help="What each rank sends to its neighbour."),
        "tau": Option("--tau", help="How much slower than the rest counts as slow."),
        "tests": Option("--tests", min=1, help="Tests at most: a group's measurement is one."),
        "budget": Option("--budget", help="Begin no round after this time: 3m."),
        "iters": Option("-n", "--iters", min=1, help="Samples of each test."),
        "dry_run": Option("--dry-run", help="Show the plan only."),
    },
    "run": {
        "suites": Argument(
            metavar="SUITE", help="Built-in names (see `collbench list`) or TOML files."
        ),
        "ranks": make_option("ranks", "Ranks on this machine instead of the suite's; a list."),
        "backends": make_option("backends", "Backends instead of the suite's; a list."),
        "only": Option(
            "--only",
            metavar="COLLECTIVE,…",
            help="Of the suite, only these collectives. May be repeated.",
        ),
        "max_seconds": make_option("max_seconds", "Longest time spent measuring one case."),
        "launches": make_option(
            "launches",
            "Measure each suite so often, each time by ranks newly started: 10 on each side are"
            " what `collbench compare` can judge two runs by. In place of the suite's cycles, whose"
            " time they divide: at least 0.25s a case, unless --max-time gives each launch's.",
        ),
        "budget": make_option(
            "budget", "Fit each suite into this time, by fewer repetitions: 10m."
        ),
        "launcher": make_option("launcher"),
        "address": make_option("address"),
        "placement": make_option("placement"),
        "resume": Option(
            "--resume",
            metavar="RUN",
            help=(
                "Continue with this run, which was cut short: measure what is missing, into the"
                " same file."
            ),
        ),
        "file": Option(
            "--algo",
            metavar="FILE.py:NAME",
            help="Of a run to continue with: where its algorithm of a file is, ./line.py:line.",
        ),
        "inject": make_option(
            "inject",
            "Plant faults, as in `collbench all_reduce --inject`. Marks all that is shown.",
        ),
        "output_format": make_option("output_format", "auto, table, nccl, json, csv or md."),
        "output": make_option("output", "Save runs to this folder (one suite: or file)."),
        "save": make_option("save", "Keep the runs' records."),
        "tag": make_option("tag", "A name to find the runs by."),
        "dry_run": make_option("dry_run", "Show what would run, and what it takes."),
        "debug": make_option("debug"),
    },
    "ab": {
        "base": Option("--base", help=f"One side, {SIDE}. Empty: everything as it is."),
        "head": Option("--head", help="The other side; {tree} is where its git:REV was built."),
        "suite": Option("--suite", help="A built-in suite's name, or a TOML file."),
        "build": Option(
            "--build", help="Shell command that builds a git:REV in its checkout, once."
        ),
        "rebuild": Option("--rebuild", help="Build even what was built before."),
        "aa": Option("--aa", help="Compare base with itself: how often is this machine wrong?"),
        "rounds": Option(
            "--rounds", help="Fewest paired launches: of all rows, and again of those flagged."
        ),
        "budget": make_option(
            "budget",
            "Be done by then: 5m. Undecided rows get what time is left; none of it with 0.",
        ),
        "ranks": make_option("ranks", "Ranks instead of the suite's; a list."),
        "max_seconds": make_option(
            "max_seconds", "Longest time on a case in a launch. Default 0.25s."
        ),
        "timeout": make_option("timeout", "Seconds without progress: hung."),
        "launcher": Option("--launcher", help="As for `collbench all_reduce`."),
        "tau": Option("--tau", help="Smallest change that matters. Default: 3% to 10%, by row."),
        "strict": Option("--strict", help="Exit with 3 unless every row is decided."),
        "across_machines": Option("--across-machines", help="Judge in spite of other hardware."),
        "output": make_option("output", "Folder to save both runs to."),
        "out": Option("-o", help="Also write a .md, .html, .json or .xml (JUnit)."),
        "output_format": make_option("output_format", "Printed: table, md, json, html or junit."),
        "tag": make_option("tag", "A name to find the runs by."),
        "dry_run": make_option("dry_run", "Show what would run; build and run nothing."),
        "debug": make_option("debug"),
    },
    "compare": {
        "base": Argument(
            metavar="BASE",
            help=(
                "@last~1, an id, tag or file; several, with commas or as a folder, count as one;"
                " alone: a run of an `ab`."
            ),
        ),
        "head": Argument(metavar="HEAD", help="The run to judge against BASE."),
        "everything": Option("--all", help="List every row, however many there are."),
        "tau": Option(
            "--tau", help="Smallest change that matters: 5%. Default: 3 to 10 %, by row."
        ),
        "strict": Option("--strict", help="Exit with 3 unless every row is decided."),
        "gate_unpaired": Option("--gate-unpaired", help="Runs not measured in turns may fail too."),
        "across_machines": Option("--across-machines", help="Judge in spite of another machine."),
        "output_format": Option("--format", help="Print table, md, json, html or junit."),
        "out": Option(
            "-o",
            "--output",
            help="Also write this file: .md, .json, .html or .xml (JUnit). May be repeated.",
        ),
        "title": Option("--title", help="What the Markdown's heading begins with."),
        "marker": Option("--marker", help="Name in the Markdown's hidden first line."),
    },
    "health": {
        "runs": Argument(metavar="RUN…", help="Default: the last of a suite with tag health."),
        "output_format": Option(
            "--format",
            help="Print table, md, json, html, junit, prometheus, or line: one for a chat.",
        ),
        "out": Option(
            "-o",
            "--output",
            help=(
                "Also write this file: .html, .md, .json, .xml (JUnit) or .prom (for"
                " node_exporter). May be repeated."
            ),
        ),
        "nagios": Option(
            "--nagios",
            help=(
                "Print a monitoring plugin's line and exit as one: 0 OK, 1 warning, 2 critical, 3"
                " unknown."
            ),
        ),
        "on_unhealthy": Option(
            "--on-unhealthy",
            metavar="CMD",
            help=(
                "Where unhealthy, run this program (no shell) with the verdict as JSON on its"
                " standard input."
            ),
        ),
        "past": Option(
            "--history",
            metavar="URL",
            help=(
                "postgresql://user@host/database, or an SQLite file. Default: $COLLBENCH_HISTORY,"
                " else history.sqlite beside the runs."
            ),
        ),
        "no_history": Option(
            "--no-history", help="Neither judge against earlier nights nor add this one."
        ),
        "machine": Option(
            "--machine",
            metavar="NAME",
            help=(
                "Where it ran, as the history knows it. Default: the name of its host, or of all"
                " its hosts together; for hosts whose names change."
            ),
        ),
        "rerun": Option(
            "--rerun",
            help=(
                "Measure at once, in three fresh launches, what is slower than in earlier nights:"
                " only so is it confirmed."
            ),
        ),
        "inject": Option(
            "--inject",
            metavar="FAULTS",
            help=(
                "Test your alerts: measure suite nightly now, with faults planted"
                " (slow-rank:3:20%, jitter:3:50%, late:3:5ms, corrupt:3, hang:3, drop:3; a list),"
                " and judge that. Marks everything; no history takes it."
            ),
        ),
        "ngpus": Option(
            "-g",
            "--ngpus",
            "--ranks",
            help="Ranks for --inject and --locate. Default: all GPUs, else all cores.",
        ),
        "budget": Option(
            "--budget",
            help="Fit what --rerun or --inject (there, default 2m) measures into this time.",
        ),
        "locate": Option(
            "--locate",
            help=(
                "Also search, with ranks, for who makes a group slow, as collbench locate does;"
                " under a launcher too."
            ),
        ),
        "tests": Option(
            "--tests",
            min=1,
            help="Tests that --locate may take: one is a group's measurement. Default: 80.",
        ),
        "expect": Option(
            "--expect",
            metavar="FILE",
            help=(
                "Bandwidths expected of these machines, a TOML file of [[curve]] tables, each with"
                " the severity of a row below it: hint, warning or critical (of which the last two"
                " are unhealthy)."
            ),
        ),
        "title": Option("--title", help="Heading of the page and of the Markdown."),
    },
    "report": {
        "output": Option(
            "-o",
            "--output",
            help=("Write to this file. Default: collbench-report.html; Markdown: the terminal."),
        ),
        "output_format": Option("--format", help="html or md. Default: as -o ends, else html."),
        "png": Option("--png", help="Also write the figures to this folder, as collbench-*.png."),
        "title": Option("--title", help="Heading of the report."),
        "compare": Option("--compare", help="Compare BASE and HEAD, as two runs of one `ab` are."),
    },
    "import": {
        "files": Argument(metavar="FILE…", help="Logs, gzipped or not; - reads standard input."),
        "kind": Option("--from", help="auto, nccl-tests, rccl-tests, nccl-inspector, osu or imb."),
        "collective": Option("--collective", help="What was run, where the log does not say."),
        "ranks": Option("-g", "--ranks", min=1, help="Ranks, where a log does not say (OSU)."),
        "tag": Option("--tag", help="A name to find the runs by."),
        "output": Option("-o", "--output", help="Save runs to this folder (one log: or file)."),
        "host": Option("--host", help="Where it ran, where the log does not say."),
    },
    "runs": {
        "words": Argument(metavar="WORD…", help="Parts of the id, tag or arguments: all of them."),
        "last": Option("--last", min=1, help="Show this many, newest last."),
        "delete": Option("--delete", help="Delete the runs that the words name; asks first."),
        "yes": Option("--yes", help="Delete without asking."),
        "output_format": Option("--format", help="table, json or csv."),
    },
    "history": {
        "minbytes": Option(
            "-b", "--minbytes", help="Only sizes from this: bytes, or with K, M, G."
        ),
        "maxbytes": Option("-e", "--maxbytes", help="Only sizes up to this."),
        "backend": Option("--backend", help="Only these backends; a list."),
        "machine": Option(
            "--machine", help="Of which machine. Default: this one, or the only one there is."
        ),
        "ranks": Option("-g", "--ngpus", "--ranks", help="Only so many ranks; a list."),
        "history": Option(
            "--history",
            metavar="URL",
            help=(
                "postgresql://user@host/database, or an SQLite file. Default: $COLLBENCH_HISTORY,"
                " else history.sqlite beside the runs."
            ),
        ),
        "only": Option(
            "--only", metavar="COLLECTIVE,…", help="Only these collectives. May be repeated."
        ),
        "commit": Option("--commit", metavar="SHA", help="The commit that changed the level."),
    },
    "history add": {
        "machine": Option(
            "--machine",
            help=(
                "Where it ran. Default: the name of its host, or of all its hosts together; for"
                " hosts whose names change."
            ),
        ),
    },
    "history list": {
        "last": Option("--last", min=1, help="Show so many nights, newest last."),
    },
    "history trend": {
        "tau": Option("--tau", help="Smallest change that matters."),
        "everything": Option("--all", help="List rows without a change too."),
        "output_format": Option("--format", help="Print table or json."),
        "page": Option("--html", metavar="FILE", help="Also write this offline page."),
    },
    "history baseline": {
        "output": Option(
            "-o",
            "--output",
            help="Write this file. Default: baselines/MACHINE-NIGHT.json, for a repository.",
        ),
    },
    "history baseline learn": {
        "reason": Option("--reason", help="Why this is how it should be."),
    },
    "history baseline accept": {
        "reason": Option("--reason", help="Why the level changed, and why that is right."),
        "since": Option(
            "--since",
            metavar="NIGHT",
            help="The first night of the new level, as 2026-03-01. Default: the last one.",
        ),
    },
    "history baseline load": {
        "files": Argument(metavar="FILE…", help="Baselines, as kept in a repository."),
    },
}


def add_options(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """``function`` with the rows of the command ``name`` on its parameters, as typer reads them. A
    parameter that is annotated itself keeps its annotation."""
    ends = [index for index, letter in enumerate(name) if letter == " "]
    rows = ChainMap(*(dict(OPTIONS.get(name[:end], {})) for end in (len(name), *ends[::-1], 0)))
    hints = get_type_hints(function, include_extras=True)
    for key in hints.keys() & rows.keys():
        if get_origin(hints[key]) is not Annotated:
            hints[key] = Annotated[hints[key], add_completion(rows[key])]

    parameters = dict(inspect.signature(function).parameters)
    takes_context = "ctx" in parameters

    @wraps(function)
    def command(ctx: Context, **values: Any) -> None:
        _refuse_empty(ctx)
        _load_algorithms(ctx, values)
        function(**({"ctx": ctx} if takes_context else {}), **values)

    hints["ctx"] = Context
    parameters["ctx"] = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY)
    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            parameter.replace(annotation=hints[key], kind=inspect.Parameter.KEYWORD_ONLY)
            for key, parameter in parameters.items()
        ]
    )
    return command


def _load_algorithms(ctx: Context, values: dict[str, Any]) -> None:
    """Have algorithms in files of the user's own (./line.py:line) known from here on, by the names
    that then stand in ``values``."""
    for key in values.keys() & ALGORITHM_OPTIONS:
        spelling = values[key]
        if spelling and ".py:" in str(spelling):
            from collbench.core import algorithms
            from collbench.core.collectives import COLLECTIVES, find_collective

            name = values.get("name") or values.get("collective") or ctx.info_name or ""
            collective_names = {
                alias for row in COLLECTIVES.values() for alias in (row.name, *row.aliases)
            }
            owner = find_collective(name).name if name in collective_names else ""
            values[key] = algorithms.add_file(spelling, owner)


def _refuse_empty(ctx: Context) -> None:
    """Raises UsageError for an option that was given as nothing, as an unset variable is."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.params.get(name)
        values = given if isinstance(given, list | tuple) else [given]
        source = ctx.get_parameter_source(name)
        on_command_line = source is not None and source.name == "COMMANDLINE"
        blank = any(isinstance(word, str) and not word.strip(" ,") for word in values)
        flag = parameter.opts[0]
        if on_command_line and blank and flag not in MAY_BE_EMPTY:
            label = flag if flag.startswith("-") else getattr(parameter, "metavar", "") or flag
            raise UsageError(f"{label} is empty", "leave it out, or is a variable not set?")


def make_app(
    commands: Mapping[str, Callable[..., None]],
    text: str | None = None,
    kind: type[TyperCommand] = TyperCommand,
) -> Typer:
    """An app of these commands, by their full names; ``text`` in place of their docstrings."""
    app = Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    for name, function in commands.items():
        app.command(name.rpartition(" ")[2], cls=kind, help=text)(add_options(name, function))
    return app
