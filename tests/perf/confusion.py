"""Who is named when a fault is planted among six hosts, trial by trial: reports/confusion.md.

``python tests/perf/confusion.py --runs reports/confusion.jsonl --output reports/confusion.md`` goes
on where it was cut short. Needs root, ip and tc. ``--trials 2 --only slow-link-80`` tries some.
``--date`` is the day of trials that were kept without one.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import sections

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

import launching
import network
from network import Host, Lab

from collbench.machine import cpus, environment

HOSTS, RATE, WANTED = 6, 10**8, 19
SIZE, SAMPLES = "512K", 6
ENDLESS = ["pairs", "--large", "256K", "--small", "0", "-n", "400", "-T", "6"]
UNIT = re.compile(r"h\d+( -> h\d+)?")  # a host or a link, as in "named"
HEARD = re.compile(r"rank \d+ on (h\d+)")
PATIENCE = 180  # seconds for a search, or for ranks to come together
Victims = Sequence[Host]
Result = dict[str, Any]


class Trial(NamedTuple):
    """``planted`` does something to the victims' network and undoes it; by ``slow`` the first one's
    calls take longer; ``strike`` does something to them while they measure. ``link``: they are the
    two ends of one culprit.
    """

    what: str
    victims: int = 1
    planted: Callable[[Lab, Victims], AbstractContextManager[None]] = lambda lab, victims: (
        nullcontext()
    )
    slow: str = ""
    strike: Callable[[Lab, Victims], None] | None = None
    link: bool = False


def throttled(*shares: float) -> Callable[[Lab, Victims], AbstractContextManager[None]]:
    """Links of the last victims at so much of their rate."""

    @contextmanager
    def planted(lab: Lab, victims: Victims) -> Iterator[None]:
        those = victims[-len(shares) :]
        for host, share in zip(those, shares, strict=True):
            lab.throttle(host, round(RATE * share))
        yield
        for host in those:
            lab.throttle(host, RATE)

    return planted


@contextmanager
def between(lab: Lab, victims: Victims) -> Iterator[None]:
    lab.detour(victims[0], victims[1], RATE // 2)
    yield
    lab.straight(victims[0], victims[1])


def stop(lab: Lab, victims: Victims) -> None:
    """The ranks stand still, as one does that a debugger or a full disk holds."""
    theirs = [Path(f"/proc/{host.pid}/ns/pid").readlink() for host in victims]
    for process in psutil.process_iter(["cmdline"]):
        if (
            "collbench" in process.info["cmdline"]
            and Path(f"/proc/{process.pid}/ns/pid").readlink() in theirs
        ):
            process.send_signal(signal.SIGSTOP)


def cut(lab: Lab, victims: Victims) -> None:
    for host in victims:
        lab.cut(host)


TRIALS = {
    "nothing": Trial("nothing", 0),
    "slow-link-80": Trial("a host's link at 80 %", planted=throttled(0.8)),
    "slow-link-50": Trial("a host's link at 50 %", planted=throttled(0.5)),
    "two-links": Trial("two hosts' links, at 50 % and 80 %", 2, throttled(0.5, 0.8)),
    "between": Trial("what two hosts send each other, at 50 %", 2, between, link=True),
    "slow-host": Trial("a host whose calls take 25 % longer", slow="25%"),
    "host-and-link": Trial("the same, and another's link at 50 %", 2, throttled(0.5), slow="25%"),
    "blocked": Trial("a host that is cut off", strike=cut),
    "stopped": Trial("a rank that is stopped", strike=stop),
}


class Searchers:
    """Ranks in a lab that search whenever they are told to."""

    def __init__(self, faults: str) -> None:
        self._faults, self._stack, self._searched = faults, ExitStack(), 0

    def __enter__(self) -> Searchers:
        self.lab = self._stack.enter_context(Lab(HOSTS, RATE))
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        words = [
            str(Path(__file__).with_name("searches.py")),
            str(self._folder),
            SIZE,
            str(SAMPLES),
            self._faults,
        ]
        self._processes = launching.by_environment(self.lab, words, 1, {})
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "end").touch()
        with suppress(subprocess.TimeoutExpired):
            launching.ended(self._processes[0], 30)
        ended(self._processes)
        self._stack.close()

    def search(self) -> tuple[list[str], str]:
        """Who is named, and in which words. Raises RuntimeError where ranks end or nothing
        comes."""
        (self._folder / f"go.{self._searched}").touch()
        self._searched += 1
        told, until = self._folder / "told", time.monotonic() + PATIENCE
        while not told.exists() or len(lines := told.read_text().splitlines()) < self._searched:
            if time.monotonic() > until or self._processes[0].poll() is not None:
                self._processes[0].kill()
                raise RuntimeError(self._processes[0].communicate()[1][-300:] or "nothing came")
            time.sleep(0.05)
        found = json.loads(lines[-1])
        names = [" -> ".join(sorted(name.split(" -> "))) for name in found["named"]]
        return names + ["nobody, but not all cleared"] * bool(found["open"]), found["words"]


def ended(processes: launching.Processes) -> None:
    """With their children: one that is stopped keeps the pipes."""
    for process in processes:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate()


def chosen_by(name: str, seed: int) -> list[str]:
    """Victims' names."""
    return random.Random(f"{name} {seed}").sample(
        [f"h{i}" for i in range(1, HOSTS)], TRIALS[name].victims
    )


def faults(name: str, seed: int) -> str:
    """What has to be planted when ranks start."""
    slow = TRIALS[name].slow
    return f"slow-rank:{chosen_by(name, seed)[0][1:]}:{slow}" if slow else ""


def searched(todo: Sequence[tuple[str, int]]) -> Iterator[Result]:
    """Trials whose ranks may start alike, by one world of them as long as it lives."""
    left = list(todo)
    while left:
        with Searchers(faults(*left[0])) as searchers:
            while left:
                name, seed = left.pop(0)
                victims = [
                    host
                    for wanted in chosen_by(name, seed)
                    for host in searchers.lab.hosts
                    if host.name == wanted
                ]
                began = time.monotonic()
                try:
                    with TRIALS[name].planted(searchers.lab, victims):
                        time.sleep(0.5)  # what queues held goes by
                        named, said = searchers.search()
                except RuntimeError as e:
                    yield outcome(name, seed, ["it ended"], str(e), began)
                    break
                yield outcome(name, seed, named, said, began)


def outcome(name: str, seed: int, named: Sequence[str], said: str, began: float) -> Result:
    names = sorted(chosen_by(name, seed))
    planted = [" -> ".join(names)] if TRIALS[name].link else names
    return {
        "trial": name,
        "seed": seed,
        "planted": planted,
        "named": sorted(named),
        "said": said,
        "seconds": round(time.monotonic() - began, 1),
        "day": sections.today(),
        "machine": describe_cpu(),
    }


def describe_cpu() -> str:
    return f"{environment.gather_facts()['cpu'].get('model')}, {cpus.core_count()} cores"


def struck(name: str, seed: int) -> Result:
    """Who rank 0 names once it has given up."""
    began, trial = time.monotonic(), TRIALS[name]
    with Lab(HOSTS, RATE) as lab, tempfile.TemporaryDirectory() as folder:
        victims = [host for host in lab.hosts if host.name in chosen_by(name, seed)]
        path = Path(folder) / "run.jsonl"
        processes = launching.by_environment(
            lab, ["-m", "collbench", *ENDLESS, "--output", str(path)], 1, {}
        )
        try:
            until = time.monotonic() + PATIENCE
            while not (path.exists() and b'"line":"record"' in path.read_bytes()):
                if time.monotonic() > until:
                    return outcome(name, seed, ["it never measured"], "", began)
                time.sleep(0.1)
            assert trial.strike
            trial.strike(lab, victims)
            first = launching.ended(processes[0], 60)
        except subprocess.TimeoutExpired:
            return outcome(name, seed, ["nobody, and no end"], "", began)
        finally:
            ended(processes)
    line = next((line for line in first.stderr.splitlines() if line.startswith("collbench: ")), "")
    return outcome(name, seed, sorted(set(HEARD.findall(line))), line, began)


def results(todo: Sequence[tuple[str, int]]) -> Iterator[Result]:
    alike: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, seed in sorted(todo, key=lambda one: one[1]):
        if not TRIALS[name].strike:
            alike[faults(name, seed)].append((name, seed))
    for trials in alike.values():
        yield from searched(trials)
    for name, seed in todo:
        if TRIALS[name].strike:
            yield struck(name, seed)


def tallied(results: list[Result]) -> list[str]:
    lines = []
    for name, trial in TRIALS.items():
        mine = [result for result in results if result["trial"] == name]
        right = sum(result["planted"] == result["named"] for result in mine)
        others = sum(
            any(map(UNIT.fullmatch, set(result["named"]) - set(result["planted"])))
            for result in mine
        )
        missed = sum(bool(set(result["planted"]) - set(result["named"])) for result in mine)
        met = "-" if not mine else "met" if right >= WANTED / 20 * len(mine) else "not met"
        took = f"{sum(result['seconds'] for result in mine) / len(mine):.0f} s" if mine else "-"
        lines.append(
            f"| {trial.what} | {len(mine)} | {right} | {missed} | {others} | {met} | {took} |"
        )
    return lines


PAGE = f"""# Who is named when a fault is planted

{HOSTS} hosts of {RATE // 10**6} Mb/s that are namespaces of one kernel
([tests/lab](../tests/lab)), so that all ranks share cores: {{machine}}. In each trial the seed
chooses the victims among all but the first host; right is who names them all and nobody else.
Wanted: {WANTED} of 20. Somebody else is a host or a link; a search that ends early, or does not
clear all, is not right either. Ranks search as `collbench locate --size {SIZE} -n {SAMPLES}` does,
but with one call of warm-up where that has two, again and again while faults come and go; a host
that is cut off, or stopped, is named by rank 0's last words, each time by new ranks. Made by `tests/perf/confusion.py`; each trial is a line of
[confusion.jsonl](confusion.jsonl).

| planted | trials | right | somebody missed | somebody else named | {WANTED} of 20 | a trial takes |
|---|--:|--:|--:|--:|---|--:|
{{lines}}
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", default=",".join(TRIALS))
    parser.add_argument("--date", default=sections.today())
    chosen = parser.parse_args()
    if reason := network.why_not():
        raise SystemExit(reason)
    found = (
        [json.loads(line) for line in chosen.runs.read_text().splitlines()]
        if chosen.runs.exists()
        else []
    )
    done = {(result["trial"], result["seed"]) for result in found}
    wanted = [(name, seed) for name in chosen.only.split(",") for seed in range(chosen.trials)]
    for result in results([one for one in wanted if one not in done]):
        found.append(result)
        with chosen.runs.open("a") as out:
            out.write(json.dumps(result) + "\n")
        print(json.dumps(result), file=sys.stderr)
    machines = dict.fromkeys(result.get("machine", describe_cpu()) for result in found)
    days = sections.between(result.get("day", chosen.date) for result in found)
    machine = f"{'; '.join(machines)}, {days}"
    chosen.output.write_text(PAGE.format(machine=machine, lines="\n".join(tallied(found))))


if __name__ == "__main__":
    main()
