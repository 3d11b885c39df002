# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""One step of the flash backward over a tile of keys: the mask, the products, and the part of dQ of a tile of rows."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.shared.rows import add_rows


@triton.jit
@no_type_check
def begin_at(ptr, first, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """One number for each row of a tile, for all keys [BLOCK_N, BLOCK_M]: the initial value of a product's accumulators."""
    return tl.broadcast_to(tl.load(ptr + first + tl.arange(0, BLOCK_M))[None, :], [BLOCK_N, BLOCK_M])


class Mask(NamedTuple):
    """Mask of a tile of keys against the rows of a sequence; row tiles [whole, split) see all of its keys."""

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
    """The mask [BLOCK_N, BLOCK_M] for rows from `first_row`.  The bounds are per key, because a thread has few keys."""
    rows = first_row + tl.arange(0, META.BLOCK_M)[None, :]
    # A row number past every row: no row sees a key past the end.
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
    """Scores with hidden ones set to -inf, before the exponential, which could overflow for them.

    With MASKED for every tile; with META.FUSED for tiles that some row does not see whole, decided once for the tile.
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
    """Gradients of a tile of keys after a tile of rows was added."""

    dk: Any
    dv: Any
    part: Any
    "part of dQ from this tile of keys; without META.ATOMIC a value that is not read"


@triton.jit
@no_type_check
def fold_rows(dk, dv, q, dout, k, v, lse_at, delta_at, scale_log2, at, mask, META: tl.constexpr, MASKED: tl.constexpr):
    """Add one tile of rows to dK and dV of the tile of keys; returns `RowsFolded`."""
    EARLY: tl.constexpr = META.ORDER == "early"
    PRECISION: tl.constexpr = META.PRECISION
    scores = tl.dot(k, tl.trans(q), lse_at, input_precision=PRECISION)
    if EARLY:
        # dO Vᵀ is complete when the exponentials are: dS is computed while the product with dO runs.
        above = tl.dot(v, tl.trans(dout), delta_at, input_precision=PRECISION)
    scores = hide(scores, at, mask, META, MASKED)
    weights = tl.exp2(scores * scale_log2)
    dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
    if not EARLY:
        above = tl.dot(v, tl.trans(dout), delta_at, input_precision=PRECISION)
    down = (weights * above).to(q.dtype)
    part = down  # the compiler needs a value in every branch
    if META.ATOMIC and META.BESIDE:
        # Before dK, so that it is added to memory while dK's product runs.
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
    """Add dS K of a tile to the fp32 sums; there is room for rows past the sequence's end, which add zeros."""
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
