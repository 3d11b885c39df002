# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Compressed branch, keys nearby and selection of block-sparse HSTU attention, for Hopper.

    out_t = g_compressed BS c Σ_b SiLU(α q·k̄_b) v̄_b        over the complete blocks that end at or before t
            + c Σ_j (g_selected [j local] + g_sliding [t - j < w]) SiLU(α q·k_j) v_j        over keys j ≤ t
    blocks_t = the local block, and of those before it the S - 1 with the largest α q·k̄_b

The selection is that of hstu_bsa_select; what a row sees nearby is added here.  There are no targets and no pairs.
A job is one or two stripes of 64 rows for each warpgroup, all of one head; its tiles are the means of the blocks that
its last row sees, then the keys nearby, through one ring:

    loader        rows of queries a job ahead, and tiles as soon as their places are free
    warpgroup     scores, SiLU, the product with the values; beside this the scores are ranked (`topk`)

A warpgroup passes over tiles that none of its rows sees.  Warpgroups follow no order: what one computes runs beside the
products of the others.  A program's next jobs are those of other heads and other tiles, long ones and short ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from attnbench.kernels.hstu.bsa.hopper.select_config import REGISTERS, SelectCut, select_cut, select_fault
from attnbench.kernels.hstu.bsa.hopper.stripes import coarse_tile, near_tile, store_stripe
from attnbench.kernels.hstu.bsa.hopper.topk import empty_lists
from attnbench.kernels.hstu.bsa.tiles import complete_seen, gate_of, near_begin, standing
from attnbench.kernels.hstu.tiles import sequence
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import (
    ROWS,
    fill,
    flat,
    give_back,
    load_tile,
    place_of,
    ring_of,
    rows_of,
    wait_tile,
)

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.call import BsaCall


@gluon.jit
@no_type_check
def job_of(job, problem, HAS_CACHE: gl.constexpr, BLOCK_M: gl.constexpr):
    """Which rows of which head a job is about: those from `start` of a sequence, the last tiles first."""
    offsets_ptr, offsets_q_ptr, heads, tiles, _jobs = problem
    number = job // (tiles * heads)
    place = job - number * (tiles * heads)
    tile = place // heads
    head = place - tile * heads
    key_start, query_start, keys, first_query, _prefix, _seen = sequence(
        offsets_ptr, offsets_q_ptr, offsets_ptr, number, 0, False, False, HAS_CACHE)
    start = (tiles - 1 - tile) * BLOCK_M
    return head, key_start.to(gl.int32), query_start.to(gl.int32), keys, first_query, keys - first_query, start


@gluon.jit
@no_type_check
def tiles_of(first, last, keys, WINDOW: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCKS: gl.constexpr):
    """Tiles that the rows at the positions [first, last] see: of means [0, end), of keys [near, behind).

    Of [0, whole) every row sees and ranks every block.
    """
    _position, _stand, local = standing(first, 0, keys, BLOCK_SIZE)
    visible = complete_seen(last, keys, BLOCK_SIZE)
    near = near_begin(first, keys, WINDOW, BLOCK_SIZE) // BLOCKS
    return local // BLOCKS, (visible + BLOCKS - 1) // BLOCKS, near, (last + BLOCKS) // BLOCKS


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
         STRIPES: gl.constexpr):
    """The loader's work."""
    q_desc, means_k_desc, means_v_desc, k_desc, v_desc, rings, problem = given
    q_rings, ring, values = rings
    count = 0
    turn = 0
    for job in range(gl.program_id(0), problem[4], gl.num_programs(0)):
        head, key_start, query_start, keys, first_query, queries, start = job_of(job, problem, HAS_CACHE,
                                                                               ROWS * STRIPES)
        if start < queries:
            for which in gl.static_range(STRIPES):
                fill(q_rings[which], turn, q_desc, query_start, queries, start + which * ROWS, head)
            turn += 1
            first = first_query + start
            last = gl.minimum(first + ROWS * STRIPES, keys) - 1
            _whole, end, near, behind = tiles_of(first, last, keys, WINDOW, BLOCK_SIZE, BLOCKS)
            # What no row of the job sees is not fetched: it is past the end.
            visible = complete_seen(last, keys, BLOCK_SIZE)
            for tile in range(end):
                fill_both(ring, values, count, means_k_desc, means_v_desc, key_start // BLOCK_SIZE, visible,
                          tile * BLOCKS, head)
                count += 1
            for tile in range(near, behind):
                fill_both(ring, values, count, k_desc, v_desc, key_start, last + 1, tile * BLOCKS, head)
                count += 1


@gluon.jit
@no_type_check
def pass_over(ring, count, unseen):
    """Give back the next `unseen` tiles as they come, which others read; the count after them."""
    for _index in range(unseen):
        wait_tile(ring, count)
        give_back(ring, count)
        count += 1
    return count


@gluon.jit
@no_type_check
def queries_of(q_rings, turn, zero, FIRST: gl.constexpr, MINE: gl.constexpr, LOOP: gl.constexpr):
    """A warpgroup's tiles of queries, which have been waited for; of one loop.

    Where loops read one tile, the assembler of CUDA 12.8 keeps half of its descriptor in front of the first of them,
    behind the branch that passes over it, and the others read what happens to be there.  A number that is zero, which
    the compiler does not know, makes of it another tile for each.
    """
    qs = ()
    for i in gl.static_range(MINE):
        qs = qs + (flat(q_rings[FIRST + i][0].index(turn % 2 + LOOP * zero)),)
    return qs


@gluon.jit
@no_type_check
def select(given, WHICH: gl.constexpr, HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr,
           BLOCK_SIZE: gl.constexpr, COUNTS: gl.constexpr, BITS: gl.constexpr, APPROXIMATE: gl.constexpr,
           BESIDE: gl.constexpr, BLOCKS: gl.constexpr, BLOCK_V: gl.constexpr, STRIPES: gl.constexpr,
           MINE: gl.constexpr):
    """A warpgroup's work: MINE of the STRIPES of 64 rows of each job."""
    out_desc, outs, rings, problem, gates_ptr, blocks_ptr, half_alpha, scale, zero = given
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    heads = problem[2]
    count = 0
    turn = 0
    for number in range(gl.program_id(0), problem[4], gl.num_programs(0)):
        job = job_of(number, problem, HAS_CACHE, ROWS * STRIPES)
        head, _key_start, query_start, keys, first_query, queries, start = job
        if start < queries:
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
            tma.store_wait(0)
            for i in gl.static_range(MINE):
                give_back(rings[0][WHICH * MINE + i], turn)
            turn += 1


@gluon.jit(do_not_specialize=("heads", "tiles", "jobs", "zero"))
@no_type_check
def hstu_bsa_hopper_select(
    q_desc, means_k_desc, means_v_desc, k_desc, v_desc, out_desc, gates_ptr, blocks_ptr, offsets_ptr, offsets_q_ptr,
    half_alpha, scale, heads, tiles, jobs, zero,
    HAS_CACHE: gl.constexpr, WINDOW: gl.constexpr, GATES: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    COUNTS: gl.constexpr, BITS: gl.constexpr, APPROXIMATE: gl.constexpr, BESIDE: gl.constexpr, BLOCKS: gl.constexpr,
    BLOCK_V: gl.constexpr, GROUPS: gl.constexpr, MINE: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):
    """Rings and barriers, and who does what."""
    STRIPES: gl.constexpr = GROUPS * MINE
    problem = (offsets_ptr, offsets_q_ptr, heads, tiles, jobs)
    q_rings = ()
    for _i in gl.static_range(STRIPES):
        q_rings = q_rings + (ring_of(q_desc, 2, 1),)
    values = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    rings = (q_rings, ring_of(k_desc, STAGES, GROUPS), values)
    outs = q_rings[0][0]
    if q_desc.block_shape[4] != BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [STRIPES] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    loads = (q_desc, means_k_desc, means_v_desc, k_desc, v_desc, rings, problem)
    sums = (out_desc, outs, rings, problem, gates_ptr, blocks_ptr, half_alpha, scale, zero)
    # Constants are written out each time: in a tuple they would be numbers of the run.
    if GROUPS == 2:
        gl.warp_specialize([
            (select, (sums, 0, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE)),
            (select, (sums, 1, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES)),
        ], [4, 1], [REGISTERS, 24])
    else:
        gl.warp_specialize([
            (select, (sums, 0, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE)),
            (select, (sums, 1, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE)),
            (select, (sums, 2, HAS_CACHE, WINDOW, GATES, BLOCK_SIZE, COUNTS, BITS, APPROXIMATE, BESIDE, BLOCKS,
                      BLOCK_V, STRIPES, MINE)),
            (load, (loads, HAS_CACHE, WINDOW, BLOCK_SIZE, BLOCKS, STRIPES)),
        ], [4, 4, 1], [REGISTERS, REGISTERS, 24])


def select_hopper(call: BsaCall, cut: SelectCut | None = None) -> None:
    """Write the compressed branch, the keys nearby and the selection: all rows of `call.out` and `call.blocks`.

    Nothing is allocated and nothing waits for the device.

    Args:
        call: with means in its workspace.
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
    hstu_bsa_hopper_select[(cut.programs(jobs, processors(call.q)),)](
        rows_of(call.q, ROWS.value, block_d), rows_of(means_k, cut.blocks, block_d),
        rows_of(means_v, cut.blocks, block_v), rows_of(call.k, cut.blocks, block_d),
        rows_of(call.v, cut.blocks, block_v), rows_of(call.out, ROWS.value, block_v),
        call.q if call.gates is None else call.gates, call.blocks, call.offsets,
        call.offsets if call.offsets_q is None else call.offsets_q, p.alpha / 2, 1 / p.scaling_seqlen, p.heads, tiles,
        jobs, 0, num_warps=4, **_constants(call, cut))


def _constants(call: BsaCall, cut: SelectCut) -> dict[str, Any]:
    p = call.problem
    return {"HAS_CACHE": p.has_cache, "WINDOW": p.local_window, "GATES": p.gates, "BLOCK_SIZE": p.block_size,
            "COUNTS": p.block_counts, "BITS": p.index_bits, "APPROXIMATE": call.config.silu == "tanh",
            "BESIDE": cut.beside, "BLOCKS": cut.blocks, "BLOCK_V": p.block_v, "GROUPS": cut.groups,
            "MINE": cut.rows // ROWS.value, "STAGES": cut.stages, "REGISTERS": REGISTERS[cut.groups]}
