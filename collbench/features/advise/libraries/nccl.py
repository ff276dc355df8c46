"""NCCL and RCCL: algorithm, protocol and channels of a collective.

NCCL_ALGO and NCCL_PROTO are read as NCCL reads them (parseList in its graph/tuning.cc): lists,
``^`` for all but these, and since 2.24 a list for each collective, ``ring;allreduce:tree``.
NCCL_PROTO=LL128 has NCCL use LL128 on links, too, for which it would not choose it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from collbench.core.collectives import COLLECTIVES
from collbench.features.advise.types import Setting, Variables
from collbench.records.types import World
from collbench.run.rank.ncclog import ALGORITHMS, PROTOCOLS

# collectives to which NCCL_ALGO and NCCL_PROTO apply; the others are sends and receives
FUNCTIONS = {
    "all_reduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
}
GATHERING = {
    "Ring": PROTOCOLS,
    "CollNetDirect": ("Simple",),
    "NVLS": ("Simple",),
    "PAT": ("Simple",),
}

# what NCCL has implemented: by collective, the protocols of each algorithm
IMPLEMENTED: dict[str, dict[str, tuple[str, ...]]] = {
    "all_reduce": {
        "Tree": PROTOCOLS,
        "Ring": PROTOCOLS,
        "CollNetDirect": ("Simple",),
        "CollNetChain": ("Simple",),
        "NVLS": ("Simple",),
        "NVLSTree": ("Simple",),
    },
    "broadcast": {"Ring": PROTOCOLS},
    "reduce": {"Ring": PROTOCOLS},
    "all_gather": GATHERING,
    "reduce_scatter": GATHERING,
}
LEAST = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
MOST = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS")
CHANNELS = (*LEAST, *MOST)
COUNTS = (*CHANNELS, "NCCL_NVLS_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER")
ONLY_COLLECTIVES = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NTHREADS",
    "NCCL_LL128_NTHREADS",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_NVLS_CHUNKSIZE",
)
ONLY_MESSAGES = (
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_P2P_PCI_CHUNKSIZE",
    "NCCL_P2P_NVL_CHUNKSIZE",
)
SAYS_NOTHING = re.compile(r"NCCL_DEBUG(_\w+)?")  # of the log


class Pinned(NamedTuple):
    """What a setting asks of NCCL for a collective: algorithms and protocols that remain (one:
    pinned), and the least and largest number of channels, 0 where it does not say."""

    algorithms: tuple[str, ...]
    protocols: tuple[str, ...]
    least: int
    most: int

    @property
    def channels(self) -> int:
        """The number of channels where the setting leaves no other; else 0."""
        return self.least if self.least == self.most else 0


def function_of(collective: str) -> str:
    """The collective as which NCCL runs it: torch's barrier is an all_reduce."""
    known = COLLECTIVES.get(collective)
    return "all_reduce" if known is not None and not known.moves_data else collective


def list_allowed(value: str, collective: str, names: Sequence[str]) -> tuple[str, ...] | None:
    """Which of ``names`` NCCL_ALGO's or NCCL_PROTO's value leaves for a collective; None where
    NCCL would refuse the value."""
    allowed = tuple(names)
    for entry in value.split(";"):
        prefix, _, listed = entry.rpartition(":")
        if prefix and prefix.lower() != FUNCTIONS.get(function_of(collective)):
            continue
        wanted = [word.lower() for word in listed.removeprefix("^").split(",") if word]
        if not wanted or not set(wanted) <= {name.lower() for name in names}:
            return None
        excludes = listed.startswith("^")
        allowed = tuple(name for name in names if (name.lower() in wanted) != excludes)
    return allowed


def pin(collective: str, env: Variables) -> Pinned:
    """What the variables ask for, of all that NCCL has for the collective."""
    values = dict(env)
    has = IMPLEMENTED.get(function_of(collective), {})
    asked = list_allowed(values.get("NCCL_ALGO", ""), collective, ALGORITHMS) or ALGORITHMS
    algorithms = tuple(name for name in has if name in asked)
    asked = list_allowed(values.get("NCCL_PROTO", ""), collective, PROTOCOLS) or PROTOCOLS
    protocols = tuple(
        name
        for name in PROTOCOLS
        if name in asked and any(name in has[each] for each in algorithms)
    )
    counts = {name: int(values[name]) for name in CHANNELS if _is_count(values.get(name, ""))}
    least = max((counts[name] for name in LEAST if name in counts), default=0)
    most = min((counts[name] for name in MOST if name in counts), default=0)
    return Pinned(algorithms, protocols, least, most)


def name_choice(algorithm: str, protocol: str, channels: int) -> str:
    """A choice as settings are named: Tree/LL128 x16."""
    what = "/".join(filter(None, (algorithm, protocol)))
    return " ".join(filter(None, (what, f"x{channels}" if channels else "")))


class Nccl:
    """What is known of NCCL's settings, RCCL's being a part of them."""

    key = "nccl"
    title = "NCCL"
    formats: tuple[str, ...] = ("nccl", "rccl", "ncclx", "words")

    def is_of(self, world: World) -> bool:
        return world.backend in ("nccl", "rccl")

    def reduce(self, collective: str, env: Variables) -> Variables:
        values = dict(env)
        is_message = function_of(collective) not in FUNCTIONS
        unused = ONLY_COLLECTIVES if is_message else ONLY_MESSAGES
        kept = {
            name: value
            for name, value in values.items()
            if name not in unused
            and not SAYS_NOTHING.fullmatch(name)
            and not (name in COUNTS and not _is_count(value))
        }
        if not is_message:
            _reduce_list(kept, "NCCL_ALGO", collective, ALGORITHMS)
            _reduce_list(kept, "NCCL_PROTO", collective, PROTOCOLS)
        return tuple(sorted(kept.items()))

    def list_settings(self, collective: str, n: int, version: str) -> Sequence[Variables]:
        function = function_of(collective)
        if function not in FUNCTIONS:
            return (
                (("NCCL_MIN_P2P_NCHANNELS", "32"),),
                (("NCCL_NCHANNELS_PER_NET_PEER", "4"),),
            )
        settings: list[Mapping[str, str]] = []
        for algorithm, protocols in IMPLEMENTED[function].items():
            if _is_worth(algorithm, n, version):
                settings += [
                    {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol} for protocol in protocols
                ]
        ring = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
        settings += [
            {**ring, "NCCL_MIN_NCHANNELS": count, "NCCL_MAX_NCHANNELS": count}
            for count in ("8", "32")
        ]
        return tuple(self.reduce(collective, tuple(each.items())) for each in settings)

    def is_detail(self, collective: str, name: str) -> bool:
        return name in CHANNELS and function_of(collective) in FUNCTIONS

    def name_setting(self, collective: str, setting: Setting) -> str:
        if setting.backend not in ("nccl", "rccl"):
            own = setting.algorithm != "native"
            words = [f"{setting.algorithm}@{setting.backend}" if own else setting.backend]
            return " ".join([*words, *(f"{name}={value}" for name, value in setting.env)])
        words = [f"{setting.algorithm}@{setting.backend}"] if setting.algorithm != "native" else []
        words += _name_pinned(collective, setting.env)
        known = ("NCCL_ALGO", "NCCL_PROTO", *CHANNELS)
        words += [f"{name}={value}" for name, value in setting.env if name not in known]
        return " ".join(words) or "default"


LIBRARY = Nccl()


def _is_count(value: str) -> bool:
    """NCCL takes no other number of channels; what is not positive leaves it to NCCL."""
    return re.fullmatch(r"0*[1-9]\d{0,5}", value) is not None


def _reduce_list(values: dict[str, str], name: str, collective: str, names: Sequence[str]) -> None:
    """Leaves of a list what applies to the collective, in NCCL's spelling; nothing where all that
    is implemented may run. What NCCL would refuse stays as it is."""
    if name not in values:
        return
    allowed = list_allowed(values[name], collective, names)
    has = IMPLEMENTED[function_of(collective)]
    possible = list(has) if names is ALGORITHMS else PROTOCOLS
    if allowed is None or not (left := [each for each in possible if each in allowed]):
        return
    if len(left) == len(possible):
        del values[name]
    else:
        values[name] = ",".join(left)


def _name_pinned(collective: str, env: Variables) -> list[str]:
    """Algorithm, protocol and channels that the variables name."""
    values, pinned = dict(env), pin(collective, env)
    has = IMPLEMENTED.get(function_of(collective), {})
    algorithm = values.get("NCCL_ALGO", "")
    if len(pinned.algorithms) == 1 and (algorithm or "NCCL_PROTO" in values):
        algorithm = pinned.algorithms[0]
    protocol = values.get("NCCL_PROTO", "")
    if len(pinned.protocols) == 1 and (protocol or len(has.get(algorithm, ())) == 1):
        protocol = pinned.protocols[0]
    words = [name_choice(algorithm, protocol, pinned.channels)]
    if not pinned.channels:
        words += [f"at least {pinned.least} channels"] if pinned.least else []
        words += [f"at most {pinned.most} channels"] if pinned.most else []
    return [word for word in words if word]


def _is_worth(algorithm: str, n: int, version: str) -> bool:
    """Whether an algorithm can run at all with so many ranks: RCCL has rings and trees; eight ranks
    or fewer are likely on one host, where a tree of switches, a network that adds up and PAT have
    nothing to do. A chain through such a network is what CollNetDirect is for slower links."""
    if algorithm in ("Tree", "Ring"):
        return True
    if version.startswith("RCCL") or algorithm == "CollNetChain":
        return False
    return algorithm == "NVLS" or n > 8
