# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Block selection from scores of pairs of blocks, on the device.

    pool_blocks       a program for some parts of queries or of keys: the means of their rows, and their similarity
    multiply_parts    a program for a tile of products of parts of queries and parts of keys, and the sum of the exponentials
                      of those of each block of keys
    select_blocks     a program for a row of blocks: those with the largest scores, by their number or by their share of
                      the softmax

Parts are compared by their means, or along the anti-diagonals of the products of their tokens.  Exponents and logarithms
are to base 2.

In the last launch one program holds a whole row of scores in registers.  It keeps all scores above a threshold, which it
finds by bisection over the bits; of equal scores the first blocks are kept.  A block whose score is NaN or +∞ is always
kept, and does not affect the others.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

COUNTS = ("heads", "heads_kv", "seqlen_q", "seqlen_k", "parts_q", "parts_k", "rows", "columns", "of_queries")
"Launch arguments whose values the code is not specialized for."


class ProductsMeta(NamedTuple):
    """Compile-time constants of `multiply_parts`."""

    STRIDE: int
    PARTS: int
    TILE_Q: int
    TILE_K: int
    WIDTH: int
    "power of two, at least the head dim"
    CHUNK: int
    "dims of a step"
    WHOLE: bool
    "no part lacks rows, and no row has fewer dims than WIDTH"
    DEPENDENT: bool
    "the next kernel may be launched while this one runs, and waits for its end"


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
    LINES: tl.constexpr,
    EACH: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIKE: tl.constexpr,
):
    """The parts of SIZE rows that consist of LINES x EACH rows of one head.

    A thread adds its columns of EACH rows, and exchanges only their sum.  Programs of different heads and the same rows
    follow each other: where a token's heads are adjacent in memory, they read whole DRAM pages together.
    """
    GROUP: tl.constexpr = LINES * EACH // SIZE
    parts = (seqlen + SIZE - 1) // SIZE
    groups = (parts + GROUP - 1) // GROUP
    head = number % heads
    batch = number // heads // groups
    group = number // heads - batch * groups
    column = tl.arange(0, WIDTH)
    first = group * (LINES * EACH) + tl.arange(0, LINES) * EACH
    x_ptr += tl.cast(batch, tl.int64) * stride_batch + tl.cast(head, tl.int64) * stride_head
    x_ptr += first.to(tl.int64)[:, None] * stride_row + column[None, :]
    total = tl.zeros([LINES, WIDTH], tl.float32)
    units = tl.zeros([LINES, WIDTH], tl.float32)
    for row in tl.static_range(EACH):
        there = (first + row < seqlen)[:, None] & (column < dim)[None, :]
        x = tl.load(x_ptr + tl.cast(row, tl.int64) * stride_row, mask=there, other=0.0).to(tl.float32)
        total += x
        if ALIKE:
            norm = tl.sqrt(tl.sum(x * x, 1))
            units += x / tl.where(norm > 1e-12, norm, 1e-12)[:, None]
    part = group * GROUP + tl.arange(0, GROUP)
    tokens = tl.minimum(tl.maximum(seqlen - part * SIZE, 1), SIZE).to(tl.float32)[:, None]
    mean = tl.sum(tl.reshape(total, [GROUP, SIZE // EACH, WIDTH]), 1) / tokens * scale
    # Two 16-bit numbers have 16 bits of the mean: its products are rounded to 2⁻¹⁶ of their size, far below what 16-bit
    # queries and keys are rounded to, and run on tensor cores.
    high = mean.to(tl.bfloat16)
    low = (mean - high.to(tl.float32)).to(tl.bfloat16)
    place = (tl.cast(batch, tl.int64) * heads + head) * parts + part
    mean_ptr += place[:, None] * (2 * WIDTH) + column[None, :]
    stored = (part < parts)[:, None] & (column < WIDTH)[None, :]
    tl.store(mean_ptr, high, mask=stored)
    tl.store(mean_ptr + WIDTH, low, mask=stored)
    if ALIKE:
        unit = tl.sum(tl.reshape(units, [GROUP, SIZE // EACH, WIDTH]), 1) / tokens
        tl.store(alike_ptr + place, tl.sum(unit * unit, 1), mask=part < parts)


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
    LINES: tl.constexpr,
    EACH: tl.constexpr,
    WIDTH: tl.constexpr,
    ALIKE: tl.constexpr,
):
    """Means of the parts of LINES x EACH queries, in the first `of_queries` programs, or of so many keys; one program.

    Means are [B, heads, parts, 2, WIDTH], each the sum of two bf16 numbers, and 0 from `dim` on; those of queries are
    multiplied by `scale`.  With ALIKE also the mean cosine of all pairs of rows of a part.
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
            LINES=LINES,
            EACH=EACH,
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
            LINES=LINES,
            EACH=EACH,
            WIDTH=WIDTH,
            ALIKE=ALIKE,
        )


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def multiply_parts(
    q_ptr,
    k_ptr,
    scores_ptr,
    largest_ptr,
    heads,
    heads_kv,
    seqlen_q,
    seqlen_k,
    parts_q,
    parts_k,
    columns,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    scale,
    dim,
    META: tl.constexpr,
):
    """Scores of TILE_Q parts of queries with the blocks of TILE_K parts of keys, PARTS a block; one program.

    With STRIDE, a part is so many rows of q and k, and its product is the sum over i of the product of row i of the keys
    and row STRIDE - 1 - i of the queries.  Without, q and k are the means that `pool_blocks` stores, two rows a part, and
    the product of (a + b) and (c + d) is ac + ad + bc.

    Scores are fp32 [B, H, parts_q, columns].  With one part a block they are x, the products times `scale`.  With more, m
    being the largest x of a part of queries in this tile, they are Σ 2ˣ⁻ᵐ over the parts of a block, and m is stored too,
    fp32 [B, H, parts_q, tiles of keys].
    """
    STRIDE: tl.constexpr = META.STRIDE
    PARTS: tl.constexpr = META.PARTS
    TILE_Q: tl.constexpr = META.TILE_Q
    TILE_K: tl.constexpr = META.TILE_K
    CHUNK: tl.constexpr = META.CHUNK
    ROWS: tl.constexpr = STRIDE if STRIDE > 0 else 2
    PRODUCTS: tl.constexpr = STRIDE if STRIDE > 0 else 3
    CHUNKS: tl.constexpr = META.WIDTH // CHUNK
    SIDE: tl.constexpr = TILE_K // PARTS
    if META.DEPENDENT:
        gdc_launch_dependents()
    number = tl.program_id(0)
    across = (parts_k + TILE_K - 1) // TILE_K
    tiles = (parts_q + TILE_Q - 1) // TILE_Q * across
    pair = number // tiles
    tile = number - pair * tiles
    batch = pair // heads
    head = pair - batch * heads
    q = tile // across * TILE_Q + tl.arange(0, TILE_Q)
    k = tile % across * TILE_K + tl.arange(0, TILE_K)
    # Results of parts that do not exist are not used: any row will do.
    q_first = tl.minimum(q, parts_q - 1) * ROWS
    k_first = tl.minimum(k, parts_k - 1) * ROWS
    column = tl.arange(0, CHUNK)
    q_ptr += tl.cast(batch, tl.int64) * q_batch + tl.cast(head, tl.int64) * q_head
    k_ptr += tl.cast(batch, tl.int64) * k_batch + tl.cast(head // (heads // heads_kv), tl.int64) * k_head
    q_ptr += q_first.to(tl.int64)[:, None] * q_row + column[None, :]
    k_ptr += k_first.to(tl.int64)[None, :] * k_row + column[:, None]
    found = tl.zeros([TILE_Q, TILE_K], tl.float32)
    for step in range(PRODUCTS * CHUNKS):
        product = step // CHUNKS
        start = step % CHUNKS * CHUNK
        if STRIDE > 0:
            of_query = STRIDE - 1 - product
            of_key = product
        else:
            of_query = product // 2
            of_key = product % 2
        q_at = q_ptr + (tl.cast(of_query, tl.int64) * q_row + start)
        k_at = k_ptr + (tl.cast(of_key, tl.int64) * k_row + start)
        if META.WHOLE:
            q_rows = tl.load(q_at)
            k_rows = tl.load(k_at)
        else:
            there = start + column < dim
            q_rows = tl.load(q_at, mask=(q_first + of_query < seqlen_q)[:, None] & there[None, :], other=0.0)
            k_rows = tl.load(k_at, mask=(k_first + of_key < seqlen_k)[None, :] & there[:, None], other=0.0)
        found = tl.dot(q_rows, k_rows, found, input_precision="tf32x3")
    part = tl.cast(pair, tl.int64) * parts_q + q
    there = q < parts_q
    column_tile = tile % across
    if PARTS > 1 and column_tile * TILE_K + TILE_K > parts_k:
        found = tl.where((k < parts_k)[None, :], found, -float("inf"))
    if PARTS > 1:
        # One maximum for all columns of the tile costs half as much as one for each block.  What is 2⁻¹²⁶ of the largest
        # counts as 0.
        largest = tl.max(found, 1) * scale
        largest = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
        found = tl.sum(tl.reshape(tl.exp2(found * scale - largest[:, None]), [TILE_Q, SIDE, PARTS]), 2)
        tl.store(largest_ptr + part * across + column_tile, largest, mask=there)
    else:
        found *= scale
    block = column_tile * SIDE + tl.arange(0, SIDE)
    tl.store(
        scores_ptr + part[:, None] * columns + block[None, :], found, mask=there[:, None] & (block < columns)[None, :]
    )


@triton.jit
@no_type_check
def sum_parts(
    sums_ptr,
    largest_ptr,
    pair,
    row,
    parts_q,
    columns,
    PARTS: tl.constexpr,
    SIDE: tl.constexpr,
    SHARES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Scores of a row of PARTS parts, fp32 [WIDTH]; see `select_blocks`."""
    column = tl.arange(0, WIDTH)[None, :]
    part = row * PARTS + tl.arange(0, PARTS)
    there = (part < parts_q)[:, None] & (column < columns)
    at = (tl.cast(pair, tl.int64) * parts_q + part)[:, None]
    tiles = (columns + SIDE - 1) // SIDE
    largest = tl.load(largest_ptr + at * tiles + column // SIDE, mask=there, other=-float("inf"))
    sums = tl.load(sums_ptr + at * columns + column, mask=there, other=0.0)
    most = tl.max(largest, 1)
    if not SHARES:
        most = tl.zeros_like(most) + tl.max(most, 0)
    most = tl.where(most == -float("inf"), 0.0, most)
    weights = sums * tl.exp2(largest - most[:, None])
    if SHARES:
        whole = tl.sum(weights, 1)
        weights = weights / tl.where(whole == 0.0, 1.0, whole)[:, None]
    total = tl.sum(weights, 0)
    return tl.where(total == 0.0, -float("inf"), tl.log2(tl.where(total == 0.0, 1.0, total)))


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def select_blocks(
    scores_ptr,
    largest_ptr,
    q_alike_ptr,
    k_alike_ptr,
    map_ptr,
    heads,
    heads_kv,
    rows,
    parts_q,
    columns,
    seqlen_q,
    seqlen_k,
    share,
    gate,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    SIDE: tl.constexpr,
    SHARES: tl.constexpr,
    CAUSAL: tl.constexpr,
    BY_NUMBER: tl.constexpr,
    GATED: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Select blocks of one row of the map from scores fp32 [B, H, parts_q, columns], at most WIDTH columns; one program.

    With SIDE, a row of the map has PARTS parts, whose scores are sums relative to the largest of a tile of SIDE columns,
    fp32 [B, H, parts_q, tiles].  A block's score is then the logarithm of the sum of its parts', or with SHARES of their
    shares of the softmax over the columns.

    DEPENDENT: launched before the end of the kernel that computes the scores.
    """
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
    if DEPENDENT:
        gdc_wait()
    if SIDE > 0:
        score = sum_parts(
            scores_ptr, largest_ptr, pair, row, parts_q, columns, PARTS=PARTS, SIDE=SIDE, SHARES=SHARES, WIDTH=WIDTH
        )
        score = tl.where(possible, score, -float("inf"))
    else:
        score = tl.load(scores_ptr + at, mask=possible, other=-float("inf"))
    unknown = (score != score) | (score == float("inf"))
    score = tl.where(unknown, -float("inf"), score)
    judged = possible & (unknown == 0)
    # Integers in the order of the scores.
    bits = score.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if BY_NUMBER:
        # Blocks without a score (NaN or +∞) do not count towards the number.
        weight = judged.to(tl.float32)
        wanted = tl.floor(tl.sum(possible.to(tl.float32), 0) * share + 0.5)
        wanted = tl.maximum(wanted, 1.0)
    else:
        largest = tl.max(score, 0)
        largest = tl.where(largest == -float("inf"), 0.0, largest)
        weight = tl.where(judged, tl.exp2(score - largest), 0.0)
        wanted = tl.sum(weight, 0) * share
    total = tl.sum(weight, 0)
    # Bisection: the bits of the threshold are those of `least`, except those in `undecided`, which are not known yet.  It
    # ends when only one block is left between the blocks that are kept and those that are not.
    lowest = tl.min(tl.where(judged, key, 2**31 - 1), 0)
    highest = tl.max(tl.where(judged, key, -(2**31)), 0)
    undecided = (lowest ^ highest).to(tl.uint32, bitcast=True)
    for shift in tl.static_range(5):
        undecided |= undecided >> (1 << shift)
    least = (lowest ^ -(2**31)).to(tl.uint32, bitcast=True) & ~undecided
    key = (key ^ -(2**31)).to(tl.uint32, bitcast=True)
    inside = tl.sum(judged.to(tl.int32), 0)
    beyond = 0
    while (undecided > 0) & (inside > 1):
        higher = least | (undecided - (undecided >> 1))
        over = judged & (key >= higher)
        count = tl.sum(over.to(tl.int32), 0)
        reached = count.to(tl.float32)
        if not BY_NUMBER:
            reached = tl.sum(tl.where(over, weight, 0.0), 0)
        enough = reached >= wanted
        least = tl.where(enough, higher, least)
        inside = tl.where(enough, count - beyond, inside + beyond - count)
        beyond = tl.where(enough, beyond, count)
        undecided = undecided >> 1
    above = judged & ((key & ~undecided) > least)
    equal = judged & ((key & ~undecided) == least)
    kept = above | equal
    if inside > 1:  # of equal ones the first, as many as are wanted
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
