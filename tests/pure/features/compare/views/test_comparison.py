"""What is made of a comparison: table, comment, JSON, JUnit, annotations, section. No runs:
hand-made comparisons."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from typing import Any
from xml.etree import ElementTree

import factories
import junit
import msgspec
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from collbench.core.errors import Exit
from collbench.features.compare.comparison import Aggregate, Comparison, Rules
from collbench.features.compare.false_alarms import Alarms
from collbench.features.compare.verdict import Judged, LeftOut, Side
from collbench.features.compare.views import verdicts
from collbench.features.compare.views.comparison import describe_plan, make_document, make_section
from collbench.records.paired import confirmed_change, confirmed_unpaired_change
from collbench.records.types import Pairing, Run
from collbench.show import html, markdown, programs, terminal
from collbench.show.document import Document, Figure
from collbench.show.views import run as whole
from collbench.suite.case import Case, Skip

HOSTILE = (
    "</script><script>alert(1)</script> | `x` @everyone &lt;b&gt; $x$ \x1b[31mred\n::error::x ' \""
    " \\| a\\b --> %0A"
)
CASE = Case(collective="all_reduce", backend="gloo", n=4, nbytes=1 << 20, op="sum")


def run(side: str, variant: str = "", tag: str = "") -> Run:
    pairing = Pairing(experiment="e", side=side, variant=variant) if variant else None  # type: ignore[arg-type]
    return factories.run(f"e-{side}", environment={}, pairing=pairing, tag=tag)


def judged(
    verdict: str, delta: float | None = 0.0, width: float = 0.01, case: Case = CASE, **more: Any
) -> Judged:
    base = Side(median=812e3, half=0.01, launches=12, samples=1200)
    head = (
        None
        if delta is None
        else Side(median=812e3 * (1 + delta), half=0.01, launches=12, samples=1200)
    )
    known = (
        {}
        if delta is None
        else {"delta": delta, "lo": delta - width, "hi": delta + width, "p": 0.00049, "pairs": 12}
    )
    fields = {
        "base": base,
        "head": head,
        "mde": 0.03,
        "tau": 0.05,
        "stage": 2,
        "gates": True,
        **known,
        **more,
    }
    return Judged(key=case.key, case=case, verdict=verdict, **fields)  # type: ignore[arg-type]


sized = factories.case


def comparison(rows: list[Judged], **more: Any) -> Comparison:
    fields = {
        "base": run("base", "git:1a2b3c"),
        "head": run("head", "git:4d5e6f"),
        "paired": True,
        "stages": (8, 12),
        "differences": [],
        "rows": rows,
        "aggregates": [],
        "rules": Rules(),
        "exit": Exit.OK,
        "reason": "",
        **more,
    }
    return Comparison(**fields)


def test_what_else_differs_stands_beside_the_reason() -> None:
    rows = [judged("SAME", 0.001, note="adds in another order: ring → doubling")]
    (row,) = verdicts.list_shown(comparison(rows))
    assert row.why == "p=0.00049 n=12; adds in another order: ring → doubling"


def example() -> Comparison:
    """A row of every verdict."""
    rows = [
        judged("SAME", 0.001, case=sized(4096)),
        judged("REGRESSED", 0.114, 0.016, level=0.9975),
        judged("IMPROVED", -0.2, case=sized(1 << 24)),
        judged(
            "SUSPECT",
            0.07,
            case=sized(1 << 16, algorithm="ring"),
            stage=1,
            pairs=8,
            gates=False,
            why="stage 2 did not confirm it",
        ),
        judged("SMALL", 0.02, case=sized(1 << 17)),
        judged("INCONCLUSIVE", 0.03, 0.1, case=sized(1 << 18), mde=0.14),
        judged("INVALID", 0.4, 0.2, case=sized(8, in_place=True), why="head: skewed!", gates=False),
        judged("GONE", None, case=sized(1 << 22), why="head: skipped, no such algorithm"),
    ]
    aggregate = Aggregate(
        collective="all_reduce",
        sizes="to 64 KiB",
        rows=4,
        delta=0.002,
        lo=-0.001,
        hi=0.005,
        worst=CASE.key,
    )
    return comparison(
        rows, aggregates=[aggregate], exit=Exit.BAD, reason="1 row regressed, 1 row is gone"
    )


def printed(view: Comparison, width: int = 120, everything: bool = False) -> str:
    return terminal.render_text(make_document(view, everything), width)


def tables(text: str) -> list[list[list[str]]]:
    """Rows of cells of every table that a Markdown renderer finds, as shown; fails where it finds
    raw HTML of ours."""
    found: list[list[list[str]]] = []
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    for before, token in itertools.pairwise(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif before.type in ("th_open", "td_open"):
            assert not [child for child in token.children or [] if child.type == "html_inline"]
            found[-1][-1].append("".join(child.content for child in token.children or []))
    return found


@pytest.mark.parametrize("apart", [[], [("gpus", "H200", "A100")]])
def test_machines_known_from_logs_are_never_called_identical(apart: list[Any]) -> None:
    log = msgspec.structs.replace(run("base"), imported="nccl-tests", pairing=None)
    view = comparison([judged("INCONCLUSIVE")], base=log, head=log, paired=False, differences=apart)
    told = " ".join(verdicts.list_facts(view))
    assert "identical" not in told
    assert "known from logs only" in told
    assert ("1 difference" in told) == bool(apart)


def test_a_mean_over_rows_without_an_interval_shows_the_change_itself() -> None:
    one = Aggregate(
        collective="", sizes="", rows=2, delta=0.17, lo=-math.inf, hi=math.inf, worst=""
    )
    assert verdicts.format_change(one) == "+17.0%"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_table_fits_and_shows_every_figure_in_full(width: int) -> None:
    text = printed(example(), width, everything=True)
    assert len(text.splitlines()) < 50
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for figure in ("+11.4%", "+13.0]", "905", "REGRESSED", "INCONCLUSIVE", "14%", "ring@gloo"):
        assert figure in words
    assert "…" not in text


def test_the_table_lists_the_gravest_first() -> None:
    text = printed(example())
    places = [text.index(f"  {row.verdict}") for row in verdicts.list_shown(example())]
    assert places == sorted(places) and len(places) == 8
    assert "4 KiB gloo" in text and "not shown" not in text


@pytest.mark.parametrize("verdict", ["SAME", "INCONCLUSIVE"])
@pytest.mark.parametrize(("others", "hidden"), [(19, 0), (20, 1), (40, 21)])
def test_twenty_rows_are_always_shown_and_the_others_by_a_named_command(
    verdict: str, others: int, hidden: int
) -> None:
    rows = [
        judged("REGRESSED", 0.2),
        *(judged(verdict, case=sized(4 * i + 4)) for i in range(others)),
    ]
    view = comparison(rows, exit=Exit.BAD)
    text = terminal.render_text(make_document(view, again="collbench compare x --all"), 120)
    listed = text.split("not shown")[0]
    assert listed.count(f" {verdict} ") == others - hidden and " REGRESSED " in listed
    assert ("collbench compare x --all" in text) == bool(hidden)
    assert f" {hidden} {verdict}" in text or not hidden
    assert printed(view, everything=True).count(f" {verdict} ") == others


def test_sizes_and_places_have_columns_of_their_own() -> None:
    cases = [sized(8), sized(1 << 20, in_place=True), sized(1 << 19, in_place=True)]
    lines = printed(comparison([judged("SAME", case=case) for case in cases])).splitlines()
    head = next(line for line in lines if line.startswith("size"))
    rows = [line for line in lines if " SAME " in line]
    assert {line[: head.index("place")].strip() for line in rows} == {"8 B", "1 MiB", "512 KiB"}
    assert {line[head.index("place") :].split()[0] for line in rows} == {"in", "out"}
    assert len({line.rstrip().index("B ") for line in rows}) == 1  # units below each other


def test_means_stand_below_the_table() -> None:
    text = printed(example(), 80)
    (line,) = [line for line in text.splitlines() if line.startswith("geomean")]
    assert "~ [-0.1, +0.5]" in line


def test_fingerprint_differences_come_before_the_verdict() -> None:
    view = comparison([judged("INCOMPARABLE", 0.5)], differences=[("cpu.model", "EPYC", None)])
    text = printed(view)
    assert text.index("differs: cpu.model: EPYC → -") < text.index("1 incomparable")
    assert "1 fingerprint difference" in text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (judged("REGRESSED", 0.114, 0.016), "+11.4% [+9.8, +13.0]"),
        (judged("SAME", -0.0025, 0.0185), "~ [-2.1, +1.6]"),
        (judged("INCONCLUSIVE", 0.1, lo=-math.inf, hi=math.inf), "~ [-∞, +∞]"),
        (judged("INCONCLUSIVE", 0.1, lo=None, hi=None), "+10.0%"),
        (judged("GONE", None), "-"),
    ],
)
def test_a_change_is_told_only_where_it_is_one(row: Judged, words: str) -> None:
    assert verdicts.format_change(row) == words


def test_a_side_with_too_few_launches_has_no_bounds() -> None:
    row = judged(
        "INCONCLUSIVE", 0.1, base=Side(median=1e6, half=math.inf, launches=2, samples=40), mde=None
    )
    shown = verdicts.list_shown(comparison([row]))[0]
    assert (shown.base, shown.mde) == ("1.00 ms ±∞", "-")


def names(view: Comparison) -> list[str]:
    return [
        name.text for name in verdicts.label_cases(view, [row.case for row in view.rows]).values()
    ]


def test_rows_are_called_by_what_sets_them_apart() -> None:
    cases = [
        sized(8),
        sized(8, in_place=True),
        sized(8, mode="streaming"),
        sized(8, env=(("A", "1"),)),
    ]
    view = comparison([judged("SAME", case=case) for case in cases])
    assert names(view) == [
        "isolated 8 B",
        "isolated 8 B in place",
        "streaming 8 B",
        "A=1 isolated 8 B",
    ]
    barrier = Case(collective="barrier", backend="gloo", n=2, nbytes=0)
    assert names(comparison([judged("SAME", case=barrier)])) == ["barrier"]


def test_what_the_variants_differ_in_is_not_in_a_rows_name() -> None:
    base, head = (
        Run(
            **{f: getattr(run(side), f) for f in Run.__struct_fields__ if f != "pairing"},
            pairing=Pairing(
                experiment="e", side=side, variant=side, differs=("algorithm", "backend")
            ),
        )
        for side in ("base", "head")
    )
    cases = [sized(8), sized(16, algorithm="ring")]
    view = comparison([judged("SAME", case=case) for case in cases], base=base, head=head)
    assert names(view) == ["8 B", "16 B"]
    assert "gloo" not in printed(view, everything=True)
    assert all(
        "backend" not in line.meta
        for line in make_section(verdicts.make_readable(view)).tables[0].lines
    )


def test_an_algorithm_whose_backends_differ_is_named_without_one() -> None:
    base, head = (
        msgspec.structs.replace(
            run(side),
            pairing=Pairing(experiment="e", side=side, variant=side, differs=("backend",)),  # type: ignore[arg-type]
        )
        for side in ("base", "head")
    )
    one, two = sized(8, algorithm="ring"), sized(8, algorithm="tree")
    view = comparison([judged("SAME", case=one)], base=base, head=head)
    for text in (printed(view), markdown.render_markdown(make_document(view))):
        assert "4 ranks, ring, float" in text and "ring@" not in text
    view = comparison([judged("SAME", case=case) for case in (one, two)], base=base, head=head)
    assert names(view) == ["ring 8 B", "tree 8 B"]


def test_the_comment_begins_with_its_marker_and_folds_what_is_the_same() -> None:
    text = markdown.render_markdown(make_document(example(), marker="pr-gloo"))
    lines = text.splitlines()
    assert lines[0] == "<!-- collbench:pr-gloo -->"
    assert lines[1] == (
        r"### collbench: ❌ 1 regressed: gloo 1 MiB +11.4% \[+9.8, +13.0\]; 1 gone: gloo 4 MiB"
    )
    assert lines[3] == (
        "5 of 8 rows decided: 1 regressed, 1 gone, 1 improved, 1 changed too little to matter, 1"
        " same; 1 suspected, not confirmed; 1 invalid; 1 undecided: only changes above 14% would be"
        " detected"
    )
    assert lines[5].startswith(r"base git:1a2b3c → head git:4d5e6f · 8+12 pairs · ")
    inline, folded = tables(text)
    assert [row[0] for row in inline[1:3]] == ["1 MiB gloo", "4 MiB gloo"]
    assert inline[1][4:6] == ["+11.4% [+9.8, +13.0]", "3.0%"]
    assert inline[1][6].startswith("REGRESSED p=0.00049 n=12")
    assert (
        inline[-1][0].startswith("geomean all_reduce")
        and inline[-1][6] == "worst: gloo 1 MiB +11.4%"
    )
    named = [row[:2] for row in folded[1:]]
    assert named == [["8 B gloo", "in"], ["256 KiB gloo", "out"], ["4 KiB gloo", "out"]]
    assert text.index("<details>") < text.index("4 KiB gloo") < text.index("</details>")
    assert "<summary>3 other rows: 1 same, 2 without a verdict</summary>" in text


def test_rows_without_a_verdict_are_named_once_by_reason() -> None:
    wide = [
        judged("INCONCLUSIVE", 0.03, 0.1, case=sized(4 << i), mde=0.14 + i, why=why)
        for i, why in enumerate(["", "too noisy to gate"])
    ]
    wide[1] = msgspec.structs.replace(wide[1], spared=wide[1].why)
    few = [
        judged("INVALID", case=sized(64 << i), why=f"head: {i} of 9 samples failed")
        for i in range(2)
    ]
    text = markdown.render_markdown(make_document(comparison([*wide, *few, judged("SAME")])))
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    assert lines == [
        "- no verdict on 2 rows, invalid: head: 0 of 9 samples failed: 64 B, 128 B",
        "- no verdict on 2 rows, launches scatter too much: 4 B, 8 B",
    ]
    assert "only changes above 14% to 114% would be detected" in text


def test_only_the_first_rows_of_a_verdict_and_of_a_reason_are_named() -> None:
    slow = [judged("REGRESSED", 0.1, case=sized(4 * i)) for i in range(1, 6)]
    open_ = [judged("INCONCLUSIVE", case=sized(1000 + 4 * i)) for i in range(15)]
    view = verdicts.make_readable(comparison([*slow, *open_], exit=Exit.BAD))
    assert view.headline.endswith("] and 2 more")
    assert verdicts.list_reasons(view)[0].endswith(" and 3 more")


def test_logs_without_intervals_say_no_smallest_change() -> None:
    row = judged(
        "INCONCLUSIVE", 0.1, lo=None, hi=None, mde=None, why="only one launch per side, so"
    )
    view = comparison([row], paired=False, exit=Exit.NO_VERDICT, reason="so")
    assert "0 of 1 row decided; 1 undecided\n" in printed(view)
    assert "no verdict on 1 row, only one launch per side, so\n" in printed(view)
    assert " INCONCLUSIVE " in printed(view)  # figures are all there is


def test_a_reason_that_rows_share_is_told_once() -> None:
    why = "only one launch per side: name 10 logs a side"
    rows = [judged("INCONCLUSIVE", case=sized(4 << i), why=why) for i in range(3)]
    alone = judged("INCONCLUSIVE", case=sized(64), why="only 2 launches")
    text = " ".join(printed(comparison([*rows, alone], paired=False)).split())
    assert text.count(why) == 1
    assert text.count("only 2 launches") == 2  # in its row and below


@pytest.mark.parametrize(
    ("alarms", "words"),
    [
        (None, []),
        (Alarms(), ["no A/A check of this machine yet (collbench ab --aa)"]),
        (
            Alarms(experiments=20, rows=240, small=12, suspected=1, last="2026-11-23", older=3),
            [
                "A/A (both sides the same) on this machine: 20 experiments, 240 rows, 12 small at"
                " 95% for each row, 1 suspected, 0 confirmed; last 2026-11-23, 3 older ones not"
                " judged"
            ],
        ),
    ],
)
def test_false_alarms_of_this_machine_are_told_in_every_medium(
    alarms: Alarms | None, words: list[str]
) -> None:
    found = make_document(comparison([judged("SAME")]), alarms=alarms)
    assert [line for line in markdown.render_markdown(found).splitlines() if "A/A" in line] == words
    _, shown = found.sections
    assert [line for line in shown.sentences if "A/A" in line] == [f"{line}." for line in words]
    assert all(line in terminal.render_text(found, 200) for line in words)
    assert json.loads(programs.as_json(found))["alarms"] == (
        alarms and msgspec.structs.asdict(alarms)
    )


@pytest.mark.parametrize(
    ("code", "verdict", "words"),
    [
        (0, "SAME", "✅ nothing found slower"),
        (0, "IMPROVED", "✅ nothing found slower; 1 improved: 1 MiB ~"),
        (3, "SUSPECT", "⚠️ so"),
        (3, "INCONCLUSIVE", "⚠️ so"),
        (0, "REGRESSED", "⚠️ 1 regressed: 1 MiB ~"),
        (3, "INCOMPARABLE", "⚠️ so"),
        (1, "REGRESSED", "❌ 1 regressed: 1 MiB ~"),
        (7, "INVALID", "❌ so"),
    ],
)
def test_the_first_line_says_whether_to_look_and_at_what(
    code: int, verdict: str, words: str
) -> None:
    view = comparison([judged(verdict)], exit=Exit(code), reason="so")
    first = markdown.render_markdown(make_document(view)).splitlines()[1].replace("\\", "")
    assert first.startswith(f"### collbench: {words}")
    assert first.endswith("; too unreliable to fail the comparison") == (
        (code, verdict) == (0, "REGRESSED")
    )


FEW = "only 2 of 5 rows were decided"


def few() -> Document:
    """A comparison with 2 of 5 rows decided, one of which was dropped for its budget."""
    rows = [judged("SAME", case=sized(4 << i)) for i in range(2)]
    rows += [judged("INCONCLUSIVE", 0.3, 0.5, case=sized(64)), judged("SUSPECT", 0.3)]
    reason = "dropped for --budget 60s: too short for 8 pairs; --budget 3m is enough for all rows"
    large = sized(4 << 20)
    dropped = LeftOut(key=large.key, case=large, reason=reason, dropped=True)
    absent = LeftOut(key=sized(16).key, case=sized(16), reason="skipped on both sides; no form")
    return make_document(comparison(rows, skipped=[dropped, absent]))


def test_few_rows_judged_is_the_first_line_of_every_medium() -> None:
    made = few()
    assert terminal.render_text(made, 120).startswith(FEW)
    assert markdown.render_markdown(made).splitlines()[1].startswith(f"### collbench: ⚠️ {FEW}")
    assert made.verdict.startswith(FEW)
    assert not any(FEW in words for section in made.sections for words in section.sentences)
    found = json.loads(programs.as_json(made))
    assert [*found][1] == "verdict" and found["verdict"].startswith(FEW)
    assert (found["rows_decided"], found["rows_total"], found["exit"]) == (2, 5, 0)
    suite = ElementTree.fromstring(programs.render_junit(made))[0]
    properties = {each.get("name"): each.get("value", "") for each in suite.iter("property")}
    assert properties["verdict"].startswith(FEW)


def test_junit_skips_every_row_that_was_not_judged() -> None:
    cases = ElementTree.fromstring(programs.render_junit(few()))[0].findall("testcase")
    skipped = {case.get("name") for case in cases if case.find("skipped") is not None}
    keys = {sized(64).key, CASE.key, sized(4 << 20).key, sized(16).key}
    assert skipped == keys and len(cases) == 6


def test_rows_dropped_for_a_budget_are_named_with_one_that_holds_them_everywhere() -> None:
    made = few()
    words = ("4 MiB", "--budget 3m")
    texts = (
        terminal.render_text(made, 200),
        markdown.render_markdown(made),
        " ".join(made.sections[0].sentences),
    )
    assert all(word in text for text in texts for word in words)
    assert "(16 B)" in texts[0] and "skipped on both sides" in texts[0]
    rows = json.loads(programs.as_json(made))["skipped"]
    assert [(row["label"], row["dropped"]) for row in rows] == [("4 MiB", True), ("16 B", False)]
    assert "--budget 3m" in rows[0]["reason"]


@pytest.mark.parametrize(
    ("paired", "backend", "shm"), [(True, "gloo", True), (False, "shm", False)]
)
def test_what_would_decide_is_said(paired: bool, backend: str, shm: bool) -> None:
    """Of launches that scatter by 40 %."""
    side = Side(median=1e6, half=0.1, launches=10, samples=100)
    noisy = judged("INCONCLUSIVE", 0.3, 0.5, case=sized(8, backend=backend), base=side, head=side)
    row = msgspec.structs.replace(noisy, scatter=math.log(1.4), pairs=10 * paired)
    view = comparison([row], paired=paired, exit=Exit.NO_VERDICT, reason="so")
    (line,) = verdicts.list_advice(verdicts.make_readable(view))
    assert "scatter by 40%: " in line and ("--backend shm" in line) == shm
    more, found = re.findall(r"(\d+) more .* would find (\d+)%", line)[0]
    number = (10,) if paired else (10, 10)
    find = confirmed_change if paired else confirmed_unpaired_change
    now = find(math.log(1.4), *number, row.tau, 1)
    assert int(more) >= 8 and 10 < int(found) < 100 * math.expm1(now)
    assert line in printed(view, 200)


def test_a_row_of_too_few_launches_is_not_called_noisy_for_its_flags() -> None:
    """Which it has as well."""
    spared = "skewed!: cannot fail the comparison"
    few = judged("INCONCLUSIVE", why=f"only 8 launches; {spared}", spared=spared)
    noisy = judged("INCONCLUSIVE", case=sized(8), why=spared, spared=spared)
    view = comparison([few, noisy], paired=False, exit=Exit.NO_VERDICT, reason="so")
    reasons = verdicts.name_undecided(verdicts.make_readable(view))
    assert reasons == {"only 8 launches": ["1 MiB"], "launches scatter too much": ["8 B"]}


def unsure() -> Document:
    """A comparison without a verdict on one of its rows, which ends with 0."""
    rows = [judged("SAME", case=sized(8)), judged("INCONCLUSIVE", 0.3, 0.5)]
    return make_document(comparison(rows), everything=True)


def test_no_comment_ticks_what_is_inconclusive() -> None:
    text = markdown.render_markdown(unsure())
    assert "INCONCLUSIVE" in text and not set("✅✓✔") & set(text)


def test_no_terminal_paints_what_is_inconclusive_green() -> None:
    console = Console(force_terminal=True, width=120, file=io.StringIO(), highlight=False)
    for block in unsure().brief:
        console.print(terminal.render_block(block, 120))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[33mINCONCLUSIVE" in text and "\x1b[32m" not in text


def test_no_page_weighs_what_is_inconclusive_as_good() -> None:
    view = comparison([judged("INCONCLUSIVE", 0.3, 0.5)])
    _, _, page = html.render_page(
        whole.make_document([], verdicts.make_readable(view)), "cdn"
    ).partition("<body")
    assert 'data-weight="notice"' in page and 'data-weight="good"' not in page


def test_a_report_of_what_is_inconclusive_is_not_ticked() -> None:
    view = comparison([judged("INCONCLUSIVE", 0.3, 0.5)], exit=Exit.NO_VERDICT, reason="so")
    assert "**! so.**" in markdown.render_markdown(
        whole.make_document([], verdicts.make_readable(view))
    )


def test_what_is_inconclusive_has_not_passed() -> None:
    assert [case.outcome for case in unsure().cases] == ["skipped", "passed"]


def test_no_annotation_says_that_what_is_inconclusive_is_fine() -> None:
    assert programs.list_commands(unsure().cases) == []


def hostile(verdict: str = "REGRESSED", rows: int = 500) -> Comparison:
    found = [
        judged(
            verdict,
            0.2,
            case=sized(4 * i + 4, env=(("X", HOSTILE + "😀" * 200 + str(i)),)),
            why=HOSTILE * 9,
        )
        for i in range(rows)
    ]
    many = [(HOSTILE, HOSTILE * 99, "😀" * 9999)] * 500
    means = [
        Aggregate(
            collective=HOSTILE,
            sizes=HOSTILE,
            rows=1,
            delta=0.1,
            lo=0.0,
            hi=math.inf,
            worst=found[0].key,
        )
    ]
    return comparison(
        found,
        differences=many,
        aggregates=means * 500,
        notes=[HOSTILE * 99] * 500,
        exit=Exit.BAD,
        reason=HOSTILE * 99,
        base=run("base", HOSTILE * 99),
        head=run("head", tag=HOSTILE),
    )


@pytest.mark.parametrize("verdict", ["REGRESSED", "SAME"])
def test_a_comment_stays_below_githubs_limit_and_says_what_is_missing(verdict: str) -> None:
    text = markdown.render_markdown(make_document(hostile(verdict), title=HOSTILE * 99))
    assert 40_000 < len(text.encode()) < 60_000
    (left,) = re.findall(r"^([\d,]+) more of these rows do not fit here", text, re.MULTILINE)
    shown = len(re.findall(rf"\*\*{verdict}\*\*", text))
    assert shown > 10 and shown + int(left.replace(",", "")) == 500
    assert ("</details>" in text) == (verdict == "SAME")


def test_a_comment_shows_hostile_names_literally() -> None:
    text = markdown.render_markdown(make_document(hostile(rows=2), title=HOSTILE))
    assert "\x1b" not in text and "&lt;" not in text
    assert not re.search(r"(?<![\w.])@everyone", text)  # nobody is mentioned
    assert text.count("<!--") == 1 and "<script" not in text.replace(r"\<script", "")
    (table,) = tables(text)
    assert {len(row) for row in table} == {6}
    assert "</script><script>alert(1)</script> | `x` @\u200beveryone &lt;b&gt; $x$" in table[1][0]


def test_json_has_everything_and_only_finite_numbers() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    rows = [*example().rows, judged("INCONCLUSIVE", 0.5, lo=-math.inf, hi=math.nan, case=sized(32))]
    view = comparison(rows, exit=Exit.NO_VERDICT, reason="so", differences=[("a", 1, None)])
    found = json.loads(programs.as_json(make_document(view)), parse_constant=refuse)
    assert found["counts"]["INCONCLUSIVE"] == 2 and sum(found["counts"].values()) == len(rows)
    assert (found["exit"], found["stages"], found["differences"]) == (
        3,
        [8, 12],
        [{"fact": "a", "base": 1, "head": None}],
    )
    assert found["base"]["pairing"]["variant"] == "git:1a2b3c"
    regressed = next(row for row in found["rows"] if row["verdict"] == "REGRESSED")
    assert regressed["delta"] == 0.114 and regressed["head"]["median"] == pytest.approx(904_568)
    assert regressed["case"]["nbytes"] == 1 << 20 and regressed["label"] == "gloo 1 MiB"
    assert found["verdict"] == "so" and found["decided"].startswith("5 of 9 rows decided: ")
    assert found["undecided"][1]["rows"] == ["gloo 32 B", "gloo 256 KiB"]
    assert found["rows"][-1]["lo"] is None and found["rows"][-1]["hi"] is None


def test_junit_fails_what_fails_the_comparison_and_skips_what_has_no_verdict() -> None:
    suite = ElementTree.fromstring(programs.render_junit(make_document(example()))).find(
        "testsuite"
    )
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
        "8",
        "2",
        "0",
        "3",
    ]
    cases = suite.findall("testcase")
    outcomes = {case.get("name"): [child.tag for child in case] for case in cases}
    assert outcomes[CASE.key] == ["failure"]
    assert outcomes[sized(8, in_place=True).key] == ["skipped"]
    assert outcomes[sized(4096).key] == []
    assert f"{sized(4096).key}: " in (suite.findtext("system-out") or "")
    failure = suite.find("testcase/failure")
    assert failure is not None and "+11.4% [+9.8, +13.0]" in failure.get("message", "")


def test_junit_agrees_with_the_exit_code() -> None:
    unpaired = comparison([judged("REGRESSED", 0.3, gates=False)], paired=False)
    assert 'failures="0"' in programs.render_junit(
        make_document(unpaired)
    ) and 'skipped="1"' in programs.render_junit(make_document(unpaired))
    doubtful = [judged("INCONCLUSIVE", 0.3, 0.5)]
    assert 'errors="0"' in programs.render_junit(make_document(comparison(doubtful)))
    for code in (Exit.NO_VERDICT, Exit.WRONG_DATA):
        suite = ElementTree.fromstring(
            programs.render_junit(make_document(comparison(doubtful, exit=code, reason="why")))
        )[0]
        told = suite.findall("testcase")[-1][0].get("message")
        assert (suite.get("tests"), suite.get("errors"), told) == ("2", "1", "why")


def test_junit_is_what_its_schemas_want() -> None:
    for view in (make_document(example()), make_document(hostile(rows=3))):
        assert junit.faults(programs.render_junit(view)) == []


def test_junit_is_xml_whatever_things_are_called() -> None:
    text = programs.render_junit(make_document(hostile(rows=3)))
    names = [
        case.get("name") or "" for case in ElementTree.fromstring(text.encode()).iter("testcase")
    ]
    assert len(names) == 3 and "alert(1)</script>" in names[0] and "\x1b" not in text


def test_annotations_are_githubs_commands_one_a_line() -> None:
    row = judged(
        "REGRESSED", 0.1, why="50% of a:b,c\r\n::error::no", case=sized(8, env=(("X", "1:2,3%"),))
    )
    (line,) = programs.list_commands(
        make_document(comparison([row, judged("SAME")], exit=Exit.BAD, reason="so")).cases
    )
    command, _, message = line.removeprefix("::").partition("::")
    assert command == "error title=collbench%3A X=1%3A2%2C3%25 8 B"
    assert "\n" not in line and "\r" not in line
    assert "+10.0%25" in message and "50%25 of a:b,c  ::error::no" in message


def test_annotations_are_at_most_ten_of_a_kind() -> None:
    errors = [judged("REGRESSED", 0.1, case=sized(4 * i)) for i in range(1, 31)]
    warnings = [judged("SUSPECT", 0.1, gates=False, case=sized(1000 + 4 * i)) for i in range(10)]
    lines = programs.list_commands(
        make_document(comparison([*errors, *warnings], exit=Exit.BAD, reason="so")).cases
    )
    assert [line.split()[0] for line in lines] == ["::error"] * 10 + ["::warning"] * 10
    assert lines[9].endswith("::21 more rows like these")
    lines = programs.list_commands(
        make_document(comparison(errors, exit=Exit.WRONG_DATA, reason="wrong results")).cases
    )
    assert (
        len(lines) == 10
        and lines[0].endswith("::wrong results")
        and lines[9].endswith("::22 more rows like these")
    )


def test_annotations_say_why_there_is_no_verdict() -> None:
    view = comparison([judged("INCOMPARABLE", 0.1)], exit=Exit.NO_VERDICT, reason="machines differ")
    assert programs.list_commands(make_document(view).cases) == [
        "::error title=collbench::machines differ"
    ]
    assert programs.list_commands(make_document(comparison([judged("SAME")])).cases) == []


def test_the_summary_of_a_step_is_added_to_and_never_overfilled(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    environ = {"GITHUB_STEP_SUMMARY": str(path)}
    programs.in_github(make_document(example(), title="title", marker="marker"), environ)
    assert path.read_text().startswith("before\n<!-- collbench:marker -->\n### title: ❌")
    path.write_text("x" * (1 << 20))
    programs.in_github(make_document(example(), title="title", marker="marker"), environ)
    assert path.stat().st_size == 1 << 20 and "is full" in capsys.readouterr().err
    programs.in_github(
        make_document(example(), title="title", marker="marker"),
        {"GITHUB_STEP_SUMMARY": str(tmp_path)},
    )
    assert "cannot write" in capsys.readouterr().err
    programs.in_github(make_document(example(), title="title", marker="marker"), {})
    assert capsys.readouterr().err == ""


def marks(figure: Figure) -> list[dict[str, Any]]:
    return [trace for trace in figure.data if trace.get("hoverinfo") == "text"]


def named(figure: Figure) -> list[dict[str, Any]]:
    return [trace for trace in figure.data if trace["mode"] == "text"]


def bars(figure: Figure, width: int) -> dict[float, tuple[float, float]]:
    """From where to where lines of this width reach, by their place."""
    drawn = [trace for trace in figure.data if trace.get("line", {}).get("width") == width]
    return {trace["y"][0]: tuple(trace["x"]) for trace in drawn if trace["x"][0]}


def test_the_section_plots_every_change_with_its_interval() -> None:
    (figure,) = make_section(verdicts.make_readable(example())).figures
    points = {y: x for trace in marks(figure) for x, y in zip(trace["x"], trace["y"], strict=True)}
    assert len(points) == 7  # all but the row that is gone
    top = min(points)
    assert "gloo 1 MiB" in named(figure)[0]["text"][0]
    assert named(figure)[0]["text"][1] == "+11.4%"
    assert points[top] == pytest.approx(1.114)
    assert bars(figure, 3)[top] == pytest.approx((1.098, 1.13))
    json.dumps(figure.data, allow_nan=False)


def test_the_plot_shows_what_matters_and_what_could_have_been_missed() -> None:
    rows = [judged("SAME"), judged("SAME", case=sized(8), tau=0.1), judged("SAME", case=sized(16))]
    (figure,) = make_section(verdicts.make_readable(comparison(rows))).figures
    missed = bars(figure, 1)
    assert missed[min(missed)] == pytest.approx((1 / 1.03, 1.03))
    bands = [shape for shape in figure.layout["shapes"] if shape["type"] == "rect"]
    assert [round(band["x1"], 3) for band in bands] == [1.05, 1.1, 1.05]
    assert [band["y1"] for band in bands[:-1]] == pytest.approx([b["y0"] for b in bands[1:]])
    (zero,) = [shape for shape in figure.layout["shapes"] if shape["type"] == "line"]
    assert zero["x0"] == zero["x1"] == 1


@pytest.mark.parametrize(
    ("delta", "words"),
    [(15.72, "16.7x slower"), (-0.75, "4x faster"), (1.0, "+100.0%"), (-0.4, "-40.0%")],
)
def test_a_change_beyond_a_factor_of_2_is_drawn_as_a_factor(delta: float, words: str) -> None:
    row = judged("SUSPECT", delta, lo=delta - 0.01, hi=delta + 0.01)
    (figure,) = make_section(verdicts.make_readable(comparison([row]))).figures
    assert named(figure)[0]["text"][1] == words


def test_names_and_changes_stand_beside_the_lines() -> None:
    (figure,) = make_section(verdicts.make_readable(example())).figures
    low, high = figure.layout["xaxis"]["domain"]
    assert 0 < low < high < 1 and figure.layout["xaxis2"]["domain"] == [0, 1]


def test_what_a_comparison_rests_on_is_folded_below_it() -> None:
    first, second = make_document(example()).sections
    assert first.figures and not first.folded and len(first.sentences) <= 2
    assert second.folded and not {*first.sentences} & {*second.sentences}


def test_the_plot_tells_verdicts_by_colour_and_by_symbol() -> None:
    (figure,) = make_section(verdicts.make_readable(example())).figures
    looks = {(t["marker"]["color"], t["marker"]["symbol"]) for t in marks(figure)}
    assert len(looks) == len({colour for colour, _ in looks}) == 5
    names = [trace["name"] for trace in figure.data if trace.get("name")]
    assert names[0] == "regressed" and "invalid, inconclusive" in names


def test_the_plot_narrows_down_with_the_page() -> None:
    rows = [judged("SAME"), judged("SAME", case=sized(8, collective="broadcast"))]
    (figure,) = make_section(verdicts.make_readable(comparison(rows))).figures
    for traces in (marks(figure), named(figure)):
        assert {trace["meta"]["collective"] for trace in traces} == {"all_reduce", "broadcast"}
    assert all(trace["meta"] == {} for trace in figure.data if trace.get("name"))


def test_ends_that_lie_far_out_are_drawn_at_the_edge() -> None:
    row = judged("INCONCLUSIVE", 0.5, lo=-0.999, hi=1e6, mde=math.inf)
    (figure,) = make_section(verdicts.make_readable(comparison([row]))).figures
    assert [*bars(figure, 3).values()] == [(0.1, 10.0)]
    json.dumps(figure.layout, allow_nan=False)


def test_the_tables_of_the_section_have_every_row() -> None:
    verdict_table, means = make_section(verdicts.make_readable(example())).tables
    assert [len(line.cells) for line in verdict_table.lines] == [len(verdict_table.heads)] * 8
    assert verdict_table.lines[0].weight == "bad" and means.lines[0].cells[2] == "~ [-0.1, +0.5]"


def test_the_section_draws_no_more_than_can_be_told_apart() -> None:
    (figure,) = make_section(verdicts.make_readable(hostile())).figures
    assert figure.title.endswith("60 of 500 rows")
    assert len(named(figure)) == 60
    assert "<script" not in json.dumps([figure.data, figure.layout])
    unknown = comparison([judged("REGRESSED", 0.5, lo=-math.inf, hi=None)])
    json.dumps(make_section(verdicts.make_readable(unknown)).figures[0].data, allow_nan=False)


@pytest.mark.parametrize("rows", [[], [judged("GONE", None)], [judged("NEW", None, base=None)]])
def test_a_comparison_without_a_single_pair_is_shown_all_the_same(rows: list[Judged]) -> None:
    view = comparison(rows, exit=Exit.NO_VERDICT, reason="nothing to compare")
    assert (
        printed(view)
        and markdown.render_markdown(make_document(view))
        and programs.render_junit(make_document(view))
        and programs.as_json(make_document(view))
    )
    assert (
        make_section(verdicts.make_readable(view)).figures == []
        and make_section(verdicts.make_readable(view)).sentences
    )


# plans


def planned(*rows: tuple[Case, Case], left_out: tuple[Any, ...] = ()) -> list[str]:
    text = terminal.render_text(Document(title="", brief=describe_plan(rows, left_out)), 100)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")]


def test_a_plan_names_what_rows_share_once_and_both_sides_where_they_differ() -> None:
    rings = [msgspec.structs.replace(CASE, nbytes=size, algorithm="ring") for size in (8, 1024)]
    rows = [(case, msgspec.structs.replace(case, algorithm="tree")) for case in rings]
    assert planned(*rows) == [
        "all_reduce, 4 ranks, float, sum, out of place, isolated",
        "size base head",
        "8 B ring@gloo tree@gloo",
        "1 KiB ring@gloo tree@gloo",
    ]


def test_a_plan_says_what_is_left_out_of_which_side_by_reason() -> None:
    tree = msgspec.structs.replace(CASE, algorithm="tree")
    small = msgspec.structs.replace(tree, nbytes=8)
    both = [(side, Skip(case, "not here")) for side in ("base", "head") for case in (small, tree)]
    lines = planned((CASE, CASE), left_out=(*both, ("head", Skip(tree, "no room"))))
    assert lines[-2].startswith("left out of base and head, 2 cases: not here (8 B")
    assert lines[-1].startswith("left out of head, 1 case: no room (1 MiB")


def test_reasons_that_differ_in_the_collective_only_are_one() -> None:
    cases = [sized(8, collective=name) for name in ("broadcast", "gather")]
    rows = [
        LeftOut(key=case.key, case=case, reason=f"{case.collective} has no ring") for case in cases
    ]
    (line,) = verdicts.left_out(
        verdicts.make_readable(comparison([judged("SAME")], skipped=rows)), dropped=False
    )
    assert line.startswith("2 rows ") and "broadcast" in line and "gather" in line
    skips = [("head", Skip(case, f"{case.collective} has no ring")) for case in cases]
    (line,) = [line for line in planned((CASE, CASE), left_out=tuple(skips)) if "left out" in line]
    assert line.startswith("left out of head, 2 cases: the collective has no ring")


def test_a_plan_names_rows_that_its_budget_drops() -> None:
    blocks = describe_plan(
        [(CASE, CASE)], [], [CASE], "dropped for --budget 1s; --budget 9s is enough for all rows"
    )
    text = terminal.render_text(Document(title="", brief=blocks), 100)
    assert "1 row dropped for --budget 1s" in text and "(1 MiB)" in text
