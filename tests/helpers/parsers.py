"""Readers of nccl-tests' text and JSON that go by the rules of the field's: what each looks for,
counts and refuses, in code of our own. A reader raises where the one it stands for does."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

NUMBER = r"\d+(?:\.\d+)?"
TRIPLE = rf"({NUMBER})\s+({NUMBER})\s+({NUMBER})\s+(\S+)"


class Half(NamedTuple):
    time: float
    algbw: float
    busbw: float


class Row(NamedTuple):
    """A line: a half is None for a reader that does not look at it."""

    size: int
    out: Half | None
    back: Half | None


def bare(text: str) -> Iterator[list[str]]:
    """Fields of lines that are neither empty nor comments."""
    for line in text.splitlines():
        if line.strip() and not line.strip().startswith("#"):
            yield line.split()


def matched(pattern: str, text: str, first: int) -> list[Row]:
    """Rows by an expression whose group ``first`` is the first time."""
    found = list(re.finditer(pattern, text, re.MULTILINE))
    if not found:
        raise ValueError("no row")
    halves = [
        [Half(*(float(row[at + i]) for i in range(3))) for at in (first, first + 4)]
        for row in found
    ]
    return [Row(int(row[1]), *half) for row, half in zip(found, halves, strict=True)]


# rows


def superbench(text: str) -> list[Row]:
    """Between the last line with the header's word and the last footer: a line with "time" and
    "busbw" names columns, which are counted from the right."""
    lines = text.splitlines()
    start = max(i for i, line in enumerate(lines) if "out-of-place" in line)
    end = max(i for i, line in enumerate(lines) if "Out of bounds values" in line)
    columns: list[int] = []
    rows = []
    for line in lines[start + 1 : end]:
        fields = line.strip("# ").split()
        if "time" in line and "busbw" in line:
            columns = [fields.index(name) - len(fields) for name in ("time", "algbw", "busbw")]
            size = fields.index("size")
        elif line.strip()[:1].isdigit():
            half = Half(*(float(fields[column]) for column in columns))
            rows.append(Row(int(fields[size]), half, None))
    return rows


def perfkit(text: str) -> list[Row]:
    """One expression for a whole line; exactly one average."""
    if len(re.findall(r"Avg bus bandwidth\s+: ([0-9\.]+)", text)) != 1:
        raise ValueError("not one average")
    lead = r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\w+)\s+"
    return matched(rf"{lead}{TRIPLE}\s+{TRIPLE}", text, 6)


def ramble(text: str) -> list[Row]:
    """One expression; a number has two digits at least."""
    half = r"\s+([0-9]+\.?[0-9]+)" * 3 + r"\s+(\S+)"
    return matched(r"\s+([0-9]+)\s+([0-9]+)" + r"\s+(\S+)" * 3 + 2 * half, text, 6)


def aws_csv(text: str) -> list[Row]:
    """One expression at the start of a line; #wrong is a number or N/A."""
    stripped = "\n".join(line.strip() for line in text.splitlines())
    half = r"(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+|N/A)"
    lead = r"^\s*(\d+)\s+(\d+)\s+(float|double|int|half)\s+(sum|prod|max|min|none)\s+(-?\d+)\s+"
    return matched(rf"{lead}{half}\s+{half}", stripped, 6)


def cloudai(text: str) -> list[Row]:
    """Lines that begin with a digit and have 13 fields; one that is not all numbers is dropped."""
    rows = []
    for fields in bare(text):
        if fields[0][0].isdigit() and len(fields) == 13:
            halves = [Half(*map(float, fields[at : at + 3])) for at in (5, 9)]
            if not any(map(math.isnan, (*halves[0], *halves[1]))):
                rows.append(Row(int(fields[0]), *halves))
    return rows


def latencies(text: str) -> list[Row]:
    """Plots of people: 12 fields at least, times at 5 and 9."""
    rows = []
    for fields in bare(text):
        if len(fields) >= 12:
            out, back = float(fields[5]), float(fields[9])
            rows.append(
                Row(int(fields[0]), Half(out, math.nan, math.nan), Half(back, math.nan, math.nan))
            )
    return rows


def cluster_health_scanner(text: str) -> list[tuple[int, int, int]]:
    """Size, bandwidth and time in place, as whole numbers, of floats in 13 fields."""
    return [
        (int(f[0]), int(float(f[11])), int(float(f[9])))
        for f in bare(text)
        if len(f) == 13 and f[2] == "float"
    ]


def aws_healthcheck(text: str) -> float:
    """The largest of the last field but one."""
    return max(float(fields[-2]) for fields in bare(text))


def ncclscout(text: str) -> list[float]:
    """The last column but one of each row; none may be other than a number above 0."""
    found = [float(fields[-2]) for fields in bare(text) if fields[0].isdigit()]
    if not found or any(math.isnan(value) for value in found):
        raise ValueError("no valid numbers")
    return found


# the average and the footer


def gcm(text: str) -> float:
    """The first number of the first line with the words."""
    line = next(line for line in text.split("\n") if "Avg bus bandwidth" in line)
    found = re.search(r"[-+]?(\d*\.*\d+)", line)
    return float(found[0]) if found else 0.0


def azure_nhc(text: str) -> float:
    """The last word of the first line with "bandwidth"."""
    line = next(line for line in text.splitlines() if "bandwidth" in line)
    return float(line.split()[-1])


def ramble_average(text: str) -> float:
    return float(re.findall(r"\s*Avg bus bandwidth\s+:\s+([0-9]+\.?[0-9]+)", text)[0])


def perfkit_average(text: str) -> float:
    (found,) = re.findall(r"Avg bus bandwidth\s+: ([0-9\.]+)", text)
    return float(found)


def aws_average(text: str) -> float:
    return float(re.findall(r"# Avg bus bandwidth\s*:\s*(\d+\.?\d*)", text)[-1])


def deepops(text: str) -> float:
    """grep of the words, then the last field."""
    (line,) = [line for line in text.splitlines() if "Avg bus bandwidth" in line]
    return float(line.split()[-1])


def cluster_toolkit(text: str) -> float:
    """grep of the words with their mark, then what follows the colon."""
    (line,) = [line for line in text.splitlines() if line.startswith("# Avg bus bandwidth")]
    return float(line.partition(":")[2])


def oci(text: str) -> float:
    (line,) = [line for line in text.splitlines() if "Avg bus bandwidth" in line]
    return float(line.split()[5])


def cvs(text: str) -> float:
    """No line of an error, and an average in any case of letters."""
    if re.search("ORTE does not know|ORTE was unable|NCCL ERROR|Test failure|No such file", text):
        raise ValueError("an error")
    return float(re.findall(r"#\sAvg bus bandwidth\s+:\s+([0-9\.]+)", text, re.IGNORECASE)[0])


def reframe(text: str) -> float:
    """Sanity: nothing out of bounds. Performance: the average."""
    if not re.search(r"#\s*Out of bounds values\s*:\s*0\s*OK", text):
        raise ValueError("not sane")
    return float(re.findall(r"Avg bus bandwidth\s*:\s*(\S+)", text)[0])


def successful(text: str) -> bool:
    """Whether cloudai, DCGM and the like call it a success."""
    return "# Out of bounds values : 0 OK" in text and "# Avg bus bandwidth" in text


# JSON


class Iterations(NamedTuple):
    """What nccl-tests' analysis looks at, of one half of a line."""

    size: int
    average: float
    consistent: bool | None


def analyzer(text: str, key: str) -> list[Iterations]:
    """Whether the list of times is the slowest process's, element by element; None without rows of
    processes."""
    found = []
    for result in json.loads(text)["results"]:
        told: dict[str, Any] = result.get(f"{key}_per_iter", {})
        if not told:
            continue
        times: Sequence[float] = told["times_us"]
        rows: Sequence[Sequence[float]] = told.get("per_process_max_times_us", [])
        slowest = [max(each) for each in zip(*rows, strict=True)]
        same = [abs(a - b) < 0.001 for a, b in zip(times, slowest, strict=False)]
        consistent = len(times) == len(slowest) and all(same) if rows else None
        assert math.isclose(told["avg_us"], statistics.fmean(times), rel_tol=1e-4)
        assert told["max_us"] / told["avg_us"] >= 1
        found.append(Iterations(result["size"], told["avg_us"], consistent))
    return found
