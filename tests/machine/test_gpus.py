"""The GPUs of `--gpus`, on a machine where torch sees three."""

from __future__ import annotations

import pytest

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.machine.gpus import chosen_gpus


@pytest.fixture
def three(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


def test_all_and_numbers(three):
    assert chosen_gpus("x", "all") == tuple(Device("cuda", index) for index in range(3))
    assert chosen_gpus("x", "2, 0") == (Device("cuda", 2), Device("cuda", 0))


def test_one_that_is_not_there_is_named(three):
    with pytest.raises(
        Unavailable, match=r"^x: --gpus=0,3 names GPU 3, which is not there; 0 to 2, as torch counts them$"
    ):
        chosen_gpus("x", "0,3")


def test_a_number_of_gpus_is_answered_with_what_it_may_mean(three):
    said = r"--gpus=3 names GPU 3, which is not there; 0 to 2, as torch counts them; did you mean 0,1,2, which is 3 GPUs\?$"
    with pytest.raises(Unavailable, match=said):
        chosen_gpus("x", "3")
    with pytest.raises(Unavailable, match=r"as torch counts them$"):
        chosen_gpus("x", "4")


def test_one_gpu_is_number_0(monkeypatch):
    monkeypatch.setattr("attnbench.machine.gpus.count_gpus", lambda: 1)
    said = r"--gpus=1 names GPU 1, which is not there; 0 to 0, as torch counts them; did you mean 0, which is the only GPU\?$"
    with pytest.raises(Unavailable, match=said):
        chosen_gpus("x", "1")


def test_no_gpu_at_all_says_why(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match=r"^x: --gpus=all is for GPUs, and there is none; .*; --device cpu$"):
        chosen_gpus("x", "all")
