"""Functions that are differentiable once, for eager calls, with little host overhead."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_Backward = Callable[..., tuple[Any, ...]]


class Differentiable(torch.autograd.Function):
    """A `torch.autograd.Function` that is called by `call`, for plain tensors outside of transforms."""

    @classmethod
    def call(cls, *arguments: Any) -> Any:
        """`apply` without its search for tensors of a finished transform, which `facts_of` refuses."""
        return super(torch.autograd.Function, cls).apply(*arguments)


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
