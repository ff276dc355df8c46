"""Shared memory with one planted fault, as saboteur.py describes."""

from __future__ import annotations

from collbench.run.backends._shm import SharedMemory
from collbench.run.backends.saboteur import Sabotage


class Saboteur(Sabotage, SharedMemory):
    def __init__(self) -> None:
        super().__init__()
        self.plan()


def create(name: str) -> Saboteur:
    return Saboteur()
