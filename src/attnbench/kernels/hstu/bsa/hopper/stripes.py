# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""What a warpgroup of hstu_bsa_hopper_select computes for its one or two stripes of 64 rows.

With two, the scores of both are issued together, and computation of one overlaps with products of the other; each tile is
waited for and released once.  Each stripe has its own range of nearby keys.
"""

from __future__ import annotations

from typing import no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.hstu.bsa.hopper.topk import (
    NOTHING,
    fold_keys,
    keys_of,
    merge_owners,
    parted_columns,
    store_blocks,
)
from attnbench.kernels.hstu.bsa.tiles import complete_seen, near_begin, near_masks, near_weights, standing
from attnbench.kernels.hstu.tiles import silu
from attnbench.kernels.shared.hopper import ROWS, Argument, Ring, aggregate, coordinates, flat, store_tile, sync_warps


@aggregate
class GridProblem:
    """Launch arguments that describe the work items and their tiles."""

    offsets_ptr: Argument
    offsets_q_ptr: Argument
    heads: Argument
    tiles: Argument
    "query tiles of the longest sequence"
    items: Argument
    "work items of the grid"
    HAS_CACHE: gl.constexpr
    STRIPES: gl.constexpr
    "stripes of 64 rows of a work item"
    WINDOW: gl.constexpr
    BLOCK_SIZE: gl.constexpr
    BLOCKS: gl.constexpr
    "means or nearby keys of a tile"


@aggregate
class Work:
    """A work item: the rows from `start` of a sequence, and their head."""

    head: gl.tensor
    key_start: gl.tensor
    "first key of the sequence in the packed tensors"
    query_start: gl.tensor
    keys: gl.tensor
    "of the sequence"
    first_query: gl.tensor
    "position of query 0"
    queries: gl.tensor
    start: gl.tensor


@aggregate
class KeyTiles:
    """Tiles that some rows see: [0, end) of means, [near, behind) of keys.

    Every row sees and ranks every block of [0, whole).
    """

    whole: gl.tensor
    end: gl.tensor
    near: gl.tensor
    behind: gl.tensor


@gluon.jit
@no_type_check
def key_tiles_of(first, last, keys, problem):
    """The tiles seen by the rows at positions [first, last]."""
    BLOCKS: gl.constexpr = problem.BLOCKS
    BLOCK_SIZE: gl.constexpr = problem.BLOCK_SIZE
    local = standing(first, first_query=0, seen=keys, BLOCK_SIZE=BLOCK_SIZE).local
    visible = complete_seen(last, keys, BLOCK_SIZE)
    near = near_begin(first, keys, problem.WINDOW, BLOCK_SIZE) // BLOCKS
    return KeyTiles(
        whole=local // BLOCKS, end=(visible + BLOCKS - 1) // BLOCKS, near=near, behind=(last + BLOCKS) // BLOCKS
    )


@aggregate
class Rings:
    """Rings of queries, and of tiles of keys or means with their values."""

    q: gl.tuple
    "a Ring for each stripe"
    k: Ring
    values: gl.shared_memory_descriptor
    "with the stages of `k`, on the same mbarriers"


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    out_desc: tma.tensor_descriptor
    outs: gl.shared_memory_descriptor
    "buffers for outputs that do not fit into the query buffers"
    rings: Rings
    problem: GridProblem
    gates_ptr: Argument
    blocks_ptr: Argument
    half_alpha: Argument
    scale: Argument
    zero: Argument
    "always 0, which the compiler cannot know"
    GATES: gl.constexpr
    COUNTS: gl.constexpr
    "blocks of a query, the local one included"
    BITS: gl.constexpr
    "bits of a key that hold the block number"
    APPROXIMATE: gl.constexpr
    "whether SiLU uses the tanh instruction"
    BESIDE: gl.constexpr
    "whether blocks are ranked while the value product runs, otherwise before it is issued"
    BLOCK_V: gl.constexpr
    MINE: gl.constexpr
    "stripes of a warpgroup"


@aggregate
class Stripe:
    """The 64 rows of a stripe, each field [64] in the layout of scores: positions, what the rows see, and their gates."""

    position: gl.tensor
    stand: gl.tensor
    local: gl.tensor
    "from `standing`"
    complete: gl.tensor
    "number of complete blocks that a row sees"
    of_means: gl.tensor
    of_local: gl.tensor
    of_window: gl.tensor


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
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    rounded = gl.convert_layout(weights.to(dtype), WEIGHTS)
    # The tile has been waited for; code after a wait stays after it, so that it runs while the product does.
    rings.k.wait(count)
    return warpgroup_mma(rounded, flat(rings.values.index(count % rings.k.STAGES)), acc, is_async=True)


@gluon.jit
@no_type_check
def rank_scores(best, scores, limit, start, BLOCKS: gl.constexpr, BITS: gl.constexpr, MASKED: gl.constexpr):
    """Merge the scores of a stripe into its lists; with MASKED only blocks before `limit`."""
    if len(best) > 0:
        keys = keys_of(scores, start, BITS)
        if MASKED:
            own, place = parted_columns(scores)
            keys = gl.where(place < limit[:, None] - start - own, keys, NOTHING)
        best = fold_keys(best, keys, ROWS, BLOCKS)
    return best


@gluon.jit
@no_type_check
def coarse_tile(accs, lists, qs, stripes, consumer, count, start, MASKED: gl.constexpr):
    """Weigh and rank the blocks from `start`, the count-th tile, for each stripe of a warpgroup."""
    rings = consumer.rings
    MORE: gl.constexpr = len(qs) - 1
    BLOCKS: gl.constexpr = consumer.problem.BLOCKS
    BITS: gl.constexpr = consumer.BITS
    k = rings.k.take(count)
    issued = ()
    for i in gl.static_range(len(qs)):
        issued = issued + (issue_scores(qs[i], k, BLOCKS),)
    scores = ()
    sums = ()
    ranked = ()
    for i in gl.static_range(len(qs)):
        mine = warpgroup_mma_wait(MORE, [issued[i]])
        if not consumer.BESIDE:
            ranked = ranked + (rank_scores(lists[i], mine, stripes[i].local, start, BLOCKS, BITS, MASKED),)
        seen = mine
        if MASKED:
            own, place = parted_columns(mine)
            seen = gl.where(place < stripes[i].complete[:, None] - start - own, mine, 0.0)  # a score whose SiLU is 0
        weights = silu(seen, consumer.half_alpha, consumer.APPROXIMATE)
        sums = sums + (issue_sum(accs[i], weights, rings, count, qs[i].dtype),)
        scores = scores + (mine,)
    if consumer.BESIDE:
        for i in gl.static_range(len(qs)):
            ranked = ranked + (rank_scores(lists[i], scores[i], stripes[i].local, start, BLOCKS, BITS, MASKED),)
    # Code before a wait for the tile stays before it.
    rings.k.wait(count)
    ended = ()
    for i in gl.static_range(len(qs)):
        ended = ended + (warpgroup_mma_wait(MORE - i, [sums[i]]),)
    rings.k.release(count)
    return ended, ranked


@gluon.jit
@no_type_check
def near_tile(acc, q, stripe, consumer, count, start, seen):
    """Add the keys from `start`, the count-th tile, that a stripe's local and sliding branches see."""
    rings = consumer.rings
    problem = consumer.problem
    scores = warpgroup_mma_wait(0, [issue_scores(q, rings.k.take(count), problem.BLOCKS)])
    keys = start + gl.arange(0, problem.BLOCKS, gl.SliceLayout(0, scores.type.layout))[None, :]
    in_local, in_window = near_masks(
        keys,
        stripe.position[:, None],
        stripe.stand[:, None],
        stripe.local[:, None],
        seen,
        problem.WINDOW,
        problem.BLOCK_SIZE,
    )
    weights = silu(scores, consumer.half_alpha, consumer.APPROXIMATE)
    weights = near_weights(
        weights, in_local, in_window, stripe.of_local[:, None], stripe.of_window[:, None], problem.WINDOW
    )
    return warpgroup_mma_wait(0, [issue_sum(acc, weights, rings, count, q.dtype)])


@gluon.jit
@no_type_check
def store_stripe(acc, best, place, consumer, row, work, LAYOUT: gl.constexpr):
    """Store the 64 rows from `row` through `place`, and their blocks."""
    COUNTS: gl.constexpr = consumer.COUNTS
    heads = consumer.problem.heads
    flat(place).store((acc * consumer.scale).to(consumer.out_desc.dtype))
    fence_async_shared()
    sync_warps()
    store_tile(consumer.out_desc, coordinates(work.query_start, work.queries, row, work.head), place)
    chosen = merge_owners(best)
    LISTED: gl.constexpr = gl.SliceLayout(1, LAYOUT) if COUNTS == 1 else chosen[0].type.layout
    rows = row + gl.arange(0, ROWS, LISTED)
    local = standing(rows, work.first_query, work.keys, consumer.problem.BLOCK_SIZE).local
    store_blocks(
        blocks_ptr=consumer.blocks_ptr + (work.query_start.to(gl.int64) * heads + work.head) * COUNTS,
        chosen=chosen,
        rows=rows,
        local=local,
        mask=rows < work.queries,
        COUNTS=COUNTS,
        BITS=consumer.BITS,
        stride=heads * COUNTS,
    )
