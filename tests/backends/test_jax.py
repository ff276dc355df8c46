"""JAX as a user measures it: what it does, what it is refused for, and faults planted in it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from marks import long
from needs import need_backend
from paths import before
from sweeping import FEW, ONE, read_csv, read_records, run_without, write_suite

from collbench.run.refusal import refuse_case
from collbench.suite.case import Case
from collbench.suite.policy import Policy

PLUGINS = Path(__file__).parents[1] / "ranks/plugins"
ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv")


@pytest.fixture
def jax() -> None:
    need_backend("jax")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "dtypes", "ops", "collectives"),
    [
        (3, ("float",), ("sum",), ALL),
        (2, ("bfloat16", "int64"), ("min", "avg", "prod"), ("all_reduce", "reduce_scatter")),
        long(2, ("uint8",), ("sum",), ALL),
    ],
)
def test_collectives_have_right_data_or_a_reason(
    cli, jax, tmp_path: Path, ranks: int, dtypes: tuple[str, ...], ops: tuple[str, ...], collectives
) -> None:
    more = f"dtypes = {[*dtypes]}\nops = {[*ops]}"
    suite = write_suite(tmp_path / "jax.toml", "jax", collectives, ranks=f"{ranks}", more=more)
    path = tmp_path / "run.jsonl"
    done = cli("run", str(suite), "--format", "csv", "--output", str(path), timeout=250)
    assert done.returncode == 0, done.stderr
    records = read_records(path)
    measured = [record for record in records if record.status != "skipped"]
    assert {(record.status, record.wrong or 0) for record in measured} == {("ok", 0)}
    assert all(record.checked for record in measured if record.case.nbytes)
    assert {record.case.n for record in measured} == {ranks}
    rows = [(row["collective"], row["dtype"], row["op"]) for row in read_csv(done.stdout)]
    measured_rows = Counter((r.case.collective, r.case.dtype, r.case.op) for r in measured)
    assert not measured_rows - Counter(rows)  # no line of the library's is among them
    reasons = {r.note for r in records if r.status == "skipped"}
    assert all("JAX" in reason for reason in reasons)
    assert bool(reasons) == ("prod" in ops)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"collective": "broadcast"}, "JAX has no broadcast"),
        ({"collective": "barrier"}, "JAX has no barrier"),
        ({"op": "prod"}, "JAX has no all_reduce by prod"),
        ({"collective": "reduce_scatter", "op": "max"}, "JAX has no reduce_scatter by max"),
        ({"op": "avg", "dtype": "int32"}, "JAX averages integers through floats"),
        ({"in_place": True}, "JAX's arrays do not change"),
        ({"algorithm": "ring"}, "leave --algo out"),
        ({"background": "compute:1"}, "jax does nothing in the background"),
        ({"op": "avg"}, ""),
        ({"groups": "pairs 0/3", "collective": "sendrecv", "op": "none"}, ""),
    ],
)
def test_what_it_has_not_is_refused_before_ranks_start(fields, reason: str) -> None:
    given = {"collective": "all_reduce", "n": 2, "nbytes": 64, "op": "sum", **fields}
    refusal = refuse_case(Case(backend="jax", **given), Policy())
    assert reason in refusal if reason else not refusal


@pytest.mark.slow
def test_groups_of_a_split_are_measured_at_once(cli, jax) -> None:
    sizes = ("--sizes", "4K", "-g", "4", "--split", "mod:2", "--no-save", "--format", "csv")
    done = cli("all_gather", "--backend", "jax", *sizes, *FEW)
    assert done.returncode == 0, done.stderr
    rows = read_csv(done.stdout)
    assert [(row["group"], row["wrong"], row["n"]) for row in rows] == [
        ("0", "0", "2"),
        ("1", "0", "2"),
    ]


def write_cycles(path: Path, other: str) -> str:
    """The path of a suite whose cycles are worlds of the same two processes, each one of JAX and
    then one of another backend."""
    write_suite(path, "jax", ["all_reduce"], ranks="2", more="cycles = 2")
    path.write_text(path.read_text().replace('"jax"', f'"jax", "{other}"') + "fresh = true\n")
    return str(path)


@pytest.mark.slow
def test_ranks_of_a_launcher_measure_several_worlds(cli, jax, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    suite = write_cycles(tmp_path / "jax.toml", "gloo")
    done = cli.join(2, "run", suite, "--output", str(path), timeout=250)
    assert done.returncode == 0, done.stderr
    records = read_records(path)
    assert Counter((r.case.backend, r.case.cycle, r.status, r.wrong) for r in records) == {
        (name, cycle, "ok", 0): 1 for name in ("jax", "gloo") for cycle in range(2)
    }


@pytest.mark.slow
def test_a_rank_that_is_lost_between_two_worlds_is_not_waited_for(cli, jax, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    suite = write_cycles(tmp_path / "jax.toml", "saboteur")
    planted = {"PYTHONPATH": before(PLUGINS), "SABOTAGE": "kill:1:2"}
    done = cli.join(2, "run", suite, "--output", str(path), timeout=250, **planted)
    assert [record.status for record in read_records(path)] == ["ok", "failed"]
    assert "lost rank 1 on" in done.stderr and "did not end within" not in done.stderr


@pytest.mark.long
def test_pairs_of_more_ranks_are_measured(cli, jax) -> None:
    words = ("--sizes", "4K", "-g", "3", "--no-save", "--format", "csv", *FEW)
    done = cli("sendrecv", "--backend", "jax", "--split", "pairs", *words)
    assert done.returncode == 0, done.stderr
    assert {(row["wrong"], row["status"]) for row in read_csv(done.stdout)} == {("0", "ok")}


@pytest.mark.slow
def test_a_flipped_bit_is_wrong_data(cli, jax) -> None:
    done = cli(*ONE, "--backend", "jax", "--inject", "corrupt:1")
    assert done.returncode == 7, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, long(1)])  # the first one has what the others meet at
def test_a_rank_that_ends_is_named(cli, jax, rank: int) -> None:
    done = cli(*ONE, "--backend", "jax", "--inject", f"drop:{rank}")
    assert done.returncode == 4, done.stderr
    assert f"rank {rank} on" in done.stderr and "exited with status 70" in done.stderr


@pytest.mark.long
def test_a_rank_that_hangs_ends_the_run(cli, jax) -> None:
    done = cli(*ONE, "--backend", "jax", "--inject", "hang:1", "-T", "5")
    assert done.returncode == 4, done.stderr
    assert "for 5 s" in done.stderr


@pytest.mark.slow
def test_an_order_is_found_without_the_places_that_are_refused(cli, jax) -> None:
    words = ("-b", "64", "-e", "64", "--repeats", "1", "--proof", "1", "--no-save")
    done = cli("order", "all_reduce", "--backend", "jax", "-g", "3", *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    ((found,), remarks) = [
        json.loads(done.stdout)["orders"][0][key] for key in ("cases", "remarks")
    ]
    assert (found["place"], found["shift"]) == ("out", 0)
    text = "\n".join(remarks)
    assert "1 element off alignment: JAX copies inputs that are not aligned to 64 bytes" in text
    assert "in place: JAX's arrays do not change" in text


@pytest.mark.slow
def test_unaligned_buffers_are_refused_with_the_reason() -> None:
    from collbench.run.backends._jax import Jax

    backend = Jax()
    case = Case(collective="all_reduce", backend="jax", n=2, nbytes=64, op="sum")
    backend.policy = Policy()
    assert not backend.refuse(case)
    backend.policy = Policy(unalign=1)
    assert "JAX copies inputs that are not aligned" in backend.refuse(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"JAX_PLATFORMS": "cuda"}, "backend jax measures CPUs"),
        long({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"}, "backend jax has Gloo only"),
        long({"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}, "leave XLA_FLAGS"),
    ],
)
def test_settings_that_change_what_is_measured_are_refused(
    cli, jax, setting: dict[str, str], reason: str
) -> None:
    done = cli(*ONE, "--backend", "jax", **setting)
    assert done.returncode == 5 and reason in done.stderr


@pytest.mark.long
def test_sums_scattered_at_16_mib_are_right_or_told_as_wrong(cli, jax, tmp_path: Path) -> None:
    """JAX 0.10 over Gloo returns wrong data now and then (jax_reduce_scatter.py)."""
    path = tmp_path / "run.jsonl"
    words = ("--sizes", "16M,16777264", "-g", "2", "--backend", "jax", *FEW)
    done = cli("reduce_scatter", *words, "--output", str(path), timeout=250)
    wrong = any(record.wrong for record in read_records(path))
    assert done.returncode == (7 if wrong else 0), done.stderr
    assert all(record.checked or record.wrong for record in read_records(path))


@pytest.mark.slow
def test_without_its_package_it_says_what_installs_it(cli, tmp_path: Path) -> None:
    done = run_without(cli, "jax", tmp_path / "bare", *ONE, "--backend", "jax")
    assert done.returncode == 5
    assert "jax is not installed: pip install 'collbench[jax]'" in done.stdout + done.stderr
