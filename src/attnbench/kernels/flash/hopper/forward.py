# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Softmax attention forward for Hopper: one warp loads, two to four warpgroups of 64 rows each attend.

The sums are those of portable.forward.  What differs is who waits for whom (Shah et al. 2024, arXiv:2407.08608):

    loader        rows of queries, then tiles of keys and values, each as soon as its place in the ring is free
    warpgroup     S' = Q K'ᵀ and O += P V are issued together; the softmax of S' runs beside the second, and beside
                  the products of the warpgroup whose turn comes next

Keys go from the last tile to the first, so that what a causal mask cuts comes before the loop is in its stride; a
warpgroup passes over the tiles in front that none of its rows sees.
A job is one tile of 64 rows a warpgroup.  A program has one, or several: then the loader is a job ahead, and an output
leaves beside the next job's first product, where shared memory has ROOM for two tiles of queries; or, where it has some
for half an output, from there, while the next queries come.

Products of 64 rows and 64 keys read as many bytes of shared memory as they have cycles for.  Queries that are split
have the first half of their dims in registers through a job, HELD there: half the scores' products read keys alone, and
over 128 dims shared memory has room for the other half of two tiles.

The output so far takes the factor of a softmax when that is known, and then nothing of the warpgroup is with the tensor
cores; LAZY, it does so beside the next scores.
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
from attnbench.kernels.flash.hopper.epilogue import send
from attnbench.kernels.flash.hopper.producer import load
from attnbench.kernels.flash.hopper.tiles import fold, hide, not_sooner, sums_of, told_job, unseen_of
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.hopper import (
    ROWS,
    barriers,
    forget,
    give_back,
    hear,
    is_rows,
    leave,
    number_of,
    pass_over,
    pass_turn,
    ring_of,
    rows_of,
    shared_out,
    take,
    tickets_for,
    tile_of,
    wait_tile,
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
def cut_off(scores, given, tile, done, row, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, BLOCK_N: gl.constexpr):
    """Scores of a tile of keys with those at -∞ that the mask hides."""
    left, right = given[6]
    job = told_job(given[8], done)
    return hide(scores, row, tile * BLOCK_N, job[4], job[4] - job[3], left, right, HAS_LEFT, HAS_RIGHT)


@gluon.jit
@no_type_check
def through_keys(held, q, acc, row_max, sums, given, count, done, row, span, WHICH: gl.constexpr,
                 HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, BLOCK_N: gl.constexpr, TURNS: gl.constexpr,
                 MIX: gl.constexpr, LAZY: gl.constexpr, ROOM: gl.constexpr):
    """Softmax and sums of a job's tiles of keys, one at least, and the count after them."""
    _out_desc, _lse_ptr, _lse_batch, _lse_head, rings, turns, _reach, scale, _tickets, _outs, held_rings = given
    begin, whole, split, end = span
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    OF_OUT: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    q_rings, k_ring, v_ring = rings
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    wait_tile(k_ring, count)
    if TURNS:
        wait_turn(turns, count, WHICH)
    scores = scores_of(held, q, tile_of(k_ring, count), none)
    if TURNS:
        pass_turn(turns, WHICH)
    if ROOM > 1:
        leave(q_rings[WHICH], done)
    scores = warpgroup_mma_wait(0, [scores])
    give_back(k_ring, count)
    if q.shape[1] != acc.shape[1]:
        # Not before a product that read them: a barrier of the warps does not wait for loads into registers, and shared
        # memory that products keep busy serves them so late that the next queries could be there.
        give_back(held_rings[WHICH], done)
    cut = end > split
    if HAS_LEFT:
        cut |= end <= whole
    if cut:
        scores = cut_off(scores, given, end - 1, done, row, HAS_LEFT, HAS_RIGHT, BLOCK_N)
    weights, factor, row_max, sums = fold(scores, row_max, sums, scale, MIX)
    weights = gl.convert_layout(weights.to(q.dtype), WEIGHTS)
    if begin + 1 < end:
        wait_tile(k_ring, count + 1)
    for index in range(1, end - begin):
        tile = end - 1 - index
        if not LAZY:
            wait_tile(v_ring, count)
        if TURNS:
            wait_turn(turns, count + 1, WHICH)
        scores = scores_of(held, q, tile_of(k_ring, count + 1), none)
        if LAZY:
            wait_tile(v_ring, count)
            acc = acc * gl.convert_layout(not_sooner(factor), OF_OUT)[:, None]
        acc = warpgroup_mma(weights, tile_of(v_ring, count), acc, is_async=True)
        if TURNS:
            pass_turn(turns, WHICH)
        scores = warpgroup_mma_wait(1, [scores])
        give_back(k_ring, count + 1)
        cut = tile >= split
        if HAS_LEFT:
            cut |= tile < whole
        if cut:
            scores = cut_off(scores, given, tile, done, row, HAS_LEFT, HAS_RIGHT, BLOCK_N)
        following, factor, row_max, sums = fold(scores, row_max, sums, scale, MIX)
        # Here, and not where they are read: between the softmax and the wait for what it runs beside.
        if tile > begin:
            wait_tile(k_ring, count + 2)
        acc = warpgroup_mma_wait(0, [acc])
        give_back(v_ring, count)
        if not LAZY:
            acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
        weights = gl.convert_layout(following.to(q.dtype), WEIGHTS)
        count += 1
    if LAZY:
        acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
    acc = warpgroup_mma(weights, take(v_ring, count), acc, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    give_back(v_ring, count)
    return acc, row_max, sums, count + 1


@gluon.jit
@no_type_check
def attend_job(given, count, done, WHICH: gl.constexpr, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr,
               PACKED: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr,
               TURNS: gl.constexpr, MIX: gl.constexpr, LAZY: gl.constexpr, GRID: gl.constexpr, ROOM: gl.constexpr):
    """Attend to a job's keys and send the output; how many tiles of keys there have been then."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    q_ring = given[4][0][WHICH]
    SPLIT: gl.constexpr = q_ring[0].shape[5] != BLOCK_V
    _query_start, _head, _batch, queries, keys, first, begin, whole, split, end = told_job(given[8], done)
    row = first + WHICH * ROWS
    acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
    row_max = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    sums = sums_of(gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES))
    unseen = unseen_of(row, given[6][1], queries, keys, begin, end, HAS_RIGHT, BLOCK_N)
    count = pass_over(given[4], count, unseen, given[5], WHICH, TURNS)
    end -= unseen
    if SPLIT:
        wait_tile(given[10][WHICH], done)
    q = take(q_ring, done)
    if begin < end:
        held = row  # nothing that is read
        if SPLIT:
            held = tile_of(given[10][WHICH], done).load(gl.DotOperandLayout(0, SCORES, 2))
        acc, row_max, sums, count = through_keys(
            held, q, acc, row_max, sums, given, count, done, row, (begin, whole, split, end), WHICH, HAS_LEFT,
            HAS_RIGHT, BLOCK_N, TURNS, MIX, LAZY, ROOM)
    else:
        if SPLIT:
            give_back(given[10][WHICH], done)
        if ROOM > 1:
            leave(q_ring, done)
    # The queries have been read: the output leaves from where they were, or the next can come.
    place = q_ring[0].index(done % ROOM)
    APART: gl.constexpr = given[0].block_shape[4] != BLOCK_V and not SPLIT
    if APART:
        give_back(q_ring, done)
        place = given[9].index(WHICH)
    # A program of one job needs the place of the held half no more.
    TWO: gl.constexpr = SPLIT and GRID == "tiles"
    beside = place
    if TWO:
        beside = given[10][WHICH][0].index(0)
    send(given, acc, row_max, sums, place, beside, done, row, PACKED, not TWO)
    if GRID != "tiles":
        forget(given[8], done)
        if ROOM == 1 and not APART:
            leave(q_ring, done + 1)
    return count


@gluon.jit
@no_type_check
def attend(given, WHICH: gl.constexpr, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr,
           BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr, TURNS: gl.constexpr,
           MIX: gl.constexpr, LAZY: gl.constexpr, GRID: gl.constexpr, ROOM: gl.constexpr):
    """A warpgroup's work: rows from 64 WHICH of each job."""
    tickets = given[8]
    count = 0
    done = 0
    hear(tickets, 0)
    if GRID == "tiles":
        if number_of(tickets, 0, 0) >= 0:
            attend_job(given, count, done, WHICH, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX,
                       LAZY, GRID, ROOM)
    else:
        while number_of(tickets, done, 0) >= 0:
            count = attend_job(given, count, done, WHICH, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS,
                               MIX, LAZY, GRID, ROOM)
            done += 1
            hear(tickets, done)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_hopper_forward(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, drawn_ptr, cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, lse_batch, lse_head,
    scale, left, right, heads, repeats, pairs, tiles, group, stretch, sharers,
    HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_V: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, GRID: gl.constexpr, ROOM: gl.constexpr,
    GROUPS: gl.constexpr, TURNS: gl.constexpr, MIX: gl.constexpr, LAZY: gl.constexpr, REGISTERS: gl.constexpr,
):
    """Rings and barriers, and who does what; with ROOM for so many tiles of queries."""
    problem = (cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, left, right, heads, pairs, tiles, group, stretch, sharers)
    q_rings = (ring_of(q_desc, ROOM, 1), ring_of(q_desc, ROOM, 1))
    if GROUPS > 2:
        q_rings = (q_rings[0], q_rings[1], ring_of(q_desc, ROOM, 1))
    if GROUPS > 3:
        q_rings = (q_rings[0], q_rings[1], q_rings[2], ring_of(q_desc, ROOM, 1))
    held_rings = q_rings
    if q_desc.block_shape[4] != BLOCK_V:
        held_rings = (ring_of(q_desc, 1, 1), ring_of(q_desc, 1, 1))
        if GROUPS > 2:
            held_rings = (held_rings[0], held_rings[1], ring_of(q_desc, 1, 1))
    rings = (q_rings, ring_of(k_desc, KEY_STAGES, GROUPS), ring_of(v_desc, STAGES, GROUPS))
    turns = barriers(GROUPS, 1)
    tickets = tickets_for(GROUPS, 10)
    outs = q_rings[0][0]
    if out_desc.block_shape[4] != BLOCK_V and q_desc.block_shape[4] == BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [GROUPS] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, rings, problem, repeats, tickets, drawn_ptr, held_rings)
    sums = (out_desc, lse_ptr, lse_batch, lse_head, rings, turns, (left, right), scale, tickets, outs, held_rings)
    # Constants are written out each time: in a tuple they would be numbers of the run.
    if GROUPS == 2:
        gl.warp_specialize([
            (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, GROUPS, GRID)),
        ], [4, 1], [REGISTERS, 24])
    elif GROUPS == 3:
        gl.warp_specialize([
            (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 2, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, GROUPS, GRID)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])
    else:
        gl.warp_specialize([
            (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 2, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (attend, (sums, 3, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, TURNS, MIX, LAZY, GRID, ROOM)),
            (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, GROUPS, GRID)),
        ], [4, 4, 4, 1], [REGISTERS, REGISTERS, REGISTERS, 24])


def launch_hopper_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse`; nothing waits for the device, and but for a ticket's four bytes nothing is allocated.

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
    programs, stretch, sharers = shared_out(config.grid, tiles, pairs, section, processors(q))
    drawn = torch.zeros(1, dtype=torch.int32, device=q.device) if config.grid == "ticket" else None
    flash_hopper_forward[(programs,)](
        *described, lse, drawn, *problem.lengths(), lse.stride(0), lse.stride(1), problem.scale * LOG2_E,
        *problem.reach(), heads, heads // heads_kv, pairs, tiles, section, stretch, sharers, **problem.flags(),
        BLOCK_N=config.block_n, BLOCK_V=columns, KEY_STAGES=key_stages(config), STAGES=config.stages, GRID=config.grid,
        ROOM=query_tiles(config, shape), GROUPS=groups, TURNS=config.order == "pp",
        MIX=config.exp == "mix", LAZY=config.rescale == "lazy", REGISTERS=WARPGROUPS[config.warps], num_warps=4)
