# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""dK, dV and the sums of dQ of softmax attention for Hopper above 128 dims: two warpgroups share 64 keys.

dK and dV of 64 keys and 256 dims would fill all registers of one warpgroup.  So each warpgroup has half of the columns
of both, and of dQ.  A product for half of the columns needs all of P and dS, so each warpgroup computes P and dS for 32
of a tile's 64 rows and stores them to shared memory, where the products read them.  Tiles of rows are loaded as two
halves of their columns.  Otherwise it is `hopper.backward`:

    producer      loads keys and values once, then tiles of Q and dO with -lse / scale and -delta of their rows
    consumer      issues its 32 rows of Sᵀ = K Qᵀ and of dPᵀ = V dOᵀ
                  P = exp(Sᵀ), while the second product runs; stores it for both, and waits for the other warpgroup's
                  issues its columns of dV += P dO
                  dSᵀ = P ∘ (dPᵀ - delta), meanwhile; stores it for both, and waits for the other warpgroup's
                  issues the first half of its columns of dQ = dS K, and dK += dSᵀ Q
                  adds that half to memory by a TMA reduction while the last product runs; then the same for the other half

P and dS have two stages: when both warpgroups have filled one stage, both have read the other.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.flash.hopper.backward_step import (
    LN_2,
    SCORES,
    GridProblem,
    Rings,
    Statistics,
    allocate_statistics,
    hide,
    in_order,
    key_tile_of,
    reach_of,
    store_gradient,
)
from attnbench.kernels.flash.hopper.tiles import Mask
from attnbench.kernels.flash.tiles import BACKWARD_COUNTS
from attnbench.kernels.shared.hopper import (
    ROWS,
    Argument,
    add_tile,
    aggregate,
    allocate_barriers,
    allocate_ring,
    coordinates,
    flat,
    load_tile,
    sync_warps,
)

SHARE = gl.constexpr(32)
"Rows of a tile for which one warpgroup computes the scores."

OF_SHARE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHARE.value, 16]))
"Layout of a product [64, 32]."


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    dout_desc: tma.tensor_descriptor
    stats_desc: tma.tensor_descriptor
    rings: Rings
    "tiles of half of the columns: two stages for one tile of rows"
    stats: Statistics
    problem: GridProblem


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    sums_desc: tma.tensor_descriptor
    "of dQ"
    rings: Rings
    stats: Statistics
    weighted: gl.shared_memory_descriptor
    "P of both warpgroups, in two stages: [2, 64 keys, 64 rows]"
    dscores: gl.shared_memory_descriptor
    "dSᵀ likewise"
    filled: gl.shared_memory_descriptor
    "mbarriers, of each stage one for `weighted` and one for `dscores`"
    staging: gl.shared_memory_descriptor
    "tiles through which dQ is stored, one for each warpgroup"
    problem: GridProblem
    scale_log2: Argument


@gluon.jit
@no_type_check
def fill_halves(ring, count, desc, start, rows, first, head, EXTRA_BYTES: gl.constexpr = 0):
    """Load rows as two tiles with half of the columns each; the caller loads EXTRA_BYTES on the first tile's mbarrier."""
    ring.fill(2 * count, desc, start, rows, first, head, EXTRA_BYTES)
    ring.fill(count=2 * count + 1, desc=desc, start=start, rows=rows, first=first, head=head, column=ring.COLUMNS)


@gluon.jit
@no_type_check
def fill_statistics(desc, place, ring, numbers, count):
    """Load the row statistics of the count-th tile, on the mbarrier of its first half."""
    STAGES: gl.constexpr = ring.STAGES // 2
    load_tile(desc, place, ring.full.index(2 * count % ring.STAGES), numbers.index(count % STAGES))


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp."""
    rings = producer.rings
    stats = producer.stats
    problem = producer.problem
    members = problem.members
    heads = problem.heads_kv * members
    tile = key_tile_of(problem)
    has_work = (tile.start < tile.keys) & (tile.begin < tile.end)
    if has_work:
        fill_halves(rings.k, 0, producer.k_desc, tile.key_start, tile.keys, tile.start, tile.head_kv)
    gdc_wait()  # as in `hopper.backward`
    if has_work:
        count = 0
        for member in range(members):
            head = tile.head_kv * members + member
            for part in range(tile.begin, tile.end):
                at = part * ROWS
                fill_halves(
                    ring=rings.q,
                    count=count,
                    desc=producer.q_desc,
                    start=tile.query_start,
                    rows=tile.queries,
                    first=at,
                    head=head,
                    EXTRA_BYTES=4 * ROWS,
                )
                fill_statistics(producer.stats_desc, [head, tile.padded + at], rings.q, stats.leasts, count)
                if count == 0:
                    fill_halves(rings.v, 0, producer.v_desc, tile.key_start, tile.keys, tile.start, tile.head_kv)
                fill_halves(
                    ring=rings.dout,
                    count=count,
                    desc=producer.dout_desc,
                    start=tile.query_start,
                    rows=tile.queries,
                    first=at,
                    head=head,
                    EXTRA_BYTES=4 * ROWS,
                )
                place = [heads + head, tile.padded + at]
                fill_statistics(producer.stats_desc, place, rings.dout, stats.deltas, count)
                count += 1


@gluon.jit
@no_type_check
def multiply_share(keys, zero, ring, count, WARPGROUP: gl.constexpr):
    """Issue the product [64 keys, 32 rows] of the keys, in halves of the dims, with this warpgroup's rows of a tile."""
    share = gl.zeros([ROWS, SHARE], gl.float32, OF_SHARE)
    for half in gl.static_range(2):
        rows = ring.take(2 * count + half).slice(WARPGROUP * SHARE, SHARE, 0)
        share = warpgroup_mma(
            flat(keys.tiles.index(half + zero)), rows.permute([1, 0]), share, use_acc=half > 0, is_async=True
        )
    return share


@gluon.jit
@no_type_check
def load_share(numbers, ring, count, WARPGROUP: gl.constexpr):
    """Statistics of this warpgroup's rows of the count-th tile: [1, 32]."""
    STAGES: gl.constexpr = ring.STAGES // 2
    return numbers.index(count % STAGES).slice(WARPGROUP * SHARE, SHARE, 1).load(OF_SHARE)


@gluon.jit
@no_type_check
def exchange_share(share, tile, filled, phase, WARPGROUP: gl.constexpr):
    """Store this warpgroup's part of a tile [64 keys, 64 rows] for both, and wait for the other warpgroup's."""
    tile.slice(WARPGROUP * SHARE, SHARE, 1).store(share)
    fence_async_shared()
    mbarrier.arrive(filled)
    mbarrier.wait(filled, phase)


@gluon.jit
@no_type_check
def dq_part(dscores, k, PIECE: gl.constexpr):
    """Issue 64 of this warpgroup's columns of dQ = dS K."""
    part = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    return warpgroup_mma(dscores.permute([1, 0]), k.slice(PIECE * ROWS, ROWS, 1), part, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def add_part(part, consumer, work, head, at, WARPGROUP: gl.constexpr, PIECE: gl.constexpr):
    """Add columns of dQ to the sums, after the previous addition has been read and all warps know it."""
    PIECES: gl.constexpr = consumer.rings.k.COLUMNS // ROWS
    mine = consumer.staging.index(WARPGROUP)
    mine.reshape([ROWS, ROWS]).store(in_order(part))
    fence_async_shared()
    sync_warps()
    row = (work.padded + at) * (2 * PIECES) + (WARPGROUP * PIECES + PIECE) * ROWS
    add_tile(consumer.sums_desc, [head, row, 0], mine)


@gluon.jit
@no_type_check
def step(dk, dv, consumer, work, low, high, count, tile, head, WARPGROUP: gl.constexpr):
    """Add one tile of rows to dK, dV and the sums of dQ."""
    rings = consumer.rings
    stats = consumer.stats
    DTYPE: gl.constexpr = rings.k.tiles.dtype
    slot = count & 1
    phase = count // 2 & 1
    at = tile * ROWS
    weighted = consumer.weighted.index(slot)
    dscores = consumer.dscores.index(slot)
    # Always 0, which the compiler cannot know: otherwise it would keep the addresses of keys and values in registers.
    zero = count >> 30
    scores = multiply_share(rings.k, zero, rings.q, count, WARPGROUP)
    dweights = multiply_share(rings.v, zero, rings.dout, count, WARPGROUP)
    least = load_share(stats.leasts, rings.q, count, WARPGROUP) * consumer.scale_log2
    scores = warpgroup_mma_wait(2, [scores])
    if (tile < work.whole) | (tile >= work.split):
        numbers = stats.numbers.slice(0, SHARE, 1)
        scores = hide(scores, numbers, at + WARPGROUP * SHARE, low, high, consumer.problem.mask.HAS_LEFT)
    weights = gl.exp2(scores * consumer.scale_log2 + least)
    exchange_share(weights.to(DTYPE), weighted, consumer.filled.index(2 * slot), phase, WARPGROUP)
    dv = warpgroup_mma(weighted, rings.dout.tile(2 * count + WARPGROUP), dv, is_async=True)
    dweights = warpgroup_mma_wait(1, [dweights])
    dshare = weights * (dweights + load_share(stats.deltas, rings.dout, count, WARPGROUP))
    exchange_share(dshare.to(DTYPE), dscores, consumer.filled.index(2 * slot + 1), phase, WARPGROUP)
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    part = dq_part(dscores, k, 0)
    later = dq_part(dscores, k, 1)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    part, later, dv = warpgroup_mma_wait(1, [part, later, dv])
    tma.store_wait(0)
    # The warps synchronize before they arrive: the tile that the store read is free.
    rings.dout.release(2 * count)
    rings.dout.release(2 * count + 1)
    add_part(part, consumer, work, head, at, WARPGROUP, 0)
    tma.store_wait(0)
    sync_warps()
    add_part(later, consumer, work, head, at, WARPGROUP, 1)
    dk = warpgroup_mma_wait(0, [dk])
    rings.q.release(2 * count)
    rings.q.release(2 * count + 1)
    return dk, dv


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: half of the columns of every gradient."""
    rings = consumer.rings
    DTYPE: gl.constexpr = consumer.dk_desc.dtype
    HALF: gl.constexpr = rings.k.COLUMNS
    OF_HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    members = consumer.problem.members
    work = key_tile_of(consumer.problem)
    begin, end = work.begin, work.end
    if work.start < work.keys:
        dk = gl.zeros([ROWS, HALF], gl.float32, OF_HALF)
        dv = gl.zeros([ROWS, HALF], gl.float32, OF_HALF)
        if begin < end:
            low, high = reach_of(work.start, work, consumer.problem.mask, OF_SHARE)
            for half in gl.static_range(2):
                rings.k.take(half)
                rings.v.take(half)
            tile = begin
            head = work.head_kv * members
            for count in range(members * (end - begin)):
                dk, dv = step(
                    dk=dk,
                    dv=dv,
                    consumer=consumer,
                    work=work,
                    low=low,
                    high=high,
                    count=count,
                    tile=tile,
                    head=head,
                    WARPGROUP=WARPGROUP,
                )
                tile += 1
                if tile == end:
                    tile = begin
                    head += 1
        # Gradients are stored through the buffers of keys and values.  When a warpgroup stores its last dS, it has read for
        # the last time the half that the other warpgroup stores to.
        column = WARPGROUP * HALF
        place = coordinates(work.key_start, work.keys, work.start, work.head_kv, column)
        store_gradient(rings.v.tiles.index(WARPGROUP), dv.to(DTYPE), consumer.dv_desc, place)
        dk *= consumer.scale_log2 * LN_2
        store_gradient(rings.k.tiles.index(WARPGROUP), dk.to(DTYPE), consumer.dk_desc, place)
        tma.store_wait(0)


@gluon.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_hopper_backward_wide(
    q_desc,
    k_desc,
    v_desc,
    dout_desc,
    stats_desc,
    dk_desc,
    dv_desc,
    sums_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    scale_log2,
    left,
    right,
    members,
    heads_kv,
    pairs,
    tiles,
    group,
    HAS_LEFT: gl.constexpr,
    HAS_RIGHT: gl.constexpr,
    PACKED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps.  dO has one stage, which is read early in a step."""
    gdc_launch_dependents()
    mask = Mask(left, right, HAS_LEFT, HAS_RIGHT)
    problem = GridProblem(
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        mask=mask,
        members=members,
        heads_kv=heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=group,
        PACKED=PACKED,
        BLOCK_M=BLOCK_M,
        KEYS=ROWS,
    )
    rings = Rings(
        allocate_ring(q_desc, 2 * STAGES, 2),
        allocate_ring(k_desc, 2, 1),
        allocate_ring(v_desc, 2, 1),
        allocate_ring(dout_desc, 2, 2),
    )
    stats = allocate_statistics(stats_desc, STAGES, 1)
    # One tile holds a warpgroup's rows, so the swizzle is no wider than those.
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(2 * SHARE, 16, 2)
    weighted = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    staging = gl.allocate_shared_memory(gl.float32, [2] + sums_desc.block_shape, sums_desc.layout)
    filled = allocate_barriers(4, 2)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        dout_desc=dout_desc,
        stats_desc=stats_desc,
        rings=rings,
        stats=stats,
        problem=problem,
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        sums_desc=sums_desc,
        rings=rings,
        stats=stats,
        weighted=weighted,
        dscores=dscores,
        filled=filled,
        staging=staging,
        problem=problem,
        scale_log2=scale_log2,
    )
    gl.warp_specialize([(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [240, 24])
