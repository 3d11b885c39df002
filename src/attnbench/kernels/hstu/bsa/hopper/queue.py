# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Single-warp partitions of the selected branch for Hopper.

    produce_tiles   fetches tiles of the lists: publishes rows and addresses, loads keys and values
    signal_places    signals for each tile that its step has a buffer in the ring, which attend needs only when it writes
    produce_jobs    fetches jobs: waits until all tiles of their step are published, publishes rows
    publish_done    signals to other programs that the tile or job of a slot is done

Each fetches indices, resolves them (`schedule`) and prefetches, so that warps stall on memory only where bandwidth is the
limit.

Freedom from deadlock: a program waits only for programs that have started.  A tile waits for jobs of earlier steps, a job
for the tiles of its own step.  In the first unfinished step, tiles that were fetched belong to running programs, wait for
nothing and precede tiles of later steps in the slots; tiles not yet fetched are the next to be fetched.  So all its tiles
finish, and by the same argument all its jobs.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from attnbench.kernels.hstu.bsa.hopper.attend_config import ROWS
from attnbench.kernels.hstu.bsa.hopper.schedule import (
    COUNTERS,
    DONE,
    JOBS_FETCHED,
    LANES,
    SPREAD,
    GridProblem,
    begin,
    fetch,
    fetched,
    of_lane,
    seek,
    wait_for,
)
from attnbench.kernels.hstu.bsa.tiles import FIRST_ENTRY, LISTED_BLOCK, NUM_ENTRIES, RECORD, standing
from attnbench.kernels.shared.hopper import Argument, aggregate, allocate_barriers, coordinates, load_tile, sync_warps

TILE_ROWS = gl.constexpr(ROWS)
"Rows of a tile of the lists."

NOWHERE = gl.constexpr(-8)
"Offset for rows without an entry: they are not copied, but their address must be a multiple of 16 bytes."

PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
"Layout of lists in shared memory."


@aggregate
class Slots:
    """A ring of lists in shared memory, [slots, rows], published by one warp and processed by others."""

    sources: gl.shared_memory_descriptor
    "source offsets of a slot's rows"
    targets: gl.shared_memory_descriptor
    "target offsets of a slot's rows"
    steps: gl.shared_memory_descriptor
    "step of a slot; -1: end of the work"
    numbers: gl.shared_memory_descriptor
    "of a tile the number of its rows, of a job its weight"
    ready: gl.shared_memory_descriptor
    "mbarriers: the slot has been published"
    done: gl.shared_memory_descriptor
    "mbarriers: the slot has been processed"
    free: gl.shared_memory_descriptor
    "mbarriers: other programs have been signalled, and the slot is free"
    SLOTS: gl.constexpr

    @gluon.jit
    @no_type_check
    def acquire(self, count):
        """Wait until the count-th slot is free, and return its index."""
        slot = count % self.SLOTS
        mbarrier.wait(self.free.index(slot), (count // self.SLOTS & 1) ^ 1)
        return slot

    @gluon.jit
    @no_type_check
    def finish(self, count):
        """Publish the end of the work."""
        LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
        slot = self.acquire(count)
        self.steps.index(slot).store(gl.full([LANES], -1, gl.int32, LINE))
        sync_warps()
        mbarrier.arrive(self.ready.index(slot))


@gluon.jit
@no_type_check
def allocate_slots(SLOTS: gl.constexpr, ROWS: gl.constexpr):
    """Slots of lists of ROWS; before warp specialization."""
    sources = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS], PLAIN)
    targets = gl.allocate_shared_memory(gl.int64, [SLOTS, ROWS], PLAIN)
    steps = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    numbers = gl.allocate_shared_memory(gl.int32, [SLOTS, LANES], PLAIN)
    return Slots(
        sources=sources,
        targets=targets,
        steps=steps,
        numbers=numbers,
        ready=allocate_barriers(SLOTS, ARRIVALS=1),
        done=allocate_barriers(SLOTS, ARRIVALS=1),
        free=allocate_barriers(SLOTS, ARRIVALS=1),
        SLOTS=SLOTS,
    )


@aggregate
class TileRing:
    """A ring of tiles with one stage per slot: query rows, a block's keys and values, and one mbarrier for all three."""

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor


@gluon.jit
@no_type_check
def number_of(numbers, slot, WARPS: gl.constexpr):
    """A slot's number, from `Slots.steps` or `Slots.numbers`."""
    return gl.max(numbers.index(slot).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@aggregate
class Record:
    """A tile of a list before its record in the table has been loaded; step -1: no tile yet; step `steps`: past the last."""

    step: gl.tensor
    head: gl.tensor
    key: gl.tensor
    source: gl.tensor
    target: gl.tensor
    "source of its rows, and target of its partial rows"
    listed: gl.tensor
    "first entry of the queries"


@aggregate
class ListTile:
    """A tile of a list: some of the queries that selected a block."""

    step: gl.tensor
    head: gl.tensor
    key: gl.tensor
    "first key of the block"
    many: gl.tensor
    "number of entries"
    source: gl.tensor
    target: gl.tensor


@aggregate
class TileProducer:
    """Arguments of the warp of `produce_tiles`."""

    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    progress_ptr: Argument
    entries_ptr: Argument
    tiles_ptr: Argument
    problem: GridProblem
    q_strides: gl.tuple
    "`hstu.arguments.RowStrides`"
    entry_rows: Argument
    tile_rows: Argument
    slot_rows: Argument
    "rows of a pair in the lists, in the table, and in the partial rows"
    slots: Slots
    ring: TileRing
    BLOCK_SIZE: gl.constexpr
    OTHERS: gl.constexpr
    "blocks of a query except the local one"
    LINEAR_DIM: gl.constexpr


@gluon.jit
@no_type_check
def publish_tile(producer, count, tile, entry):
    """Publish a tile's rows to the gathering and consumer warps, and load its keys and values, when a slot is free."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    slots = producer.slots
    ring = producer.ring
    BYTES: gl.constexpr = (ring.k.numel + ring.v.numel) // slots.SLOTS * ring.k.dtype.primitive_bitwidth // 8
    slot = slots.acquire(count)
    mine = gl.arange(0, entry.shape[0], entry.type.layout) < tile.many
    slots.sources.index(slot).store(
        gl.where(mine, tile.source + (entry // producer.OTHERS).to(gl.int64) * producer.q_strides.row, NOWHERE)
    )
    slots.targets.index(slot).store(gl.where(mine, tile.target + entry.to(gl.int64) * producer.LINEAR_DIM, NOWHERE))
    slots.steps.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + tile.step)
    slots.numbers.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + tile.many)
    sync_warps()
    mbarrier.expect(ring.full.index(slot), BYTES)
    # To the descriptor, the sequence ends at the end of the block.
    place = coordinates(tile.key, ring.k.shape[3], first=0, head=tile.head)
    load_tile(producer.k_desc, place, ring.full.index(slot), ring.k.index(slot))
    load_tile(producer.v_desc, place, ring.full.index(slot), ring.v.index(slot))
    mbarrier.arrive(slots.ready.index(slot))


@gluon.jit
@no_type_check
def record_of(producer, cursor, lane, inside):
    """A tile before its record is loaded, and the record's index in the table."""
    OTHERS: gl.constexpr = producer.OTHERS
    problem = producer.problem
    pairs = cursor.pairs
    key = of_lane(pairs.key, lane)
    query = of_lane(pairs.query, lane).to(gl.int64)
    head = of_lane(pairs.head, lane)
    of_list = head.to(gl.int64) * (0 if problem.SHARED else 1)
    source = query * producer.q_strides.row + head.to(gl.int64) * producer.q_strides.head
    target = (cursor.place * problem.group + lane).to(gl.int64) * producer.slot_rows * producer.LINEAR_DIM
    where = of_list * producer.tile_rows + query * OTHERS // TILE_ROWS + key // producer.BLOCK_SIZE + inside
    record = Record(
        step=cursor.step,
        head=head,
        key=key,
        source=source,
        target=target,
        listed=of_list * producer.entry_rows + query * OTHERS,
    )
    return record, where * RECORD


@gluon.jit
@no_type_check
def produce_tiles(producer):
    """One warp: publishes a tile while the next one's entries, the one after's record and another number are being loaded."""
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    ENTRIES: gl.constexpr = gl.BlockedLayout([TILE_ROWS // 32], [32], [1], [0])
    problem = producer.problem
    full = producer.ring.full
    rows = gl.arange(0, TILE_ROWS, ENTRIES)
    lanes = gl.arange(0, LANES, LINE)
    number = fetch(producer.progress_ptr)
    cursor = begin(problem, JOB_ROWS=0)
    none = gl.to_tensor(0)
    far = none.to(gl.int64)
    record = Record(step=none - 1, head=none, key=none, source=far, target=far, listed=far)
    # Kept as a vector: converting its three numbers to scalars would wait for the load here.
    loaded = gl.zeros([LANES], gl.int32, LINE)
    tile = ListTile(step=none - 1, head=none, key=none, many=none, source=far, target=far)
    entry = gl.zeros([TILE_ROWS], gl.int32, ENTRIES)
    count = 0
    while tile.step < problem.steps:
        next_number = fetch(producer.progress_ptr)
        # Entries of the tile whose record has arrived.
        many = of_lane(loaded, NUM_ENTRIES)
        next_tile = ListTile(
            step=record.step,
            head=record.head,
            key=record.key + of_lane(loaded, LISTED_BLOCK) * producer.BLOCK_SIZE,
            many=many,
            source=record.source,
            target=record.target,
        )
        next_entry = gl.load(
            producer.entries_ptr + (record.listed + of_lane(loaded, FIRST_ENTRY)) + rows, mask=rows < many, other=0
        )
        # The record of the tile whose number has arrived.
        found = seek(fetched(number), cursor, problem)
        cursor = found.cursor
        record, where = record_of(producer, cursor, found.lane, found.inside)
        loaded = gl.load(
            producer.tiles_ptr + where + lanes, mask=(lanes < RECORD) & (record.step < problem.steps), other=0
        )
        if tile.step >= 0:
            publish_tile(producer, count, tile, entry)
            count += 1
        tile = next_tile
        entry = next_entry
        number = next_number
    producer.slots.finish(count)
    mbarrier.arrive(full.index(count % full.shape[0]))


@gluon.jit
@no_type_check
def signal_places(slots, place_free, finished, ring):
    """One warp: allows each tile's partial rows to be written when the step that used their buffer before is done."""
    SLOTS: gl.constexpr = slots.SLOTS
    count = 0
    step = gl.to_tensor(0)
    checked = gl.to_tensor(0)
    while step >= 0:
        slot = count % SLOTS
        mbarrier.wait(slots.ready.index(slot), count // SLOTS & 1)
        step = number_of(slots.steps, slot, WARPS=1)
        # Steps finish in any order, and a step without tiles has not waited for earlier ones.
        while checked <= step - ring:
            end = gl.minimum(step - ring, checked + LANES - 1)
            wait_for(finished, checked, end, DONE)
            checked = end + 1
        mbarrier.arrive(place_free.index(slot))
        count += 1


@aggregate
class JobProducer:
    """Arguments of the warp of `produce_jobs`."""

    progress_ptr: Argument
    problem: GridProblem
    slot_rows: Argument
    "partial rows of a pair"
    jobs: Slots
    counts: gl.shared_memory_descriptor
    "number of partial rows of each row of a job, [slots, rows]"
    BLOCK_SIZE: gl.constexpr
    OTHERS: gl.constexpr
    "blocks of a query except the local one"
    LINEAR_DIM: gl.constexpr


@gluon.jit
@no_type_check
def publish_job(producer, count, cursor, lane, inside, weight):
    """Publish a job's rows to the `combine` warpgroup, when a slot is free."""
    JOB_ROWS: gl.constexpr = cursor.JOB_ROWS
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    OTHERS: gl.constexpr = producer.OTHERS
    jobs = producer.jobs
    problem = producer.problem
    pairs = cursor.pairs
    keys = of_lane(pairs.key_end - pairs.key, lane)
    queries = of_lane(pairs.query_end - pairs.query, lane)
    seen = keys
    if problem.HAS_TARGETS:
        seen = keys - of_lane(pairs.targets, lane)
    row = inside * JOB_ROWS + gl.arange(0, JOB_ROWS, gl.BlockedLayout([(JOB_ROWS + 31) // 32], [32], [1], [0]))
    mine = row < queries
    local = standing(row, keys - queries, seen, producer.BLOCK_SIZE).local
    first = (cursor.place * problem.group + lane).to(gl.int64) * producer.slot_rows
    target = (of_lane(pairs.query, lane).to(gl.int64) + row) * problem.heads + of_lane(pairs.head, lane)
    slot = jobs.acquire(count)
    jobs.sources.index(slot).store((first + row * OTHERS) * producer.LINEAR_DIM)
    jobs.targets.index(slot).store(gl.where(mine, target, 0))
    producer.counts.index(slot).store(gl.where(mine, gl.minimum(local, OTHERS), 0))
    jobs.steps.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + cursor.step)
    jobs.numbers.index(slot).store(gl.full([LANES], 0, gl.int32, LINE) + weight)
    sync_warps()
    mbarrier.arrive(jobs.ready.index(slot))


@gluon.jit
@no_type_check
def produce_jobs(producer):
    """One warp: fetches a job while it publishes the previous one, whose step's tiles have then been published."""
    problem = producer.problem
    progress_ptr = producer.progress_ptr
    number = fetch(progress_ptr + JOBS_FETCHED)
    cursor = begin(problem, producer.counts.shape[1])
    count = 0
    checked = gl.to_tensor(-1)
    while cursor.step < problem.steps:
        next_number = fetch(progress_ptr + JOBS_FETCHED)
        wanted = fetched(number)
        found = seek(wanted, cursor, problem)
        cursor = found.cursor
        number = next_number
        step = cursor.step
        if step < problem.steps:
            if checked < step:
                wait_for(progress_ptr + COUNTERS, step, step, gl.sum(cursor.pairs.tiles, 0))
                checked = step
            # One job of a step adds what the others leave of DONE.
            weight = gl.where(wanted == cursor.before, DONE + 1 - gl.max(cursor.through, 0), 1)
            publish_job(producer, count, cursor, found.lane, found.inside, weight)
            count += 1
    producer.jobs.finish(count)


@gluon.jit
@no_type_check
def publish_done(slots, counters, WEIGHED: gl.constexpr):
    """One warp: frees a slot that is done and counts it for other programs, after all writes of the slot."""
    SLOTS: gl.constexpr = slots.SLOTS
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % SLOTS
        mbarrier.wait(slots.done.index(slot), count // SLOTS & 1)
        step = number_of(slots.steps, slot, WARPS=1)
        weight = gl.to_tensor(1)
        if WEIGHED:
            weight = number_of(slots.numbers, slot, WARPS=1)
        if step >= 0:
            # Both numbers first: a slot must not be freed while they are being loaded.  The end slot is not waited for.
            mbarrier.arrive(slots.free.index(slot), pred=weight > 0)
            gl.atomic_add(counters + step * SPREAD, weight, sem="release")
        count += 1
