"""Errors in a command line, as all other errors are told: what was given, and what to give."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from collbench.core.collectives import COLLECTIVES, map_collective_names
from collbench.core.errors import UsageError

SIZE = re.compile(r"\d+(?:\.\d+)?[kmgt]?i?b?", re.IGNORECASE)


class Foreign(NamedTuple):
    """What other tools call an option: ``hint`` is shown by commands that have the option, and
    whose help of it has the word ``value``."""

    names: tuple[str, ...]
    option: str
    value: str
    hint: str


FOREIGN = (
    Foreign(("json", "export_json"), "-J", "", "-J FILE.json, or --format json"),
    Foreign(("json", "export_json"), "--format", "json", "--format json"),
    Foreign(("csv", "export_csv"), "--format", "csv", "--format csv"),
    Foreign(("md", "markdown", "export_markdown"), "--format", "md", "--format md"),
    Foreign(("junit",), "--format", "junit", "--format junit"),
    Foreign(("html",), "--format", "html", "--format html"),
    Foreign(("np", "nproc", "nprocs", "ntasks", "gpus", "world_size"), "-g", "", "-g 2: two ranks"),
    Foreign(("np", "nproc", "nprocs", "ntasks", "gpus", "g"), "--ranks", "", "--ranks 2"),
    Foreign(("warmup", "warmups", "min_warmup"), "-w", "", "-w 5: five warm-up samples"),
    Foreign(("runs", "repeat", "repeats", "iterations", "rounds"), "-n", "sample", "-n 20"),
    Foreign(("threshold", "tolerance"), "--tau", "", "--tau 5%: the smallest change that matters"),
    Foreign(
        ("fail_on", "fail_under"),
        *(
            "--tau",
            "",
            "--tau 5%: the smallest change that can fail a row; a limit in GB/s is --min-busbw",
        ),
    ),
    Foreign(("size", "bytes", "s"), "--sizes", "", "--sizes 1M,64M"),
    Foreign(("size", "bytes", "s", "sizes"), "-b", "", "-b 1M -e 64M"),
    Foreign(
        ("sizes", "b", "e", "f", "g", "d", "n", "w", "algo", "backend", "size", "s"),
        *("--suite", "TOML", "a suite has sizes, ranks and the like: collbench help suites"),
    ),
    Foreign(("min", "min_bytes"), "-b", "", "-b 8"),
    Foreign(("max", "max_bytes"), "-e", "", "-e 1G"),
    Foreign(("factor", "step_factor"), "-f", "", "-f 2"),
    Foreign(("dtype", "type"), "-d", "", "-d float"),
    Foreign(("algorithm",), "--algo", "", "--algo ring"),
)

VERSION = ("-v", "-V", "--version", "-version")


def describe_mistake(error: Any) -> tuple[str, str]:
    """The message and the hint of an error that the parser of options has found."""
    path, command = _find_command(error)
    kind = type(error).__name__  # of click, or of the copy of it that typer has
    if kind == "NoSuchOption":
        return _unknown_option(error.option_name, path, command)
    if kind == "BadOptionUsage":
        return _misused_option(error, path)
    if kind == "MissingParameter":
        return _describe_missing(error, path, command)
    if parameter := getattr(error, "param", None):
        return _bad_value(parameter, error.message, path)
    message = error.format_message()
    if extra := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return _describe_extra(extra[1].split(), path)
    return message[:1].lower() + message[1:].rstrip("."), f"{path} --help lists its options"


def _misused_option(error: Any, path: str) -> tuple[str, str]:
    name, message = _as_given(error.option_name), error.format_message()
    if "does not take" in message:
        return f"{name} takes no value", f"give {name} alone"
    return f"{name} needs a value", _point_to_help(path, name)


def _find_command(error: Any) -> tuple[str, Any]:
    """How the command is called, and the command itself where the parser says which it was."""
    context = getattr(error, "ctx", None)
    names: list[str] = []
    command = context.command if context else None
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name or "")
        context = context.parent
    if not names and command is None:
        names = [word for word in sys.argv[1:2] if not word.startswith("-")]
    return " ".join(["collbench", *names]), command


def _unknown_option(name: str, path: str, command: Any) -> tuple[str, str]:
    """The message and the hint for an option that the command does not have."""
    name = _as_given(name)
    command_name = path.removeprefix("collbench").strip()
    message = f"{command_name}: no option {name}" if command_name else f"no option {name}"
    if name in VERSION:
        return message, "collbench --version"
    word = name.lstrip("-").replace("-", "_")
    parameters = command.params if command else ()
    help_by_flag = {flag: getattr(p, "help", None) or "" for p in parameters for flag in p.opts}
    for row in FOREIGN:
        text = help_by_flag.get(row.option)
        if word in row.names and text is not None and row.value in text:
            return message, row.hint
    flags = [flag for flag in _list_flags(command) if flag.startswith("--")]
    near = difflib.get_close_matches(name, flags, 1)
    return message, f"did you mean {near[0]}?" if near else f"{path} --help lists its options"


def _describe_missing(error: Any, path: str, command: Any) -> tuple[str, str]:
    """The message and the hint for an option or an argument that is missing."""
    parameter = error.param
    if parameter is None or command is None:
        return "an argument is missing", f"{path} --help"
    if parameter.param_type_name == "option":
        flag = parameter.opts[0]
        return f"{flag} is missing", f"give {flag}: {_point_to_help(path, 'it')}"
    arguments = [
        _name_argument(parameter)
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    return f"{_name_argument(parameter)} is missing", " ".join([path, *arguments])


def _name_argument(argument: Any) -> str:
    """The name of an argument, in brackets where it may be left out."""
    name = (argument.metavar or argument.name or "").strip("[]{}")
    return name if argument.required else f"[{name}]"


def _bad_value(parameter: Any, message: str, path: str) -> tuple[str, str]:
    option = parameter.param_type_name == "option"
    flag = parameter.opts[0] if option else _name_argument(parameter)
    given = next((value for name in parameter.opts if (value := _value_of(name))), "")
    if (option and flag == "-n" and given == "p") or "-np" in sys.argv[1:]:
        return "-np: no such option", "-g 2: two ranks"
    as_typed = f"{flag} {given}".strip()
    reason = _reword_value_error(message)
    hint = _suggest_value(flag, given, reason) or _point_to_help(path, flag)
    return f"{as_typed}: {reason}", hint


def _suggest_value(flag: str, given: str, reason: str) -> str:
    """What to give an option in place of a value that is refused for this reason, "" where that
    does not say."""
    *first, last = given.split(",")
    if first and reason.endswith("number") and all(map(str.isdecimal, (*first, last))):
        runs = f"{first[0]} and once for {last}" if len(first) == 1 else f"each of {given}"
        return f"{flag} takes one number: run the command once for {runs.replace(',', ', ')}"
    if bound := re.fullmatch(r"must be at (least|most) (\S+)", reason):
        return f"give {flag} {bound[2]} or {'more' if bound[1] == 'least' else 'less'}"
    if ends := re.fullmatch(r"must be from (\S+) to (\S+)", reason):
        return f"give {flag} a number from {ends[1]} to {ends[2]}"
    return f"give {flag} one number" if reason.endswith("number") else ""


def _reword_value_error(message: str) -> str:
    """The message on a value, reworded from the parser's."""
    for pattern, template in (
        (r"greater than or equal to (\S+)|x>=([^\s.<]+)\.?$", "must be at least {}"),
        (r"less than or equal to (\S+)|x<=([^\s.]+)\.?$", "must be at most {}"),
        (r"([\d.e+]+)<=x<=([\d.e+]+?)\.?$", "must be from {} to {}"),
        (r"valid integer|valid int", "must be a whole number"),
        (r"valid number|valid float", "must be a number"),
    ):
        if match := re.search(pattern, message):
            return template.format(*filter(None, match.groups()))
    return message[:1].lower() + message[1:].rstrip(".")


def _describe_extra(args: Sequence[str], path: str) -> tuple[str, str]:
    name, first = path.rpartition(" ")[2], args[0]
    message = f"{name}: unexpected argument {first}"
    if name not in COLLECTIVES:
        return message, f"{path} --help shows what it takes"
    if SIZE.fullmatch(first):
        return message, f"--sizes {first}"
    return message, f"an algorithm is --algo {first}; {path} --help lists options"


def _list_flags(command: Any) -> list[str]:
    """The names of a command's options that its help shows."""
    parameters = (
        [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        if command
        else []
    )
    return [
        flag for parameter in parameters for flag in (*parameter.opts, *parameter.secondary_opts)
    ]


def _point_to_help(path: str, name: str) -> str:
    return f"{path} --help says what {name} takes"


def _as_given(name: str) -> str:
    """An option as it stands in the command line, where the parser has put '_' for '-'."""
    args = (word.partition("=")[0] for word in sys.argv[1:])
    same = (word for word in args if word.replace("-", "_") == name.replace("-", "_"))
    return next(same, name)


def _value_of(flag: str) -> str:
    """The value that the command line gives an option, "" if it cannot be told."""
    args = sys.argv[1:]
    for at, word in enumerate(args):
        if word == flag and at + 1 < len(args):
            return args[at + 1]
        if word.startswith(f"{flag}=") or (
            len(flag) == 2 and word.startswith(flag) != (word == flag)
        ):
            return word[len(flag) :].lstrip("=")
    return ""


def refuse_osu_flags(args: Sequence[str]) -> None:
    """Raises UsageError for a command line of OSU's, whose letters mean other things here."""
    ranges = [value for flag, value in itertools.pairwise(args) if flag == "-m"]
    osu_range = next(
        (m for value in ranges if (m := re.fullmatch(r"(\d+\w?):(\d+\w?)", value))), None
    )
    if osu_range or (args and args[0].startswith("osu_")):
        sizes = f"-b {osu_range[1]} -e {osu_range[2]}" if osu_range else "-b A -e B"
        command = _find_osu_command(args[0])
        raise UsageError(
            f"{f'-m {osu_range[0]}' if osu_range else args[0]}: that is for OSU's benchmarks",
            f"the command is {command}; " * bool(command)
            + f"use {sizes} for OSU's -m A:B, -n for its -i, -w for its -x; leave out its -f",
        )


def _find_osu_command(program: str) -> str:
    """The command for a program of OSU's, as osu_allreduce or osu_ibcast; "" where there is
    none."""
    word = program.removeprefix("osu_")
    if word == program:
        return ""
    if word in ("latency", "bw", "bibw", "multi_lat", "mbw_mr"):
        return "collbench p2p"
    names = map_collective_names()
    found = names.get(word) or names.get(word.removeprefix("i"))
    return f"collbench {found}" if found else ""
