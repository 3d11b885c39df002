"""A block-sparse HSTU call without its tensors: checks, configuration, and the cached launches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.hstu.bsa.backward import BsaGradients, backward
from attnbench.kernels.hstu.bsa.forward import forward
from attnbench.kernels.hstu.bsa.inputs import WHO, BsaTensors, check, check_kinds, problem_of
from attnbench.kernels.hstu.bsa.plan import (
    BsaConfig,
    Shapes,
    backward_shapes,
    default_config,
    forward_shapes,
    saved_shapes,
)
from attnbench.kernels.hstu.bsa.problem import BsaProblem
from attnbench.kernels.hstu.dense.problem import alpha_of
from attnbench.kernels.shared.gradients import Differentiable, by_operator, copied, is_watched, once, unreadable
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, exact, facts_of, rows_in
from attnbench.kernels.shared.limits import check_flags


class Call:
    """A call without its tensors: its checked problem, its configuration, and the cached launches of both directions."""

    __slots__ = ("backward", "config", "forward", "numbers", "problem")

    def __init__(self, problem: BsaProblem, config: BsaConfig, numbers: Numbers | None) -> None:
        self.problem, self.config, self.numbers = problem, config, numbers
        "numbers: of the operators; None: a configuration was passed, which they do not take"
        self.forward = Launches(partial(_run_forward, problem, config))
        self.backward: Kept[tuple[tuple[int, ...], Launches]] = Kept()
        "keyed by `facts_of` the tensors: numbers of those that are copied first, and the launches"

    def gradients(self, dout: Tensor, *others: Tensor | None) -> Results:
        """dq, dk, dv and dgates of the tensors of `_run_backward`."""
        if dout.is_neg():
            dout = dout.resolve_neg()
        tensors = dout, *others
        key = facts_of(*tensors, jagged=BACKWARD_JAGGED)
        found = self.backward.get(key)
        if found is None:
            launches = Launches(partial(_run_backward, self.problem, self.config))
            found = self.backward.keep(key, (unreadable(tensors, by_rows=(0, 2, 3, 4)), launches))
        to_copy, launches = found
        return launches(*(copied(tensors, to_copy) if to_copy else tensors))


CALLS: Kept[Call] = Kept()
JAGGED = range(4)
BACKWARD_JAGGED = dict.fromkeys(range(6), 0) | dict.fromkeys(range(9, 13), 1)
"Axes that are counted: of dout, the blocks, q, k, v and gates, and, after three tensors of the table, of `saved_shapes`."


def _counted(problem: BsaProblem, tensors: BsaTensors) -> BsaProblem:
    """The problem with its numbers of rows counted in each call."""
    rows: dict[str, Any] = {"queries": rows_in(tensors.q), "keys": rows_in(tensors.k)}
    return replace(problem, **rows)


def _room_for(shapes: Shapes, like: Tensor) -> dict[str, Tensor]:
    return {name: empty(shape, like, dtype) for name, (shape, dtype) in shapes.items()}


def _run_forward(problem: BsaProblem, config: BsaConfig, *given: Tensor | None) -> Results:
    tensors = BsaTensors(*given)
    p, q = _counted(problem, tensors), tensors.q
    out = empty((p.queries, p.heads, p.linear_dim), q)
    blocks = empty((p.queries, p.list_heads, p.block_counts), q, torch.int32)
    saved = _room_for(saved_shapes(p, config), q)
    forward(tensors.call(p, config, out, blocks, saved | _room_for(forward_shapes(p, config), q)))
    return out, blocks, *saved.values()


def _run_backward(
    problem: BsaProblem, config: BsaConfig, dout: Tensor, blocks: Tensor, *given: Tensor | None
) -> Results:
    inputs = len(BsaTensors._fields)
    tensors = BsaTensors(*given[:inputs])
    p, q = _counted(problem, tensors), tensors.q
    saved = dict(zip(saved_shapes(p, config), given[inputs:], strict=True))
    dq, dk, dv = (empty((rows_in(x), *x.shape[1:]), x) for x in (q, tensors.k, tensors.v))
    dgates = None if tensors.gates is None else empty((p.queries, *tensors.gates.shape[1:]), tensors.gates)
    backward(
        BsaGradients(
            # The backward does not read the output; `blocks` takes its place.
            call=tensors.call(p, config, blocks, blocks, saved),
            dout=dout,
            dq=dq,
            dk=dk,
            dv=dv,
            dgates=dgates,
            workspace=_room_for(backward_shapes(p, config), q),
        )
    )
    return dq, dk, dv, dgates


SAVED = 1 + len(BsaTensors._fields) + 4
"Most tensors that are saved: the blocks, those of a call, and `operators.Saved`."


class HstuBsaAttention(Differentiable):
    """The differentiable call."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gates: Tensor | None,
        offsets: Tensor,
        offsets_q: Tensor | None,
        num_targets: Tensor | None,
        call: Call,
    ) -> Results:
        """Compute out and blocks."""
        given = q, k, v, gates, offsets, offsets_q, num_targets
        out, blocks, *saved = call.forward(*given)
        ctx.save_for_backward(blocks, *given, *saved)
        ctx.call = call
        ctx.mark_non_differentiable(blocks)
        ctx.set_materialize_grads(False)  # the selection has no gradient
        return out, blocks

    @staticmethod
    @once
    def backward(ctx: Any, saved: tuple[Any, ...], dout: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        """Gradients of the forward's arguments."""
        if dout is None:  # the output's gradient was not requested
            return (None,) * 8
        if is_watched():
            blocks, q, k, v, gates, *rest = saved
            missing = (blocks.new_empty(0) for _ in range(SAVED - len(saved)))  # the lists, where no block is selected
            tensors = dout, blocks, q, k, v, gates, *rest, *missing
            dq, dk, dv, dgates = by_operator("hstu_bsa_backward", tensors, ctx.call.numbers)
            found: tuple[Any, ...] = dq, dk, dv, None if gates is None else dgates
        else:
            found = ctx.call.gradients(dout, *saved)
        return *found, None, None, None, None


class Numbers(NamedTuple):
    """Arguments of `hstu_bsa_attention` that are not tensors, in the order of its operators."""

    max_seqlen: int
    block_size: int
    block_counts: int
    local_window: int | None
    selection: str
    pairs: bool
    max_seqlen_q: int | None
    alpha: float | None
    scaling_seqlen: int | None


def checked(
    tensors: BsaTensors, numbers: Numbers, config: BsaConfig | None = None, *, validate: bool = False
) -> BsaProblem:
    """The checked problem of these arguments of `hstu_bsa_attention`.

    Raises:
        ValueError: naming the argument, its value and what is accepted.
    """
    check_kinds(tensors._asdict(), numbers.alpha, config)
    check_flags(WHO, pairs=numbers.pairs, validate=validate)
    values: dict[str, Any] = numbers._asdict()
    values["alpha"] = alpha_of(numbers.alpha, tensors.q)
    if numbers.max_seqlen_q is None:
        values["max_seqlen_q"] = numbers.max_seqlen
    if numbers.scaling_seqlen is None:
        values["scaling_seqlen"] = numbers.max_seqlen or 1
    pairs = values.pop("pairs")
    check(tensors, **values, config=config, validate=validate)
    return problem_of(tensors, **values, pairs=pairs)


def call_of(tensors: BsaTensors, numbers: Numbers, config: BsaConfig | None = None, *, validate: bool = False) -> Call:
    """The call for these arguments of `checked`: cached, or checked and created.

    Raises:
        ValueError: as `hstu_bsa_attention`.
    """
    key = facts_of(*tensors, jagged=JAGGED), exact(*numbers, config)
    call = CALLS.get(key)
    if call is None or validate is not False:
        problem = checked(tensors, numbers, config, validate=validate)
        chosen = config or default_config(problem, tensors.capability, rows=tensors.rows)
        call = CALLS.keep(key, Call(problem, chosen, numbers if config is None else None))
    return call
