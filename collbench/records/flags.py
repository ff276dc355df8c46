"""FLAGS: the one table of flags. A row says when a flag holds, whether it is a doubt or a remark,
what follows of a row that has it, what it means and what to do.

A doubt is a reason not to take a row's time for what its name says. A remark is what a reader may
want to know of a time that stands: how sure a time is, its interval says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

from collbench.core.backend_info import backend_info
from collbench.core.errors import UsageError
from collbench.records.choice import is_unlike_sums, without_effect
from collbench.records.origins import ORIGINS
from collbench.records.path_proof import prove_path
from collbench.records.types import Record, World

Effect = Literal["", "ungates", "excludes"]

FEWEST_SAMPLES = 6
GRADED = 0.05  # a share from which on a flag that has grades holds
SEVERE = 0.20  # a share from which on it has an exclamation mark
LAUNCH_BOUND = 0.05  # of a sample: hosts that wait for their devices for less issue too slowly
WIDE = 0.1  # half the width of an interval, as a share of the median
KNOWN = 0.5  # the same: a time that is less sure is not known


class FlagInputs(NamedTuple):
    """What flags are told from. Shares are of the time of a call, ``discarded`` of all samples."""

    record: Record
    world: World | None
    skew: float
    overhead: float
    discarded: float
    late_rank: int | None
    unsteady: bool
    bimodal: bool
    is_arrival_sensitive: bool
    algbw: float
    traffic_factor: float
    imported: bool
    call_path: float  # of a call that leaves the library no work


class FlaggedTime(Protocol):
    """A time with its interval and flags."""

    @property
    def half_width(self) -> float:
        """The larger half of the interval, as a share of the median; infinite or nan where there is
        no interval."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of the row's flags."""

    @property
    def late_share(self) -> float:
        """How late the late rank came, as a share of a sample's time; 0 where no rank is late."""


def is_wide(time: FlaggedTime) -> bool:
    """Whether the interval is wider than a tenth to either side, or there is none."""
    return not time.half_width <= WIDE


def is_always(flag: str, time: FlaggedTime) -> bool:
    """True: the flag is a reason to doubt on every row."""
    return True


def is_never(flag: str, time: FlaggedTime) -> bool:
    """False: the flag only remarks."""
    return False


def if_severe(flag: str, time: FlaggedTime) -> bool:
    """Whether the flag is a reason to doubt: where its name ends in ``!``."""
    return flag.endswith("!")


def if_wide(flag: str, time: FlaggedTime) -> bool:
    """Whether the flag is a reason to doubt: where the interval is wide."""
    return is_wide(time)


def if_very_late(flag: str, time: FlaggedTime) -> bool:
    """Whether the flag is a reason to doubt: where the late rank came later than SEVERE of the
    time."""
    return time.late_share > SEVERE


class Flag(NamedTuple):
    """A row of FLAGS. ``holds`` is a share where a flag has grades: it holds above GRADED, and with
    an exclamation mark above ``severe``, where ``severe_effect`` follows.

    ``effect``: a row that "ungates" is shown and decides no verdict; the time of one that
    "excludes" stands in its own line and is used nowhere, for ``reason``. ``of_group``: all rows
    of a process group have it. ``of_time``: whether a launch has it depends on its own time, so
    that it counts for all launches of a case or for none (rows.share_flags). ``stays``: its row
    shows it, however many others have it too.
    """

    name: str
    holds: Callable[[FlagInputs], bool | float]
    is_doubt: Callable[[str, FlaggedTime], bool]
    meaning: str
    remedy: str
    effect: Effect = ""
    severe: float = math.inf
    severe_effect: Effect = ""
    reason: str = ""
    of_group: bool = False
    of_time: bool = False
    stays: bool = False
    letter: str = ""  # where a terminal has no room for its name


def _is_preempted(inputs: FlagInputs) -> bool:
    """A rank on Gloo is preempted by Gloo's own thread on a quiet machine too, and ranks that share
    cores by each other: it counts only where other processes were at work besides."""
    record, world = inputs.record, inputs.world
    return (
        record.preempted > GRADED * len(record.times_ns)
        and any(load.busy for load in record.load.values())
        and not (world and world.oversubscribed)
    )


def _is_launch_bound(inputs: FlagInputs) -> bool:
    record = inputs.record
    streams = record.case.mode == "streaming" and record.waited is not None
    return streams and record.waited is not None and record.waited < LAUNCH_BOUND


def _measure_dispatch(inputs: FlagInputs) -> float:
    """The share of the way into the library, where a backend says what its calls pay there."""
    return inputs.call_path if find_call_path(inputs.record.case.backend) else 0.0


def find_call_path(backend: str) -> str:
    """What a call of ``backend`` pays beside the collective; empty where that is not known."""
    with suppress(UsageError):  # a backend from outside that can no longer be loaded
        return backend_info(backend).call_path
    return ""


def _make_origin_flag(
    name: str, meaning: str, remedy: str, *, is_doubt: Callable[[str, FlaggedTime], bool]
) -> Flag:
    """The row of where times come from (origins.py)."""
    origin = ORIGINS[name]
    effects: dict[str, Effect] = {"ungated": "ungates", "excluded": "excludes"}
    return Flag(
        name,
        lambda inputs: origin.holds(inputs.record, inputs.world),
        is_doubt,
        meaning,
        remedy,
        effect=effects.get(origin.effect, ""),
        reason=origin.reason,
        of_group=True,
    )


FLAGS: tuple[Flag, ...] = (  # in the order in which rows show them
    Flag(
        "imported",
        lambda inputs: inputs.imported,
        is_never,
        "read from another tool's log, which tells less than samples do: never decides a"
        " comparison",
        "nothing to do, or measure again with collbench",
        effect="ungates",
        of_group=True,
    ),
    Flag(
        "blocking",
        lambda inputs: (  # of what is measured here, the policy says it (derive_in_run)
            inputs.imported
            and inputs.record.case.mode == "streaming"
            and inputs.record.sync == "barrier"
        ),
        is_never,
        "each call's time includes a wait for all ranks (-z 1)",
        "leave -z out for the call alone",
        of_group=True,
    ),
    Flag(
        "injected",
        lambda inputs: bool(inputs.record.injected),
        is_always,
        "a fault was planted on purpose (--inject): shows that an alarm fires, and nothing of the"
        " machine",
        "leave --inject out to measure",
        effect="ungates",
        of_group=True,
    ),
    _make_origin_flag(
        "predicted",
        "computed from a model of the network, not measured",
        "measure it to know",
        is_doubt=is_never,
    ),
    _make_origin_flag(
        "fake",
        "measured on a fake GPU, whose times mean nothing: nothing compares, ranks or keeps them",
        "measure on a GPU",
        is_doubt=is_always,
    ),
    _make_origin_flag(
        "interpreted",
        "kernels ran in Triton's interpreter, on CPUs: shows that results are right, and no time",
        "measure on a GPU",
        is_doubt=is_always,
    ),
    _make_origin_flag(
        "virtual",
        "all ranks are virtual ones on one GPU: what an algorithm costs there, not what links"
        " between GPUs do",
        "leave --virtual-ranks out where there are several GPUs",
        is_doubt=is_always,
    ),
    Flag(
        "shared-gpu",
        lambda inputs: bool(inputs.world and inputs.world.shared_gpu),
        is_always,
        "ranks share a GPU: shows that it runs, not what a machine can do",
        "take no more ranks than GPUs (-g)",
        effect="ungates",
        of_group=True,
    ),
    Flag(
        "few-cores",
        lambda inputs: bool(inputs.world and inputs.world.few_cores),
        is_always,
        "a GPU's rank is bound to fewer than 4 cores, which threads of its library share",
        "give each rank 4 cores or more: srun -c N or --cpu-bind=none, mpirun --bind-to none",
        of_group=True,
        letter="K",
    ),
    Flag(
        "launch-bound",
        _is_launch_bound,
        is_never,
        "a host issued calls more slowly than its device does them: the time is the host's",
        "measure what the device takes, too (--mode isolated,graph)",
    ),
    Flag(
        "throttled",
        lambda inputs: any(state.is_held_back for state in inputs.record.gpus),
        is_always,
        "a GPU was held back meanwhile (heat, power brake, low clock); samples that end so are"
        " measured again",
        "nvidia-smi -q -d PERFORMANCE says why; look at cooling and power supply",
        letter="T",
    ),
    Flag(
        "no-effect",
        lambda inputs: bool(
            without_effect(
                inputs.record.case.env, inputs.record.case.collective, inputs.record.chose
            )
        ),
        is_always,
        "the library did not follow a setting that was asked for; the record's note says which",
        "leave the setting out, or ask for one that the library has here",
        letter="E",
    ),
    Flag(
        "off-path",
        lambda inputs: prove_path(inputs.record).state == "broken",
        is_always,
        "data did not go the path that --path leaves; the record's note says which way it went",
        "collbench help paths says what each library needs for it",
        effect="ungates",
        letter="P",
    ),
    Flag(
        "path-unproved",
        lambda inputs: prove_path(inputs.record).state == "unknown",
        is_always,
        "nothing shows whether data went the path that --path leaves",
        "larger sizes are counted; NCCL says it in its log (NCCL_DEBUG)",
        letter="Q",
    ),
    Flag(
        "order-unlike-log",
        lambda inputs: is_unlike_sums(inputs.record.chose),
        is_always,
        "sums have bits that the algorithm which the library named does not give (--adds-as)",
        "collbench order COLLECTIVE finds in which order it adds",
        letter="A",
    ),
    Flag(
        "oversubscribed",
        lambda inputs: bool(inputs.world and inputs.world.oversubscribed),
        is_always,
        "more ranks than physical cores: times include waiting for a core",
        "take no more ranks than cores (-g) for times to rely on",
        effect="ungates",
        of_group=True,
        letter="O",
    ),
    Flag(
        "n<6",
        lambda inputs: (
            len(inputs.record.times_ns) < FEWEST_SAMPLES
            and inputs.record.status == "ok"
            and not inputs.record.case.table.once
        ),
        is_always,
        "fewer than 6 samples: too few for an interval",
        "{enough}",
        effect="ungates",
        of_time=True,
        letter="N",
    ),
    Flag(
        "cut-short",
        lambda inputs: inputs.record.stop == "cut",
        is_always,
        "the run, or this case's ranks, ended while it was measured: what was finished is shown,"
        " and no verdict rests on it",
        "{again}",
        effect="ungates",
        letter="C",
    ),
    Flag(
        "unconverged",
        lambda inputs: inputs.record.stop in ("budget", "max_n"),
        is_never,
        "{ran_out} before reaching {precision}",
        "allow more ({more}) or ask for less ({less}){why}",
    ),
    Flag(
        "unsteady",
        lambda inputs: inputs.unsteady,
        if_wide,
        "times still drifted after warm-up",
        "warm up for longer (-w 1000)",
        letter="U",
    ),
    Flag(
        "skewed",
        lambda inputs: inputs.skew,
        is_always,
        "ranks started apart by more than 5 % of the time (with !: 20 %)",
        "leave a core to each rank and stop other processes; larger sizes are less affected",
        severe=SEVERE,
        severe_effect="ungates",
        of_time=True,
        letter="S",
    ),
    Flag(
        "overhead",
        lambda inputs: inputs.overhead,
        if_severe,
        "measuring itself takes more than 5 % of the time (with !: 20 %)",
        "put several calls into each sample (-m 20)",
        severe=SEVERE,
        severe_effect="ungates",
        of_time=True,
        letter="H",
    ),
    Flag(
        "invalid",
        lambda inputs: inputs.discarded,
        is_always,
        "more than 5 % of the samples were discarded and measured again (with !: 25 %)",
        "stop other processes; --sync barrier where ranks cannot start in time",
        severe=0.25,
        severe_effect="excludes",
        reason="more than a quarter of the samples had to be repeated",
        stays=True,
        letter="I",
    ),
    Flag(
        "bimodal",
        lambda inputs: inputs.bimodal,
        is_always,
        "times cluster at two values",
        "use those instead of the median",
        stays=True,
        letter="B",
    ),
    Flag(
        "preempted",
        _is_preempted,
        is_never,
        "other processes took a rank's core in more than 5 % of the samples",
        "stop them or use an idle machine",
    ),
    Flag(
        "late",
        lambda inputs: inputs.late_rank is not None,
        if_very_late,
        "this rank was last far more often than chance; the others wait for it",
        "look at what else runs on its host; collbench locate finds slow hosts",
        letter="L",
    ),
    Flag(
        "apart",
        lambda inputs: bool(inputs.record.case.arrival),
        is_never,
        "ranks arrived apart on purpose (--arrival): times count from the last one's arrival",
        "nothing: compare with --arrival aligned",
        effect="ungates",
        of_group=True,
    ),
    Flag(
        "dispatch",
        _measure_dispatch,
        is_never,
        "more than 5 % of the time is what a program pays on its way into the library: {call_path}",
        "nothing: a program pays it, too; larger sizes show the collective itself",
        letter="D",
    ),
    Flag(
        "+copy",
        lambda inputs: inputs.record.copies_first,
        is_never,
        "the library works in place only, so this includes a copy; in-place rows do not",
        "read rows in place for the call alone",
    ),
    Flag(
        "few-buffers",
        lambda inputs: inputs.record.cache == "shrunk",
        is_always,
        "too little memory for enough buffers: some data may still be in a cache",
        "take smaller sizes (-e) or fewer ranks, or measure with data in the caches (--cache hot)",
        letter="F",
    ),
    Flag(
        "arrival-sensitive",
        lambda inputs: inputs.is_arrival_sensitive and inputs.record.case.mode != "host",
        is_never,
        "results differ when ranks are not aligned, as in a real program: see the column"
        " `as called`",
        "measure what a program sees (--mode host)",
        effect="ungates",
        of_time=True,
    ),
    Flag(
        "no-splits",
        lambda inputs: math.isnan(inputs.algbw),
        is_always,
        "the file that said how data is split is gone or was changed: bandwidth is unknown",
        "put the file back that was measured",
        letter="X",
    ),
    Flag(
        "wire",
        lambda inputs: inputs.traffic_factor > 1,
        is_always,
        "more bytes were sent than the algorithm's schedule has (a library's own choice: than busbw"
        " assumes), as counted or known of this library; `wire` is the ratio",
        "judge links by what they carried; another algorithm (--algo) may send less",
        letter="W",
    ),
)

FLAGS_BY_NAME = {flag.name: flag for flag in FLAGS}
if len(FLAGS_BY_NAME) < len(FLAGS):
    raise ValueError("two rows of FLAGS have one name")

UNKNOWN = Flag(
    "", lambda inputs: False, is_always, "a flag that this version does not know", "update it"
)


def _names_of(effect: Effect) -> tuple[str, ...]:
    """The flags, with their grade, that have this effect."""
    return tuple(
        flag.name + mark
        for flag in FLAGS
        for mark, flag_effect in (("", flag.effect), ("!", flag.severe_effect))
        if flag_effect == effect
    )


UNGATED = _names_of("ungates")
OF_TIME = frozenset(name for name in UNGATED if FLAGS_BY_NAME[name.rstrip("!")].of_time)
EFFECTIVE = tuple(flag for flag in FLAGS if flag.effect or flag.severe_effect)
EXCLUDED = {name: FLAGS_BY_NAME[name.rstrip("!")].reason for name in _names_of("excludes")}

INVALID, FEW, BIMODAL = "invalid!", "n<6", "bimodal"
UNCONVERGED, OVERSUBSCRIBED, PREEMPTED = "unconverged", "oversubscribed", "preempted"
INJECTED, WIRE, IMPORTED = "injected", "wire", "imported"
PREDICTED, COPY, DISPATCH = "predicted", "+copy", "dispatch"


def find_flags(inputs: FlagInputs) -> tuple[str, ...]:
    """The flags of a row as it shows them: with their grade, `late` with its rank."""
    return _find_flags_of(FLAGS, inputs)


def _find_flags_of(flags: Sequence[Flag], inputs: FlagInputs) -> tuple[str, ...]:
    names = []
    for flag in flags:
        share = flag.holds(inputs)
        if not (share if isinstance(share, bool) else share > GRADED):
            continue
        rank = f":{inputs.late_rank}" if flag.name == "late" else ""
        names.append(f"{flag.name}{rank}{'!' * (share > flag.severe)}")
    return tuple(names)


def find_effective_flags(inputs: FlagInputs) -> tuple[str, ...]:
    """Of the flags of a row those from which anything may follow, with their grade: the quick way
    to say of millions of records which are fit."""
    return _find_flags_of(EFFECTIVE, inputs)


def flag_kind(flag: str) -> str:
    """A flag without its rank and its exclamation mark."""
    return flag.partition(":")[0].rstrip("!")


def look_up(flag: str) -> Flag:
    """The row of a flag as rows show it."""
    return FLAGS_BY_NAME.get(flag_kind(flag), UNKNOWN)


def list_doubts(time: FlaggedTime) -> list[str]:
    """The flags for which a time may not be what its name says."""
    return [flag for flag in time.flags if look_up(flag).is_doubt(flag, time)]


def list_remarks(time: FlaggedTime) -> list[str]:
    """The flags of a time that are no doubts."""
    return [flag for flag in time.flags if not look_up(flag).is_doubt(flag, time)]


def is_without_interval(time: FlaggedTime) -> bool:
    """Whether a time is of no samples, so that there is no interval to know: a prediction, or what
    another tool gives in place of samples."""
    unbounded = math.isinf(time.half_width)
    return PREDICTED in time.flags or (IMPORTED in time.flags and unbounded)
