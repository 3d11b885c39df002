"""Measured ceilings on the CPU: measured once, with no settings or memory left behind."""

import pytest
import torch

from attnbench.check.globals import GlobalState
from attnbench.machine import ceilings
from attnbench.machine.device import CPU, Device


@pytest.fixture(autouse=True)
def fresh():
    ceilings.copy_gbps.cache_clear()
    ceilings.matmul_tflops.cache_clear()


def test_they_are_measured_once_a_process():
    first = ceilings.ceilings(CPU, "fp32")
    assert 0 < first["copy_gbps"] < 10_000
    assert 0 < first["matmul_tflops"] < 100
    assert ceilings.ceilings(CPU, "fp32") == first


def test_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    monkeypatch.setattr(ceilings, "_best", lambda call, device, launches: 1.0)
    assert ceilings.copy_gbps(CPU) == 2 * ceilings._copy_bytes(CPU) / 1e9


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_matmul_counts_two_flops_a_product(monkeypatch, dtype):
    monkeypatch.setattr(ceilings, "_best", lambda call, device, launches: 0.5)
    assert ceilings.matmul_tflops(CPU, dtype) == pytest.approx(2 * 256**3 / 0.5 / 1e12)


def test_a_dtype_no_matmul_takes_is_none():
    assert ceilings.ceilings(CPU, "fp8")["matmul_tflops"] is None


def test_no_memory_is_none(monkeypatch):
    def full(*args):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(ceilings, "_best", full)
    assert ceilings.ceilings(CPU, "fp32") == {"copy_gbps": None, "matmul_tflops": None}


def test_nothing_global_is_left_changed():
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    state = GlobalState.capture()
    ceilings.ceilings(CPU, "fp32")
    assert state.restore() == []
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_precision_that_was_chosen_is_put_back(precision):
    whole = GlobalState.capture()
    try:
        torch.set_float32_matmul_precision(precision)
        chosen = GlobalState.capture()
        ceilings.ceilings(CPU, "fp32")
        assert chosen.restore() == []
        assert torch.get_float32_matmul_precision() == precision
    finally:
        whole.restore()


@pytest.mark.gpu
def test_on_the_card():
    found = ceilings.ceilings(Device("cuda"), "bf16")
    assert 100 < found["copy_gbps"] < 20_000
    assert 5 < found["matmul_tflops"] < 5_000
