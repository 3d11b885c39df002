# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""What the forward needs of 16-bit tensors, in two launches: statistics of K and V, then all three quantised.

    smooth      sums of K and largest |V| of each channel, of a stretch of rows and a few columns a program
    quantise    a program a tile of 128 rows of one:  q, k - mean(k) -> int8;  v -> e4m3, transposed

Rows of Q have a scale each.  K has four scales a tile: one for the keys n of the same (n % 8) // 2, which one thread of a
tensor core's result holds, so that they cost it a number a tile.  V has one a channel.  e4m3 is transposed because 8-bit
products want both operands with the summed dim innermost, and its keys stand in the order in which a thread's weights
become an operand without an exchange (`key_of`).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.tiles import padded_start, rows_from, sequence
from attnbench.kernels.shared.rows import load_rows, store_rows

TILE = tl.constexpr(128)
"Keys that have scales of their own, and rows of a program."
Q_PAD = tl.constexpr(64)
"Queries of a sequence begin at a multiple of this."
INT8 = tl.constexpr(127.0)
E4M3 = tl.constexpr(448.0)
LEAST = tl.constexpr(2.0**-60)
"Rows and channels whose largest value is smaller count as zeros, so that a product of two scales is a normal number."
ROUND = tl.constexpr(12582912.0)
"1.5 · 2²³: a sum with it has the nearest whole number in its last bits."
COUNTS = (
    "chunk",
    "chunks",
    "heads",
    "heads_kv",
    "repeats",
    "pairs",
    "seqlen_q",
    "seqlen_k",
    "rows_q",
    "rows_k",
    "tiles_q",
    "tiles_k",
    "k_programs",
)
"Numbers of a call that no code is compiled anew for."


@triton.jit
@no_type_check
def size_of(x):
    """|x| as bits, which order as numbers do, with infinity and then NaN on top."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
@no_type_check
def scale_of(bits, LARGEST: tl.constexpr):
    """A scale and its inverse, of the largest size; NaN of one that is not finite."""
    size = bits.to(tl.float32, bitcast=True)
    size = tl.where(bits < 0x7F800000, tl.maximum(size, LEAST), float("nan"))
    return size * (1.0 / LARGEST), 1.0 / size * LARGEST


@triton.jit
@no_type_check
def whole(x):
    """Nearest whole number of x, |x| < 128."""
    return (x + ROUND).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
@no_type_check
def key_of(place):
    """Key whose values stand at a place of a tile: of 16, pairs of the first eight and of the second take turns."""
    return place // 16 * 16 + (place // 2 % 2) * 8 + place % 16 // 4 * 2 + place % 2


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def smooth(
    k_ptr,
    v_ptr,
    parts_ptr,
    cu_k_ptr,
    seqlen_k,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    heads_kv,
    pairs,
    chunk,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sums of K and largest |V| of `chunk` rows and WIDTH columns of a (sequence, head): [chunks, 2, pairs, COLUMNS]."""
    pair = tl.program_id(0)
    part = tl.program_id(1)
    number = pair // heads_kv
    head = pair - number * heads_kv
    batch, _, start, _, keys = sequence(cu_k_ptr, cu_k_ptr, seqlen_k, seqlen_k, number, PACKED)
    columns = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    there = (columns < DIM)[None, :]
    k_base = rows_from(k_ptr, batch, start, head, k_batch, k_row, k_head) + columns[None, :]
    v_base = rows_from(v_ptr, batch, start, head, v_batch, v_row, v_head) + columns[None, :]
    sums = tl.zeros([BLOCK, WIDTH], tl.float32)
    most = tl.zeros([BLOCK, WIDTH], tl.int32)
    end = tl.minimum(part * chunk + chunk, keys)
    for first in range(part * chunk, end, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        mask = (rows < end)[:, None] & there
        k = tl.load(k_base + rows.to(tl.int64)[:, None] * k_row, mask, other=0.0)
        v = tl.load(v_base + rows.to(tl.int64)[:, None] * v_row, mask, other=0.0)
        sums += k.to(tl.float32)
        most = tl.maximum(most, size_of(v.to(tl.float32)))
    sums_ptr = parts_ptr + (tl.cast(part, tl.int64) * 2 * pairs + pair) * COLUMNS
    tl.store(sums_ptr + columns, tl.sum(sums, 0))
    tl.store(sums_ptr + tl.cast(pairs, tl.int64) * COLUMNS + columns, tl.max(most, 0).to(tl.float32, bitcast=True))


@triton.jit
@no_type_check
def parts_of(parts_ptr, pair, pairs, chunks, WHICH: tl.constexpr, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr):
    """What all parts of a head found, [CHUNKS, COLUMNS], all loaded at once: 0 their sums of K, 1 their largest |V|."""
    part = tl.arange(0, CHUNKS)
    place = ((part.to(tl.int64) * 2 + WHICH) * pairs + pair) * COLUMNS
    return tl.load(parts_ptr + place[:, None] + tl.arange(0, COLUMNS)[None, :], (part < chunks)[:, None], other=0.0)


@triton.jit
@no_type_check
def mean_of(parts_ptr, pair, pairs, chunks, keys, COLUMNS: tl.constexpr, CHUNKS: tl.constexpr):
    """Mean of a head's keys."""
    sums = tl.sum(parts_of(parts_ptr, pair, pairs, chunks, 0, COLUMNS, CHUNKS), 0)
    return sums / tl.maximum(keys, 1).to(tl.float32)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def quantise(
    q_ptr,
    k_ptr,
    v_ptr,
    parts_ptr,
    q8_ptr,
    k8_ptr,
    v8_ptr,
    q_scale_ptr,
    q_shift_ptr,
    k_scale_ptr,
    v_scale_ptr,
    counter_ptr,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    q_batch,
    q_row,
    q_head,
    k_batch,
    k_row,
    k_head,
    v_batch,
    v_row,
    v_head,
    scale,
    heads,
    heads_kv,
    pairs,
    chunks,
    rows_q,
    rows_k,
    tiles_q,
    tiles_k,
    k_programs,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """A tile of a head of K, of V or of Q; every row of the quantised tensors that a kernel reads is written."""
    program = tl.program_id(0)
    at = tl.arange(0, TILE)
    columns = tl.arange(0, COLUMNS)
    if program == 0:
        tl.store(counter_ptr, 0)
    if program < 2 * k_programs:
        pair = program // 2 // tiles_k
        first = (program // 2 - pair * tiles_k) * TILE
        number = pair // heads_kv
        head = pair - number * heads_kv
        batch, q_start, k_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED)
        place = tl.cast(head, tl.int64) * rows_k + padded_start(number, k_start, keys, PACKED, TILE) + first
        if program % 2 == 0:
            if first < keys:
                k_base = rows_from(k_ptr, batch, k_start, head, k_batch, k_row, k_head)
                k = load_rows(k_base, first, keys, k_row, DIM, TILE, COLUMNS, False).to(tl.float32)
                mean = mean_of(parts_ptr, pair, pairs, chunks, keys, COLUMNS, CHUNKS)
                k = tl.where((first + at < keys)[:, None], k - mean[None, :], 0.0)
                sizes = tl.max(size_of(k), 1).reshape([TILE // 8, 4, 2])
                k_scale, k_inverse = scale_of(tl.max(tl.max(sizes, 2), 0), INT8)
                inverses = tl.broadcast_to(k_inverse[None, :, None], [TILE // 8, 4, 2]).reshape([TILE])
                tl.store(k_scale_ptr + place // TILE * 4 + tl.arange(0, 4), k_scale)
                k8 = whole(k * inverses[:, None])
                tl.store(k8_ptr + place * COLUMNS + (at[:, None] * COLUMNS + columns[None, :]), k8)
        else:
            most = parts_of(parts_ptr, pair, pairs, chunks, 1, COLUMNS, CHUNKS).to(tl.int32, bitcast=True)
            v_scale, v_inverse = scale_of(tl.max(most, 0), E4M3)
            if first == 0:
                tl.store(v_scale_ptr + tl.cast(pair, tl.int64) * COLUMNS + columns, v_scale)
            if first < keys:
                rows = first + key_of(at)
                v_base = rows_from(v_ptr, batch, k_start, head, v_batch, v_row, v_head)
                v_at = v_base + tl.cast(first, tl.int64) * v_row + (key_of(at)[:, None] * v_row + columns[None, :])
                v = tl.load(v_at, mask=(rows < keys)[:, None] & (columns < DIM)[None, :], other=0.0).to(tl.float32)
                v8 = tl.trans((v * v_inverse[None, :]).to(tl.float8e4nv))  # [COLUMNS, TILE]
                tl.store(v8_ptr + place * COLUMNS + (columns[:, None] * TILE + at[None, :]), v8)
    else:
        pair = (program - 2 * k_programs) // tiles_q
        first = (program - 2 * k_programs - pair * tiles_q) * TILE
        number = pair // heads
        head = pair - number * heads
        batch, q_start, k_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED)
        if first < queries:
            q_base = rows_from(q_ptr, batch, q_start, head, q_batch, q_row, q_head)
            q = load_rows(q_base, first, queries, q_row, DIM, TILE, COLUMNS, False).to(tl.float32)
            pair_kv = number * heads_kv + head // (heads // heads_kv)
            mean = mean_of(parts_ptr, pair_kv, pairs, chunks, keys, COLUMNS, CHUNKS)
            q_scale, q_inverse = scale_of(tl.max(size_of(q), 1), INT8)
            place = tl.cast(head, tl.int64) * rows_q + padded_start(number, q_start, queries, PACKED, Q_PAD)
            end = (queries + Q_PAD - 1) // Q_PAD * Q_PAD
            tl.store(q_scale_ptr + place + first + at, q_scale * scale, mask=first + at < end)
            # What taking the mean from K leaves out of a row's scores, for its lse.
            tl.store(q_shift_ptr + place + first + at, tl.sum(q * mean[None, :], 1) * scale, mask=first + at < end)
            q8 = whole(q * q_inverse[:, None])
            store_rows(q8_ptr + place * COLUMNS, first, end, COLUMNS, q8, COLUMNS, TILE, COLUMNS)
