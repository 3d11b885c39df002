# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Softmax attention forward for Hopper: a producer warp, and two to four consumer warpgroups of 64 rows each.

The sums are those of portable.forward.  The pipeline is another (Shah et al. 2024, arXiv:2407.08608):

    producer      loads rows of queries, then tiles of keys and values, each as soon as its pipeline stage is free
    consumer      S' = Q K'ᵀ and O += P V are issued together; the softmax of S' runs beside the second, and beside
                  the products of the warpgroup whose turn comes next

Keys go from the last tile to the first, so that the tiles of a causal mask come before the steady state of the loop; a
warpgroup skips the tiles in front that none of its rows sees.
A work item is one tile of 64 rows a warpgroup.  A program has one, or several: then the producer is an item ahead, and
an output leaves beside the next item's first product, where shared memory has ROOM for two tiles of queries; or, where
it has some for half an output, from there, while the next queries come.

Products of 64 rows and 64 keys read as many bytes of shared memory as they have cycles for.  Queries that are split
have the first half of their dims in registers through an item, HELD there: half the scores' products read keys alone,
and over 128 dims shared memory has room for the other half of two tiles.

The accumulated output takes the factor of a softmax when that is known, and then the tensor cores have nothing of the
warpgroup; LAZY, it does so beside the next scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.kernels.flash.config.forward import WARPGROUPS
from attnbench.kernels.flash.config.space import (
    Shape,
    hopper_fault,
    key_stages,
    out_columns,
    query_columns,
    query_tiles,
)
from attnbench.kernels.flash.hopper.epilogue import Consumer, epilogue
from attnbench.kernels.flash.hopper.producer import Producer, produce
from attnbench.kernels.flash.hopper.tiles import (
    GridProblem,
    Mask,
    fold,
    hide,
    not_sooner,
    read_work,
    sums_of,
    unseen_of,
)
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.hopper import (
    ROWS,
    Rings,
    allocate_barriers,
    allocate_ring,
    allocate_work_queue,
    is_rows,
    partition_work,
    pass_turn,
    rows_of,
    skip_tiles,
    wait_turn,
)
from attnbench.kernels.shared.tiling import block_of, group_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash.config.forward import ForwardConfig
    from attnbench.kernels.flash.problem import Problem

LOG2_E = 1.4426950408889634
COUNTS = ("seqlen_q", "seqlen_k", "lse_batch", "lse_head", "left", "right", "heads", "repeats", "pairs", "tiles",
          "group", "stretch", "sharers")
"Numbers of a call that no code is compiled anew for."


@gluon.jit
@no_type_check
def scores_of(held, q, k, none):
    """Issue the scores of queries and of keys [BLOCK_N, dims]; of split queries half the dims, the first, is `held`."""
    HALF: gl.constexpr = q.shape[1] % k.shape[1]
    if HALF:
        first = warpgroup_mma(held, k.slice(0, HALF, 1).permute([1, 0]), none, use_acc=False, is_async=True)
        scores = warpgroup_mma(q, k.slice(HALF, HALF, 1).permute([1, 0]), first, is_async=True)
    else:
        scores = warpgroup_mma(q, k.permute([1, 0]), none, use_acc=False, is_async=True)
    return scores


@gluon.jit
@no_type_check
def hide_tile(scores, consumer, tile, done, row):
    """Scores of a tile of keys with those at -∞ that the mask hides."""
    work = read_work(consumer.queue, done)
    return hide(scores, row, tile * consumer.BLOCK_N, work.keys, work.keys - work.queries, consumer.mask)


@gluon.jit
@no_type_check
def through_keys(held, q, acc, row_max, sums, consumer, count, done, row, begin, whole, split, end,
                 WARPGROUP: gl.constexpr):
    """Softmax and sums of a work item's tiles of keys, one at least, and the count after them."""
    turns = consumer.turns
    scale = consumer.scale
    BLOCK_N: gl.constexpr = consumer.BLOCK_N
    TURNS: gl.constexpr = consumer.TURNS
    LAZY: gl.constexpr = consumer.LAZY
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    OF_OUT: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    q_ring = consumer.rings.q[WARPGROUP]
    k_ring = consumer.rings.k
    v_ring = consumer.rings.v
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    k_ring.wait(count)
    if TURNS:
        wait_turn(turns, count, WARPGROUP)
    scores = scores_of(held, q, k_ring.tile(count), none)
    if TURNS:
        pass_turn(turns, WARPGROUP)
    if q_ring.STAGES > 1:
        q_ring.release_stored(done)
    scores = warpgroup_mma_wait(0, [scores])
    k_ring.release(count)
    if q.shape[1] != acc.shape[1]:
        # Not before a product that read them: a barrier of the warps does not wait for loads into registers, and shared
        # memory that products keep busy serves them so late that the next queries could be there.
        consumer.held_rings[WARPGROUP].release(done)
    masked = end > split
    if consumer.mask.HAS_LEFT:
        masked |= end <= whole
    if masked:
        scores = hide_tile(scores, consumer, end - 1, done, row)
    weights, factor, row_max, sums = fold(scores, row_max, sums, scale, consumer.MIX)
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    if begin + 1 < end:
        k_ring.wait(count + 1)
    for index in range(1, end - begin):
        tile = end - 1 - index
        if not LAZY:
            v_ring.wait(count)
        if TURNS:
            wait_turn(turns, count + 1, WARPGROUP)
        scores = scores_of(held, q, k_ring.tile(count + 1), none)
        if LAZY:
            v_ring.wait(count)
            acc = acc * gl.convert_layout(not_sooner(factor), OF_OUT)[:, None]
        acc = warpgroup_mma(weights, v_ring.tile(count), acc, is_async=True)
        if TURNS:
            pass_turn(turns, WARPGROUP)
        scores = warpgroup_mma_wait(1, [scores])
        k_ring.release(count + 1)
        masked = tile >= split
        if consumer.mask.HAS_LEFT:
            masked |= tile < whole
        if masked:
            scores = hide_tile(scores, consumer, tile, done, row)
        following, factor, row_max, sums = fold(scores, row_max, sums, scale, consumer.MIX)
        # Here, and not where they are read: between the softmax and the wait for what it runs beside.
        if tile > begin:
            k_ring.wait(count + 2)
        acc = warpgroup_mma_wait(0, [acc])
        v_ring.release(count)
        if not LAZY:
            acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
        weights = gl.convert_layout(following.to(q.dtype), WEIGHTS)
        count += 1
    if LAZY:
        acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
    acc = warpgroup_mma(weights, v_ring.take(count), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    v_ring.release(count)
    return acc, row_max, sums, count + 1


@gluon.jit
@no_type_check
def attend(consumer, count, done, WARPGROUP: gl.constexpr):
    """Attend to a work item's keys and store the output; how many tiles of keys there have been then."""
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, consumer.BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    rings = consumer.rings
    q_ring = rings.q[WARPGROUP]
    held_ring = consumer.held_rings[WARPGROUP]
    SPLIT: gl.constexpr = q_ring.COLUMNS != BLOCK_V
    work = read_work(consumer.queue, done)
    begin, end = work.begin, work.end
    row = work.first + WARPGROUP * ROWS
    acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    sums = sums_of(gl.zeros([ROWS, consumer.BLOCK_N], gl.float32, SCORES))
    unseen = unseen_of(row, work, consumer.mask, consumer.BLOCK_N)
    count = skip_tiles(rings, count, unseen, consumer.turns, WARPGROUP, consumer.TURNS)
    end -= unseen
    if SPLIT:
        held_ring.wait(done)
    q = q_ring.take(done)
    if begin < end:
        held = row  # nothing that is read
        if SPLIT:
            held = held_ring.tile(done).load(gl.DotOperandLayout(0, SCORES, 2))
        acc, row_max, sums, count = through_keys(held, q, acc, row_max, sums, consumer, count, done, row, begin,
                                                 work.whole, work.split, end, WARPGROUP)
    else:
        if SPLIT:
            held_ring.release(done)
        if q_ring.STAGES > 1:
            q_ring.release_stored(done)
    # The queries have been read: the output leaves from where they were, or the next can come.
    place = q_ring.tiles.index(done % q_ring.STAGES)
    APART: gl.constexpr = consumer.out_desc.block_shape[4] != BLOCK_V and not SPLIT
    if APART:
        q_ring.release(done)
        place = consumer.outs.index(WARPGROUP)
    # A program of one work item needs the place of the held half no more.
    TWO: gl.constexpr = SPLIT and consumer.GRID == "tiles"
    second_place = place
    if TWO:
        second_place = held_ring.tiles.index(0)
    epilogue(consumer, acc, row_max, sums, place, second_place, done, row, not TWO)
    if consumer.GRID != "tiles":
        consumer.queue.release(done)
        if q_ring.STAGES == 1 and not APART:
            q_ring.release_stored(done + 1)
    return count


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: rows from 64 WARPGROUP of each work item."""
    queue = consumer.queue
    count = 0
    done = 0
    queue.wait(0)
    if consumer.GRID == "tiles":
        if queue.has_work(0):
            attend(consumer, count, done, WARPGROUP)
    else:
        while queue.has_work(done):
            count = attend(consumer, count, done, WARPGROUP)
            done += 1
            queue.wait(done)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_hopper_forward(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, counter_ptr, cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, lse_batch, lse_head,
    scale, left, right, heads, repeats, pairs, tiles, group, stretch, sharers,
    HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_V: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, GRID: gl.constexpr, ROOM: gl.constexpr,
    GROUPS: gl.constexpr, TURNS: gl.constexpr, MIX: gl.constexpr, LAZY: gl.constexpr, REGISTERS: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps; with ROOM for so many tiles of queries a warpgroup."""
    mask = Mask(left, right, HAS_LEFT, HAS_RIGHT)
    problem = GridProblem(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, mask, heads, pairs, tiles, group, stretch, sharers,
                          PACKED, GRID)
    q_rings = ()
    for _index in gl.static_range(GROUPS):
        q_rings = q_rings + (allocate_ring(q_desc, ROOM, 1),)
    held_rings = q_rings
    if q_desc.block_shape[4] != BLOCK_V:
        held_rings = ()
        for _index in gl.static_range(GROUPS):
            held_rings = held_rings + (allocate_ring(q_desc, 1, 1),)
    rings = Rings(q_rings, allocate_ring(k_desc, KEY_STAGES, GROUPS), allocate_ring(v_desc, STAGES, GROUPS))
    turns = allocate_barriers(GROUPS, 1)
    queue = allocate_work_queue(GROUPS, 10)
    outs = q_rings[0].tiles
    if out_desc.block_shape[4] != BLOCK_V and q_desc.block_shape[4] == BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    producer = Producer(q_desc, k_desc, v_desc, rings, problem, repeats, queue, counter_ptr, held_rings, BLOCK_N,
                        GROUPS)
    consumer = Consumer(out_desc, lse_ptr, lse_batch, lse_head, rings, turns, mask, scale, queue, outs, held_rings,
                        PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID)
    if GROUPS == 2:
        gl.warp_specialize([
            (consume, (consumer, 0)),
            (consume, (consumer, 1)),
            (produce, (producer,)),
        ], [4, 1], [REGISTERS, 24])
    elif GROUPS == 3:
        gl.warp_specialize([
            (consume, (consumer, 0)),
            (consume, (consumer, 1)),
            (consume, (consumer, 2)),
            (produce, (producer,)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    else:
        gl.warp_specialize([
            (consume, (consumer, 0)),
            (consume, (consumer, 1)),
            (consume, (consumer, 2)),
            (consume, (consumer, 3)),
            (produce, (producer,)),
        ], [4, 4, 4, 1], [REGISTERS, REGISTERS, REGISTERS, 24])


def launch_hopper_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse`; waits for nothing, and allocates nothing but the tile counter's four bytes.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D]; bf16 or fp16, rows as `hopper.is_rows` accepts, as all of them.
        k: [B, Sk, G, D] or packed.
        v: [B, Sk, G, Dv] or packed; Dv has the same next power of two as D.
        out: [B, Sq, H, Dv] or packed; every row is written.
        lse: fp32 `flash.problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; checked before.
        config: an order of `config.forward.HOPPER`.

    Raises:
        ValueError: the configuration is none for these dims or a tensor cannot be described; the one line says which
            and what is accepted.
    """
    (heads, dim), (heads_kv, dim_v) = q.shape[-2:], v.shape[-2:]
    shape = Shape(dim=dim, dim_v=dim_v, item_bytes=q.element_size(), capability=capability_of(q) or (9, 0))
    wrong = hopper_fault(config, shape)
    if wrong:
        raise ValueError(f"flash_attention: forward={config.short} {wrong}")
    tiles, pairs = -(-problem.max_seqlen_q // config.block_m), problem.batch * heads
    if tiles * pairs == 0 or q.numel() == 0:
        return
    # Of no keys nothing is read, but a descriptor is of something.
    tensors = {"q": q, "k": k if k.numel() else q, "v": v if v.numel() else out, "out": out}
    for name, x in tensors.items():
        if not is_rows(x):
            raise ValueError(f"flash_attention: {name}.stride={x.stride()} does not fit order={config.order}; rows and "
                             "heads a multiple of 16 bytes apart, sequences behind one another, or order=plain")
    columns, groups = block_of(dim), config.block_m // ROWS.value
    rows = {"q": ROWS.value, "k": config.block_n, "v": config.block_n, "out": ROWS.value}
    wide = {"q": query_columns(config, shape), "k": columns, "v": columns, "out": out_columns(config, shape)}
    described = [rows_of(x, rows[name], wide[name]) for name, x in tensors.items()]
    section = group_of(problem.max_seqlen_k * (dim + dim_v) * k.element_size(), config.section_mib,
                       problem.batch * heads_kv) * (heads // heads_kv)
    programs, stretch, sharers = partition_work(config.grid, tiles, pairs, section, processors(q))
    counter = torch.zeros(1, dtype=torch.int32, device=q.device) if config.grid == "ticket" else None
    flash_hopper_forward[(programs,)](
        *described, lse, counter, *problem.lengths(), lse.stride(0), lse.stride(1), problem.scale * LOG2_E,
        *problem.reach(), heads, heads // heads_kv, pairs, tiles, section, stretch, sharers, **problem.flags(),
        BLOCK_N=config.block_n, BLOCK_V=columns, KEY_STAGES=key_stages(config), STAGES=config.stages, GRID=config.grid,
        ROOM=query_tiles(config, shape), GROUPS=groups, TURNS=config.order == "pp",
        MIX=config.exp == "mix", LAZY=config.rescale == "lazy", REGISTERS=WARPGROUPS[config.warps], num_warps=4)
