# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""For each block the queries that selected it: a counting sort.

An entry t (S - 1) + s says that slot s of query t selected a block before its local one.

    rank     an entry increments its block's count, and reads how many entries came before it
    place    for each sequence: where each block's list begins, and a table of tiles of ROWS entries of one block, so
             that a block selected by all queries is many tiles and not one long loop
    scatter  each entry is written to its position

So far the order within a list depends on atomics, which does not affect a forward's partial rows.  For a backward, whose
sums over a list should be reproducible, each list is sorted:

    sort     each piece of CHUNK positions by block and entry, so that a piece's part of a list is sorted
    merge    an entry's position is the number of smaller entries in its list, found by a search in each piece of the list

A list of n entries takes n²/CHUNK searches: acceptable for a list of all queries of a sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import triton
import triton.language as tl

from attnbench.kernels.hstu.bsa.tiles import COUNTS, FIRST_ENTRY, LISTED_BLOCK, NUM_ENTRIES, RECORD, standing
from attnbench.kernels.hstu.tiles import sequence


@triton.jit
@no_type_check
def chosen_blocks(blocks_ptr, entries, mask, first_query, seen, stride, OTHERS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Block of each entry, -1 where the slot holds the local block or none."""
    rows = entries // OTHERS
    block = tl.load(blocks_ptr + rows.to(tl.int64) * stride + entries % OTHERS, mask=mask, other=-1)
    local = standing(rows, first_query, seen, BLOCK_SIZE).local
    return tl.where(block < local, block, -1)


class OwnEntries(NamedTuple):
    """Entries of a program."""

    entry: Any
    "[CHUNK] entries within the sequence"
    block: Any
    "[CHUNK], -1 for none"
    base: Any
    "first entry of the sequence"
    row: Any
    "first of its counts, and of its list starts"


class OwnPlaces(NamedTuple):
    """Positions in the lists of a program."""

    place: Any
    "[CHUNK] positions in the lists of the sequence"
    listed: Any
    "number of entries in these lists"
    base: Any
    "first of their entries"
    starts_ptr: Any
    "starts of the lists"
    row: Any
    "first of its blocks"


@triton.jit
@no_type_check
def own_entries(
    blocks_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The `OwnEntries` of a program."""
    unit = tl.program_id(0) // chunks
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    entry = (tl.program_id(0) - unit * chunks) * CHUNK + tl.arange(0, CHUNK)
    stride = list_heads * (OTHERS + 1)
    block = chosen_blocks(
        blocks_ptr=blocks_ptr + bounds.query_start * stride + head * (OTHERS + 1),
        entries=entry,
        mask=entry < (bounds.keys - bounds.first_query) * OTHERS,
        first_query=bounds.first_query,
        seen=bounds.seen,
        stride=stride,
        OTHERS=OTHERS,
        BLOCK_SIZE=BLOCK_SIZE,
    )
    base = head * entry_rows + bounds.query_start * OTHERS
    row = head * count_rows + bounds.key_start // BLOCK_SIZE + number
    return OwnEntries(entry=entry, block=block, base=base, row=row)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_rank(
    blocks_ptr,
    ranks_ptr,
    counts_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program: CHUNK entries; the counts must be 0 before."""
    own = own_entries(
        blocks_ptr=blocks_ptr,
        sequences=sequences,
        list_heads=list_heads,
        chunks=chunks,
        entry_rows=entry_rows,
        count_rows=count_rows,
        OTHERS=OTHERS,
        BLOCK_SIZE=BLOCK_SIZE,
        HAS_TARGETS=HAS_TARGETS,
        HAS_CACHE=HAS_CACHE,
        CHUNK=CHUNK,
    )
    rank = tl.atomic_add(counts_ptr + own.row + own.block, 1, mask=own.block >= 0, sem="relaxed")
    tl.store(ranks_ptr + own.base + own.entry, rank, mask=own.block >= 0)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_place(
    counts_ptr,
    starts_ptr,
    tiles_ptr,
    num_tiles_ptr,
    sequences,
    list_heads,
    count_rows,
    tile_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program: one sequence (and head)."""
    unit = tl.program_id(0)
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    whole = bounds.seen // BLOCK_SIZE
    row = head * count_rows + bounds.key_start // BLOCK_SIZE + number
    tiles = (
        tiles_ptr + (head * tile_rows + (bounds.query_start * OTHERS) // ROWS + bounds.key_start // BLOCK_SIZE) * RECORD
    )
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
            record = tiles + (tile + i) * RECORD
            tl.store(record + FIRST_ENTRY, start + i * ROWS, mask=mask)
            tl.store(record + LISTED_BLOCK, block, mask=mask)
            tl.store(record + NUM_ENTRIES, tl.minimum(total - i * ROWS, ROWS), mask=mask)
        entries += tl.sum(total, 0)
        num_tiles += tl.sum(of_block, 0)
    tl.store(starts_ptr + row + whole, entries)
    tl.store(num_tiles_ptr + unit, num_tiles)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_scatter(
    blocks_ptr,
    ranks_ptr,
    starts_ptr,
    entries_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program: CHUNK entries."""
    own = own_entries(
        blocks_ptr=blocks_ptr,
        sequences=sequences,
        list_heads=list_heads,
        chunks=chunks,
        entry_rows=entry_rows,
        count_rows=count_rows,
        OTHERS=OTHERS,
        BLOCK_SIZE=BLOCK_SIZE,
        HAS_TARGETS=HAS_TARGETS,
        HAS_CACHE=HAS_CACHE,
        CHUNK=CHUNK,
    )
    rank = tl.load(ranks_ptr + own.base + own.entry, mask=own.block >= 0, other=0)
    start = tl.load(starts_ptr + own.row + own.block, mask=own.block >= 0, other=0)
    tl.store(entries_ptr + own.base + start + rank, own.entry, mask=own.block >= 0)


@triton.jit
@no_type_check
def own_places(
    starts_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The `OwnPlaces` of a program."""
    unit = tl.program_id(0) // chunks
    number = unit // list_heads
    head = (unit - number * list_heads).to(tl.int64)
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=HAS_TARGETS, HAS_CACHE=HAS_CACHE
    )
    starts = starts_ptr + head * count_rows + bounds.key_start // BLOCK_SIZE + number
    place = (tl.program_id(0) - unit * chunks) * CHUNK + tl.arange(0, CHUNK)
    row = (bounds.query_start * list_heads + head) * (OTHERS + 1)
    listed = tl.load(starts + bounds.seen // BLOCK_SIZE)
    base = head * entry_rows + bounds.query_start * OTHERS
    return OwnPlaces(place=place, listed=listed, base=base, starts_ptr=starts, row=row)


@triton.jit
@no_type_check
def listed_blocks(blocks_ptr, entry, mask, list_heads, OTHERS: tl.constexpr):
    """Block of each listed entry."""
    row = (entry // OTHERS).to(tl.int64) * list_heads * (OTHERS + 1)
    return tl.load(blocks_ptr + row + entry % OTHERS, mask=mask, other=0)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_sort(
    blocks_ptr,
    entries_ptr,
    pieces_ptr,
    starts_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    slot_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: one piece.  A sort key is block * slot_rows + entry, with 64 bits if WIDE."""
    own = own_places(
        starts_ptr=starts_ptr,
        sequences=sequences,
        list_heads=list_heads,
        chunks=chunks,
        entry_rows=entry_rows,
        count_rows=count_rows,
        OTHERS=OTHERS,
        BLOCK_SIZE=BLOCK_SIZE,
        HAS_TARGETS=HAS_TARGETS,
        HAS_CACHE=HAS_CACHE,
        CHUNK=CHUNK,
    )
    if tl.min(own.place, 0) >= own.listed:
        return
    mask = own.place < own.listed
    entry = tl.load(entries_ptr + own.base + own.place, mask=mask, other=0)
    block = listed_blocks(blocks_ptr + own.row, entry, mask, list_heads, OTHERS)
    if WIDE:
        key = tl.where(mask, block.to(tl.int64) * slot_rows + entry, 0x7FFFFFFFFFFFFFFF)
    else:
        key = tl.where(mask, block * slot_rows + entry, 0x7FFFFFFF)
    tl.store(pieces_ptr + own.base + own.place, (tl.sort(key) % slot_rows).to(tl.int32), mask=mask)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_bsa_merge(
    blocks_ptr,
    pieces_ptr,
    ordered_ptr,
    starts_ptr,
    sequences,
    list_heads,
    chunks,
    entry_rows,
    count_rows,
    OTHERS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_TARGETS: tl.constexpr,
    HAS_CACHE: tl.constexpr,
    CHUNK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """One program: the entries of one piece; a search of STEPS steps distinguishes CHUNK + 1 results."""
    own = own_places(
        starts_ptr=starts_ptr,
        sequences=sequences,
        list_heads=list_heads,
        chunks=chunks,
        entry_rows=entry_rows,
        count_rows=count_rows,
        OTHERS=OTHERS,
        BLOCK_SIZE=BLOCK_SIZE,
        HAS_TARGETS=HAS_TARGETS,
        HAS_CACHE=HAS_CACHE,
        CHUNK=CHUNK,
    )
    if tl.min(own.place, 0) >= own.listed:
        return
    mask = own.place < own.listed
    entry = tl.load(pieces_ptr + own.base + own.place, mask=mask, other=0)
    block = listed_blocks(blocks_ptr + own.row, entry, mask, list_heads, OTHERS)
    begin = tl.load(own.starts_ptr + block, mask=mask, other=own.listed)
    end = tl.load(own.starts_ptr + block + 1, mask=mask, other=0)
    before = begin
    for piece in range(tl.min(begin, 0) // CHUNK * CHUNK, tl.max(end, 0), CHUNK):
        first = tl.maximum(begin, piece)
        low = first
        high = tl.maximum(tl.minimum(end, piece + CHUNK), first)
        for _step in tl.static_range(STEPS):
            middle = (low + high) // 2
            smaller = tl.load(pieces_ptr + own.base + middle, mask=low < high, other=0x7FFFFFFF) < entry
            high = tl.where(smaller | (low == high), high, middle)
            low = tl.where(smaller, middle + 1, low)
        before += low - first
    tl.store(ordered_ptr + own.base + before, entry, mask=mask)
