"""One document through every renderer: what each shows, and that no text can break one."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import msgspec
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from collbench.show import html, markdown, programs, terminal
from collbench.show.document import (
    MARKER,
    CodeBlock,
    Column,
    Comment,
    Document,
    Gauge,
    Heading,
    Judgement,
    JunitCase,
    Line,
    Points,
    Section,
    Table,
    code_text,
    make_columns,
    mark_installs,
    tone_text,
)

EVIL = "<b>|`*_\x1b[31m[red]\n# y"
LITERAL = "<b>|`*_ [31m[red] # y"  # the same, shown


def a_table(**more) -> Table:
    lines = [Line((EVIL, tone_text("slow", "bad"), "1")), Line(("b", "", "22"))]
    closing = [Line(("sum", "", "23"))]
    columns = make_columns(("what", "how", "number"), "wl")
    return Table(columns=columns, lines=lines, closing=closing, **more)


def a_document(*blocks, elsewhere: str = "") -> Judgement:
    outcomes = ("passed", "failed", "error", "warned", "skipped")
    return Judgement(
        title=EVIL,
        verdict=EVIL,
        weight="bad",
        runs=[EVIL],
        sections=[Section(name="s", title=EVIL, sentences=[EVIL], tables=[a_table(title="t")])],
        brief=blocks,
        comment=Comment(blocks, elsewhere=elsewhere),
        values={"a": EVIL, "b": float("inf")},
        rows=[{"a": "=1+1", "b": 2.0}],
        suite=EVIL,
        cases=[
            JunitCase(group="g", name=EVIL, outcome=one, message=EVIL, kind="k", label=one)
            for one in outcomes
        ],
        gauges=[Gauge("collbench_a", "About a.", [({"host": EVIL}, 1.5)]), Gauge("b", "none", [])],
    )


def test_a_short_form_reads_the_same_on_a_terminal_and_in_markdown() -> None:
    lead = tone_text("all of it  ", strong=True) + EVIL
    made = a_document(Heading("head"), lead, Points(["one", "two"]), a_table())
    seen = terminal.render_text(made, 80)
    assert "\x1b" not in seen and f"all of it  {LITERAL}" in seen and "- one\n- two" in seen
    text = markdown.render_markdown(made)
    assert text.startswith(f"{MARKER}\n### head\n\n**all of it**  ") and "- one\n- two\n" in text
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert "&lt;b&gt;|`*_ [31m[red] # y" in rendered and "<b>" not in rendered
    assert rendered.count("<tr>") == 4


def test_tables_on_a_terminal_have_a_rule_above_closing_lines_and_keep_figures_whole() -> None:
    lines = terminal.render_text(a_document(a_table()), 30).splitlines()
    assert max(map(len, lines)) <= 30
    (rule,) = [place for place, line in enumerate(lines) if line.startswith("───")]
    assert lines[-1].split() == ["sum", "23"] and not lines[-2].strip() and rule < len(lines) - 3
    assert "slow" in " ".join(lines) and lines[-3].endswith("22")


@pytest.mark.parametrize(("width", "names"), [(60, "abc"), (24, "ac"), (12, "c")])
def test_columns_are_given_up_in_order_where_there_is_no_room(width: int, names: str) -> None:
    line = Line(("x" * 10, "y" * 10, "word word word"))
    columns = (Column("a", "left", priority=1), Column("b", "left", priority=2), Column("c", "cut"))
    table = Table(columns=columns, lines=[line])
    text = terminal.render_text(a_document(table), width)
    assert text.splitlines()[0].split() == list(names)
    assert max(map(len, text.splitlines())) <= width and "word" in text


def test_a_stacked_table_too_wide_puts_the_last_column_below_the_first() -> None:
    lines = [Line(("row", "1 ms ±2%", "the reason why"))]
    columns = make_columns(("row", "time", "why"), "wrw")
    table = Table(columns=columns, lines=lines, overflow="stack")
    (wide,) = [x for x in terminal.render_text(a_document(table), 80).splitlines() if "row  " in x][
        1:
    ]
    assert wide.split() == ["row", "1", "ms", "±2%", "the", "reason", "why"]
    narrow = [x.split() for x in terminal.render_text(a_document(table), 40).splitlines()[2:]]
    assert narrow == [["row", "1", "ms"], ["the", "reason", "why", "±2%"]]


def test_a_comment_keeps_closing_lines_and_says_what_does_not_fit() -> None:
    many = [Line((f"row {number}", "", "1")) for number in range(1000)]
    table = Table(
        columns=make_columns(("what", "how", "number")),
        lines=many,
        closing=[Line(("sum", "", "1000"))],
    )
    document = a_document("before", table, "after", elsewhere="the JSON has them all")
    text = markdown.render_markdown(document, 2000)
    shown = text.count("| row ")
    assert len(text.encode()) <= 2000 and 20 < shown < 1000
    assert f"{1000 - shown:,} more of these rows do not fit here; the JSON has them all." in text
    assert text.index("| sum |") > text.index("| row 5 |") and text.rstrip().endswith("after")


def test_a_comment_without_another_place_says_only_how_many_lines_do_not_fit() -> None:
    many = [Line(("x" * 50,)) for _ in range(100)]
    text = markdown.render_markdown(a_document(Table(columns=[Column("a")], lines=many)), 1000)
    assert f"{100 - text.count('x' * 50)} more of these rows do not fit here.\n" in text


def test_columns_have_the_side_of_their_letter_and_the_rest_another() -> None:
    sides = [column.align for column in make_columns("abcde", "lwc")]
    assert sides == ["left", "wrap", "cut", "right", "right"]
    assert [column.is_left for column in make_columns("ab", "r", rest="l")] == [False, True]
    with pytest.raises(ValueError, match="zip"):
        make_columns("a", "ll")


def test_columns_are_selected_from_all_lines_alike() -> None:
    table = a_table(note="n").select_columns([2, 0])
    assert table.heads == ("number", "what") and table.columns[1].align == "wrap"
    cells = [line.cells for line in (*table.lines, *table.closing)]
    assert cells == [("1", EVIL), ("22", "b"), ("23", "sum")] and table.note == "n"


def test_csv_has_the_columns_of_all_rows_and_no_nested_values() -> None:
    rows = [
        {"a": 1, "b": {"estimate": 2.5, "lo": None}},
        {"a": 2, "c": [{"kind": "barrier", "ops": 3}, {"kind": "send"}], "d": ("x", "=y")},
    ]
    made = replace(a_document(), rows=rows)
    assert list(csv.reader(io.StringIO(programs.as_csv(made)))) == [
        ["a", "b", "c", "d"],
        ["1", "estimate: 2.5", "", ""],
        ["2", "", "kind: barrier, ops: 3; kind: send", "x; =y"],
    ]


def test_programs_read_what_is_written_for_them() -> None:
    made = a_document()
    assert json.loads(programs.as_json(made)) == {"a": EVIL, "b": None}
    assert list(csv.reader(io.StringIO(programs.as_csv(made)))) == [["a", "b"], ["'=1+1", "2.0"]]
    assert programs.render_prometheus(made).splitlines() == [
        "# HELP collbench_a About a.",
        "# TYPE collbench_a gauge",
        'collbench_a{host="<b>|`*_\x1b[31m[red]\\n# y"} 1.5',
    ]


def test_junit_counts_outcomes_and_github_is_told_what_to_look_at() -> None:
    made = a_document()
    suite = ElementTree.fromstring(programs.render_junit(made))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "1", "skipped": "2"}
    tags = [[child.tag for child in case] for case in suite.findall("testcase")]
    assert tags == [[], ["failure"], ["error"], ["skipped"], ["skipped"]]
    commands = programs.list_commands(made.cases)
    titles = [command.split("::")[1] for command in commands]
    assert titles == [
        "error title=collbench",
        "error title=collbench%3A failed",
        "warning title=collbench%3A warned",
    ]


def test_the_page_shows_text_literally() -> None:
    text = html.render_page(a_document(), "cdn")
    assert "<b>|" not in text and "&lt;b&gt;|" in text


COMMAND = "export VARIABLE='a value' PATH=/a/folder/with-a-name"


@pytest.mark.parametrize("width", [20, 40, 60, 120])
def test_code_is_never_broken_on_a_terminal_and_what_stands_around_it_is(width: int) -> None:
    line = (
        tone_text("a sentence of several words, then ", "quiet") + code_text(COMMAND) + ", the end"
    )
    lines = terminal.render_text(Document(title="", brief=[line, ""]), width).splitlines()
    assert sum(COMMAND in shown for shown in lines) == 1
    assert " ".join(shown.strip() for shown in lines).strip() == str(line)
    assert all(len(shown) <= width or COMMAND in shown for shown in lines)
    assert (len(lines) == 2) == (width == 120)  # with the empty one


def test_a_line_begins_with_its_words_however_long_its_code() -> None:
    shown = terminal.render_text(Document(title="", brief=["  run " + code_text("x" * 50)]), 20)
    assert shown == f"  run\n{'x' * 50}\n"
    later = terminal.break_line("one two " + code_text("a b c"), 8, "    ")
    assert [part.plain for part in later] == ["one two", "    a b c"]


def test_code_can_be_copied_from_every_medium() -> None:
    line = "use it: " + code_text("export A_B='<x>'")
    page = Document(
        title="",
        brief=[line, CodeBlock("# a\nb_c = ```d```")],
        sections=[Section(name="s", title="S", sentences=[line])],
    )
    assert "<code>export A_B=&#39;&lt;x&gt;&#39;</code>" in html.render_page(page, "cdn")
    assert "use it: `export A_B='<x>'`" in markdown.render_markdown(page)
    brief = markdown.render_markdown(msgspec.structs.replace(page, sections=[]))
    assert "\n````\n# a\nb_c = ```d```\n````\n" in brief
    assert "\n# a\nb_c = ```d```\n" in terminal.render_text(page, 10)


def test_code_that_markdown_cannot_quote_is_escaped() -> None:
    made = Document(title="", brief=["see " + code_text("a`b | c_d")])
    assert "see a\\`b \\| c\\_d" in markdown.render_markdown(made)


def test_code_steers_no_terminal() -> None:
    made = Document(title="", brief=["a " + code_text("b\x1b[2Jc\nd"), CodeBlock("e\x1b[2Jf\ng")])
    assert terminal.render_text(made, 5) == "a\nb [2Jc d\ne [2Jf\ng\n"
    assert "\x1b" not in markdown.render_markdown(made)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("jax is missing: pip install 'collbench[jax]', or not", ["pip install 'collbench[jax]'"]),
        ("pip install nvidia-ml-py: without it", ["pip install nvidia-ml-py"]),
        ("no gcc (apt-get install gcc)", ["apt-get install gcc"]),
        ("a and b", []),
    ],
)
def test_what_is_to_be_installed_is_code(text: str, code: list[str]) -> None:
    marked = mark_installs(text)
    assert [span.text for span in marked.spans if span.code] == code
    assert str(marked) == text


def test_a_document_says_what_a_terminal_shows() -> None:
    with pytest.raises(TypeError, match="brief"):
        Document(title="x", verdict="y")  # type: ignore[call-arg]


@pytest.mark.parametrize("cell", [5, 0.5, None])
def test_a_cell_that_is_no_text_is_refused_where_its_line_is_made(cell) -> None:
    with pytest.raises(TypeError, match=f"a cell of a table is text or Words, not {cell}"):
        Line(("a", cell))
