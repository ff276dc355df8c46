"""What to run: a suite's axes and policy, the parts of a sweep that an exclude, an override or a
threshold is about, and the product of the axes with a reason for every combination left out."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from collbench.core import algorithms, groups, splits
from collbench.core.backend_info import backend_info
from collbench.core.collectives import Collective, find_collective
from collbench.core.dtypes import OPS, find_dtype, find_reduction
from collbench.core.errors import AlgorithmError, UsageError
from collbench.core.groups import Groups
from collbench.core.text import format_count
from collbench.machine import cpus, environment
from collbench.suite import arrivals, backgrounds, fields, measurable
from collbench.suite.case import MOST_RANKS, Case, Limit, Mode, Setting, Skip
from collbench.suite.measurable import Subject
from collbench.suite.policy import Policy

MOST_CASES = 50_000  # of a suite

MOST_STEPPED = 4096  # ranks of a reference algorithm: its moves are their square

MOST_TABLES = 100  # overrides, excludes and thresholds of a suite, each asked of every case

MOST_VALUES = 2000  # in all of these

MOST_QUESTIONS = 1_000_000  # whether a case is in one of these tables

FIELDS = {row.name: row.case for row in fields.AXES if row.case}  # of Case, by axis


class _Part(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    pass


class Part(_Part, frozen=True):
    """Values along some axes; an axis without any is left alone. Sizes are those asked for.

    A case is in it that has one of the values along each axis given: an algorithm by its name with
    or without parameters, a setting of the environment among others.
    """

    collectives: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    roots: tuple[int, ...] = ()
    in_place: tuple[bool, ...] = ()
    modes: tuple[str, ...] = ()
    envs: tuple[Setting, ...] = ()
    splits: tuple[str, ...] = ()
    backgrounds: tuple[str, ...] = ()
    min_size: int = 0
    max_size: int | None = None

    @property
    def given(self) -> dict[str, tuple[Any, ...]]:
        """The axes that have values."""
        return {axis: values for axis in FIELDS if (values := getattr(self, axis))}

    def __contains__(self, case: Case) -> bool:
        small = self.max_size is None or case.nbytes <= self.max_size
        return (
            small
            and case.nbytes >= self.min_size
            and all(_is_among(case, *axis) for axis in self.given.items())
        )


class Exclude(_Part, frozen=True):
    """Cases that are left out: as skips with the reason, or without a trace where there is none."""

    match: Part
    reason: str = ""


class Override(_Part, frozen=True):
    """Other values along some axes for some cases of the sweep."""

    match: Part
    axes: Part


class Threshold(_Part, frozen=True):
    """The smallest relative change of some rows that a comparison judges, and the busbw that is
    wanted of them."""

    match: Part = Part()
    tau: float = 0.0
    min_busbw: tuple[Limit, ...] = ()


class Axes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lists whose product is the sweep. An empty ``modes`` means each backend's default, -1 among
    roots every root; empty ``backends`` and ``ranks`` are what the machine has. ``groups`` divides
    the ranks, if it is not empty. ``arrivals`` stand for modes (arrivals.py). ``per_host`` are the
    ranks that a launcher has put on a host, 0 where all are on one, and with ``uneven_hosts`` on
    that which decides the mode; ``cores`` are that host's, 0 where it is this one.
    """

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    backends: tuple[str, ...] = ("gloo",)
    algorithms: tuple[str, ...] = ("native",)
    dtypes: tuple[str, ...] = ("float",)
    ops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    in_place: tuple[bool, ...] = (False, True)
    modes: tuple[Mode, ...] = ()
    envs: tuple[Setting, ...] = ((),)
    splits: tuple[str, ...] = ("uniform",)
    backgrounds: tuple[str, ...] = ("",)
    align: int = 1
    cycles: int = 1
    groups: str = ""
    arrivals: tuple[str, ...] = ()
    per_host: int = 0
    uneven_hosts: bool = False
    cores: int = 0

    def resolve(self, launched: int = 0, per_host: int = 0) -> Axes:
        """The axes with ``backends`` and ``ranks`` filled in, these by the number that a launcher
        started, if any, so many on a host. One rank is then what -g 1 means to nccl-tests, one a
        process."""
        backends = self.backends or default_backends()
        is_launched = launched and self.ranks in ((), (1,))
        ranks = (launched,) if is_launched else self.ranks or default_ranks(backends)
        per_host = per_host or self.per_host
        return msgspec.structs.replace(self, backends=backends, ranks=ranks, per_host=per_host)

    def cadences(self, backend: str, n: int) -> list[tuple[Mode, str]]:
        """Modes, each with the pattern of arrival, of cases among n ranks."""
        if self.arrivals:
            return [arrivals.parse_cadence(name) for name in self.arrivals]
        modes = self.modes or (default_mode(backend, n, self.per_host, self.cores),)
        return [(mode, "") for mode in modes]

    @property
    def depends_on_cores(self) -> bool:
        """Whether the cores of hosts decide the mode of some cases."""
        is_open = self.collectives and not (self.modes or self.arrivals)
        return bool(is_open) and any(backend_info(name).threads for name in self.backends)


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named sweep: axes and policy. ``includes`` are further sweeps; ``overrides`` change some of
    the first one's cases, a later one in spite of an earlier, and ``excludes`` leave cases of any
    out, the first that matches. ``subjects`` are what further cases are about, along the first
    sweep's backends, algorithms, settings and cycles ("steps" in files); ``requests`` ask for
    subjects that are yet to be laid out on its ranks ("workloads"). Raises ValueError where these
    tables are too many or too long to ask every case.
    """

    name: str
    axes: Axes
    policy: Policy = Policy()
    description: str = ""
    tags: tuple[str, ...] = ()
    includes: tuple[Axes, ...] = ()
    overrides: tuple[Override, ...] = ()
    excludes: tuple[Exclude, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    subjects: tuple[Any, ...] = msgspec.field(name="steps", default=())  # Subject
    requests: tuple[Any, ...] = msgspec.field(name="workloads", default=())

    def __post_init__(self) -> None:
        subjects = tuple(map(measurable.decode_subject, self.subjects))
        msgspec.structs.force_setattr(self, "subjects", subjects)
        parts = [override.axes for override in self.overrides] + [
            table.match
            for tables in (self.overrides, self.excludes, self.thresholds)
            for table in tables
        ]
        values = sum(len(values) for part in parts for values in part.given.values())
        if len(parts) - len(self.overrides) > MOST_TABLES or values > MOST_VALUES:
            raise ValueError(
                f"more than {MOST_TABLES} overrides, excludes and thresholds, or than"
                f" {MOST_VALUES} values in them"
            )

    def has_values(self, axis: str) -> bool:
        """Whether all its sweeps have values along an axis."""
        return all(getattr(axes, axis) for axes in (self.axes, *self.includes))

    @property
    def names_modes(self) -> bool:
        """Whether a sweep or an override says in which mode its cases are."""
        in_sweeps = any(axes.modes or axes.arrivals for axes in (self.axes, *self.includes))
        return in_sweeps or any(override.axes.modes for override in self.overrides)

    @property
    def in_launches(self) -> bool:
        """Whether the time of a case is divided among several launches."""
        cycles = max(axes.cycles for axes in (self.axes, *self.includes))
        return self.policy.fresh and cycles > 1

    @property
    def modes(self) -> set[str]:
        """The modes of its cases, once ranks and backends are filled in."""
        changes = [override.axes for override in self.overrides]
        modes = {
            mode
            for axes in (self.axes, *self.includes)
            if axes.collectives
            for backend in {*axes.backends, *(name for part in changes for name in part.backends)}
            for n in {*axes.ranks, *(n for part in changes for n in part.ranks)}
            for mode, _ in axes.cadences(backend, n)
        }
        more = ["isolated"] if self.subjects or self.requests else []
        return {*modes, *(mode for part in changes for mode in part.modes), *more}

    def fixes_samples(self, of: Callable[[Iterable[bool]], bool] = all) -> bool:
        """Whether the policy says how many samples ``all`` of its cases have, or ``any``."""
        fixed = of(self.policy.fixes_samples(mode) for mode in self.modes)
        return self.policy.iters is not None and fixed

    def resolve(self, ranks_given: bool | None = None) -> Suite:
        """The suite with all that it leaves to the machine filled in, as Axes.resolve has it.
        ``ranks_given``: whether the number of ranks, which axes have, is the user's."""
        includes = tuple(include.resolve() for include in self.includes)
        is_given = bool(self.axes.ranks) if ranks_given is None else ranks_given
        axes = self.axes.resolve()
        resolved = [
            measurable.find_requested_kind(request).resolve(request, n, is_given, axes.backends)
            for n in axes.ranks
            for request in self.requests
        ]
        every = {(each.title, each.world): each for each in (*self.subjects, *resolved)}
        return msgspec.structs.replace(
            self, axes=axes, includes=includes, subjects=tuple(every.values()), requests=()
        )

    @property
    def subject_finder(self) -> Callable[[Case], Subject | None]:
        """A function that finds the subject of a case; None for a case of a collective, or of a
        feature that is not installed. Titles are digests, and so are made once."""
        subjects = {(each.title, each.world): each for each in self.subjects if each.title}
        return lambda case: subjects.get((case.subject, case.world))

    def values(self, axis: str) -> tuple[Any, ...]:
        """All values along an axis, of the whole suite."""
        sweeps = [axes.resolve() for axes in (self.axes, *self.includes)]
        parts = (*sweeps, *(override.axes for override in self.overrides))
        return tuple(dict.fromkeys(value for part in parts for value in getattr(part, axis)))

    @property
    def largest_world(self) -> int:
        """The most ranks that a case has."""
        worlds = (subject.world for subject in self.resolve().subjects)
        numbers: list[int] = [*self.values("ranks"), *worlds]
        return max(numbers)

    def tau(self, case: Case, default: float) -> float:
        """The smallest relative change of this case that a comparison judges; never below
        ``default``."""
        return max(
            [default, *(threshold.tau for threshold in self.thresholds if case in threshold.match)]
        )

    def expand(self) -> tuple[list[Case], list[Skip]]:
        """Every case once, to run or to skip with the reason, in nccl-tests' nesting order,
        includes last."""
        cases: list[Case] = []
        skips: list[Skip] = []
        tables = len(self.overrides) + len(self.excludes)
        most = min(MOST_CASES, MOST_QUESTIONS // max(1, tables))
        every = list(itertools.islice(_list_swept(self.resolve()), most + 1))
        if len(every) > most:
            raise _too_many(most, tables)
        for case in sorted(dict.fromkeys(every), key=lambda case: case.cycle):
            excludes = [exclude for exclude in self.excludes if case in exclude.match]
            reason = excludes[0].reason if excludes else "" if case.subject else refuse_case(case)
            if reason:
                skips.append(Skip(case, reason))
            elif not excludes:
                cases.append(case)
        if not cases and not skips:
            name = self.name or "this sweep"
            raise UsageError(
                f"{name}: nothing to measure",
                "check whether everything is excluded, or a list has no value",
            )
        return cases, skips


def default_mode(backend: str, n: int, per_host: int = 0, cores: int = 0) -> Mode:
    """nccl is measured in nccl-tests' cadence, everything else one aligned call at a time; but as a
    program calls it where the ranks of a host (at most ``per_host`` of the n, if a launcher said
    so) have fewer ``cores`` (0: this host's) than threads that must run, as ranks that start all at
    once then wait for cores in a way that no program's do."""
    info, sharing = backend_info(backend), min(per_host or n, n)
    if not cores:
        cores = cpus.launched_core_count(per_host) if per_host else cpus.core_count()
    return "host" if sharing > 1 and sharing * info.threads > cores else info.mode


def default_backends() -> tuple[str, ...]:
    """nccl where there are GPUs, else gloo."""
    return ("nccl",) if environment.gpu_count() else ("gloo",)


def default_ranks(backends: tuple[str, ...]) -> tuple[int, ...]:
    """All GPUs for nccl, else a rank for each core and at least two."""
    gpus = environment.gpu_count() if "nccl" in backends else 0
    return (gpus or max(2, cpus.core_count()),)


def expand_axes(axes: Axes) -> tuple[list[Case], list[Skip]]:
    """Cases of these axes, and what is skipped with the reason."""
    return Suite(name="", axes=axes).expand()


def _list_swept(suite: Suite) -> Iterator[Case]:
    """All cases of a suite before excludes: of its axes with overrides, of its includes, and of its
    subjects."""
    for case in _expand_product(suite.axes):
        changes = {
            axis: values
            for o in suite.overrides
            if case in o.match
            for axis, values in o.axes.given.items()
        }
        yield from _replace_axes(suite.axes, case, changes) if changes else (case,)
    for include in suite.includes:
        yield from _expand_product(include)
    for subject in suite.subjects:
        yield from _expand_subject(subject, suite.axes)


def _expand_subject(subject: Subject, axes: Axes) -> Iterator[Case]:
    """The cases of a subject. Raises UsageError for one that cannot be."""
    row, nbytes = measurable.find_kind(subject).measure(subject)
    spelled = map(algorithms.spell_algorithm, axes.algorithms)
    ways = itertools.product(range(axes.cycles), axes.envs, axes.backends, spelled)
    for cycle, env, backend, algorithm in ways:
        case = Case(
            collective=row,
            subject=subject.title,
            backend=backend,
            n=subject.world,
            nbytes=nbytes,
            algorithm=algorithm,
            dtype="uint8",
            env=env,
            cycle=cycle,
        )
        yield from case.siblings[::-1]


def _replace_axes(axes: Axes, case: Case, changes: dict[str, tuple[Any, ...]]) -> Iterator[Case]:
    """The product of ``changes`` with what else this case of the sweep is."""
    fixed: dict[str, Any] = {
        axis: (getattr(case, field),) for axis, field in FIELDS.items() if axis != "collectives"
    }
    fixed |= {
        "ranks": (case.world,),
        "modes": (axes.modes or axes.arrivals) and fixed["modes"],
        "arrivals": (case.arrival,) if case.arrival and "modes" not in changes else (),
    }
    for other in _expand_product(
        msgspec.structs.replace(axes, **{**fixed, **changes, "cycles": 1})
    ):
        # rounds of pairs have the number of ranks in their name, which may be changed
        if (other.collective, other.groups.partition("/")[0], other.group) == (
            case.collective,
            case.groups.partition("/")[0],
            case.group,
        ):
            yield msgspec.structs.replace(other, cycle=case.cycle)


Divided = list[tuple[str, Groups]]  # rules, with the groups that each makes


def _bound_sweep(axes: Axes) -> tuple[list[Collective], Divided]:
    """The collectives and groups of a sweep. Raises UsageError where it would be too much."""
    if max(axes.ranks, default=1) > MOST_RANKS:
        raise UsageError(
            f"{max(axes.ranks)} ranks are more than any machine has", f"take at most {MOST_RANKS}"
        )
    if axes.align < 1:
        raise UsageError(
            f"--align {axes.align}: must be at least 1", "use --align 1 to round nothing"
        )
    rows = [find_collective(name) for name in axes.collectives]
    divided: Divided = []
    number = 0
    for n in axes.ranks:
        for rule in groups.list_rounds(axes.groups, n):
            divided.append((rule, groups.list_members(rule, n)))
            if (number := number + len(divided[-1][1])) > MOST_CASES:
                raise _too_many()
    axis_lists = (
        _list_varying(axes, row, members, axes.cadences("model", len(members)))
        for row, (_, members) in itertools.product(rows, divided)
    )
    swept = sum(math.prod(map(len, lists)) for lists in axis_lists)
    if swept * axes.cycles * len(axes.envs) * len(axes.backends) > MOST_CASES:
        raise _too_many()
    return rows, divided


def _expand_product(axes: Axes) -> Iterator[Case]:
    """Raises UsageError before it makes anything where that would be too much."""
    rows, divided = _bound_sweep(axes)
    table_bytes = functools.cache(splits.table_bytes)
    worlds = itertools.product(range(axes.cycles), rows, divided, axes.envs, axes.backends)
    for cycle, row, (rule, members), env, backend in worlds:
        swept = itertools.product(
            *_list_varying(
                axes, row, members, axes.cadences(backend, len(members) * len(members[0]))
            )
        )
        for group, algorithm, how, kind, op, root, split, background, size, in_place in swept:
            yield Case(
                collective=row.name,
                backend=backend,
                n=len(members[0]),
                nbytes=size if (total := table_bytes(split, len(members[0]))) is None else total,
                algorithm=algorithm,
                dtype=find_dtype(kind).name,
                op=find_reduction(op),
                root=root,
                in_place=in_place,
                mode=how[0],
                arrival=how[1],
                env=env,
                splits=split,
                background=background,
                align=axes.align if row.has_equal_blocks else 1,
                cycle=cycle,
                groups=rule,
                group=group,
                of=len(members),
            )


def _list_varying(
    axes: Axes, row: Collective, among: Groups, cadences: Sequence[tuple[Mode, str]]
) -> tuple[Sequence[Any], ...]:
    """What varies within a collective on some groups of ranks: group, algorithm, mode and arrival,
    datatype, reduction, root, split, background, size, placement."""
    empty = not row.moves_data
    return (
        range(len(among)),
        _fit_to_nodes(axes, row.name, among),
        cadences,
        axes.dtypes[:1] if empty else axes.dtypes,
        axes.ops if row.reduces else ("none",),
        (-1,) if not row.rooted else range(len(among[0])) if -1 in axes.roots else axes.roots,
        axes.splits if row.uneven else ("",),
        axes.backgrounds,
        (0,) if empty else axes.sizes,
        (False,) if empty else axes.in_place,
    )


def _too_many(most: int = MOST_CASES, tables: int = 0) -> UsageError:
    remark = f" with {tables} overrides and excludes" * (most < MOST_CASES)
    return UsageError(
        f"more than {most} cases{remark}",
        "take fewer sizes, ranks, roots or cycles, or make several runs",
    )


def normalise_algorithms(axes: Axes, name: str) -> list[str]:
    """The algorithms by their proper names; those that only other collectives of the sweep have
    stay."""
    names = []
    for text in map(algorithms.spell_algorithm, axes.algorithms):
        owners = [
            other
            for other in map(find_collective, axes.collectives)
            if algorithms.look_up_algorithm(other.name, text)
        ]
        if text == "native" or (owners and not algorithms.look_up_algorithm(name, text)):
            names.append(text)
        else:
            names.append(algorithms.find_variant(name, text).name)
    return list(dict.fromkeys(names))


def _fit_to_nodes(axes: Axes, name: str, among: Groups) -> list[str]:
    """The algorithms by their proper names; one that makes groups of ranks which are not those of
    a host, where all ranks are one group on several hosts of as many ranks each, with the hosts'
    as its parameter."""
    names = normalise_algorithms(axes, name)
    n = len(among[0])
    if len(among) > 1 or axes.uneven_hosts or not 1 < axes.per_host < n:
        return names
    fitted = names.copy()
    for index, text in enumerate(names):
        row = algorithms.look_up_algorithm(name, text)
        if row and row.node_parameter:
            variant = algorithms.find_variant(name, text)
            placed = variant.on_nodes(n, axes.per_host)
            if placed.resolved(n, 1.0) != variant.resolved(n, 1.0):
                fitted[index] = placed.name
    return list(dict.fromkeys(fitted))


def _is_among(case: Case, axis: str, values: tuple[Any, ...]) -> bool:
    if axis == "envs":
        return any(set(setting) <= set(case.env) for setting in values)
    if axis == "algorithms":
        row = algorithms.look_up_algorithm(case.collective, case.algorithm)
        name, _ = algorithms.split_settings(case.algorithm)
        names = (row.name, *row.aliases) if row else (name,)
        return not {case.algorithm, *names}.isdisjoint(values)
    return getattr(case, FIELDS[axis]) in values


def _refuse_reduction(case: Case) -> str:
    if case.op == "none":
        return f"{case.row.name} needs a reduction; 'none' is not one"
    integers = OPS[case.op].integers_only and case.type.kind == "float"
    return f"{case.op} is defined on integers only, not {case.dtype}" if integers else ""


def refuse_case(case: Case) -> str:
    """Why ``case`` means nothing on any backend, or an empty string."""
    row = case.row
    nowhere = case.in_place and row.in_place is None
    if none := f"{row.name} has no in-place form" * nowhere or backgrounds.refuse_background(case):
        return none
    if case.algorithm != "native":
        try:
            reason = algorithms.find_variant(row.name, case.algorithm).refuse(case.n)
            if case.n > MOST_STEPPED:
                reason = f"for at most {MOST_STEPPED} ranks"
        except AlgorithmError:
            raise
        except UsageError as e:
            reason = e.message
        if reason:
            return f"{case.algorithm}: {reason}"
    if row.reduces and (reason := _refuse_reduction(case)):
        return reason
    if case.root >= case.n:
        return f"root {case.root} does not exist among {format_count(case.n, 'rank')}"
    if row.moves_data and (case.size == 0 or (case.splits and case.moved == 0 and case.n > 1)):
        least = case.type.size * (case.n * case.block_step if row.total else 1)
        element = f"{case.dtype} element"
        return (
            f"{case.splits} gives no rank a {element} ({case.type.size} B) to send"
            if case.splits.partition(":")[0] in splits.TABLES
            else f"{case.nbytes} B give a rank no {element}; the smallest size is {least} B"
        )
    return ""
