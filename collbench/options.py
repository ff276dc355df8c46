"""What the options of a measuring command mean: axes, policy and reporter, with errors that name the option."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from collbench import console, formats, grammar, groups, nccljson, nccltests, suite
from collbench.collectives import OPS, collective
from collbench.dtypes import DTYPES
from collbench.errors import UsageError
from collbench.launch import join
from collbench.launch.on_ray import PLACEMENTS, Where
from collbench.selection import Exclude, Part


def axes(name: str, given: dict[str, Any]) -> suite.Axes:
    """The sweep that the options describe. Raises UsageError."""
    modes = _modes(given)
    places = {"out": (False,), "in": (True,), "both": (False, True)}
    ray = where(given["launcher"], given["address"], given["placement"])
    roots = tuple(-1 if word == "all" else integer("-r", word) for word in words(given["root"]))
    found = suite.Axes(
        collectives=(name,),
        sizes=_sizes(given),
        ranks=tuple(integer("-g", word, 1) for word in words(given["ngpus"])),
        backends=tuple(words(given["backend"])),
        algorithms=tuple(words(given["algo"])),
        dtypes=tuple(DTYPES) if given["datatype"] == "all" else tuple(words(given["datatype"])),
        ops=tuple(OPS) if given["op"] == "all" else tuple(words(given["op"])),
        roots=roots,
        in_place=places[choice("--place", given["place"], places)],
        modes=tuple(modes),
        envs=grammar.expand_envs(given["env"] or []),
        splits=tuple(words(given["splits"])),
        align=grammar.parse_size(given["align"], "--align"),
        cycles=given["run_cycles"],
        groups=_groups(given),
    )
    member = join.detect(given["launcher"])
    return ray.settle(found) if ray else found.settled(member.n if member else 0)


def where(launcher: str, address: str, placement: str) -> Where | None:
    """The Ray cluster to run on, if any. Raises UsageError."""
    if launcher == "ray":
        return Where(address or "auto", choice("--placement", placement or "pack", PLACEMENTS))
    for option, value in {"--address": address, "--placement": placement}.items():
        if value:
            raise UsageError(f"{option} {value}: that is about a Ray cluster", "add --launcher ray")
    return None


def _groups(given: dict[str, Any]) -> str:
    """The rule that --split gives, else nccl-tests' environment; of what goes by host, with what the launcher says."""
    member = join.detect(given["launcher"])
    rule, told = (groups.spelled(given["split"]), "") if given["split"] else groups.told(os.environ)
    if told and not (member and member.rank):
        print(f"collbench: {told} is set: --split {rule}", file=sys.stderr)
    if rule not in groups.BY_HOST or member is None:
        return rule
    if not member.local_n:
        raise UsageError(
            f"--split {rule}: {member.launcher} does not say how many ranks share a host", f"say it: --split {rule}:8"
        )
    return f"{rule}:{member.local_n}"


def _modes(given: dict[str, Any]) -> list[Any]:
    modes = [choice("--mode", mode, suite.MODES) for mode in words(given["mode"])]
    if given["cudagraph"]:
        if modes and modes != ["graph"]:
            raise UsageError(f"-G measures in graph mode, not {', '.join(modes)}", "leave --mode out")
        modes = ["graph"]
    if "graph" in modes and given["blocking"]:
        raise UsageError("-z waits for each call, which a CUDA graph cannot", "-z or -G")
    return {2: ["host"], 3: ["isolated"]}.get(given["blocking"], modes)


def _sizes(given: dict[str, Any]) -> tuple[int, ...]:
    if given["sizes"]:
        if given["minbytes"] or given["maxbytes"]:
            raise UsageError("--sizes and -b/-e exclude each other", "give a list or a sweep")
        return tuple(grammar.parse_size(word, "--sizes") for word in words(given["sizes"]))
    smallest = grammar.parse_size(given["minbytes"] or "32M", "-b")
    largest = grammar.parse_size(given["maxbytes"], "-e") if given["maxbytes"] else max(smallest, 32 << 20)
    step = grammar.parse_size(given["stepbytes"], "-i") if given["stepbytes"] else None
    return grammar.sweep(smallest, largest, given["stepfactor"], step)


def policy(given: dict[str, Any]) -> suite.Policy:
    if given["iters"] and (given["budget"] or given["max_time"]):
        raise UsageError("-n fixes the repetitions that --budget and --max-time would choose", "give one or the other")
    if given["timeout"] is not None and not given["timeout"] < 1e7:
        raise UsageError(f"-T: {given['timeout']:g} s is no time limit", "leave -T out for one that fits the sizes")
    precision = given["precision"]
    return suite.Policy(
        iters=given["iters"],
        warmup=given["warmup_iters"],
        precision=grammar.parse_share(precision, "--precision") if precision else None,
        max_seconds=grammar.parse_duration(given["max_time"], "--max-time") if given["max_time"] else None,
        batch=given["iters"] or 20,
        sync=choice("--sync", given["sync"], ("auto", "window", "barrier", "device")),  # type: ignore[arg-type]
        cache=choice("--cache", given["cache"], ("cold", "hot")),  # type: ignore[arg-type]
        order=choice("--order", given["order"], ("auto", "size", "shuffled")),  # type: ignore[arg-type]
        check=given["check"],
        seed=given["seed"],
        agg_iters=given["agg_iters"],
        unalign=given["unalign"],
        blocking=given["blocking"],
        graph=given["cudagraph"] or 1,
        cpu_time=bool(given["report_cputime"]),
        pin=given["pin"],
        timeout=given["timeout"],
        virtual=given["virtual_ranks"],
        share_gpu=given["share_gpu"],
        register=given["local_register"],
        inject=given["inject"],
    )


def changed(
    named: suite.Suite,
    *,
    ngpus: str = "",
    backend: str = "",
    only: str = "",
    max_time: str = "",
    launcher: str = "auto",
    ray: Where | None = None,
    inject: str = "",
) -> suite.Suite:
    """A suite with what the command line says in place of it, and filled in where it says nothing itself."""
    said = {"ranks": tuple(integer("-g", word, 1) for word in words(ngpus)), "backends": tuple(words(backend))}
    said = {axis: values for axis, values in said.items() if values}
    silent: dict[str, Any] = dict.fromkeys(said, ())
    kept = [collective(word).name for word in words(only)]
    others = tuple(name for name in named.values("collectives") if kept and name not in kept)
    if kept and set(kept).isdisjoint(named.values("collectives")):
        raise UsageError(f"--only {only}: there is none in {named.name}", f"it has {', '.join(others)}")
    if max_time and named.policy.iters:
        raise UsageError(f"{named.name} fixes the repetitions that --max-time would choose", "leave --max-time out")
    seconds = grammar.parse_duration(max_time, "--max-time") if max_time else named.policy.max_seconds
    member, replace = join.detect(launcher), msgspec.structs.replace
    settle = ray.settle if ray else lambda axes: axes.settled(member.n if member else 0)
    return replace(
        named,
        policy=replace(named.policy, max_seconds=seconds, inject=inject),
        axes=settle(replace(named.axes, **said)),
        includes=tuple(settle(replace(further, **said)) for further in named.includes),
        overrides=tuple(replace(o, axes=replace(o.axes, **silent)) for o in named.overrides),
        excludes=(*[Exclude(match=Part(collectives=others))] * bool(others), *named.excludes),
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


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def integer(option: str, text: str, least: int = 0) -> int:
    if not text.isdigit() or int(text) < least:
        raise UsageError(f"{option}: '{text}' is not a whole number from {least} up")
    return int(text)


def choice(option: str, text: str, allowed: Any) -> str:
    """``text`` if it is among ``allowed``. Raises UsageError."""
    if text not in allowed:
        raise UsageError(f"{option}: '{text}' is not one of {', '.join(allowed)}")
    return text
