"""What can be asked for, a row each: the fields of a sweep's axes and of its policy, and what a
command line says besides.

The options of ``collbench COLLECTIVE`` and their help, the keys of a suite file and the lists of
axes are read from this table; it stands in the order of ``--help``. An option costs a row here, a
field of Axes or Policy, and the code that goes by it. Nothing heavy is imported: ``--help`` reads
this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from collbench.core.dtypes import DTYPES, OPS
from collbench.core.paths import NAMES as PATHS

Kind = Literal[
    "whole",  # a whole number
    "number",
    "flag",  # true or false
    "place",  # true or false, on the command line out, in or both
    "share",  # 2% or 0.02
    "seconds",  # 10s or 0.5
    "size",  # 4096 or 1M
    "sizes",  # sizes, or a sweep of them
    "choice",
    "text",
    "path",
    "name",  # a word, checked where it is used
    "algorithm",  # a name of any collective's
    "collective",
    "dtype",
    "op",
    "arrival",
    "split",
    "background",
    "setting",  # NAME=V1,V2
    "rule",  # of groups of ranks
    "faults",
    "limit",  # GB/s, or GB/s@SIZE
]


class Field(NamedTuple):
    """One row: the field ``name`` of ``group``, how its value is written (``kind``), and the names
    of its option (``flags``; a field without any is for suite files alone).

    ``many``: its value is a list, and the word "all" means ``every``. ``default`` is the struct's,
    ``text`` what the command line starts from where that is written in another way. ``least`` and
    ``most`` bound a number. ``choices`` are what a suite file may say. ``case`` is the field of
    Case that takes one of an axis' values. ``number`` is the type that an option takes instead of
    the one its kind would have; ``free`` ones are bounded where they are read, with a reason.
    """

    group: Literal["axes", "policy", "command"]
    name: str
    kind: Kind
    default: Any = None
    many: bool = False
    every: tuple[Any, ...] = ()
    choices: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None
    case: str = ""
    flags: str = ""
    help: str = ""
    text: Any = None
    number: type | None = None
    metavar: str | None = None
    free: bool = False

    def option(self, flags: str, help: str, **more: Any) -> Field:
        """The row with its option on the command line."""
        return self._replace(flags=flags, help=help, **more)

    @property
    def type(self) -> Any:
        """The type of the command line's words before they are read as ``kind``."""
        listed = self.many and self.kind != "setting"
        return self.number or (str if listed else _TYPES.get(self.kind, str))

    @property
    def placeholder(self) -> str | None:
        """What stands for the value in ``--help``, as "SIZE,…"; None where there is no value."""
        if self.metavar or self.type is bool:
            return self.metavar
        if self.type is int and self.least == 0 and self.most is not None and self.most <= 3:
            return "|".join(map(str, range(int(self.most) + 1)))
        word = _PLACEHOLDERS.get(self.kind, "NAME")
        return f"{word},…" if self.many and self.number is None else word

    @property
    def command_default(self) -> Any:
        """The command line's default."""
        if self.text is not None:
            return self.text
        if self.type is str:
            return ""
        return None if self.many else self.default


_TYPES: dict[str, Any] = {
    "whole": int,
    "number": float,
    "flag": bool,
    "path": Path,
    "setting": list[str],
}

_PLACEHOLDERS: dict[str, str] = {
    "whole": "N",
    "number": "X",
    "place": "PLACE",
    "share": "SHARE",
    "seconds": "TIME",
    "size": "SIZE",
    "path": "PATH",
    "arrival": "ARRIVAL",
    "split": "SPLIT",
    "rule": "RULE",
    "faults": "FAULT,…",
    "limit": "GB/s@SIZE",
}

FIELDS: tuple[Field, ...] = (
    Field("axes", "collectives", "collective", many=True, case="collective"),
    Field("axes", "sizes", "sizes", many=True, case="nbytes"),
    Field("command", "minbytes", "size").option(
        "-b --minbytes", "Smallest size, in bytes or with K, M, G (of 1024). Default: 32M."
    ),
    Field("command", "maxbytes", "size").option(
        "-e --maxbytes", "Largest size: steps end at it or below. Default: 32M, or -b."
    ),
    Field("command", "stepfactor", "number").option(
        "-f --stepfactor", "Multiply sizes by this, as 1.5. Default: 2."
    ),
    Field("command", "stepbytes", "size").option(
        "-i --stepbytes", "Add this to sizes instead of multiplying by -f."
    ),
    Field("command", "listed", "size", many=True).option(
        "--sizes", "These sizes instead of a sweep: 8,1K,3M."
    ),
    Field("axes", "ranks", "whole", many=True, least=1, most=1 << 20, case="n").option(
        "-g --ngpus --ranks",
        "Number of ranks, of all hosts. Default: all GPUs, else all cores (at least 2).",
    ),
    Field(
        "axes", "dtypes", "dtype", default=("float",), many=True, every=tuple(DTYPES), case="dtype"
    ).option("-d --datatype", f"{', '.join(DTYPES)} or all.", text="float"),
    Field("axes", "ops", "op", default=("sum",), many=True, every=tuple(OPS), case="op").option(
        "-o --op", f"{', '.join(OPS)} or all.", text="sum"
    ),
    Field(
        "axes", "roots", "whole", default=(0,), many=True, every=(-1,), least=0, case="root"
    ).option("-r --root", "Root ranks, or all.", text="0"),
    Field("axes", "backends", "name", default=("gloo",), many=True, case="backend").option(
        "--backend",
        (
            "gloo, nccl, mpi, shm (shared memory), symm (the same on GPUs), ./my.py or any of"
            " `collbench backends list`. Default: nccl on GPUs, else gloo."
        ),
    ),
    Field("command", "imports", "text", default=(), many=True).option(
        "--import",
        "Have ranks import these first: plug-ins that register a backend with torch.distributed.",
        metavar="MODULE,…",
    ),
    Field("axes", "algorithms", "name", default=("native",), many=True, case="algorithm").option(
        "--algo",
        (
            "native (the library's own choice), any of `collbench list`, as chain:segments=64, or"
            " your own ./line.py:line."
        ),
        text="native",
    ),
    Field("axes", "splits", "split", default=("uniform",), many=True, case="splits").option(
        "--splits",
        "Of all_to_allv: uniform, spread:0.5, zipf:1, matrix:FILE or table:ROWS.",
        text="uniform",
    ),
    Field("axes", "backgrounds", "background", default=("",), many=True, case="background").option(
        "--background",
        (
            "Load meanwhile: none, gemm (matrix products), copy, sleep (a control) or a"
            " collective, as all_to_all:4M."
        ),
        text="none",
    ),
    Field("axes", "groups", "rule", default="").option(
        "--split",
        (
            "Measure groups of ranks at once: mod:8, div:8, and:0x7, or:1, node (a host), rail (a"
            " rank of each host). Default: NCCL_TESTS_SPLIT."
        ),
    ),
    Field("axes", "in_place", "place", default=(False, True), many=True, case="in_place").option(
        "--place", "out (of place), in or both.", text="both"
    ),
    Field(
        "axes",
        "modes",
        "choice",
        default=(),
        many=True,
        choices=("isolated", "streaming", "graph", "host"),
        case="mode",
    ).option(
        "--mode",
        (
            "isolated (ranks aligned), streaming (back to back, as nccl-tests), graph or host (as"
            " a program). Default: by backend and cores."
        ),
    ),
    Field("axes", "arrivals", "arrival", default=(), many=True).option(
        "--arrival",
        (
            "Instead of --mode: aligned, natural, one-late:50us or random:100us. Times count from"
            " the last arrival."
        ),
    ),
    Field("axes", "envs", "setting", default=((),), many=True, case="env").option(
        "--env",
        "Sweep an environment variable; each value has newly started ranks; repeatable.",
        metavar="NAME=V1,V2",
    ),
    Field("command", "paths", "choice", default=(), many=True, choices=PATHS).option(
        "--path",
        (
            "Leave data one path, and prove that it took it: nvlink-only, nic-only, loopback-nic or"
            " shm-off (`collbench help paths`)."
        ),
    ),
    Field("axes", "align", "size", default=1).option(
        "--align", "Round blocks of ranks down to a multiple of this (nccl-tests: 16).", text="1"
    ),
    Field("axes", "per_host", "whole", default=0, least=0),
    Field("axes", "uneven_hosts", "flag", default=False),
    Field("axes", "cores", "whole", default=0, least=0),
    Field("policy", "iters", "whole", least=1, most=1 << 20).option(
        "-n --iters",
        (
            "Exactly this many samples (streaming: calls a sample; graph: calls captured). Default:"
            " as many as --precision takes."
        ),
    ),
    Field("policy", "warmup", "whole", least=0).option(
        "-w --warmup_iters",
        (
            "This many samples of warm-up, then a few that tell how many calls make a sample."
            " Default: until times settle."
        ),
    ),
    Field("axes", "cycles", "whole", default=1, least=1).option(
        "-N --run_cycles", "Repeat the sweep by the same ranks.", free=True
    ),
    Field("command", "launches", "whole", least=1, most=1000).option(
        "--launches",
        (
            "Repeat the sweep with newly started ranks: 10 a side to compare. They share a case's"
            " 2s (0.25s each at least), but --max-time is for each."
        ),
    ),
    Field("policy", "agg_iters", "whole", default=1, least=1).option(
        "-m --agg_iters", "Calls issued together before waiting; times are per call."
    ),
    Field("policy", "precision", "share").option(
        "--precision",
        (
            "Stop when the median's 95 % interval is this narrow: 1%. Default: 2%, with few cores"
            " 5%."
        ),
    ),
    Field("policy", "max_seconds", "seconds").option(
        "--max-time", "Longest time to measure a case. Default: 2s."
    ),
    Field("command", "budget", "seconds").option(
        "--budget",
        "Time for all, as 10m: takes fewer samples; what does not fit even so is named.",
    ),
    Field("policy", "check", "whole", default=1, least=0).option(
        "-c --check", "Checks of all data, to the bit, before and after timing; 0: none."
    ),
    Field("policy", "blocking", "whole", default=0, choices=(0, 1), least=0, most=3).option(
        "-z --blocking",
        "1: barrier after each call, in its time; 2: as --mode host; 3: as --mode isolated.",
    ),
    Field("command", "replays", "whole", default=0, least=0).option(
        "-G --cudagraph",
        "--mode graph, with so many replays a sample; 0: no.",
    ),
    Field("command", "launcher", "text", default="").option(
        "--launcher",
        (
            "What starts ranks: auto, local (collbench), torchrun, mpirun, srun, flux, pbs,"
            " environment (RANK …), ssh or ray."
        ),
        text="auto",
    ),
    Field("command", "address", "text", default="").option(
        "--address",
        "With ray: the cluster. Default: auto, the one of this machine.",
        metavar="HOST:PORT",
    ),
    Field("command", "placement", "text", default="").option(
        "--placement",
        "With ray: pack (on few nodes) or spread (on many). Default: pack.",
    ),
    Field("command", "hosts", "text", default="").option(
        "--hosts",
        (
            "With ssh: hosts and their ranks, as a:8,b:8 or node[01-04]:8, or a file with lines as:"
            " a slots=8. Default: COLLBENCH_HOSTS."
        ),
        metavar="HOST:N,…|FILE",
    ),
    Field("command", "ssh", "text", default="").option(
        "--ssh",
        "With ssh: the command in place of ssh, as 'ssh -p 2222'. Default: COLLBENCH_SSH.",
        metavar="COMMAND",
    ),
    Field("policy", "timeout", "seconds", least=0.1, most=1e7).option(
        "-T --timeout",
        (
            "Seconds without progress after which a run is hung. Default, and 0: 30, on GPUs 90,"
            " more for large sizes."
        ),
        metavar="SECONDS",
        number=float,
        free=True,
    ),
    Field("command", "average", "whole", default=3, least=0, most=3).option(
        "-a --average",
        "Time in nccl-tests' formats: 0 of rank 0, 1 mean, 2 min, 3 max over ranks.",
    ),
    Field("policy", "cpu_time", "flag", default=False, least=0, most=1).option(
        "-C --report_cputime",
        "Show the CPU time to issue a call instead (nccl-tests' formats).",
        number=int,
        text=0,
    ),
    Field("command", "timestamps", "flag", default=False, least=0, most=1).option(
        "-S --report_timestamps",
        "Add a time stamp to lines (nccl-tests' formats).",
        number=int,
        text=0,
    ),
    Field("command", "per_iter", "flag", default=False, least=0, most=1).option(
        "-I --per_iter_timing",
        "Add min, max, p99 and coefficient of variation of samples (nccl-tests' text).",
        number=int,
        text=0,
    ),
    Field("command", "per_iter_skip", "whole", default=0, least=0).option(
        "-K --per_iter_skip", "Leave so many first samples out of -I's and -J's statistics."
    ),
    Field("policy", "register", "whole", default=0, choices=(0, 1, 2), least=0, most=2).option(
        "-R --local_register",
        "Register buffers with NCCL: 1 locally (torch 2.7), 2 as symmetric windows (torch 2.9).",
    ),
    Field("policy", "unalign", "whole", default=0, least=0).option(
        "-u --unalign", "Shift all buffers by this many elements."
    ),
    Field(
        "policy", "sync", "choice", default="auto", choices=("auto", "window", "barrier", "device")
    ).option(
        "--sync",
        (
            "auto, window (a common deadline), barrier (messages) or device (a collective on the"
            " GPU's stream)."
        ),
        text="auto",
    ),
    Field("policy", "cache", "choice", default="cold", choices=("cold", "hot")).option(
        "--cache",
        "cold (buffers take turns) or hot (the same buffer).",
        text="cold",
    ),
    Field("policy", "order", "choice", default="auto", choices=("auto", "size", "shuffled")).option(
        "--order",
        "Order of cases: shuffled, size or auto (size in streaming and graph).",
        text="auto",
    ),
    Field("policy", "seed", "whole", default=1, least=0).option(
        "--seed", "Seed of data and order."
    ),
    Field("policy", "adds_as", "flag", default=False).option(
        "--adds-as",
        (
            "Tell by the bits of sums, untimed, which algorithms add as the library does (from 3"
            " ranks on)."
        ),
    ),
    Field("policy", "virtual", "flag", default=False).option(
        "--virtual-ranks",
        (
            "All ranks in one process on one GPU (symm): what an algorithm costs there, not what"
            " links do."
        ),
    ),
    Field("policy", "share_gpu", "flag", default=False).option(
        "--share-gpu",
        (
            "Let ranks share GPUs where there are too few (symm, NCCL 2.30): shows that it runs,"
            " not how fast."
        ),
    ),
    Field("policy", "pin", "flag", default=True).option(
        "--pin/--no-pin",
        "Bind each rank to cores of its own where there are enough, near its GPU.",
    ),
    Field("policy", "inject", "faults", default="").option(
        "--inject",
        (
            "Inject faults, to test detection: slow-rank:3:20%, jitter:3:50%, late:3:5ms,"
            " corrupt:3, hang:3, drop:3. Marks all that is shown."
        ),
    ),
    Field("command", "min_busbw", "limit", default=(), many=True).option(
        "--min-busbw",
        (
            "busbw wanted: 400@1G,9@1M; 400: of the largest size. Exit 1: short, 3: unsure."
            " Default: NCCL_TESTS_MIN_BW (`collbench help ci`)."
        ),
    ),
    Field("command", "output_format", "text", default="").option(
        "--format",
        (
            "auto (table on a terminal, else nccl), table, nccl, nccl-filled, imb (as IMB-MPI1),"
            " json, csv or md."
        ),
        text="auto",
    ),
    Field("command", "output_file", "path").option(
        "-J --output_file", "Also write nccl-tests' JSON to this .json."
    ),
    Field("command", "output", "path").option(
        "--output",
        (
            "Save the run to this folder or .jsonl file. With .prom, .otlp, .parquet: write this,"
            " too (`collbench help outputs`)."
        ),
        number=list[Path],
    ),
    Field("command", "save", "flag", default=True).option(
        "--save/--no-save", "Keep the run's records."
    ),
    Field("command", "tag", "text", default="").option("--tag", "A name to find the run by."),
    Field("command", "dry_run", "flag", default=False).option(
        "--dry-run", "Show what would run, what it takes and what is left out; run nothing."
    ),
    Field("command", "debug", "flag", default=False).option(
        "--debug", "Show a traceback with an error."
    ),
    Field("policy", "min_seconds", "seconds", default=0.2),
    Field("policy", "min_iters", "whole", default=20, least=1, most=1 << 20),
    Field("policy", "max_iters", "whole", default=2000, least=1, most=1 << 20),
    Field("policy", "batch", "whole", default=20, least=1),
    Field("policy", "graph", "whole", default=1, least=1),
    Field("policy", "fresh", "flag", default=False),
    Field("policy", "bitwise", "flag", default=False),
    Field("policy", "blame", "flag", default=False),
)

AXES = tuple(field for field in FIELDS if field.group == "axes")

POLICY = tuple(field for field in FIELDS if field.group == "policy")
