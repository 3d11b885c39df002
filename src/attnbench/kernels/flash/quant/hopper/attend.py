# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""The consumer warpgroups of the quantised forward for Hopper: products, softmax and output of a work item's rows."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.core import base_value

from attnbench.kernels.flash.hopper.tiles import sums_of
from attnbench.kernels.flash.quant.hopper.tiles import (
    PEAK,
    TILE,
    ZERO,
    highest,
    largest_of,
    lowered,
    operand_of,
    read_work,
)
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    Rings,
    WorkQueue,
    aggregate,
    skip_tiles,
    store_output,
    sync_warps,
)

LN_2 = gl.constexpr(0.6931471805599453)


@aggregate
class Consumer:
    """What the consumer warpgroups work with."""

    out_desc: tma.tensor_descriptor
    lse_ptr: Argument
    lse_batch: Argument
    lse_head: Argument
    "strides"
    q_scale_ptr: Argument
    q_shift_ptr: Argument
    k_scale_ptr: Argument
    v_scale_ptr: Argument
    repeats: Argument
    rows_k: Argument
    rings: Rings
    tiles: base_value
    "an `EveryTile`, or what has its methods: it says which keys a tile has, and which of them are hidden"
    queue: WorkQueue
    outs: gl.shared_memory_descriptor
    "a tile a warpgroup, by way of which outputs leave"
    PACKED: gl.constexpr
    BLOCK_N: gl.constexpr
    COLUMNS: gl.constexpr
    BESIDE: gl.constexpr
    "whether the scores of a tile are issued beside the product with the values of the one before"


@gluon.jit
@no_type_check
def hide_keys(scores, tile, consumer, done, WARPGROUP: gl.constexpr):
    """Scores of a tile of the work item's keys with those at -∞ that a row does not see."""
    work = read_work(consumer.queue, done)
    return consumer.tiles.hide_tile(scores, work, tile, work.first + WARPGROUP * ROWS)


@gluon.jit
@no_type_check
def numbers_of(scores, tile, split, consumer, done, WARPGROUP: gl.constexpr):
    """Scores of a tile as fp32, each ZERO too large, and -∞ where a row does not see the key."""
    numbers = scores.to(gl.float32, bitcast=True)
    if tile >= split:
        numbers = hide_keys(numbers, tile, consumer, done, WARPGROUP)
    return numbers


@gluon.jit
@no_type_check
def through_keys(q, acc, row_max, sums, row_scale, consumer, count, done, end, WARPGROUP: gl.constexpr):
    """Softmax and sums of a work item's tiles of keys, the last first, and the count after them."""
    OUT: gl.constexpr = acc.type.layout
    OF_OUT: gl.constexpr = gl.SliceLayout(1, OUT)
    OF_FOURS: gl.constexpr = sums.type.layout
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    work = read_work(consumer.queue, done)
    split = work.split
    place = (work.head // consumer.repeats * consumer.rows_k + work.k_place) // TILE
    scales = consumer.k_scale_ptr + gl.cast(place, gl.int64) * 4 + gl.arange(0, 4, gl.SliceLayout(0, OF_FOURS))
    listed = consumer.tiles.listed(work)
    following, number = consumer.tiles.scales(scales, listed, end - 1, consumer.tiles.number(listed, end - 1))
    for index in range(end):
        tile = end - 1 - index
        scale = row_scale[:, None] * following[None, :]
        k_ring.wait(count)
        scores = scores_of(q, k_ring, count)
        following, number = consumer.tiles.scales(scales, listed, gl.maximum(tile - 1, 0), number)
        scores = warpgroup_mma_wait(0, [scores])
        k_ring.release(count)
        numbers = numbers_of(scores, tile, split, consumer, done, WARPGROUP)
        pivot, factor, row_max = highest(largest_of(numbers, OF_FOURS), row_max, scale)
        weights, sums = lowered(numbers, scale, pivot, sums, factor)
        operand = operand_of(weights, (ROWS, consumer.BLOCK_N), gl.DotOperandLayout(0, OUT, 4))
        part = warpgroup_mma_wait(0, [part_of(operand, v_ring, count, OUT)])
        v_ring.release(count)
        acc = acc * gl.convert_layout(factor, OF_OUT)[:, None] + part
        count += 1
    return acc, row_max, sums, count


@gluon.jit
@no_type_check
def scores_of(q, ring, count):
    """Issue the scores of the count-th tile of keys, which has been waited for; they begin with ZERO."""
    keys = ring.tile(count)
    KEYS: gl.constexpr = keys.shape[0]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 32])
    zero = gl.full([ROWS, KEYS], ZERO, gl.int32, SCORES)
    return warpgroup_mma(q, keys.permute([1, 0]), zero, is_async=True)


@gluon.jit
@no_type_check
def part_of(operand, ring, count, OUT: gl.constexpr):
    """Issue the product of weights and the count-th tile of values, which is waited for."""
    ring.wait(count)
    values = ring.tile(count)
    COLUMNS: gl.constexpr = values.shape[0]
    none = gl.zeros([ROWS, COLUMNS], gl.float32, OUT)
    return warpgroup_mma(operand, values.permute([1, 0]), none, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def through_keys_beside(q, acc, row_max, sums, row_scale, consumer, count, done, end, WARPGROUP: gl.constexpr):
    """As `through_keys`, with the next scores issued beside the product with a tile's values, whose sum is taken while
    the maximum of these scores is.

    What crosses turns of the loop is scores: of weights, which are bytes, each turn would be taken apart and put
    together again.
    """
    OUT: gl.constexpr = acc.type.layout
    OF_OUT: gl.constexpr = gl.SliceLayout(1, OUT)
    OF_FOURS: gl.constexpr = sums.type.layout
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    work = read_work(consumer.queue, done)
    split = work.split
    place = (work.head // consumer.repeats * consumer.rows_k + work.k_place) // TILE
    scales = consumer.k_scale_ptr + gl.cast(place, gl.int64) * 4 + gl.arange(0, 4, gl.SliceLayout(0, OF_FOURS))
    listed = consumer.tiles.listed(work)
    key_scale, number = consumer.tiles.scales(scales, listed, end - 1, consumer.tiles.number(listed, end - 1))
    k_ring.wait(count)
    scores = warpgroup_mma_wait(0, [scores_of(q, k_ring, count)])
    k_ring.release(count)
    numbers = numbers_of(scores, end - 1, split, consumer, done, WARPGROUP)
    scale = row_scale[:, None] * key_scale[None, :]
    pivot, factor, row_max = highest(largest_of(numbers, OF_FOURS), row_max, scale)
    if end > 1:
        k_ring.wait(count + 1)
    for index in range(1, end):
        tile = end - 1 - index
        key_scale, number = consumer.tiles.scales(scales, listed, tile, number)
        weights, sums = lowered(numbers, scale, pivot, sums, factor)
        operand = operand_of(weights, (ROWS, consumer.BLOCK_N), gl.DotOperandLayout(0, OUT, 4))
        scores = scores_of(q, k_ring, count + 1)
        part = part_of(operand, v_ring, count, OUT)
        scores = warpgroup_mma_wait(1, [scores])
        k_ring.release(count + 1)
        numbers = numbers_of(scores, tile, split, consumer, done, WARPGROUP)
        before = factor
        scale = row_scale[:, None] * key_scale[None, :]
        pivot, factor, row_max = highest(largest_of(numbers, OF_FOURS), row_max, scale)
        # As in `flash.hopper.attend`: between what runs beside a product and the wait for it.
        if tile > 0:
            k_ring.wait(count + 2)
        part = warpgroup_mma_wait(0, [part])
        v_ring.release(count)
        acc = acc * gl.convert_layout(before, OF_OUT)[:, None] + part
        count += 1
    weights, sums = lowered(numbers, scale, pivot, sums, factor)
    operand = operand_of(weights, (ROWS, consumer.BLOCK_N), gl.DotOperandLayout(0, OUT, 4))
    part = warpgroup_mma_wait(0, [part_of(operand, v_ring, count, OUT)])
    v_ring.release(count)
    acc = acc * gl.convert_layout(factor, OF_OUT)[:, None] + part
    return acc, row_max, sums, count + 1


@gluon.jit
@no_type_check
def attend(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a work item's keys and store the output; how many tiles of keys there have been then."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 32])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.COLUMNS, 32])
    q_ring = consumer.rings.q[WARPGROUP]
    work = read_work(consumer.queue, done)
    end = work.end
    row = work.first + WARPGROUP * ROWS
    acc = gl.zeros([ROWS, consumer.COLUMNS], gl.float32, OUT)
    sums = sums_of(gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES))
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, sums.type.layout)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, OF_ROWS)
    rows = gl.arange(0, ROWS, OF_ROWS)
    scales = consumer.q_scale_ptr + gl.cast(work.q_place, gl.int64) + WARPGROUP * ROWS
    row_scale = gl.load(scales + rows, mask=row + rows < work.queries, other=1.0)
    unseen = consumer.tiles.unseen(row, work, consumer.BLOCK_N)
    count = skip_tiles(consumer.rings, count, unseen)
    end -= unseen
    q = q_ring.take(done)
    if end > 0:
        if consumer.BESIDE:
            acc, row_max, sums, count = through_keys_beside(
                q=q,
                acc=acc,
                row_max=row_max,
                sums=sums,
                row_scale=row_scale,
                consumer=consumer,
                count=count,
                done=done,
                end=end,
                WARPGROUP=WARPGROUP,
            )
        else:
            acc, row_max, sums, count = through_keys(
                q=q,
                acc=acc,
                row_max=row_max,
                sums=sums,
                row_scale=row_scale,
                consumer=consumer,
                count=count,
                done=done,
                end=end,
                WARPGROUP=WARPGROUP,
            )
    q_ring.release(done)
    epilogue(consumer, acc, row_max, sums, done, WARPGROUP)
    consumer.queue.release(done)
    return count


@gluon.jit
@no_type_check
def epilogue(consumer, acc, row_max, sums, done, WARPGROUP: gl.constexpr):
    """Output and lse of a warpgroup's rows; its last output may still be on its way."""
    work = read_work(consumer.queue, done)
    row = work.first + WARPGROUP * ROWS
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # which NaN is not
    total = gl.where(empty, 1.0, row_sum)
    columns = gl.arange(0, consumer.COLUMNS, gl.SliceLayout(0, acc.type.layout))
    v_scale = gl.load(consumer.v_scale_ptr + gl.cast(work.v_place, gl.int64) * consumer.COLUMNS + columns)
    acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc.type.layout))[:, None] * v_scale[None, :]
    tma.store_wait(0)
    sync_warps()
    store_output(consumer.out_desc, consumer.outs.index(WARPGROUP), acc, work.query_start, work.queries, row, work.head)
    rows = gl.arange(0, ROWS, OF_ROWS)
    there = row + rows < work.queries
    shifts = consumer.q_shift_ptr + gl.cast(work.q_place, gl.int64) + WARPGROUP * ROWS
    shift = gl.load(shifts + rows, mask=there, other=0.0)
    lse = gl.where(empty, float("-inf"), (row_max + gl.log2(total) - PEAK + shift) * LN_2)
    starts = gl.cast(work.batch, gl.int64) * consumer.lse_batch + gl.cast(work.head, gl.int64) * consumer.lse_head
    if consumer.PACKED:
        starts += work.query_start
    gl.store(consumer.lse_ptr + starts + row + rows, lse, mask=there)


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: rows from 64 WARPGROUP of each work item."""
    queue = consumer.queue
    count = 0
    done = 0
    queue.wait(0)
    while queue.has_work(done):
        count = attend(consumer, count, done, WARPGROUP)
        done += 1
        queue.wait(done)
    tma.store_wait(0)
