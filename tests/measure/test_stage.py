"""The stage of a GPU, as far as it can be tested without one."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from attnbench.machine.device import Device  # noqa: E402 (after importorskip)
from attnbench.measure import probe, stage  # noqa: E402 (after importorskip)


def test_the_harness_compiles_its_kernels_for_the_device_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which need not be the one that is asked for."""
    current, made = ["cuda:0"], {}

    @contextmanager
    def device(name: str):
        current.append(name)
        yield
        current.pop()

    def make(name: str):
        return lambda *args, **kwargs: made.setdefault(name, current[-1])

    properties = SimpleNamespace(L2_cache_size=60 * 2**20, clock_rate=1_980_000)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(probe, "Flush", make("flush"))
    monkeypatch.setattr(probe, "Marker", make("marker"))
    with stage.open_stage(Device("cuda", 1), "cold"):
        assert current[-1] == "cuda:1"
    assert made == {"flush": "cuda:1", "marker": "cuda:1"}
    assert current == ["cuda:0"]
