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

P and dS have two stages: when both warpgroups have filled one stage, both have read the other.  With the sums `direct` or
`carried` each thread adds dQ to memory from its registers, and shared memory has room for a second stage of dO.  The steps
are in `backward_wide_step`.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.flash.hopper.backward_step import (
    LN_2,
    SCORES,
    GridProblem,
    Rings,
    Statistics,
    allocate_statistics,
    key_tile_of,
    reach_of,
    store_gradient,
)
from attnbench.kernels.flash.hopper.backward_wide_step import OF_SHARE, Consumer, StagedSums, step_direct, step_staged
from attnbench.kernels.flash.hopper.tiles import Mask
from attnbench.kernels.flash.tiles import BACKWARD_COUNTS
from attnbench.kernels.shared.hopper import ROWS, aggregate, allocate_barriers, allocate_ring, coordinates, load_tile
from attnbench.kernels.shared.hopper_backward import SHARE, DirectSums, add_numbers, fill_both, fill_halves


class WideMeta(NamedTuple):
    """Compile-time constants of `flash_hopper_backward_wide`."""

    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_M: int
    STAGES: int
    SUMS: str
    "`BackwardConfig.sums`"


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
    STAGED: gl.constexpr


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
                if producer.STAGED:
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
                else:
                    fill_both(
                        ring=rings.q,
                        count=count,
                        desc=producer.q_desc,
                        start=tile.query_start,
                        rows=tile.queries,
                        first=at,
                        head=head,
                        EXTRA_BYTES=4 * ROWS,
                        AWAIT=True,
                    )
                fill_statistics(producer.stats_desc, [head, tile.padded + at], rings.q, stats.leasts, count)
                if count == 0:
                    fill_halves(rings.v, 0, producer.v_desc, tile.key_start, tile.keys, tile.start, tile.head_kv)
                if producer.STAGED:
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
                else:
                    fill_both(
                        ring=rings.dout,
                        count=count,
                        desc=producer.dout_desc,
                        start=tile.query_start,
                        rows=tile.queries,
                        first=at,
                        head=head,
                        EXTRA_BYTES=4 * ROWS,
                        AWAIT=False,
                    )
                place = [heads + head, tile.padded + at]
                fill_statistics(producer.stats_desc, place, rings.dout, stats.deltas, count)
                count += 1


@gluon.jit
@no_type_check
def following(tile, head, work):
    """The next tile of rows, and its query head."""
    tile += 1
    if tile == work.end:
        tile = work.begin
        head += 1
    return tile, head


@gluon.jit
@no_type_check
def consume(consumer, sums, WARPGROUP: gl.constexpr):
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
            if consumer.SUMS == "staged":
                for count in range(members * (end - begin)):
                    dk, dv = step_staged(
                        dk=dk,
                        dv=dv,
                        consumer=consumer,
                        sums=sums,
                        work=work,
                        low=low,
                        high=high,
                        count=count,
                        tile=tile,
                        head=head,
                        WARPGROUP=WARPGROUP,
                    )
                    tile, head = following(tile, head, work)
            else:
                # Before the first step zeros are added to that one's rows.
                later = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
                place = sums.place(work, head, begin * ROWS, WARPGROUP, HALF // ROWS)
                for count in range(members * (end - begin)):
                    dk, dv, later, place = step_direct(
                        dk=dk,
                        dv=dv,
                        carried=later,
                        place=place,
                        consumer=consumer,
                        sums=sums,
                        work=work,
                        low=low,
                        high=high,
                        count=count,
                        tile=tile,
                        head=head,
                        CARRY=consumer.SUMS == "carried",
                        WARPGROUP=WARPGROUP,
                    )
                    tile, head = following(tile, head, work)
                if consumer.SUMS == "carried":
                    add_numbers(later, place, 1)
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
    sums_ptr,
    sums_rows,
    META: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps.

    Where dQ is staged in shared memory, dO has one stage, which is read early in a step.
    """
    gdc_launch_dependents()
    STAGED: gl.constexpr = META.SUMS == "staged"
    DOUT_STAGES: gl.constexpr = 1 if STAGED else META.STAGES
    mask = Mask(left, right, META.HAS_LEFT, META.HAS_RIGHT)
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
        PACKED=META.PACKED,
        BLOCK_M=META.BLOCK_M,
        KEYS=ROWS,
    )
    rings = Rings(
        allocate_ring(q_desc, 2 * META.STAGES, 2),
        allocate_ring(k_desc, 2, 1),
        allocate_ring(v_desc, 2, 1),
        allocate_ring(dout_desc, 2 * DOUT_STAGES, 2),
    )
    stats = allocate_statistics(stats_desc, META.STAGES, DOUT_STAGES)
    # One tile holds a warpgroup's rows, so the swizzle is no wider than those.
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(2 * SHARE, 16, 2)
    weighted = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], LAYOUT)
    if STAGED:
        sums = StagedSums(
            sums_desc, gl.allocate_shared_memory(gl.float32, [2] + sums_desc.block_shape, sums_desc.layout)
        )
    else:
        sums = DirectSums(sums_ptr, sums_rows)
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
        STAGED=STAGED,
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        rings=rings,
        stats=stats,
        weighted=weighted,
        dscores=dscores,
        filled=filled,
        problem=problem,
        scale_log2=scale_log2,
        SUMS=META.SUMS,
    )
    gl.warp_specialize(
        [(consume, (consumer, sums, 0)), (consume, (consumer, sums, 1)), (produce, (producer,))], [4, 1], [240, 24]
    )
