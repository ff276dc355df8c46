"""Advice in words: a shell takes the file, and it is read back as it was meant."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from advised import flatten
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.core.errors import UsageError
from collbench.features.advise.formats import choose, load_formats, words
from collbench.features.advise.types import (
    Advice,
    Advised,
    Cell,
    Crossing,
    Gain,
    Series,
    Setting,
    Unadvised,
    Variables,
)

WORDS = words.Words()
SERIES = Series("all_reduce", 4, 1)
GATHER = Series("all_gather", 4, 1)
SIZES = (8, 64, 4096, 65536, 4 << 20)


def gain(nbytes: int, share: float, width: float = 0.05) -> Gain:
    return Gain(
        nbytes=nbytes,
        gain=share,
        lo=share - width,
        hi=share + width,
        p=0.001,
        launches=6,
        is_paired=True,
        default=1000.0,
        setting=1000.0 * (1 - share),
    )


def row(setting: Setting, name: str, *gains: Gain, series: Series = SERIES, **more: Any) -> Advice:
    return Advice(
        series=series,
        setting=setting,
        name=name,
        low=gains[0].nbytes,
        high=gains[-1].nbytes + 13,
        gains=gains,
        **more,
    )


def threads(value: str = "4") -> Setting:
    return Setting(backend="gloo", env=(("OMP_NUM_THREADS", value),))


def advise(*rows: Advice, **fields: Any) -> Advised:
    values: dict[str, Any] = {
        "library": "other",
        "version": "gloo",
        "runs": ("20261128-a", "20261128-b"),
        "day": "2026-11-28",
        "taus": (0.03, 0.05),
        "rows": rows,
        "backend": "gloo",
    }
    return Advised(**values | fields)


def rivals(name: str, *shares: float, series: Series = SERIES) -> dict[Cell, dict[str, Gain]]:
    return {
        Cell(series, nbytes): {name: gain(nbytes, share)}
        for nbytes, share in zip(SIZES, shares, strict=False)
    }


def source(text: str, folder: Path) -> dict[str, str]:
    """The environment after a shell has read the file; it may print nothing and do nothing else."""
    path = folder / "advice.sh"
    path.write_text(text)
    command = '. "$1" && env -0'
    done = subprocess.run(
        ["sh", "-eu", "-c", command, "sh", str(path)],
        capture_output=True,
        check=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    assert not done.stderr and [p.name for p in folder.iterdir()] == ["advice.sh"]
    return dict(part.split("=", 1) for part in done.stdout.decode().split("\0") if part)


NAME = "OMP_NUM_THREADS=4"
ALL = tuple(gain(nbytes, 0.14) for nbytes in SIZES)


def test_it_is_a_format() -> None:
    assert isinstance(words.FORMATS[0], words.Words)
    assert WORDS.use(Path("x")) == {} and WORDS.refuse(advise()) == ""


def test_a_setting_that_holds_everywhere_is_exported(tmp_path: Path) -> None:
    advised = advise(row(threads(), NAME, *ALL), rivals=rivals(NAME, *[0.14] * 5))
    text = WORDS.write(advised)
    assert text.endswith("export OMP_NUM_THREADS=4\n")
    assert "\n#   set OMP_NUM_THREADS=4\n" in text and "\n#   source FILE\n" in text
    words_of = flatten(text)
    assert "8 B to 4 MiB: OMP_NUM_THREADS=4, 14.0% less time [9.0%, 19.0%], 6 launches" in words_of
    assert "runs, the last of 2026-11-28: 20261128-a, 20261128-b" in words_of
    assert source(text, tmp_path)["OMP_NUM_THREADS"] == "4"
    rules = WORDS.read(text)
    assert rules[0] == ("all_reduce", 4, 1, 8, (4 << 20) + 13, NAME)
    assert choose(rules, Series("broadcast", 16, 2), 99) == NAME  # as a shell's variables do


def test_a_setting_that_is_slower_somewhere_is_said_and_not_exported(tmp_path: Path) -> None:
    advised = advise(
        row(threads(), NAME, *ALL[:4]), rivals=rivals(NAME, 0.14, 0.14, 0.14, 0.14, -0.12)
    )
    text = WORDS.write(advised)
    assert "export OMP" not in text
    assert (
        "not exported: OMP_NUM_THREADS=4: it holds for all_reduce of 8 B to 64 KiB only; slower"
        " at all_reduce of 4 MiB (-12 % [-17, -7])" in flatten(text)
    )
    assert "OMP_NUM_THREADS" not in source(text, tmp_path)
    assert choose(WORDS.read(text), SERIES, 64) == NAME
    assert choose(WORDS.read(text), SERIES, 4 << 20) == ""
    assert choose(WORDS.read(text), GATHER, 64) == ""


def test_a_setting_that_another_collective_suffers_from_is_not_exported() -> None:
    of_gather = rivals(NAME, 0.0, 0.0, -0.3, 0.0, 0.0, series=GATHER)
    text = WORDS.write(advise(row(threads(), NAME, *ALL), rivals=of_gather))
    assert "export OMP" not in text and "slower at all_gather of 4 KiB" in flatten(text)


@pytest.mark.parametrize("share", [-0.01, 0.0, 0.02])
def test_what_is_not_surely_as_fast_within_tau_is_not_exported(share: float) -> None:
    """The interval is 5 points wide either way, and tau is 5 %."""
    advised = advise(row(threads(), NAME, *ALL[:4]), rivals=rivals(NAME, *[0.14] * 4, share))
    exported = "export OMP" in WORDS.write(advised)
    assert exported == (share - 0.05 >= -0.05)
    if not exported:
        text = flatten(WORDS.write(advised))
        assert "not known to be as fast at all_reduce of 4 MiB" in text


def test_what_was_not_tried_somewhere_is_not_exported() -> None:
    untried = {Cell(SERIES, 4 << 20): {"other": gain(4 << 20, 0.0)}}
    text = WORDS.write(advise(row(threads(), NAME, *ALL[:4]), rivals=untried))
    assert "export OMP" not in text and "not known to be as fast" in flatten(text)


def test_what_may_not_be_advised_somewhere_is_not_exported() -> None:
    wrong = rivals(NAME, *[0.14] * 5, series=GATHER)
    cell = Cell(GATHER, 64)
    doubt = "gave wrong data: 3 elements (4 MiB)"
    wrong[cell] = {NAME: msgspec.structs.replace(wrong[cell][NAME], doubt=doubt)}
    text = WORDS.write(advise(row(threads(), NAME, *ALL), rivals=wrong))
    assert "\nexport OMP" not in text
    assert f"not known to be as fast at all_gather of 64 B ({doubt})" in flatten(text)


def test_a_cell_that_is_not_advised_counts_where_rivals_are_not_told() -> None:
    """As in the advice that a verification leaves."""
    of_gather = Cell(GATHER, 64)
    for best, name, exports in (
        (gain(64, 0.02), NAME, True),
        (gain(64, -0.02), NAME, False),
        (gain(64, 0.2), "another", False),
        (None, "", False),
    ):
        left = (Unadvised(of_gather, "it is not surely faster", True, best, name),)
        text = WORDS.write(advise(row(threads(), NAME, *ALL), unadvised=left))
        assert ("\nexport OMP" in text) == exports


def test_a_name_of_another_collective_is_another_setting() -> None:
    """Preset 1 of broadcast says nothing of preset 1 of all_reduce."""
    env = (("I_MPI_ADJUST_ALLREDUCE", "1"),)
    preset = row(Setting(backend="mpi", env=env), "preset 1", *ALL)
    broadcast = Series("broadcast", 4, 1)
    of_broadcast = rivals("preset 1", -0.3, -0.3, -0.3, series=broadcast)
    advised = advise(preset, rivals=of_broadcast, library="intelmpi", backend="mpi")
    assert words.list_doubts(advised, preset) == ([], [])
    assert "\nexport I_MPI_ADJUST_ALLREDUCE=1" in WORDS.write(advised)
    less = msgspec.structs.replace(preset, gains=ALL[:4])
    own = advise(less, rivals=rivals("preset 1", *[0.1] * 4, -0.3), library="intelmpi")
    assert words.list_doubts(own, less)[0] == [Cell(SERIES, SIZES[-1])]


def test_it_says_why_a_setting_is_not_exported_whose_times_are_good() -> None:
    two = advise(
        row(threads("2"), "OMP_NUM_THREADS=2", *ALL[:2]),
        row(threads(), NAME, *ALL[2:]),
        rivals={
            Cell(SERIES, size): dict.fromkeys(("OMP_NUM_THREADS=2", NAME), gain(size, 0.1))
            for size in SIZES
        },
    )
    assert "only; OMP_NUM_THREADS=4 is advised at more sizes" in flatten(WORDS.write(two))
    setting = Setting(backend="gloo", algorithm="ring", env=(("A", "1"),))
    text = WORDS.write(advise(row(setting, "ring", *ALL)))
    assert "only; it takes algorithm ring, which no variable sets" in flatten(text)


def test_settings_that_were_measured_apart_are_not_exported_together(tmp_path: Path) -> None:
    two, four = threads("2"), threads("4")
    advised = advise(
        row(two, "OMP_NUM_THREADS=2", *ALL[:2]),
        row(four, NAME, *ALL[2:]),
        rivals={
            Cell(SERIES, nbytes): {
                "OMP_NUM_THREADS=2": gain(nbytes, 0.1),
                NAME: gain(nbytes, 0.1),
            }
            for nbytes in SIZES
        },
    )
    text = WORDS.write(advised)
    assert text.count("\nexport ") == 1 and source(text, tmp_path)["OMP_NUM_THREADS"] == "4"
    assert "# not exported: OMP_NUM_THREADS=2" in text
    assert choose(WORDS.read(text), SERIES, 8) == "OMP_NUM_THREADS=2"


def test_another_backend_is_a_sentence(tmp_path: Path) -> None:
    shm = row(Setting(backend="shm"), "shm", *ALL[:4], above=Crossing(3.1e6, 5e6))
    text = WORDS.write(advise(shm))
    assert "all_reduce on 4 ranks of 1 host, 8 to 65549 bytes: use shm in place of gloo" in text
    assert (
        "equally fast somewhere between 2.96 and 4.77 MiB; not advised beyond 64.01 KiB"
    ) in flatten(text)
    assert {*source(text, tmp_path)} <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert WORDS.read(text) == [("all_reduce", 4, 1, 8, 65549, "shm")]


def test_no_rows_change_nothing(tmp_path: Path) -> None:
    text = WORDS.write(advise(notes=("nothing was slower",), is_same_order=True))
    assert all(line.startswith("#") for line in text.splitlines())
    assert (
        "No setting is surely faster" in text
        and "nothing was slower" in text
        and "keep the order" in text
    )
    assert WORDS.read(text) == [] and source(text, tmp_path)


HARM = "x\"; touch pwned; $(touch pwned) `touch pwned` '\ntouch pwned\n\\"


def test_hostile_values_stay_values(tmp_path: Path) -> None:
    setting = Setting(backend="gloo", env=(("A", HARM),))
    advised = advise(
        row(setting, f"A={HARM}", *ALL, verified="\ntouch pwned"),
        version=HARM,
        runs=(HARM,),
        notes=(HARM,),
        backend=HARM,
    )
    assert source(WORDS.write(advised), tmp_path)  # which looks at the folder
    for name in ("A;touch pwned", "A\ntouch pwned\n", ""):
        odd = advise(row(Setting(backend="gloo", env=((name, "1"),)), "A", *ALL))
        (tmp_path / "advice.sh").unlink()
        assert source(WORDS.write(odd), tmp_path)
        assert [rule.name for rule in WORDS.read(WORDS.write(odd))] == ["A"]


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True), st.text(max_size=12), min_size=1
    )
)
def test_it_is_read_back_whatever_the_values(env: dict[str, str]) -> None:
    variables: Variables = tuple(sorted(env.items()))
    setting = Setting(backend="gloo", env=variables)
    name = " ".join(f"{key}={value}" for key, value in variables)
    text = WORDS.write(advise(row(setting, name, *ALL)))
    rules = WORDS.read(text)
    assert rules[0] == ("all_reduce", 4, 1, 8, (4 << 20) + 13, words.plain_line(name))
    exported = "\nexport " in text
    assert exported == all(value.isprintable() and value == value.strip() for value in env.values())
    assert len(rules) == (1 if not exported else 1 + len(words.COLLECTIVES))


@pytest.mark.parametrize(
    "line", ["rm -rf x", "export", "export A", "export 'A", "export A=1; ls", "\x00", "A=1"]
)
def test_a_file_of_another_kind_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(UsageError, match="line 2"):
        WORDS.read(f"# x\n{line}\n")


def test_the_registry_has_it() -> None:
    assert load_formats()["words"] is words.FORMATS[0]
