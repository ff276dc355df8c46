"""What runs measured, as launches of settings: by cell, by form of the call, and by setting.

A setting is told by the variables of a case, those of its side of an `ab`, those that the run was
started with and the library knows, by its algorithm and its backend. Worlds whose variables leave
a collective to the library are all launches of its own choice. Further variables that a run was
started with are part of that choice, and so must be equal in all runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from collbench.core.backend_info import backend_info
from collbench.core.collectives import COLLECTIVES
from collbench.core.dtypes import DTYPES, OPS
from collbench.core.errors import NoVerdict, UsageError
from collbench.core.text import plain_line
from collbench.features.advise.libraries import Library, find_library
from collbench.features.advise.types import Cell, Series, Setting, Variables
from collbench.features.compare import sides
from collbench.features.compare.ab.variants import parse_variant
from collbench.machine import environment
from collbench.records import case_rows, rows
from collbench.records.case_rows import CaseRows
from collbench.records.choice import describe_adding
from collbench.records.derive import is_without_samples
from collbench.records.flags import OVERSUBSCRIBED
from collbench.records.rows import Row
from collbench.records.types import Choice, RunFile, World
from collbench.run.launch.interpreter import Variant
from collbench.suite.case import Case

SCREEN = "tune-screen"  # how tags begin of runs that `tune` chose settings by

OTHER = "other"  # the library of which nothing is known

SHARED = "its ranks share cores"

WRONG = "gave wrong data"  # how the worst fault of a setting begins


class Place(NamedTuple):
    """Where a launch stands: an experiment with stage and round, or a run with its cycle. Launches
    of two settings at one place followed each other, and are a pair."""

    source: str
    stage: int
    number: int


class Form(NamedTuple):
    """All that a case says of how a collective is called, which a file of settings cannot ask."""

    dtype: str
    op: str
    root: int
    in_place: bool
    mode: str
    arrival: str
    splits: str
    align: int
    background: str

    @property
    def words(self) -> str:
        """The form in words: float sum in place."""
        parts = [self.dtype, "" if self.op == "none" else self.op, self.splits and "uneven blocks"]
        parts += [f"root {self.root}" if self.root > 0 else "", "in place" if self.in_place else ""]
        parts += [self.mode, self.arrival, self.background and f"beside {self.background}"]
        return plain_line(" ".join(filter(None, parts)))


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in one form of a cell: the logarithms of its launches' medians in ns. ``tau`` is
    the smallest change that matters. ``doubts`` are the flags for which its launches decide
    nothing, ``orders`` those in which its sums were added, ``fault`` is why it may not be advised,
    as a sentence without a full stop; ``launched`` how many launches there were, of which some may
    decide nothing, 0 where that is not known."""

    logs: dict[Place, float]
    tau: float
    doubts: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    chose: Choice | None = None
    fault: str = ""
    launched: int = 0
    manner: dict[str, set[str]] = {}  # how its calls were timed, by name (CaseRows)


Rivals = dict[Setting, Measured]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that advice rests on. ``refused`` are cells in which nothing may be judged, with the
    reason; ``shared`` those whose ranks share cores. ``device`` is the model of all GPUs, empty
    where there is not one. ``cases`` are those of the default in all forms; ``forms`` are these in
    words. ``exported`` are variables that the default's backend was started with in a cell, but
    for those that a case or a side sets."""

    library: Library
    version: str
    runs: tuple[str, ...]
    day: str
    default: Setting
    cells: dict[Cell, dict[Form, Rivals]]
    refused: dict[Cell, str] = {}
    shared: frozenset[Cell] = frozenset()
    names: dict[tuple[str, Setting], str] = {}
    notes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    device: str = ""
    cases: tuple[Case, ...] = ()
    hosts: tuple[str, ...] = ()
    forms: str = ""
    exported: dict[Cell, set[tuple[str, str]]] = {}

    @property
    def title(self) -> str:
        """The library in words; of one that nobody knows, its backend."""
        is_known = self.library.key != OTHER
        return self.library.title if is_known else self.default.backend

    def name_setting(self, collective: str, setting: Setting) -> str:
        """The setting in its library's words."""
        known = self.names.get((collective, setting))
        return known or self.library.name_setting(collective, setting)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How evidence is read. ``default``: the backend whose own choice is to be beaten; ``tau``
    stands for that of each row; ``only_variables``: rivals are other variables, neither another
    algorithm of collbench nor another backend."""

    default: str = ""
    tau: float | None = None
    oversubscribed: bool = False
    only_variables: bool = False


def gather_evidence(files: Sequence[RunFile], terms: Terms) -> Evidence:
    """The evidence of some runs. Raises NoVerdict where none of them can be used, UsageError for
    a backend that none has."""
    pooled, notes = pool_runs(files)
    table = [row for row in rows.make_rows(pooled) if is_evidence(row)]
    default = Setting(backend=_find_default(table, terms.default))
    gathered: dict[tuple[Cell, Form, Setting], list[Row]] = {}
    names: dict[tuple[str, Setting], str] = {}
    exported: dict[Cell, set[tuple[str, str]]] = {}
    left_out: Counter[str] = Counter()
    libraries: dict[tuple[str, str], Library] = {}
    known = [{name: list_known(file, name) for name in file.backends} for file in pooled]
    for row in table:
        world, case = row.world, row.case
        assert world is not None  # of what is_evidence
        key = world.backend, world.library
        library = libraries.get(key) or libraries.setdefault(key, find_library(world))
        if case.backend == default.backend:
            exported.setdefault(find_cell(row), set()).update(_split_variables(row)[1].items())
        setting = read_setting(row, library, known[row.file].get(case.backend, ()))
        if terms.only_variables and msgspec.structs.replace(setting, env=()) != default:
            left_out[case.label] += 1
            continue
        names.setdefault(
            (case.collective, setting), plain_line(library.name_setting(case.collective, setting))
        )
        gathered.setdefault((find_cell(row), find_form(case), setting), []).append(row)
    ours = [row.world for row in table if row.world and row.case.backend == default.backend]
    cells, refused, shared = _fill_cells(gathered, pooled, terms)
    notes += describe_exported(
        pooled,
        {row.file for key, members in gathered.items() if key[2] == default for row in members},
    )
    if left_out:
        what = ", ".join(map(plain_line, left_out))
        notes.append(f"left out, as the library's file cannot name it: {what} (see --for words)")
    return Evidence(
        library=find_library(ours[0]),
        version=plain_line(ours[0].library),
        runs=tuple(file.run.id for file in pooled),
        day=max(file.run.started for file in pooled)[:10],
        default=default,
        cells=cells,
        refused=refused,
        shared=frozenset(shared),
        names=names,
        notes=tuple(notes),
        backends=tuple(dict.fromkeys(key[2].backend for key in gathered)),
        device=find_device(ours),
        hosts=tuple(dict.fromkeys(plain_line(rank.host) for w in ours for rank in w.ranks)),
        forms=describe_forms(key[1] for key in gathered if key[2] == default),
        cases=tuple(
            msgspec.structs.replace(members[0].case, env=())
            for key, members in gathered.items()
            if key[2] == default
        ),
        exported=exported,
    )


def describe_forms(forms: Iterable[Form]) -> str:
    """Datatypes and placements in words: float, out of place."""
    places = {True: "in place", False: "out of place"}
    words = [f"{form.dtype}, {places[form.in_place]}" for form in forms]
    return "; ".join(dict.fromkeys(words))


def find_device(worlds: Sequence[World]) -> str:
    """The model of all ranks' GPUs; empty for CPUs, and where they differ or tell none."""
    models = {
        sides.DEVICE.sub("", rank.device) if rank.gpu else "" for w in worlds for rank in w.ranks
    }
    return models.pop() if len(models) == 1 else ""


def pool_runs(files: Sequence[RunFile]) -> tuple[list[RunFile], list[str]]:
    """The runs whose launches may be set against each other: those of the first one's machine and
    software; and a note for each that may not. Raises NoVerdict where none is left."""
    pooled: list[RunFile] = []
    notes: list[str] = []
    for file in files:
        why = explain_unusable(file) or (explain_unlike(pooled[0], file) if pooled else "")
        if why:
            notes.append(plain_line(f"run {file.run.id} is left out: {why}"))
        else:
            pooled.append(file)
    if not pooled:
        raise NoVerdict(
            f"no run can be used: {notes[0].partition(': ')[2] if notes else 'none was named'}",
            "measure with collbench all_reduce --launches 10 --env NAME=VALUE,…",
        )
    return pooled, notes


def explain_unusable(file: RunFile) -> str:
    """The reason why no advice can rest on a run, or an empty string."""
    run = file.run
    if run.tag.startswith(SCREEN):
        return "tune chose settings by it, so its times favour them"
    if run.pairing:
        variant = _parse_variant(run.pairing.variant)
        if variant is None:
            return f"its side of the ab is not a setting: {run.pairing.variant}"
        if variant.python or variant.revision:
            return "its side has another interpreter or revision"
        if run.pairing.aa:
            return "both sides of its experiment are the same"
    return sides.explain_unknown_machine([run])


def explain_unlike(first: RunFile, other: RunFile) -> str:
    """The reason why launches of another run may not be set against those of the first, or an
    empty string: another machine, other software, or variables that are no settings of a side."""
    backends = first.backends & other.backends
    settings = _list_own(first) | _list_own(other)
    facts, other_facts = (_list_facts(file.run.environment, settings) for file in (first, other))
    differences = environment.find_differences(facts, other_facts, backends)
    if differences:
        return environment.explain_differences(differences)
    for backend in sorted(backends):
        ours, theirs = (_list_libraries(file, backend) for file in (first, other))
        if ours and theirs and ours != theirs:
            return f"the software differs: {', '.join(ours)} -> {', '.join(theirs)}"
    return ""


def explain_elsewhere(files: Sequence[RunFile]) -> str:
    """The reason why launches from here may not be set against those of some runs, or an empty
    string: as explain_unlike has it, by what is known before ranks start."""
    here = environment.gather_facts()
    for file in files:
        settings = _list_own(file)
        facts, other_facts = (_list_facts(each, settings) for each in (file.run.environment, here))
        if differences := environment.find_differences(facts, other_facts, file.backends):
            why = environment.explain_differences(differences)
            return f"run {file.run.id} was measured elsewhere: {why}"
    return ""


def _list_own(file: RunFile) -> set[str]:
    """The variables that are a setting: of a run's side, or those that its libraries know."""
    return {name for name, _ in list_variant(file)} | list_known(file)


def _list_facts(facts: Mapping[str, Any], settings: Collection[str]) -> dict[str, Any]:
    """The facts of an environment without variables that are ``settings``."""
    variables = facts.get("variables") or {}
    return {
        **facts,
        "variables": {name: value for name, value in variables.items() if name not in settings},
    }


def _list_libraries(file: RunFile, backend: str) -> list[str]:
    names = {world.library.partition(",")[0] for world in file.worlds if world.backend == backend}
    return sorted(names - {""})


def list_variant(file: RunFile) -> Variables:
    """The variables that a run's side of an experiment sets; none where it is no side."""
    variant = _parse_variant(file.run.pairing.variant) if file.run.pairing else None
    return variant.env if variant else ()


@lru_cache(maxsize=256)
def _parse_variant(text: str) -> Variant | None:
    """A side of an experiment; None where its words are none that `ab` takes, as a verification's
    are."""
    try:
        return parse_variant(text, "variant")
    except UsageError:
        return None


def is_evidence(row: Row) -> bool:
    """Whether a row is of a collective that ran, on ranks that are no groups of a world."""
    case = row.case
    return bool(row.world) and not (case.subject or case.groups or row.predicted)


def _find_default(table: Sequence[Row], name: str) -> str:
    """The backend whose own choice is to be beaten. Raises NoVerdict where nothing was measured,
    UsageError where ``name`` was not."""
    backends = list(dict.fromkeys(row.case.backend for row in table))
    if not backends:
        raise NoVerdict(
            "no row of these runs is of a collective that was measured",
            "measure with collbench all_reduce --launches 10 --env NAME=VALUE,…",
        )
    if name and name not in backends:
        raise UsageError(
            f"--default {name}: no run has this backend", f"choose one of {', '.join(backends)}"
        )
    return name or backends[0]


def read_setting(row: Row, library: Library, known: Collection[str]) -> Setting:
    """The setting of a row, with the variables that bear on its collective; those that its run was
    started with count if they are ``known``, or a detail of a setting."""
    case = row.case
    given, exported = _split_variables(row)
    given |= {name: value for name, value in exported.items() if name in known}
    env = library.reduce(case.collective, tuple(sorted(given.items())))
    details = {
        name: value for name, value in exported.items() if library.is_detail(case.collective, name)
    }
    if env and details:
        env = library.reduce(case.collective, tuple(sorted((details | given).items())))
    return Setting(backend=case.backend, algorithm=case.algorithm, env=env)


def _split_variables(row: Row) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that the case or the side of a row sets, and the others that its run was
    started with."""
    pairing = row.run.pairing
    given = dict(row.case.env)
    if pairing and (variant := _parse_variant(pairing.variant)):
        given |= dict(variant.env)
    variables = row.run.environment.get("variables") or {}
    return given, {name: str(value) for name, value in variables.items() if name not in given}


def describe_exported(files: Sequence[RunFile], numbers: Collection[int]) -> list[str]:
    """A note on variables that the runs of these numbers were started with, and that their backends
    read, though they are no settings: what is measured as the library's own choice is its choice
    by these."""
    runs_by_variable: dict[str, list[str]] = {}
    for number in sorted(numbers):
        run = files[number].run
        own = _list_own(files[number])
        backends = files[number].backends
        prefixes = tuple(
            word for name in backends for word in (f"{name.upper()}_", *backend_info(name).settings)
        )
        facts = {"variables": run.environment.get("variables") or {}}
        for fact in environment.select_relevant(facts, backends):
            name = fact.removeprefix("variables.")
            if name.startswith(prefixes) and name not in own:
                runs_by_variable.setdefault(name, []).append(run.id)
    return [
        plain_line(f"{name} was set in {', '.join(runs)}: it is part of the library's own choice")
        for name, runs in sorted(runs_by_variable.items())
    ]


def list_known(file: RunFile, only: str = "") -> set[str]:
    """The variables by which the choices of a run's libraries for its collectives are set; of one
    backend ``only``, if it is named."""
    cases = {
        (record.case.backend, record.case.collective, record.case.n)
        for record in file.records
        if not record.case.subject and only in ("", record.case.backend)
    }
    worlds = {(world.backend, world.library): world for world in file.worlds}
    return {
        name
        for world in worlds.values()
        for backend, collective, n in cases
        if backend == world.backend
        for env in find_library(world).list_settings(collective, n, world.library)
        for name, _ in env
    }


def find_cell(row: Row) -> Cell:
    """The cell that a row is of, by the bytes that its call sends: all that a library sees of a
    size, where blocks do not divide what was asked for."""
    hosts = {rank.host for rank in row.world.ranks} if row.world else set()
    series = Series(row.case.collective, row.case.n, max(1, len(hosts)))
    return Cell(series, row.case.size)


def find_form(case: Case) -> Form:
    """The form of a case."""
    return Form(*(getattr(case, name) for name in Form._fields))


def _fill_cells(
    gathered: Mapping[tuple[Cell, Form, Setting], Sequence[Row]],
    files: Sequence[RunFile],
    terms: Terms,
) -> tuple[dict[Cell, dict[Form, Rivals]], dict[Cell, str], set[Cell]]:
    """The launches of each setting by cell and form; cells that may not be judged, with the reason;
    and those whose ranks share cores."""
    cells: dict[Cell, dict[Form, Rivals]] = {}
    shared: set[Cell] = set()
    for (cell, form, setting), members in gathered.items():
        if all("skipped" in row.unfit for row in members):
            continue
        measured = measure_launches(members, files, terms)
        cells.setdefault(cell, {}).setdefault(form, {})[setting] = measured
        if any(row.world and row.world.oversubscribed for row in members):
            shared.add(cell)
    why = f"{SHARED}: times depend on the scheduler (--oversubscribed judges it)"
    refused = {} if terms.oversubscribed else dict.fromkeys(shared, why)
    return cells, refused, shared


def measure_launches(members: Sequence[Row], files: Sequence[RunFile], terms: Terms) -> Measured:
    """The launches of a setting in one form of a cell, of those rows that judge it. Worlds of one
    cycle that are the same setting are one launch, by the mean of their logarithms."""
    despite = (OVERSUBSCRIBED,) if terms.oversubscribed else ()
    deciding = rows.select_deciding(members, despite)
    logs: dict[Place, list[float]] = {}
    for row in deciding:
        logs.setdefault(find_place(row), []).append(math.log(row.median))
    side = CaseRows(members[0].case, members, {}, _describe_manner(members))
    file = files[members[0].file]
    tau = terms.tau
    if tau is None:
        least = max(
            case_rows.smallest_change(side, files[number].run.environment)
            for number in {row.file for row in members}
        )
        tau = file.run.suite.tau(members[0].case, least)
    return Measured(
        logs={place: fmean(values) for place, values in logs.items()},
        tau=tau,
        doubts=tuple(
            dict.fromkeys(flag for row in deciding for flag in row.ungated if flag not in despite)
        ),
        orders=tuple(sorted({describe_adding(row.record.chose) for row in deciding} - {""})),
        chose=_find_usual_choice([row.record.chose for row in deciding if row.record.chose]),
        fault=find_fault(members),
        launched=len({find_place(row) for row in members}),
        manner=side.manner,
    )


def _find_usual_choice(choices: Sequence[Choice]) -> Choice | None:
    """What the library chose most often, whether or not it said the number of nodes, and this
    number as far as all that said one agree. Older runs do not have it."""
    if not choices:
        return None
    votes = Counter(msgspec.structs.replace(choice, nodes=0) for choice in choices)
    numbers = {choice.nodes for choice in choices if choice.nodes}
    nodes = numbers.pop() if len(numbers) == 1 else 0
    return msgspec.structs.replace(votes.most_common(1)[0][0], nodes=nodes)


def find_fault(members: Sequence[Row]) -> str:
    """The reason why a setting may not be advised: wrong data, or a call that failed; empty where
    there is none. A case that was disturbed all the time is no fault of the setting."""
    records = [cycle.record for row in members for cycle in row.left_out]
    for status, words in (("wrong", WRONG), ("failed", "failed")):
        for record in records:
            if record.status == status and not is_without_samples(record):
                return plain_line(f"{words}: {record.note}" if record.note else words)
    return ""


def _describe_manner(members: Sequence[Row]) -> dict[str, set[str]]:
    """How calls were timed, by name, as comparisons have it; not by which algorithm, which is what
    settings are about."""
    by_case = case_rows.describe_manners(members)
    return {name: values for name, values in by_case.items() if name != "algorithm"}


def find_place(row: Row) -> Place:
    """Where the launch of a row stands."""
    pairing = row.run.pairing
    if pairing and row.launch.stage:
        return Place(pairing.experiment, row.launch.stage, row.launch.round)
    cycles = row.fit or row.cycles
    return Place(row.run.id, 0, min(cycle.record.case.cycle for cycle in cycles))


def depends_on_order(cell: Cell, form: Form) -> bool:
    """Whether results depend on the order of summation: of rounded sums of more than two ranks."""
    return (
        COLLECTIVES[cell.series.collective].reduces
        and cell.series.n > 2
        and DTYPES[form.dtype].kind == "float"
        and not OPS[form.op].idempotent
    )
