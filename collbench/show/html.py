"""A Document as one page that needs no network, and its figures as images."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from collbench.core import files
from collbench.core.errors import CannotRun, first_line
from collbench.core.text import format_count
from collbench.core.version import __version__
from collbench.show.document import FILTERS, MARKER, Document, Figure, Section
from collbench.show.markdown import MARKS
from collbench.survive.encoding import encode_json

if TYPE_CHECKING:
    import jinja2

Plotlyjs = Literal["inline", "cdn", "directory"]

LIBRARY = "plotly.min.js"  # where `directory` keeps it, beside the page

BANNER = "/**\n* plotly.js v"  # how it begins

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

COLOURS = {  # on light paper, on dark; text has a contrast of at least 4.5 on both
    "paper": ("#ffffff", "#14181e"),
    "ink": ("#1c2430", "#e6eaf0"),
    "soft": ("#5b6675", "#a3adba"),
    "line": ("#d5dbe3", "#39424e"),
    "faint": ("#eef1f5", "#20262e"),
    "accent": ("#0b63b0", "#6cb2f2"),
    "good": ("#1a7f37", "#4cc38a"),
    "bad": ("#c62828", "#ff7b72"),
    "notice": ("#9a5b00", "#e3a83b"),
}

LEGEND = 150  # letters in the legend of a figure that needs no more than half of the page

IMAGE_FORMATS = ("png", "svg", "pdf")

WIDTH, SCALE = 1000, 2  # of images: pixels as laid out, and pixels drawn for each


def render_page(document: Document, plotlyjs: Plotlyjs = "inline") -> str:
    """The page's text. With ``directory`` the page loads LIBRARY from its own folder, where the
    caller must write it (``load_plotly``)."""
    from markupsafe import Markup

    script, style = (_read_asset(f"report.{kind}") for kind in ("js", "css"))
    values = {name: values for name, values in _filter_values(document).items() if len(values) > 1}
    figures = [
        {"data": figure.data, "layout": figure.layout, "height": figure.height}
        for section in document.sections
        for figure in section.figures
    ]
    tag, sources = _library_tag(plotlyjs) if figures else ("", "")
    content = {
        "figures": figures,
        "themes": {mode: make_theme(mode) for mode in ("light", "dark")},
        "filters": [*values],
    }
    return _load_template().render(
        document=document,
        version=__version__,
        colours=COLOURS,
        marks=MARKS,
        names=FILTERS,
        filters=values,
        wide=_is_wide,
        counted=format_count,
        policy=(
            "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
            f"style-src 'unsafe-inline'; script-src {_script_digest(script)} {sources}"
        ),
        content=Markup(_script_json(content)),
        raw=_pack_rows(document.data),
        marker=Markup(MARKER),
        style=Markup(style),
        script=Markup(script),
        library=Markup(tag),
    )


def _load_template() -> jinja2.Template:
    import jinja2

    loader = jinja2.PackageLoader("collbench.show")
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return templates.get_template("report.html.j2")


def load_plotly() -> str:
    """plotly.js, minified."""
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

    return str(get_plotlyjs())


def make_theme(mode: str) -> dict[str, Any]:
    """A plotly template in the page's colours, for everything a figure does not set itself."""
    colour = {name: pair[mode == "dark"] for name, pair in COLOURS.items()}
    axis = {
        "gridcolor": colour["faint"],
        "linecolor": colour["line"],
        "zerolinecolor": colour["line"],
        "ticks": "outside",
        "tickcolor": colour["line"],
        "automargin": True,
        "title": {"standoff": 10},
        "exponentformat": "none",
    }
    layout = {
        "paper_bgcolor": colour["paper"],
        "plot_bgcolor": colour["paper"],
        "xaxis": axis,
        "yaxis": axis,
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": colour["ink"]},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": colour["faint"],
            "bordercolor": colour["line"],
            "align": "left",
            "namelength": -1,
            "font": {"color": colour["ink"]},
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
        },
        "modebar": {
            "color": colour["soft"],
            "activecolor": colour["ink"],
            "bgcolor": "rgba(0,0,0,0)",
        },
    }
    return {"layout": layout}


def find_browser() -> str:
    """The Chromium that images are drawn with. Raises CannotRun without it or kaleido."""
    if importlib.util.find_spec("kaleido") is None:
        raise CannotRun("images need kaleido", "pip install 'collbench[png]'")
    browser = os.environ.get("BROWSER_PATH") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if browser is None or shutil.which(browser) is None:
        problem = f"there is none at BROWSER_PATH={browser}" if browser else "none was found"
        raise CannotRun(
            f"images need a Chromium or Chrome, and {problem}",
            "install one, or set BROWSER_PATH to it",
        )
    return browser


def render_images(document: Document, folder: Path, image_format: str = "png") -> list[Path]:
    """Every figure as an image of twice WIDTH pixels, if it is of pixels, on light paper. Needs
    kaleido and a Chromium; raises CannotRun."""
    browser = os.environ["BROWSER_PATH"] = find_browser()
    import kaleido  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CannotRun(
            f"cannot write {folder}: {e.strerror}", "choose another folder with --png"
        ) from e
    drawn = [(section, figure) for section in document.sections for figure in section.figures]
    names = _name_images(drawn, f".{image_format}")
    jobs = [
        _image_layout(figure, folder / name) for (_, figure), name in zip(drawn, names, strict=True)
    ]
    # plotly.js comes with plotly, MathJax would be fetched
    generator = kaleido.PageGenerator(mathjax=False)
    try:
        errors = (
            kaleido.write_fig_from_object_sync(jobs, kopts={"page_generator": generator})
            if jobs
            else ()
        )
    except (OSError, RuntimeError, TimeoutError) as e:
        errors = (e,)
    if errors:
        raise CannotRun(
            f"{browser} drew no images: {first_line(errors[0])}",
            "the page itself needs no browser here",
        )
    return [figure["path"] for figure in jobs]


def _name_images(drawn: Sequence[tuple[Section, Figure]], ending: str) -> list[str]:
    """The file of each figure; where figures of a section share a name, later ones are numbered."""
    names: list[str] = []
    for section, figure in drawn:
        stem = re.sub(r"[^\w.-]", "_", f"collbench-{section.name}-{figure.name}")
        names.append(next(name for name in files.number_names(stem, ending) if name not in names))
    return names


def _image_layout(figure: Figure, path: Path) -> dict[str, Any]:
    title = {
        "text": html.escape(figure.title, quote=False),
        "x": 0,
        "xref": "paper",
        "font": {"size": 16},
    }
    defaults: dict[str, Any] = {
        "title": title,
        "margin": {"l": 24, "r": 24, "t": 64, "b": 16},
        **figure.layout,
    }
    return {
        "fig": {"data": figure.data, "layout": {**defaults, "template": make_theme("light")}},
        "path": path,
        "opts": {
            "format": path.suffix.removeprefix("."),
            "width": WIDTH,
            "height": figure.height + 30,
            "scale": SCALE,
        },
    }


def _read_asset(name: str) -> str:
    return resources.files("collbench.show").joinpath("templates", name).read_text(encoding="utf-8")


def _library_tag(plotlyjs: Plotlyjs) -> tuple[str, str]:
    """The element that brings plotly.js, and what the page's policy must allow for it."""
    if plotlyjs == "directory":
        return f'<script src="{LIBRARY}"></script>', "'self' file:"
    text = load_plotly()
    if plotlyjs == "inline":
        return f"<script>{text}</script>", _script_digest(text)
    from plotly.offline import get_plotlyjs_version

    address = f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"
    integrity = _script_digest(text).strip("'")
    return (
        f'<script src="{address}" integrity="{integrity}" crossorigin="anonymous"></script>',
        address,
    )


def _script_digest(script: str) -> str:
    """A script's hash in the form that a Content-Security-Policy takes."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _filter_values(document: Document) -> dict[str, list[str]]:
    metas = [
        line.meta
        for section in document.sections
        for table in section.tables
        for line in table.lines
    ]
    metas += [
        trace.get("meta", {})
        for s in document.sections
        for figure in s.figures
        for trace in figure.data
    ]
    return {
        name: sorted(
            {meta[name] for meta in metas if name in meta},
            key=lambda v: (int(v) if v.isdecimal() else 0, v),
        )
        for name in FILTERS
    }


def _is_wide(figure: Figure) -> bool:
    """Whether it needs the page's width; others stand in pairs where there is room."""
    letters = sum(len(str(trace.get("name", ""))) for trace in figure.data)
    return letters > LEGEND or any(trace.get("type") == "heatmap" for trace in figure.data)


def _script_json(value: Any) -> str:
    """``value`` as JSON that may stand inside a script element. msgspec writes infinities and NaN
    as null."""
    text = encode_json(value).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _pack_rows(rows: list[dict[str, Any]]) -> str:
    """Rows as base64 of compressed JSON, {name: values}: names stand once. Derived figures keep 6
    digits."""
    if not rows:
        return ""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [_shorten_number(row.get(name)) for row in rows] for name in names}
    return base64.b64encode(gzip.compress(encode_json(columns), 6, mtime=0)).decode()


def _shorten_number(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
