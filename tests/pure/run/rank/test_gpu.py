"""GPUs' state by an NVML that is made up: what is read of it, what spoils samples, and how long to
wait then."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import fake_amdsmi
import fake_nvml
import msgspec
import pytest
import torch

from collbench.records.types import GpuState
from collbench.run.rank import gpu
from collbench.run.rank.control import Control
from collbench.run.rank.cores import Cores
from collbench.run.rank.gpu import Guard, NvmlWatch, state_since, worst_state
from collbench.run.rank.worker import Worker

ALL = 0xFFFFFFFF
CUDA0 = torch.device("cuda", 0)
NAMED = GpuState(index=0, name="x")


def watching(*, xids: list[int] | None = None, **facts: Any) -> NvmlWatch:
    nvml = fake_nvml.Nvml(fake_nvml.gpu(0, **facts))
    if xids is not None:
        nvml.xids[0] = xids
    return NvmlWatch(nvml, 0, 0, "Fast GPU")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an NVML the machine's, and torch's devices those with the given UUIDs."""

    def done(nvml: object, *uuids: str) -> Any:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        properties = [SimpleNamespace(uuid=uuid, name="Fast GPU") for uuid in uuids]
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: properties[device.index]
        )
        return nvml

    return done


def test_a_reading_has_all_that_nvml_says() -> None:
    fields = {(138, ALL): 500, (139, ALL): 20, 38: 1, 45: 0, 52: 4, 59: 0}
    assert watching(fields=fields, xids=[], CurrentClocksEventReasons=0x4).read() == GpuState(
        index=0,
        name="Fast GPU",
        sm_mhz=1900,
        sm_mhz_default=1980,
        memory_mhz=2600,
        celsius=35,
        watts=78.5,
        throttle=("sw_power_cap",),
        ecc=2,
        nvlink_errors=5,
        nvlink_kib=500,
        pcie_replays=7,
        xid=0,
    )


def test_what_is_not_supported_is_unknown() -> None:
    nvml = fake_nvml.Nvml({"links": [], "fields": {}})
    assert NvmlWatch(nvml, 0, 3, "Odd GPU").read() == GpuState(index=3, name="Odd GPU")
    binding = SimpleNamespace(NVMLError=KeyError)  # one that has none of the functions
    assert NvmlWatch(binding, 0, 3, "Odd GPU").read() == GpuState(index=3, name="Odd GPU")


def test_old_drivers_call_reasons_otherwise() -> None:
    state = watching(
        CurrentClocksEventReasons=fake_nvml.REFUSED, CurrentClocksThrottleReasons=0x40
    ).read()
    assert state.throttle == ("hw_thermal_slowdown",)


@pytest.mark.parametrize(
    ("reasons", "named"),
    [
        (0, ()),
        (0x1, ()),
        (0x2, ()),
        (0x10, ()),
        (0x100, ()),
        (0x1 | 0x2 | 0x10, ()),
        (0x4, ("sw_power_cap",)),
        (0x8, ("hw_slowdown",)),
        (0x20, ("sw_thermal_slowdown",)),
        (0x40, ("hw_thermal_slowdown",)),
        (0x80, ("hw_power_brake_slowdown",)),
        (0x8 | 0x40 | 0x1, ("hw_slowdown", "hw_thermal_slowdown")),
    ],
)
def test_idleness_and_settings_spoil_nothing(reasons: int, named: tuple[str, ...]) -> None:
    state = watching(CurrentClocksEventReasons=reasons).read()
    assert state.throttle == named and state.is_held_back == bool({*named} - {"sw_power_cap"})


@pytest.mark.parametrize(
    ("sm", "reasons", "slow"),
    [
        (1485, 0, False),
        (1484, 0, True),
        (300, 0, True),
        (300, 0x1, False),
        (300, 0x2, False),
        (300, 0x10, True),
        (300, 0x4, False),  # a power cap may be how the machine is set up
    ],
)
def test_clocks_below_three_quarters_of_the_default_spoil_samples(
    sm: int, reasons: int, slow: bool
) -> None:
    state = watching(ClockInfo={1: sm, 2: 2600}.get, CurrentClocksEventReasons=reasons).read()
    assert ("low_sm_clock" in state.throttle, state.is_held_back) == (slow, slow)


class Busy:
    """A stream, and the clock of its GPU: at rest but while it is held, where it rises."""

    def __init__(self, *rising: int) -> None:
        self._rising, self._held = rising, 0
        self._busy = False

    def hold(self, ns: int) -> None:
        assert ns >= 10_000_000  # longer than NVML takes to answer
        self._busy, self._held = True, self._held + 1

    def drain(self) -> None:
        self._busy = False

    def clock(self, kind: int) -> int:
        steps = self._rising[: self._held] or (210,)
        return steps[-1] if self._busy else 210


def locked(stream: Any, **facts: Any) -> tuple[str, NvmlWatch, dict[str, Any]]:
    """What is said of clocks, and a watch that has looked; of its answers one may change."""
    answers = fake_nvml.gpu(0, ClockInfo=stream.clock, **facts)
    watch = NvmlWatch(fake_nvml.Nvml(answers), 0, 0, "Fast GPU")
    return watch.find_lock(stream), watch, answers


@pytest.mark.parametrize("reasons", [0, 0x1, 0x2, 0x100])
def test_clocks_that_somebody_locked_are_what_samples_are_held_against(reasons: int) -> None:
    """Whatever reason NVML gives for them."""
    text, watch, answers = locked(Busy(210, 900, 1410), CurrentClocksEventReasons=reasons)
    assert text == "clocks locked at 1410 of 1980 MHz"
    for mhz, slow in ((1410, False), (1058, False), (1057, True)):
        answers |= {"ClockInfo": {1: mhz, 2: 2600}.get, "CurrentClocksEventReasons": reasons & ~1}
        state = watch.read()
        assert (state.is_held_back, "low_sm_clock" in state.throttle) == (slow, slow)
    assert state.sm_mhz_default == 1980


@pytest.mark.parametrize(
    ("rising", "facts"),
    [
        ((210, 900, 1400, 1980), {}),
        ((210, 900, 1400, 1790), {}),  # its own affair
        ((1410,), {"CurrentClocksEventReasons": 0x40}),  # it is hot
        ((1410,), {"CurrentClocksEventReasons": 0x4}),  # its power is limited
        ((1410,), {"DefaultApplicationsClock": fake_nvml.REFUSED}),
    ],
)
def test_what_else_keeps_a_clock_low_is_no_lock(rising: list[int], facts: dict[str, Any]) -> None:
    text, watch, answers = locked(Busy(*rising), **facts)
    assert text == ""
    answers |= {"ClockInfo": {1: 1200, 2: 2600}.get, "CurrentClocksEventReasons": 0}
    assert watch.read().is_held_back == ("DefaultApplicationsClock" not in facts)


def test_without_a_default_clock_the_clock_at_first_is_the_usual_one() -> None:
    """Where only the highest clock is known, nobody can say whether another was set."""
    only_highest = {
        "DefaultApplicationsClock": fake_nvml.REFUSED,
        "MaxClockInfo": {1: 1965}.get,
    }
    text, watch, answers = locked(Busy(210, 1200), **only_highest)
    assert text == ""
    for mhz, slow in ((1200, False), (900, False), (899, True)):
        answers |= {"ClockInfo": {1: mhz, 2: 2600}.get, "CurrentClocksEventReasons": 0}
        assert watch.read().is_held_back == slow


def test_looking_for_a_lock_loses_no_error() -> None:
    nvml = fake_nvml.Nvml(fake_nvml.gpu(0))
    nvml.xids[0] = [79]
    watch = NvmlWatch(nvml, 0, 0, "Fast GPU")
    assert watch.find_lock(Busy(1410)) == ""  # type: ignore[arg-type]
    assert watch.read().xid == 79


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (["a", "a"], "a"),
        (["", ""], ""),
        (["a", ""], "a on rank 0"),
        (["a", "b", "a", ""], "a on ranks 0 2, b on rank 1"),
    ],
)
def test_what_ranks_say_alike_is_said_once(texts: list[str], merged: str) -> None:
    control: Any = SimpleNamespace(collect=lambda mine: texts)
    assert gpu.merge_by_rank(control, texts[0]) == merged


def test_newer_drivers_tell_the_temperature_by_another_name() -> None:
    assert watching(Temperature=fake_nvml.REFUSED, TemperatureV=41).read().celsius == 41


def test_without_a_default_clock_the_highest_counts() -> None:
    state = watching(
        DefaultApplicationsClock=fake_nvml.REFUSED,
        MaxClockInfo={1: 3000}.get,
        ClockInfo={1: 2000, 2: 1}.get,
    ).read()
    assert (state.sm_mhz_default, state.throttle) == (3000, ("low_sm_clock",))
    unknown = watching(
        DefaultApplicationsClock=fake_nvml.REFUSED, ClockInfo={1: 200, 2: 1}.get
    ).read()
    assert (unknown.sm_mhz_default, unknown.throttle) == (None, ())


def test_links_of_the_fifth_generation_count_errors_by_link() -> None:
    fields = {(215, 0): 1, (219, 0): 2, (215, 17): 4, (219, 17): 8}
    assert watching(fields=fields).read().nvlink_errors == 15
    assert watching(fields=fields | {52: 3}).read().nvlink_errors == 3
    assert watching(fields={(138, ALL): 9}).read().nvlink_kib == 9


def test_traffic_is_added_up_where_the_driver_does_not() -> None:
    assert watching(fields={(138, 0): 1, (139, 0): 2, (138, 17): 4}).read().nvlink_kib == 5


def test_critical_errors_are_told_once() -> None:
    watch = watching(xids=[13, 79])
    assert [watch.read().xid, watch.read().xid] == [79, 0]
    assert watching().read().xid is None


def test_what_was_sent_is_counted_without_losing_an_error() -> None:
    watch = watching(xids=[79], fields={(138, ALL): 9})
    assert [*watch.read_sent().values()] == [9 << 10]
    assert watch.read().xid == 79
    assert watching().read_sent() == {}


def test_an_error_of_a_program_hides_none_of_the_gpus() -> None:
    assert watching(xids=[79, 45]).read().xid == 79
    ecc, ended = (msgspec.structs.replace(NAMED, xid=xid) for xid in (48, 43))
    for readings in ((ecc, ended), (ended, ecc)):
        assert worst_state(*readings).xid == 48


def test_a_storm_of_errors_does_not_hold_a_reading_up() -> None:
    storm = [*[31] * 250]
    watch = watching(xids=storm)
    assert watch.read().xid == 31 and len(storm) == 150


def test_the_worst_of_readings_and_what_counters_rose_by() -> None:
    first = msgspec.structs.replace(
        NAMED,
        sm_mhz=1900,
        sm_mhz_default=1980,
        memory_mhz=2600,
        celsius=30,
        watts=90.0,
        throttle=("a",),
        ecc=2,
        nvlink_errors=5,
        nvlink_kib=100,
        xid=0,
    )
    middle = msgspec.structs.replace(
        first, sm_mhz=1400, celsius=80, throttle=("b", "a"), nvlink_kib=700, xid=31
    )
    last = msgspec.structs.replace(
        first, memory_mhz=None, watts=700.5, throttle=(), ecc=3, nvlink_kib=900
    )
    found = state_since(first, worst_state(worst_state(first, middle), last))
    assert found == GpuState(
        index=0,
        name="x",
        sm_mhz=1400,
        sm_mhz_default=1980,
        memory_mhz=2600,
        celsius=80,
        watts=700.5,
        throttle=("a", "b"),
        ecc=1,
        nvlink_errors=0,
        nvlink_kib=800,
        pcie_replays=None,
        xid=31,
    )
    assert state_since(NAMED, first).ecc is None


def test_a_guard_waits_longer_each_time_in_a_row() -> None:
    reasons = iter([0] + [0x40] * 6 + [0, 0x40])
    pauses: list[float] = []
    guard = Guard(watching(CurrentClocksEventReasons=lambda: next(reasons)), pauses.append)
    for _ in range(8):
        if guard.bad():
            guard.pause()
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.05]
    assert guard.state is not None and guard.state.throttle == ("hw_thermal_slowdown",)


def test_guards_of_other_ranks_wait_as_long() -> None:
    pauses: list[float] = []
    guard = Guard(watching(), pauses.append)
    for spoilt in (True, True, False, True):
        assert not guard.bad()
        if spoilt:
            guard.pause()
    assert pauses == [0.05, 0.1, 0.05]


def test_a_guard_without_a_watch_finds_nothing() -> None:
    guard = Guard(None)
    assert not guard.bad() and guard.state is None


def test_a_guard_keeps_what_came_between_its_readings() -> None:
    replays = iter([7, 9, 12])
    guard = Guard(watching(PcieReplayCounter=lambda: next(replays)))
    assert not guard.bad() and not guard.bad()
    assert guard.state is not None and (guard.state.pcie_replays, guard.state.ecc) == (5, 0)


def test_gpus_are_found_by_their_uuid_whatever_their_order(install: Any) -> None:
    nvml = install(
        fake_nvml.Nvml(fake_nvml.gpu(0), fake_nvml.gpu(1, Temperature=61)),
        fake_nvml.UUID.format(1),
        fake_nvml.UUID.format(0),
    )
    watch = gpu.open_watch(CUDA0)
    assert watch is not None
    state = watch.read()
    assert (state.index, state.celsius) == (1, 61)
    watch.close()
    assert nvml.opened == 0


def test_an_instance_is_watched_with_its_gpu(install: Any) -> None:
    part = fake_nvml.UUID.format("a")
    install(fake_nvml.Nvml(fake_nvml.gpu(0), fake_nvml.gpu(1, part=f"MIG-{part}")), part)
    watch = gpu.open_watch(CUDA0)
    assert watch is not None and watch.read().index == 1


def test_where_nothing_can_be_watched(install: Any) -> None:
    assert gpu.open_watch(torch.device("cpu")) is None
    install(None, fake_nvml.UUID.format(0))
    assert gpu.open_watch(CUDA0) is None
    nvml = install(fake_nvml.Nvml(fake_nvml.gpu(5)), fake_nvml.UUID.format(0))
    assert gpu.open_watch(CUDA0) is None and nvml.opened == 0


def test_states_of_all_ranks_travel_as_json() -> None:
    mine = watching(CurrentClocksEventReasons=0x8).read()

    def collect(value: Any) -> list[Any]:
        return msgspec.json.decode(msgspec.json.encode([value, None, value]))

    assert gpu.collect_states(SimpleNamespace(collect=collect), mine) == [mine, mine]  # type: ignore[arg-type]
    assert gpu.collect_states(SimpleNamespace(collect=collect), None) == []  # type: ignore[arg-type]


def test_the_address_of_a_gpu_is_torchs_where_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xAB, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert gpu.pci_address(CUDA0) == "0001:ab:00.0"


def test_the_address_of_a_gpu_is_nvmls_elsewhere(install: Any) -> None:
    nvml = install(fake_nvml.Nvml(fake_nvml.gpu(0)), fake_nvml.UUID.format(0))
    assert gpu.pci_address(CUDA0) == "0000:1b:00.0"
    assert nvml.opened == 0


def test_without_either_a_gpu_has_no_address(install: Any) -> None:
    install(None, fake_nvml.UUID.format(0))
    assert gpu.pci_address(CUDA0) is None


def test_a_gpu_is_described_by_its_number_address_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    about = SimpleNamespace(name="Fast GPU", pci_domain_id=0, pci_bus_id=0xF, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert gpu.describe_device(CUDA0) == "cuda:0 [0000:0f:00] Fast GPU"


def test_a_gpu_is_described_by_the_address_that_nvml_tells(install: Any) -> None:
    install(fake_nvml.Nvml(fake_nvml.gpu(0)), fake_nvml.UUID.format(0))
    assert gpu.describe_device(CUDA0) == "cuda:0 [0000:1b:00] Fast GPU"


def test_a_gpu_without_an_address_is_described_by_its_name(install: Any) -> None:
    install(None, fake_nvml.UUID.format(0))
    assert gpu.describe_device(CUDA0) == "cuda:0 Fast GPU"


@pytest.mark.parametrize("device", ["cpu", "xpu:1"])
def test_other_devices_are_described_as_torch_writes_them(device: str) -> None:
    assert gpu.describe_device(torch.device(device)) == device


# AMD


ADDRESS = {"pci_domain_id": 0, "pci_bus_id": 0x1C, "pci_device_id": 0}


@pytest.fixture
def amds(monkeypatch: pytest.MonkeyPatch) -> fake_amdsmi.Smi:
    """Two GPUs of AMD's, and a torch that is built for ROCm, whose first device is the second."""
    smi = fake_amdsmi.Smi(fake_amdsmi.gpu(0), fake_amdsmi.gpu(1))
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    about = SimpleNamespace(name="AMD Instinct MI300X", **ADDRESS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    return smi


def test_amds_gpus_are_watched_by_amd_smi(amds: fake_amdsmi.Smi) -> None:
    amds.gpus[0]["get_gpu_metrics_info"] = {}
    watch = gpu.open_watch(CUDA0)
    assert watch is not None and watch.read() == GpuState(
        index=0,
        name="AMD Instinct MI300X",
        sm_mhz=2100,
        sm_mhz_default=2100,
        memory_mhz=900,
        celsius=41,
        watts=140,
        ecc=2,
        nvlink_errors=5,
        pcie_replays=3,
    )
    watch.close()


@pytest.mark.parametrize(
    ("risen", "named", "spoils"),
    [
        ({"ppt_residency_acc": 1001}, ("package_power_limit",), False),
        ({"socket_thm_residency_acc": 21}, ("socket_thermal_limit",), True),
        ({"prochot_residency_acc": 5, "ppt_residency_acc": 1000}, ("prochot",), True),
        ({"hbm_thm_residency_acc": "N/A"}, (), False),
        ({"throttle_status": True}, ("throttled",), False),
        ({"throttle_status": False}, (), False),
    ],
)
def test_what_held_an_amd_gpu_back_since_the_last_reading(
    amds: fake_amdsmi.Smi, risen: dict[str, Any], named: tuple[str, ...], spoils: bool
) -> None:
    watch = gpu.open_watch(CUDA0)
    assert watch is not None and watch.read().throttle == ()
    amds.gpus[1]["get_gpu_metrics_info"] = fake_amdsmi.metrics(**risen)
    assert watch.read_sent() == {}
    state = watch.read()
    assert (state.throttle, state.is_held_back) == (named, spoils)
    assert watch.read().throttle == (named if "throttled" in named else ())


def test_an_amd_gpu_that_amd_smi_does_not_know_has_no_watch(
    amds: fake_amdsmi.Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADDRESS, "pci_bus_id", 0x77)
    about = SimpleNamespace(name="x", **ADDRESS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert gpu.open_watch(CUDA0) is None
    assert gpu.explain_unwatched(CUDA0) == "AMD SMI knows no GPU at 0000:77:00.0"


@pytest.mark.usefixtures("amds")
def test_a_torch_that_tells_no_address_of_an_amd_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = SimpleNamespace(name="x", uuid="1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    assert gpu.open_watch(CUDA0) is None and "tells no address" in gpu.explain_unwatched(CUDA0)


@pytest.mark.usefixtures("amds")
def test_without_amdsmi_nothing_is_watched_and_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gpu.explain_unwatched(CUDA0) == gpu.explain_unwatched() == ""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert gpu.open_watch(CUDA0) is None
    assert gpu.explain_unwatched(CUDA0) == gpu.explain_unwatched()
    assert (
        gpu.explain_unwatched().startswith("AMD SMI: ") and "pip install" in gpu.explain_unwatched()
    )


def test_nvidias_gpus_need_no_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert gpu.explain_unwatched(CUDA0) == ""


@pytest.mark.parametrize(
    ("device", "name", "fake"),
    [
        ("cuda:1", "Fake H100 80GB", True),
        ("cuda:1", "NVIDIA H100 80GB HBM3", False),
        ("cpu", "Fake H100 80GB", False),
    ],
)
def test_a_world_on_fake_gpus_says_so(
    monkeypatch: pytest.MonkeyPatch, device: str, name: str, fake: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(gpu, "describe_device", lambda device: f"{device} {name}")
    plan = SimpleNamespace(index=0, backend="nccl", n=1, env=(), groups="", file=None)
    backend = SimpleNamespace(
        device=torch.device(device), library="NCCL", shared=False, interpreted=False
    )
    rank: Any = SimpleNamespace(
        setup=SimpleNamespace(local_rank=0, launcher="local"),
        _backend=backend,
        _plan=plan,
        _group=SimpleNamespace(members=()),
        _ranks=range(1),
        _clocks="",
        _policy=SimpleNamespace(virtual=False),
        _control=Control(0, 1),
    )
    made = Worker._describe(rank, Cores(False, False), 1, [], None)
    assert made.fake == fake
