# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""A tile of rows in the columns of the flash backward: its mask, its products, and its part of dQ."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.shared.rows import add_rows


@triton.jit
@no_type_check
def begin_at(ptr, first, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The same number of each row of a tile for all keys, [BLOCK_N, BLOCK_M]: what a product begins at."""
    return tl.broadcast_to(tl.load(ptr + first + tl.arange(0, BLOCK_M))[None, :], [BLOCK_N, BLOCK_M])


class Mask(NamedTuple):
    """What the rows of a sequence see of a tile of keys, and which tiles of rows see all of it: [whole, split)."""

    whole: Any
    split: Any
    columns: Any
    "numbers of the keys"
    queries: Any
    keys: Any
    "of the sequence"
    shift: Any
    left: Any
    right: Any


@triton.jit
@no_type_check
def seen_by(first_row, mask, META: tl.constexpr):
    """The mask [BLOCK_N, BLOCK_M] of rows from `first_row`; the bounds are the keys', a thread has few of those."""
    rows = first_row + tl.arange(0, META.BLOCK_M)[None, :]
    # No row is as late as the one from which a key past the end is seen.
    low = tl.where(mask.columns < mask.keys, 0, mask.queries + META.BLOCK_M)
    if META.HAS_RIGHT:
        low = tl.maximum(low, mask.columns - (mask.shift + mask.right))
    see = rows >= low
    if META.HAS_LEFT:
        see &= rows <= mask.columns + (mask.left - mask.shift)
    return see


@triton.jit
@no_type_check
def hide(scores, at, mask, META: tl.constexpr, MASKED: tl.constexpr):
    """Scores with the hidden ones at -inf: before the exponential, which might overflow for them.

    Of every tile where MASKED; where META.FUSED, of those that some row does not see whole, which is asked for the
    whole tile at once.
    """
    if MASKED:
        see = seen_by(at, mask, META)
        scores = tl.where(see, scores, float("-inf"))
    elif META.FUSED:  # noqa: SIM102 (compiled in or not; the next is asked at run time)
        if (at < mask.whole * META.BLOCK_M) | (at >= mask.split * META.BLOCK_M):
            see = seen_by(at, mask, META)
            scores = tl.where(see, scores, float("-inf"))
    return scores


class RowsFolded(NamedTuple):
    """Gradients of a tile of keys with a tile of rows in them."""

    dk: Any
    dv: Any
    part: Any
    "of dQ, from this tile of keys; without META.ATOMIC nothing that is read"


@triton.jit
@no_type_check
def fold_rows(dk, dv, q, dout, k, v, lse_at, delta_at, scale_log2, at, mask, META: tl.constexpr, MASKED: tl.constexpr):
    """One tile of rows into dK and dV of the tile of keys, as `RowsFolded`."""
    EARLY: tl.constexpr = META.ORDER == "early"
    PRECISION: tl.constexpr = META.PRECISION
    scores = tl.dot(k, tl.trans(q), lse_at, input_precision=PRECISION)
    if EARLY:
        # dO Vᵀ is there when the exponentials are: dS is computed beside the product with dO.
        above = tl.dot(v, tl.trans(dout), delta_at, input_precision=PRECISION)
    scores = hide(scores, at, mask, META, MASKED)
    weights = tl.exp2(scores * scale_log2)
    dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
    if not EARLY:
        above = tl.dot(v, tl.trans(dout), delta_at, input_precision=PRECISION)
    down = (weights * above).to(q.dtype)
    part = down  # a value in any case, as the compiler wants
    if META.ATOMIC and META.BESIDE:
        # Before dK, beside whose product it is then added to memory.
        part = tl.dot(tl.trans(down), k, input_precision=PRECISION)  # [BLOCK_M, BLOCK_D]
    dk = tl.dot(down, q, dk, input_precision=PRECISION)
    if META.ATOMIC and not META.BESIDE:
        part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
    return RowsFolded(dk=dk, dv=dv, part=part)


@triton.jit
@no_type_check
def add_part(
    base, desc, row, first, part, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, TMA: tl.constexpr
):
    """Add dS K of a tile to the fp32 sums; rows past the sequence's end have room there, and add zeros."""
    if TMA:
        desc.atomic_add([tl.cast(row + first, tl.int32), 0], part)
    else:
        add_rows(
            base=base,
            first=first,
            count=first + BLOCK_M,
            stride=DIM,
            tile=part,
            DIM=DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_D,
        )
