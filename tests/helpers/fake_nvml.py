"""A machine's NVML that is made up, as nvidia-ml-py shows it: what a GPU is not given, it does not
support."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

UUID = "8932f937-d72c-4106-c12f-20bd9faed9f{}"
REFUSED = object()  # an answer that is an error


def gpu(number: int, **facts: Any) -> dict[str, Any]:
    """A GPU at rest; ``facts`` are answers by question, values or functions of the question's
    arguments. ``links`` are the far ends of its NVLinks, (device type, PCI address); ``fields`` are
    values by id or (id, scope).
    """
    return {
        "UUID": "GPU-" + UUID.format(number),
        "Index": number,
        "Name": "Fast GPU",
        "PciInfo": SimpleNamespace(busId=f"00000000:{0x1B + number:02X}:00.0"),
        "ClockInfo": {1: 1900, 2: 2600}.__getitem__,
        "DefaultApplicationsClock": 1980,
        "Temperature": 35,
        "PowerUsage": 78_500,
        "CurrentClocksEventReasons": 0,
        "TotalEccErrors": lambda kind, counter: {(1, 0): 2}[kind, counter],
        "PcieReplayCounter": 7,
        "links": [],
        "fields": {},
        **facts,
    }


class Nvml:
    """Handles are indices. ``ancestors`` are common ancestors by pair; ``xids`` are events to come,
    by handle."""

    class NVMLError(Exception):
        pass

    __spec__ = SimpleNamespace(name="pynvml")
    nvmlEventTypeXidCriticalError = 8

    def __init__(
        self, *gpus: dict[str, Any], ancestors: dict[tuple[int, int], int] | None = None
    ) -> None:
        self.gpus, self.ancestors = gpus, ancestors or {}
        self.xids: dict[int, list[int]] = {}
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        known = [
            index for index, gpu in enumerate(self.gpus) if uuid in (gpu["UUID"], gpu.get("part"))
        ]
        return known[0] if known else self._refuse()

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetNvLinkState(self, gpu: int, link: int) -> int:
        links = self.gpus[gpu]["links"]
        return 0 if link >= len(links) else links[link] is not None

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: int, link: int) -> int:
        return self.gpus[gpu]["links"][link][0]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self.gpus[gpu]["links"][link][1])

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        pair = (min(one, other), max(one, other))
        return self.ancestors[pair] if pair in self.ancestors else self._refuse()

    def nvmlDeviceGetFieldValues(self, gpu: int, ids: list[Any]) -> list[SimpleNamespace]:
        known = self.gpus[gpu]["fields"]
        return [
            SimpleNamespace(
                nvmlReturn=0 if of in known else 3,
                valueType=3,
                value=SimpleNamespace(ullVal=known.get(of, 77), uiVal=-1),
            )
            for of in ids
        ]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, gpu: int, kinds: int, events: list[int]) -> None:
        if kinds != 8 or gpu not in self.xids:
            self._refuse()
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[int], _milliseconds: int) -> SimpleNamespace:
        waiting = self.xids[events[0]]
        return SimpleNamespace(eventData=waiting.pop(0)) if waiting else self._refuse()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        question = name.removeprefix("nvmlDeviceGet")
        if question == name:
            raise AttributeError(name)

        def answer(gpu: int, *arguments: int) -> Any:
            known = self.gpus[gpu].get(question, REFUSED)
            return (
                self._refuse()
                if known is REFUSED
                else known(*arguments)
                if callable(known)
                else known
            )

        return answer

    def _refuse(self) -> Any:
        raise self.NVMLError("Not Supported")
