# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Dense HSTU attention forward: a program computes a tile of rows, looping over the tiles of keys they see.

    O = c Σ_tiles SiLU(α Q Kᵀ) ∘ M · V        first the key tiles that every row sees, unmasked, then the others

There is no softmax: no maximum and no rescaling, and the factor c is applied once at the end.  Programs are ordered so
that the longest rows come first.  They are numbered in sections of `group` (sequence, head) pairs whose keys and values
fit into the L2 together, because each tile of rows of a pair reads them all.  No workspace, except the Hopper kernel's
tile counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.tiles import COUNTS, Rows, load_whole, masked_tile, sees, sequence, silu, tiles_of_rows
from attnbench.kernels.shared.rows import load_rows, section_of, store_rows

if TYPE_CHECKING:
    pass


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_dense_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    k_desc,
    v_desc,
    sequences,
    strides,
    half_alpha,
    scale,
    heads,
    pairs,
    tiles,
    group,
    contextual_len,
    window,
    META: tl.constexpr,
):
    """The output of a tile of rows."""
    BLOCK_V: tl.constexpr = META.BLOCK_V
    BLOCK_M: tl.constexpr = META.BLOCK_M
    PRECISION: tl.constexpr = META.PRECISION
    # The tile of rows of this program: the longest rows of a section of pairs first.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    bounds = sequence(sequences, number, contextual_len, META.HAS_PREFIX, META.HAS_TARGETS, META.HAS_CACHE)
    queries = bounds.keys - bounds.first_query
    start = (tiles - 1 - tile) * BLOCK_M
    if start >= queries:
        return
    q_base = q_ptr + bounds.query_start * strides.q.row + head.to(tl.int64) * strides.q.head
    k_base = k_ptr + bounds.key_start * strides.k.row + head.to(tl.int64) * strides.k.head
    v_base = v_ptr + bounds.key_start * strides.v.row + head.to(tl.int64) * strides.v.head
    k_rows = Rows(base=k_base, desc=k_desc, start=bounds.key_start, head=head, stride=strides.k.row)
    v_rows = Rows(base=v_base, desc=v_desc, start=bounds.key_start, head=head, stride=strides.v.row)
    # [BLOCK_M, META.BLOCK_D]
    q = load_rows(q_base, start, queries, strides.q.row, META.ATTN_DIM, BLOCK_M, META.BLOCK_D, WHOLE=False)
    first = bounds.first_query + start
    last = tl.minimum(first + BLOCK_M, bounds.keys) - 1
    key_tiles = tiles_of_rows(
        first=first,
        last=last,
        prefix=bounds.prefix,
        seen=bounds.seen,
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
        BLOCK_N=META.BLOCK_N,
    )
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if META.AHEAD:
        if key_tiles.whole < key_tiles.split:
            k = load_whole(k_rows, key_tiles.whole * META.BLOCK_N, META.ATTN_DIM, META.BLOCK_N, META.BLOCK_D, META.TMA)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            weights = silu(scores, half_alpha, META.APPROXIMATE).to(q.dtype)
            for at in tl.range(
                key_tiles.whole * META.BLOCK_N, (key_tiles.split - 1) * META.BLOCK_N, META.BLOCK_N, disable_licm=True
            ):
                following = at + META.BLOCK_N
                k = load_whole(k_rows, following, META.ATTN_DIM, META.BLOCK_N, META.BLOCK_D, META.TMA)
                scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
                v = load_whole(v_rows, at, META.LINEAR_DIM, META.BLOCK_N, BLOCK_V, META.TMA)
                acc = tl.dot(weights, v, acc, input_precision=PRECISION)
                # Overlaps with the product above, which is not waited for until this is done.
                weights = silu(scores, half_alpha, META.APPROXIMATE).to(v.dtype)
            at = (key_tiles.split - 1) * META.BLOCK_N
            v = load_whole(v_rows, at, META.LINEAR_DIM, META.BLOCK_N, BLOCK_V, META.TMA)
            acc = tl.dot(weights, v, acc, input_precision=PRECISION)
    else:
        for at in tl.range(
            key_tiles.whole * META.BLOCK_N, key_tiles.split * META.BLOCK_N, META.BLOCK_N, disable_licm=True
        ):
            k = load_whole(k_rows, at, META.ATTN_DIM, META.BLOCK_N, META.BLOCK_D, META.TMA)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)  # [BLOCK_M, META.BLOCK_N]
            v = load_whole(v_rows, at, META.LINEAR_DIM, META.BLOCK_N, BLOCK_V, META.TMA)
            weights = silu(scores, half_alpha, META.APPROXIMATE).to(v.dtype)
            acc = tl.dot(weights, v, acc, input_precision=PRECISION)

    rows = first + tl.arange(0, BLOCK_M)[:, None]
    for index in tl.range(0, key_tiles.masked, num_stages=META.MASKED_STAGES, disable_licm=True):
        at = masked_tile(index, key_tiles, META.HAS_TARGETS, META.HAS_WINDOW) * META.BLOCK_N
        k = load_rows(k_base, at, bounds.keys, strides.k.row, META.ATTN_DIM, META.BLOCK_N, META.BLOCK_D, WHOLE=False)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        v = load_rows(v_base, at, bounds.keys, strides.v.row, META.LINEAR_DIM, META.BLOCK_N, BLOCK_V, WHOLE=False)
        see = sees(
            rows=rows,
            keys=at + tl.arange(0, META.BLOCK_N)[None, :],
            prefix=bounds.prefix,
            seen=bounds.seen,
            window=window,
            CAUSAL=META.CAUSAL,
            HAS_PREFIX=META.HAS_PREFIX,
            HAS_TARGETS=META.HAS_TARGETS,
            HAS_WINDOW=META.HAS_WINDOW,
        )
        weights = tl.where(see, silu(scores, half_alpha, META.APPROXIMATE), 0.0).to(v.dtype)
        acc = tl.dot(weights, v, acc, input_precision=PRECISION)

    out_base = out_ptr + bounds.query_start * strides.out.row + head.to(tl.int64) * strides.out.head
    store_rows(
        base=out_base,
        first=start,
        count=queries,
        stride=strides.out.row,
        tile=acc * scale,
        DIM=META.LINEAR_DIM,
        BLOCK=BLOCK_M,
        BLOCK_DIM=BLOCK_V,
    )
