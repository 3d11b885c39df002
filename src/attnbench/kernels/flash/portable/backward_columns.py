# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""dK and dV of flash attention, a tile of keys a program, and dQ too where atomics add it up.

A program takes its tile of keys through the rows that see them, over all query heads of its KV head one after
another, so the sums of dK and dV have one order.  Scores are worked out transposed, [keys, rows]: P and dS are then
operands as they come out of the softmax.  Both products begin at what would be subtracted from them, -lse / scale and
-delta of `flash_backward_prepare`, so neither is held in registers while the softmax is worked out.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.portable.backward_step import add_part, begin_at, fold_rows, hide
from attnbench.kernels.flash.tiles import (
    BACKWARD_COUNTS,
    load_tile,
    masked_tile,
    padded_start,
    rows_from,
    rows_of_keys,
    sequence,
    tiles_of,
)
from attnbench.kernels.shared.rows import load_rows, section_of, store_rows


@triton.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_backward_columns(
    q_ptr,
    k_ptr,
    v_ptr,
    dout_ptr,
    dk_ptr,
    dv_ptr,
    sums_ptr,
    stats_ptr,
    q_desc,
    dout_desc,
    sums_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    q_strides,
    k_strides,
    v_strides,
    dout_strides,
    dk_strides,
    dv_strides,
    scale,
    scale_log2,
    left,
    right,
    stats_rows,
    members,
    heads_kv,
    pairs,
    tiles,
    group,
    DIM: tl.constexpr,
    DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAD: tl.constexpr,
    HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr,
    PACKED: tl.constexpr,
    GROUPED: tl.constexpr,
    ATOMIC: tl.constexpr,
    TMA: tl.constexpr,
    TMA_ADD: tl.constexpr,
    ORDER: tl.constexpr,
    FUSED: tl.constexpr,
    BESIDE: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """DK and dV of a tile of keys, and with ATOMIC its parts of dQ, unscaled, into `sums_ptr` [H, rows, D]."""
    _, q_row, _ = q_strides
    _, k_row, _ = k_strides
    _, v_row, _ = v_strides
    _, dout_row, _ = dout_strides
    _, dk_row, _ = dk_strides
    _, dv_row, _ = dv_strides
    # Which tile of keys: the first are seen by most rows.
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads_kv
    head_kv = pair - number * heads_kv
    batch, query_start, key_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED)
    start = tile * BLOCK_N
    if start >= keys:
        return
    k = load_rows(
        rows_from(k_ptr, batch, key_start, head_kv, k_strides), start, keys, k_row, DIM, BLOCK_N, BLOCK_D, False
    )
    v = load_rows(
        rows_from(v_ptr, batch, key_start, head_kv, v_strides), start, keys, v_row, DIM_V, BLOCK_N, BLOCK_V, False
    )
    columns = start + tl.arange(0, BLOCK_N)[:, None]
    dk = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)

    # In whole tiles of rows: [begin, whole) masked, [whole, split) seen whole, [split, end) masked.
    shift = keys - queries
    low, all_low, all_high, high = rows_of_keys(
        start, tl.minimum(start + BLOCK_N, keys) - 1, queries, shift, left, right, HAS_LEFT, HAS_RIGHT
    )
    begin, whole, split, end = tiles_of(low, all_low, all_high, high, BLOCK_M)
    if start + BLOCK_N > keys:
        # Keys past the end are zeros, but their probabilities are not.
        whole = end
        split = end
    # The one loop takes them all where FUSED.
    first = begin if FUSED else whole
    last = end if FUSED else split
    padded = padded_start(number, query_start, queries, PACKED, PAD)
    for member in range(members if GROUPED else 1):
        head = head_kv * members + member
        q_base = rows_from(q_ptr, batch, query_start, head, q_strides)
        dout_base = rows_from(dout_ptr, batch, query_start, head, dout_strides)
        row = tl.cast(head, tl.int64) * stats_rows + padded
        lse_ptr = stats_ptr + row
        delta_ptr = lse_ptr + tl.cast(heads_kv * members, tl.int64) * stats_rows
        if ATOMIC:
            sums_base = sums_ptr + row * DIM
        if ORDER == "ahead":
            if first < last:
                at = first * BLOCK_M
                q = load_tile(
                    q_base, q_desc, batch, query_start, at, head, queries, q_row, DIM, BLOCK_M, BLOCK_D, True, TMA
                )
                scores = tl.dot(k, tl.trans(q), begin_at(lse_ptr, at, BLOCK_M, BLOCK_N), input_precision=PRECISION)
                scores = hide(
                    scores,
                    at,
                    whole,
                    split,
                    columns,
                    queries,
                    keys,
                    shift,
                    left,
                    right,
                    BLOCK_M,
                    HAS_LEFT,
                    HAS_RIGHT,
                    False,
                    FUSED,
                )
                weights = tl.exp2(scores * scale_log2)
                for at in tl.range(
                    first * BLOCK_M, (last - 1) * BLOCK_M, BLOCK_M, num_stages=STAGES, disable_licm=True
                ):
                    dout = load_tile(
                        dout_base,
                        dout_desc,
                        batch,
                        query_start,
                        at,
                        head,
                        queries,
                        dout_row,
                        DIM_V,
                        BLOCK_M,
                        BLOCK_V,
                        True,
                        TMA,
                    )
                    above = tl.dot(
                        v, tl.trans(dout), begin_at(delta_ptr, at, BLOCK_M, BLOCK_N), input_precision=PRECISION
                    )
                    dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
                    down = (weights * above).to(dout.dtype)
                    if ATOMIC and BESIDE:
                        part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                    following = at + BLOCK_M
                    ahead = load_tile(
                        q_base,
                        q_desc,
                        batch,
                        query_start,
                        following,
                        head,
                        queries,
                        q_row,
                        DIM,
                        BLOCK_M,
                        BLOCK_D,
                        True,
                        TMA,
                    )
                    scores = tl.dot(
                        k, tl.trans(ahead), begin_at(lse_ptr, following, BLOCK_M, BLOCK_N), input_precision=PRECISION
                    )
                    # The tile is read twice: none is carried from one turn of the loop to the next.
                    q = load_tile(
                        q_base, q_desc, batch, query_start, at, head, queries, q_row, DIM, BLOCK_M, BLOCK_D, True, TMA
                    )
                    dk = tl.dot(down, q, dk, input_precision=PRECISION)
                    # Beside the product above, which nothing waits for until here is done.
                    scores = hide(
                        scores,
                        following,
                        whole,
                        split,
                        columns,
                        queries,
                        keys,
                        shift,
                        left,
                        right,
                        BLOCK_M,
                        HAS_LEFT,
                        HAS_RIGHT,
                        False,
                        FUSED,
                    )
                    weights = tl.exp2(scores * scale_log2)
                    if ATOMIC:
                        if not BESIDE:
                            part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                        add_part(sums_base, sums_desc, row, at, part, DIM, BLOCK_M, BLOCK_D, TMA_ADD)
                at = (last - 1) * BLOCK_M
                q = load_tile(
                    q_base, q_desc, batch, query_start, at, head, queries, q_row, DIM, BLOCK_M, BLOCK_D, True, TMA
                )
                dout = load_tile(
                    dout_base,
                    dout_desc,
                    batch,
                    query_start,
                    at,
                    head,
                    queries,
                    dout_row,
                    DIM_V,
                    BLOCK_M,
                    BLOCK_V,
                    True,
                    TMA,
                )
                above = tl.dot(v, tl.trans(dout), begin_at(delta_ptr, at, BLOCK_M, BLOCK_N), input_precision=PRECISION)
                dv = tl.dot(weights.to(dout.dtype), dout, dv, input_precision=PRECISION)
                down = (weights * above).to(dout.dtype)
                dk = tl.dot(down, q, dk, input_precision=PRECISION)
                if ATOMIC:
                    part = tl.dot(tl.trans(down), k, input_precision=PRECISION)
                    add_part(sums_base, sums_desc, row, at, part, DIM, BLOCK_M, BLOCK_D, TMA_ADD)
        else:
            for at in tl.range(first * BLOCK_M, last * BLOCK_M, BLOCK_M, num_stages=STAGES, disable_licm=True):
                q = load_tile(
                    q_base, q_desc, batch, query_start, at, head, queries, q_row, DIM, BLOCK_M, BLOCK_D, True, TMA
                )
                dout = load_tile(
                    dout_base,
                    dout_desc,
                    batch,
                    query_start,
                    at,
                    head,
                    queries,
                    dout_row,
                    DIM_V,
                    BLOCK_M,
                    BLOCK_V,
                    True,
                    TMA,
                )
                dk, dv, part = fold_rows(
                    dk,
                    dv,
                    q,
                    dout,
                    k,
                    v,
                    begin_at(lse_ptr, at, BLOCK_M, BLOCK_N),
                    begin_at(delta_ptr, at, BLOCK_M, BLOCK_N),
                    scale_log2,
                    at,
                    whole,
                    split,
                    columns,
                    queries,
                    keys,
                    shift,
                    left,
                    right,
                    BLOCK_M,
                    HAS_LEFT,
                    HAS_RIGHT,
                    False,
                    FUSED,
                    ORDER == "early",
                    ATOMIC,
                    BESIDE,
                    PRECISION,
                )
                if ATOMIC:
                    add_part(sums_base, sums_desc, row, at, part, DIM, BLOCK_M, BLOCK_D, TMA_ADD)
        for index in tl.range(
            0, 0 if FUSED else whole - begin + end - split, num_stages=MASKED_STAGES, disable_licm=True
        ):
            at = masked_tile(index, begin, whole, split) * BLOCK_M
            q = load_tile(
                q_base, q_desc, batch, query_start, at, head, queries, q_row, DIM, BLOCK_M, BLOCK_D, False, TMA
            )
            dout = load_tile(
                dout_base,
                dout_desc,
                batch,
                query_start,
                at,
                head,
                queries,
                dout_row,
                DIM_V,
                BLOCK_M,
                BLOCK_V,
                False,
                TMA,
            )
            if TMA and PACKED:
                # A descriptor knows no end of a packed sequence.
                own = (at + tl.arange(0, BLOCK_M) < queries)[:, None]
                q = tl.where(own, q, 0.0)
                dout = tl.where(own, dout, 0.0)
            dk, dv, part = fold_rows(
                dk,
                dv,
                q,
                dout,
                k,
                v,
                begin_at(lse_ptr, at, BLOCK_M, BLOCK_N),
                begin_at(delta_ptr, at, BLOCK_M, BLOCK_N),
                scale_log2,
                at,
                whole,
                split,
                columns,
                queries,
                keys,
                shift,
                left,
                right,
                BLOCK_M,
                HAS_LEFT,
                HAS_RIGHT,
                True,
                False,
                ORDER == "early",
                ATOMIC,
                BESIDE,
                PRECISION,
            )
            if ATOMIC:
                add_part(sums_base, sums_desc, row, at, part, DIM, BLOCK_M, BLOCK_D, TMA_ADD)
    store_rows(
        rows_from(dk_ptr, batch, key_start, head_kv, dk_strides), start, keys, dk_row, dk * scale, DIM, BLOCK_N, BLOCK_D
    )
    store_rows(
        rows_from(dv_ptr, batch, key_start, head_kv, dv_strides), start, keys, dv_row, dv, DIM_V, BLOCK_N, BLOCK_V
    )
