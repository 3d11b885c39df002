# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper: one warp loads, two warpgroups of 64 keys each gather the gradients.

The sums are those of portable.backward's column kernel with atomics.  What differs is who waits for whom:

    loader        keys and values of a tile once, then tiles of 64 queries with their dO, as places become free
    warpgroup     Sᵀ = K Qᵀ and dPᵀ = V dOᵀ are issued together; A = SiLU(S) is worked out beside the second, and
                  dV += Aᵀ dO runs while dS is; both warpgroups put dSᵀ into shared memory, and each makes half the
                  columns of dQ from all of it, beside its own dK += dSᵀ Q
    dQ            leaves through shared memory as an addition in fp32 (`hopper.add_tile`) that nobody waits for until
                  the next tile's dQ is there

So five products a tile, each tile of Q and dO read once a tile of keys.  (The order of work is that of the backward in
Shah et al. 2024, arXiv:2407.08608; SiLU has no row sums, so nothing else is read.)  dK and dV leave from where the
keys and values were.
"""

from __future__ import annotations

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

from attnbench.kernels.hstu.dense.configs import hopper_columns_fault
from attnbench.kernels.hstu.dense.hopper import backward_wide as wide
from attnbench.kernels.hstu.dense.hopper.tiles import HIDDEN, LEAST_ALPHA, hide, job_of, step_of
from attnbench.kernels.hstu.dense.problem import wrong
from attnbench.kernels.hstu.tiles import COUNTS, silu_and_slope
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.hopper import (
    ROWS,
    add_tile,
    barriers,
    fill,
    flat,
    give_back,
    is_rows,
    place_of,
    ring_of,
    rows_of,
    store_tile,
    sync_warps,
    take,
)
from attnbench.kernels.shared.tiling import block_of, group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.dense.configs import ColumnConfig
    from attnbench.kernels.hstu.dense.problem import Problem

KEYS = gl.constexpr(128)
"Keys of a program, 64 a warpgroup."


@gluon.jit
@no_type_check
def load(given, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
         HAS_CACHE: gl.constexpr):
    """The loader's work."""
    q_desc, k_desc, v_desc, dout_desc, rings, problem = given
    q_ring, k_ring, v_ring, dout_ring = rings
    (head, key_start, query_start, keys, first_query, _prefix, _seen, start, front, begin, _whole, _split,
     end) = job_of(problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, KEYS)
    steps = front + end - begin
    if (start < keys) & (steps > 0):
        queries = keys - first_query
        for which in gl.static_range(2):
            fill(k_ring, which, k_desc, key_start, keys, start + which * ROWS, head)
        for count in range(steps):
            at = step_of(count, front, begin, HAS_PREFIX) * ROWS
            fill(q_ring, count, q_desc, query_start, queries, at, head)
            if count == 0:
                for which in gl.static_range(2):
                    fill(v_ring, which, v_desc, key_start, keys, start + which * ROWS, head)
            fill(dout_ring, count, dout_desc, query_start, queries, at, head)


@gluon.jit
@no_type_check
def part_of(downs, slot, zero, k_ring, WHICH: gl.constexpr):
    """Issue this warpgroup's half of the columns of dQ = dS K, from dSᵀ of both and all keys: [columns, 64 queries].

    Threads that hold numbers of one column and several queries meet in no bank of shared memory when they store them.
    A product has 64 rows, so fewer columns than that come as [64 queries, columns].
    """
    HALF: gl.constexpr = k_ring[0].shape[5] // 2
    part = gl.zeros([ROWS, HALF], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16]))
    for of in gl.static_range(2):
        down = downs.index(slot).slice(of * ROWS, ROWS, 0)
        k = flat(k_ring[0].index(of + zero)).slice(WHICH * HALF, HALF, 1)
        if HALF == ROWS:
            part = warpgroup_mma(k.permute([1, 0]), down, part, use_acc=of > 0, is_async=True)
        else:
            part = warpgroup_mma(down.permute([1, 0]), k, part, use_acc=of > 0, is_async=True)
    return part


@gluon.jit
@no_type_check
def step(dk, dv, tiles, filled, dq_desc, job, count, WHICH: gl.constexpr, CAUSAL: gl.constexpr,
         HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr, APPROXIMATE: gl.constexpr):
    """One tile of queries."""
    q_ring, k_ring, v_ring, dout_ring, downs, staging = tiles
    head, query_start, queries, prefix, seen, window, start, front, begin, whole, split, half_alpha, hidden = job
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    OF_K: gl.constexpr = gl.DotOperandLayout(0, dk.type.layout, 2)
    OF_V: gl.constexpr = gl.DotOperandLayout(0, dv.type.layout, 2)
    HALF: gl.constexpr = k_ring[0].shape[5] // 2
    none = gl.zeros([ROWS, ROWS], gl.float32, SCORES)
    tile = step_of(count, front, begin, HAS_PREFIX)
    slot = count & 1
    # Where keys and values lie, and what they are, would be held in registers, of which there are none left.
    zero = count >> 30
    k = flat(k_ring[0].index(WHICH + zero))
    v = flat(v_ring[0].index(WHICH + zero))
    q = take(q_ring, count)
    scores = warpgroup_mma(k, q.permute([1, 0]), none, use_acc=False, is_async=True)
    dout = take(dout_ring, count)
    above = warpgroup_mma(v, dout.permute([1, 0]), none, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(1, [scores])
    if (tile < whole) | (tile >= split):
        scores = hide(scores, hidden, start + (WHICH + zero) * ROWS, tile * ROWS, prefix, seen, window, False,
                      CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW)
    weights, slope = silu_and_slope(scores, half_alpha, APPROXIMATE)
    dv = warpgroup_mma(gl.convert_layout(weights.to(dout.dtype), OF_V), dout, dv, is_async=True)
    above = warpgroup_mma_wait(1, [above])
    down = (above * slope).to(dout.dtype)
    downs.index(slot).slice(WHICH * ROWS, ROWS, 0).store(down)
    fence_async_shared()
    mbarrier.arrive(filled.index(slot))
    mbarrier.wait(filled.index(slot), count >> 1 & 1)
    part = part_of(downs, slot, zero, k_ring, WHICH)
    dk = warpgroup_mma(gl.convert_layout(down, OF_K), q, dk, is_async=True)
    part, dv = warpgroup_mma_wait(1, [part, dv])
    # What was added last has been read, which the barrier of giving back tells all warps.
    tma.store_wait(0)
    give_back(dout_ring, count)
    mine = flat(staging.index(WHICH))
    if HALF == ROWS:
        mine = mine.permute([1, 0])
    mine.store(part)
    fence_async_shared()
    sync_warps()
    add_tile(dq_desc, place_of(query_start, queries, tile * ROWS, head, WHICH * HALF), staging.index(WHICH))
    dk = warpgroup_mma_wait(0, [dk])
    give_back(q_ring, count)
    return dk, dv


@gluon.jit
@no_type_check
def gather(given, WHICH: gl.constexpr, CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr,
           HAS_WINDOW: gl.constexpr, HAS_CACHE: gl.constexpr, APPROXIMATE: gl.constexpr):
    """A warpgroup's work: 64 of the keys, and half of dQ's columns."""
    dk_desc, dv_desc, dq_desc, rings, downs, staging, filled, done, problem, factors = given
    q_ring, k_ring, v_ring, dout_ring = rings
    half_alpha, hidden, dv_scale = factors
    BLOCK_D: gl.constexpr = k_ring[0].shape[5]
    BLOCK_V: gl.constexpr = v_ring[0].shape[5]
    (head, key_start, query_start, keys, first_query, prefix, seen, start, front, begin, whole, split,
     end) = job_of(problem, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, KEYS)
    if start < keys:
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16]))
        dv = gl.zeros([ROWS, BLOCK_V], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16]))
        steps = front + end - begin
        if steps > 0:
            # Positions count from the first query.
            job = (head, query_start, keys - first_query, prefix - first_query, seen - first_query, problem[4],
                   start - first_query, front, begin, whole, split, half_alpha, hidden)
            tiles = (q_ring, k_ring, v_ring, dout_ring, downs, staging)
            for of in gl.static_range(2):
                take(k_ring, of)
            take(v_ring, WHICH)
            for count in range(steps):
                dk, dv = step(dk, dv, tiles, filled, dq_desc, job, count, WHICH, CAUSAL, HAS_PREFIX,
                              HAS_TARGETS, HAS_WINDOW, APPROXIMATE)
            # Who has come here has read the keys for the last time.
            mbarrier.arrive(done)
            mbarrier.wait(done, 0)
        key = start + WHICH * ROWS
        # Gradients leave from where keys and values were.
        flat(v_ring[0].index(WHICH)).store((dv * dv_scale).to(dv_desc.dtype))
        flat(k_ring[0].index(WHICH)).store((dk * (half_alpha * dv_scale)).to(dk_desc.dtype))
        fence_async_shared()
        sync_warps()
        store_tile(dv_desc, place_of(key_start, keys, key, head), v_ring[0].index(WHICH))
        store_tile(dk_desc, place_of(key_start, keys, key, head), k_ring[0].index(WHICH))
        tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_backward(
    q_desc, k_desc, v_desc, dout_desc, dk_desc, dv_desc, dq_desc, offsets_ptr, offsets_q_ptr,
    num_targets_ptr, half_alpha, hidden, dv_scale, heads, pairs, tiles, group, contextual_len, window,
    CAUSAL: gl.constexpr, HAS_PREFIX: gl.constexpr, HAS_TARGETS: gl.constexpr, HAS_WINDOW: gl.constexpr,
    HAS_CACHE: gl.constexpr, STAGES: gl.constexpr, APPROXIMATE: gl.constexpr,
):
    """Rings, tiles and barriers, and who does what."""
    problem = (offsets_ptr, offsets_q_ptr, num_targets_ptr, contextual_len, window, heads, pairs, tiles, group)
    rings = (ring_of(q_desc, STAGES, 2), ring_of(k_desc, 2, 1), ring_of(v_desc, 2, 1), ring_of(dout_desc, STAGES, 2))
    DOWN: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * ROWS, ROWS], q_desc.dtype)
    downs = gl.allocate_shared_memory(q_desc.dtype, [2, 2 * ROWS, ROWS], DOWN)
    staging = gl.allocate_shared_memory(gl.float32, [2] + dq_desc.block_shape, dq_desc.layout)
    filled = barriers(2, 2)
    done = barriers(1, 2).index(0)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, dout_desc, rings, problem)
    sums = (dk_desc, dv_desc, dq_desc, rings, downs, staging, filled, done, problem,
            (half_alpha, hidden, dv_scale))
    # Constants are written out each time: in a tuple they would be numbers of the run.
    gl.warp_specialize([
        (gather, (sums, 0, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE)),
        (gather, (sums, 1, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE, APPROXIMATE)),
        (load, (loads, CAUSAL, HAS_PREFIX, HAS_TARGETS, HAS_WINDOW, HAS_CACHE)),
    ], [4, 1], [240, 24])


def launch_hopper_backward(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, sums: Tensor, dk: Tensor, dv: Tensor, problem: Problem,
    config: ColumnConfig,
) -> None:
    """Compute dk and dv, and add dQ's parts, without their factor α / 2N, to `sums`; waits for nothing.

    Args:
        q: [Tq, H, D], of 16 bits, D at most 256.
        k: [Tk, H, D].
        v: [Tk, H, Dv], Dv at most 256.
        dout: [Tq, H, Dv].
        sums: fp32 [Tq, H, D].
        dk: like k; every row is written, as in dv.
        dv: like v.
        problem: sequences, mask and factors; checked before.
        config: how many tiles are in flight, and how SiLU is worked out.

    Raises:
        ValueError: the card, the precision, the dims or a tensor's strides are none of this kernel's; one line.
    """
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    tiles, pairs = -(-problem.max_seqlen // config.block_n), problem.batch * heads
    if not q.numel():
        dk.zero_()
        dv.zero_()
    if tiles * pairs == 0 or not q.numel():
        return
    _refuse({"q": q, "k": k, "v": v, "dout": dout, "dq": sums, "dk": dk, "dv": dv}, problem, config)
    kernel, described = _wide(q, k, v, dout, dk, dv, sums) if max(attn_dim, linear_dim) > 128 else (
        hstu_hopper_backward, _described(q, k, v, dout, dk, dv, sums))
    reread = problem.max_seqlen_q * ((attn_dim + linear_dim) * q.element_size() + 4 * attn_dim)
    kernel[(tiles * pairs,)](
        *described, problem.offsets, problem.offsets_q, problem.num_targets,
        problem.alpha / 2, 2 * HIDDEN / problem.alpha if problem.alpha else 0.0, 1 / problem.scaling_seqlen, heads,
        pairs, tiles, group_of(reread, config.section_mib, pairs), problem.contextual_len, problem.max_attn_len or 0,
        **problem.flags(), STAGES=config.stages, APPROXIMATE=config.silu == "tanh", num_warps=4)


def _described(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dk: Tensor, dv: Tensor, sums: Tensor) -> list[Any]:
    """Tiles of 64 rows; of `sums` half the columns."""
    block_d, block_v = (max(32, block_of(x.shape[2])) for x in (q, v))
    half = block_d // 2
    described = [rows_of(x, ROWS.value, width) for x, width in (
        (q, block_d), (k, block_d), (v, block_v), (dout, block_v), (dk, block_d), (dv, block_v), (sums, half))]
    for x in described[1], described[4]:
        # Halves of the columns are tiles only of what is swizzled by no more than a half.
        x.layout = gl.NVMMASharedLayout(min(128, 2 * half), 16, 5)
    return described


def _wide(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dk: Tensor, dv: Tensor, sums: Tensor) -> tuple[Any, list[Any]]:
    """The kernel for over 128 dims, and tiles of 64 rows and half the columns; of `sums` a piece of them."""
    half_d, half_v = (max(64, block_of(x.shape[2]) // 2) for x in (q, v))
    return wide.hstu_hopper_backward_wide, [rows_of(x, ROWS.value, width) for x, width in (
        (q, half_d), (k, half_d), (v, half_v), (dout, half_v), (dk, half_d), (dv, half_v), (sums, wide.PIECE.value))]


def _refuse(given: dict[str, Tensor], problem: Problem, config: ColumnConfig) -> None:
    """Refuse what this kernel cannot run: it was asked for by name, and another one is not what was asked for."""
    q, v = given["q"], given["v"]
    fault = hopper_columns_fault(config, capability=capability_of(q), item_bytes=q.element_size(),
                                 attn_dim=q.shape[2], linear_dim=v.shape[2])
    if fault:
        raise wrong("columns.order", config.order, fault, "another order")
    for name, x in given.items():
        if not is_rows(x):
            raise wrong(f"{name}.stride", x.stride(), f"is no multiple of 16 bytes, as order={config.order} needs",
                        "an aligned tensor, or another order")
    if 0 < abs(problem.alpha) < LEAST_ALPHA:
        raise wrong("alpha", problem.alpha, f"is too small for order={config.order}",
                    f"at least {LEAST_ALPHA}, 0, or another order")
