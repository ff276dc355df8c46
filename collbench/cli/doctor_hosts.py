"""Findings of ``doctor --hosts``: which hosts ssh reaches, and what each has."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.cli.doctor_gpus import Finding
from collbench.cli.options import find_hosts
from collbench.core.text import format_count, plain_line
from collbench.run.launch import join, ssh
from collbench.run.launch.launched import PRESENT_SECONDS


def check_hosts(hosts: str, command: str) -> Iterator[Finding]:
    """A finding for each host of --hosts, in its order, as --launcher ssh finds it; those that
    cannot keep ranks say why, and what to do. Raises UsageError."""
    source = find_hosts(hosts, command)
    links = source.try_connect(source.hosts, join.SECONDS, PRESENT_SECONDS)
    ssh.close_links(links)
    for link in links:
        trouble, hint = ssh.find_trouble(link)
        if trouble:
            yield Finding(link.host.name, "no", f"{trouble}: {hint}")
        else:
            yield Finding(link.host.name, "yes", _describe_host(link.facts, link.host.slots))


def _describe_host(facts: ssh.HostFacts, slots: int) -> str:
    gpus = f", {format_count(facts.gpus, 'GPU')}" if facts.gpus else ""
    torch = f", torch {facts.torch}" if facts.torch else ", no torch"
    return plain_line(
        f"{facts.host}, {format_count(facts.cores, 'core')}{gpus}, for"
        f" {format_count(slots, 'rank')}; collbench {facts.version}, Python {facts.python}{torch};"
        f" ranks reach it at {facts.address}"
    )
