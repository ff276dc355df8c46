"""Hints for whoever runs a suite: they name keys of its file where a collective's command has
options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.suite.fields import FIELDS, Field

COMMANDS = ("run", "ab")  # that measure suites
OPTIONS = frozenset(  # that they have, too
    ("-g", "--ngpus", "--ranks", "--backend", "--max-time", "--path", "--inject", "--import")
)
KEYS = {"envs": "env", "minbytes": "sizes", "maxbytes": "sizes", "listed": "sizes"}
OF_WORKLOADS = ("scale", "slice", "layers")
SHORT = r"(?<=\()|(?<=choose )|(?<=leave )"  # where an option of one letter is no other program's


def name_keys(hint: str, command: Sequence[str]) -> str:
    """The hint for a run with this command line: where that measures a suite, with the key of the
    suite's file in place of an option, as `agg_iters = 20 in [policy]` for `-m 20`."""
    if not {*command[1:2]} & {*COMMANDS}:
        return hint
    for key in OF_WORKLOADS:
        hint = re.sub(rf"--{key}\b", f"{key} in [[workload]]", hint)
    for field in FIELDS:
        if field.group != "command" or field.name in KEYS:
            for flag in {*re.split("[ /]", field.flags)} - OPTIONS - {""}:
                hint = _replace_option(hint, flag, field)
    return hint


def _replace_option(hint: str, flag: str, field: Field) -> str:
    known = {"in_place": ("out",), "arrivals": ("aligned",)}.get(field.name, field.choices)
    names = "|".join(map(str, (*known, *field.every)))
    value = rf"(?P<value>(?:{names or 'x^'})(?:,\w+)*|[0-9.]+[%a-zA-Z]?)(?!\w)"
    begin, end = rf"(?<![\w-]){flag}(?![\w-])", "" if flag.startswith("--") else SHORT
    hint = re.sub(rf"{begin} {value}", lambda match: _spell_key(field, match["value"]), hint)
    return re.sub(f"(?:{end}){begin}", lambda match: _spell_key(field, ""), hint)


def _spell_key(field: Field, value: str) -> str:
    key = KEYS.get(field.name, field.name)
    table = "policy" if field.group == "policy" else "axes"
    words = ["false"] if value and field.kind == "place" else value.split(",")
    values = [word if word.isdigit() or word == "false" else f'"{word}"' for word in words]
    given = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
    return f"{key} = {given} in [{table}]" if value else f"{key} in [{table}]"
