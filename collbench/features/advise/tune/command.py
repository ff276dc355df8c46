"""`collbench tune`: from the words of its command line to a verified file."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from collbench.cli.families import (
    Backend,
    Debug,
    Imports,
    LauncherOptions,
    Plotlyjs,
    Ranks,
    RunsTag,
    Timeout,
)
from collbench.cli.parameters import make_option
from collbench.core.errors import CannotRun, Exit, NoVerdict, UsageError
from collbench.core.text import format_clock, format_count, format_size, plain_line, print_message
from collbench.features.advise.command import PRINTED, For, Oversubscribed, Printed, SizesOf, Tau

if TYPE_CHECKING:
    from collbench.features.advise.formats import Format
    from collbench.features.advise.tune.confirm import Verified
    from collbench.features.advise.tune.request import TuneRequest
    from collbench.features.advise.tune.screen import Screening
    from collbench.features.advise.types import Advice, Advised, Unadvised
    from collbench.features.advise.view import Written
    from collbench.features.advise.worth import JobSizes
    from collbench.suite.sweep import Axes


TAUS = (0.03, 0.1)  # what matters least and most where nobody says (`collbench compare`)
PAIR = 1.5  # how much longer two launches take to start at once than one


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The sweep in which settings compete, and the settings."""

    collectives: Annotated[
        str,
        Argument(
            metavar="[COLLECTIVE,…]",
            help="Default: all_reduce,broadcast,all_gather,all_to_all; for NCCL, the five that it"
            " asks a tuner about.",
        ),
    ] = ""
    minbytes: Annotated[str, make_option("minbytes", "Smallest size. Default: 8; for NCCL 1K.")] = (
        ""
    )
    maxbytes: Annotated[
        str,
        make_option(
            "maxbytes", "Largest size, where a step meets it. Default: 16M, or -b; for NCCL 64M."
        ),
    ] = ""
    stepfactor: Annotated[
        float | None, make_option("stepfactor", "Multiply sizes by this. Default: 4.")
    ] = None
    ngpus: Ranks = ""
    backend: Backend = ""
    imports: Imports = ""
    dtype: Annotated[str, make_option("dtypes", "The datatype. Default: float.")] = "float"
    place: Annotated[str, make_option("in_place", "out (of place) or in.")] = "out"
    env: Annotated[
        list[str] | None,
        make_option(
            "envs",
            "NAME=V1,V2: try these values in place of known settings. Given twice, every"
            " combination is tried.",
        ),
    ] = None
    same_order: Annotated[
        bool,
        Option("--same-order", help="Only settings that keep the order of summation."),
    ] = False
    oversubscribed: Oversubscribed = False


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """The search, how long it may take, and where its results go."""

    search: SearchOptions
    budget: Annotated[
        str,
        make_option(
            "budget",
            "Time for all: 30m. About a third is for the search, more where ranks start slowly"
            " (60 % at most).",
        ),
    ] = "10m"
    tau: Tau = ""
    write: Annotated[
        Path | None,
        Option(
            "--write",
            metavar="FILE",
            help="Required, but for --dry-run: the file to write, which the library reads.",
        ),
    ] = None
    kind: For = ""
    sizes_of: SizesOf = None
    output_format: Printed = "table"
    out: Annotated[
        list[Path] | None,
        Option("-o", help="Also write this report: .html, .md or .json. May be repeated."),
    ] = None
    plotlyjs: Plotlyjs = "inline"
    output: Annotated[Path | None, make_option("output", "Folder to save all runs to.")] = None
    tag: RunsTag = ""
    where: LauncherOptions
    timeout: Timeout = None
    dry_run: Annotated[
        bool, make_option("dry_run", "Show what would be tried; measure nothing.")
    ] = False
    debug: Debug = False


def tune(options: TuneOptions) -> None:
    """Measure which settings are surely faster, verify them, and write them.

    The search makes short launches of all settings, and proposes some. Fresh launches compare these
    with the default (the library's own choice), in turns, and alone decide: the file has what they
    verified. -g takes a list: 2,4. Exit codes: 0 decided, also if nothing is faster; 3 undecided;
    7 wrong data with the file.
    """
    from collbench.features.advise.formats.files import refuse_files

    request = read_request(options)
    if options.write is not None:
        refuse_files(request.format, options.write)
    if options.dry_run:
        return show_plan(request)
    if options.write is None:
        raise UsageError("--write FILE is missing", "say where the advice goes: --write rules.conf")
    raise typer.Exit(carry_out(request, options, options.write))


def read_request(options: TuneOptions) -> TuneRequest:
    """The search that the options ask for. Raises UsageError and CannotRun."""
    from msgspec.structs import replace

    from collbench.features.advise.tune import request as parts
    from collbench.features.advise.tune.sayable import drop_unsayable
    from collbench.suite import grammar
    from collbench.suite.policy import Policy

    search = options.search
    grammar.refuse_tag(options.tag)
    budget = grammar.parse_time_limit(options.budget, "--budget")
    source = options.where.find_source()
    axes = parts.resolve_axes(_read_axes(search), source, options.where.launcher)
    _check_places(options)
    envs = grammar.expand_envs(search.env or [])
    parts.tell_ineffective(envs, axes.backends[0])
    library, version = parts.look_up_library(axes.backends[0])
    form = parts.choose_format(library, options.kind)
    axes = replace(axes, **_read_sweep(search, form))
    series, notes = parts.list_series(axes, search.oversubscribed)
    field = parts.list_field(series, library, version, envs if search.env else (), axes)
    field, unsayable = drop_unsayable(field, form, library, axes.backends[0], version)
    return parts.TuneRequest(
        library=library,
        version=version,
        format=form,
        field=field,
        axes=axes,
        policy=Policy(timeout=options.timeout),
        budget=budget,
        command=sys.argv,
        launcher=options.where.launcher,
        source=source,
        is_same_order=search.same_order,
        despite_oversubscription=search.oversubscribed,
        tau=grammar.parse_share(options.tau, "--tau") if options.tau else None,
        output=options.output,
        tag=options.tag,
        notes=(*notes, *unsayable, *parts.describe_environment(axes.backends[0], os.environ)),
    )


def _read_sweep(search: SearchOptions, form: Format | type[Format]) -> dict[str, Any]:
    """Collectives and sizes, by their names in Axes; those of the format where nobody says."""
    from collbench.core.collectives import find_collective
    from collbench.suite import grammar

    words = grammar.split_words(search.collectives) or form.collectives
    collectives = tuple(dict.fromkeys(find_collective(word).name for word in words))
    silent = [name for name in collectives if not find_collective(name).moves_data]
    if silent:
        raise UsageError(
            f"{silent[0]} moves no data, so that it has no sizes to choose by",
            "name collectives that move data",
        )
    smallest, largest = (grammar.parse_size(size, "-b") for size in form.sizes)
    if search.minbytes:
        smallest = grammar.parse_size(search.minbytes, "-b")
    largest = (
        grammar.parse_size(search.maxbytes, "-e") if search.maxbytes else max(smallest, largest)
    )
    sizes = grammar.sweep_sizes(
        smallest, largest, 4 if search.stepfactor is None else search.stepfactor
    )
    if len(sizes) < 2:
        raise UsageError(
            f"{format_size(sizes[0])} is the only size, and advice rests on two neighbouring ones",
            "take a wider sweep: -b 8 -e 16M",
        )
    return {"collectives": collectives, "sizes": sizes}


def _read_axes(search: SearchOptions) -> Axes:
    """The sweep, with the collectives and sizes that most formats have where nobody says."""
    from collbench.cli.options import PLACES
    from collbench.core.dtypes import find_dtype
    from collbench.features.advise.formats import Format
    from collbench.suite import grammar
    from collbench.suite.sweep import Axes

    place = PLACES[grammar.parse_choice("--place", search.place, ("out", "in"))]
    words = grammar.split_words(search.dtype)
    if len(words) != 1:
        raise UsageError(f"--datatype {search.dtype}: one datatype is expected", "such as -d float")
    return Axes(
        **_read_sweep(search, Format),
        ranks=tuple(
            grammar.parse_integer("-g", word, 1) for word in grammar.split_words(search.ngpus)
        ),
        backends=tuple(grammar.split_words(search.backend)),
        dtypes=(find_dtype(words[0]).name,),
        in_place=place,
    )


def _check_places(options: TuneOptions) -> None:
    """Raises UsageError and CannotRun for what could not be written in the end, and makes the
    folder of runs."""
    from collbench.cli import outputs

    outputs.check_outputs(options.output_format, options.out or [], PRINTED, options.plotlyjs)
    if options.output is not None and not options.dry_run:
        try:
            options.output.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise CannotRun(
                f"cannot make --output {options.output}: {e.strerror}", "choose another folder"
            ) from e


def show_plan(request: TuneRequest) -> None:
    """Print which settings would be tried at which sizes, in how many launches, and how long that
    takes."""
    from collbench.features.advise.tune import joining
    from collbench.features.advise.tune.screen import SHARE, Cost
    from collbench.features.advise.types import Setting
    from collbench.show import terminal

    joints = [
        *joining.list_defaults(request.field),
        *joining.join_settings(request.library, request.field),
    ]
    lines = [*request.notes]
    for series, by_setting in request.field.items():
        names = [
            request.library.name_setting(
                series.collective, Setting(backend=request.backend, env=env)
            )
            for env in by_setting
        ]
        sizes = next(iter(by_setting.values()))
        lines.append(
            f"{series.collective}, {series.n} ranks, {format_count(len(sizes), 'size')} from"
            f" {format_size(sizes[0])} to {format_size(sizes[-1])}: {', '.join(names)}"
        )
    seconds = Cost().of(joints)
    lines.append(
        f"first round: {format_count(len(joints), 'launch')}, about {format_clock(seconds)};"
        " settings of different collectives share a launch; the search may take"
        f" {format_clock(SHARE * request.budget)} of {format_clock(request.budget)}, its"
        " verification in fresh launches the rest"
    )
    terminal.print_blocks(*map(plain_line, lines))


def carry_out(request: TuneRequest, options: TuneOptions, write: Path) -> Exit:
    """Search, verify, write and tell; the exit code."""
    from msgspec.structs import replace

    from collbench.features.advise import view, worth
    from collbench.features.advise.libraries.unordered import warn_unordered
    from collbench.survive.signals import interrupts

    began = time.monotonic()
    job = worth.load_sizes(list(options.sizes_of)) if options.sizes_of else None
    for note in request.notes:
        print_message(note)
    with interrupts:
        refuse_unshared_folder(request, write)
        screening = run_screening(request)
        advised = propose_advice(request, screening)
        left = request.budget - (time.monotonic() - began)
        verified = verify_proposal(request, screening, advised, left, write)
    code = verified.code or view.find_exit(verified.advised)
    advised = replace(verified.advised, is_undecided=code == Exit.NO_VERDICT)
    advised = warn_unordered(advised)
    verified = verified._replace(advised=advised)
    written = save_advice(advised, request, write)
    _deliver(request, verified, written, job, options)
    plain_paths = [plain_line(str(path)) for path in (*screening.paths, *verified.paths)]
    print("saved: " + "\n       ".join(plain_paths), file=sys.stderr)
    if code == Exit.INTERRUPTED:
        print_message("interrupted: the file has what was verified until then")
    if written.refusal:
        print_message(written.refusal, "--for words writes it for people to follow")
        return code or Exit.USAGE
    return code


def refuse_unshared_folder(request: TuneRequest, write: Path) -> None:
    """Raises CannotRun where ranks on other hosts would not see the file."""
    from collbench.features.advise.tune import joining, trial
    from collbench.run.launch import join
    from collbench.suite.sweep import Suite

    if request.source is None:
        return
    suite = joining.make_suite(
        "tune",
        joining.list_defaults(request.field),
        request.axes,
        Suite(name="tune", axes=request.axes, policy=request.policy),
    )
    seconds = request.policy.timeout or join.SECONDS
    folder = write.absolute().parent
    trial.refuse_unshared(request.format, request.source, suite, folder, seconds)


def save_advice(advised: Advised, request: TuneRequest, write: Path) -> Written:
    """The file; one that was not written, with the reason, where it cannot say the advice."""
    from collbench.features.advise.command import write_file

    is_refused = bool(request.format.refuse(advised))
    return write_file(advised, request.format, None if is_refused else write, is_chosen=False)


def _deliver(
    request: TuneRequest,
    verified: Verified,
    written: Written,
    job: JobSizes | None,
    options: TuneOptions,
) -> None:
    """Print the advice as `collbench advise` does, and write its reports."""
    from collbench.cli import outputs
    from collbench.features.advise import view, worth
    from collbench.features.advise.tune.confirm import NO_TIME
    from collbench.features.advise.tune.keeping import describe_removed

    tested = [each for each in verified.removed if each.why != NO_TIME]
    removed = [f"removed: {sentence}" for sentence in describe_removed(tested)]
    if number := len(verified.removed) - len(tested):
        sizes = format_count(number, "proposed size")
        removed.append(f"{sizes} not verified: the budget has no time (give a longer --budget)")
    extras = view.Extras(request.title, tuple(removed), wrong=verified.wrong)
    if verified.code == Exit.NO_VERDICT and verified.removed:
        why = (tested or verified.removed)[0].why
        extras = extras._replace(undecided=f"nothing could be verified: {why}")
    if job is not None:
        sentences = worth.describe_worth(worth.value_advice(verified.advised, job))
        extras = extras._replace(worth=sentences)
    document = view.make_document(verified.advised, written, extras)
    outputs.deliver_document(document, options.output_format, options.out or [], options.plotlyjs)


def run_screening(request: TuneRequest) -> Screening:
    """Screen for the share of the budget that is for it. Raises KeyboardInterrupt, with a word on
    what is kept."""
    from collbench.features.advise.tune.screen import FIRST, SHARE, Screening, ScreenOrder

    screening = Screening(
        ScreenOrder(
            library=request.library,
            field=request.field,
            axes=request.axes,
            policy=request.policy,
            command=request.command,
            seconds=SHARE * request.budget,
            first_seconds=FIRST * request.budget,
            is_same_order=request.is_same_order,
            source=request.source,
            output=request.output,
            tag=request.tag,
            launcher=request.launcher,
        )
    )
    try:
        screening.run()
    except KeyboardInterrupt:
        print_message("interrupted in the search: nothing was verified, and no file is written")
        raise
    return screening


def propose_advice(request: TuneRequest, screening: Screening) -> Advised:
    """What the screening proposes, as far as the file can say it. Raises NoVerdict where nothing
    was measured."""
    from msgspec.structs import replace

    from collbench.features.advise.evidence import find_device
    from collbench.features.advise.tune import confirm, propose, schedule
    from collbench.features.advise.tune.screen import list_medians
    from collbench.features.advise.types import Advised

    medians = list_medians(screening, request.is_same_order)
    if not any(len(by_setting) > 1 for by_setting in medians.values()):
        raise NoVerdict(
            "no setting was measured beside the default",
            "give a longer --budget, or fewer sizes, ranks or collectives",
        )
    sizes = schedule.list_sizes(request.field, (request.axes,))
    named = propose.name_sizes(medians, sizes)
    choices = propose.name_sizes(screening.choices, sizes)
    nodes = screening.nodes
    shared = {world.n for world in screening.worlds if world.oversubscribed}
    rows = propose.propose_rows(
        named, request.library, request.backend, nodes, request.format, shared
    )
    advised = Advised(
        library=request.library.key,
        version=screening.library_version,
        runs=(),
        day=confirm.find_day(),
        taus=(request.tau, request.tau) if request.tau else TAUS,
        rows=tuple(propose.add_choices(row, choices) for row in rows),
        is_same_order=request.is_same_order,
        notes=(*request.notes, *screening.notes),
        hosts=screening.hosts,
        device=find_device(screening.worlds),
        forms=describe_forms(request.axes),
        dtypes=request.axes.dtypes,
        command=plain_line(shlex.join(["collbench", *request.command[1:]])),
    )

    def find_unadvised(some: Sequence[Advice]) -> list[Unadvised]:
        return propose.list_unadvised(request.field, named, some, nodes, choices, sizes)

    fitting, refused = propose.fit_format(advised, request.format, find_unadvised)
    for reason in refused:
        print_message(f"not tried further, as the file cannot say it: {reason}")
    notes = (*advised.notes, *(f"not in the file: {reason}" for reason in refused))
    unadvised = tuple(find_unadvised(fitting))
    return replace(advised, rows=tuple(fitting), notes=notes, unadvised=unadvised)


def describe_forms(axes: Axes) -> str:
    """The datatype and placement of all that is measured."""
    places = {False: "out of place", True: "in place"}
    words = [*axes.dtypes, *(places[each] for each in axes.in_place)]
    return ", ".join(dict.fromkeys(words))


def verify_proposal(
    request: TuneRequest, screening: Screening, advised: Advised, seconds: float, write: Path
) -> Verified:
    """Verify what the screening proposes, in the time that is left."""
    from msgspec.structs import replace

    from collbench.features.advise.tune import confirm, schedule
    from collbench.features.compare.comparison import Rules

    rows = format_count(len(advised.rows), "row")
    sizes = format_count(sum(len(row.gains) for row in advised.rows), "size")
    left = format_clock(max(0.0, seconds))
    print_message(f"proposed: {rows} with {sizes}; fresh launches decide, in {left}")
    return confirm.verify_advice(
        advised,
        schedule.VerifyRequest(
            format=request.format,
            sweeps=(request.axes,),
            command=request.command,
            policy=replace(request.policy, adds_as=_hears_order(request)),
            budget=max(1.0, round(seconds)),
            rules=Rules(tau=request.tau),
            despite_oversubscription=request.despite_oversubscription,
            start_seconds=PAIR * screening.cost.start,
            fixed_seconds=max(schedule.GUESS_FIXED, screening.cost.case),
            output=request.output,
            tag=request.tag,
            source=request.source,
            folder=write.absolute().parent if request.source else None,
        ),
    )


def _hears_order(request: TuneRequest) -> bool:
    """Whether the order of summation is heard in the verification: of sums over three ranks or
    more it tells that a row had no effect."""
    from collbench.core.collectives import find_collective

    return any(
        series.n > 2 and find_collective(series.collective).reduces for series in request.field
    )
