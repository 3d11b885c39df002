# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper over 128 dims: two warpgroups share 64 keys, each with half the columns.

dK and dV of 64 keys and 256 dims are all the registers of one warpgroup.  So each has half the columns of both, and of
dQ; and since half a product's columns need all of A and dS, each works these out for 32 of a tile's 64 queries and
puts them into shared memory, where products read them.  Tiles of rows are loaded in halves of their columns.  Apart
from that it is `hopper.backward`.
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

from attnbench.kernels.hstu.dense.hopper.tiles import hide, job_of, step_of
from attnbench.kernels.hstu.tiles import COUNTS, silu_and_slope
from attnbench.kernels.shared.hopper import (
    ROWS,
    add_tile,
    barriers,
    fill,
    flat,
    give_back,
    place_of,
    ring_of,
    store_tile,
    sync_warps,
    take,
    tile_of,
)

SHARE = gl.constexpr(32)
"Queries of a tile whose scores a warpgroup works out."

PIECE = gl.constexpr(64)
"Columns of dQ that leave at once."


@gluon.jit
@no_type_check
def fill_halves(ring, count, desc, start, rows, first, head):
    """Load rows as two tiles, of half the columns each."""
    for half in gl.static_range(2):
        fill(ring, 2 * count + half, desc, start, rows, first, head, 0, half * ring[0].shape[5])


@gluon.jit
@no_type_check
def load(given, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
         HAS_CACHE: gl.constexpr):
    """The loader's work."""
    q_desc, k_desc, v_desc, dout_desc, rings, problem = given
    q_ring, k_ring, v_ring, dout_ring = rings
    (head, key_start, query_start, keys, first_query, _prefix, _seen, start, front, begin, _whole, _split,
     end) = job_of(problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, ROWS)
    steps = front + end - begin
    if (start < keys) & (steps > 0):
        queries = keys - first_query
        fill_halves(k_ring, 0, k_desc, key_start, keys, start, head)
        for count in range(steps):
            at = step_of(count, front, begin, HAS_PREFIX) * ROWS
            fill_halves(q_ring, count, q_desc, query_start, queries, at, head)
            if count == 0:
                fill_halves(v_ring, 0, v_desc, key_start, keys, start, head)
            fill_halves(dout_ring, count, dout_desc, query_start, queries, at, head)


@gluon.jit
@no_type_check
def multiply_share(keys, zero, ring, count, WHICH: gl.constexpr):
    """Issue the product [64 keys, 32 queries] of keys, in halves, with this warpgroup's share of a tile of rows."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHARE, 16])
    share = gl.zeros([ROWS, SHARE], gl.float32, LAYOUT)
    for half in gl.static_range(2):
        rows = take(ring, 2 * count + half).slice(WHICH * SHARE, SHARE, 0)
        share = warpgroup_mma(flat(keys.index(half + zero)), rows.permute([1, 0]), share, use_acc=half > 0,
                              is_async=True)
    return share


@gluon.jit
@no_type_check
def hand_over(share, tile, filled, phase, WHICH: gl.constexpr):
    """Put this warpgroup's share into a tile [64 keys, 64 queries] for both, and wait for the other's."""
    tile.slice(WHICH * SHARE, SHARE, 1).store(share)
    fence_async_shared()
    mbarrier.arrive(filled)
    mbarrier.wait(filled, phase)


@gluon.jit
@no_type_check
def send(piece, staging, dq_desc, query_start, queries, at, head, column):
    """Add columns of dQ, [columns, 64 queries], to memory; what was sent before has been read, and all warps know."""
    flat(staging).permute([1, 0]).store(piece)
    fence_async_shared()
    sync_warps()
    add_tile(dq_desc, place_of(query_start, queries, at, head, column), staging)


@gluon.jit
@no_type_check
def step(dk, dv, tiles, filled, dq_desc, job, count, WHICH: gl.constexpr, CAUSAL: gl.constexpr,
         HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, APPROXIMATE: gl.constexpr):
    """One tile of queries into the gradients."""
    q_ring, k_ring, v_ring, dout_ring, weighted, downs, staging = tiles
    (head, query_start, keys, first_query, prefix, seen, window, key, front, begin, whole, split, half_alpha,
     hidden) = job
    HALF: gl.constexpr = k_ring[0].shape[5]
    DTYPE: gl.constexpr = k_ring[0].dtype
    OF_PIECE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PIECE, 16])
    tile = step_of(count, front, begin, HAS_PREFIX)
    slot = count & 1
    phase = count // 2 & 1
    # Where keys and values lie would be held in registers.
    zero = count >> 30
    scores = multiply_share(k_ring[0], zero, q_ring, count, WHICH)
    above = multiply_share(v_ring[0], zero, dout_ring, count, WHICH)
    scores = warpgroup_mma_wait(2, [scores])
    if (tile < whole) | (tile >= split):
        scores = hide(scores, hidden, key, first_query + tile * ROWS + WHICH * SHARE, prefix, seen, window, False,
                      CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW)
    weights, slope = silu_and_slope(scores, half_alpha, APPROXIMATE)
    hand_over(weights.to(DTYPE), weighted.index(slot), filled.index(2 * slot), phase, WHICH)
    dv = warpgroup_mma(weighted.index(slot), tile_of(dout_ring, 2 * count + WHICH), dv, is_async=True)
    above = warpgroup_mma_wait(1, [above])
    hand_over((above * slope).to(DTYPE), downs.index(slot), filled.index(2 * slot + 1), phase, WHICH)
    # Columns by queries, so that no threads meet in a bank of shared memory when they store them.
    down = downs.index(slot)
    k = flat(k_ring[0].index(WHICH + zero))
    none = gl.zeros([ROWS, PIECE], gl.float32, OF_PIECE)
    piece = warpgroup_mma(k.slice(0, PIECE, 1).permute([1, 0]), down, none, use_acc=False, is_async=True)
    dk = warpgroup_mma(down, tile_of(q_ring, 2 * count + WHICH), dk, is_async=True)
    piece, dv = warpgroup_mma_wait(1, [piece, dv])
    tma.store_wait(0)
    give_back(dout_ring, 2 * count)
    give_back(dout_ring, 2 * count + 1)
    mine = staging.index(WHICH)
    send(piece, mine, dq_desc, query_start, keys - first_query, tile * ROWS, head, WHICH * HALF)
    if HALF > PIECE:
        later = warpgroup_mma(k.slice(PIECE, PIECE, 1).permute([1, 0]), down, none, use_acc=False, is_async=True)
        dk, later = warpgroup_mma_wait(0, [dk, later])
        tma.store_wait(0)
        sync_warps()
        send(later, mine, dq_desc, query_start, keys - first_query, tile * ROWS, head, WHICH * HALF + PIECE)
    else:
        dk = warpgroup_mma_wait(0, [dk])
    give_back(q_ring, 2 * count)
    give_back(q_ring, 2 * count + 1)
    return dk, dv


@gluon.jit
@no_type_check
def gather(given, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, APPROXIMATE: gl.constexpr):
    """A warpgroup's work: half the columns of every gradient."""
    dk_desc, dv_desc, dq_desc, rings, weighted, downs, staging, filled, problem, factors = given
    q_ring, k_ring, v_ring, dout_ring = rings
    half_alpha, hidden, dv_scale = factors
    HALF: gl.constexpr = k_ring[0].shape[5]
    HALF_V: gl.constexpr = v_ring[0].shape[5]
    (head, key_start, query_start, keys, first_query, prefix, seen, start, front, begin, whole, split,
     end) = job_of(problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, ROWS)
    if start < keys:
        dk = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
        dv = gl.zeros([ROWS, HALF_V], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF_V, 16]))
        steps = front + end - begin
        if steps > 0:
            job = (head, query_start, keys, first_query, prefix, seen, problem[4], start, front, begin, whole, split,
                   half_alpha, hidden)
            tiles = (q_ring, k_ring, v_ring, dout_ring, weighted, downs, staging)
            for half in gl.static_range(2):
                take(k_ring, half)
                take(v_ring, half)
            for count in range(steps):
                dk, dv = step(dk, dv, tiles, filled, dq_desc, job, count, WHICH, CAUSAL, HAS_PREFIX, HAS_TARGETS,
                              HAS_WINDOW, APPROXIMATE)
        # Gradients leave from where keys and values were: of the half that is not its own a warpgroup has read the last
        # when it hands over its last dS.
        flat(v_ring[0].index(WHICH)).store((dv * dv_scale).to(dv_desc.dtype))
        flat(k_ring[0].index(WHICH)).store((dk * (half_alpha * dv_scale)).to(dk_desc.dtype))
        fence_async_shared()
        sync_warps()
        store_tile(dv_desc, place_of(key_start, keys, start, head, WHICH * HALF_V), v_ring[0].index(WHICH))
        store_tile(dk_desc, place_of(key_start, keys, start, head, WHICH * HALF), k_ring[0].index(WHICH))
        tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_backward_wide(
    q_desc, k_desc, v_desc, dout_desc, dk_desc, dv_desc, dq_desc, offsets_ptr, offsets_q_ptr, num_targets_ptr,
    half_alpha, hidden, dv_scale, heads, pairs, tiles, group, contextual_len, window,
    CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
    HAS_CACHE: gl.constexpr, STAGES: gl.constexpr, APPROXIMATE: gl.constexpr,
):
    """Rings, tiles and barriers, and who does what; of dO there is one tile, which is read early in a step."""
    problem = (offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group)
    rings = (ring_of(q_desc, 2 * STAGES, 2), ring_of(k_desc, 2, 1), ring_of(v_desc, 2, 1), ring_of(dout_desc, 2, 2))
    # A share of the columns is a tile: swizzled by no more than a share.
    SHARED: gl.constexpr = gl.NVMMASharedLayout(2 * SHARE, 16, 2)
    weighted = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], SHARED)
    downs = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, ROWS], SHARED)
    staging = gl.allocate_shared_memory(gl.float32, [2] + dq_desc.block_shape, dq_desc.layout)
    filled = barriers(4, 2)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, dout_desc, rings, problem)
    sums = (dk_desc, dv_desc, dq_desc, rings, weighted, downs, staging, filled, problem,
            (half_alpha, hidden, dv_scale))
    # Constants are written out each time: in a tuple they would be numbers of the run.
    gl.warp_specialize([
        (gather, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE)),
        (gather, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE)),
        (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE)),
    ], [4, 1], [240, 24])
