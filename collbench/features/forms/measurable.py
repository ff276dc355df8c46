"""Forms as suites have them: tables [[forms]] with calls and sizes, each of which is measured at
each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.core.errors import UsageError
from collbench.core.text import suggest_name
from collbench.features.forms import KIND
from collbench.features.forms.rows import OTHER
from collbench.suite.case import Ranks
from collbench.suite.grammar import list_words, parse_integer, parse_size

OBJECTS = {  # by the collective that moves the same bytes as a tensor
    "all_gather": "all_gather_object",
    "broadcast": "broadcast_object_list",
    "gather": "gather_object",
    "scatter": "scatter_object_list",
}
COALESCED = ("all_reduce", "all_gather", "reduce_scatter", "sendrecv")
TOGETHER, MAX_TOGETHER = 8, 1024  # where nothing is said, and at most
Bytes = Annotated[int, Meta(ge=1, le=1 << 32)]
Together = Annotated[int, Meta(ge=0, le=MAX_TOGETHER)]
KEYS = ("objects", "coalesced", "sizes", "together")
EXAMPLE = 'objects = ["all_gather"] or coalesced = ["all_reduce"], and sizes = ["8", "64K"]'


class FormRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A form that is asked for, before it is known among how many ranks."""

    collective: str
    nbytes: Bytes
    together: Together = 0


class Form(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=KIND):
    """A collective of objects of ``nbytes`` where ``together`` is 0; else so many small calls of
    ``nbytes`` in one. Raises ValueError for what torch has not."""

    collective: str
    nbytes: Bytes
    world: Ranks
    together: Together = 0

    def __post_init__(self) -> None:
        if self.collective not in (COALESCED if self.together else OBJECTS):
            raise ValueError(f"no such form of {self.collective[:40]!r}")
        if self.world < 2:
            raise ValueError("a form has two ranks at least")

    @property
    def label(self) -> str:
        """The form in words: "all_gather_object", "8 x all_reduce"."""
        if self.together:
            return f"{self.together} x {self.collective}"
        return OBJECTS[self.collective]

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the form asked for and of the plain one."""
        return ("in one", "apart") if self.together else ("objects", "tensors")

    @property
    def title(self) -> str:
        """What it is, in words."""
        ranks = f", {self.world} ranks" if self.world != 2 else ""
        return f"{self.label} of {self.nbytes} B{ranks}"


def make_requests(
    collectives: Sequence[str], sizes: Sequence[int], together: Sequence[int]
) -> list[FormRequest]:
    """A request for each collective, number and size; without numbers, of objects. Raises
    UsageError."""
    known = COALESCED if together else tuple(OBJECTS)
    if odd := next((name for name in collectives if name not in known), None):
        kind = "is never coalesced" if together else "has no form for objects"
        hint = suggest_name(odd, known) or f"one of {', '.join(known)}"
        raise UsageError(f"'{odd[:40]}' {kind}", hint)
    for size in sizes:
        if not 1 <= size <= 1 << 32:
            raise UsageError(f"{size} B is no size of a call", "1 B at least, 4G at most")
    for number in together:
        if not 2 <= number <= MAX_TOGETHER:
            raise UsageError(f"{number} calls in one", f"2 to {MAX_TOGETHER}, for example 8")
    return [
        FormRequest(collective=name, nbytes=size, together=number)
        for name in collectives
        for number in (together or (0,))
        for size in sizes
    ]


class _Forms:
    """A suite.measurable.Measurable."""

    table = "forms"
    request = FormRequest
    subject = Form

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> list[FormRequest]:
        try:
            if unknown := next((key for key in table if key not in KEYS), None):
                hint = suggest_name(unknown, KEYS) or f"use {', '.join(KEYS)}"
                raise UsageError(f"{unknown}: there is no such key", hint)
            sizes = [parse_size(text, "sizes") for text in _read_list(table, "sizes")]
            objects, coalesced = (_read_list(table, key) for key in KEYS[:2])
            if not sizes or not (objects or coalesced):
                raise UsageError("it needs sizes, and objects or coalesced", EXAMPLE)
            numbers = _read_together(table)
            return [
                *make_requests(objects, sizes, ()),
                *make_requests(coalesced, sizes, numbers),
            ]
        except UsageError as e:
            raise UsageError(f"{where}: {e.message}", e.hint) from e

    def resolve(
        self, request: FormRequest, ranks: int, is_given: bool, backends: Sequence[str]
    ) -> Form:
        if ranks < 2:
            raise UsageError(f"a form has 2 ranks at least, not {ranks}", "-g 2")
        return Form(
            collective=request.collective,
            nbytes=request.nbytes,
            together=request.together,
            world=ranks,
        )

    def measure(self, subject: Form) -> tuple[str, int]:
        return OTHER, subject.nbytes * max(1, subject.together)


def _read_list(table: Mapping[str, Any], key: str) -> list[str]:
    """A list of texts and whole numbers, or one of them, as texts. Raises UsageError."""
    words = list_words(table.get(key, []))
    if words is None:
        raise UsageError(f"{key} is no list of names or numbers", EXAMPLE)
    return words


def _read_together(table: Mapping[str, Any]) -> list[int]:
    """The numbers of calls in one; without any, the default. Raises UsageError."""
    if "together" not in table:
        return [TOGETHER]
    words, hint = _read_list(table, "together"), f"together = {TOGETHER}, for example"
    if not words:
        raise UsageError("together names no number of calls", hint)
    if not table.get("coalesced"):
        raise UsageError(
            "together has no effect on objects", "leave together out, or name coalesced calls"
        )
    try:
        return [parse_integer("together", word) for word in words]
    except UsageError as e:
        raise UsageError(e.message, hint) from e


FORMS = _Forms()
