"""The command `health`: runs of a night, the verdict, and everything made of it. Heavy imports stay inside."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collbench.errors import CannotRun, CollbenchError, UsageError

if TYPE_CHECKING:
    from collbench.health.checks import Check
    from collbench.health.findings import Verdict
    from collbench.health.night import Night
    from collbench.history.outlook import Outlook
    from collbench.locating import Found
    from collbench.records import RunFile
    from collbench.suite import Case

Option, Argument = typer.Option, typer.Argument
FORMATS = ("table", "md", "json", "html", "junit", "prometheus", "line")
SUFFIXES = {".md": "md", ".json": "json", ".html": "html", ".xml": "junit", ".prom": "prometheus"}
HOOK_SECONDS = 60.0  # that --on-unhealthy may take


def health(
    runs: Annotated[list[str] | None, Argument(metavar="RUN…", help="Runs of one night: @last, an id, a tag or a file. "
                                               "Default: @last.")] = None,
    output_format: Annotated[str, Option("--format", help=f"Print {', '.join(FORMATS[:-1])}, or line: one for a "
                                         "chat.")] = "table",
    out: Annotated[list[Path] | None, Option("-o", "--output", help="Also write this file: .html, .md, .json, .xml "
                                             "(JUnit) or .prom (for node_exporter). May be repeated.")] = None,
    nagios: Annotated[bool, Option("--nagios", help="Print a monitoring plugin's line and exit as one: 0 OK, "
                                   "1 warning, 2 critical, 3 unknown.")] = False,
    on_unhealthy: Annotated[str, Option("--on-unhealthy", metavar="CMD", help="Where unhealthy, run this program (no "
                                        "shell) with the verdict as JSON on its standard input.")] = "",
    past: Annotated[str, Option("--history", metavar="URL", help="postgresql://user@host/database, or an SQLite file. "
                                "Default: $COLLBENCH_HISTORY, else history.sqlite beside the runs.")] = "",
    no_history: Annotated[bool, Option("--no-history", help="Neither judge against earlier nights nor add this "
                                       "one.")] = False,
    machine: Annotated[str, Option("--machine", metavar="NAME", help="Where it ran, as the history knows it. Default: "
                                   "the name of its host, or of all its hosts together; for hosts whose names "
                                   "change.")] = "",
    rerun: Annotated[bool, Option("--rerun", help="Measure at once, in three fresh launches, what is slower than in "
                                  "earlier nights: only so is it confirmed.")] = False,
    inject: Annotated[str, Option("--inject", metavar="FAULTS", help="Does the alarm ring? Measure suite nightly now, "
                                  "with faults planted (slow-rank:3:20%, jitter:3:50%, late:3:5ms, corrupt:3, hang:3, "
                                  "drop:3; a list), and judge that. Marks everything; no history takes it.")] = "",
    ngpus: Annotated[str, Option("-g", "--ngpus", "--ranks", help="Ranks for --inject and --locate. Default: all GPUs, "
                                 "else all cores.")] = "",
    budget: Annotated[str, Option("--budget", help="Fit what --rerun or --inject (there, default 2m) measures into "
                                  "this time.")] = "",
    locate: Annotated[bool, Option("--locate", help="Also search, with ranks, for who makes a group slow, as collbench "
                                   "locate does; under a launcher too.")] = False,
    tests: Annotated[int | None, Option("--tests", min=1, help="Tests that --locate may take: one is a group's "
                                        "measurement. Default: 80.")] = None,
    title: Annotated[str, Option("--title", help="Heading of the page and of the Markdown.")] = "",
    debug: Annotated[bool, Option("--debug", help="Show a traceback with an error.")] = False,
) -> None:  # fmt: skip
    """Say whether a cluster is well: healthy, unhealthy (who, since when, how sure, what to do), or no verdict.

    Judges runs that are recorded, best those of `collbench run nightly`. Exit codes: 0 healthy; 1 unhealthy, of which
    wrong data is a part; 3 no verdict: what is missing is said, and is never taken for well.
    """
    from collbench import grammar, store
    from collbench import rerun as measuring
    from collbench.health import checks, outputs
    from collbench.launch import join

    check(output_format, out or [], nagios)
    _agree(runs, inject, rerun, locate, budget, ngpus, tests, past or machine, no_history)
    if rerun:
        measuring.refuse_launchers()
    hook, seconds = _hook(on_unhealthy), grammar.parse_duration(budget, "--budget") if budget else None
    member = join.detect("auto")
    if locate and member and member.rank:
        search(tests, ngpus)  # as rank 0 says, which has the runs
        return
    try:
        if inject and (runs := planted(inject, ngpus, seconds or 120.0)) is None:
            return
        paths = list(dict.fromkeys(map(store.find, runs or ["@last"])))
        found = [located(tests, ngpus)] if locate else []
        files = [store.digest(path) for path in paths]
        more, trend = ([], None) if no_history else earlier(files, past, rerun, seconds, machine)
        verdict = outputs.cleaned(checks.judge(files, [*more, *found]))
    except CollbenchError as e:
        if not nagios:
            raise
        typer.echo(outputs.unknown(e.message))
        raise typer.Exit(outputs.UNKNOWN[0]) from e
    if hook and verdict.state == "unhealthy":
        run_hook(hook, outputs.as_json(verdict))
    try:
        tell(verdict, files, "nagios" if nagios else output_format, out or [], title, trend)
    except CollbenchError as e:  # a file could not be written; the verdict has been printed
        if not nagios:
            raise
        print(f"collbench: {e.message}", file=sys.stderr)
    raise typer.Exit(outputs.nagios(verdict)[0] if nagios else verdict.exit)


def _agree(
    runs: object, inject: str, rerun: bool, locate: bool, budget: str, ngpus: str, tests: int | None, past: str,
    no_history: bool,
) -> None:  # fmt: skip
    """Whether options go together, ``past`` being a history's or a machine's name. Raises UsageError."""
    if budget and not (rerun or inject):
        raise UsageError("--budget limits what --rerun measures", "add --rerun, or give it to collbench run")
    if ngpus and not (inject or locate):
        raise UsageError("-g is for --inject and --locate, which measure", "a recorded run has its ranks")
    if tests and not locate:
        raise UsageError("--tests limits what --locate measures", "add --locate")
    if inject and (runs or rerun or locate or past):
        raise UsageError("--inject measures a night of its own, which no history takes",
                         "leave runs, --rerun, --locate, --history and --machine out")  # fmt: skip
    if no_history and (past or rerun):
        raise UsageError(f"--no-history and {'--history or --machine' if past else '--rerun'} exclude each other",
                         "--rerun confirms what is slower than in earlier nights")  # fmt: skip


def planted(faults: str, ranks: str, seconds: float) -> list[str] | None:
    """Measures a night with faults, in ``reruns``, so that @last stays what it is; None on other ranks than 0. What a
    fault ends is judged as far as it came. Raises UsageError."""
    from collbench import rerun, store
    from collbench.launch import join

    path = store.home() / "reruns" / f"{store.new_id('planted')}.jsonl"
    try:
        rerun.planted(faults, ranks, path, seconds)
    except CollbenchError as e:
        if isinstance(e, UsageError) or not path.is_file():
            raise
        print(f"collbench: {e.message}", file=sys.stderr)
    member = join.detect("auto")
    return None if member and member.rank else [str(path)]


def earlier(
    files: Sequence[RunFile], url: str, rerun: bool, seconds: float | None, machine: str = ""
) -> tuple[list[Check], Outlook | None]:  # fmt: skip
    """The check against earlier nights, and what became of these rows; where there is no history to be had, or nothing
    that may be added to it, a check that says so. ``machine`` as in Book.add. Raises UsageError for a URL that is none.
    """
    from collbench import history
    from collbench.health import checks, night, past
    from collbench.health.machine import Looked

    def blind(why: str) -> tuple[list[Check], None]:
        return [checks.Check("history", lambda _: Looked(missing=why))], None

    trouble = night.trouble(files) or (f"a fault was planted: {planted}" if (planted := checks.injected(files)) else "")
    if trouble:
        return blind(trouble)
    try:
        book = history.book(url)
    except CannotRun as e:
        return blind(e.message)
    with book:
        try:
            known = past.known(book, files, machine)
        except CollbenchError as e:
            return blind(e.message)
    fresh = partial(again, files, seconds) if rerun else None
    return [checks.Check("history", partial(past.check, known, fresh), "times")], known.outlook


def located(tests: int | None, ranks: str) -> Check:
    """The check that a search among all ranks comes to, at rank 0; where it breaks, the night can be judged yet. Raises
    UsageError."""
    import msgspec

    from collbench.errors import Exit
    from collbench.health import checks
    from collbench.health.machine import Looked

    try:
        found = search(tests, ranks)
    except UsageError:
        raise
    except CollbenchError as e:
        why = e.message
        return checks.Check("locate", lambda _: Looked(missing=why))
    assert found
    # of ranks that share cores, nobody can say how sure a culprit is
    told = [msgspec.structs.replace(one, check="locate", severity=one.severity if one.sure else "hint")
            for one in found.findings]  # fmt: skip
    missing = found.words if found.exit == Exit.NO_VERDICT else ""
    return checks.Check("locate", lambda _: Looked(found.words, told, missing))


def search(tests: int | None, ranks: str) -> Found | None:
    """A search among all ranks, in ``reruns``, so that @last stays the night's; None on other ranks than 0. Raises what
    a run raises."""
    from collbench import locating, pairing, session, store, suite
    from collbench.health.locate import Rules

    policy = suite.Policy(iters=10, warmup=2)
    named = pairing.suite_of("locate", ranks, "", ["4M"], "", policy, "auto")
    path = store.home() / "reruns" / f"{store.new_id('locate')}.jsonl"
    order = session.Order(suite=named, command=sys.argv, tag="locate", output=path)
    rules = Rules(budget=tests) if tests else Rules()
    locating.announce(order, rules)
    return locating.run(order, rules)


def again(files: Sequence[RunFile], seconds: float | None, cases: Sequence[Case]) -> Night:
    """These cases in three launches more, in a run of their own; in ``reruns``, so that @last stays the night's."""
    from collbench import environment, rerun, store
    from collbench.formats import counted
    from collbench.health.night import Night, placed, trouble

    if away := placed(files[0]) - {environment.host()}:
        print(f"collbench: --rerun measures on {environment.host()}, and the night's ranks were on "
              f"{', '.join(sorted(away)[:3])}: nothing is confirmed", file=sys.stderr)  # fmt: skip
        return Night([])
    path = store.home() / "reruns" / f"{store.new_id('rerun')}.jsonl"
    print(f"collbench: measuring {counted(len(cases), 'row')} again", file=sys.stderr)
    try:
        rerun.launch(files[0].run, cases, path, seconds)
    except CollbenchError as e:  # what it measured until then counts; the verdict is on the night
        print(f"collbench: measuring again: {e.message}", file=sys.stderr)
    fresh = [store.digest(path)] if path.is_file() else []
    if why := trouble([*files, *fresh]):
        print(f"collbench: measuring again: {why}", file=sys.stderr)
        return Night([])
    return Night(fresh)


def check(output_format: str, out: Sequence[Path], nagios: bool) -> None:
    """Whether ``tell`` can make all this, before any time is spent. Raises UsageError and CannotRun."""
    from collbench import options

    options.choice("--format", output_format, FORMATS)
    if nagios and output_format != "table":
        raise UsageError(
            f"--nagios prints a line of its own, not {output_format}", "leave --format out; -o writes files"
        )
    for path in out:
        options.choice(f"-o {path}: its ending", path.suffix, SUFFIXES)
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise CannotRun(f"-o {path}: {path.parent} is no folder to write to", "make it, or choose another place")


def _hook(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as e:
        raise UsageError(f"--on-unhealthy: {e}", "a program and its arguments, quoted as for a shell") from e


def tell(
    verdict: Verdict, files: Sequence[RunFile], output_format: str, out: Sequence[Path], title: str = "",
    trend: Outlook | None = None,
) -> None:  # fmt: skip
    """Prints the verdict, and writes every file of ``out``, each whole or not at all."""
    from collbench import store
    from collbench.health import page

    text = page.shown(verdict) if output_format == "table" else _text(verdict, files, output_format, title, trend)
    try:
        typer.echo(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough; the verdict stands
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    for path in out:
        store.save(path, _text(verdict, files, SUFFIXES[path.suffix], title, trend))


def _text(
    verdict: Verdict, files: Sequence[RunFile], output_format: str, title: str, trend: Outlook | None
) -> str:  # fmt: skip
    """The verdict in one of FORMATS but the table, or nagios."""
    from collbench.health import outputs

    makers: dict[str, Callable[[Verdict], str]] = {
        "json": outputs.as_json, "junit": outputs.junit, "prometheus": outputs.prometheus, "line": outputs.line,
        "nagios": lambda verdict: outputs.nagios(verdict)[1],
    }  # fmt: skip
    if output_format in makers:
        return makers[output_format](verdict)
    import msgspec

    from collbench import report
    from collbench.health import page

    made = page.document(verdict, files if output_format == "html" else (), trend)
    made = msgspec.structs.replace(made, title=title or made.title)
    return report.page(made) if output_format == "html" else report.markdown(made)


def run_hook(command: Sequence[str], text: str, seconds: float = HOOK_SECONDS) -> None:
    """Runs ``command`` with ``text`` on its standard input, its output on standard error. What becomes of it is told,
    and changes no verdict: it, and all it started, is ended when its time is up."""
    name = f"--on-unhealthy {command[0]}"
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True, text=True)
    except OSError as e:
        print(f"collbench: {name}: {e.strerror}", file=sys.stderr)
        return
    try:
        with suppress(BrokenPipeError):  # it need not read
            process.communicate(text, timeout=seconds)
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"collbench: {name} did not end in {seconds:g} s and was ended", file=sys.stderr)
        return
    if code:
        print(f"collbench: {name} ended with {code}", file=sys.stderr)
