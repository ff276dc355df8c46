"""What a library said it ran, or shows by its sums: in words, beside what was asked of it, and what
that moves over the wires."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from collbench.core.collectives import COLLECTIVES
from collbench.records.types import Choice

# NCCL's implementations in which the switch adds up or multiplies data, all on one NVLink domain
IN_SWITCH = frozenset(
    {
        ("NVLS", "Simple"),
        ("Symmetric", "RSxLDMC_AGxSTMC"),
        ("Symmetric", "STMC"),
        ("Symmetric", "TmaSTMC"),
        ("Symmetric", "LDMC"),
    }
)

# Open MPI's settings of that kind, and the one without which they count for nothing
TUNED = r"OMPI_MCA_coll_tuned_\w+_algorithm"
RULES = "OMPI_MCA_coll_tuned_use_dynamic_rules"


def describe_choice(choice: Choice | None) -> str:
    """Algorithm, protocol, channels and transport, as in Ring/LL128 x24 P2P; where the library said
    no algorithm, what its sums show: ring (by its sums). Empty where nothing is known."""
    if choice is None:
        return ""
    by_sums = f"{name} (by its sums)" if (name := describe_adding(choice)) else ""
    what = "/".join(filter(None, (choice.algorithm or by_sums, choice.protocol)))
    channels = f"x{choice.channels}" if choice.channels else ""
    return " ".join(filter(None, (what, channels, choice.transport)))


def describe_heard(choice: Choice | None) -> str:
    """What the library itself said it ran, as describe_choice has it."""
    return describe_choice(choice and msgspec.structs.replace(choice, adds_as=()))


def describe_adding(choice: Choice | None) -> str:
    """The first algorithm that adds as the sums do, and how many others do: recursive_doubling
    +4; empty where none is known."""
    names = choice.adds_as if choice else ()
    if not names:
        return ""
    return names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")


def add_names(choice: Choice | None, names: Sequence[str]) -> Choice | None:
    """The choice with the algorithms that add as the sums do."""
    if not names:
        return choice
    return msgspec.structs.replace(choice or Choice(), adds_as=tuple(names))


IN_TURN = ("ring", "chain", "linear")  # how names begin of what adds one rank after the other


def is_unlike_sums(choice: Choice | None) -> bool:
    """Whether a library said Ring and no algorithm that adds as the sums do goes round, or it said
    Tree and only rings add so. False where it cannot be told: NCCL's Tree is a chain within a
    host."""
    if choice is None or not choice.adds_as:
        return False
    algorithm = choice.algorithm.lower()
    if "ring" in algorithm:
        return not any(name.startswith(IN_TURN) for name in choice.adds_as)
    return "tree" in algorithm and all(name.startswith("ring") for name in choice.adds_as)


def without_effect(env: Iterable[tuple[str, str]], collective: str, choice: Choice | None) -> str:
    """Which settings NCCL did not follow, as in "NCCL_ALGO=Tree asked, NCCL ran Ring", and of which
    Open MPI does not say so; empty where they were followed, and where that cannot be told. Fewer
    channels than asked are told too, although NCCL gives few to small messages anyway.
    """
    remarks = []
    choice = choice if choice and choice.is_heard else None
    for name, value in env:
        ran = SETTINGS[name](value, collective, choice) if choice and name in SETTINGS else ""
        remarks += [f"{name}={value} asked, NCCL ran {ran}"] if ran else []
        if choice is None and re.fullmatch(TUNED, name):
            remarks.append(f"{name} is not known to have effect: it takes {RULES}=1, and one host")
    return "; ".join(remarks)


def wire_factor(collective: str, n: int, choice: Choice | None) -> float | None:
    """Bytes through the busier direction of each GPU's port, for one byte of the collective's size,
    where a switch combines or multiplies the data of ``n`` GPUs, all on it; None for transfers
    between GPUs (for which busbw stands), and where nobody knows.

    Each GPU stands for 1/n of the S bytes. To reduce them, it asks the switch for the sum, which
    the switch fetches from all n: every GPU sends all S and takes in S/n. To give them to all, it
    sends S/n to the switch once, and every GPU takes in all S. all_reduce does both, S + S/n either
    way (as NCCL's maintainers have it: NVIDIA/nccl-tests, issue 212 and pull request 239);
    reduce_scatter does the first, all_gather the second.
    """
    if choice is None or (choice.algorithm, choice.protocol) not in IN_SWITCH:
        return None
    return {"all_reduce": 1 + 1 / n, "all_gather": 1.0, "reduce_scatter": 1.0}.get(collective)


def _is_allowed(value: str, collective: str, ran: str) -> bool:
    """Whether NCCL_ALGO or NCCL_PROTO admits what ran: ``ring,tree``, ``^tree``, since 2.24 also
    lists by function (``ring;allreduce:tree,collnetdirect``), of which the last that fits counts
    (ncclTopoTuneModel, parseList).
    """
    # torch's barrier
    implemented = collective if COLLECTIVES[collective].moves_data else "all_reduce"
    function = implemented.replace("_", "")
    fits = True
    for entry in value.lower().split(";"):
        prefix, _, names = entry.rpartition(":")
        if names and prefix in ("", function):
            fits = (ran.lower() in names.removeprefix("^").split(",")) != names.startswith("^")
    return fits


def _check_algorithm(value: str, collective: str, choice: Choice) -> str:
    return "" if _is_allowed(value, collective, choice.algorithm) else choice.algorithm


def _check_protocol(value: str, collective: str, choice: Choice) -> str:
    return "" if _is_allowed(value, collective, choice.protocol) else choice.protocol


def _at_least(value: str, collective: str, choice: Choice) -> str:
    few = re.fullmatch(r"\d+", value) and choice.channels < int(value)
    return f"{choice.channels} channels" if few and choice.channels else ""


def _at_most(value: str, collective: str, choice: Choice) -> str:
    return (
        f"{choice.channels} channels"
        if re.fullmatch(r"\d+", value) and choice.channels > int(value)
        else ""
    )


# each says what ran instead, in words, or nothing
SETTINGS: dict[str, Callable[[str, str, Choice], str]] = {
    "NCCL_ALGO": _check_algorithm,
    "NCCL_PROTO": _check_protocol,
    "NCCL_MIN_NCHANNELS": _at_least,
    "NCCL_MAX_NCHANNELS": _at_most,
    "NCCL_MIN_CTAS": _at_least,
    "NCCL_MAX_CTAS": _at_most,
}
