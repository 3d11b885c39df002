# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""One step of the dense HSTU backward for Hopper: a tile of 64 queries, through a consumer warpgroup's 64 keys."""

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

from attnbench.kernels.hstu.dense.hopper.tiles import BackwardRings, GridProblem
from attnbench.kernels.hstu.tiles import silu_and_slope
from attnbench.kernels.shared.hopper import ROWS, Argument, add_tile, aggregate, coordinates, flat, sync_warps


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    rings: BackwardRings
    dscores: gl.shared_memory_descriptor
    "dSᵀ of both warpgroups, in two stages: [2, 128 keys, 64 queries]"
    filled: gl.shared_memory_descriptor
    "mbarriers of the stages of `dscores`"
    done: gl.shared_memory_descriptor
    "mbarrier: both warpgroups have read the keys for the last time"
    problem: GridProblem
    half_alpha: Argument
    hidden: Argument
    dv_scale: Argument
    APPROXIMATE: gl.constexpr
    "whether SiLU uses the tanh instruction"
    LAG: gl.constexpr
    "whether a step's dQ is computed in the next step"


@gluon.jit
@no_type_check
def dq_part(dscores, slot, place, k_ring, WARPGROUP: gl.constexpr):
    """Issue this warpgroup's half of the columns of dQ = dS K, from both warpgroups' dSᵀ and all keys: [columns, 64 queries].

    The keys are two tiles of the ring, from `place`.

    A thread then holds one column of several queries, so that stores have no bank conflicts.  A product has 64 rows, so
    fewer columns are computed as [64 queries, columns].
    """
    HALF: gl.constexpr = k_ring.COLUMNS // 2
    part = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
    for of in gl.static_range(2):
        dscore = dscores.index(slot).slice(of * ROWS, ROWS, 0)
        k = flat(k_ring.tiles.index(place + of)).slice(WARPGROUP * HALF, HALF, 1)
        if HALF == ROWS:
            part = warpgroup_mma(k.permute([1, 0]), dscore, part, use_acc=of > 0, is_async=True)
        else:
            part = warpgroup_mma(dscore.permute([1, 0]), k, part, use_acc=of > 0, is_async=True)
    return part


@aggregate
class AddedSums:
    """Sums of dQ in a workspace, to which every step adds by TMA through shared memory: those of one key tile."""

    dq_desc: tma.tensor_descriptor
    staging: gl.shared_memory_descriptor
    "tiles, one for each warpgroup"

    @gluon.jit
    @no_type_check
    def key_place(self, _k_ring):
        """Where keys and values are in their rings."""
        return 0

    @gluon.jit
    @no_type_check
    def index(self, count):
        """Which step of its key tile the count-th step is."""
        return count

    @gluon.jit
    @no_type_check
    def stored(self, count):
        """How many times dSᵀ was stored before the count-th step."""
        return count

    @gluon.jit
    @no_type_check
    def fetch(self, consumer, work, index, WARPGROUP: gl.constexpr):
        """Nothing: memory adds.  Returns what `stage` and `leave` of the same step take as `kind`."""
        return 0

    @gluon.jit
    @no_type_check
    def stage(self, part, consumer, kind, index, WARPGROUP: gl.constexpr):
        """Copy this warpgroup's half of dQ to shared memory; its last one must have left."""
        turned(flat(self.staging.index(WARPGROUP)), consumer.rings.k).store(part)

    @gluon.jit
    @no_type_check
    def leave(self, consumer, work, kind, index, WARPGROUP: gl.constexpr):
        """Start to add it to the sums, as that of the index-th step; the warps have synchronized."""
        HALF: gl.constexpr = consumer.rings.k.COLUMNS // 2
        if consumer.LAG:
            # Before the first step there is no dQ: zeros are added to the first step's rows.
            index = gl.maximum(index, 0)
        at = work.query_tile(index, consumer.problem.mask) * ROWS
        add_tile(
            self.dq_desc,
            coordinates(work.query_start, work.keys, at, work.head, WARPGROUP * HALF),
            self.staging.index(WARPGROUP),
        )


@gluon.jit
@no_type_check
def turned(tile, k_ring):
    """A tile of half of the columns of dQ in shared memory, [64 queries, columns], as `dq_part` holds it."""
    if k_ring.COLUMNS // 2 == ROWS:
        tile = tile.permute([1, 0])
    return tile


@gluon.jit
@no_type_check
def clear_dscores(consumer, stored, WARPGROUP: gl.constexpr):
    """Set dSᵀ of the step before the first one to 0, this warpgroup's keys, after dSᵀ was stored so often."""
    none = gl.zeros([ROWS, ROWS], consumer.dscores.dtype, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16]))
    slot = (stored + 1) & 1
    consumer.dscores.index(slot).slice(WARPGROUP * ROWS, ROWS, 0).store(none)
    fence_async_shared()
    mbarrier.arrive(consumer.filled.index(slot))


@gluon.jit
@no_type_check
def await_dscores(consumer, stored):
    """Wait until both warpgroups have stored the previous dSᵀ, and read the one before it."""
    mbarrier.wait(consumer.filled.index((stored + 1) & 1), stored // 2 & 1)


@gluon.jit
@no_type_check
def add_last_dq(consumer, sums, work, count, WARPGROUP: gl.constexpr):
    """Add dQ of the last of `count` steps."""
    index = sums.index(count) - 1
    stored = sums.stored(count)
    kind = sums.fetch(consumer, work, index, WARPGROUP)
    await_dscores(consumer, stored)
    part = dq_part(
        consumer.dscores,
        (stored + 1) & 1,
        sums.key_place(consumer.rings.k) + (count >> 30),
        consumer.rings.k,
        WARPGROUP,
    )
    part = warpgroup_mma_wait(0, [part])
    tma.store_wait(0)
    sync_warps()
    sums.stage(part, consumer, kind, index, WARPGROUP)
    fence_async_shared()
    sync_warps()
    sums.leave(consumer, work, kind, index, WARPGROUP)


@gluon.jit
@no_type_check
def step(dk, dv, consumer, sums, work, count, WARPGROUP: gl.constexpr):
    """Add the count-th tile of queries to the gradients; positions of `work` count from the sequence's first query."""
    rings = consumer.rings
    mask = consumer.problem.mask
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_K: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    OF_V: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    none = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    index = sums.index(count)
    stored = sums.stored(count)
    tile = work.query_tile(index, mask)
    slot = stored & 1
    ready = index
    if consumer.LAG:
        # The dQ that this step completes is that of the step before.
        ready = index - 1
    kind = sums.fetch(consumer, work, ready, WARPGROUP)
    # Otherwise the addresses and sizes of keys and values would be kept in registers, of which none are left.
    zero = count >> 30
    place = sums.key_place(rings.k) + zero
    k = flat(rings.k.tiles.index(WARPGROUP + place))
    v = flat(rings.v.tiles.index(WARPGROUP + place))
    q = rings.q.take(count)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    dout = rings.dout.take(count)
    dweights = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(1, [scores])
    scores = work.masked(scores, consumer.hidden, tile, (WARPGROUP + zero) * ROWS, mask)
    weights, slope = silu_and_slope(scores, consumer.half_alpha, consumer.APPROXIMATE)
    dv = warpgroup_mma(gl.convert_layout(weights.to(dout.dtype), OF_V), dout, dv, is_async=True)
    dweights = warpgroup_mma_wait(1, [dweights])
    dscore = (dweights * slope).to(dout.dtype)
    if consumer.LAG:
        await_dscores(consumer, stored)
        part = dq_part(consumer.dscores, slot ^ 1, place, rings.k, WARPGROUP)
    consumer.dscores.index(slot).slice(WARPGROUP * ROWS, ROWS, 0).store(dscore)
    if not consumer.LAG:
        fence_async_shared()
        mbarrier.arrive(consumer.filled.index(slot))
        mbarrier.wait(consumer.filled.index(slot), stored >> 1 & 1)
        part = dq_part(consumer.dscores, slot, place, rings.k, WARPGROUP)
    dk = warpgroup_mma(gl.convert_layout(dscore, OF_K), q, dk, is_async=True)
    part, dv = warpgroup_mma_wait(1, [part, dv])
    # The previous addition to dQ has been read; the barrier before the release lets all warps know.
    tma.store_wait(0)
    rings.dout.release(count)
    sums.stage(part, consumer, kind, ready, WARPGROUP)
    fence_async_shared()
    if consumer.LAG:
        # The same fence and barrier say that dSᵀ of this step is stored, and that of the step before has been read.
        mbarrier.arrive(consumer.filled.index(slot))
    else:
        sync_warps()
    sums.leave(consumer, work, kind, ready, WARPGROUP)
    dk = warpgroup_mma_wait(0, [dk])
    rings.q.release(count)
    return dk, dv
