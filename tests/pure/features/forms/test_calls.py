"""What one rank draws of all ranks' data: no more than it gives or receives."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.features.forms.calls import Place, make_sides
from collbench.features.forms.measurable import Form

N, NBYTES, TOGETHER = 8, 24, 3


@pytest.mark.parametrize(
    ("collective", "together", "rank", "gives", "receives"),
    [
        ("all_reduce", TOGETHER, 2, 1, N),
        ("all_gather", TOGETHER, 2, 1, N),
        ("reduce_scatter", TOGETHER, 2, N, N),
        ("all_gather", 0, 2, 1, N),
        ("broadcast", 0, 2, 1, 1),
        ("gather", 0, 0, 1, N),
        ("gather", 0, 2, 1, 0),
        ("scatter", 0, 0, N, 1),
        ("scatter", 0, 2, 1, 1),
    ],
)
def test_a_rank_draws_what_it_gives_and_what_others_give_it(
    monkeypatch: pytest.MonkeyPatch,
    collective: str,
    together: int,
    rank: int,
    gives: int,
    receives: int,
) -> None:
    """In blocks of the calls together."""
    drawn: list[int] = []
    draw = Place.draw

    def count(self: Place, rank: int, filling: int, nbytes: int, part: int = 0) -> np.ndarray:
        drawn.append(nbytes)
        return draw(self, rank, filling, nbytes, part)

    monkeypatch.setattr(Place, "draw", count)
    form = Form(collective=collective, nbytes=NBYTES, world=N, together=together)
    block = NBYTES * max(1, together)
    for side in make_sides(form, Place(rank, N, None, "cpu", 7)):
        drawn.clear()
        side.fill(1)
        assert sum(drawn) == gives * block
        drawn.clear()
        assert len(side.expect(1)) == side.received.numel()
        assert sum(drawn) == receives * block


def test_no_two_parts_ranks_and_fillings_are_alike() -> None:
    place = Place(0, N, None, "cpu", 7)
    keys = [(rank, filling, part) for rank in (0, 1) for filling in (1, 2) for part in (0, 1)]
    drawn = {place.draw(rank, filling, NBYTES, part).tobytes() for rank, filling, part in keys}
    assert len(drawn) == len(keys)
