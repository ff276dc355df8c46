"""`collbench advise`: runs that measured settings, and the file in which the library reads those
that are surely faster. Heavy imports stay inside."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from collbench.cli.families import Debug, Plotlyjs
from collbench.core.errors import Exit, NoVerdict, UsageError

if TYPE_CHECKING:
    from collbench.features.advise.evidence import Evidence, Terms
    from collbench.features.advise.formats import Format
    from collbench.features.advise.types import Advised
    from collbench.features.advise.view import Extras, Written
    from collbench.records.types import RunFile

PRINTED = ("table", "md", "json", "html")

BUDGET = "5m"  # of a verification

For = Annotated[
    str,
    Option(
        "--for",
        metavar="FORMAT",
        help="The kind of file: openmpi, mpich, intelmpi, oneccl, nccl, …, or words. Default: the"
        " library's own. All: collbench help advise.",
    ),
]
Write = Annotated[
    Path | None,
    Option("--write", metavar="FILE", help="Write the file that the library reads."),
]
SameOrder = Annotated[
    bool,
    Option(
        "--same-order",
        help="Only settings that add in the default's order: all runs need --adds-as.",
    ),
]
Tau = Annotated[
    str, Option("--tau", help="Smallest gain that counts: 5%. Default: 3% to 10%, by row.")
]
Oversubscribed = Annotated[
    bool,
    Option("--oversubscribed", help="Advise too where ranks share cores; such rows say so."),
]
SizesOf = Annotated[
    list[str] | None,
    Option(
        "--sizes-of",
        metavar="JOB",
        help="Say what it is worth for this trace, recorded step or workload. May be repeated, for"
        " traces of several ranks.",
    ),
]
Outputs = Annotated[
    list[Path] | None,
    Option("-o", help="Also write this report: .html, .md or .json. May be repeated."),
]
Printed = Annotated[str, Option("--format", help="Print table, md, json or html.")]


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    """The runs, the rules by which settings count, and the outputs."""

    names: Annotated[
        list[str] | None,
        Argument(
            metavar="RUN…",
            help="@last, @last~1, an id, a tag, a file or a folder of files. Of an `ab` both sides"
            " are read.",
        ),
    ] = None
    kind: For = ""
    write: Write = None
    default: Annotated[
        str,
        Option(
            "--default",
            metavar="BACKEND",
            help="Backend to compare with. Default: the first run's.",
        ),
    ] = ""
    same_order: SameOrder = False
    tau: Tau = ""
    oversubscribed: Oversubscribed = False
    sizes_of: SizesOf = None
    verify: Annotated[
        bool,
        Option(
            "--verify",
            help="Measure the file against the default in fresh launches; keep only what holds.",
        ),
    ] = False
    budget: Annotated[str, Option("--budget", help="Time for --verify. Default: 5m.")] = ""
    output_format: Printed = "table"
    output: Outputs = None
    plotlyjs: Plotlyjs = "inline"
    debug: Debug = False


def advise(options: AdviseOptions) -> None:
    """Write the settings that runs show to be surely faster, where the library reads them.

    A setting is advised where it beats the default at two neighbouring sizes or more: by --tau at
    least, and surely, by an exact test over launches (adjusted by Holm over all sizes and
    settings). Where a size was measured in several forms (datatypes, in place, roots), it must be
    faster in all of them. All else is left to the library, with the reason. It takes at least 6
    launches in turns (`ab`, or --env in one run with --launches 6), or 10 apart; more where many
    settings compete. Exit codes: 0 decided, also if nothing is faster; 3 undecided; 7 wrong data
    with the file.
    """
    import msgspec

    from collbench.cli import outputs
    from collbench.core.text import plain_line, print_message
    from collbench.features.advise import fills, judgement, view
    from collbench.features.advise.formats.files import refuse_files
    from collbench.features.advise.libraries.unordered import warn_unordered
    from collbench.suite import grammar

    outputs.check_outputs(options.output_format, options.output or [], PRINTED, options.plotlyjs)
    refuse_conflicts(options)
    terms = make_terms(options)
    budget = grammar.parse_time_limit(options.budget or BUDGET, "--budget")
    files = read_runs(options.names or [])
    evidence, form = choose_format(files, terms, options.kind)
    if options.write:
        refuse_files(form, options.write)
    advised = judgement.judge_evidence(evidence, options.same_order)
    if form.covers_all:
        advised = fills.fill_sizes(advised)
    extras = view.Extras(evidence.title)
    code: int = Exit.OK
    if options.verify and not advised.rows:
        print_message("--verify: there is no row to verify")
    elif options.verify:
        advised, extras, code = verify(advised, evidence, form, files, terms, budget)
    code = code or view.find_exit(advised)
    advised = msgspec.structs.replace(
        advised,
        command=plain_line(shlex.join(["collbench", *sys.argv[1:]])),
        is_undecided=code == Exit.NO_VERDICT,
    )
    if options.sizes_of:
        extras = extras._replace(worth=value(advised, options.sizes_of))
    advised = warn_unordered(advised)
    extras = extras._replace(machines=describe_machines(files))
    # an undecided or wrong result keeps its exit code; the report has the format's refusal
    must_write = bool(options.kind or options.write) and not code
    written = write_file(advised, form, options.write, must_write and not options.verify)
    document = view.make_document(advised, written, extras)
    outputs.deliver_document(
        document, options.output_format, options.output or [], options.plotlyjs
    )
    if code:
        print_message(document.verdict)
    if written.refusal and must_write:  # after a verification, whose results are told all the same
        raise refuse_advice(written.refusal)
    raise typer.Exit(code)


def refuse_conflicts(options: AdviseOptions) -> None:
    """Whether options go together. Raises UsageError."""
    from collbench.features.advise.formats import load_formats
    from collbench.suite import grammar

    if options.budget and not options.verify:
        raise UsageError(
            "--budget is the time for --verify, which is not given", "add --verify, or leave it out"
        )
    if options.kind:
        grammar.parse_choice("--for", options.kind, load_formats())


def make_terms(options: AdviseOptions) -> Terms:
    """How evidence is read. Raises UsageError."""
    from collbench.features.advise.evidence import Terms
    from collbench.suite import grammar

    return Terms(
        default=options.default,
        tau=grammar.parse_share(options.tau, "--tau") if options.tau else None,
        oversubscribed=options.oversubscribed,
    )


def read_runs(names: Sequence[str]) -> list[RunFile]:
    """The runs of these names, each once: all of a folder, and both sides of an experiment. Raises
    UsageError and NoVerdict."""
    from collbench.records import run_file, store

    if not names:
        raise UsageError("name the runs that measured settings", "collbench advise @last")
    paths: list[Path] = []
    for name in names:
        if os.path.isdir(name):  # noqa: PTH112 - Path's raises for a name that is too long
            inside = sorted(path for path in Path(name).glob("*.jsonl") if path.is_file())
            if not inside:
                raise NoVerdict(f"{name} has no run", "name a folder of runs: files *.jsonl")
            paths += inside
            continue
        path = store.find_run(name)
        paths.append(path)
        if run_file.read_run(path).pairing and (other := store.find_companion(path)):
            paths.append(other)
    paths = list({path.resolve(): path for path in paths}.values())
    for path in filter(run_file.is_running, paths):
        raise NoVerdict(run_file.describe_running(path), "name it once it has ended")
    return [run_file.read_digest(path) for path in paths]


def choose_format(files: Sequence[RunFile], terms: Terms, key: str) -> tuple[Evidence, Format]:
    """The evidence, and the kind of file: the one named ``key``, else the library's usual one. A
    library's own file can name variables alone. Raises NoVerdict and UsageError."""
    import msgspec

    from collbench.features.advise.evidence import gather_evidence
    from collbench.features.advise.formats import load_formats

    evidence = gather_evidence(files, terms)
    own = evidence.library.formats
    key = key or own[0]
    if key in own and key != "words":
        evidence = gather_evidence(files, msgspec.structs.replace(terms, only_variables=True))
    return evidence, load_formats()[key]


def refuse_advice(reason: str) -> UsageError:
    """The refusal of a format that cannot say an advice."""
    return UsageError(reason, "--for words writes it for people to follow")


def write_file(advised: Advised, form: Format, path: Path | None, is_chosen: bool) -> Written:
    """The file, saved where there is a path. Where the format cannot say the advice: raises
    UsageError if it ``is_chosen``, else tells why there is no file."""
    from collbench.features.advise.formats.files import write_files
    from collbench.features.advise.view import Written

    if reason := form.refuse(advised):
        refusal = f"{form.title} cannot hold this advice: {reason}"
        if is_chosen:
            raise refuse_advice(refusal)
        return Written(form.key, form.title, "", {}, None, refusal, form.suffix)
    if not path:
        return Written(form.key, form.title, form.write(advised), {}, None, "", form.suffix)
    final = path.absolute()
    text = write_files(form, advised, path, final=final)
    return Written(form.key, form.title, text, form.use(final), path, "", form.suffix)


def verify(
    advised: Advised,
    evidence: Evidence,
    form: Format,
    files: Sequence[RunFile],
    terms: Terms,
    budget: float,
) -> tuple[Advised, Extras, int]:
    """The advice that fresh launches confirm, with what was removed, and how it ended. Raises
    UsageError, CannotRun and RunBroken."""
    import msgspec

    from collbench.features.advise import view
    from collbench.features.advise.tune import confirm, keeping, schedule
    from collbench.features.compare.comparison import Rules

    if reason := form.refuse(advised):
        raise UsageError(
            f"--verify: {form.title} cannot hold this advice: {reason}", "--for words can"
        )
    pooled = [file for file in files if file.run.id in evidence.runs]
    refuse_elsewhere(advised, pooled)
    policy = msgspec.structs.replace(pooled[0].run.policy, fresh=False, max_seconds=None)
    request = schedule.VerifyRequest(
        format=form,
        sweeps=schedule.make_sweeps(evidence.cases),
        command=sys.argv,
        policy=policy,
        budget=budget,
        rules=Rules(tau=terms.tau),
        despite_oversubscription=terms.oversubscribed,
        tag="advise-verify",
    )
    verified = confirm.verify_advice(advised, request)
    sentences = keeping.describe_removed(verified.removed)
    removed = tuple(f"removed: {sentence}" for sentence in sentences)
    extras = view.Extras(evidence.title, removed)
    if verified.code == Exit.NO_VERDICT:
        why = verified.removed[0].why if verified.removed else "no launch of both sides was timed"
        extras = extras._replace(undecided=f"nothing could be verified: {why}")
    if verified.code == Exit.WRONG_DATA:
        extras = extras._replace(wrong=verified.wrong)
    return verified.advised, extras, verified.code


def refuse_elsewhere(advised: Advised, files: Sequence[RunFile]) -> None:
    """Raises UsageError where ranks of this host cannot verify the advice: it is of several hosts,
    or its runs are of another machine, software or settings."""
    from collbench.core.text import plain_line
    from collbench.features.advise.evidence import explain_elsewhere

    if any(row.series.nodes > 1 for row in (*advised.rows, *advised.fills)):
        raise UsageError(
            "--verify: the advice is for several hosts, and ranks would all be on this one",
            "leave --verify out, and take the file's exports as a side of another ab",
        )
    if why := explain_elsewhere(files):
        raise UsageError(
            f"--verify: {plain_line(why)}",
            "verify where runs were measured, or start new runs here",
        )


def describe_machines(files: Sequence[RunFile]) -> dict[str, str]:
    """By the id of a run: its machine, its begin, and how busy others kept the machine, if so."""
    from collbench.show import busy
    from collbench.show.views.machines import describe_machine

    return {
        file.run.id: "; ".join(
            filter(
                None,
                (
                    " · ".join(describe_machine(file)),
                    busy.describe_run_load(file.run, file.records, file.end),
                ),
            )
        )
        for file in files
    }


def value(advised: Advised, sources: Sequence[str]) -> tuple[str, ...]:
    """Sentences on what the advice is worth for a job. Raises UsageError and CannotRun."""
    from collbench.features.advise import worth

    job = worth.load_sizes(list(sources))
    return worth.describe_worth(worth.value_advice(advised, job))
