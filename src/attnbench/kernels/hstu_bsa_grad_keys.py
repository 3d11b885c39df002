# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Gradients of block-sparse HSTU attention by keys: first of the means, then of keys and values.

With f the gates that see a pair, A = SiLU(S) and dA = dO Vᵀ of one branch:

    dV = c (f A)ᵀ dO        dK = α c (f SiLU'(S) dA)ᵀ Q        dQ[t, s] = α c f SiLU'(S) dA K

    means   a tile of blocks goes through all queries that see it; what a mean gets is what each of its keys gets
    keys    a block goes through the queries nearby and through its list; a listed query's part of dQ is written
            by query and slot, as in the forward

A block's sums are made by one program in the order of its list: the same bits each time, whatever runs beside it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu_bsa_tiles import (
    COUNTS,
    complete_seen,
    gate_of,
    gather_rows,
    near_masks,
    near_weights,
    scatter_rows,
    standing,
)
from attnbench.kernels.hstu_dense_tiles import sequence, silu_and_slope
from attnbench.kernels.rows import load_rows, store_rows


@triton.jit
@no_type_check
def fold_rows(dk, dv, q, dout, k, v, factor, half_alpha, TANH: tl.constexpr):
    """Add what a tile of queries gives the keys (transposed sums); and its dS, and A ∘ dA."""
    value, twice = silu_and_slope(tl.dot(q, tl.trans(k), input_precision="ieee"), half_alpha, TANH)
    above = tl.dot(dout, tl.trans(v), input_precision="ieee")
    dv = tl.dot(tl.trans(dout), (value * factor).to(q.dtype), dv, input_precision="ieee")
    slope = (twice * above * factor).to(q.dtype)
    dk = tl.dot(tl.trans(q), slope, dk, input_precision="ieee")
    return dk, dv, slope, value * above


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_grad_means(
    q_ptr, dout_ptr, gates_ptr, means_k_ptr, means_v_ptr, dmeans_k_ptr, dmeans_v_ptr, offsets_ptr, offsets_q_ptr,
    num_targets_ptr, q_row, q_head, dout_row, dout_head, heads, tiles, mean_rows, half_alpha, scale,
    ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GATES: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, TANH: tl.constexpr,
):
    """A program: a tile of blocks of one pair, through the queries that see them."""
    unit = tl.program_id(0) // tiles
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    queries = keys - first_query
    whole = seen // BLOCK_SIZE
    start = (tl.program_id(0) - unit * tiles) * BLOCKS
    if start >= whole:
        return
    mean = head * mean_rows + key_start // BLOCK_SIZE
    k = load_rows(means_k_ptr + mean * ATTN_DIM, start, whole, ATTN_DIM, ATTN_DIM, BLOCKS, BLOCK_D, False)
    v = load_rows(means_v_ptr + mean * LINEAR_DIM, start, whole, LINEAR_DIM, LINEAR_DIM, BLOCKS, BLOCK_V, False)
    blocks = start + tl.arange(0, BLOCKS)
    dk = tl.zeros([BLOCK_D, BLOCKS], tl.float32)
    dv = tl.zeros([BLOCK_V, BLOCKS], tl.float32)
    q_base = q_ptr + query_start * q_row + head * q_head
    dout_base = dout_ptr + query_start * dout_row + head * dout_head
    for first in range(tl.maximum((start + 1) * BLOCK_SIZE - 1 - first_query, 0), queries, ROWS):
        rows = first + tl.arange(0, ROWS)
        _position, stand, _local = standing(rows, first_query, seen, BLOCK_SIZE)
        mask = blocks[None, :] < complete_seen(stand, seen, BLOCK_SIZE)[:, None]
        factor = tl.where(mask, gate_of(gates_ptr, query_start + rows, heads, head, rows < queries, 0, GATES)[:, None],
                          0.0)
        q = load_rows(q_base, first, queries, q_row, ATTN_DIM, ROWS, BLOCK_D, False)
        dout = load_rows(dout_base, first, queries, dout_row, LINEAR_DIM, ROWS, BLOCK_V, False)
        dk, dv, _slope, _product = fold_rows(dk, dv, q, dout, k, v, factor, half_alpha, TANH)
    # A mean passes on 1 / BS of its gradient, which carries the factor BS.
    store_rows(dmeans_k_ptr + mean * ATTN_DIM, start, whole, ATTN_DIM, tl.trans(dk * (scale * half_alpha)), ATTN_DIM,
               BLOCKS, BLOCK_D)
    store_rows(dmeans_v_ptr + mean * LINEAR_DIM, start, whole, LINEAR_DIM, tl.trans(dv * scale), LINEAR_DIM, BLOCKS,
               BLOCK_V)


@triton.jit
@no_type_check
def last_near_row(block, last_key, first_query, queries, seen, WINDOW: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """End of the queries that see a key, up to `last_key`, of a block nearby: in their local block or window."""
    end = (block + 1) * BLOCK_SIZE
    if WINDOW > 0:
        end = tl.maximum(end, last_key + WINDOW)
    # Targets stand behind the history: in their reach is the last block, and what the window covers from there.
    all_rows = block == (seen - 1) // BLOCK_SIZE
    if WINDOW > 0:
        all_rows = all_rows | (seen - last_key < WINDOW)
    return tl.where(all_rows, queries, tl.minimum(end - first_query, queries))


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_grad_keys(
    q_ptr, k_ptr, v_ptr, dout_ptr, gates_ptr, dmeans_k_ptr, dmeans_v_ptr, entries_ptr, starts_ptr, partial_dq_ptr,
    partial_dgate_ptr, dk_ptr, dv_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, first_unit, tiles, q_row, q_head,
    k_row, k_head, v_row, v_head, dout_row, dout_head, heads, entry_rows, count_rows, mean_rows, slot_rows,
    half_alpha, scale, ATTN_DIM: tl.constexpr, LINEAR_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, BLOCK_SIZE: tl.constexpr, OTHERS: tl.constexpr, GATES: tl.constexpr,
    WINDOW: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr, SHARED: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TANH: tl.constexpr,
):
    """A program: one block of one pair, through the queries nearby and its list."""
    place = tl.program_id(0) // tiles
    block = tl.program_id(0) - place * tiles
    unit = first_unit + place
    number = unit // heads
    head = (unit - number * heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    queries = keys - first_query
    if block * BLOCK_SIZE >= seen:
        return
    k_base = k_ptr + key_start * k_row + head * k_head
    v_base = v_ptr + key_start * v_row + head * v_head
    q_base = q_ptr + query_start * q_row + head * q_head
    dout_base = dout_ptr + query_start * dout_row + head * dout_head
    complete = block < seen // BLOCK_SIZE
    # More keys than fit in registers are taken in parts, each through all queries.
    for part in range(BLOCK_SIZE // KEYS):
        key = block * BLOCK_SIZE + part * KEYS
        k = load_rows(k_base, key, seen, k_row, ATTN_DIM, KEYS, BLOCK_D, False)
        v = load_rows(v_base, key, seen, v_row, LINEAR_DIM, KEYS, BLOCK_V, False)
        dk = tl.zeros([BLOCK_D, KEYS], tl.float32)
        dv = tl.zeros([BLOCK_V, KEYS], tl.float32)
        end = last_near_row(block, tl.minimum(key + KEYS, seen) - 1, first_query, queries, seen, WINDOW, BLOCK_SIZE)
        for start in range(tl.maximum(key - first_query, 0), end, ROWS):
            rows = start + tl.arange(0, ROWS)
            mask = rows < queries
            position, stand, local = standing(rows, first_query, seen, BLOCK_SIZE)
            of_local = gate_of(gates_ptr, query_start + rows, heads, head, mask, 1, GATES)
            of_window = of_local
            if WINDOW > 0:
                of_window = gate_of(gates_ptr, query_start + rows, heads, head, mask, 2, GATES)
            in_local, in_window = near_masks((key + tl.arange(0, KEYS))[None, :], position[:, None], stand[:, None],
                                             local[:, None], seen, WINDOW, BLOCK_SIZE)
            factor = near_weights(1.0, in_local, in_window, of_local[:, None], of_window[:, None], WINDOW)
            q = load_rows(q_base, start, queries, q_row, ATTN_DIM, ROWS, BLOCK_D, False)
            dout = load_rows(dout_base, start, queries, dout_row, LINEAR_DIM, ROWS, BLOCK_V, False)
            dk, dv, _slope, _product = fold_rows(dk, dv, q, dout, k, v, factor, half_alpha, TANH)
        if OTHERS > 0:
            list_head = head * 0 if SHARED else head
            starts = starts_ptr + list_head * count_rows + key_start // BLOCK_SIZE + number + block
            listed = tl.load(starts + 1, mask=complete, other=0)
            partial_dq = partial_dq_ptr + place.to(tl.int64) * slot_rows * ATTN_DIM
            partial_dgate = partial_dgate_ptr + place.to(tl.int64) * slot_rows
            for start in range(tl.load(starts, mask=complete, other=0), listed, ROWS):
                at = start + tl.arange(0, ROWS)
                mask = at < listed
                entry = tl.load(entries_ptr + list_head * entry_rows + query_start * OTHERS + at, mask=mask, other=0)
                rows = entry // OTHERS
                q = gather_rows(q_base, rows, mask, q_row, ATTN_DIM, BLOCK_D)
                dout = gather_rows(dout_base, rows, mask, dout_row, LINEAR_DIM, BLOCK_V)
                gate = gate_of(gates_ptr, query_start + rows, heads, head, mask, 1, GATES)
                dk, dv, slope, product = fold_rows(dk, dv, q, dout, k, v, gate[:, None], half_alpha, TANH)
                dq = tl.dot(slope, k, input_precision="ieee") * (scale * half_alpha)
                dgate = tl.sum(product, 1) * scale
                if KEYS < BLOCK_SIZE:
                    before = mask & (tl.zeros_like(at) + part > 0)
                    dq += gather_rows(partial_dq, entry, before, ATTN_DIM, ATTN_DIM, BLOCK_D).to(tl.float32)
                    if GATES > 0:
                        dgate += tl.load(partial_dgate + entry, mask=before, other=0.0)
                scatter_rows(partial_dq, entry, mask, ATTN_DIM, dq, ATTN_DIM, BLOCK_D)
                if GATES > 0:
                    tl.store(partial_dgate + entry, dgate, mask=mask)
            # The next part adds to what this one wrote.
            if KEYS < BLOCK_SIZE:
                tl.debug_barrier()
        mean = head * mean_rows + key_start // BLOCK_SIZE + block
        d = tl.arange(0, BLOCK_D)
        of_mean = tl.load(dmeans_k_ptr + mean * ATTN_DIM + d, mask=d < tl.where(complete, ATTN_DIM, 0), other=0.0)
        key_row = heads * ATTN_DIM
        store_rows(dk_ptr + key_start * key_row + head * ATTN_DIM, key, seen, key_row,
                   tl.trans(dk * (scale * half_alpha) + of_mean[:, None]), ATTN_DIM, KEYS, BLOCK_D)
        d = tl.arange(0, BLOCK_V)
        of_mean = tl.load(dmeans_v_ptr + mean * LINEAR_DIM + d, mask=d < tl.where(complete, LINEAR_DIM, 0), other=0.0)
        key_row = heads * LINEAR_DIM
        store_rows(dv_ptr + key_start * key_row + head * LINEAR_DIM, key, seen, key_row,
                   tl.trans(dv * scale + of_mean[:, None]), LINEAR_DIM, KEYS, BLOCK_V)
