"""Prometheus' text as others read it: its samples, and the rules of `promtool check metrics`."""

from __future__ import annotations

import re

Labels = frozenset[tuple[str, str]]
LINE = re.compile(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? (\S+)", re.IGNORECASE)
LABEL = re.compile(r'([a-z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)', re.IGNORECASE)
UNITS = {"ns", "us", "ms", "s", "milliseconds", "microseconds", "nanoseconds", "minutes", "hours"}
UNITS |= {"gb", "mb", "kb", "kib", "mib", "gib", "kilobytes", "megabytes", "gigabytes", "bits"}
TYPES = {"gauge", "counter", "histogram", "summary", "untyped"}


def read_samples(text: str) -> dict[str, dict[Labels, float]]:
    """Values by metric and labels. Raises ValueError for a line of another form, and for labels
    that come twice, which node_exporter refuses."""
    samples: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None or LABEL.sub("", match[2] or ""):
            raise ValueError(line)
        labels = frozenset(LABEL.findall(match[2] or ""))
        if labels in samples.setdefault(match[1], {}):
            raise ValueError(f"twice: {line}")
        samples[match[1]][labels] = float(match[3])
    return samples


def lint_metrics(text: str) -> list[str]:
    """What promtool would hold against the names, and what is not of one piece."""
    faults = []
    helps = re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    types = re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)
    names = [line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"]
    grouped = [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]
    if not helps == types == grouped or len({*grouped}) < len(grouped):
        faults.append("not each metric once, with HELP and TYPE before it")
    for name in grouped:
        words = name.split("_")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or ":" in name:
            faults.append(f"{name}: not snake case")
        if {*words} & TYPES or {*words} & UNITS:
            faults.append(f"{name}: has a type or no base unit in its name")
        if words[-1] in ("total", "count", "sum", "bucket", "info") and name[-5:] != "_info":
            faults.append(f"{name}: ends as a counter or a histogram does")
    labels = {name for line in text.splitlines() for name, _ in LABEL.findall(line)}
    faults += [f"label {name}" for name in labels if not re.fullmatch(r"[a-z][a-z0-9_]*", name)]
    return faults
