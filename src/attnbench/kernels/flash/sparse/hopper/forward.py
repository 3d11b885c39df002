# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Block-sparse softmax attention forward for Hopper: the dense forward's consumers, and a producer that reads lists.

    producer      fetches a row of the map, longest first; loads its queries, then the listed key and value tiles
    consumer      `flash.hopper.attend`: QKᵀ of a tile overlaps with PV of the previous tile

A tile of keys is a block, a part of one, or two blocks of a list, each loaded into its half.

Lists are processed from the last block to the first: the blocks that a causal mask or the end of the keys cuts off are
the last ones, and all others go through the loop without a mask.  A work item is a row of the map, or half of one, of a
head; programs fetch work items from an atomic counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnbench.kernels.flash.hopper.attend import consume
from attnbench.kernels.flash.hopper.epilogue import Consumer
from attnbench.kernels.flash.hopper.pieces import Rests
from attnbench.kernels.flash.hopper.tiles import WORK_FIELDS, ring_of
from attnbench.kernels.flash.sparse.config import Shape, query_tiles
from attnbench.kernels.flash.sparse.hopper.attend import consume_listed
from attnbench.kernels.flash.sparse.hopper.producer import Producer, produce
from attnbench.kernels.flash.sparse.hopper.tiles import ListMask
from attnbench.kernels.flash.sparse.problem import wrong
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import (
    ROWS,
    Rings,
    allocate_barriers,
    allocate_ring,
    allocate_work_queue,
    is_rows,
    rows_of,
)
from attnbench.kernels.shared.kept import launch, zeros
from attnbench.kernels.shared.tiling import block_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.sparse.config import SparseConfig
    from attnbench.kernels.flash.sparse.lists import BlockLists
    from attnbench.kernels.flash.sparse.problem import SparseProblem

LOG2_E = 1.4426950408889634
COUNTS = ("seqlen_q", "seqlen_k", "lse_batch", "lse_head", "all_lists", "heads", "rows", "lists", "columns", "repeats")
"Launch arguments whose values the code is not specialized for."


@gluon.jit
@no_type_check
def consume_lists(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: rows 64 WARPGROUP to 64 WARPGROUP + 63 of each work item."""
    if consumer.mask.SHARE > 1 or consumer.mask.HELD:
        consume_listed(consumer, WARPGROUP)
    else:
        consume(consumer, WARPGROUP)


@gluon.jit
@no_type_check
def allocate_tiles(desc, STAGES: gl.constexpr, BLOCKS: gl.constexpr):
    """Shared memory of STAGES tiles, each of BLOCKS of `desc`'s boxes; before warp specialization."""
    ROWS_OF_TILE: gl.constexpr = desc.block_shape[2] * BLOCKS
    return gl.allocate_shared_memory(desc.dtype, [STAGES, 1, 1, ROWS_OF_TILE, 1, desc.block_shape[4]], desc.layout)


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_sparse_hopper_forward`."""

    CAUSAL: bool
    BLOCK_Q: int
    BLOCK_K: int
    PARTS: int
    BLOCKS: int
    SHARE: int
    BLOCK_N: int
    BLOCK_V: int
    KEY_STAGES: int
    STAGES: int
    ROOM: int
    GROUPS: int
    JOINT: bool
    HELD: bool
    LAZY: bool
    DOUBLE: bool
    REGISTERS: int


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_sparse_hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    lse_ptr,
    counter_ptr,
    items_ptr,
    indices_ptr,
    places_ptr,
    counts_ptr,
    seqlen_q,
    seqlen_k,
    lse_batch,
    lse_head,
    scale,
    all_lists,
    heads,
    rows,
    lists,
    columns,
    repeats,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps; ROOM: query tiles of a warpgroup in shared memory."""
    GROUPS: gl.constexpr = META.GROUPS
    REGISTERS: gl.constexpr = META.REGISTERS
    q_rings = ()
    no_rests = ()
    for _index in gl.static_range(GROUPS):
        q_rings = q_rings + (allocate_ring(q_desc, META.ROOM, 1),)
        no_rests = no_rests + ((),)
    keys = allocate_tiles(k_desc, META.KEY_STAGES, META.BLOCKS)
    k_ring = ring_of(keys, GROUPS)
    values = keys
    if not META.JOINT:
        values = allocate_tiles(v_desc, META.STAGES, META.BLOCKS)
    rings = Rings(q_rings, k_ring, ring_of(values, GROUPS))
    turns = allocate_barriers(GROUPS, 1)
    queue = allocate_work_queue(GROUPS, WORK_FIELDS)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        rings=rings,
        queue=queue,
        counter_ptr=counter_ptr,
        items_ptr=items_ptr,
        indices_ptr=indices_ptr,
        all_lists=all_lists,
        heads=heads,
        lists=lists,
        columns=columns,
        repeats=repeats,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        BLOCK_Q=META.BLOCK_Q,
        BLOCK_K=META.BLOCK_K,
        PARTS=META.PARTS,
        BLOCKS=META.BLOCKS,
        JOINT=META.JOINT,
        SHARE=META.SHARE,
        GROUPS=GROUPS,
    )
    mask = ListMask(
        indices_ptr=indices_ptr,
        places_ptr=places_ptr,
        counts_ptr=counts_ptr,
        heads=heads,
        rows=rows,
        lists=lists,
        columns=columns,
        left=0,
        right=0,
        HAS_LEFT=False,
        HAS_RIGHT=META.CAUSAL,
        BLOCK_Q=META.BLOCK_Q,
        BLOCK_K=META.BLOCK_K,
        PARTS=META.PARTS,
        BLOCKS=META.BLOCKS,
        SHARE=META.SHARE,
        HELD=META.HELD,
    )
    consumer = Consumer(
        out_desc=out_desc,
        lse_ptr=lse_ptr,
        lse_batch=lse_batch,
        lse_head=lse_head,
        rings=rings,
        turns=turns,
        mask=mask,
        scale=scale,
        queue=queue,
        outs=q_rings[0].tiles,
        held_rings=q_rings,
        rests=Rests(no_rests, (), ()),
        rest_out=(),
        stored=(),
        PACKED=False,
        BLOCK_N=META.BLOCK_N,
        BLOCK_V=META.BLOCK_V,
        REST_V=0,
        SKIPS=False,
        TURNS=False,
        MIX=False,
        LAZY=META.LAZY,
        DOUBLE=META.DOUBLE,
        GRID="ticket",
    )
    if GROUPS == 1:
        gl.warp_specialize([(consume_lists, (consumer, 0)), (produce, (producer,))], [1], [24])
    elif GROUPS == 2:
        gl.warp_specialize(
            [(consume_lists, (consumer, 0)), (consume_lists, (consumer, 1)), (produce, (producer,))],
            [4, 1],
            [REGISTERS, 24],
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [
                (consume_lists, (consumer, 0)),
                (consume_lists, (consumer, 1)),
                (consume_lists, (consumer, 2)),
                (produce, (producer,)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume_lists, (consumer, 0)),
                (consume_lists, (consumer, 1)),
                (consume_lists, (consumer, 2)),
                (consume_lists, (consumer, 3)),
                (produce, (producer,)),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, 24],
        )


def launch_hopper_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lists: BlockLists,
    problem: SparseProblem,
    config: SparseConfig,
) -> None:
    """Compute `out` and `lse` without synchronizing; allocates only the tile counter, four bytes.

    Args:
        q: [B, Sq, H, D], bf16 or fp16, rows as `hopper.is_rows` accepts, also for the others.
        k: [B, Sk, G, D].
        v: [B, Sk, G, D].
        out: [B, Sq, H, D]; every row is written.
        lse: fp32 [B, H, Sq]; every row is written.
        lists: of the map.
        problem: lengths, blocks and mask; already checked.
        config: with the order ws, valid for the shape.

    Raises:
        ValueError: tensor maps cannot describe a tensor; the message says which and what is accepted.
    """
    _, heads, _, columns = problem.map_shape
    all_lists = lists.items.shape[0]
    # With no keys nothing is read, but a descriptor needs a tensor that is not empty.
    tensors = {"q": q, "k": k if k.numel() else q, "v": v if v.numel() else out, "out": out}
    for name, x in tensors.items():
        if not is_rows(x):
            raise wrong(
                f"{name}.stride",
                x.stride(),
                "does not fit order=ws",
                "rows and heads a multiple of 16 bytes apart, sequences one after another, or order=plain",
            )
    shape = Shape(dim=q.shape[-1], block_q=problem.block_q, block_k=problem.block_k, item_bytes=q.element_size())
    box = min(config.block_n, problem.block_k)
    tile = {"q": ROWS.value, "k": box, "v": box, "out": ROWS.value}
    dims = block_of(q.shape[-1])
    described = {f"{name}_desc": rows_of(x, tile[name], dims) for name, x in tensors.items()}
    items = all_lists * max(1, problem.block_q // config.block_m)
    counter = zeros((1,), q, torch.int32)
    launch(
        flash_sparse_hopper_forward,
        (min(items, config.programs * processors(q)),),
        **described,
        lse_ptr=lse,
        counter_ptr=counter,
        items_ptr=lists.items,
        indices_ptr=lists.indices,
        places_ptr=lists.places,
        counts_ptr=lists.counts,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        lse_batch=lse.stride(0),
        lse_head=lse.stride(1),
        scale=problem.scale * LOG2_E,
        all_lists=all_lists,
        heads=heads,
        rows=lists.counts.shape[2],
        lists=lists.indices.shape[2],
        columns=columns,
        repeats=heads // k.shape[2],
        META=ForwardMeta(
            CAUSAL=problem.causal,
            BLOCK_Q=lists.unit,
            BLOCK_K=problem.block_k,
            PARTS=problem.block_k // box,
            BLOCKS=config.block_n // box,
            SHARE=lists.share,
            BLOCK_N=config.block_n,
            BLOCK_V=dims,
            KEY_STAGES=config.key_stages,
            STAGES=config.stages,
            ROOM=query_tiles(config, shape),
            GROUPS=config.groups,
            JOINT=config.rings == "joint",
            HELD=config.scores == "rs",
            LAZY=config.rescale == "lazy",
            DOUBLE=config.weights == "double",
            REGISTERS=config.consumer_registers,
        ),
        num_warps=4,
        maxnreg=config.registers,
    )
