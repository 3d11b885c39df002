"""A call of the flash kernels without its tensors: checks, configurations, and the cached launches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import triton
from torch import Tensor

from attnbench.kernels.flash.backward import launch_backward, workspace_of
from attnbench.kernels.flash.config.backward import BackwardConfig, backward_config, nearest_backward
from attnbench.kernels.flash.config.decode import decode_config, is_decode
from attnbench.kernels.flash.config.defaults import forward_config, installed_triton
from attnbench.kernels.flash.config.forward import HOPPER, ForwardConfig
from attnbench.kernels.flash.config.space import Shape, ahead_fault, decode_fault, hopper_fault, nearest
from attnbench.kernels.flash.forward import launch_forward
from attnbench.kernels.flash.portable.forward import flash_forward
from attnbench.kernels.flash.problem import (
    Problem,
    bound_of_keys,
    bounded,
    bounds_of,
    check_device,
    check_values,
    like,
    problem_of,
    results_of,
    takes_tma,
)
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.gradients import Differentiable, by_operator, copied, is_watched, once, unreadable
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of
from attnbench.kernels.shared.limits import as_float, check_flags, lies_in_rows
from attnbench.kernels.shared.tiling import Grid, block_of

WHO = "flash_attention"
_Config = TypeVar("_Config", ForwardConfig, BackwardConfig)


def default_forward(q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> ForwardConfig:
    """Tuned default for these tensors on their card: `decode` for few queries, the Hopper path if it supports them."""
    repeats = q.shape[-2] // k.shape[-2]
    if is_decode(problem.max_seqlen_q, problem.max_seqlen_k, repeats):
        return decode_config(
            _capability(q),
            q.element_size(),
            max(q.shape[-1], v.shape[-1]),
            problem.max_seqlen_q * repeats,
            described=not problem.packed and takes_tma(k) and takes_tma(v),
        )
    # Its products have at least 32 columns, and the tiles of keys and values equal widths.
    block_d, block_v = block_of(q.shape[-1]), block_of(v.shape[-1])
    return forward_config(
        _capability(q),
        q.element_size(),
        max(q.shape[-1], v.shape[-1]),
        problem.max_seqlen_k,
        right=problem.right is not None,
        grid=Grid(problem.batch * q.shape[-2], problem.max_seqlen_q, processors(q)),
        hopper=block_d == block_v >= 32 and _hopper_takes(q, k, v),
        triton=installed_triton(),
    )


def default_backward(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, deterministic: bool = False
) -> BackwardConfig:
    """Tuned default for these tensors on their card: the Hopper path if it supports them."""
    return backward_config(
        _capability(q),
        q.element_size(),
        max(q.shape[-1], v.shape[-1]),
        deterministic=deterministic,
        packed=problem.packed,
        hopper=_hopper_takes(q, k, v),
    )


def _hopper_takes(*tensors: Tensor) -> bool:
    """Whether tensor maps can describe these tensors, and others that are allocated like them, for the kernels of sm_90."""
    if _capability(tensors[0]) != (9, 0):
        return False
    from attnbench.kernels.shared.hopper import is_rows

    return not [x for x in tensors if x.shape[-1] % 8 or not is_rows(x)]


def _capability(x: Tensor) -> tuple[int, int]:
    return capability_of(x) or (0, 0)


def _forward_of(given: ForwardConfig | str | None, q: Tensor, k: Tensor, v: Tensor, problem: Problem) -> ForwardConfig:
    return default_forward(q, k, v, problem) if given is None else given_forward(given, q, v, problem)


def given_forward(given: ForwardConfig | str, q: Tensor, v: Tensor, problem: Problem) -> ForwardConfig:
    """The forward's configuration that is passed.

    Raises:
        ValueError: it cannot be read, or cannot run on this card, in this precision or with these dims.
    """
    shape = Shape(
        dim=q.shape[-1],
        dim_v=v.shape[-1],
        item_bytes=q.element_size(),
        packed=problem.packed,
        capability=capability_of(q) or (9, 0),
    )
    config = _read("forward", ForwardConfig, given, lambda text: nearest(text, shape))
    wrong = ahead_fault(config, capability_of(q)) or decode_fault(config)
    if config.order in HOPPER:
        wrong = hopper_fault(config, shape)
    if wrong:
        raise ValueError(f"{WHO}: forward={config.short} {wrong}")
    return config


def _backward_of(
    given: BackwardConfig | str | None, q: Tensor, k: Tensor, v: Tensor, problem: Problem, deterministic: bool
) -> BackwardConfig:
    if given is None:
        return default_backward(q, k, v, problem, deterministic=deterministic)
    return given_backward(given, q, v, deterministic)


def given_backward(given: BackwardConfig | str, q: Tensor, v: Tensor, deterministic: bool) -> BackwardConfig:
    """The backward's configuration that is passed.

    Raises:
        ValueError: it cannot be read, or is not deterministic where this is wanted.
    """
    facts = capability_of(q) or (9, 0), q.element_size(), q.shape[-1], v.shape[-1]
    config = _read("backward", BackwardConfig, given, lambda text: nearest_backward(text, *facts))
    if deterministic and not config.deterministic:
        raise ValueError(
            f"{WHO}: backward={config.short} accumulates dQ by atomics, which deterministic=True excludes; "
            "one with r…, or None"
        )
    return config


def _read(name: str, kind: type[_Config], given: _Config | str, near: Callable[[str], str]) -> _Config:
    if isinstance(given, kind):
        return given
    if not isinstance(given, str):
        raise ValueError(
            f"{WHO}: {name}={repr(given)[:40]} is of type {type(given).__name__}; a {kind.__name__}, its name, or None"
        )
    try:
        return kind.parse(given)
    except ValueError as why:
        raise ValueError(f"{WHO}: {name}={given} {why}; the nearest valid one is {near(given)}") from None


def _takes_grad(grad: Tensor, config: BackwardConfig) -> bool:
    """Whether the kernels can read the output's gradient with its strides, which autograd chooses."""
    if config.order == "ws":
        from attnbench.kernels.shared.hopper import is_rows

        return is_rows(grad)
    return lies_in_rows(grad)


class Call:
    """A call without its tensors: its checked problem, and the cached launches of both directions."""

    __slots__ = ("backward", "config", "forward", "numbers", "problem")

    def __init__(
        self, problem: Problem, forward: ForwardConfig, backward: BackwardConfig, numbers: tuple[Any, ...]
    ) -> None:
        self.problem, self.config = problem.at(None, None), backward
        self.numbers = numbers
        "arguments of the operators after the tensors"
        self.forward = Launches(partial(_run_forward, self.problem, forward), JAGGED if problem.packed else DENSE)
        self.backward: Kept[tuple[tuple[int, ...], Launches]] = Kept()
        "keyed by `facts_of` the tensors: numbers of those that are copied first, and the launches"

    def gradients(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
    ) -> Results:
        """dq, dk and dv."""
        if dout.is_neg():
            dout = dout.resolve_neg()
        tensors = dout, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k
        jagged = DENSE_BACKWARD if cu_seqlens_q is None else BACKWARD_JAGGED
        key = facts_of(*tensors, jagged=jagged)
        found = self.backward.get(key)
        if found is None:
            launches = Launches(partial(_run_backward, self.problem, self.config), jagged)
            numbers = {*unreadable(tensors, by_rows=range(5)), *([] if _takes_grad(dout, self.config) else [0])}
            found = self.backward.keep(key, (tuple(numbers), launches))
        to_copy, launches = found
        return launches(*(copied(tensors, to_copy) if to_copy else tensors))


CALLS: Kept[Call] = Kept()
JAGGED = range(3)
BACKWARD_JAGGED = {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 2}
"Axes that are counted, for packed dout, q, k, v, out and lse (positions among the backward's tensors)."
DENSE, DENSE_BACKWARD = {1: 1, 2: 1}, {2: 1, 3: 1}
"The same for dense tensors: only k and v, which grow as a cache does."


def _run_forward(
    problem: Problem,
    config: ForwardConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Results:
    problem = problem.at(cu_seqlens_q, cu_seqlens_k, k)
    out, lse = results_of(q, v.shape[-1], problem)
    launch_forward(q, k, v, out, lse, problem, config)
    return out, lse


def _run_backward(
    problem: Problem,
    config: BackwardConfig,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Results:
    problem = problem.at(cu_seqlens_q, cu_seqlens_k, k)
    dq, dk, dv = (empty(like(x), x) for x in (q, k, v))
    workspace = workspace_of(q, problem, config)
    launch_backward(
        q=q,
        k=k,
        v=v,
        out=out,
        dout=dout,
        lse=lse,
        dq=dq,
        dk=dk,
        dv=dv,
        problem=problem,
        config=config,
        workspace=workspace,
    )
    return dq, dk, dv


class FlashAttention(Differentiable):
    """The differentiable call."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, call: Call
    ) -> Results:
        """Compute out and lse."""
        out, lse = call.forward(q, k, v, cu_seqlens_q, cu_seqlens_k)
        ctx.save_for_backward(q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
        ctx.call = call
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # lse has no gradient
        return out, lse

    @staticmethod
    @once
    def backward(
        ctx: Any, saved: tuple[Any, ...], dout: Tensor | None, _dlse: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the forward's arguments."""
        if dout is None:  # the output's gradient was not requested
            return (None,) * 6
        if is_watched():
            found = by_operator("flash_backward", (dout, *saved), ctx.call.numbers)
        else:
            found = ctx.call.gradients(dout, *saved)
        return *found, None, None, None


def call_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    causal: bool,
    window: tuple[int, int] | None,
    scale: float | None,
    deterministic: bool,
    forward: ForwardConfig | str | None,
    backward: BackwardConfig | str | None,
    *,
    validate: bool = False,
) -> Call:
    """The call for these arguments of `flash_attention`: cached, or checked and created.

    Raises:
        ValueError: as `flash_attention` says.
    """
    scale = None if scale is None else as_float(scale)
    packed, sides = cu_seqlens_q is not None, (len(window), *window) if isinstance(window, tuple | list) else (window,)
    bounds: tuple[Any, ...] = max_seqlen_q, max_seqlen_k
    bounds = bounds_of(q, k, *bounds) if packed else (*bounds, bound_of_keys(k))
    key = (
        facts_of(q, k, v, cu_seqlens_q, cu_seqlens_k, jagged=JAGGED if packed else DENSE),
        exact(causal, scale, *bounds, deterministic, forward, backward, *sides),
    )
    call = CALLS.get(key)
    if call is None or validate is not False:
        check_flags(WHO, causal=causal, deterministic=deterministic, validate=validate)
        problem = problem_of(
            q,
            k,
            v,
            causal=causal,
            window=window,
            scale=scale,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
        )
        if validate:
            check_values(problem, q, k)
        most_q, most_k = bounds if packed else (problem.max_seqlen_q, bounds[-1])
        problem = bounded(problem, (most_q, most_k), causal=causal, window=window)
        configs = _forward_of(forward, q, k, v, problem), _backward_of(backward, q, k, v, problem, deterministic)
        check_device(q, compiled=isinstance(flash_forward, triton.JITFunction))
        names = getattr(forward, "short", forward), getattr(backward, "short", backward)
        reach = None if window is None else tuple(window)  # the list that was passed may change
        given = *((most_q, most_k) if packed else (None, None)), causal, reach, scale, deterministic, *names
        call = CALLS.keep(key, Call(problem, *configs, given))
    return call
