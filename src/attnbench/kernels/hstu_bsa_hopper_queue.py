# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Who does what in the selected branch for Hopper: numbers drawn, and what they stand for.

Pairs of sequence and head are taken some at a time: a step is `group` pairs, which have a place in a ring of partial
rows.  Tiles of the lists are numbered through the steps, and so are the jobs that add partial rows up.  Programs
draw numbers of both kinds; where a number stands is found by walking from the last one, and each warp here draws,
walks and loads ahead of need, so that nobody waits for memory but where memory is behind.

    scout    tiles: waits until their step has a place, hands over rows and addresses, loads keys and values
    clerk    jobs: waits until all tiles of their step are published, hands over rows
    publish  says that what a slot of either ring held has been done

No program waits for one that may not have started.  A scout waits for jobs of steps before its tile's, a clerk for
tiles of its job's step.  Take the first step that has something left: its tiles that were drawn belong to programs
that run and wait for no step, those not drawn come before all else that a scout draws; then so do its jobs.

    progress  [0] tiles drawn, [32] jobs drawn, from 64 on tiles published of each step, then of each step whether
              its jobs are done, which is the number DONE: one adds what the others leave of it
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from attnbench.kernels.hopper import ROWS, barriers, load_tile, place_of, sync_warps
from attnbench.kernels.hstu_bsa_hopper_attend_cut import FIRST_COUNTER, PAIRS
from attnbench.kernels.hstu_bsa_tiles import standing
from attnbench.kernels.hstu_dense_tiles import sequence

LANES = gl.constexpr(PAIRS)
"Pairs of a step, at most: a warp looks at them at once."

DONE = gl.constexpr(2**30)
JOBS_DRAWN = gl.constexpr(FIRST_COUNTER // 2)
COUNTERS = gl.constexpr(FIRST_COUNTER)

PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
"Lists in shared memory."


@gluon.jit
@no_type_check
def notes(SLOTS: gl.constexpr, ROWS_OF_SLOT: gl.constexpr):
    """What goes with a slot: where its rows come from and go to, step and weight; and its three barriers.

    ready is arrived at by who hands over, done by those who compute, free by who publishes.
    """
    come = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS_OF_SLOT], PLAIN)
    go = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS_OF_SLOT], PLAIN)
    steps = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    weights = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    return come, go, steps, weights, barriers(SLOTS, 1), barriers(SLOTS, 1), barriers(SLOTS, 1)


@gluon.jit
@no_type_check
def add(left, right):
    """Their sum."""
    return left + right


@gluon.jit
@no_type_check
def step_of(slots, slot, WARPS: gl.constexpr):
    """The step that a slot's notes name; -1: nothing comes any more."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    return gl.max(slots[2].index(slot).load(LAYOUT), 0)


@gluon.jit
@no_type_check
def draw(counter_ptr):
    """The next number, in the first lane, for `drawn`; nobody waits for it here.

    Were all lanes' addresses one, the assembler would draw for the warp and hand the number round at once.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    lanes = gl.arange(0, LANES, LAYOUT)
    one = gl.full([LANES], 1, gl.int32, LAYOUT)
    return gl.atomic_add(counter_ptr + lanes, one, mask=lanes == 0, sem="relaxed")


@gluon.jit
@no_type_check
def drawn(number):
    """The number that was drawn."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.max(gl.where(lanes == 0, number, 0), 0)


@gluon.jit
@no_type_check
def pairs_of(step, problem, JOB_ROWS: gl.constexpr, HAS_CACHE: gl.constexpr, SHARED: gl.constexpr):
    """Tiles (or jobs of JOB_ROWS) of each pair of a step, in its lane; where its keys and queries begin, its head.

    A step has a job at least: its first pair's, if only of no rows.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    offsets_ptr, offsets_q_ptr, _num_targets_ptr, num_tiles_ptr, units, heads, group, _steps, _ring = problem
    lanes = gl.arange(0, LANES, LAYOUT)
    unit = step * group + lanes
    there = (lanes < group) & (unit < units)
    number = unit // heads
    keys = gl.load(offsets_ptr + number, mask=there, other=0).to(gl.int32)
    queries = keys
    if HAS_CACHE:
        queries = gl.load(offsets_q_ptr + number, mask=there, other=0).to(gl.int32)
    if JOB_ROWS > 0:
        ends = (offsets_q_ptr if HAS_CACHE else offsets_ptr) + 1
        rows = gl.load(ends + number, mask=there, other=0).to(gl.int32) - queries
        many = gl.where(there, (rows + JOB_ROWS - 1) // JOB_ROWS, 0)
        many = gl.where((lanes == 0) & there, gl.maximum(many, 1), many)
    else:
        many = gl.load(num_tiles_ptr + (number if SHARED else unit), mask=there, other=0)
    return many, keys, queries, unit - number * heads


@gluon.jit
@no_type_check
def begin(problem, JOB_ROWS: gl.constexpr, HAS_CACHE: gl.constexpr, SHARED: gl.constexpr):
    """Where `seek` starts.

    Returns:
        The step and its place in the ring; how many tiles or jobs are of earlier steps, and how many more up to each
        pair; what else `pairs_of` says, and all it says of the next step.
    """
    none = gl.to_tensor(0)
    many, keys, queries, heads = pairs_of(0, problem, JOB_ROWS, HAS_CACHE, SHARED)
    ahead = pairs_of(1, problem, JOB_ROWS, HAS_CACHE, SHARED)
    return none, none, none, gl.associative_scan(many, 0, add), keys, queries, heads, ahead


@gluon.jit
@no_type_check
def seek(number, at, problem, JOB_ROWS: gl.constexpr, HAS_CACHE: gl.constexpr, SHARED: gl.constexpr):
    """Walk from the step where one stands to that of a drawn number, or behind the last.

    Returns:
        Where that is; then lane of the pair within the step, and the number within the pair.
    """
    step, place, before, through, keys, queries, heads, ahead = at
    steps = problem[7]
    total = gl.max(through, 0)
    while (number >= before + total) & (step < steps):
        before += total
        step += 1
        place = gl.where(place + 1 == problem[8], 0, place + 1)
        through = gl.associative_scan(ahead[0], 0, add)
        keys = ahead[1]
        queries = ahead[2]
        heads = ahead[3]
        total = gl.max(through, 0)
        # Loaded a step before it is asked for.
        ahead = pairs_of(step + 1, problem, JOB_ROWS, HAS_CACHE, SHARED)
    inside = number - before
    passed = through <= inside
    lane = gl.sum(passed.to(gl.int32), 0)
    inside -= gl.max(gl.where(passed, through, 0), 0)
    return (step, place, before, through, keys, queries, heads, ahead), lane, inside


@gluon.jit
@no_type_check
def of_lane(values, lane):
    """A pair's number."""
    lanes = gl.arange(0, LANES, gl.BlockedLayout([1], [32], [1], [0]))
    return gl.sum(gl.where(lanes == lane, values, 0), 0)


@gluon.jit
@no_type_check
def wait_for(counters, first, last, needed):
    """Until counters `first` to `last`, LANES at most, have come to `needed`; what they tell of is seen then."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    at = first + gl.arange(0, LANES, LAYOUT)
    wanted = at <= last
    while gl.min(gl.load(counters + at, mask=wanted, other=DONE, volatile=True), 0) < needed:
        pass
    gl.atomic_add(counters + at, gl.zeros([LANES], gl.int32, LAYOUT), mask=wanted, sem="acquire")
    sync_warps()


@gluon.jit
@no_type_check
def hand_over(slots, tiles, count, tile, entry, descs, q_row, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr):
    """Give a tile's rows, keys and values to those who gather and attend, when there is room."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    come, go, steps, _weights, ready, _done, free = slots
    _q, k, v, full = tiles
    k_desc, v_desc = descs
    step, head, key, many, source, target = tile
    STAGES: gl.constexpr = k.shape[0]
    BYTES: gl.constexpr = (k.numel + v.numel) // STAGES * k.dtype.primitive_bitwidth // 8
    slot = count % STAGES
    mbarrier.wait(free.index(slot), (count // STAGES & 1) ^ 1)
    mine = gl.arange(0, ROWS, entry.type.layout) < many
    come.index(slot).store(gl.where(mine, source + (entry // OTHERS).to(gl.int64) * q_row, -1))
    go.index(slot).store(gl.where(mine, target + entry.to(gl.int64) * LINEAR_DIM, -1))
    steps.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + step)
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
def scout(given, slots, tiles, BLOCK_SIZE: gl.constexpr, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
          HAS_CACHE: gl.constexpr, SHARED: gl.constexpr):
    """One warp: beside the tile that it hands over, one's entries load, one's record, and one's number comes."""
    ENTRIES: gl.constexpr = gl.BlockedLayout([2], [32], [1], [0])
    descs, progress_ptr, entries_ptr, tiles_ptr, problem, sizes = given
    q_row, q_head, entry_rows, tile_rows, slot_rows = sizes
    group, steps, ring = problem[6], problem[7], problem[8]
    finished = progress_ptr + COUNTERS + steps
    rows = gl.arange(0, ROWS, ENTRIES)
    number = draw(progress_ptr)
    at = begin(problem, 0, HAS_CACHE, SHARED)
    # A tile's step is -1 where there is none yet, and `steps` behind the last.
    none = gl.to_tensor(0)
    far = none.to(gl.int64)
    record = (none - 1, none, none, far, far, far, none, none, none)
    tile = (none - 1, none, none, none, far, far)
    entry = gl.zeros([ROWS], gl.int32, ENTRIES)
    count = 0
    checked = 0
    while tile[0] < steps:
        next_number = draw(progress_ptr)
        # Entries of the tile whose record has come.
        tile_step, tile_head, start, source, target, listed, first, block, many = record
        loading = gl.load(entries_ptr + (listed + first) + rows, mask=rows < many, other=0)
        # The record of the tile whose number has come.
        at, lane, inside = seek(drawn(number), at, problem, 0, HAS_CACHE, SHARED)
        number = next_number
        step = at[0]
        key_start = of_lane(at[4], lane)
        query_start = of_lane(at[5], lane).to(gl.int64)
        head = of_lane(at[6], lane)
        of_list = head.to(gl.int64) * (0 if SHARED else 1)
        where = tiles_ptr + (
            of_list * tile_rows + query_start * OTHERS // ROWS + key_start // BLOCK_SIZE + inside) * 3
        next_first = gl.load(where, mask=step < steps, other=0)
        next_block = gl.load(where + 1, mask=step < steps, other=0)
        next_many = gl.load(where + 2, mask=step < steps, other=0)
        if tile[0] >= 0:
            last = tile[0] - ring
            while checked <= last:
                wait_for(finished, checked, gl.minimum(last, checked + LANES - 1), DONE)
                checked = gl.minimum(last, checked + LANES - 1) + 1
            hand_over(slots, tiles, count, tile, entry, descs, q_row, OTHERS, LINEAR_DIM)
            count += 1
        tile = (tile_step, tile_head, start + block * BLOCK_SIZE, many, source, target)
        entry = loading
        record = (step, head, key_start, query_start * q_row + head.to(gl.int64) * q_head,
                  (at[1] * group + lane).to(gl.int64) * slot_rows * LINEAR_DIM,
                  of_list * entry_rows + query_start * OTHERS, next_first, next_block, next_many)
    hand_end(slots, count)
    mbarrier.arrive(tiles[3].index(count % tiles[3].shape[0]))


@gluon.jit
@no_type_check
def clerk(given, jobs, counts, BLOCK_SIZE: gl.constexpr, OTHERS: gl.constexpr, LINEAR_DIM: gl.constexpr,
          HAS_CACHE: gl.constexpr, HAS_TARGETS: gl.constexpr, SHARED: gl.constexpr):
    """One warp: a number drawn ahead, and the job before it handed over when its step's tiles are published."""
    JOB_ROWS: gl.constexpr = counts.shape[1]
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    LINES: gl.constexpr = gl.BlockedLayout([JOB_ROWS // 32], [32], [1], [0])
    progress_ptr, problem, slot_rows = given
    come, go, steps_of, weights, ready, _done, free = jobs
    heads, group, steps = problem[5], problem[6], problem[7]
    SLOTS: gl.constexpr = come.shape[0]
    rows = gl.arange(0, JOB_ROWS, LINES)
    number = draw(progress_ptr + JOBS_DRAWN)
    at = begin(problem, JOB_ROWS, HAS_CACHE, SHARED)
    count = 0
    checked = gl.to_tensor(-1)
    while at[0] < steps:
        next_number = draw(progress_ptr + JOBS_DRAWN)
        wanted = drawn(number)
        at, lane, inside = seek(wanted, at, problem, JOB_ROWS, HAS_CACHE, SHARED)
        number = next_number
        step = at[0]
        if step < steps:
            head = of_lane(at[6], lane)
            _key_start, query_start, keys, first_query, _prefix, seen = sequence(
                problem[0], problem[1], problem[2], (step * group + lane) // heads, 0, False, HAS_TARGETS, HAS_CACHE)
            if checked < step:
                many, _key_starts, _query_starts, _heads = pairs_of(step, problem, 0, HAS_CACHE, SHARED)
                wait_for(progress_ptr + COUNTERS, step, step, gl.sum(many, 0))
                checked = step
            slot = count % SLOTS
            mbarrier.wait(free.index(slot), (count // SLOTS & 1) ^ 1)
            row = inside * JOB_ROWS + rows
            mine = row < keys - first_query
            _position, _stand, local = standing(row, first_query, seen, BLOCK_SIZE)
            first = (at[1] * group + lane).to(gl.int64) * slot_rows
            come.index(slot).store((first + row * OTHERS) * LINEAR_DIM)
            go.index(slot).store(gl.where(mine, (query_start + row) * heads + head, 0))
            counts.index(slot).store(gl.where(mine, gl.minimum(local, OTHERS), 0))
            steps_of.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + step)
            weight = gl.where(wanted == at[2], DONE + 1 - gl.max(at[3], 0), 1)
            weights.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + weight)
            sync_warps()
            mbarrier.arrive(ready.index(slot))
            count += 1
    hand_end(jobs, count)


@gluon.jit
@no_type_check
def publish(slots, counters, WEIGHED: gl.constexpr):
    """One warp: free a slot that is done, and count it for other programs, after all that was written for it."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    _come, _go, steps, weights, _ready, done, free = slots
    STAGES: gl.constexpr = steps.shape[0]
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % STAGES
        mbarrier.wait(done.index(slot), count // STAGES & 1)
        step = step_of(slots, slot, 1)
        weight = gl.to_tensor(1)
        if WEIGHED:
            weight = gl.max(weights.index(slot).load(LINE), 0)
        mbarrier.arrive(free.index(slot))
        if step >= 0:
            gl.atomic_add(counters + step, weight, sem="release")
        count += 1
