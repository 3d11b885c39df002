# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Gradients of block-sparse HSTU attention by queries: dq, gradients of the gates, and the diagonal of targets.

A program loops over the means that its queries see and the nearby keys, and adds the parts of dq that
`hstu_bsa_grad_keys` wrote for its slots, in their order.  The gradient of a gate is dO · (its branch's output):

    dgate = c Σ_j SiLU(S_tj) dA_tj        dA = dO Vᵀ, which dq needs as well
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import (
    COMPRESSED,
    COUNTS,
    SELECTED,
    SLIDING,
    complete_seen,
    gate_of,
    gather_rows,
    near_begin,
    near_masks,
    near_weights,
    scatter_rows,
    standing,
)
from attnbench.kernels.hstu.tiles import sequence, silu_and_slope
from attnbench.kernels.shared.rows import load_rows, store_rows


@triton.jit
@no_type_check
def coarse_gradient(
    dq,
    dgate,
    q,
    dout,
    means_k,
    means_v,
    start,
    whole,
    visible,
    half_alpha,
    ATTN_DIM: tl.constexpr,
    LINEAR_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCKS: tl.constexpr,
    TANH: tl.constexpr,
):
    """Add the blocks from `start` to dq, without gate and factors, and to the gate's gradient."""
    k = load_rows(means_k, start, whole, ATTN_DIM, ATTN_DIM, BLOCKS, BLOCK_D, WHOLE=False)
    v = load_rows(means_v, start, whole, LINEAR_DIM, LINEAR_DIM, BLOCKS, BLOCK_V, WHOLE=False)
    value, twice = silu_and_slope(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
    above = tl.dot(dout, tl.trans(v), input_precision="ieee")
    above = tl.where(tl.arange(0, BLOCKS)[None, :] < (visible - start)[:, None], above, 0.0)
    # Before the product, so that its registers are not waited for in between.
    dgate += tl.sum(value * above, 1)
    dq = tl.dot((twice * above).to(q.dtype), k, dq, input_precision="ieee")
    return dq, dgate


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_grad_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    gates_ptr,
    means_k_ptr,
    means_v_ptr,
    partial_dq_ptr,
    partial_dgate_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    dgates_ptr,
    sequences,
    first_unit,
    tiles,
    strides,
    heads,
    mean_rows,
    slot_rows,
    half_alpha,
    scale,
    META: tl.constexpr,
):
    """One program: one tile of queries of one pair, the longest rows first."""
    BLOCK_D: tl.constexpr = META.BLOCK_D
    ROWS: tl.constexpr = META.ROWS
    place = tl.program_id(0) // tiles
    unit = first_unit + place
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=META.HAS_TARGETS, HAS_CACHE=META.HAS_CACHE
    )
    queries = bounds.keys - bounds.first_query
    start = (tiles - 1 - (tl.program_id(0) - place * tiles)) * ROWS
    if start >= queries:
        return
    rows = start + tl.arange(0, ROWS)
    mask = rows < queries
    packed = bounds.query_start + rows
    query = standing(rows, bounds.first_query, bounds.seen, META.BLOCK_SIZE)
    visible = complete_seen(query.stand, bounds.seen, META.BLOCK_SIZE)
    q = load_rows(
        q_ptr + bounds.query_start * strides.q.row + head * strides.q.head,
        start,
        queries,
        strides.q.row,
        META.ATTN_DIM,
        ROWS,
        BLOCK_D,
        WHOLE=False,
    )
    dout = load_rows(
        dout_ptr + bounds.query_start * strides.dout.row + head * strides.dout.head,
        start,
        queries,
        strides.dout.row,
        META.LINEAR_DIM,
        ROWS,
        META.BLOCK_V,
        WHOLE=False,
    )

    # The means.
    whole = bounds.seen // META.BLOCK_SIZE
    means_k = means_k_ptr + (head * mean_rows + bounds.key_start // META.BLOCK_SIZE) * META.ATTN_DIM
    means_v = means_v_ptr + (head * mean_rows + bounds.key_start // META.BLOCK_SIZE) * META.LINEAR_DIM
    of_last = standing(tl.minimum(start + ROWS, queries) - 1, bounds.first_query, bounds.seen, META.BLOCK_SIZE).stand
    dq = tl.zeros([ROWS, BLOCK_D], tl.float32)
    dcoarse = tl.zeros([ROWS], tl.float32)
    # One loop, masked throughout: a second loop would wait for its first tile, which costs more than the masks.
    for block in range(0, complete_seen(of_last, bounds.seen, META.BLOCK_SIZE), META.BLOCKS):
        dq, dcoarse = coarse_gradient(
            dq=dq,
            dgate=dcoarse,
            q=q,
            dout=dout,
            means_k=means_k,
            means_v=means_v,
            start=block,
            whole=whole,
            visible=visible,
            half_alpha=half_alpha,
            ATTN_DIM=META.ATTN_DIM,
            LINEAR_DIM=META.LINEAR_DIM,
            BLOCK_D=BLOCK_D,
            BLOCK_V=META.BLOCK_V,
            BLOCKS=META.BLOCKS,
            TANH=META.TANH,
        )
    dq *= (gate_of(gates_ptr, packed, heads, head, mask, COMPRESSED, META.GATES) * META.BLOCK_SIZE)[:, None]

    # The nearby keys.
    of_local = gate_of(gates_ptr, packed, heads, head, mask, SELECTED, META.GATES)
    of_window = of_local
    if META.WINDOW > 0:
        of_window = gate_of(gates_ptr, packed, heads, head, mask, SLIDING, META.GATES)
    dlocal = tl.zeros([ROWS], tl.float32)
    dwindow = tl.zeros([ROWS], tl.float32)
    k_base = k_ptr + bounds.key_start * strides.k.row + head * strides.k.head
    v_base = v_ptr + bounds.key_start * strides.v.row + head * strides.v.head
    end = tl.minimum(bounds.first_query + tl.minimum(start + ROWS, queries), bounds.seen)
    for key in range(near_begin(bounds.first_query + start, bounds.seen, META.WINDOW, META.BLOCK_SIZE), end, META.KEYS):
        k = load_rows(k_base, key, end, strides.k.row, META.ATTN_DIM, META.KEYS, BLOCK_D, WHOLE=False)
        v = load_rows(v_base, key, end, strides.v.row, META.LINEAR_DIM, META.KEYS, META.BLOCK_V, WHOLE=False)
        in_local, in_window = near_masks(
            (key + tl.arange(0, META.KEYS))[None, :],
            query.position[:, None],
            query.stand[:, None],
            query.local[:, None],
            bounds.seen,
            META.WINDOW,
            META.BLOCK_SIZE,
        )
        value, twice = silu_and_slope(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, META.TANH)
        above = tl.dot(dout, tl.trans(v), input_precision="ieee")
        slope = near_weights(twice * above, in_local, in_window, of_local[:, None], of_window[:, None], META.WINDOW)
        dlocal += tl.sum(tl.where(in_local, value * above, 0.0), 1)
        if META.WINDOW > 0:
            dwindow += tl.sum(tl.where(in_window, value * above, 0.0), 1)
        dq = tl.dot(slope.to(q.dtype), k, dq, input_precision="ieee")

    # A target's own key, which no other query sees.
    if META.HAS_TARGETS:
        target = mask & (query.position >= bounds.seen)
        own_k = gather_rows(k_base, query.position, target, strides.k.row, META.ATTN_DIM, BLOCK_D).to(tl.float32)
        own_v = gather_rows(v_base, query.position, target, strides.v.row, META.LINEAR_DIM, META.BLOCK_V).to(tl.float32)
        value, twice = silu_and_slope(tl.sum(q.to(tl.float32) * own_k, 1), half_alpha, META.TANH)
        above = tl.sum(dout.to(tl.float32) * own_v, 1)
        factor = (of_local + of_window) if META.WINDOW > 0 else of_local
        slope = tl.where(target, twice * above * factor, 0.0)
        dq += slope[:, None] * own_k
        dlocal += tl.where(target, value * above, 0.0)
        dwindow += tl.where(target, value * above, 0.0)
        key_row = heads * META.ATTN_DIM
        scatter_rows(
            dk_ptr + bounds.key_start * key_row + head * META.ATTN_DIM,
            query.position,
            target,
            key_row,
            (slope * (scale * half_alpha))[:, None] * q.to(tl.float32),
            META.ATTN_DIM,
            BLOCK_D,
        )
        key_row = heads * META.LINEAR_DIM
        scatter_rows(
            dv_ptr + bounds.key_start * key_row + head * META.LINEAR_DIM,
            query.position,
            target,
            key_row,
            (value * factor * scale)[:, None] * dout.to(tl.float32),
            META.LINEAR_DIM,
            META.BLOCK_V,
        )

    dq *= scale * half_alpha
    dlocal *= scale
    # Pipelined too, so that all slots are loaded at once.
    partial_dq = partial_dq_ptr + (place.to(tl.int64) * slot_rows + start * META.OTHERS) * META.ATTN_DIM
    partial_dgate = partial_dgate_ptr + place.to(tl.int64) * slot_rows + start * META.OTHERS
    for slot in tl.range(META.OTHERS, num_stages=META.SLOTS):
        chosen = mask & (slot < query.local)
        dq += gather_rows(
            partial_dq + slot * META.ATTN_DIM,
            tl.arange(0, ROWS),
            chosen,
            META.OTHERS * META.ATTN_DIM,
            META.ATTN_DIM,
            BLOCK_D,
        ).to(tl.float32)
        if META.GATES > 0:
            dlocal += tl.load(partial_dgate + tl.arange(0, ROWS) * META.OTHERS + slot, mask=chosen, other=0.0)
    query_row = heads * META.ATTN_DIM
    store_rows(
        base=dq_ptr + bounds.query_start * query_row + head * META.ATTN_DIM,
        first=start,
        count=queries,
        stride=query_row,
        tile=dq,
        DIM=META.ATTN_DIM,
        BLOCK=ROWS,
        BLOCK_DIM=BLOCK_D,
    )
    if META.GATES > 0:
        where = dgates_ptr + (packed * heads + head) * META.GATES
        kind = dgates_ptr.dtype.element_ty
        tl.store(where + COMPRESSED, (dcoarse * (scale * META.BLOCK_SIZE)).to(kind), mask=mask)
        tl.store(where + SELECTED, dlocal.to(kind), mask=mask)
        if META.WINDOW > 0:
            tl.store(where + SLIDING, (dwindow * scale).to(kind), mask=mask)
