"""The kernel over symmetric memory, in the interpreter, with one planted fault, as saboteur.py
describes; patience is short."""

from __future__ import annotations

from collbench.run.backends.saboteur import Sabotage

from collbench.run.backends import symm


class Saboteur(Sabotage, symm.Symmetric):
    def __init__(self) -> None:
        super().__init__()
        self.plan()
        symm.INTERPRETED_PATIENCE = 2000


def create(name: str) -> Saboteur:
    return Saboteur()
