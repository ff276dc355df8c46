"""Errors of a user's algorithm, with the line of its file and the number of ranks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from collbench.core.algorithm_files import UserAlgorithm, format_prove_command
from collbench.core.errors import AlgorithmError, CollbenchError, first_line
from collbench.core.schedule import Index, Moves, Schedule, WrongSchedule, find_stray_move
from collbench.core.text import format_count


class _BadValue(Exception):
    """What an algorithm's function returned is not what it should be."""


class Guard(NamedTuple):
    """The algorithm of a file, whose functions raise AlgorithmError for whatever is wrong with
    them; MemoryError stays as it is."""

    source: UserAlgorithm
    collective: str

    def guard_function(
        self, function: Callable[..., Any], kinds: Any, least: int | None = None
    ) -> Callable[..., Any]:
        """Wrap a function of n: it must return one of ``kinds``, an integer not below ``least``."""

        @functools.wraps(function)
        def guarded(n: int, *args: Any, **parameters: Any) -> Any:
            with self._explain(n, function):
                value = function(n, *args, **parameters)
                if not isinstance(value, kinds) or (least is not None and value < least):
                    name = getattr(function, "__name__", "a function")
                    raise _BadValue(f"{name} returned {value!r:.40}")
                return int(value) if isinstance(value, np.integer) else value

        return guarded

    def guard_steps(self, steps: Callable[..., Iterator[Moves]]) -> Callable[..., Iterator[Moves]]:
        """The generator of steps. Raises WrongSchedule for a move from or to what there is not."""

        @functools.wraps(steps)
        def guarded(n: int, cells: int, **parameters: Any) -> Iterator[Moves]:
            width = Schedule("", self.collective, n, 0, cells, steps).width
            checked: dict[str, Any] = {}
            with self._explain(n, steps):
                generator = iter(steps(n, cells, **parameters))
            with self._explain(n, steps, generator):
                for number, moves in enumerate(generator):
                    yield self._check_step(moves, n, width, number, generator, checked)

        return guarded

    def _check_step(
        self,
        moves: Any,
        n: int,
        width: int,
        number: int,
        generator: Iterator[Any],
        checked: dict[str, Any],
    ) -> Moves:
        """The step with arrays as fields; ``checked`` keeps those that nobody can change."""
        if not isinstance(moves, Moves):
            raise _BadValue(f"step {number} is {moves!r:.40}, not Moves")

        def check_field(name: str, get: Callable[[], Index]) -> Index:
            with self._explain(n, None, generator):
                array = np.asarray(get())
                if name == "reduce":
                    return array.astype(bool, copy=False)
                if array is checked.get(name):
                    return array
                if array.size and array.dtype.kind not in "iu":
                    raise _BadValue(f"step {number}: {name} is {get()!r:.40}, no whole number")
                array = array.astype(np.int64, copy=False)
                limit = n if name in ("src", "dst") else width
                is_stray = array.size and (array.min() < 0 or array.max() >= limit)
                if is_stray:
                    table = np.array(moves.arrays()[:4])
                    if fault := find_stray_move(table, n, width, number):
                        raise WrongSchedule(self.collective, self.source.label, n, fault)
                if not array.flags.writeable:
                    checked[name] = array
                return array

        step = moves.convert(check_field)
        len(step)  # raises where the fields do not broadcast
        return step

    @contextlib.contextmanager
    def _explain(
        self, n: int, function: Any, generator: Iterator[Any] | None = None
    ) -> Iterator[None]:
        """Raise AlgorithmError for an error inside, with the line of the file that raised it, or at
        which ``generator`` stands, or the function begins."""
        try:
            yield
        except (CollbenchError, MemoryError):
            raise
        except (Exception, SystemExit) as e:
            file = str(self.source.path)
            line = _find_line(e.__traceback__, file) or _find_generator_line(generator, file)
            code = getattr(function, "__code__", None)
            line = line or (code.co_firstlineno if code and code.co_filename == file else 0)
            where = f"{file}, line {line}" if line else file
            what = str(e) if isinstance(e, _BadValue) else f"{type(e).__name__}: {first_line(e)}"
            label = self.source.label
            raise AlgorithmError(
                f"{where}: {label} for {format_count(n, 'rank')}: {what}",
                f"fix it, then run: {format_prove_command(self.collective, label)}",
            ) from e


def _find_line(traceback: TracebackType | None, file: str) -> int:
    """The last line of the file in a traceback; 0 where it has none."""
    line = 0
    while traceback:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _find_generator_line(generator: Any, file: str) -> int:
    """The line of the file at which a generator, or one inside it, stands; 0 if at none."""
    line = 0
    while frame := getattr(generator, "gi_frame", None):
        if frame.f_code.co_filename == file:
            line = frame.f_lineno
        generator = generator.gi_yieldfrom
    return line
