"""What a search proposes says on which GPUs it was measured, and with which datatypes."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest
from factories import hosted, world

from collbench.features.advise.formats.words import FORMATS
from collbench.features.advise.libraries.nccl import LIBRARY
from collbench.features.advise.tune import command, screen
from collbench.features.advise.types import Cell, Series
from collbench.suite.sweep import Axes

SERIES = Series("all_reduce", 8, 1)
TREE = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"))


def test_a_proposal_has_the_gpus_and_datatypes_of_its_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (1024, 4096)
    medians = {Cell(SERIES, size): {(): 2e4, TREE: 1e4} for size in sizes}
    monkeypatch.setattr(screen, "list_medians", lambda screening, is_same_order: medians)
    axes = Axes(collectives=("all_reduce",), sizes=sizes, ranks=(8,), dtypes=("bfloat16",))
    request = SimpleNamespace(
        **{"library": LIBRARY, "backend": "nccl", "format": FORMATS[0], "tau": None},
        **{"is_same_order": False, "notes": (), "axes": axes, "command": ["collbench"]},
        field={SERIES: {TREE: sizes}},
    )
    ranks = [
        msgspec.structs.replace(rank, device=f"{rank.device} [0000:0f:00] NVIDIA GB200")
        for rank in hosted(8, 4, "cuda")
    ]
    screening = SimpleNamespace(
        **{"choices": {}, "nodes": {8: 2}, "library_version": "NCCL 2.30.7", "notes": ()},
        **{"hosts": ("node0", "node1"), "worlds": [world(backend="nccl", n=8, ranks=ranks)]},
    )
    advised = command.propose_advice(request, screening)  # type: ignore[arg-type]
    assert (advised.device, advised.dtypes) == ("NVIDIA GB200", ("bfloat16",))
    assert [row.series.nodes for row in advised.rows] == [2]
