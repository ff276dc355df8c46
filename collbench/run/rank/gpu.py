"""What a GPU does while it is measured, by NVML: its clocks and what holds them back, heat, power,
errors and traffic; and which samples that spoils.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
import torch

from collbench.core.errors import CannotRun
from collbench.machine import amd, topology
from collbench.machine import gpu as machine_gpu
from collbench.machine.gpu import GRAPHICS, MEMORY, SM, ask_nvml, load_nvml, read_fields, xid_events
from collbench.records.types import PROGRAM_XIDS, UNEXPLAINED_THROTTLE, GpuState
from collbench.run.rank.control import Control
from collbench.run.rank.stream import Stream

SLOW = 0.75  # of the default or locked clock: below, samples are discarded (as nvbench does)

LOCKED = 0.90  # of the default clock: a busy GPU below that nothing holds back has a locked clock

LOOKS, LOOK_NS = 25, 20_000_000  # for that: an idle GPU takes a while to raise its clock

PAUSE_S, MOST_PAUSE_S = 0.05, 0.5

HOPELESS = 2  # cases in a row without a valid sample, after which one block of the next is tried

IDLE, SET_CLOCKS, POWER_CAP = 0x1, 0x2, 0x4

# nvmlClocksEventReasons without idle and the settings: application, display and sync-boost clocks
HOLDING_BACK = {
    POWER_CAP: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}

MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS of the newest NVML known

ALL_LINKS = 0xFFFFFFFF  # as a field's scope: the sum over links

Fields = tuple[int | tuple[int, int], ...]

# Choices of fields: those count that a GPU answers first.
TRAFFIC: tuple[Fields, ...] = (
    ((138, ALL_LINKS),),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
    tuple((138, link) for link in range(MOST_LINKS)),
)

ERRORS: tuple[Fields, ...] = (
    (
        38,
        45,
        52,
        59,
        160,
    ),  # NVML_FI_DEV_NVLINK_{CRC_FLIT,CRC_DATA,REPLAY,RECOVERY,ECC_DATA}_ERROR_COUNT_TOTAL
    tuple(
        (field, link) for link in range(MOST_LINKS) for field in (215, 219)
    ),  # NVLink 5: recoveries, effective errors
)

MOST_EVENTS = 100  # taken in one reading, so that it ends

COUNTERS = ("ecc", "nvlink_errors", "nvlink_kib", "pcie_replays")

UNCORRECTED, VOLATILE = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t


class Watch(Protocol):
    """Reads one GPU's state by calls some of which ask the GPU, so never while a clock runs."""

    def read(self) -> GpuState:
        """The state now; ``throttle`` is what held its clocks back, now or since the reading
        before."""

    def read_sent(self) -> dict[str, int]:
        """Bytes that left by NVLink so far, by the GPU's address; empty where they are not
        known. What ``read`` reports once is left to it."""

    def find_lock(self, stream: Stream) -> str:
        """Have later readings compare the clock with that at which somebody has locked it, as found
        while ``stream`` keeps the GPU busy: "clocks locked at 1410 of 1980 MHz". An empty string
        where none is known."""

    def close(self) -> None:
        """Let go of the library that was asked."""


class NvmlWatch:
    """An NVIDIA GPU, by nine calls of NVML."""

    def __init__(self, nvml: Any, gpu: Any, index: int, name: str) -> None:
        self._nvml, self._gpu, self._pci = nvml, gpu, _ask_pci_address(nvml, gpu)
        self._index, self._name = self._ask("Index"), name
        self._index = index if self._index is None else self._index
        application = self._ask("DefaultApplicationsClock", GRAPHICS)
        self._default = application or self._ask("MaxClockInfo", SM)
        self._knows_default = bool(application)  # no GPU stays at its highest clock for long
        self._traffic, self._errors = (
            _first_answered(nvml, gpu, choices) for choices in (TRAFFIC, ERRORS)
        )
        self._events = xid_events(nvml, gpu)
        self._locked: int | None = None

    def find_lock(self, stream: Stream) -> str:
        """NVML has no question for it, and which reason it gives for such a clock is not relied
        upon. Of a GPU without a default clock nothing is said, but its clock now is its usual one.
        """
        busiest = 0
        for _ in range(LOOKS):
            stream.hold(LOOK_NS)
            sm, reasons = self._ask("ClockInfo", SM), self._reasons()
            stream.drain()
            if not sm or not self._default or any(reasons & bit for bit in HOLDING_BACK):
                return ""
            busiest = max(busiest, sm)
            if busiest >= LOCKED * self._default:
                return ""
        self._locked = busiest
        known = f"clocks locked at {busiest} of {self._default} MHz"
        return known if self._knows_default else ""

    def _reasons(self) -> int:
        """Bits of what limits the clocks now."""
        reasons = self._ask("CurrentClocksEventReasons")
        if reasons is None:  # as drivers before 535 call it
            reasons = self._ask("CurrentClocksThrottleReasons")
        return int(reasons or 0)

    def _ask(self, what: str, *arguments: Any) -> Any:
        return ask_nvml(self._nvml, f"DeviceGet{what}", self._gpu, *arguments)

    def read(self) -> GpuState:
        """The state now. ``throttle`` has NVML's reasons that are no setting, and low_sm_clock
        where a GPU that is neither idle nor at its power cap runs below 75 % of its locked clock,
        or of its default if nobody has set clocks since; ``nvlink_kib`` is data sent; ``xid`` is
        the last since the reading before, 0 for none."""
        reasons = self._reasons()
        sm, milliwatts = self._ask("ClockInfo", SM), self._ask("PowerUsage")
        values = read_fields(self._nvml, self._gpu, (*self._traffic, *self._errors))
        usual = self._locked or self._default
        lawful = reasons & (IDLE | POWER_CAP | (0 if self._locked else SET_CLOCKS))
        celsius = self._ask("Temperature", 0)  # gone with CUDA 14
        slow = sm is not None and usual and sm < SLOW * usual and not lawful
        return GpuState(
            index=self._index,
            name=self._name,
            sm_mhz=sm,
            sm_mhz_default=self._default,
            memory_mhz=self._ask("ClockInfo", MEMORY),
            celsius=self._ask("TemperatureV", 0) if celsius is None else celsius,
            watts=None if milliwatts is None else milliwatts / 1000,
            throttle=(
                *(name for bit, name in HOLDING_BACK.items() if reasons & bit),
                *["low_sm_clock"] * bool(slow),
            ),
            ecc=self._ask("TotalEccErrors", UNCORRECTED, VOLATILE),
            nvlink_kib=_sum_known(values[: len(self._traffic)]),
            nvlink_errors=_sum_known(values[len(self._traffic) :]),
            pcie_replays=self._ask("PcieReplayCounter"),
            xid=self._xid(),
        )

    def read_sent(self) -> dict[str, int]:
        """Bytes that left by NVLink so far, by the GPU's PCI address, as containers that have a GPU
        each all call theirs 0."""
        kib = _sum_known(read_fields(self._nvml, self._gpu, self._traffic))
        return {} if kib is None else {self._pci or str(self._index): kib << 10}

    def _xid(self) -> int | None:
        if self._events is None:
            return None
        last: int | None = 0
        for _ in range(MOST_EVENTS):
            event = ask_nvml(self._nvml, "EventSetWait_v2", self._events, 0)
            if event is None:  # a time-out: no more have come
                break
            last = _choose_xid(last, int(event.eventData))
        return last

    def close(self) -> None:
        """Let go of NVML."""
        ask_nvml(self._nvml, "Shutdown")


class AmdWatch:
    """A GPU of AMD's, by four calls of AMD SMI. What held its clocks back is known since the
    reading before, by counters that its firmware renews ten times a second; of GPUs before MI300
    only whether anything does. A low clock is no reason: nothing tells whether a GPU is idle.
    """

    def __init__(self, smi: Any, gpu: Any, index: int, name: str) -> None:
        self._smi, self._gpu, self._index, self._name = smi, gpu, index, name
        clock = amd.ask_amdsmi(smi, "get_clock_info", gpu, "AmdSmiClkType.GFX")
        self._default = amd.read_number(clock, "max_clk")
        self._before = amd.read_state(smi, gpu).limit_counts

    def find_lock(self, stream: Stream) -> str:
        """An empty string: locked clocks are not looked for, as no reading is judged by its
        clock."""
        return ""

    def read(self) -> GpuState:
        """The state now, with the reasons whose counters have risen since the reading before."""
        now = amd.read_state(self._smi, self._gpu)
        rising = [name for name, by in now.limit_counts.items() if by > self._before.get(name, by)]
        self._before = now.limit_counts
        return GpuState(
            index=self._index,
            name=self._name,
            sm_mhz=now.sm_mhz,
            sm_mhz_default=self._default,
            memory_mhz=now.memory_mhz,
            celsius=now.celsius,
            watts=now.watts,
            throttle=(*rising, *[UNEXPLAINED_THROTTLE] * now.throttled),
            ecc=now.ecc,
            nvlink_errors=now.xgmi_errors,
            pcie_replays=now.pcie_replays,
        )

    def read_sent(self) -> dict[str, int]:
        """Empty: what left by xGMI is not counted."""
        return {}

    def close(self) -> None:
        """Nothing: AMD SMI is torch's, too."""


class Streak:
    """Cases in a row, of all those that ranks take in a world, in which this rank's GPU was held
    back and no sample was valid."""

    def __init__(self) -> None:
        self.count = 0


class Guard:
    """Judges a case's blocks of samples by the GPU's state, as nvbench does: a block during which
    it was held back is discarded, and the next one waits, 50 ms at first and twice as long each
    time in a row, up to 0.5 s.

    Every rank asks ``bad`` after each block; if any rank's says so, all discard the block and
    ``pause`` before another. Without a watch nothing is bad, so that all ranks ask alike. The
    ``streak`` goes on from case to case.
    """

    def __init__(
        self,
        watch: Watch | None,
        sleep: Callable[[float], object] = time.sleep,
        streak: Streak | None = None,
    ) -> None:
        self._watch, self._sleep = watch, sleep
        self._first = self._worst = watch.read() if watch else None
        self._wait, self._paused, self._held_back = PAUSE_S, False, False
        self._streak = streak or Streak()

    @property
    def is_hopeless(self) -> bool:
        """Whether so many cases before had no valid sample for this GPU that another will hardly
        have any."""
        return self._streak.count >= HOPELESS

    def bad(self) -> bool:
        """Whether the GPU is held back now, at the end of a block."""
        self._wait = self._wait if self._paused else PAUSE_S
        self._paused = False
        if not self._watch or not self._worst:
            return False
        now = self._watch.read()
        self._worst = worst_state(self._worst, now)
        self._held_back = self._held_back or now.is_held_back
        return now.is_held_back

    def pause(self, longest: float = MOST_PAUSE_S) -> None:
        """Wait before the next block, ``longest`` seconds at most."""
        self._sleep(min(self._wait, longest))
        self._wait, self._paused = min(2 * self._wait, MOST_PAUSE_S), True

    def end(self, valid: bool) -> None:
        """The case has had its samples, of which some are ``valid``."""
        self._streak.count = self._streak.count + 1 if self._held_back and not valid else 0

    @property
    def state(self) -> GpuState | None:
        """The GPU at its worst since this guard was made; counters are what they rose by."""
        return state_since(self._first, self._worst) if self._first and self._worst else None


def open_watch(device: torch.device) -> Watch | None:
    """The watch of the GPU that torch calls ``device``; a MIG instance has that of the whole GPU.
    None without NVML or AMD SMI, or for a GPU it does not know."""
    if device.type != "cuda":
        return None
    find_gpu, kind = (_amd_handle, AmdWatch) if torch.version.hip else (_nvml_handle, NvmlWatch)
    library, gpu = find_gpu(device)
    about = torch.cuda.get_device_properties(device) if gpu is not None else None
    return kind(library, gpu, device.index or 0, about.name) if about else None


def is_fake(device: torch.device) -> bool:
    """Whether a device is a fake GPU, by the name that torch has for it."""
    return device.type == "cuda" and machine_gpu.is_fake(torch.cuda.get_device_name(device))


def explain_unwatched(device: torch.device | None = None) -> str:
    """Why AMD SMI cannot watch this GPU of AMD's, and what to do; without one, why it can watch
    none. Empty where it can, and for others' GPUs."""
    if device is not None and not torch.version.hip:
        return ""
    try:
        smi = amd.load_amdsmi()
    except CannotRun as e:
        return f"{e.message} ({e.hint})"
    if device is None:
        return ""
    pci = pci_address(device)
    location = f"at {pci}" if pci else f"of which torch {torch.__version__} tells no address"
    is_known = pci and amd.find_handle(smi, pci) is not None
    return "" if is_known else f"AMD SMI knows no GPU {location}"


def pci_address(device: torch.device) -> str | None:
    """The PCI address of the GPU that torch calls ``device``, 0000:0f:00.0; None where neither
    torch (older ones do not) nor NVML tells it."""
    about: Any = torch.cuda.get_device_properties(device)
    if hasattr(about, "pci_bus_id"):
        return f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    nvml, gpu = (None, None) if torch.version.hip else _nvml_handle(device)
    address = None if gpu is None else _ask_pci_address(nvml, gpu)
    if nvml:
        ask_nvml(nvml, "Shutdown")
    return address


def _ask_pci_address(nvml: Any, gpu: Any) -> str | None:
    pci = ask_nvml(nvml, "DeviceGetPciInfo", gpu)
    return topology.format_pci_address(str(pci.busId)) if pci else None


def describe_device(device: torch.device) -> str:
    """A rank's device as records have it: "cpu", or "cuda:3 [0000:0f:00] NVIDIA H200" with as much
    of its address as nccl-tests prints, and none where nothing tells it."""
    if device.type != "cuda":
        return str(device)
    pci, name = pci_address(device), torch.cuda.get_device_properties(device).name
    return f"{device} [{pci.rpartition('.')[0]}] {name}" if pci else f"{device} {name}"


def worst_state(earlier: GpuState, now: GpuState) -> GpuState:
    """Lowest clocks, highest temperature and power, all reasons of either; counters as they stood
    last."""
    lowest = {name: _pick_known(min, earlier, now, name) for name in ("sm_mhz", "memory_mhz")}
    highest = {
        name: _pick_known(max, earlier, now, name) for name in ("celsius", "watts", *COUNTERS)
    }
    reasons = tuple(dict.fromkeys((*earlier.throttle, *now.throttle)))
    xid = _choose_xid(earlier.xid, now.xid)
    return msgspec.structs.replace(now, **lowest, **highest, throttle=reasons, xid=xid)


def _choose_xid(earlier: int | None, now: int | None) -> int | None:
    """The later of two, unless it is a program's fault and the earlier is not."""
    if not now or (earlier and now in PROGRAM_XIDS and earlier not in PROGRAM_XIDS):
        return earlier
    return now


def state_since(first: GpuState, last: GpuState) -> GpuState:
    """``last`` with counters as what they rose by since ``first``; None where one of them does not
    know."""
    pairs = {name: (getattr(first, name), getattr(last, name)) for name in COUNTERS}
    risen = {name: None if None in pair else pair[1] - pair[0] for name, pair in pairs.items()}
    return msgspec.structs.replace(last, **risen)


def merge_by_rank(control: Control, text: str) -> str:
    """The texts of all ranks in one, at every rank: each once, with its ranks unless it is all of
    them."""
    ranks: dict[str, list[str]] = {}
    for rank, other in enumerate(control.collect(text)):
        ranks.setdefault(other, []).append(str(rank))
    if len(ranks) == 1:
        return text
    return ", ".join(
        f"{other} on rank{'s' * (len(ranks_of) > 1)} {' '.join(ranks_of)}"
        for other, ranks_of in ranks.items()
        if other
    )


def collect_worst(control: Control, guard: Guard | None) -> dict[int, GpuState]:
    """The GPUs at their worst since all ranks' guards were made, by rank, at every rank; without
    those of ranks that have no watch. Empty where ranks have no guards."""
    states = control.collect(msgspec.to_builtins(guard.state)) if guard else []
    return {rank: msgspec.convert(state, GpuState) for rank, state in enumerate(states) if state}


def collect_states(control: Control, state: GpuState | None) -> list[GpuState]:
    """All ranks' states, in rank order, at every rank; those of ranks without a watch are left
    out."""
    return [
        msgspec.convert(other, GpuState)
        for other in control.collect(msgspec.to_builtins(state))
        if other
    ]


def _nvml_handle(device: torch.device) -> tuple[Any, Any]:
    """NVML and its handle of a device of torch's, whatever CUDA_VISIBLE_DEVICES makes of its index,
    of the whole GPU for a MIG instance; two None where there is none."""
    try:
        nvml = load_nvml()
    except CannotRun:
        return None, None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    part = ask_nvml(nvml, "DeviceGetHandleByUUID", f"MIG-{uuid}")
    mig_device = part and ask_nvml(nvml, "DeviceGetDeviceHandleFromMigDeviceHandle", part)
    gpu = mig_device or ask_nvml(nvml, "DeviceGetHandleByUUID", f"GPU-{uuid}")
    if gpu is None:
        ask_nvml(nvml, "Shutdown")
        return None, None
    return nvml, gpu


def _amd_handle(device: torch.device) -> tuple[Any, Any]:
    """AMD SMI and its handle of a device of torch's; None where there is none."""
    try:
        smi = amd.load_amdsmi()
    except CannotRun:
        return None, None
    pci = pci_address(device)
    return smi, amd.find_handle(smi, pci) if pci else None


def _pick_known(choose: Callable[..., Any], earlier: GpuState, now: GpuState, name: str) -> Any:
    return choose(
        (v for v in (getattr(earlier, name), getattr(now, name)) if v is not None), default=None
    )


def _first_answered(nvml: Any, gpu: Any, choices: Iterable[Fields]) -> Fields:
    return next((ids for ids in choices if _sum_known(read_fields(nvml, gpu, ids)) is not None), ())


def _sum_known(values: Iterable[int | None]) -> int | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None
