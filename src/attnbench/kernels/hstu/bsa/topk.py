# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Top-k in registers: a score and its block packed into one integer, so that one maximum gives both.

The bits of a float, with the lower 31 flipped where it is negative, are ordered as the float is.  A narrow key (int32)
uses its lowest bits for the block, counted down so that of equal scores the lower block has the larger key; the score
keeps 23 - bits of its mantissa, enough where q and k have at most 10.  A wide key (int64) keeps all bits.
Keys are distinct, so a maximum is removed from a tile by comparing with it.

A list is a tuple of [rows] tensors, best first: it has the layout of the maxima of a tile, and inserting a key moves
nothing between threads.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import standing


@triton.jit
@no_type_check
def least(BITS: tl.constexpr):
    """The smallest key, which means no block; BITS of a key hold the block, with 32 the key is wide."""
    return tl.full([], -(2**63), tl.int64) if BITS == 32 else tl.full([], -(2**31), tl.int32)


@triton.jit
@no_type_check
def keys_of(scores, start, BLOCKS: tl.constexpr, BITS: tl.constexpr):
    """Keys of the scores [rows, BLOCKS] of the blocks from number `start`."""
    bits = scores.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if BITS == 32:
        return (bits.to(tl.int64) << 32) | ((0x7FFFFFFF - start) - tl.arange(0, BLOCKS)).to(tl.int64)[None, :]
    else:
        return (bits & -(2**BITS)) | ((2**BITS - 1 - start) - tl.arange(0, BLOCKS))[None, :]


@triton.jit
@no_type_check
def block_of(keys, BITS: tl.constexpr):
    """Block of a key."""
    if BITS == 32:
        return 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32)
    else:
        return 2**BITS - 1 - (keys & (2**BITS - 1))


@triton.jit
@no_type_check
def empty_list(rows, LENGTH: tl.constexpr, BITS: tl.constexpr):
    """An empty list for each of `rows`."""
    nothing = tl.zeros_like(rows) + least(BITS)
    best = ()
    for _ in tl.static_range(LENGTH):
        best = best + (nothing,)  # noqa: RUF005 (Triton has no unpacking)
    return best


@triton.jit
@no_type_check
def insert(best, key):
    """Insert a key in order; the last entry is dropped."""
    kept = ()
    for i in tl.static_range(len(best)):
        kept = kept + (tl.maximum(best[i], key),)  # noqa: RUF005
        key = tl.minimum(best[i], key)
    return kept


@triton.jit
@no_type_check
def fold_tile(best, keys, ROWS: tl.constexpr, BLOCKS: tl.constexpr, BITS: tl.constexpr):
    """Merge a tile of keys [ROWS, BLOCKS] into the lists.

    Adjacent keys are sorted first: then only the better ones are searched, and one that is taken is replaced by its
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
    """Store the blocks of each query, ascending, the local one last, padded with -1; `rows` are [rows] row numbers."""
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
