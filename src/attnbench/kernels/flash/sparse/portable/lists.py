# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The lists of a block map, on the device: of each block of queries its blocks of keys, and the order of the work.

    list_blocks    a program a row of the map: its blocks of keys in rising order, and how many there are
    order_rows     the rows of a section, longest first: a row's place is how many come before it

Blocks of keys that no query of a row sees under a causal mask are not listed.  The blocks that every query sees whole
come first in a list, since blocks rise; `whole` counts them, and the rest is masked.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from attnbench.kernels.flash.tiles import keys_of_rows

COUNTS = ("heads", "rows", "columns", "seqlen_q", "seqlen_k", "section_rows", "all_rows", "chunks", "map_batch",
          "map_head", "map_row", "map_column")
"Numbers of a call that no code is compiled anew for."


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def list_blocks(
    map_ptr, counts_ptr, whole_ptr, indices_ptr, map_batch, map_head, map_row, map_column, heads, rows, columns,
    seqlen_q, seqlen_k, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr,
):
    """A program: one row of the map, WIDTH of its blocks at a time."""
    row = tl.program_id(0)
    pair = row // rows
    block = row - pair * rows
    batch = pair // heads
    map_ptr += (tl.cast(batch, tl.int64) * map_batch + tl.cast(pair - batch * heads, tl.int64) * map_head
                + tl.cast(block, tl.int64) * map_row)
    indices_ptr += tl.cast(row, tl.int64) * columns
    first = block * BLOCK_Q
    last = tl.minimum(first + BLOCK_Q, seqlen_q) - 1
    _, _, all_high, high = keys_of_rows(first, last, seqlen_k, seqlen_k - seqlen_q, 0, 0, False, CAUSAL)
    listed = 0
    whole = 0
    for start in range(0, columns, WIDTH):
        at = start + tl.arange(0, WIDTH)
        there = tl.load(map_ptr + at.to(tl.int64) * map_column, mask=at < columns, other=0) != 0
        there &= at * BLOCK_K < high
        one = there.to(tl.int32)
        tl.store(indices_ptr + listed + tl.cumsum(one, 0) - one, at, mask=there)
        listed += tl.sum(one, 0)
        whole += tl.sum((there & ((at + 1) * BLOCK_K <= all_high)).to(tl.int32), 0)
    tl.store(counts_ptr + row, listed)
    tl.store(whole_ptr + row, whole)


@triton.jit(do_not_specialize=COUNTS)
@no_type_check
def order_rows(counts_ptr, whole_ptr, items_ptr, all_rows, section_rows, chunks, CHUNK: tl.constexpr):
    """A program: CHUNK rows of a section; an item is a row, its count and its whole blocks."""
    section = tl.program_id(0) // chunks
    begin = section * section_rows
    end = tl.minimum(begin + section_rows, all_rows)
    row = begin + (tl.program_id(0) - section * chunks) * CHUNK + tl.arange(0, CHUNK)
    mask = row < end
    count = tl.load(counts_ptr + row, mask=mask, other=0)
    place = tl.zeros([CHUNK], tl.int32)
    for start in range(begin, end, CHUNK):
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(counts_ptr + other, mask=other < end, other=-1)
        # Of equal ones in the order of the map, so that the order is the same each time.
        sooner = (theirs[None, :] > count[:, None]) | (
            (theirs[None, :] == count[:, None]) & (other[None, :] < row[:, None]))
        place += tl.sum(sooner.to(tl.int32), 1)
    item = items_ptr + (begin + place).to(tl.int64) * 3
    tl.store(item, row, mask=mask)
    tl.store(item + 1, count, mask=mask)
    tl.store(item + 2, tl.load(whole_ptr + row, mask=mask, other=0), mask=mask)
