"""What a call with its backward costs the host: calls of Python, allocations and clearings; workspaces in few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

import triton

from attnbench.kernels.hstu.dense.calls import call_of
from attnbench.kernels.hstu.dense.configs import BackwardConfig, ColumnConfig
from attnbench.kernels.shared import kept

from .launches import on_no_card
from .test_kept import CALLS, python_calls, rows


def differentiated(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A call with its backward, and what it is given."""
    function, make = CALLS[name]
    given = make() | {x: make()[x].detach().requires_grad_() for x in "qkv"}
    dout = rows(*given["q"].shape)

    def both() -> None:
        out = function(**given)
        torch.autograd.grad(out if isinstance(out, torch.Tensor) else out[0], [given[x] for x in "qkv"], dout)

    return both, given


@pytest.mark.parametrize(("name", "most"), [("flash", 50), ("dense", 50), ("bsa", 50)])
def test_a_warm_backward_makes_few_calls_of_python(name, most):
    """What a call and its backward make more than an empty function of autograd's and its own."""

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return q.detach()

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors

    with on_no_card() as card:
        both, given = differentiated(name)
        floor = [given[x] for x in "qkv"]
        for _ in range(2):
            both()
        before = card.through_triton
        counted = python_calls(both)
        assert card.through_triton == before
        least = python_calls(lambda: torch.autograd.grad(Empty.apply(*floor), floor, rows(*floor[0].shape)))
        assert len(counted) - len(least) <= most, counted


def allocations(monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any]) -> tuple[int, int]:
    """How often a call allocates, and clears."""
    counts = {"new_empty": 0, "new_empty_strided": 0, "zero_": 0}

    def counting(name: str) -> Callable[..., Any]:
        method = getattr(torch.Tensor, name)

        def run(x, *given, **named):
            counts[name] += 1
            return method(x, *given, **named)

        return run

    with monkeypatch.context() as patch:
        for name in counts:
            patch.setattr(torch.Tensor, name, counting(name))
        function()
    return counts["new_empty"] + counts["new_empty_strided"], counts["zero_"]


@pytest.mark.parametrize(("name", "times"), [("flash", (7, 1)), ("dense", (6, 2)), ("bsa", (13, 1))])
def test_a_warm_call_allocates_results_and_few_workspaces(monkeypatch, name, times):
    with on_no_card():
        both, _ = differentiated(name)
        for _ in range(2):
            both()
        assert allocations(monkeypatch, both) == times


@pytest.mark.parametrize(("nheads", "clearings"), [(1, 0), (3, 1)])
def test_a_repeated_serial_backward_is_one_launch(monkeypatch, nheads, clearings):
    """Two sequences for two programs, or more, which then share a cleared tile counter."""
    columns = ColumnConfig(block_m=64, block_n=128, warps=8, stages=2, atomic=True, order="ws", serial=True)
    tensors = [rows(64, nheads, 64) for _ in range(3)]
    given = *tensors, torch.tensor([0, 30, 64]), None, None
    numbers = 34, None, None, None, True, 0, None, False, None, BackwardConfig(columns=columns, rows=None)
    with on_no_card() as card:
        call = call_of(*given, *numbers)
        for _ in range(2):
            call.gradients(rows(64, nheads, 64), *given)
        before, many = card.through_triton, len(card.launched)
        dout = rows(64, nheads, 64)
        assert allocations(monkeypatch, lambda: call.gradients(dout, *given))[1] == clearings
        ((_, grid, _),) = card.launched[many:]
        assert (card.through_triton, grid) == (before, (2, 1, 1))


@triton.jit
def touch(x_ptr, y_ptr):
    """Launched on no card."""


def test_workspaces_are_cleared_where_the_first_call_cleared_them(monkeypatch):
    """One that was used before keeps its place among the launches; the others are cleared at once."""

    def function(x):
        early, late, twice, result = (kept.empty((5,), x, torch.float32) for _ in range(4))
        kept.clear(early)
        kept.launch(touch, (1,), x, late)
        kept.clear(late)
        kept.clear(twice)
        for y in (late, early, twice, result):
            kept.launch(touch, (1,), x, y)
        kept.clear(twice)
        kept.launch(touch, (1,), x, twice)
        return (result,)

    zero = torch.Tensor.zero_
    with on_no_card() as card:
        monkeypatch.setattr(
            torch.Tensor, "zero_", lambda x: card.launched.append(("clear", x.data_ptr(), x.nbytes)) or zero(x)
        )
        launches, x = kept.Launches(function), torch.zeros(5)
        launches(x)
        assert launches.fault is None
        card.launched.clear()
        (result,) = launches(x)
        assert card.through_triton == 6
        cleared, *rest = card.launched
        names = {result.data_ptr(): "result"}
        order = ["late", "clear late", "clear twice", "late", "early", "twice", "result", "clear twice", "twice"]
        assert len(rest) == len(order)
        for name, one in zip(order, rest, strict=True):
            address = one[1] if one[0] == "clear" else one[2][1]
            assert (one[0] == "clear") == name.startswith("clear")
            assert names.setdefault(address, name.removeprefix("clear ")) == name.removeprefix("clear ")
        assert len(names) == 4
        assert cleared[0] == "clear"
        (early,) = (address for address, name in names.items() if name == "early")
        assert cleared[1] <= early < early + 20 <= cleared[1] + cleared[2]


def test_workspaces_do_not_overlap_and_are_aligned():
    parts = kept._Parts([0, 1, 512, 513, 4])
    assert parts.offsets == (0, 0, 512, 1024, 2048)
    assert parts.words == (2048 + 512) // 4


@pytest.mark.parametrize("differentiable", [True, False], ids=["of a gradient", "of the inputs alone"])
@pytest.mark.parametrize("name", ["flash", "dense", "bsa"])
def test_a_second_derivative_is_refused(name, differentiable):
    function, make = CALLS[name]
    with on_no_card():
        given = make()
        q = given["q"] = given["q"].detach().requires_grad_()
        out = function(**given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        dout = rows(*q.shape).requires_grad_(differentiable)
        (grad,) = torch.autograd.grad(out, q, dout, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            (grad.square().sum() + q.sum()).backward()
        # Asked for by name, the engine runs only what leads there: a Hessian was 0.
        out = function(**given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        (grad,) = torch.autograd.grad(out, q, dout, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiable once"):
            torch.autograd.grad(grad.square().sum(), q)
        grad.zero_()
