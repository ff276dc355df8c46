"""Kinds of things other than collectives that a job measures, as suites know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from collbench.core.errors import UsageError
from collbench.core.feature import load_entries


class Subject(Protocol):
    """What cases of a kind are about, as a step of training: a struct of its feature, which knows
    more of it than this."""

    @property
    def title(self) -> str:
        """A name that tells it from all others of a run on as many ranks; it stands in
        ``Case.subject``."""

    @property
    def world(self) -> int:
        """Ranks that it needs."""


class Measurable(Protocol):
    """A kind of such things. ``table`` is that of suite files which asks for one ("workload"),
    ``request`` the struct that a table comes to, ``subject`` that of what it is once it is known
    where it runs. Of several kinds each tags its subjects (msgspec's tag_field "kind"); one alone
    may leave that out."""

    table: str
    request: type[msgspec.Struct]
    subject: type[msgspec.Struct]

    def parse(self, table: Mapping[str, Any], where: str, path: Path) -> Any:
        """The request of a table of the suite file at ``path``, or a list of them where it asks for
        several things. Raises UsageError that begins with ``where``."""

    def resolve(self, request: Any, ranks: int, is_given: bool, backends: Sequence[str]) -> Subject:
        """The subject on so many ranks and these backends; on its own number of ranks, where the
        user gave none (``is_given``) and it does not fit these. Raises UsageError."""

    def measure(self, subject: Any) -> tuple[str, int]:
        """The leading row of its cases, and the bytes that the busiest rank has to send. Raises
        UsageError for a subject that cannot be."""


def find_measurables() -> Sequence[Measurable]:
    """The measurables of all features, in the features' order."""
    return tuple(load_entries("measurables").values())


NOT_INSTALLED = (
    "the run measured what no feature of this installation knows",
    "install the collbench that measured it; this one can show it",
)


class UnknownSubject(msgspec.Struct, frozen=True):
    """A subject in a file of a feature that is not installed: its cases can be shown, and that is
    all."""

    content: dict[str, Any]
    title: str = ""
    world: int = 0


def find_kind(subject: Subject) -> Measurable:
    """The kind of a subject. Raises UsageError where its feature is not installed."""
    kind = next((kind for kind in find_measurables() if isinstance(subject, kind.subject)), None)
    if kind is None:
        raise UsageError(*NOT_INSTALLED)
    return kind


def find_requested_kind(request: object) -> Measurable:
    """The kind of a request."""
    return next(kind for kind in find_measurables() if isinstance(request, kind.request))


def decode_subject(content: Any) -> Any:
    """A subject as files and plans have it, {name: value}, as the struct of its kind; one that is
    a struct, as it is. Raises ValidationError."""
    if not isinstance(content, dict):
        return content
    for kind in find_measurables():
        if kind.subject.__struct_config__.tag == content.get("kind"):
            return msgspec.convert(content, kind.subject)
    return UnknownSubject(content)
