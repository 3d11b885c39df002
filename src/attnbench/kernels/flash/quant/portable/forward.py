# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Quantised softmax attention forward: a program computes a tile of queries, looping over the keys they see.

    for each tile of keys:  S = f Q8 K8ᵀ,  m' = max(m, rowmax S),  P = e4m3(448 exp2(S - m')),  a = exp2(m - m')
                            l = a l + rowsum P,  R = P V8,  O = a O + R,  m = m'
    O scale(V) / l,  lse = ln 2 (m + log2(l / 448) + shift)

The scores are integers; f is the scale of a query times the scale of a key, of which a tile has four (`prepare`).  R is
accumulated separately because the tensor cores of sm_90 keep only 13 bits in sums of e4m3 products; O is accumulated in
fp32.  l sums P before rounding.  Masked tiles come last, in a loop of their own.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.quant.portable.prepare import Q_PAD, TILE
from attnbench.kernels.flash.tiles import (
    Folded,
    Softmax,
    first_row,
    keys_of_rows,
    padded_start,
    sees,
    sequence,
    tiles_of,
)
from attnbench.kernels.shared.arguments import Strides
from attnbench.kernels.shared.rows import section_of, store_rows

LN_2 = tl.constexpr(0.6931471805599453)
PEAK = tl.constexpr(8.807354922057604)
"log2 of the largest e4m3 number, to which the largest weight of a row is scaled."
COUNTS = ("lse_batch", "lse_head", "heads", "repeats", "pairs", "tiles", "group", "rows_q", "rows_k")
"Arguments whose values the code is not specialized for."


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_quant_forward`."""

    DIM: int
    COLUMNS: int
    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_M: int
    BLOCK_N: int


@triton.jit
@no_type_check
def fold(scores, row_max, row_sum, row_scale, key_scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Merge a tile's unscaled scores into the running softmax, as `Folded`."""
    scores = scores.reshape([BLOCK_M, BLOCK_N // 8, 4, 2])
    scales = row_scale[:, None] * key_scale[None, :]  # [BLOCK_M, 4]
    new_max = tl.maximum(row_max, tl.max(tl.max(tl.max(scores, 3), 1) * scales, 1))
    # A row that has seen no key yet has no maximum to subtract.
    pivot = tl.where(new_max == float("-inf"), 0.0, new_max) - PEAK
    weights = tl.math.exp2(scores * scales[:, None, :, None] - pivot[:, None, None, None])
    factor = tl.math.exp2(row_max - (pivot + PEAK))
    row_sum = row_sum * factor + tl.sum(tl.sum(tl.sum(weights, 3), 1), 1)
    # Columns in the order of V's keys (`prepare.key_of`).
    weights = weights.to(tl.float8e4nv).reshape([BLOCK_M, BLOCK_N // 16, 2, 4, 2]).permute(0, 1, 3, 2, 4)
    return Folded(weights=weights.reshape([BLOCK_M, BLOCK_N]), factor=factor, row_max=new_max, sums=row_sum)


@triton.jit
@no_type_check
def load_keys(made, place, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Keys [BLOCK_N, COLUMNS] from row `place` of all heads' rows, and their four scales."""
    rows = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, COLUMNS)
    k = tl.load(made.k + place * COLUMNS + (rows[:, None] * COLUMNS + columns[None, :]))
    return k, tl.load(made.k_scale + place // TILE * 4 + tl.arange(0, 4))


@triton.jit
@no_type_check
def load_values(made, place, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Values of these keys, transposed: [COLUMNS, BLOCK_N]."""
    rows = tl.arange(0, BLOCK_N)
    columns = tl.arange(0, COLUMNS)
    return tl.load(made.v + place // TILE * (TILE * COLUMNS) + place % TILE + (columns[:, None] * TILE + rows[None, :]))


@triton.jit
@no_type_check
def add_tile(acc, scores, row_max, row_sum, row_scale, key_scale, made, place, BLOCK_N: tl.constexpr):
    """The running `Softmax` with a tile: its scores, and its values from row `place` of all heads' rows."""
    BLOCK_M: tl.constexpr = acc.shape[0]
    COLUMNS: tl.constexpr = acc.shape[1]
    folded = fold(scores, row_max, row_sum, row_scale, key_scale, BLOCK_M, BLOCK_N)
    v = load_values(made, place, COLUMNS, BLOCK_N)
    part = tl.dot(folded.weights, tl.trans(v), out_dtype=tl.float32)
    acc = tl.fma(acc, tl.broadcast_to(folded.factor[:, None], [BLOCK_M, COLUMNS]), part)
    return Softmax(acc=acc, row_max=folded.row_max, sums=folded.sums)


@triton.jit
@no_type_check
def output_of(acc, row_sum, v_scale):
    """The output, 0 for rows that see no key, and the sums, 1 for such rows."""
    total = tl.where(row_sum == 0.0, 1.0, row_sum)  # false for NaN
    return acc * (1.0 / total)[:, None] * v_scale[None, :], total


@triton.jit
@no_type_check
def lse_of(row_max, row_sum, total, row_shift):
    """Logarithm of each row's sum, -∞ for rows that see no key."""
    return tl.where(row_sum == 0.0, float("-inf"), (row_max + tl.math.log2(total) - PEAK + row_shift) * LN_2)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_quant_forward(
    made,
    out_ptr,
    lse_ptr,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    out_strides,
    lse_batch,
    lse_head,
    heads,
    repeats,
    pairs,
    tiles,
    group,
    rows_q,
    rows_k,
    META: tl.constexpr,
):
    """Output and lse of a tile of queries."""
    COLUMNS: tl.constexpr = META.COLUMNS
    BLOCK_M: tl.constexpr = META.BLOCK_M
    BLOCK_N: tl.constexpr = META.BLOCK_N
    tile, pair = section_of(tl.program_id(0), tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    bounds = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, META.PACKED)
    batch, queries, keys = bounds.batch, bounds.queries, bounds.keys
    query_start, key_start = bounds.query_start, bounds.key_start
    first = (tiles - 1 - tile) * BLOCK_M
    if first < queries:
        q_place = (
            tl.cast(head, tl.int64) * rows_q + padded_start(number, query_start, queries, META.PACKED, Q_PAD) + first
        )
        k_place = tl.cast(head // repeats, tl.int64) * rows_k + padded_start(number, key_start, keys, META.PACKED, TILE)
        at = tl.arange(0, BLOCK_M)
        columns = tl.arange(0, COLUMNS)
        rows = first + at
        there = rows < queries
        q = tl.load(made.q + q_place * COLUMNS + (at[:, None] * COLUMNS + columns[None, :]), there[:, None], other=0)
        row_scale = tl.load(made.q_scale + q_place + at, there, other=1.0)
        shift = keys - queries
        last = tl.minimum(first + BLOCK_M, queries) - 1
        reach = keys_of_rows(
            first=first, last=last, keys=keys, shift=shift, left=0, right=0, HAS_LEFT=False, HAS_RIGHT=META.HAS_RIGHT
        )
        key_tiles = tiles_of(reach, BLOCK_N)
        split, end = key_tiles.split, key_tiles.end
        acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
        row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        for index in tl.range(0, split, disable_licm=True):
            k, key_scale = load_keys(made, k_place + index * BLOCK_N, COLUMNS, BLOCK_N)
            scores = tl.dot(q, tl.trans(k), out_dtype=tl.int32).to(tl.float32)
            softmax = add_tile(
                acc=acc,
                scores=scores,
                row_max=row_max,
                row_sum=row_sum,
                row_scale=row_scale,
                key_scale=key_scale,
                made=made,
                place=k_place + index * BLOCK_N,
                BLOCK_N=BLOCK_N,
            )
            acc, row_max, row_sum = softmax.acc, softmax.row_max, softmax.sums
        for index in tl.range(split, end, num_stages=1, disable_licm=True):
            k, key_scale = load_keys(made, k_place + index * BLOCK_N, COLUMNS, BLOCK_N)
            scores = tl.dot(q, tl.trans(k), out_dtype=tl.int32).to(tl.float32)
            from_tile = index * BLOCK_N
            see = sees(
                rows=rows[:, None],
                columns=tl.arange(0, BLOCK_N)[None, :],
                keys=keys - from_tile,
                shift=shift - from_tile,
                left=0,
                right=0,
                HAS_LEFT=False,
                HAS_RIGHT=META.HAS_RIGHT,
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
                place=k_place + index * BLOCK_N,
                BLOCK_N=BLOCK_N,
            )
            acc, row_max, row_sum = softmax.acc, softmax.row_max, softmax.sums
        v_scale = tl.load(
            made.v_scale + (tl.cast(number, tl.int64) * (heads // repeats) + head // repeats) * COLUMNS + columns
        )
        out, total = output_of(acc, row_sum, v_scale)
        out_base = first_row(out_ptr, batch, query_start, head, out_strides)
        store_rows(
            base=out_base,
            first=first,
            count=queries,
            stride=out_strides.row,
            tile=out,
            DIM=META.DIM,
            BLOCK=BLOCK_M,
            BLOCK_DIM=COLUMNS,
        )
        row_shift = tl.load(made.q_shift + q_place + at, there, other=0.0)
        lse = lse_of(row_max, row_sum, total, row_shift)
        lse_base = first_row(lse_ptr, batch, query_start, head, Strides(batch=lse_batch, row=1, head=lse_head))
        tl.store(lse_base + rows, lse, mask=there)
