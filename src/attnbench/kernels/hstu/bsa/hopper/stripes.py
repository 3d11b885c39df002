# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""What a warpgroup of hstu_bsa_hopper_select does with its stripes, 64 rows each: one or two.

With two the scores of both are issued at once, and what is worked out of one runs beside the products of the other; the
tile is waited for and given back once.  Of the keys nearby each stripe sees its own.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.hstu.bsa.hopper.topk import (
    NOTHING,
    fold_keys,
    keys_of,
    merge_owners,
    parted_columns,
    store_blocks,
)
from attnbench.kernels.hstu.bsa.tiles import near_masks, near_weights, standing
from attnbench.kernels.hstu.tiles import silu
from attnbench.kernels.shared.hopper import ROWS, flat, give_back, place_of, store_tile, sync_warps, take, wait_tile


@gluon.jit
@no_type_check
def issue_scores(q, k, BLOCKS: gl.constexpr):
    """Issue the product of a stripe's queries and a tile of keys."""
    none = gl.zeros([ROWS, BLOCKS], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS, 16]))
    return warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)


@gluon.jit
@no_type_check
def issue_sum(acc, weights, rings, count, dtype: gl.constexpr):
    """Issue the product of a stripe's weights with the values of the count-th tile."""
    _q_rings, ring, values = rings
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    rounded = gl.convert_layout(weights.to(dtype), WEIGHTS)
    # The tile is there; what is written behind a wait for it, to run beside the product, stays behind.
    wait_tile(ring, count)
    return warpgroup_mma(rounded, flat(values.index(count % values.shape[0])), acc, is_async=True)


@gluon.jit
@no_type_check
def rank_scores(best, scores, limit, start, BLOCKS: gl.constexpr, BITS: gl.constexpr, MASKED: gl.constexpr):
    """Fold the scores of a stripe into its lists, of blocks before `limit` where MASKED."""
    if len(best) > 0:
        keys = keys_of(scores, start, BITS)
        if MASKED:
            own, place = parted_columns(scores)
            keys = gl.where(place < limit[:, None] - start - own, keys, NOTHING)
        best = fold_keys(best, keys, ROWS, BLOCKS)
    return best


@gluon.jit
@no_type_check
def coarse_tile(accs, lists, qs, rings, count, start, limits, half_alpha, BLOCKS: gl.constexpr, BITS: gl.constexpr,
                APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr, MASKED: gl.constexpr):
    """Weigh and rank the blocks from `start` on, the count-th tile, for each stripe of a warpgroup."""
    _q_rings, ring, _values = rings
    MORE: gl.constexpr = len(qs) - 1
    k = take(ring, count)
    issued = ()
    for i in gl.static_range(len(qs)):
        issued = issued + (issue_scores(qs[i], k, BLOCKS),)
    scores = ()
    sums = ()
    ranked = ()
    for i in gl.static_range(len(qs)):
        mine = warpgroup_mma_wait(MORE, [issued[i]])
        if not BESIDE:
            ranked = ranked + (rank_scores(lists[i], mine, limits[i][1], start, BLOCKS, BITS, MASKED),)
        seen = mine
        if MASKED:
            own, place = parted_columns(mine)
            seen = gl.where(place < limits[i][0][:, None] - start - own, mine, 0.0)  # whose SiLU is 0
        sums = sums + (issue_sum(accs[i], silu(seen, half_alpha, APPROXIMATE), rings, count, qs[i].dtype),)
        scores = scores + (mine,)
    if BESIDE:
        for i in gl.static_range(len(qs)):
            ranked = ranked + (rank_scores(lists[i], scores[i], limits[i][1], start, BLOCKS, BITS, MASKED),)
    # And what is written before a wait for the tile stays before it.
    wait_tile(ring, count)
    ended = ()
    for i in gl.static_range(len(qs)):
        ended = ended + (warpgroup_mma_wait(MORE - i, [sums[i]]),)
    give_back(ring, count)
    return ended, ranked


@gluon.jit
@no_type_check
def near_tile(acc, q, rings, count, start, stands, gates, half_alpha, WINDOW: gl.constexpr, BLOCK_SIZE: gl.constexpr,
              BLOCKS: gl.constexpr, APPROXIMATE: gl.constexpr):
    """Add the keys from `start` on, the count-th tile, that a stripe's local and sliding branches see."""
    position, stand, local, seen = stands
    of_local, of_window = gates
    scores = warpgroup_mma_wait(0, [issue_scores(q, take(rings[1], count), BLOCKS)])
    keys = start + gl.arange(0, BLOCKS, gl.SliceLayout(0, scores.type.layout))[None, :]
    in_local, in_window = near_masks(keys, position[:, None], stand[:, None], local[:, None], seen, WINDOW, BLOCK_SIZE)
    weights = silu(scores, half_alpha, APPROXIMATE)
    weights = near_weights(weights, in_local, in_window, of_local[:, None], of_window[:, None], WINDOW)
    return warpgroup_mma_wait(0, [issue_sum(acc, weights, rings, count, q.dtype)])


@gluon.jit
@no_type_check
def store_stripe(acc, best, place, out_desc, scale, blocks_ptr, row, job, heads, BLOCK_SIZE: gl.constexpr,
                 COUNTS: gl.constexpr, BITS: gl.constexpr, LAYOUT: gl.constexpr):
    """Let the 64 rows from `row` leave by way of `place`, and write their blocks."""
    head, _key_start, query_start, keys, first_query, queries, _start = job
    flat(place).store((acc * scale).to(out_desc.dtype))
    fence_async_shared()
    sync_warps()
    store_tile(out_desc, place_of(query_start, queries, row, head), place)
    chosen = merge_owners(best)
    LISTED: gl.constexpr = gl.SliceLayout(1, LAYOUT) if COUNTS == 1 else chosen[0].type.layout
    rows = row + gl.arange(0, ROWS, LISTED)
    _position, _stand, local = standing(rows, first_query, keys, BLOCK_SIZE)
    store_blocks(blocks_ptr + (query_start.to(gl.int64) * heads + head) * COUNTS, chosen, rows, local, rows < queries,
                 COUNTS, BITS, heads * COUNTS)
