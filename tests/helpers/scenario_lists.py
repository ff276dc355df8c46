"""The scenarios of a payload's elements one by one, as its windows have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collbench.run.rank.payload import WINDOW, find_place, list_places


def list_scenarios(seed: int, slot: int, stream: int, start: int, length: int) -> NDArray[np.int32]:
    """The scenario, an int32, that each element ``start .. start + length`` plays. ``slot`` is the
    buffer among those that take turns; ``stream`` the sending rank's where data is copied."""
    parts = [np.empty(0, np.int32)]
    while length > 0:
        window, low = divmod(start, WINDOW)
        high = min(WINDOW, low + length)
        place = find_place(seed, slot, stream, window)
        parts.append(list_places()[place + low : place + high])
        start, length = start + high - low, length - (high - low)
    return np.concatenate(parts)
