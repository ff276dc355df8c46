"""Triton's interpreter in half the time, for ranks on the same few cores.

For each call of one function of a kernel by another it looks through the whole of triton.language
for what it must replace, which the kernel's launch has replaced before: here it is left out. A rank
whose look finds another behind leaves that one the core."""

from __future__ import annotations

import time
from typing import Any

from triton.runtime import interpreter

PAUSE_S = 0.0005  # after a look in vain


def quicken() -> None:
    """Has each module of functions that kernels call searched once: that of triton.language's own
    stays replaced."""
    searched = set()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if function.fn.__module__ not in searched:
            searched.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        value = function.rewrite()(*args, **kwargs)
        if function.fn.__name__ == "_look" and value:
            time.sleep(PAUSE_S)
        return value

    interpreter.InterpretedFunction.__call__ = call  # type: ignore[method-assign]
