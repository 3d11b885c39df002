# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Block-sparse softmax attention forward: a program computes a tile of queries, looping over the listed key blocks.

The arithmetic is that of `flash.portable.forward`; the keys come from a list.  Blocks that need no mask come first in
it; those on a causal diagonal or at the end of the sequence follow in a loop of their own.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.portable.forward import LN_2, fold
from attnbench.kernels.flash.tiles import Rows, first_row, load_tile, sees
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.rows import load_rows, store_rows

COUNTS = ("lse_batch", "lse_head", "heads", "repeats", "rows", "columns", "seqlen_q", "seqlen_k")
"Launch arguments whose values the code is not specialized for."


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_sparse_forward`."""

    DIM: int
    BLOCK_D: int
    CAUSAL: bool
    BLOCK_Q: int
    BLOCK_K: int
    BLOCK_M: int
    BLOCK_N: int


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_sparse_forward(
    tensors,
    lse_ptr,
    items_ptr,
    indices_ptr,
    seqlen_q,
    seqlen_k,
    strides,
    lse_batch,
    lse_head,
    scale,
    heads,
    repeats,
    rows,
    columns,
    META: tl.constexpr,
):
    """Output and lse of a tile of queries: a row of the map, or a part of one."""
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    BLOCK_D: tl.constexpr = META.BLOCK_D
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
        none = tl.cast(batch * 0, tl.int64)
        indices = indices_ptr + tl.cast(row, tl.int64) * columns
        q_base = first_row(tensors.q, batch, none, head, strides.q)
        head_kv = head // repeats
        k_rows = Rows(
            base=first_row(tensors.k, batch, none, head_kv, strides.k),
            desc=None,
            batch=batch,
            start=none,
            head=head_kv,
            count=seqlen_k,
            stride=strides.k.row,
        )
        v_rows = Rows(
            base=first_row(tensors.v, batch, none, head_kv, strides.v),
            desc=None,
            batch=batch,
            start=none,
            head=head_kv,
            count=seqlen_k,
            stride=strides.v.row,
        )
        q = load_rows(
            base=q_base,
            first=first,
            count=seqlen_q,
            stride=strides.q.row,
            DIM=META.DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_D,
            WHOLE=False,
        )  # [BLOCK_M, BLOCK_D]
        at_rows = first + tl.arange(0, BLOCK_M)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        for index in tl.range(0, whole * PARTS, disable_licm=True):
            at = tl.load(indices + index // PARTS) * META.BLOCK_K + index % PARTS * BLOCK_N
            k = load_tile(k_rows, at, META.DIM, BLOCK_N, BLOCK_D, True, False)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            folded = fold(scores, row_max, row_sum, scale, False)
            row_max, row_sum = folded.row_max, folded.sums
            v = load_tile(v_rows, at, META.DIM, BLOCK_N, BLOCK_D, True, False)
            acc = tl.dot(folded.weights.to(v.dtype), v, acc * folded.factor[:, None], input_precision="ieee")
        for index in tl.range(whole * PARTS, count * PARTS, num_stages=1, disable_licm=True):
            at = tl.load(indices + index // PARTS) * META.BLOCK_K + index % PARTS * BLOCK_N
            k = load_tile(k_rows, at, META.DIM, BLOCK_N, BLOCK_D, False, False)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            see = sees(
                rows=at_rows[:, None],
                columns=tl.arange(0, BLOCK_N)[None, :],
                keys=seqlen_k - at,
                shift=seqlen_k - seqlen_q - at,
                left=0,
                right=0,
                HAS_LEFT=False,
                HAS_RIGHT=META.CAUSAL,
            )
            scores = tl.where(see, scores, float("-inf"))
            folded = fold(scores, row_max, row_sum, scale, False)
            row_max, row_sum = folded.row_max, folded.sums
            v = load_tile(v_rows, at, META.DIM, BLOCK_N, BLOCK_D, False, False)
            acc = tl.dot(folded.weights.to(v.dtype), v, acc * folded.factor[:, None], input_precision="ieee")
        empty = row_sum == 0.0  # false for NaN
        total = tl.where(empty, 1.0, row_sum)
        acc = acc * (1.0 / total)[:, None]
        out_base = first_row(tensors.out, batch, none, head, strides.out)
        store_rows(
            base=out_base,
            first=first,
            count=seqlen_q,
            stride=strides.out.row,
            tile=acc,
            DIM=META.DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=BLOCK_D,
        )
        lse = tl.where(empty, float("-inf"), (row_max * scale + tl.math.log2(total)) * LN_2)
        lse_base = first_row(lse_ptr, batch, none, head, Strides(batch=lse_batch, row=1, head=lse_head))
        tl.store(lse_base + at_rows, lse, mask=at_rows < seqlen_q)
