"""The lines of a run's file, and what they hold: raw values only. derive.py and rows.py derive
everything that is shown of them.

A run's file (run_file.py) is one JSON object per line: a Run (what was asked, when, on what), a
World for each process group, a Record per case as it ends, and an End; a file without an End was
cut short.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from collbench.machine.load import Load
from collbench.suite.case import Case, Positive, Ranks, Whole
from collbench.suite.policy import MOST_SAMPLES, Policy
from collbench.suite.sweep import Suite
from collbench.survive.encoding import encode_json

SCHEMA = 1

PER_RANK_SAMPLES = 200  # of every rank's own times, this many samples are kept
BACKGROUND_SAMPLES = 1000  # times of a background that are kept

MOST_ENVIRONMENT = 1 << 18  # bytes, of which a machine's description takes some thousand

Cache = Literal["", "cold", "hot", "small", "shrunk"]

Together = Literal["", "turns", "world"]

Status = Literal["ok", "predicted", "skipped", "wrong", "failed"]

Stop = Literal["", "converged", "max_n", "budget", "fixed", "cut"]  # why sampling ended

Scheme = Literal["", "window", "barrier", "device", "none"]  # how ranks were aligned

Samples = Annotated[list[Whole], msgspec.Meta(max_length=MOST_SAMPLES)]

Time = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]  # nanoseconds of a call, up to eleven days


class _Line(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="line",
    omit_defaults=True,
):
    pass


class Pairing(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a run belongs to an interleaved comparison: two runs, one a side, share ``experiment``.
    ``variant`` is the side as it was given. ``differs`` names the fields of Case that the variants
    set, on which rows of both sides are therefore not joined. ``aa`` says that both sides are the
    same on purpose.
    """

    experiment: str
    side: Literal["base", "head"]
    variant: str
    differs: tuple[str, ...] = ()
    aa: bool = False


def is_budgeted(command: Iterable[str]) -> bool:
    """Whether --budget shared out the time of a run with this command line."""
    return any(word.partition("=")[0] == "--budget" for word in command)


class Run(_Line, frozen=True, tag="run"):
    """What was asked for, when and where. ``environment`` is the allow-listed description of
    environment.gather_facts(). ``imported`` names the tool whose output the run was read from, and
    then what is not known of it is left empty. ``load`` is others' load by host just before ranks
    were started (machine/load.py); empty where nobody could tell. ``named_axes``: "ranks" and
    "backends" where the suite's file or the command gave them, not the machine; None where the run
    does not tell."""

    id: str
    started: str
    command: list[str]
    suite: Suite
    policy: Policy
    environment: dict[str, Any]
    schema: int = SCHEMA
    tag: str = ""
    pairing: Pairing | None = None
    imported: str = ""
    load: dict[str, Load] = {}
    named_axes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(encode_json(self.environment)) > MOST_ENVIRONMENT:
            raise ValueError(f"the environment takes more than {MOST_ENVIRONMENT >> 10} KiB")


class RankInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a rank lives: host, process, the CPUs it may use and the device that holds its
    buffers: "cpu", or "cuda:3 [0000:0f:00] NVIDIA H200" of which the end may lack."""

    rank: int
    host: str
    pid: int
    cpus: list[int]
    device: str = "cpu"
    numa: int = -1

    @property
    def gpu(self) -> str:
        """The GPU's number as torch writes it, cuda:3; empty on CPUs."""
        return self.device.partition(" ")[0] if self.device.startswith("cuda") else ""


UNEXPLAINED_THROTTLE = "throttled"  # of AMD's GPUs before MI300, for a power cap, too

# A power cap may be how the machine is set up, and what it costs shows in the clock.
POWER_CAPS = frozenset({"sw_power_cap", "package_power_limit", UNEXPLAINED_THROTTLE})

# Xids of a program's own fault, or of its end, as NVIDIA's device plugin for Kubernetes has them.
# The program may be another's.
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})


class GpuState(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What a GPU said of itself: clocks in MHz, why it held them back, and counters; None where it
    does not say.

    ``ecc`` counts uncorrected errors since the driver was loaded, ``nvlink_errors`` of all links
    (xGMI's on AMD's GPUs), ``nvlink_kib`` what left by them; ``xid`` is the last critical error,
    one of PROGRAM_XIDS only where there was no other.
    """

    index: int
    name: str
    sm_mhz: int | None = None
    sm_mhz_default: int | None = None
    memory_mhz: int | None = None
    celsius: int | None = None
    watts: float | None = None
    throttle: tuple[str, ...] = ()
    ecc: int | None = None
    nvlink_errors: int | None = None
    nvlink_kib: int | None = None
    pcie_replays: int | None = None
    xid: int | None = None

    @property
    def is_held_back(self) -> bool:
        """Whether samples taken meanwhile are to be replaced: for a cause other than a power cap,
        never for their values."""
        return any(reason not in POWER_CAPS for reason in self.throttle)


class Choice(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What a library said it ran, in its own names; empty or 0 where it did not say. ``nodes``: as
    NCCL counts them, which takes hosts that NVLink joins for one. ``adds_as``: algorithms that add
    in the order that its sums have, references first; empty where none fits, and where that was not
    asked for."""

    algorithm: str = ""
    protocol: str = ""
    channels: Whole = 0
    transport: str = ""
    nodes: Whole = 0
    adds_as: tuple[str, ...] = ()

    @property
    def is_heard(self) -> bool:
        """Whether the library itself said something."""
        return bool(self.algorithm or self.protocol or self.channels or self.transport)


class Sent(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Bytes that left all hosts, as their counters have it, while all ranks made ``calls`` calls
    for nothing else, in ``ns``; ``idle`` those of the same without calls, in ``idle_ns``. Both hold
    the barriers around. By what counted them: "tcp" (network interfaces, loopback too, less the
    headers), "ib" (InfiniBand ports), "nvlink"; nothing where no counter moved.
    """

    calls: Positive
    ns: Whole
    idle_ns: Whole
    bytes: dict[str, Whole] = {}
    idle: dict[str, Whole] = {}
    loopback: Whole = 0  # of "tcp", what left by loopback; the same without calls
    idle_loopback: Whole = 0


class Calibration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What the machine was like at the ``blocks`` of samples of a case that was measured in turns,
    by what was measured beside them. ``replaced`` counts those that were measured again because it
    was not itself, by cause (calibration.py), never by the value of a sample; ``left`` those kept
    because as many as may be had been replaced. The medians, on the slowest rank, of some
    arithmetic, of a memory copy, and of a word's way to the next rank and back; 0 where not known.
    """

    blocks: Positive
    replaced: dict[str, Whole] = {}
    left: dict[str, Whole] = {}
    arithmetic_ns: Whole = 0
    copy_ns: Whole = 0
    round_trip_ns: Whole = 0


class HostInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A host of a world of several: a digest of all that decides performance there, and the facts,
    by key path as in Run.environment, that are not the same on all its hosts; null where a host
    lacks one."""

    host: str
    fingerprint: str
    differs: dict[str, Any] = {}


class World(_Line, frozen=True, tag="world"):
    """One process group, which records name by ``index``. Times in nanoseconds. In an experiment,
    worlds of the same stage and round are one launch, paired with the other side's; elsewhere every
    world is a launch of its own."""

    index: Whole  # by which records name it
    backend: str
    n: Ranks
    env: tuple[tuple[str, str], ...]  # settings that its ranks were started with
    launcher: str
    ranks: list[RankInfo]
    oversubscribed: bool  # a machine has more ranks than cores
    same_clock: bool  # all ranks read one clock
    library: str = ""  # with its version
    init_ns: int = 0  # to open it
    stage: int = 0  # of an experiment: 1 or 2; else 0
    round: int = 0  # of an experiment, from 0
    together: Together = ""  # how two sides took turns; empty where one followed the other
    virtual: bool = False  # all ranks are virtual ones of one process on one GPU
    shared_gpu: bool = False  # several ranks' processes share a GPU
    interpreted: bool = False  # kernels ran in Triton's interpreter, on CPUs
    fake: bool = False  # GPUs are a fake's on host memory, whose times mean nothing
    gpus: list[GpuState] = []  # their state at the start
    hosts: list[HostInfo] = []  # where there are several
    counters: dict[str, dict[str, Whole]] = {}  # errors that each host's network ports had counted
    clock_error_ns: Whole = 0  # how well the hosts' clocks were known at the start; 0: one clock
    clock_hidden_ns: Whole = 0  # by which they may differ beyond, over a lopsided path
    cramped: bool = False  # ranks have fewer cores than threads that must run, the library's too
    few_cores: bool = False  # a launcher has bound a rank of a GPU to fewer cores than it needs


class FirstWrong(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first element that differs: rank, index in its receive buffer, and both values with their
    bits."""

    rank: int
    index: int
    got: str
    expected: str
    when: str = ""


class ToolTime(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What another tool printed in place of samples: nanoseconds a call, None where it printed
    nothing of the kind.

    ``time`` is the mean or median (``over``) of ``samples`` timings (0: not known how many), each
    the time of ``ranks``. The others are over samples too, but ``by_rank``: the means of the
    fastest, of all, of the slowest rank.
    """

    time: Time
    over: Literal["mean", "median"] = "mean"
    ranks: Literal["mean", "rank 0", "fastest", "slowest"] = "mean"
    samples: Whole = 0
    min: Time | None = None
    max: Time | None = None
    p50: Time | None = None
    p95: Time | None = None
    p99: Time | None = None
    by_rank: tuple[Time, Time, Time] | None = None


class Operation(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """An operation of a rank's program in some steps that were watched one by one: when it began
    and ended in each, after the rank had begun the step; 0 where it was not. ``waits_ns``: when the
    program began to wait before it, empty where it never did. ``alone_ns``: some calls of the like
    of it by themselves, on the slowest rank; of rank 0's operations only.
    ``without_ns`` and ``with_ns``: what steps took without it, and others of the same rounds."""

    begins_ns: Samples = []
    ends_ns: Samples = []
    waits_ns: Samples = []
    alone_ns: Samples = []
    without_ns: Samples = []
    with_ns: Samples = []


class Background(msgspec.Struct, frozen=True):
    """What was done in the background of a case, again and again, on the first of its group's ranks
    that did it, else on the first of all: what it took each time (the first 1,000), alone and
    while calls were measured; ``went_ns`` is how long it went on meanwhile, between calls too, 0
    where that is not known (before 0.2)."""

    alone_ns: Samples
    during_ns: Samples
    went_ns: Whole = 0


RELATIVE, VALIDATED = "largest relative error", "validation passed"
"""How notes of records begin whose data another tool has checked: with its largest error, or as a
whole."""


class Record(_Line, frozen=True, tag="record"):
    """The outcome of one case. Times in nanoseconds; a sample is of ``inner`` calls, and none is
    left out because of its value. Raises ValueError where times by rank are not of the case's
    ranks, or not as many of each."""

    case: Case
    status: Status
    world: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 62)] = -1  # World.index; -1: none
    note: str = ""  # a reason, or what is to be known of the row
    started: str = ""  # ISO time
    times_ns: Samples = []  # of each sample, on its slowest rank
    per_rank: list[list[Whole]] = []  # the same for each rank, of the first 200 samples
    starts_ns: list[list[Whole]] = []  # each rank's start after the earliest's, as skew_ns
    glob_ns: Samples = []  # last end minus first start, as skew_ns
    skew_ns: Samples = []  # last start minus first, where ranks read one clock
    clock_error_ns: Whole = 0  # how well several hosts' clocks were known meanwhile
    submit_ns: Samples = []  # until the host had issued all calls of a sample
    clock: Literal["host", "device"] = "host"  # whose times_ns are
    host_ns: Samples = []  # of some further calls, one by one, from call to completion
    device_ns: Samples = []  # of the same samples, by the device
    # median share of a sample for which hosts waited for devices once all its calls were issued, on
    # the rank where it is least
    waited: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    # some samples in the other cadence: of ranks that come as a program's do where the case aligns
    # them, and aligned in mode host; of small calls in mode streaming as isolated, by the device
    control_ns: Samples = []
    control_inner: Positive | None = None  # calls a sample of these
    inner: Positive = 1  # calls a sample
    setup_ns: int = 0  # to allocate and prepare
    warmup: int = 0  # samples before these
    steady: bool = True  # times had settled when warm-up ended
    stop: Stop = ""  # what ended sampling
    sync: Scheme = ""  # how ranks started together
    overhead_ns: Whole = 0  # of the same loop around a call that does nothing
    call_path_ns: Whole | None = None  # of a call by rank 0 alone that leaves the library no work
    invalid: dict[str, Whole] = {}  # samples that were replaced, by cause
    rotation: int = 1  # pairs of buffers that took turns
    cache: Cache = ""  # small: all of them fit; shrunk: memory allowed fewer
    checked: int = 0  # elements
    preempted: int = 0  # times that the kernel took a rank off its core
    copies_first: bool = False  # a call begins with a copy: the library works in place only
    wrong: int | None = None  # elements; None: not checked
    bits: list[str] = []  # digests of two calls on floats that must be rounded; one if they agree
    first_wrong: FirstWrong | None = None
    seconds: float = 0.0  # that the case took, all told
    again: bool = False  # the last of its case in its world: stands for an earlier one, if any
    injected: str = ""  # faults that were planted (faults.py)
    told: ToolTime | None = None  # of an imported record, whose times_ns are often empty
    chose: Choice | None = None  # what the library ran
    gpus: list[GpuState] = []  # each rank's at its worst
    load: dict[str, Load] = {}  # others', by host, since the record before
    sent: list[Sent] = []  # bytes counted afterwards, of all groups; again where they did not fit
    calibration: Calibration | None = None  # of cases measured in turns with others, on CPUs
    operations: list[list[Operation]] = []  # of a training step, by rank
    background: Background | None = None  # how that of the case fared
    # of a case of a feature's kind: what it found that is no time, as the feature reads it
    findings: dict[str, Any] = {}

    def __post_init__(self) -> None:
        lengths = {len(row) for row in (*self.per_rank, *self.starts_ns)}
        alone = self.starts_ns and not self.per_rank
        ranks = {len(self.per_rank), len(self.starts_ns)}
        if len(lengths) > 1 or alone or not ranks <= {0, self.case.n}:
            raise ValueError(
                f"times by rank are not of all {self.case.n} ranks, or not as many of each"
            )


class End(_Line, frozen=True, tag="end"):
    """The last line of a run that was not cut short. ``load`` is others' load by host just after
    the last rank had ended."""

    exit: int
    ended: str
    note: str = ""
    load: dict[str, Load] = {}


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A run read back: its lines by kind."""

    run: Run
    worlds: list[World]
    records: list[Record]
    end: End | None
    path: Path
    nbytes: int = 0  # of its file, where it was read whole
    ended_worlds: int = 0  # of parts that could write their end

    @property
    def backends(self) -> set[str]:
        """The backends of all cases that ran, or were to run and failed."""
        return {record.case.backend for record in self.records if record.status != "skipped"}


# a skip's reason in an experiment, on the side that could
ONE_SIDED = "the other side cannot run it"


def row_key(run: Run, case: Case) -> str:
    """The key by which a row of this run is joined: Case.key, less what the variants of a pairing
    are about."""
    return strip_case(case, run.pairing.differs if run.pairing else ())


def strip_case(case: Case, differs: Iterable[str]) -> str:
    """Case.key without the fields that the two sides of an experiment set."""
    neutral = {"backend": "", "algorithm": "native"}
    return msgspec.structs.replace(case, **{name: neutral[name] for name in differs}).key
