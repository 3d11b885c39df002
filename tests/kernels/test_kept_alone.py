"""Each argument of a kept call changed alone, by mistake or on purpose: refused in the same words, or launched as if new."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.hstu.paged.api import Step

from .launches import Card, on_no_card
from .test_kept import CALLS, forget, launches_of

NUMBERS = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    64,
    1.0,
    0.3,
    float("nan"),
    2**31,
    10**400,
    "x",
    (1, 2),
    [],
    (None,),
    torch.tensor(3),
)


def other_tensors(x: torch.Tensor) -> Iterator[Any]:
    """What somebody may give in place of a tensor: no tensor, another shape, other strides, precision or place."""
    yield from (None, "x", 3)
    for axis, extent in enumerate(x.shape):
        for count in {extent + 1, 1, 0} - {extent}:
            yield x.new_zeros((*x.shape[:axis], count, *x.shape[axis + 1 :]))
        if extent > 1:
            yield x.narrow(axis, 0, 1).expand(x.shape)
            twice = x.new_zeros((*x.shape[:axis], 2 * extent, *x.shape[axis + 1 :]))
            yield twice.narrow(axis, 0, extent)
            yield twice[(*[slice(None)] * axis, slice(None, None, 2))]
    if x.dim() > 2:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)
        yield x.transpose(0, 1)
    yield x[None]
    yield x.reshape(-1)[: x.numel() // 2]
    for offset in (1, 8):
        moved = x.new_zeros(x.numel() + offset)[offset:].view(x.shape)
        yield moved.copy_(x)
    yield from (x.to(dtype) for dtype in (torch.float16, torch.float32, torch.float64, torch.int64) if dtype != x.dtype)
    yield x.to("meta")
    yield x.to_sparse()


def others(value: Any) -> Iterator[Any]:
    """What somebody may give in place of a value."""
    if isinstance(value, Step):
        for name in Step.__slots__:
            for one in others(getattr(value, name)):
                yield replace(value, **{name: one})
    else:
        yield from other_tensors(value) if isinstance(value, torch.Tensor) else NUMBERS


def outcome(card: Card, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """What a call launches, or the one line with which it is refused."""
    try:
        return launches_of(card, function, given)
    except ValueError as why:
        return str(why)


@pytest.mark.parametrize("name", CALLS)
def test_each_argument_changed_alone_is_seen(name):
    function, make = CALLS[name]
    kinds = set()
    with on_no_card() as card:
        given = make()
        for argument, parameter in inspect.signature(function).parameters.items():
            for value in others(given.get(argument, parameter.default)):
                changed = given | {argument: value}
                card.held.clear()
                forget()
                truth = outcome(card, function, changed)
                forget()
                for _ in range(2):
                    function(**given)
                found = [outcome(card, function, changed) for _ in range(2)]
                if value is None or not isinstance(value, torch.Tensor) or value.numel():
                    assert found == [truth] * 2, (argument, value)
                else:  # of a workspace of no bytes the address is anything
                    assert [isinstance(one, str) for one in found] == [isinstance(truth, str)] * 2, argument
                assert "\n" not in truth
                kinds.add(type(truth))
    assert kinds == {str, list}
