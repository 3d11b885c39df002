"""How a rank times a call on a GPU, with a clock and a GPU that are pretended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from attnbench.machine.device import Device
from attnbench.parallel import rank as room

KHZ = 1_000_000


@pytest.fixture
def rank(monkeypatch):
    """A rank without a process group; `held_ms` says how long the device was held before each call."""
    now, held_ms = [0.0], []
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.0)
    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(clock_rate=KHZ),
        _sleep=lambda cycles: held_ms.append(cycles / KHZ),
        Event=lambda enable_timing: event,
        synchronize=lambda: None,
        empty_cache=lambda: None,
    )
    monkeypatch.setattr(room.time, "perf_counter", lambda: now[0])
    one = object.__new__(room.Rank)
    one.torch, one.dist = SimpleNamespace(cuda=cuda), SimpleNamespace(all_reduce=lambda token: None)
    one.device, one.group = Device("cuda", 0), SimpleNamespace(device=torch.device("cpu"))
    one.token, one.flush, one.queued_s, one.whole = torch.ones(1), torch.zeros(0), {}, {}

    def queues(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    one.form = SimpleNamespace(run=queues(0.003))
    one.phases = {"exchange": queues(0.001)}
    one.held_ms = held_ms
    return one


def test_the_device_is_held_as_long_as_the_same_call_took_to_queue(rank):
    """And not the last one: a call that follows a short phase would start before all of it is queued."""
    for phase in (None, None, "exchange", "exchange", None):
        assert rank.run(phase) == {"ms": 1.0}
    assert rank.held_ms == pytest.approx([0.1, 3.7, 3.7, 1.3, 3.7])
    rank.close()
    assert not rank.queued_s
