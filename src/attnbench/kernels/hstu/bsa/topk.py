# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The best few of many in registers: a score and its block packed into one integer, whose maximum gives both.

The bits of a float, its lower 31 flipped where it is negative, rise as the float does.  A narrow key (int32)
gives its lowest bits to the block, counted down so that of equal scores the lower block is the larger key; a
score keeps 23 - bits of its mantissa, enough where q and k have at most 10.  A wide key (int64) keeps all.
Keys are unlike one another, so a maximum is taken out of a tile by comparing with it.

A list is a tuple of [rows] tensors, best first: it lives in the layout that the maxima of a tile have, and
putting a key into it moves nothing between threads.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import standing


@triton.jit
@no_type_check
def least(BITS: tl.constexpr):
    """The key of nothing; BITS of a key name the block, 32 make it wide."""
    return tl.full([], -(2**63), tl.int64) if BITS == 32 else tl.full([], -(2**31), tl.int32)


@triton.jit
@no_type_check
def keys_of(scores, start, BLOCKS: tl.constexpr, BITS: tl.constexpr):
    """Keys of the scores [rows, BLOCKS] of the blocks from number `start` on."""
    bits = scores.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if BITS == 32:
        return (bits.to(tl.int64) << 32) | ((0x7FFFFFFF - start) - tl.arange(0, BLOCKS)).to(tl.int64)[None, :]
    else:
        return (bits & -(2**BITS)) | ((2**BITS - 1 - start) - tl.arange(0, BLOCKS))[None, :]


@triton.jit
@no_type_check
def block_of(keys, BITS: tl.constexpr):
    """Block a key names."""
    if BITS == 32:
        return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)
    else:
        return 2**BITS - 1 - (keys & (2**BITS - 1))


@triton.jit
@no_type_check
def empty_list(rows, LENGTH: tl.constexpr, BITS: tl.constexpr):
    """A list of nothings for each of `rows`."""
    nothing = tl.zeros_like(rows) + least(BITS)
    best = ()
    for _ in tl.static_range(LENGTH):
        best = best + (nothing,)  # noqa: RUF005 (Triton has no unpacking)
    return best


@triton.jit
@no_type_check
def insert(best, key):
    """Put a key where it belongs; the last one falls out."""
    kept = ()
    for i in tl.static_range(len(best)):
        kept = kept + (tl.maximum(best[i], key),)  # noqa: RUF005
        key = tl.minimum(best[i], key)
    return kept


@triton.jit
@no_type_check
def fold_tile(best, keys, ROWS: tl.constexpr, BLOCKS: tl.constexpr, BITS: tl.constexpr):
    """Fold a tile of keys [ROWS, BLOCKS] into the lists.

    Neighbours are put in order first: then only the better ones are searched, and one taken is followed by its
    neighbour.
    """
    first, second = tl.split(tl.reshape(keys, [ROWS, BLOCKS // 2, 2]))
    better = tl.maximum(first, second)
    worse = tl.minimum(first, second)
    for i in tl.static_range(len(best)):
        top = tl.max(better, 1)
        best = insert(best, top)
        if i + 1 < len(best):
            taken = better == top[:, None]
            better = tl.where(taken, worse, better)
            if i + 2 < len(best):
                worse = tl.where(taken, least(BITS), worse)
    return best


@triton.jit
@no_type_check
def store_blocks(
    blocks_ptr,
    best,
    rows,
    queries,
    first_query,
    seen,
    COUNTS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BITS: tl.constexpr,
    stride,
):
    """Write the blocks of each query, ascending, the local one last, -1 behind; rows are [rows] numbers."""
    local = standing(rows, first_query, seen, BLOCK_SIZE).local
    order = insert(empty_list(rows, COUNTS, BITS=31), tl.where(seen > 0, -local, -(2**31)))
    for i in tl.static_range(COUNTS - 1):
        order = insert(order, tl.where(best[i] == least(BITS), -(2**31), -block_of(best[i], BITS)))
    for i in tl.static_range(COUNTS):
        tl.store(
            blocks_ptr + rows.to(tl.int64) * stride + i,
            tl.where(order[i] == -(2**31), -1, -order[i]),
            mask=rows < queries,
        )
