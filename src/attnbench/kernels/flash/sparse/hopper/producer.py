# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the block-sparse forward for Hopper: fetches work items, reads their lists and loads tiles."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.tiles import Work, await_room_for_keys, await_room_for_values
from attnbench.kernels.flash.sparse.hopper.tiles import blocks_of, key_of, list_of
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    Rings,
    WorkQueue,
    aggregate,
    coordinates,
    load_tile,
    next_work,
)


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler"
    items_ptr: Argument
    "index, length and number of unmasked blocks of each list, in the order of the work"
    indices_ptr: Argument
    all_lists: Argument
    heads: Argument
    lists: Argument
    "lists of a head"
    columns: Argument
    "columns of the map"
    repeats: Argument
    "query heads of a KV head"
    seqlen_q: Argument
    seqlen_k: Argument
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr
    PARTS: gl.constexpr
    "tiles of a block"
    BLOCKS: gl.constexpr
    "blocks of a tile"
    JOINT: gl.constexpr
    "whether keys and values share their stages: a stage has the keys of a tile, and then its values"
    SHARE: gl.constexpr
    "rows of the map that share a list"
    GROUPS: gl.constexpr


@gluon.jit
@no_type_check
def load_queries(producer, work, done):
    """Load a work item's queries, one tile for each warpgroup."""
    for which in gl.static_range(producer.GROUPS):
        producer.rings.q[which].fill(
            done, producer.q_desc, work.query_start, work.queries, work.first + which * ROWS, work.head
        )


@gluon.jit
@no_type_check
def fill(producer, ring, desc, count, key_start, keys, tile, blocks, head):
    """Load a tile of the given blocks, when its stage is free: whoever shares the stage has waited for that."""
    BLOCK_K: gl.constexpr = producer.BLOCK_K
    if producer.BLOCKS == 1:
        at = key_of(blocks[0], tile, BLOCK_K, producer.PARTS)
        ring.fill(count, desc, key_start, keys, at, head, AWAIT=not producer.JOINT)
    else:
        stage, barrier = ring.begin(count, AWAIT=not producer.JOINT)
        for which in gl.static_range(producer.BLOCKS):
            place = coordinates(key_start, keys, blocks[which] * BLOCK_K, head)
            load_tile(desc, place, barrier, stage.slice(which * BLOCK_K, BLOCK_K, dim=2))


@gluon.jit
@no_type_check
def load_values(producer, count, key_start, keys, tile, blocks, head):
    """Load a tile of values; into a joint stage when the keys of the same tile have been read."""
    if producer.JOINT:
        await_room_for_values(producer.rings, count)
    ring, desc = producer.rings.v, producer.v_desc
    fill(producer, ring, desc, count, key_start, keys, tile=tile, blocks=blocks, head=head)


@gluon.jit
@no_type_check
def load_keys(producer, count, key_start, keys, tile, blocks, head):
    """Load a tile of keys; for a shared list also the values, on the same barrier."""
    k_ring = producer.rings.k
    v_ring = producer.rings.v
    if producer.SHARE == 1:
        if producer.JOINT:
            await_room_for_keys(producer.rings, count)
        fill(producer, k_ring, producer.k_desc, count, key_start, keys, tile=tile, blocks=blocks, head=head)
    else:
        at = key_of(blocks[0], tile, producer.BLOCK_K, producer.PARTS)
        BYTES: gl.constexpr = v_ring.tiles.numel // v_ring.STAGES * v_ring.tiles.dtype.primitive_bitwidth // 8
        k_ring.fill(count, producer.k_desc, key_start, keys, at, head, BYTES)
        stage = count % k_ring.STAGES
        load_tile(
            producer.v_desc, coordinates(key_start, keys, at, head), k_ring.full.index(stage), v_ring.tiles.index(stage)
        )


@gluon.jit
@no_type_check
def load_work(producer, work, number, listed, count, done):
    """Load a work item's tiles from the last to the first.  Returns the new tile count, and the next work item or -1."""
    rings = producer.rings
    PARTS: gl.constexpr = producer.PARTS
    BLOCKS: gl.constexpr = producer.BLOCKS
    Q_AHEAD: gl.constexpr = rings.q[0].STAGES > 1
    indices = list_of(producer.indices_ptr, number, producer.columns)
    head = work.head // producer.repeats
    key_start = work.batch * work.keys
    end = work.end
    following = -1
    none = end * 0
    blocks = (none,) * BLOCKS
    then = (none,) * BLOCKS
    if end > 0:
        blocks = blocks_of(indices, end - 1, listed, PARTS, BLOCKS)
        then = blocks_of(indices, gl.maximum(end - 2, 0), listed, PARTS, BLOCKS)
    if Q_AHEAD:
        load_queries(producer, work, done)
    if end > 0:
        load_keys(producer, count, key_start, work.keys, end - 1, blocks, head)
    # With one query stage, queries are loaded after the first keys: the previous output may first have to leave the buffer.
    if not Q_AHEAD:
        load_queries(producer, work, done)
    # Keys are loaded one tile before values, as they are read; list entries one tile before keys, because of their latency.
    for index in range(end):
        tile = end - 1 - index
        later = blocks_of(indices, gl.maximum(tile - 2, 0), listed, PARTS, BLOCKS)
        if tile > 0:
            load_keys(producer, count + 1, key_start, work.keys, tile - 1, then, head)
        else:
            # Fetched here, because the answer arrives while the last values wait for a stage.
            following = next_work(producer.counter_ptr)
        if producer.SHARE == 1:
            load_values(producer, count, key_start, work.keys, tile, blocks, head)
        blocks = then
        then = later
        count += 1
    return count, following


@gluon.jit
@no_type_check
def work_of(producer, turn):
    """The `turn`-th work item, the index of its list, and the number of blocks in it."""
    BLOCK_M: gl.constexpr = ROWS * producer.GROUPS
    LIST_ROWS: gl.constexpr = producer.BLOCK_Q * producer.SHARE
    SHARES: gl.constexpr = LIST_ROWS // BLOCK_M
    item = producer.items_ptr + gl.cast(turn // SHARES, gl.int64) * 3
    number = gl.load(item)
    listed = gl.load(item + 1)
    end = (listed + producer.BLOCKS - 1) // producer.BLOCKS * producer.PARTS
    split = gl.load(item + 2) // producer.BLOCKS * producer.PARTS
    pair = number // producer.lists
    batch = pair // producer.heads
    first = (number - pair * producer.lists) * LIST_ROWS + turn % SHARES * BLOCK_M
    none = number * 0
    work = Work(
        query_start=batch * producer.seqlen_q,
        head=pair - batch * producer.heads,
        batch=batch,
        queries=none + producer.seqlen_q,
        keys=none + producer.seqlen_k,
        first=first,
        begin=none,
        whole=none,
        split=split,
        end=end,
    )
    return work, number, listed


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: fetch a work item, publish it and load its tiles, until there are no more."""
    items = producer.all_lists * (producer.BLOCK_Q * producer.SHARE // (ROWS * producer.GROUPS))
    count = 0
    done = 0
    turn = gl.program_id(0)
    while turn < items:
        work, number, listed = work_of(producer, turn)
        following = -1
        if work.first < work.queries:
            producer.queue.publish(done, work)
            count, following = load_work(producer, work, number, listed, count, done)
            done += 1
        if following < 0:  # a work item without rows or without keys
            following = next_work(producer.counter_ptr)
        turn = following
    producer.queue.finish(done)
