# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper: a producer warp, and two consumer warpgroups of 64 keys each.

The arithmetic is that of portable.backward's column kernel with atomics.  The pipeline:

    producer      loads keys and values of a tile once, then tiles of 64 queries with their dO, as stages become free
    consumer      issues Sᵀ = K Qᵀ and dAᵀ = V dOᵀ together; A = SiLU(S) is computed while the second product runs, and
                  dS while dV += Aᵀ dO runs; both warpgroups store dSᵀ to shared memory, and each computes half of the
                  columns of dQ from all of it, while its own dK += dSᵀ Q runs; with LAG one step later, so that neither
                  waits for the other
    epilogue      dQ is added to memory in fp32 by a TMA reduction through shared memory (`hopper.add_tile`), which is
                  waited for only when the next tile's dQ is ready; dK and dV are stored through the buffers of keys and
                  values

So there are five products a tile, and each tile of Q and dO is read once for a tile of keys.  (The pipeline follows the
backward of Shah et al. 2024, arXiv:2407.08608; SiLU has no row sums, so nothing else is read.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents

from attnbench.kernels.hstu.dense.configs import hopper_columns_fault
from attnbench.kernels.hstu.dense.hopper import backward_wide as wide
from attnbench.kernels.hstu.dense.hopper.backward_step import AddedSums, Consumer, add_last_dq, clear_dscores, step
from attnbench.kernels.hstu.dense.hopper.backward_wide_step import PIECE
from attnbench.kernels.hstu.dense.hopper.tiles import (
    HIDDEN,
    LEAST_ALPHA,
    BackwardMeta,
    BackwardProducer,
    BackwardRings,
    GridProblem,
    Mask,
    key_tile_of,
)
from attnbench.kernels.hstu.dense.problem import wrong
from attnbench.kernels.hstu.tiles import COUNTS
from attnbench.kernels.shared.card import capability_of
from attnbench.kernels.shared.hopper import (
    ROWS,
    allocate_barriers,
    allocate_ring,
    coordinates,
    flat,
    is_rows,
    rows_of,
    store_tile,
    sync_warps,
)
from attnbench.kernels.shared.kept import clear, launch, rows_in
from attnbench.kernels.shared.tiling import block_of, group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.dense.configs import ColumnConfig
    from attnbench.kernels.hstu.dense.problem import Problem

KEYS = gl.constexpr(128)
"Keys of a program, 64 a warpgroup."


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp."""
    rings = producer.rings
    mask = producer.problem.mask
    tile = key_tile_of(producer.problem, KEYS)
    steps = tile.steps()
    if (tile.start < tile.keys) & (steps > 0):
        queries = tile.keys - tile.first_query
        for which in gl.static_range(2):
            rings.k.fill(which, producer.k_desc, tile.key_start, tile.keys, tile.start + which * ROWS, tile.head)
        for count in range(steps):
            at = tile.query_tile(count, mask) * ROWS
            rings.q.fill(count, producer.q_desc, tile.query_start, queries, at, tile.head)
            if count == 0:
                for which in gl.static_range(2):
                    rings.v.fill(
                        which, producer.v_desc, tile.key_start, tile.keys, tile.start + which * ROWS, tile.head
                    )
            rings.dout.fill(count, producer.dout_desc, tile.query_start, queries, at, tile.head)


@gluon.jit
@no_type_check
def consume(consumer, sums, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: 64 of the keys, and half of the columns of dQ."""
    rings = consumer.rings
    BLOCK_D: gl.constexpr = rings.k.COLUMNS
    BLOCK_V: gl.constexpr = rings.v.COLUMNS
    tile = key_tile_of(consumer.problem, KEYS)
    if tile.start < tile.keys:
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16]))
        dv = gl.zeros([ROWS, BLOCK_V], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16]))
        steps = tile.steps()
        if steps > 0:
            work = tile.from_first_query()
            if consumer.LAG:
                clear_dscores(consumer, 0, WARPGROUP)
            for of in gl.static_range(2):
                rings.k.take(of)
            rings.v.take(WARPGROUP)
            for count in range(steps):
                dk, dv = step(dk, dv, consumer, sums, work, count, WARPGROUP)
            if consumer.LAG:
                add_last_dq(consumer, sums, work, steps, WARPGROUP)
            # This warpgroup has read the keys for the last time.
            mbarrier.arrive(consumer.done)
            mbarrier.wait(consumer.done, 0)
        key = tile.start + WARPGROUP * ROWS
        # Gradients are stored through the buffers of keys and values.
        flat(rings.v.tiles.index(WARPGROUP)).store((dv * consumer.dv_scale).to(consumer.dv_desc.dtype))
        flat(rings.k.tiles.index(WARPGROUP)).store(
            (dk * (consumer.half_alpha * consumer.dv_scale)).to(consumer.dk_desc.dtype)
        )
        fence_async_shared()
        sync_warps()
        store_tile(
            consumer.dv_desc, coordinates(tile.key_start, tile.keys, key, tile.head), rings.v.tiles.index(WARPGROUP)
        )
        store_tile(
            consumer.dk_desc, coordinates(tile.key_start, tile.keys, key, tile.head), rings.k.tiles.index(WARPGROUP)
        )
        tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_backward(
    q_desc,
    k_desc,
    v_desc,
    dout_desc,
    dk_desc,
    dv_desc,
    dq_desc,
    sequences,
    half_alpha,
    hidden,
    dv_scale,
    heads,
    pairs,
    tiles,
    group,
    contextual_len,
    window,
    META: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps."""
    gdc_launch_dependents()  # allows the kernel that rounds dQ to start, which waits for the end of this kernel
    mask = Mask(
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
    )
    problem = GridProblem(
        sequences=sequences,
        contextual_len=contextual_len,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        HAS_CACHE=META.HAS_CACHE,
    )
    rings = BackwardRings(
        q=allocate_ring(q_desc, META.STAGES, CONSUMERS=2),
        k=allocate_ring(k_desc, STAGES=2, CONSUMERS=1),
        v=allocate_ring(v_desc, STAGES=2, CONSUMERS=1),
        dout=allocate_ring(dout_desc, META.STAGES, CONSUMERS=2),
    )
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * ROWS, ROWS], q_desc.dtype)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2, 2 * ROWS, ROWS], LAYOUT)
    staging = gl.allocate_shared_memory(gl.float32, [2] + dq_desc.block_shape, dq_desc.layout)
    filled = allocate_barriers(2, ARRIVALS=2)
    done = allocate_barriers(1, ARRIVALS=2).index(0)
    fence_async_shared()
    producer = BackwardProducer(
        q_desc=q_desc, k_desc=k_desc, v_desc=v_desc, dout_desc=dout_desc, rings=rings, problem=problem
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        rings=rings,
        dscores=dscores,
        filled=filled,
        done=done,
        problem=problem,
        half_alpha=half_alpha,
        hidden=hidden,
        dv_scale=dv_scale,
        APPROXIMATE=META.APPROXIMATE,
        LAG=META.LAG,
    )
    sums = AddedSums(dq_desc, staging)
    gl.warp_specialize(
        [(consume, (consumer, sums, 0)), (consume, (consumer, sums, 1)), (produce, (producer,))], [4, 1], [240, 24]
    )


def launch_hopper_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    sums: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: ColumnConfig,
) -> None:
    """Compute dk and dv, and add the parts of dQ, without their factor α / 2N, to `sums`; does not synchronize.

    Args:
        q: [Tq, H, D], 16-bit, D at most 256.
        k: [Tk, H, D].
        v: [Tk, H, Dv], Dv at most 256.
        dout: [Tq, H, Dv].
        sums: fp32, shaped as `workspace_shape`.
        dk: like k; every row is written, also for dv.
        dv: like v.
        problem: sequences, mask and factors; already checked.
        config: pipeline stages, and how SiLU is computed.

    Raises:
        ValueError: this kernel does not support the card, the dtype, the dims or a tensor's strides; the message says which.
    """
    (_, heads, attn_dim), linear_dim = q.shape, v.shape[2]
    tiles, pairs = -(-problem.max_seqlen // config.block_n), problem.batch * heads
    if not q.numel():
        clear(dk)
        clear(dv)
    if tiles * pairs == 0 or not q.numel():
        return
    given = {"q": q, "k": k, "v": v, "dout": dout, "dk": dk, "dv": dv}
    staged = config.sums == "staged"
    if staged:
        given["dq"] = sums
    refuse(given, problem, config)
    if max(attn_dim, linear_dim) > 128:
        kernel, of_kernel = wide.hstu_hopper_backward_wide, _wide(given)
        of_kernel |= (
            {"sums_ptr": None, "sums_rows": None}
            if staged
            else {"dq_desc": None, "sums_ptr": sums, "sums_rows": rows_in(sums, 1)}
        )
    else:
        kernel, of_kernel = hstu_hopper_backward, described(given)
    reread = problem.max_seqlen_q * ((attn_dim + linear_dim) * q.element_size() + 4 * attn_dim)
    launch(
        kernel,
        (tiles * pairs,),
        **of_kernel,
        sequences=problem.sequences(),
        **factors_of(problem),
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group_of(reread, config.section_mib, pairs),
        contextual_len=problem.contextual_len,
        window=problem.max_attn_len or 0,
        META=BackwardMeta(
            **problem.flags(), STAGES=config.stages, APPROXIMATE=config.silu == "tanh", LAG=config.lag, SUMS=config.sums
        ),
        num_warps=4,
    )


def factors_of(problem: Problem) -> dict[str, float]:
    """Factors of the scores and gradients, and the score of what is masked."""
    return {
        "half_alpha": problem.alpha / 2,
        "hidden": 2 * HIDDEN / problem.alpha if problem.alpha else 0.0,
        "dv_scale": 1 / problem.scaling_seqlen,
    }


def described(given: dict[str, Tensor]) -> dict[str, Any]:
    """Descriptors with tiles of 64 rows; for dq, whose sums are fp32, half of the columns."""
    block_d, block_v = (max(32, block_of(given[name].shape[2])) for name in ("q", "v"))
    described = _tiles(given, block_d, block_v, block_d // 2)
    # Half of the columns can only be sliced from a tile whose swizzle is no wider than that half.
    described["k_desc"].layout = described["dk_desc"].layout = gl.NVMMASharedLayout(min(128, block_d), 16, 5)
    return described


def _wide(given: dict[str, Tensor]) -> dict[str, Any]:
    """Descriptors above 128 dims: tiles of 64 rows and half of the columns; for dq a piece of them."""
    half_d, half_v = (max(64, block_of(given[name].shape[2]) // 2) for name in ("q", "v"))
    return _tiles(given, half_d, half_v, PIECE.value)


def _tiles(given: dict[str, Tensor], columns: int, columns_v: int, columns_dq: int) -> dict[str, Any]:
    widths = {
        "q": columns,
        "k": columns,
        "v": columns_v,
        "dout": columns_v,
        "dk": columns,
        "dv": columns_v,
        "dq": columns_dq,
    }
    return {f"{name}_desc": rows_of(x, ROWS.value, widths[name]) for name, x in given.items()}


def refuse(given: dict[str, Tensor], problem: Problem, config: ColumnConfig) -> None:
    """Refuse what this kernel does not support: it was requested by name, and is not replaced by another."""
    q, v = given["q"], given["v"]
    fault = hopper_columns_fault(
        config, capability=capability_of(q), item_bytes=q.element_size(), attn_dim=q.shape[2], linear_dim=v.shape[2]
    )
    if fault:
        raise wrong("columns.order", config.order, fault, "another order")
    for name, x in given.items():
        if not is_rows(x):
            raise wrong(
                f"{name}.stride",
                x.stride(),
                f"is not a multiple of 16 bytes, as order={config.order} requires",
                "an aligned tensor, or another order",
            )
    if 0 < abs(problem.alpha) < LEAST_ALPHA:
        raise wrong(
            "alpha",
            problem.alpha,
            f"is too small for order={config.order}",
            f"at least {LEAST_ALPHA}, 0, or another order",
        )
