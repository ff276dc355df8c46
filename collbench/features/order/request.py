"""What is asked of one collective's order of additions."""

from __future__ import annotations

import hashlib
import itertools
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.sums.probes import refuse_order
from collbench.core.text import format_count, format_size
from collbench.features.order import KIND
from collbench.suite.case import Case, Positive, Ranks

Place = Literal["out", "in"]
Strategy = Literal["auto", "all", "adaptive"]

MAX_SIZES = 64
MAX_ORDER_RANKS = 1024


class SumOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """The order in which a collective adds ``world`` ranks' numbers, at each of ``sizes``, as a
    suite's subject. A random call is made ``repeats`` times; ``shifts`` are elements off alignment,
    ``places`` whether the result overwrites the input; ``proof`` random buffers are predicted;
    sizes between two that differ are tried too, with ``bisect``. Raises ValueError for what has no
    order."""

    collective: str
    sizes: Annotated[tuple[Positive, ...], Meta(min_length=1, max_length=MAX_SIZES)]
    world: Ranks
    dtype: str = "float"
    op: str = "sum"
    root: Annotated[int, Meta(ge=-1, lt=MAX_ORDER_RANKS)] = -1
    places: Annotated[tuple[Place, ...], Meta(min_length=1, max_length=2)] = ("out", "in")
    shifts: Annotated[tuple[Annotated[int, Meta(ge=0, le=4096)], ...], Meta(max_length=8)] = (0, 1)
    repeats: Annotated[int, Meta(ge=0, le=1_000_000)] = 200
    proof: Annotated[int, Meta(ge=1, le=1000)] = 8
    strategy: Strategy = "auto"
    bisect: bool = True
    budget: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # seconds; 0: none

    def __post_init__(self) -> None:
        row = COLLECTIVES.get(self.collective)
        if row is None or not row.reduces or self.dtype not in DTYPES or self.op not in OPS:
            raise ValueError(f"no sums of {self.collective[:40]!r}, {self.dtype[:40]!r}")
        if refuse_order(self.op, DTYPES[self.dtype]) or self.world > MAX_ORDER_RANKS:
            raise ValueError(f"{self.op} of {self.dtype} has no order of additions")

    @property
    def ways(self) -> list[tuple[bool, int]]:
        """The ways to place buffers, the first of which is asked at all sizes: whether in place,
        and elements off alignment."""
        in_place = (place == "in" for place in self.places)
        return list(itertools.product(in_place, self.shifts or (0,)))

    @property
    def title(self) -> str:
        """What it is about, with a digest of the rest: two of one title are the same."""
        digest = hashlib.blake2b(msgspec.json.encode(self), digest_size=3).hexdigest()
        sizes = format_size(self.sizes[0])
        if len(self.sizes) > 1:
            sizes += f" to {format_size(self.sizes[-1])} ({format_count(len(self.sizes), 'size')})"
        root = f", root {self.root}" if self.root >= 0 else ""
        return f"order of {self.collective}, {self.dtype}, {self.op}{root}, {sizes} #{digest}"

    def make_case(self, case: Case, nbytes: int, in_place: bool) -> Case:
        """The call of a ``case`` of this order at one size."""
        return msgspec.structs.replace(
            case,
            collective=self.collective,
            subject="",
            nbytes=nbytes,
            dtype=self.dtype,
            op=self.op,
            root=self.root,
            in_place=in_place,
        )


def label_way(in_place: bool, shift: int) -> str:
    """A way to place buffers, as findings name it where a library refuses it."""
    off = f", {format_count(shift, 'element')} off alignment" if shift else ""
    return f"{'in' if in_place else 'out of'} place{off}"
