# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""dK, dV and the sums of dQ of softmax attention for Hopper: a producer warp, two consumer warpgroups of 64 keys each.

The arithmetic is that of portable.backward_columns with atomics; the pipeline follows arXiv:2407.08608.  Scores are
computed transposed, [keys, rows], so that P and dS can be product operands without a transpose.  One step processes
one tile of rows; each product is issued as soon as its operands are ready:

    producer      loads keys and values once, then tiles of Q and dO with -lse / scale and -delta of their rows
    consumer      issues Sᵀ = K Qᵀ and dPᵀ = V dOᵀ
                  P = exp(Sᵀ), while the second product runs; issues dV += P dO
                  dSᵀ = P ∘ (dPᵀ - delta), meanwhile; kept in registers and stored to shared memory for both warpgroups
                  issues half of dQ = dS K of the step before, and dK += dSᵀ Q
                  adds that dQ to memory by a TMA reduction, while the last product runs

Half of dQ is 64 rows by 64 columns, summed over all 128 keys: up to 64 dims it is half of a step's 128 rows, above that
half of the columns of its 64 rows.  Computed one step later, it does not wait for the other warpgroup.  dS has two
stages: when both warpgroups have filled one, both have read the other.
No product is in flight at the end of an iteration, because otherwise the compiler waits for every product.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from attnbench.kernels.flash.hopper.backward_step import (
    LN_2,
    SCORES,
    Consumer,
    GridProblem,
    Rings,
    Statistics,
    add_last_dq,
    allocate_statistics,
    clear_dscores,
    key_tile_of,
    reach_of,
    step,
    store_gradient,
)
from attnbench.kernels.flash.hopper.backward_wide import WideMeta, flash_hopper_backward_wide
from attnbench.kernels.flash.hopper.tiles import Mask
from attnbench.kernels.flash.tiles import BACKWARD_COUNTS
from attnbench.kernels.shared.hopper import (
    ROWS,
    aggregate,
    allocate_barriers,
    allocate_ring,
    coordinates,
    is_rows,
    load_tile,
    rows_of,
)
from attnbench.kernels.shared.kept import clear, describes, descriptor_of, launch, rows_in, stride_in
from attnbench.kernels.shared.tiling import group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.backward import BackwardConfig
    from attnbench.kernels.flash.problem import Problem


KEYS = gl.constexpr(128)
"Keys of a program, 64 a warpgroup."


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    dout_desc: tma.tensor_descriptor
    stats_desc: tma.tensor_descriptor
    rings: Rings
    stats: Statistics
    problem: GridProblem


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp."""
    rings = producer.rings
    stats = producer.stats
    problem = producer.problem
    PARTS: gl.constexpr = problem.BLOCK_M // ROWS
    members = problem.members
    heads = problem.heads_kv * members
    tile = key_tile_of(problem)
    has_work = (tile.start < tile.keys) & (tile.begin < tile.end)
    if has_work:
        for which in gl.static_range(2):
            first = tile.start + which * ROWS
            rings.k.fill(which, producer.k_desc, tile.key_start, tile.keys, first, tile.head_kv)
            rings.v.fill(which, producer.v_desc, tile.key_start, tile.keys, first, tile.head_kv)
    # Launched while `flash_backward_prepare` still runs, which writes the statistics and clears the sums of dQ.  Every
    # program waits for its end, because the kernel after this one relies on that kernel having ended.
    gdc_wait()
    if has_work:
        count = 0
        for member in range(members):
            head = tile.head_kv * members + member
            for part in range(tile.begin * PARTS, tile.end * PARTS):
                at = part * ROWS
                stage = count % rings.q.STAGES
                rings.q.fill(count, producer.q_desc, tile.query_start, tile.queries, at, head, 4 * ROWS)
                load_tile(
                    producer.stats_desc, [head, tile.padded + at], rings.q.full.index(stage), stats.leasts.index(stage)
                )
                rings.dout.fill(
                    count, producer.dout_desc, tile.query_start, tile.queries, at, head, 4 * ROWS, AWAIT=False
                )
                load_tile(
                    producer.stats_desc,
                    [heads + head, tile.padded + at],
                    rings.dout.full.index(stage),
                    stats.deltas.index(stage),
                )
                count += 1


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: 64 of the keys."""
    rings = consumer.rings
    problem = consumer.problem
    DTYPE: gl.constexpr = consumer.dk_desc.dtype
    BLOCK_D: gl.constexpr = rings.k.COLUMNS
    BLOCK_V: gl.constexpr = rings.v.COLUMNS
    OF_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    OF_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    members = problem.members
    work = key_tile_of(problem)
    begin, end = work.begin, work.end
    if work.start < work.keys:
        key = work.start + WARPGROUP * ROWS
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, OF_K)
        dv = gl.zeros([ROWS, BLOCK_V], gl.float32, OF_V)
        if begin < end:
            clear_dscores(consumer, WARPGROUP)
            low, high = reach_of(key, work, problem.mask)
            rings.k.take(0)  # half of dQ is summed over all keys
            rings.k.take(1)
            v = rings.v.take(WARPGROUP)
            if problem.BLOCK_M > ROWS:
                # Registers have room for two, and shared memory traffic limits a step.  There is always at least one.
                gl.assume(members * (end - begin) > 0)
                v = v.load(gl.DotOperandLayout(0, SCORES, 2))
            tile = begin
            head = work.head_kv * members
            total = members * (end - begin)
            for count in range(total):
                dk, dv = step(
                    v=v,
                    dk=dk,
                    dv=dv,
                    consumer=consumer,
                    work=work,
                    low=low,
                    high=high,
                    count=count,
                    tile=tile,
                    head=head,
                    WARPGROUP=WARPGROUP,
                )
                tile += 1
                if tile == end:
                    tile = begin
                    head += 1
            add_last_dq(consumer, work, total, tile, head, WARPGROUP)
            # This warpgroup has read the keys for the last time.
            mbarrier.arrive(consumer.done)
            mbarrier.wait(consumer.done, 0)
        # Gradients are stored through the buffers of keys and values.
        store_gradient(
            rings.v.tiles.index(WARPGROUP),
            dv.to(DTYPE),
            consumer.dv_desc,
            coordinates(work.key_start, work.keys, key, work.head_kv),
        )
        store_gradient(
            rings.k.tiles.index(WARPGROUP),
            (dk * (consumer.scale_log2 * LN_2)).to(DTYPE),
            consumer.dk_desc,
            coordinates(work.key_start, work.keys, key, work.head_kv),
        )
        tma.store_wait(0)


@gluon.jit(do_not_specialize=BACKWARD_COUNTS)
@no_type_check
def flash_hopper_backward(
    q_desc,
    k_desc,
    v_desc,
    dout_desc,
    stats_desc,
    dk_desc,
    dv_desc,
    sums_desc,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    scale_log2,
    left,
    right,
    members,
    heads_kv,
    pairs,
    tiles,
    group,
    HAS_LEFT: gl.constexpr,
    HAS_RIGHT: gl.constexpr,
    PACKED: gl.constexpr,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps."""
    gdc_launch_dependents()  # allows `flash_backward_round` to start, which waits for the end of this kernel
    PARTS: gl.constexpr = BLOCK_M // ROWS
    PLACES: gl.constexpr = STAGES * PARTS
    mask = Mask(left, right, HAS_LEFT, HAS_RIGHT)
    problem = GridProblem(
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        mask=mask,
        members=members,
        heads_kv=heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=group,
        PACKED=PACKED,
        BLOCK_M=BLOCK_M,
        KEYS=KEYS,
    )
    rings = Rings(
        allocate_ring(q_desc, PLACES, 2),
        allocate_ring(k_desc, 2, 1),
        allocate_ring(v_desc, 2, 1),
        allocate_ring(dout_desc, PLACES, 2),
    )
    stats = allocate_statistics(stats_desc, PLACES, PLACES)
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, ROWS], q_desc.dtype)
    dscores = gl.allocate_shared_memory(q_desc.dtype, [2 * PARTS * 2, ROWS, ROWS], LAYOUT)
    staging = gl.allocate_shared_memory(gl.float32, [2] + sums_desc.block_shape, sums_desc.layout)
    filled = allocate_barriers(2, 2)
    done = allocate_barriers(1, 2).index(0)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        dout_desc=dout_desc,
        stats_desc=stats_desc,
        rings=rings,
        stats=stats,
        problem=problem,
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        sums_desc=sums_desc,
        rings=rings,
        stats=stats,
        dscores=dscores,
        filled=filled,
        done=done,
        staging=staging,
        problem=problem,
        scale_log2=scale_log2,
    )
    gl.warp_specialize([(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [240, 24])


def launch_hopper_columns(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    dk: Tensor,
    dv: Tensor,
    stats: Tensor,
    sums: Tensor,
    problem: Problem,
    config: BackwardConfig,
) -> None:
    """Compute dk and dv, and add the unscaled dQ to `sums`; shapes as in `flash.backward.launch_backward`.

    Args:
        q: 16-bit, like dout.
        k: like v.
        v: up to 256 dims.
        dout: gradient of the output.
        dk: like k; every row is written.
        dv: like v.
        stats: fp32 [2, H, rows] of the workspace, written by `flash_backward_prepare`.
        sums: fp32 [H, rows, 64, 128 or 256] of the workspace, in the tiles of `shared.rows.in_rows`.
        problem: sequences, mask and scale.
        config: with the order `ws`.

    Raises:
        ValueError: tensor maps cannot describe a tensor; the message names it.
    """
    cut, heads, heads_kv = config.columns, q.shape[-2], k.shape[-2]
    if q.numel() == 0:
        clear(dk)
        clear(dv)
        return
    tensors = {"q": q, "k": k, "v": v, "dout": dout, "dk": dk, "dv": dv}
    for name, x in tensors.items():
        if not is_rows(x):
            raise ValueError(
                f"flash_attention: {name}.stride={x.stride()} does not fit order=ws; rows and heads a "
                "multiple of 16 bytes apart, sequences one after another, or order=early"
            )
    wide = cut.block_n == ROWS.value
    tiles, pairs, members = -(-problem.seqlen_k // cut.block_n), problem.batch * heads_kv, heads // heads_kv
    columns = sums.shape[-1]
    reread = members * problem.max_seqlen_q * ((q.shape[-1] + v.shape[-1]) * q.element_size() + 4 * columns)
    loaded = columns // 2 if wide else columns
    staged = config.sums == "staged"
    constants = {**problem.flags(), "BLOCK_M": cut.block_m, "STAGES": cut.stages}
    of_kernel: dict[str, Any] = constants
    if wide:
        of_kernel = {
            "sums_ptr": None if staged else sums,
            "sums_rows": None if staged else rows_in(sums, 1),
            "META": WideMeta(**constants, SUMS=config.sums),
        }
    launch(
        flash_hopper_backward_wide if wide else flash_hopper_backward,
        (tiles * pairs,),
        **{f"{name}_desc": rows_of(x, ROWS.value, loaded) for name, x in tensors.items()},
        stats_desc=describes(
            _plain(stats.flatten(0, 1), 1), shape={1: rows_in(stats, 2)}, strides={0: rows_in(stats, 2)}
        ),
        sums_desc=describes(
            _plain(sums.view(heads, -1, ROWS.value), 1, ROWS.value),
            shape={1: rows_in(sums, 1) * (columns // ROWS.value)},
            strides={0: stride_in(sums, 0)},
        )
        if staged
        else None,
        **problem.lengths(),
        scale_log2=problem.scale / math.log(2),
        **problem.reach(),
        members=members,
        heads_kv=heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=group_of(reread, config.section_mib, pairs),
        **of_kernel,
        num_warps=4,
        launch_pdl=True,
    )


def _plain(x: Tensor, *tile: int) -> Any:
    """Describe a contiguous fp32 tensor in tiles of 64 columns, unswizzled in shared memory."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [*tile, ROWS.value]
    return descriptor_of(TensorDescriptor, x, list(x.shape), list(x.stride()), block, _UNSWIZZLED[len(block)])


_UNSWIZZLED = {rank: gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=rank) for rank in (2, 3)}
"Layouts of `_plain`; making one takes a dozen calls of Python."
