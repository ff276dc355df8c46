"""The command line: what `collbench` can do, by name; a command's module is imported when it is
called."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from collbench.cli import mistakes
from collbench.core.collectives import COLLECTIVES, find_collective
from collbench.core.errors import CannotRun, CollbenchError, Exit, UsageError
from collbench.core.feature import Command, find_entries, load_entry
from collbench.core.text import plain_line, print_message, readable_text, suggest_name
from collbench.survive.crash import explain_crash
from collbench.survive.output import ResilientOutput, reopen_stdout
from collbench.survive.signals import interrupts

# The commands beside those of collectives and of features; these are listed between them.
BEGIN = (
    Command("run", "run:run", "Run suites: sweeps kept in files.", starts_ranks=True),
    Command("runs", "runs:runs", "List saved runs."),
    Command("report", "report:report", "Make one offline page of runs: figures, tables, raw data."),
)
END = (
    Command(
        "doctor", "doctor:doctor", "Say what can run on this machine, and why the rest cannot."
    ),
    Command(
        "list", "list_:list_", "List collectives, reductions, algorithms, backends and suites."
    ),
    Command("help", "help:help_", "Explain a topic in a page, or a command's options."),
)


@cache
def list_commands() -> dict[str, Command]:
    """All commands but those of collectives, by name, in the order of --help."""
    features = {key: row for key, (_, row) in find_entries("commands").items()}
    return {row.key: row for row in BEGIN} | features | {row.key: row for row in END}


def load_command(name: str) -> Callable[..., Any]:
    """The function of a command, or the one that makes its group."""
    if entry := find_entries("commands").get(name):
        return cast(Callable[..., Any], load_entry(entry[0], entry[1].target))
    module, _, function = list_commands()[name].target.partition(":")
    return cast(Callable[..., Any], getattr(import_module(f"collbench.cli.{module}"), function))


DIFFERENCES = """
Single-letter options are those of nccl-tests, with differences (`collbench help report`): sizes
double unless -f or -i says otherwise, lists sweep their product (-d float,half -g 2,4), times are
those of the slowest rank, blocks are not rounded to 16 bytes, and -n is a number of samples. -t 1,
-p, -y 0, -D 0, -V, -M 0 and -x 0 are taken and mean nothing.
"""

EXITS = (
    "Exit codes: 0 fine, 1 judged bad, 2 usage, 3 no verdict, 4 timeout or hang, 5 cannot run here,"
    " 7 wrong data, 70 a bug in collbench, 130 interrupted."
)


def _write_help(name: str) -> str:
    row = COLLECTIVES[name]
    sizes = (
        "SIZE is the whole buffer, divided over the ranks."
        if row.total
        else "SIZE is each rank's buffer."
    )
    if not row.moves_data:
        sizes = "There is no SIZE."
    factor = (
        "It moves no data: latency only." if row.factor == "-" else f"busbw = algbw x {row.factor}."
    )
    in_place = {
        "same": "In place, both buffers are one.",
        "block of recv": "In place, a rank sends from its own block of the receive buffer.",
        "block of send": "In place, a rank receives into its own block of the send buffer.",
        None: "It has no in-place form.",
    }[row.in_place]
    example = f"collbench {name}{' -b 8 -e 64M' if row.moves_data else ''} -g 2"
    return f"{row.meaning}\n\n{sizes} {factor} {in_place}\n\nFor instance: {example}"


class _Names(TyperGroup):
    """The commands by name, as a shell completes them: without their modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COLLECTIVES, *list_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        collective = COLLECTIVES.get(cmd_name)
        text = collective.meaning if collective else list_commands()[cmd_name].summary
        return TyperCommand(cmd_name, help=text)


class _Commands(TyperGroup):
    """Builds a command's options only when it is called, so that `collbench --help` costs no more
    than its text."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COLLECTIVES, *list_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if command := list_commands().get(cmd_name):
            function = load_command(cmd_name)
            if command.is_group:
                return typer.main.get_command(function())
            return _make_command(cmd_name, function)
        if cmd_name.removesuffix("_perf") == "hypercube":
            raise UsageError(
                "hypercube is an all_gather of doubling steps",
                "collbench all_gather --algo recursive_doubling",
            )
        try:
            name = find_collective(cmd_name).name
        except UsageError:
            return None
        from collbench.cli.measure import measure
        from collbench.cli.sections import MeasureCommand

        command = _make_command(name, measure, _write_help(name), MeasureCommand)
        command.epilog = f"{' '.join(DIFFERENCES.split())}\n\n{EXITS}"
        return command

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        command = _Names(name=self.name, params=self.params)
        return command.shell_complete(typer.Context(command, info_name=ctx.info_name), incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        name = args[0] if args[0] in names else args[0].replace("-", "_")
        odd = name not in names and not args[0].startswith("-")
        if odd and self.get_command(ctx, name) is None:
            hint = suggest_name(name, names) or "collbench --help lists them"
            from collbench.cli.help import list_pages

            if args[0] in list_pages():
                hint = f"it is a topic: collbench help {args[0]}"
            raise UsageError(f"no command '{args[0]}'", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Measure"):
            formatter.write_dl([(row.name, row.meaning) for row in COLLECTIVES.values()])
        with formatter.section("Other commands"):
            formatter.write_dl([(row.key, row.summary) for row in list_commands().values()])


def _make_command(
    name: str,
    function: Callable[..., None],
    text: str | None = None,
    kind: type[TyperCommand] = TyperCommand,
) -> Any:
    from collbench.cli import command as commands

    command = typer.main.get_command(commands.make_app({name: function}, text, kind))
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "max_content_width": 100,
        "token_normalize_func": lambda name: name.replace("-", "_"),
    },
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from collbench.core.version import __version__

        typer.echo(f"collbench {__version__}")
        raise typer.Exit


FIRST = """\
collbench measures collective communication: how fast, how sure, and whether
the data arrived.

  collbench all_reduce -b 8 -e 64M -g 2    measure: two ranks, sizes double
  collbench doctor                         what can run here, and what cannot
  collbench show all_reduce ring           an algorithm, step by step

collbench help lists all topics and commands."""


@app.callback(epilog=EXITS)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Measure collective communication: how fast, how sure, and whether the data arrived.

    Start with `collbench all_reduce -b 8 -e 64M -g 2`. `collbench help` lists pages that explain a
    topic; every command explains itself with --help.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(FIRST)


ENVIRONMENT = "environment"  # of a pod, say, in which a person may type a command


def main() -> None:
    """The console script: errors meant for people become two lines and an exit code."""
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # no width, though some programs tell it to what they start
    out = sys.stdout = ResilientOutput(reopen_stdout())
    code = _run_command()
    out.flush()
    _end_process(
        Exit.CANNOT_RUN if out.lost and code in (Exit.OK, Exit.BAD, Exit.NO_VERDICT) else code
    )


def _run_command() -> int:
    """Runs the command; its exit code."""
    try:
        if _is_left_to_rank_0(sys.argv[1:]):
            return Exit.OK
        with interrupts:
            _refuse_no_folder()
            mistakes.refuse_osu_flags(sys.argv[1:])
            code = app(standalone_mode=False)
    except CollbenchError as e:
        _print_traceback()
        print_message(e.message, e.hint)
        return _find_exit_code(e.message, e.exit)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(bool(e.code))
    except Exception as e:
        return _handle_error(e)
    return code if isinstance(code, int) else Exit.OK


def _is_left_to_rank_0(args: Sequence[str]) -> bool:
    """Whether a launcher started this process beside others, and the command needs only one."""
    command = list_commands().get(args[0]) if args else None
    if command is None or command.starts_ranks:
        return False
    from collbench.run.launch import environments

    with suppress(UsageError):  # of variables that are no numbers
        member = environments.detect_variables()
        return bool(member and member.rank and member.launcher != ENVIRONMENT)
    return False


def _print_traceback() -> None:
    """Prints the traceback of the error being handled to standard error, where --debug asks for
    it."""
    if "--debug" in sys.argv and sys.stderr:
        with suppress(OSError, ValueError):
            traceback.print_exc()


def _handle_error(error: Exception) -> int:
    """The exit code of an error that is not one of ours: the command line's, the machine's or a
    fault of collbench."""
    if hasattr(error, "format_message"):  # of the parser of options
        return _refuse_command_line(error)
    if isinstance(error, typer.Abort):  # Ctrl-C or Ctrl-D at a question
        print_message("no answer: nothing was done")
        return Exit.INTERRUPTED
    _print_traceback()
    crash = explain_crash(error)
    print_message(crash.message, crash.hint)
    return crash.exit if crash.exit == Exit.FAULT else _find_exit_code(crash.message, crash.exit)


def _refuse_command_line(error: Any) -> int:
    """Tells an error in the command line; its exit code. A group that is called without a command
    shows its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return Exit.USAGE
    message, hint = mistakes.describe_mistake(error)
    print_message(message, hint)
    return _find_exit_code(message, Exit.USAGE)


def _refuse_no_folder() -> None:
    """Raises CannotRun where the current folder was removed: libraries end the process there."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise CannotRun("the current folder was removed", "cd to a folder that exists") from None


def _find_exit_code(message: str, code: int) -> int:
    """The exit code; for a monitoring plugin, whose 2 is critical, unknown with a line."""
    if "--nagios" not in sys.argv:
        return code
    print(f"COLLBENCH UNKNOWN - {plain_line(message)}".replace("|", "/"))
    return Exit.NO_VERDICT


def _end_process(code: int) -> None:
    """Ends this process; at once where it is a rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized():
        import socket

        from collbench.run.launch import join
        from collbench.run.launch.forkserver import leave_process

        who = f"rank {distributed.get_rank()} on {readable_text(socket.gethostname())}"
        leave_process(code, who, join.describe_stopped)
    sys.exit(code)
