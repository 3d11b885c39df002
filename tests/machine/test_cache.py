"""Cache sizes from sysfs and from torch."""

from types import SimpleNamespace

import pytest

from attnbench.machine import cache
from attnbench.machine.device import CPU, Device


def fill(folder, cpu, *caches):
    for number, (level, kind, size, shared) in enumerate(caches):
        index = folder / f"cpu{cpu}" / "cache" / f"index{number}"
        index.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (index / name).write_text(f"{value}\n")


@pytest.fixture
def cpus(monkeypatch):
    def usable(*numbers):
        monkeypatch.setattr(cache, "_usable_cpus", lambda: list(numbers))

    return usable


def test_the_last_level_counts_once_however_many_share_it(tmp_path, cpus):
    for cpu in (0, 1):
        fill(
            tmp_path,
            cpu,
            (1, "Data", "48K", cpu),
            (1, "Instruction", "32K", cpu),
            (2, "Unified", "2M", cpu),
            (3, "Unified", "33M", "0-1"),
        )
    cpus(0, 1)
    assert cache.last_level_bytes(tmp_path) == 33 * 2**20


def test_two_sockets_have_two_and_one_of_them_may_be_out_of_reach(tmp_path, cpus):
    for cpu in (0, 1):
        fill(tmp_path, cpu, (2, "Unified", "1024K", cpu), (3, "Unified", "7M", cpu))
    cpus(0, 1)
    assert cache.last_level_bytes(tmp_path) == 14 * 2**20
    cpus(1)
    assert cache.last_level_bytes(tmp_path) == 7 * 2**20


@pytest.mark.parametrize("caches", [[], [(3, "Unified", "lots", "0")], [(1, "Instruction", "32K", "0")]])
def test_what_is_not_told_is_none(tmp_path, cpus, caches):
    fill(tmp_path, 0, *caches)
    cpus(0)
    assert cache.last_level_bytes(tmp_path) is None


def test_a_gpu_says_it_through_torch(monkeypatch):
    import torch

    sizes = {"cuda:0": 60 * 2**20, "cuda:1": 0}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=sizes[str(device)])
    )
    assert cache.l2_bytes(Device("cuda")) == 62_914_560
    assert cache.l2_bytes(Device("cuda", 1)) is None


def test_this_machine():
    size = cache.l2_bytes(CPU)
    assert size is None or 2**15 <= size <= 2**34
