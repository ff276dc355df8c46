"""The command line: parse, call one function, set the exit code. Everything heavy is imported inside commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from collbench import ab, archive, bring, checkup, judge, locating, pairing, publish, study
from collbench.collectives import COLLECTIVES, OPS, collective
from collbench.dtypes import DTYPES
from collbench.errors import CollbenchError, Exit, UsageError

if TYPE_CHECKING:
    from collbench.launch.on_ray import Where
    from collbench.session import Order
    from collbench.suite import Suite

Option = typer.Option
Launched = Annotated[
    str,
    Option(
        "--launcher",
        help="What started this process: auto, local (nothing: it starts ranks itself), torchrun, mpirun, flux, srun, environment (RANK, WORLD_SIZE, MASTER_ADDR), pbs; or ray (it starts ranks on a Ray cluster).",
    ),
]
Address = Annotated[
    str,
    Option(
        "--address",
        metavar="HOST:PORT",
        help="With --launcher ray: the cluster. Default: auto, the one this machine is part of.",
    ),
]
Placement = Annotated[
    str,
    Option("--placement", help="With --launcher ray: pack (ranks on few nodes) or spread (on many). Default: pack."),
]
DIFFERENCES = """
Letters mean what they mean in nccl-tests, with these differences: sizes double unless -f or -i says otherwise; usage
errors exit 2; times are those of the slowest rank (-a 3); lists sweep the product (-d float,half -g 2,4); per-rank
blocks are not rounded to 16 bytes unless --align 16; -n fixes the number of samples, without it they are taken until
the median is known well enough (--precision).
"""
EXITS = "Exit codes: 0 fine, 1 judged bad, 2 usage, 3 no verdict, 4 timeout or hang, 5 cannot run here, 7 wrong data, 130 interrupted."


class _Lazy(TyperGroup):
    """Builds a command's options only when it is called, so that `collbench --help` costs no more than its text."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COLLECTIVES, *COMMANDS, *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in GROUPS:
            return typer.main.get_command(GROUPS[cmd_name]())
        try:
            name = collective(cmd_name).name
        except UsageError:
            function = COMMANDS.get(cmd_name)
            return _command(cmd_name, function, function.__doc__ or "") if function else None
        return _command(name, _measure, _help(name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Measure"):
            formatter.write_dl([(row.name, row.meaning) for row in COLLECTIVES.values()])
        with formatter.section("And"):
            formatter.write_dl([(name, (f.__doc__ or "").splitlines()[0]) for name, f in (COMMANDS | GROUPS).items()])


def _command(name: str, function: Callable[..., None], text: str) -> TyperCommand:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, help=text)(function)
    command = typer.main.get_command(app)
    command.name = name
    return command  # type: ignore[return-value]


def _help(name: str) -> str:
    row = COLLECTIVES[name]
    sizes = "SIZE is the whole buffer, divided over the ranks." if row.total else "SIZE is each rank's buffer."
    if name == "barrier":
        sizes = "There is no SIZE."
    factor = "It moves no data: latency only." if row.factor == "-" else f"busbw = algbw x {row.factor}."
    place = {
        "same": "In place, both buffers are one.",
        "block of recv": "In place, a rank sends from its own block of the receive buffer.",
        "block of send": "In place, a rank receives into its own block of the send buffer.",
        None: "It has no in-place form.",
    }[row.in_place]
    return f"{row.meaning}\n\n{sizes} {factor} {place}\n\n{' '.join(DIFFERENCES.split())}\n\n{EXITS}"


def _measure(
    ctx: typer.Context,
    minbytes: Annotated[str, Option("-b", "--minbytes", help="Smallest size: bytes, or with K, M, G (1024-based).")] = "",
    maxbytes: Annotated[str, Option("-e", "--maxbytes", help="Largest size, included. Default 32M, or -b.")] = "",
    stepfactor: Annotated[float | None, Option("-f", "--stepfactor", help="Multiply sizes by this; 1.5 works. Default 2.")] = None,
    stepbytes: Annotated[str, Option("-i", "--stepbytes", help="Add this to sizes instead of multiplying.")] = "",
    sizes: Annotated[str, Option("--sizes", help="These sizes instead of a sweep: 8,1K,3M.")] = "",
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks on this machine, a list sweeps: 2,4. Default: all GPUs, else all cores (at least 2).")] = "",
    datatype: Annotated[str, Option("-d", "--datatype", help=f"{', '.join(DTYPES)}, a list, or all.")] = "float",
    op: Annotated[str, Option("-o", "--op", help=f"{', '.join(OPS)}, a list, or all.")] = "sum",
    root: Annotated[str, Option("-r", "--root", help="Root rank, a list, or all.")] = "0",
    backend: Annotated[str, Option("--backend", help="gloo, nccl, any other torch.distributed backend, shm (memory the ranks share), symm (the same on GPUs), torch_one_shot, torch_two_shot, torch_multimem, torch_multimem_one_shot (torch's kernels there), or model (predicts); a list. Default: nccl with GPUs, else gloo.")] = "",
    algo: Annotated[str, Option("--algo", help="native (the library's own choice) or a reference algorithm (see `collbench list`), with parameters as in chain:segments=64; a list.")] = "native",
    splits: Annotated[str, Option("--splits", help="all_to_allv: uniform, spread:0.5, zipf:1, matrix:FILE; a list.")] = "uniform",
    split: Annotated[str, Option("--split", help="Measure disjoint groups of ranks at once, a row each: mod:8, div:8, and:0x7, or:1, node (ranks of a host) or rail (of one place on each host). Default: as NCCL_TESTS_SPLIT says, else none.")] = "",
    place: Annotated[str, Option("--place", help="out (of place), in, or both.")] = "both",
    mode: Annotated[str, Option("--mode", help="isolated (ranks aligned before each call), streaming (nccl-tests' back-to-back cadence), graph (calls captured in a CUDA graph), host (calls as a program makes them); a list. Default: streaming on nccl, else isolated.")] = "",
    env: Annotated[list[str] | None, Option("--env", help="NAME=V1,V2: one world of ranks per value. May be repeated.")] = None,
    align: Annotated[str, Option("--align", help="Round each rank's block down to a multiple of this (nccl-tests: 16).")] = "1",
    iters: Annotated[int | None, Option("-n", "--iters", min=1, help="Exactly this many samples; in streaming mode, calls per sample; in graph mode, calls captured (at least one per buffer).")] = None,
    warmup_iters: Annotated[int | None, Option("-w", "--warmup_iters", min=0, help="Exactly this many warm-up samples. Default: until times settle.")] = None,
    run_cycles: Annotated[int, Option("-N", "--run_cycles", min=1, help="Repeat the whole sweep.")] = 1,
    agg_iters: Annotated[int, Option("-m", "--agg_iters", min=1, help="Calls issued together before waiting; times are per call.")] = 1,
    precision: Annotated[str, Option("--precision", help="Stop when the median's 95 % interval is this narrow: 1%. Default 2 %, 5 % if oversubscribed.")] = "",
    max_time: Annotated[str, Option("--max-time", help="Longest time spent measuring one case. Default 10s, 5s if oversubscribed.")] = "",
    budget: Annotated[str, Option("--budget", help="Fit the whole sweep into this time, by fewer repetitions: 10m.")] = "",
    check: Annotated[int, Option("-c", "--check", min=0, help="Checks of the data per case (bitwise, before and after timing); 0 = none.")] = 1,
    blocking: Annotated[int, Option("-z", "--blocking", min=0, max=3, help="1: barrier after each call, in its time; 2: as --mode host; 3: as --mode isolated.")] = 0,
    cudagraph: Annotated[int, Option("-G", "--cudagraph", min=0, help="Measure in graph mode, with so many replays per sample (--mode graph: 1); 0 = no.")] = 0,
    launcher: Launched = "auto",
    address: Address = "",
    placement: Placement = "",
    timeout: Annotated[float | None, Option("-T", "--timeout", min=0.1, help="Seconds without progress after which a run is hung. Default: 30, more for large sizes.")] = None,
    average: Annotated[int, Option("-a", "--average", min=0, max=3, help="Time shown in nccl-tests' formats: 0 rank 0, 1 mean, 2 min, 3 max over ranks.")] = 3,
    report_cputime: Annotated[int, Option("-C", "--report_cputime", min=0, max=1, help="Show the time to hand a call over instead of the time it takes (nccl-tests' formats).")] = 0,
    report_timestamps: Annotated[int, Option("-S", "--report_timestamps", min=0, max=1, help="Add a time stamp to each line (nccl-tests' formats).")] = 0,
    local_register: Annotated[int, Option("-R", "--local_register", min=0, max=2, help="Register buffers with NCCL: 1 locally (torch 2.7), 2 as symmetric windows (torch 2.9); 0 = no.")] = 0,
    unalign: Annotated[int, Option("-u", "--unalign", min=0, help="Shift all buffers by this many elements.")] = 0,
    sync: Annotated[str, Option("--sync", help="auto, window (common deadline), barrier (messages), or device (a collective on the GPU's own stream).")] = "auto",
    cache: Annotated[str, Option("--cache", help="cold (buffers take turns) or hot (one buffer).")] = "cold",
    order: Annotated[str, Option("--order", help="Order of cases: shuffled, size, or auto (size in streaming mode).")] = "auto",
    seed: Annotated[int, Option("--seed", min=0, help="Seed of the data and of the order.")] = 1,
    virtual_ranks: Annotated[bool, Option("--virtual-ranks", help="All ranks in one process, on one GPU (backend symm): shows what an algorithm costs there, not what a machine can do.")] = False,
    share_gpu: Annotated[bool, Option("--share-gpu", help="Let ranks share GPUs where there are too few (NCCL 2.30): shows that it runs, not what a machine can do.")] = False,
    pin: Annotated[bool, Option("--pin/--no-pin", help="Give each rank cores of its own where there are enough.")] = True,
    inject: Annotated[str, Option("--inject", help="Plant faults, to see that they are noticed: slow-rank:3:20%, jitter:3:50%, late:3:5ms, corrupt:3, hang:3, drop:3; a list. Marks all that is shown.")] = "",
    output_format: Annotated[str, Option("--format", help="auto, table, nccl, json, csv or md. Default: table on a terminal, else nccl-tests' text.")] = "auto",
    output_file: Annotated[Path | None, Option("-J", "--output_file", help="Also write nccl-tests' JSON to this .json file.")] = None,
    output: Annotated[Path | None, Option("--output", help="Save the run to this file or folder instead of the usual place.")] = None,
    save: Annotated[bool, Option("--save/--no-save", help="Keep the run's records.")] = True,
    tag: Annotated[str, Option("--tag", help="A name to find the run by.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run, what it takes and what is left out.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    from collbench import options, session, suite

    given = ctx.params
    axes = options.axes(collective(ctx.info_name or "").name, given)
    policy = options.policy(given)
    named = suite.Suite(name=axes.collectives[0], axes=axes, policy=policy)
    ray = options.where(launcher, address, placement)
    wanted = _order(named, launcher, ray, save=save and not dry_run, output=output, tag=tag, budget=budget)
    if dry_run:
        return _show_plan(wanted)
    raise typer.Exit(session.execute(wanted, lambda: options.reporter(given)))


def _order(
    named: Suite, launcher: str, ray: Where | None, *, save: bool, output: Path | None, tag: str, budget: str
) -> Order:  # fmt: skip
    from collbench import grammar, session

    seconds = grammar.parse_duration(budget, "--budget") if budget else None
    if seconds is not None and named.policy.iters:
        raise UsageError(f"{named.name} fixes the repetitions that --budget would choose", "leave --budget out")
    return session.Order(suite=named, command=sys.argv, save=save, output=output, tag=tag, budget=seconds,
                         launcher=launcher, ray=ray)  # fmt: skip


def _show_plan(wanted: Order) -> None:
    from collbench import console, session
    from collbench.launch import join

    member = join.detect(wanted.launcher)
    if member is None or member.rank == 0:
        console.show(console.plan_table(session.plan_rows(session.prepare(wanted))))


def _run(
    suites: Annotated[list[str] | None, typer.Argument(metavar="SUITE", help="Built-in names (see `collbench list`) or TOML files.")] = None,
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks on this machine instead of the suite's; a list.")] = "",
    backend: Annotated[str, Option("--backend", help="Backends instead of the suite's; a list.")] = "",
    only: Annotated[str, Option("--only", metavar="COLLECTIVE,…", help="Of the suite, only these collectives.")] = "",
    max_time: Annotated[str, Option("--max-time", help="Longest time spent measuring one case.")] = "",
    budget: Annotated[str, Option("--budget", help="Fit each suite into this time, by fewer repetitions: 10m.")] = "",
    launcher: Launched = "auto",
    address: Address = "",
    placement: Placement = "",
    resume: Annotated[str, Option("--resume", metavar="RUN", help="Go on with this run, which was cut short: measure what is missing, into the same file.")] = "",
    inject: Annotated[str, Option("--inject", help="Plant faults, as in `collbench all_reduce --inject`. Marks all that is shown.")] = "",
    output_format: Annotated[str, Option("--format", help="auto, table, nccl, json, csv or md.")] = "auto",
    output: Annotated[Path | None, Option("--output", help="Save runs to this folder (one suite: or file).")] = None,
    save: Annotated[bool, Option("--save/--no-save", help="Keep the runs' records.")] = True,
    tag: Annotated[str, Option("--tag", help="A name to find the runs by.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run, and what it takes.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Run suites: sweeps kept in files.

    A suite is a TOML file: description, tags; [axes], the lists whose product is measured: collectives and sizes
    ("64K", or { min = 8, max = "1G", factor = 4 }), and as wanted ranks, backends, algorithms, dtypes, ops, roots,
    in_place, modes, env ("NCCL_ALGO=Ring,Tree"), splits, align, cycles; [policy]: iters, precision, max_seconds and
    others; [[include]]: a further sweep, with keys in place of those of [axes]; [[override]]: a match, and keys for the
    cases that match; [[exclude]]: keys of cases to leave out, min_size, max_size, perhaps a reason; [[threshold]]: a
    match and tau, the smallest change to judge.
    """
    from collbench import catalogue, options, session
    from collbench.launch import join

    told = bool(ngpus or backend or only or max_time or budget or output or tag or inject or not save)
    if resume and (suites or told):
        raise UsageError("--resume goes on with a run as it was begun", "leave suites and their options out")
    if not resume and not suites:
        raise UsageError("no suite is named", "collbench list shows the built-in ones; or a TOML file")
    if len(suites or []) > 1 and join.detect(launcher):
        raise UsageError("under a launcher, ranks live for one suite", "one command per suite")
    named = [catalogue.load(name) for name in suites or []]
    ray = options.where(launcher, address, placement)
    said = {"ngpus": ngpus, "backend": backend, "only": only, "max_time": max_time, "launcher": launcher,
            "inject": inject}  # fmt: skip
    named = [options.changed(one, **said, ray=ray) for one in named]
    wanted = [
        _order(one, launcher, ray, save=save and not dry_run, output=output, tag=tag, budget=budget) for one in named
    ]
    wanted += [_going_on(resume, launcher, ray)] if resume else []
    given = {
        "output_format": output_format,
        "average": 3,
        "report_cputime": 0,
        "report_timestamps": 0,
        "output_file": None,
    }
    codes = []
    for order in wanted:
        if dry_run:
            _show_plan(order)
        else:
            codes.append(session.execute(order, lambda: options.reporter(given)))
    raise typer.Exit(max(codes, default=Exit.OK))


def _going_on(name: str, launcher: str, ray: Where | None) -> Order:
    from collbench import resume, session

    resumed = resume.find(name)
    return session.Order(suite=resumed.run.suite, command=sys.argv, resumed=resumed, launcher=launcher, ray=ray)


def _runs(last: Annotated[int, Option("--last", min=1, help="Show this many, newest last.")] = 20) -> None:
    """List saved runs."""
    from collbench import console, store

    found, unreadable = [], []
    paths = store.saved()[-last:]
    for back, path in zip(range(len(paths) - 1, -1, -1), paths, strict=True):
        try:
            found.append((f"@last~{back}" if back else "@last", store.read(path)))
        except UsageError as e:
            unreadable.append(e.message)
    console.show(console.runs_table(found), *(f"left out: {message}" for message in unreadable))


def _doctor() -> None:
    """Say what can run on this machine, and why the rest cannot."""
    from collbench import doctor

    raise typer.Exit(doctor.run())


def _list() -> None:
    """List collectives, algorithms, backends and suites."""
    from collbench import console, doctor

    console.show(console.listing(doctor.catalogue()))


COMMANDS: dict[str, Callable[..., None]] = {
    "run": _run, "runs": _runs, "show": study.show, "prove": study.prove, "predict": study.predict, "fit": study.fit,
    "export": study.export, "pairs": pairing.pairs, "locate": locating.locating, "ab": ab.ab, "compare": judge.compare,
    "health": checkup.health, "report": publish.report, "import": bring.bring, "doctor": _doctor, "list": _list,
}  # fmt: skip
GROUPS: dict[str, Callable[[], typer.Typer]] = {"history": archive.group}

app = typer.Typer(
    cls=_Lazy, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True
)


def _version(asked: bool) -> None:
    if asked:
        from collbench import __version__

        typer.echo(f"collbench {__version__}")
        raise typer.Exit


@app.callback(epilog=EXITS)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.", is_eager=True, callback=_version)] = False,
) -> None:
    """Measure collective communication: how fast, how sure, and whether the data arrived.

    Start with `collbench all_reduce -b 8 -e 64M -g 2`; every command explains itself with --help.
    """


def main() -> None:
    """The console script: errors meant for people become two lines and an exit code."""
    try:
        app()
    except CollbenchError as e:
        if "--debug" in sys.argv:
            raise
        print(f"collbench: {e.message}", file=sys.stderr)
        if e.hint:
            print(f"  hint: {e.hint}", file=sys.stderr)
        _leave(e.exit)
    except KeyboardInterrupt:
        _leave(Exit.INTERRUPTED)
    except SystemExit as e:
        _leave(e.code if isinstance(e.code, int) else bool(e.code))


def _leave(code: int) -> None:
    """Ends this process; at once where it is a rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized():
        from collbench.launch.forkserver import leave

        leave(code)
    sys.exit(code)
