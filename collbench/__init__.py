"""Measures collective communication (NCCL, Gloo, MPI, reference algorithms) and shows how far to
trust the numbers."""

from __future__ import annotations

import os
import sys

try:
    from typing import TYPE_CHECKING

    from collbench.core.version import __version__
    from collbench.records.columns import document_columns
except KeyboardInterrupt:  # as __main__ does it, which is yet to come
    if sys.argv and os.path.basename(sys.argv[0]) in ("-m", "collbench"):  # noqa: PTH119
        os._exit(130)
    raise

if TYPE_CHECKING:
    from os import PathLike

    import pandas as pd

    from collbench.features.traces.recording.recorder import Recorder
    from collbench.records.types import RunFile

__all__ = ["__version__", "frame", "record"]


def frame(*runs: str | PathLike[str] | RunFile) -> pd.DataFrame:
    from collbench.core.errors import CollbenchError
    from collbench.records import rows, run_file, store
    from collbench.records.types import RunFile

    try:
        files = [
            run if isinstance(run, RunFile) else run_file.read_digest(store.find_run(str(run)))
            for run in runs or ("@last",)
        ]
    except CollbenchError as e:
        if e.hint:
            e.add_note(f"hint: {e.hint}")  # a notebook's traceback shows it
        raise
    return rows.make_frame(files)


frame.__doc__ = f"""The one table of what runs measured, a row for every run, case and launch.

``runs`` are named as everywhere (a path, an id, its beginning or end, a tag, "@last", "@last~1"),
or read already; without any it is the last one. Times and bandwidths are missing where a row is
unfit. As in

    collbench.frame("@last").query("size >= 1e6").groupby("implementation").busbw.max()

Raises UsageError for a name that no run has, CannotRun for what cannot be read. Columns:

{document_columns()}
"""


def record(
    folder: str | PathLike[str], steps: int = 3, *, after: int = 0, optimizer: bool = True
) -> Recorder:
    """Records what this job asks of the network, from here on, into a file of this rank in
    ``folder``, which ``collbench trace`` and ``collbench replay`` read.

    Of ``steps`` iterations, ``after`` so many that are not recorded: DDP's first two are unlike the
    rest. An iteration ends where ``recorder.step()`` is called; where it is not, when the optimizer
    has made its step. One that makes several an iteration needs ``optimizer=False``, and
    ``recorder.step()``. As in

        recorder = collbench.record("trace/", steps=12, after=2)

    anywhere before the loop, or around it, where leaving the block ends the recording (for how many
    steps, see ``collbench help traces``)

        with collbench.record("trace/", steps=12, after=2) as recorder:

    Steps take longer while it records, on two full cores by 0.4 to 1.7 ms of CPU a call, so that a
    step of a second hardly feels it and a short one with many calls does (reports/recording.md):
    the times in a trace are those of recorded steps. Whatever fails in it is a warning, once; the
    job goes on. Raises CannotRun where traces are not installed.
    """
    from collbench.core.errors import CannotRun
    from collbench.core.feature import find_features

    if "traces" not in {feature.name for feature in find_features()}:
        raise CannotRun(
            "collbench cannot record: its feature traces is not installed", "reinstall collbench"
        )
    from collbench.features.traces.recording.recorder import Recorder

    return Recorder(folder, steps, after, optimizer)
