# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Selected branch of block-sparse HSTU attention for Hopper, in one launch: attend, and the sum of partial rows.

    attend   for a tile of the queries that selected block b:   partial[t, s] = c Σ_{j in b} SiLU(α q_t·k_j) v_j
    combine  for a job of queries:                              out_t += g_selected Σ_s partial[t, s]

A persistent warp-specialized kernel (`queue` has the partitions of one warp):

    produce_tiles → gather → attend → publish_done      tiles of a list: rows of queries, a block's keys and values
    produce_jobs → combine → publish_done               jobs of some queries, when their tiles are done

All partitions run concurrently, and an SM's instruction cache holds some 2,000 instructions: code beyond it stalls,
mostly in single warps.  So warps or warpgroups that do the same work share one partition, with one copy of its code.

Query rows are gathered by 16-byte copies straight into the swizzled tile that products read, while earlier tiles are
multiplied.  Partial rows go to a ring of buffers, one for each (sequence, head) pair, that stays in the L2.  A partial row
belongs to one query and one block, and slots are added in order, so the result is bitwise reproducible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from attnbench.kernels.hstu.arguments import RowStrides
from attnbench.kernels.hstu.bsa.hopper.attend_config import AttendConfig, AttendMeta, attend_fault, default_attend
from attnbench.kernels.hstu.bsa.hopper.queue import (
    PLAIN,
    TILE_ROWS,
    JobProducer,
    Slots,
    TileProducer,
    TileRing,
    allocate_slots,
    number_of,
    produce_jobs,
    produce_tiles,
    publish_done,
    signal_places,
)
from attnbench.kernels.hstu.bsa.hopper.schedule import COUNTERS, SPREAD, GridProblem
from attnbench.kernels.hstu.bsa.tiles import SELECTED, gate_of
from attnbench.kernels.hstu.tiles import silu
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import Argument, aggregate, allocate_barriers, flat, rows_of, sync_warps
from attnbench.kernels.shared.kept import clear, launch

if TYPE_CHECKING:
    from attnbench.kernels.hstu.bsa.call import BsaCall

# Triton 3.6 has another name.
copy_rows = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)

AT_ONCE = gl.constexpr(32)
"Rows whose addresses the gathering warps hold at a time."


@gluon.jit
@no_type_check
def allocate_tiles(k_desc, v_desc, STAGES: gl.constexpr, BLOCK_D: gl.constexpr):
    """A ring of tiles; before warp specialization."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([TILE_ROWS, BLOCK_D], k_desc.dtype)
    q = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE_ROWS, BLOCK_D], LAYOUT)
    k = gl.allocate_shared_memory(k_desc.dtype, [STAGES] + k_desc.block_shape, k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [STAGES] + v_desc.block_shape, v_desc.layout)
    # The lanes of the two gathering warps arrive, and the producer with the bytes of keys and values.
    return TileRing(q=q, k=k, v=v, full=allocate_barriers(STAGES, ARRIVALS=65))


@gluon.jit
@no_type_check
def gather(slots, ring, q_ptr, ATTN_DIM: gl.constexpr):
    """Two warps: gather query rows.  The copies arrive at the tile's barrier themselves, so these warps do not wait."""
    STAGES: gl.constexpr = ring.full.shape[0]
    COLUMNS: gl.constexpr = ring.q.shape[2]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [2, 1], [1, 0])
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % STAGES
        mbarrier.wait(slots.ready.index(slot), count // STAGES & 1)
        step = number_of(slots.steps, slot, WARPS=2)
        if step >= 0:
            rows = number_of(slots.numbers, slot, WARPS=2)
            for part in gl.static_range(TILE_ROWS // AT_ONCE):
                if part * AT_ONCE < rows:
                    source = slots.sources.index(slot).slice(part * AT_ONCE, AT_ONCE).load(gl.SliceLayout(1, LAYOUT))
                    # Rows without an entry become 0.
                    copy_rows(
                        ring.q.index(slot).slice(part * AT_ONCE, AT_ONCE),
                        q_ptr + gl.multiple_of(source, 8)[:, None] + columns[None, :],
                        mask=(source >= 0)[:, None] & (columns < ATTN_DIM)[None, :],
                    )
        async_copy.mbarrier_arrive(ring.full.index(slot), increment_count=False)
        count += 1


@aggregate
class Consumer:
    """Arguments of the warpgroups of `attend`."""

    place_free: gl.shared_memory_descriptor
    "mbarriers of slots: the buffer for a tile's partial rows is free"
    partial_ptr: Argument
    half_alpha: Argument
    scale: Argument
    slots: Slots
    ring: TileRing
    LINEAR_DIM: gl.constexpr
    TANH: gl.constexpr
    "whether SiLU uses the tanh instruction"
    KEEP: gl.constexpr
    "whether the L2 evicts partial rows last"


@gluon.jit
@no_type_check
def attend_rows(consumer, slot, phase):
    """Partial rows of one tile, stored where its slot says; rows without an entry are undefined."""
    ring = consumer.ring
    targets = consumer.slots.targets.index(slot)
    BLOCK_SIZE: gl.constexpr = ring.k.shape[3]
    BLOCK_V: gl.constexpr = ring.v.shape[5]
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_SIZE, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, BLOCK_V, 16])
    STORES: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_V, BLOCK_V // 8], [8, 1], [1, 0])
    # Makes what copies and threads wrote visible to the products.
    fence_async_shared()
    none = gl.zeros([TILE_ROWS, BLOCK_SIZE], gl.float32, SCORES)
    keys = flat(ring.k.index(slot)).permute([1, 0])
    q = ring.q.index(slot)
    scores = warpgroup_mma(q, keys, none, use_acc=False, is_async=True)
    target = gl.multiple_of(targets.load(gl.SliceLayout(1, STORES)), 8)
    scores = warpgroup_mma_wait(0, [scores])
    # A listed block is complete and past, so every query of its list sees all its keys.
    weights = gl.convert_layout(
        silu(scores, consumer.half_alpha, consumer.TANH).to(q.dtype), gl.DotOperandLayout(0, SUMS, 2)
    )
    none = gl.zeros([TILE_ROWS, BLOCK_V], gl.float32, SUMS)
    sums = warpgroup_mma(weights, flat(ring.v.index(slot)), none, use_acc=False, is_async=True)
    sums = warpgroup_mma_wait(0, [sums])
    # Whole rows in pieces of 16 bytes.  Queries with as many columns have been read, so their buffer is free.
    rows = (sums * consumer.scale).to(q.dtype)
    if ring.q.shape[2] == BLOCK_V:
        q.store(rows)
        rows = q.load(STORES)
    else:
        rows = gl.convert_layout(rows, STORES)
    columns = gl.arange(0, BLOCK_V, gl.SliceLayout(0, STORES))
    mbarrier.wait(consumer.place_free.index(slot), phase)
    gl.store(
        consumer.partial_ptr + target[:, None] + columns[None, :],
        rows,
        mask=(target >= 0)[:, None] & (columns < consumer.LINEAR_DIM)[None, :],
        eviction_policy="evict_last" if consumer.KEEP else "",
    )


@gluon.jit
@no_type_check
def attend(consumer):
    """Two consumer warpgroups: 64 rows of each tile for each."""
    slots = consumer.slots
    full = consumer.ring.full
    STAGES: gl.constexpr = full.shape[0]
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % STAGES
        mbarrier.wait(full.index(slot), count // STAGES & 1)
        step = number_of(slots.steps, slot, WARPS=8)
        if step >= 0:
            attend_rows(consumer, slot, count // STAGES & 1)
        mbarrier.arrive(slots.done.index(slot))
        count += 1


@aggregate
class Combiner:
    """Arguments of the warpgroup of `combine`."""

    partial_ptr: Argument
    gates_ptr: Argument
    out_ptr: Argument
    jobs: Slots
    counts: gl.shared_memory_descriptor
    "number of partial rows of each row of a job, [slots, rows]"
    OTHERS: gl.constexpr
    "blocks of a query except the local one"
    LINEAR_DIM: gl.constexpr
    BLOCK_V: gl.constexpr
    GATES: gl.constexpr


@gluon.jit
@no_type_check
def combine(combiner):
    """A warpgroup: adds the partial rows of each job's queries to out."""
    jobs = combiner.jobs
    partial_ptr = combiner.partial_ptr
    counts = combiner.counts
    BLOCK_V: gl.constexpr = combiner.BLOCK_V
    LINEAR_DIM: gl.constexpr = combiner.LINEAR_DIM
    SLOTS: gl.constexpr = counts.shape[0]
    JOB_ROWS: gl.constexpr = counts.shape[1]
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BLOCK_V, BLOCK_V // 8], [4, 1], [1, 0])
    COLUMN: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    columns = gl.arange(0, BLOCK_V, gl.SliceLayout(0, LAYOUT))
    inside = (columns < LINEAR_DIM)[None, :]
    count = 0
    step = gl.to_tensor(0)
    while step >= 0:
        slot = count % SLOTS
        mbarrier.wait(jobs.ready.index(slot), count // SLOTS & 1)
        step = number_of(jobs.steps, slot, WARPS=4)
        if step >= 0:
            source = gl.multiple_of(jobs.sources.index(slot).load(COLUMN), 8)
            row = jobs.targets.index(slot).load(COLUMN)
            chosen = counts.index(slot).load(COLUMN)
            gate = gate_of(
                combiner.gates_ptr, row, heads=1, head=0, mask=chosen > 0, BRANCH=SELECTED, GATES=combiner.GATES
            )
            # A query without partial rows keeps its output.  Partial rows are not read again: the L2 is free for others.
            places = combiner.out_ptr + gl.multiple_of(row * LINEAR_DIM, 8)[:, None] + columns[None, :]
            before = gl.load(places, mask=(chosen > 0)[:, None] & inside, other=0.0, eviction_policy="evict_first")
            # Else the assembler puts the last of these loads behind the first sums, which wait.
            sync_warps()
            total = gl.zeros([JOB_ROWS, BLOCK_V], gl.float32, LAYOUT)
            for index in gl.static_range(combiner.OTHERS):
                # Loaded from the L2: other SMs overwrite the buffers of the ring.
                part = gl.load(
                    partial_ptr + (source + index * LINEAR_DIM)[:, None] + columns[None, :],
                    mask=(chosen > index)[:, None] & inside,
                    other=0.0,
                    cache_modifier=".cg",
                )
                total += part.to(gl.float32)
            total = total * gate[:, None] + before.to(gl.float32)
            gl.store(places, total.to(before.dtype), mask=(chosen > 0)[:, None] & inside, eviction_policy="evict_first")
        mbarrier.arrive(jobs.done.index(slot))
        count += 1


@gluon.jit(do_not_specialize=("units", "heads", "group", "steps", "ring", "entry_rows", "tile_rows", "slot_rows"))
@no_type_check
def hstu_bsa_hopper_attend(
    q_ptr,
    k_desc,
    v_desc,
    gates_ptr,
    out_ptr,
    partial_ptr,
    progress_ptr,
    entries_ptr,
    tiles_ptr,
    num_tiles_ptr,
    sequences,
    q_strides,
    units,
    heads,
    group,
    steps,
    ring,
    entry_rows,
    tile_rows,
    slot_rows,
    half_alpha,
    scale,
    META: gl.constexpr,
):
    """Allocate rings, slots and barriers, and start the warps."""
    ATTN_DIM: gl.constexpr = META.ATTN_DIM
    STAGES: gl.constexpr = META.STAGES
    JOBS: gl.constexpr = META.JOBS
    JOB_ROWS: gl.constexpr = META.JOB_ROWS
    BLOCK_SIZE: gl.constexpr = META.BLOCK_SIZE
    OTHERS: gl.constexpr = META.OTHERS
    LINEAR_DIM: gl.constexpr = META.LINEAR_DIM
    BLOCK_V: gl.constexpr = v_desc.block_shape[4]
    problem = GridProblem(
        sequences=sequences,
        num_tiles_ptr=num_tiles_ptr,
        units=units,
        heads=heads,
        group=group,
        steps=steps,
        ring=ring,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_CACHE=META.HAS_CACHE,
        SHARED=META.SHARED,
    )
    tiles = allocate_tiles(k_desc, v_desc, STAGES, META.BLOCK_D)
    slots = allocate_slots(STAGES, TILE_ROWS)
    jobs = allocate_slots(JOBS, JOB_ROWS)
    counts = gl.allocate_shared_memory(gl.int32, [JOBS, JOB_ROWS], PLAIN)
    place_free = allocate_barriers(STAGES, ARRIVALS=1)
    fence_async_shared()
    consumer = Consumer(
        place_free=place_free,
        partial_ptr=partial_ptr,
        half_alpha=half_alpha,
        scale=scale,
        slots=slots,
        ring=tiles,
        LINEAR_DIM=LINEAR_DIM,
        TANH=META.TANH,
        KEEP=META.KEEP,
    )
    combiner = Combiner(
        partial_ptr=partial_ptr,
        gates_ptr=gates_ptr,
        out_ptr=out_ptr,
        jobs=jobs,
        counts=counts,
        OTHERS=OTHERS,
        LINEAR_DIM=LINEAR_DIM,
        BLOCK_V=BLOCK_V,
        GATES=META.GATES,
    )
    tile_producer = TileProducer(
        k_desc=k_desc,
        v_desc=v_desc,
        progress_ptr=progress_ptr,
        entries_ptr=entries_ptr,
        tiles_ptr=tiles_ptr,
        problem=problem,
        q_strides=q_strides,
        entry_rows=entry_rows,
        tile_rows=tile_rows,
        slot_rows=slot_rows,
        slots=slots,
        ring=tiles,
        BLOCK_SIZE=BLOCK_SIZE,
        OTHERS=OTHERS,
        LINEAR_DIM=LINEAR_DIM,
    )
    job_producer = JobProducer(
        progress_ptr=progress_ptr,
        problem=problem,
        slot_rows=slot_rows,
        jobs=jobs,
        counts=counts,
        BLOCK_SIZE=BLOCK_SIZE,
        OTHERS=OTHERS,
        LINEAR_DIM=LINEAR_DIM,
    )
    attended = progress_ptr + COUNTERS
    finished = attended + steps * SPREAD
    gl.warp_specialize(
        [
            (attend, (consumer,)),
            (combine, (combiner,)),
            (gather, (slots, tiles, q_ptr, ATTN_DIM)),
            (produce_tiles, (tile_producer,)),
            (signal_places, (slots, place_free, finished, ring)),
            (produce_jobs, (job_producer,)),
            (publish_done, (slots, attended, False)),
            (publish_done, (jobs, finished, True)),
        ],
        [4, 2, 1, 1, 1, 1, 1],
        [META.SUM_REGISTERS, 48, 48, 48, 48, 48, 48],
    )


def attend_hopper(call: BsaCall, config: AttendConfig | None = None) -> None:
    """Add the selected branch to `call.out`, which holds the others.

    Nothing is allocated and nothing waits for the device.

    Args:
        call: its workspace has lists in tiles of TILE_ROWS entries, and the tensors of `attend_shapes`.
        config: of the kernel; None: `default_attend`'s.

    Raises:
        ValueError: as of `attend_fault` or `BsaCall.require`.
    """
    p = call.problem
    config = config or default_attend(p)
    call.require("attend_hopper", attend_fault(p, config, capability=call.capability))
    # A sequence without a complete block has no list.
    if not p.units * p.max_seqlen_q or not p.mean_rows:
        return
    group = config.group(p)
    clear(call.workspace["progress"])
    launch(
        hstu_bsa_hopper_attend,
        (config.programs * processors(call.q),),
        q_ptr=call.q,
        k_desc=rows_of(call.k, p.block_size, p.block_d),
        v_desc=rows_of(call.v, p.block_size, p.block_v),
        gates_ptr=call.q if call.gates is None else call.gates,
        **call.tensors("out", "partial", "progress", "entries", "tiles", "num_tiles"),
        sequences=call.sequences,
        q_strides=RowStrides.of(call.q),
        units=p.units,
        heads=p.heads,
        group=group,
        steps=config.steps(p),
        ring=call.workspace["partial"].shape[0] // group,
        entry_rows=p.entry_rows,
        tile_rows=p.tile_rows(TILE_ROWS.value),
        slot_rows=p.slot_rows,
        **call.factors(),
        META=_meta(call, config),
        num_warps=8,
    )


def _meta(call: BsaCall, config: AttendConfig) -> AttendMeta:
    p = call.problem
    return AttendMeta(
        **call.flags(),
        ATTN_DIM=p.attn_dim,
        LINEAR_DIM=p.linear_dim,
        BLOCK_D=p.block_d,
        OTHERS=p.others,
        GATES=p.gates,
        SHARED=p.shared,
        TANH=call.config.silu == "tanh",
        KEEP=config.keep,
        STAGES=config.stages,
        JOB_ROWS=config.job_rows,
        JOBS=config.jobs,
        SUM_REGISTERS=112,
    )
