# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper above 128 dims: two warpgroups share 64 keys, each with half of the columns.

dK and dV of 64 keys and 256 dims would fill all registers of one warpgroup.  So each warpgroup has half of the columns
of both, and of dQ.  A product for half of the columns needs all of A and dS, so each warpgroup computes A and dS for 32
of a tile's 64 queries and stores them to shared memory, where the products read them.  Tiles of rows are loaded as two
halves of their columns.  Otherwise it is `hopper.backward`.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents

from attnbench.kernels.hstu.dense.hopper.tiles import (
    BackwardProducer,
    BackwardRings,
    GridProblem,
    Mask,
    hide,
    key_tile_of,
)
from attnbench.kernels.hstu.tiles import COUNTS, silu_and_slope
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    add_tile,
    aggregate,
    allocate_barriers,
    allocate_ring,
    coordinates,
    flat,
    store_tile,
    sync_warps,
)

SHARE = gl.constexpr(32)
"Queries of a tile for which one warpgroup computes the scores."

PIECE = gl.constexpr(64)
"Columns of dQ that are stored at a time."


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    dq_desc: tma.tensor_descriptor
    rings: BackwardRings
    weighted: gl.shared_memory_descriptor
    "A of both warpgroups, in two stages: [2, 64 keys, 64 queries]"
    dscores: gl.shared_memory_descriptor
    "dSᵀ likewise"
    staging: gl.shared_memory_descriptor
    "tiles through which dQ is stored, one for each warpgroup"
    filled: gl.shared_memory_descriptor
    "mbarriers, of each stage one for `weighted` and one for `dscores`"
    problem: GridProblem
    half_alpha: Argument
    hidden: Argument
    dv_scale: Argument
    APPROXIMATE: gl.constexpr
    "whether SiLU uses the tanh instruction"


@gluon.jit
@no_type_check
def fill_halves(ring, count, desc, start, rows, first, head):
    """Load rows as two tiles, with half of the columns each."""
    for half in gl.static_range(2):
        ring.fill(
            count=2 * count + half,
            desc=desc,
            start=start,
            rows=rows,
            first=first,
            head=head,
            column=half * ring.COLUMNS,
        )


@gluon.jit
@no_type_check
def produce(producer):
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
            fill_halves(rings.dout, count, producer.dout_desc, tile.query_start, queries, at, tile.head)


@gluon.jit
@no_type_check
def multiply_share(keys, zero, ring, count, WARPGROUP: gl.constexpr):
    """Issue the product [64 keys, 32 queries] of the keys, in halves of the dims, with this warpgroup's queries of a tile."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHARE, 16])
    share = gl.zeros([ROWS, SHARE], gl.float32, LAYOUT)
    for half in gl.static_range(2):
        rows = ring.take(2 * count + half).slice(WARPGROUP * SHARE, SHARE, 0)
        share = warpgroup_mma(
            flat(keys.tiles.index(half + zero)), rows.permute([1, 0]), share, use_acc=half > 0, is_async=True
        )
    return share


@gluon.jit
@no_type_check
def exchange_share(share, tile, filled, phase, WARPGROUP: gl.constexpr):
    """Store this warpgroup's part of a tile [64 keys, 64 queries] for both, and wait for the other warpgroup's."""
    tile.slice(WARPGROUP * SHARE, SHARE, 1).store(share)
    fence_async_shared()
    mbarrier.arrive(filled)
    mbarrier.wait(filled, phase)


@gluon.jit
@no_type_check
def add_piece(piece, staging, dq_desc, work, queries, at, column):
    """Add columns of dQ, [columns, 64 queries], to memory, once the previous addition was read and all warps know it."""
    flat(staging).permute([1, 0]).store(piece)
    fence_async_shared()
    sync_warps()
    add_tile(dq_desc, coordinates(work.query_start, queries, at, work.head, column), staging)


@gluon.jit
@no_type_check
def step(dk, dv, consumer, work, count, WARPGROUP: gl.constexpr):
    """Add one tile of queries to the gradients."""
    rings = consumer.rings
    mask = consumer.problem.mask
    HALF: gl.constexpr = rings.k.COLUMNS
    DTYPE: gl.constexpr = rings.k.tiles.dtype
    OF_PIECE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    tile = work.query_tile(count, mask)
    slot = count & 1
    phase = count // 2 & 1
    # Otherwise the addresses of keys and values would be kept in registers.
    zero = count >> 30
    scores = multiply_share(rings.k, zero, rings.q, count, WARPGROUP)
    dweights = multiply_share(rings.v, zero, rings.dout, count, WARPGROUP)
    scores = warpgroup_mma_wait(2, [scores])
    if (tile < work.whole) | (tile >= work.split):
        scores = hide(
            scores,
            consumer.hidden,
            work.start,
            work.first_query + tile * ROWS + WARPGROUP * SHARE,
            work.prefix,
            work.seen,
            mask,
            ROWS_DOWN=False,
        )
    weights, slope = silu_and_slope(scores, consumer.half_alpha, consumer.APPROXIMATE)
    exchange_share(weights.to(DTYPE), consumer.weighted.index(slot), consumer.filled.index(2 * slot), phase, WARPGROUP)
    dv = warpgroup_mma(consumer.weighted.index(slot), rings.dout.tile(2 * count + WARPGROUP), dv, is_async=True)
    dweights = warpgroup_mma_wait(1, [dweights])
    exchange_share(
        (dweights * slope).to(DTYPE),
        consumer.dscores.index(slot),
        consumer.filled.index(2 * slot + 1),
        phase,
        WARPGROUP,
    )
    # Columns by queries, so that stores to shared memory have no bank conflicts.
    dscores = consumer.dscores.index(slot)
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    none = gl.zeros([ROWS, PIECE], gl.float32, OF_PIECE)
    piece = warpgroup_mma(k.slice(0, PIECE, 1).permute([1, 0]), dscores, none, use_acc=False, is_async=True)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    piece, dv = warpgroup_mma_wait(1, [piece, dv])
    tma.store_wait(0)
    rings.dout.release(2 * count)
    rings.dout.release(2 * count + 1)
    staging = consumer.staging.index(WARPGROUP)
    add_piece(piece, staging, consumer.dq_desc, work, work.keys - work.first_query, tile * ROWS, WARPGROUP * HALF)
    if HALF > PIECE:
        later = warpgroup_mma(k.slice(PIECE, PIECE, 1).permute([1, 0]), dscores, none, use_acc=False, is_async=True)
        dk, later = warpgroup_mma_wait(0, [dk, later])
        tma.store_wait(0)
        sync_warps()
        add_piece(
            later, staging, consumer.dq_desc, work, work.keys - work.first_query, tile * ROWS, WARPGROUP * HALF + PIECE
        )
    else:
        dk = warpgroup_mma_wait(0, [dk])
    rings.q.release(2 * count)
    rings.q.release(2 * count + 1)
    return dk, dv


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
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
            for count in range(steps):
                dk, dv = step(dk, dv, consumer, tile, count, WARPGROUP)
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
    META: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps.  dO has one stage, which is read early in a step."""
    gdc_launch_dependents()
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
        dout=allocate_ring(dout_desc, STAGES=2, CONSUMERS=2),
    )
    # One tile holds a warpgroup's columns, so the swizzle is no wider than those.
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(2 * SHARE, 16, 2)
    weighted = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    staging = gl.allocate_shared_memory(gl.float32, [2] + dq_desc.block_shape, dq_desc.layout)
    filled = allocate_barriers(4, ARRIVALS=2)
    fence_async_shared()
    producer = BackwardProducer(
        q_desc=q_desc, k_desc=k_desc, v_desc=v_desc, dout_desc=dout_desc, rings=rings, problem=problem
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        dq_desc=dq_desc,
        rings=rings,
        weighted=weighted,
        dscores=dscores,
        staging=staging,
        filled=filled,
        problem=problem,
        half_alpha=half_alpha,
        hidden=hidden,
        dv_scale=dv_scale,
        APPROXIMATE=META.APPROXIMATE,
    )
    gl.warp_specialize([(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [240, 24])
