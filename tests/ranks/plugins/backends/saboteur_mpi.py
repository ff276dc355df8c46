"""MPI with one planted fault, as saboteur.py describes."""

from __future__ import annotations

from collbench.run.backends._mpi import Mpi
from collbench.run.backends.saboteur import Sabotage


class Saboteur(Sabotage, Mpi):
    def __init__(self) -> None:
        super().__init__()
        self.plan()


def create(name: str) -> Saboteur:
    return Saboteur()
