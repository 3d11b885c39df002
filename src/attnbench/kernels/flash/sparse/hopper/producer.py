# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the block-sparse forward for Hopper: fetches work items, reads their lists and loads tiles."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.tiles import Work
from attnbench.kernels.flash.sparse.hopper.tiles import key_of, list_of
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
def load_keys(producer, count, key_start, keys, tile, block, head):
    """Load a tile of keys of a block; for a shared list also the values, on the same barrier."""
    k_ring = producer.rings.k
    v_ring = producer.rings.v
    at = key_of(block, tile, producer.BLOCK_K, producer.PARTS)
    if producer.SHARE == 1:
        k_ring.fill(count, producer.k_desc, key_start, keys, at, head)
    else:
        BYTES: gl.constexpr = v_ring.tiles.numel // v_ring.STAGES * v_ring.tiles.dtype.primitive_bitwidth // 8
        k_ring.fill(count, producer.k_desc, key_start, keys, at, head, BYTES)
        stage = count % k_ring.STAGES
        load_tile(
            producer.v_desc, coordinates(key_start, keys, at, head), k_ring.full.index(stage), v_ring.tiles.index(stage)
        )


@gluon.jit
@no_type_check
def load_work(producer, work, number, count, done):
    """Load a work item's tiles from the last to the first.  Returns the new tile count, and the next work item or -1."""
    rings = producer.rings
    BLOCK_K: gl.constexpr = producer.BLOCK_K
    PARTS: gl.constexpr = producer.PARTS
    Q_AHEAD: gl.constexpr = rings.q[0].STAGES > 1
    indices = list_of(producer.indices_ptr, number, producer.columns)
    head = work.head // producer.repeats
    key_start = work.batch * work.keys
    end = work.end
    following = -1
    block = 0
    then = 0
    if end > 0:
        block = gl.load(indices + (end - 1) // PARTS)
        then = gl.load(indices + gl.maximum(end - 2, 0) // PARTS)
    if Q_AHEAD:
        load_queries(producer, work, done)
    if end > 0:
        load_keys(producer, count, key_start, work.keys, end - 1, block, head)
    # With one query stage, queries are loaded after the first keys: the previous output may first have to leave the buffer.
    if not Q_AHEAD:
        load_queries(producer, work, done)
    # Keys are loaded one tile before values, as they are read; list entries one tile before keys, because of their latency.
    for index in range(end):
        tile = end - 1 - index
        later = gl.load(indices + gl.maximum(tile - 2, 0) // PARTS)
        if tile > 0:
            load_keys(producer, count + 1, key_start, work.keys, tile - 1, then, head)
        else:
            # Fetched here, because the answer arrives while the last values wait for a stage.
            following = next_work(producer.counter_ptr)
        if producer.SHARE == 1:
            rings.v.fill(count, producer.v_desc, key_start, work.keys, key_of(block, tile, BLOCK_K, PARTS), head)
        block = then
        then = later
        count += 1
    return count, following


@gluon.jit
@no_type_check
def work_of(producer, turn):
    """The `turn`-th work item, and the index of its list."""
    BLOCK_M: gl.constexpr = ROWS * producer.GROUPS
    LIST_ROWS: gl.constexpr = producer.BLOCK_Q * producer.SHARE
    SHARES: gl.constexpr = LIST_ROWS // BLOCK_M
    item = producer.items_ptr + gl.cast(turn // SHARES, gl.int64) * 3
    number = gl.load(item)
    end = gl.load(item + 1) * producer.PARTS
    split = gl.load(item + 2) * producer.PARTS
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
    return work, number


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: fetch a work item, publish it and load its tiles, until there are no more."""
    items = producer.all_lists * (producer.BLOCK_Q * producer.SHARE // (ROWS * producer.GROUPS))
    count = 0
    done = 0
    turn = gl.program_id(0)
    while turn < items:
        work, number = work_of(producer, turn)
        following = -1
        if work.first < work.queries:
            producer.queue.publish(done, work)
            count, following = load_work(producer, work, number, count, done)
            done += 1
        if following < 0:  # a work item without rows or without keys
            following = next_work(producer.counter_ptr)
        turn = following
    producer.queue.finish(done)
