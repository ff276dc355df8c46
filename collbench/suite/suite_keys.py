"""Hints for runs of suites: they name keys of the suite's file where a collective's command has
options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.suite.fields import FIELDS, Field

RANKS = frozenset(("-g", "--ngpus", "--ranks"))
COMMANDS = {  # that measure suites, with the options that each has for keys of a file
    "run": RANKS | {"--backend", "--max-time"},
    "ab": RANKS | {"--max-time"},
    "accept": RANKS,
    "health": RANKS,
}
KEYS = {"envs": "env", "minbytes": "sizes", "maxbytes": "sizes", "listed": "sizes"}
WORKLOAD_KEYS = ("scale", "slice", "layers")
BEFORE_SHORT_OPTION = (
    r"(?<=\()|(?<=choose )|(?<=leave )"  # where an option of one letter is no other program's
)


def replace_options(hint: str, command: Sequence[str]) -> str:
    """The hint for a run with this command line: where that measures a suite, with the key of the
    suite's file in place of an option, as `agg_iters = 20 in [policy]` for `-m 20`."""
    options = next((COMMANDS[word] for word in command[1:2] if word in COMMANDS), None)
    if options is None:
        return hint
    for key in WORKLOAD_KEYS:
        hint = re.sub(rf"--{key}\b", f"{key} in [[workload]]", hint)
    for field in FIELDS:
        # no file plants faults
        if (field.group != "command" or field.name in KEYS) and field.kind != "faults":
            for flag in {*re.split("[ /]", field.flags)} - options - {""}:
                hint = _replace_option(hint, flag, field)
    return hint


def _replace_option(hint: str, flag: str, field: Field) -> str:
    choices = {"in_place": ("out",), "arrivals": ("aligned",)}.get(field.name, field.choices)
    names = "|".join(map(str, (*choices, *field.every)))
    value = rf"(?P<value>(?:{names or 'x^'})(?:,\w+)*|[0-9.]+[%a-zA-Z]?)(?!\w)"
    begin, end = rf"(?<![\w-]){flag}(?![\w-])", "" if flag.startswith("--") else BEFORE_SHORT_OPTION
    hint = re.sub(rf"{begin} {value}", lambda match: _format_key(field, match["value"]), hint)
    return re.sub(f"(?:{end}){begin}", lambda match: _format_key(field, ""), hint)


def _format_key(field: Field, value: str) -> str:
    key = KEYS.get(field.name, field.name)
    table = "policy" if field.group == "policy" else "axes"
    items = ["false"] if value and field.kind == "place" else value.split(",")
    values = [item if item.isdigit() or item == "false" else f'"{item}"' for item in items]
    setting = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
    return f"{key} = {setting} in [{table}]" if value else f"{key} in [{table}]"
