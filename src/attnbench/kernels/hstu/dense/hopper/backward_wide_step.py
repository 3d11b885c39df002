# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""One step of the dense HSTU backward for Hopper above 128 dims: a tile of 64 queries, through half of the columns."""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.hstu.dense.hopper.tiles import BackwardRings, GridProblem, hide
from attnbench.kernels.hstu.tiles import silu_and_slope
from attnbench.kernels.shared.hopper import ROWS, Argument, add_tile, aggregate, coordinates, flat, sync_warps
from attnbench.kernels.shared.hopper_backward import SHARE, add_numbers, end_additions, exchange_share

PIECE = gl.constexpr(64)
"Columns of dQ that are added at a time."

OF_PIECE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE.value, 16]))
"Layout of a product [64, 64]."


@aggregate
class StagedSums:
    """Sums of dQ, added to by TMA through shared memory."""

    dq_desc: tma.tensor_descriptor
    staging: gl.shared_memory_descriptor
    "tiles, one for each warpgroup"

    @gluon.jit
    @no_type_check
    def add(self, piece, work, at, column, WARPGROUP: gl.constexpr):
        """Add columns of dQ, [columns, 64 queries], once the previous addition was read and all warps know it."""
        mine = self.staging.index(WARPGROUP)
        flat(mine).permute([1, 0]).store(piece)
        fence_async_shared()
        sync_warps()
        place = coordinates(work.query_start, work.keys - work.first_query, at, work.head, column)
        add_tile(self.dq_desc, place, mine)


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    rings: BackwardRings
    weighted: gl.shared_memory_descriptor
    "A of both warpgroups, in two stages: [2, 64 keys, 64 queries]"
    dscores: gl.shared_memory_descriptor
    "dSᵀ likewise"
    filled: gl.shared_memory_descriptor
    "mbarriers, of each stage one for `weighted` and one for `dscores`"
    problem: GridProblem
    half_alpha: Argument
    hidden: Argument
    dv_scale: Argument
    APPROXIMATE: gl.constexpr
    "whether SiLU uses the tanh instruction"
    CARRY: gl.constexpr
    "whether dQ is added from registers, and its last columns in the next step"


@gluon.jit
@no_type_check
def multiply_share(keys, zero, ring, count, CARRY: gl.constexpr, WARPGROUP: gl.constexpr):
    """Issue the product [64 keys, 32 queries] of the keys, in halves of the dims, with this warpgroup's queries of a tile."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHARE, 16])
    share = gl.zeros([ROWS, SHARE], gl.float32, LAYOUT)
    if CARRY:
        ring.wait(2 * count)
    for half in gl.static_range(2):
        if not CARRY:
            ring.wait(2 * count + half)
        rows = ring.tile(2 * count + half).slice(WARPGROUP * SHARE, SHARE, 0)
        share = warpgroup_mma(
            flat(keys.tiles.index(half + zero)), rows.permute([1, 0]), share, use_acc=half > 0, is_async=True
        )
    return share


@gluon.jit
@no_type_check
def share_scores(dv, carried, place, consumer, work, count, tile, zero, WARPGROUP: gl.constexpr):
    """A and dS of one tile of queries; dV += Aᵀ dO is issued.  Returns dS of all queries, and dV."""
    rings = consumer.rings
    mask = consumer.problem.mask
    DTYPE: gl.constexpr = rings.k.tiles.dtype
    slot = count & 1
    phase = count // 2 & 1
    scores = multiply_share(rings.k, zero, rings.q, count, consumer.CARRY, WARPGROUP)
    dweights = multiply_share(rings.v, zero, rings.dout, count, consumer.CARRY, WARPGROUP)
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
    if consumer.CARRY:
        add_numbers(carried, place, rings.k.COLUMNS // PIECE - 1)
    dweights = warpgroup_mma_wait(1, [dweights])
    exchange_share(
        (dweights * slope).to(DTYPE),
        consumer.dscores.index(slot),
        consumer.filled.index(2 * slot + 1),
        phase,
        WARPGROUP,
    )
    return consumer.dscores.index(slot), dv


@gluon.jit
@no_type_check
def step_staged(dk, dv, consumer, sums, work, count, WARPGROUP: gl.constexpr):
    """Add one tile of queries to the gradients."""
    rings = consumer.rings
    HALF: gl.constexpr = rings.k.COLUMNS
    tile = work.query_tile(count, consumer.problem.mask)
    # Otherwise the addresses of keys and values would be kept in registers.
    zero = count >> 30
    dscores, dv = share_scores(
        dv=dv,
        carried=None,
        place=None,
        consumer=consumer,
        work=work,
        count=count,
        tile=tile,
        zero=zero,
        WARPGROUP=WARPGROUP,
    )
    # Columns by queries, so that stores to shared memory have no bank conflicts.
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    none = gl.zeros([ROWS, PIECE], gl.float32, OF_PIECE)
    piece = warpgroup_mma(k.slice(0, PIECE, 1).permute([1, 0]), dscores, none, use_acc=False, is_async=True)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    piece, dv = warpgroup_mma_wait(1, [piece, dv])
    tma.store_wait(0)
    rings.dout.release(2 * count)
    rings.dout.release(2 * count + 1)
    sums.add(piece, work, tile * ROWS, WARPGROUP * HALF, WARPGROUP)
    if HALF > PIECE:
        later = warpgroup_mma(k.slice(PIECE, PIECE, 1).permute([1, 0]), dscores, none, use_acc=False, is_async=True)
        dk, later = warpgroup_mma_wait(0, [dk, later])
        tma.store_wait(0)
        sync_warps()
        sums.add(later, work, tile * ROWS, WARPGROUP * HALF + PIECE, WARPGROUP)
    else:
        dk = warpgroup_mma_wait(0, [dk])
    rings.q.release(2 * count)
    rings.q.release(2 * count + 1)
    return dk, dv


@gluon.jit
@no_type_check
def dq_piece(dscores, k, INDEX: gl.constexpr):
    """Issue 64 of this warpgroup's columns of dQ = dS K: [64 queries, columns]."""
    piece = gl.zeros([ROWS, PIECE], gl.float32, OF_PIECE)
    return warpgroup_mma(dscores.permute([1, 0]), k.slice(INDEX * PIECE, PIECE, 1), piece, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def step_carried(dk, dv, carried, place, consumer, sums, work, count, WARPGROUP: gl.constexpr):
    """The same with dQ added from registers: returns its last 64 columns and their place, for the next step to add."""
    rings = consumer.rings
    PIECES: gl.constexpr = rings.k.COLUMNS // PIECE
    tile = work.query_tile(count, consumer.problem.mask)
    zero = count >> 30
    dscores, dv = share_scores(
        dv=dv,
        carried=carried,
        place=place,
        consumer=consumer,
        work=work,
        count=count,
        tile=tile,
        zero=zero,
        WARPGROUP=WARPGROUP,
    )
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    if PIECES > 1:
        piece = dq_piece(dscores, k, 0)
    later = dq_piece(dscores, k, PIECES - 1)
    dk = warpgroup_mma(dscores, rings.q.tile(2 * count + WARPGROUP), dk, is_async=True)
    place = sums.place(work, work.head, tile * ROWS, WARPGROUP, PIECES)
    if PIECES > 1:
        piece, dv = warpgroup_mma_wait(2, [piece, dv])
        add_numbers(piece, place, 0)
        end_additions(consumer.filled, count)
    dk, dv, later = warpgroup_mma_wait(0, [dk, dv, later])
    # One mbarrier for both halves of Q and of dO: each arrival costs a barrier of the warpgroup.
    rings.q.release(2 * count)
    return dk, dv, later, place
