# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper above 128 dims: two warpgroups share 64 keys, each with half of the columns.

dK and dV of 64 keys and 256 dims would fill all registers of one warpgroup.  So each warpgroup has half of the columns
of both, and of dQ.  A product for half of the columns needs all of A and dS, so each warpgroup computes A and dS for 32
of a tile's 64 queries and stores them to shared memory, where the products read them.  Tiles of rows are loaded as two
halves of their columns.  Otherwise it is `hopper.backward`.

With the sums `carried` each thread adds dQ to memory from its registers, and half of it in the next step; shared memory then
has room for a second stage of dO.  The steps are in `backward_wide_step`.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_launch_dependents

from attnbench.kernels.hstu.dense.hopper.backward_wide_step import (
    OF_PIECE,
    PIECE,
    Consumer,
    StagedSums,
    step_carried,
    step_staged,
)
from attnbench.kernels.hstu.dense.hopper.tiles import BackwardProducer, BackwardRings, GridProblem, Mask, key_tile_of
from attnbench.kernels.hstu.tiles import COUNTS
from attnbench.kernels.shared.hopper import (
    ROWS,
    allocate_barriers,
    allocate_ring,
    coordinates,
    flat,
    store_tile,
    sync_warps,
)
from attnbench.kernels.shared.hopper_backward import SHARE, DirectSums, add_numbers, fill_both, fill_halves


@gluon.jit
@no_type_check
def produce(producer, CARRY: gl.constexpr):
    """The producer warp."""
    rings = producer.rings
    mask = producer.problem.mask
    tile = key_tile_of(producer.problem, ROWS)
    steps = tile.steps()
    if (tile.start < tile.keys) & (steps > 0):
        queries = tile.keys - tile.first_query
        fill_halves(
            rings.k,
            count=0,
            desc=producer.k_desc,
            start=tile.key_start,
            rows=tile.keys,
            first=tile.start,
            head=tile.head,
        )
        for count in range(steps):
            at = tile.query_tile(count, mask) * ROWS
            if CARRY:
                fill_both(
                    ring=rings.q,
                    count=count,
                    desc=producer.q_desc,
                    start=tile.query_start,
                    rows=queries,
                    first=at,
                    head=tile.head,
                    EXTRA_BYTES=0,
                    AWAIT=True,
                )
            else:
                fill_halves(rings.q, count, producer.q_desc, tile.query_start, queries, at, tile.head)
            if count == 0:
                fill_halves(
                    rings.v,
                    count=0,
                    desc=producer.v_desc,
                    start=tile.key_start,
                    rows=tile.keys,
                    first=tile.start,
                    head=tile.head,
                )
            if CARRY:
                fill_both(
                    ring=rings.dout,
                    count=count,
                    desc=producer.dout_desc,
                    start=tile.query_start,
                    rows=queries,
                    first=at,
                    head=tile.head,
                    EXTRA_BYTES=0,
                    AWAIT=False,
                )
            else:
                fill_halves(rings.dout, count, producer.dout_desc, tile.query_start, queries, at, tile.head)


@gluon.jit
@no_type_check
def consume(consumer, sums, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: half of the columns of every gradient."""
    rings = consumer.rings
    HALF: gl.constexpr = rings.k.COLUMNS
    HALF_V: gl.constexpr = rings.v.COLUMNS
    tile = key_tile_of(consumer.problem, ROWS)
    if tile.start < tile.keys:
        dk = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
        dv = gl.zeros([ROWS, HALF_V], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF_V, 16]))
        steps = tile.steps()
        if steps > 0:
            for half in gl.static_range(2):
                rings.k.take(half)
                rings.v.take(half)
            if consumer.CARRY:
                PIECES: gl.constexpr = HALF // PIECE
                work = tile.from_first_query()
                # Before the first step zeros are added to that one's rows.
                carried = gl.zeros([ROWS, PIECE], gl.float32, OF_PIECE)
                first = work.query_tile(0, consumer.problem.mask) * ROWS
                place = sums.place(work, work.head, first, WARPGROUP, PIECES)
                for count in range(steps):
                    dk, dv, carried, place = step_carried(
                        dk=dk,
                        dv=dv,
                        carried=carried,
                        place=place,
                        consumer=consumer,
                        sums=sums,
                        work=work,
                        count=count,
                        WARPGROUP=WARPGROUP,
                    )
                add_numbers(carried, place, PIECES - 1)
            else:
                for count in range(steps):
                    dk, dv = step_staged(dk, dv, consumer, sums, tile, count, WARPGROUP)
        # Gradients are stored through the buffers of keys and values.  When a warpgroup stores its last dS, it has read for
        # the last time the half that the other warpgroup stores to.
        flat(rings.v.tiles.index(WARPGROUP)).store((dv * consumer.dv_scale).to(consumer.dv_desc.dtype))
        flat(rings.k.tiles.index(WARPGROUP)).store(
            (dk * (consumer.half_alpha * consumer.dv_scale)).to(consumer.dk_desc.dtype)
        )
        fence_async_shared()
        sync_warps()
        store_tile(
            consumer.dv_desc,
            coordinates(tile.key_start, tile.keys, tile.start, tile.head, WARPGROUP * HALF_V),
            rings.v.tiles.index(WARPGROUP),
        )
        store_tile(
            consumer.dk_desc,
            coordinates(tile.key_start, tile.keys, tile.start, tile.head, WARPGROUP * HALF),
            rings.k.tiles.index(WARPGROUP),
        )
        tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_backward_wide(
    q_desc,
    k_desc,
    v_desc,
    dout_desc,
    dk_desc,
    dv_desc,
    dq_desc,
    sequences,
    half_alpha,
    hidden,
    dv_scale,
    heads,
    pairs,
    tiles,
    group,
    contextual_len,
    window,
    sums_ptr,
    sums_rows,
    META: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps.

    Where dQ is staged in shared memory, dO has one stage, which is read early in a step.
    """
    gdc_launch_dependents()
    CARRY: gl.constexpr = META.SUMS == "carried"
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
    rings = BackwardRings(
        q=allocate_ring(q_desc, 2 * META.STAGES, CONSUMERS=2),
        k=allocate_ring(k_desc, STAGES=2, CONSUMERS=1),
        v=allocate_ring(v_desc, STAGES=2, CONSUMERS=1),
        dout=allocate_ring(dout_desc, 2 * META.STAGES if CARRY else 2, CONSUMERS=2),
    )
    # One tile holds a warpgroup's columns, so the swizzle is no wider than those.
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(2 * SHARE, 16, 2)
    weighted = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    if CARRY:
        sums = DirectSums(sums_ptr, sums_rows)
    else:
        sums = StagedSums(dq_desc, gl.allocate_shared_memory(gl.float32, [2] + dq_desc.block_shape, dq_desc.layout))
    filled = allocate_barriers(4, ARRIVALS=2)
    fence_async_shared()
    producer = BackwardProducer(
        q_desc=q_desc, k_desc=k_desc, v_desc=v_desc, dout_desc=dout_desc, rings=rings, problem=problem
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        rings=rings,
        weighted=weighted,
        dscores=dscores,
        filled=filled,
        problem=problem,
        half_alpha=half_alpha,
        hidden=hidden,
        dv_scale=dv_scale,
        APPROXIMATE=META.APPROXIMATE,
        CARRY=CARRY,
    )
    gl.warp_specialize(
        [(consume, (consumer, sums, 0)), (consume, (consumer, sums, 1)), (produce, (producer, CARRY))],
        [4, 1],
        [240, 24],
    )
