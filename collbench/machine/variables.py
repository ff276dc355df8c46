"""Environment variables: those that a run records, without what looks like a secret, and
defaults for a while."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from collbench.core.backend_info import list_settings
from collbench.core.text import readable_text
from collbench.machine import secrets
from collbench.machine.sysfs import hash_identity

# Open MPI's own word of where mpirun was called: it decides nothing, and names people
NAMES_PEOPLE = re.compile("OMPI_MCA_initial_wdir")

# in a value of a setting that a backend names, as which none of this package's is known to need
PATH = re.compile(r"(^|[=:,\s])[/~]")

ALLOWED = re.compile(
    r"(NCCL|RCCL|GLOO|UCX|TORCH|OMP|FI|MPICH|MPIR_CVAR|I_MPI|OMPI_MCA|HIP|HSA|ROCR)_\w+"
    r"|COLLBENCH_PATH|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER)"
    r"|SLURM_(JOB_ID|NNODES|NTASKS|PROCID)|PBS_JOBID|FLUX_JOB_ID|MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK"
)

# what a scheduler's and a launcher's values look like: anybody may set them to anything
VALUES = {
    "SLURM_JOB_ID": r"\d+([_+]\d+)?",
    "PBS_JOBID": r"\d+(\[\d*\])?(\.[\w.-]+)?",
    "FLUX_JOB_ID": r"\d+|ƒ\w{1,16}",
    **dict.fromkeys(("SLURM_NNODES", "SLURM_NTASKS", "SLURM_PROCID"), r"\d+"),
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"), r"\d+"),
}

DEVICE_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{8,}", re.IGNORECASE)


def select_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Allow-listed variables, and those that backends read, whose names do not smell of secrets;
    values masked."""
    read_by_backends = list_settings()
    return {
        k: mask_text(environ[k])
        if re.fullmatch(VALUES.get(k, ".*"), environ[k], re.DOTALL)
        and (ALLOWED.fullmatch(k) or not PATH.search(environ[k]))
        else "***"
        for k in sorted(environ)
        if (ALLOWED.fullmatch(k) or k.startswith(read_by_backends))
        and not NAMES_PEOPLE.fullmatch(k)
        and not secrets.is_name_of_one(k)
    }


def list_foreign_variables(names: Iterable[str]) -> list[str]:
    """Those that are no settings of the libraries that are measured: such may run anything."""
    read_by_backends = list_settings()
    return sorted(
        {n for n in names if not (ALLOWED.fullmatch(n) or n.startswith(read_by_backends))}
    )


# by the dynamic loader, the C library and Python: what is set later has no effect
READ_AT_START = re.compile(r"(LD|MALLOC)_\w+|GLIBC_TUNABLES|PYTHON\w+")


def list_read_at_start(env: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> list[str]:
    """The settings that a process does not take, as NAME=VALUE, where it runs already and was
    started in ``environ``."""
    return [
        f"{name}={value}"
        for name, value in env
        if READ_AT_START.fullmatch(name) and environ.get(name, "") != value
    ]


# options that sound like secrets, and have none
HARMLESS = re.compile(r"--?(?:no-)?pin(?:[-_]\w+)?|--?[\w-]*tokens", re.I)
WORDS_BEFORE = 3  # a secret, that may say that it is one: sshpass -p X


def mask_words(words: Sequence[str]) -> list[str]:
    """The words of a command without what looks like a secret, by the words before it, too
    (--password X)."""
    masked = []
    for at, word in enumerate(words):
        is_plain = word.startswith("-") or (at and HARMLESS.fullmatch(words[at - 1]))
        most = 0 if is_plain else min(at, WORDS_BEFORE)
        contexts = ("".join(f"{w} " for w in words[at - n : at]) for n in range(most + 1))
        hidden = ((context, mask_text(context + word)) for context in contexts)
        shown = (text.removeprefix(c) for c, text in hidden if text.startswith(c))
        masked.append(next((each for each in shown if each != word), word))
    return masked


def mask_text(text: str) -> str:
    """``text`` without what looks like a secret (secrets.mask_secrets); GPU UUIDs are hashed, and
    U+FFFD stands for each byte that is not UTF-8."""
    hidden = DEVICE_UUID.sub(lambda m: hash_identity(m[0]), readable_text(text))
    return secrets.mask_secrets(hidden)


@contextmanager
def set_defaults(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that the user has not set, for a while: those of processes that are
    started later are as they were."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def keep_environment() -> Iterator[None]:
    """Restore this process's environment at the end."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
