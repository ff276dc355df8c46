"""What reports say of two runs that are compared."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.core.errors import NoVerdict, UsageError
from collbench.features.compare import comparison
from collbench.features.compare import false_alarms as alarms
from collbench.features.compare.views import comparison as view_
from collbench.features.compare.views.verdicts import Readable, make_readable
from collbench.records.types import RunFile
from collbench.show.document import Section
from collbench.show.views.series import View


def conclude_comparison(files: Sequence[RunFile], is_requested: bool) -> Readable | None:
    """The comparison of two runs, if they were measured in turns or if it ``is_requested``. Of runs
    measured in turns, the one measured as base is base."""
    pairings = [file.run.pairing for file in files]
    together = (
        len(files) == 2 and len({pairing and pairing.experiment for pairing in pairings}) == 1
    )
    if is_requested and len(files) != 2:
        raise UsageError(
            f"--compare needs two runs, not {len(files)}", "collbench report --compare BASE HEAD"
        )
    if not is_requested and not (together and pairings[0]):
        return None
    base, head = sorted(
        files,
        key=lambda file: bool(file.run.pairing and together and file.run.pairing.side == "head"),
    )
    try:
        result = comparison.compare_runs(base, head, comparison.Rules())
    except NoVerdict:  # a side has no case; the page still says how both ended
        if is_requested:
            raise
        return None
    return make_readable(result, alarms.find_alarms(result))


def make_section(view: View) -> Section | None:
    """The comparison of two runs; None where no two are compared."""
    return view_.make_section(view.conclusion) if isinstance(view.conclusion, Readable) else None


def make_method(view: View) -> Section | None:
    """The section on how the compared runs were measured; None where no two runs are compared."""
    return view_.make_method(view.conclusion) if isinstance(view.conclusion, Readable) else None
