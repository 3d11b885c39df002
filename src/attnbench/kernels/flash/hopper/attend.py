# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Consumer warpgroups of the flash forwards for Hopper: matrix products and softmax over a work item's key tiles.

The consumer's mask says at which key a tile begins and which scores are hidden: `tiles.Mask` for consecutive tiles,
`flash.sparse.hopper.tiles.ListMask` for the tiles of a list.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.flash.hopper.epilogue import epilogue
from attnbench.kernels.flash.hopper.pieces import add_values, pieces_of, scaled, wait_for_output, zero_output
from attnbench.kernels.flash.hopper.tiles import fold, keep_in_place, read_work, rounded, sums_of
from attnbench.kernels.flash.tiles import Softmax
from attnbench.kernels.shared.hopper import ROWS, pass_turn, skip_tiles, sync_warps, wait_turn


@gluon.jit
@no_type_check
def scores_of(held, q, k, none):
    """Issue the score product.  With split queries, `held` has the first half of the dims in registers."""
    HALF: gl.constexpr = q[0].shape[1] % k[0].shape[1]
    if HALF:
        first = warpgroup_mma(held, k[0].slice(0, HALF, 1).permute([1, 0]), none, use_acc=False, is_async=True)
        scores = warpgroup_mma(q[0], k[0].slice(HALF, HALF, 1).permute([1, 0]), first, is_async=True)
    else:
        scores = warpgroup_mma(q[0], k[0].permute([1, 0]), none, use_acc=False, is_async=True)
        if len(k) == 2:
            scores = warpgroup_mma(q[1], k[1].permute([1, 0]), scores, is_async=True)
    return scores


@gluon.jit
@no_type_check
def store_weights(weights, place):
    """Store a tile's weights to shared memory; products that read the previous weights must have been waited for."""
    place.store(weights)
    fence_async_shared()
    sync_warps()


@gluon.jit
@no_type_check
def release_last(k_ring, v_ring, count, follows):
    """Release the keys of the count-th tile and the values of the tile before it, if `follows`: it is not the first tile.

    The keys of a work item's first tile have already been released.  Each release is a barrier of the warps, and another
    barrier precedes the next access to shared memory.  Called here, they overlap with a product.
    """
    k_ring.release(count, follows)
    v_ring.release(count + v_ring.STAGES - 1, follows)  # the stage of count - 1, of a number that is never negative


@gluon.jit
@no_type_check
def through_keys(
    held, q, acc, row_max, sums, consumer, count, done, row, begin, whole, split, end, WARPGROUP: gl.constexpr
):
    """Process a work item's key tiles, at least one.  Returns the `Softmax` and the new tile count."""
    turns = consumer.turns
    scale = consumer.scale
    BLOCK_N: gl.constexpr = consumer.BLOCK_N
    TURNS: gl.constexpr = consumer.TURNS
    LAZY: gl.constexpr = consumer.LAZY
    DOUBLE: gl.constexpr = consumer.DOUBLE
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc[0].type.layout, 2)
    rests = consumer.rests
    q_ring = consumer.rings.q[WARPGROUP]
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    k_ring.wait(count)
    if TURNS:
        wait_turn(turns, count, WARPGROUP)
    scores = scores_of(held, q, pieces_of(k_ring, rests.k, count), none)
    if TURNS:
        pass_turn(turns, WARPGROUP)
    if q_ring.STAGES > 1:
        q_ring.release_stored(done)
    scores = warpgroup_mma_wait(0, [scores])
    k_ring.release(count)
    if DOUBLE:
        sync_warps()  # otherwise Triton inserts this barrier before the next access to shared memory, inside the loop
    if q[0].shape[1] != acc[0].shape[1]:
        # Not before a product that reads them: a barrier of the warps does not wait for loads into registers, and while
        # products keep shared memory busy these loads are served so late that the next queries could overwrite the tile.
        consumer.held_rings[WARPGROUP].release(done)
    masked = end > split
    if consumer.mask.HAS_LEFT:
        masked |= end <= whole
    if masked:
        scores = consumer.mask.hide_tile(scores, read_work(consumer.queue, done), end - 1, row)
    folded = fold(scores, row_max, sums, scale, consumer.MIX)
    factor, row_max, sums = folded.factor, folded.row_max, folded.sums
    STORED: gl.constexpr = len(consumer.stored) == 1
    if STORED:
        weights = consumer.stored[0].index(WARPGROUP)
        store_weights(folded.weights.to(q[0].dtype), weights)
    else:
        weights = gl.convert_layout(folded.weights.to(q[0].dtype), WEIGHTS)
    if begin + 1 < end:
        k_ring.wait(count + 1)
    for index in range(1, end - begin):
        tile = end - 1 - index
        if not LAZY:
            v_ring.wait(count)
        if TURNS:
            wait_turn(turns, count + 1, WARPGROUP)
        scores = scores_of(held, q, pieces_of(k_ring, rests.k, count + 1), none)
        if DOUBLE:
            release_last(k_ring, v_ring, count, index > 1)
        if LAZY:
            v_ring.wait(count)
            acc = scaled(acc, keep_in_place(factor))
        acc = add_values(weights, pieces_of(v_ring, rests.v, count), acc, STORED)
        if TURNS:
            pass_turn(turns, WARPGROUP)
        scores = warpgroup_mma_wait(len(acc), [scores])  # wait for all products except those that add to the output
        if not DOUBLE:
            k_ring.release(count + 1)
        masked = tile >= split
        if consumer.mask.HAS_LEFT:
            masked |= tile < whole
        if masked:
            scores = consumer.mask.hide_tile(scores, read_work(consumer.queue, done), tile, row)
        following = fold(scores, row_max, sums, scale, consumer.MIX)
        factor, row_max, sums = following.factor, following.row_max, following.sums
        if DOUBLE:
            next_weights = gl.convert_layout(rounded(following.weights, q[0].dtype), WEIGHTS)
        # Waited for here, not where the keys are read: between the softmax and the wait for the product that overlaps.
        if tile > begin:
            k_ring.wait(count + 2)
        acc = wait_for_output(acc)
        if not DOUBLE:
            v_ring.release(count)
        if not LAZY:
            acc = scaled(acc, factor)
        if STORED:
            store_weights(following.weights.to(q[0].dtype), weights)
        elif DOUBLE:
            weights = next_weights
        else:
            weights = gl.convert_layout(following.weights.to(q[0].dtype), WEIGHTS)
        count += 1
    if DOUBLE:
        release_last(k_ring, v_ring, count, begin + 1 < end)
    if LAZY:
        acc = scaled(acc, factor)
    v_ring.wait(count)
    acc = add_values(weights, pieces_of(v_ring, rests.v, count), acc, STORED)
    acc = wait_for_output(acc)
    v_ring.release(count)
    return Softmax(acc=acc, row_max=row_max, sums=sums), count + 1


@gluon.jit
@no_type_check
def attend(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a work item's keys and store the output.  Returns the new tile count."""
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 16])
    rings = consumer.rings
    rests = consumer.rests
    q_ring = rings.q[WARPGROUP]
    held_ring = consumer.held_rings[WARPGROUP]
    SPLIT: gl.constexpr = q_ring.COLUMNS != BLOCK_V
    work = read_work(consumer.queue, done)
    begin, end = work.begin, work.end
    row = work.first + WARPGROUP * ROWS
    acc = zero_output(BLOCK_V, consumer.REST_V)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    sums = sums_of(gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES))
    unseen = consumer.mask.unseen(row, work, consumer.BLOCK_N)
    if consumer.SKIPS:
        count = skip_tiles(rings, count, unseen, consumer.turns, WARPGROUP, consumer.TURNS)
    end -= unseen
    if SPLIT:
        held_ring.wait(done)
    q_ring.wait(done)
    q = pieces_of(q_ring, rests.q[WARPGROUP], done)
    if begin < end:
        held = row  # placeholder, never read
        if SPLIT:
            held = held_ring.tile(done).load(gl.DotOperandLayout(0, SCORES, 2))
        softmax, count = through_keys(
            held=held,
            q=q,
            acc=acc,
            row_max=row_max,
            sums=sums,
            consumer=consumer,
            count=count,
            done=done,
            row=row,
            begin=begin,
            whole=work.whole,
            split=work.split,
            end=end,
            WARPGROUP=WARPGROUP,
        )
        acc, row_max, sums = softmax.acc, softmax.row_max, softmax.sums
    else:
        if SPLIT:
            held_ring.release(done)
        if q_ring.STAGES > 1:
            q_ring.release_stored(done)
    # The queries have been read: their buffer takes the output, or the next queries.
    place = q_ring.tiles.index(done % q_ring.STAGES)
    APART: gl.constexpr = consumer.out_desc.block_shape[4] != BLOCK_V and not SPLIT
    if APART:
        q_ring.release(done)
        place = consumer.outs.index(WARPGROUP)
    # A program with one work item does not need the buffer of the held half any more.
    TWO: gl.constexpr = SPLIT and consumer.GRID == "tiles"
    second_place = place
    if TWO:
        second_place = held_ring.tiles.index(0)
    if consumer.REST_V:
        second_place = rests.q[WARPGROUP][0].tiles.index(done % q_ring.STAGES)
    epilogue(
        consumer=consumer,
        acc=acc,
        row_max=row_max,
        sums=sums,
        place=place,
        second_place=second_place,
        done=done,
        row=row,
        ALONE=not TWO,
    )
    if consumer.GRID != "tiles":
        consumer.queue.release(done)
        if q_ring.STAGES == 1 and not APART:
            q_ring.release_stored(done + 1)
    return count


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: rows 64 WARPGROUP to 64 WARPGROUP + 63 of each work item."""
    queue = consumer.queue
    count = 0
    done = 0
    queue.wait(0)
    if consumer.GRID == "tiles":
        if queue.has_work(0):
            attend(consumer, count, done, WARPGROUP)
    else:
        while queue.has_work(done):
            count = attend(consumer, count, done, WARPGROUP)
            done += 1
            queue.wait(done)
    tma.store_wait(0)
