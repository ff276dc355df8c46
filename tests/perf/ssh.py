"""What becomes of a run of --launcher ssh over four hosts when one of them fails in the middle.

``python tests/perf/ssh.py --output reports/ssh.md [--trials 5]`` (make faults). Needs root, ip, tc,
unshare and sshd. Hosts are network namespaces (tests/lab), each with an sshd; the command runs on a
fifth. Nothing here is asserted in CI: the table says what was met.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lab"))

import network
import shells
from network import Host, Lab

from collbench.core.errors import Exit
from collbench.machine import cpus
from collbench.records import run_file

HOSTS, TIMEOUT = 4, 10  # -T
ARGS = (
    *("all_reduce", "--place", "out", "--sizes", "4K", "-n", "50", "-w", "0", "-N", "1000"),
    *("-T", str(TIMEOUT)),
)
START_SECONDS, END_SECONDS, CLEAN_SECONDS = 180.0, 60.0, 30.0
FAULTS = {
    "rank": "the rank of a host is killed",
    "sshd": "all of sshd on a host is killed",
    "host": "all processes of a host end at once, and its network with them",
    "link": "a host's link loses all frames",
}
CHECKS = ("ended", "exit", "named", "alone", "kept", "clean")


class Trial(NamedTuple):
    """What was met: the time from the fault to the command's end, each check, and the message."""

    fault: str
    host: str
    seconds: float
    checks: dict[str, bool]
    message: str


def processes_of(host: Host) -> Iterator[psutil.Process]:
    """Those of a host, but for its first."""
    space = Path(f"/proc/{host.pid}/ns/pid").readlink()
    for process in psutil.process_iter():
        with suppress(OSError):
            if process.pid != host.pid and Path(f"/proc/{process.pid}/ns/pid").readlink() == space:
                yield process


def kill_all(host: Host, word: str) -> None:
    """Kill the processes of a host whose command line has this word."""
    for process in processes_of(host):
        with suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                process.kill()


def count_python(hosts: Sequence[Host]) -> int:
    """Processes of collbench on these hosts."""
    count = 0
    for host in hosts:
        for process in processes_of(host):
            with suppress(psutil.Error):
                count += "python" in process.name()
    return count


def wait_until(what: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.05)
    return what()


def strike(lab: Lab, fault: str, host: Host) -> None:
    """Do what the fault says."""
    if fault == "host":
        lab.kill(host)
    elif fault == "link":
        lab.cut(host)
    else:
        kill_all(host, "launch.keeper" if fault == "rank" else "sshd")


def run_trial(fault: str, index: int, delay: float) -> Trial:
    """One run on a lab of its own."""
    with tempfile.TemporaryDirectory() as name, Lab(hosts=HOSTS) as lab:
        folder = Path(name)
        path = folder / "run.jsonl"
        process = shells.Shells(lab, folder).start(*ARGS, "--output", str(path))
        begun = wait_until(
            lambda: path.exists() and path.read_text().count('"line":"record"') > 2, START_SECONDS
        )
        assert begun, process.poll()
        time.sleep(delay)
        host, since = lab.hosts[index], time.monotonic()
        strike(lab, fault, host)
        try:
            _, err = process.communicate(timeout=END_SECONDS)
            has_ended = True
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate()
            has_ended = False
        seconds = time.monotonic() - since
        others = [other for other in lab.hosts if fault != "host" or other != host]
        is_clean = wait_until(lambda: not count_python(others), CLEAN_SECONDS)
        records = run_file.read_file(path).records
        message = records[-1].note
        shown = message.partition(" while at work")[0] in err
        names = set(re.findall(r"\bh[0-3]\b", message))
        return Trial(
            fault,
            host.name,
            seconds,
            {
                "ended": has_ended,
                "exit": process.returncode == Exit.TIMEOUT,
                "named": host.name in names and shown,
                "alone": names <= {host.name},
                "kept": len(records) > 2 and all(r.status == "ok" for r in records[:-1]),
                "clean": is_clean,
            },
            message,
        )


def describe(trials: Sequence[Trial], at_once: int) -> str:
    """The page."""
    named = sum(trial.checks["named"] and trial.checks["alone"] for trial in trials)
    good = sum(all(trial.checks.values()) for trial in trials)
    today = datetime.now(UTC).date().isoformat()
    lines = [
        "# What becomes of `--launcher ssh` when a host fails in the middle",
        "",
        f"In {named} of {len(trials)} trials the host that failed was named, and no other; in"
        f" {good} all was as documented.",
        f"Made by `python tests/perf/ssh.py --at-once {at_once}` on"
        f" {cpus.core_count()} cores, Python {platform.python_version()}, {today};"
        f" -T {TIMEOUT}. Four hosts are network namespaces of one kernel, each with an sshd, a rank"
        " each on Gloo; the command runs on a fifth.",
        "",
        "Seconds are from the fault to the end of the command, which other work on the machine may"
        f" have made longer. No process left: on any host that still runs, {CLEAN_SECONDS:.0f} s"
        " later at most; a host whose link is cut has to end its ranks by itself.",
        "",
        "| fault | trials | median s | longest s | ended in time | exit code 4 | host named"
        " | no other named | finished cases kept | no process left |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for fault, words in FAULTS.items():
        of_fault = [trial for trial in trials if trial.fault == fault]
        if not of_fault:
            continue
        times = [trial.seconds for trial in of_fault]
        counts = [str(sum(trial.checks[check] for trial in of_fault)) for check in CHECKS]
        cells = [words, str(len(of_fault)), f"{statistics.median(times):.1f}", f"{max(times):.1f}"]
        lines.append("| " + " | ".join([*cells, *counts]) + " |")
    lines += ["", "One message of each:", "", "```"]
    for fault in FAULTS:
        lines += [trial.message for trial in trials if trial.fault == fault][:1]
    return "\n".join([*lines, "```", ""])


def main() -> int:
    """Run all trials, and write the page; 1 if one was not as documented."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--trials", type=int, default=5, help="of each fault")
    parser.add_argument("--only", choices=FAULTS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="trials, each on a lab of its own")
    options = parser.parse_args()
    if reason := network.why_not() or shells.why_not():
        print(reason, file=sys.stderr)
        return Exit.CANNOT_RUN
    chance, trials = random.Random(options.seed), []
    cells = itertools.product(range(options.trials), options.only or FAULTS)
    jobs = [
        (fault, (at + index) % HOSTS, chance.uniform(0.0, 2.0))
        for index, (at, fault) in enumerate(cells)
    ]
    pool = ThreadPoolExecutor(options.at_once)
    for done in as_completed([pool.submit(run_trial, *job) for job in jobs]):
        trials.append(trial := done.result())
        wrong = [check for check, is_right in trial.checks.items() if not is_right]
        print(trial.fault, trial.host, f"{trial.seconds:.1f} s", wrong or "ok", trial.message)
        sys.stdout.flush()
        if options.output:
            options.output.write_text(describe(trials, options.at_once))
    return int(any(not all(trial.checks.values()) for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
