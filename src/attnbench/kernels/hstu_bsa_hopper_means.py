# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Means of blocks made beside `select` for Hopper, by three warps of the same programs; and the wait for them.

    k̄_c = 1/BS Σ_{j in block c} k_j        summed in fp32, rounded once, as hstu_bsa_pool has it

An item is the complete blocks among ITEM rows of a head, numbered by sequence, rows, head as jobs are
(hstu_bsa_hopper_jobs) and drawn by the programs:

    fetch    draws items, and loads their blocks of K and V into rings
    mean     one warp for K, one for V: sums each block, stores its mean; of an item that is done the count of its rows
             grows by one, which comes to two for each head
    load     of select waits, before it loads means for a job, for all rows that the job's blocks lie in

So that the keys nearby, which the job reads then, are still in the L2, fetch runs no further than `ahead` jobs beyond
the first that needs the item, of the jobs drawn.

Who waits for whom ends: only jobs wait for items, items for jobs to be drawn, and mean for nothing but fetch.  A job
that waits has been drawn, and with it as many as the items that it needs wait for, and all items before these.  So
none of them waits.  Those drawn belong to programs that run and are done some time.  Those not drawn come next: who
fetches goes on to draw, for all that it holds is before them, and the program with the job that waits is one of these.
A program that has not started has drawn no item, and nobody waits for its jobs.

Stores of threads are read by bulk loads here, which go another way: both sides fence.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from attnbench.kernels.hopper import fence_global, fill, give_back, sync_warps, take, tell, told
from attnbench.kernels.hstu_bsa_hopper_cut import APART, ITEM_ROWS
from attnbench.kernels.hstu_bsa_hopper_jobs import begin, numbers_before, seek
from attnbench.kernels.hstu_bsa_hopper_walk import draw, drawn
from attnbench.kernels.hstu_dense_tiles import sequence

ITEM = gl.constexpr(ITEM_ROWS)
"Rows of an item."
ITEMS_DRAWN = gl.constexpr(APART)
MADE = gl.constexpr(2 * APART)
SEEN_AT_ONCE = gl.constexpr(128)
"Counts that a warp looks at."


@gluon.jit
@no_type_check
def made_at(made_ptr, number, key_start):
    """Where the counts of a sequence's rows are, one for ITEM rows: sequences never overlap, as their means."""
    return made_ptr + MADE + (key_start // ITEM + number)


@gluon.jit
@no_type_check
def item_of(item, problem, groups, BLOCK_SIZE: gl.constexpr):
    """Sequence, first key, keys, head, group of rows, first block and end of the blocks of an item."""
    offsets_ptr, _offsets_q_ptr, heads, _tiles, _batch = problem
    number = item // (groups * heads)
    place = item - number * (groups * heads)
    group = place // heads
    key_start, _query_start, keys, _first_query, _prefix, _seen = sequence(
        offsets_ptr, offsets_ptr, offsets_ptr, number, 0, False, False, False)
    first = group * (ITEM // BLOCK_SIZE)
    end = gl.minimum(first + ITEM // BLOCK_SIZE, keys // BLOCK_SIZE)
    return number, key_start.to(gl.int32), keys, place - group * heads, group, first, end


@gluon.jit
@no_type_check
def fetch(given, HAS_CACHE: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_M: gl.constexpr):
    """One warp: a number drawn ahead, and the blocks of the one before loaded when selection has come near."""
    k_desc, v_desc, rings, tickets, drawn_ptr, problem, groups, ahead = given
    k_ring, v_ring = rings
    offsets_ptr, offsets_q_ptr, heads, _tiles, batch = problem
    queries_ptr = offsets_ptr
    if HAS_CACHE:
        queries_ptr = offsets_q_ptr
    next_item = draw(drawn_ptr + ITEMS_DRAWN)
    at = begin(offsets_ptr, batch, heads, ITEM, ITEM - BLOCK_SIZE)
    jobs_at = begin(queries_ptr, batch, heads, BLOCK_M, BLOCK_M - 1)
    at, number, inside = seek(drawn(next_item), at, offsets_ptr, batch, heads, ITEM, ITEM - BLOCK_SIZE)
    count = 0
    turn = 0
    while number < batch:
        next_item = draw(drawn_ptr + ITEMS_DRAWN)
        item = number * (groups * heads) + inside
        _number, key_start, keys, head, group, first, end = item_of(item, problem, groups, BLOCK_SIZE)
        jobs_at, needed = numbers_before(number, jobs_at, queries_ptr, batch, heads, BLOCK_M, BLOCK_M - 1)
        if not HAS_CACHE:
            # The first job that needs it is of the first tile with rows of it.
            needed += group * ITEM // BLOCK_M * heads
        wait_drawn(drawn_ptr, needed + 1 - ahead - gl.num_programs(0))
        tell(tickets, turn, item)
        for block in range(first, end):
            fill(k_ring, count, k_desc, key_start, keys, block * BLOCK_SIZE, head)
            fill(v_ring, count, v_desc, key_start, keys, block * BLOCK_SIZE, head)
            count += 1
        at, number, inside = seek(drawn(next_item), at, offsets_ptr, batch, heads, ITEM, ITEM - BLOCK_SIZE)
        turn += 1
    tell(tickets, turn, -1)


@gluon.jit
@no_type_check
def wait_drawn(drawn_ptr, needed):
    """Until so many jobs have been drawn beyond every program's first."""
    if needed > 0:
        while gl.load(drawn_ptr, volatile=True) < needed:
            pass


@gluon.jit
@no_type_check
def mean_of(tile, BLOCK_SIZE: gl.constexpr):
    """Mean of the rows of a tile in shared memory: [columns], in fp32."""
    COLUMNS: gl.constexpr = tile.shape[1]
    # A warp has 16 bytes a thread; of eight rows a thread adds its own before any other's.
    ACROSS: gl.constexpr = 256 // COLUMNS if COLUMNS > 32 else 8
    LAYOUT: gl.constexpr = gl.BlockedLayout([8 // ACROSS, 8], [256 // COLUMNS, COLUMNS // 8], [1, 1], [1, 0])
    total = gl.sum(gl.reshape(tile.slice(0, 8).load(LAYOUT).to(gl.float32), [ACROSS, 8 // ACROSS, COLUMNS]), 1)
    for part in gl.static_range(1, BLOCK_SIZE // 8):
        rows = tile.slice(part * 8, 8).load(LAYOUT).to(gl.float32)
        total += gl.sum(gl.reshape(rows, [ACROSS, 8 // ACROSS, COLUMNS]), 1)
    return gl.sum(total, 0) / BLOCK_SIZE


@gluon.jit
@no_type_check
def mean(given, BLOCK_SIZE: gl.constexpr, DIM: gl.constexpr):
    """One warp: the means of K's blocks, or of V's."""
    ring, tickets, means_ptr, drawn_ptr, problem, groups, mean_rows = given
    COLUMNS: gl.constexpr = ring[0].shape[5]
    count = 0
    item = told(tickets, 0, 1)
    turn = 1
    while item >= 0:
        number, key_start, _keys, head, group, first, end = item_of(item, problem, groups, BLOCK_SIZE)
        to = means_ptr + (head.to(gl.int64) * mean_rows + key_start // BLOCK_SIZE) * DIM
        for block in range(first, end):
            found = mean_of(take(ring, count), BLOCK_SIZE)
            give_back(ring, count)
            columns = gl.arange(0, COLUMNS, found.type.layout)
            gl.store(to + block * DIM + columns, found.to(means_ptr.dtype.element_ty), mask=columns < DIM)
            count += 1
        fence_global()
        sync_warps()
        gl.atomic_add(made_at(drawn_ptr, number, key_start) + group, 1, sem="release")
        item = told(tickets, turn, 1)
        turn += 1


@gluon.jit
@no_type_check
def wait_made(drawn_ptr, number, key_start, seen, visible, heads, BLOCK_SIZE: gl.constexpr):
    """Wait until the means of a sequence's first `visible` blocks are there; those of `seen` groups of rows are.

    Returns:
        Of how many groups they are then.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    end = (visible * BLOCK_SIZE + ITEM - 1) // ITEM
    if seen < end:
        made_ptr = made_at(drawn_ptr, number, key_start)
        for first in range(seen, end, SEEN_AT_ONCE):
            at = first + gl.arange(0, SEEN_AT_ONCE, LAYOUT)
            needed = 2 * heads
            while gl.min(gl.load(made_ptr + at, mask=at < end, other=needed, volatile=True), 0) < needed:
                pass
            gl.atomic_add(made_ptr + at, gl.zeros([SEEN_AT_ONCE], gl.int32, LAYOUT), mask=at < end, sem="acquire")
        sync_warps()
        fence_global()
    return gl.maximum(seen, end)
