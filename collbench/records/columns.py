"""The columns of collbench.frame: one literal table, which imports nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

BOUNDING = {"p95": 72, "p99": 368}  # independent samples that bound it (stats.interval_ranks)

Kind = Literal["text", "whole", "number", "yes or no", "values"]


class Column(NamedTuple):
    """``source`` is where a rows.Row has the value; what a row has not is missing in the frame."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    source: str

    @property
    def description(self) -> str:
        """The column's meaning, and its unit if it has one."""
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning


COLUMNS = (
    Column("run", "text", "", "id of the run", "run.id"),
    Column("tag", "text", "", "the run's tag, or empty", "run.tag"),
    Column("started", "text", "", "when the run began, ISO", "run.started"),
    Column(
        "world",
        "whole",
        "",
        "process group that the launch is, as the run counts them; -1: none came up",
        "launch.world",
    ),
    Column("stage", "whole", "", "1 or 2 in an interleaved comparison, else 0", "launch.stage"),
    Column("round", "whole", "", "round of that stage, from 0", "launch.round"),
    Column("order", "whole", "", "when it was measured: records of the run before", "first.number"),
    Column("collective", "text", "", "what was called", "case.collective"),
    Column(
        "implementation",
        "text",
        "",
        "algorithm@backend, or the backend alone for its own choice",
        "case.label",
    ),
    Column("backend", "text", "", "library or transport", "case.backend"),
    Column("algorithm", "text", "", "native: the library's choice", "case.algorithm"),
    Column("n", "whole", "", "ranks", "case.n"),
    Column("nbytes", "whole", "B", "size asked for", "case.nbytes"),
    Column("size", "whole", "B", "bytes in the larger buffer", "case.size"),
    Column("count", "whole", "", "elements named in the call", "case.count"),
    Column("dtype", "text", "", "datatype", "case.dtype"),
    Column("op", "text", "", "reduction, or none", "case.op"),
    Column("root", "whole", "", "root rank; -1: there is none", "case.root"),
    Column("in_place", "yes or no", "", "whether both buffers are one", "case.in_place"),
    Column("mode", "text", "", "cadence of the calls", "case.mode"),
    Column("env", "text", "", "settings of the case's processes", "settings"),
    Column("splits", "text", "", "how all_to_allv divides a buffer", "case.splits"),
    Column("background", "text", "", "what ranks did meanwhile, besides", "case.background"),
    Column("align", "whole", "B", "what blocks are rounded to", "case.align"),
    Column("groups", "text", "", "how ranks are divided into groups, or empty", "case.groups"),
    Column("group", "whole", "", "the group measured", "case.group"),
    Column("of", "whole", "", "how many groups there are", "case.of"),
    Column("status", "text", "", "ok, predicted, skipped, wrong or failed", "record.status"),
    Column("note", "text", "", "the reason, or the model", "record.note"),
    Column("unfit", "text", "", "why the row has no time, or empty", "unfit"),
    Column(
        "ungated", "text", "", "flags for which the row decides no verdict, or empty", "ungated"
    ),
    Column("flags", "text", "", "flags of the row's cycles", "flags"),
    Column("cycles", "whole", "", "repetitions in the launch", "repetitions"),
    Column("cycles_left_out", "whole", "", "those among them that the time is not of", "lost"),
    Column(
        "median",
        "number",
        "ns",
        "time of a call: the median of the samples of all cycles that count",
        "derived.times.median",
    ),
    Column("lo", "number", "ns", "lower end of the median's 95 % interval", "derived.times.lo"),
    Column("hi", "number", "ns", "upper end of that interval", "derived.times.hi"),
    Column("algbw", "number", "GB/s", "size / median, 1e9 bytes a second", "derived.algbw"),
    Column("busbw", "number", "GB/s", "algbw times the collective's factor", "derived.busbw"),
    Column(
        "wirebw",
        "number",
        "GB/s",
        "through a GPU's port, where a switch adds up or multiplies",
        "derived.wirebw",
    ),
    Column(
        "wire",
        "number",
        "",
        "bytes counted on their way over those that the algorithm's schedule has, where counted",
        "derived.wire",
    ),
    Column("moves", "text", "", "what wire comes of, or why it is unknown", "derived.moves"),
    Column("samples", "whole", "", "number of timings", "samples"),
    Column(
        "n_eff", "number", "", "independent samples that would say as much", "derived.times.n_eff"
    ),
    Column("min", "number", "ns", "fastest sample", "derived.times.min"),
    Column("mean", "number", "ns", "mean of the samples", "derived.times.mean"),
    Column("max", "number", "ns", "slowest sample", "derived.times.max"),
    Column("mad", "number", "ns", "median absolute deviation", "derived.times.mad"),
    Column(
        "p95",
        "number",
        "ns",
        f"95th percentile, from {BOUNDING['p95']} independent samples (n_eff) on",
        "derived.times.p95",
    ),
    Column(
        "p99",
        "number",
        "ns",
        f"99th percentile, from {BOUNDING['p99']} independent samples on",
        "derived.times.p99",
    ),
    Column("t_glob", "number", "ns", "last end minus first start, on one clock", "derived.t_glob"),
    Column("host", "number", "ns", "median by the host's clock, beside a device's", "derived.host"),
    Column("device", "number", "ns", "median by the device's clock", "derived.device"),
    Column("skew", "number", "ns", "last start minus first, a sample", "derived.skew"),
    Column("arrival", "text", "", "how ranks arrived apart on purpose, or empty", "case.arrival"),
    Column(
        "control",
        "number",
        "ns",
        "median in the other cadence: as called for isolated, aligned for host, isolated for"
        " streaming",
        "derived.control",
    ),
    Column(
        "absorbed",
        "number",
        "",
        "share of ranks' coming apart that cost nothing",
        "derived.absorbed",
    ),
    Column(
        "clock_error",
        "number",
        "ns",
        "how well hosts' clocks are known; 0: one clock",
        "derived.clock_error",
    ),
    Column("overhead", "number", "ns", "the same loop around nothing", "derived.overhead"),
    Column(
        "severe_outliers",
        "whole",
        "",
        "samples farther than 3 interquartile ranges out",
        "derived.times.severe_outliers",
    ),
    Column("late_rank", "whole", "", "the rank that others wait for", "derived.late_rank"),
    Column("late_share", "number", "", "how late it came, of the time", "derived.late_share"),
    Column(
        "slow_rank",
        "whole",
        "",
        "the rank that leaves last, nobody being late",
        "derived.slow_rank",
    ),
    Column(
        "modes",
        "values",
        "ns",
        "the two times around which samples gather",
        "derived.times.modes.times",
    ),
    Column(
        "mode_share", "number", "", "share of samples around the first", "derived.times.modes.share"
    ),
    Column(
        "preempted",
        "whole",
        "",
        "times that the kernel took a rank off its core, of the first cycle that counts",
        "record.preempted",
    ),
    Column(
        "lateness", "values", "ns", "by rank, a sample after the first rank", "derived.lateness"
    ),
    Column("chose", "text", "", "what the library said it ran", "derived.chose"),
    Column(
        "checked",
        "whole",
        "",
        "elements verified, of the first cycle that counts",
        "record.checked",
    ),
    Column("wrong", "whole", "", "wrong elements; missing where none was verified", "record.wrong"),
    Column("sync", "text", "", "how ranks were aligned", "record.sync"),
    Column("rotation", "whole", "", "buffer pairs that took turns", "record.rotation"),
    Column(
        "cache",
        "text",
        "",
        "cold: buffers that took turns were three last-level caches or more; small: less, so that"
        " data may stay in a cache; shrunk: memory allowed fewer; hot: one pair",
        "record.cache",
    ),
    Column(
        "call_path_ns",
        "whole",
        "ns",
        "a call by rank 0 alone that leaves the library nothing to do, where one can be made",
        "record.call_path_ns",
    ),
)


def document_columns() -> str:
    """A line for each column: its name and what it means."""
    return "\n".join(f"    {column.name}: {column.description}" for column in COLUMNS)
