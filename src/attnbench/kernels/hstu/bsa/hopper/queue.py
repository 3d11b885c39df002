# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Who hands over what in the selected branch for Hopper: work of one warp each.

    scout    tiles: hands over rows and addresses, loads keys and values
    porter   says of each tile that its step has a place in the ring, as late as attend asks: when it writes
    clerk    jobs: waits until all tiles of their step are published, hands over rows
    publish  says that what a slot of either kind held has been done

Each draws, walks (`schedule`) and loads ahead of need, so that nobody waits for memory but where memory is
behind.

No program waits for one that may not have started.  A tile waits for jobs of earlier steps, a job for tiles of its
own.  Take the first step that has something left: its tiles that were drawn belong to programs that run, wait for
nothing, and come before tiles of later steps in the slots; those not drawn come before all else that is drawn.  Then
the same holds for its jobs.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnbench.kernels.hstu.bsa.hopper.attend_config import ROWS
from attnbench.kernels.hstu.bsa.hopper.schedule import (
    COUNTERS,
    DONE,
    JOBS_DRAWN,
    LANES,
    SPREAD,
    begin,
    draw,
    drawn,
    of_lane,
    seek,
    wait_for,
)
from attnbench.kernels.hstu.bsa.tiles import standing
from attnbench.kernels.shared.hopper import barriers, load_tile, place_of, sync_warps

TILE_ROWS = gl.constexpr(ROWS)
"Rows of a tile of the lists."

NOWHERE = gl.constexpr(-8)
"Where a row of no entry lies: what is not copied has an address too, and that is to be one of 16 bytes."

PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
"Lists in shared memory."


@gluon.jit
@no_type_check
def notes(SLOTS: gl.constexpr, ROWS: gl.constexpr):
    """What goes with a slot: where its rows come from and go to, its step, rows or weight; and its three barriers.

    ready is arrived at by who hands over, done by who computes, free by who publishes.
    """
    come = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS], PLAIN)
    go = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS], PLAIN)
    steps = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    weights = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    return come, go, steps, weights, barriers(SLOTS, 1), barriers(SLOTS, 1), barriers(SLOTS, 1)


@gluon.jit
@no_type_check
def note_of(notes, slot, WARPS: gl.constexpr):
    """One number of a slot, `step` or another; a step of -1 says that nothing comes any more."""
    return gl.max(notes.index(slot).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@gluon.jit
@no_type_check
def hand_over(slots, tiles, count, tile, entry, descs, q_row, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr):
    """Give a tile's rows, keys and values to those who gather and attend, when there is room."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    come, go, steps, sizes, ready, _done, free = slots
    _q, k, v, full = tiles
    k_desc, v_desc = descs
    step, head, key, many, source, target = tile
    STAGES: gl.constexpr = k.shape[0]
    BYTES: gl.constexpr = (k.numel + v.numel) // STAGES * k.dtype.primitive_bitwidth // 8
    slot = count % STAGES
    mbarrier.wait(free.index(slot), (count // STAGES & 1) ^ 1)
    mine = gl.arange(0, entry.shape[0], entry.type.layout) < many
    come.index(slot).store(gl.where(mine, source + (entry // OTHERS).to(gl.int64) * q_row, NOWHERE))
    go.index(slot).store(gl.where(mine, target + entry.to(gl.int64) * LINEAR_DIM, NOWHERE))
    steps.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + step)
    sizes.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + many)
    sync_warps()
    mbarrier.expect(full.index(slot), BYTES)
    # To the descriptor the sequence ends with the block.
    place = place_of(key, k.shape[3], 0, head)
    load_tile(k_desc, place, full.index(slot), k.index(slot))
    load_tile(v_desc, place, full.index(slot), v.index(slot))
    mbarrier.arrive(ready.index(slot))


@gluon.jit
@no_type_check
def hand_end(slots, count):
    """Say that nothing comes any more."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    _come, _go, steps, _weights, ready, _done, free = slots
    STAGES: gl.constexpr = steps.shape[0]
    slot = count % STAGES
    mbarrier.wait(free.index(slot), (count // STAGES & 1) ^ 1)
    steps.index(slot).store(gl.full([LANES], -1, gl.int32, LINE))
    sync_warps()
    mbarrier.arrive(ready.index(slot))


@gluon.jit
@no_type_check
def record_of(at, lane, inside, sizes, group, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
              BLOCK_SIZE: gl.constexpr, SHARED: gl.constexpr):
    """What is known of a tile before its record comes, and where in the table that is."""
    q_row, q_head, entry_rows, tile_rows, slot_rows = sizes
    step, place, _before, _through, pairs, _ahead = at
    key = of_lane(pairs[1], lane)
    query = of_lane(pairs[2], lane).to(gl.int64)
    head = of_lane(pairs[3], lane)
    of_list = head.to(gl.int64) * (0 if SHARED else 1)
    source = query * q_row + head.to(gl.int64) * q_head
    target = (place * group + lane).to(gl.int64) * slot_rows * LINEAR_DIM
    where = of_list * tile_rows + query * OTHERS // TILE_ROWS + key // BLOCK_SIZE + inside
    return (step, head, key, source, target, of_list * entry_rows + query * OTHERS), where * 3


@gluon.jit
@no_type_check
def scout(given, slots, tiles, BLOCK_SIZE: gl.constexpr, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
          HAS_CACHE: gl.constexpr, SHARED: gl.constexpr):
    """One warp: beside the tile that it hands over, one's entries load, one's record, and one is drawn."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    ENTRIES: gl.constexpr = gl.BlockedLayout([TILE_ROWS // 32], [32], [1], [0])
    descs, progress_ptr, entries_ptr, tiles_ptr, problem, sizes = given
    group, steps = problem[6], problem[7]
    rows = gl.arange(0, TILE_ROWS, ENTRIES)
    lanes = gl.arange(0, LANES, LINE)
    number = draw(progress_ptr)
    at = begin(problem, 0, False, HAS_CACHE, SHARED)
    # A tile's step is -1 where there is none yet, and `steps` behind the last.
    none = gl.to_tensor(0)
    far = none.to(gl.int64)
    record = (none - 1, none, none, far, far, far)
    # As scalars its three numbers would be awaited where they are loaded.
    loaded = gl.zeros([LANES], gl.int32, LINE)
    tile = (none - 1, none, none, none, far, far)
    entry = gl.zeros([TILE_ROWS], gl.int32, ENTRIES)
    count = 0
    while tile[0] < steps:
        next_number = draw(progress_ptr)
        # Entries of the tile whose record has come.
        step, head, start, source, target, listed = record
        many = of_lane(loaded, 2)
        next_tile = (step, head, start + of_lane(loaded, 1) * BLOCK_SIZE, many, source, target)
        next_entry = gl.load(entries_ptr + (listed + of_lane(loaded, 0)) + rows, mask=rows < many, other=0)
        # The record of the tile whose number has come.
        at, lane, inside = seek(drawn(number), at, problem, 0, False, HAS_CACHE, SHARED)
        record, where = record_of(at, lane, inside, sizes, group, OTHERS, LINEAR_DIM, BLOCK_SIZE, SHARED)
        loaded = gl.load(tiles_ptr + where + lanes, mask=(lanes < 3) & (record[0] < steps), other=0)
        if tile[0] >= 0:
            hand_over(slots, tiles, count, tile, entry, descs, sizes[0], OTHERS, LINEAR_DIM)
            count += 1
        tile = next_tile
        entry = next_entry
        number = next_number
    hand_end(slots, count)
    mbarrier.arrive(tiles[3].index(count % tiles[3].shape[0]))


@gluon.jit
@no_type_check
def porter(slots, granted, finished, ring):
    """One warp: let each tile's partial rows be written when the step that had their place is done."""
    steps, ready = slots[2], slots[4]
    STAGES: gl.constexpr = granted.shape[0]
    count = 0
    step = gl.to_tensor(0)
    checked = gl.to_tensor(0)
    while step >= 0:
        slot = count % STAGES
        mbarrier.wait(ready.index(slot), count // STAGES & 1)
        step = note_of(steps, slot, 1)
        # Steps leave in any order, and one without tiles has waited for none before it.
        while checked <= step - ring:
            end = gl.minimum(step - ring, checked + LANES - 1)
            wait_for(finished, checked, end, DONE)
            checked = end + 1
        mbarrier.arrive(granted.index(slot))
        count += 1


@gluon.jit
@no_type_check
def hand_job(jobs, counts, count, job, pairs, problem, slot_rows, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
             BLOCK_SIZE: gl.constexpr, HAS_TARGETS: gl.constexpr):
    """Give a job's rows to those who add up, when there is room."""
    SLOTS: gl.constexpr = counts.shape[0]
    JOB_ROWS: gl.constexpr = counts.shape[1]
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    step, place, lane, inside, weight = job
    come, go, steps, weights, ready, _done, free = jobs
    _tiles, key, query, head, key_end, query_end, targets = pairs
    keys = of_lane(key_end - key, lane)
    queries = of_lane(query_end - query, lane)
    seen = keys
    if HAS_TARGETS:
        seen = keys - of_lane(targets, lane)
    row = inside * JOB_ROWS + gl.arange(0, JOB_ROWS, gl.BlockedLayout([(JOB_ROWS + 31) // 32], [32], [1], [0]))
    mine = row < queries
    _position, _stand, local = standing(row, keys - queries, seen, BLOCK_SIZE)
    first = (place * problem[6] + lane).to(gl.int64) * slot_rows
    target = (of_lane(query, lane).to(gl.int64) + row) * problem[5] + of_lane(head, lane)
    slot = count % SLOTS
    mbarrier.wait(free.index(slot), (count // SLOTS & 1) ^ 1)
    come.index(slot).store((first + row * OTHERS) * LINEAR_DIM)
    go.index(slot).store(gl.where(mine, target, 0))
    counts.index(slot).store(gl.where(mine, gl.minimum(local, OTHERS), 0))
    steps.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + step)
    weights.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + weight)
    sync_warps()
    mbarrier.arrive(ready.index(slot))


@gluon.jit
@no_type_check
def clerk(given, jobs, counts, BLOCK_SIZE: gl.constexpr, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
          HAS_CACHE: gl.constexpr, HAS_TARGETS: gl.constexpr, SHARED: gl.constexpr):
    """One warp: a number drawn ahead, and the job before it handed over when its step's tiles are published."""
    JOB_ROWS: gl.constexpr = counts.shape[1]
    progress_ptr, problem, slot_rows = given
    steps = problem[7]
    number = draw(progress_ptr + JOBS_DRAWN)
    at = begin(problem, JOB_ROWS, HAS_TARGETS, HAS_CACHE, SHARED)
    count = 0
    checked = gl.to_tensor(-1)
    while at[0] < steps:
        next_number = draw(progress_ptr + JOBS_DRAWN)
        wanted = drawn(number)
        at, lane, inside = seek(wanted, at, problem, JOB_ROWS, HAS_TARGETS, HAS_CACHE, SHARED)
        number = next_number
        step, place, before, through, pairs, _ahead = at
        if step < steps:
            if checked < step:
                wait_for(progress_ptr + COUNTERS, step, step, gl.sum(pairs[0], 0))
                checked = step
            # One job adds what the others leave of DONE.
            weight = gl.where(wanted == before, DONE + 1 - gl.max(through, 0), 1)
            hand_job(jobs, counts, count, (step, place, lane, inside, weight), pairs, problem, slot_rows, OTHERS,
                     LINEAR_DIM, BLOCK_SIZE, HAS_TARGETS)
            count += 1
    hand_end(jobs, count)


@gluon.jit
@no_type_check
def publish(slots, counters, WEIGHED: gl.constexpr):
    """One warp: free a slot that is done, and count it for other programs, after all that was written for it."""
    _come, _go, steps, weights, _ready, done, free = slots
    STAGES: gl.constexpr = steps.shape[0]
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % STAGES
        mbarrier.wait(done.index(slot), count // STAGES & 1)
        step = note_of(steps, slot, 1)
        weight = gl.to_tensor(1)
        if WEIGHED:
            weight = note_of(weights, slot, 1)
        if step >= 0:
            # Needs both notes: a slot is not free while they are being loaded.  Nobody waits for the end's.
            mbarrier.arrive(free.index(slot), pred=weight > 0)
            gl.atomic_add(counters + step * SPREAD, weight, sem="release")
        count += 1
