"""Query the GPU through NVML (nvidia-ml-py).

A query that the driver refuses returns `None` and never raises: GPUs, drivers and containers differ in what they allow.
`Gpu.open` finds the GPU that torch calls ``cuda:N``: NVML counts every GPU of the machine, torch only those that
``CUDA_VISIBLE_DEVICES`` shows, in an order of its own.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from attnbench.errors import Unavailable, refusal
from attnbench.machine.device import Device

MIB = 2**20

THROTTLE_WORDS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of nvmlClocksEventReasons; `idle` and `application clocks` are states, the others slow kernels down."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Another process that holds memory of the GPU."""

    pid: int
    name: str | None
    "of the program, without folder"
    memory_mb: float | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPU at one moment."""

    sm_mhz: int | None
    sm_max_mhz: int | None
    mem_mhz: int | None
    mem_max_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    celsius: int | None
    memory_used_mb: float | None
    memory_total_mb: float | None
    load_percent: int | None
    throttle: tuple[str, ...] | None
    "words of THROTTLE_WORDS; empty if nothing limits the clock"


class Gpu:
    """One GPU.  Every method queries the driver again and returns `None` if the driver refuses."""

    def __init__(self, nvml: Any, handle: Any, count: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self._instant_power = hasattr(nvml, "NVML_FI_DEV_POWER_INSTANT")
        self.count = count
        "GPUs in the machine, including hidden ones"

    @classmethod
    def open(cls, device: Device) -> Gpu:
        """Find the GPU behind a torch device.

        Args:
            device: a GPU, numbered as in torch.

        Raises:
            Unavailable: NVML does not answer, or does not know this GPU.
        """
        nvml = _load()
        try:
            count = nvml.nvmlDeviceGetCount()
            return cls(nvml, _handle(nvml, device, count), count)
        except nvml.NVMLError as error:
            raise Unavailable(f"nvml: device={device} is not known to the driver; {error}") from None

    @classmethod
    def by_uuid(cls, uuid: str) -> Gpu:
        """Find a GPU by its UUID, as NVML writes it (``GPU-…``).

        Raises:
            Unavailable: NVML does not answer, or does not know this GPU.
        """
        nvml = _load()
        try:
            return cls(nvml, _by_uuid(nvml, uuid), nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            raise Unavailable(f"nvml: uuid={uuid} is not known to the driver; {error}") from None

    def name(self) -> str | None:
        """The GPU's marketing name."""
        return _text(self._ask("nvmlDeviceGetName"))

    def uuid(self) -> str | None:
        """``GPU-…``."""
        return _text(self._ask("nvmlDeviceGetUUID"))

    def index(self) -> int | None:
        """Number of the GPU in ``nvidia-smi -i``."""
        return self._ask("nvmlDeviceGetIndex")

    def driver(self) -> str | None:
        """Version of the driver."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def driver_cuda(self) -> tuple[int, int] | None:
        """The newest CUDA version that the driver supports; None if it does not report it."""
        ask = getattr(self._nvml, "nvmlSystemGetCudaDriverVersion_v2", None)
        try:
            found = ask() if ask else None
        except self._nvml.NVMLError:
            return None
        return None if found is None else (found // 1000, found % 1000 // 10)

    def sm_mhz(self) -> int | None:
        """SM clock now."""
        return self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)

    def sm_max_mhz(self) -> int | None:
        """Maximum SM clock of the GPU."""
        return self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM)

    def mem_mhz(self) -> int | None:
        """Memory clock now."""
        return self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM)

    def mem_max_mhz(self) -> int | None:
        """Maximum memory clock of the GPU."""
        return self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_MEM)

    def power_w(self) -> float | None:
        """Board power now.

        Since Ampere the plain query is a mean over one second, so the instantaneous field is queried first.
        """
        if self._instant_power:
            fields = self._ask("nvmlDeviceGetFieldValues", [self._nvml.NVML_FI_DEV_POWER_INSTANT])
            if fields and fields[0].nvmlReturn == 0:
                return fields[0].value.uiVal / 1000
            self._instant_power = False
        return _thousandth(self._ask("nvmlDeviceGetPowerUsage"))

    def power_limit_w(self) -> float | None:
        """Power limit in force."""
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        return _thousandth(self._ask("nvmlDeviceGetPowerManagementLimit") if limit is None else limit)

    def celsius(self) -> int | None:
        """Temperature of the die."""
        heat = self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        if heat is None:  # the query that replaces it from CUDA 14 on
            heat = self._ask("nvmlDeviceGetTemperatureV", self._nvml.NVML_TEMPERATURE_GPU)
        return heat

    def memory_used_mb(self) -> float | None:
        """Memory in use by all processes, in MiB."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return None if memory is None else memory.used / MIB

    def memory_total_mb(self) -> float | None:
        """Memory of the GPU, in MiB."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return None if memory is None else memory.total / MIB

    def load_percent(self) -> int | None:
        """Share of the driver's last sample period in which a kernel ran."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.gpu

    def throttle(self) -> tuple[str, ...] | None:
        """What limits the clock now, in words."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 know the old name only
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else throttle_words(bits)

    def persistence(self) -> bool | None:
        """Whether the driver stays loaded between processes."""
        mode = self._ask("nvmlDeviceGetPersistenceMode")
        return None if mode is None else bool(mode)

    def other_processes(self) -> tuple[GpuProcess, ...] | None:
        """Processes on the GPU other than this one."""
        lists = [self._ask(f"nvmlDeviceGet{kind}RunningProcesses") for kind in ("Compute", "Graphics")]
        if all(found is None for found in lists):
            return None
        found = {process.pid: process for group in lists for process in group or () if process.pid != os.getpid()}
        return tuple(
            GpuProcess(pid, self._process_name(pid), _mib(process.usedGpuMemory))
            for pid, process in sorted(found.items())
        )

    def supported_clocks(self) -> dict[int, tuple[int, ...]] | None:
        """SM clocks that the GPU accepts for each memory clock, both descending; `None` if not reported."""
        memory = self._ask("nvmlDeviceGetSupportedMemoryClocks")
        if memory is None:
            return None
        clocks = {mhz: self._ask("nvmlDeviceGetSupportedGraphicsClocks", mhz) for mhz in sorted(memory, reverse=True)}
        return {mhz: tuple(sorted(sm, reverse=True)) for mhz, sm in clocks.items() if sm} or None

    def state(self) -> GpuState:
        """All values that change over time."""
        return GpuState(
            sm_mhz=self.sm_mhz(),
            sm_max_mhz=self.sm_max_mhz(),
            mem_mhz=self.mem_mhz(),
            mem_max_mhz=self.mem_max_mhz(),
            power_w=self.power_w(),
            power_limit_w=self.power_limit_w(),
            celsius=self.celsius(),
            memory_used_mb=self.memory_used_mb(),
            memory_total_mb=self.memory_total_mb(),
            load_percent=self.load_percent(),
            throttle=self.throttle(),
        )

    def lock_clocks(self, sm_mhz: int, mem_mhz: int | None) -> None:
        """Lock the clocks until `reset_clocks`; with None the memory clock is not changed.

        Raises:
            PermissionError: the user lacks the permission.
            Unavailable: the driver refuses for another reason.
        """
        self._do("nvmlDeviceSetGpuLockedClocks", sm_mhz, sm_mhz)
        if mem_mhz is not None:
            self._do("nvmlDeviceSetMemoryLockedClocks", mem_mhz, mem_mhz)

    def reset_clocks(self, *, memory: bool) -> None:
        """Reset the clocks to the driver's default.

        Raises:
            PermissionError: the user lacks the permission.
            Unavailable: the driver refuses for another reason.
        """
        self._do("nvmlDeviceResetGpuLockedClocks")
        if memory:
            self._do("nvmlDeviceResetMemoryLockedClocks")

    def _ask(self, query: str, *args: Any) -> Any:
        function = getattr(self._nvml, query, None)  # the binding may be older than the query
        if function is None:
            return None
        try:
            return function(self._handle, *args)
        except self._nvml.NVMLError:
            return None

    def _do(self, command: str, *args: Any) -> None:
        try:
            getattr(self._nvml, command)(self._handle, *args)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NO_PERMISSION:
                raise PermissionError(str(error)) from None
            raise Unavailable(f"nvml: {command} is refused; {error}") from None

    def _process_name(self, pid: int) -> str | None:
        try:
            name = _text(self._nvml.nvmlSystemGetProcessName(pid))
        except self._nvml.NVMLError:
            return None
        return PurePath(name.split(" ")[0]).name or None if name else None


def open_gpu(device: Device) -> Gpu | None:
    """Return `Gpu.open`, or None on a CPU or if NVML does not answer."""
    if not device.on_gpu:
        return None
    try:
        return Gpu.open(device)
    except Unavailable:
        return None


def throttle_words(bits: int) -> tuple[str, ...]:
    """Return the names of the bits of nvmlClocksEventReasons; an unknown bit is shown as hex."""
    return tuple(THROTTLE_WORDS.get(bit, hex(bit)) for bit in (1 << i for i in range(bits.bit_length())) if bits & bit)


def _load() -> Any:
    try:
        import pynvml
    except ImportError:
        raise Unavailable("nvml: module=pynvml is not installed; pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()  # reference-counted: a second call is free
    except pynvml.NVMLError as error:
        raise Unavailable(refusal("nvml", "driver", "none", f"answers ({error})", "an NVIDIA driver")) from None
    return pynvml


def _handle(nvml: Any, device: Device, count: int) -> Any:
    number = device.index
    visible = _visible(count)
    if len(visible) > 1:  # torch may order them by speed, so ask torch
        handle = _handle_from_torch(nvml, number)
        if handle is not None:
            return handle
    if number >= len(visible):
        raise Unavailable(f"nvml: device={device} is not there; {len(visible)} of {count} cards are visible")
    entry = visible[number]
    return nvml.nvmlDeviceGetHandleByIndex(entry) if isinstance(entry, int) else _by_uuid(nvml, entry)


def _visible(count: int) -> list[int | str]:
    """Return the NVML indices or UUIDs of CUDA_VISIBLE_DEVICES; the first invalid one ends the list, as in CUDA."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return list(range(count))
    visible: list[int | str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdecimal() and int(entry) < count:
            visible.append(int(entry))
        elif entry.startswith(("GPU-", "MIG-")):
            visible.append(entry)
        else:
            break
    return visible


def _handle_from_torch(nvml: Any, number: int) -> Any | None:
    import torch

    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return None
    props = torch.cuda.get_device_properties(number)
    uuid = getattr(props, "uuid", None)
    if uuid is not None:
        return _by_uuid(nvml, f"GPU-{str(uuid).removeprefix('GPU-')}")
    bus = f"{props.pci_domain_id:08X}:{props.pci_bus_id:02X}:{props.pci_device_id:02X}.0"
    return nvml.nvmlDeviceGetHandleByPciBusId(bus)


def _by_uuid(nvml: Any, uuid: str) -> Any:
    """CUDA_VISIBLE_DEVICES accepts any unambiguous prefix of a UUID, NVML only the whole."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if (_text(nvml.nvmlDeviceGetUUID(handle)) or "").startswith(uuid):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(uuid)


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _mib(value: int | None) -> float | None:
    return None if value is None or value >= sys.maxsize else value / MIB
