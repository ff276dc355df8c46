"""What ranks tell each other besides the traffic under test: numbers, JSON and a barrier, on a group of its own.

Nothing received here is unpickled: times travel as int64 arrays, everything else as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

JSON_LIMIT = 64 << 20  # a plan of 100,000 cases is about 40 MB


class Control:
    """The control group of a world of ``n`` ranks; every method but ``rank`` and ``n`` is called by all ranks."""

    def __init__(self, rank: int, n: int) -> None:
        self.rank = rank
        self.n = n
        self._token_out = torch.zeros(1, dtype=torch.int32)
        self._token_in = torch.zeros(1, dtype=torch.int32)

    def gather(self, values: np.ndarray) -> np.ndarray | None:
        """All ranks' equally shaped int64 arrays, stacked, at rank 0; None elsewhere."""
        mine = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
        if self.n == 1:
            return mine.numpy()[None]
        parts = [torch.empty_like(mine) for _ in range(self.n)] if self.rank == 0 else None
        dist.gather(mine, parts, dst=0)
        return np.stack([p.numpy() for p in parts]) if parts else None

    def decide(self, values: list[int]) -> list[int]:
        """Rank 0's integers, at every rank. The others pass a list of the same length."""
        tensor = torch.tensor(values, dtype=torch.int64)
        if self.n > 1:
            dist.broadcast(tensor, src=0)
        return [int(v) for v in tensor]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON-able value, at every rank."""
        payload = msgspec.json.encode(value) if self.rank == 0 else b""
        (length,) = self.decide([len(payload)])
        if length > JSON_LIMIT:
            raise ValueError(f"a control message of {length} bytes is over the limit of {JSON_LIMIT}")
        buffer = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            buffer.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
        if self.n > 1 and length:
            dist.broadcast(buffer, src=0)
        return msgspec.json.decode(buffer.numpy().tobytes())

    def collect(self, value: Any) -> list[Any]:
        """Every rank's JSON-able value, in rank order, at every rank."""
        payload = msgspec.json.encode(value)
        lengths = self.gather(np.array([len(payload)]))
        (longest,) = self.decide([int(lengths.max()) if lengths is not None else 0])
        if longest > JSON_LIMIT:
            raise ValueError(f"a control message of {longest} bytes is over the limit of {JSON_LIMIT}")
        padded = np.zeros((longest + 7) // 8 * 8, dtype=np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, dtype=np.uint8)
        everything = self.gather(padded.view(np.int64))
        texts = [row.tobytes().rstrip(b"\0").decode() for row in everything] if everything is not None else []
        return [msgspec.json.decode(text) for text in self.broadcast(texts)]

    def barrier(self) -> None:
        """Dissemination: in round k every rank signals rank + 2**k; after ceil(log2 n) rounds all have heard of all."""
        distance = 1
        while distance < self.n:
            sent = dist.isend(self._token_out, (self.rank + distance) % self.n)
            dist.recv(self._token_in, (self.rank - distance) % self.n)
            if sent is not None:
                sent.wait()
            distance *= 2
