# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Block selection from the means of blocks, on the device.

    pool_blocks       a program for some blocks of queries or of keys: the means of their rows, and their similarity
    multiply_means    a program for a tile of scores: products of the means, or log Σ exp of those of PARTS x PARTS parts
    select_blocks     a program for a row of blocks: those with the largest scores, by their number or by their share of
                      the softmax

One program holds a whole row of scores in registers.  It keeps all scores above a threshold, which it finds by bisection
over the bits; of equal scores the first blocks are kept.  A block whose score is NaN or +∞ is always kept, and does not
affect the others.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

COUNTS = ("heads", "heads_kv", "seqlen_q", "seqlen_k", "parts_q", "parts_k", "rows", "columns", "of_queries")
"Launch arguments whose values the code is not specialized for."


@triton.jit
@no_type_check
def pool_rows(
    x_ptr,
    mean_ptr,
    alike_ptr,
    number,
    heads,
    seqlen,
    stride_batch,
    stride_head,
    stride_row,
    scale,
    dim,
    SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIKE: tl.constexpr,
):
    """GROUP blocks of SIZE rows of one head."""
    blocks = (seqlen + SIZE - 1) // SIZE
    groups = (blocks + GROUP - 1) // GROUP
    pair = number // groups
    block = (number - pair * groups) * GROUP + tl.arange(0, GROUP)
    batch = pair // heads
    row = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    column = tl.arange(0, WIDTH)
    x_ptr += tl.cast(batch, tl.int64) * stride_batch + tl.cast(pair - batch * heads, tl.int64) * stride_head
    x = tl.load(
        x_ptr + row.to(tl.int64)[:, :, None] * stride_row + column[None, None, :],
        mask=(row < seqlen)[:, :, None] & (column < dim)[None, None, :],
        other=0.0,
    ).to(tl.float32)
    tokens = tl.minimum(tl.maximum(seqlen - block * SIZE, 1), SIZE).to(tl.float32)
    place = tl.cast(pair, tl.int64) * blocks + block
    there = block < blocks
    mean = tl.sum(x, 1) / tokens[:, None] * scale
    tl.store(mean_ptr + place[:, None] * dim + column[None, :], mean, mask=there[:, None] & (column < dim)[None, :])
    if ALIKE:
        norm = tl.sqrt(tl.sum(x * x, 2))
        unit = tl.sum(x / tl.where(norm > 1e-12, norm, 1e-12)[:, :, None], 1) / tokens[:, None]
        tl.store(alike_ptr + place, tl.sum(unit * unit, 1), mask=there)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def pool_blocks(
    q_ptr,
    k_ptr,
    q_mean_ptr,
    k_mean_ptr,
    q_alike_ptr,
    k_alike_ptr,
    heads,
    heads_kv,
    seqlen_q,
    seqlen_k,
    of_queries,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    scale,
    dim,
    SIZE_Q: tl.constexpr,
    SIZE_K: tl.constexpr,
    GROUP_Q: tl.constexpr,
    GROUP_K: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIKE: tl.constexpr,
):
    """Means of GROUP_Q blocks of queries, in the first `of_queries` programs, or of GROUP_K blocks of keys; one program.

    Means are fp32, those of queries times `scale`.  With ALIKE also the mean cosine of all pairs of rows of a block.
    """
    number = tl.program_id(0)
    if number < of_queries:
        pool_rows(
            x_ptr=q_ptr,
            mean_ptr=q_mean_ptr,
            alike_ptr=q_alike_ptr,
            number=number,
            heads=heads,
            seqlen=seqlen_q,
            stride_batch=q_batch,
            stride_head=q_head,
            stride_row=q_row,
            scale=scale,
            dim=dim,
            SIZE=SIZE_Q,
            GROUP=GROUP_Q,
            WIDTH=WIDTH,
            ALIKE=ALIKE,
        )
    else:
        pool_rows(
            x_ptr=k_ptr,
            mean_ptr=k_mean_ptr,
            alike_ptr=k_alike_ptr,
            number=number - of_queries,
            heads=heads_kv,
            seqlen=seqlen_k,
            stride_batch=k_batch,
            stride_head=k_head,
            stride_row=k_row,
            scale=1.0,
            dim=dim,
            SIZE=SIZE_K,
            GROUP=GROUP_K,
            WIDTH=WIDTH,
            ALIKE=ALIKE,
        )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def multiply_means(
    q_mean_ptr,
    k_mean_ptr,
    scores_ptr,
    heads,
    heads_kv,
    parts_q,
    parts_k,
    rows,
    columns,
    dim,
    PARTS: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A tile of TILE x TILE scores, fp32 [B, H, rows, columns], each from PARTS x PARTS products; one program."""
    number = tl.program_id(0)
    across = (parts_k + TILE - 1) // TILE
    tiles = (parts_q + TILE - 1) // TILE * across
    pair = number // tiles
    tile = number - pair * tiles
    batch = pair // heads
    of_keys = batch * heads_kv + (pair - batch * heads) // (heads // heads_kv)
    q = tile // across * TILE + tl.arange(0, TILE)
    k = tile % across * TILE + tl.arange(0, TILE)
    q_mean_ptr += (tl.cast(pair, tl.int64) * parts_q + q)[:, None] * dim
    k_mean_ptr += (tl.cast(of_keys, tl.int64) * parts_k + k)[None, :] * dim
    found = tl.zeros([TILE, TILE], tl.float32)
    for start in tl.static_range(0, WIDTH, CHUNK):
        at = start + tl.arange(0, CHUNK)
        q_mean = tl.load(q_mean_ptr + at[None, :], mask=(q < parts_q)[:, None] & (at < dim)[None, :], other=0.0)
        k_mean = tl.load(k_mean_ptr + at[:, None], mask=(k < parts_k)[None, :] & (at < dim)[:, None], other=0.0)
        found = tl.dot(q_mean, k_mean, found, input_precision="tf32x3")
    SIDE: tl.constexpr = TILE // PARTS
    if PARTS > 1:
        found = tl.where((q < parts_q)[:, None] & (k < parts_k)[None, :], found, -float("inf"))
        found = tl.reshape(found, [SIDE, PARTS, SIDE, PARTS])
        largest = tl.max(tl.max(found, 3), 1)
        largest = tl.where(largest == -float("inf"), 0.0, largest)
        total = tl.sum(tl.sum(tl.exp(found - largest[:, None, :, None]), 3), 1)
        found = tl.where(total == 0.0, -float("inf"), tl.log(tl.where(total == 0.0, 1.0, total)) + largest)
    row = tile // across * SIDE + tl.arange(0, SIDE)
    column = tile % across * SIDE + tl.arange(0, SIDE)
    at = (tl.cast(pair, tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(scores_ptr + at, found, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def select_blocks(
    scores_ptr,
    q_alike_ptr,
    k_alike_ptr,
    map_ptr,
    heads,
    heads_kv,
    rows,
    columns,
    seqlen_q,
    seqlen_k,
    share,
    gate,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    BY_NUMBER: tl.constexpr,
    GATED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Select blocks of one row of the map from scores fp32 [B, H, rows, columns], at most WIDTH columns; one program."""
    number = tl.program_id(0)
    pair = number // rows
    row = number - pair * rows
    column = tl.arange(0, WIDTH)
    possible = column < columns
    forced = column < 0
    if CAUSAL:
        first = row * BLOCK_Q + seqlen_k - seqlen_q
        end = tl.minimum((row + 1) * BLOCK_Q, seqlen_q) + seqlen_k - seqlen_q
        possible = possible & (column * BLOCK_K < end)
        forced = possible & ((column + 1) * BLOCK_K > first)
    at = tl.cast(number, tl.int64) * columns + column
    score = tl.load(scores_ptr + at, mask=possible, other=-float("inf"))
    unknown = (score != score) | (score == float("inf"))
    score = tl.where(unknown, -float("inf"), score)
    # Integers in the order of the scores.
    bits = score.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    judged = possible & (unknown == 0)
    if BY_NUMBER:
        # Blocks without a score (NaN or +∞) do not count towards the number.
        weight = judged.to(tl.float32)
        wanted = tl.floor(tl.sum(possible.to(tl.float32), 0) * share + 0.5)
        wanted = tl.maximum(wanted, 1.0)
    else:
        largest = tl.max(score, 0)
        largest = tl.where(largest == -float("inf"), 0.0, largest)
        weight = tl.where(judged, tl.exp(score - largest), 0.0)
        wanted = tl.sum(weight, 0) * share
    total = tl.sum(weight, 0)
    least = tl.where(tl.sum(tl.where(key >= 0, weight, 0.0), 0) >= wanted, 0, -(2**31))
    for place in tl.static_range(31):
        higher = least | (1 << (30 - place))
        reached = tl.sum(tl.where(key >= higher, weight, 0.0), 0)
        least = tl.where(reached >= wanted, higher, least)
    above = judged & (key > least)
    equal = judged & (key == least)
    before = tl.sum(tl.where(above, weight, 0.0), 0)
    ties = tl.where(equal, weight, 0.0)
    earlier = tl.cumsum(ties, 0) - ties
    kept = above | (equal & (before + earlier < wanted))
    # If there are no more blocks than wanted, or no score is a number, all are kept.
    kept = kept | unknown | (weight * tl.where(total <= wanted, 1.0, 0.0) > 0.0) | (weight * 0.0 + total == 0.0)
    if GATED:
        batch = pair // heads
        of_keys = batch * heads_kv + (pair - batch * heads) // (heads // heads_kv)
        alike = tl.load(k_alike_ptr + tl.cast(of_keys, tl.int64) * columns + column, mask=possible, other=1.0)
        kept = kept | (tl.minimum(alike, tl.load(q_alike_ptr + number)) < gate)
    tl.store(map_ptr + at, ((kept | forced) & possible).to(tl.uint8), mask=column < columns)
