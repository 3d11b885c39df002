"""Paged HSTU attention as operators of PyTorch: `attnbench::hstu_paged_forward`, and `attnbench::hstu_paged_append`,
which changes the pool.

Arguments after the tensors are the bounds of a `Step` and those of `hstu_paged_attention`, the configuration by name.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnbench.kernels.hstu.paged.calls import (
    APPEND,
    ATTENTION,
    StepBounds,
    append,
    attend,
    check_device,
    check_numbers,
    named,
    step_of,
)
from attnbench.kernels.hstu.paged.problem import Step, check_step
from attnbench.kernels.shared.operators import Operator, no_gradients, without_gradients

TABLE = "Tensor offsets, Tensor cached, Tensor indptr, Tensor indices, Tensor? num_targets"
BOUNDS = "SymInt max_new, SymInt max_cached"
GIVEN = len(f"{TABLE}, {BOUNDS}".split(","))
"Arguments that make a `Step`."


def parted(rest: tuple[Any, ...]) -> tuple[Step, tuple[Any, ...]]:
    """The step that arguments begin with, and those after it."""
    *table, max_new, max_cached = rest[:GIVEN]
    return step_of(StepBounds(max_new=max_new, max_cached=max_cached), table), rest[GIVEN:]


def run_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> Tensor:
    """`out`."""
    step, numbers = parted(rest)
    return attend(q, k, v, pool, step, *numbers)


def fake_forward(q: Tensor, k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> Tensor:
    """Check the arguments while a caller is traced; a result without values.

    Raises:
        ValueError: as `hstu_paged_attention` says, but for what hangs on addresses.
    """
    step, (scaling_seqlen, alpha, splits, config) = parted(rest)
    check_step(ATTENTION, {"q": q, "k": k, "v": v}, pool, step)
    check_numbers(scaling_seqlen, alpha, splits)
    if config is not None:
        named(config)
    check_device(ATTENTION, q)
    return q.new_empty(q.shape)


def run_append(k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> None:
    """Change the pool."""
    step, _ = parted(rest)
    append(k, v, pool, step)


def fake_append(k: Tensor, v: Tensor, pool: Tensor, *rest: Any) -> None:
    """Check the arguments while a caller is traced.

    Raises:
        ValueError: as `hstu_paged_append` says.
    """
    step, _ = parted(rest)
    check_step(APPEND, {"k": k, "v": v}, pool, step)
    check_device(APPEND, k)


FORWARD = Operator(
    f"hstu_paged_forward(Tensor q, Tensor k, Tensor v, Tensor pool, {TABLE}, {BOUNDS}, SymInt scaling_seqlen, "
    "float? alpha, SymInt? splits, str? config) -> Tensor",
    run_forward,
    fake_forward,
    setup=without_gradients,
    backward=no_gradients,
)
APPENDS = Operator(
    f"hstu_paged_append(Tensor k, Tensor v, Tensor(a!) pool, {TABLE}, {BOUNDS}) -> ()", run_append, fake_append
)
