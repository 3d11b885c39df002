# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Compressed branch, nearby keys and selection of block-sparse HSTU attention, for Hopper.

    out_t = g_compressed BS c Σ_b SiLU(α q·k̄_b) v̄_b        over the complete blocks that end at or before t
            + c Σ_j (g_selected [j local] + g_sliding [t - j < w]) SiLU(α q·k_j) v_j        over keys j ≤ t
    blocks_t = the local block, and of those before it the S - 1 with the largest α q·k̄_b

The selection is that of hstu_bsa_select; nearby keys are added here.  Targets and `pairs` are not supported.
A work item is one or two stripes of 64 rows for each warpgroup, all of one head; its tiles are the means of the blocks
that its last row sees, then the nearby keys, through one ring:

    producer      loads rows of queries one item ahead, and tiles as soon as their stages are free
    consumer      scores, SiLU, the product with the values; the scores are ranked meanwhile (`topk`)

A warpgroup skips tiles that none of its rows sees.  Warpgroups are not synchronized with each other: computation of one
overlaps with products of the others.  A program gets items of different heads and tiles, long and short ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from attnbench.kernels.hstu.arguments import Sequences
from attnbench.kernels.hstu.bsa.hopper.select_config import (
    REGISTERS,
    SelectConfig,
    SelectMeta,
    default_select,
    select_fault,
)
from attnbench.kernels.hstu.bsa.hopper.stripes import (
    Consumer,
    GridProblem,
    Rings,
    Stripe,
    Work,
    coarse_tile,
    key_tiles_of,
    near_tile,
    store_stripe,
)
from attnbench.kernels.hstu.bsa.hopper.topk import empty_lists
from attnbench.kernels.hstu.bsa.tiles import COMPRESSED, SELECTED, SLIDING, complete_seen, gate_of, standing
from attnbench.kernels.hstu.tiles import sequence
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import (
    ROWS,
    aggregate,
    allocate_ring,
    coordinates,
    flat,
    heads_apart,
    load_tile,
    rows_of,
)
from attnbench.kernels.shared.kept import launch

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.call import BsaCall


@gluon.jit
@no_type_check
def work_of(item, problem):
    """A work item by its number, the last query tiles first."""
    number = item // (problem.tiles * problem.heads)
    place = item - number * (problem.tiles * problem.heads)
    tile = place // problem.heads
    head = place - tile * problem.heads
    sequences = Sequences(
        offsets_ptr=problem.offsets_ptr, offsets_q_ptr=problem.offsets_q_ptr, num_targets_ptr=problem.offsets_ptr
    )
    bounds = sequence(
        sequences, number, contextual_len=0, HAS_PREFIX=False, HAS_TARGETS=False, HAS_CACHE=problem.HAS_CACHE
    )
    start = (problem.tiles - 1 - tile) * (ROWS * problem.STRIPES)
    return Work(
        head=head,
        key_start=bounds.key_start.to(gl.int32),
        query_start=bounds.query_start.to(gl.int32),
        keys=bounds.keys,
        first_query=bounds.first_query,
        queries=bounds.keys - bounds.first_query,
        start=start,
    )


@aggregate
class Producer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    means_k_desc: tma.tensor_descriptor
    means_v_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    rings: Rings
    problem: GridProblem


@gluon.jit
@no_type_check
def fill_both(rings, count, k_desc, v_desc, start, rows, first, head):
    """Load rows from `first` of keys and values, as one stage."""
    STAGES: gl.constexpr = rings.k.STAGES
    VALUE_BYTES: gl.constexpr = rings.values.numel // STAGES * 2
    stage = count % STAGES
    rings.k.fill(count, k_desc, start, rows, first, head, VALUE_BYTES)
    load_tile(v_desc, coordinates(start, rows, first, head), rings.k.full.index(stage), rings.values.index(stage))


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp."""
    rings = producer.rings
    problem = producer.problem
    STRIPES: gl.constexpr = problem.STRIPES
    BLOCKS: gl.constexpr = problem.BLOCKS
    count = 0
    turn = 0
    for item in range(gl.program_id(0), problem.items, gl.num_programs(0)):
        work = work_of(item, problem)
        if work.start < work.queries:
            for which in gl.static_range(STRIPES):
                rings.q[which].fill(
                    turn, producer.q_desc, work.query_start, work.queries, work.start + which * ROWS, work.head
                )
            turn += 1
            first = work.first_query + work.start
            last = gl.minimum(first + ROWS * STRIPES, work.keys) - 1
            tiles = key_tiles_of(first, last, work.keys, problem)
            # What no row of the item sees is loaded as past the end, which reads as zeros.
            visible = complete_seen(last, work.keys, problem.BLOCK_SIZE)
            for tile in range(tiles.end):
                fill_both(
                    rings=rings,
                    count=count,
                    k_desc=producer.means_k_desc,
                    v_desc=producer.means_v_desc,
                    start=work.key_start // problem.BLOCK_SIZE,
                    rows=visible,
                    first=tile * BLOCKS,
                    head=work.head,
                )
                count += 1
            for tile in range(tiles.near, tiles.behind):
                fill_both(
                    rings=rings,
                    count=count,
                    k_desc=producer.k_desc,
                    v_desc=producer.v_desc,
                    start=work.key_start,
                    rows=last + 1,
                    first=tile * BLOCKS,
                    head=work.head,
                )
                count += 1


@gluon.jit
@no_type_check
def skip_tiles(ring, count, unseen):
    """Release the next `unseen` tiles as they arrive.  Returns the new tile count."""
    for _index in range(unseen):
        ring.wait(count)
        ring.release(count)
        count += 1
    return count


@gluon.jit
@no_type_check
def queries_of(q_rings, turn, zero, FIRST: gl.constexpr, MINE: gl.constexpr, LOOP: gl.constexpr):
    """A warpgroup's query tiles, which must have been waited for; for use in one loop.

    If several loops read one tile, the assembler of CUDA 12.8 computes half of its descriptor before the first loop, behind
    the branch that skips that loop, and the other loops then read an undefined value.  Adding a number that is always zero,
    which the compiler cannot know, makes it a different tile for each loop.
    """
    qs = ()
    for i in gl.static_range(MINE):
        qs = qs + (flat(q_rings[FIRST + i].tiles.index(turn % 2 + LOOP * zero)),)
    return qs


@gluon.jit
@no_type_check
def consume(consumer, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: MINE of the STRIPES of 64 rows of each work item."""
    rings = consumer.rings
    problem = consumer.problem
    zero = consumer.zero
    gates_ptr = consumer.gates_ptr
    heads = problem.heads
    MINE: gl.constexpr = consumer.MINE
    FIRST: gl.constexpr = WARPGROUP * MINE
    BLOCKS: gl.constexpr = problem.BLOCKS
    BLOCK_SIZE: gl.constexpr = problem.BLOCK_SIZE
    BLOCK_V: gl.constexpr = consumer.BLOCK_V
    GATES: gl.constexpr = consumer.GATES
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16])
    count = 0
    turn = 0
    for item in range(gl.program_id(0), problem.items, gl.num_programs(0)):
        work = work_of(item, problem)
        keys = work.keys
        if work.start < work.queries:
            first = work.first_query + work.start
            every = key_tiles_of(first, gl.minimum(first + ROWS * problem.STRIPES, keys) - 1, keys, problem)
            own = first + FIRST * ROWS
            mine = key_tiles_of(own, gl.minimum(own + ROWS * MINE, keys) - 1, keys, problem)
            # A warpgroup without rows sees nothing.
            end = gl.where(own < keys, mine.end, 0)
            whole = gl.minimum(mine.whole, end)
            near = gl.where(own < keys, mine.near, every.near)
            behind = gl.where(own < keys, mine.behind, every.near)
            stripes = ()
            accs = ()
            lists = ()
            for i in gl.static_range(MINE):
                rows = work.start + (FIRST + i) * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
                query = standing(rows, work.first_query, keys, BLOCK_SIZE)
                complete = complete_seen(query.stand, keys, BLOCK_SIZE)
                # Gates are loaded here, so that they have arrived when they are needed.
                packed = work.query_start.to(gl.int64) + rows
                there = rows < work.queries
                of_means = gate_of(gates_ptr, packed, heads, work.head, there, COMPRESSED, GATES) * BLOCK_SIZE
                of_local = gate_of(gates_ptr, packed, heads, work.head, there, SELECTED, GATES)
                of_window = of_local
                if problem.WINDOW > 0:
                    of_window = gate_of(gates_ptr, packed, heads, work.head, there, SLIDING, GATES)
                stripes = stripes + (
                    Stripe(
                        position=query.position,
                        stand=query.stand,
                        local=query.local,
                        complete=complete,
                        of_means=of_means,
                        of_local=of_local,
                        of_window=of_window,
                    ),
                )
                accs = accs + (gl.zeros([ROWS, BLOCK_V], gl.float32, OUT),)
                lists = lists + (empty_lists(consumer.COUNTS - 1, ROWS, BLOCKS, SCORES),)
            for i in gl.static_range(MINE):
                rings.q[FIRST + i].wait(turn)
            qs = queries_of(rings.q, turn, zero, FIRST, MINE, LOOP=0)
            for tile in range(whole):
                accs, lists = coarse_tile(accs, lists, qs, stripes, consumer, count, tile * BLOCKS, MASKED=False)
                count += 1
            qs = queries_of(rings.q, turn, zero, FIRST, MINE, LOOP=1)
            for tile in range(whole, end):
                accs, lists = coarse_tile(accs, lists, qs, stripes, consumer, count, tile * BLOCKS, MASKED=True)
                count += 1
            gated = ()
            for i in gl.static_range(MINE):
                gated = gated + (accs[i] * gl.convert_layout(stripes[i].of_means, gl.SliceLayout(1, OUT))[:, None],)
            accs = gated
            count = skip_tiles(rings.k, count, every.end - end + near - every.near)
            qs = queries_of(rings.q, turn, zero, FIRST, MINE, LOOP=2)
            for tile in range(near, behind):
                summed = ()
                for i in gl.static_range(MINE):
                    acc = accs[i]
                    sees = True
                    if MINE > 1:
                        at = own + i * ROWS
                        seen = key_tiles_of(at, gl.minimum(at + ROWS, keys) - 1, keys, problem)
                        sees = (seen.near <= tile) & (tile < seen.behind) & (at < keys)
                    if sees:
                        acc = near_tile(acc, qs[i], stripes[i], consumer, count, tile * BLOCKS, keys)
                    summed = summed + (acc,)
                accs = summed
                rings.k.release(count)
                count += 1
            count = skip_tiles(rings.k, count, every.behind - behind)

            for i in gl.static_range(MINE):
                # Queries with as many columns have been read: the output is stored through their buffer.
                q_tiles = rings.q[FIRST + i].tiles
                place = q_tiles.index(turn % 2) if qs[i].shape[1] == BLOCK_V else consumer.outs.index(FIRST + i)
                store_stripe(accs[i], lists[i], place, consumer, work.start + (FIRST + i) * ROWS, work, SCORES)
            tma.store_wait(0)
            for i in gl.static_range(MINE):
                rings.q[FIRST + i].release(turn)
            turn += 1


@gluon.jit(do_not_specialize=("heads", "tiles", "jobs", "zero"))
@no_type_check
def hstu_bsa_hopper_select(
    q_desc,
    means_k_desc,
    means_v_desc,
    k_desc,
    v_desc,
    out_desc,
    gates_ptr,
    blocks_ptr,
    offsets_ptr,
    offsets_q_ptr,
    half_alpha,
    scale,
    heads,
    tiles,
    jobs,
    zero,
    META: gl.constexpr,
):
    """Allocate rings and barriers, and start the warps."""
    BLOCK_V: gl.constexpr = META.BLOCK_V
    GROUPS: gl.constexpr = META.GROUPS
    MINE: gl.constexpr = META.MINE
    STAGES: gl.constexpr = META.STAGES
    REGISTERS: gl.constexpr = META.REGISTERS
    STRIPES: gl.constexpr = GROUPS * MINE
    problem = GridProblem(
        offsets_ptr=offsets_ptr,
        offsets_q_ptr=offsets_q_ptr,
        heads=heads,
        tiles=tiles,
        items=jobs,
        HAS_CACHE=META.HAS_CACHE,
        STRIPES=STRIPES,
        WINDOW=META.WINDOW,
        BLOCK_SIZE=META.BLOCK_SIZE,
        BLOCKS=META.BLOCKS,
    )
    q_rings = ()
    for _i in gl.static_range(STRIPES):
        q_rings = q_rings + (allocate_ring(q_desc, STAGES=2, CONSUMERS=1),)
    values = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    rings = Rings(q_rings, allocate_ring(k_desc, STAGES, GROUPS), values)
    outs = q_rings[0].tiles
    if q_desc.block_shape[4] != BLOCK_V:
        outs = gl.allocate_shared_memory(out_desc.dtype, [STRIPES] + out_desc.block_shape, out_desc.layout)
    fence_async_shared()
    producer = Producer(
        q_desc=q_desc,
        means_k_desc=means_k_desc,
        means_v_desc=means_v_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        rings=rings,
        problem=problem,
    )
    consumer = Consumer(
        out_desc=out_desc,
        outs=outs,
        rings=rings,
        problem=problem,
        gates_ptr=gates_ptr,
        blocks_ptr=blocks_ptr,
        half_alpha=half_alpha,
        scale=scale,
        zero=zero,
        GATES=META.GATES,
        COUNTS=META.COUNTS,
        BITS=META.BITS,
        APPROXIMATE=META.APPROXIMATE,
        BESIDE=META.BESIDE,
        BLOCK_V=BLOCK_V,
        MINE=MINE,
    )
    if GROUPS == 2:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (produce, (producer,))], [4, 1], [REGISTERS, 24]
        )
    else:
        gl.warp_specialize(
            [(consume, (consumer, 0)), (consume, (consumer, 1)), (consume, (consumer, 2)), (produce, (producer,))],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )


def select_hopper(call: BsaCall, config: SelectConfig | None = None) -> None:
    """Write the compressed branch, the nearby keys and the selection: all rows of `call.out` and `call.blocks`.

    Does not allocate and does not synchronize with the device.

    Args:
        call: with means in its workspace.
        config: of the kernel; None: that of `default_select`.

    Raises:
        ValueError: as of `select_fault` or `BsaCall.require`.
    """
    p = call.problem
    config = config or default_select(p)
    call.require("select_hopper", select_fault(p, config, capability=call.capability))
    tiles = -(-p.max_seqlen_q // (config.rows * config.groups))
    jobs = tiles * p.units
    if not jobs or not call.out.numel():
        return
    block_d, block_v = p.block_d, p.block_v
    if p.mean_rows:
        made = (call.workspace["means_k"], block_d), (call.workspace["means_v"], block_v)
        means_k, means_v = (heads_apart(rows_of(x.transpose(0, 1), config.blocks, block), x) for x, block in made)
    else:  # no mean is loaded: keys and values take the place of the means in the descriptors
        means_k, means_v = rows_of(call.k, config.blocks, block_d), rows_of(call.v, config.blocks, block_v)
    launch(
        hstu_bsa_hopper_select,
        (config.programs(jobs, processors(call.q)),),
        q_desc=rows_of(call.q, ROWS.value, block_d),
        means_k_desc=means_k,
        means_v_desc=means_v,
        k_desc=rows_of(call.k, config.blocks, block_d),
        v_desc=rows_of(call.v, config.blocks, block_v),
        out_desc=rows_of(call.out, ROWS.value, block_v),
        gates_ptr=call.q if call.gates is None else call.gates,
        blocks_ptr=call.blocks,
        offsets_ptr=call.offsets,
        offsets_q_ptr=call.offsets if call.offsets_q is None else call.offsets_q,
        half_alpha=p.alpha / 2,
        scale=1 / p.scaling_seqlen,
        heads=p.heads,
        tiles=tiles,
        jobs=jobs,
        zero=0,
        META=_meta(call, config),
        num_warps=4,
    )


def _meta(call: BsaCall, config: SelectConfig) -> SelectMeta:
    p = call.problem
    return SelectMeta(
        HAS_CACHE=p.has_cache,
        WINDOW=p.local_window,
        GATES=p.gates,
        BLOCK_SIZE=p.block_size,
        COUNTS=p.block_counts,
        BITS=p.index_bits,
        APPROXIMATE=call.config.silu == "tanh",
        BESIDE=config.beside,
        BLOCKS=config.blocks,
        BLOCK_V=p.block_v,
        GROUPS=config.groups,
        MINE=config.rows // ROWS.value,
        STAGES=config.stages,
        REGISTERS=REGISTERS[config.groups],
    )
