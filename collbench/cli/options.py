"""What a measuring command line asks for: the order of a run, and how it is printed; with
errors that name the option."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from collbench.cli import outputs, parameters
from collbench.core import groups, splits
from collbench.core.backend_info import backend_info
from collbench.core.collectives import COLLECTIVES, Collective, find_collective
from collbench.core.errors import CannotRun, UsageError
from collbench.core.paths import NAMES as PATHS
from collbench.core.paths import expand_path, list_card_names, strip_preset
from collbench.core.text import print_message, suggest_name
from collbench.machine.routes import find_default_interface
from collbench.records import store
from collbench.records.types import End
from collbench.run import refusal
from collbench.run.launch import join
from collbench.run.launch.host_list import parse_hosts
from collbench.run.launch.places import PlaceSource
from collbench.run.launch.ray import PLACEMENTS, Where
from collbench.run.launch.ssh import SshHosts, split_ssh_words
from collbench.run.order import Order
from collbench.run.reporter import Gathered, Reporter, Several
from collbench.show import imb, live, nccl, nccl_json, programs
from collbench.suite import arrivals, backgrounds, fields, grammar
from collbench.suite.case import Limit, Mode, Setting
from collbench.suite.fields import Field
from collbench.suite.policy import Policy
from collbench.suite.sweep import Axes, Exclude, Part, Suite, Threshold

Struct = TypeVar("Struct", bound=msgspec.Struct)

LEAST, ENOUGH = "NCCL_TESTS_MIN_BW", 0.9  # of which nccl-tests takes so much for enough

PLACES = {"out": (False,), "in": (True,), "both": (False, True)}


class Asked(NamedTuple):
    """A sweep as the command line asks for it: what runs, and how the run is printed."""

    order: Order
    reporter: Callable[[], Reporter]
    dry_run: bool


def read_request(name: str, given: Mapping[str, Any]) -> Asked:
    """The request that the words ``given`` for each option make. Raises UsageError."""
    parameters.refuse_foreign(given)
    values = {row.name: _read_value(row, given[row.name]) for row in fields.FIELDS if row.flags}
    _tell_decimal_sizes(given)
    _refuse_variables(name, values["launcher"])
    _refuse_out_of_bounds(values)
    _refuse_files(values["ops"])
    launcher, replays = values["launcher"], values["replays"]
    source = find_source(
        launcher, *(values[row] for row in ("address", "placement", "hosts", "ssh"))
    )
    policy = _select_fields(Policy, values)
    policy = msgspec.structs.replace(policy, batch=policy.iters or 20, graph=replays or 1)
    swept = {
        "collectives": (name,),
        "sizes": grammar.choose_sizes(*(values[row] for row in SIZES)),
        "modes": _choose_modes(values["modes"], replays, policy.blocking, values["arrivals"]),
        "groups": choose_groups(values["groups"], launcher, source),
    }
    axes = _settle_axes(_select_fields(Axes, {**values, **swept}), launcher, source)
    axes = add_paths(axes, values["paths"], source)
    thresholds = _read_thresholds(name, values["min_busbw"])
    suite = Suite(name=name, axes=axes, policy=policy, thresholds=thresholds)
    refusal.refuse_unknown_backends(suite.values("backends"))
    _refuse_conflicts(suite, values["budget"])
    suite = _add_launches(suite, values["launches"], launcher, values["max_seconds"])
    _tell_idle(suite, find_collective(name))
    _tell_sizes(suite.axes, [name for name in SIZES if values[name] is not None])
    place, exports = split_output(values["output"])
    order = Order(
        suite=suite,
        command=sys.argv,
        **read_save_options(values["save"], place, values["tag"]),
        budget=values["budget"],
        launcher=launcher,
        source=source,
    )
    show = partial(make_reporter, values["output_format"], values["output_file"], exports=exports)
    nccl_options = _select_fields(nccl.Options, values)
    return Asked(order, partial(show, options=nccl_options), values["dry_run"])


SIZES = ("minbytes", "maxbytes", "stepfactor", "stepbytes", "listed")


def add_paths(
    axes: Axes,
    paths: Sequence[str],
    source: PlaceSource | None = None,
    other_backends: Sequence[str] = (),
) -> Axes:
    """The sweep with the settings of each path, for its backends and others that are to run its
    cases, in place of each setting. Raises UsageError where both decide the same."""
    if not paths:
        return axes
    backends = (*axes.backends, *other_backends)
    nic = "" if source else find_default_interface()
    envs = tuple(_add_path(name, backends, env, nic, source) for env in axes.envs for name in paths)
    return msgspec.structs.replace(axes, envs=envs)


def _add_path(
    path: str, backends: Sequence[str], env: Setting, nic: str, source: PlaceSource | None
) -> Setting:
    """The settings ``env``, which may name a card in place of ``nic``, and those of a path. Raises
    UsageError where no card is known, or both decide the same."""
    names, given = list_card_names(path, backends), dict(env)
    card = next((given[name] for name in names if name in given), nic)
    if names and not card:
        unknown = (
            f"the cards of hosts that {source.name} reaches are not known here"
            if source
            else "this host has no default route, so no card to name"
        )
        raise UsageError(
            f"--path {path}: {unknown}",
            f'name one by --env {names[0]}=eth0 (in a suite: env = "{names[0]}=eth0" in [axes])',
        )
    settings = expand_path(path, backends, card)
    if both := sorted({name for name, _ in settings} & {*given} - {*names}):
        raise UsageError(
            f"--env {both[0]} and --path {path} decide the same", "leave one of them out"
        )
    others = tuple(setting for setting in env if setting[0] not in names)
    return others + tuple((name, given.get(name, value)) for name, value in settings)


def _select_fields(kind: type[Struct], values: Mapping[str, Any]) -> Struct:
    """The values that this struct has fields for."""
    return kind(**{name: values[name] for name in kind.__struct_fields__ if name in values})


def _read_value(row: Field, value: Any) -> Any:
    """A field's value, parsed by the field's kind. Raises UsageError."""
    option = row.flags.split()[0]
    if row.kind == "setting":
        return grammar.expand_envs(value or [])
    if row.kind == "place":
        word = "both" if set(grammar.split_words(value)) == {"out", "in"} else value
        return PLACES[grammar.parse_choice(option, word, PLACES)]
    if row.type is not str:
        return bool(value) if row.kind == "flag" else value
    if not (value or row.command_default) and (row.group == "command" or not row.many):
        return row.default
    if not row.many:
        return _read_word(row, option, value)
    values: list[Any] = []
    for word in grammar.split_words(value):
        every = row.every if word == "all" or (word == "-1" and row.name == "roots") else ()
        values += every or [_read_word(row, option, word)]
    return tuple(values)


def _read_word(row: Field, option: str, word: str) -> Any:
    if row.kind == "choice":
        return grammar.parse_choice(option, word, row.choices)
    if row.kind == "whole":
        return grammar.parse_integer(option, word, int(row.least or 0))
    if row.kind in UNDERSCORED and row.name != "algorithms":  # as algorithms.find does
        return refusal.spell_backend(word) if row.name == "backends" else word.replace("-", "_")
    return READ[row.kind](word, option) if row.kind in READ else word


UNDERSCORED = ("name", "dtype", "op")  # kinds of names in which '-' may stand for '_'

READ: dict[str, Callable[[str, str], Any]] = {
    "size": grammar.parse_size,
    "share": grammar.parse_share,
    "seconds": grammar.parse_time_limit,
    "limit": grammar.parse_limit,
    "rule": groups.normalise_rule,
    "arrival": arrivals.normalise_arrival,
    "background": backgrounds.normalise_background,
}


def _read_thresholds(name: str, limits: tuple[Limit, ...]) -> tuple[Threshold, ...]:
    """The threshold that --min-busbw makes, or else nccl-tests' variable, if any. Raises
    UsageError."""
    moves_data = find_collective(name).moves_data
    if limits and not moves_data:
        raise UsageError(f"--min-busbw: {name} has no busbw to limit", "leave --min-busbw out")
    text = os.environ.get(LEAST, "").strip()
    if text and moves_data and not limits:
        limit = grammar.parse_limit(text, LEAST, may_have_size=False)
        limits = (Limit(ENOUGH * limit.busbw, average=True),)
    return (Threshold(min_busbw=limits),) if limits else ()


def _refuse_conflicts(suite: Suite, budget: float | None) -> None:
    """Raises UsageError where two options choose the same."""
    is_limited = suite.policy.max_seconds is not None and suite.fixes_samples()
    if is_limited or (budget is not None and suite.fixes_samples(any)):
        raise UsageError(
            "-n fixes the repetitions that --budget and --max-time would choose",
            "leave out -n, or --budget and --max-time",
        )


def _refuse_out_of_bounds(values: dict[str, Any]) -> None:
    """Reads -T 0 as the default limit. Raises UsageError for a -T that is no limit, and for a -N
    without an end."""
    values["timeout"] = values["timeout"] or None
    if values["timeout"] is not None and not 0.1 <= values["timeout"] < 1e7:
        raise UsageError(
            f"-T: {values['timeout']:g} s is not a time limit",
            "give 0.1 s to 1e7 s, or leave -T out for one that fits the sizes",
        )
    if values["cycles"] < 1:
        raise UsageError(
            f"-N {values['cycles']}: endless runs are not supported",
            "-N 1000; Ctrl-C keeps finished cases",
        )


def _refuse_variables(name: str, launcher: str) -> None:
    """Raises UsageError where a variable of nccl-tests asks for what would not be done."""
    local_rank = member.local_rank if (member := join.detect_launcher(launcher)) else 0
    for variable, instead in VARIABLES.items():
        value = os.environ.get(variable, "").strip()
        neutral = str(local_rank) if variable == "NCCL_TESTS_DEVICE" else ""
        if value not in ("", neutral) and (name == "all_to_allv" or "ALLTOALLV" not in variable):
            raise UsageError(
                f"{variable}={value}: this variable is not supported", f"unset it; {instead}"
            )


VARIABLES = {
    "NCCL_TESTS_DEVICE": "CUDA_VISIBLE_DEVICES=4,5,6,7 names GPUs, and ranks take them in turn",
    "NCCL_TESTS_ALLTOALLV_SPREAD": "--splits spread:0.5",
    "NCCL_TESTS_ALLTOALLV_MATRIX_FILE": "--splits matrix:FILE",
}


def _choose_modes(
    modes: tuple[Mode, ...], replays: int, blocking: int, arrivals: Sequence[str]
) -> tuple[Mode, ...]:
    """The modes named, or those that -G and -z stand for; --arrival names them in its own way."""
    if arrivals and (modes or replays or blocking):
        raise UsageError(
            "--arrival says how ranks come to a call, and so do --mode, -G and -z",
            "leave out --arrival, or --mode, -G and -z",
        )
    if replays:
        if modes and modes != ("graph",):
            raise UsageError(
                f"-G measures in graph mode, not {', '.join(modes)}", "leave --mode out"
            )
        modes = ("graph",)
    if "graph" in modes and blocking:
        raise UsageError(
            "-z waits for each call, which a CUDA graph cannot",
            "leave out -z, or -G and --mode graph",
        )
    stood_for: dict[int, tuple[Mode, ...]] = {2: ("host",), 3: ("isolated",)}
    own_modes = stood_for.get(blocking, modes)
    if modes and modes != own_modes:
        raise UsageError(
            f"-z {blocking} measures in mode {own_modes[0]}, not {', '.join(modes)}",
            "leave --mode or -z out",
        )
    return own_modes


def choose_groups(
    rule: str, launcher: str, source: PlaceSource | None = None, option: str = "--split"
) -> str:
    """The rule that --split gives, else nccl-tests' environment; where it goes by host, with the
    ranks of a host that the launcher or ``source`` tells. Raises UsageError."""
    member, variable = join.detect_launcher(launcher), ""
    if not rule:
        rule, variable = groups.rule_from_environment(os.environ)
    if variable and not (member and member.rank):
        print_message(f"{variable} is set: --split {rule}")
    if rule not in groups.BY_HOST or not (member or source):
        return rule
    local_n = member.local_n if member else source.local_n if source else 0
    if not local_n:
        name = member.launcher if member else launcher
        raise UsageError(
            f"{option} {rule}: {name} does not say how many ranks share a host",
            f"say how many, as in {option} {rule}:8",
        )
    return f"{rule}:{local_n}"


def _settle_axes(axes: Axes, launcher: str, source: PlaceSource | None) -> Axes:
    """The sweep with what it leaves open filled in, from where its ranks will be."""
    if source:
        return source.resolve(axes)
    member = join.detect_launcher(launcher)
    return axes.resolve(member.n, member.local_n) if member else axes.resolve()


def refuse_fixed_samples(iters: int | None, max_time: str, samples: str = "samples") -> None:
    """Raises UsageError where -n and --max-time both say how often a case is measured."""
    if iters and max_time:
        raise UsageError(
            f"-n fixes the {samples} that --max-time would choose", "leave out -n or --max-time"
        )


def find_source(
    launcher: str, address: str = "", placement: str = "", hosts: str = "", ssh: str = ""
) -> PlaceSource | None:
    """Who gives places for ranks, if --launcher names one that does: Ray, or hosts that ssh
    reaches. Raises UsageError."""
    options = {
        "ray": {"--address": address, "--placement": placement},
        "ssh": {"--hosts": hosts, "--ssh": ssh},
    }
    for name, given in options.items():
        for option, value in given.items() if name != launcher else ():
            if value:
                raise UsageError(
                    f"{option} {value} has no effect without --launcher {name}",
                    f"add --launcher {name}, or leave {option} out",
                )
    if launcher == "ray":
        return Where(
            address or "auto", grammar.parse_choice("--placement", placement or "pack", PLACEMENTS)
        )
    return find_hosts(hosts, ssh) if launcher == "ssh" else None


def find_hosts(hosts: str, ssh: str) -> SshHosts:
    """The hosts of --hosts, by the command of --ssh, or those of their variables. Raises
    UsageError."""
    hosts = hosts or os.environ.get("COLLBENCH_HOSTS", "")
    if not hosts:
        raise UsageError(
            "--launcher ssh: no hosts are named", "--hosts a:8,b:8, or --hosts FILE: a line a host"
        )
    found = SshHosts(parse_hosts(hosts), ssh or os.environ.get("COLLBENCH_SSH") or "ssh")
    split_ssh_words(found.command, 1)
    return found


def change_suite(
    suite: Suite,
    *,
    ngpus: str = "",
    backend: str = "",
    only: str = "",
    max_time: str = "",
    launcher: str = "auto",
    source: PlaceSource | None = None,
    inject: str = "",
    launches: int | None = None,
    path: str = "",
    other_backends: Sequence[str] = (),
) -> Suite:
    """A suite with what the command line says in place of it, and filled in where it says nothing
    itself. ``other_backends`` are to run its cases, too."""
    changes = {
        "ranks": tuple(grammar.parse_integer("-g", word, 1) for word in grammar.split_words(ngpus)),
        "backends": tuple(grammar.split_words(backend)),
    }
    changes = {axis: values for axis, values in changes.items() if values}
    silent: dict[str, Any] = dict.fromkeys(changes, ())
    suite = _keep_only(suite, only)
    seconds = (
        grammar.parse_time_limit(max_time, "--max-time") if max_time else suite.policy.max_seconds
    )
    replace = msgspec.structs.replace
    paths = [grammar.parse_choice("--path", word, PATHS) for word in grammar.split_words(path)]

    def settle(axes: Axes) -> Axes:
        if axes.groups:
            rule = choose_groups(axes.groups, launcher, source, f"{suite.name}: groups")
            axes = replace(axes, groups=rule)
        return add_paths(_settle_axes(axes, launcher, source), paths, source, other_backends)

    def add_to_envs(envs: tuple[Setting, ...]) -> tuple[Setting, ...]:
        backends = changes.get("backends") or suite.values("backends")
        swept = replace(suite.axes, envs=envs, backends=backends)
        return add_paths(swept, paths, source, other_backends).envs

    changed = replace(
        suite,
        policy=replace(suite.policy, max_seconds=seconds, inject=inject),
        axes=settle(replace(suite.axes, **changes)),
        includes=tuple(settle(replace(include, **changes)) for include in suite.includes),
        overrides=tuple(
            replace(o, axes=replace(o.axes, **silent, envs=add_to_envs(o.axes.envs)))
            for o in suite.overrides
        ),
    )
    refusal.refuse_unknown_backends(changed.values("backends"))
    are_given = changes.get("ranks") or suite.axes.ranks or join.detect_launcher(launcher)
    changed = changed.resolve(ranks_given=bool(are_given))
    if changed.policy.max_seconds is not None and changed.fixes_samples():
        raise _make_fixed_error(suite, "--max-time" if max_time else "max_seconds")
    changed = _add_launches(changed, launches, launcher, seconds if max_time else None)
    _tell_idle(changed)
    return changed


def _keep_only(suite: Suite, only: str) -> Suite:
    """The suite with nothing but the collectives of --only, if that is given. Raises
    UsageError."""
    selected = [find_collective(word).name for word in grammar.split_words(only)]
    if not selected:
        return suite
    names = suite.values("collectives")
    if set(selected).isdisjoint(names):
        raise UsageError(
            f"--only {only}: not in the suite {suite.name}",
            f"choose from {', '.join(names)}"
            if names
            else "it has no collectives: leave --only out",
        )
    others = tuple(name for name in names if name not in selected)
    more = (Exclude(match=Part(collectives=others)),) if others else ()
    return msgspec.structs.replace(
        suite, excludes=(*more, *suite.excludes), requests=(), subjects=()
    )


def _add_launches(
    suite: Suite, launches: int | None, launcher: str, seconds: float | None
) -> Suite:
    """The suite in so many launches, if that is asked for, with ``seconds`` for a case in each
    where they are told. Raises UsageError where its ranks are to stay, or cannot be started."""
    if launches is None:
        return suite
    cycles = max(axes.cycles for axes in (suite.axes, *suite.includes))
    if cycles > 1 and not suite.policy.fresh:
        raise UsageError(
            f"--launches {launches} starts new ranks each time, and {cycles} cycles (-N) are the"
            " same ranks'",
            "leave out --launches or -N",
        )
    if member := join.detect_launcher(launcher):
        raise UsageError(
            f"--launches {launches}: {member.launcher} has started these ranks, which stay the"
            " same",
            f"start the whole command {launches} times, each with --output FOLDER, and compare the"
            " folders",
        )
    replace = msgspec.structs.replace
    policy = suite.policy.in_launches(launches, cycles, suite.fixes_samples())
    return replace(
        suite,
        policy=replace(policy, max_seconds=seconds or policy.max_seconds),
        axes=replace(suite.axes, cycles=launches),
        includes=tuple(replace(include, cycles=launches) for include in suite.includes),
    )


def read_save_options(save: bool, output: Path | None, tag: str) -> dict[str, Any]:
    """The fields of an order that say where its run is saved. Raises UsageError for options that
    contradict each other."""
    grammar.refuse_tag(tag)
    if output and not save:
        raise UsageError(
            "--output and --no-save exclude each other", "leave out --output or --no-save"
        )
    if output and output.name == "-":
        raise UsageError(
            f"--output {output}: a run cannot be saved to standard output",
            "name a file; --format json prints the run to standard output",
        )
    if output and output.suffix in outputs.RUN_ENDINGS and not output.is_dir():
        raise UsageError(
            f"--output {output}: here a run's file ends in .jsonl",
            f"collbench report @last -o {output} writes it afterwards",
        )
    if tag and not save:
        _print_once(f"--tag {tag} finds nothing: --no-save keeps no run")
    return {"save": save, "output": output, "tag": tag}


def find_subject(what: str, names: Iterable[str]) -> str | Path:
    """The collective of that name, or where the run of that name lies. Raises UsageError, which
    lists ``names``."""
    try:
        return find_collective(what).name
    except UsageError:
        try:
            return store.find_run(what)
        except (UsageError, CannotRun) as e:
            hint = suggest_name(what, COLLECTIVES)
            if isinstance(e, CannotRun) and not hint:
                raise
            hint = hint or f"one of {', '.join(names)}"
            raise UsageError(f"'{what}' is no collective and no run", hint) from e


def split_output(paths: Sequence[Path] | None) -> tuple[Path | None, list[Path]]:
    """What --output names as the place for a run's file or files, and as files for other programs,
    which their endings tell. Raises UsageError for two places."""
    exports = [p for p in paths or () if p.suffix in outputs.RUN_ENDINGS and not p.is_dir()]
    places = [p for p in dict.fromkeys(paths or ()) if p not in exports]
    if len(places) > 1:
        raise UsageError(
            f"--output {places[0]}, --output {places[1]}: a run is saved in one place",
            "leave out one of them; files that end in .prom, .otlp or .parquet may be several",
        )
    return next(iter(places), None), exports


def _tell_decimal_sizes(given: Mapping[str, Any]) -> None:
    """Notes once that MB is MiB here."""
    sizes = [str(given[name] or "") for name in SIZES if name in given]
    if match := next((m for word in sizes if (m := grammar.DECIMAL.search(word))), None):
        unit = match[0].lstrip("0123456789. ")
        _print_once(f"1{unit} is 1 {unit[0].upper()}iB here: K, M and G are 1024-based")


def _tell_sizes(axes: Axes, given: Sequence[str]) -> None:
    """Notes where sizes of uneven blocks come from, and which of the options ``given`` ask for
    sizes in vain."""
    row = find_collective(axes.collectives[0])
    for field in () if row.moves_data else fields.FIELDS:
        if field.name in given:
            _print_once(f"{field.flags.split()[0]} means nothing to {row.name}")
    uneven = row.uneven
    tables = [rule for rule in axes.splits if uneven and rule.partition(":")[0] in splits.TABLES]
    if tables and given:
        _print_once(
            f"{' and '.join(tables)}: its sizes are the table's, whatever -b, -e and --sizes say"
        )
    if uneven and any(split.startswith("zipf") for split in axes.splits):
        _print_once(
            "--splits zipf: each rank sends what -b and -e say; size is the largest buffer, that of"
            " the rank that gets most"
        )


def _refuse_files(ops: Sequence[str]) -> None:
    """Raises UsageError for a reduction that is a file's name."""
    ways = {
        **dict.fromkeys(outputs.REPORTS, "collbench report @last -o {} writes it after a run"),
        ".jsonl": "--output {} saves the run there",
        ".json": "-J {} writes nccl-tests' JSON",
        ".csv": "--format csv > {} writes it",
    }
    for word in ops:
        if "." in word or "/" in word:
            way = ways.get(Path(word).suffix, "omit -o and redirect: > {}")
            raise UsageError(
                f"-o {word}: a file is given, but -o is the reduction, as in nccl-tests",
                way.format(shlex.quote(word)),
            )


def _print_once(message: str) -> None:
    """Prints words on standard error, once where a launcher has started several of us."""
    member = join.detect_launcher()
    if member is None or not member.rank:
        print_message(message)


def tell_unread_variables() -> None:
    """Notes which variables of nccl-tests are set: a suite takes none."""
    variables = (LEAST, *VARIABLES, *groups.VARIABLES)
    if names := [name for name in variables if os.environ.get(name, "").strip()]:
        _print_once(
            f"{', '.join(names)}: no variable of nccl-tests changes a suite, whose file says what"
            " is measured and wanted"
        )


def _tell_idle(suite: Suite, row: Collective | None = None) -> None:
    """Notes options that change nothing of this suite, which is that of the collective ``row``
    alone if that is given."""
    axes, swept = suite.axes, suite.values("backends")
    names = dict.fromkeys(name for env in suite.values("envs") for name, _ in strip_preset(env))
    ineffective = {name: " or ".join(swept) for name in refusal.ineffective_settings(names, swept)}
    if suite.policy.share_gpu and not any(backend_info(name).gpu for name in swept):
        ineffective["--share-gpu"] = " or ".join(swept)
    if suite.policy.precision and suite.fixes_samples():
        ineffective["--precision"] = "-n, which fixes the samples"
    if row:
        without_effect = {
            "--splits": not row.uneven and axes.splits != ("uniform",),
            "-o": not row.reduces and axes.ops != ("sum",),
            "-r": not row.rooted and axes.roots != (0,),
            "-d": not row.moves_data and axes.dtypes != ("float",),
            "--place": not row.moves_data and axes.in_place != PLACES["both"],
            "--align": not row.has_equal_blocks and axes.align > 1,
        }
        ineffective |= {option: row.name for option, nothing in without_effect.items() if nothing}
    for what, backends in ineffective.items():
        _print_once(f"{what} means nothing to {backends}")


def add_budget(order: Order, budget: str) -> Order:
    """The order with this time for all of its suite. Raises UsageError where the suite leaves
    nothing to choose."""
    if not budget:
        return order
    seconds = grammar.parse_time_limit(budget, "--budget")
    if order.suite.fixes_samples(any):
        raise _make_fixed_error(order.suite, "--budget")
    return msgspec.structs.replace(order, budget=seconds)


def _make_fixed_error(suite: Suite, option: str) -> UsageError:
    """The error where ``option`` would choose what the suite's iters say."""
    return UsageError(
        f"{suite.name} fixes the repetitions that {option} would choose", f"leave {option} out"
    )


class RunExport(Gathered):
    """Writes a run for other programs when it ends: .prom, .otlp or .parquet. Raises UsageError and
    CannotRun where that cannot be, before and after."""

    def __init__(self, path: Path) -> None:
        self._path, self._format = path, outputs.SUFFIXES[path.suffix]
        outputs.check_file(path, self._format, option="--output")

    def end(self, end: End, path: Path | None) -> None:
        super().end(end, path)
        nbytes = outputs.write_runs([self.file], self._path, self._format, "--output")
        outputs.announce_file(self._path, nbytes, to_stderr=True)


def make_reporter(
    name: str,
    output_file: Path | None = None,
    options: nccl.Options = nccl.DEFAULTS,
    exports: Sequence[Path] = (),
) -> Reporter:
    """The reporter that prints a run while it goes on, in the format ``name``, and writes it to
    ``output_file`` as nccl-tests does and to ``exports``. Raises UsageError."""
    document = nccl_json.Document(output_file, options) if output_file else None
    get_outputs = (lambda: document.written) if document else None
    makers: dict[str, Callable[[], Reporter]] = {
        "table": live.LiveTable,
        "nccl": lambda: nccl.Text(sys.stdout, options, get_outputs),
        "nccl-filled": lambda: nccl.Text(
            sys.stdout, msgspec.structs.replace(options, filled=True), get_outputs
        ),
        "imb": lambda: imb.Text(sys.stdout),
        "json": lambda: programs.Json(sys.stdout),
        "csv": lambda: programs.Csv(sys.stdout),
        "md": lambda: programs.Markdown(sys.stdout),
    }
    grammar.parse_choice("--format", name, ("auto", *makers))
    if name == "auto":  # what launchers give ranks may be a terminal, but is nobody's
        watched = sys.stdout.isatty() and join.detect_launcher("auto") is None
        name = "table" if watched else "nccl"
    reporters = [makers[name]()]
    if name != "table":
        reporters.append(live.Status(says_busy=name not in ("nccl", "nccl-filled", "imb")))
    if document:
        reporters.append(document)
    return Several(*reporters, *map(RunExport, exports))
