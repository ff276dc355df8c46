"""The kernel over symmetric memory, in the interpreter, with one planted fault, as saboteur.py
describes; patience is short: some three seconds."""

from __future__ import annotations

import quick_interpreter
import triton.language as tl

from collbench.run.backends import _kernel, _symm
from collbench.run.backends.saboteur import Sabotage


class Saboteur(Sabotage, _symm.Symmetric):
    def __init__(self) -> None:
        super().__init__()
        self.plan()
        _symm.INTERPRETED_PATIENCE, _kernel._CHECKED = 150, tl.constexpr(1)
        quick_interpreter.PAUSE_S = 0.02


def create(name: str) -> Saboteur:
    return Saboteur()
