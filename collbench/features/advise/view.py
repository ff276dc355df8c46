"""Advice as a document: what is faster, how to use it, what stays and why."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.core.errors import Exit
from collbench.core.text import (
    clear_unknown,
    format_count,
    format_duration,
    format_size,
    plain_line,
)
from collbench.features.advise.crossings import describe_crossing
from collbench.features.advise.map import (
    describe_series,
    draw_maps,
    select_rivals,
)
from collbench.features.advise.types import (
    Advice,
    Advised,
    Crossing,
    Gain,
    Unadvised,
    describe_gain,
)
from collbench.records.choice import describe_choice
from collbench.show.document import (
    Block,
    Cell,
    CodeBlock,
    Column,
    Comment,
    Document,
    Line,
    Section,
    Table,
    Tone,
    code_text,
    make_columns,
    tone_text,
)

SCHEMA = 1  # of the JSON

NAMED = 4  # rows that the answer names

ROWS = (
    *make_columns(("collective", "ranks", "sizes", "setting", "time saved", "launches"), "lrllrr"),
    Column("default ran", "left", 3),
    Column("setting ran", "left", 2),
    Column("equally fast", "wrap", 1),
)

STAYS = make_columns(("collective", "sizes", "why", "setting"), "llww")

GAINS = make_columns(
    (
        *("collective", "ranks", "size", "setting", "time saved", "95 %", "p", "launches"),
        *("default takes", "setting takes"),
    ),
    "lrrlrlrrrr",
)


class Written(NamedTuple):
    """The file of an advice: its kind and text, the variables by which it is read, and where it
    lies; None where it was not written. ``refusal`` is why there is none, if so."""

    key: str
    title: str
    text: str
    use: dict[str, str]
    path: Path | None = None
    refusal: str = ""
    suffix: str = ""


class Extras(NamedTuple):
    """What else there is to say: the library in words; of a verification, what was removed, why it
    decided nothing, if so, and with which setting data were wrong; sentences on what the advice is
    worth; the machine and begin of each run by its id."""

    library: str
    removed: tuple[str, ...] = ()
    worth: tuple[str, ...] = ()
    undecided: str = ""
    wrong: str = ""
    machines: Mapping[str, str] = {}


def find_exit(advised: Advised) -> Exit:
    """0 where anything was decided, else 3."""
    if advised.is_undecided:
        return Exit.NO_VERDICT
    decided = advised.rows or any(cell.decided for cell in advised.unadvised)
    return Exit.OK if decided else Exit.NO_VERDICT


def describe_answer(advised: Advised, library: str) -> str:
    """The answer in one sentence."""
    if find_exit(advised):
        tested = [cell for cell in advised.unadvised if cell.best] or advised.unadvised
        reasons = Counter(_kind_of(cell) for cell in tested)
        why = reasons.most_common(1)[0][0] if reasons else "nothing was measured"
        return plain_line(f"nothing could be decided: {why}")
    decided = sum(cell.decided for cell in advised.unadvised)
    open_ = len(advised.unadvised) - decided
    if not advised.rows:
        decided_sizes = f"{format_count(decided, 'size')} decided"
        more = f", {open_:,} not" if open_ else ""
        what = "nothing that is known to keep the order of summation is surely faster"
        what = what if advised.is_same_order else "nothing is surely faster"
        return plain_line(f"{what} than {library}'s own choice: {decided_sizes}{more}")
    sizes = sum(len(row.gains) for row in advised.rows)
    of = sizes + len(advised.unadvised)
    names = {(row.series.collective, row.name) for row in advised.rows}
    are = f"{format_count(len(names), 'setting')} {'is' if len(names) == 1 else 'are'}"
    return plain_line(
        f"{are} surely faster than {library}'s own choice, at {sizes:,} of"
        f" {format_count(of, 'measured size')}"
    )


def describe_row(row: Advice) -> str:
    """A row in one sentence: all_reduce on 2 ranks, 64 KiB to 1.4 MiB: recursive_doubling takes
    14% less time [9%, 18%]."""
    gain = min(row.gains, key=lambda gain: gain.gain)
    verified = f", verified {row.verified}" if row.verified else ""
    remark = f" ({row.remark})" if row.remark else ""
    return plain_line(
        f"{describe_series(row.series)}, {format_sizes(row.low, row.high)}: {row.name} takes"
        f" {describe_gain(gain)}{verified}{remark}"
    )


def format_sizes(low: int, high: int) -> str:
    """A range of sizes in words, with three significant digits: 1 to 256 KiB."""
    lo, hi = _round_size(low), _round_size(high)
    if lo == hi:
        return lo
    number, _, unit = lo.partition(" ")
    return f"{number} to {hi}" if hi.endswith(f" {unit}") else f"{lo} to {hi}"


def _round_size(size: int) -> str:
    number, _, unit = format_size(size).partition(" ")
    return f"{float(f'{float(number):.3g}'):g} {unit}"


def make_document(advised: Advised, written: Written, extras: Extras) -> Document:
    """The advice for every medium."""
    answer = describe_answer(advised, extras.library)
    code = find_exit(advised)
    if extras.undecided:
        answer, code = plain_line(extras.undecided), Exit.NO_VERDICT
    if extras.wrong:
        answer, code = plain_line(f"wrong data: {extras.wrong}"), Exit.WRONG_DATA
    blocks = list(_list_blocks(advised, written, extras, answer))
    return Document(
        title=f"Advice for {plain_line(advised.version or extras.library)}",
        verdict=answer,
        weight="bad" if extras.wrong else "notice" if code else "good" if advised.rows else "",
        runs=[
            *(_describe_run(run, extras.machines.get(run, "")) for run in advised.runs),
            f"{_describe_terms(advised)}",
        ],
        sections=list(_list_sections(advised, written, extras, answer)),
        brief=blocks,
        comment=Comment(blocks),
        values=plain_values(advised, written, extras, code) | {"answer": answer},
    )


def _describe_run(run: str, machine: str) -> str:
    return plain_line(f"run {run}: {machine}" if machine else f"run {run}")


def _describe_terms(advised: Advised) -> str:
    least, most = (f"{100 * tau:.2g}%" for tau in advised.taus)
    tau = least if least == most else f"{least} to {most}, by row"
    order = "; only settings that keep the order of summation" if advised.is_same_order else ""
    counts = f"; smallest gain that counts: {tau}{order}" if advised.taus[1] else ""
    return f"measured until {advised.day}{counts}"


def _list_blocks(
    advised: Advised, written: Written, extras: Extras, answer: str
) -> Iterator[Block]:
    tone: Tone = "bad" if extras.wrong else "good" if advised.rows else ""
    yield tone_text(answer, tone, strong=True)
    yield from (f"  {describe_row(row)}" for row in advised.rows[:NAMED])
    if len(advised.rows) > NAMED:
        yield f"  … and {format_count(len(advised.rows) - NAMED, 'row')} more below"
    yield from (f"  {line}" for line in extras.worth)
    yield ""
    yield from _list_uses(advised, written)
    yield from map(plain_line, _list_remarks(advised, extras))
    yield _describe_terms(advised)
    if advised.rows:
        yield from ("", _make_rows(advised))
    if advised.unadvised:
        yield from ("", _make_stays(advised))
    if advised.rows and written.text and not written.path:
        yield ""
        yield tone_text(f"{written.title}:", strong=True)
        yield CodeBlock(written.text.rstrip("\n"))


def _list_remarks(advised: Advised, extras: Extras) -> Iterator[str]:
    """What to know of the advice as a whole: what was checked, what went, and notes."""
    yield from filter(None, [advised.checked])
    yield from (*extras.removed, *advised.notes)
    if advised.rows and not advised.is_same_order and any(map(_may_round, advised.rows)):
        yield (
            "sums may be added in another order, so that results may differ in the last bits"
            " (--same-order keeps them)"
        )


def _may_round(row: Advice) -> bool:
    """Whether results may depend on the order in which this row's setting adds."""
    series, ran, before = row.series, row.ran, row.default_ran
    is_same = bool(ran and before and ran.adds_as and ran.adds_as == before.adds_as)
    return COLLECTIVES[series.collective].reduces and series.n > 2 and not is_same


def _list_uses(advised: Advised, written: Written) -> Iterator[Cell]:
    """How the file is used."""
    if written.refusal:
        yield plain_line(f"no file: {written.refusal}")
        return
    if written.path:
        rows = format_count(len(advised.rows), "row")
        size = rows if advised.rows else "no row: the file changes nothing"
        yield "wrote " + code_text(plain_line(str(written.path))) + f", {written.title}, {size}"
    elif advised.rows:
        yield "write it: " + code_text(f"--write advice{written.suffix}")
    if not advised.rows or not written.path:
        return
    exports = re.findall(r"^export (\w+)=", written.text, re.MULTILINE)
    is_script = {*written.use} <= {*exports}
    if exports and is_script:
        yield "use it:   " + code_text(plain_line(f"source {shlex.quote(str(written.path))}"))
    else:
        for name, value in written.use.items():
            yield "use it:   " + code_text(plain_line(f"export {name}={shlex.quote(value)}"))
    if names := exports if is_script else [*written.use]:
        yield "undo it:  " + code_text(f"unset {' '.join(names)}")


def _make_rows(advised: Advised) -> Table:
    lines = [
        Line(
            (
                row.series.collective,
                f"{row.series.n:,}",
                format_sizes(row.low, row.high),
                plain_line(row.name),
                _format_gain(min(row.gains, key=lambda gain: gain.gain)),
                f"{min(gain.launches for gain in row.gains):,}",
                plain_line(describe_choice(row.default_ran)),
                plain_line(describe_choice(row.ran)),
                _describe_crossings(row.below, row.above),
            ),
            {"collective": row.series.collective},
            "good",
        )
        for row in advised.rows
    ]
    again = (
        ""
        if all(row.verified for row in advised.rows)
        else " A row that is not verified is a proposal: the best of several settings looks"
        " faster than it is, and so may one judged again after runs were added. --verify"
        " measures it again."
    )
    return Table(
        name="advice",
        title="Advised",
        columns=ROWS,
        lines=lines,
        note="time saved: of the default's, the least of the measured sizes, with its 95 %"
        f" interval.{again}",
        carded=True,
    ).drop_empty_columns()


def _format_gain(gain: Gain) -> str:
    return f"{gain.gain:.0%} [{gain.lo:.0%}, {gain.hi:.0%}]"


def _describe_crossings(below: Crossing | None, above: Crossing | None) -> str:
    return "; ".join(describe_crossing(crossing) for crossing in (below, above) if crossing)


class Stay(NamedTuple):
    """Neighbouring sizes of a series in which the library's choice stays for one reason."""

    cells: tuple[Unadvised, ...]
    kind: str

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        first, last = self.cells[0].cell.nbytes, self.cells[-1].cell.nbytes
        return format_sizes(first, last)

    @property
    def most(self) -> Unadvised:
        """The cell where a setting gains most."""
        return max(self.cells, key=lambda cell: cell.best.gain if cell.best else -math.inf)

    @property
    def why(self) -> str:
        """The reason, in full as it is of the cell where a setting gains most."""
        return self.most.why

    @property
    def best(self) -> str:
        """The setting that gains most, with its gain."""
        cell = self.most
        if cell.best is None:
            return ""
        where = f" at {_round_size(cell.cell.nbytes)}" if len(self.cells) > 1 else ""
        return f"{cell.best_name}: {describe_gain(cell.best)}{where}"


def _kind_of(cell: Unadvised) -> str:
    return cell.why.partition(": ")[0]


def list_stays(advised: Advised) -> list[Stay]:
    """Cells that are not advised, neighbours of one reason together."""
    covered = {(row.series, gain.nbytes) for row in advised.rows for gain in row.gains}
    cells: dict[Any, Unadvised | None] = {each.cell: each for each in advised.unadvised}
    places = sorted([*cells, *covered])
    stays = []
    keyed = [(place, cells.get(place)) for place in places]
    for (_, kind), group in groupby(
        keyed, key=lambda item: (item[0][0], _kind_of(item[1]) if item[1] else "")
    ):
        members = tuple(each for _, each in group if each)
        if members:
            stays.append(Stay(members, kind))
    return stays


def _make_stays(advised: Advised) -> Table:
    lines = [
        Line(
            tuple(
                map(
                    plain_line,
                    (describe_series(stay.cells[0].cell.series), stay.sizes, stay.why, stay.best),
                )
            ),
            {"collective": stay.cells[0].cell.series.collective},
        )
        for stay in list_stays(advised)
    ]
    return Table(
        name="stays",
        title="Left to the library",
        columns=STAYS,
        lines=lines,
        note="setting: the one that seems to save most, and what it saves.",
        carded=True,
    ).drop_empty_columns()


def _list_sections(
    advised: Advised, written: Written, extras: Extras, answer: str
) -> Iterator[Section]:
    sentences: list[Cell] = [f"{describe_row(row)}." for row in advised.rows]
    if not sentences:
        sentences = [f"{answer}."]
    sentences += _list_uses(advised, written)
    sentences += [f"{plain_line(line)}." for line in _list_remarks(advised, extras)]
    tables = [_make_rows(advised)] if advised.rows else []
    yield Section(name="advice", title="Advice", sentences=sentences, tables=tables)
    if extras.worth:
        yield Section(name="worth", title="What it is worth", sentences=[*extras.worth])
    if figures := draw_maps(advised):
        yield Section(
            name="map",
            title="Settings by size",
            sentences=["Blue is faster than the library's own choice, orange slower."],
            figures=figures,
            tables=[_make_gains(advised)],
        )
    if advised.unadvised:
        table = _make_stays(advised)
        yield Section(
            name="stays",
            title="Left to the library",
            sentences=["Here the library goes on to choose for itself, for this reason."],
            tables=[table],
        )
    if written.text:
        yield Section(
            name="file",
            title="The file",
            sentences=[f"{plain_line(written.title)}."],
            tables=[
                Table(
                    name="text",
                    title="Its text",
                    columns=make_columns(("text",), "l"),
                    lines=[Line((plain_line(line),)) for line in written.text.splitlines()],
                    folded=True,
                )
            ],
        )


def _make_gains(advised: Advised) -> Table:
    """All that was tested."""
    lines = [
        Line(
            (
                cell.series.collective,
                f"{cell.series.n:,}",
                format_size(cell.nbytes),
                plain_line(name),
                f"{gain.gain:.1%}",
                f"{gain.lo:.1%} to {gain.hi:.1%}",
                f"{gain.p:.2g}",
                f"{gain.launches:,}",
                format_duration(gain.default),
                format_duration(gain.setting),
            ),
            {"collective": cell.series.collective},
        )
        for cell, gains in sorted(select_rivals(advised).items())
        for name, gain in sorted(gains.items(), key=lambda item: -item[1].gain)
    ]
    note = (
        "time saved: below 0 the setting takes more. p is adjusted by Holm over all of these. Where"
        " several forms were measured: the least."
    )
    return Table(
        name="gains", title="All gains", columns=GAINS, lines=lines, note=note, folded=True
    )


def plain_values(advised: Advised, written: Written, extras: Extras, code: Exit) -> dict[str, Any]:
    """The advice for programs: times in ns, sizes in bytes, gains as shares of time."""
    return {
        "schema": SCHEMA,
        "exit": code,
        "answer": describe_answer(advised, extras.library),
        "checked": advised.checked,
        "library": advised.library,
        "version": advised.version,
        "runs": advised.runs,
        "day": advised.day,
        "taus": advised.taus,
        "same_order": advised.is_same_order,
        "backend": advised.backend,
        "device": advised.device,
        "notes": advised.notes,
        "removed": extras.removed,
        "worth": extras.worth,
        "file": {
            "format": written.key,
            "text": written.text,
            "use": written.use,
            "path": str(written.path or ""),
            "refusal": written.refusal,
        },
        "rows": [_plain_row(row) for row in advised.rows],
        "unadvised": [
            {
                **_plain_series(each.cell.series),
                "nbytes": each.cell.nbytes,
                "why": each.why,
                "decided": each.decided,
                "best": each.best_name,
                "gain": _plain_gain(each.best) if each.best else None,
            }
            for each in advised.unadvised
        ],
        "rivals": [
            {
                **_plain_series(cell.series),
                "setting": name,
                **_plain_gain(gain),
            }
            for cell, gains in select_rivals(advised).items()
            for name, gain in gains.items()
        ],
    }


def _plain_series(series: Any) -> dict[str, Any]:
    return {"collective": series.collective, "ranks": series.n, "hosts": series.nodes}


def _plain_gain(gain: Gain) -> dict[str, Any]:
    return clear_unknown(msgspec.structs.asdict(gain))


def _plain_row(row: Advice) -> dict[str, Any]:
    gain, lo, hi = row.gain
    return {
        **_plain_series(row.series),
        "low": row.low,
        "high": row.high,
        "setting": row.name,
        "backend": row.setting.backend,
        "algorithm": row.setting.algorithm,
        "env": dict(row.setting.env),
        "gain": gain,
        "lo": lo,
        "hi": hi,
        "gains": [_plain_gain(each) for each in row.gains],
        "below": row.below,
        "above": row.above,
        "default_ran": describe_choice(row.default_ran),
        "ran": describe_choice(row.ran),
        "verified": row.verified,
        "remark": row.remark,
    }
