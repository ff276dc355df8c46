"""What flags mean, and what to do about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from collbench.core.text import duration
from collbench.records import derive
from collbench.records.derive import Derived
from collbench.run.reporter import Outcome
from collbench.suite.policy import Policy


class Flag(NamedTuple):
    """A flag's meaning, and what to do about it. ``whole``: all rows of a process group have it,
    and nccl-tests' text says it once for the group."""

    meaning: str
    remedy: str
    whole: bool = False


FLAGS = {
    "injected": Flag(
        "a fault was planted on purpose (--inject): shows that an alarm fires, and nothing of the"
        " machine",
        "leave --inject out to measure",
        whole=True,
    ),
    "predicted": Flag(
        "computed from a model of the network, not measured",
        "measure it to know",
        whole=True,
    ),
    "oversubscribed": Flag(
        "more ranks than physical cores: times include waiting for a core",
        "take no more ranks than cores (-g) for times to rely on",
        whole=True,
    ),
    "n<6": Flag(
        "fewer than 6 samples: too few for an interval",
        "{enough}",
    ),
    "cut-short": Flag(
        "the run ended while this was measured: what was finished is shown, its data was not"
        " checked afterwards, and no verdict rests on it",
        "collbench run --resume measures it again",
    ),
    "unconverged": Flag(
        "stopped by {limit} before {precision}",
        "allow more ({more}) or ask for less ({less}){why}",
    ),
    "unsteady": Flag(
        "times were still changing when warm-up had to end, and while measuring",
        "warm up for longer (-w 1000)",
    ),
    "skewed": Flag(
        "ranks started apart by more than 5 % of the time (with !: 20 %)",
        "leave a core to each rank and stop other processes; larger sizes are less affected",
    ),
    "arrival-sensitive": Flag(
        "ranks that start together, as here, take another time than a program's, which come as they"
        " may: see the column `as called`",
        "measure what a program sees (--mode host)",
    ),
    "apart": Flag(
        "ranks came apart on purpose (--arrival): times count from the last one's arrival",
        "nothing: compare with --arrival aligned",
        whole=True,
    ),
    "overhead": Flag(
        "measuring itself takes more than 5 % of the time (with !: 20 %)",
        "put several calls into each sample (-m 20)",
    ),
    "invalid": Flag(
        "more than 5 % of the samples were discarded and measured again (with !: 25 %)",
        "stop other processes; --sync barrier where ranks cannot start in time",
    ),
    "bimodal": Flag(
        "times gather around two values (shown), and the median may be neither",
        "read these two in place of the median",
    ),
    "preempted": Flag(
        "other processes were at work, and a rank lost its core in more than 5 % of the samples",
        "stop them, or measure when the machine is idle",
    ),
    "late": Flag(
        "this rank came last far more often than chance explains; the others wait for it",
        "look at what else runs on its host; collbench locate finds slow hosts",
    ),
    "+copy": Flag(
        "the time includes copying the buffer: this library has no out-of-place version",
        "nothing to do; rows in place are without the copy",
    ),
    "imported": Flag(
        "read from another tool's log, which tells less than samples do: never decides a"
        " comparison",
        "nothing to do, or measure again with collbench",
        whole=True,
    ),
    "blocking": Flag(
        "each call's time includes a wait for all ranks (-z 1)",
        "leave -z out for the call alone",
        whole=True,
    ),
    "fake": Flag(
        "measured on a fake GPU, whose times mean nothing: nothing compares, ranks or keeps them",
        "measure on a GPU",
        whole=True,
    ),
    "interpreted": Flag(
        "kernels ran in Triton's interpreter, on CPUs: shows that results are right, and no time",
        "measure on a GPU",
        whole=True,
    ),
    "virtual": Flag(
        "all ranks are virtual ones on one GPU: what an algorithm costs there, not what links"
        " between GPUs do",
        "leave --virtual-ranks out where there are several GPUs",
        whole=True,
    ),
    "shared-gpu": Flag(
        "ranks share a GPU: shows that it runs, not what a machine can do",
        "take no more ranks than GPUs (-g)",
        whole=True,
    ),
    "launch-bound": Flag(
        "a host issued calls more slowly than its device does them: the time is the host's",
        "measure what the device takes, too (--mode isolated,graph)",
    ),
    "throttled": Flag(
        "a GPU was held back meanwhile (heat, power brake, low clock); samples that end so are"
        " measured again",
        "nvidia-smi -q -d PERFORMANCE says why; look at cooling and power supply",
    ),
    "wire": Flag(
        "counters saw that more bytes were sent than busbw assumes, or they are known to be: wire"
        " says how many times as many",
        "judge links by what they carried; another algorithm (--algo) may send less",
    ),
    "few-buffers": Flag(
        "too little memory for enough buffers: some data may still be in a cache",
        "take smaller sizes (-e) or fewer ranks, or say --cache hot and mean it",
    ),
    "no-effect": Flag(
        "the library did not follow a setting that was asked for; the record's note says which",
        "leave the setting out, or ask for one that the library has here",
    ),
    "no-splits": Flag(
        "the file that said how data is split cannot be read any more: bandwidth is unknown",
        "put the file back where it was",
    ),
}


GENERAL = {  # where the run's own figures are not known, or differ between runs
    "limit": "the limit of time or samples",
    "precision": "the precision asked for was reached",
    "more": "--max-time",
    "enough": "allow more time (--max-time) or ask for more samples (-n 20)",
    "less": "--precision",
    "why": "",
}
BUDGET = {
    "limit": "its share of --budget",
    "more": "--budget",
    "enough": "allow more time (--budget) or ask for more samples (-n 20)",
}


def figures(
    policy: Policy,
    crowded: Collection[bool],
    stops: Collection[str] = (),
    command: Collection[str] = (),
) -> dict[str, str]:
    """What stands in place of GENERAL for a run: ``crowded`` says of each group of ranks whether it
    had fewer cores than threads that must run, ``stops`` for which reasons measuring unconverged
    rows ended (Record.stop), and ``command`` what the run was asked with."""
    limits = policy.resolved(any(crowded))
    assert limits.precision and limits.max_seconds is not None
    samples, seconds = set(stops) == {"max_n"}, limits.max_seconds
    more_time = f"--max-time {_seconds(_stepped(2 * seconds))}{' without -n' * bool(policy.iters)}"
    ways = [f"allow more time ({more_time})"] * (not policy.iters or bool(stops))
    ways += ["ask for more samples (-n 20)"] * (not policy.iters or not stops)
    return {
        "limit": f"the limit of {limits.max_iters:,} samples"
        if samples
        else f"--max-time {_seconds(seconds)}",
        "precision": precision(policy, crowded, " %"),
        "more": f"max_iters = {round(_stepped(2 * limits.max_iters))} in a suite"
        if samples
        else more_time,
        "enough": " or ".join(ways),
        "less": f"--precision {100 * _stepped(2 * limits.precision):.2g}%",
        "why": "; times scatter, as ranks have fewer cores than threads that must run"
        if crowded and all(crowded)
        else "",
        **(BUDGET if "--budget" in command else {}),
    }


def precision(policy: Policy, crowded: Collection[bool], percent: str) -> str:
    """The precision asked for; both where groups of ranks of both kinds (see ``figures``) ran."""
    each = {policy.resolved(kind).precision or 0.0 for kind in crowded or (False,)}
    return " or ".join(f"±{100 * wanted:.2g}{percent}" for wanted in sorted(each))


def _stepped(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _seconds(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}s"


def kind(flag: str) -> str:
    """A flag without its rank and its exclamation mark."""
    return flag.partition(":")[0].rstrip("!")


def explained(flag: str, known: Mapping[str, str] = GENERAL) -> Flag:
    """What a flag means and what to do, with figures of the run where these are ``known``."""
    found = FLAGS.get(kind(flag)) or Flag("a flag that this version does not know", "update it")
    return found._replace(
        meaning=found.meaning.format_map(known), remedy=found.remedy.format_map(known)
    )


def legend(
    outcomes: Sequence[Outcome],
    policy: Policy,
    crowded: Collection[bool],
    command: Collection[str] = (),
) -> list[str]:
    """A line for each flag that occurred, most frequent first: how often, its meaning, and what to
    do."""
    flags = Counter(kind(flag) for _, row in outcomes if row for flag in row.flags)
    stops = {r.stop for r, row in outcomes if row and "unconverged" in row.flags}
    known = figures(policy, crowded, stops, command)
    lines = [(flag, times, explained(flag, known)) for flag, times in flags.most_common()]
    return [f"{flag} ({times}): {told.meaning}; {told.remedy}" for flag, times, told in lines]


def named(row: Derived, among: Iterable[str] | None = None) -> list[str]:
    """A row's flags as its line shows them, or those of them ``among`` which it is asked: bimodal
    with both modes' times, wire with its factor."""
    both = "|".join(duration(mode).replace(" ", "") for mode in row.modes or ())
    more = {"bimodal": f"bimodal:{both}", "wire": f"wire:{row.carried:.2f}x"}
    return [more.get(flag, flag) for flag in (row.flags if among is None else among)]


def doubts(rows: Iterable[derive.Interval]) -> str:
    """The flags for which none of these rows represents the run, counted: 2 unconverged, 1
    bimodal."""
    found = Counter(kind(flag) for row in rows for flag in derive.doubts(row))
    return ", ".join(f"{times} {flag}" for flag, times in found.most_common())
