# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Block-sparse softmax attention forward: a program takes a tile of queries through the listed blocks of keys.

The sums are those of `flash.portable.forward`; keys come from a list.  Blocks that every query sees whole are first in
it and are not masked; those on a causal diagonal or at the end of the sequence follow in a loop of their own.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.portable.forward import LN_2, fold
from attnbench.kernels.flash.tiles import load_tile, rows_from, sees
from attnbench.kernels.shared.rows import load_rows, store_rows

COUNTS = ("lse_batch", "lse_head", "heads", "repeats", "rows", "columns", "seqlen_q", "seqlen_k")
"Numbers of a call that no code is compiled anew for."


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_sparse_forward(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    items_ptr,
    indices_ptr,
    seqlen_q,
    seqlen_k,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    lse_batch,
    lse_head,
    scale,
    heads,
    repeats,
    rows,
    columns,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Output and lse of a tile of queries: a row of the map, or a part of one."""
    _, q_row, _ = q_strides
    _, k_row, _ = k_strides
    _, v_row, _ = v_strides
    _, out_row, _ = out_strides
    SHARES: tl.constexpr = BLOCK_Q // BLOCK_M
    PARTS: tl.constexpr = BLOCK_K // BLOCK_N
    item = items_ptr + tl.cast(tl.program_id(0) // SHARES, tl.int64) * 3
    row = tl.load(item)
    count = tl.load(item + 1)
    whole = tl.load(item + 2)
    pair = row // rows
    batch = pair // heads
    head = pair - batch * heads
    first = (row - pair * rows) * BLOCK_Q + tl.program_id(0) % SHARES * BLOCK_M
    if first < seqlen_q:
        none = tl.cast(batch * 0, tl.int64)
        indices = indices_ptr + tl.cast(row, tl.int64) * columns
        q_base = rows_from(q_ptr, batch, none, head, q_strides)
        k_base = rows_from(k_ptr, batch, none, head // repeats, k_strides)
        v_base = rows_from(v_ptr, batch, none, head // repeats, v_strides)
        q = load_rows(q_base, first, seqlen_q, q_row, DIM, BLOCK_M, BLOCK_D, False)  # [BLOCK_M, BLOCK_D]
        at_rows = first + tl.arange(0, BLOCK_M)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        for index in tl.range(0, whole * PARTS, disable_licm=True):
            at = tl.load(indices + index // PARTS) * BLOCK_K + index % PARTS * BLOCK_N
            k = load_tile(k_base, None, batch, none, at, head, seqlen_k, k_row, DIM, BLOCK_N, BLOCK_D, True, False)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            weights, factor, row_max, row_sum = fold(scores, row_max, row_sum, scale, False)
            v = load_tile(v_base, None, batch, none, at, head, seqlen_k, v_row, DIM, BLOCK_N, BLOCK_D, True, False)
            acc = tl.dot(weights.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        for index in tl.range(whole * PARTS, count * PARTS, num_stages=1, disable_licm=True):
            at = tl.load(indices + index // PARTS) * BLOCK_K + index % PARTS * BLOCK_N
            k = load_tile(k_base, None, batch, none, at, head, seqlen_k, k_row, DIM, BLOCK_N, BLOCK_D, False, False)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            see = sees(
                at_rows[:, None],
                tl.arange(0, BLOCK_N)[None, :],
                seqlen_k - at,
                seqlen_k - seqlen_q - at,
                0,
                0,
                False,
                CAUSAL,
            )
            scores = tl.where(see, scores, float("-inf"))
            weights, factor, row_max, row_sum = fold(scores, row_max, row_sum, scale, False)
            v = load_tile(v_base, None, batch, none, at, head, seqlen_k, v_row, DIM, BLOCK_N, BLOCK_D, False, False)
            acc = tl.dot(weights.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        empty = row_sum == 0.0  # which NaN is not
        total = tl.where(empty, 1.0, row_sum)
        acc = acc * (1.0 / total)[:, None]
        out_base = rows_from(out_ptr, batch, none, head, out_strides)
        store_rows(out_base, first, seqlen_q, out_row, acc, DIM, BLOCK_M, BLOCK_D)
        lse = tl.where(empty, float("-inf"), (row_max * scale + tl.math.log2(total)) * LN_2)
        lse_base = rows_from(lse_ptr, batch, none, head, (lse_batch, 1, lse_head))
        tl.store(lse_base + at_rows, lse, mask=at_rows < seqlen_q)
