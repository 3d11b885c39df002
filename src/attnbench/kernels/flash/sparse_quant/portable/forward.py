# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Block-sparse softmax attention in 8 bits: a program computes a tile of queries, looping over the listed key blocks.

Work items and lists are those of `flash.sparse.portable.forward`, the arithmetic of a tile is that of `flash.quant`.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.quant.portable.forward import add_tile, load_keys, lse_of, output_of
from attnbench.kernels.flash.quant.portable.prepare import Q_PAD, TILE
from attnbench.kernels.flash.tiles import first_row, padded_start, sees
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.rows import store_rows

COUNTS = (
    "out_batch",
    "out_row",
    "out_head",
    "lse_batch",
    "lse_head",
    "heads",
    "repeats",
    "rows",
    "columns",
    "rows_q",
    "rows_k",
    "seqlen_q",
    "seqlen_k",
)
"Launch arguments whose values the code is not specialized for."


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_sparse_quant_forward`."""

    DIM: int
    COLUMNS: int
    CAUSAL: bool
    BLOCK_Q: int
    BLOCK_K: int
    BLOCK_M: int
    BLOCK_N: int


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_sparse_quant_forward(
    made,
    out_ptr,
    lse_ptr,
    items_ptr,
    indices_ptr,
    seqlen_q,
    seqlen_k,
    out_batch,
    out_row,
    out_head,
    lse_batch,
    lse_head,
    heads,
    repeats,
    rows,
    columns,
    rows_q,
    rows_k,
    META: tl.constexpr,
):
    """Output and lse of a tile of queries: a row of the map, or a part of one."""
    COLUMNS: tl.constexpr = META.COLUMNS
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    SHARES: tl.constexpr = META.BLOCK_Q // BLOCK_M
    PARTS: tl.constexpr = META.BLOCK_K // BLOCK_N
    item = items_ptr + tl.cast(tl.program_id(0) // SHARES, tl.int64) * 3
    row = tl.load(item)
    count = tl.load(item + 1)
    whole = tl.load(item + 2)
    pair = row // rows
    batch = pair // heads
    head = pair - batch * heads
    first = (row - pair * rows) * META.BLOCK_Q + tl.program_id(0) % SHARES * BLOCK_M
    if first < seqlen_q:
        indices = indices_ptr + tl.cast(row, tl.int64) * columns
        q_place = tl.cast(head, tl.int64) * rows_q + padded_start(batch, 0, seqlen_q, False, Q_PAD) + first
        k_place = tl.cast(head // repeats, tl.int64) * rows_k + padded_start(batch, 0, seqlen_k, False, TILE)
        at = tl.arange(0, BLOCK_M)
        dims = tl.arange(0, COLUMNS)
        there = first + at < seqlen_q
        q = tl.load(made.q + q_place * COLUMNS + (at[:, None] * COLUMNS + dims[None, :]), there[:, None], other=0)
        row_scale = tl.load(made.q_scale + q_place + at, there, other=1.0)
        acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        for index in tl.range(0, whole * PARTS, disable_licm=True):
            key = tl.load(indices + index // PARTS) * META.BLOCK_K + index % PARTS * BLOCK_N
            k, key_scale = load_keys(made, k_place + key, COLUMNS, BLOCK_N)
            scores = tl.dot(q, tl.trans(k), out_dtype=tl.int32).to(tl.float32)
            softmax = add_tile(
                acc=acc,
                scores=scores,
                row_max=row_max,
                row_sum=row_sum,
                row_scale=row_scale,
                key_scale=key_scale,
                made=made,
                place=k_place + key,
                BLOCK_N=BLOCK_N,
            )
            acc, row_max, row_sum = softmax.acc, softmax.row_max, softmax.sums
        for index in tl.range(whole * PARTS, count * PARTS, num_stages=1, disable_licm=True):
            key = tl.load(indices + index // PARTS) * META.BLOCK_K + index % PARTS * BLOCK_N
            # Key blocks end at or within whole tiles of the quantised tensors, so nothing past them is loaded.
            k, key_scale = load_keys(made, k_place + key, COLUMNS, BLOCK_N)
            scores = tl.dot(q, tl.trans(k), out_dtype=tl.int32).to(tl.float32)
            see = sees(
                rows=(first + at)[:, None],
                columns=tl.arange(0, BLOCK_N)[None, :],
                keys=seqlen_k - key,
                shift=seqlen_k - seqlen_q - key,
                left=0,
                right=0,
                HAS_LEFT=False,
                HAS_RIGHT=META.CAUSAL,
            )
            scores = tl.where(see, scores, float("-inf"))
            softmax = add_tile(
                acc=acc,
                scores=scores,
                row_max=row_max,
                row_sum=row_sum,
                row_scale=row_scale,
                key_scale=key_scale,
                made=made,
                place=k_place + key,
                BLOCK_N=BLOCK_N,
            )
            acc, row_max, row_sum = softmax.acc, softmax.row_max, softmax.sums
        v_scale = tl.load(
            made.v_scale + (tl.cast(batch, tl.int64) * (heads // repeats) + head // repeats) * COLUMNS + dims
        )
        out, total = output_of(acc, row_sum, v_scale)
        none = tl.cast(batch * 0, tl.int64)
        out_strides = Strides(batch=out_batch, row=out_row, head=out_head)
        out_base = first_row(out_ptr, batch, none, head, out_strides)
        store_rows(
            base=out_base,
            first=first,
            count=seqlen_q,
            stride=out_row,
            tile=out,
            DIM=META.DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=COLUMNS,
        )
        row_shift = tl.load(made.q_shift + q_place + at, there, other=0.0)
        lse = lse_of(row_max, row_sum, total, row_shift)
        lse_base = first_row(lse_ptr, batch, none, head, Strides(batch=lse_batch, row=1, head=lse_head))
        tl.store(lse_base + first + at, lse, mask=there)
