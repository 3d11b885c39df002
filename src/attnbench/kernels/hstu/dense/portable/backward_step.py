# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""One step of the dense HSTU backward: a tile of rows with a tile of keys, added to dK and dV or to dQ."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.tiles import silu_and_slope


class RowsFolded(NamedTuple):
    """Gradients of a tile of keys after a tile of rows was added."""

    dk: Any
    dv: Any
    down: Any
    "dSᵀ of the two tiles; Aᵀ where only dV is computed"


@triton.jit
@no_type_check
def fold_rows(
    dk,
    dv,
    q,
    dout,
    k,
    v,
    see,
    half_alpha,
    APPROXIMATE: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    PART: tl.constexpr,
):
    """Add one tile of rows to dK and dV (or to one of them) of the tile of keys; returns `RowsFolded`."""
    scores = tl.dot(k, tl.trans(q), input_precision=PRECISION)  # [BLOCK_N, BLOCK_M]
    weights, slope = silu_and_slope(scores, half_alpha, APPROXIMATE)
    if MASKED:
        weights = tl.where(see, weights, 0.0)
        slope = tl.where(see, slope, 0.0)
    # A is used up before dO Vᵀ is issued: registers do not hold both at once.
    if PART != "dk":
        dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
    down = weights.to(q.dtype)
    if PART != "dv":
        above = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        down = (above * slope).to(q.dtype)  # [BLOCK_N, BLOCK_M]
        dk = tl.dot(down, q, dk, input_precision=PRECISION)
    return RowsFolded(dk=dk, dv=dv, down=down)


@triton.jit
@no_type_check
def fold_keys(
    dq, k, v, q, dout, see, half_alpha, APPROXIMATE: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr
):
    """Add one tile of keys to dQ of the tile of rows."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BLOCK_M, BLOCK_N]
    above = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    _, slope = silu_and_slope(scores, half_alpha, APPROXIMATE)
    down = above * slope
    if MASKED:
        down = tl.where(see, down, 0.0)
    return tl.dot(down.to(k.dtype), k, dq, input_precision=PRECISION)
