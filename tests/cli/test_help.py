"""The manual: README and the pages of `collbench help`. Every command in them is one that the
command line takes, every file one that is read, every output what is printed today."""

from __future__ import annotations

import itertools
import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from factories import night, nightly, saved
from forked import Server

import collbench
from collbench.cli.help import list_pages
from collbench.cli.main import app, list_commands
from collbench.core import algorithms
from collbench.core.collectives import COLLECTIVES
from collbench.features.health.checks import curves
from collbench.features.health.checks import table as checks
from collbench.features.traces.formats import own
from collbench.features.traces.types import Call, RankTrace
from collbench.features.training import step_files as files
from collbench.machine import topology
from collbench.records import flags as flags_
from collbench.records.flags import FLAGS_BY_NAME as FLAGS
from collbench.suite import toml
from collbench.suite.fields import FIELDS

ROOT = Path(collbench.__file__).parents[1]
PAGES = {name: page.read_text(encoding="utf-8") for name, page in list_pages().items()}
TEXTS = PAGES | {"README": (ROOT / "README.md").read_text(encoding="utf-8")}
STARTED = re.compile(r"(?:^|[\s/])collbench ([a-z@].*)")  # by hand, or by a launcher


def blocks(text: str, language: str = "") -> list[str]:
    """Fenced blocks of Markdown in ``language``."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for written, block in found if written == language]


def joined(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def commands(text: str) -> list[list[str]]:
    """The words after ``collbench`` of every command in the blocks of a text; where a block has
    prompts, the other lines are output."""
    lines, found = [], []
    for block in blocks(text):
        each = joined(block)
        lines += [line for line in each if line.startswith("$ ")] or each
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # output with an apostrophe
            words = []
        for part in re.split("'(?:&&|;)'", " ".join(map(shlex.quote, words))):
            if given := STARTED.search(part):
                found.append(shlex.split(given[1]))
    return found


LISTED = list_commands()
COMMANDS = list(
    {tuple(words): words for text in TEXTS.values() for words in commands(text)}.values()
)
RUNS = {"show", "predict", "list", "help", "export"}  # commands that take a moment and no ranks
SHORT = [
    words
    for words in COMMANDS
    if (words[0] in RUNS and not any("@" in word or word == "-o" for word in words))
    or words[:2] == ["prove", "all_gather"]
    or {"--show", "--link", "model", "--dry-run"} & set(words)
]
TOML = [block for text in TEXTS.values() for block in blocks(text, "toml")]


def test_there_are_commands_of_every_kind() -> None:
    lacking = {*LISTED} - {words[0] for words in COMMANDS} - {"runs", "list", "help", "doctor"}
    assert lacking == set(), (
        "an example of each, on a line of its own in a code block of README or cli/pages/"
    )


@cache
def find_command(*names: str) -> Any:
    """The command of these words, whose options are made once for all that call it."""
    if not names:
        return typer.main.get_command(app)
    group = find_command(*names[:-1])
    return group.get_command(typer.Context(group), names[-1])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_of_the_manual_are_taken(words: list[str]) -> None:
    """Raises a usage error where an option or an argument is none of theirs."""
    groups = {name for name, command in LISTED.items() if command.is_group} | {"baseline"}
    path = [*itertools.takewhile(groups.__contains__, words)]
    name, *rest = words[len(path) :]
    found = find_command(*path, name)
    assert found is not None
    found.make_context(name, rest)


def list_matrix_commands() -> list[list[str]]:
    """The command lines of `make matrix`, which nobody runs before a change."""
    uses = runpy.run_path(str(ROOT / "tests" / "install" / "matrix.py"))
    lines = [line.split() for line, _ in (*uses["USES"], *uses["TORCH_USES"])]
    return [words for program, *words in lines if program == "collbench" and words[0] in LISTED]


@pytest.mark.parametrize("words", list_matrix_commands(), ids=" ".join)
def test_commands_of_the_matrix_are_taken(words: list[str]) -> None:
    test_commands_of_the_manual_are_taken(words)


@pytest.mark.parametrize("words", SHORT, ids=" ".join)
def test_short_commands_of_the_manual_run(
    words: list[str], bare: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "trace")
    (own,) = [block for block in blocks(TEXTS["algorithms"], "python") if "def line" in block]
    (tmp_path / "line.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    done = bare(*words)
    assert done.returncode == 0, done.stderr


def recorded(folder: Path) -> None:
    """The trace that the manual speaks of: three iterations of two ranks."""
    folder.mkdir()
    calls = [
        Call("all_reduce", nbytes=4096, dtype="float", op="sum", number=n, begins_ns=n * 1000)
        for n in range(3)
    ]
    for rank in range(2):
        about = RankTrace(rank, 2, groups={"": (0, 1)})
        writer = own.Writer(folder / own.file_name(rank), about)
        writer.write([msgspec.structs.replace(c, ends_ns=c.begins_ns + 500) for c in calls])
        writer.close()


@pytest.mark.parametrize("block", TOML)
def test_files_of_the_manual_are_read(block: str, tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    path.write_text(block)
    recorded(tmp_path / "trace")
    if "[[phase]]" in block:
        assert files.read_step(path).world
    elif "[[curve]]" in block:
        assert curves.load_curves(path)
    elif "[hosts]" in block:
        assert topology.read_racks(path)
    else:
        assert toml.load_suite(str(path))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_about_in_its_first_line(name: str) -> None:
    assert re.match(r"# \S.{10,90}\n\n\S", PAGES[name])


@pytest.mark.parametrize("name", TEXTS)
def test_lines_but_of_tables_fit_96_columns(name: str) -> None:
    lines = [line for line in TEXTS[name].splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 96] == []


def test_the_readme_is_a_screen_or_three() -> None:
    assert len(TEXTS["README"].splitlines()) <= 170


@pytest.mark.parametrize("name", TEXTS)
def test_what_the_manual_refers_to_is_there(name: str) -> None:
    text = TEXTS[name]
    topics = re.findall(r"collbench help ([a-z][a-z0-9]*)", text)
    paths = re.findall(r"`((?:reports|docker|tests|collbench)/[\w./-]+)`", text)
    paths += re.findall(r"\]\(([\w./-]+)\)", text)
    assert [topic for topic in topics if topic not in PAGES] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_fit_of_predicted_runs_is_made_as_the_manual_has_it(
    bare: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(PAGES["algorithms"]) if "collbench fit" in block]
    codes = [bare(*words).returncode for words in commands(f"```\n{block}```\n")]
    assert codes == [0, 0, 0]


def test_every_flag_is_explained() -> None:
    told = PAGES["flags"]
    lacking = [flag for flag in FLAGS if not re.search(rf"`{re.escape(flag)}[`:]", told)]
    assert lacking == [], "a row for each in a table of cli/pages/flags.md"


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_the_page_has_a_flag_among_doubts_or_remarks_as_the_table(flag) -> None:
    doubts, _, rest = PAGES["flags"].partition("## Remarks")
    remarks = rest.partition("## Rows that decide nothing")[0]
    is_doubt = flag.is_doubt is not flags_.is_never
    tables = {"Doubts": doubts, "Remarks": remarks}
    found = [title for title, text in tables.items() if f"\n| `{flag.name}" in text]
    assert found == ["Doubts" if is_doubt else "Remarks"], (
        f"cli/pages/flags.md: the table that has, by its `is_doubt`, the row of `{flag.name}`"
    )


def test_the_page_names_the_rows_that_decide_nothing() -> None:
    rest = PAGES["flags"].partition("## Rows that decide nothing")[2]
    lacking = [flag for flag in (*flags_.UNGATED, *flags_.EXCLUDED) if f"`{flag}`" not in rest]
    assert lacking == [], "cli/pages/flags.md: names under 'Rows that decide nothing'"


def test_the_number_of_algorithms_is_that_of_today() -> None:
    number = sum(len(algorithms.list_algorithms(name)) for name in COLLECTIVES)
    assert f"{number} algorithms of its own" in TEXTS["README"], "the number in README"
    assert f"export {number} algorithms\n" in PAGES["algorithms"], (
        "the number in cli/pages/algorithms.md"
    )


def test_every_check_of_health_is_explained() -> None:
    names = [check.name for check in checks.CHECKS]
    told = {
        word
        for line in re.findall(r"^\| ([a-z, ]+) \|", PAGES["health"], re.MULTILINE)
        for word in line.split(", ")
    }
    lacking = [name for name in names if name not in told]
    assert lacking == [], "a row, or a name in one, in the table of cli/pages/health.md"


def test_every_key_of_a_curve_is_explained() -> None:
    keys = {*curves.Curve.__struct_fields__} - {"file"}
    table = "\n".join(re.findall(r"^\| (`.*?) \|", PAGES["acceptance"], re.MULTILINE))
    lacking = keys - {*re.findall(r"`(\w+)`", table)}
    assert lacking == set(), "a row for a key of a curve in cli/pages/acceptance.md"


def test_every_key_of_a_suite_is_explained() -> None:
    keys = [row.name for row in FIELDS if row.group in ("axes", "policy") and row.name not in KEPT]
    lacking = [key for key in keys if not re.search(rf"`{key}[`, ]", PAGES["suites"])]
    assert lacking == [], "a key of axes or policy in cli/pages/suites.md"


# in files `env`, or for the command line alone
KEPT = ("envs", "per_host", "uneven_hosts", "cores", "inject")


def test_every_built_in_suite_is_named() -> None:
    lacking = [name for name in toml.built_in() if f"`{name}`" not in PAGES["suites"]]
    assert lacking == [], "the name of a suite in cli/pages/suites.md"


def test_topics_and_commands_are_listed_within_80_columns(bare: Server) -> None:
    done = bare("help", COLUMNS="80")
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [name for name in (*PAGES, *LISTED) if f"  {name} " not in done.stdout] == []


def test_a_page_in_a_pipe_is_its_text(bare: Server) -> None:
    assert bare("help", "workloads").stdout == PAGES["workloads"]


def test_help_of_a_command_is_that_of_its_option(bare: Server) -> None:
    assert bare("help", "workload").stdout.strip() == bare("workload", "--help").stdout.strip()


@pytest.mark.parametrize("name", sorted({*LISTED} & {*PAGES}))
def test_a_page_that_has_a_commands_name_says_where_its_options_are(name: str) -> None:
    assert f"`collbench {name} --help`" in PAGES[name]


@pytest.mark.parametrize(
    ("word", "hint"), [("worklods", "did you mean workloads?"), ("\x1b[1m", "lists the topics")]
)
def test_what_is_neither_is_refused(word: str, hint: str, bare: Server) -> None:
    done = bare("help", word)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "\x1b" not in done.stderr


def test_without_arguments_three_things_to_try_are_said(bare: Server) -> None:
    done = bare()
    assert done.returncode == 0
    tried = re.findall(r"^  (collbench .*?)   ", done.stdout, re.MULTILINE)
    assert [line.split()[1] for line in tried] == ["all_reduce", "doctor", "show"]
    assert "collbench help lists" in done.stdout


def test_the_frame_of_the_manual_is_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(night(rows=nightly(2)), home)
    (block,) = blocks(PAGES["report"], "python")
    exec(compile(block, "report.md", "exec"), {})
    assert "busbw" in capsys.readouterr().out


def test_an_option_of_a_collective_takes_two_rows_at_100_columns(bare: Server) -> None:
    lines = bare("all_reduce", "--help", COLUMNS="100").stdout.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("  -")]
    rows = {
        lines[n].split()[0]: next(k for k in range(1, 9) if not lines[n + k].startswith("    "))
        for n in starts
    }
    assert len(rows) > 50
    assert [name for name, count in rows.items() if count > 2] == []
    assert max(map(len, lines)) > 90


def test_values_in_help_have_names_and_no_bounds(bare: Server) -> None:
    text = bare("all_reduce", "--help", COLUMNS="100").stdout
    assert "--minbytes SIZE " in text and "--datatype NAME,… " in text and "-R, --local" in text
    assert re.findall(r"<\w+(?: range)?>|x[<>]=\d", text) == []


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_example_in_help_of_a_collective_is_taken(name: str, bare: Server) -> None:
    text = bare(name, "--help").stdout
    found = re.search(rf"For instance: collbench ({name} .*)", text)
    assert found and bare(*found[1].split(), "--dry-run", "--backend", "model").returncode == 0
