# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Quantised softmax attention forward for Hopper: a producer warp, and consumer warpgroups of 64 rows each.

It computes the same sums as portable.forward.  A consumer issues a product, waits for it and uses its result, so that
output, partial output and scores of 64 x 128 share 160 registers; its work between products overlaps with the products
of the two other consumers.  Key tiles are visited from last to first, so that masked tiles come before the steady state
of the loop.  Programs, one or two per SM, take work items from a counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnbench.kernels.flash.hopper.tiles import GridProblem, Mask
from attnbench.kernels.flash.problem import lse_strides
from attnbench.kernels.flash.quant.config import QUERY_TILES
from attnbench.kernels.flash.quant.hopper.attend import Consumer, consume
from attnbench.kernels.flash.quant.hopper.producer import Producer, produce
from attnbench.kernels.flash.quant.hopper.tiles import WORK_FIELDS, EveryTile, QuantisedLayout
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import ROWS, Rings, allocate_ring, allocate_work_queue, heads_apart, rows_of
from attnbench.kernels.shared.kept import launch, rows_in

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.problem import Problem
    from attnbench.kernels.flash.quant.config import QuantConfig
    from attnbench.kernels.flash.quant.prepare import Quantised

COUNTS = (
    "seqlen_q",
    "seqlen_k",
    "lse_batch",
    "lse_head",
    "heads",
    "heads_kv",
    "repeats",
    "pairs",
    "tiles",
    "group",
    "rows_q",
    "rows_k",
)
"Arguments whose values the code is not specialized for."


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_quant_hopper_forward`."""

    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_N: int
    COLUMNS: int
    STAGES: int
    ROOM: int
    GROUPS: int
    BESIDE: bool
    REGISTERS: int


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_quant_hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    lse_ptr,
    q_scale_ptr,
    q_shift_ptr,
    k_scale_ptr,
    v_scale_ptr,
    counter_ptr,
    cu_q_ptr,
    cu_k_ptr,
    seqlen_q,
    seqlen_k,
    lse_batch,
    lse_head,
    heads,
    heads_kv,
    repeats,
    pairs,
    tiles,
    group,
    rows_q,
    rows_k,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps; ROOM: query tiles of each warpgroup."""
    GROUPS: gl.constexpr = META.GROUPS
    REGISTERS: gl.constexpr = META.REGISTERS
    mask = Mask(0, 0, False, META.HAS_RIGHT)
    problem = GridProblem(
        cu_q_ptr=cu_q_ptr,
        cu_k_ptr=cu_k_ptr,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        stretch=0,
        sharers=0,
        PACKED=META.PACKED,
        GRID="ticket",
    )
    layout = QuantisedLayout(heads_kv=heads_kv, repeats=repeats, rows_q=rows_q, rows_k=rows_k)
    q_rings = ()
    for _index in gl.static_range(GROUPS):
        q_rings = q_rings + (allocate_ring(q_desc, META.ROOM, 1),)
    rings = Rings(q_rings, allocate_ring(k_desc, META.STAGES, GROUPS), allocate_ring(v_desc, META.STAGES, GROUPS))
    queue = allocate_work_queue(GROUPS, WORK_FIELDS)
    outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        rings=rings,
        problem=problem,
        layout=layout,
        queue=queue,
        counter_ptr=counter_ptr,
        BLOCK_N=META.BLOCK_N,
        GROUPS=GROUPS,
    )
    consumer = Consumer(
        out_desc=out_desc,
        lse_ptr=lse_ptr,
        lse_batch=lse_batch,
        lse_head=lse_head,
        q_scale_ptr=q_scale_ptr,
        q_shift_ptr=q_shift_ptr,
        k_scale_ptr=k_scale_ptr,
        v_scale_ptr=v_scale_ptr,
        repeats=repeats,
        rows_k=rows_k,
        rings=rings,
        tiles=EveryTile(mask),
        queue=queue,
        outs=outs,
        PACKED=META.PACKED,
        BLOCK_N=META.BLOCK_N,
        COLUMNS=META.COLUMNS,
        BESIDE=META.BESIDE,
    )
    if GROUPS == 1:
        gl.warp_specialize([(consume, (consumer, 0)), (produce, (producer,))], [1], [24])
    elif GROUPS == 2:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [REGISTERS, 24]
        )
    else:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (consume, (consumer, 2)), (produce, (producer,))],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def launch_hopper_forward(
    made: Quantised, out: Tensor, lse: Tensor, problem: Problem, config: QuantConfig, section: int
) -> None:
    """Compute `out` and `lse`; does not synchronize and allocates nothing.

    Args:
        made: quantised for this problem; its counter is 0 before and after.
        out: [B, Sq, H, D] or packed, contiguous, D a multiple of 8; every row is written.
        lse: fp32 `flash.problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; already checked.
        config: with the order ws.
        section: (sequence, head) pairs that are processed together.
    """
    heads, (heads_kv, rows_k, columns) = out.shape[-2], made.k.shape
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    # Without keys nothing is read, but a descriptor must describe at least one row.
    k, v = (made.k, made.v) if rows_k else (made.q, made.q)
    tiles_v = v.view(heads_kv if rows_k else heads, -1, config.block_n).transpose(0, 1)
    launch(
        flash_quant_hopper_forward,
        (min(tiles * pairs, config.programs * processors(out)),),
        q_desc=heads_apart(rows_of(made.q.transpose(0, 1), ROWS.value, columns), made.q),
        k_desc=heads_apart(rows_of(k.transpose(0, 1), config.block_n, columns), k),
        v_desc=heads_apart(rows_of(tiles_v, columns, config.block_n), v),
        out_desc=rows_of(out, ROWS.value, columns),
        lse_ptr=lse,
        q_scale_ptr=made.q_scale,
        q_shift_ptr=made.q_shift,
        k_scale_ptr=made.k_scale,
        v_scale_ptr=made.v_scale,
        counter_ptr=made.counter,
        **problem.lengths(),
        **lse_strides(lse, problem),
        heads=heads,
        heads_kv=heads_kv,
        repeats=heads // heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=section,
        rows_q=rows_in(made.q, 1),
        rows_k=rows_in(made.k, 1),
        META=ForwardMeta(
            HAS_RIGHT=problem.right is not None,
            PACKED=problem.packed,
            BLOCK_N=config.block_n,
            COLUMNS=columns,
            STAGES=config.stages,
            ROOM=QUERY_TILES,
            GROUPS=config.groups,
            BESIDE=config.products == "beside",
            REGISTERS=config.registers,
        ),
        num_warps=4,
        maxnreg=config.most_registers,
    )
