"""An algorithm drawn in space and time: ranks side by side, steps below each other, and what every
cell holds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from collbench.core.errors import UsageError
from collbench.core.schedule import (
    Ints,
    Moves,
    Schedule,
    expect_outputs,
    join_neighbours,
    run_schedule,
)
from collbench.show.document import Block, Column, Document, Line, Table, Tone, Words, tone_text

Number = int | float

CELLS_MAX = 1 << 14  # in all rows together; nobody reads more

MARGIN, NARROW = (
    9,
    10,
)  # columns of the terminal: for "step 12", and the least that a rank needs beside others

# cells of a row that are all written out; of longer rows the first, the last and what changed
ALL_SHOWN = 24

FEW_SHOWN = 8  # the same where many ranks have a line each

NOTHING, PARTED = Words(()), tone_text("|", "quiet")  # no words; the sign between two buffers


class Cell(NamedTuple):
    """What a cell shows: its text, its numbers (None: nothing there yet), how much of all the
    contributions promised at this place are in it (1: complete; 0: none, or something else is
    there), and whether the step wrote it.
    """

    text: str
    numbers: tuple[Number, ...] | None
    share: float
    changed: bool

    @property
    def marked(self) -> str:
        """The text, with a star where it is a whole contribution."""
        return self.text + "*" * (self.share == 1)


class Arrow(NamedTuple):
    """All that one rank sends another in a step: "2" is cell 2, copied; "+2" is added; "2>6" goes
    into cell 6."""

    src: int
    dst: int
    label: str


class Frame(NamedTuple):
    """The state after ``step`` steps, ``rows[rank][cell]``, and the moves that led to it (none
    before the first)."""

    step: int
    moves: Moves | None
    rows: list[list[Cell]]

    @property
    def label(self) -> str:
        """The name of the step, or of the moment after it."""
        return (
            f"step {self.step}"
            if self.moves is not None
            else f"after {self.step}"
            if self.step
            else "start"
        )

    def arrows(self) -> list[Arrow]:
        """An arrow for each pair of ranks that exchange cells; cells that follow each other are
        one."""
        if self.moves is None:
            return []
        runs = zip(*(field.tolist() for field in join_neighbours(self.moves)), strict=True)
        by_pair = itertools.groupby(runs, lambda row: row[:2])
        return [
            Arrow(src, dst, ",".join(_format_cells(*row[2:]) for row in rows))
            for (src, dst), rows in by_pair
        ]

    def note(self) -> str:
        """A sentence on what stands out about the state."""
        done = [sum(cell.share == 1 for cell in column) for column in zip(*self.rows, strict=True)]
        if set(done) == {len(self.rows)}:
            return "every rank has everything"
        return "each cell is complete on exactly one rank" if set(done) == {1} else ""


class _Held(NamedTuple):
    """A cell's numbers, and the symbol ``schedule.expect_outputs`` would give it: (input cell,
    count per source)."""

    numbers: tuple[Number, ...]
    symbol: Ints


def _format_cells(chunk: int, into: int, length: int, reduce: bool) -> str:
    def span(first: int) -> str:
        return f"{first}-{first + length - 1}" if length > 1 else str(first)

    return "+" * reduce + (span(chunk) if chunk == into else f"{span(chunk)}>{span(into)}")


def _add_held(a: _Held | None, b: _Held | None) -> _Held | None:
    if a is None or b is None:  # a wrong algorithm's
        return a or b
    both = a.symbol + b.symbol
    both[0] = a.symbol[0]
    return _Held(tuple(x + y for x, y in zip(a.numbers, b.numbers, strict=True)), both)


def parse_values(text: str) -> list[list[Number]]:
    """``2,4,6;1,2,3``: the numbers each rank starts with; nothing between semicolons stands for
    zeros."""

    def number(word: str) -> Number:
        try:
            return int(word) if re.fullmatch(r"\s*[+-]?\d+\s*", word) else float(word)
        except ValueError:
            raise UsageError(
                f"--values: '{word.strip()}' is no number", "as in 2,4,6;1,2,3;4,8,12"
            ) from None

    lists = [
        [number(word) for word in part.split(",")] if part.strip() else []
        for part in text.split(";")
    ]
    longest = max(map(len, lists))
    for rank, row in enumerate(lists):
        if row and len(row) != longest:
            raise UsageError(
                f"--values: rank {rank} has {len(row)} numbers, another {longest}",
                "give all ranks equally many",
            )
    return [row or [0] * longest for row in lists]


def example_values(schedule: Schedule) -> list[list[Number]]:
    """Rank r starts with 1 + 2r, 2 + 2r …; where ranks are sent different blocks, block j of rank r
    is made of 10r + j (100r + j for more than ten ranks), so that each shows where it comes from
    and goes."""
    n, row = schedule.n, schedule.row
    sent, received = row.counts(n, 1)
    count = max(schedule.cells, 1 if sent > 1 and received > 1 else 2)
    if sent > 1 and not row.reduces:
        tens = 10 ** len(str(n - 1))
        return [[tens * rank + j for j in range(n) for _ in range(count)] for rank in range(n)]
    return [[1 + 2 * rank + i for i in range(sent * count)] for rank in range(n)]


def refuse_too_large(schedule: Schedule) -> None:
    """Raises UsageError where there is too much to draw."""
    if schedule.n * schedule.width > CELLS_MAX:
        raise UsageError(
            f"{schedule.n} ranks of {schedule.width} cells are too many to draw",
            "take fewer ranks or segments",
        )


def make_frames(schedule: Schedule, values: Sequence[Sequence[Number]]) -> Iterator[Frame]:
    """The state before the first step and after each, sums of ``values``, which are one list per
    rank.

    A block of c numbers is cut as a real buffer is: cell i of k starts at number c * i // k, and
    may be empty. Raises UsageError where the numbers do not divide into blocks, or there is too
    much to draw.
    """
    refuse_too_large(schedule)
    n, cells = schedule.n, schedule.cells
    blocks = schedule.row.counts(n, 1)[0]
    count, rest = divmod(len(values[0]), blocks) if blocks else (0, 0)
    if rest or len(values) != n:
        raise UsageError(
            f"--values: {len(values)} lists of {len(values[0])} numbers do not fit {n} ranks of"
            f" {blocks} blocks",
            f"give one list per rank, its length a multiple of {max(blocks, 1)}",
        )
    bounds = [b * count + count * i // cells for b in range(blocks) for i in range(cells)] + [
        blocks * count
    ]
    ends = list(itertools.pairwise(bounds)) if blocks else [(0, 0)]
    inputs = [
        [
            _Held(tuple(values[rank][start:end]), np.array([i, *symbol]))
            for i, (start, end) in enumerate(ends)
        ]
        for rank, symbol in enumerate(np.eye(n, dtype=np.int64))
    ]
    expected, rows = (
        _expected_cells(schedule),
        [[Cell("", None, 0.0, True)] * schedule.width for _ in range(n)],
    )
    passing = itertools.chain[Moves | None]((None,), schedule.steps())
    for step, (state, moves) in enumerate(
        zip(run_schedule(schedule, inputs, _add_held), passing, strict=True)
    ):
        written = {(move.dst, move.into) for move in moves or ()}
        for rank, at in itertools.product(range(n), range(schedule.width)):
            if (rank, at) in written or not step:
                rows[rank][at] = _make_cell(schedule, state[rank, at], expected[rank][at], step > 0)
            elif rows[rank][at].changed:
                rows[rank][at] = rows[rank][at]._replace(changed=False)
        yield Frame(step, moves, [row.copy() for row in rows])


def _expected_cells(schedule: Schedule) -> list[list[Ints | None]]:
    """For each rank and cell what the operation promises there; where it promises nothing, a
    reduction is complete when every rank is in it (input cell -1: any), and all else is in passing
    (None)."""
    everything = np.array([-1] + [1] * schedule.n) if schedule.row.reduces else None
    expected = [[everything] * schedule.width for _ in range(schedule.n)]
    for rank, rows in enumerate(
        expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    ):
        for cell, symbol in zip(
            schedule.output_cells(rank), rows if rows is not None else (), strict=False
        ):
            expected[rank][cell] = symbol
    return expected


def _make_cell(
    schedule: Schedule, content: _Held | None, expected: Ints | None, changed: bool
) -> Cell:
    if content is None:
        return Cell("·", None, 0.0, changed)
    got = content.symbol if schedule.has_data else np.minimum(content.symbol, 1)
    share = 0.0
    if expected is not None and expected[0] in (-1, got[0]) and (got[1:] <= expected[1:]).all():
        share = float(got[1:].sum() / expected[1:].sum())
    text = ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in content.numbers) or "-"
    return Cell(
        text if schedule.has_data else f"{got[1:].sum()}/{schedule.n}",
        content.numbers,
        share,
        changed,
    )


def pack_lanes(arrows: Sequence[Arrow]) -> list[list[Arrow]]:
    """Arrows packed into lines in which none crosses another; short ones first, those within a rank
    left out."""
    packed: list[list[Arrow]] = []
    for arrow in sorted(
        (a for a in arrows if a.src != a.dst), key=lambda a: (abs(a.src - a.dst), a.src)
    ):
        low, high = sorted(arrow[:2])
        free = (
            lane for lane in packed if all(max(a[:2]) <= low or min(a[:2]) >= high for a in lane)
        )
        lane = next(free, None)
        if lane is None:
            packed.append(lane := [])
        lane.append(arrow)
    return packed


def describe_phases(schedule: Schedule, frames: Sequence[Frame]) -> str:
    """A sentence about the steps: those in a row that all add, or all copy, are a phase."""
    if not schedule.has_data:
        return ""
    phases: list[tuple[str, list[Frame]]] = []
    for frame in frames[1:]:
        adding = np.asarray(frame.moves.reduce if frame.moves else False)
        kind = "add" if adding.all() else "add and copy" if adding.any() else "copy"
        if phases and phases[-1][0] == kind:
            phases[-1][1].append(frame)
        else:
            phases.append((kind, [frame]))
    phrases = []
    for kind, members in phases:
        first, last = members[0].step, members[-1].step
        alone, verb = first == last, kind if first != last else kind.replace("add", "adds")
        steps = f"step {first}" if alone else f"steps {first} to {last}"
        verb = verb.replace("copy", "copies") if alone else verb
        note = members[-1].note()
        phrases.append(f"{steps} {verb}" + (f", then {note}" if note else ""))
    return "; ".join(phrases)


def make_document(
    schedule: Schedule,
    frames: Sequence[Frame],
    visible: Sequence[Frame],
    rank: int | None,
    width: int,
    about: Sequence[str] = (),
) -> Document:
    """The drawing of the ``visible`` frames and what its signs mean; the result of each rank, if
    the last of ``frames`` is among them; and sentences ``about`` the algorithm."""
    brief: list[Block] = [
        *draw_frames(schedule, visible, width, rank),
        *describe_signs(schedule, visible),
    ]
    if visible[-1].step == frames[-1].step:
        brief.append(in_words(find_outcome(schedule, frames[-1]), schedule.n))
    brief += ["", *about] if about else []
    return Document(title=f"{schedule.collective} {schedule.name}", brief=brief)


def draw_frames(
    schedule: Schedule, visible: Sequence[Frame], width: int, rank: int | None = None
) -> list[Block]:
    """Frames in ``width`` columns: ranks side by side, joined by arrows, where that fits; else, and
    for a single ``rank``, a table with a line for each rank that takes part in a step."""
    share = (width - MARGIN) // schedule.n
    widest = max(len(cell.marked) for frame in visible for row in frame.rows for cell in row)
    if rank is None and share >= max(NARROW, widest + 2):
        return [line for frame in visible for line in _draw_columns(schedule, frame, share)]
    lines = [line for frame in visible for line in _make_lines(schedule, frame, rank)]
    heads = ("step", "rank", "gets", "sends", "holds")
    texts = zip(heads[:4], *(map(str, line.cells[:4]) for line in lines), strict=True)
    needed = [max(map(len, "\n".join(column).split("\n"))) for column in texts]
    # for what is sent; the same at least for what is held
    moved = min(width // 4, (width - 20) // 3)
    room = (8, 4, moved, moved)
    widths = (*map(min, needed, room), 0)
    columns = [Column(head, "wrap", width=fixed) for head, fixed in zip(heads, widths, strict=True)]
    return [Table(columns=columns, lines=lines), ""]


def _make_lines(schedule: Schedule, frame: Frame, rank: int | None) -> list[Line]:
    """A frame in a table: what each rank gets, sends and holds."""
    arrows, lines = frame.arrows(), list[Line]()
    most = FEW_SHOWN if rank is None else ALL_SHOWN
    for number in range(schedule.n) if rank is None else [rank]:
        gets = [f"{a.label} from {a.src}" for a in arrows if a.dst == number]
        sends = [f"{a.label} to {a.dst}" for a in arrows if a.src == number and a.dst != number]
        if gets or sends or rank is not None or frame.moves is None:
            (holds,) = _wrap_tokens(_make_tokens(schedule, frame, number, most), 0)
            first = not lines
            cells = (
                frame.label if first else "",
                str(number),
                "\n".join(gets),
                "\n".join(sends),
                holds,
            )
            lines.append(Line(cells, ruled=first))
    return lines


def _make_tokens(schedule: Schedule, frame: Frame, rank: int, most: int = ALL_SHOWN) -> list[Words]:
    """A rank's cells in words and colours; input and output are parted where they are two
    buffers."""
    row, tokens = frame.rows[rank], list[Words]()
    long = len(row) > (most if frame.moves else ALL_SHOWN)
    split = (
        len(schedule.input_cells(rank))
        if schedule.row.in_place is None and schedule.has_data
        else 0
    )
    for index, cell in enumerate(row):
        if index == split and index:
            tokens.append(PARTED)
        if long and index not in (0, len(row) - 1) and not cell.changed:
            if str(tokens[-1]) != "…":
                tokens.append(tone_text("…", "quiet"))
            continue
        tone: Tone = "good" if cell.share == 1 else "notice" if cell.changed else ""
        text = f"{index}:{cell.marked}" if long else cell.marked
        tokens.append(tone_text(text, tone, cell.changed))
    return tokens


def _draw_columns(schedule: Schedule, frame: Frame, share: int) -> list[Block]:
    """One step: its arrows between the ranks' lifelines, then what the ranks hold."""
    n = schedule.n
    blocks: list[Block] = []
    if frame.moves is None:
        heads = "".join(f"{f'rank {rank}':<{share}}" for rank in range(n))
        blocks.append(tone_text(f"{'':<{MARGIN}}{heads}".rstrip(), strong=True))
    lines = [_draw_lane(lane, n, share) for lane in pack_lanes(frame.arrows())]
    loops = {a.src: a.label for a in frame.arrows() if a.src == a.dst}
    if loops:
        verticals = (f"│ {loops[rank]}" if rank in loops else "│" for rank in range(n))
        lines.append(
            "".join(f"{_cut_text(label, share - 1):<{share}}" for label in verticals).rstrip()
        )
    body = [_tone_arrows(line) for line in lines]
    columns = [_wrap_tokens(_make_tokens(schedule, frame, rank), share - 1) for rank in range(n)]
    body += [
        _join_columns(row, share) for row in itertools.zip_longest(*columns, fillvalue=NOTHING)
    ]
    for index, line in enumerate(body):
        blocks.append(tone_text(f"{'' if index else frame.label:<{MARGIN}}", strong=True) + line)
    if note := frame.note():
        blocks.append(tone_text(f"{'':<{MARGIN}}{note}", "quiet"))
    return [*blocks, ""]


def _tone_arrows(line: str) -> Words:
    """Arrows in one colour, what they carry strong."""
    text = NOTHING
    for index, piece in enumerate(re.split(r"([\d+][\d,>+…-]*)", line)):
        text += tone_text(piece, "accent", strong=index % 2 == 1)
    return text


def _join_columns(row: Sequence[Words], share: int) -> Words:
    """One line of text from what ranks hold, side by side, without blanks at its end."""
    text, last = NOTHING, max(index for index, cell in enumerate(row) if str(cell))
    for cell in row[:last]:
        text += cell + " " * (share - len(str(cell)))
    return text + row[last]


def _draw_lane(lane: Sequence[Arrow], n: int, share: int) -> str:
    """A line of text with these arrows between the lifelines of n ranks, ``share`` characters
    each."""
    line = list((("│" + " " * (share - 1)) * n).rstrip())
    for src, dst, note in lane:
        way = 1 if dst > src else -1
        for at in range(src * share + way, dst * share, way):
            line[at] = "┼" if line[at] == "│" else "─"
        line[src * share] = "┼" if line[src * share] in "├┤" else "├" if way > 0 else "┤"
        line[dst * share - way] = "▶" if way > 0 else "◀"
        label = _cut_text(note, share - 4)
        # between the sender and its neighbour
        first = min(src, src + way) * share + (share - len(label) + 1) // 2
        line[first : first + len(label)] = label
    return "".join(line)


def _cut_text(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _wrap_tokens(tokens: Sequence[Words], room: int) -> list[Words]:
    """Lines of at most ``room`` columns (0: one line), a new one for a second buffer."""
    lines = [NOTHING]
    for token in tokens:
        used_width = len(str(lines[-1])) + 1 + len(str(token))
        if room and str(lines[-1]) and (used_width > room or token is PARTED):
            lines.append(NOTHING)
        lines[-1] += " " if str(lines[-1]) else ""
        lines[-1] += token
    return lines


def describe_signs(schedule: Schedule, visible: Sequence[Frame]) -> list[str]:
    """The meaning of the signs in these frames, and what is left undefined."""
    texts = {cell.text for frame in visible for row in frame.rows for cell in row}
    labels = "".join(arrow.label for frame in visible for arrow in frame.arrows())
    if not schedule.has_data:
        return ["arrows carry a token; 3/4: has heard, directly or not, of 3 of 4 ranks; * of all"]
    signs = [
        ("", True, "arrows name cells, the pieces of a buffer, counted from 0"),
        ("+2", "+" in labels, "cell 2 is added"),
        ("2>6", ">" in labels, "cell 2 goes into cell 6"),
        ("·", "·" in texts, "nothing there yet"),
        ("-", "-" in texts, "a cell of no numbers"),
        ("|", schedule.row.in_place is None, "input before, output after"),
        ("*", True, "complete: all that belongs there has arrived"),
    ]
    lines = [
        "; ".join(
            f"{sign}: {what}" if sign else what for sign, is_present, what in signs if is_present
        )
    ]
    if schedule.n > 8 and len(visible) > 2:
        lines.append("--step 3 shows one step, --rank 2 what one rank sees")
    return lines + side_effects(schedule)


def side_effects(schedule: Schedule) -> list[str]:
    """A sentence about the buffers that the operation leaves undefined; "" for none."""
    if all(
        rows is not None
        for rows in expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    ):
        return []
    return [
        f"{schedule.collective} leaves the output of ranks other than {schedule.root} undefined:"
        " what stands there at the end is a side effect, and other implementations leave something"
        " else"
    ]


def find_outcome(schedule: Schedule, last: Frame) -> dict[int, list[Number]]:
    """The numbers each rank's output consists of in ``last``, for the ranks whose output is
    defined."""
    promised = expect_outputs(schedule.row, schedule.n, schedule.root, schedule.cells)
    return {
        rank: [v for at in schedule.output_cells(rank) for v in last.rows[rank][at].numbers or ()]
        for rank, rows in enumerate(promised)
        if rows is not None
    }


def in_words(results: dict[int, list[Number]], n: int) -> str:
    """Who ends with what, in one sentence."""
    if results and not any(results.values()):
        return "no rank leaves before all have entered"
    if len(results) == n > 1 and all(values == results[0] for values in results.values()):
        return f"every rank ends with {results[0]}"
    return "; ".join(f"rank {rank} ends with {values}" for rank, values in results.items())
