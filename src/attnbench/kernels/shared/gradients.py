"""Functions that are differentiable once, for eager calls, with little host overhead."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

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


def is_watched() -> bool:
    """Whether a backward goes through its operator: compiled autograd traces it, or a dispatch mode sees it."""
    return torch.compiler.is_dynamo_compiling() or bool(torch._C._len_torch_dispatch_stack())


def by_operator(name: str, tensors: Iterable[Tensor | None], numbers: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """Gradients by the operator of this name.

    Raises:
        ValueError: there are no numbers, because configurations were passed, which the operator does not take.
    """
    if numbers is None:
        where = "where a compiler traces or a dispatch mode such as a counter is on"
        raise ValueError(f"{name}: a configuration is given; None, the tuned default, {where}")
    found: tuple[Any, ...] = getattr(torch.ops.attnbench, name).default(*tensors, *numbers)
    return found


class _Refusal(torch.autograd.Function):
    """Gradients as they are, of which there is no derivative by what they were computed from."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Not views, which a caller could not change in place.
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("trying to differentiate twice a function that is differentiable once")


def once(backward: _Backward) -> _Backward:
    """Refuse a second derivative, which would otherwise be silently missing.

    `once_differentiable` attaches its refusal to the output's gradient alone.  The results depend on the inputs too, and
    the engine runs no node that does not lead to a tensor it was asked for: then a Hessian would be 0.  So the refusal
    leads to every tensor that was saved.

    Args:
        backward: of ctx, the tensors that were saved, and the gradients.  `torch.utils.checkpoint` lets these tensors be read
            once, so it must not read them from ctx.
    """

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return backward(ctx, saved, *grads)
        with torch.no_grad():
            found = backward(ctx, saved, *grads)
        causes = [x for x in (*saved, *grads) if x is not None and x.requires_grad]
        computed = [x for x in found if x is not None]
        if not causes or not computed:
            return found
        refusing = iter(_Refusal.apply(len(computed), *computed, *causes))
        return tuple(x if x is None else next(refusing) for x in found)

    return run
