"""The share of a data sheet's peak in a worker's record."""

from __future__ import annotations

import pytest

from attnbench.machine.device import Device
from attnbench.machine.peaks import peak
from attnbench.record import Work
from attnbench.worker.outcome import percent_of_peak


@pytest.mark.parametrize(("flops", "executed", "counted"), [
    (2 * 10**12, None, 2 * 10**12), (2 * 10**12, 3 * 10**12, 2 * 10**12), (2 * 10**12, 10**12, 10**12)])  # fmt: skip
def test_a_share_counts_executed_work_where_that_is_less(monkeypatch, flops, executed, counted):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    found = percent_of_peak(Work(flops=flops, bytes=10, executed_flops=executed), 10.0, "bf16", Device("cuda"))
    assert found == pytest.approx(100 * counted / peak("NVIDIA H200", "bf16").tflops / 1e9 / 10.0)


def test_what_is_left_out_moves_no_fewer_bytes(monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    found = percent_of_peak(Work(flops=10**12, bytes=10**10, executed_flops=10), 10.0, "bf16", Device("cuda"))
    assert found == pytest.approx(100 * 10**10 / peak("NVIDIA H200", "bf16").memory_tbps / 1e9 / 10.0)
