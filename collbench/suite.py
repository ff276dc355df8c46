"""What to run: sizes, cases, policy, and the product of axes with a reason for every combination left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from collbench import algorithms, environment, groups, splits
from collbench.collectives import COLLECTIVES, OPS, Collective, collective, reduction
from collbench.dtypes import DTYPES, DType, dtype
from collbench.errors import UsageError
from collbench.groups import Groups
from collbench.selection import FIELDS, Exclude, Override, Setting, Threshold, why_not

if TYPE_CHECKING:
    import numpy as np

Mode = Literal["isolated", "streaming", "graph", "host"]
MODES: tuple[Mode, ...] = ("isolated", "streaming", "graph", "host")
MOST_RANKS, MOST_CASES = 1 << 20, 1_000_000  # of a suite

# What a file may say, checked as it is read.
Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Positive = Annotated[int, msgspec.Meta(ge=1, lt=1 << 62)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One point of a sweep. ``nbytes`` is the size asked for; ``size`` what is really moved, in whole elements.
    Raises ValueError for names that are none of ours, as a file of another version or hand may have.

    ``op`` is "none" where nothing is reduced and ``root`` -1 where there is no root, as nccl-tests prints them.
    ``n`` ranks are group ``group`` of the ``of`` that ``groups`` (groups.py) makes of a world, with ranks and roots of
    their own. All groups are measured at once, each a case."""

    collective: str
    backend: str
    n: Ranks
    nbytes: Whole
    algorithm: str = "native"
    dtype: str = "float"
    op: str = "none"
    root: int = -1
    in_place: bool = False
    mode: Mode = "isolated"
    env: tuple[tuple[str, str], ...] = ()
    splits: str = ""
    align: Positive = 1
    cycle: Whole = 0
    groups: str = ""
    group: Whole = 0
    of: Positive = 1

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES or self.dtype not in DTYPES or (self.op != "none" and self.op not in OPS):
            names = " ".join(repr(name[:40]) for name in (self.collective, self.dtype, self.op))
            raise ValueError(f"no collective, datatype and reduction {names}")
        if self.group >= self.of or (self.groups and len(groups.members(self.groups, self.world)) != self.of):
            raise ValueError(f"group {self.group} of {self.of} is none of {self.world} ranks by {self.groups[:40]!r}")

    @property
    def row(self) -> Collective:
        return COLLECTIVES[self.collective]

    @property
    def type(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def count(self) -> int:
        """Elements named in the library call: per rank for the divided collectives, else the whole buffer."""
        whole = self.nbytes // self.type.size
        if not self.row.total:
            return whole
        step = max(1, self.align // self.type.size)
        return whole // self.n // step * step

    @property
    def matrix(self) -> np.ndarray:
        """Elements that each rank sends to each, where blocks are uneven (``splits``)."""
        return splits.matrix(self.splits, self.n, self.nbytes, self.type.size)

    @property
    def counts(self) -> tuple[int, int]:
        """Largest number of elements any rank sends and receives."""
        if self.splits:
            table = self.matrix
            return int(table.sum(1).max()), int(table.sum(0).max())
        return self.row.counts(self.n, self.count)

    @property
    def size(self) -> int:
        """Bytes in the larger buffer: the ``size`` column, and what algbw is computed from (but see ``moved``). Where
        the file that says how it is split cannot be read, what was asked for."""
        try:
            return max(self.counts) * self.type.size
        except UsageError:
            return self.nbytes

    @property
    def moved(self) -> int:
        """The S of busbw = factor * S / t: the size, or for all_to_allv the bytes through the busiest port."""
        return splits.busiest(self.matrix) * self.type.size if self.splits else self.size

    @property
    def world(self) -> int:
        """Ranks of all groups, and those in none."""
        return groups.placed(self.groups) or self.n * self.of

    @property
    def members(self) -> Sequence[int]:
        """The group's ranks, as the world counts them."""
        return groups.members(self.groups, self.world)[self.group]

    @property
    def siblings(self) -> list[Case]:
        """The cases of all groups, which are measured at once; the first group's, which stands for them, is last."""
        return [msgspec.structs.replace(self, group=group) for group in reversed(range(self.of))]

    @property
    def key(self) -> str:
        """What two runs are joined on: everything that says what was measured, nothing of how it came out."""
        parts = [self.collective, self.label, f"n{self.n}", str(self.nbytes), self.dtype, self.op, f"r{self.root}"]
        parts += ["in" if self.in_place else "out", self.mode, self.splits, *(f"{k}={v}" for k, v in self.env)]
        parts += [f"{self.groups} {self.group}"] if self.groups else []
        return "/".join(p for p in parts if p)

    @property
    def label(self) -> str:
        """Implementation: ``gloo`` for a library's own choice, ``ring@gloo`` for a reference algorithm."""
        return self.backend if self.algorithm == "native" else f"{self.algorithm}@{self.backend}"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How each case is measured; times in seconds. None: as the data decide. ``batch`` calls make a sample in streaming
    mode, ``graph`` replays of ``iters`` in graph mode. ``fresh`` cycles are launches. ``inject`` plants faults."""

    iters: int | None = None
    warmup: int | None = None
    precision: float | None = None
    max_seconds: float | None = None
    min_seconds: float = 0.2
    min_iters: int = 20
    max_iters: int = 2000
    batch: int = 20
    sync: Literal["auto", "window", "barrier", "device"] = "auto"
    cache: Literal["cold", "hot"] = "cold"
    order: Literal["auto", "size", "shuffled"] = "auto"
    check: int = 1
    seed: int = 1
    agg_iters: int = 1
    unalign: int = 0
    blocking: int = 0
    graph: Positive = 1
    cpu_time: bool = False
    pin: bool = True
    timeout: float | None = None
    virtual: bool = False
    share_gpu: bool = False
    register: Literal[0, 1, 2] = 0
    fresh: bool = False
    bitwise: bool = False
    inject: str = ""

    def resolved(self, crowded: bool) -> Policy:
        """With the defaults that depend on whether ranks must share cores: then nothing measured is fit for claims,
        and is known well enough sooner."""
        most = self.max_seconds if self.max_seconds is not None else (5.0 if crowded else 10.0)
        least = min(self.min_seconds, most / 4)  # else a short limit would leave no time to converge
        precision = self.precision or (0.05 if crowded else 0.02)
        return msgspec.structs.replace(self, precision=precision, max_seconds=most, min_seconds=least)


class Skip(msgspec.Struct, frozen=True):
    """A combination that will not run, and why, in words a person can act on."""

    case: Case
    reason: str


class Axes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lists whose product is the sweep. An empty ``modes`` means each backend's default, -1 among roots every root;
    empty ``backends`` and ``ranks`` are what the machine has. ``groups`` divides the ranks, if it is not empty."""

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
    align: int = 1
    cycles: int = 1
    groups: str = ""

    def settled(self, launched: int = 0) -> Axes:
        """With ``backends`` and ``ranks`` filled in, these by the number that a launcher started, if any."""
        backends = self.backends or default_backends()
        ranks = self.ranks or ((launched,) if launched else default_ranks(backends))
        return msgspec.structs.replace(self, backends=backends, ranks=ranks)


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named sweep: axes and policy. ``includes`` are further sweeps; ``overrides`` change some of the first one's
    cases, a later one in spite of an earlier, and ``excludes`` leave cases of any out, the first that matches."""

    name: str
    axes: Axes
    policy: Policy = Policy()
    description: str = ""
    tags: tuple[str, ...] = ()
    includes: tuple[Axes, ...] = ()
    overrides: tuple[Override, ...] = ()
    excludes: tuple[Exclude, ...] = ()
    thresholds: tuple[Threshold, ...] = ()

    def settled(self) -> Suite:
        """With all that it leaves to the machine filled in, as Axes.settled."""
        includes = tuple(further.settled() for further in self.includes)
        return msgspec.structs.replace(self, axes=self.axes.settled(), includes=includes)

    def values(self, axis: str) -> tuple[Any, ...]:
        """All values along an axis, of the whole suite."""
        whole = self.settled()
        parts = (whole.axes, *whole.includes, *(override.axes for override in self.overrides))
        return tuple(dict.fromkeys(value for part in parts for value in getattr(part, axis)))

    def tau(self, case: Case, default: float) -> float:
        """The smallest relative change of this case that a comparison judges; never below ``default``."""
        return max([default, *(threshold.tau for threshold in self.thresholds if case in threshold.match)])

    def expand(self) -> tuple[list[Case], list[Skip]]:
        """Every case once, to run or to skip with the reason, in nccl-tests' nesting order, includes last."""
        cases: list[Case] = []
        skips: list[Skip] = []
        every = list(itertools.islice(_swept(self.settled()), MOST_CASES + 1))
        if len(every) > MOST_CASES:
            raise _too_many()
        for case in sorted(dict.fromkeys(every), key=lambda case: case.cycle):
            excludes = [exclude for exclude in self.excludes if case in exclude.match]
            reason = excludes[0].reason if excludes else why_not(case)
            if reason:
                skips.append(Skip(case, reason))
            elif not excludes:
                cases.append(case)
        if not cases and not skips:
            name = self.name or "this sweep"
            raise UsageError(f"{name} is empty", "is everything excluded, or a list without a value?")
        return cases, skips


def default_mode(backend: str) -> Mode:
    """nccl is measured in nccl-tests' cadence, everything else one synchronised call at a time."""
    return "streaming" if backend == "nccl" else "isolated"


def default_backends() -> tuple[str, ...]:
    """nccl where there are GPUs, else gloo."""
    return ("nccl",) if environment.gpu_count() else ("gloo",)


def default_ranks(backends: tuple[str, ...]) -> tuple[int, ...]:
    """All GPUs for nccl, else a rank for each core and at least two."""
    gpus = environment.gpu_count() if "nccl" in backends else 0
    return (gpus or max(2, environment.core_count()),)


def expand(axes: Axes) -> tuple[list[Case], list[Skip]]:
    """The cases and skips of a single sweep."""
    return Suite(name="", axes=axes).expand()


def _swept(suite: Suite) -> Iterator[Case]:
    for case in _product(suite.axes):
        changes = {axis: values for o in suite.overrides if case in o.match for axis, values in o.axes.given.items()}
        yield from _instead(suite.axes, case, changes) if changes else (case,)
    for further in suite.includes:
        yield from _product(further)


def _instead(axes: Axes, case: Case, changes: dict[str, tuple[Any, ...]]) -> Iterator[Case]:
    """The product of ``changes`` with what else this case of the sweep is."""
    kept: dict[str, Any] = {axis: (getattr(case, field),) for axis, field in FIELDS.items() if axis != "collectives"}
    kept |= {"ranks": (case.world,), "modes": axes.modes and kept["modes"]}
    for other in _product(msgspec.structs.replace(axes, **{**kept, **changes, "cycles": 1})):
        if (other.collective, other.groups, other.group) == (case.collective, case.groups, case.group):
            yield msgspec.structs.replace(other, cycle=case.cycle)


def _product(axes: Axes) -> Iterator[Case]:
    """Raises UsageError before it makes anything where that would be too much."""
    if max(axes.ranks, default=1) > MOST_RANKS:
        raise UsageError(f"{max(axes.ranks)} ranks are more than any machine has", f"{MOST_RANKS} at most")
    rows = [collective(name) for name in axes.collectives]
    divided = [(rule, groups.members(rule, n)) for n in axes.ranks for rule in groups.rounds(axes.groups, n)]
    each = (_within(axes, row, found, axes.modes or MODES[:1]) for row, (_, found) in itertools.product(rows, divided))
    swept = sum(math.prod(map(len, lists)) for lists in each)
    if swept * axes.cycles * len(axes.envs) * len(axes.backends) > MOST_CASES:
        raise _too_many()
    worlds = itertools.product(range(axes.cycles), rows, divided, axes.envs, axes.backends)
    for cycle, row, (rule, found), env, backend in worlds:
        for group, algorithm, mode, kind, op, root, split, size, in_place in itertools.product(
            *_within(axes, row, found, axes.modes or (default_mode(backend),))
        ):
            yield Case(
                collective=row.name, backend=backend, n=len(found[0]), nbytes=size, algorithm=algorithm,
                dtype=dtype(kind).name, op=reduction(op), root=root, in_place=in_place, mode=mode, env=env,
                splits=split, align=axes.align, cycle=cycle, groups=rule, group=group, of=len(found),
            )  # fmt: skip


def _within(axes: Axes, row: Collective, among: Groups, modes: tuple[Mode, ...]) -> tuple[Sequence[Any], ...]:
    """What varies within a collective on some groups of ranks: group, algorithm, mode, datatype, reduction, root,
    split, size, placement."""
    empty = row.name == "barrier"
    return (
        range(len(among)), spelled(axes, row.name), modes, axes.dtypes[:1] if empty else axes.dtypes,
        axes.ops if row.reduces else ("none",),
        (-1,) if not row.rooted else range(len(among[0])) if -1 in axes.roots else axes.roots,
        axes.splits if row.uneven else ("",), (0,) if empty else axes.sizes, (False,) if empty else axes.in_place,
    )  # fmt: skip


def _too_many() -> UsageError:
    return UsageError(f"more than {MOST_CASES} cases", "fewer sizes, ranks, roots or cycles, or several runs")


def spelled(axes: Axes, name: str) -> list[str]:
    """The algorithms by their proper names; those that only other collectives of the sweep have stay."""
    names = []
    for text in axes.algorithms:
        owners = [other for other in map(collective, axes.collectives) if _has(other.name, text)]
        if text == "native" or (owners and not _has(name, text)):
            names.append(text)
        else:
            names.append(algorithms.find(name, text).name)
    return list(dict.fromkeys(names))


def _has(name: str, text: str) -> bool:
    return text.partition(":")[0] in {word for row in algorithms.of(name) for word in (row.name, *row.aliases)}
