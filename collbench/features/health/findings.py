"""What a health check finds, and the verdict made of it: plain values that every output shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from collbench.core.errors import Exit

Severity = Literal["critical", "warning", "hint"]  # of which a hint alone makes nobody unhealthy

Kind = Literal["cluster", "collective", "host", "rank", "gpu", "link", "setting"]

State = Literal["healthy", "unhealthy", "no verdict"]

Outcome = Literal["passed", "found", "no data", "not applicable"]


class Subject(msgspec.Struct, frozen=True):
    """Who a finding is about: ``name`` is a host, ``host:rank``, ``host -> host`` or a row's name,
    as kind says."""

    kind: Kind
    name: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that a finding rests on, beside what it should be; ``run`` and ``case`` (its key)
    say where it is."""

    what: str
    value: float | str
    expected: float | str = ""
    unit: str = ""
    run: str = ""
    case: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check holds against one subject. ``since`` is a day or a run's id. ``sure`` is 1
    less the chance that this is said where nothing is wrong, if that is known. ``alone``: the runs
    that show it were of one host each, so that no other host can have caused it."""

    check: str
    severity: Severity
    subject: Subject
    what: str
    advice: str
    since: str = ""
    sure: float | None = None
    alone: bool = False
    evidence: Sequence[Evidence] = ()

    @property
    def sentence(self) -> str:
        """Who, and what; ``what`` may begin with the name itself."""
        return (
            self.what
            if self.what.startswith(self.subject.name)
            else f"{self.subject.name} {self.what}"
        )


class Checked(msgspec.Struct, frozen=True):
    """How a check ended. Without data it has not passed; ``note`` says what was looked at, or what
    is missing."""

    check: str
    outcome: Outcome
    note: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a night comes to. ``injected`` names a fault that was planted, and marks every output.
    ``fake``: a run was on fake GPUs. ``ended`` is when the last of the runs did, or was begun, and
    ``night`` the day of the night that it is of, as the history has it (history.nights.Night).
    ``judged_hosts`` are those of a fleet that had a verdict; None where it is of all ``hosts``.
    ``busy`` says that others used the machines, which fails nothing, or is empty."""

    state: State
    summary: str
    findings: Sequence[Finding]
    checks: Sequence[Checked]
    runs: Sequence[str]
    injected: str = ""
    fake: bool = False
    hosts: Sequence[str] = ()
    judged_hosts: Sequence[str] | None = None
    ended: str = ""
    night: str = ""
    busy: str = ""

    @property
    def phrase(self) -> str:
        """The state, with a word where numbers are of a busy machine."""
        return f"{self.state} (on a busy machine)" if self.busy else self.state

    @property
    def sentence(self) -> str:
        """The summary, and what others' load means for it."""
        return f"{self.summary}; {self.busy}" if self.busy else self.summary

    @property
    def exit(self) -> Exit:
        """The exit code of this state."""
        return {"healthy": Exit.OK, "unhealthy": Exit.BAD, "no verdict": Exit.NO_VERDICT}[
            self.state
        ]
