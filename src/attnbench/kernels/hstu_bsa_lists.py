# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""For each block the queries that chose it: a counting sort.

An entry t (S - 1) + s says that slot s of query t chose a block before its local one.

    rank     an entry adds itself to its block's count, and learns how many were there before
    place    per sequence: where each block's list starts, and a table of tiles of ROWS entries of one block, so
             that a block chosen by all is many tiles and not one long loop
    scatter  each entry goes to its place
    order    each list by its entries, for a backward, whose sums over it are to be the same each time

Up to there the order within a list is as the card's atomics have it: a forward's partial rows do not depend on it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu_bsa_tiles import COUNTS, standing
from attnbench.kernels.hstu_dense_tiles import sequence


@triton.jit
@no_type_check
def chosen_blocks(blocks_ptr, entries, mask, first_query, seen, stride, OTHERS: tl.constexpr,
                  BLOCK_SIZE: tl.constexpr):
    """Block of each entry, -1 where the slot holds the local block or none."""
    rows = entries // OTHERS
    block = tl.load(blocks_ptr + rows.to(tl.int64) * stride + entries % OTHERS, mask=mask, other=-1)
    _, _, local = standing(rows, first_query, seen, BLOCK_SIZE)
    return tl.where(block < local, block, -1)


@triton.jit
@no_type_check
def own_entries(blocks_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks, entry_rows, count_rows,
                OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr,
                CHUNK: tl.constexpr):
    """A program's CHUNK entries and their blocks, and where its sequence's entries and counts lie."""
    unit = tl.program_id(0) // chunks
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, keys, first_query, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    entry = (tl.program_id(0) - unit * chunks) * CHUNK + tl.arange(0, CHUNK)
    stride = list_heads * (OTHERS + 1)
    block = chosen_blocks(blocks_ptr + query_start * stride + head * (OTHERS + 1), entry,
                          entry < (keys - first_query) * OTHERS, first_query, seen, stride, OTHERS, BLOCK_SIZE)
    entries = head * entry_rows + query_start * OTHERS
    return entry, block, entries, head * count_rows + key_start // BLOCK_SIZE + number


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_rank(
    blocks_ptr, ranks_ptr, counts_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks, entry_rows,
    count_rows, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr, HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A program: CHUNK entries; the counts were 0."""
    entry, block, entries, counts = own_entries(
        blocks_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks, entry_rows, count_rows, OTHERS,
        BLOCK_SIZE, HAS_TARGETS, HAS_CACHE, CHUNK)
    rank = tl.atomic_add(counts_ptr + counts + block, 1, mask=block >= 0, sem="relaxed")
    tl.store(ranks_ptr + entries + entry, rank, mask=block >= 0)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_place(
    counts_ptr, starts_ptr, tiles_ptr, num_tiles_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads,
    count_rows, tile_rows, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: one sequence (and head)."""
    unit = tl.program_id(0)
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, _, _, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    whole = seen // BLOCK_SIZE
    row = head * count_rows + key_start // BLOCK_SIZE + number
    tiles = tiles_ptr + (head * tile_rows + (query_start * OTHERS) // ROWS + key_start // BLOCK_SIZE) * 3
    entries = 0
    num_tiles = 0
    for first in range(0, whole, CHUNK):
        block = first + tl.arange(0, CHUNK)
        total = tl.load(counts_ptr + row + block, mask=block < whole, other=0)
        start = entries + tl.cumsum(total, 0) - total
        tl.store(starts_ptr + row + block, start, mask=block < whole)
        of_block = tl.cdiv(total, ROWS)
        tile = num_tiles + tl.cumsum(of_block, 0) - of_block
        for i in range(tl.max(of_block, 0)):
            mask = i < of_block
            tl.store(tiles + (tile + i) * 3, start + i * ROWS, mask=mask)
            tl.store(tiles + (tile + i) * 3 + 1, block, mask=mask)
            tl.store(tiles + (tile + i) * 3 + 2, tl.minimum(total - i * ROWS, ROWS), mask=mask)
        entries += tl.sum(total, 0)
        num_tiles += tl.sum(of_block, 0)
    tl.store(starts_ptr + row + whole, entries)
    tl.store(num_tiles_ptr + unit, num_tiles)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_scatter(
    blocks_ptr, ranks_ptr, starts_ptr, entries_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks,
    entry_rows, count_rows, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: CHUNK entries."""
    entry, block, entries, starts = own_entries(
        blocks_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks, entry_rows, count_rows, OTHERS,
        BLOCK_SIZE, HAS_TARGETS, HAS_CACHE, CHUNK)
    rank = tl.load(ranks_ptr + entries + entry, mask=block >= 0, other=0)
    start = tl.load(starts_ptr + starts + block, mask=block >= 0, other=0)
    tl.store(entries_ptr + entries + start + rank, entry, mask=block >= 0)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_order(
    blocks_ptr, entries_ptr, ordered_ptr, starts_ptr, offsets_ptr, offsets_q_ptr, num_targets_ptr, list_heads, chunks,
    entry_rows, count_rows, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr, CHUNK: tl.constexpr,
):
    """A program: CHUNK entries, each put behind the smaller ones of its list."""
    unit = tl.program_id(0) // chunks
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    key_start, query_start, _, _, _, seen = sequence(
        offsets_ptr, offsets_q_ptr, num_targets_ptr, number, 0, False, HAS_TARGETS, HAS_CACHE)
    starts = starts_ptr + head * count_rows + key_start // BLOCK_SIZE + number
    listed = tl.load(starts + seen // BLOCK_SIZE)
    at = tl.arange(0, CHUNK)
    place = (tl.program_id(0) - unit * chunks) * CHUNK + at
    mask = place < listed
    base = head * entry_rows + query_start * OTHERS
    entry = tl.load(entries_ptr + base + place, mask=mask, other=0)
    block = tl.load(blocks_ptr + ((query_start + entry // OTHERS) * list_heads + head) * (OTHERS + 1)
                    + entry % OTHERS, mask=mask, other=0)
    begin = tl.load(starts + block, mask=mask, other=listed)
    end = tl.load(starts + block + 1, mask=mask, other=0)
    before = begin
    for first in range(tl.min(begin, 0), tl.max(end, 0), CHUNK):
        other = first + at
        behind = tl.load(entries_ptr + base + other, mask=other < listed, other=0)[None, :] < entry[:, None]
        same = (other[None, :] >= begin[:, None]) & (other[None, :] < end[:, None])
        before += tl.sum((behind & same).to(tl.int32), 1)
    tl.store(ordered_ptr + base + before, entry, mask=mask)
