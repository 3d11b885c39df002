"""Functions that are differentiable once, for eager calls, with little host overhead."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.shared.limits import lies_in_rows

_Backward = Callable[..., tuple[Any, ...]]


class Differentiable(torch.autograd.Function):
    """A `torch.autograd.Function` that is called by `call`, for plain tensors outside of transforms."""

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """`apply` without its search for tensors of a finished transform, which `facts_of` refuses."""
        return super(torch.autograd.Function, cls).apply(*arguments)


def unreadable(tensors: Sequence[Tensor | None], by_rows: Container[int]) -> tuple[int, ...]:
    """Numbers of a backward's tensors that kernels do not read as they lie.

    Autograd lays out an output's gradient as it likes, and so does a hook of `torch.autograd.graph.saved_tensors_hooks`
    what was saved: sizes and values are as before, strides need not be.

    Args:
        tensors: of the backward.
        by_rows: numbers of those that are read by their strides, [..., rows, heads, dims]; the others are contiguous.
    """
    return tuple(
        number
        for number, x in enumerate(tensors)
        if x is not None and not (lies_in_rows(x) if number in by_rows else x.is_contiguous())
    )


def copied(tensors: Sequence[Tensor | None], numbers: Container[int]) -> list[Any]:
    """The same tensors, those of these numbers copied so that they are contiguous."""
    return [
        x.clone(memory_format=torch.contiguous_format) if x is not None and number in numbers else x
        for number, x in enumerate(tensors)
    ]


def once(backward: _Backward) -> _Backward:
    """Refuse a second derivative, which would otherwise be silently missing.

    If no second derivative is requested, `once_differentiable` only disables gradients, which the engine has done already.
    If one is, `once_differentiable` refuses it only if the output's gradient requires a gradient, but the results depend on
    the inputs too.  So it is called with output gradients that all require one.
    """
    refusing: _Backward = once_differentiable(backward)

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():
            return backward(ctx, *grads)
        return refusing(ctx, *(x if x is None or x.requires_grad else x.detach().requires_grad_() for x in grads))

    return run
