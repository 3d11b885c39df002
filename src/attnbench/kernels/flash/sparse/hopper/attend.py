# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Consumer warpgroups of the block-sparse forward for Hopper: items of several rows of the map, and queries in registers.

Of an item of several rows keys and values are loaded once, both tiles on one barrier.  A warpgroup processes the tiles that
its own row of the map selects, at the positions in its list of places, and releases the other tiles as they arrive.

The warpgroup's next tile may be many positions ahead, and while it holds a tile the producer can only run ahead by the
length of the ring.  So only nearby tiles form a run, in which a tile's scores are computed while the value product of the
previous tile runs; between runs no tile is held.

With queries in registers, the loop is that of `flash.hopper.attend`, and score products read only keys from shared memory.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.flash.hopper.attend import scores_of, through_keys
from attnbench.kernels.flash.hopper.epilogue import epilogue
from attnbench.kernels.flash.hopper.pieces import zero_output
from attnbench.kernels.flash.hopper.tiles import fold, keep_in_place, read_work, sums_of
from attnbench.kernels.flash.sparse.hopper.tiles import place_of
from attnbench.kernels.flash.tiles import Softmax
from attnbench.kernels.shared.hopper import ROWS


@gluon.jit
@no_type_check
def pass_tiles(ring, count, end):
    """Wait for the tiles from the count-th to `end`, and release all except the last."""
    for at in range(count, end):
        ring.wait(at)
        ring.release(at)
    ring.wait(end)


@gluon.jit
@no_type_check
def through_places(q, acc, row_max, sums, consumer, count, done, row, places, left, end, split):
    """The `Softmax` over the `left` tiles that a row of the map selects from a list of `end` tiles, the last one first."""
    scale = consumer.scale
    PARTS: gl.constexpr = consumer.mask.PARTS
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    OF_OUT: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    LONG: gl.constexpr = k_ring.STAGES
    none = gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES)
    last = count + end - 1  # of the ring, at which place 0 would be
    seen = count
    following = place_of(places, left - 1, PARTS)
    while left > 0:
        place = following
        at = last - place
        following = place_of(places, left - 2, PARTS)
        pass_tiles(k_ring, seen, at)
        seen = at + 1
        scores = warpgroup_mma_wait(0, [scores_of(row, (q,), (k_ring.tile(at),), none)])
        if place >= split:
            scores = consumer.mask.hide_tile(scores, read_work(consumer.queue, done), place, row)
        folded = fold(scores, row_max, sums, scale, consumer.MIX)
        factor, row_max, sums = folded.factor, folded.row_max, folded.sums
        weights = gl.convert_layout(folded.weights.to(q.dtype), WEIGHTS)
        left -= 1
        near = (left > 0) & (last - following - at < LONG)
        if near:
            pass_tiles(k_ring, seen, last - following)
        while near:
            place = following
            at_next = last - place
            seen = at_next + 1
            following = place_of(places, left - 2, PARTS)
            scores = scores_of(row, (q,), (k_ring.tile(at_next),), none)
            acc = acc * gl.convert_layout(keep_in_place(factor), OF_OUT)[:, None]
            acc = warpgroup_mma(weights, v_ring.tile(at), acc, is_async=True)
            scores = warpgroup_mma_wait(1, [scores])
            if place >= split:
                scores = consumer.mask.hide_tile(scores, read_work(consumer.queue, done), place, row)
            later = fold(scores, row_max, sums, scale, consumer.MIX)
            factor, row_max, sums = later.factor, later.row_max, later.sums
            left -= 1
            near = (left > 0) & (last - following - at_next < LONG)
            # As in `flash.hopper.attend`: between the softmax and the wait for the product that overlaps, if near enough.
            early = near & (last - following - at < LONG)
            if early:
                pass_tiles(k_ring, seen, last - following)
            acc = warpgroup_mma_wait(0, [acc])
            k_ring.release(at)
            if near & (early == 0):
                pass_tiles(k_ring, seen, last - following)
            weights = gl.convert_layout(later.weights.to(q.dtype), WEIGHTS)
            at = at_next
        acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
        acc = warpgroup_mma(weights, v_ring.tile(at), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        k_ring.release(at)
    for at in range(seen, count + end):
        k_ring.wait(at)
        k_ring.release(at)
    return Softmax(acc=acc, row_max=row_max, sums=sums)


@gluon.jit
@no_type_check
def finish(consumer, acc, row_max, sums, done, row, WARPGROUP: gl.constexpr):
    """Store a work item's output through the buffer of its queries, which have been read, and release both."""
    q_ring = consumer.rings.q[WARPGROUP]
    place = q_ring.tiles.index(done % q_ring.STAGES)
    epilogue(
        consumer=consumer,
        acc=acc,
        row_max=row_max,
        sums=sums,
        place=place,
        second_place=place,
        done=done,
        row=row,
        ALONE=True,
    )
    consumer.queue.release(done)
    if q_ring.STAGES == 1:
        q_ring.release_stored(done + 1)


@gluon.jit
@no_type_check
def attend_shared(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a row's part of a work item and store the output.  Returns the new tile count."""
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    q_ring = consumer.rings.q[WARPGROUP]
    work = read_work(consumer.queue, done)
    end = work.end
    row = work.first + WARPGROUP * ROWS
    places, left = consumer.mask.own(work, row)
    acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    sums = sums_of(gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES))
    q = q_ring.take(done)
    if q_ring.STAGES > 1:
        q_ring.release_stored(done)
    softmax = through_places(
        q=q,
        acc=acc,
        row_max=row_max,
        sums=sums,
        consumer=consumer,
        count=count,
        done=done,
        row=row,
        places=places,
        left=left,
        end=end,
        split=work.split,
    )
    finish(consumer, (softmax.acc,), softmax.row_max, softmax.sums, done, row, WARPGROUP)
    return count + end


@gluon.jit
@no_type_check
def attend_held(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a work item's keys with the queries in registers, and store the output.  Returns the new tile count."""
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 16])
    q_ring = consumer.rings.q[WARPGROUP]
    work = read_work(consumer.queue, done)
    row = work.first + WARPGROUP * ROWS
    end = work.end - consumer.mask.unseen(row, work, consumer.BLOCK_N)
    acc = zero_output(BLOCK_V, 0)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    sums = sums_of(gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES))
    q_ring.wait(done)
    if work.begin < end:
        softmax, count = through_keys(
            held=row,
            q=(q_ring.tile(done).load(gl.DotOperandLayout(0, SCORES, 2)),),
            acc=acc,
            row_max=row_max,
            sums=sums,
            consumer=consumer,
            count=count,
            done=done,
            row=row,
            begin=work.begin,
            whole=work.whole,
            split=work.split,
            end=end,
            WARPGROUP=WARPGROUP,
        )
        acc, row_max, sums = softmax.acc, softmax.row_max, softmax.sums
    elif q_ring.STAGES > 1:
        q_ring.release_stored(done)
    finish(consumer, acc, row_max, sums, done, row, WARPGROUP)
    return count


@gluon.jit
@no_type_check
def consume_listed(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: rows 64 WARPGROUP to 64 WARPGROUP + 63 of each work item."""
    queue = consumer.queue
    count = 0
    done = 0
    queue.wait(0)
    while queue.has_work(done):
        if consumer.mask.SHARE > 1:
            count = attend_shared(consumer, count, done, WARPGROUP)
        else:
            count = attend_held(consumer, count, done, WARPGROUP)
        done += 1
        queue.wait(done)
    tma.store_wait(0)
