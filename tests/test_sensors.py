# ruff: noqa: N802 - the library has its own names
"""Sensors of a GPU through a management library that is not there, is odd, or fails later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ninfer import sensors
from ninfer.sensors import MEMBERS, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Record, sensors_of, unavailable

GPU_IS_LOST = 15
UUID = "0d1e2f30-0000-1111-2222-333344445555"
HANDLE = 0x7F00_1234_5678


class Function:
    """A function of the library: what it says, and what it leaves where its last argument points."""

    def __init__(self, act: Callable[..., int]) -> None:
        self._act = act
        self.restype: object = None

    def __call__(self, *arguments: Any) -> Any:
        return self._act(*arguments)


class Library:
    """NVML with one GPU whose numbers are all different; `faults` are statuses by the name of a function."""

    def __init__(self, *, kind: str = "GPU", reasons: int = 0, faults: dict[str, int] | None = None) -> None:
        self.faults = faults or {}
        self.opened = 0
        self._kind = kind
        self._reasons = reasons
        self.handles: list[int | None] = []

    def __getattr__(self, name: str) -> Function:
        act = getattr(self, f"_{name}")

        def call(*arguments: Any) -> Any:
            if name == "nvmlErrorString":
                return act(*arguments)
            if name in self.faults:
                return self.faults[name]
            if name.startswith("nvmlDevice") and "Handle" not in name:
                self.handles.append(arguments[0].value)
            return act(*arguments) or 0

        function = Function(call)
        self.__dict__[name] = function
        return function

    def _nvmlErrorString(self, status: int) -> bytes:
        assert self.nvmlErrorString.restype is not None, "else an address would come back"
        return b"GPU is lost" if status == GPU_IS_LOST else b"status %d" % status

    def _nvmlInit_v2(self) -> None:
        self.opened += 1

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid != f"{self._kind}-{UUID}".encode():
            return NOT_FOUND
        handle._obj.value = HANDLE
        return 0

    def _nvmlDeviceGetName(self, _device: Any, text: Any, size: Any) -> None:
        assert size.value == len(text)
        text.value = b"Abacus 1"

    def _nvmlDeviceGetUUID(self, _device: Any, text: Any, _size: Any) -> None:
        text.value = f"{self._kind}-{UUID}".encode()

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> None:
        text.value = b"580.1"

    def _nvmlDeviceGetTemperature(self, _device: Any, sensor: Any, found: Any) -> None:
        assert sensor.value == 0
        found._obj.value = 61

    def _nvmlDeviceGetFanSpeed(self, _device: Any, found: Any) -> None:
        found._obj.value = 33

    def _nvmlDeviceGetPowerUsage(self, _device: Any, found: Any) -> None:
        found._obj.value = 301_500

    def _nvmlDeviceGetEnforcedPowerLimit(self, _device: Any, found: Any) -> None:
        found._obj.value = 450_000

    def _nvmlDeviceGetUtilizationRates(self, _device: Any, found: Any) -> None:
        found._obj.gpu, found._obj.memory = 97, 54

    def _nvmlDeviceGetClockInfo(self, _device: Any, which: Any, found: Any) -> None:
        found._obj.value = {1: 1980, 2: 2619}[which.value]

    def _nvmlDeviceGetMemoryInfo(self, _device: Any, found: Any) -> None:
        found._obj.total, found._obj.free, found._obj.used = 140 << 30, 30 << 30, 110 << 30

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, _device: Any, found: Any) -> None:
        found._obj.value = self._reasons


WHOLE = {
    "available": True,
    "name": "Abacus 1",
    "uuid": f"GPU-{UUID}",
    "driver_version": "580.1",
    "temperature_c": 61,
    "fan_percent": 33,
    "power_watts": 301.5,
    "power_limit_watts": 450.0,
    "utilization_gpu_percent": 97,
    "utilization_memory_percent": 54,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2619,
    "memory_used_bytes": 110 << 30,
    "memory_total_bytes": 140 << 30,
    "throttle_reasons": [],
}


def test_every_sensor_is_read_from_the_right_gpu() -> None:
    library = Library()
    read = sensors_of(UUID, lambda: library)
    assert read() == read() == WHOLE
    assert library.opened == 1
    assert set(library.handles) == {HANDLE}
    assert set(WHOLE) == {"available", "throttle_reasons", *MEMBERS}


def test_a_part_of_a_gpu_is_found_by_its_own_name() -> None:
    assert sensors_of(UUID, lambda: Library(kind="MIG"))() == {**WHOLE, "uuid": f"MIG-{UUID}"}


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1, ["gpu_idle"]),
        (0x4 | 0x20, ["sw_power_cap", "sw_thermal_slowdown"]),
        (0x8 | 0x40 | 0x80, ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]),
        (0x2 | 0x10 | 0x100, ["applications_clocks_setting", "sync_boost", "display_clock_setting"]),
        (1 << 40, []),
    ],
)
def test_reasons_for_lower_clocks(bits: int, reasons: list[str]) -> None:
    assert sensors_of(UUID, lambda: Library(reasons=bits))() == {**WHOLE, "throttle_reasons": reasons}


@pytest.mark.parametrize("status", [NOT_SUPPORTED, NO_PERMISSION])
@pytest.mark.parametrize(
    ("function", "missing"),
    [
        ("nvmlDeviceGetFanSpeed", {"fan_percent": None}),
        ("nvmlDeviceGetPowerUsage", {"power_watts": None}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used_bytes": None, "memory_total_bytes": None}),
        ("nvmlDeviceGetUtilizationRates", {"utilization_gpu_percent": None, "utilization_memory_percent": None}),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"throttle_reasons": []}),
        ("nvmlDeviceGetName", {"name": None}),
    ],
)
def test_a_sensor_that_is_not_there_is_nothing(function: str, missing: dict[str, object], status: int) -> None:
    assert sensors_of(UUID, lambda: Library(reasons=1 << 40, faults={function: status}))() == {**WHOLE, **missing}


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTemperature"])
def test_a_fault_is_told_and_the_library_opened_again(function: str) -> None:
    library = Library(faults={function: GPU_IS_LOST})
    read = sensors_of(UUID, lambda: library)
    assert read() == unavailable("NVML: GPU is lost")
    library.faults.clear()
    assert read() == WHOLE


def test_a_gpu_that_nobody_knows() -> None:
    found = sensors_of("other", lambda: Library())()
    assert (found["available"], found["error"]) == (False, f"NVML: status {NOT_FOUND}")
    assert {found[name] for name in MEMBERS} == {None}


def test_no_library_and_no_gpu() -> None:
    def missing() -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert sensors_of(UUID, missing)() == unavailable("NVIDIA's management library (NVML) cannot be loaded")
    assert sensors_of(None, missing)() == unavailable("the server runs on the processor")


def test_of_a_driver_that_hangs_one_thread_waits_and_the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "SECONDS", 0.01)
    entered, goes_on = threading.Event(), threading.Event()

    def hang() -> Library:
        entered.set()
        assert goes_on.wait(20)
        return Library()

    read = sensors_of(UUID, hang)
    first: list[Record] = []
    thread = threading.Thread(target=lambda: first.append(read()))
    thread.start()
    assert entered.wait(20)
    assert read() == read() == unavailable("an earlier reading has not come to its end")
    goes_on.set()
    thread.join(20)
    assert first == [WHOLE]
    assert read() == WHOLE
