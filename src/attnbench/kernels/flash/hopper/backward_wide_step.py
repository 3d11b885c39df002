# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""One step of the flash backward for Hopper above 128 dims: a tile of rows, through 64 keys and half of the columns."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.flash.hopper.backward_step import SCORES, GridProblem, Rings, Statistics, hide
from attnbench.kernels.shared.hopper import ROWS, Argument, add_tile, aggregate, flat, sync_warps
from attnbench.kernels.shared.hopper_backward import SHARE, add_numbers, end_additions, exchange_share, in_order

OF_SHARE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHARE.value, 16]))
"Layout of a product [64, 32]."


@aggregate
class StagedSums:
    """Sums of dQ, added to by TMA through shared memory."""

    sums_desc: tma.tensor_descriptor
    staging: gl.shared_memory_descriptor
    "tiles, one for each warpgroup"

    @gluon.jit
    @no_type_check
    def add(self, part, work, head, at, WARPGROUP: gl.constexpr, PIECE: gl.constexpr, PIECES: gl.constexpr):
        """Add columns of dQ, after the previous addition has been read and all warps know it."""
        mine = self.staging.index(WARPGROUP)
        mine.reshape([ROWS, ROWS]).store(in_order(part))
        fence_async_shared()
        sync_warps()
        row = (work.padded + at) * (2 * PIECES) + (WARPGROUP * PIECES + PIECE) * ROWS
        add_tile(self.sums_desc, [head, row, 0], mine)


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    rings: Rings
    stats: Statistics
    weighted: gl.shared_memory_descriptor
    "P of both warpgroups, in two stages: [2, 64 keys, 64 rows]"
    dscores: gl.shared_memory_descriptor
    "dSᵀ likewise"
    filled: gl.shared_memory_descriptor
    "mbarriers, of each stage one for `weighted` and one for `dscores`"
    problem: GridProblem
    scale_log2: Argument
    SUMS: gl.constexpr


@gluon.jit
@no_type_check
def multiply_share(keys, zero, ring, count, STAGED: gl.constexpr, WARPGROUP: gl.constexpr):
    """Issue the product [64 keys, 32 rows] of the keys, in halves of the dims, with this warpgroup's rows of a tile."""
    share = gl.zeros([ROWS, SHARE], gl.float32, OF_SHARE)
    for half in gl.static_range(2):
        if STAGED:
            ring.wait(2 * count + half)
        rows = ring.tile(2 * count + half).slice(WARPGROUP * SHARE, SHARE, 0)
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
def dq_part(dscores, k, PIECE: gl.constexpr):
    """Issue 64 of this warpgroup's columns of dQ = dS K."""
    part = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    return warpgroup_mma(dscores.permute([1, 0]), k.slice(PIECE * ROWS, ROWS, 1), part, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def share_scores(
    dv, carried, place, consumer, work, low, high, count, tile, zero, CARRY: gl.constexpr, WARPGROUP: gl.constexpr
):
    """P and dS of one tile of rows; dV += P dO is issued.  Returns dS of all rows, and dV."""
    rings = consumer.rings
    stats = consumer.stats
    DTYPE: gl.constexpr = rings.k.tiles.dtype
    slot = count & 1
    phase = count // 2 & 1
    at = tile * ROWS
    weighted = consumer.weighted.index(slot)
    dscores = consumer.dscores.index(slot)
    STAGED: gl.constexpr = consumer.SUMS == "staged"
    if not STAGED:
        rings.q.wait(2 * count)
        # Loaded before the products: among them, the thread would wait for it, and the products after it.
        least = load_share(stats.leasts, rings.q, count, WARPGROUP)
    scores = multiply_share(rings.k, zero, rings.q, count, STAGED, WARPGROUP)
    if not STAGED:
        rings.dout.wait(2 * count)
    dweights = multiply_share(rings.v, zero, rings.dout, count, STAGED, WARPGROUP)
    if STAGED:
        least = load_share(stats.leasts, rings.q, count, WARPGROUP)
    least *= consumer.scale_log2
    scores = warpgroup_mma_wait(2, [scores])
    if (tile < work.whole) | (tile >= work.split):
        numbers = stats.numbers.slice(0, SHARE, 1)
        scores = hide(scores, numbers, at + WARPGROUP * SHARE, low, high, consumer.problem.mask.HAS_LEFT)
    weights = gl.exp2(scores * consumer.scale_log2 + least)
    exchange_share(weights.to(DTYPE), weighted, consumer.filled.index(2 * slot), phase, WARPGROUP)
    dv = warpgroup_mma(weighted, rings.dout.tile(2 * count + WARPGROUP), dv, is_async=True)
    if CARRY:
        add_numbers(carried, place, 1)
    dweights = warpgroup_mma_wait(1, [dweights])
    dshare = weights * (dweights + load_share(stats.deltas, rings.dout, count, WARPGROUP))
    exchange_share(dshare.to(DTYPE), dscores, consumer.filled.index(2 * slot + 1), phase, WARPGROUP)
    return dscores, dv


@gluon.jit
@no_type_check
def step_staged(dk, dv, consumer, sums, work, low, high, count, tile, head, WARPGROUP: gl.constexpr):
    """Add one tile of rows to dK, dV and the sums of dQ."""
    rings = consumer.rings
    PIECES: gl.constexpr = rings.k.COLUMNS // ROWS
    at = tile * ROWS
    # Always 0, which the compiler cannot know: otherwise it would keep the addresses of keys and values in registers.
    zero = count >> 30
    dscores, dv = share_scores(
        dv=dv,
        carried=None,
        place=None,
        consumer=consumer,
        work=work,
        low=low,
        high=high,
        count=count,
        tile=tile,
        zero=zero,
        CARRY=False,
        WARPGROUP=WARPGROUP,
    )
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    part = dq_part(dscores, k, 0)
    later = dq_part(dscores, k, 1)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    part, later, dv = warpgroup_mma_wait(1, [part, later, dv])
    tma.store_wait(0)
    # The warps synchronize before they arrive: the tile that the store read is free.
    rings.dout.release(2 * count)
    rings.dout.release(2 * count + 1)
    sums.add(part, work, head, at, WARPGROUP, 0, PIECES)
    tma.store_wait(0)
    sync_warps()
    sums.add(later, work, head, at, WARPGROUP, 1, PIECES)
    dk = warpgroup_mma_wait(0, [dk])
    rings.q.release(2 * count)
    rings.q.release(2 * count + 1)
    return dk, dv


@gluon.jit
@no_type_check
def step_direct(
    dk,
    dv,
    carried,
    place,
    consumer,
    sums,
    work,
    low,
    high,
    count,
    tile,
    head,
    CARRY: gl.constexpr,
    WARPGROUP: gl.constexpr,
):
    """The same with dQ added from registers; with CARRY half of it is returned, and added in the next step."""
    rings = consumer.rings
    PIECES: gl.constexpr = rings.k.COLUMNS // ROWS
    zero = count >> 30
    dscores, dv = share_scores(
        dv=dv,
        carried=carried,
        place=place,
        consumer=consumer,
        work=work,
        low=low,
        high=high,
        count=count,
        tile=tile,
        zero=zero,
        CARRY=CARRY,
        WARPGROUP=WARPGROUP,
    )
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    part = dq_part(dscores, k, 0)
    later = dq_part(dscores, k, 1)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    place = sums.place(work, head, tile * ROWS, WARPGROUP, PIECES)
    part, dv = warpgroup_mma_wait(2, [part, dv])
    add_numbers(part, place, 0)
    end_additions(consumer.filled, count)
    if not CARRY:
        later = warpgroup_mma_wait(1, [later])
        add_numbers(later, place, 1)
        end_additions(consumer.filled, count)
    dk, later = warpgroup_mma_wait(0, [dk, later])
    # One mbarrier for both halves of Q and of dO: each arrival costs a barrier of the warpgroup.
    rings.q.release(2 * count)
    return dk, dv, later, place
