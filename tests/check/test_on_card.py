"""Misbehaviour that needs a GPU: other streams, and freed blocks of the allocator."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Budget
from attnbench.check.examine import examine
from attnbench.check.poison import bits, poison_free_memory
from attnbench.check.reference import References
from check import launches
from check.launches import Session, SumCase, SumWorkload

pytestmark = pytest.mark.gpu

WORKLOAD = SumWorkload()
CYCLES = 20_000_000
"About 10 ms of a spinning kernel."


def run(make):
    case = SumCase(dtype="fp16")
    group = References(WORKLOAD, case, *(WORKLOAD.inputs(case, seed=seed, device="cuda") for seed in (1, 2)))
    return examine(make(case, group.first.inputs).launch(), group, variant="mean", budget=Budget())


class SideStream(Session):
    """Computes on another stream, and lets the current one wait for it only if told to."""

    joins = False
    stream = None

    def forward(self):
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        self.result = {name: torch.empty_like(self.inputs.x) for name in ("out", "dx")}
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(CYCLES)
            for name, tensor in self.compute().items():
                self.result[name].copy_(tensor)
        if self.joins:
            torch.cuda.current_stream().wait_stream(self.stream)


class Joined(SideStream):
    joins = True


class EmptyTail(Session):
    """Leaves the end of freshly allocated outputs as it got them."""

    def forward(self):
        self.result = {}
        for name, tensor in self.compute().items():
            self.result[name] = torch.empty_like(tensor)
            self.result[name].view(-1)[:-20] = tensor.reshape(-1)[:-20]


class LeavesStream(Session):
    def forward(self):
        super().forward()
        torch.cuda.current_stream().synchronize()
        torch.cuda.set_stream(torch.cuda.Stream())


@pytest.mark.parametrize("make", [Session, launches.Buffered, Joined])
def test_the_honest_pass(make):
    outcome = run(make)
    assert outcome.ok, outcome.reason
    assert outcome.notes == ()


def test_a_stream_that_is_not_waited_for():
    assert "unfinished work: " in run(SideStream).reason


def test_fresh_memory_that_is_not_written():
    # Which words it gets depends on the block the allocator hands out: poison, or what lay there before.
    assert run(EmptyTail).reason.startswith(("out: never written: ", "out: wrong values: "))


def test_a_stream_left_current_is_put_back():
    stream = torch.cuda.current_stream()
    outcome = run(LeavesStream)
    assert outcome.ok
    assert any(note.startswith("global left changed: current CUDA stream") for note in outcome.notes)
    assert torch.cuda.current_stream() == stream


@pytest.mark.parametrize("elements", [1, 1000, 300_000, 5_000_001])
def test_the_allocator_hands_out_poison(elements):
    like = torch.empty(elements, device="cuda")
    poison_free_memory([like], like.device)
    assert bool((bits(torch.empty(elements, device="cuda")) == -1).all())
