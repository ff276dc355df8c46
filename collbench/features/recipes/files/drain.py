#!/usr/bin/env python3
"""collbench recipe: takes the hosts that a verdict blames out of service.

    collbench health --on-unhealthy './drain.py slurm'
    collbench health --on-unhealthy './drain.py kubernetes'
    collbench health --format json | ./drain.py slurm --dry-run

Reads the verdict as JSON on standard input and takes the hosts of its list `blamed`: those that a
critical finding, or a sure warning on machines that nobody else used, is about. The list is empty
where there is no verdict, a fault was planted or GPUs were fake. Where more hosts than --most are
blamed, or are out of service for such a verdict already, nothing is done: that many are rarely
broken at once, and a person should look. Nor where the runs ended more than --max-age hours ago, as
where no new ones were made and the last are judged again: a host may be repaired since. Nodes that
judge themselves at the same moment do not see each other: start their checks apart.
Needs Python 3.9, and scontrol or kubectl.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from datetime import datetime, timezone

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*")
TAINT = "collbench/unhealthy"
DRAINED = re.compile(r"\bState=\S*DRAIN")  # in a line of scontrol show node -o


def main() -> int:
    """Take hosts out of service; 0 where all that was to be done is done."""
    parser = argparse.ArgumentParser(description="Take blamed hosts out of service.")
    parser.add_argument("where", choices=("slurm", "kubernetes"))
    parser.add_argument(
        "--most", type=int, default=2, help="hosts out of service at once (default 2)"
    )
    parser.add_argument(
        "--max-age", type=float, default=24, help="hours since the runs ended (default 24)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print commands, run none")
    options = parser.parse_args()
    try:
        verdict = json.load(sys.stdin)
        if verdict["schema"] != 1:
            raise ValueError("a verdict of another version")
        blamed = verdict["blamed"] if verdict["state"] == "unhealthy" else []
        reasons = {entry["host"]: "; ".join(entry["reasons"]) for entry in blamed}
        ended = str(verdict.get("ended", ""))
    except (ValueError, KeyError, TypeError) as error:
        print(f"drain: this is no verdict of collbench: {error!r}", file=sys.stderr)
        return 2
    for host in reasons:
        short = host.partition(".")[0]
        if not HOST.fullmatch(host) or short.lower() == "all" or short.isdigit():
            print(f"drain: {host!r} is no host's name; nothing is done", file=sys.stderr)
            return 2
    if not reasons:
        print("drain: no host is blamed with certainty; nothing is done", file=sys.stderr)
    elif why := explain_refusal(len(reasons), ended, options):
        print(f"drain: {why}; nothing is done", file=sys.stderr)
        return 1
    taken = list_taken(options.where, reasons) if reasons else []
    if taken is None and not options.dry_run:
        return 1
    others = taken or []
    if len(reasons) + len(others) > options.most:
        names = ", ".join(others[:8]) + ", …" * (len(others) > 8)
        print(
            f"drain: {', '.join(reasons)} blamed, and collbench has taken out of service already:"
            f" {names}; together more than --most, so nothing is done",
            file=sys.stderr,
        )
        return 1
    take = drain_in_slurm if options.where == "slurm" else taint_in_kubernetes
    return max([take(host, reason, options.dry_run) for host, reason in reasons.items()], default=0)


def explain_refusal(blamed: int, ended: str, options: argparse.Namespace) -> str:
    """Why hosts are not taken out of service by such a verdict, or an empty string."""
    reasons = []
    hours = count_hours(ended)
    if hours is None:
        reasons.append("the verdict does not say when the runs ended")
    elif hours > options.max_age:
        reasons.append(f"the runs ended {ended}, longer ago than --max-age")
    if blamed > options.most:
        reasons.append(f"{blamed} hosts are blamed, more than --most")
    return "; ".join(reasons)


def count_hours(ended: str) -> float | None:
    """Hours since a time in ISO 8601; None where it is no time."""
    try:
        when = datetime.fromisoformat(ended).astimezone(timezone.utc)  # noqa: UP017 - Python 3.9
    except (ValueError, OverflowError):
        return None
    return (datetime.now(timezone.utc) - when).total_seconds() / 3600  # noqa: UP017


def list_taken(where: str, blamed: dict[str, str]) -> list[str] | None:
    """Other nodes than those blamed now that a verdict has taken out of service before; None where
    the cluster does not tell, which is said."""
    slurm = where == "slurm"
    command = ["scontrol", "show", "node", "-o"] if slurm else ["kubectl", "get", "nodes", "-ojson"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        names = list_drained(done.stdout) if slurm else list_tainted(done.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError) as error:
        print(
            f"drain: which nodes are out of service already is not known: {error}", file=sys.stderr
        )
        return None
    now = {host.partition(".")[0].lower() for host in blamed} | {host.lower() for host in blamed}
    return [name for name in names if name.lower() not in now]


def list_drained(text: str) -> list[str]:
    """The nodes that Slurm says are drained for a reason of collbench's."""
    lines = (line for line in text.splitlines() if DRAINED.search(line))
    found = (re.match(r"NodeName=(\S+).*\bReason=collbench: ", line) for line in lines)
    return [match[1] for match in found if match]


def list_tainted(text: str) -> list[str]:
    """The nodes that have collbench's taint."""
    return [
        node["metadata"]["name"]
        for node in json.loads(text)["items"]
        if any(taint["key"] == TAINT for taint in node["spec"].get("taints") or ())
    ]


def drain_in_slurm(host: str, reason: str, dry_run: bool) -> int:
    """Drain a node, whose jobs end in peace. One that is drained keeps the reason it has."""
    node = host.partition(".")[0]  # as NodeName= in slurm.conf usually has it
    if not dry_run and is_drained(node):
        print(f"drain: {node} is drained already", file=sys.stderr)
        return 0
    reason = one_line(f"collbench: {reason}")[:250]
    return run(
        ["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"], dry_run
    )


def is_drained(node: str) -> bool:
    """Whether Slurm says that a node is drained; not where it says nothing."""
    command = ["scontrol", "show", "node", node, "-o"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return bool(DRAINED.search(done.stdout))


def taint_in_kubernetes(host: str, reason: str, dry_run: bool) -> int:
    """Keep new pods off a node, and say why in an annotation."""
    node = host.lower()
    code = run(
        ["kubectl", "taint", "nodes", node, f"{TAINT}=true:NoSchedule", "--overwrite"], dry_run
    )
    note = f"{TAINT}-reason={one_line(reason)[:1000]}"
    return code or run(["kubectl", "annotate", "nodes", node, note, "--overwrite"], dry_run)


def one_line(text: str) -> str:
    """Text with its characters that cannot be printed replaced."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def run(command: list[str], dry_run: bool) -> int:
    """Run a program, without a shell."""
    print(f"drain: {command}", file=sys.stderr)
    if dry_run:
        return 0
    try:
        return subprocess.run(command, check=False).returncode and 1
    except OSError as error:
        print(f"drain: {command[0]}: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
