"""Queries of the GPU through NVML: mapping, units, and refused queries that give None."""

import dataclasses
import os
from types import SimpleNamespace

import pytest

from attnbench.errors import Unavailable
from attnbench.machine.device import CPU, Device
from attnbench.machine.nvml import Gpu, GpuProcess, GpuState, open_gpu, throttle_words


def test_every_figure_in_its_unit(nvml):
    gpu = Gpu.open(Device("cuda"))
    assert gpu.state() == GpuState(
        sm_mhz=345,
        sm_max_mhz=1980,
        mem_mhz=3201,
        mem_max_mhz=3201,
        power_w=136.5,
        power_limit_w=700.0,
        celsius=41,
        memory_used_mb=1024.0,
        memory_total_mb=143771.0,
        load_percent=37,
        throttle=("idle", "power cap"),
    )
    assert (gpu.name(), gpu.driver(), gpu.persistence(), gpu.index()) == ("NVIDIA H200", "580.95.05", False, 0)


def test_power_is_the_instant_where_the_card_has_it_else_the_mean(nvml):
    assert Gpu.open(Device("cuda")).power_w() == 136.5
    nvml.card(instant_mw=None)
    assert Gpu.open(Device("cuda")).power_w() == 120.0
    nvml.set(refuse=["nvmlDeviceGetFieldValues"])
    assert Gpu.open(Device("cuda")).power_w() == 120.0


def test_what_the_driver_refuses_is_none(nvml):
    gpu = Gpu.open(Device("cuda"))
    nvml.set(
        refuse=[
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetMaxClockInfo",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetEnforcedPowerLimit",
            "nvmlDeviceGetPowerManagementLimit",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
            "nvmlDeviceGetPersistenceMode",
            "nvmlDeviceGetName",
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetSupportedMemoryClocks",
            "nvmlSystemGetDriverVersion",
            "nvmlSystemGetCudaDriverVersion_v2",
        ]
    )
    assert set(dataclasses.astuple(gpu.state())) == {None}
    assert (gpu.persistence(), gpu.supported_clocks(), gpu.name(), gpu.driver()) == (None, None, None, None)
    assert gpu.driver_cuda() is None
    assert gpu.other_processes() == ()  # graphics still answers: nobody


def test_an_older_driver_knows_the_older_names(nvml):
    nvml.set(refuse=["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetEnforcedPowerLimit"])
    gpu = Gpu.open(Device("cuda"))
    assert gpu.throttle() == ("idle", "power cap")
    assert gpu.power_limit_w() == 700.0


def test_a_query_the_binding_lacks_is_none(nvml, monkeypatch):
    import pynvml

    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperature")
    assert Gpu.open(Device("cuda")).celsius() is None


def test_other_processes_without_own_and_without_folders(nvml):
    nvml.card(processes=[[4242, 512 * 2**20], [os.getpid(), 2**30], [77, None]])
    nvml.set(process_names={"4242": "/home/someone/venv/bin/python train.py", "77": "Xorg"})
    found = Gpu.open(Device("cuda")).other_processes()
    assert found == (GpuProcess(77, "Xorg", None), GpuProcess(4242, "python", 512.0))


def test_supported_clocks_fall(nvml):
    clocks = Gpu.open(Device("cuda")).supported_clocks()
    assert list(clocks) == [3201, 2619, 1593]
    assert clocks[1593] == (1980, 1200)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (0x4, ("power cap",)),
        (0x20 | 0x40 | 0x80, ("heat (software)", "heat (hardware)", "power brake")),
        (0x8 | 0x8000, ("hardware slowdown", "0x8000")),
    ],
)
def test_throttle_words(bits, words):
    assert throttle_words(bits) == words


@pytest.mark.parametrize(
    ("visible", "device", "number"),
    [
        (None, "cuda", 0),
        (None, "cuda:2", 2),
        ("2,0", "cuda:0", 2),
        ("2,0", "cuda:1", 0),
        ("1", "cuda", 1),
        ("GPU-00000001-aaaa-bbbb-cccc-000000000000", "cuda", 1),
        ("GPU-00000002,0", "cuda:0", 2),
        ("0,9,1", "cuda", 0),
    ],
)
def test_the_card_behind_the_torch_index(nvml, monkeypatch, visible, device, number):
    uuids = [Gpu.open(Device("cuda")).uuid(), nvml.add("NVIDIA H200", 1), nvml.add("NVIDIA H100 PCIe", 2)]
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Gpu.open(Device.parse(device)).uuid() == uuids[number]


@pytest.mark.parametrize(("visible", "device", "count"), [("", "cuda", 0), ("-1", "cuda", 0), ("0,9,1", "cuda:1", 1)])
def test_a_hidden_card_is_not_there(nvml, monkeypatch, visible, device, count):
    nvml.add("NVIDIA H200", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    card = Device.parse(device)
    with pytest.raises(Unavailable, match=f"^nvml: device={card} is not there; {count} of 2 cards are visible$"):
        Gpu.open(card)


@pytest.mark.parametrize("by", ["uuid", "bus"])
def test_torch_orders_its_cards_by_speed(nvml, monkeypatch, by):
    """CUDA puts the fastest first: torch's cuda:0 is then not NVML's 0."""
    import torch

    slow, fast = nvml.card()["uuid"], nvml.add("NVIDIA B200", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    order = [(fast, 0x19), (slow, 0x18)]

    def properties(number):
        uuid, bus = order[number]
        if by == "uuid":
            return SimpleNamespace(uuid=uuid.removeprefix("GPU-"))
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert [Gpu.open(Device("cuda", n)).uuid() for n in range(2)] == [fast, slow]


def test_no_driver(no_driver):
    with pytest.raises(Unavailable, match=r"^nvml: driver=none answers \(Driver Not Loaded\); an NVIDIA driver$"):
        Gpu.open(Device("cuda"))
    assert open_gpu(Device("cuda")) is None


def test_a_cpu_is_no_gpu(nvml):
    assert open_gpu(CPU) is None
    assert open_gpu(Device("cuda")).name() == "NVIDIA H200"


def test_unknown_uuid(nvml):
    with pytest.raises(Unavailable, match="uuid=GPU-nobody is not known to the driver; Not Found"):
        Gpu.by_uuid("GPU-nobody")
