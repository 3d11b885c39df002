# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Means of blocks made beside `select` for Hopper, by three warps of the same programs; and the wait for them.

    k̄_c = 1/BS Σ_{j in block c} k_j        summed in fp32, rounded once, as hstu_bsa_pool has it

An item is the complete blocks among ITEM rows of a head, numbered by sequence, rows, head as jobs are
(hstu_bsa_hopper_jobs) and drawn by the programs:

    fetch    one warp: draws items, and loads their blocks of K and V in turn
    mean     two warps: sum each block and store its mean; of an item that is done the count of its rows grows by one,
             which comes to one for each head
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

from attnbench.kernels.hopper import fence_global, fill, give_back, sync_warps, take
from attnbench.kernels.hstu_bsa_hopper_cut import APART, ITEM_ROWS
from attnbench.kernels.hstu_bsa_hopper_jobs import begin, numbers_before, seek, tell_note, told_note
from attnbench.kernels.hstu_bsa_hopper_walk import draw, drawn

ITEM = gl.constexpr(ITEM_ROWS)
"Rows of an item."
ITEMS_DRAWN = gl.constexpr(APART)
MADE = gl.constexpr(2 * APART)
SEEN_AT_ONCE = gl.constexpr(128)
"Counts that a warp looks at."


@gluon.jit
@no_type_check
def counts_before(number, key_start):
    """Which count is a sequence's first, of one for ITEM rows: sequences never overlap, as their means."""
    return key_start // ITEM + number


@gluon.jit
@no_type_check
def fetch(given, HAS_CACHE: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCK_M: gl.constexpr):
    """One warp: a number drawn ahead, and the blocks of the one before loaded when selection has come near."""
    k_desc, v_desc, ring, notes, drawn_ptr, problem, mean_rows, ahead = given
    offsets_ptr, offsets_q_ptr, heads, batch = problem
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
        key_start = gl.load(offsets_ptr + number).to(gl.int32)
        keys = gl.load(offsets_ptr + number + 1).to(gl.int32) - key_start
        group = inside // heads
        head = inside - group * heads
        jobs_at, needed = numbers_before(number, jobs_at, queries_ptr, batch, heads, BLOCK_M, BLOCK_M - 1)
        if not HAS_CACHE:
            # The first job that needs it is of the first tile with rows of it.
            needed += group * ITEM // BLOCK_M * heads
        wait_drawn(drawn_ptr, needed + 1 - ahead - gl.num_programs(0))
        first = group * (ITEM // BLOCK_SIZE)
        end = gl.minimum(first + ITEM // BLOCK_SIZE, keys // BLOCK_SIZE)
        tell_note(notes, turn, (head * mean_rows + key_start // BLOCK_SIZE + first, end - first,
                                counts_before(number, key_start) + group))
        for block in range(first, end):
            fill(ring, count, k_desc, key_start, keys, block * BLOCK_SIZE, head)
            fill(ring, count + 1, v_desc, key_start, keys, block * BLOCK_SIZE, head)
            count += 2
        at, number, inside = seek(drawn(next_item), at, offsets_ptr, batch, heads, ITEM, ITEM - BLOCK_SIZE)
        turn += 1
    tell_note(notes, turn, (0, 0, -1))


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
    # A thread has 16 bytes of a row; of eight rows it adds its own before any other's, who are of the same warp.
    ACROSS: gl.constexpr = 512 // COLUMNS if COLUMNS > 64 else 8
    LAYOUT: gl.constexpr = gl.BlockedLayout([8 // ACROSS, 8], [512 // COLUMNS, COLUMNS // 16], [1, 2], [1, 0])
    total = gl.sum(gl.reshape(tile.slice(0, 8).load(LAYOUT).to(gl.float32), [ACROSS, 8 // ACROSS, COLUMNS]), 1)
    for part in gl.static_range(1, BLOCK_SIZE // 8):
        rows = tile.slice(part * 8, 8).load(LAYOUT).to(gl.float32)
        total += gl.sum(gl.reshape(rows, [ACROSS, 8 // ACROSS, COLUMNS]), 1)
    return gl.sum(total, 0) / BLOCK_SIZE


@gluon.jit
@no_type_check
def mean(given, BLOCK_SIZE: gl.constexpr, ATTN_DIM: gl.constexpr, LINEAR_DIM: gl.constexpr):
    """Two warps: the means of the blocks of K and of V, which come in turn."""
    ring, notes, means_k_ptr, means_v_ptr, drawn_ptr = given
    PAIR: gl.constexpr = gl.BlockedLayout([1], [32], [2], [0])
    threads = gl.arange(0, 64, PAIR)
    count = 0
    turn = 0
    row, blocks, place = told_note(notes, 0, 2)
    while place >= 0:
        for index in range(2 * blocks):
            found = mean_of(take(ring, count), BLOCK_SIZE)
            give_back(ring, count)
            at = (row + index // 2).to(gl.int64)
            columns = gl.arange(0, found.shape[0], found.type.layout)
            rounded = found.to(means_k_ptr.dtype.element_ty)
            if index % 2 == 0:
                gl.store(means_k_ptr + at * ATTN_DIM + columns, rounded, mask=columns < ATTN_DIM)
            else:
                gl.store(means_v_ptr + at * LINEAR_DIM + columns, rounded, mask=columns < LINEAR_DIM)
            count += 1
        fence_global()
        sync_warps()
        # As `draw` has it: the answer to one number of all threads would be waited for.
        gl.atomic_add(drawn_ptr + MADE + place + threads, gl.full([64], 1, gl.int32, PAIR), mask=threads == 0,
                      sem="release")
        turn += 1
        row, blocks, place = told_note(notes, turn, 2)


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
        made_ptr = drawn_ptr + MADE + counts_before(number, key_start)
        for first in range(seen, end, SEEN_AT_ONCE):
            at = first + gl.arange(0, SEEN_AT_ONCE, LAYOUT)
            while gl.min(gl.load(made_ptr + at, mask=at < end, other=heads, volatile=True), 0) < heads:
                pass
            gl.atomic_add(made_ptr + at, gl.zeros([SEEN_AT_ONCE], gl.int32, LAYOUT), mask=at < end, sem="acquire")
        sync_warps()
        fence_global()
    return gl.maximum(seen, end)
