# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the block-sparse forward for Hopper: draws work items, walks their lists and loads tiles."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.tiles import Work
from attnbench.kernels.flash.sparse.hopper.tiles import key_of, list_of
from attnbench.kernels.shared.hopper import ROWS, Argument, Rings, WorkQueue, aggregate, next_work


@aggregate
class Producer:
    """What the producer warp works with."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    queue: WorkQueue
    counter_ptr: Argument
    "of the dynamic tile scheduler"
    items_ptr: Argument
    "number, count and whole of each row of the map, in the order of the work"
    indices_ptr: Argument
    all_rows: Argument
    heads: Argument
    rows: Argument
    columns: Argument
    "of the map"
    repeats: Argument
    "query heads of a head of keys"
    seqlen_q: Argument
    seqlen_k: Argument
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr
    BLOCK_N: gl.constexpr
    GROUPS: gl.constexpr


@gluon.jit
@no_type_check
def load_queries(producer, work, done):
    """Load a work item's queries, a tile for each warpgroup."""
    for which in gl.static_range(producer.GROUPS):
        producer.rings.q[which].fill(done, producer.q_desc, work.query_start, work.queries, work.first + which * ROWS,
                                     work.head)


@gluon.jit
@no_type_check
def load_work(producer, work, row, count, done):
    """Load a work item's tiles from the last to the first; how many there have been then, and the next item or -1."""
    rings = producer.rings
    BLOCK_K: gl.constexpr = producer.BLOCK_K
    BLOCK_N: gl.constexpr = producer.BLOCK_N
    Q_AHEAD: gl.constexpr = rings.q[0].STAGES > 1
    indices = list_of(producer.indices_ptr, row, producer.columns)
    head = work.head // producer.repeats
    key_start = work.batch * work.keys
    end = work.end
    following = -1
    at = 0
    then = 0
    if end > 0:
        at = key_of(indices, end - 1, BLOCK_K, BLOCK_N)
        then = key_of(indices, gl.maximum(end - 2, 0), BLOCK_K, BLOCK_N)
    if Q_AHEAD:
        load_queries(producer, work, done)
    if end > 0:
        rings.k.fill(count, producer.k_desc, key_start, work.keys, at, head)
    # Without room for two the queries come after the first keys: the last output may have to leave before.
    if not Q_AHEAD:
        load_queries(producer, work, done)
    # Keys a tile before values, as they are read; the list a tile before keys, for its numbers take as long to come.
    for index in range(end):
        left = end - 1 - index
        later = key_of(indices, gl.maximum(left - 2, 0), BLOCK_K, BLOCK_N)
        if left > 0:
            rings.k.fill(count + 1, producer.k_desc, key_start, work.keys, then, head)
        else:
            # Here, for the answer comes while the last values wait for a stage.
            following = next_work(producer.counter_ptr)
        rings.v.fill(count, producer.v_desc, key_start, work.keys, at, head)
        at = then
        then = later
        count += 1
    return count, following


@gluon.jit
@no_type_check
def work_of(producer, turn):
    """The work item that is `turn`-th, and the row of the map that it is of."""
    BLOCK_Q: gl.constexpr = producer.BLOCK_Q
    SHARES: gl.constexpr = BLOCK_Q // (ROWS * producer.GROUPS)
    PARTS: gl.constexpr = producer.BLOCK_K // producer.BLOCK_N
    item = producer.items_ptr + gl.cast(turn // SHARES, gl.int64) * 3
    row = gl.load(item)
    end = gl.load(item + 1) * PARTS
    split = gl.load(item + 2) * PARTS
    pair = row // producer.rows
    batch = pair // producer.heads
    first = (row - pair * producer.rows) * BLOCK_Q + turn % SHARES * (ROWS * producer.GROUPS)
    none = row * 0
    work = Work(batch * producer.seqlen_q, pair - batch * producer.heads, batch, none + producer.seqlen_q,
                none + producer.seqlen_k, first, none, none, split, end)
    return work, row


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: draw a work item, publish it, load its tiles; the next one, until there is none."""
    items = producer.all_rows * (producer.BLOCK_Q // (ROWS * producer.GROUPS))
    count = 0
    done = 0
    turn = gl.program_id(0)
    while turn < items:
        work, row = work_of(producer, turn)
        following = -1
        if work.first < work.queries:
            work.publish(producer.queue, done)
            count, following = load_work(producer, work, row, count, done)
            done += 1
        if following < 0:  # an item without rows or without keys
            following = next_work(producer.counter_ptr)
        turn = following
    producer.queue.publish(done, (-1,))
