"""One thread, because the tensors are tiny and the machine is shared; no waits without late work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from attnbench.check import examine


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(examine, "SETTLE_S", 0.0)
