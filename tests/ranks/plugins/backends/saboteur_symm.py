"""The kernel over symmetric memory, in the interpreter, with one planted fault, as saboteur.py
describes; patience is short."""

from __future__ import annotations

from collbench.run.backends.saboteur import Sabotage

from collbench.run.backends import _symm


class Saboteur(Sabotage, _symm.Symmetric):
    def __init__(self) -> None:
        super().__init__()
        self.plan()
        _symm.INTERPRETED_PATIENCE = 2000


def create(name: str) -> Saboteur:
    return Saboteur()
