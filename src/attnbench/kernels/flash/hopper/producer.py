# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the flash forward for Hopper: the tile scheduler, and loads of queries, keys and values."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.pieces import Rests, fill_pieces
from attnbench.kernels.flash.hopper.tiles import (
    GridProblem,
    await_room_for_keys,
    await_room_for_values,
    locate,
    work_of,
)
from attnbench.kernels.shared.hopper import ROWS, Argument, Rings, WorkQueue, aggregate, next_work, work_range


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    problem: GridProblem
    repeats: Argument
    "query heads of a KV head"
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler"
    held_rings: gl.tuple
    "with split queries their first half: a Ring for each warpgroup"
    rests: Rests
    BLOCK_N: gl.constexpr
    GROUPS: gl.constexpr
    JOINT: gl.constexpr
    "whether keys and values share their stages"


@gluon.jit
@no_type_check
def fill_keys(producer, work, key_start, at, count):
    """Load the count-th key tile, from key `at` of a work item's sequence."""
    if producer.JOINT:
        await_room_for_keys(producer.rings, count)
    head = work.head // producer.repeats
    fill_pieces(
        ring=producer.rings.k,
        rest=producer.rests.k,
        count=count,
        desc=producer.k_desc,
        start=key_start,
        rows=work.keys,
        first=at,
        head=head,
        AWAIT=not producer.JOINT,
    )


@gluon.jit
@no_type_check
def load_work(producer, work, key_start, count, done):
    """Load a work item's tiles.  Returns the new tile count, and the next work item if it was fetched here, else -1."""
    rings = producer.rings
    rests = producer.rests
    BLOCK_N: gl.constexpr = producer.BLOCK_N
    HALF: gl.constexpr = producer.q_desc.block_shape[4] % producer.k_desc.block_shape[4]
    Q_AHEAD: gl.constexpr = rings.q[0].STAGES > 1
    following = -1
    begin, end = work.begin, work.end
    if HALF:
        for which in gl.static_range(producer.GROUPS):
            producer.held_rings[which].fill(
                done, producer.q_desc, work.query_start, work.queries, work.first + which * ROWS, work.head
            )
    # With one query stage, queries are loaded after the first keys: the previous output may first have to leave the buffer.
    if not Q_AHEAD and begin < end:
        fill_keys(producer, work, key_start, (end - 1) * BLOCK_N, count)
    for which in gl.static_range(producer.GROUPS):
        first = work.first + which * ROWS
        fill_pieces(
            ring=rings.q[which],
            rest=rests.q[which],
            count=done,
            desc=producer.q_desc,
            start=work.query_start,
            rows=work.queries,
            first=first,
            head=work.head,
            column=HALF,
        )
    if Q_AHEAD and begin < end:
        fill_keys(producer, work, key_start, (end - 1) * BLOCK_N, count)
    # Keys are loaded one tile before values, as they are read: their stage is free earlier.
    for index in range(end - begin):
        at = (end - 1 - index) * BLOCK_N
        if at > begin * BLOCK_N:
            fill_keys(producer, work, key_start, at - BLOCK_N, count + 1)
        elif producer.problem.GRID == "ticket":
            # Fetched here, because the answer arrives while the last values wait for a stage.  Fetched earlier, the next
            # item would wait for this program, if its item is long, while others are idle.
            following = next_work(producer.counter_ptr)
        if producer.JOINT:
            await_room_for_values(rings, count)
        fill_pieces(
            ring=rings.v,
            rest=rests.v,
            count=count,
            desc=producer.v_desc,
            start=key_start,
            rows=work.keys,
            first=at,
            head=work.head // producer.repeats,
            AWAIT=not producer.JOINT,
        )
        count += 1
    return count, following


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: fetch a work item, publish it and load its tiles, until there are no more."""
    problem = producer.problem
    GRID: gl.constexpr = problem.GRID
    items = problem.pairs * problem.tiles
    count = 0
    done = 0
    turns = work_range(items, problem.stretch, problem.sharers, GRID == "few" or GRID == "persistent")
    at, last, step = turns.first, turns.end, turns.step
    if GRID == "ticket":
        last = items
    while at < last:
        work, key_start = work_of(locate(at, problem, step), problem, ROWS * producer.GROUPS, producer.BLOCK_N)
        following = -1
        if work.first < work.queries:
            producer.queue.publish(done, work)
            count, following = load_work(producer, work, key_start, count, done)
            done += 1
        if GRID != "ticket":
            following = at + step
        elif following < 0:  # a work item without rows or without keys
            following = next_work(producer.counter_ptr)
        at = following
    producer.queue.finish(done)
