# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Compressed branch, keys nearby and selection of block-sparse HSTU attention, for Hopper.

    out_t = g_compressed BS c Σ_b SiLU(α q·k̄_b) v̄_b        over the complete blocks that end at or before t
            + c Σ_j (g_selected [j local] + g_sliding [t - j < w]) SiLU(α q·k_j) v_j        over keys j ≤ t
    blocks_t = the local block, and of those before it the S - 1 with the largest α q·k̄_b

The selection is that of hstu_bsa_select; what a row sees nearby is added here.  There are no targets and no pairs.
A job is one or two stripes of 64 rows for each warpgroup, all of one head; its tiles are the means of the blocks that
its last row sees, then the keys nearby, through one ring:

    loader        draws jobs (hstu_bsa_hopper_jobs), rows of queries a job ahead, tiles as soon as their places are free
    warpgroup     scores, SiLU, the product with the values; beside this the scores are ranked (hstu_bsa_hopper_topk)

A warpgroup passes over tiles that none of its rows sees.  Warpgroups follow no order: what one computes runs beside the
products of the others.  Or two are joint: one partition of eight warps with stripes of 128 rows, whose code is there
once, for an SM's cache of it holds some 2,000 instructions.

The means are there before, or three more warps make them (hstu_bsa_hopper_means); then the jobs of a sequence go from
its first rows to its last, as means and keys come, else from the longest to the shortest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from attnbench.kernels.hopper import (
    fill,
    give_back,
    load_tile,
    place_of,
    ring_of,
    rows_of,
    wait_tile,
)
from attnbench.kernels.hstu_bsa_hopper_cut import SHARED_LAUNCH, SelectCut, select_cut, select_fault
from attnbench.kernels.hstu_bsa_hopper_jobs import (
    begin,
    job_of,
    notes_for,
    seek,
    tell_note,
    tiles_of,
    told_note,
)
from attnbench.kernels.hstu_bsa_hopper_means import fetch, mean, wait_made
from attnbench.kernels.hstu_bsa_hopper_stripes import coarse_tile, near_tile, pass_over, queries_of, store_stripe
from attnbench.kernels.hstu_bsa_hopper_topk import empty_lists
from attnbench.kernels.hstu_bsa_hopper_walk import draw, drawn
from attnbench.kernels.hstu_bsa_tiles import complete_seen, gate_of, standing
from attnbench.kernels.hstu_dense_problem import processors

if TYPE_CHECKING:
    from attnbench.kernels.hstu_bsa_forward import BsaCall


@gluon.jit
@no_type_check
def fill_both(ring, values, count, k_desc, v_desc, start, rows, first, head):
    """Load rows from `first` of keys and of `values`, which come as one tile and go as one."""
    STAGES: gl.constexpr = values.shape[0]
    BESIDE: gl.constexpr = values.numel // STAGES * 2
    slot = count % STAGES
    fill(ring, count, k_desc, start, rows, first, head, BESIDE)
    load_tile(v_desc, place_of(start, rows, first, head), ring[1].index(slot), values.index(slot))


@gluon.jit
@no_type_check
def load(given, HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCKS: gl.constexpr,
         STRIPES: gl.constexpr, POOLS: gl.constexpr):
    """The loader's work: it draws a job for all, while the keys nearby of the one before are loaded."""
    q_desc, means_k_desc, means_v_desc, k_desc, v_desc, rings, notes, drawn_ptr, problem = given
    ROWS: gl.constexpr = q_desc.block_shape[2]
    BLOCK_M: gl.constexpr = ROWS * STRIPES
    q_rings, ring, values = rings
    offsets_ptr, offsets_q_ptr, heads, batch = problem
    queries_ptr = offsets_ptr
    if HAS_CACHE:
        queries_ptr = offsets_q_ptr
    at = begin(queries_ptr, batch, heads, BLOCK_M, BLOCK_M - 1)
    at, number, inside = seek(gl.program_id(0), at, queries_ptr, batch, heads, BLOCK_M, BLOCK_M - 1)
    count = 0
    turn = 0
    made_of = gl.to_tensor(-1)
    made = gl.to_tensor(0)
    while number < batch:
        key_start, job = job_of(number, inside, problem, HAS_CACHE, BLOCK_M, POOLS)
        tell_note(notes, turn, job)
        head, query_start, keys, first_query, queries, start = job
        for which in gl.static_range(STRIPES):
            fill(q_rings[which], turn, q_desc, query_start, queries, start + which * ROWS, head)
        first = first_query + start
        last = gl.minimum(first + BLOCK_M, keys) - 1
        _whole, end, near, behind = tiles_of(first, last, keys, WINDOW, BLOCK_SIZE, BLOCKS)
        # What no row of the job sees is not fetched: it is past the end.
        visible = complete_seen(last, keys, BLOCK_SIZE)
        if POOLS:
            made = wait_made(drawn_ptr, number, key_start, gl.where(made_of == number, made, 0), visible, heads,
                             BLOCK_SIZE)
            made_of = number
        for tile in range(end):
            fill_both(ring, values, count, means_k_desc, means_v_desc, key_start // BLOCK_SIZE, visible,
                      tile * BLOCKS, head)
            count += 1
        # As late as nobody waits for it: what a program draws early it may come to later than another would.
        next_job = draw(drawn_ptr)
        for tile in range(near, behind):
            fill_both(ring, values, count, k_desc, v_desc, key_start, last + 1, tile * BLOCKS, head)
            count += 1
        at, number, inside = seek(gl.num_programs(0) + drawn(next_job), at, queries_ptr, batch, heads, BLOCK_M,
                                  BLOCK_M - 1)
        turn += 1
    tell_note(notes, turn, (0, 0, 0, 0, 0, -1))


@gluon.jit
@no_type_check
def select(given, WHICH: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr, BLOCK_SIZE: gl.constexpr,
           COUNTS: gl.constexpr, BITS: gl.constexpr, APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr,
           BLOCKS: gl.constexpr, BLOCK_V: gl.constexpr, STRIPES: gl.constexpr, MINE: gl.constexpr,
           WARPS: gl.constexpr):
    """A partition's work: MINE of the STRIPES of each job, 16 rows of one for each of its warps."""
    out_desc, outs, rings, notes, heads, gates_ptr, blocks_ptr, half_alpha, scale, zero = given
    ROWS: gl.constexpr = 16 * WARPS
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCKS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_V, 16])
    count = 0
    turn = 0
    job = told_note(notes, 0, WARPS)
    while job[5] >= 0:
        head, query_start, keys, first_query, queries, start = job
        first = first_query + start
        _whole, all_end, all_near, all_behind = tiles_of(first, gl.minimum(first + ROWS * STRIPES, keys) - 1, keys,
                                                         WINDOW, BLOCK_SIZE, BLOCKS)
        own = first + WHICH * MINE * ROWS
        whole, end, near, behind = tiles_of(own, gl.minimum(own + ROWS * MINE, keys) - 1, keys, WINDOW, BLOCK_SIZE,
                                            BLOCKS)
        # Without rows of its own a warpgroup sees nothing.
        end = gl.where(own < keys, end, 0)
        whole = gl.minimum(whole, end)
        near = gl.where(own < keys, near, all_near)
        behind = gl.where(own < keys, behind, all_near)
        stands = ()
        limits = ()
        of_means = ()
        of_near = ()
        accs = ()
        lists = ()
        for i in gl.static_range(MINE):
            rows = start + (WHICH * MINE + i) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
            position, stand, local = standing(rows, first_query, keys, BLOCK_SIZE)
            stands = stands + ((position, stand, local, keys),)
            limits = limits + ((complete_seen(stand, keys, BLOCK_SIZE), local),)
            # Read here, gates are there when they are needed.
            packed = query_start.to(gl.int64) + rows
            of_means = of_means + (gate_of(gates_ptr, packed, heads, head, rows < queries, 0, GATES) * BLOCK_SIZE,)
            of_local = gate_of(gates_ptr, packed, heads, head, rows < queries, 1, GATES)
            of_window = of_local
            if WINDOW > 0:
                of_window = gate_of(gates_ptr, packed, heads, head, rows < queries, 2, GATES)
            of_near = of_near + ((of_local, of_window),)
            accs = accs + (gl.zeros([ROWS, BLOCK_V], gl.float32, OUT),)
            lists = lists + (empty_lists(COUNTS - 1, ROWS, BLOCKS, SCORES),)
        for i in gl.static_range(MINE):
            wait_tile(rings[0][WHICH * MINE + i], turn)
        qs = queries_of(rings[0], turn, zero, WHICH * MINE, MINE, 0)
        for tile in range(whole):
            accs, lists = coarse_tile(accs, lists, qs, rings, count, tile * BLOCKS, limits, half_alpha, BLOCKS,
                                      BITS, APPROXIMATE, BESIDE, False)
            count += 1
        qs = queries_of(rings[0], turn, zero, WHICH * MINE, MINE, 1)
        for tile in range(whole, end):
            accs, lists = coarse_tile(accs, lists, qs, rings, count, tile * BLOCKS, limits, half_alpha, BLOCKS,
                                      BITS, APPROXIMATE, BESIDE, True)
            count += 1
        gated = ()
        for i in gl.static_range(MINE):
            gated = gated + (accs[i] * gl.convert_layout(of_means[i], gl.SliceLayout(1, OUT))[:, None],)
        accs = gated
        count = pass_over(rings[1], count, all_end - end + near - all_near)
        # The last job's output has left beside this one's means; the loader asks for its place behind these keys.
        if turn > 0:
            tma.store_wait(0)
            for i in gl.static_range(MINE):
                give_back(rings[0][WHICH * MINE + i], turn - 1)
        qs = queries_of(rings[0], turn, zero, WHICH * MINE, MINE, 2)
        for tile in range(near, behind):
            summed = ()
            for i in gl.static_range(MINE):
                acc = accs[i]
                sees = True
                if MINE > 1:
                    at = own + i * ROWS
                    _whole, _end, low, high = tiles_of(at, gl.minimum(at + ROWS, keys) - 1, keys, WINDOW,
                                                       BLOCK_SIZE, BLOCKS)
                    sees = (low <= tile) & (tile < high) & (at < keys)
                if sees:
                    acc = near_tile(acc, qs[i], rings, count, tile * BLOCKS, stands[i], of_near[i], half_alpha,
                                    WINDOW, BLOCK_SIZE, BLOCKS, APPROXIMATE)
                summed = summed + (acc,)
            accs = summed
            give_back(rings[1], count)
            count += 1
        count = pass_over(rings[1], count, all_behind - behind)

        for i in gl.static_range(MINE):
            # Queries of as many columns have been read: the output leaves from where they were.
            q_tiles = rings[0][WHICH * MINE + i][0]
            place = q_tiles.index(turn % 2) if qs[i].shape[1] == BLOCK_V else outs.index(WHICH * MINE + i)
            store_stripe(accs[i], lists[i], place, out_desc, scale, blocks_ptr, start + (WHICH * MINE + i) * ROWS,
                         job, heads, BLOCK_SIZE, COUNTS, BITS, SCORES)
        turn += 1
        job = told_note(notes, turn, WARPS)
    tma.store_wait(0)


@gluon.jit
@no_type_check
def part(sums, loads, HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr, BLOCK_SIZE: gl.constexpr,
         COUNTS: gl.constexpr, BITS: gl.constexpr, APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr,
         BLOCKS: gl.constexpr, BLOCK_V: gl.constexpr, PARTS: gl.constexpr, MINE: gl.constexpr, WARPS: gl.constexpr,
         REGISTERS: gl.constexpr, FEW: gl.constexpr):
    """Let warps part, where means are there before.

    Constants are written out each time: in a tuple they would be numbers of the run.
    """
    STRIPES: gl.constexpr = PARTS * MINE
    POOLS: gl.constexpr = False
    if PARTS == 1:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
        ], [1], [FEW])
    elif PARTS == 2:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 1, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
        ], [4, 1], [REGISTERS, FEW])
    else:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 1, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 2, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, FEW])


@gluon.jit
@no_type_check
def part_pooling(sums, loads, fetches, means, ATTN_DIM: gl.constexpr, LINEAR_DIM: gl.constexpr,
                 HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr,
                 BLOCK_SIZE: gl.constexpr, COUNTS: gl.constexpr, BITS: gl.constexpr,
                 APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr, BLOCKS: gl.constexpr, BLOCK_V: gl.constexpr,
                 PARTS: gl.constexpr, MINE: gl.constexpr, WARPS: gl.constexpr, REGISTERS: gl.constexpr,
                 FEW: gl.constexpr):
    """Let warps part, some of which make the means."""
    STRIPES: gl.constexpr = PARTS * MINE
    POOLS: gl.constexpr = True
    if PARTS == 1:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
            (fetch, (fetches, HAS_CACHE, BLOCK_SIZE, 16 * WARPS * STRIPES)),
            (mean, (means, BLOCK_SIZE, ATTN_DIM, LINEAR_DIM)),
        ], [1, 1, 2], [FEW, FEW, FEW])
    elif PARTS == 2:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 1, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
            (fetch, (fetches, HAS_CACHE, BLOCK_SIZE, 16 * WARPS * STRIPES)),
            (mean, (means, BLOCK_SIZE, ATTN_DIM, LINEAR_DIM)),
        ], [4, 1, 1, 2], [REGISTERS, FEW, FEW, FEW])
    else:
        gl.warp_specialize([
            (select, (sums, 0, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 1, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (select, (sums, 2, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE, WARPS)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES, POOLS)),
            (fetch, (fetches, HAS_CACHE, BLOCK_SIZE, 16 * WARPS * STRIPES)),
            (mean, (means, BLOCK_SIZE, ATTN_DIM, LINEAR_DIM)),
        ], [4, 4, 1, 1, 2], [REGISTERS, REGISTERS, FEW, FEW, FEW])


@gluon.jit(do_not_specialize=("heads", "batch", "ahead", "mean_rows", "zero"))
@no_type_check
def hstu_bsa_hopper_select(
    q_desc, means_k_desc, means_v_desc, k_desc, v_desc, out_desc, blocks_k_desc, blocks_v_desc, gates_ptr, blocks_ptr,
    means_k_ptr, means_v_ptr, drawn_ptr, offsets_ptr, offsets_q_ptr, half_alpha, scale, heads, batch, ahead,
    mean_rows, zero,
    HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr, ATTN_DIM: gl.constexpr,
    LINEAR_DIM: gl.constexpr, BLOCK_SIZE: gl.constexpr, COUNTS: gl.constexpr, BITS: gl.constexpr,
    APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr, BLOCKS: gl.constexpr, BLOCK_V: gl.constexpr,
    PARTS: gl.constexpr, MINE: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr, POOLS: gl.constexpr,
    POOL_STAGES: gl.constexpr, REGISTERS: gl.constexpr, FEW: gl.constexpr,
):
    """Rings and barriers, and who does what."""
    STRIPES: gl.constexpr = PARTS * MINE
    problem = (offsets_ptr, offsets_q_ptr, heads, batch)
    q_rings = ()
    for _i in gl.static_range(STRIPES):
        q_rings = q_rings + (ring_of(q_desc, 2, 1),)
    values = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    rings = (q_rings, ring_of(k_desc, STAGES, PARTS), values)
    notes = notes_for(6, PARTS)
    outs = q_rings[0][0]
    if q_desc.block_shape[4] != BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [STRIPES] + out_desc.block_shape, out_desc.layout)
    loads = (q_desc, means_k_desc, means_v_desc, k_desc, v_desc, rings, notes, drawn_ptr, problem)
    sums = (out_desc, outs, rings, notes, heads, gates_ptr, blocks_ptr, half_alpha, scale, zero)
    if POOLS:
        ring = ring_of(blocks_k_desc, 2 * POOL_STAGES, 1)
        items = notes_for(3, 1)
        fence_async_shared()
        fetches = (blocks_k_desc, blocks_v_desc, ring, items, drawn_ptr, problem, mean_rows, ahead)
        means = (ring, items, means_k_ptr, means_v_ptr, drawn_ptr)
        part_pooling(sums, loads, fetches, means, ATTN_DIM, LINEAR_DIM, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS,
                     BITS, APPROXIMATE, BESIDE, BLOCKS, BLOCK_V, PARTS, MINE, WARPS, REGISTERS, FEW)
    else:
        fence_async_shared()
        part(sums, loads, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS, BLOCK_V,
             PARTS, MINE, WARPS, REGISTERS, FEW)


def select_hopper(call: BsaCall, cut: SelectCut | None = None) -> None:
    """Write the compressed branch, the keys nearby and the selection: all rows of `call.out` and `call.blocks`.

    Nothing is allocated and nothing waits for the device.

    Args:
        call: with means in its workspace, which a cut that pools writes, and what `select_shapes` says.
        cut: of the kernel; None: `select_cut`'s.

    Raises:
        ValueError: `select_fault` has one, or as `BsaCall.require` says.
    """
    p = call.problem
    cut = cut or select_cut(p)
    call.require("select_hopper", select_fault(p, cut, capability=call.capability))
    tiles = -(-p.max_seqlen_q // (cut.rows * cut.groups))
    jobs = tiles * p.units
    if not jobs or not call.out.numel():
        return
    block_d, block_v = p.block_d, p.block_v
    # Without a whole block no mean is loaded, and keys stand in.
    means_k, means_v = (call.workspace[name].transpose(0, 1) if p.mean_rows else x
                        for name, x in (("means_k", call.k), ("means_v", call.v)))
    # Blocks of K and of V take turns in one ring.
    pooled, wide = p.block_size if cut.pools else cut.blocks, max(block_d, block_v)
    call.workspace["drawn"].zero_()
    hstu_bsa_hopper_select[(cut.programs(jobs, processors(call.q)),)](
        rows_of(call.q, 16 * cut.warps, block_d), rows_of(means_k, cut.blocks, block_d),
        rows_of(means_v, cut.blocks, block_v), rows_of(call.k, cut.blocks, block_d),
        rows_of(call.v, cut.blocks, block_v), rows_of(call.out, 16 * cut.warps, block_v), rows_of(call.k, pooled, wide),
        rows_of(call.v, pooled, wide), call.q if call.gates is None else call.gates, call.blocks, means_k, means_v,
        call.workspace["drawn"], call.offsets, call.offsets if call.offsets_q is None else call.offsets_q,
        p.alpha / 2, 1 / p.scaling_seqlen, p.heads, p.batch, cut.ahead(p), p.mean_rows, 0,
        num_warps=cut.warps, **_constants(call, cut),
        **{"maxnreg": SHARED_LAUNCH} if cut.sharing > 1 else {})


def _constants(call: BsaCall, cut: SelectCut) -> dict[str, Any]:
    p, (registers, few) = call.problem, cut.registers()
    return {"HAS_CACHE": p.has_cache, "WINDOW": p.local_window, "GATES": p.gates, "ATTN_DIM": p.attn_dim,
            "LINEAR_DIM": p.linear_dim, "BLOCK_SIZE": p.block_size, "COUNTS": p.block_counts, "BITS": p.index_bits,
            "APPROXIMATE": call.config.silu == "tanh", "BESIDE": cut.beside, "BLOCKS": cut.blocks,
            "BLOCK_V": p.block_v, "PARTS": 4 * cut.groups // cut.warps, "MINE": cut.rows // 64, "WARPS": cut.warps,
            "STAGES": cut.stages,
            "POOLS": cut.pools, "POOL_STAGES": cut.pool_stages, "REGISTERS": registers, "FEW": few}
