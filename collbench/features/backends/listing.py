"""Backends as they say what they are."""

from __future__ import annotations

from collections.abc import Callable

from collbench.core.backend_info import BackendInfo, backend_info, backend_names, find_origin
from collbench.core.errors import CollbenchError
from collbench.show.document import Column, Document, Line, Table, tone_text

OWN = "collbench"
COLUMNS = (
    Column("name", "left"),
    Column("here", "left"),
    Column("from", "left"),
    Column("what it is", "wrap"),
)


def _describe_here(info: BackendInfo) -> str:
    """Whether ranks can open it on this machine, as far as that is found without loading it."""
    return info.here() or "yes"


def _list_rows() -> list[dict[str, str]]:
    rows = []
    for name in backend_names():
        try:
            info = backend_info(name)
            row = {"what it is": info.about, "here": _describe_here(info)}
        except CollbenchError as e:
            row = {"what it is": "", "here": f"refused: {e.message}"}
        rows.append({"name": name, "from": find_origin(name) or OWN, **row})
    return rows


def make_list() -> Document:
    """All backends, a row each."""
    rows = _list_rows()
    lines = []
    for row in rows:
        is_here = row["here"] == "yes"
        state = tone_text("yes", "good") if is_here else tone_text("no", "quiet")
        about = row["what it is"] if is_here else f"{row['what it is']}: {row['here']}"
        lines.append(Line([row["name"], state, row["from"], about.removeprefix(": ")]))
    table = Table(columns=COLUMNS, lines=lines)
    return Document(title="Backends", brief=[table], values={"backends": rows})


SAID: tuple[tuple[str, Callable[[BackendInfo], str]], ...] = (
    ("what it is", lambda info: info.about),
    ("here", _describe_here),
    ("versions recorded", lambda info: ", ".join(info.packages) or "those of torch and numpy"),
    ("settings it reads", lambda info: ", ".join(f"{word}…" for word in info.settings) or "none"),
    ("where ranks work", lambda info: {"": "CPUs", "each": "a GPU each"}.get(info.gpu, "GPUs")),
    ("threads of a rank", lambda info: str(info.threads) if info.threads else "not known"),
    ("bound to cores", lambda info: "yes, if there are enough" if info.binds else "no"),
    ("own algorithms", lambda info: "yes" if info.native else "no: --algo names one"),
    ("messages", lambda info: "yes" if info.messages else "no: none for pairs and --algo"),
    ("groups", lambda info: info.groups),
    ("worlds in a process", lambda info: info.worlds),
    ("in the background", lambda info: info.background),
    (
        "collectives it lacks",
        lambda info: ", ".join(info.lacks) or "none listed; it may refuse a case",
    ),
    ("results", lambda info: "in memory of its own" if info.owns_results else "in the buffers"),
    ("overhead of a call", lambda info: info.call_path or "none stated"),
    (
        "how ranks start",
        lambda info: {"fork": "forked", "none": "not at all: times are predicted"}.get(
            info.launch, "mpirun"
        ),
    ),
)


def make_description(name: str) -> Document:
    """What one backend says of itself."""
    info = backend_info(name)
    rows = {"name": name, "from": find_origin(name) or OWN}
    rows |= {label: say(info) for label, say in SAID}
    lines = [Line([label, text]) for label, text in rows.items()]
    columns = (Column("", "left"), Column(name, "wrap"))
    table = Table(columns=columns, lines=lines, overflow="stack")
    return Document(title=f"backend {name}", brief=[table], values=rows)
