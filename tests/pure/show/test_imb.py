"""IMB-MPI1's tables, beside lines that IMB-MPI1 2021.11 itself printed, and read by
`collbench import`."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Sequence

import factories
import msgspec
import pytest

from collbench.core.errors import UsageError
from collbench.features.interop import importers
from collbench.records import derive
from collbench.records.types import Record
from collbench.show import imb

ALLREDUCE = """\
#----------------------------------------------------------------
# Benchmarking Allreduce 
# #processes = 2 
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         4096         1000         0.82         0.84         0.83
"""  # noqa: W291
SENDRECV = """\
#-----------------------------------------------------------------------------
# Benchmarking Sendrecv 
# #processes = 2 
#-----------------------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
           64         1000         0.70         0.70         0.70       182.86
"""  # noqa: W291
BARRIER = """\
#---------------------------------------------------
# Benchmarking Barrier 
# #processes = 2 
#---------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         0.66         0.68         0.67
"""  # noqa: W291


def timed(collective: str, nbytes: int, *means_us: float, **fields: object) -> Record:
    """A record of 100 samples of ten calls, of which each rank's mean is given."""
    case = factories.case(
        nbytes,
        collective,
        backend="mpi",
        n=len(means_us),
        **fields,  # type: ignore[arg-type]
    )
    per_rank = [[round(mean * 1e4) + shift for shift in (-7, 7) * 50] for mean in means_us]
    times = [max(sample) for sample in zip(*per_rank, strict=True)]
    return factories.record(case, times_ns=times, per_rank=per_rank, inner=10)


def write(records: Sequence[Record]) -> str:
    """The run of these records in IMB's columns."""
    out = io.StringIO()
    text = imb.Text(out)
    text.begin(factories.run(), [record.case for record in records], [])
    for record in records:
        text.record(record, derive.derive_row(record))
    text.end(factories.ENDED, None)
    return out.getvalue()


def drop_remarks(text: str) -> str:
    """The text without comments that IMB does not write."""
    own = r"#-+|# Benchmarking .*|# #processes .*|[^#].*|\s+#(bytes|repetitions).*"
    return "".join(f"{line}\n" for line in text.splitlines() if re.fullmatch(own, line))


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (timed("all_reduce", 4096, 0.82, 0.84), ALLREDUCE),
        (timed("sendrecv", 64, 0.70, 0.70), SENDRECV),
        (timed("barrier", 0, 0.66, 0.68), BARRIER),
    ],
)
def test_a_table_is_imbs_to_the_letter(record: Record, table: str) -> None:
    assert table in drop_remarks(write([record]))


@pytest.mark.parametrize(
    ("collective", "size"),
    [
        ("all_gather", 1024),
        ("all_to_all", 1024),
        ("gather", 1024),
        ("scatter", 1024),
        ("reduce_scatter", 4096),
        ("broadcast", 4096),
        ("all_reduce", 4096),
    ],
)
def test_bytes_are_what_imb_counts(collective: str, size: int) -> None:
    text = write([timed(collective, 4096, 1.0, 2.0, 3.0, 4.0)])
    assert re.search(rf"^ +{size} +1000 +1\.00 +4\.00 +2\.50$", text, re.MULTILINE)


def test_the_date_is_in_local_time_as_imbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    text = write([timed("all_reduce", 400, 1.0, 2.0)])
    monkeypatch.undo()
    time.tzset()
    assert "# Date                  : Thu Jan 01 22:04:05 2026" in text.splitlines()


def test_tables_without_their_head_are_read_as_imbs() -> None:
    records = [timed("all_gather", size, size / 100, size / 50) for size in (400, 800)]
    reading = importers.read_log(drop_remarks(write(records)), importers.Asked(name="imb.txt"))
    assert [(r.case.collective, r.case.n, r.case.size) for r in reading.records] == [
        ("all_gather", 2, 400),
        ("all_gather", 2, 800),
    ]
    assert [record.told and record.told.by_rank for record in reading.records] == [
        (4000.0, 6000.0, 8000.0),
        (8000.0, 12000.0, 16000.0),
    ]


def test_what_it_writes_is_not_imported_as_another_librarys() -> None:
    text = write([timed("all_reduce", 400, 1.0, 2.0)])
    with pytest.raises(UsageError, match="collbench in IMB's columns, which is not read"):
        importers.read_log(text, importers.Asked(name="imb.txt"))


def test_a_case_without_times_by_rank_has_no_row() -> None:
    text = write([factories.record(factories.case(4096))])
    assert "# 4096 bytes: without t_min, t_max and t_avg, as no times by rank" in text
    assert not re.search(r"^ +4096 ", text, re.MULTILINE)


def test_a_case_with_wrong_data_has_no_row() -> None:
    record = timed("all_reduce", 4096, 1.0, 2.0)
    text = write([msgspec.structs.replace(record, status="wrong", wrong=3)])
    assert "# wrong: 4 KiB" in text
    assert not re.search(r"^ +4096 ", text, re.MULTILINE)


def test_placements_have_tables_of_their_own() -> None:
    text = write([timed("all_reduce", 4096, 1.0, in_place=place) for place in (False, True)])
    assert text.count("# Benchmarking Allreduce") == 2
    assert "out of place" in text and "in place" in text


def test_arrivals_have_tables_of_their_own() -> None:
    text = write(
        [timed("all_reduce", 4096, 1.0, arrival=how) for how in ("", "one-late:50us", "sorted:1ms")]
    )
    assert text.count("# Benchmarking Allreduce") == 3
    assert "arrival one-late:50us" in text and "arrival sorted:1ms" in text


def test_planted_faults_are_said_first_and_last() -> None:
    out = io.StringIO()
    text = imb.Text(out)
    run = factories.run(policy=factories.Policy(inject="slow-rank:1:20%"))
    text.begin(run, [], [])
    text.end(factories.ENDED, None)
    assert out.getvalue().count("# PLANTED: ") == 2
