"""Paged HSTU attention as operators of PyTorch: `attnbench::hstu_paged_forward`, and `attnbench::hstu_paged_append`,
which changes the pool.

After the tensors come the bounds of a `Step` and the other arguments of `hstu_paged_attention`, the configuration by
name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from attnbench.kernels.hstu.paged.calls import (
    APPEND,
    ATTENTION,
    StepBounds,
    StepTensors,
    append,
    attend,
    check_config,
    check_device,
    check_numbers,
    named,
    step_of,
)
from attnbench.kernels.hstu.paged.problem import Step, check_step
from attnbench.kernels.shared.flops import forward_flops, has_no_values
from attnbench.kernels.shared.operators import Operator, no_gradients, where_known, without_gradients

TABLE = "Tensor offsets, Tensor cached, Tensor indptr, Tensor indices, Tensor? num_targets"
BOUNDS = "SymInt max_new, SymInt max_cached"
"""Together a step: `StepTensors`, then `StepBounds`."""


class Numbers(NamedTuple):
    """Arguments of `hstu_paged_attention` after the step."""

    scaling_seqlen: int
    alpha: float | None
    splits: int | None
    config: str | None


def split_arguments(rest: tuple[Any, ...]) -> tuple[Step, tuple[Any, ...]]:
    """The step at the beginning of these arguments, and the arguments after it."""
    tensors = len(StepTensors._fields)
    end = tensors + len(StepBounds._fields)
    return step_of(StepBounds(*rest[tensors:end]), rest[:tensors]), rest[end:]


def run_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> Tensor:
    """`out`."""
    step, numbers = split_arguments(rest)
    return attend(q, k, v, pool, step, *numbers)


def fake_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> Tensor:
    """Check the arguments during tracing; the result has no values.

    Raises:
        ValueError: as `hstu_paged_attention`, except for checks of addresses.
    """
    step, after = split_arguments(rest)
    numbers = Numbers(*after)
    with where_known():
        check_step(ATTENTION, {"q": q, "k": k, "v": v}, pool, step)
        check_numbers(numbers.scaling_seqlen, numbers.alpha, numbers.splits)
        if numbers.config is not None:
            check_config(named(numbers.config), q, pool)
        if not q.is_meta:
            check_device(ATTENTION, q)
    return q.new_empty(q.shape)


def forward_count(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> int:
    """FLOPs of the forward: of the new rows with the cached and the new ones."""
    step, _ = split_arguments(rest)

    def count(new: int, cached: int) -> int:
        return new * (new + cached)

    if has_no_values(step.cached):
        return forward_flops(q, v, step.cached.shape[0] * count(step.max_new, step.max_cached))
    return forward_flops(q, v, sum(map(count, step.offsets.diff().tolist(), step.cached.tolist())))


def run_append(k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> None:
    """Append to the pool."""
    step, _ = split_arguments(rest)
    append(k, v, pool, step)


def fake_append(k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> None:
    """Check the arguments during tracing.

    Raises:
        ValueError: as `hstu_paged_append` says.
    """
    step, _ = split_arguments(rest)
    with where_known():
        check_step(APPEND, {"k": k, "v": v}, pool, step)
        if not k.is_meta:
            check_device(APPEND, k)


FORWARD = Operator(
    f"hstu_paged_forward(Tensor q, Tensor k, Tensor v, Tensor pool, {TABLE}, {BOUNDS}, SymInt scaling_seqlen, "
    "float? alpha, SymInt? splits, str? config) -> Tensor",
    run_forward,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
    flops=forward_count,
)
APPENDS = Operator(
    f"hstu_paged_append(Tensor k, Tensor v, Tensor(a!) pool, {TABLE}, {BOUNDS}) -> ()", run_append, fake_append
)
