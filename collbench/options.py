"""What the options of a measuring command mean: axes, policy and reporter, with errors that name the option."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from collbench import console, environment, formats, nccljson, nccltests, suite
from collbench.collectives import OPS
from collbench.dtypes import DTYPES
from collbench.errors import UsageError
from collbench.launch import join


def axes(name: str, given: dict[str, Any]) -> suite.Axes:
    """The sweep that the options describe. Raises UsageError."""
    modes = _words(given["mode"])
    modes = {2: ["host"], 3: ["isolated"]}.get(given["blocking"], modes)
    for mode in modes:
        choice("--mode", mode, ("isolated", "streaming", "host"))
    places = {"out": (False,), "in": (True,), "both": (False, True)}
    backends = tuple(_words(given["backend"])) or _default_backends()
    roots = tuple(-1 if word == "all" else _integer("-r", word) for word in _words(given["root"]))
    return suite.Axes(
        collectives=(name,),
        sizes=_sizes(given),
        ranks=tuple(_integer("-g", word, 1) for word in _words(given["ngpus"])) or _default_ranks(backends),
        backends=backends,
        algorithms=tuple(_words(given["algo"])),
        dtypes=tuple(DTYPES) if given["datatype"] == "all" else tuple(_words(given["datatype"])),
        ops=tuple(OPS) if given["op"] == "all" else tuple(_words(given["op"])),
        roots=roots,
        in_place=places[choice("--place", given["place"], places)],
        modes=tuple(modes),  # type: ignore[arg-type]
        envs=suite.expand_envs(given["env"] or []),
        splits=tuple(_words(given["splits"])),
        align=suite.parse_size(given["align"], "--align"),
        cycles=given["run_cycles"],
    )


def _sizes(given: dict[str, Any]) -> tuple[int, ...]:
    if given["sizes"]:
        if given["minbytes"] or given["maxbytes"]:
            raise UsageError("--sizes and -b/-e exclude each other", "give a list or a sweep")
        return tuple(suite.parse_size(word, "--sizes") for word in _words(given["sizes"]))
    smallest = suite.parse_size(given["minbytes"] or "32M", "-b")
    largest = suite.parse_size(given["maxbytes"], "-e") if given["maxbytes"] else max(smallest, 32 << 20)
    step = suite.parse_size(given["stepbytes"], "-i") if given["stepbytes"] else None
    return suite.sweep(smallest, largest, given["stepfactor"], step)


def policy(given: dict[str, Any]) -> suite.Policy:
    if given["iters"] and (given["budget"] or given["max_time"]):
        raise UsageError("-n fixes the repetitions that --budget and --max-time would choose", "give one or the other")
    if given["timeout"] is not None and not given["timeout"] < 1e7:
        raise UsageError(f"-T: {given['timeout']:g} s is no time limit", "leave -T out for one that fits the sizes")
    precision = given["precision"]
    return suite.Policy(
        iters=given["iters"],
        warmup=given["warmup_iters"],
        precision=_share("--precision", precision) if precision else None,
        max_seconds=suite.parse_duration(given["max_time"], "--max-time") if given["max_time"] else None,
        batch=given["iters"] or 20,
        sync=choice("--sync", given["sync"], ("auto", "window", "barrier")),  # type: ignore[arg-type]
        cache=choice("--cache", given["cache"], ("cold", "hot")),  # type: ignore[arg-type]
        order=choice("--order", given["order"], ("auto", "size", "shuffled")),  # type: ignore[arg-type]
        check=given["check"],
        seed=given["seed"],
        agg_iters=given["agg_iters"],
        unalign=given["unalign"],
        blocking=given["blocking"],
        cpu_time=bool(given["report_cputime"]),
        pin=given["pin"],
        timeout=given["timeout"],
    )


def reporter(given: dict[str, Any]) -> formats.Reporter:
    options = nccltests.Options(
        average=given["average"], cpu_time=bool(given["report_cputime"]), timestamps=bool(given["report_timestamps"])
    )
    makers: dict[str, Callable[[], formats.Reporter]] = {
        "table": console.LiveTable,
        "nccl": lambda: nccltests.Text(sys.stdout, options),
        "json": lambda: formats.Json(sys.stdout),
        "csv": lambda: formats.Csv(sys.stdout),
        "md": lambda: formats.Markdown(sys.stdout),
    }
    name = choice("--format", given["output_format"], ("auto", *makers))
    if name == "auto":
        name = "table" if sys.stdout.isatty() else "nccl"
    reporters: list[formats.Reporter] = [makers[name]()]
    if name != "table":
        reporters.append(console.Status())
    if given["output_file"]:
        reporters.append(nccljson.Document(given["output_file"], options))
    return formats.Several(*reporters)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _integer(option: str, text: str, least: int = 0) -> int:
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"{option}: '{text}' is not a whole number from {least} up")
    return int(text)


def _share(option: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"{option}: '{text}' is not a share between 0 and 1", "for example 1% or 0.01")
    return value


def choice(option: str, text: str, allowed: Any) -> str:
    """``text`` if it is among ``allowed``. Raises UsageError."""
    if text not in allowed:
        raise UsageError(f"{option}: '{text}' is not one of {', '.join(allowed)}")
    return text


def _default_backends() -> tuple[str, ...]:
    return ("nccl",) if environment.gpu_count() else ("gloo",)


def _default_ranks(backends: tuple[str, ...]) -> tuple[int, ...]:
    member = join.detect()
    if member is not None:
        return (member.n,)
    gpus = environment.gpu_count() if "nccl" in backends else 0
    return (gpus or max(2, environment.core_count()),)
