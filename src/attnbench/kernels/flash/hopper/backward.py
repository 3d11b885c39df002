# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""DK, dV and the sums of dQ of softmax attention for Hopper: one warp loads, two warpgroups take 64 keys each.

The sums are those of portable.backward_columns with atomics, in another order of waits (arXiv:2407.08608).  Scores are
[keys, rows], so that P and dS are operands at once.  A step is a tile of rows, each product issued when it can be:

    loader        keys and values once, then tiles of Q and dO with what belongs to their rows, -lse / scale and -delta
    warpgroup     issues Sᵀ = K Qᵀ and dPᵀ = V dOᵀ
                  P = exp(Sᵀ), beside the second; issues dV += P dO
                  dSᵀ = P ∘ (dPᵀ - delta), beside that, for itself and into shared memory for both
                  waits for the other's; issues half of dQ = dS K, and dK += dSᵀ Q
                  dQ on its way to memory by a tensor map that adds, beside the last

Half of dQ is 64 rows by 64 columns, over all 128 keys: up to 64 dims half of a step's 128 rows, above half of the
columns of its 64.  DS lies in two places by turns: who saw that both warpgroups filled one knows that both have read
the other.  No product is in flight when the loop turns: the compiler lets all of them wait otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.kernels.flash.tiles import BACKWARD_COUNTS, padded_start, rows_of_keys, sequence, tiles_of
from attnbench.kernels.shared.hopper import (
    ROWS,
    add_tile,
    barriers,
    fill,
    flat,
    give_back,
    is_rows,
    load_tile,
    place_of,
    ring_of,
    rows_of,
    store_tile,
    sync_warps,
    take,
)
from attnbench.kernels.shared.rows import section_of
from attnbench.kernels.shared.tiling import group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.backward import BackwardConfig
    from attnbench.kernels.flash.problem import Problem

LN_2 = gl.constexpr(0.6931471805599453)

KEYS = gl.constexpr(128)
"Keys of a program, 64 a warpgroup."

SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS.value, 16]))
"Layout of a product [64, 64]."


@gluon.jit
@no_type_check
def job_of(problem, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_M: gl.constexpr):
    """Which keys a program is about, and which tiles of rows see them."""
    cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, left, right, _members, heads_kv, pairs, tiles, group = problem
    # The first keys are seen by most rows.
    tile, pair = section_of(gl.program_id(0), tiles, pairs, group)
    number = pair // heads_kv
    head_kv = pair - number * heads_kv
    batch, query_start, key_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED)
    padded = padded_start(number, query_start, queries, PACKED, BLOCK_M).to(gl.int32)
    query_start = (query_start + batch * seqlen_q).to(gl.int32)
    key_start = (key_start + batch * seqlen_k).to(gl.int32)
    start = tile * KEYS
    low, all_low, all_high, high = rows_of_keys(start, gl.minimum(start + KEYS, keys) - 1, queries, keys - queries,
                                                left, right, HAS_LEFT, HAS_RIGHT)
    begin, whole, split, end = tiles_of(low, all_low, all_high, high, BLOCK_M)
    if start + KEYS > keys:
        # Keys past the end are zeros, but their probabilities are not.
        whole = end
        split = end
    return head_kv, padded, query_start, key_start, queries, keys, start, begin, whole, split, end


@gluon.jit
@no_type_check
def load(given, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_M: gl.constexpr):
    """The loader's work."""
    q_desc, k_desc, v_desc, dout_desc, stats_desc, rings, stats, problem = given
    q_ring, k_ring, v_ring, dout_ring = rings
    leasts, deltas, _numbers = stats
    PLACES: gl.constexpr = leasts.shape[0]
    PARTS: gl.constexpr = BLOCK_M // ROWS
    members = problem[6]
    heads = problem[7] * members
    head_kv, padded, query_start, key_start, queries, keys, start, begin, _whole, _split, end = job_of(
        problem, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_M)
    if (start < keys) & (begin < end):
        for which in gl.static_range(2):
            fill(k_ring, which, k_desc, key_start, keys, start + which * ROWS, head_kv)
            fill(v_ring, which, v_desc, key_start, keys, start + which * ROWS, head_kv)
        count = 0
        for member in range(members):
            head = head_kv * members + member
            for part in range(begin * PARTS, end * PARTS):
                at = part * ROWS
                slot = count % PLACES
                fill(q_ring, count, q_desc, query_start, queries, at, head, 4 * ROWS)
                load_tile(stats_desc, [head, padded + at], q_ring[1].index(slot), leasts.index(slot))
                fill(dout_ring, count, dout_desc, query_start, queries, at, head, 4 * ROWS)
                load_tile(stats_desc, [heads + head, padded + at], dout_ring[1].index(slot), deltas.index(slot))
                count += 1


@gluon.jit
@no_type_check
def reach_of(key, queries, keys, left, right, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr):
    """The first row that sees each of 64 keys from `key`, and with HAS_LEFT the last."""
    columns = key + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    shift = keys - queries
    # No row is as late as the one that sees a key past the end.
    low = gl.where(columns < keys, 0, queries + 2 * ROWS)
    high = low
    if HAS_RIGHT:
        low = gl.maximum(low, columns - (shift + right))
    if HAS_LEFT:
        high = columns + (left - shift)
    return low, high


@gluon.jit
@no_type_check
def hide(scores, numbers, at, low, high, HAS_LEFT: gl.constexpr):
    """Scores [keys, rows] with those at -∞ that the mask hides; rows from `at`."""
    # Worked out here, the compiler would hold them in sixteen registers all along, which are not there.
    rows = numbers.load(SCORES)
    see = rows >= (low - at)[:, None]
    if HAS_LEFT:
        see &= rows <= (high - at)[:, None]
    return gl.where(see, scores, float("-inf"))


@gluon.jit
@no_type_check
def fold(scores, above, dv, dout, stats, slot, at, cut, low, high, scale_log2, HAS_LEFT: gl.constexpr,
         WEIGHTS: gl.constexpr, AFTER: gl.constexpr):
    """DSᵀ of 64 rows, and P dO into dV; AFTER products are in flight behind Sᵀ, and then behind dPᵀ."""
    leasts, deltas, numbers = stats
    least = leasts.index(slot).load(SCORES) * scale_log2
    scores = warpgroup_mma_wait(AFTER, [scores])
    if cut:
        scores = hide(scores, numbers, at, low, high, HAS_LEFT)
    weights = gl.exp2(scores * scale_log2 + least)
    dv = warpgroup_mma(gl.convert_layout(weights.to(dout.dtype), WEIGHTS), dout, dv, is_async=True)
    above = warpgroup_mma_wait(AFTER, [above])
    delta = deltas.index(slot).load(SCORES)
    return (weights * (above + delta)).to(dout.dtype), dv


@gluon.jit
@no_type_check
def part_of(downs, buffer, k_ring, zero, WHICH: gl.constexpr, PARTS: gl.constexpr):
    """Begin this warpgroup's half of dQ = dS K: 64 rows, 64 columns."""
    part = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    for of in gl.static_range(2):
        k = flat(k_ring[0].index(of + zero))
        if PARTS == 1:
            down = downs.index(buffer * 2 + of)
            k = k.slice(WHICH * ROWS, ROWS, 1)
        else:
            down = downs.index(buffer * 4 + WHICH * 2 + of)
        part = warpgroup_mma(down.permute([1, 0]), k, part, use_acc=of > 0, is_async=True)
    return part


@gluon.jit
@no_type_check
def in_order(part):
    """A tile [64, 64] of `SCORES` in the order of registers and threads: `portable.backward_rows.place_in_part`.

    Row by row two rows of a warp would meet in a bank of shared memory.
    """
    pieces = part.reshape([4, 2, 8, 8, 4, 2])
    return pieces.permute([3, 0, 2, 4, 1, 5]).reshape([ROWS, ROWS])


@gluon.jit
@no_type_check
def step(v, dk, dv, tiles, stats, filled, sums_desc, job, low, high, count, tile, head, WHICH: gl.constexpr,
         HAS_LEFT: gl.constexpr, PARTS: gl.constexpr):
    """One tile of rows, one or two times 64, into dK, dV and the sums of dQ."""
    q_ring, k_ring, v_ring, dout_ring, downs, staging = tiles
    padded, whole, split, scale_log2 = job
    OF_K: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    OF_V: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    BLOCK_D: gl.constexpr = k_ring[0].shape[5]
    PLACES: gl.constexpr = q_ring[0].shape[0]
    buffer = count & 1
    at = tile * (ROWS * PARTS)
    first = count * PARTS
    cut = (tile < whole) | (tile >= split)
    # 0, which the compiler does not know: it would hold the addresses of all that follows in registers.
    zero = count >> 30
    none = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    k = flat(k_ring[0].index(WHICH + zero))
    if PARTS == 1:
        v = flat(v_ring[0].index(WHICH + zero))
    q = take(q_ring, first)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    dout = take(dout_ring, first)
    above = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
    if PARTS == 1:
        down, dv = fold(scores, above, dv, dout, stats, first % PLACES, at, cut, low, high, scale_log2, HAS_LEFT, OF_V,
                        1)
        downs.index(buffer * 2 + WHICH).store(down)
    else:
        late_q = take(q_ring, first + 1)
        late_scores = warpgroup_mma(k, late_q.permute([1, 0]), none, use_acc=False, is_async=True)
        down, dv = fold(scores, above, dv, dout, stats, first % PLACES, at, cut, low, high, scale_log2, HAS_LEFT, OF_V,
                        2)
        dk = warpgroup_mma(gl.convert_layout(down, OF_K), q, dk, is_async=True)
        downs.index(buffer * 4 + WHICH).store(down)
        q = late_q
        dout = take(dout_ring, first + 1)
        above = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
        down, dv = fold(late_scores, above, dv, dout, stats, (first + 1) % PLACES, at + ROWS, cut, low, high,
                        scale_log2, HAS_LEFT, OF_V, 1)
        downs.index(buffer * 4 + 2 + WHICH).store(down)
    fence_async_shared()
    mbarrier.arrive(filled.index(buffer))
    mbarrier.wait(filled.index(buffer), count // 2 & 1)
    part = part_of(downs, buffer, k_ring, zero, WHICH, PARTS)
    dk = warpgroup_mma(gl.convert_layout(down, OF_K), q, dk, is_async=True)
    part, dv = warpgroup_mma_wait(1, [part, dv])
    tma.store_wait(0)
    # The warps meet before they arrive: the tile that the store read is free.
    for index in gl.static_range(PARTS):
        give_back(dout_ring, first + index)
    mine = staging.index(WHICH)
    mine.reshape([ROWS, ROWS]).store(in_order(part))
    fence_async_shared()
    sync_warps()
    add_tile(sums_desc, [head, (padded + at) * (BLOCK_D // ROWS) + WHICH * ROWS, 0], mine)
    dk = warpgroup_mma_wait(0, [dk])
    for index in gl.static_range(PARTS):
        give_back(q_ring, first + index)
    return dk, dv


@gluon.jit
@no_type_check
def leave(tile, value, desc, place):
    """Begin to store a tile of results from shared memory."""
    flat(tile).store(value)
    fence_async_shared()
    sync_warps()
    store_tile(desc, place, tile)


@gluon.jit
@no_type_check
def attend(given, WHICH: gl.constexpr, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr,
           BLOCK_M: gl.constexpr):
    """A warpgroup's work: 64 of the keys."""
    dk_desc, dv_desc, sums_desc, rings, stats, downs, filled, done, staging, problem, scale_log2 = given
    q_ring, k_ring, v_ring, dout_ring = rings
    DTYPE: gl.constexpr = dk_desc.dtype
    BLOCK_D: gl.constexpr = k_ring[0].shape[5]
    BLOCK_V: gl.constexpr = v_ring[0].shape[5]
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    members = problem[6]
    head_kv, padded, _query_start, key_start, queries, keys, start, begin, whole, split, end = job_of(
        problem, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_M)
    if start < keys:
        key = start + WHICH * ROWS
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, OF_K)
        dv = gl.zeros([ROWS, BLOCK_V], gl.float32, OF_V)
        if begin < end:
            job = (padded, whole, split, scale_log2)
            low, high = reach_of(key, queries, keys, problem[4], problem[5], HAS_LEFT, HAS_RIGHT)
            tiles = (q_ring, k_ring, v_ring, dout_ring, downs, staging)
            take(k_ring, 0)  # half of dQ is of all keys
            take(k_ring, 1)
            v = take(v_ring, WHICH)
            if BLOCK_M > ROWS:
                # Registers have room for it, and shared memory is what a step takes longest of.  There is one always.
                gl.assume(members * (end - begin) > 0)
                v = v.load(gl.DotOperandLayout(0, SCORES, 2))
            tile = begin
            head = head_kv * members
            for count in range(members * (end - begin)):
                dk, dv = step(v, dk, dv, tiles, stats, filled, sums_desc, job, low, high, count, tile, head, WHICH,
                              HAS_LEFT, BLOCK_M // ROWS)
                tile += 1
                if tile == end:
                    tile = begin
                    head += 1
            # Who has come here has read the keys for the last time.
            mbarrier.arrive(done)
            mbarrier.wait(done, 0)
        # Gradients leave from where keys and values were.
        leave(v_ring[0].index(WHICH), dv.to(DTYPE), dv_desc, place_of(key_start, keys, key, head_kv))
        leave(k_ring[0].index(WHICH), (dk * (scale_log2 * LN_2)).to(DTYPE), dk_desc,
              place_of(key_start, keys, key, head_kv))
        tma.store_wait(0)


@gluon.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_hopper_backward(
    q_desc, k_desc, v_desc, dout_desc, stats_desc, dk_desc, dv_desc, sums_desc, cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k,
    scale_log2, left, right, members, heads_kv, pairs, tiles, group,
    HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Rings, tiles and barriers, and who does what."""
    PARTS: gl.constexpr = BLOCK_M // ROWS
    PLACES: gl.constexpr = STAGES * PARTS
    problem = (cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, left, right, members, heads_kv, pairs, tiles, group)
    rings = (ring_of(q_desc, PLACES, 2), ring_of(k_desc, 2, 1), ring_of(v_desc, 2, 1), ring_of(dout_desc, PLACES, 2))
    leasts = gl.allocate_shared_memory(gl.float32, [PLACES] + stats_desc.block_shape, stats_desc.layout)
    deltas = gl.allocate_shared_memory(gl.float32, [PLACES] + stats_desc.block_shape, stats_desc.layout)
    numbers = gl.allocate_shared_memory(gl.int32, stats_desc.block_shape, stats_desc.layout)
    EACH: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    numbers.store(gl.arange(0, ROWS, gl.SliceLayout(0, EACH))[None, :])
    DOWN: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q_desc.dtype)
    downs = gl.allocate_shared_memory(q_desc.dtype, [2 * PARTS * 2, ROWS, ROWS], DOWN)
    staging = gl.allocate_shared_memory(gl.float32, [2] + sums_desc.block_shape, sums_desc.layout)
    filled = barriers(2, 2)
    done = barriers(1, 2).index(0)
    fence_async_shared()
    stats = (leasts, deltas, numbers)
    loads = (q_desc, k_desc, v_desc, dout_desc, stats_desc, rings, stats, problem)
    sums = (dk_desc, dv_desc, sums_desc, rings, stats, downs, filled, done, staging, problem, scale_log2)
    gl.warp_specialize([
        (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_M)),
        (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_M)),
        (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_M)),
    ], [4, 1], [240, 24])


def launch_hopper_columns(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dk: Tensor, dv: Tensor, stats: Tensor, sums: Tensor,
    problem: Problem, config: BackwardConfig,
) -> None:
    """Compute dk and dv, and add the unscaled dQ to `sums`; shapes as `flash.backward.launch_backward` has them.

    Args:
        q: as dout, 16-bit; and so on.
        k: as v.
        v: up to 128 dims.
        dout: of the output.
        dk: like k; every row is written.
        dv: like v.
        stats: fp32 [2, H, rows] of the workspace, of `flash_backward_prepare`.
        sums: fp32 [H, rows, 64 or 128] of the workspace, in tiles as `portable.backward_rows.place_in_part` says.
        problem: sequences, mask and scale.
        config: one of the order `ws`.

    Raises:
        ValueError: a tensor that tensor maps cannot describe; the one line names it.
    """
    cut, heads, heads_kv = config.columns, q.shape[-2], k.shape[-2]
    if q.numel() == 0:
        dk.zero_()
        dv.zero_()
        return
    for name, x in (("q", q), ("k", k), ("v", v), ("dout", dout), ("dk", dk), ("dv", dv)):
        if not is_rows(x):
            raise ValueError(f"flash_attention: {name}.stride={x.stride()} does not fit order=ws; rows and heads a "
                             "multiple of 16 bytes apart, sequences behind one another, or order=early")
    tiles, pairs, members = -(-problem.max_seqlen_k // cut.block_n), problem.batch * heads_kv, heads // heads_kv
    columns = sums.shape[-1]
    reread = members * problem.max_seqlen_q * ((q.shape[-1] + v.shape[-1]) * q.element_size() + 4 * columns)
    flash_hopper_backward[(tiles * pairs,)](
        *(rows_of(x, ROWS.value, columns) for x in (q, k, v, dout)), _plain(stats.flatten(0, 1), 1),
        *(rows_of(x, ROWS.value, columns) for x in (dk, dv)), _plain(sums.view(heads, -1, ROWS.value), 1, ROWS.value),
        *problem.lengths(),
        problem.scale / math.log(2), *problem.reach(), members, heads_kv, pairs, tiles,
        group_of(reread, config.section_mib, pairs), **problem.flags(), BLOCK_M=cut.block_m, STAGES=cut.stages,
        num_warps=4)


def _plain(x: Tensor, *tile: int) -> Any:
    """Describe a contiguous fp32 tensor: a tile has 64 columns, and they lie one after another in shared memory."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [*tile, ROWS.value]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=len(block))
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block, layout)
