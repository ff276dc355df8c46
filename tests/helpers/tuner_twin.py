"""What NCCL's example tuner plug-in makes of a file, mistakes and all: a second reader, which
refuses nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tuner_plugin import Said

COLLECTIVES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}
ALGORITHMS = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}
ROW = "allreduce,65536,1448154,tree,ll128,16,2,16,-1,-1"
PROTOCOLS = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}


class Twin:
    """The plug-in with a file's text, for one communicator."""

    def __init__(self, text: str, n: int, nodes: int) -> None:
        self._rows = [row for line in _cut(text.encode()) for row in _load(line)]
        self._world = {"nodes": nodes, "n": n}

    def ask(self, collective: str, nbytes: int, cannot: tuple[str, str] = ("", "")) -> Said:
        """What it wants to run; NCCL cannot run what ``cannot`` names."""
        for row in self._rows:
            what = (row["algorithm"], row["protocol"])
            fits = row["collective"] == collective and row["low"] <= nbytes <= row["high"]
            here = all(row[key] in (-1, value) for key, value in self._world.items())
            if (
                fits
                and here
                and row["pipe"] in (-1, 1)
                and row["reg"] in (-1, 0)
                and what != cannot
            ):
                return Said(*what, 1 if row["channels"] == -1 else row["channels"])
        return Said(channels=1)


# rows that are not what they seem, a size, and what the plug-in makes of it
TRAPS: tuple[tuple[str, int, Said], ...] = (
    # unknown words become allreduce, ring and simple
    ("all_gather" + ROW[9:], 65536, Said("Tree", "LL128", 16)),
    ("Allreduce" + ROW[9:], 65536, Said("Tree", "LL128", 16)),
    (ROW.replace("tree", "Tree"), 65536, Said("Ring", "LL128", 16)),
    (ROW.replace("ll128", "LL128"), 65536, Said("Tree", "Simple", 16)),
    # an empty field is read as if it were not there
    ("allreduce,,65536,1448154,tree,ll128,16,2,16", 65536, Said("Tree", "LL128", 16)),
    ("allreduce,0,1448154,tree,,16,2,16,-1,-1", 65536, Said("Ring", "Simple", 0)),
    ("," + ROW, 65536, Said("Tree", "LL128", 16)),
    # -1 channels are one
    (ROW.replace("16,2,16", "-1,2,16"), 65536, Said("Tree", "LL128", 1)),
    # 4294967295 is 4 GiB less a byte
    (ROW.replace("1448154", "4294967295"), 1 << 32, Said("Ring", "Simple", 0)),
    # units are not read
    (ROW.replace("65536", "64K"), 64, Said("Tree", "LL128", 16)),
    (ROW.replace("65536", "-1"), 65536, Said("Ring", "Simple", 0)),
    # a size beyond 64 bits, fields too few, numbers with something behind
    (ROW.replace("1448154", "9" * 30), 1 << 40, Said("Tree", "LL128", 16)),
    (ROW.removesuffix(",16,-1,-1"), 65536, Said("Ring", "Simple", 0)),
    (ROW.replace("16,2", "16x,2"), 65536, Said("Tree", "LL128", 16)),
    (ROW.replace("1448154", "1"), 65536, Said("Ring", "Simple", 0)),
    # more fields than it reads, a comment that is indented, rows for some calls only
    (ROW + ",5", 65536, Said("Tree", "LL128", 16)),
    (" #" + ROW, 65536, Said("Tree", "LL128", 16)),
    (ROW.replace("-1,-1", "2,-1"), 65536, Said("Ring", "Simple", 0)),
    (ROW.replace("16,2,16", "16,0,16"), 65536, Said("Ring", "Simple", 0)),
    # the end of a long line counts as a line
    ("#" + "-" * 254 + ROW, 65536, Said("Tree", "LL128", 16)),
    (" " * 250 + ROW, 65536, Said("Tree", "LL128", 16)),
    ("allreduce\0" + ROW[9:], 65536, Said("Ring", "Simple", 0)),
)


def list_whole(row: str = ROW) -> str:
    """A file with the row, and one below for each collective at all sizes."""
    rows = [f"{word},0,{2**64 - 1},ring,simple,0,2,16,-1,-1" for word in COLLECTIVES]
    return "\n".join([row, *rows]) + "\n"


def _cut(data: bytes) -> Iterator[bytes]:
    """Lines as fgets takes them into 256 bytes."""
    while data:
        end = data.find(b"\n", 0, 255)
        length = min(255, len(data)) if end < 0 else end + 1
        yield data[:length]
        data = data[length:]


def _load(line: bytes) -> list[dict[str, Any]]:
    if line[:1] in (b"#", b"\n"):
        return []
    text = line.split(b"\0")[0].split(b"\n")[0]
    tokens = [token.lstrip(b" \t").rstrip(b" \t") for token in text.split(b",") if token][:10]
    if len(tokens) < 8:
        return []
    tokens += [b"-1"] * (10 - len(tokens))
    words = [token.decode(errors="replace") for token in tokens]
    numbers = [_number(token) for token in tokens]
    return [
        {
            "collective": COLLECTIVES.get(words[0], "all_reduce"),
            "low": numbers[1] % 2**64,
            "high": numbers[2] % 2**64,
            "algorithm": ALGORITHMS.get(words[3], "Ring"),
            "protocol": PROTOCOLS.get(words[4], "Simple"),
            **dict(zip(("channels", "nodes", "n", "pipe", "reg"), numbers[5:], strict=True)),
        }
    ]


def _number(token: bytes) -> int:
    match = re.match(rb"[ \t\n\v\f\r]*([+-]?\d+)", token)
    return min(int(match[1]), 2**64 - 1) if match else 0
