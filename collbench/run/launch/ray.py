"""Ranks on a Ray cluster: places by a placement group, an actor in each (keeper.py), fresh
processes for each world (places.py).

The launching process is Ray's driver and no rank. Ray ends the actors and frees their places when
the driver goes away, however it goes, and the kernel ends a rank whose actor does.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec

from collbench.core.backend_info import backend_info
from collbench.core.errors import CannotRun, UsageError, first_line
from collbench.core.text import print_message
from collbench.machine import environment
from collbench.run.launch import folders, join
from collbench.run.launch.fresh import Told
from collbench.run.launch.keeper import Answer, Keeper, Question, as_json
from collbench.run.launch.places import Node, Places, Seat, count_earlier, select_settings
from collbench.run.launch.world import Said
from collbench.suite.sweep import Axes, Suite

OF_RAY = re.compile(r"\w+_VISIBLE_DEVICES")  # variables that Ray sets for each of its actors

PLACEMENTS = ("pack", "spread")

_ANSWER_SECONDS = 10.0  # of whoever is at an address

_PATIENCE = 2.0  # for places, before it is said that they are waited for


class Where(msgspec.Struct, frozen=True):
    """A Ray cluster, and whether ranks are to be on as few of its nodes as possible or on as many
    (PLACEMENTS)."""

    address: str
    placement: str
    name: str = "Ray"
    local_n: int = 0

    def count_hosts(self, n: int) -> int:
        """0: on how many nodes Ray will place ranks is not known before."""
        return 0

    def hold_places(self, suite: Suite, seconds: float) -> Places:
        """The places for a suite's ranks, within so many seconds."""
        return Cluster(self, suite, seconds)

    def connect(self) -> Any:
        """The module ``ray``, connected to the cluster. Raises CannotRun where there is none,
        UsageError for ray://."""
        ray_address = (
            os.environ.get("RAY_ADDRESS", "auto") if self.address == "auto" else self.address
        )
        if ray_address.startswith("ray://"):
            raise UsageError(
                f"--address {ray_address}: records cannot be streamed through Ray Client",
                "run on a machine of the cluster, with --address auto, or by ray job submit",
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray

            # what ray.init takes "auto" for
            from ray._private.services import canonicalize_bootstrap_address
        except ImportError as e:
            raise CannotRun(
                "--launcher ray: Ray is not installed", "pip install 'collbench[ray]'"
            ) from e
        if ray.is_initialized():
            return ray
        try:
            address = canonicalize_bootstrap_address(ray_address) or ray_address
            # where nobody listens any more, Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            if not port.isdigit():
                raise ValueError("not HOST:PORT")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as e:
            raise CannotRun(
                f"no Ray cluster at {ray_address}: {first_line(e)}",
                "ray start --head starts one here; --address HOST:PORT names one that this machine"
                " is part of",
            ) from e
        return ray

    def resolve(self, axes: Axes) -> Axes:
        """The axes as ``Axes.resolve`` gives them, by what all nodes have together. For the mode, a
        node has as many cores as Ray has CPUs of it."""
        ray = self.connect()
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = sum(int(of_node.get("GPU", 0)) for of_node in resources)
        backends = axes.backends or (("nccl",) if gpus else ("gloo",))
        nodes = _list_nodes(resources, _choose_bundle(backends))
        ranks = axes.ranks or (max(1, sum(node.places for node in nodes)),)
        axes = msgspec.structs.replace(axes, backends=backends, ranks=ranks)
        per_host, cores = self._share_nodes(max(ranks), nodes)
        is_uneven = self.placement != "spread" and len({node.places for node in nodes}) > 1
        return msgspec.structs.replace(
            axes, per_host=axes.per_host or per_host, uneven_hosts=is_uneven, cores=cores
        )

    def _share_nodes(self, n: int, nodes: Sequence[_Room]) -> tuple[int, int]:
        """The ranks that a node may get of n, and the CPUs of that node: the one with most places,
        where ranks are packed, else one with the fewest."""
        if not nodes:
            return 0, 0
        if self.placement == "spread":
            fewest = min(nodes)
            return min(-(-n // len(nodes)), fewest.places), fewest.cpus
        most = max(nodes)
        return min(n, most.places), most.cpus


class _Room(NamedTuple):
    """The places for ranks that a node has, and its CPUs."""

    places: int
    cpus: int


def _choose_bundle(backends: Iterable[str]) -> dict[str, int]:
    """What a rank takes of its node: a CPU, and a GPU where any of the backends needs one."""
    needs_gpu = any(backend_info(name).gpu for name in backends)
    return {"CPU": 1, "GPU": 1} if needs_gpu else {"CPU": 1}


def _list_nodes(resources: Iterable[Mapping[str, float]], bundle: Mapping[str, int]) -> list[_Room]:
    """The nodes with these resources that have a place for a rank, which takes a ``bundle``."""
    nodes = [
        _Room(
            min(int(of_node.get(name, 0)) // number for name, number in bundle.items()),
            int(of_node.get("CPU", 0)),
        )
        for of_node in resources
    ]
    return [node for node in nodes if node.places]


class RankActor(Keeper):
    """A Keeper in an actor, asked and told in JSON."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        super().__init__(self._stack.enter_context(folders.make_private()))

    def node(self) -> str:
        """The node that this actor is on, in JSON."""
        import ray

        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return as_json(Node(node, address, environment.host_name(), gpus))

    def answer(self, question: str) -> str:
        """The answer to a question, both in JSON."""
        answer = self.ask(msgspec.json.decode(question, type=Question))
        recorded = answer.described.get("variables", {})
        for name in filter(OF_RAY.fullmatch, list(recorded)):  # another GPU each time
            del recorded[name]
        return as_json(answer)

    def run_rank(self, instructions: str) -> Iterator[str]:
        """The lines of a rank, from its start by these instructions to its end (Keeper.lines)."""
        yield from self.lines(msgspec.json.decode(instructions, type=Told))


class Actor:
    """A place that an actor keeps, as seen from the driver."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def run(self, instructions: Told, on_line: Callable[[str], None]) -> None:
        """Have the actor start a rank; ``on_line`` is told where the actor is lost."""
        stream = self._actor.run_rank.remote(as_json(instructions))

        def pump() -> None:
            try:
                for line in stream:
                    on_line(self._ray.get(line))
            except Exception as e:  # also where this process is about to leave Ray
                on_line(as_json(Said(lost=_last_line(e).partition(". ")[0])))

        threading.Thread(target=pump, daemon=True, name="collbench-ray").start()

    def send(self, world: str, text: str) -> None:
        """Have the actor pass a line to the rank of a world."""
        self._actor.send.remote(world, text)

    def end(self, world: str) -> None:
        """Have the actor end the rank of a world."""
        self._actor.end.remote(world)

    def ask(self, question: Question) -> Answer:
        """The answer to a question. Raises CannotRun where the actor cannot be started."""
        call = self._actor.answer.remote(as_json(question))
        return msgspec.json.decode(_collect_answers(self._ray, [call])[0], type=Answer)


class Cluster(Places):
    """Places for the ranks of a suite's largest world, held until ``close``; smaller worlds take
    some of them.

    Raises CannotRun where Ray does not give that many within ``seconds``.
    """

    def __init__(self, where: Where, suite: Suite, seconds: float) -> None:
        if suite.policy.virtual or suite.policy.share_gpu:
            raise UsageError(
                "--virtual-ranks, --share-gpu: on Ray every rank has a GPU of its own",
                "leave --virtual-ranks and --share-gpu out",
            )
        super().__init__("ray", select_driver_settings(os.environ))
        self._spread = where.placement == "spread"
        self._bundle = _choose_bundle(suite.values("backends"))
        self._ray = where.connect()
        self._group: Any = None
        self._actors: list[Any] = []
        try:
            self._place_actors(suite.largest_world, where.placement.upper(), seconds)
        except BaseException:
            self.close()
            raise

    def _place_actors(self, n: int, strategy: str, seconds: float) -> None:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._bundle
        self._group = group = placement_group([bundle] * n, strategy=strategy, name="collbench")
        if not group.wait(min(seconds, _PATIENCE)):
            print_message(f"waiting for places on Ray: {self._lack(bundle)}")
            if not group.wait(max(0.0, seconds - _PATIENCE)):
                raise CannotRun(
                    f"Ray has no places for {n} ranks within {seconds:g} s: {self._lack(bundle)}",
                    "ask for fewer with -g; ray status says what is in use; -T sets the limit",
                )
        # two worlds' ranks, and to tell each
        options = {"num_cpus": 1, "num_gpus": bundle.get("GPU", 0), "max_concurrency": 6}
        make = self._ray.remote(**options)(RankActor)
        at = [PlacementGroupSchedulingStrategy(group, bundle_index) for bundle_index in range(n)]
        self._actors = [make.options(scheduling_strategy=strategy).remote() for strategy in at]
        answers = _collect_answers(self._ray, [actor.node.remote() for actor in self._actors])
        nodes = [msgspec.json.decode(answer, type=Node) for answer in answers]
        numbers = count_earlier(node.id for node in nodes)
        self.seats = [
            Seat(Actor(self._ray, actor), node, number)
            for actor, node, number in zip(self._actors, nodes, numbers, strict=True)
        ]

    def _lack(self, bundle: Mapping[str, int]) -> str:
        every, free = self._ray.cluster_resources(), self._ray.available_resources()
        per_rank = " and ".join(f"{number} {name}" for name, number in bundle.items())
        available = ", ".join(
            f"{free.get(name, 0):g} of {every.get(name, 0):g} {name}" for name in bundle
        )
        return f"a rank takes {per_rank}, and free are {available}"

    def among(self, n: int) -> list[Seat]:
        """n of the seats, in the order of ranks: those of a node follow each other."""
        seats = sorted(self.seats, key=lambda seat: (seat.node.id, seat.number))
        if self._spread:
            seats.sort(key=lambda seat: seat.number)
        return sorted(seats[:n], key=lambda seat: (seat.node.id, seat.number))

    def close(self) -> None:
        """Give the places back to Ray, and leave it."""
        from ray.util.placement_group import remove_placement_group

        for actor in self._actors:
            self._ray.kill(actor)
        if self._group:
            remove_placement_group(self._group)
        self._ray.shutdown()


def select_driver_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The driver's settings that ranks have: but for those, and the path, that are Ray's doing."""
    settings = select_settings(environ, with_path=False)
    return {name: value for name, value in settings.items() if not OF_RAY.fullmatch(name)}


def _collect_answers(ray: Any, calls: list[Any]) -> list[str]:
    """The answers of actors. Raises CannotRun where one cannot be started."""
    try:
        answers: list[str] = ray.get(calls, timeout=join.SECONDS)
        return answers
    except ray.exceptions.RayError as e:
        raise CannotRun(
            f"Ray did not start what runs a rank: {_last_line(e)}",
            "install this version of collbench on every node, in the Python that its Ray is of",
        ) from e


def _last_line(error: Exception) -> str:
    """The last line of a remote error, below its traceback."""
    return str(error).strip().rpartition("\n")[2].strip() or type(error).__name__
