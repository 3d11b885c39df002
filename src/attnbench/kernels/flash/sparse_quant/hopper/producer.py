# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the block-sparse forward in 8 bits: fetches work items, reads their lists and loads tiles."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.quant.hopper.producer import draw
from attnbench.kernels.flash.quant.hopper.tiles import TILE, QuantisedLayout, Work
from attnbench.kernels.flash.sparse.hopper.tiles import list_of
from attnbench.kernels.flash.tiles import padded_start
from attnbench.kernels.shared.hopper import ROWS, Argument, Rings, WorkQueue, aggregate


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    layout: QuantisedLayout
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler; 0 before and after a launch"
    items_ptr: Argument
    "index, length and number of unmasked blocks of each list, in the order of the work"
    indices_ptr: Argument
    all_lists: Argument
    heads: Argument
    lists: Argument
    "lists of a head"
    columns: Argument
    "columns of the map"
    seqlen_q: Argument
    seqlen_k: Argument
    BLOCK_Q: gl.constexpr
    BLOCK_K: gl.constexpr
    GROUPS: gl.constexpr


@gluon.jit
@no_type_check
def fill_keys(producer, work, block, count):
    """Load a block of keys when a stage is free."""
    head = work.head // producer.layout.repeats
    producer.rings.k.fill(count, producer.k_desc, work.k_place, work.keys, block * producer.BLOCK_K, head)


@gluon.jit
@no_type_check
def fill_values(producer, work, block, count):
    """Load a block of values, [columns, keys], when a stage is free: a tile of the quantised values, or half of one."""
    COLUMNS: gl.constexpr = producer.v_desc.block_shape[2]
    HALVES: gl.constexpr = TILE // producer.BLOCK_K
    place = (work.k_place // TILE + block // HALVES) * COLUMNS
    head = work.head // producer.layout.repeats
    column = block % HALVES * producer.BLOCK_K
    producer.rings.v.fill(count, producer.v_desc, place, COLUMNS, 0, head, column=column)


@gluon.jit
@no_type_check
def load_work(producer, work, number, items, count, done):
    """Load a work item's tiles from the last to the first.  Returns the new tile count, and the next work item or -1."""
    rings = producer.rings
    indices = list_of(producer.indices_ptr, number, producer.columns)
    end = work.end
    following = -1
    block = 0
    then = 0
    if end > 0:
        block = gl.load(indices + (end - 1))
        then = gl.load(indices + gl.maximum(end - 2, 0))
    q_start = work.q_place - work.head * producer.layout.rows_q - work.first
    for which in gl.static_range(producer.GROUPS):
        rings.q[which].fill(done, producer.q_desc, q_start, work.queries, work.first + which * ROWS, work.head)
    if end > 0:
        fill_keys(producer, work, block, count)
    # Keys are loaded one tile before values, as they are read; list entries one tile before keys, because of their latency.
    for index in range(end):
        tile = end - 1 - index
        later = gl.load(indices + gl.maximum(tile - 2, 0))
        if tile > 0:
            fill_keys(producer, work, then, count + 1)
        else:
            # Fetched here, because the answer arrives while the last values wait for a stage.
            following = draw(producer, items)
        fill_values(producer, work, block, count)
        block = then
        then = later
        count += 1
    return count, following


@gluon.jit
@no_type_check
def work_of(producer, turn):
    """The `turn`-th work item, and the index of its list."""
    BLOCK_M: gl.constexpr = ROWS * producer.GROUPS
    SHARES: gl.constexpr = producer.BLOCK_Q // BLOCK_M
    layout = producer.layout
    item = producer.items_ptr + gl.cast(turn // SHARES, gl.int64) * 3
    number = gl.load(item)
    end = gl.load(item + 1)
    split = gl.load(item + 2)
    pair = number // producer.lists
    batch = pair // producer.heads
    head = pair - batch * producer.heads
    first = (number - pair * producer.lists) * producer.BLOCK_Q + turn % SHARES * BLOCK_M
    none = number * 0
    q_place = padded_start(batch, 0, producer.seqlen_q, False, ROWS).to(gl.int32)
    work = Work(
        query_start=batch * producer.seqlen_q,
        head=head,
        batch=batch,
        queries=none + producer.seqlen_q,
        keys=none + producer.seqlen_k,
        first=first,
        split=split,
        end=end,
        q_place=head * layout.rows_q + q_place + first,
        k_place=padded_start(batch, 0, producer.seqlen_k, False, TILE).to(gl.int32),
        v_place=batch * layout.heads_kv + head // layout.repeats,
    )
    return work, number


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: fetch a work item, publish it and load its tiles, until there are no more."""
    items = producer.all_lists * (producer.BLOCK_Q // (ROWS * producer.GROUPS))
    count = 0
    done = 0
    turn = gl.program_id(0)
    while turn < items:
        work, number = work_of(producer, turn)
        following = -1
        if work.first < work.queries:
            producer.queue.publish(done, work)
            count, following = load_work(producer, work, number, items, count, done)
            done += 1
        if following < 0:  # a work item without rows or without keys
            following = draw(producer, items)
        turn = following
    producer.queue.finish(done)
