"""JSON of texts that are not UTF-8."""

from __future__ import annotations

import os

import factories
import msgspec

from collbench.records.types import Record
from collbench.survive.encoding import encode_json

ODD, KEPT = os.fsdecode(b"b\xffd"), "b\ufffdd"


def test_text_that_is_not_utf_8_is_kept_in_any_place() -> None:
    value = {ODD: [ODD, 1, None, {"é": (ODD,)}]}
    assert msgspec.json.decode(encode_json(value)) == {KEPT: [KEPT, 1, None, {"é": [KEPT]}]}


def test_a_record_with_such_a_note_is_the_record_with_what_can_be_read_of_it() -> None:
    record = factories.record(factories.case(), note=f"{ODD} is gone")
    text = encode_json(record)
    assert text.startswith(b'{"line":"record",')
    readable = msgspec.structs.replace(record, note=f"{KEPT} is gone")
    assert msgspec.json.decode(text, type=Record) == readable


def test_other_values_are_as_msgspec_has_them() -> None:
    record = factories.record(factories.case(), note="ä")
    assert encode_json(record) == msgspec.json.encode(record)
