"""Requirements of orders: what --require asks, and whether judged orders keep it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from collbench.core.dtypes import DTYPES
from collbench.core.errors import UsageError
from collbench.core.sums.names import list_all_names
from collbench.core.sums.rounding import EXACT
from collbench.core.text import plain_line, suggest_name
from collbench.features.order.findings import Piece
from collbench.features.order.judgement import (
    DIMENSIONS,
    Dimension,
    JudgedOrder,
    Judgement,
    Launch,
    Placed,
)
from collbench.features.order.naming import has_name, is_known_name, is_one_chunk
from collbench.features.order.wording import (
    count_predicted,
    describe_dependence,
    describe_missing,
    describe_subject,
    format_bytes,
    list_sizes,
    name_adder,
    name_launch,
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
                suggest_name(value, (OWN, *ADDERS)) or f"one of {', '.join((OWN, *ADDERS))}",
            )
        return Requirement("adds", value)
    if kind == "order" and value:
        if not is_known_name(value):
            raise UsageError(
                f"--require order={value[:40]}: there is no such order",
                suggest_name(value, list_all_names())
                or "ring, recursive_doubling, linear up, for example",
            )
        return Requirement("order", value)
    raise UsageError(
        f"--require {kind[:40]}={value[:40]}: there is no such requirement",
        suggest_name(kind, ("same", "order", "adds")) or HINT,
    )


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
        return _judge_same(requirement, order)
    is_proof = requirement.kind == "proved"
    kept, reason = _judge_proof(order) if is_proof else _judge_names(requirement, order)
    if kept and order.missing:
        return None, f"not asked at {list_sizes(order.missing)}"
    return kept, reason


def _judge_same(requirement: Requirement, order: JudgedOrder) -> tuple[bool | None, str]:
    """Whether the order is the same along a dimension, at every size that was asked for."""
    dimension: Dimension = requirement.value  # type: ignore[assignment]
    dependence = order.depends[dimension]
    detail = describe_dependence(order, dependence)
    if dependence.value == "not asked":
        return None, f"{dimension}: not asked" + (f" ({detail})" if detail else "")
    if dependence.missing or dependence.unknown:
        return None, f"{dimension}: {describe_missing(dependence)}"
    return dependence.value == "same", f"{dimension}: {detail}"


def _judge_proof(order: JudgedOrder) -> tuple[bool | None, str]:
    if not order.is_found:
        return False, "no order was found"
    right, total = count_predicted(order.placed)
    return order.is_proved, f"{right:,} of {total:,} bits are as predicted"


def _judge_names(requirement: Requirement, order: JudgedOrder) -> tuple[bool | None, str]:
    """Whether the order of each launch, size and way to place buffers has the name, or is added in
    the adder; not known where one was not found, or is too short to tell, and the others have
    it."""
    unsure = ""
    for launch in order.launches:
        for item in launch.placed:
            if item.order.like or not item.is_found:
                continue
            if odd := _find_odd_name(requirement, item, order):
                kept = _judge_short_buffer(requirement, item, launch, order)
                size, name = format_bytes(item.order.nbytes), name_launch(order, launch)
                where = ", ".join(filter(None, [name, size, item.way]))
                if kept is False:
                    return False, f"{where}: {odd}"
                if kept is None:
                    unsure = unsure or f"{where}: {_explain_short_buffer(item, launch)}"
    if not order.is_found:
        return None, "no order was found"
    if unsure:
        return None, unsure
    if requirement.kind == "adds" and not any(map(_shows_adder, order.placed)):
        return None, "a sum of two ranks is rounded once in any adder"
    return True, ""


def _judge_short_buffer(
    requirement: Requirement, item: Placed, launch: Launch, order: JudgedOrder
) -> bool | None:
    """Whether a buffer whose order has another name keeps the required one: it is one chunk of it,
    and a longer buffer, placed alike, has the name. None without such a buffer, if elements are
    fewer than ranks."""
    subject, wanted = order.subject, requirement.value
    if requirement.kind != "order" or not is_one_chunk(subject, item.ranks, wanted):
        return False
    if any(
        longer.order.nbytes > item.order.nbytes
        and longer.key[1:] == item.key[1:]
        and has_name(order.look_up_names(longer), wanted)
        for longer in launch.placed
    ):
        return True
    min_nbytes = subject.world * DTYPES[subject.dtype].size
    return None if item.order.nbytes < min_nbytes else False


def _explain_short_buffer(item: Placed, launch: Launch) -> str:
    """Why a short buffer does not tell, and what to ask: larger sizes, or these placed alike."""
    short = "too short for more than one chunk"
    longer = [other for other in launch.placed if other.order.nbytes > item.order.nbytes]
    if not longer or any(other.key[1:] == item.key[1:] for other in longer):
        return f"{short}: add a larger size"
    flags = f"--place {'in' if item.order.in_place else 'out'} --shift {item.order.shift}"
    return f"{short}, and no larger size has this placement; {flags} gives it to all sizes"


def _shows_adder(item: Placed) -> bool:
    return any(piece.shows_adder for group in item.ranks for piece in group.pieces)


def _find_odd_name(requirement: Requirement, item: Placed, order: JudgedOrder) -> str:
    """How one order is added where that is not as required; "" where it is."""
    if requirement.kind == "order":
        names = order.look_up_names(item)
        if has_name(names, requirement.value):
            return ""
        what = names.phrase if names else _first_tree(item)
        return f"adds as {what}, not as {requirement.value}"
    odd = _find_other_adder(requirement.value, item, order.subject.dtype)
    if odd is None:
        return ""
    return f"adds in {name_adder(odd, DTYPES[order.subject.dtype])}, not in {requirement.value}"


def _first_tree(item: Placed) -> str:
    return item.ranks[0].pieces[0].tree[:60]


def _find_other_adder(name: str, item: Placed, dtype: str) -> Piece | None:
    """The first piece that is not added in an adder of this name, of those that tell."""
    bits = DTYPES[dtype].precision if name == OWN else ADDERS[name]
    pieces = (piece for group in item.ranks for piece in group.pieces if piece.shows_adder)
    return next((piece for piece in pieces if piece.adder != bits), None)
