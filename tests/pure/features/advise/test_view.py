"""Advice in words, tables and maps."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from advising import SERIES, SIZES, gather, sweep

from collbench.core.errors import Exit
from collbench.features.advise.judgement import judge_evidence
from collbench.features.advise.map import draw_maps
from collbench.features.advise.types import Advised, Cell, Gain, Unadvised, describe_gain
from collbench.features.advise.view import (
    Extras,
    Written,
    describe_answer,
    describe_row,
    find_exit,
    format_sizes,
    list_stays,
    make_document,
)
from collbench.records.types import Choice
from collbench.show import html, markdown, terminal

FAST = {"a": dict.fromkeys(SIZES[3:6], -0.3), "<b>": dict.fromkeys(SIZES[7:], 0.4)}
EXTRAS = Extras("Tiny")
NO_FILE = Written("words", "words", "", {})


@pytest.fixture(scope="module")
def advised() -> Advised:
    return judge_evidence(sweep(np.random.default_rng(5), FAST, sigma=0.01, shared=0.005))


def gain(share: float, **fields: object) -> Gain:
    given = {"nbytes": 1024, "gain": share, "lo": share - 0.05, "hi": share + 0.04, "p": 0.001}
    given |= {"launches": 10, "is_paired": True, "default": 1e4, "setting": 9e3, **fields}
    return Gain(**given)  # type: ignore[arg-type]


def stay(nbytes: int, why: str, decided: bool = True, best: Gain | None = None) -> Unadvised:
    return Unadvised(Cell(SERIES, nbytes), why, decided, best, "a" if best else "")


def advice(*cells: Unadvised) -> Advised:
    given = {"library": "tiny", "version": "Tiny 1.0", "runs": ("run",), "day": "2026-01-02"}
    return Advised(**given, taus=(0.03, 0.1), unadvised=cells)  # type: ignore[arg-type]


def shown(advised: Advised, written: Written = NO_FILE) -> str:
    """The terminal's text, on one line."""
    text = terminal.render_text(make_document(advised, written, EXTRAS), 80)
    return " ".join(text.split())


def test_gains_in_words() -> None:
    assert describe_gain(gain(0.14)) == "14% less time [9%, 18%]"
    assert describe_gain(gain(-0.14)) == "14% more time [10%, 19%]"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1024, 1 << 18, "1 to 256 KiB"),
        (65536, 1448154, "64 KiB to 1.38 MiB"),
        (1025, 1026, "1 KiB"),
        (0, 64, "0 to 64 B"),
    ],
)
def test_ranges_of_sizes_in_words(low: int, high: int, words: str) -> None:
    assert format_sizes(low, high) == words


def test_a_row_in_a_sentence(advised: Advised) -> None:
    (row,) = advised.rows
    assert describe_row(row).startswith("all_reduce on 4 ranks, 257 B to 16 KiB: a takes 3")
    assert find_exit(advised) == Exit.OK


def test_the_answer_says_what_was_decided() -> None:
    nothing = advice(stay(8, "nothing is faster by 5% or more"), stay(64, "undecided: x", False))
    assert describe_answer(nothing, "Tiny") == (
        "nothing is surely faster than Tiny's own choice: 1 size decided, 1 not"
    )
    same = msgspec.structs.replace(nothing, is_same_order=True)
    assert describe_answer(same, "Tiny").startswith(
        "nothing that is known to keep the order of summation is surely faster than Tiny's"
    )
    noisy = advice(stay(8, "launches scatter too much: a at 512 B", False))
    assert describe_answer(noisy, "Tiny") == "nothing could be decided: launches scatter too much"
    assert find_exit(noisy) == find_exit(advice()) == Exit.NO_VERDICT


def test_neighbours_of_one_reason_stay_together() -> None:
    cells = (
        stay(8, "nothing is faster", best=gain(0.01)),
        stay(64, "nothing is faster", best=gain(0.02)),
        stay(512, "launches scatter too much: a at 512 B", False, gain(0.04)),
        stay(4096, "launches scatter too much: a at 4 KiB", False),
    )
    first, second = list_stays(advice(*cells))
    assert (first.sizes, first.why, first.best) == (
        "8 to 64 B",
        "nothing is faster",
        "a: 2% less time [-3%, 6%] at 64 B",
    )
    assert (second.sizes, second.why) == (
        "512 B to 4 KiB",
        "launches scatter too much: a at 512 B",
    )


def test_a_reason_is_of_the_size_whose_gain_stands_beside_it() -> None:
    wide, sure = gain(0.05, hi=0.75), gain(0.36, lo=0.08, hi=0.38)
    (only,) = list_stays(
        advice(
            stay(512, "undecided: wide", False, wide), stay(4096, "undecided: sure", False, sure)
        )
    )
    assert (only.why, only.best) == ("undecided: sure", "a: 36% less time [8%, 38%] at 4 KiB")


def test_a_row_between_parts_what_stays(advised: Advised) -> None:
    sizes = [each.sizes for each in list_stays(advised)]
    assert sizes[0] == "8 to 128 B" and len(sizes) >= 2


def test_a_map_has_all_settings_and_frames_what_is_advised(advised: Advised) -> None:
    (figure,) = draw_maps(advised)
    cells, marks = figure.data
    assert cells["y"] == ["&lt;b&gt;", "a"]
    assert len(cells["x"]) == len(SIZES)
    assert cells["zmin"] == -cells["zmax"]
    row = cells["z"][1]
    assert all(value > 0.25 for value in row[3:6])
    assert [text.endswith("*") for text in cells["text"][1][3:6]] == [True] * 3
    assert (marks["x"], marks["y"]) == (cells["x"][3:6], ["a"] * 3)
    assert "Framed: advised (3)" in figure.caption
    assert draw_maps(judge_evidence(gather({}))) == []


def test_every_medium_is_made(advised: Advised) -> None:
    text = "# collbench advise\n1 <script>\n"
    written = Written("words", "words", text, {"A": "f x"}, Path("f x"))
    extras = Extras("Tiny", ("removed: b",), ("It saves 3 s.",), machines={"run": "2 cores"})
    document = make_document(advised, written, extras)
    shown = terminal.render_text(document, 80)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "launches" in shown and "export A='f x'" in shown and "It saves 3 s." in shown
    assert "removed: b" in markdown.render_markdown(document)
    assert document.runs[0] == "run run: 2 cores"
    page = html.render_page(document, "cdn")
    assert "1 &lt;script&gt;" in page and "1 <script>" not in page
    assert document.values["file"]["text"] == text


def test_an_advice_of_nothing_is_a_document() -> None:
    document = make_document(advice(), NO_FILE, EXTRAS)
    assert "nothing could be decided: nothing was measured" in terminal.render_text(document, 80)
    assert html.render_page(document, "cdn")


def test_gains_of_a_search_are_no_evidence(advised: Advised) -> None:
    """Short launches chose the setting, so that what they say of it is too good."""
    cell = Cell(SERIES, 1024)
    found = gain(0.5, lo=-math.inf, hi=math.inf, p=0.001)
    searched = msgspec.structs.replace(advised, rivals={cell: {"luck": found}})
    assert draw_maps(searched) == []
    document = make_document(searched, NO_FILE, EXTRAS)
    assert document.values["rivals"] == []
    assert "luck" not in terminal.render_text(document, 80) + html.render_page(document, "cdn")


def test_the_map_calls_no_gain_sure_that_may_not_be_advised(advised: Advised) -> None:
    rivals = {Cell(SERIES, 1024): {"a": gain(0.5), "b": gain(0.5, doubt="gave wrong data <3>")}}
    (figure,) = draw_maps(msgspec.structs.replace(advised, rivals=rivals))
    assert figure.data[0]["text"] == [["50*"], ["50"]]
    assert figure.data[0]["customdata"][1][0].endswith("; gave wrong data &lt;3&gt;")


def test_verified_rows_need_no_other_verification(advised: Advised) -> None:
    assert "--verify measures it again" in shown(advised)
    rows = tuple(msgspec.structs.replace(row, verified="2026-01-03") for row in advised.rows)
    verified = msgspec.structs.replace(advised, rows=rows, checked="checked: 5 sizes")
    assert "--verify" not in shown(verified)
    assert "checked: 5 sizes" in shown(verified)


def test_no_row_is_no_file_to_use() -> None:
    written = Written("words", "words", "# nothing\n", {"A": "f"}, Path("f"))
    text = shown(advice(stay(8, "nothing is faster by 5% or more")), written)
    assert "wrote f, words, no row: the file changes nothing" in text
    assert "use it" not in text


def test_wrong_data_is_said_first(advised: Advised) -> None:
    extras = EXTRAS._replace(wrong="all_reduce, a at 1 KiB: 3 elements differ")
    document = make_document(advised, NO_FILE, extras)
    assert document.verdict == "wrong data: all_reduce, a at 1 KiB: 3 elements differ"
    assert (document.values["exit"], document.weight) == (Exit.WRONG_DATA, "bad")


def test_sums_may_be_added_in_another_order(advised: Advised) -> None:
    assert "differ in the last bits" in shown(advised)
    (row,) = advised.rows
    ring = Choice(adds_as=("ring",))
    for changes in (
        {"ran": ring, "default_ran": ring},
        {"series": SERIES._replace(n=2)},
        {"series": SERIES._replace(collective="broadcast")},
    ):
        alike = msgspec.structs.replace(row, **changes)
        assert "last bits" not in shown(msgspec.structs.replace(advised, rows=(alike,)))


def test_a_file_of_exports_is_sourced(advised: Advised) -> None:
    use = {"A": "1;2"}
    script = Written("intelmpi", "exports", '# a\nexport A="1;2"\n', use, Path("a b.sh"))
    assert "use it: source 'a b.sh' undo it: unset A" in shown(advised, script)
    rules = Written("openmpi", "rules", "# a\n", {"B": "/r"}, Path("r"))
    assert "use it: export B=/r undo it: unset B" in shown(advised, rules)
    assert "use it" not in shown(advised, script._replace(path=None))
