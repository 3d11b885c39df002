"""Peak memory on a CPU, where every allocation is known."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from attnbench.machine.device import CPU, Device  # noqa: E402 (after importorskip)
from attnbench.measure.memory import Peak, peak  # noqa: E402 (after importorskip)


def test_the_peak_is_what_lives_at_one_time() -> None:
    a = torch.ones(1000, 1000)

    def call() -> None:
        b = a + 1
        del b
        c = a + 2
        d = c * 2
        del c, d

    # Two tensors of 4 MB; the operands 1 and 2 are tensors of a few bytes.
    assert 8_000_000 <= peak(call, CPU).allocated < 8_000_100


def test_what_was_there_before_does_not_count() -> None:
    a = torch.ones(500)
    assert peak(lambda: a.add_(1), CPU).allocated < 100
    assert peak(lambda: None, CPU).reserved is None


def test_torchs_compiler_is_not_imported_for_it(monkeypatch) -> None:
    """A second of every worker's start, and of every replacement of one that died."""
    for name in ("_inductor", "_dynamo"):
        monkeypatch.delattr(torch, name, raising=False)
        monkeypatch.setitem(sys.modules, f"torch.{name}", None)
    assert peak(lambda: torch.ones(1000), CPU).allocated == 4000


def test_on_a_gpu_both_figures_are_above_what_was_there(monkeypatch) -> None:
    for name, answer in {
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 700,
        "memory_reserved": 1000,
        "max_memory_allocated": 900,
        "max_memory_reserved": 1500,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)
    assert peak(lambda: None, Device("cuda")) == Peak(allocated=200, reserved=500)
    # Room in blocks that were there already is no less the call's.
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *args: 1000)
    assert peak(lambda: None, Device("cuda")) == Peak(allocated=200, reserved=200)
