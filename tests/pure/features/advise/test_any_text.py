"""Whatever a library's file holds, it is read or refused with its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.advise.formats import load_formats

CHARACTERS = {
    "intelmpi": 'exportI_MPADJUSTBC="0123:;-@\n#',
    "mpich": '{}":,/* \ncomm_size<=any0123',
    "oneccl": 'exportCL_ALREDU="ring:;-0123\n#',
    "openmpi": "0123456789 #\nru-",
}


@pytest.mark.parametrize("key", CHARACTERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_or_refused(key: str, data: st.DataObject) -> None:
    try:
        load_formats()[key].read(data.draw(st.text(CHARACTERS[key], max_size=60)))
    except UsageError as e:
        assert e.message.startswith(("line ", "rules of ") if key == "openmpi" else "line ")
