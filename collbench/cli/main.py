"""The command line: what `collbench` can do, by name; a command's module is imported when it is
called."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from collbench.cli import mistakes
from collbench.core.collectives import COLLECTIVES, collective
from collbench.core.errors import CannotRun, CollbenchError, Exit, UsageError, first_line
from collbench.core.feature import Command, find_entries, load_entry
from collbench.core.files import keep_traceback
from collbench.core.interrupts import interrupts
from collbench.core.streams import SPELLED
from collbench.core.text import near, plain, tell

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
    if found := find_entries("commands").get(name):
        return cast(Callable[..., Any], load_entry(found[0], found[1].target))
    module, _, function = list_commands()[name].target.partition(":")
    return cast(Callable[..., Any], getattr(import_module(f"collbench.cli.{module}"), function))


DIFFERENCES = """
Single-letter options mean the same as in nccl-tests, with these differences: sizes double unless
-f or -i says otherwise; usage errors exit 2; times are those of the slowest rank (-a 3); lists
sweep their product (-d float,half -g 2,4); blocks are not rounded to 16 bytes unless --align 16; -n
fixes the number of samples, without it sampling goes on until the median is precise enough
(--precision); -t 1, -p, -y 0, -D 0, -V, -M 0 and -x 0 are taken and mean nothing.
"""


EXITS = (
    "Exit codes: 0 fine, 1 judged bad, 2 usage, 3 no verdict, 4 timeout or hang, 5 cannot run here,"
    " 7 wrong data, 70 a fault of collbench, 130 interrupted."
)


def _help(name: str) -> str:
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
    place = {
        "same": "In place, both buffers are one.",
        "block of recv": "In place, a rank sends from its own block of the receive buffer.",
        "block of send": "In place, a rank receives into its own block of the send buffer.",
        None: "It has no in-place form.",
    }[row.in_place]
    return (
        f"{row.meaning}\n\n{sizes} {factor} {place}\n\n{' '.join(DIFFERENCES.split())}\n\n{EXITS}"
    )


class _Names(TyperGroup):
    """The commands by name, as a shell completes them: without their modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COLLECTIVES, *list_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = COLLECTIVES.get(cmd_name)
        text = known.meaning if known else list_commands()[cmd_name].summary
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
            return _command(cmd_name, function)
        if cmd_name.removesuffix("_perf") == "hypercube":
            raise UsageError(
                "hypercube is an all_gather of doubling steps",
                "collbench all_gather --algo recursive_doubling",
            )
        try:
            name = collective(cmd_name).name
        except UsageError:
            return None
        from collbench.cli.measure import measure
        from collbench.cli.sections import MeasureCommand

        return _command(name, measure, _help(name), MeasureCommand)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        named = _Names(name=self.name, params=self.params)
        return named.shell_complete(typer.Context(named, info_name=ctx.info_name), incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        name = args[0] if args[0] in known else args[0].replace("-", "_")
        odd = name not in known and not args[0].startswith("-")
        if odd and self.get_command(ctx, name) is None:
            hint = near(name, known) or "collbench --help lists them"
            raise UsageError(f"no command '{args[0]}'", hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Measure"):
            formatter.write_dl([(row.name, row.meaning) for row in COLLECTIVES.values()])
        with formatter.section("Other commands"):
            formatter.write_dl([(row.key, row.summary) for row in list_commands().values()])


def _command(
    name: str,
    function: Callable[..., None],
    text: str | None = None,
    kind: type[TyperCommand] = TyperCommand,
) -> Any:
    from collbench.cli import flags

    command = typer.main.get_command(flags.app({name: function}, text, kind))
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["--help", "-h"],
        "token_normalize_func": lambda name: name.replace("-", "_"),
    },
)


def _version(asked: bool) -> None:
    if asked:
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
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Measure collective communication: how fast, how sure, and whether the data arrived.

    Start with `collbench all_reduce -b 8 -e 64M -g 2`. `collbench help` lists pages that explain a
    topic; every command explains itself with --help.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(FIRST)


ENVIRONMENT = "environment"  # of a pod, say, in which a person may type a command


# as Python, the loader of libraries and the kernel say it
NO_MEMORY = re.compile("^MemoryError|failed to map segment|annot allocate memory")


_MAY_NOT = "run this as its owner, or name another place (COLLBENCH_HOME, TMPDIR, -o)"
_NO_ROOM = "free some space, or name another place (COLLBENCH_HOME, TMPDIR, -o)"


# errors of the machine and of what a person gave, and what to do about them
OF_THE_MACHINE = {
    errno.EACCES: _MAY_NOT,
    errno.EPERM: _MAY_NOT,
    errno.EROFS: _NO_ROOM,
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "it is a link that leads to itself",
    errno.EIO: "is its disk or its network well? see dmesg",
    errno.ESTALE: "is its file server there?",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the machine has too many files open",
    errno.EAGAIN: "raise the limit of processes (ulimit -u)",
}


def main() -> None:
    """The console script: errors meant for people become two lines and an exit code."""
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # no width, though some programs tell it to what they start
    out = sys.stdout = Out(_own_stdout())
    code = _ended()
    out.flush()
    _leave(Exit.CANNOT_RUN if out.lost and code in (Exit.OK, Exit.BAD, Exit.NO_VERDICT) else code)


def _own_stdout() -> Any:
    """Standard output at a descriptor that only this command writes to: where it is a rank, what
    libraries write to descriptor 1 goes to standard error (join.py)."""
    inherited = sys.stdout
    if not isinstance(inherited, io.TextIOWrapper):
        return inherited or io.StringIO()
    inherited.reconfigure(errors=SPELLED)  # what its encoding lacks is no reason to stop
    try:
        descriptor = os.dup(inherited.fileno())
    except OSError:
        return inherited  # it has none
    unbuffered = inherited.write_through
    return io.TextIOWrapper(
        os.fdopen(descriptor, "wb", buffering=0 if unbuffered else -1),
        inherited.encoding,
        inherited.errors,
        line_buffering=inherited.line_buffering,
        write_through=unbuffered,
    )


def _ended() -> int:
    """Runs the command; its exit code."""
    try:
        if _is_left_to_rank_0(sys.argv[1:]):
            return Exit.OK
        with interrupts:
            _refuse_no_folder()
            mistakes.refuse_osu_flags(sys.argv[1:])
            code = app(standalone_mode=False)
    except CollbenchError as e:
        if "--debug" in sys.argv:
            raise
        tell(e.message, e.hint)
        return _refused(e.message, e.exit)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(bool(e.code))
    except Exception as e:
        return _failed(e)
    return code if isinstance(code, int) else Exit.OK


def _is_left_to_rank_0(words: Sequence[str]) -> bool:
    """Whether a launcher started this process beside others, and the command needs only one."""
    command = list_commands().get(words[0]) if words else None
    if command is None or command.starts_ranks:
        return False
    from collbench.run.launch import environments

    with suppress(UsageError):  # of variables that are no numbers
        member = environments.detect()
        return bool(member and member.rank and member.launcher != ENVIRONMENT)
    return False


def _failed(error: Exception) -> int:
    """The exit code of an error that is not one of ours: the command line's, the machine's or a
    fault of collbench."""
    if hasattr(error, "format_message"):  # of the parser of options
        return _refuse_command_line(error)
    if "--debug" in sys.argv:
        raise error
    return _unforeseen(error)


def _refuse_command_line(error: Any) -> int:
    """Tells an error in the command line; its exit code. A group that is called without a command
    shows its help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return Exit.USAGE
    message, hint = mistakes.describe(error)
    tell(message, hint)
    return _refused(message, Exit.USAGE)


def _unforeseen(error: Exception) -> int:
    """The exit code of an error that no command expects: the machine's, or a fault of collbench."""
    if NO_MEMORY.search(f"{type(error).__name__}: {error}"):
        tell(
            "there is not enough memory",
            "free some, raise ulimit -v, or give fewer or smaller runs",
        )
        return Exit.CANNOT_RUN
    if isinstance(error, OSError) and error.errno in OF_THE_MACHINE:
        what = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
        tell(what, OF_THE_MACHINE[error.errno])
        return _refused(what, Exit.CANNOT_RUN)
    kept = keep_traceback("".join(traceback.format_exception(error)))
    tell(
        f"{type(error).__name__}, {first_line(error)}",
        f"this is a fault of collbench, please report it: {kept}",
    )
    return Exit.FAULT


def _refuse_no_folder() -> None:
    """Raises CannotRun where the current folder was removed: libraries end the process there."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise CannotRun("the current folder was removed", "cd to one that is there") from None


def _refused(message: str, code: int) -> int:
    """The exit code; for a monitoring plugin, whose 2 is critical, unknown with a line."""
    if "--nagios" not in sys.argv:
        return code
    print(f"COLLBENCH UNKNOWN - {plain(message)}".replace("|", "/"))
    return Exit.NO_VERDICT


class Out:
    """Standard output that never ends what the command does. What cannot be written is given up:
    without a word where nobody reads on (``closed_early``), told once where the disk is full
    (``lost``)."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.closed_early = self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def write(self, text: str) -> int:
        return self._tried(partial(self._out.write, text)) or len(text)

    def flush(self) -> None:
        self._tried(self._out.flush)

    def _tried(self, act: Callable[[], Any]) -> Any:
        if self.closed_early or self.lost:
            return None
        try:
            return act()
        except BrokenPipeError:
            self.closed_early = True
        except OSError as e:
            self.lost = True
            tell(f"standard output: {e.strerror}; what follows is not printed")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError, ValueError):  # what it still holds goes there when Python ends
            os.dup2(nowhere, self._out.fileno())
        return None


def _leave(code: int) -> None:
    """Ends this process; at once where it is a rank."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized():
        from collbench.run.launch.forkserver import leave

        leave(code, f"rank {distributed.get_rank()} on {socket.gethostname()}")
    sys.exit(code)
