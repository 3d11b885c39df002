# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Block-sparse softmax attention in 8 bits for Hopper: a producer that reads lists, and the consumers of `flash.quant`.

    producer      fetches a row of the map, longest first; loads its queries, then the listed key and value blocks
    consumer      `flash.quant.hopper.attend`, with the keys and scales of a tile from `ListedTiles`

Lists are processed from the last block to the first: the blocks that a causal mask or the end of the keys cuts off are
the last ones, and all others go through the loop without a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnbench.kernels.flash.hopper.tiles import Mask
from attnbench.kernels.flash.quant.config import QUERY_TILES
from attnbench.kernels.flash.quant.hopper.attend import Consumer, consume
from attnbench.kernels.flash.quant.hopper.tiles import TILE, WORK_FIELDS, QuantisedLayout
from attnbench.kernels.flash.sparse_quant.hopper.producer import Producer, produce
from attnbench.kernels.flash.sparse_quant.hopper.tiles import ListedTiles
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import ROWS, Rings, allocate_ring, allocate_work_queue, rows_of
from attnbench.kernels.shared.kept import launch

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.quant.prepare import Quantised
    from attnbench.kernels.flash.sparse.lists import BlockLists
    from attnbench.kernels.flash.sparse.problem import SparseProblem
    from attnbench.kernels.flash.sparse_quant.config import SparseQuantConfig

COUNTS = (
    "seqlen_q",
    "seqlen_k",
    "lse_batch",
    "lse_head",
    "all_lists",
    "heads",
    "heads_kv",
    "repeats",
    "lists",
    "columns",
    "rows_q",
    "rows_k",
)
"Launch arguments whose values the code is not specialized for."


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_sparse_quant_hopper_forward`."""

    CAUSAL: bool
    BLOCK_Q: int
    BLOCK_K: int
    COLUMNS: int
    STAGES: int
    ROOM: int
    GROUPS: int
    BESIDE: bool
    REGISTERS: int


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_sparse_quant_hopper_forward(
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
    items_ptr,
    indices_ptr,
    seqlen_q,
    seqlen_k,
    lse_batch,
    lse_head,
    all_lists,
    heads,
    heads_kv,
    repeats,
    lists,
    columns,
    rows_q,
    rows_k,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps; ROOM: query tiles of a warpgroup in shared memory."""
    GROUPS: gl.constexpr = META.GROUPS
    REGISTERS: gl.constexpr = META.REGISTERS
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
        layout=layout,
        queue=queue,
        counter_ptr=counter_ptr,
        items_ptr=items_ptr,
        indices_ptr=indices_ptr,
        all_lists=all_lists,
        heads=heads,
        lists=lists,
        columns=columns,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        BLOCK_Q=META.BLOCK_Q,
        BLOCK_K=META.BLOCK_K,
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
        tiles=ListedTiles(
            mask=Mask(0, 0, False, META.CAUSAL),
            indices_ptr=indices_ptr,
            heads=heads,
            lists=lists,
            columns=columns,
            BLOCK_Q=META.BLOCK_Q,
            BLOCK_K=META.BLOCK_K,
        ),
        queue=queue,
        outs=outs,
        PACKED=False,
        BLOCK_N=META.BLOCK_K,
        COLUMNS=META.COLUMNS,
        BESIDE=META.BESIDE,
    )
    if GROUPS == 1:
        gl.warp_specialize([(consume, (consumer, 0)), (produce, (producer,))], [1], [24])
    else:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [REGISTERS, 24]
        )


def launch_hopper_forward(
    made: Quantised, out: Tensor, lse: Tensor, lists: BlockLists, problem: SparseProblem, config: SparseQuantConfig
) -> None:
    """Compute `out` and `lse`; does not synchronize and allocates nothing.

    Args:
        made: quantised for this problem; its counter is 0 before and after.
        out: [B, Sq, H, D], contiguous, D a multiple of 8; every row is written.
        lse: fp32 [B, H, Sq]; every row is written.
        lists: of the map, one for each of its rows.
        problem: lengths, blocks and mask; already checked.
        config: with the order ws, valid for the shape.
    """
    heads, (heads_kv, rows_k, columns) = out.shape[2], made.k.shape
    all_lists = lists.items.shape[0]
    # With no keys nothing is read, but a descriptor needs a tensor that is not empty.
    k, v = (made.k, made.v) if rows_k else (made.q, made.q)
    block_q, block_k = problem.block
    items = all_lists * (block_q // config.block_m)
    launch(
        flash_sparse_quant_hopper_forward,
        (min(items, config.programs * processors(out)),),
        q_desc=rows_of(made.q.transpose(0, 1), ROWS.value, columns),
        k_desc=rows_of(k.transpose(0, 1), block_k, columns),
        v_desc=rows_of(v.view(heads_kv if rows_k else heads, -1, TILE.value).transpose(0, 1), columns, block_k),
        out_desc=rows_of(out, ROWS.value, columns),
        lse_ptr=lse,
        q_scale_ptr=made.q_scale,
        q_shift_ptr=made.q_shift,
        k_scale_ptr=made.k_scale,
        v_scale_ptr=made.v_scale,
        counter_ptr=made.counter,
        items_ptr=lists.items,
        indices_ptr=lists.indices,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        lse_batch=lse.stride(0),
        lse_head=lse.stride(1),
        all_lists=all_lists,
        heads=heads,
        heads_kv=heads_kv,
        repeats=heads // heads_kv,
        lists=lists.counts.shape[2],
        columns=lists.indices.shape[3],
        rows_q=made.q.shape[1],
        rows_k=rows_k,
        META=ForwardMeta(
            CAUSAL=problem.causal,
            BLOCK_Q=block_q,
            BLOCK_K=block_k,
            COLUMNS=columns,
            STAGES=config.stages,
            ROOM=QUERY_TILES,
            GROUPS=config.groups,
            BESIDE=config.products == "beside",
            REGISTERS=config.consumer_registers,
        ),
        num_warps=4,
        maxnreg=config.registers,
    )
