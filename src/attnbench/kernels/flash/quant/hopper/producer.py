# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The producer warp of the quantised forward for Hopper: the tile scheduler, and loads of queries, keys and values."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from attnbench.kernels.flash.hopper.tiles import GridProblem
from attnbench.kernels.flash.quant.hopper.tiles import QuantisedLayout, work_at
from attnbench.kernels.shared.hopper import ROWS, Argument, Rings, WorkQueue, aggregate


@aggregate
class Producer:
    """State of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    problem: GridProblem
    layout: QuantisedLayout
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler; 0 before and after a launch"
    BLOCK_N: gl.constexpr
    GROUPS: gl.constexpr


@gluon.jit
@no_type_check
def draw(producer, items):
    """Take the next work item; the program that draws the last number resets the counter to 0.

    Each item is followed by one draw, so there are as many as items.
    """
    drawn = gl.atomic_add(producer.counter_ptr, 1, sem="relaxed")
    if drawn == items - 1:
        gl.store(producer.counter_ptr, 0)
    return gl.num_programs(0) + drawn


@gluon.jit
@no_type_check
def fill_values(producer, work, tile, count):
    """Load a tile of values, [columns, keys], when a stage is free."""
    COLUMNS: gl.constexpr = producer.v_desc.block_shape[2]
    place = (work.k_place // producer.BLOCK_N + tile) * COLUMNS
    producer.rings.v.fill(count, producer.v_desc, place, COLUMNS, 0, work.head // producer.layout.repeats)


@gluon.jit
@no_type_check
def load_work(producer, work, items, count, done):
    """Load a work item's tiles; returns the tile count after them, and the next item."""
    rings = producer.rings
    BLOCK_N: gl.constexpr = producer.BLOCK_N
    head = work.head // producer.layout.repeats
    end = work.end
    q_start = work.q_place - work.head * producer.layout.rows_q - work.first
    for which in gl.static_range(producer.GROUPS):
        rings.q[which].fill(done, producer.q_desc, q_start, work.queries, work.first + which * ROWS, work.head)
    if end > 0:
        rings.k.fill(count, producer.k_desc, work.k_place, work.keys, (end - 1) * BLOCK_N, head)
    following = -1
    # Keys are loaded one tile ahead of values, as they are read.
    for index in range(end):
        tile = end - 1 - index
        if tile > 0:
            rings.k.fill(count + 1, producer.k_desc, work.k_place, work.keys, (tile - 1) * BLOCK_N, head)
        else:
            # Drawn here, so that the latency overlaps with the wait for a stage for the last values.
            following = draw(producer, items)
        fill_values(producer, work, tile, count)
        count += 1
    return count, following


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: draw a work item, publish it, load its tiles, until there are no more."""
    problem = producer.problem
    items = problem.pairs * problem.tiles
    count = 0
    done = 0
    at = gl.program_id(0)
    while at < items:
        work = work_at(at, problem, producer.layout, 1, ROWS * producer.GROUPS, producer.BLOCK_N)
        following = -1
        if work.first < work.queries:
            producer.queue.publish(done, work)
            count, following = load_work(producer, work, items, count, done)
            done += 1
        if following < 0:  # an item without rows or without keys
            following = draw(producer, items)
        at = following
    producer.queue.finish(done)
