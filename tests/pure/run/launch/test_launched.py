"""Places that other processes keep, as rank 0 sees them: what they are told, and what is heard when
they are lost. No processes."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from collbench.cli import main
from collbench.core.errors import CannotRun, Exit, RunBroken
from collbench.run.launch import launched
from collbench.run.launch.environments import Membership
from collbench.run.launch.fresh import Told
from collbench.run.launch.keeper import Answer, Question
from collbench.run.launch.launched import Errand, Far

WHY = "the process that torchrun started there has ended"
TOLD = Told(Membership("torchrun", 1, 2, 0, 1), "10.0.0.1", "w1", "key", {}, None)


class Wire:
    """A place whose errands are kept, and what is heard of two worlds there."""

    def __init__(self) -> None:
        self.errands: list[Errand] = []
        self.heard: list[tuple[str, str]] = []
        self.far = Far(self._send, "rank 1 on h1")
        for world in ("w1", "w2"):
            told = msgspec.structs.replace(TOLD, world=world)
            self.far.run(told, lambda line, world=world: self.heard.append((world, line)))  # type: ignore[misc]

    def _send(self, text: bytes) -> None:
        self.errands.append(msgspec.json.decode(text, type=Errand))


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_two_worlds_are_told_apart(wire: Wire) -> None:
    wire.far.handle_message(b'w2 {"pid": 7}')
    wire.far.handle_message(b"w1 a line of words")
    assert wire.heard == [("w2", '{"pid": 7}'), ("w1", "a line of words")]


def test_nothing_is_heard_of_a_world_that_has_ended(wire: Wire) -> None:
    wire.far.end("w1")
    wire.far.handle_message(b'w1 {"exit": -9}')
    assert wire.heard == []
    assert [errand.op for errand in wire.errands] == ["run", "run", "end"]


def test_a_lost_place_is_lost_to_all_its_worlds_and_to_later_ones(wire: Wire) -> None:
    wire.far.lose(WHY)
    wire.far.run(
        msgspec.structs.replace(TOLD, world="w3"), lambda line: wire.heard.append(("w3", line))
    )
    assert [(world, msgspec.json.decode(line)) for world, line in wire.heard] == [
        (world, {"lost": WHY}) for world in ("w1", "w2", "w3")
    ]


def test_what_is_asked_is_answered_without_a_world(wire: Wire) -> None:
    wire.far.handle_message(b" " + msgspec.json.encode(Answer(described={"kernel": "6"})))
    assert wire.far.ask(Question()).described == {"kernel": "6"}


def test_a_lost_place_answers_nothing(wire: Wire) -> None:
    wire.far.lose(WHY)
    with pytest.raises(RunBroken, match=f"rank 1 on h1 was lost \\({WHY}\\)"):
        wire.far.ask(Question())


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        MemoryError(),
        ValueError("planted"),
        CannotRun("planted"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_places_end_with_the_exit_code_of_rank_0(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(main, "print_message", lambda *_: None)
    monkeypatch.setattr(launched.join, "divert_stdout", lambda: None)
    monkeypatch.setattr(launched.join, "meet_ranks", lambda *_: None)
    place = SimpleNamespace(dismiss=codes.append)
    monkeypatch.setattr(launched, "Launched", lambda *_: place)
    with (
        pytest.raises(type(error)),
        launched.gather_places(TOLD.member, None, tmp_path),
    ):
        raise error
    known = error.exit if isinstance(error, CannotRun) else None
    if isinstance(error, KeyboardInterrupt):
        known = Exit.INTERRUPTED
    assert codes == [known or main._handle_error(error)]  # type: ignore[arg-type]
