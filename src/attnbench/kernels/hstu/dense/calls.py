"""A call of dense HSTU attention without its tensors: checks, configurations, and the cached launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attnbench.kernels.hstu.arguments import Parts
from attnbench.kernels.hstu.dense.backward import launch_backward, workspace_shape
from attnbench.kernels.hstu.dense.configs import (
    BackwardConfig,
    ForwardConfig,
    backward_config,
    forward_config,
    hopper_columns_config,
    hopper_forward_config,
)
from attnbench.kernels.hstu.dense.forward import launch_forward
from attnbench.kernels.hstu.dense.hopper.tiles import LEAST_ALPHA
from attnbench.kernels.hstu.dense.portable.forward import hstu_dense_forward
from attnbench.kernels.hstu.dense.problem import (
    WHO,
    Problem,
    alpha_of,
    check_device,
    check_tensors,
    check_types,
    check_values,
    default_alpha,
    wrong,
)
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.gradients import Differentiable, by_operator, copied, is_watched, once, unreadable
from attnbench.kernels.shared.hopper import is_rows
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of, rows_in
from attnbench.kernels.shared.limits import check_flags
from attnbench.kernels.shared.tiling import Grid


def default_forward(q: Tensor, k: Tensor, v: Tensor, max_seqlen: int, *, grid: Grid | None = None) -> ForwardConfig:
    """Tuned default for these tensors on their card: the Hopper kernel's if it supports them, else the portable one's.

    Args:
        q: [Tq, H, D]; its card, dtype, dims and strides count.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        max_seqlen: most rows of a sequence.
        grid: as `triangle_grid`; None: more tiles than the card has SMs.
    """
    hopper = None
    if all(map(is_rows, (q, k, v))):
        hopper = hopper_forward_config(_capability(q), q.element_size(), q.shape[2], v.shape[2], max_seqlen, grid)
    return hopper or forward_config(*_shape(q, v), max_seqlen)


def default_backward(
    q: Tensor, k: Tensor, v: Tensor, max_seqlen: int, *, deterministic: bool, alpha: float | None = None, pairs: int = 1
) -> BackwardConfig:
    """Tuned default for these tensors on their card: the Hopper kernel's if it supports them, else the portable one's.

    Args:
        q: [Tq, H, D]; its card, dtype, dims and strides count.
        k: [Tk, H, D].
        v: [Tk, H, Dv].
        max_seqlen: most rows of a sequence.
        deterministic: whether sums have a fixed order, which those of the Hopper kernel do not.
        alpha: factor of the scores; None: 1 / sqrt(D).  Between 0 and 1e-30 the Hopper kernel cannot mask.
        pairs: heads of all sequences.
    """
    hopper = None
    small = 0 < abs(default_alpha(q) if alpha is None else alpha) < LEAST_ALPHA
    if not deterministic and not small and all(map(is_rows, (q, k, v))):
        hopper = hopper_columns_config(_capability(q), q.element_size(), q.shape[2], v.shape[2], max_seqlen, pairs)
    found = (
        BackwardConfig(columns=hopper, rows=None)
        if hopper
        else backward_config(*_shape(q, v), max_seqlen, deterministic=deterministic)
    )
    return _precise(found, q.dtype)


def configs_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen: int,
    changes: Mapping[str, Any],
    *,
    alpha: float | None = None,
    grid: Grid | None = None,
    pairs: int = 1,
) -> tuple[ForwardConfig, BackwardConfig]:
    """Tuned defaults with changes: ``deterministic`` (a boolean), and fields of the configurations by kernel.

    A kernel without changes keeps its default, which may be the Hopper kernel's.  A kernel with changes starts from the
    portable default, so that fields that are not changed do not depend on which kernel a card prefers.

    Args:
        q: its card, dtype, dims and strides count.
        k: the same.
        v: the same.
        max_seqlen: most rows of a sequence.
        changes: such as ``{"forward": {"block_m": 64}, "deterministic": True, "rows": {"warps": 4}}``; the
            column kernel is ``atomic``, or ``columns`` if deterministic.
        alpha: factor of the scores; None: 1 / sqrt(D).
        grid: as `triangle_grid`.
        pairs: heads of all sequences.
    """
    deterministic = changes.get("deterministic", False)
    forward = default_forward(q, k, v, max_seqlen, grid=grid)
    if rows := changes.get("forward"):
        forward = replace(forward_config(*_shape(q, v), max_seqlen), **rows)
    backward = default_backward(q, k, v, max_seqlen, deterministic=deterministic, alpha=alpha, pairs=pairs)
    columns = changes.get("columns" if deterministic else "atomic", {})
    if columns:
        backward = _precise(backward_config(*_shape(q, v), max_seqlen, deterministic=deterministic), q.dtype)
    if columns.get("order") == "ws":
        columns = {"split": False} | columns  # the Hopper kernel holds dK and dV at once, for all dims
    return forward, BackwardConfig(
        columns=replace(backward.columns, **columns),
        rows=backward.rows and replace(backward.rows, **changes.get("rows", {})),
    )


def _precise(config: BackwardConfig, dtype: torch.dtype) -> BackwardConfig:
    if dtype != torch.float16:
        return config
    # tanh.approx is off by 2⁻¹¹, and the slope multiplies that by the score: several times the error budget of fp16.
    return BackwardConfig(
        columns=replace(config.columns, silu="exp"), rows=config.rows and replace(config.rows, silu="exp")
    )


def _shape(q: Tensor, v: Tensor) -> tuple[tuple[int, int], int, int]:
    return _capability(q), q.element_size(), max(q.shape[2], v.shape[2])


def _capability(x: Tensor) -> tuple[int, int]:
    compiled = isinstance(hstu_dense_forward, triton.JITFunction)
    return (capability_of(x) if compiled else None) or (0, 0)


TABLE = ("offsets", "offsets_q", "num_targets")
"Fields of a `Problem` that are tensors."


class Call:
    """A call without its tensors: the numbers of its checked problem, and the cached launches of both directions."""

    __slots__ = ("backward", "config", "forward", "numbers", "problem_at")

    def __init__(
        self, problem: Problem, forward: ForwardConfig, backward: BackwardConfig, numbers: tuple[Any, ...] | None
    ) -> None:
        self.problem_at, self.config = _without_tensors(problem), backward
        self.numbers = numbers
        "arguments of the operators after the tensors; None: configurations were passed, which they do not take"
        self.forward = Launches(partial(_run_forward, self.problem_at, forward))
        self.backward: Kept[tuple[tuple[int, ...], Launches]] = Kept()
        "keyed by `facts_of` the tensors: numbers of those that are copied first, and the launches"

    def gradients(self, dout: Tensor, *others: Tensor | None) -> Results:
        """dq, dk and dv of the tensors of `_run_backward`."""
        if dout.is_neg():
            dout = dout.resolve_neg()
        tensors = dout, *others
        key = facts_of(*tensors, jagged=range(4))
        found = self.backward.get(key)
        if found is None:
            launches = Launches(partial(_run_backward, self.problem_at, self.config))
            described = not self.config.columns.hopper or is_rows(dout)
            numbers = {*unreadable(tensors, by_rows=range(4)), *([] if described else [0])}
            found = self.backward.keep(key, (tuple(numbers), launches))
        to_copy, launches = found
        return launches(*(copied(tensors, to_copy) if to_copy else tensors))


CALLS: Kept[Call] = Kept()


def _without_tensors(problem: Problem) -> Callable[..., Problem]:
    """The problem as a function of its tensors, which are arguments of a repeated call."""
    return partial(Problem, **{name: getattr(problem, name) for name in Problem.__slots__ if name not in TABLE})


def _run_forward(
    problem_at: Callable[..., Problem], config: ForwardConfig, q: Tensor, k: Tensor, v: Tensor, *table: Tensor | None
) -> Results:
    out = empty((rows_in(q), q.shape[1], v.shape[2]), q)
    launch_forward(q, k, v, out, problem_at(**dict(zip(TABLE, table, strict=True))), config)
    return (out,)


def _run_backward(
    problem_at: Callable[..., Problem],
    config: BackwardConfig,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *table: Tensor | None,
) -> Results:
    dq, dk, dv = (empty((rows_in(x), *x.shape[1:]), x) for x in (q, k, v))
    problem = problem_at(**dict(zip(TABLE, table, strict=True)))
    shape = workspace_shape(q, problem, config)
    workspace = None if shape is None else empty(shape, q, torch.float32)
    launch_backward(q=q, k=k, v=v, dout=dout, dq=dq, dk=dk, dv=dv, problem=problem, config=config, workspace=workspace)
    return dq, dk, dv


class HstuAttention(Differentiable):
    """The differentiable call."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: Tensor,
        offsets_q: Tensor | None,
        num_targets: Tensor | None,
        call: Call,
    ) -> Tensor | None:
        """Compute the output."""
        (out,) = call.forward(q, k, v, offsets, offsets_q, num_targets)
        ctx.save_for_backward(q, k, v, offsets, offsets_q, num_targets)
        ctx.call = call
        return out

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Any, ...], dout: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the forward's arguments."""
        if is_watched():
            found = by_operator("hstu_backward", (dout, *saved), ctx.call.numbers)
        else:
            found = ctx.call.gradients(dout, *saved)
        return *found, None, None, None, None


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    num_targets: Tensor | None,
    max_seqlen: int,
    max_seqlen_q: int | None,
    alpha: float | None,
    scaling_seqlen: int | None,
    causal: bool,
    contextual_len: int,
    max_attn_len: int | None,
) -> Problem:
    """The problem of these arguments of `hstu_attention`, checked without reading tensor values.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    check_types({"q": q, "k": k, "v": v, "offsets": offsets, "offsets_q": offsets_q, "num_targets": num_targets}, alpha)
    problem = Problem(
        offsets=offsets,
        offsets_q=offsets_q,
        num_targets=num_targets,
        max_seqlen=max_seqlen,
        max_seqlen_q=max_seqlen if max_seqlen_q is None else max_seqlen_q,
        alpha=alpha_of(alpha, q),
        scaling_seqlen=max_seqlen or 1 if scaling_seqlen is None else scaling_seqlen,
        causal=causal,
        contextual_len=contextual_len,
        max_attn_len=max_attn_len,
    )
    check_tensors(q, k, v, problem)
    return problem


def call_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    num_targets: Tensor | None,
    max_seqlen: int,
    max_seqlen_q: int | None,
    alpha: float | None,
    scaling_seqlen: int | None,
    causal: bool,
    contextual_len: int,
    max_attn_len: int | None,
    deterministic: bool,
    forward: ForwardConfig | None = None,
    backward: BackwardConfig | None = None,
    *,
    validate: bool = False,
) -> Call:
    """The call for these arguments of `hstu_attention`: cached, or checked and created.

    Raises:
        ValueError: as `hstu_attention`.
    """
    numbers = max_seqlen, max_seqlen_q, alpha, scaling_seqlen, causal, contextual_len, max_attn_len, deterministic
    facts = facts_of(q, k, v, offsets, offsets_q, num_targets, jagged=range(3))
    key = facts, exact(*numbers, forward, backward)
    call = CALLS.get(key)
    if call is None or validate is not False:
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        problem = problem_of(
            q=q,
            k=k,
            v=v,
            offsets=offsets,
            offsets_q=offsets_q,
            num_targets=num_targets,
            max_seqlen=max_seqlen,
            max_seqlen_q=max_seqlen_q,
            alpha=alpha,
            scaling_seqlen=scaling_seqlen,
            causal=causal,
            contextual_len=contextual_len,
            max_attn_len=max_attn_len,
        )
        if validate:
            check_values(q, k, v, problem)
        configs = _configs(q, k, v, problem, forward, backward, deterministic)
        check_device(q, compiled=isinstance(hstu_dense_forward, triton.JITFunction))
        given = None if forward or backward else (*numbers[:2], problem.alpha, *numbers[3:])
        call = CALLS.keep(key, Call(problem, *configs, given))
    return call


def _configs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    forward: ForwardConfig | None,
    backward: BackwardConfig | None,
    deterministic: bool,
) -> tuple[ForwardConfig, BackwardConfig]:
    """The configurations that were passed, or the tuned defaults.

    Raises:
        ValueError: one has another type, or is not deterministic although that was requested.
    """
    for name, given, kind in (("forward", forward, ForwardConfig), ("backward", backward, BackwardConfig)):
        if given is not None and not isinstance(given, kind):
            raise wrong(name, repr(given)[:40], f"is of type {type(given).__name__}", f"a {kind.__name__}, or None")
    forward = forward or default_forward(q, k, v, problem.max_seqlen, grid=problem.grid(q))
    backward = backward or default_backward(
        q, k, v, problem.max_seqlen, deterministic=deterministic, alpha=problem.alpha, pairs=problem.batch * q.shape[1]
    )
    if deterministic and not backward.deterministic:
        raise wrong(
            "backward.columns.atomic",
            True,
            "is not deterministic, as deterministic=True requires",
            "columns and rows, or None",
        )
    return forward, backward


class _PartsCall(NamedTuple):
    """A call that returns partial sums."""

    launches: Launches
    scale: float
    shuffled: bool


PARTS: Kept[_PartsCall] = Kept()


def attend_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
    max_seqlen: int,
    max_seqlen_q: int | None,
    alpha: float | None,
    scaling_seqlen: int | None,
    causal: bool,
) -> Parts:
    """The partial sums of these arguments of `hstu_attention_parts`, by its tuned default configuration.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    key = (
        facts_of(q, k, v, offsets, offsets_q, jagged=range(3)),
        exact(max_seqlen, max_seqlen_q, alpha, scaling_seqlen, causal),
    )
    call = PARTS.get(key)
    if call is None:
        problem = problem_of(
            q=q,
            k=k,
            v=v,
            offsets=offsets,
            offsets_q=offsets_q,
            num_targets=None,
            max_seqlen=max_seqlen,
            max_seqlen_q=max_seqlen_q,
            alpha=alpha,
            scaling_seqlen=scaling_seqlen,
            causal=causal,
            contextual_len=0,
            max_attn_len=None,
        )
        check_device(q, compiled=isinstance(hstu_dense_forward, triton.JITFunction))
        config = default_forward(q, k, v, problem.max_seqlen, grid=problem.grid(q))
        launches = Launches(partial(_run_parts, _without_tensors(problem), config))
        call = PARTS.keep(key, _PartsCall(launches, 1 / problem.scaling_seqlen, config.hopper))
    (sums,) = call.launches(q, k, v, offsets, offsets_q)
    assert sums is not None
    return Parts(sums, call.scale, call.shuffled)


def _run_parts(
    problem_at: Callable[..., Problem],
    config: ForwardConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    offsets_q: Tensor | None,
) -> Results:
    return (launch_forward(q, k, v, None, problem_at(offsets=offsets, offsets_q=offsets_q, num_targets=None), config),)
