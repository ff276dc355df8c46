"""Going on with a run that was cut short: what of it stands, what is missing, and when it must not
be."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from collbench.core import algorithm_files, algorithms
from collbench.core.backend_info import backend_info, backend_names, find_file
from collbench.core.backend_sources import list_imports, names_file
from collbench.core.errors import UsageError
from collbench.core.feature import Command, find_entries
from collbench.core.text import format_count, plain_line
from collbench.machine import environment, variables
from collbench.records import run_file, store
from collbench.records.derive import NO_TIME_LEFT, NOT_OPENED, is_broken
from collbench.records.types import SCHEMA, Record, Run, RunFile, World
from collbench.run import pace, plan
from collbench.run.jobs import Job, Plan
from collbench.run.refusal import refuse_unknown_backends
from collbench.suite import grammar
from collbench.suite.case import Case, Skip
from collbench.suite.policy import Policy

# options of a run's command that name the hosts of its ranks, or what ranks import
KEPT_OPTIONS = ("--launcher", "--hosts", "--ssh", "--address", "--placement", "--import")

HOSTS_SHOWN = 4  # that a refusal names


def find_resumable(name: str, settings: Sequence[str] = ()) -> RunFile:
    """The run called ``name``, with the ``settings`` (NAME=V1,V2) that are not taken from its file.
    Raises UsageError where what would be measured now cannot belong to it."""
    path = store.find_run(name, running=True)
    run = run_file.read_run(path)
    if reason := _explain_refusal(run):
        raise UsageError(f"{path} cannot be resumed: {reason}", "start a new run")
    _refuse_other_settings(run, name, settings)
    return run_file.read_file(path)


def _explain_refusal(run: Run) -> str:
    """Why nothing continues with a run; empty where a command does."""
    reasons = {
        f"it has schema {run.schema}, and this version writes {SCHEMA}": run.schema != SCHEMA,
        f"it was read from the output of {run.imported}": bool(run.imported),
        "it is one side of an interleaved comparison": run.pairing is not None,
    }
    if command := _find_feature_command(run):
        reason = f"{command.key} decides while it runs what to measure next, and does not save that"
        reasons[reason] = not command.resume_command
        for option in command.verdict_options:
            reason = f"{command.key} {option} is not saved in the run file"
            reasons[reason] = bool(_find_values(run, option))
    return next((reason for reason, holds in reasons.items() if holds), "")


def _find_feature_command(run: Run) -> Command | None:
    """The command of a feature that began a run; None where a collective's, `run` or one that is
    not installed did."""
    entries = find_entries("commands")
    names = (word.replace("-", "_") for word in run.command[1:2])
    return next((entries[name][1] for name in names if name in entries), None)


def _list_foreign_settings(run: Run) -> dict[str, str]:
    """The values, with commas between them, of variables that a run's file alone does not set."""
    values: dict[str, dict[str, None]] = {}
    for name, value in itertools.chain.from_iterable(run.suite.values("envs")):
        values.setdefault(name, {})[value] = None
    foreign = variables.list_foreign_variables(values)
    return {name: ",".join(values[name]) for name in foreign}


def _refuse_other_settings(run: Run, name: str, settings: Sequence[str]) -> None:
    """Raises UsageError where ``settings`` are not those that the file of the run called ``name``
    alone must not set."""
    foreign = _list_foreign_settings(run)
    grammar.expand_envs(settings)  # which refuses what is no setting
    given = {setting.partition("=")[0]: setting.partition("=")[2] for setting in settings}
    command = format_command(run, name)
    for variable in sorted(given.keys() - foreign.keys()):
        raise UsageError(f"--env {variable} has no effect on this run", command)
    if missing := [variable for variable in foreign if variable not in given]:
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise UsageError(
            f"the run sets {', '.join(missing)}, which {verb} never taken from a run file alone:"
            f" repeat {them} by --env",
            command,
        )
    for variable, value in given.items():
        if value != foreign[variable]:
            raise UsageError(f"--env {variable}={value}: the run has another value", command)


def format_command(run: Run, name: str) -> str:
    """The command that continues with the run called ``name``: with the files, variables, hosts and
    modules that its own command named; empty where none does. Where a launcher started that, it has
    to start this, too."""
    if _explain_refusal(run):
        return ""
    files = ",".join(algorithm_files.list_words(run.command))
    backends = [word for text in _find_values(run, "--backend") for word in text.split(",")]
    backend_files = ",".join(word for word in backends if names_file(word))
    command = _find_feature_command(run)
    # a command of its own takes no files
    resuming = command.resume_command if command and not backend_files else "run"
    words = ["collbench", resuming, "--resume", name]
    words += ["--algo", files] if files else []
    words += ["--backend", backend_files] if backend_files else []
    for variable, value in _list_foreign_settings(run).items():
        words += ["--env", f"{variable}={value}"]
    for option in KEPT_OPTIONS:
        words += [word for value in _find_values(run, option)[-1:] for word in (option, value)]
    return shlex.join(words)


def format_show_command(run: Run, name: str) -> str:
    """The command that shows and judges the run called ``name`` as the one that began it does;
    empty where none does."""
    command = _find_feature_command(run)
    words = command.show_command.split() if command else []
    return shlex.join(["collbench", *words, name]) if words else ""


def describe_remedy(run: Run, name: str) -> str:
    """A clause on how cases of a run that were cut short are measured again; ``name`` finds the
    run, and is empty where no file keeps it."""
    command = format_command(run, name) if name else ""
    return f"{command} measures it again" if command else "start a new run"


def _find_values(run: Run, option: str) -> list[str]:
    """The values of an option in the run's command, as in ``--hosts a,b`` and ``--hosts=a,b``."""
    pairs = itertools.pairwise([*run.command, ""])
    return [
        word.partition("=")[2] or later for word, later in pairs if word.partition("=")[0] == option
    ]


def load_algorithms(run: Run, spellings: str) -> None:
    """Load the run's algorithms that are in files, which ``spellings`` name anew: a run's file
    alone runs nothing. Raises UsageError where words are missing or too many."""
    labels = {name for name in run.suite.axes.algorithms if algorithm_files.WORD.fullmatch(name)}
    algorithm_names = {algorithm_files.list_words([name])[0] for name in labels}
    given = {
        algorithm_files.name_of_file(word): word for word in algorithm_files.list_words([spellings])
    }
    if strange := [word for word in spellings.split(",") if word and word not in given.values()]:
        raise UsageError(f"--algo {strange[0]} names no file", "name one as in ./line.py:line")
    if unknown := sorted(given.keys() - algorithm_names):
        hint = (
            f"it has {', '.join(sorted(algorithm_names))}"
            if algorithm_names
            else "leave --algo out"
        )
        raise UsageError(f"the run has no algorithm {unknown[0]} of a file", hint)
    if missing := algorithm_names - given.keys():
        before = [
            word
            for word in algorithm_files.list_words(run.command)
            if algorithm_files.name_of_file(word) in missing
        ]
        raise UsageError(
            f"the run's algorithm {min(missing)} is in a file that --algo must name",
            f"add --algo {','.join(before or (f'./{name}' for name in sorted(missing)))}",
        )
    collectives = run.suite.values("collectives")
    algorithms.add_file(",".join(given.values()), collectives[0] if len(collectives) == 1 else "")


def load_backends(run: Run, names: Sequence[str]) -> None:
    """Hold the backends of files that were named anew, which are known by these ``names``, against
    those of the run: a run's file alone runs nothing. Raises UsageError where one is missing, too
    many or unknown."""
    swept = run.suite.values("backends")
    own = f"the run's backends are {', '.join(swept)}"
    for name in names:
        if not (file := find_file(name)):
            raise UsageError(f"--backend {name} names no file", "name one as in ./my.py")
        if name not in swept:
            raise UsageError(f"the run has no backend {name} of {file.label}", own)
    labels = [name for name in run.environment.get("libraries", ()) if names_file(name)]
    missing = [name for name in swept if name not in backend_names()]
    if missing and len(labels) > len(names):
        words = [word for text in run.command for word in text.split(",") if names_file(word)]
        raise UsageError(
            f"the run's backend {missing[0]} is in a file that --backend must name",
            f"add --backend {','.join(words or (f'./{label}' for label in labels))}",
        )
    modules = _find_values(run, "--import")
    if missing and modules and not list_imports():
        raise UsageError(
            f"the run's backend {missing[0]} is of a module that --import must name",
            f"add --import {modules[-1]}",
        )
    refuse_unknown_backends(missing)


def reopen_writer(resumed: RunFile) -> run_file.Writer:
    """Goes on with the run's file. Raises UsageError where another process has done so since it was
    read, before the file was locked."""
    writer = run_file.Writer(resumed.path)
    if writer.found_bytes != resumed.nbytes:
        writer.close()
        raise UsageError(
            f"{resumed.path} has changed since it was read",
            "try again: another process went on with it",
        )
    return writer


def refuse_another_machine(resumed: RunFile, now: Mapping[str, Any], jobs: Sequence[Job]) -> None:
    """Raises UsageError where the fingerprint is not that of the run, for the backends of what it
    has measured and of the ``jobs`` to come, with the first facts that differ."""
    backends = resumed.backends | {job.case.backend for job in jobs}
    if differing := environment.find_differences(resumed.run.environment, now, backends):
        raise UsageError(
            f"{resumed.path} cannot be resumed: {environment.explain_differences(differing)}",
            "start a new run and compare the two: a run is of one machine and its software",
        )


def refuse_another_launcher(
    resumed: RunFile, launcher: str, list_hosts: Callable[[int], list[str]]
) -> None:
    """Raises UsageError where another than ``launcher`` started the ranks of the run, or they were
    on other hosts than ``list_hosts`` says (refuse_other_hosts)."""
    for world in resumed.worlds:
        if backend_info(world.backend).predicts:
            continue
        if world.launcher != launcher:
            raise UsageError(
                f"{resumed.path} cannot be resumed: {_name_starter(world.launcher)} started its"
                f" ranks, and now {_name_starter(launcher)} would",
                "resume it as it was begun, or start a new run",
            )
        refuse_other_hosts(resumed, list_hosts(world.n))


def refuse_other_hosts(resumed: RunFile, hosts: Sequence[str]) -> None:
    """Raises UsageError where the run had as many ranks, each on its host, and they would now be on
    other ``hosts``. The name of a single host may differ, as a container's does; so does nothing
    where a file names no hosts, or ``hosts`` is empty."""
    for world in resumed.worlds:
        before = [rank.host for rank in world.ranks]
        if len(before) != len(hosts) or backend_info(world.backend).predicts:
            continue
        if before != list(hosts) and {len(set(before)), len(set(hosts))} != {1}:
            raise UsageError(
                f"{resumed.path} cannot be resumed: its ranks were on {_describe_hosts(before)},"
                f" and would now be on {_describe_hosts(hosts)}",
                "resume it on the hosts it was begun on, in their order, or start a new run",
            )


def _name_starter(launcher: str) -> str:
    return "collbench on this machine" if launcher == "local" else plain_line(launcher)


def _describe_hosts(hosts: Sequence[str]) -> str:
    """The first hosts with their ranks, in order: a (2 ranks), b (2 ranks)."""
    counts = list(Counter(hosts).items())
    shown = [f"{plain_line(host)} ({format_count(n, 'rank')})" for host, n in counts[:HOSTS_SHOWN]]
    more = len(counts) - HOSTS_SHOWN
    return ", ".join(shown) + f" and {more} more" * (more > 0)


@dataclass(frozen=True)
class Resumption:
    """What an earlier part of a run has left. That of a run that begins is empty: its ``file`` is
    None."""

    file: RunFile | None = None

    @cached_property
    def cut_off(self) -> list[Record]:
        """Records of a run that was killed, of cases that were to be measured a second time. A part
        of a run that could write its end says so of each (pace.without_second_pass)."""
        file = self.file
        if file is None or file.end:
            return []
        before = {world.index for world in file.worlds[: file.ended_worlds]}
        return [
            record
            for record in file.records
            if record.world not in before and pace.missed_second_pass(record, file.run.policy)
        ]

    @cached_property
    def cut_records(self) -> dict[Case, Record]:
        """The records that were cut short, by their case."""
        records = self.file.records if self.file else []
        every = [*records, *map(pace.without_second_pass, self.cut_off)]
        return {record.case: record for record in every if record.stop == "cut"}

    @cached_property
    def kept_records(self) -> list[Record]:
        """Records that need not be measured again: all but what failed or was cut short, what a
        budget left no time for, and what could not be opened. Wrong data stays: it is a finding."""
        missed = {record.case for record in self.cut_off}
        return [
            record
            for record in (self.file.records if self.file else ())
            if not run_file.is_unfinished(record)
            and record.case not in missed
            and not record.note.startswith((NO_TIME_LEFT, NOT_OPENED))
        ]

    @cached_property
    def kept_cases(self) -> frozenset[Case]:
        """The cases of ``kept_records``."""
        return frozenset(record.case for record in self.kept_records)

    @cached_property
    def undone_cases(self) -> frozenset[Case]:
        """The cases of records that are not kept."""
        records = self.file.records if self.file else []
        return frozenset(record.case for record in records) - self.kept_cases

    @property
    def left_out(self) -> list[Skip]:
        """Cases that were left out before any rank was asked."""
        return [
            Skip(record.case, record.note) for record in self.kept_records if is_unplanned(record)
        ]

    @property
    def reported(self) -> list[World | Record]:
        """The lines that a reporter got of the run: its worlds and the records that are kept, but
        for cases that were left out. None of them waits for a second pass."""
        records = [
            msgspec.structs.replace(record, again=True)
            for record in self.kept_records
            if not is_unplanned(record)
        ]
        return [*(self.file.worlds if self.file else ()), *records]

    def plan_remaining(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        count_sharers: Callable[[int], int] = lambda n: n,
    ) -> list[Plan]:
        """One plan per world to come (plan.plan_worlds), counting on from those there were. What
        failed before is tried last, in worlds of its own, lest it keep the rest from being
        measured."""
        before = self.file.records if self.file else []
        failed = {record.case for record in before if is_broken(record)}
        fresh, again = (
            [job for job in jobs if failed.isdisjoint(job.case.siblings) is not tried]
            for tried in (False, True)
        )
        used = [
            *(world.index for world in (self.file.worlds if self.file else ())),
            *(record.world for record in before),
        ]
        plans = [
            current
            for part in (fresh, again)
            for current in plan.plan_worlds(part, policy, count_sharers)
        ]
        return [
            msgspec.structs.replace(p, index=index)
            for index, p in enumerate(plans, max(used, default=-1) + 1)
        ]


def is_unplanned(record: Record) -> bool:
    """Whether the case was left out before any rank was asked."""
    return record.status == "skipped" and record.world < 0
