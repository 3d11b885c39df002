"""A pynvml whose cards live in a JSON file, so that several processes see the same ones.

`FAKE_NVML` names the file; without it there is no driver.  Only what attnbench asks is here, with
the signatures of nvidia-ml-py.  See fake_card.py for the fields.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_FI_DEV_POWER_INSTANT = 186
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 3, 4, 6, 9
WORDS = {3: "Not Supported", 4: "Insufficient Permissions", 6: "Not Found", 9: "Driver Not Loaded"}


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return WORDS[self.value]


@contextmanager
def _state(function=None):
    """The machine; changes are written back.  A function on its refuse list is refused."""
    path = os.environ.get("FAKE_NVML")
    if path is None:
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    with Path(path).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        if function in state["refuse"]:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        before = json.dumps(state)
        yield state
        if json.dumps(state) != before:
            file.seek(0)
            json.dump(state, file)
            file.truncate()


def _card(handle, function):
    with _state(function) as state:
        return state["gpus"][handle]


def nvmlInit():
    with _state():
        pass


def nvmlSystemGetDriverVersion():
    with _state("nvmlSystemGetDriverVersion") as state:
        return state["driver"]


def nvmlSystemGetCudaDriverVersion_v2():
    with _state("nvmlSystemGetCudaDriverVersion_v2") as state:
        return state.get("driver_cuda", 13000)


def nvmlSystemGetProcessName(pid):
    with _state("nvmlSystemGetProcessName") as state:
        return state["process_names"].get(str(pid), "unheard-of").encode()  # older bindings answer bytes


def nvmlDeviceGetCount():
    with _state() as state:
        return len(state["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    with _state() as state:
        if index >= len(state["gpus"]):
            raise NVMLError(NVML_ERROR_NOT_FOUND)
    return index


def _find(key, value):
    with _state() as state:
        for index, card in enumerate(state["gpus"]):
            if card[key] == value:
                return index
    raise NVMLError(NVML_ERROR_NOT_FOUND)


def nvmlDeviceGetHandleByUUID(uuid):
    return _find("uuid", uuid)


def nvmlDeviceGetHandleByPciBusId(bus):
    return _find("bus", bus)


def nvmlDeviceGetName(handle):
    return _card(handle, "nvmlDeviceGetName")["name"]


def nvmlDeviceGetUUID(handle):
    return _card(handle, "nvmlDeviceGetUUID")["uuid"]


def nvmlDeviceGetIndex(handle):
    return handle


def nvmlDeviceGetClockInfo(handle, kind):
    return _card(handle, "nvmlDeviceGetClockInfo")["sm_mhz" if kind == NVML_CLOCK_SM else "mem_mhz"]


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return _card(handle, "nvmlDeviceGetMaxClockInfo")["sm_max_mhz" if kind == NVML_CLOCK_SM else "mem_max_mhz"]


def nvmlDeviceGetFieldValues(handle, fields):
    card = _card(handle, "nvmlDeviceGetFieldValues")
    instant = card["instant_mw"]
    return [
        SimpleNamespace(nvmlReturn=3 if instant is None else 0, value=SimpleNamespace(uiVal=instant or 0))
        for _ in fields
    ]


def nvmlDeviceGetPowerUsage(handle):
    return _card(handle, "nvmlDeviceGetPowerUsage")["mean_mw"]


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return _card(handle, "nvmlDeviceGetEnforcedPowerLimit")["limit_mw"]


def nvmlDeviceGetPowerManagementLimit(handle):
    return _card(handle, "nvmlDeviceGetPowerManagementLimit")["limit_mw"]


def nvmlDeviceGetTemperature(handle, sensor):
    return _card(handle, "nvmlDeviceGetTemperature")["celsius"]


def nvmlDeviceGetMemoryInfo(handle):
    card = _card(handle, "nvmlDeviceGetMemoryInfo")
    return SimpleNamespace(used=card["used"], total=card["total"])


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_card(handle, "nvmlDeviceGetUtilizationRates")["load"])


def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return _card(handle, "nvmlDeviceGetCurrentClocksEventReasons")["reasons"]


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return _card(handle, "nvmlDeviceGetCurrentClocksThrottleReasons")["reasons"]


def nvmlDeviceGetPersistenceMode(handle):
    return _card(handle, "nvmlDeviceGetPersistenceMode")["persistence"]


def nvmlDeviceGetComputeRunningProcesses(handle):
    found = _card(handle, "nvmlDeviceGetComputeRunningProcesses")["processes"]
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]


def nvmlDeviceGetGraphicsRunningProcesses(handle):
    return []


def nvmlDeviceGetSupportedMemoryClocks(handle):
    return [int(mhz) for mhz in _card(handle, "nvmlDeviceGetSupportedMemoryClocks")["clocks"]]


def nvmlDeviceGetSupportedGraphicsClocks(handle, memory):
    return _card(handle, "nvmlDeviceGetSupportedGraphicsClocks")["clocks"][str(memory)]


def _change(handle, function, **fields):
    with _state(function) as state:
        state["calls"].append([function, handle, *(value for value in fields.values() if value)])
        time.sleep(state["slow_s"])
        if state["permission"]:
            state["gpus"][handle].update(fields)
    if not state["permission"]:
        raise NVMLError(NVML_ERROR_NO_PERMISSION)


def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    assert low == high
    _change(handle, "nvmlDeviceSetGpuLockedClocks", locked_sm=high)


def nvmlDeviceResetGpuLockedClocks(handle):
    _change(handle, "nvmlDeviceResetGpuLockedClocks", locked_sm=None)


def nvmlDeviceSetMemoryLockedClocks(handle, low, high):
    assert low == high
    _change(handle, "nvmlDeviceSetMemoryLockedClocks", locked_mem=high)


def nvmlDeviceResetMemoryLockedClocks(handle):
    _change(handle, "nvmlDeviceResetMemoryLockedClocks", locked_mem=None)
