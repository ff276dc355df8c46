"""What must hold on any healthy machine, whatever its rates: guidelines between rows of the
same night.

Monotony: twice the data take no less time. Split: k pieces, one after the other, take no longer
than the whole. Composition: a collective takes no longer than others that together do the same.
Library: its own choice of algorithm is no worse than one it was told to take. Link: a collective
uses the links as sendrecv can. The first three are the self-consistent guidelines of Träff, Gropp
and Thakur (IEEE TPDS 21, 2010), tested as in PGMPI (arXiv 1606.00215).

A claim is tested over launches, one-sided, and Holm's procedure keeps a check's chance of a false
finding at ALPHA.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.core.text import format_count, format_duration
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.night import LAUNCHES, Night, Timing
from collbench.records import stats
from collbench.suite.case import Case
from collbench.suite.case_words import describe_case

# of each check: five of them are wrong together on one healthy night in a hundred at most
ALPHA = 0.002

MONOTONY, SPLIT, COMPOSITION, LIBRARY, LINK = (
    1.05,
    1.1,
    1.05,
    1.1,
    2.0,
)  # how much longer is still fine

# missed by this factor beyond those, it is no matter of tuning: healthy libraries miss some
# by less
GROSS = 2.0

# degrees of freedom that all rows' common scatter is worth at most: with more, few rows err too
# often
PRIOR = 4.0

FLOOR = (
    0.001  # launches never scatter by less: it is what clocks and medians of few samples leave open
)

LARGE = 1 << 20  # bytes from which on a collective's time is its links'

STRONG = ("NCCL_ALGO", "NCCL_PROTO")  # settings that take the choice from the library

APART = ", launched apart"

COMPOSITIONS = (
    ("all_reduce", ("reduce", "broadcast")),
    ("all_reduce", ("reduce_scatter", "all_gather")),
    ("all_gather", ("gather", "broadcast")),
    ("reduce_scatter", ("reduce", "scatter")),
    ("broadcast", ("scatter", "all_gather")),
    ("gather", ("all_gather",)),
    ("scatter", ("broadcast",)),
)


class Claim(NamedTuple):
    """A guideline on measured times: ``timing`` takes no longer than the sum of ``alternative``,
    times ``factor``; ``than`` says in words what the alternative is."""

    timing: Timing
    alternative: tuple[Timing, ...]
    factor: float
    than: str

    @property
    def excess(self) -> list[float]:
        """Per launch that has them all, the log of how much longer it takes than claimed.

        Settings of the environment are launched apart, so that no launch has rows of two: there,
        launches of one run and cycle make a pair. Which ones do is settled before anything is
        measured, so that pairs are as independent as launches are.
        """
        rows = (self.timing, *self.alternative)
        across_launches = len({timing.case.env for timing in rows}) > 1
        sides: list[Mapping[Any, float]] = [
            t.by_cycle if across_launches else t.medians for t in rows
        ]
        return [
            math.log(sides[0][at] / (self.factor * sum(side[at] for side in sides[1:])))
            for at in sorted(set(sides[0]).intersection(*sides[1:]))
        ]


class Missed(NamedTuple):
    """A claim that does not hold: by what factor beyond what it grants, and the adjusted p."""

    claim: Claim
    ratio: float
    p: float


def is_forced(case: Case) -> bool:
    """Whether a setting of the case's environment takes the choice from the library."""
    return any(name in STRONG for name, _ in case.env)


def claim_monotony(night: Night) -> list[Claim]:
    """T(n) <= 1.05 T(m), m the smallest size measured from 2n on."""
    claims = []
    for series in _size_series(night):
        for small in series:
            larger = next((t for t in series if t.case.nbytes >= 2 * small.case.nbytes), None)
            claims += (
                [Claim(small, (larger,), MONOTONY, f"{describe_case(larger.case)}")]
                if larger
                else []
            )
    return claims


def claim_split(night: Night) -> list[Claim]:
    """T(n) <= 1.1 k T(n/k), n/k the largest size measured that divides n."""
    claims = []
    for series in _size_series(night):
        for index, combined in enumerate(series):
            parts = [t for t in series[:index] if combined.case.nbytes % t.case.nbytes == 0]
            if parts:
                k = combined.case.nbytes // parts[-1].case.nbytes
                claims.append(
                    Claim(
                        combined,
                        (parts[-1],),
                        SPLIT * k,
                        f"{k:,} times {describe_case(parts[-1].case)}",
                    )
                )
    return claims


def claim_composition(night: Night) -> list[Claim]:
    """Each of COMPOSITIONS at equal sizes, for libraries' own choices."""
    groups: dict[Case, dict[str, list[Timing]]] = defaultdict(lambda: defaultdict(list))
    for timing in _native_rows(night):
        groups[_strip_case(timing.case)][timing.case.collective].append(timing)
    claims = []
    for members, (name, others) in itertools.product(groups.values(), COMPOSITIONS):
        among = [members.get(other, []) for other in others]
        for first in members.get(name, ()):
            if parts := _find_partners(first.case, among):
                claims.append(
                    Claim(first, parts, COMPOSITION, f"{' then '.join(others)} of the same data")
                )
    return claims


def claim_library(night: Night) -> list[Claim]:
    """The library's own choice against every algorithm, and every setting of one, on the same
    backend. Launches of a setting are held against those of the same cycles (Claim.excess)."""
    groups: dict[Case, list[Timing]] = defaultdict(list)
    for timing in night.fit:
        free = tuple(pair for pair in timing.case.env if pair[0] not in STRONG)
        groups[msgspec.structs.replace(timing.case, algorithm="native", env=free)].append(timing)
    return [
        Claim(
            timing,
            (other,),
            LIBRARY,
            describe_case(other.case) + APART * (other.case.env != case.env),
        )
        for case, members in groups.items()
        for timing in members
        if timing.case == case
        for other in members
        if other is not timing
    ]


def claim_link(night: Night) -> list[Claim]:
    """From 1 MiB on, busbw - of the bytes that were counted, where these are more - is at least
    half that of sendrecv at the same size."""
    probes = {
        msgspec.structs.replace(_strip_case(t.case), collective="sendrecv"): t
        for t in _native_rows(night)
        if t.case.row.pairwise
    }
    claims = []
    for timing in _native_rows(night):
        case = timing.case
        probe = probes.get(msgspec.structs.replace(_strip_case(case), collective="sendrecv"))
        if probe and probe is not timing and case.size >= LARGE and case.n > 1:
            bound = case.row.busbw(case.n) * timing.carried * timing.moved / probe.moved
            claims.append(
                Claim(
                    timing,
                    (probe,),
                    LINK * bound,
                    f"{bound:.2f} times {describe_case(probe.case)}"
                    if bound != 1
                    else describe_case(probe.case),
                )
            )
    return claims


def _native_rows(night: Night) -> list[Timing]:
    """Rows of a library's own choice that can tell; a training step is made of many collectives."""
    return [
        t
        for t in night.fit
        if t.case.algorithm == "native" and not is_forced(t.case) and not t.case.subject
    ]


def _size_series(night: Night) -> Iterator[list[Timing]]:
    """Rows that differ in size only, in its order."""
    by_shape: dict[Case, list[Timing]] = defaultdict(list)
    for timing in night.fit:
        if timing.case.nbytes:
            by_shape[msgspec.structs.replace(timing.case, nbytes=0)].append(timing)
    for series in by_shape.values():
        yield sorted(series, key=lambda timing: timing.case.nbytes)


def _strip_case(case: Case) -> Case:
    """``case`` less what one collective has and another has not."""
    return msgspec.structs.replace(case, collective="all_reduce", op="none", root=-1)


def _find_partners(first: Case, among: Sequence[Sequence[Timing]]) -> tuple[Timing, ...]:
    """A row of each collective, with one root for all that have any, and ``first``'s reduction
    if it has one; () where there are no such rows."""
    roots = sorted({timing.case.root for members in among for timing in members} - {-1}) or [-1]
    for root in [first.root] if first.root >= 0 else roots:
        fitting = [
            [
                t
                for t in members
                if t.case.root in (-1, root)
                and (first.op == "none" or t.case.op in ("none", first.op))
            ]
            for members in among
        ]
        if all(fitting):
            return tuple(members[0] for members in fitting)
    return ()


def select_testable(claims: Iterable[Claim]) -> list[Claim]:
    """Claims whose rows have enough launches, or pairs of them, in common."""
    return [claim for claim in claims if len(claim.excess) >= LAUNCHES]


def find_missed(claims: Sequence[Claim]) -> list[Missed]:
    """Claims, of such as are testable, that surely do not hold, the worst first."""
    excesses = [claim.excess for claim in claims]
    missed = [
        Missed(claim, math.exp(float(np.mean(excess))), p)
        for claim, excess, p in zip(
            claims, excesses, stats.adjust_holm(_moderated_pvalues(excesses)), strict=True
        )
        if p <= ALPHA
    ]
    return sorted(missed, key=lambda claim: -claim.ratio)


def _moderated_pvalues(samples: Iterable[Sequence[float]]) -> list[float]:
    """One-sided p of each sample's mean being above 0, by a t-test with moderated variances.

    Three launches know little of their own scatter; rows of one night share much of theirs. Each
    variance is drawn towards that of all by as much as the variances agree (Smyth, Stat. Appl.
    Genet. Mol. Biol. 3, 2004, section 6.2); where they do not, it stays the row's own and the test
    is Student's.
    """
    from scipy.special import stdtr

    arrays = [np.asarray(sample) for sample in samples]
    freedom = np.array([len(sample) - 1 for sample in arrays], dtype=float)
    variances = np.array([max(float(np.var(sample, ddof=1)), FLOOR**2) for sample in arrays])
    prior, shared = _fit_prior(variances, freedom)
    pooled = (prior * shared + freedom * variances) / (prior + freedom)
    t = [
        float(np.mean(sample)) / math.sqrt(v / len(sample))
        for sample, v in zip(arrays, pooled, strict=True)
    ]
    # shared by all, it is known no better than by all
    total = np.minimum(prior + freedom, freedom.sum())
    return [float(stdtr(df, -value)) for df, value in zip(total, t, strict=True)]


def _fit_prior(variances: np.ndarray, freedom: np.ndarray) -> tuple[float, float]:
    """Degrees of freedom and value of the variance that all rows have in common; (0, 0) where they
    have none."""
    from scipy.special import digamma, polygamma

    if len(variances) < 3:
        return 0.0, 0.0
    logs = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)
    spread = float(np.var(logs, ddof=1) - np.mean(polygamma(1, freedom / 2)))
    if spread <= 0:
        return PRIOR, math.exp(float(np.mean(logs)))
    half = _trigamma_inverse(spread)
    return min(PRIOR, 2 * half), math.exp(float(np.mean(logs) + digamma(half)) - math.log(half))


def _trigamma_inverse(value: float) -> float:
    """x with trigamma(x) = value > 0, by Newton's method on 1 / trigamma, which converges from
    below everywhere."""
    from scipy.special import polygamma

    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1 - now / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-8 * x:
            break
    return x


def make_finding(check: str, missed: Missed, advice: str) -> Finding:
    """The finding of a missed claim: a warning where it is missed grossly, else a hint."""
    claimed, alternative = missed.claim.timing, missed.claim.alternative
    expected = sum(timing.median for timing in alternative) * missed.claim.factor
    allowed = (
        "more than tuning explains"
        if missed.ratio > GROSS
        else f"healthy libraries miss some by up to {GROSS:g}x"
    )
    measured = Evidence(
        what=f"{describe_case(claimed.case)}: median",
        value=format_duration(claimed.median),
        expected=f"at most {format_duration(expected)}",
        run=claimed.run,
        case=claimed.case.key,
    )
    others = [
        Evidence(
            what=f"{describe_case(t.case)}: median",
            value=format_duration(t.median),
            run=t.run,
            case=t.case.key,
        )
        for t in alternative
    ]
    return Finding(
        check=check,
        severity="warning" if missed.ratio > GROSS else "hint",
        subject=Subject("collective", describe_case(claimed.case)),
        what=(
            f"takes {missed.ratio:.2f} times what it may beside {missed.claim.than}, over "
            f"{format_count(len(missed.claim.excess), 'launch')}: {allowed}"
        ),
        advice=advice,
        sure=1 - missed.p,
        evidence=[measured, *others],
    )
