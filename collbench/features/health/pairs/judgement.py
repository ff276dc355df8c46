"""Which of many alike are not alike: ranks, hosts, links and uplinks that stand out in a matrix of
pairs.

A pair is as fast as the slowest of its two ends and what is between them. What an end can do is
what it reaches with its best partners, however many of the others are slow; a link is slow where a
pair reaches less than both its ends can.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

from collbench.core.errors import UsageError
from collbench.core.groups import Pair, count_placed_ranks
from collbench.core.text import format_bandwidth, format_count, format_duration
from collbench.features.health.findings import Evidence, Finding, Subject
from collbench.features.health.night import list_several
from collbench.records import stats
from collbench.records.derive import is_without_samples
from collbench.records.rows import case_time, group_rows, make_rows, select_deciding
from collbench.records.types import RunFile
from collbench.suite.case import Case

_T = TypeVar("_T")

Rates = Mapping[Pair, float]  # of pairs (low, high); the more the better, 0 where nothing came

FAR = 4.0  # robust standard deviations below the middle

LEAST = 0.90  # of the middle: what reaches it is no concern, however exactly it is known

NOISE = 0.005  # of logarithms: no scatter is taken for smaller

MANY = 0.75  # of a host's ranks or of the links between two racks, for them to be named instead

MIN_PAIRS = 3  # alike, for one of them to stand out

# kinds of near and of far pairs, and the kind that both are of
NEAR_AND_FAR = (("numa", "numas", "host"), ("rack", "racks", "hosts"))

WORDS = {
    "numa": "on one NUMA node",
    "numas": "between NUMA nodes of a host",
    "host": "on one host",
    "rack": "in one rack",
    "racks": "between racks",
    "hosts": "between hosts",
}


class Blame(NamedTuple):
    """Ends and links that stand out, by what they reach of what the others do."""

    ends: dict[int, float]
    links: dict[Pair, float]


class Matrix(NamedTuple):
    """What a run says of its pairs: GB/s each way at the largest size, and ns at the smallest, if
    there are two. ``hosts`` are the ranks', and so are ``numas``, NUMA nodes or -1; ``cases`` the
    largest size's. ``one_way``: a pair is (from, to), and there are two of each; else (low, high),
    measured both ways at once. ``unrated`` pairs were planned and have no rate."""

    rates: dict[Pair, float]
    times: dict[Pair, float]
    hosts: list[str]
    numas: list[int]
    cases: dict[Pair, Case]
    trouble: dict[Pair, str]
    one_way: bool
    unrated: list[Pair]


def blame_ends(rates: Rates) -> Blame:
    """The ends that stand out among pairs that should be alike."""
    best = find_reach(rates)
    if len(best) == 2 * len(rates):  # which end of a pair it is, nobody can tell
        return Blame({}, _find_low(rates) if rates else {})
    links = {
        pair: rate / max(min(best[pair[0]], best[pair[1]]), stats.TINY)
        for pair, rate in rates.items()
    }
    return Blame(_find_low(best, _robust_deviation(links)), _find_low(links))


def blame_ways(rates: Rates, one_way: bool) -> dict[str, Blame]:
    """The ends and ways that stand out, by what they do slowly. One way at a time, an end that
    sends and the same end that receives are two, and so are both ways of a link."""
    if not one_way:
        return {"reaches": blame_ends(rates)}
    blame = blame_ends({(a, ~b): rate for (a, b), rate in rates.items()})
    links = {(a, ~b): s for (a, b), s in blame.links.items() if not {a, b} & set(blame.ends)}
    return {
        "sends at": Blame({end: s for end, s in blame.ends.items() if end >= 0}, {}),
        "receives at": Blame({~end: s for end, s in blame.ends.items() if end < 0}, {}),
        "one way reaches": Blame({}, links),
    }


def find_reach(rates: Rates) -> dict[int, float]:
    """The bandwidth that each end reaches with its best partner; of four and more the second best,
    which no chance has made."""
    by_end: dict[int, list[float]] = defaultdict(list)
    for pair, rate in rates.items():
        for end in pair:
            by_end[end].append(rate)
    return {
        end: sorted(end_rates)[-2 if len(end_rates) > 3 else -1]
        for end, end_rates in sorted(by_end.items())
    }


def _robust_deviation(values: Mapping[_T, float]) -> float:
    """A robust standard deviation of logarithms."""
    return 1.4826 * stats.mad(np.log(np.maximum(list(values.values()), stats.TINY)))


def _find_low(values: Mapping[_T, float], noise: float = math.inf) -> dict[_T, float]:
    """The values far below the median, as a share of the median, by name. ``noise`` bounds the
    scatter that is taken for normal, so that many low values among few are found, too."""
    logs = np.log(np.maximum(list(values.values()), stats.TINY))
    middle = float(np.median(logs))
    limit = min(-FAR * max(min(_robust_deviation(values), noise), NOISE), math.log(LEAST))
    return {
        name: math.exp(x - middle)
        for name, x in zip(values, logs.tolist(), strict=True)
        if x - middle < limit
    }


def make_matrix(file: RunFile) -> Matrix | None:
    """A run's matrix of pairs of ranks; None where it has measured none, or none whose hosts are
    known, as no world opened that has these ranks. Where it has measured them both ways at once and
    one way at a time, the latter counts."""
    ranks = {info.rank: info for world in file.worlds for info in world.ranks}
    cases_ = group_rows(make_rows([file]), lambda row: row.case)
    one_way = any(_is_about_pair(case) and case.row.one_way for case in cases_)
    by_size: dict[int, dict[Pair, list[float]]] = defaultdict(lambda: defaultdict(list))
    cases, trouble = dict[Pair, Case](), dict[Pair, str]()
    for case, launches in cases_.items():
        if not _is_about_pair(case) or case.row.one_way != one_way:
            continue
        pair = _order_ends(case)
        if not ranks.keys() >= {*pair}:
            continue
        measured = [row for row in select_deciding(launches) if not row.predicted]
        if measured:
            by_size[case.size][pair].append(case_time(measured).median)
            cases[pair] = max(case, cases.get(pair, case), key=lambda case: case.size)
        for record in (cycle.record for row in launches for cycle in row.left_out):
            if record.status in ("wrong", "failed") and not is_without_samples(record):
                trouble[pair] = f"{record.status}: {record.note}"
    if not by_size and not trouble:
        return None
    most, least = max(by_size, default=0), min(by_size, default=0)
    rates = {
        pair: most / median(times) for pair, times in sorted(by_size[most].items())
    } | dict.fromkeys(trouble, 0.0)
    times = (
        {pair: median(times) for pair, times in sorted(by_size[least].items())}
        if least < most
        else {}
    )
    infos = [ranks[rank] for rank in sorted(ranks)]
    return Matrix(
        rates=rates,
        times=times,
        hosts=[info.host for info in infos],
        numas=[info.numa for info in infos],
        cases=cases,
        trouble=trouble,
        one_way=one_way,
        unrated=sorted(
            _list_planned(file, [*cases_], one_way) - {pair for pair, rate in rates.items() if rate}
        ),
    )


def _list_planned(file: RunFile, recorded: Iterable[Case], one_way: bool) -> set[Pair]:
    """The pairs that a run was to measure: those of its records, and of its suite where this can
    still be read."""
    planned: list[Case] = []
    with suppress(UsageError):  # a file that it names is gone
        planned, _ = file.run.suite.expand()
    return {
        _order_ends(case)
        for case in (*planned, *recorded)
        if _is_about_pair(case) and case.row.one_way == one_way
    }


def _order_ends(case: Case) -> Pair:
    """The two ranks of a case: (from, to) of one way, else the lower first."""
    return case.pair if case.row.one_way else (min(case.pair), max(case.pair))


def _is_about_pair(case: Case) -> bool:
    """Whether the case is about a pair among more ranks."""
    return (
        (case.row.pairwise or case.row.one_way)
        and case.n == 2
        and count_placed_ranks(case.groups) > 0
    )


def class_rates(matrix: Matrix, racks: Mapping[str, str]) -> dict[str, dict[Pair, float]]:
    """Rates by how far apart the ends are: on one NUMA node, between two of a host, on one host
    whose nodes are not known, in one rack, between racks; without racks between hosts."""
    sorted_: dict[str, dict[Pair, float]] = defaultdict(dict)
    for (a, b), rate in matrix.rates.items():
        host, other = matrix.hosts[a], matrix.hosts[b]
        if host == other:
            numas = {matrix.numas[a], matrix.numas[b]}
            kind = "host" if min(numas) < 0 else "numa" if len(numas) == 1 else "numas"
        elif not (host in racks and other in racks):
            kind = "hosts"
        else:
            kind = "rack" if racks[host] == racks[other] else "racks"
        sorted_[kind][a, b] = rate
    return {kind: sorted_[kind] for kind in WORDS if kind in sorted_}


def _fold_few(rates_by_kind: dict[str, dict[Pair, float]]) -> dict[str, dict[Pair, float]]:
    """The kinds, with near pairs that are too few for one to stand out among all that near and far
    pairs are of. Where an end has no near pair, that alone tells it from the others, and near pairs
    stay by themselves."""
    folded = dict(rates_by_kind)
    for near, far, both in NEAR_AND_FAR:
        few, others = folded.get(near, {}), folded.get(far, {})
        alike = set().union(*few) == set().union(*others)
        if 0 < len(few) < MIN_PAIRS and alike:
            folded[both] = {**folded.get(both, {}), **folded.pop(near), **others}
    return folded


def is_comparable(matrix: Matrix, racks: Mapping[str, str]) -> bool:
    """Whether there are enough pairs of one kind, so that it means something if none stands out."""
    return any(len(rates) >= MIN_PAIRS for rates in class_rates(matrix, racks).values())


def explain_unrated(matrix: Matrix) -> str:
    """A phrase for the pairs that were planned and have no rate; empty where there are none."""
    if not matrix.unrated:
        return ""
    arrow = "->" if matrix.one_way else "-"
    number = format_count(len(matrix.unrated), "direction" if matrix.one_way else "pair")
    listed = list_several(f"{a} {arrow} {b}" for a, b in matrix.unrated)
    return f"{number} without a rate: ranks {listed}"


def judge_pairs(file: RunFile, racks: Mapping[str, str] | None = None) -> list[Finding]:
    """The findings that stand out in a run's pairs. ``racks`` are hosts', where they are known."""
    matrix = make_matrix(file)
    if matrix is None:
        return []
    racks, findings = racks or {}, list[Finding]()
    told: set[tuple[str, Pair]] = set()  # far pairs count in two kinds (_fold_few)
    for kind, rates in _fold_few(class_rates(matrix, racks)).items():
        for way, blamed in blame_ways(rates, matrix.one_way).items():
            ends, hosts = _by_host(blamed.ends, rates, matrix.hosts)
            links = {
                pair: share
                for pair, share in blamed.links.items()
                if not {*pair} & {*blamed.ends} and (way, pair) not in told
            }
            told |= {(way, pair) for pair in links}
            uplinks: Mapping[tuple[str, str], float] = {}
            if kind == "racks":
                links, uplinks = _by_rack(links, rates, matrix.hosts, racks)
            add_finding = partial(
                _make_finding, file, matrix, f"{way} {{:.0%}} of what others do {WORDS[kind]}"
            )
            findings += [add_finding("host", host, share) for host, share in hosts.items()]
            findings += [
                add_finding("rank", _name_rank(matrix, end), share) for end, share in ends.items()
            ]
            findings += [
                add_finding("link", " -> ".join(both), share) for both, share in uplinks.items()
            ]
            findings += [
                add_finding(
                    "link", " -> ".join(_name_rank(matrix, end) for end in pair), share, pair
                )
                for pair, share in links.items()
            ]
    return sorted(findings, key=lambda finding: finding.evidence[0].value)


def _name_rank(matrix: Matrix, rank: int) -> str:
    """``host`` where it has one rank, else ``host:rank``."""
    host = matrix.hosts[rank]
    return host if matrix.hosts.count(host) == 1 else f"{host}:{rank}"


def _by_host(
    ends: Mapping[int, float], rates: Rates, names: Sequence[str]
) -> tuple[dict[int, float], dict[str, float]]:
    """Ranks that stand out among those of their host, and hosts of which most do."""
    ends_of_host: dict[str, set[int]] = defaultdict(set)
    for end in {end for pair in rates for end in pair}:
        ends_of_host[names[end]].add(end)
    slow = {
        host: [ends[end] for end in host_ends if end in ends]
        for host, host_ends in ends_of_host.items()
    }
    alone = len(set(names)) == 1  # then ranks are all there is to name
    hosts = (
        {}
        if alone
        else {h: median(s) for h, s in slow.items() if s and len(s) >= MANY * len(ends_of_host[h])}
    )
    return {end: share for end, share in ends.items() if names[end] not in hosts}, hosts


def _by_rack(
    links: Mapping[Pair, float], rates: Rates, hosts: Sequence[str], racks: Mapping[str, str]
) -> tuple[dict[Pair, float], dict[tuple[str, str], float]]:
    """Links that stand out, and pairs of racks between which most do."""

    def between(pair: Pair) -> tuple[str, str]:
        a, b = (racks[hosts[end]] for end in pair)
        return (a, b) if pair[::-1] in rates else (min(a, b), max(a, b))

    every: dict[tuple[str, str], int] = defaultdict(int)
    slow: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair in rates:
        every[between(pair)] += 1
    for pair, share in links.items():
        slow[between(pair)].append(share)
    uplinks = {
        both: median(shares) for both, shares in slow.items() if len(shares) >= MANY * every[both]
    }
    return {pair: share for pair, share in links.items() if between(pair) not in uplinks}, uplinks


ADVICE = {
    "host": (
        "what its pairs have in common is the host: look at its NIC, cable, PCIe link, clocks and"
        " load"
    ),
    "rank": (
        "its neighbours on the host are well: look at this rank's GPU, its NIC and the cores it is"
        " bound to"
    ),
    "link": "both ends are well with others: look at cables, switch ports and routes between them",
}

WHICH_WAY = "; collbench pairs --one-way tells which direction is slow"


def _make_finding(
    file: RunFile,
    matrix: Matrix,
    template: str,
    kind: str,
    name: str,
    share: float,
    pair: Pair | None = None,
) -> Finding:
    what = f"{name} {template.format(share)}"
    case = matrix.cases[pair].key if pair in matrix.cases else ""
    evidence = [
        Evidence(
            what="share of the others' bandwidth",
            value=round(share, 4),
            expected=1.0,
            run=file.run.id,
            case=case,
        )
    ]
    if pair and pair in matrix.trouble:
        what = f"{name}: {matrix.trouble[pair]}"
    return Finding(
        check="link uniformity",
        severity="warning",
        subject=Subject(kind, name),  # type: ignore[arg-type]
        what=what,
        advice=ADVICE[kind] + ("" if matrix.one_way else WHICH_WAY),
        evidence=evidence,
    )


def summarise_pairs(matrix: Matrix, racks: Mapping[str, str]) -> list[str]:
    """Sentences about the bandwidth of pairs, by how far apart they are."""
    lines, noun = [], "direction" if matrix.one_way else "pair"
    for kind, rates in class_rates(matrix, racks).items():
        values = sorted(rates.values())
        times = [matrix.times[pair] for pair in rates if pair in matrix.times]
        fast = f", {format_duration(median(times))} at the smallest" if times else ""
        lines.append(
            f"{format_count(len(rates), noun)} {WORDS[kind]}: {format_bandwidth(median(values))}"
            " GB/s in the"
            f" median, {format_bandwidth(values[0])} to {format_bandwidth(values[-1])}{fast}"
        )
    return lines
