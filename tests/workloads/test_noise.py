"""The random errors of Monte Carlo arithmetic: as large as rounding, each with numbers of its own, drawn in pieces."""

from __future__ import annotations

import pytest
import torch

from attnbench.workloads import noise
from attnbench.workloads.noise import Noise
from attnbench.workloads.rounding import Format

NUMBERS = Format.of(torch.bfloat16)
CPU = torch.device("cpu")


def changed(count: int, shape: tuple[int, ...] = (40, 50)) -> torch.Tensor:
    """The relative change of each element of so many sums, one after another."""
    ones, found = torch.ones(shape, dtype=torch.float64), []
    with Noise(NUMBERS, CPU):
        for _ in range(count):
            found.append(ones + 0.0)
    return torch.stack(found) - 1


@pytest.fixture(params=[1, 7_000, 2**16], ids=["each apart", "some operations", "all at once"])
def piece(request, monkeypatch):
    monkeypatch.setattr(noise, "PIECE", request.param)


@pytest.mark.usefixtures("piece")
def test_a_stored_result_is_off_by_as_much_as_rounding_and_no_two_are_off_alike():
    off = changed(60).flatten(1)
    assert off.square().mean().item() == pytest.approx(NUMBERS.store, rel=0.1)
    assert abs(off.mean().item()) < 0.1 * NUMBERS.store**0.5
    # Of 60 changes of 2,000 elements any two would be equal up to signs if they had the same numbers.
    alike = torch.corrcoef(off.abs()).fill_diagonal_(0.0).abs()
    assert alike.max().item() < 0.7


@pytest.mark.usefixtures("piece")
def test_the_same_operations_have_the_same_errors():
    assert torch.equal(changed(5), changed(5))
    assert not torch.equal(*changed(2))


def test_many_operations_share_a_draw(monkeypatch):
    drawn = []
    for name in ("_normal", "_signs"):
        draw = getattr(noise, name)
        monkeypatch.setattr(noise, name, lambda count, of, draw=draw: drawn.append(count) or draw(count, of))
    changed(100)
    assert len([count for count in drawn if count]) == 2
    changed(2, (1, 2**16 + 1))  # wider than a piece
    assert max(drawn) == 2**16 + 1
