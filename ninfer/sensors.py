"""What a GPU's sensors show, read through NVIDIA's management library (NVML) without a package for it.

The library comes with the driver. Its numbers are those of the NVML API reference; only functions of driver 450 and
later are called. Readings block for some milliseconds, and as long as the driver likes: never on the event loop.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_char, c_char_p, c_uint, c_ulonglong, c_void_p
from threading import Lock
from typing import Any

Record = dict[str, object]
ReadSensors = Callable[[], Record]

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 3, 4, 6
TEMPERATURE_OF_THE_GPU = 0
SM_CLOCK, MEMORY_CLOCK = 1, 2
TEXT_BYTES = 96
# How long a reading may take; of a driver that hangs, one thread waits for ever and no other.
SECONDS = 2.0

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons.
THROTTLE_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
)
MEMBERS = (
    *("name", "uuid", "driver_version", "temperature_c", "fan_percent", "power_watts", "power_limit_watts"),
    *("utilization_gpu_percent", "utilization_memory_percent", "sm_clock_mhz", "memory_clock_mhz"),
    *("memory_used_bytes", "memory_total_bytes"),
)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class SensorsUnavailable(Exception):
    """Why nothing can be read."""


def unavailable(why: str) -> Record:
    """A reading of sensors that cannot be read."""
    return {"available": False, "error": why, **dict.fromkeys(MEMBERS), "throttle_reasons": []}


def sensors_of(uuid: str | None = None, load: Callable[[], Any] | None = None) -> ReadSensors:
    """A function that reads the sensors of one GPU, from any thread; whatever goes wrong is told in its result.

    uuid   of the GPU as CUDA says it, without a prefix; None: the server runs on the processor
    load   opens the library
    """
    if uuid is None:
        return lambda: unavailable("the server runs on the processor")
    sensors = _Sensors(uuid, load or _library)

    def read() -> Record:
        try:
            return sensors.read()
        except SensorsUnavailable as error:
            return unavailable(str(error))

    return read


def _library() -> Any:
    return ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")


class _Sensors:
    """One GPU; the library is opened at the first reading, and again after one that failed."""

    def __init__(self, uuid: str, load: Callable[[], Any]) -> None:
        self._uuid = uuid
        self._load = load
        self._lock = Lock()
        self._nvml: Any = None
        self._device = c_void_p()

    def read(self) -> Record:
        if not self._lock.acquire(timeout=SECONDS):
            raise SensorsUnavailable("an earlier reading has not come to its end")
        try:
            if self._nvml is None:
                self._open()
            return self._reading()
        except SensorsUnavailable:
            self._nvml = None
            raise
        finally:
            self._lock.release()

    def _open(self) -> None:
        try:
            nvml = self._load()
        except OSError:
            raise SensorsUnavailable("NVIDIA's management library (NVML) cannot be loaded") from None
        nvml.nvmlErrorString.restype = c_char_p
        _check(nvml, nvml.nvmlInit_v2())
        # A part of a GPU (MIG) has a name of its own kind.
        for kind in ("GPU", "MIG"):
            status = nvml.nvmlDeviceGetHandleByUUID(f"{kind}-{self._uuid}".encode(), byref(self._device))
            if status != NOT_FOUND:
                break
        _check(nvml, status)
        self._nvml = nvml

    def _reading(self) -> Record:
        nvml, device = self._nvml, self._device
        used, memory, reasons = _Utilization(), _Memory(), c_ulonglong()
        has_use = _is_known(nvml, nvml.nvmlDeviceGetUtilizationRates(device, byref(used)))
        has_memory = _is_known(nvml, nvml.nvmlDeviceGetMemoryInfo(device, byref(memory)))
        has_reasons = _is_known(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device, byref(reasons)))
        told = enumerate(THROTTLE_REASONS)
        return {
            "available": True,
            "name": self._text(lambda text: nvml.nvmlDeviceGetName(device, text, c_uint(TEXT_BYTES))),
            "uuid": self._text(lambda text: nvml.nvmlDeviceGetUUID(device, text, c_uint(TEXT_BYTES))),
            "driver_version": self._text(lambda text: nvml.nvmlSystemGetDriverVersion(text, c_uint(TEXT_BYTES))),
            "temperature_c": self._number(
                lambda found: nvml.nvmlDeviceGetTemperature(device, c_uint(TEMPERATURE_OF_THE_GPU), found)
            ),
            "fan_percent": self._number(lambda found: nvml.nvmlDeviceGetFanSpeed(device, found)),
            "power_watts": _watts(self._number(lambda found: nvml.nvmlDeviceGetPowerUsage(device, found))),
            "power_limit_watts": _watts(
                self._number(lambda found: nvml.nvmlDeviceGetEnforcedPowerLimit(device, found))
            ),
            "utilization_gpu_percent": used.gpu if has_use else None,
            "utilization_memory_percent": used.memory if has_use else None,
            "sm_clock_mhz": self._number(lambda found: nvml.nvmlDeviceGetClockInfo(device, c_uint(SM_CLOCK), found)),
            "memory_clock_mhz": self._number(
                lambda found: nvml.nvmlDeviceGetClockInfo(device, c_uint(MEMORY_CLOCK), found)
            ),
            "memory_used_bytes": memory.used if has_memory else None,
            "memory_total_bytes": memory.total if has_memory else None,
            "throttle_reasons": [name for bit, name in told if has_reasons and reasons.value >> bit & 1],
        }

    def _number(self, call: Callable[[Any], int]) -> int | None:
        found = c_uint()
        return found.value if _is_known(self._nvml, call(byref(found))) else None

    def _text(self, call: Callable[[Any], int]) -> str | None:
        text = (c_char * TEXT_BYTES)()
        return text.value.decode(errors="replace") if _is_known(self._nvml, call(text)) else None


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _is_known(nvml: Any, status: int) -> bool:
    """Whether a sensor is there and may be read; raises SensorsUnavailable for any other fault."""
    if status in (NOT_SUPPORTED, NO_PERMISSION):
        return False
    _check(nvml, status)
    return True


def _check(nvml: Any, status: int) -> None:
    if status:
        why = nvml.nvmlErrorString(status)
        raise SensorsUnavailable(f"NVML: {why.decode(errors='replace')}")
