"""Requirements of orders: what --require asks, and whether judged orders keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.sums.rounding import EXACT
from collbench.core.text import plain_line, suggest_name
from collbench.features.order.findings import Piece
from collbench.features.order.judgement import (
    DIMENSIONS,
    Dimension,
    JudgedOrder,
    Judgement,
    Placed,
)
from collbench.features.order.naming import has_name
from collbench.features.order.wording import (
    count_predicted,
    describe_dependence,
    describe_subject,
    format_bytes,
    name_adder,
)
from collbench.suite.grammar import split_words

ADDERS = {
    "exact": EXACT,
    "bfloat16": 8,
    "half": 11,
    "float": 24,
    "double": 53,
    "64": 64,
    "113": 113,
}
OWN = "own"  # of an element type, in which each addition is rounded

HINT = "same=size,call order=ring adds=own proved, for example"


class Requirement(NamedTuple):
    """One thing that is required of every order: that it is the ``same`` along a dimension, has a
    name (``order``), is added in an adder (``adds``), or is ``proved``."""

    kind: Literal["same", "order", "adds", "proved"]
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind}={self.value}" if self.value else self.kind


class RequirementResult(NamedTuple):
    """A requirement, whether all orders keep it (None: that is not known), and where it is broken
    or why it is not known."""

    requirement: Requirement
    kept: bool | None
    reason: str = ""


def parse_requirements(texts: Sequence[str]) -> list[Requirement]:
    """The requirements of --require: same=size,call,proved,order=ring, where a word without a = is
    a dimension of the same= before it, or "proved". Raises UsageError."""
    found: list[Requirement] = []
    for text in texts:
        kind = ""
        for word in split_words(text):
            key, equals, value = word.partition("=")
            if equals:
                kind = key.strip()
                found.append(_parse_value(kind, value.strip()))
            elif word == "proved":
                found.append(Requirement("proved"))
            elif kind == "same" or word in DIMENSIONS:
                found.append(_parse_value("same", word))
            else:
                known = ("same=", "order=", "adds=", "proved", *DIMENSIONS)
                raise UsageError(
                    f"--require {text[:80]}: there is no requirement '{word[:40]}'",
                    suggest_name(word, known) or HINT,
                )
    return list(dict.fromkeys(found))


def _parse_value(kind: str, value: str) -> Requirement:
    if kind == "same":
        if value not in DIMENSIONS:
            raise UsageError(
                f"--require same={value[:40]}: none of {', '.join(DIMENSIONS)}",
                suggest_name(value, DIMENSIONS) or HINT,
            )
        return Requirement("same", value)
    if kind == "adds":
        if value not in (OWN, *ADDERS):
            raise UsageError(
                f"--require adds={value[:40]}: there is no such adder",
                f"one of {', '.join((OWN, *ADDERS))}",
            )
        return Requirement("adds", value)
    if kind == "order" and value:
        return Requirement("order", value)
    raise UsageError(f"--require {kind[:40]}={value[:40]}: there is no such requirement", HINT)


def judge_requirements(
    requirements: Sequence[Requirement], judgement: Judgement
) -> list[RequirementResult]:
    """Each requirement over all orders of a run: broken where one breaks it, else not known where
    one was not found or not asked for it."""
    return [_judge_all(requirement, judgement) for requirement in requirements]


def _judge_all(requirement: Requirement, judgement: Judgement) -> RequirementResult:
    results = []
    for order in judgement.orders:
        kept, reason = _judge_one(requirement, order)
        where = f"{describe_subject(order)}: " * (len(judgement.orders) > 1)
        results.append((kept, where + reason))
    for skipped in judgement.unmeasured:
        results.append((None, f"{skipped.case.label}: {skipped.status}: {skipped.reason}"))
    if not results:
        results = [(None, "no order was looked for")]
    for verdict in (False, None):
        for kept, reason in results:
            if kept is verdict:
                return RequirementResult(requirement, verdict, plain_line(reason))
    return RequirementResult(requirement, True)


def _judge_one(requirement: Requirement, order: JudgedOrder) -> tuple[bool | None, str]:
    if requirement.kind == "same":
        dimension: Dimension = requirement.value  # type: ignore[assignment]
        dependence = order.depends[dimension]
        detail = describe_dependence(order, dependence)
        if dependence.value == "not asked":
            return None, f"{dimension}: not asked" + (f" ({detail})" if detail else "")
        return dependence.value == "same", f"{dimension}: {detail}"
    if requirement.kind == "proved":
        right, total = count_predicted(order.placed)
        if not order.is_found:
            return False, "no order was found"
        return order.is_proved, f"{right:,} of {total:,} bits are as predicted"
    if not order.is_found:
        return None, "no order was found"
    return _judge_names(requirement, order)


def _judge_names(requirement: Requirement, order: JudgedOrder) -> tuple[bool | None, str]:
    """Whether the order of each size has the name, or is added in the adder."""
    for item in order.first.base:
        size = format_bytes(item.order.nbytes)
        if requirement.kind == "order":
            names = order.look_up_names(item)
            if not has_name(names, requirement.value):
                what = names.phrase if names else _first_tree(item)
                return False, f"{size}: adds as {what}, not as {requirement.value}"
            continue
        odd = _find_other_adder(requirement.value, item, order.subject.dtype)
        if odd:
            name = name_adder(odd, DTYPES[order.subject.dtype])
            return False, f"{size}: adds in {name}, not in {requirement.value}"
    return True, ""


def _first_tree(item: Placed) -> str:
    return item.ranks[0].pieces[0].tree[:60]


def _find_other_adder(name: str, item: Placed, dtype: str) -> Piece | None:
    """The first piece that is not added in an adder of this name."""
    bits = DTYPES[dtype].precision if name == OWN else ADDERS[name]
    pieces = (piece for group in item.ranks for piece in group.pieces)
    return next((piece for piece in pieces if piece.adder != bits), None)
