# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention forward for Hopper: a producer warp, and two or three consumer warpgroups of 64 rows each.

The arithmetic is that of portable.forward.  The pipeline:

    producer      loads query tiles, then key and value tiles, each as soon as its pipeline stage is free
    consumer      issues S' = Q K'ᵀ and O += A V together; SiLU of S' is computed while the second product and the
                  products of the other warpgroups run

A work item is one tile of 64 rows for each warpgroup.  A program has one work item, or a dynamic tile scheduler assigns
the next one, long ones first.  The grid is sized for the longest sequence; the producer skips tiles beyond shorter ones.
It publishes each item to the consumers: computing it would take them a sixth of a short item's time.  Where shared
memory has ROOM for two query tiles, the producer loads one item ahead.

Key tiles are processed from the first to the last, masked tiles last.  A warpgroup skips the last tiles if none of its
rows sees them: it finishes before the others, so that the prologue and epilogue of an item overlap with their products,
and it gets the longest rows of the next item.  Tiles are indexed from the sequence end, so that the partial tile is the
first one, which sees least.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents

from attnbench.kernels.hstu.dense.hopper.produce import Producer, Rows, produce
from attnbench.kernels.hstu.dense.hopper.tiles import GridProblem, Mask, hide
from attnbench.kernels.hstu.dense.hopper.work import WORK_FIELDS, read_work
from attnbench.kernels.hstu.tiles import COUNTS, silu
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    Rings,
    WorkQueue,
    aggregate,
    allocate_ring,
    allocate_work_queue,
    skip_tiles,
    store_output,
    sync_warps,
)


class ForwardMeta(NamedTuple):
    """Compile-time constants of `hstu_hopper_forward`."""

    CAUSAL: bool
    HAS_PREFIX: bool
    HAS_TARGETS: bool
    HAS_WINDOW: bool
    HAS_CACHE: bool
    APPROXIMATE: bool
    "whether SiLU uses the tanh instruction"
    BLOCK_N: int
    BLOCK_V: int
    STAGES: int
    ROOM: int
    "query tiles of a warpgroup in shared memory"
    GROUPS: int
    "consumer warpgroups"
    DRAWS: bool
    "whether work items are fetched from a counter"
    REGISTERS: int
    "registers of a thread of all consumer warpgroups except the first"
    SPLIT: bool
    "whether keys are split: the outputs are then partial sums over parts of them"


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    rings: Rings
    mask: Mask
    half_alpha: Argument
    queue: WorkQueue
    APPROXIMATE: gl.constexpr
    "whether SiLU uses the tanh instruction"
    BLOCK_N: gl.constexpr
    BLOCK_V: gl.constexpr
    GROUPS: gl.constexpr


@gluon.jit
@no_type_check
def weigh(scores, consumer, index, unmasked, done, WARPGROUP: gl.constexpr):
    """SiLU of the scores of a work item's index-th tile, 0 where masked."""
    mask = consumer.mask
    if index >= unmasked:
        work = read_work(consumer.queue, done)
        first, _queries = work.rows_of(done, WARPGROUP, consumer.GROUPS)
        at = work.key_tile(index, mask) * consumer.BLOCK_N
        # a score whose SiLU is 0
        scores = hide(
            scores,
            hidden=0.0,
            down=work.first_query + first,
            across=at,
            prefix=work.prefix,
            seen=work.seen,
            mask=mask,
            ROWS_DOWN=True,
        )
    return silu(scores, consumer.half_alpha, consumer.APPROXIMATE)


@gluon.jit
@no_type_check
def through_tiles(consumer, total, unmasked, count, done, WARPGROUP: gl.constexpr):
    """The sums over the first `total` tiles (at least one) of a work item, and the new tile count."""
    BLOCK_N: gl.constexpr = consumer.BLOCK_N
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    q_ring = consumer.rings.q[WARPGROUP]
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    q = q_ring.tile(done)
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
    k_ring.wait(count)
    scores = warpgroup_mma(q, k_ring.tile(count).permute([1, 0]), none, use_acc=False, is_async=True)
    if q_ring.STAGES > 1:
        q_ring.release_stored(done)
    scores = warpgroup_mma_wait(0, [scores])
    k_ring.release(count)
    weights = weigh(scores, consumer, index=0, unmasked=unmasked, done=done, WARPGROUP=WARPGROUP)
    for index in range(1, total):
        k_ring.wait(count + 1)
        v_ring.wait(count)
        scores = warpgroup_mma(q, k_ring.tile(count + 1).permute([1, 0]), none, use_acc=False, is_async=True)
        # Rounded here, not where they are computed: 16-bit values carried through the loop would be packed anew each time.
        rounded = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
        acc = warpgroup_mma(rounded, v_ring.tile(count), acc, is_async=True)
        scores = warpgroup_mma_wait(1, [scores])
        k_ring.release(count + 1)
        weights = weigh(scores, consumer, index, unmasked, done, WARPGROUP)
        v_ring.wait(count + 1)
        # Nothing rescales the sums, so this could wait until the next scores are issued.  But ptxas (12.8, 12.9) makes every
        # product wait for the previous one if a product that reads registers is in flight at the end of an iteration.
        acc = warpgroup_mma_wait(0, [acc])
        v_ring.release(count)
        count += 1
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    acc = warpgroup_mma(weights, v_ring.take(count), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    v_ring.release(count)
    return acc, count + 1


@aggregate
class ToRows:
    """Sink for whole outputs, rows of a tensor: through the query buffer, if queries have as many columns."""

    out_desc: tma.tensor_descriptor
    outs: gl.shared_memory_descriptor
    "tiles through which other outputs are stored"
    scale: Argument

    @gluon.jit
    @no_type_check
    def store(self, consumer, acc, done, WARPGROUP: gl.constexpr):
        """Start to store a work item's output."""
        q_ring = consumer.rings.q[WARPGROUP]
        work = read_work(consumer.queue, done)
        first, queries = work.rows_of(done, WARPGROUP, consumer.GROUPS)
        place = q_ring.tiles.index(done % q_ring.STAGES)
        if q_ring.COLUMNS != consumer.BLOCK_V:
            place = self.outs.index(WARPGROUP)
            tma.store_wait(0)  # the previous output may still be on its way
            sync_warps()
        store_output(self.out_desc, place, acc * self.scale, work.query_start, queries, first, work.head)


@gluon.constexpr_function
@no_type_check
def part_layout(columns):
    """Layout of a tile [64, columns] of a partial sum: that of a product's result, with permuted columns.

    Of every sixteen columns of a row a thread has four; permuted, they are adjacent and are stored by one instruction.
    """
    wide = [[0, 1 << bit] for bit in range(4, columns.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], *wide], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, columns]
    )


@aggregate
class ToParts:
    """Sink for sums over parts of the keys: fp32 [rows, heads of all parts, BLOCK_V] in the order of `part_layout`."""

    parts_ptr: gl.tensor
    heads: gl.tensor
    "heads of all parts"

    @gluon.jit
    @no_type_check
    def store(self, consumer, acc, done, WARPGROUP: gl.constexpr):
        """Store a work item's partial sum, unscaled."""
        work = read_work(consumer.queue, done)
        first, queries = work.rows_of(done, WARPGROUP, consumer.GROUPS)
        BLOCK_V: gl.constexpr = consumer.BLOCK_V
        LAYOUT: gl.constexpr = part_layout(BLOCK_V)
        acc = acc.reshape([ROWS, BLOCK_V // 16, 2, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([ROWS, BLOCK_V])
        acc = gl.convert_layout(acc, LAYOUT)  # the conversion moves nothing between threads
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
        columns = gl.arange(0, BLOCK_V, gl.SliceLayout(0, LAYOUT))
        at = (work.query_start + first + rows).to(gl.int64) * self.heads + work.head
        gl.store(
            self.parts_ptr + (at * BLOCK_V)[:, None] + columns[None, :], acc, mask=(first + rows < queries)[:, None]
        )


@gluon.jit
@no_type_check
def consume(consumer, sink, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: its 64 rows of each work item (`Work.rows_of`)."""
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_V, 16])
    queue = consumer.queue
    q_ring = consumer.rings.q[WARPGROUP]
    count = 0
    done = 0
    queue.wait(0)
    while queue.has_work(done):
        tiles = read_work(queue, done).tiles_seen(consumer.mask, done, WARPGROUP, consumer.BLOCK_N, consumer.GROUPS)
        acc = gl.zeros([ROWS, consumer.BLOCK_V], gl.float32, OUT)
        q_ring.wait(done)
        if tiles.seen > 0:
            acc, count = through_tiles(consumer, tiles.seen, tiles.unmasked, count, done, WARPGROUP)
        elif q_ring.STAGES > 1:
            q_ring.release_stored(done)
        sink.store(consumer, acc, done, WARPGROUP)
        queue.release(done)
        count = skip_tiles(consumer.rings, count, tiles.unseen)
        done += 1
        if q_ring.STAGES == 1:  # the next queries are loaded when this output has left
            q_ring.release_stored(done)
        # Not before: the producer fetches the next item when it has loaded this one's last tile.
        queue.wait(done)
    tma.store_wait(0)


@gluon.jit
@no_type_check
def start_warps(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    parts_ptr,
    source,
    problem,
    counter_ptr,
    parts,
    half_alpha,
    scale,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps, for this kernel or for the paged one.

    With SPLIT the output goes to `parts_ptr`, otherwise through `out_desc`; the other may be None.
    """
    BLOCK_N: gl.constexpr = META.BLOCK_N
    BLOCK_V: gl.constexpr = META.BLOCK_V
    STAGES: gl.constexpr = META.STAGES
    ROOM: gl.constexpr = META.ROOM
    GROUPS: gl.constexpr = META.GROUPS
    REGISTERS: gl.constexpr = META.REGISTERS
    q_rings = (allocate_ring(q_desc, ROOM, CONSUMERS=1), allocate_ring(q_desc, ROOM, CONSUMERS=1))
    if GROUPS == 3:
        q_rings = q_rings + (allocate_ring(q_desc, ROOM, CONSUMERS=1),)
    # Values are read one step longer than keys.
    rings = Rings(q_rings, allocate_ring(k_desc, STAGES, GROUPS), allocate_ring(v_desc, STAGES + 1, GROUPS))
    queue = allocate_work_queue(GROUPS, WORK_FIELDS)
    if META.SPLIT:
        # The sum of the parts may be launched as soon as all programs have started, and itself waits for their end.
        gdc_launch_dependents()
        sink = ToParts(parts_ptr, parts * problem.heads)
    else:
        outs = q_rings[0].tiles
        if q_desc.block_shape[4] != BLOCK_V:
            outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
        sink = ToRows(out_desc, outs, scale)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        rings=rings,
        queue=queue,
        counter_ptr=counter_ptr,
        parts=parts,
        BLOCK_N=BLOCK_N,
        GROUPS=GROUPS,
        DYNAMIC=META.DRAWS,
        SPLIT=META.SPLIT,
    )
    consumer = Consumer(
        rings=rings,
        mask=problem.mask,
        half_alpha=half_alpha,
        queue=queue,
        APPROXIMATE=META.APPROXIMATE,
        BLOCK_N=BLOCK_N,
        BLOCK_V=BLOCK_V,
        GROUPS=GROUPS,
    )
    if GROUPS == 2:
        gl.warp_specialize(
            [(consume, (consumer, sink, 0)), (consume, (consumer, sink, 1)), (produce, (producer, problem, source))],
            [4, 1],
            [REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (consumer, sink, 0)),
                (consume, (consumer, sink, 1)),
                (consume, (consumer, sink, 2)),
                (produce, (producer, problem, source)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    parts_ptr,
    counter_ptr,
    sequences,
    half_alpha,
    scale,
    heads,
    pairs,
    tiles,
    group,
    parts,
    contextual_len,
    window,
    META: gl.constexpr,
):
    """The output, or with SPLIT its partial sums, for keys and values in packed rows."""
    mask = Mask(
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
    )
    problem = GridProblem(
        sequences=sequences,
        contextual_len=contextual_len,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        HAS_CACHE=META.HAS_CACHE,
    )
    start_warps(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        out_desc=out_desc,
        parts_ptr=parts_ptr,
        source=Rows(k_desc, v_desc),
        problem=problem,
        counter_ptr=counter_ptr,
        parts=parts,
        half_alpha=half_alpha,
        scale=scale,
        META=META,
    )
