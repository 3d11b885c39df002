# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""For each block the queries that chose it, in their order: a counting sort in three passes, without atomics.

An entry t (S - 1) + s says that slot s of query t chose a block before its local one.  The queries of a
sequence are cut into SEGMENTS runs; the segments are sorted side by side.

    rank     a segment counts each of its blocks, and gives each entry the number of equal ones before it
    place    per sequence: where each block's list starts, where each segment writes into it, and a table of
             tiles of ROWS entries of one block, so that a block chosen by all is many tiles and not one long loop
    scatter  each entry goes to its place

The order of a list depends on nothing but the blocks: sums over it are the same each time.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu_bsa_tiles import COUNTS, standing
from attnbench.kernels.hstu_dense_tiles import sequence


@triton.jit
@no_type_check
def chosen_blocks(blocks_ptr, entries, count, first_query, seen, stride, OTHERS: tl.constexpr,
                  BLOCK_SIZE: tl.constexpr):
    """Block of each entry, -1 where the slot holds the local block or none."""
    rows = entries // OTHERS
    block = tl.load(blocks_ptr + rows.to(tl.int64) * stride + entries % OTHERS, mask=entries < count, other=-1)
    _, _, local = standing(rows, first_query, seen, BLOCK_SIZE)
    return tl.where(block < local, block, -1)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_rank(
    blocks_ptr, ranks_ptr, counts_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, entry_rows,
    count_rows, SEGMENTS: tl.constexpr, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: one segment of a sequence, its entries in order."""
    unit = tl.program_id(0) // SEGMENTS
    segment = tl.program_id(0) - unit * SEGMENTS
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    whole = seen // BLOCK_SIZE
    counts = counts_ptr + (head * SEGMENTS + segment) * count_rows + key_start // BLOCK_SIZE
    at = tl.arange(0, CHUNK)
    for first in range(0, whole, CHUNK):
        tl.store(counts + first + at, 0, mask=first + at < whole)
    tl.debug_barrier()

    count = (keys - first_query) * OTHERS
    length = tl.cdiv(keys - first_query, SEGMENTS) * OTHERS
    end = tl.minimum((segment + 1) * length, count)
    stride = list_heads * (OTHERS + 1)
    chosen = blocks_ptr + query_start * stride + head * (OTHERS + 1)
    ranks = ranks_ptr + head * entry_rows + query_start * OTHERS
    for start in range(segment * length, end, CHUNK):
        block = chosen_blocks(chosen, start + at, end, first_query, seen, stride, OTHERS, BLOCK_SIZE)
        valid = block >= 0
        # Equal entries before each one, and in the upper half of the word those behind it.
        order = tl.where(at[None, :] < at[:, None], 1, tl.where(at[None, :] > at[:, None], 65536, 0))
        equal = tl.sum(tl.where(block[:, None] == block[None, :], order, 0), 1)
        rank = tl.load(counts + block, mask=valid, other=0) + (equal & 65535)
        tl.store(ranks + start + at, rank, mask=valid)
        # All have read the counts; the last entry of each block writes its own.
        tl.debug_barrier()
        tl.store(counts + block, rank + 1, mask=valid & (equal < 65536))
        tl.debug_barrier()


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_place(
    counts_ptr, starts_ptr, tiles_ptr, num_tiles_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads,
    count_rows, tile_rows, SEGMENTS: tl.constexpr, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: one sequence (and head)."""
    unit = tl.program_id(0)
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, _, _, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    whole = seen // BLOCK_SIZE
    counts = counts_ptr + head * SEGMENTS * count_rows + key_start // BLOCK_SIZE
    starts = starts_ptr + head * count_rows + key_start // BLOCK_SIZE + number
    tiles = tiles_ptr + (head * tile_rows + (query_start * OTHERS) // ROWS + key_start // BLOCK_SIZE) * 3
    segment = tl.arange(0, SEGMENTS)[:, None].to(tl.int64)
    at = tl.arange(0, CHUNK)
    entries = 0
    num_tiles = 0
    for first in range(0, whole, CHUNK):
        block = first + at
        where = counts + segment * count_rows + block[None, :]
        found = tl.load(where, mask=block[None, :] < whole, other=0)
        total = tl.sum(found, 0)
        start = entries + tl.cumsum(total, 0) - total
        tl.store(where, start[None, :] + tl.cumsum(found, 0) - found, mask=block[None, :] < whole)
        tl.store(starts + block, start, mask=block < whole)
        of_block = tl.cdiv(total, ROWS)
        tile = num_tiles + tl.cumsum(of_block, 0) - of_block
        for i in range(tl.max(of_block, 0)):
            mask = i < of_block
            tl.store(tiles + (tile + i) * 3, start + i * ROWS, mask=mask)
            tl.store(tiles + (tile + i) * 3 + 1, block, mask=mask)
            tl.store(tiles + (tile + i) * 3 + 2, tl.minimum(total - i * ROWS, ROWS), mask=mask)
        entries += tl.sum(total, 0)
        num_tiles += tl.sum(of_block, 0)
    tl.store(starts + whole, entries)
    tl.store(num_tiles_ptr + unit, num_tiles)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_scatter(
    blocks_ptr, ranks_ptr, counts_ptr, entries_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks,
    entry_rows, count_rows, SEGMENTS: tl.constexpr, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: CHUNK entries."""
    unit = tl.program_id(0) // chunks
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    queries = keys - first_query
    entry = (tl.program_id(0) - unit * chunks) * CHUNK + tl.arange(0, CHUNK)
    stride = list_heads * (OTHERS + 1)
    block = chosen_blocks(blocks_ptr + query_start * stride + head * (OTHERS + 1), entry, queries * OTHERS,
                          first_query, seen, stride, OTHERS, BLOCK_SIZE)
    valid = block >= 0
    segment = (entry // OTHERS) // tl.maximum(tl.cdiv(queries, SEGMENTS), 1)
    base = head * entry_rows + query_start * OTHERS
    rank = tl.load(ranks_ptr + base + entry, mask=valid, other=0)
    counts = counts_ptr + head * SEGMENTS * count_rows + key_start // BLOCK_SIZE
    place = tl.load(counts + segment.to(tl.int64) * count_rows + block, mask=valid, other=0)
    tl.store(entries_ptr + base + place + rank, entry, mask=valid)
