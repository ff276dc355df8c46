"""Advice in words, for libraries that read no file: a shell script of comments and exports.

Each row is a comment that a person follows. A setting of the environment holds for all calls of a
job, so it is exported only where it is not slower at any measured size.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import UsageError
from collbench.core.text import format_count, format_size, plain_line
from collbench.features.advise.crossings import describe_crossing
from collbench.features.advise.formats import Format, Rule
from collbench.features.advise.formats._rows import comment, describe_row, format_path, write_head
from collbench.features.advise.libraries import load_libraries
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Setting, Variables

RULE = re.compile(
    r"# (?P<collective>\w+) on (?P<n>\d+) ranks? of (?P<nodes>\d+) hosts?,"
    r" (?P<low>\d+) to (?P<high>\d+) bytes: use (?P<name>.*)"
)
SET = "#   set "
INSTEAD = re.compile(r"(?P<name>[^=]+?) in place of \S+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_SIZES = 3  # that a sentence names


class Words(Format):
    """Advice for people, in a file that a shell can read."""

    key = "words"
    title = "sentences, and exports for a shell"
    suffix = ".sh"
    by_size, covers_all = False, False

    def refuse(self, advised: Advised) -> str:
        return ""

    def write(self, advised: Advised, path: Path | None = None) -> str:
        commands = [f"source {format_path(path)}"] if find_export(advised) else []
        lines = write_head(advised, "what to set, in words", commands)
        for row in advised.rows:
            lines += ["#", *_write_row(advised, row)]
        lines += [*_write_exports(advised)]
        return "\n".join(lines) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        rules: list[Rule] = []
        names: dict[Variables, str] = {}
        exports: list[tuple[str, str]] = []
        for number, line in enumerate(text.split("\n"), 1):
            if match := RULE.fullmatch(line):
                rules.append(_read_rule(match))
            elif line.startswith(SET) and rules:
                names[_split_variables(line.removeprefix(SET), number)] = rules[-1].name
            elif line.startswith("export "):
                exports += _split_variables(line.removeprefix("export "), number)
            elif line and not line.startswith("#"):
                raise UsageError(
                    f"line {number}: '{plain_line(line)[:40]}' is neither a comment nor an export",
                    "write it anew with collbench advise --for words",
                )
        if exports:
            key = tuple(sorted(exports))
            name = names.get(key, format_variables(key))
            rules += [Rule(collective, None, None, 0, None, name) for collective in COLLECTIVES]
        return rules

    def use(self, path: Path) -> dict[str, str]:
        return {}


def find_export(advised: Advised) -> Variables:
    """The variables of the one setting that a whole job may have: of those by environment alone
    that are not slower at any measured size, what is advised at the most. Settings were measured
    one by one, so there is one at most. Empty where there is none."""
    sizes_by_env: dict[Variables, int] = {}
    for row in advised.rows:
        if _is_exportable(advised, row):
            env = row.setting.env
            sizes_by_env[env] = sizes_by_env.get(env, 0) + len(row.gains)
    return max(sizes_by_env, key=lambda env: (sizes_by_env[env], env), default=())


def list_doubts(advised: Advised, row: Advice) -> tuple[list[Cell], list[Cell]]:
    """Measured cells in which the setting of a row is surely slower, and those in which it may be,
    by more than matters, or may not be advised, or was not tried."""
    slower, unsure = [], []
    gains = _collect_gains(advised, row)
    for cell, gain in sorted(gains.items(), key=lambda entry: entry[0]):
        if gain is None or gain.doubt:
            unsure.append(cell)
        elif gain.hi < 0:
            slower.append(cell)
        elif gain.lo < -max(advised.taus):
            unsure.append(cell)
    return slower, unsure


def _collect_gains(advised: Advised, row: Advice) -> dict[Cell, Gain | None]:
    """What the setting of a row gains in each measured cell; None where that is not known."""
    gains: dict[Cell, Gain | None] = {}
    settings = _find_settings(advised, row)
    for unadvised in advised.unadvised:
        name = settings[unadvised.cell.series.collective][1]
        gains[unadvised.cell] = unadvised.best if unadvised.best_name == name else None
    for cell, rivals in advised.rivals.items():
        name = settings[cell.series.collective][1]
        gains[cell] = rivals.get(name) or gains.get(cell)
    for other in advised.rows:
        for gain in other.gains:
            cell = Cell(other.series, gain.nbytes)
            is_same = other.setting == settings[other.series.collective][0]
            gains[cell] = gain if is_same else gains.get(cell)
    return {cell: gain for cell, gain in gains.items() if _bears(row, cell, settings)}


def _find_settings(advised: Advised, row: Advice) -> dict[str, tuple[Setting, str]]:
    """What the setting of a row is for each collective, with its name there: of its variables those
    that bear on the collective. Names alone tell nothing, as preset 1 of one collective is another
    one than preset 1 of the next."""
    library = next(each for each in load_libraries() if each.key in (advised.library, "other"))
    settings = {row.series.collective: (row.setting, row.name)}
    for collective in COLLECTIVES:
        env = library.reduce(collective, row.setting.env)
        setting = msgspec.structs.replace(row.setting, env=env)
        settings.setdefault(collective, (setting, library.name_setting(collective, setting)))
    return settings


def _bears(row: Advice, cell: Cell, settings: Mapping[str, tuple[Setting, str]]) -> bool:
    """Whether the variables of a row's setting change anything in a cell."""
    return not row.setting.env or bool(settings[cell.series.collective][0].env)


def format_variables(env: Variables) -> str:
    """Variables as a shell takes them, on one line: A=1 B='x y'."""
    return " ".join(f"{plain_line(name)}={shlex.quote(plain_line(value))}" for name, value in env)


def _is_exportable(advised: Advised, row: Advice) -> bool:
    env = row.setting.env
    is_plain = all(VARIABLE.fullmatch(name) and plain_line(value) == value for name, value in env)
    is_alone = row.setting.algorithm == "native" and not _is_other_backend(advised, row)
    return bool(env) and is_plain and is_alone and list_doubts(advised, row) == ([], [])


def _is_other_backend(advised: Advised, row: Advice) -> bool:
    return bool(advised.backend) and row.setting.backend != advised.backend


def _write_row(advised: Advised, row: Advice) -> Iterator[str]:
    """The comments of a row: its gain, where it crosses the library's choice, and the rule."""
    sentences = [describe_row(row, advised.day)]
    for word, crossing, end in (("below", row.below, row.low), ("beyond", row.above, row.high)):
        if crossing:
            sentences.append(
                f"equally fast somewhere {describe_crossing(crossing)}; not advised {word}"
                f" {format_size(end)}"
            )
    yield from comment(sentences)
    series = row.series
    ranks = f"{format_count(series.n, 'rank')} of {format_count(series.nodes, 'host')}"
    yield (
        f"# {series.collective} on {ranks}, {row.low} to {row.high} bytes:"
        f" use {_name_setting(advised, row)}"
    )
    if row.setting.env and all(VARIABLE.fullmatch(variable) for variable, _ in row.setting.env):
        yield f"{SET}{format_variables(row.setting.env)}"


def _name_setting(advised: Advised, row: Advice) -> str:
    """The setting of a row, and the backend whose place it takes."""
    name = plain_line(row.name)
    if _is_other_backend(advised, row):
        return f"{name} in place of {plain_line(advised.backend)}"
    return name


def _write_exports(advised: Advised) -> Iterator[str]:
    export = find_export(advised)
    for env in dict.fromkeys(row.setting.env for row in advised.rows if row.setting.env != export):
        if env:
            rows = [row for row in advised.rows if row.setting.env == env]
            why = _say_why(advised, rows, export)
            yield from ("#", *comment([f"not exported: {format_variables(env)}: {why}"]))
    if export:
        yield "#"
        yield "# not slower at any measured size, so it may hold for a whole job:"
        yield f"export {format_variables(export)}"


def _say_why(advised: Advised, rows: Sequence[Advice], export: Variables) -> str:
    """Why the setting of some rows holds for them only."""
    slower, unsure = list_doubts(advised, rows[0])
    spans = [
        f"{row.series.collective} of {format_size(row.gains[0].nbytes)}"
        f" to {format_size(row.gains[-1].nbytes)}"
        for row in rows
    ]
    reasons = []
    if slower:
        reasons.append(f"slower at {_name_cells(advised, slower, rows[0])}")
    if unsure:
        reasons.append(f"not known to be as fast at {_name_cells(advised, unsure, rows[0])}")
    if not reasons:
        reasons.append(_name_obstacle(advised, rows[0], export))
    return f"it holds for {', '.join(spans)} only; {'; '.join(reasons)}"


def _name_obstacle(advised: Advised, row: Advice, export: Variables) -> str:
    """What but its times keeps a setting from being exported."""
    setting = row.setting
    if setting.algorithm != "native":
        return f"it takes algorithm {setting.algorithm}, which no variable sets"
    if _is_other_backend(advised, row):
        return f"it takes backend {setting.backend}, which no variable sets"
    if export:
        return f"{format_variables(export)} is advised at more sizes"
    return "no shell can be given these variables as they are"


def _name_cells(advised: Advised, cells: Sequence[Cell], row: Advice) -> str:
    """Some cells in words, the first few with what the setting of a row costs there."""
    gains = _collect_gains(advised, row)
    labels = [
        f"{cell.series.collective} of {format_size(cell.nbytes)}" + _format_gain(gains.get(cell))
        for cell in cells[:MAX_SIZES]
    ]
    rest = len(cells) - len(labels)
    return ", ".join(labels) + (f" and {rest} other sizes" if rest else "")


def _format_gain(gain: Gain | None) -> str:
    """A gain with its interval in brackets, or what doubts it; empty where there is none."""
    if gain is None:
        return ""
    if gain.doubt:
        return f" ({plain_line(gain.doubt)})"
    return f" ({100 * gain.gain:+.0f} % [{100 * gain.lo:.0f}, {100 * gain.hi:.0f}])"


def _read_rule(match: re.Match[str]) -> Rule:
    backend = INSTEAD.fullmatch(match["name"])
    return Rule(
        match["collective"],
        int(match["n"]),
        int(match["nodes"]),
        int(match["low"]),
        int(match["high"]),
        backend["name"] if backend else match["name"],
    )


def _split_variables(text: str, number: int) -> Variables:
    """The variables of a line, sorted. Raises UsageError."""
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as e:
        raise UsageError(f"line {number}: {e}", "quote values as a shell does") from e
    for name, equals, _ in pairs:
        if not equals or not VARIABLE.fullmatch(name):
            raise UsageError(
                f"line {number}: '{plain_line(name)[:40]}' is no variable", "write NAME=VALUE"
            )
    return tuple(sorted((name, value) for name, _, value in pairs))


FORMATS = (Words(),)
