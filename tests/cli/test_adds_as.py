"""The option and the suite key that have rows name the algorithms that add alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.suite import toml


def test_the_option_is_in_the_help_of_a_collective(bare) -> None:
    helped = bare("all_reduce", "--help").stdout
    assert "--adds-as" in helped and "add as the library does" in " ".join(helped.split())


@pytest.mark.parametrize(("line", "is_asked"), [("adds_as = true", True), ("", False)])
def test_the_key_of_a_suite_asks_for_it(tmp_path: Path, line: str, is_asked: bool) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f"[axes]\ncollectives = 'all_reduce'\nsizes = '1K'\n[policy]\norder = 'size'\n{line}\n"
    )
    policy = toml.load_suite(str(path)).policy
    assert (policy.adds_as, policy.order) == (is_asked, "size")
