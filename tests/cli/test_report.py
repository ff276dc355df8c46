"""`collbench report`: what it writes, where, and what it refuses."""

from __future__ import annotations

import importlib.util
import os
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from collbench.cli import main as commands
from collbench.core import files
from collbench.core import text as text_
from collbench.core.errors import CannotRun, UsageError
from collbench.records import run_file, store
from collbench.records.types import Pairing
from collbench.show import html, markdown
from collbench.show.document import MARKER, Column, Document, Figure, Line, Section, Table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*args: str) -> Any:
    return CliRunner().invoke(commands.app, args)


def refused(kind: type[Exception], *args: str) -> str:
    done = invoke("report", *args)
    assert type(done.exception) is kind, done.output
    return f"{done.exception.message}\n{done.exception.hint}"  # type: ignore[attr-defined]


@pytest.fixture
def run() -> Path:
    """A run of two sizes, in and out of place, predicted."""
    done = invoke(
        "all_reduce", "--sizes", "1K,64K", "--backend", "model", "-g", "4", "--tag", "one"
    )
    assert done.exit_code == 0, done.output
    return store.find_run("@last")


def test_a_page_of_the_last_run_without_torch(bare: Any, run: Path, folder: Path) -> None:
    done = bare("report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote collbench-report.html (4.")
    text = (folder / "collbench-report.html").read_text(encoding="utf-8")
    assert text.count("<html") == 1 and "predicted" in text
    assert text.count(html.load_plotly()[:200]) == 1
    # a report may be replaced by a report
    again = bare("report", "@last", "--title", "A <b>title</b>")
    assert again.returncode == 0, again.stderr
    assert "<h1>A &lt;b&gt;title&lt;/b&gt;</h1>" in (folder / "collbench-report.html").read_text(
        encoding="utf-8"
    )


def test_runs_are_named_as_everywhere(run: Path, folder: Path) -> None:
    for name in ("one", "@last", run.stem, str(run)):
        done = invoke("report", name, "--format", "md")
        assert done.exit_code == 0 and run.stem.partition("-all")[0] in done.output
    twice = invoke("report", "one", "@last", str(run), "--format", "md").output
    assert twice == invoke("report", "--format", "md").output  # the same run, once


def test_markdown_goes_to_the_terminal_or_to_a_file(run: Path, folder: Path) -> None:
    shown = invoke("report", "--format", "md")
    assert shown.output.startswith(f"{MARKER}\n# ")
    assert "\n## Data" not in shown.output  # it is on the page alone
    done = invoke("report", "-o", "r.md")
    assert done.output.startswith("wrote r.md (")
    assert (folder / "r.md").read_text(encoding="utf-8") == shown.output
    assert [one.name for one in folder.glob("*.html")] == []


def test_the_library_beside_the_page_or_from_the_network(run: Path, folder: Path) -> None:
    (folder / "out").mkdir()
    assert invoke("report", "-o", "out/a.html", "--plotlyjs", "directory").exit_code == 0
    assert sorted(one.name for one in (folder / "out").iterdir()) == ["a.html", "plotly.min.js"]
    assert invoke("report", "-o", "b.html", "--plotlyjs", "cdn").exit_code == 0
    for path in (folder / "out" / "a.html", folder / "b.html"):
        assert path.stat().st_size < 1_000_000


def test_what_is_no_report_is_not_overwritten(run: Path, folder: Path) -> None:
    (folder / "thesis.html").write_text("<!DOCTYPE html><p>mine</p>")
    words = refused(UsageError, "-o", "thesis.html")
    assert (
        words == "thesis.html exists and was not written by collbench; not overwritten\n"
        "choose another place with -o, or remove it"
    )
    assert f"{run} exists" in refused(UsageError, "-o", str(run), "--format", "html")
    assert (folder / "thesis.html").read_text() == "<!DOCTYPE html><p>mine</p>"


def test_errors_are_two_lines(run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no run called 'nothing'" in refused(UsageError, "nothing")
    (folder / "junk.jsonl").write_text("{}\n")
    assert "junk.jsonl" in refused(UsageError, "junk.jsonl")
    (folder / "binary.jsonl").write_bytes(b"\xff\xfe\x00" * 50 + b"\n")
    assert "binary.jsonl" in refused(UsageError, "binary.jsonl")
    (folder / "empty.jsonl").write_text("")
    assert "not a collbench run" in refused(UsageError, "empty.jsonl")
    assert "is not one of html, md" in refused(UsageError, "--format", "pdf")
    assert "is not one of inline, cdn, directory" in refused(UsageError, "--plotlyjs", "none")
    assert "folder no/such does not exist\nmake it, or choose another place" in refused(
        CannotRun, "-o", "no/such/folder.html"
    )
    assert "its ending: '.pdf' is not one of .html," in refused(UsageError, "-o", "page.pdf")
    assert "Is a directory" in refused(CannotRun, "-o", ".")
    assert "--compare needs two runs, not 1" in refused(UsageError, "--compare")
    monkeypatch.setenv("COLLBENCH_HOME", str(folder / "none"))
    assert "no run is saved yet" in refused(UsageError)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said(run: Path) -> None:
    assert refused(CannotRun, "-o", "/dev/full").startswith(
        "cannot write /dev/full: No space left on device\n"
    )


def paired(run: Path, side: str, experiment: str) -> str:
    file = run_file.read_file(run)
    pairing = Pairing(experiment=experiment, side=side, variant=side)  # type: ignore[arg-type]
    head = msgspec.structs.replace(file.run, id=f"id-{side}", pairing=pairing)
    path = Path(f"{side}-{experiment}.jsonl")
    path.write_bytes(msgspec.json.Encoder().encode_lines([head, *file.worlds, *file.records]))
    return str(path)


def test_two_runs_are_compared_when_asked_or_interleaved(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collbench.features.compare import comparison as compare
    from collbench.features.compare import false_alarms, report
    from collbench.show.views import run as sections

    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(
        compare, "compare_runs", lambda base, head, rules: asked.append((base.run.id, head.run.id))
    )
    monkeypatch.setattr(false_alarms, "find_alarms", lambda comparison: None)
    monkeypatch.setattr(report, "make_readable", lambda comparison, alarms: comparison)
    monkeypatch.setattr(
        sections,
        "make_document",
        lambda files, comparison=None: Document(
            title="T", brief=(), verdict="V", weight="", runs=[], sections=[]
        ),
    )
    base, head, other = (
        paired(run, "base", "e1"),
        paired(run, "head", "e1"),
        paired(run, "head", "e2"),
    )
    assert invoke("report", head, base, "--format", "md").exit_code == 0
    assert asked.pop() == ("id-base", "id-head")  # whatever order they come in
    assert invoke("report", base, other, "--format", "md").exit_code == 0
    assert invoke("report", base, head, other, "--format", "md").exit_code == 0
    assert invoke("report", base, "--format", "md").exit_code == 0
    assert asked == []
    assert invoke("report", other, base, "--compare", "--format", "md").exit_code == 0
    assert asked.pop() == ("id-head", "id-base")  # as they were named
    assert "needs two runs, not 3" in refused(UsageError, base, head, other, "--compare")


def test_one_side_of_an_experiment_brings_the_other(run: Path, folder: Path) -> None:
    for side in ("base", "head"):
        Path(paired(run, side, "e1")).rename(f"e1-{side}.jsonl")
    for side in ("base", "head"):
        done = invoke("report", f"e1-{side}.jsonl", "--format", "md")
        assert done.exit_code == 0 and "## Comparison" in done.output
    (folder / "e1-base.jsonl").unlink()
    alone = invoke("report", "e1-head.jsonl", "--format", "md")
    assert alone.exit_code == 0 and "## Comparison" not in alone.output


def test_a_report_is_written_whole_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, linked = folder / "page.html", folder / "link.html"
    files.save_text(page, "old")
    linked.symlink_to(page)
    with monkeypatch.context() as patched:

        def half(path: Path, data: bytes) -> int:
            with path.open("wb") as file:
                file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")

        patched.setattr(Path, "write_bytes", half)
        with pytest.raises(CannotRun, match="No space left"):
            files.save_text(page, "new text", "old")
    assert page.read_text() == "old" and sorted(one.name for one in folder.glob("*page*")) == [
        "page.html"
    ]
    files.save_text(linked, "new", "old")
    assert linked.is_symlink() and page.read_text() == "new"


def test_runs_that_cannot_be_read_or_have_no_name(
    run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is empty" in refused(UsageError, "")

    def denied(path: Path, *args: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", denied)
        for read in (run_file.read_file, run_file.read_digest, run_file.read_run):
            with pytest.raises(CannotRun, match=r"cannot read .*Permission denied"):
                read(run)
        assert "no run called 'one'" in refused(UsageError, "one")  # a tag is in the file


TEXTS = [
    "<script>alert(1)</script>",
    "a|b",
    "*bold*",
    "`code`",
    "[link](javascript:alert(1))",
    "\x1b[31mred",
    "# no",
    "&lt;b&gt;",
    "$x$",
]


def test_markdown_shows_hostile_text_literally() -> None:
    table = Table(
        name="t",
        title=TEXTS[0],
        columns=[Column("text", "left")],
        lines=[Line((text,), {}, "bad") for text in TEXTS],
        folded=True,
        note=TEXTS[4],
    )
    figure = Figure(name="f", title=TEXTS[2], caption=TEXTS[3], data=[])
    section = Section(name="s", title=TEXTS[1], sentences=TEXTS, figures=[figure], tables=[table])
    text = markdown.render_markdown(
        Document(
            title=TEXTS[0], brief=(), verdict=TEXTS[2], weight="bad", runs=TEXTS, sections=[section]
        )
    )
    drawn = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert "\x1b" not in text
    assert drawn.count("<td>") == len(TEXTS) and drawn.count("<script") == drawn.count("<a ") == 0
    for literal in ("✗ a|b", "✗ *bold*", "✗ `code`", "✗ [link](javascript:alert(1))"):
        assert f"<td>{literal}</td>" in drawn
    assert "<details><summary>&lt;script&gt;alert(1)&lt;/script&gt; (9 lines)</summary>" in drawn
    assert (
        "&amp;lt;b&amp;gt;" in drawn
        and "$x$" not in text
        and text_.escape_markdown("by @me, ring@gloo") == "by @\u200bme, ring@gloo"
    )


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("kaleido") is None, reason="kaleido is not installed")
def test_images_are_drawn_by_the_systems_browser(
    run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/no/such/browser")
    assert "there is none at BROWSER_PATH=/no/such/browser" in refused(
        CannotRun, "-o", "r.html", "--png", "png"
    )
    monkeypatch.delenv("BROWSER_PATH")
    if not any(map(html.shutil.which, html.BROWSERS)):
        pytest.skip("no Chromium on this machine")
    figure = Figure(
        name="../f",
        title="A & <b>",
        caption="w",
        data=[{"type": "scatter", "y": [1, 2]}],
        height=300,
    )
    document = Document(
        title="T",
        brief=(),
        verdict="V",
        weight="",
        runs=[],
        sections=[Section(name="s", title="S", sentences=[], figures=[figure])],
    )
    (path,) = html.render_images(document, folder / "png")
    start = path.read_bytes()[:24]
    assert path == folder / "png" / "collbench-s-.._f.png" and start[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", start[16:]) == (2000, 660)
    for ending, start in {"svg": b"<svg", "pdf": b"%PDF"}.items():
        (path,) = html.render_images(document, folder / "vectors", ending)
        assert path.name == f"collbench-s-.._f.{ending}" and path.read_bytes().startswith(start)
    (folder / "file").write_text("")
    with pytest.raises(CannotRun, match="cannot write"):
        html.render_images(document, folder / "file" / "png")
    monkeypatch.setenv("BROWSER_PATH", "/bin/true")
    with pytest.raises(CannotRun, match="/bin/true drew no images"):
        html.render_images(document, folder / "png")


def test_a_format_of_images_needs_a_folder(run: Path, folder: Path) -> None:
    assert "--image-format is given without --png" in refused(UsageError, "--image-format", "svg")


def test_a_format_of_images_is_a_known_one(run: Path, folder: Path) -> None:
    assert "--image-format" in refused(UsageError, "--png", "figures", "--image-format", "gif")


def test_images_need_kaleido(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = Document(title="T", brief=(), verdict="V", weight="", runs=[], sections=[])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRun, match="images need kaleido") as told:
        html.render_images(document, folder)
    assert told.value.hint == "pip install 'collbench[png]'"


def test_images_need_a_browser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for kaleido will do: the browser is looked for before it is used."""
    document = Document(title="T", brief=(), verdict="V", weight="", runs=[], sections=[])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "kaleido", ModuleType("kaleido"))
    monkeypatch.setattr(html, "BROWSERS", ("no-such-browser",))
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    with pytest.raises(CannotRun, match="none was found"):
        html.render_images(document, folder)
    assert "BROWSER_PATH" not in os.environ


def test_a_strangers_library_is_not_overwritten(run: Path, folder: Path) -> None:
    (folder / "plotly.min.js").write_text("mine")
    assert "plotly.min.js exists and was not written" in refused(
        UsageError, "-o", "a.html", "--plotlyjs", "directory"
    )
    assert (folder / "plotly.min.js").read_text() == "mine" and not (folder / "a.html").exists()
    # of another version: replaced
    (folder / "plotly.min.js").write_text("/**\n* plotly.js v1.0.0\n*/")
    for _ in range(2):
        assert invoke("report", "-o", "a.html", "--plotlyjs", "directory").exit_code == 0
    assert (folder / "plotly.min.js").read_text(encoding="utf-8") == html.load_plotly()


def test_figures_of_one_name_have_a_file_each() -> None:
    figures = [Figure(name=name, title="t", caption="", data=[]) for name in ("f", "g", "f", "f")]
    section = Section(name="s", title="S", sentences=[], figures=figures)
    assert html._name_images([(section, figure) for figure in figures], ".png") == [
        "collbench-s-f.png",
        "collbench-s-g.png",
        "collbench-s-f-2.png",
        "collbench-s-f-3.png",
    ]
