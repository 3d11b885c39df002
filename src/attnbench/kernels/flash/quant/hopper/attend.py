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
from attnbench.kernels.flash.tiles import Softmax
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
    """State shared by the consumer warpgroups."""

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
    "an `EveryTile` or an object with its methods: which keys a tile has, and which of them are hidden"
    queue: WorkQueue
    outs: gl.shared_memory_descriptor
    "one tile per warpgroup, through which outputs are stored"
    PACKED: gl.constexpr
    BLOCK_N: gl.constexpr
    COLUMNS: gl.constexpr
    BESIDE: gl.constexpr
    "whether the scores of a tile are issued to overlap with the value product of the previous tile"


@gluon.jit
@no_type_check
def hide_keys(scores, tile, consumer, done, WARPGROUP: gl.constexpr):
    """Scores of a tile of keys with hidden ones at -∞."""
    work = read_work(consumer.queue, done)
    return consumer.tiles.hide_tile(scores, work, tile, work.first + WARPGROUP * ROWS)


@gluon.jit
@no_type_check
def numbers_of(scores, tile, split, consumer, done, WARPGROUP: gl.constexpr):
    """Scores of a tile as fp32 with an offset of ZERO, and -∞ where the key is hidden."""
    numbers = scores.to(gl.float32, bitcast=True)
    if tile >= split:
        numbers = hide_keys(numbers, tile, consumer, done, WARPGROUP)
    return numbers


@gluon.jit
@no_type_check
def through_keys(q, acc, row_max, sums, row_scale, consumer, count, done, end, WARPGROUP: gl.constexpr):
    """The `Softmax` over a work item's tiles of keys, last tile first, and the tile count after them."""
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
        top = highest(largest_of(numbers, OF_FOURS), row_max, scale)
        row_max = top.row_max
        weights, sums = lowered(numbers, scale, top.pivot, sums, top.factor)
        operand = operand_of(weights, consumer.BLOCK_N, gl.DotOperandLayout(0, OUT, 4))
        part = warpgroup_mma_wait(0, [part_of(operand, v_ring, count, OUT)])
        v_ring.release(count)
        acc = acc * gl.convert_layout(top.factor, OF_OUT)[:, None] + part
        count += 1
    return Softmax(acc=acc, row_max=row_max, sums=sums), count


@gluon.jit
@no_type_check
def scores_of(q, ring, count):
    """Issue the scores of the count-th tile of keys, which has been waited for; accumulators start at ZERO."""
    keys = ring.tile(count)
    KEYS: gl.constexpr = keys.shape[0]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 32])
    zero = gl.full([ROWS, KEYS], ZERO, gl.int32, SCORES)
    return warpgroup_mma(q, keys.permute([1, 0]), zero, is_async=True)


@gluon.jit
@no_type_check
def part_of(operand, ring, count, OUT: gl.constexpr):
    """Wait for the count-th tile of values and issue its product with the weights."""
    ring.wait(count)
    values = ring.tile(count)
    COLUMNS: gl.constexpr = values.shape[0]
    none = gl.zeros([ROWS, COLUMNS], gl.float32, OUT)
    return warpgroup_mma(operand, values.permute([1, 0]), none, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def through_keys_beside(q, acc, row_max, sums, row_scale, consumer, count, done, end, WARPGROUP: gl.constexpr):
    """As `through_keys`, but the next tile's scores are issued together with a tile's value product, and the product runs
    while the maximum of these scores is computed.

    The loop carries scores, not weights: weights are bytes, which would be unpacked and packed again in each iteration.
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
    top = highest(largest_of(numbers, OF_FOURS), row_max, scale)
    pivot, factor, row_max = top.pivot, top.factor, top.row_max
    if end > 1:
        k_ring.wait(count + 1)
    for index in range(1, end):
        tile = end - 1 - index
        key_scale, number = consumer.tiles.scales(scales, listed, tile, number)
        weights, sums = lowered(numbers, scale, pivot, sums, factor)
        operand = operand_of(weights, consumer.BLOCK_N, gl.DotOperandLayout(0, OUT, 4))
        scores = scores_of(q, k_ring, count + 1)
        part = part_of(operand, v_ring, count, OUT)
        scores = warpgroup_mma_wait(1, [scores])
        k_ring.release(count + 1)
        numbers = numbers_of(scores, tile, split, consumer, done, WARPGROUP)
        before = factor
        scale = row_scale[:, None] * key_scale[None, :]
        following = highest(largest_of(numbers, OF_FOURS), row_max, scale)
        pivot, factor, row_max = following.pivot, following.factor, following.row_max
        # As in `flash.hopper.attend`: after the work that overlaps the product, before the wait for the product.
        if tile > 0:
            k_ring.wait(count + 2)
        part = warpgroup_mma_wait(0, [part])
        v_ring.release(count)
        acc = acc * gl.convert_layout(before, OF_OUT)[:, None] + part
        count += 1
    weights, sums = lowered(numbers, scale, pivot, sums, factor)
    operand = operand_of(weights, consumer.BLOCK_N, gl.DotOperandLayout(0, OUT, 4))
    part = warpgroup_mma_wait(0, [part_of(operand, v_ring, count, OUT)])
    v_ring.release(count)
    acc = acc * gl.convert_layout(factor, OF_OUT)[:, None] + part
    return Softmax(acc=acc, row_max=row_max, sums=sums), count + 1


@gluon.jit
@no_type_check
def attend(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a work item's keys and store the output; returns the tile count after them."""
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
            softmax, count = through_keys_beside(
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
            softmax, count = through_keys(
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
        acc, row_max, sums = softmax.acc, softmax.row_max, softmax.sums
    q_ring.release(done)
    epilogue(consumer, acc, row_max, sums, done, WARPGROUP)
    consumer.queue.release(done)
    return count


@gluon.jit
@no_type_check
def epilogue(consumer, acc, row_max, sums, done, WARPGROUP: gl.constexpr):
    """Store output and lse of a warpgroup's rows; the store of its previous output may still be in flight."""
    work = read_work(consumer.queue, done)
    row = work.first + WARPGROUP * ROWS
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # false for NaN
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
    """A consumer warpgroup: the 64 rows from 64 * WARPGROUP of each work item."""
    queue = consumer.queue
    count = 0
    done = 0
    queue.wait(0)
    while queue.has_work(done):
        count = attend(consumer, count, done, WARPGROUP)
        done += 1
        queue.wait(done)
    tma.store_wait(0)
