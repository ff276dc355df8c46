"""collbench's own format of traces: what is written is read, and what is not whole is told."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.core.errors import UsageError
from collbench.features.traces.analysis.judgement import judge_trace
from collbench.features.traces.formats import own
from collbench.features.traces.formats.own import Limits, Note
from collbench.features.traces.replay import step_of
from collbench.features.traces.types import FAKE_GPU, STALE_NS, Call, Lost, RankTrace
from collbench.features.traces.views import trace as view

ABOUT = RankTrace(1, 2, groups={"": (0, 1)}, host="node-a", backend="gloo")
CALLS = (
    Call("all_to_allv", nbytes=48, dtype="float", sends=(4, 8), receives=(1, 0), issued_ns=100),
    Call("send", "tp", 8, "half", peer=1, tag=3, issued_ns=120, begins_ns=120, ends_ns=150),
    Call("wait", after=(0, 1), issued_ns=160, ends_ns=170, phase="backward", source="a.py:1 f"),
)
NOTES = (
    Note(group="tp", ranks=(1, 0), described="tensor parallel"),
    Note(step=(90, 200)),
    Note(lost=Lost("sparse", 2, 64)),
)
END = Note(ended=300)
BEGUN = Call("all_reduce", nbytes=8, issued_ns=200, state="started")


def written(folder: Path, *lines: Call | Note, about: RankTrace = ABOUT) -> Path:
    path = folder / own.file_name(about.rank)
    writer = own.Writer(path, about)
    writer.write(lines)
    writer.close()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, CALLS[0], *NOTES, *CALLS[1:], END)
    assert own.read_rank(path) == replace(
        ABOUT,
        calls=CALLS,
        groups={"": (0, 1), "tp": (1, 0)},
        described={"tp": "tensor parallel"},
        steps=((90, 200),),
        lost=(Lost("sparse", 2, 64),),
        source=str(path),
        until=0,
        complete_until_ns=300,
    )


@pytest.mark.parametrize("change", ["remove", "rename", "rename the folder", "chdir"])
def test_a_recording_is_whole_whatever_becomes_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("folder") / own.file_name(ABOUT.rank)
    path.parent.mkdir()
    writer = own.Writer(path, ABOUT)
    writer.write(CALLS[:1])
    if change == "remove":
        path.unlink()
    elif change == "rename":
        path.rename("moved")
    elif change == "rename the folder":
        path.parent.rename("moved")
    else:
        monkeypatch.chdir("/")
    writer.write([*CALLS[1:], END])
    writer.close()
    assert own.read_rank(tmp_path / path).calls == CALLS


def test_a_look_at_the_path_that_stalls_holds_up_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = own.Writer(tmp_path / own.file_name(ABOUT.rank), ABOUT)
    look, stalled = Path.stat, []

    def stall(path: Path) -> os.stat_result:
        job = threading.Thread(target=writer.append, args=(CALLS[:1],), daemon=True)
        job.start()
        job.join(5)
        stalled.append(job.is_alive())
        return look(path)

    monkeypatch.setattr(Path, "stat", stall)
    writer.write(CALLS[1:])
    assert stalled == [False]


def test_a_recording_does_not_write_into_another_file(tmp_path: Path) -> None:
    path = tmp_path / own.file_name(ABOUT.rank)
    writer = own.Writer(path, ABOUT)
    path.rename(tmp_path / "moved")
    path.write_text("of others")
    with pytest.raises(FileExistsError):
        writer.write(CALLS)
    writer.close()
    assert path.read_text() == "of others"


FURTHER = (Note(begun=(3, BEGUN)), Note(begun=(5, BEGUN)))


def test_calls_that_a_job_had_begun_when_it_crashed_are_read_with_marks_for_waits(
    tmp_path: Path,
) -> None:
    found = own.read_rank(written(tmp_path, Note(begun=(0, CALLS[0])), *CALLS, *FURTHER))
    assert found.calls == (*CALLS, BEGUN, Call("mark", issued_ns=200), BEGUN)


def test_calls_that_were_begun_are_those_written_where_the_recording_ended(tmp_path: Path) -> None:
    assert own.read_rank(written(tmp_path, *CALLS, *FURTHER, END)).calls == CALLS


def test_a_call_that_was_taken_back_was_not_begun(tmp_path: Path) -> None:
    back = Note(back=(3, BEGUN.issued_ns))
    assert own.read_rank(written(tmp_path, *CALLS, FURTHER[0], back)).calls == CALLS


def test_a_call_that_took_the_place_of_one_taken_back_was_begun(tmp_path: Path) -> None:
    """Another thread's, which is written before the note of the first."""
    other = replace(BEGUN, issued_ns=210)
    lines = (*CALLS, FURTHER[0], Note(begun=(3, other)), Note(back=(3, BEGUN.issued_ns)))
    assert own.read_rank(written(tmp_path, *lines)).calls == (*CALLS, other)


def test_a_begun_call_beyond_all_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 2: more than"):
        own.read_rank(written(tmp_path, Note(begun=(own.MOST_CALLS, BEGUN))))


def test_the_first_line_names_the_format(tmp_path: Path) -> None:
    assert written(tmp_path).read_text().startswith('{"collbench_trace":2,')


def test_recordings_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, *CALLS, END)
    path.write_text(path.read_text().replace('"collbench_trace":2', '"collbench_trace":1'))
    assert own.read_rank(path).calls == CALLS


def test_a_recording_of_a_later_version_takes_a_newer_collbench(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_text('{"collbench_trace":3,"rank":0,"world":2,"colour":1}\n')
    with pytest.raises(UsageError, match="line 1: recorded in format 3 by a newer") as refused:
        own.read_rank(path)
    assert "a newer one" in refused.value.hint


def test_ranks_are_read_together_in_their_order(tmp_path: Path) -> None:
    paths = [written(tmp_path, END, about=replace(ABOUT, rank=rank)) for rank in (1, 0)]
    assert [rank.rank for rank in own.read_job(paths).ranks] == [0, 1]


def test_packed_files_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, *CALLS, END)
    packed = tmp_path / "rank-00001.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert own.read_rank(packed).calls == CALLS


def test_what_an_interrupted_job_left_is_read_and_the_rest_is_lost(tmp_path: Path) -> None:
    path = written(tmp_path, *CALLS)
    path.write_bytes(path.read_bytes()[:-20])
    found = own.read_rank(path)
    assert (found.calls, found.lost) == (CALLS[:2], (Lost(own.INTERRUPTED),))


def test_a_call_of_an_unknown_kind_is_lost_and_keeps_its_place(tmp_path: Path) -> None:
    odd = Call("all_shout", nbytes=8, number=4, issued_ns=90)
    wait = Call("wait", after=(1,), issued_ns=160)
    found = own.read_rank(written(tmp_path, odd, odd, CALLS[0], wait, Note(late=(0, 99)), END))
    assert [call.kind for call in found.calls] == ["mark", "mark", CALLS[0].kind, "wait"]
    assert [(lost.calls, lost.nbytes) for lost in found.lost] == [(2, 16)]
    assert "'all_shout'" in found.lost[0].why and found.lost_numbers == {"": (4, 4)}
    assert found.calls[0].ends_ns == -1


def test_a_packed_file_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(written(tmp_path, *CALLS, END).read_bytes())
    packed = tmp_path / "cut.jsonl.gz"
    packed.write_bytes(whole[:-8])  # sum and length
    assert own.read_rank(packed).calls == CALLS


def test_a_later_recording_replaces_an_earlier_one(tmp_path: Path) -> None:
    written(tmp_path, *CALLS, END)
    assert own.read_rank(written(tmp_path, END)).calls == ()


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / own.file_name(1)).write_text("mine")
    with pytest.raises(UsageError, match="not written by collbench"):
        written(tmp_path)


HEAD = '{"collbench_trace":1,"rank":0,"world":2}\n'
BAD = {
    "nothing": ("", "the file is empty"),
    "garbage": ("\x00\xff{\n", "line 1: "),
    "another version": ('{"collbench_trace":0,"rank":0,"world":2}\n', "line 1: .*collbench_trace"),
    "no rank of the world": ('{"collbench_trace":1,"rank":2,"world":2}\n', "line 1: rank 2 of 2"),
    "unknown field": (HEAD + '{"kind":"send","colour":1}\n', "line 2: .*colour"),
    "a field of another type": (HEAD + '{"kind":"send","nbytes":-1}\n', "line 2: .*nbytes"),
    "neither call nor note": (HEAD + "[]\n", "line 2: "),
    "garbage between": (HEAD + "x\n" + '{"kind":"send"}\n', "line 2: "),
    "a wait for what comes later": (HEAD + '{"kind":"wait","after":[0]}\n', "line 2: .*call 0"),
    "a long name": (
        HEAD + f'{{"kind":"{"x" * 1001}"}}\n',
        "line 2: 'x+…' has more than 1,000 characters",
    ),
    "a datatype of tomorrow": (HEAD + '{"kind":"send","dtype":"float3"}\n', "line 2: .*'float3'"),
    "a reduction of tomorrow": (
        HEAD + '{"kind":"reduce","op":"xor"}\n',
        "line 2: .*'xor' is unknown",
    ),
    "deep": (HEAD + "[" * 100_000 + "\n", "line 2: "),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_with_its_line(case: str, tmp_path: Path) -> None:
    text, why = BAD[case]
    path = tmp_path / "rank-00000.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=rf"rank-00000.jsonl.*{why}") as told:
        own.read_rank(path)
    assert told.value.hint


SMALL = {
    "bytes": (Limits(nbytes=100), "more than 100 B"),
    "lines": (Limits(lines=2), "more than 2"),
    "bytes of a line": (Limits(line=50), "more than 50 B"),
}


@pytest.mark.parametrize("case", SMALL)
def test_more_than_the_limits_is_refused(case: str, tmp_path: Path) -> None:
    limits, why = SMALL[case]
    with pytest.raises(UsageError, match=why):
        own.read_rank(written(tmp_path, *CALLS, END), limits)


def test_a_file_that_is_not_there_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        own.read_rank(tmp_path / "none.jsonl")


def test_files_of_two_jobs_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, END), written(tmp_path, END, about=RankTrace(0, 3))]
    with pytest.raises(UsageError, match="a job of 3 ranks"):
        own.read_job(paths)


def of_two(folder: Path, host: str, begins: int) -> list[Path]:
    """Of a rank that ended at 300 on node-a, and of one that made its first call then."""
    lines, about = [replace(BEGUN, issued_ns=begins), Note(ended=900)], replace(ABOUT, rank=0)
    return [
        written(folder, *CALLS, END),
        written(folder, *lines, about=replace(about, host=host)),
    ]


def test_a_file_that_an_earlier_job_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rank-00001.jsonl ends before .*rank-00000.jsonl begin"):
        own.read_job(of_two(tmp_path, "node-a", 301))


def test_a_file_that_an_earlier_job_left_on_another_host_is_refused(tmp_path: Path) -> None:
    assert len(own.read_job(of_two(tmp_path, "node-b", 300 + STALE_NS)).ranks) == 2
    with pytest.raises(UsageError, match=r"rank-00001.jsonl ends before .*rank-00000.jsonl begin"):
        own.read_job(of_two(tmp_path, "node-b", 301 + STALE_NS))


@pytest.mark.parametrize(("host", "begins"), [("node-a", 300), ("node-b", 301)])
def test_files_of_ranks_that_overlap_or_have_other_clocks_are_of_one_job(
    host: str, begins: int, tmp_path: Path
) -> None:
    assert len(own.read_job(of_two(tmp_path, host, begins)).ranks) == 2


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, END)
    with pytest.raises(UsageError, match="both of rank 1"):
        own.read_job([path, path])


@pytest.mark.parametrize(("backend", "untold"), [("gloo", own.UNSEEN), ("nccl", own.ON_DEVICE)])
def test_what_is_taken_for_granted_is_told(backend: str, untold: str, tmp_path: Path) -> None:
    path = written(tmp_path, *CALLS, END, about=replace(ABOUT, backend=backend))
    assert own.read_job([path]).assumptions == (own.HANDED_OVER, untold)


@pytest.mark.parametrize(
    ("kind", "waits_from", "told"),
    [("recv", 900, True), ("recv", 110, False), ("all_reduce", 900, False)],
)
def test_a_message_that_may_have_ended_long_before_it_was_waited_for_is_told(
    kind: str, waits_from: int, told: bool, tmp_path: Path
) -> None:
    message = Call(kind, nbytes=8, dtype="half", issued_ns=100, begins_ns=100, ends_ns=950)
    wait = Call("wait", after=(0,), issued_ns=waits_from, begins_ns=waits_from, ends_ns=950)
    path = written(tmp_path, message, wait, END)
    found = own.read_job([path])
    assert (own.MESSAGES in found.assumptions) is told
    assert [call.seen_late for call in found.ranks[0].calls] == [told, False]


def test_a_call_that_the_job_was_in_when_it_was_killed_is_told(tmp_path: Path) -> None:
    found = own.read_rank(written(tmp_path, BEGUN, Note(until=250), Note(until=270)))
    assert [call.state for call in found.calls] == ["started"]
    assert (found.until, found.complete_until_ns) == (270, 270)


def test_a_trace_that_has_lost_calls_accuses_nobody(tmp_path: Path) -> None:
    lines = (BEGUN, Note(until=250), Note(lost=Lost("sparse", 1)), replace(END, broken=True))
    assert own.read_rank(written(tmp_path, *lines)).until == 0


def test_a_call_that_ended_after_it_was_written_has_its_end(tmp_path: Path) -> None:
    found = own.read_rank(written(tmp_path, BEGUN, Note(late=(0, 290))))
    assert found.calls == (replace(BEGUN, state="", begins_ns=200, ends_ns=290),)


@pytest.mark.parametrize(("later", "state"), [((), "started"), ((Note(late=(0, 290)),), "")])
def test_a_message_that_is_waited_for_after_it_was_written_is_under_way_until_its_end(
    later: tuple[Note, ...], state: str, tmp_path: Path
) -> None:
    message = Call("recv", nbytes=8, peer=0, issued_ns=200)
    (found,) = own.read_rank(written(tmp_path, message, Note(late=(0, -1)), *later)).calls
    assert (found.state, found.ends_ns) == (state, 290 if later else -1)


@pytest.mark.parametrize(
    ("late", "peer"),
    [('{"late":[0,290],"peer":1}', 1), ('{"late":[0,290]}', -1)],
    ids=["now", "of earlier versions"],
)
def test_a_message_from_anybody_that_ended_after_it_was_written_has_its_sender(
    late: str, peer: int, tmp_path: Path
) -> None:
    path = written(tmp_path, Call("recv", nbytes=8, issued_ns=200, state="started"))
    path.write_text(f"{path.read_text()}{late}\n")
    (found,) = own.read_rank(path).calls
    assert (found.peer, found.ends_ns, found.state) == (peer, 290, "")


def test_calls_under_way_when_a_recording_was_closed_accuse_nobody(tmp_path: Path) -> None:
    found = own.read_rank(written(tmp_path, BEGUN, END))
    assert ([call.state for call in found.calls], found.until) == ([""], 0)


def test_calls_under_way_when_a_job_ended_never_did(tmp_path: Path) -> None:
    found = own.read_rank(written(tmp_path, BEGUN, replace(END, broken=True)))
    assert ([call.state for call in found.calls], found.until) == (["started"], -1)


@pytest.mark.parametrize("fake", [False, True])
def test_a_recording_of_a_fake_gpu_says_so_in_every_output(fake: bool, tmp_path: Path) -> None:
    about = RankTrace(0, 1, groups={"": (0,)}, host="node-a", backend="nccl")
    call = Call("all_reduce", nbytes=8, issued_ns=100, begins_ns=100, ends_ns=150)
    written(tmp_path, *[Note(fake=True)] * fake, call, Note(step=(90, 200)), END, about=about)
    trace = own.read_job([tmp_path / own.file_name(0)])
    document = view.make_document(judge_trace(trace))
    said = (
        document.verdict.startswith("FAKE: "),
        "fake" in document.values,
        FAKE_GPU in step_of(trace).assumptions,
    )
    assert said == (fake, fake, fake)
