"""Comments in files that a library reads: above each row gain, interval, launches and day."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from collbench.core.text import format_count, format_size, plain_line
from collbench.features.advise.types import Advice, Advised
from collbench.records.choice import describe_heard

WIDTH = 96  # readers take lines of up to 255 bytes


def describe_file(advised: Advised) -> list[str]:
    """What the file is from, in lines without a comment's sign."""
    least, most = (f"{tau:.1%}".replace("%", " %") for tau in advised.taus)
    tau = least if least == most else f"{least} to {most}"
    lines = [
        f"collbench advise, {advised.day}, {advised.version}; effects below {tau} do not count",
        f"runs: {', '.join(advised.runs)}",
    ]
    return [*lines, *advised.notes]


def describe_row(advice: Advice, day: str) -> str:
    """What a row saves, in one sentence."""
    gain, lo, hi = (round(100 * share) for share in advice.gain)
    ran = f" ({ran})" if (ran := describe_heard(advice.default_ran)) else ""
    launches = format_count(min(each.launches for each in advice.gains), "launch")
    day = f"confirmed on {advice.verified}" if advice.verified else f"measured by {day}"
    remark = f"; {advice.remark}" if advice.remark else ""
    return (
        f"{advice.series.collective}, {advice.series.n} ranks on {advice.series.nodes}, "
        f"{format_size(advice.low)} to {format_size(advice.high)}: {advice.name} takes at least "
        f"{gain} % less time [{lo}, {hi}] than the default{ran}, {launches} a side, {day}{remark}"
    )


def comment(sentences: Iterable[str], sign: str = "#") -> list[str]:
    """Lines of comments, each short and in ASCII, whatever the sentences hold."""
    texts = (plain_line(text).encode("ascii", "replace").decode() for text in sentences)
    wrapped = (line for text in texts for line in textwrap.wrap(text, WIDTH - len(sign) - 1))
    return [f"{sign} {line}" for line in wrapped]
