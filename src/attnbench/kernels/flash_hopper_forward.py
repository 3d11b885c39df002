# ruff: noqa: ANN001, ANN201 (bodies of kernels are not Python)
"""Softmax attention forward for Hopper: one warp loads, two or three warpgroups of 64 rows each attend.

The sums are those of flash_forward.  What differs is who waits for whom (Shah et al. 2024, arXiv:2407.08608):

    loader        rows of queries, then tiles of keys and values, each as soon as its place in the ring is free
    warpgroup     S' = Q K'ᵀ and O += P V are issued together; the softmax of S' runs beside the second, and beside
                  the products of the warpgroup whose turn comes next

Keys go from the last tile to the first, so that what a causal mask cuts comes before the loop is in its stride.
A program takes one tile of 64 rows a warpgroup, or, persistent, every so many-th: then the loader is a tile ahead, and
an output leaves beside the next tile's first product, where shared memory has ROOM for two tiles of queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.kernels.flash_configs import WARPGROUPS
from attnbench.kernels.flash_problem import block_of, capability_of, group_of, processors
from attnbench.kernels.flash_space import Shape, hopper_fault, query_tiles
from attnbench.kernels.flash_tiles import keys_of_rows, sees, sequence, tiles_of
from attnbench.kernels.hopper import (
    ROWS,
    barriers,
    fill,
    flat,
    give_back,
    is_rows,
    pass_turn,
    place_of,
    ring_of,
    rows_of,
    store_tile,
    sync_warps,
    take,
    tile_of,
    wait_tile,
    wait_turn,
)
from attnbench.kernels.rows import section_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.flash_configs import ForwardConfig
    from attnbench.kernels.flash_problem import Problem

LOG2_E = 1.4426950408889634
LN_2 = gl.constexpr(0.6931471805599453)
COUNTS = ("seqlen_q", "seqlen_k", "lse_batch", "lse_head", "left", "right", "heads", "repeats", "pairs", "tiles",
          "group")
"Numbers of a call that no code is compiled anew for."


@gluon.jit
@no_type_check
def job_of(program, problem, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr,
           BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Which rows a tile of queries is, and which tiles of keys they see."""
    cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, left, right, heads, pairs, tiles, group = problem
    tile, pair = section_of(program, tiles, pairs, group)
    number = pair // heads
    head = pair - number * heads
    batch, query_start, key_start, queries, keys = sequence(cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, number, PACKED)
    query_start = (query_start + batch * seqlen_q).to(gl.int32)
    key_start = (key_start + batch * seqlen_k).to(gl.int32)
    first = (tiles - 1 - tile) * BLOCK_M
    shift = keys - queries
    low, all_low, all_high, high = keys_of_rows(first, gl.minimum(first + BLOCK_M, queries) - 1, keys, shift, left,
                                                right, HAS_LEFT, HAS_RIGHT)
    begin, whole, split, end = tiles_of(low, all_low, all_high, high, BLOCK_N)
    return head, batch, query_start, key_start, queries, keys, first, begin, whole, split, end


@gluon.jit
@no_type_check
def span_of(problem, PERSISTENT: gl.constexpr):
    """Which tiles of queries are a program's: first, end and step; one where that is known beforehand."""
    first = gl.program_id(0)
    end = first + 1
    step = 1
    if PERSISTENT:
        end = problem[8] * problem[7]
        step = gl.num_programs(0)
    return first, end, step


@gluon.jit
@no_type_check
def load(given, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_N: gl.constexpr,
         GROUPS: gl.constexpr, PERSISTENT: gl.constexpr):
    """The loader's work."""
    q_desc, k_desc, v_desc, rings, problem, repeats = given
    q_rings, k_ring, v_ring = rings
    count = 0
    done = 0
    one, last, step = span_of(problem, PERSISTENT)
    for program in range(one, last, step):
        head, _batch, query_start, key_start, queries, keys, first, begin, _whole, _split, end = job_of(
            program, problem, HAS_LEFT, HAS_RIGHT, PACKED, ROWS * GROUPS, BLOCK_N)
        if first < queries:
            if begin < end:
                fill(k_ring, count, k_desc, key_start, keys, (end - 1) * BLOCK_N, head // repeats)
            # After the first keys: there may be no room before the last tile's output has left.
            for which in gl.static_range(GROUPS):
                fill(q_rings[which], done, q_desc, query_start, queries, first + which * ROWS, head)
            done += 1
            for index in range(end - begin):
                at = (end - 1 - index) * BLOCK_N
                if index > 0:
                    fill(k_ring, count, k_desc, key_start, keys, at, head // repeats)
                fill(v_ring, count, v_desc, key_start, keys, at, head // repeats)
                count += 1


@gluon.jit
@no_type_check
def fold(scores, row_max, sums, scale):
    """Merge a tile's scores into the running softmax: weights, factor of what came before, maximum, sums."""
    new_max = gl.maximum(row_max, gl.max(scores, 1))
    # A row that has seen no key yet has no maximum to take off.
    pivot = gl.where(new_max == float("-inf"), 0.0, new_max * scale)
    weights = gl.exp2(scores * scale - pivot[:, None])
    factor = gl.exp2(row_max * scale - pivot)
    before = sums * gl.convert_layout(factor, gl.SliceLayout(1, sums.type.layout))[:, None]
    return weights, factor, new_max, before + sums_of(weights)


@gluon.jit
@no_type_check
def sums_of(weights):
    """Sums of each row, [rows, 4]: of what each of a row's four threads holds, which they need not exchange."""
    return gl.sum(gl.sum(weights.reshape([weights.shape[0], weights.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
@no_type_check
def hide(scores, row, at, keys, shift, left, right, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr):
    """Scores with those at -∞ that the mask hides; rows from `row`, keys from `at`."""
    rows = gl.arange(0, scores.shape[0], gl.SliceLayout(1, scores.type.layout))[:, None]
    columns = gl.arange(0, scores.shape[1], gl.SliceLayout(0, scores.type.layout))[None, :]
    place = row + shift - at
    end = keys - at
    if HAS_RIGHT:  # as an end of each row's own: one comparison an element, not two
        end = gl.minimum(end, rows + (place + right + 1))
    see = sees(rows, columns, end, place, left, right, HAS_LEFT, False)
    return gl.where(see, scores, float("-inf"))


@gluon.jit
@no_type_check
def leave(q_ring, done):
    """Of `done` tiles of queries, let the last be followed by another, once the output in its place has left."""
    if done > 0:
        tma.store_wait(0)
        give_back(q_ring, done - 1)


@gluon.jit
@no_type_check
def send(given, acc, row_max, sums, place, head, batch, query_start, queries, row, PACKED: gl.constexpr):
    """Output and lse of a warpgroup's rows, those from `row`; the output by way of `place`, a tile of shared memory."""
    out_desc, lse_ptr, lse_batch, lse_head, _rings, _turns, _problem, scale = given
    OF_ROWS: gl.constexpr = row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(sums, 1), OF_ROWS)
    empty = row_sum == 0.0  # which NaN is not
    total = gl.where(empty, 1.0, row_sum)
    acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, acc.type.layout))[:, None]
    flat(place).store(acc.to(out_desc.dtype))
    fence_async_shared()
    sync_warps()
    store_tile(out_desc, place_of(query_start, queries, row, head), place)
    lse = gl.where(empty, float("-inf"), (row_max * scale + gl.log2(total)) * LN_2)
    rows = row + gl.arange(0, ROWS, OF_ROWS)
    starts = gl.cast(batch, gl.int64) * lse_batch + gl.cast(head, gl.int64) * lse_head
    if PACKED:
        starts += query_start
    gl.store(lse_ptr + starts + rows, lse, mask=rows < queries)


@gluon.jit
@no_type_check
def attend(given, WHICH: gl.constexpr, HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr,
           BLOCK_N: gl.constexpr, BLOCK_V: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr,
           PERSISTENT: gl.constexpr, ROOM: gl.constexpr):
    """A warpgroup's work: rows from 64 WHICH of each tile."""
    out_desc, _lse_ptr, _lse_batch, _lse_head, rings, turns, problem, scale = given
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    OF_OUT: gl.constexpr = gl.SliceLayout(1, OUT)
    DTYPE: gl.constexpr = out_desc.dtype
    q_rings, k_ring, v_ring = rings
    left = problem[4]
    right = problem[5]
    count = 0
    done = 0
    none = gl.zeros([ROWS, BLOCK_N], gl.float32, SCORES)
    one, last, step = span_of(problem, PERSISTENT)
    for program in range(one, last, step):
        head, batch, query_start, _key_start, queries, keys, first, begin, whole, split, end = job_of(
            program, problem, HAS_LEFT, HAS_RIGHT, PACKED, ROWS * GROUPS, BLOCK_N)
        if first < queries:
            row = first + WHICH * ROWS
            shift = keys - queries
            acc = gl.zeros([ROWS, BLOCK_V], gl.float32, OUT)
            row_max = gl.full([ROWS], float("-inf"), gl.float32, OF_ROWS)
            sums = sums_of(none)
            q = take(q_rings[WHICH], done)
            if begin < end:
                wait_tile(k_ring, count)
                if TURNS:
                    wait_turn(turns, count, WHICH)
                scores = warpgroup_mma(q, tile_of(k_ring, count).permute([1, 0]), none, use_acc=False, is_async=True)
                if TURNS:
                    pass_turn(turns, WHICH)
                if ROOM > 1:
                    leave(q_rings[WHICH], done)
                scores = warpgroup_mma_wait(0, [scores])
                give_back(k_ring, count)
                scores = hide(scores, row, (end - 1) * BLOCK_N, keys, shift, left, right, HAS_LEFT, HAS_RIGHT)
                weights, factor, row_max, sums = fold(scores, row_max, sums, scale)
                weights = gl.convert_layout(weights.to(DTYPE), WEIGHTS)
                if begin + 1 < end:
                    wait_tile(k_ring, count + 1)
                for index in range(1, end - begin):
                    tile = end - 1 - index
                    wait_tile(v_ring, count)
                    if TURNS:
                        wait_turn(turns, count + 1, WHICH)
                    scores = warpgroup_mma(q, tile_of(k_ring, count + 1).permute([1, 0]), none, use_acc=False,
                                           is_async=True)
                    acc = warpgroup_mma(weights, tile_of(v_ring, count), acc, is_async=True)
                    if TURNS:
                        pass_turn(turns, WHICH)
                    scores = warpgroup_mma_wait(1, [scores])
                    give_back(k_ring, count + 1)
                    cut = tile >= split
                    if HAS_LEFT:
                        cut |= tile < whole
                    if cut:
                        scores = hide(scores, row, tile * BLOCK_N, keys, shift, left, right, HAS_LEFT, HAS_RIGHT)
                    following, factor, row_max, sums = fold(scores, row_max, sums, scale)
                    # Here, and not where they are read: between the softmax and the wait for what it runs beside.
                    if tile > begin:
                        wait_tile(k_ring, count + 2)
                    acc = warpgroup_mma_wait(0, [acc])
                    give_back(v_ring, count)
                    acc = acc * gl.convert_layout(factor, OF_OUT)[:, None]
                    weights = gl.convert_layout(following.to(DTYPE), WEIGHTS)
                    count += 1
                acc = warpgroup_mma(weights, take(v_ring, count), acc, is_async=True)
                acc = warpgroup_mma_wait(0, [acc])
                give_back(v_ring, count)
                count += 1
            elif ROOM > 1:
                leave(q_rings[WHICH], done)
            # The queries have been read: the output leaves from where they were.
            place = q_rings[WHICH][0].index(done % ROOM)
            send(given, acc, row_max, sums, place, head, batch, query_start, queries, row, PACKED)
            done += 1
            if PERSISTENT and ROOM == 1:
                leave(q_rings[WHICH], done)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def flash_hopper_forward(
    q_desc, k_desc, v_desc, out_desc, lse_ptr, cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, lse_batch, lse_head, scale,
    left, right, heads, repeats, pairs, tiles, group,
    HAS_LEFT: gl.constexpr, HAS_RIGHT: gl.constexpr, PACKED: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_V: gl.constexpr, STAGES: gl.constexpr, PERSISTENT: gl.constexpr, ROOM: gl.constexpr, GROUPS: gl.constexpr,
    TURNS: gl.constexpr, REGISTERS: gl.constexpr,
):
    """Rings and barriers, and who does what; with ROOM for so many tiles of queries."""
    problem = (cu_q_ptr, cu_k_ptr, seqlen_q, seqlen_k, left, right, heads, pairs, tiles, group)
    q_rings = (ring_of(q_desc, ROOM, 1), ring_of(q_desc, ROOM, 1))
    if GROUPS == 3:
        q_rings = (q_rings[0], q_rings[1], ring_of(q_desc, ROOM, 1))
    rings = (q_rings, ring_of(k_desc, STAGES, GROUPS), ring_of(v_desc, STAGES, GROUPS))
    turns = barriers(GROUPS, 1)
    fence_async_shared()
    loads = (q_desc, k_desc, v_desc, rings, problem, repeats)
    sums = (out_desc, lse_ptr, lse_batch, lse_head, rings, turns, problem, scale)
    # Constants are written out each time: in a tuple they would be numbers of the run.
    if GROUPS == 2:
        gl.warp_specialize([
            (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, GROUPS, TURNS, PERSISTENT,
                      ROOM)),
            (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, GROUPS, TURNS, PERSISTENT,
                      ROOM)),
            (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, GROUPS, PERSISTENT)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (attend, (sums, 0, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, GROUPS, TURNS, PERSISTENT,
                      ROOM)),
            (attend, (sums, 1, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, GROUPS, TURNS, PERSISTENT,
                      ROOM)),
            (attend, (sums, 2, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, BLOCK_V, GROUPS, TURNS, PERSISTENT,
                      ROOM)),
            (load, (loads, HAS_LEFT, HAS_RIGHT, PACKED, BLOCK_N, GROUPS, PERSISTENT)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])


def launch_hopper_forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, problem: Problem, config: ForwardConfig
) -> None:
    """Compute `out` and `lse`; nothing is allocated, nothing waits for the device.

    Args:
        q: [B, Sq, H, D] or packed [Tq, H, D]; bf16 or fp16, rows as `hopper.is_rows` accepts, as all of them.
        k: [B, Sk, G, D] or packed.
        v: [B, Sk, G, Dv] or packed; Dv has the same next power of two as D.
        out: [B, Sq, H, Dv] or packed; every row is written.
        lse: fp32 `flash_problem.lse_shape`; every row is written.
        problem: sequences, mask and scale; checked before.
        config: an order of `flash_configs.HOPPER`.

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
    described = [rows_of(x, rows[name], columns) for name, x in tensors.items()]
    section = group_of(problem.max_seqlen_k * (dim + dim_v) * k.element_size(), config.section_mib,
                       problem.batch * heads_kv) * (heads // heads_kv)
    persistent = config.grid == "persistent"
    programs = min(tiles * pairs, processors(q)) if persistent else tiles * pairs
    flash_hopper_forward[(programs,)](
        *described, lse, *problem.lengths(), lse.stride(0), lse.stride(1), problem.scale * LOG2_E, *problem.reach(),
        heads, heads // heads_kv, pairs, tiles, section, **problem.flags(), BLOCK_N=config.block_n, BLOCK_V=columns,
        STAGES=config.stages, PERSISTENT=persistent, ROOM=query_tiles(config, shape), GROUPS=groups,
        TURNS=config.order == "pp", REGISTERS=WARPGROUPS[config.warps], num_warps=4)
