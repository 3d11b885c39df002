# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""One step of the flash backward for Hopper: a tile of rows, through a consumer warpgroup's 64 keys."""

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

from attnbench.kernels.flash.hopper.tiles import Mask
from attnbench.kernels.flash.tiles import padded_start, rows_of_keys, sequence, tiles_of
from attnbench.kernels.shared.hopper import ROWS, Argument, Ring, add_tile, aggregate, flat, store_tile, sync_warps
from attnbench.kernels.shared.hopper_backward import in_order
from attnbench.kernels.shared.rows import section_of

SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS.value, 16]))
"Layout of a product [64, 64]."

LN_2 = gl.constexpr(0.6931471805599453)


@aggregate
class Rings:
    """The rings of a backward."""

    q: Ring
    k: Ring
    v: Ring
    dout: Ring


@aggregate
class Statistics:
    """Row statistics in shared memory, with as many stages as the rings of Q and dO."""

    leasts: gl.shared_memory_descriptor
    "-lse / scale; up to 64 dims -lse log2(e)"
    deltas: gl.shared_memory_descriptor
    "-delta"
    numbers: gl.shared_memory_descriptor
    "0 to 63"


@aggregate
class GridProblem:
    """Launch arguments that describe the grid of work."""

    cu_q_ptr: Argument
    cu_k_ptr: Argument
    seqlen_q: Argument
    seqlen_k: Argument
    mask: Mask
    members: Argument
    "query heads of a KV head"
    heads_kv: Argument
    pairs: Argument
    "(sequence, KV head) pairs"
    tiles: Argument
    "key tiles of the longest sequence"
    group: Argument
    "pairs of a section (`section_of`)"
    PACKED: gl.constexpr
    BLOCK_M: gl.constexpr
    KEYS: gl.constexpr
    "keys of a program"


@aggregate
class KeyTile:
    """The key tile of a program, and the row tiles that see it; tiles [whole, split) need no mask."""

    head_kv: gl.tensor
    padded: gl.tensor
    "the sequence's first row in the workspace"
    query_start: gl.tensor
    key_start: gl.tensor
    queries: gl.tensor
    keys: gl.tensor
    "of the sequence"
    start: gl.tensor
    "the program's first key"
    begin: gl.tensor
    whole: gl.tensor
    split: gl.tensor
    end: gl.tensor


@aggregate
class Consumer:
    """Arguments of the consumer warpgroups."""

    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    sums_desc: tma.tensor_descriptor
    "of dQ"
    rings: Rings
    stats: Statistics
    dscores: gl.shared_memory_descriptor
    "dSᵀ of both warpgroups, in two stages of tiles [64, 64]"
    filled: gl.shared_memory_descriptor
    "mbarriers of the stages of `dscores`"
    done: gl.shared_memory_descriptor
    "mbarrier: both warpgroups have read the keys for the last time"
    staging: gl.shared_memory_descriptor
    "tiles through which dQ is stored, one for each warpgroup"
    problem: GridProblem
    scale_log2: Argument


@gluon.jit
@no_type_check
def allocate_statistics(desc, LEASTS: gl.constexpr, DELTAS: gl.constexpr):
    """Allocate buffers for the statistics of so many tiles, and for the row numbers; before warp specialization."""
    leasts = gl.allocate_shared_memory(gl.float32, [LEASTS] + desc.block_shape, desc.layout)
    deltas = gl.allocate_shared_memory(gl.float32, [DELTAS] + desc.block_shape, desc.layout)
    numbers = gl.allocate_shared_memory(gl.int32, desc.block_shape, desc.layout)
    EACH: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    numbers.store(gl.arange(0, ROWS, gl.SliceLayout(0, EACH))[None, :])
    return Statistics(leasts, deltas, numbers)


@gluon.jit
@no_type_check
def key_tile_of(problem):
    """The key tile of this program."""
    mask = problem.mask
    KEYS: gl.constexpr = problem.KEYS
    # The first keys are seen by most rows, so their tiles come first.
    tile, pair = section_of(gl.program_id(0), problem.tiles, problem.pairs, problem.group)
    number = pair // problem.heads_kv
    head_kv = pair - number * problem.heads_kv
    bounds = sequence(problem.cu_q_ptr, problem.cu_k_ptr, problem.seqlen_q, problem.seqlen_k, number, problem.PACKED)
    queries, keys = bounds.queries, bounds.keys
    padded = padded_start(number, bounds.query_start, queries, problem.PACKED, problem.BLOCK_M).to(gl.int32)
    query_start = (bounds.query_start + bounds.batch * problem.seqlen_q).to(gl.int32)
    key_start = (bounds.key_start + bounds.batch * problem.seqlen_k).to(gl.int32)
    start = tile * KEYS
    reach = rows_of_keys(
        first=start,
        last=gl.minimum(start + KEYS, keys) - 1,
        queries=queries,
        shift=keys - queries,
        left=mask.left,
        right=mask.right,
        HAS_LEFT=mask.HAS_LEFT,
        HAS_RIGHT=mask.HAS_RIGHT,
    )
    tiles = tiles_of(reach, problem.BLOCK_M)
    whole, split = tiles.whole, tiles.split
    if start + KEYS > keys:
        # Keys past the end are loaded as zeros, but their probabilities would not be 0: such a tile is masked.
        whole = tiles.end
        split = tiles.end
    return KeyTile(
        head_kv=head_kv,
        padded=padded,
        query_start=query_start,
        key_start=key_start,
        queries=queries,
        keys=keys,
        start=start,
        begin=tiles.begin,
        whole=whole,
        split=split,
        end=tiles.end,
    )


@gluon.jit
@no_type_check
def reach_of(key, work, mask, LAYOUT: gl.constexpr = SCORES):
    """The first row that sees each of the 64 keys from `key`; with HAS_LEFT also the last."""
    columns = key + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    shift = work.keys - work.queries
    # A row number past every row: no row sees a key past the end.
    low = gl.where(columns < work.keys, 0, work.queries + 2 * ROWS)
    high = low
    if mask.HAS_RIGHT:
        low = gl.maximum(low, columns - (shift + mask.right))
    if mask.HAS_LEFT:
        high = columns + (mask.left - shift)
    return low, high


@gluon.jit
@no_type_check
def hide(scores, numbers, at, low, high, HAS_LEFT: gl.constexpr):
    """Scores [keys, rows] with masked ones set to -∞; the rows begin at `at`."""
    # Recomputed here; otherwise the compiler would keep these numbers in sixteen registers through the loop.
    rows = numbers.load(scores.type.layout)
    see = rows >= (low - at)[:, None]
    if HAS_LEFT:
        see &= rows <= (high - at)[:, None]
    return gl.where(see, scores, float("-inf"))


@gluon.jit
@no_type_check
def weigh(scores, least, dv, dout, consumer, at, masked, low, high, WEIGHTS: gl.constexpr, AFTER: gl.constexpr):
    """P of 64 rows, and P dO added to dV.  AFTER products were issued after Sᵀ; they end in this order."""
    stats = consumer.stats
    if consumer.problem.BLOCK_M == ROWS:
        # Up to 64 dims the kernel before has done this: the assembler puts it, and the wait for `least`, between two
        # products of dP, which delays them.  At 128 dims it was measured to be faster here; the reason is not known.
        least *= consumer.scale_log2
    scores = warpgroup_mma_wait(AFTER, [scores])
    if masked:
        scores = hide(scores, stats.numbers, at, low, high, consumer.problem.mask.HAS_LEFT)
    weights = gl.exp2(scores * consumer.scale_log2 + least)
    dv = warpgroup_mma(gl.convert_layout(weights.to(dout.dtype), WEIGHTS), dout, dv, is_async=True)
    return weights, dv


@gluon.jit
@no_type_check
def slope(weights, dweights, consumer, slot):
    """dSᵀ = P ∘ (dPᵀ - delta) of 64 rows, rounded to the inputs' dtype."""
    delta = consumer.stats.deltas.index(slot).load(SCORES)
    return (weights * (dweights + delta)).to(consumer.dscores.dtype)


@gluon.jit
@no_type_check
def store_gradient(tile, value, desc, place):
    """Start to store a tile of a gradient from shared memory."""
    flat(tile).store(value)
    fence_async_shared()
    sync_warps()
    store_tile(desc, place, tile)


@gluon.jit
@no_type_check
def dq_part(dscores, stage, k_ring, zero, WARPGROUP: gl.constexpr, PARTS: gl.constexpr):
    """Issue this warpgroup's half of dQ = dS K: 64 rows, 64 columns."""
    part = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    for of in gl.static_range(2):
        k = flat(k_ring.tiles.index(of + zero))
        if PARTS == 1:
            dscore = dscores.index(stage * 2 + of)
            k = k.slice(WARPGROUP * ROWS, ROWS, 1)
        else:
            dscore = dscores.index(stage * 4 + WARPGROUP * 2 + of)
        part = warpgroup_mma(dscore.permute([1, 0]), k, part, use_acc=of > 0, is_async=True)
    return part


@gluon.jit
@no_type_check
def clear_dscores(consumer, WARPGROUP: gl.constexpr):
    """Set dSᵀ of the step before the first one to 0, this warpgroup's part: that of odd steps."""
    PARTS: gl.constexpr = consumer.problem.BLOCK_M // ROWS
    dscores = consumer.dscores
    none = gl.zeros([ROWS, ROWS], dscores.dtype, SCORES)
    for index in gl.static_range(PARTS):
        dscores.index((2 + index if PARTS == 1 else 4 + 2 * index) + WARPGROUP).store(none)
    fence_async_shared()
    mbarrier.arrive(consumer.filled.index(1))


@gluon.jit
@no_type_check
def await_dscores(consumer, count):
    """Wait until both warpgroups have stored dSᵀ of the step before the count-th, and read that of the one before it."""
    mbarrier.wait(consumer.filled.index((count + 1) & 1), count // 2 & 1)


@gluon.jit
@no_type_check
def stage_dq(part, consumer, WARPGROUP: gl.constexpr):
    """Copy this warpgroup's half of dQ to shared memory, when its last one has left."""
    tma.store_wait(0)
    sync_warps()
    mine = consumer.staging.index(WARPGROUP)
    mine.reshape([ROWS, ROWS]).store(in_order(part))


@gluon.jit
@no_type_check
def add_dq(consumer, work, count, tile, head, WARPGROUP: gl.constexpr):
    """Start to add it to the sums of dQ, as that of the step before the count-th; the warps have synchronized.

    The count-th step has this tile and head.  Before the first step there is none: zeros are added to that one's rows.
    """
    problem = consumer.problem
    turned = tile == work.begin
    tile = gl.where(count == 0, tile, gl.where(turned, work.end, tile) - 1)
    head = gl.where(turned & (count > 0), head - 1, head)
    at = (work.padded + tile * problem.BLOCK_M) * (consumer.rings.k.COLUMNS // ROWS) + WARPGROUP * ROWS
    add_tile(consumer.sums_desc, [head, at, 0], consumer.staging.index(WARPGROUP))


@gluon.jit
@no_type_check
def add_last_dq(consumer, work, count, tile, head, WARPGROUP: gl.constexpr):
    """Add dQ of the last of `count` steps; tile and head are those after it."""
    PARTS: gl.constexpr = consumer.problem.BLOCK_M // ROWS
    await_dscores(consumer, count)
    part = dq_part(consumer.dscores, (count + 1) & 1, consumer.rings.k, count >> 30, WARPGROUP, PARTS)
    part = warpgroup_mma_wait(0, [part])
    stage_dq(part, consumer, WARPGROUP)
    fence_async_shared()
    sync_warps()
    add_dq(consumer, work, count, tile, head, WARPGROUP)


@gluon.jit
@no_type_check
def step(v, dk, dv, consumer, work, low, high, count, tile, head, WARPGROUP: gl.constexpr):
    """Add one tile of rows (64 or 128) to dK and dV, and dQ of the step before to its sums.

    A warpgroup therefore does not wait for the other's dSᵀ of the same step, and stores dQ while dV and dK are computed.
    """
    rings = consumer.rings
    dscores = consumer.dscores
    PARTS: gl.constexpr = consumer.problem.BLOCK_M // ROWS
    OF_K: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    OF_V: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    STAGES: gl.constexpr = rings.q.STAGES
    stage = count & 1
    at = tile * (ROWS * PARTS)
    first = count * PARTS
    slot = first % STAGES
    masked = (tile < work.whole) | (tile >= work.split)
    # Always 0, which the compiler cannot know: otherwise it would keep the addresses of all later accesses in registers.
    zero = count >> 30
    none = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    k = flat(rings.k.tiles.index(WARPGROUP + zero))
    if PARTS == 1:
        v = flat(rings.v.tiles.index(WARPGROUP + zero))
    q = rings.q.take(first)
    leasts = consumer.stats.leasts
    if PARTS == 1:
        # Loaded among the products, it delays those of dP; up to 64 dims, registers are too few to load it here.
        least = leasts.index(slot).load(SCORES)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    dout = rings.dout.take(first)
    dweights = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
    if PARTS == 1:
        weights, dv = weigh(
            scores=scores,
            least=least,
            dv=dv,
            dout=dout,
            consumer=consumer,
            at=at,
            masked=masked,
            low=low,
            high=high,
            WEIGHTS=OF_V,
            AFTER=1,
        )
        dweights = warpgroup_mma_wait(1, [dweights])
        dscore = slope(weights, dweights, consumer, slot)
        await_dscores(consumer, count)
        part = dq_part(dscores, stage ^ 1, rings.k, zero, WARPGROUP, PARTS)
        dscores.index(stage * 2 + WARPGROUP).store(dscore)
    else:
        late_q = rings.q.take(first + 1)
        late_scores = warpgroup_mma(k, late_q.permute([1, 0]), none, use_acc=False, is_async=True)
        weights, dv = weigh(
            scores=scores,
            least=leasts.index(slot).load(SCORES),
            dv=dv,
            dout=dout,
            consumer=consumer,
            at=at,
            masked=masked,
            low=low,
            high=high,
            WEIGHTS=OF_V,
            AFTER=2,
        )
        dweights = warpgroup_mma_wait(2, [dweights])
        dscore = slope(weights, dweights, consumer, slot)
        dk = warpgroup_mma(gl.convert_layout(dscore, OF_K), q, dk, is_async=True)
        await_dscores(consumer, count)
        dscores.index(stage * 4 + WARPGROUP).store(dscore)
        q = late_q
        dout = rings.dout.take(first + 1)
        dweights = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
        slot = (first + 1) % STAGES
        weights, dv = weigh(
            scores=late_scores,
            least=leasts.index(slot).load(SCORES),
            dv=dv,
            dout=dout,
            consumer=consumer,
            at=at + ROWS,
            masked=masked,
            low=low,
            high=high,
            WEIGHTS=OF_V,
            AFTER=3,
        )
        dweights = warpgroup_mma_wait(1, [dweights])
        # Registers have room for dQ now: the operands of the products before are free.
        part = dq_part(dscores, stage ^ 1, rings.k, zero, WARPGROUP, PARTS)
        dscore = slope(weights, dweights, consumer, slot)
        dscores.index(stage * 4 + 2 + WARPGROUP).store(dscore)
    dk = warpgroup_mma(gl.convert_layout(dscore, OF_K), q, dk, is_async=True)
    part, dv = warpgroup_mma_wait(1, [part, dv])
    stage_dq(part, consumer, WARPGROUP)
    # One fence and one barrier for both: dSᵀ of this step is stored, and that of the step before has been read.
    fence_async_shared()
    mbarrier.arrive(consumer.filled.index(stage))
    add_dq(consumer, work, count, tile, head, WARPGROUP)
    dk = warpgroup_mma_wait(0, [dk])
    # For dO too, of which the producer does not await the release: each costs a barrier of the warpgroup.
    for index in gl.static_range(PARTS):
        rings.q.release(first + index)
    return dk, dv
