# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The lists of a block map, made on the device: the key blocks of each block of queries, and the order of the work.

    list_blocks    one program for each list: its key blocks in ascending order, and their number
    order_lists    the lists of a section, longest first: a list's position is the number of lists before it

Key blocks that a causal mask hides from all queries of a row are not listed.  Blocks that need no mask come first in a
list, since indices ascend; `whole` is their number, and the rest is masked.

Units of queries (blocks or halves of blocks) that SHARE a work item have one list, the union of what they see, and each
has a list of the positions of its own blocks in it.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.tiles import keys_of_rows

COUNTS = (
    "heads",
    "rows",
    "columns",
    "seqlen_q",
    "seqlen_k",
    "section_lists",
    "all_lists",
    "chunks",
    "lists",
    "map_batch",
    "map_head",
    "map_row",
    "map_column",
)
"Launch arguments whose values the code is not specialized for."


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def list_blocks(
    map_ptr,
    counts_ptr,
    places_ptr,
    listed_ptr,
    whole_ptr,
    indices_ptr,
    map_batch,
    map_head,
    map_row,
    map_column,
    heads,
    rows,
    lists,
    columns,
    seqlen_q,
    seqlen_k,
    UNIT: tl.constexpr,
    HALVES: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The list of SHARE units, each a row of the map or one of its HALVES, WIDTH blocks at a time; one program."""
    number = tl.program_id(0)
    pair = number // lists
    block = (number - pair * lists) * SHARE
    batch = pair // heads
    map_ptr += tl.cast(batch, tl.int64) * map_batch + tl.cast(pair - batch * heads, tl.int64) * map_head
    indices_ptr += tl.cast(number, tl.int64) * columns
    shift = seqlen_k - seqlen_q
    # What the first row sees whole, all rows do.
    all_high = keys_of_rows(
        first=block * UNIT,
        last=block * UNIT,
        keys=seqlen_k,
        shift=shift,
        left=0,
        right=0,
        HAS_LEFT=False,
        HAS_RIGHT=CAUSAL,
    ).all_high
    listed = 0
    whole = 0
    rank = tl.arange(0, 4)
    counts = tl.zeros([4], tl.int32)
    for start in range(0, columns, WIDTH):
        at = start + tl.arange(0, WIDTH)
        flags = tl.zeros([WIDTH], tl.int32)
        for which in tl.static_range(SHARE):
            row = block + which
            last = tl.minimum((row + 1) * UNIT, seqlen_q) - 1
            high = keys_of_rows(
                first=last, last=last, keys=seqlen_k, shift=shift, left=0, right=0, HAS_LEFT=False, HAS_RIGHT=CAUSAL
            ).high
            there = (
                tl.load(
                    map_ptr + tl.cast(row // HALVES, tl.int64) * map_row + at.to(tl.int64) * map_column,
                    mask=at < tl.where(row < rows, columns, 0),
                    other=0,
                )
                != 0
            )
            flags |= tl.where(there & (at * BLOCK_K < high), 1 << which, 0)
        one = (flags != 0).to(tl.int32)
        place = listed + tl.cumsum(one, 0) - one
        if SHARE > 1:
            for which in tl.static_range(SHARE):
                mine = flags >> which & 1
                own = tl.sum(tl.where(rank == which, counts, 0), 0)
                tl.store(
                    places_ptr
                    + (tl.cast(pair, tl.int64) * rows + block + which) * columns
                    + own
                    + tl.cumsum(mine, 0)
                    - mine,
                    place,
                    mask=mine != 0,
                )
                counts += tl.where(rank == which, tl.sum(mine, 0), 0)
        tl.store(indices_ptr + place, at, mask=one != 0)
        listed += tl.sum(one, 0)
        whole += tl.sum(tl.where((at + 1) * BLOCK_K <= all_high, one, 0), 0)
    tl.store(listed_ptr + number, listed)
    tl.store(whole_ptr + number, whole)
    if SHARE > 1:
        tl.store(counts_ptr + pair * rows + block + rank, counts, mask=(rank < SHARE) & (block + rank < rows))


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def order_lists(counts_ptr, whole_ptr, items_ptr, all_lists, section_lists, chunks, CHUNK: tl.constexpr):
    """CHUNK lists of a section; an item is a list's index, its length and its number of unmasked blocks; one program."""
    section = tl.program_id(0) // chunks
    begin = section * section_lists
    end = tl.minimum(begin + section_lists, all_lists)
    row = begin + (tl.program_id(0) - section * chunks) * CHUNK + tl.arange(0, CHUNK)
    mask = row < end
    count = tl.load(counts_ptr + row, mask=mask, other=0)
    place = tl.zeros([CHUNK], tl.int32)
    for start in range(begin, end, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(counts_ptr + other, mask=other < end, other=-1)
        # Lists of equal length stay in the order of the map, so that the order is reproducible.
        sooner = (theirs[None, :] > count[:, None]) | (
            (theirs[None, :] == count[:, None]) & (other[None, :] < row[:, None])
        )
        place += tl.sum(sooner.to(tl.int32), 1)
    item = items_ptr + (begin + place).to(tl.int64) * 3
    tl.store(item, row, mask=mask)
    tl.store(item + 1, count, mask=mask)
    tl.store(item + 2, tl.load(whole_ptr + row, mask=mask, other=0), mask=mask)
