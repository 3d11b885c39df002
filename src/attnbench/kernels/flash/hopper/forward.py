# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Softmax attention forward for Hopper: a producer warp, and two to four consumer warpgroups of 64 rows each.

The arithmetic is that of portable.forward; the pipeline follows Shah et al. 2024, arXiv:2407.08608:

    producer      loads query tiles, then key and value tiles, each as soon as its pipeline stage is free
    consumer      S' = Q K'ᵀ and O += P V are issued together; the softmax of S' runs while the second product does,
                  and, with ping-pong, while the products of the next warpgroup do

Key tiles are processed from the last to the first, so that the masked tiles of a causal mask come before the steady
state of the loop.  A warpgroup skips the tiles at the start of which none of its rows sees a key.
A work item is one tile of 64 rows for each warpgroup.  A program has one work item or several.  With several, the
producer loads one item ahead, and an output is stored while the next item's first product runs: through the query
buffer if shared memory has ROOM for two query tiles, otherwise through a buffer of half an output, if that fits.

Options (`config.forward`):

    split     a product of 64 rows and 64 keys reads shared memory at its full bandwidth.  Queries keep the first half of
              their dims in registers during a work item (HELD): half of the score product then reads only keys, and above
              128 dims the other halves of two query tiles fit into shared memory
    joint     keys and values share their stages: larger tiles fit, and the values of a tile are loaded when its keys have
              been read.  With lazy that may take until the next score product is done, otherwise only until it starts
    lazy      the output is rescaled while the next score product runs, not at once, when the tensor cores would idle
    pieces    dims between two powers of two are two tiles (`hopper.pieces`)
    stored    value products read the weights from shared memory, which frees registers for a third warpgroup
    double    weights are double-buffered in registers: those of the next tile are rounded while a value product still reads
              the last ones, and stages are released while the next score product runs.  So only the wait for the value
              product is between a softmax and the next score product
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from attnbench.kernels.flash.config.forward import WARPGROUPS
from attnbench.kernels.flash.config.space import (
    Shape,
    hopper_fault,
    key_stages,
    out_columns,
    query_columns,
    query_tiles,
    tile_columns,
)
from attnbench.kernels.flash.hopper.attend import consume
from attnbench.kernels.flash.hopper.epilogue import Consumer
from attnbench.kernels.flash.hopper.pieces import Rests, allocate_rest, joint_rest
from attnbench.kernels.flash.hopper.producer import Producer, produce
from attnbench.kernels.flash.hopper.tiles import WORK_FIELDS, GridProblem, Mask, ring_of
from attnbench.kernels.flash.problem import lse_strides
from attnbench.kernels.shared.card import capability_of, processors
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
from attnbench.kernels.shared.tiling import group_of, partition_work

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.forward import ForwardConfig
    from attnbench.kernels.flash.problem import Problem

LOG2_E = 1.4426950408889634
COUNTS = (
    "seqlen_q",
    "seqlen_k",
    "lse_batch",
    "lse_head",
    "left",
    "right",
    "heads",
    "repeats",
    "pairs",
    "tiles",
    "group",
    "stretch",
    "sharers",
)
"Launch arguments whose values the code is not specialized for."


class Pointers(NamedTuple):
    """Pointers that are not tensor maps: lse, the tile counter, and the offsets of packed sequences."""

    lse: Any
    counter: Any
    "only with the dynamic tile scheduler, otherwise None"
    cu_q: Any
    "like cu_k: None where all sequences have the same length"
    cu_k: Any


class ForwardMeta(NamedTuple):
    """Compile-time constants of `flash_hopper_forward`."""

    HAS_LEFT: bool
    HAS_RIGHT: bool
    PACKED: bool
    BLOCK_N: int
    BLOCK_V: int
    REST_V: int
    KEY_STAGES: int
    STAGES: int
    GRID: str
    ROOM: int
    GROUPS: int
    JOINT: bool
    TURNS: bool
    MIX: bool
    LAZY: bool
    STORED: bool
    DOUBLE: bool
    REGISTERS: int


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_hopper_forward(
    q_desc,
    k_desc,
    v_desc,
    out_desc,
    q_rest_desc,
    k_rest_desc,
    v_rest_desc,
    out_rest_desc,
    pointers,
    seqlen_q,
    seqlen_k,
    lse_batch,
    lse_head,
    scale,
    left,
    right,
    heads,
    repeats,
    pairs,
    tiles,
    group,
    stretch,
    sharers,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps; ROOM is the number of query tiles of a warpgroup in shared memory."""
    GROUPS: gl.constexpr = META.GROUPS
    REGISTERS: gl.constexpr = META.REGISTERS
    mask = Mask(left, right, META.HAS_LEFT, META.HAS_RIGHT)
    problem = GridProblem(
        cu_q_ptr=pointers.cu_q,
        cu_k_ptr=pointers.cu_k,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=group,
        stretch=stretch,
        sharers=sharers,
        PACKED=META.PACKED,
        GRID=META.GRID,
    )
    q_rings = ()
    for _index in gl.static_range(GROUPS):
        q_rings = q_rings + (allocate_ring(q_desc, META.ROOM, 1),)
    held_rings = q_rings
    if q_desc.block_shape[4] != META.BLOCK_V:
        held_rings = ()
        for _index in gl.static_range(GROUPS):
            held_rings = held_rings + (allocate_ring(q_desc, 1, 1),)
    k_ring = allocate_ring(k_desc, META.KEY_STAGES, GROUPS)
    v_ring = ring_of(k_ring.tiles, GROUPS) if META.JOINT else allocate_ring(v_desc, META.STAGES, GROUPS)
    rings = Rings(q_rings, k_ring, v_ring)
    q_rests = ()
    for _index in gl.static_range(GROUPS):
        q_rests = q_rests + (allocate_rest(q_rest_desc, META.ROOM),)
    k_rest = allocate_rest(k_rest_desc, META.KEY_STAGES)
    v_rest = joint_rest(v_rest_desc, k_rest) if META.JOINT else allocate_rest(v_rest_desc, META.STAGES)
    rests = Rests(q_rests, k_rest, v_rest)
    rest_out = ()
    if META.REST_V:
        rest_out = (out_rest_desc,)
    stored = ()
    if META.STORED:
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout(min(128, 2 * META.BLOCK_N), 16, 2)
        stored = (gl.allocate_shared_memory(q_desc.dtype, [GROUPS, ROWS, META.BLOCK_N], LAYOUT),)
    turns = allocate_barriers(GROUPS, 1)
    queue = allocate_work_queue(GROUPS, WORK_FIELDS)
    outs = q_rings[0].tiles
    if out_desc.block_shape[4] != META.BLOCK_V and q_desc.block_shape[4] == META.BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        rings=rings,
        problem=problem,
        repeats=repeats,
        queue=queue,
        counter_ptr=pointers.counter,
        held_rings=held_rings,
        rests=rests,
        BLOCK_N=META.BLOCK_N,
        GROUPS=GROUPS,
        JOINT=META.JOINT,
    )
    consumer = Consumer(
        out_desc=out_desc,
        lse_ptr=pointers.lse,
        lse_batch=lse_batch,
        lse_head=lse_head,
        rings=rings,
        turns=turns,
        mask=mask,
        scale=scale,
        queue=queue,
        outs=outs,
        held_rings=held_rings,
        rests=rests,
        rest_out=rest_out,
        stored=stored,
        PACKED=META.PACKED,
        BLOCK_N=META.BLOCK_N,
        BLOCK_V=META.BLOCK_V,
        REST_V=META.REST_V,
        SKIPS=True,
        TURNS=META.TURNS,
        MIX=META.MIX,
        LAZY=META.LAZY,
        DOUBLE=META.DOUBLE,
        GRID=META.GRID,
    )
    if GROUPS == 2:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [REGISTERS, 24]
        )
    elif GROUPS == 3:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (consume, (consumer, 2)), (produce, (producer,))],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )
    else:
        gl.warp_specialize(
            [
                (consume, (consumer, 0)),
                (consume, (consumer, 1)),
                (consume, (consumer, 2)),
                (consume, (consumer, 3)),
                (produce, (producer,)),
            ],
            [4, 4, 4, 1],
            [REGISTERS, REGISTERS, REGISTERS, 24],
        )


def launch_hopper_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse` without synchronizing; allocates only the tile counter, four bytes.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D]; bf16 or fp16, rows as `hopper.is_rows` accepts, also for the others.
        k: [B, Sk, G, D] or packed.
        v: [B, Sk, G, Dv] or packed; Dv has the same next power of two as D.
        out: [B, Sq, H, Dv] or packed; every row is written.
        lse: fp32 `flash.problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; already checked.
        config: with an order of `config.forward.HOPPER`.

    Raises:
        ValueError: the configuration does not support these dims, or tensor maps cannot describe a tensor; the message
            says which and what is accepted.
    """
    (heads, dim), (heads_kv, dim_v) = q.shape[-2:], v.shape[-2:]
    shape = Shape(dim=dim, dim_v=dim_v, item_bytes=q.element_size(), capability=capability_of(q) or (9, 0))
    wrong = hopper_fault(config, shape)
    if wrong:
        raise ValueError(f"flash_attention: forward={config.short} {wrong}")
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0 or q.numel() == 0:
        return
    # With no keys nothing is read, but a descriptor needs a tensor that is not empty.
    tensors = {"q": q, "k": k if k.numel() else q, "v": v if v.numel() else out, "out": out}
    for name, x in tensors.items():
        if not is_rows(x):
            raise ValueError(
                f"flash_attention: {name}.stride={x.stride()} does not fit order={config.order}; rows and "
                "heads a multiple of 16 bytes apart, sequences one after another, or order=plain"
            )
    (columns, *rest), groups = tile_columns(config, shape), config.block_m // ROWS.value
    rows = {"q": ROWS.value, "k": config.block_n, "v": config.block_n, "out": ROWS.value}
    wide = {"q": query_columns(config, shape), "k": columns, "v": columns, "out": out_columns(config, shape)}
    described = {f"{name}_desc": rows_of(x, rows[name], wide[name]) for name, x in tensors.items()}
    described |= {f"{name}_rest_desc": rows_of(x, rows[name], rest[0]) if rest else None for name, x in tensors.items()}
    section = group_of(
        problem.max_seqlen_k * (dim + dim_v) * k.element_size(), config.section_mib, problem.batch * heads_kv
    ) * (heads // heads_kv)
    shares = partition_work(config.grid, tiles, pairs, section, processors(q))
    counter = zeros((1,), q, torch.int32) if config.grid == "ticket" else None
    launch(
        flash_hopper_forward,
        (shares.programs,),
        **described,
        pointers=Pointers(lse=lse, counter=counter, cu_q=problem.cu_seqlens_q, cu_k=problem.cu_seqlens_k),
        seqlen_q=problem.max_seqlen_q,
        seqlen_k=problem.seqlen_k,
        **lse_strides(lse, problem),
        scale=problem.scale * LOG2_E,
        **problem.reach(),
        heads=heads,
        repeats=heads // heads_kv,
        pairs=pairs,
        tiles=tiles,
        group=section,
        stretch=shares.stretch,
        sharers=shares.sharers,
        META=ForwardMeta(
            **problem.flags(),
            BLOCK_N=config.block_n,
            BLOCK_V=columns,
            REST_V=sum(rest),
            KEY_STAGES=key_stages(config),
            STAGES=config.stages,
            GRID=config.grid,
            ROOM=query_tiles(config, shape),
            GROUPS=groups,
            JOINT=config.rings == "joint",
            TURNS=config.order == "pp",
            MIX=config.exp == "mix",
            LAZY=config.rescale == "lazy",
            STORED=config.weights == "stored",
            DOUBLE=config.weights == "double",
            REGISTERS=WARPGROUPS[config.warps],
        ),
        num_warps=4,
    )
