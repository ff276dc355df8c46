"""Tables by which inference engines choose between kernels of all_reduce, as lines to paste.

vLLM (device_communicators/symm_mem.py, 0.11 and later) and SGLang (torch_symm_mem.py) run torch's
kernels on symmetric memory up to a size, and NCCL above; which kernel goes by the GPU and the
number of ranks. So a table is for advice in which that kernel wins from the smallest measured size
up. Their own kernels for small messages (custom all_reduce) come first, and are none that collbench
measures. TensorRT-LLM (customAllReduceUtils.h) has a table of strategies by hidden size and tokens,
both as powers of two; its strategies are torch's in kind, but kernels of its own.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from collbench.core.errors import UsageError
from collbench.features.advise.formats import Format, Rule
from collbench.features.advise.formats._rows import comment, describe_row, fail_line, write_head
from collbench.features.advise.types import Advice, Advised, Cell, Gain, Series

CAPABILITIES = {  # of GPUs by their names
    r"\bA100|\bA800": (8, 0),
    r"\bG?H(20|100|200|800)\b": (9, 0),
    r"\bG?B200\b": (10, 0),
    r"\bG?B300\b": (10, 3),
}
LANE = 4  # bytes: sizes that are no multiple go to NCCL
P = 0.05
ELEMENT = 2  # bytes of float16 and bfloat16
BF16 = ("bfloat16",)
MULTIMEM, TWO_SHOT = "torch_multimem", "torch_two_shot"


def find_capability(advised: Advised) -> tuple[int, int] | None:
    """The compute capability of the GPUs; None for those that no engine has a table for."""
    found = (each for name, each in CAPABILITIES.items() if re.search(name, advised.device))
    return next(found, None)


def refuse_engine(advised: Advised, dtypes: Sequence[str]) -> str:
    """Why no engine can take this advice: which library, GPU and datatype it is about. The engine
    runs these kernels for ``dtypes`` alone."""
    if advised.library != "nccl" or advised.backend not in ("", "nccl"):
        return (
            "engines choose between NCCL and kernels on NVLink, and these runs had another default"
        )
    if advised.version.startswith("RCCL"):
        return "the engines' tables are about NVIDIA's GPUs, and these runs are RCCL's"
    if find_capability(advised) is None:
        what = advised.device or "unknown"
        return f"the engines' tables go by the GPU, and {what} is none that they have"
    others = [dtype for dtype in advised.dtypes if dtype not in dtypes]
    if others or not advised.dtypes:
        measured = ", ".join(others) or "an unknown datatype"
        return (
            f"the engine runs these kernels for {' and '.join(dtypes)} only, and these runs are of"
            f" {measured}: measure with -d {dtypes[0]}"
        )
    return ""


# sizes up to which one kernel runs


class Cut(NamedTuple):
    """Up to ``nbytes`` a kernel surely beats NCCL, from the smallest measured size on, by
    ``rows``."""

    n: int
    nbytes: int
    rows: tuple[Advice, ...]


def find_cut(advised: Advised, n: int, kernels: Sequence[str]) -> Cut | str:
    """The size up to which each of the kernels, one of which the engine runs, beats NCCL; else why
    there is none."""
    cuts = []
    for kernel in kernels:
        cut = _find_kernel_cut(advised, Series("all_reduce", n, 1), kernel)
        if isinstance(cut, str):
            return cut
        cuts.append(cut)
    return min(cuts, key=lambda cut: cut.nbytes)


def _find_kernel_cut(advised: Advised, series: Series, kernel: str) -> Cut | str:
    rows = [row for row in advised.rows if row.series == series and _is_kernel(row, kernel)]
    if not rows:
        return (
            f"no row for {series.n} ranks on one host is of {kernel}, which the engine runs there"
        )
    last, used = 0, []
    for nbytes in _list_sizes(advised, series):
        row = next((row for row in rows if any(nbytes == gain.nbytes for gain in row.gains)), None)
        if row is not None:
            last = _find_sure_end(row, nbytes)
            used += [row] if row not in used else []
        elif _is_sure(advised.rivals.get(Cell(series, nbytes), {}).get(kernel), advised):
            last = nbytes
        else:
            break
    if not used:
        return (
            f"{kernel} does not win from the smallest measured size of {series.n} ranks up, and "
            "the engine's table has one size, below which it runs that kernel"
        )
    return Cut(series.n, last - last % LANE, tuple(used))


def _is_kernel(row: Advice, kernel: str) -> bool:
    setting = row.setting
    return setting.backend == kernel and setting.algorithm == "native" and not setting.env


def _list_sizes(advised: Advised, series: Series) -> list[int]:
    sizes = {each.cell.nbytes for each in advised.unadvised if each.cell.series == series}
    sizes |= {gain.nbytes for row in advised.rows if row.series == series for gain in row.gains}
    return sorted(sizes)


def _find_sure_end(row: Advice, nbytes: int) -> int:
    """The size to which the row is sure, from one of its measured sizes: the next one, or the lower
    end of the cross-over above its last."""
    if nbytes == row.gains[-1].nbytes and row.above is not None:
        return max(nbytes, min(row.high, int(row.above.lo)))
    return nbytes


def _is_sure(gain: Gain | None, advised: Advised) -> bool:
    if gain is None or gain.doubt:
        return False
    return gain.lo > 0 and gain.p < P and gain.gain > advised.taus[1]


class CutOffs(Format):
    """A table of the largest size for each number of ranks, as an engine's module has it.

    ``kernels(capability, n)``: those that the engine may run there. Versions differ in whether the
    size itself is below; it is written so that it is, as sizes are multiples of four.
    """

    suffix = ".py"
    by_size, covers_all = False, False

    def __init__(self, key: str, title: str, table: str, how: str) -> None:
        self.key, self.title = key, title
        self._table, self._how = table, how

    @abstractmethod
    def kernels(self, capability: tuple[int, int], n: int) -> tuple[str, ...]:
        """The kernels that the engine may run with so many ranks; none where it has none."""

    @abstractmethod
    def spell(self, capability: tuple[int, int]) -> str:
        """The GPU, as the table's key."""

    @abstractmethod
    def parse(self, text: str) -> tuple[int, int]:
        """The GPU of a key."""

    def refuse(self, advised: Advised) -> str:
        if not advised.rows:
            return ""
        if why := refuse_engine(advised, BF16):
            return why
        reasons = [cut for cut in self._list_cuts(advised) if isinstance(cut, str)]
        cuts = [cut for cut in self._list_cuts(advised) if not isinstance(cut, str)]
        return "" if cuts else (reasons or ["no all_reduce on one host is advised"])[0]

    def write(self, advised: Advised, path: Path | None = None) -> str:
        lines = write_head(advised, self.title, warnings=[self._how])
        capability = find_capability(advised)
        for cut in self._list_cuts(advised) if capability else ():
            if isinstance(cut, Cut) and capability:
                sentences = [describe_row(row, advised.day) for row in cut.rows]
                lines += ["#", *comment(sentences)]
                key = self.spell(capability)
                lines.append(
                    f"{self._table}.setdefault({key}, {{}})[{cut.n}] = {cut.nbytes + LANE}"
                )
        return "\n".join(lines) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        pattern = (
            re.escape(self._table) + r"\.setdefault\((.{1,9}), \{\}\)\[(\d{1,4})\] = (\d{1,18})"
        )
        sizes: dict[int, tuple[str, int]] = {}
        for number, line in _list_statements(text, "#"):
            match = re.fullmatch(pattern, line, re.ASCII)
            if match is None:
                raise _misread(number, f"is no assignment to {self._table}")
            kernels = self.kernels(self.parse(match[1]), int(match[2]))
            if not kernels:
                raise _misread(number, f"is for a GPU or number of ranks that {self.title} lacks")
            if int(match[3]) < 2 * LANE:
                raise _misread(number, f"ends at {match[3]} bytes, below which no size is")
            sizes[int(match[2])] = " or ".join(kernels), int(match[3]) - LANE
        return [Rule("all_reduce", n, 1, 0, end, name) for n, (name, end) in sorted(sizes.items())]

    def use(self, path: Path) -> dict[str, str]:
        return {}

    def _list_cuts(self, advised: Advised) -> Iterator[Cut | str]:
        capability = find_capability(advised)
        worlds = {(row.series.n, row.series.nodes, row.series.collective) for row in advised.rows}
        for n, nodes, collective in sorted(worlds):
            if capability and nodes == 1 and collective == "all_reduce":
                kernels = self.kernels(capability, n)
                lacks = f"{self.title} lacks {n} ranks of {advised.device}"
                yield find_cut(advised, n, kernels) if kernels else lacks


class Vllm(CutOffs):
    """vLLM's SYMM_MEM_ALL_REDUCE_MAX_SIZES."""

    worlds: Mapping[tuple[int, int], tuple[int, ...]] = {  # whose switch adds up
        (9, 0): (4, 6, 8),
        (10, 0): (6, 8),
        (10, 3): (6, 8),
    }

    def kernels(self, capability: tuple[int, int], n: int) -> tuple[str, ...]:
        if capability not in self.worlds or n < 2:
            return ()
        return (MULTIMEM if n in self.worlds[capability] else TWO_SHOT,)

    def spell(self, capability: tuple[int, int]) -> str:
        return '"{}.{}"'.format(*capability)

    def parse(self, text: str) -> tuple[int, int]:
        match = re.fullmatch(r'"(\d+)\.(\d+)"', text)
        return (int(match[1]), int(match[2])) if match else (0, 0)


class Sglang(CutOffs):
    """SGLang's TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES. Versions differ in what four GPUs of capability
    10 run."""

    def kernels(self, capability: tuple[int, int], n: int) -> tuple[str, ...]:
        if capability[0] not in (9, 10) or n < 2:
            return ()
        if capability[0] == 10 and n == 4:
            return (MULTIMEM, TWO_SHOT)
        return (MULTIMEM if n in (4, 6, 8) else TWO_SHOT,)

    def spell(self, capability: tuple[int, int]) -> str:
        return str(capability[0])

    def parse(self, text: str) -> tuple[int, int]:
        return (int(text), 0) if re.fullmatch(r"\d{1,3}", text) else (0, 0)


def _list_statements(text: str, sign: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith(sign):
            yield number, line.strip()


def _misread(number: int, why: str) -> UsageError:
    return fail_line(number, f"the row {why}", "collbench advise --write FILE writes such lines")


# TensorRT-LLM's table of strategies

STRATEGIES = {"torch_one_shot": (4, "ONESHOT"), TWO_SHOT: (5, "TWOSHOT")}
RANKS = (2, 4, 8)
HIDDEN = tuple(range(7, 14))  # as powers of two: 128 to 8192
TOKENS = tuple(range(15))  # 1 to 16384


class Entry(NamedTuple):
    """One of TensorRT-LLM's table: hidden sizes from 2 ** ``hidden``, and tokens from
    2 ** ``tokens``, each below the next power of two."""

    hidden: int
    tokens: int

    @property
    def low(self) -> int:
        """The smallest message of these shapes, in bytes."""
        return ELEMENT << (self.hidden + self.tokens)

    @property
    def high(self) -> int:
        """The largest one."""
        return ELEMENT * ((2 << self.hidden) - 1) * ((2 << self.tokens) - 1)


class TensorRtLlm(Format):
    """TensorRT-LLM's AllReduceBestStrategyTable, of all_reduce without fusion. An entry is written
    where a row holds for all shapes of it."""

    key = "tensorrt_llm"
    title = "TensorRT-LLM's table of all_reduce strategies"
    suffix = ".cpp"
    by_size, covers_all = False, False

    def refuse(self, advised: Advised) -> str:
        if not advised.rows:
            return ""
        if why := refuse_engine(advised, (*BF16, "half")):
            return why
        rows = [row for row in advised.rows if _is_strategy(row)]
        if not rows:
            return (
                "no row is of torch_one_shot or torch_two_shot with 2, 4 or 8 ranks on one host, "
                "between which TensorRT-LLM chooses"
            )
        if not any(_list_entries(row) for row in rows):
            return (
                "TensorRT-LLM's entries hold for messages of up to four times the size, too, and "
                "no row is as wide"
            )
        return ""

    def write(self, advised: Advised, path: Path | None = None) -> str:
        how = (
            "For float16 and bfloat16 without fusion; measured with torch's kernels, to which "
            "TensorRT-LLM's are alike in kind. Change these entries in customAllReduceUtils.h."
        )
        lines = write_head(advised, self.title, warnings=[how], sign="//")
        capability = find_capability(advised) or (9, 0)
        table = f"AllReduceBestStrategyTableSM{100 if capability[0] >= 10 else 90}"
        for row in advised.rows:
            entries = _list_entries(row) if _is_strategy(row) else []
            if entries:
                lines += ["//", *comment([describe_row(row, advised.day)], "//")]
            for entry in entries:
                code, name = STRATEGIES[row.setting.backend]
                place = f"[{RANKS.index(row.series.n)}][0][{entry.hidden - 7}][{entry.tokens}]"
                what = f"{name}: hidden {1 << entry.hidden}, {1 << entry.tokens} tokens"
                lines.append(f"{table}{place} = {code};  // {what}")
        return "\n".join(lines) + "\n"

    def read(self, text: str) -> Sequence[Rule]:
        pattern = (
            r"AllReduceBestStrategyTableSM(?:90|100)((?:\[\d{1,2}\]){4}) = (\d{1,2});(?:  //.*)?"
        )
        names = {code: backend for backend, (code, _) in STRATEGIES.items()}
        chosen: dict[tuple[int, ...], str] = {}
        for number, line in _list_statements(text, "//"):
            match = re.fullmatch(pattern, line, re.ASCII)
            if match is None:
                raise _misread(number, "is no assignment to AllReduceBestStrategyTable")
            place = tuple(int(digits) for digits in re.findall(r"\d+", match[1]))
            ends = (len(RANKS), 1, len(HIDDEN), len(TOKENS))
            if any(index >= end for index, end in zip(place, ends, strict=True)):
                raise _misread(number, f"sets {match[1]}, which the table without fusion lacks")
            if int(match[2]) not in names:
                raise _misread(number, f"sets strategy {match[2]}, which collbench does not write")
            chosen[place] = names[int(match[2])]
        return [
            Rule("all_reduce", RANKS[ranks], 1, entry.low, entry.high, name)
            for (ranks, _, hidden, tokens), name in chosen.items()
            for entry in (Entry(hidden + 7, tokens),)
        ]

    def use(self, path: Path) -> dict[str, str]:
        return {}


def _is_strategy(row: Advice) -> bool:
    series = row.series
    is_one = any(_is_kernel(row, kernel) for kernel in STRATEGIES)
    return is_one and series.collective == "all_reduce" and series.nodes == 1 and series.n in RANKS


def _list_entries(row: Advice) -> list[Entry]:
    """The entries all shapes of which lie in the row. Two shots need a token for each rank."""
    entries = (Entry(hidden, tokens) for hidden in HIDDEN for tokens in TOKENS)
    least = row.series.n if row.setting.backend == TWO_SHOT else 1
    return [
        entry
        for entry in entries
        if row.low <= entry.low and entry.high <= row.high and 1 << entry.tokens >= least
    ]


FORMATS = (
    Vllm(
        "vllm",
        "vLLM's sizes for symmetric memory",
        "SYMM_MEM_ALL_REDUCE_MAX_SIZES",
        "Paste below the table in vllm/distributed/device_communicators/all_reduce_utils.py, and "
        "set VLLM_ALLREDUCE_USE_SYMM_MEM=1. vLLM copies into symmetric memory and out of it, which "
        "these times lack; it does so for bfloat16 only, after its own kernels for small messages.",
    ),
    Sglang(
        "sglang",
        "SGLang's sizes for symmetric memory",
        "TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES",
        "Paste below the table in sglang/srt/distributed/device_communicators/all_reduce_utils.py, "
        "and start with --enable-torch-symm-mem. SGLang copies into symmetric memory and out of "
        "it, which these times lack; for bfloat16 only, after its own kernels for small messages.",
    ),
    TensorRtLlm(),
)
