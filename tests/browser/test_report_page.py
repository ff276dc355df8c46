"""The page of `collbench report` in a real browser, without a network."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from collbench.cli import main
from collbench.records import run_file, store, types
from collbench.show import figures, html
from collbench.show.document import (
    Document,
    Figure,
    Line,
    Section,
    Table,
    Words,
    make_columns,
    tone_text,
)

Open = Callable[..., Any]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
SIZES = [8 << 2 * i for i in range(11)]


def curve(collective: str, backend: str, ranks: int, number: int) -> dict[str, Any]:
    chance = random.Random(number)
    speed = [(1 + number) * size / (size + 2e5) * chance.uniform(0.95, 1.05) for size in SIZES]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": SIZES,
        "y": speed,
        "name": f"{collective} {backend} n={ranks}",
        "line": {"color": COLOURS[number % 4], "dash": ("solid", "dash", "dot")[number % 3]},
        "marker": {"symbol": ("circle", "square", "diamond")[number % 3], "size": 7},
        "meta": {
            "collective": collective,
            "backend": backend,
            "dtype": "float",
            "ranks": str(ranks),
        },
    }


def rich() -> Document:
    """Two collectives on two backends with two numbers of ranks; tables of 44 and 3 lines, one of
    them folded."""
    both = [
        (c, b, n) for c in ("all_reduce", "all_gather") for b in ("gloo", "shm") for n in (2, 4)
    ]
    traces = [curve(*one, number) for number, one in enumerate(both)]
    axes = {
        "xaxis": {
            "type": "log",
            "title": {"text": "size"},
            "tickvals": SIZES[::2],
            "ticktext": ["8 B", "128 B", "2 KiB", "32 KiB", "512 KiB", "8 MiB"],
        },
        "yaxis": {"type": "log", "title": {"text": "busbw, GB/s"}},
    }
    heat = {
        "type": "heatmap",
        "z": [[abs(math.sin(i * 3 + j)) for j in range(6)] for i in range(4)],
        "colorscale": "Cividis",
        "x": [f"{s} B" for s in SIZES[:6]],
        "y": [f"rank {i}" for i in range(4)],
        "meta": {"collective": "all_reduce", "ranks": "4"},
    }
    lines = [
        Line(
            (
                c,
                b,
                str(n),
                f"{10 ** (i % 4) * 1.27:.3g} {('ns', 'µs', 'ms')[i % 3]}",
                f"±{i}.{n}%",
                f"{n * i / 7:.2f}",
            ),
            {"collective": c, "backend": b, "dtype": "float", "ranks": str(n)},
            "bad" if i == 3 else "good" if i == 5 else "notice" if i == 6 else "",
        )
        for i in range(6)
        for c, b, n in both
    ][:44]
    return Document(
        title="all_reduce, all_gather on node17",
        brief=(),
        verdict="Two of 44 rows are slower by more than 5 %, none is faster; 3 have no verdict.",
        weight="bad",
        runs=[
            (
                "20261121-043348-all_reduce-443f · node17 · AMD EPYC, 2 cores · torch 2.13.0+cpu"
                " gloo · tag base"
            ),
            (
                "20261121-044512-all_reduce-91ac · node17 · AMD EPYC, 2 cores · torch 2.13.0+cpu"
                " gloo · tag head"
            ),
        ],
        sections=[
            Section(
                name="bandwidth",
                title="Bandwidth by size",
                sentences=[
                    "busbw is algbw scaled to what the busiest port carries. Bands are 95 %"
                    " intervals."
                ],
                figures=[
                    Figure(
                        name="busbw",
                        title="Bus bandwidth",
                        caption="Bandwidth rises with size; shm leads.",
                        data=traces,
                        layout=axes,
                    ),
                    Figure(
                        name="time",
                        title="Time",
                        caption="Time is flat below 32 KiB.",
                        data=traces[:4],
                        layout=axes,
                    ),
                ],
                tables=[
                    Table(
                        name="rows",
                        title="All rows",
                        columns=make_columns(
                            ("collective", "backend", "ranks", "median", "interval", "busbw GB/s"),
                            "ll",
                        ),
                        lines=lines,
                        note="Times are medians.",
                    )
                ],
            ),
            Section(
                name="skew",
                title="Skew of ranks",
                sentences=["Rank 3 comes last."],
                figures=[
                    Figure(
                        name="skew",
                        title="Start skew",
                        caption="Rank by size.",
                        data=[heat],
                        height=300,
                    )
                ],
            ),
            Section(
                name="skipped",
                title="Skipped and failed",
                sentences=["3 cases did not run."],
                tables=[
                    Table(
                        name="skips",
                        title="Reasons",
                        folded=True,
                        columns=make_columns(("reason", "cases")),
                        lines=[
                            Line(("no in-place form", "12")),
                            Line(("needs a power of two", "8")),
                            Line(("gloo has no reduce_scatter", "2"), {"backend": "gloo"}),
                        ],
                    )
                ],
            ),
            Section(name="pairs", title="Pair matrix", sentences=["No run has pairs."]),
        ],
        data=[
            {
                "size": s,
                "median": s / 3,
                "root": -1,
                "env": "A=1",
                "flags": "n<6 +copy",
                "p99": None,
                "note": '=cmd|"x"!A1, and;=1+1',
            }
            for s in SIZES
        ],
    )


@cache
def rich_page() -> str:
    return html.render_page(rich())


@pytest.fixture
def page(visit: Open, place: Path) -> Open:
    """Write and open the page of a document or a text, of ``rich()`` if none is given."""

    def opened(what: Document | str | None = None, **how: Any) -> Any:
        text = html.render_page(what) if isinstance(what, Document) else what or rich_page()
        place.write_text(text, encoding="utf-8")
        return visit(place, **how)

    return opened


def expect(found: Any) -> Any:
    """Playwright's own, which is there once a browser is."""
    from playwright import sync_api

    return sync_api.expect(found)


def invoked(*args: str) -> Any:
    return CliRunner().invoke(main.app, args)


def drawn(tab: Any, number: int = 3) -> list[int]:
    """Scroll through the page; how many traces each figure shows."""
    places = tab.locator(".figure")
    for index in range(number):
        places.nth(index).scroll_into_view_if_needed()
        expect(places.nth(index).locator(".main-svg").first).to_be_attached()
    return tab.evaluate("[...document.querySelectorAll('.figure')].map(one => one.data.length)")


def box(tab: Any, value: str) -> Any:
    return tab.get_by_role("checkbox", name=value, exact=True)


def lines(tab: Any) -> list[int]:
    """Number of lines shown in each table, whether folded or not."""
    count = "one => [...one.tBodies[0].rows].filter(line => !line.hidden).length"
    return tab.evaluate(f"[...document.querySelectorAll('table')].map({count})")


@pytest.mark.slow
def test_figures_are_drawn_when_they_are_near(page: Open) -> None:
    tab = page()
    expect(tab.locator(".figure").first.locator(".scatterlayer .trace")).to_have_count(8)
    assert tab.locator(".figure").nth(2).locator(".main-svg").count() == 0
    assert drawn(tab) == [8, 4, 1]
    assert tab.locator(".figure").nth(1).locator(".scatterlayer .trace").count() == 4
    assert tab.locator(".figure").nth(2).locator(".heatmaplayer image").count() == 1
    with (
        tab.expect_download() as waiting
    ):  # plotly's own button, which the page's policy must allow
        tab.locator(".figure").first.hover()
        tab.locator(".figure").first.locator("[data-title*=ownload]").click()
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_filters_hide_traces_and_lines_in_all_sections_and_bring_them_back(page: Open) -> None:
    tab = page()
    assert drawn(tab) == [8, 4, 1] and lines(tab) == [44, 3]
    expect(tab.locator("#count")).to_have_text("47 of 47 table lines, 13 of 13 curves")
    box(tab, "all_gather").check()
    assert drawn(tab) == [4, 0, 0] and lines(tab) == [20, 3]
    expect(tab.locator(".figure").nth(1)).to_contain_text("Nothing here matches")
    box(tab, "shm").check()
    assert drawn(tab) == [2, 0, 0] and lines(tab) == [10, 2]
    expect(tab.locator("#count")).to_have_text("12 of 47 table lines, 2 of 13 curves")
    box(tab, "all_reduce").check()  # both: as none of the kind
    assert drawn(tab) == [4, 2, 1] and lines(tab) == [22, 2]
    tab.get_by_role("button", name="Show all").click()
    expect(tab.locator("#count")).to_have_text("47 of 47 table lines, 13 of 13 curves")
    assert drawn(tab) == [8, 4, 1] and lines(tab) == [44, 3]
    assert tab.url.endswith("report.html")


@pytest.mark.slow
def test_what_filters_leave_as_it_is_says_so(page: Open) -> None:
    tab = page()
    head, rows, reasons, pairs = (
        tab.locator(f"{place} .unmoved") for place in ("header", "#bandwidth", "#skipped", "#pairs")
    )
    for note in (head, rows, reasons, pairs):
        expect(note).to_be_hidden()
    box(tab, "shm").check()
    expect(head).to_have_text(
        "Only backend shm: 24 of 47 table lines, 7 of 13 curves."
        " The sentence above is about all of it."
    )
    expect(rows).to_have_text("Not narrowed by filters: the sentences here.")
    expect(reasons).to_have_text(
        "Not narrowed by filters: the sentences here; \u201cReasons\u201d (by backend)."
    )
    expect(pairs).to_be_hidden()  # in which nothing is narrowed by any
    tab.get_by_role("button", name="Show all").click()
    for note in (head, rows, reasons):
        expect(note).to_be_hidden()


@pytest.mark.slow
def test_a_link_keeps_the_filters_and_the_place(page: Open) -> None:
    tab = page()
    box(tab, "gloo").check()
    tab.locator("aside").get_by_role("link", name="Skew of ranks").click()
    expect(tab).to_have_url(re.compile(r"#backend=gloo&at=skew$"))
    again = page(hash="#" + tab.url.partition("#")[2])
    expect(box(again, "gloo")).to_be_checked()
    expect(again.locator("#skew")).to_be_in_viewport()
    assert lines(again) == [22, 3]
    strange = page(hash="#backend=<b>&nonsense=1&at=%22%3E")
    assert lines(strange) == [44, 3]
    assert lines(page(hash="#%")) == [44, 3]


def test_a_filter_that_leaves_a_table_empty_says_so(page: Open) -> None:
    table = Table(
        name="t",
        title="T",
        columns=make_columns(("a",)),
        lines=[Line(("x",), {"ranks": "2"}), Line(("y",), {"ranks": "10"})],
    )
    other = msgspec.structs.replace(table, lines=table.lines[:1])
    tab = page(
        Document(
            title="T",
            brief=(),
            verdict="V",
            weight="",
            runs=[],
            sections=[Section(name="s", title="S", sentences=[], tables=[table, other])],
        )
    )
    assert tab.locator("#filters input").evaluate_all("all => all.map(one => one.value)") == [
        "2",
        "10",
    ]
    box(tab, "10").check()
    assert lines(tab) == [1, 0]
    expect(tab.locator(".none").nth(0)).to_be_hidden()
    expect(tab.locator(".none").nth(1)).to_be_visible()


def ink(tab: Any) -> list[str]:
    """Colours of the page's paper and ink, and of the figures' font, once a figure has been drawn
    anew."""
    page, figure = (
        "getComputedStyle(document.body)",
        "getComputedStyle(document.querySelector('.xtick text'))",
    )
    tab.wait_for_function(
        f"() => document.querySelector('.xtick text') && {figure}.fill === {page}.color"
    )
    return tab.evaluate(f"[{page}.backgroundColor, {page}.color, {figure}.fill]")


@pytest.mark.slow
def test_colours_follow_the_system_until_the_button_is_pressed(page: Open) -> None:
    tab = page()
    assert drawn(tab)
    light = ink(tab)
    assert light[0] == "rgb(255, 255, 255)" and light[1] == light[2]
    tab.emulate_media(color_scheme="dark")
    dark = ink(tab)
    assert dark[1] == dark[2] and {*dark}.isdisjoint(light)
    button = tab.get_by_role("button", name="Dark")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    assert ink(tab) == light
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    assert ink(tab) == dark
    tab.emulate_media(media="print")
    assert ink(tab) == light


def column(tab: Any, index: int) -> list[str]:
    return tab.locator(f"#bandwidth tbody tr > :nth-child({index})").all_text_contents()


def test_tables_sort_by_value_and_back(page: Open) -> None:
    tab = page()
    before = column(tab, 4)
    head = tab.locator("#bandwidth th").nth(3)
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert column(tab, 4)[0] == "1.27 ns"
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6}
    values = [float(number) * scale[unit] for number, unit in map(str.split, column(tab, 4))]
    assert values == sorted(values) != [float(n) * scale[u] for n, u in map(str.split, before)]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    values = [float(number) * scale[unit] for number, unit in map(str.split, column(tab, 4))]
    assert values == sorted(values, reverse=True)
    tab.locator("#bandwidth th").first.get_by_role("button").click()
    assert tab.locator("#bandwidth [aria-sort]").count() == 1
    words = [
        text.split()[-1].removeprefix("bad").removeprefix("good").removeprefix("notice")
        for text in column(tab, 1)
    ]
    assert words == sorted(words)
    for _ in range(2):
        tab.locator("#bandwidth th").first.get_by_role("button").click()
    assert column(tab, 4) == before


def name_winner(name: str) -> Words:
    return tone_text(name, "good", strong=True) + tone_text(" (bimodal)", "notice")


ORDERED = (
    ("12 B", "900 KiB", "1.5 MiB", "-"),
    ("−12%", "-0.5%", "+3.1%", "n/a"),
    ("±2.0%", "99", "1,024", "±∞"),
    ("max 40 µs", "p99 1.2 ms", "p95 2.00 s"),
    ("300", "850 K", "1.2 M"),
    ("<80 ns", "≤ 2.10 ms", "3 ms", "-"),
    ("≥ 9.50", "12.1", "≥ 100"),
    ("", "host9", "host10"),
    (name_winner("ring@shm"), "tree@shm", "zeta@shm"),
)


def test_cells_are_ordered_by_what_they_mean(page: Open) -> None:
    tables = [
        Table(
            name="t",
            title="T",
            columns=make_columns(("a",)),
            lines=[Line((text,)) for text in (*texts[1:], texts[0])],
        )
        for texts in ORDERED
    ]
    tab = page(
        Document(
            title="T",
            brief=(),
            verdict="V",
            weight="",
            runs=[],
            sections=[Section(name="s", title="S", sentences=[], tables=tables)],
        )
    )
    for table, texts in zip(tab.locator("table").all(), ORDERED, strict=True):
        table.locator("thead button").click()
        assert table.locator("tbody th").all_text_contents() == [*map(str, texts)]


@pytest.mark.slow
def test_paper_shows_everything(page: Open) -> None:
    tab = page(scheme="dark")
    expect(tab.locator("#skipped table")).to_be_hidden()
    tab.emulate_media(media="print")
    expect(tab.locator(".figure .main-svg").nth(5)).to_be_attached()
    for table in tab.locator("table").all():
        expect(table).to_be_visible()
    expect(tab.locator("aside")).to_be_hidden()
    boxes = tab.evaluate(
        "[...document.querySelectorAll('.table')].map(one => one.scrollHeight - one.clientHeight)"
    )
    assert boxes == [0, 0]
    widths = tab.evaluate(
        "[...document.querySelectorAll('.figure')].map(one => one.querySelector('svg').clientWidth)"
    )
    assert widths == [680] * 3
    tab.emulate_media(media="screen")
    expect(tab.locator("#skipped table")).to_be_hidden()
    assert tab.locator(".figure svg").first.evaluate("one => one.clientWidth") > 690


@pytest.mark.slow
def test_a_box_says_what_of_it_is_not_seen(page: Open) -> None:
    tab = page()
    told = tab.locator(".more").first
    expect(told).to_have_text(re.compile(r"lines 1 to \d+ of 44: scroll for the others"))
    tab.locator(".table").first.evaluate("one => one.scrollTop = one.scrollHeight")
    expect(told).to_have_text(re.compile(r"lines \d+ to 44 of 44"))
    box(tab, "gloo").first.check()
    expect(told).to_have_text(re.compile(r"lines \d+ to \d+ of 22"))
    expect(tab.locator(".more").nth(1)).to_be_hidden()  # of the folded box of 3 lines


def test_a_folded_section_opens_where_an_address_leads_to_it(page: Open) -> None:
    table = Table(name="t", title="T", columns=make_columns(("a",)), lines=[Line(("one",))])
    section = Section(name="deep", title="Deep", sentences=["w"], tables=[table], folded=True)
    tab = page(Document(title="d", brief=(), sections=[section]))
    expect(tab.get_by_role("table", name="T")).to_be_hidden()
    tab.get_by_role("link", name="Deep").click()
    expect(tab.get_by_role("table", name="T")).to_be_visible()


@pytest.mark.slow
def test_a_narrow_screen_scrolls_tables_and_not_the_page(page: Open) -> None:
    tab = page(width=400, scheme="dark")
    assert drawn(tab) == [8, 4, 1]
    assert tab.evaluate("document.scrollingElement.scrollWidth") <= 400
    assert tab.locator(".table").first.evaluate("one => one.scrollWidth > one.clientWidth")
    tab.locator(".table").first.evaluate("one => one.scrollLeft = 60")
    first = tab.locator("#bandwidth tbody th").first.bounding_box()
    assert first["x"] == pytest.approx(tab.locator(".table").first.bounding_box()["x"], abs=1)
    expect(box(tab, "all_gather")).to_be_hidden()
    tab.locator("aside summary").nth(1).click()
    box(tab, "all_gather").check()
    expect(tab.locator("#some")).to_be_visible()


@pytest.mark.slow
def test_the_keyboard_reaches_everything(page: Open) -> None:
    tab = page()
    reached = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        reached.append(
            tab.evaluate(
                "(one => one.value ? one.name + '=' + one.value : one.className ||"
                " one.textContent.trim())(document.activeElement)"
            )
        )
    order = [
        "skip",
        "Contents",
        "Bandwidth by size",
        "backend=gloo",
        "CSV",
        "Dark",
        "table tall",
        "median",
    ]
    assert [one for one in reached if one in order] == order
    tab.locator(".skip").focus()
    outline = tab.locator(".skip").evaluate(
        "one => [one.getBoundingClientRect().x >= 0, getComputedStyle(one).outlineStyle]"
    )
    assert outline == [True, "solid"]
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"


@pytest.mark.slow
def test_screen_readers_find_landmarks_headings_and_names(page: Open) -> None:
    tab = page()
    drawn(tab)
    assert tab.evaluate("document.documentElement.lang") == "en"
    for role in ("banner", "main", "contentinfo", "navigation", "complementary", "form", "status"):
        expect(tab.get_by_role(role)).to_have_count(1)
    heads = [(level, tab.get_by_role("heading", level=level).count()) for level in (1, 2, 3)]
    assert heads == [(1, 1), (2, 4), (3, 3)]
    expect(tab.get_by_role("img", name="Rank by size.")).to_be_visible()
    expect(tab.get_by_role("table", name="All rows")).to_be_visible()
    expect(tab.get_by_role("columnheader", name="median")).to_have_attribute("scope", "col")
    expect(tab.get_by_role("region", name="Bandwidth by size")).to_be_visible()
    expect(tab.locator(".verdict")).to_have_text(
        "✗bad Two of 44 rows are slower by more than 5 %, none is faster; 3 have no verdict."
    )


def saved(tab: Any, kind: str) -> str:
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name=f"Download the data as {kind}").click()
    assert waiting.value.suggested_filename == f"collbench.{kind.lower()}"
    return Path(waiting.value.path()).read_bytes().decode()


def test_raw_data_is_saved_as_csv_and_json(page: Open) -> None:
    tab = page()
    table = list(csv.DictReader(io.StringIO(saved(tab, "CSV"), newline="")))
    assert len(table) == len(SIZES)
    assert table[0] == {
        "size": "8",
        "median": "2.66667",
        "root": "-1",
        "env": "A=1",
        "flags": "n<6 +copy",
        "p99": "",
        "note": """'=cmd|"x"!A1, and;'=1+1""",
    }
    assert all(
        line.endswith('"\'=cmd|""x""!A1, and;\'=1+1"')
        for line in saved(tab, "CSV").split("\r\n")[1:-1]
    )
    rows = json.loads(saved(tab, "JSON"))
    assert [row["size"] for row in rows] == SIZES
    assert (
        rows[0]["note"] == '=cmd|"x"!A1, and;=1+1'
        and rows[0]["env"] == "A=1"
        and rows[0]["p99"] is None
    )


HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"onmouseover="alert(3)',
    "{{7*7}}",
    "<img src=x onerror=alert(4)>",
    "javascript:alert(5)",
    "<!--",
    "]]>",
    "\u2028\x1b[31m&lt;",
)


def hostile(number: int, text: str) -> Section:
    """``text`` wherever a record's text may come to stand."""
    meta = dict.fromkeys(("collective", "backend"), text)
    rows = [Line((text, text), meta, "bad"), Line(("x", "y"), {"backend": "gloo"})]
    table = Table(name="t", title=text, columns=make_columns((text, "b")), lines=rows, note=text)
    data = [
        {"type": "scatter", "x": [1], "y": [1], "name": "x", "meta": meta, "customdata": [text]}
    ]
    figure = Figure(name="f", title=text, caption=text, data=data, layout={"meta": text})
    return Section(
        name=f"s{number}", title=text, sentences=[text], figures=[figure], tables=[table]
    )


@pytest.mark.slow
def test_hostile_text_is_shown_and_does_nothing(page: Open) -> None:
    text = " ".join(HOSTILE)
    sections = [hostile(number, each) for number, each in enumerate(HOSTILE)]
    tab = page(
        Document(
            title=text,
            brief=(),
            verdict=text,
            weight="bad",
            runs=[text],
            sections=sections,
            data=[{text: text}],
        )
    )
    assert drawn(tab, len(HOSTILE)) == [1] * len(HOSTILE)
    for place in ("h1", ".runs li", "title"):
        assert tab.locator(place).text_content() == text
    for place in (
        "h2",
        "h3",
        ".words",
        "caption",
        "main tbody tr:first-child td",
        "section > .soft",
    ):
        assert tab.locator(place).all_text_contents() == list(HOSTILE)
    assert [one.get_attribute("aria-label") for one in tab.locator(".figure").all()] == list(
        HOSTILE
    )
    assert tab.evaluate("document.querySelectorAll('script').length") == 4
    assert tab.locator("main img, main a, [onmouseover], [onerror]").count() == 0
    tab.locator("th button").first.hover()
    box(tab, HOSTILE[0]).first.check()
    assert lines(tab) == [2] + [1] * (len(HOSTILE) - 1)
    assert drawn(tab, 1) == [1] + [0] * (len(HOSTILE) - 1)
    assert json.loads(saved(tab, "JSON")) == [{text: text}]


@pytest.mark.slow
def test_hostile_records_do_nothing(page: Open, tmp_path: Path) -> None:
    assert (
        invoked("all_reduce", "--sizes", "1K,64K", "--backend", "model", "-g", "4").exit_code == 0
    )
    run = run_file.read_file(store.find_run("@last"))
    text = '<a href="https://evil.test">x</a>' + " ".join(HOSTILE[:-1])
    ranks = [types.RankInfo(rank=rank, host=text, pid=1, cpus=[0]) for rank in range(4)]
    world = types.World(
        index=0,
        backend="model",
        n=4,
        env=(("NCCL_ALGO", text),),
        launcher=text,
        ranks=ranks,
        oversubscribed=False,
        same_clock=True,
        library=text,
    )
    seen = [
        msgspec.structs.replace(
            one, world=0, note=text, case=msgspec.structs.replace(one.case, env=world.env)
        )
        for one in run.records
    ]
    seen += [
        msgspec.structs.replace(one, status=status, times_ns=[])
        for one, status in zip(seen, ("skipped", "failed", "wrong"), strict=False)
    ]
    head = msgspec.structs.replace(
        run.run, tag=text, command=[text], environment={"host": text, "cpu": text}
    )
    path = tmp_path / "run.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines([head, world, *seen]))
    done = invoked("report", str(path), "-o", str(tmp_path / "report.html"))
    assert done.exit_code == 0, done.output
    tab = page((tmp_path / "report.html").read_text(encoding="utf-8"))
    number = tab.locator(".figure").count()
    drawn(tab, number)
    for head in tab.locator("thead button:visible").all():
        head.click()
    expect(tab.locator("main")).to_contain_text(HOSTILE[0])
    assert tab.evaluate("document.querySelectorAll('script').length") == 4
    assert tab.locator("main a, main img, svg a, [onmouseover], [onerror]").count() == 0
    table = list(csv.DictReader(io.StringIO(saved(tab, "CSV"), newline="")))
    assert len(table) == len(seen)


def test_the_policy_stops_what_is_not_the_pages_own(tab: Any, place: Path) -> None:
    text = rich_page().replace("Rank 3 comes last.", "<script>document.title = 'taken'</script>")
    place.write_text(text, encoding="utf-8")
    told = []

    def hear(message: Any) -> None:
        told.append(message.text)

    tab.goto("about:blank")
    tab.on("console", hear)
    tab.goto(place.as_uri())
    tab.remove_listener("console", hear)
    assert tab.title() == rich().title
    assert len(told) == 1 and "Content Security Policy" in told[0]


@pytest.mark.slow
def test_a_small_matrix_has_its_values_in_its_cells(page: Open) -> None:
    def heat(n: int) -> Figure:
        cells = [[float(i + j) for j in range(n)] for i in range(n)]
        names = [f"rank {i}" for i in range(n)]
        matrix = figures.Matrix(
            x=names,
            y=names,
            z=cells,
            text=[[f"{v:.1f}" for v in row] for row in cells],
            labels=("to", "from"),
            legend="GB/s",
            good=True,
        )
        return figures.draw_heatmap(f"m{n}", "Pairs", "words", matrix, {})

    both = [Section(name="s", title="S", sentences=[], figures=[heat(4), heat(17)])]
    tab = page(Document(title="T", brief=(), verdict="V", weight="", runs=[], sections=both))
    drawn(tab, 2)
    places = tab.locator(".figure")
    expect(places.nth(0).locator(".heatmap-label")).to_have_count(16)
    expect(places.nth(1).locator(".heatmap-label")).to_have_count(0)


@pytest.mark.slow
def test_plotlyjs_beside_the_page(visit: Open, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html.render_page(rich(), "directory"), encoding="utf-8")
    (tmp_path / html.LIBRARY).write_text(html.load_plotly(), encoding="utf-8")
    assert (tmp_path / "report.html").stat().st_size < 200_000
    assert drawn(visit(tmp_path / "report.html")) == [8, 4, 1]


def test_plotlyjs_from_the_network_is_one_pinned_script() -> None:
    text = html.render_page(rich(), "cdn")
    (tag,) = re.findall(r"<script[^>]* src=.*?>", text)
    assert re.search(
        r'src="https://cdn\.plot\.ly/plotly-[\d.]+\.min\.js" integrity="sha256-[\w+/=]{44}"', tag
    )
    assert 'crossorigin="anonymous"' in tag
    assert len(text) < 200_000


def test_a_document_without_anything_is_a_page(page: Open) -> None:
    tab = page(
        Document(title="Nothing", brief=(), verdict="No run.", weight="", runs=[], sections=[])
    )
    expect(tab.get_by_role("heading")).to_have_text("Nothing")
    assert tab.locator("form, [data-save]").count() == 0
