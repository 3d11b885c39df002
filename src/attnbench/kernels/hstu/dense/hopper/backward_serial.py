# ruff: noqa: ANN001, ANN201, RUF005 (bodies of kernels are not Python)
"""Dense HSTU attention backward for Hopper, dQ by a serial reduction: one program does all key tiles of a pair.

The steps are those of `hopper.backward`.  A program per SM takes (sequence, head) pairs from a counter and goes through
their key tiles, last keys first.  So dQ of a tile of 64 rows has one writer:

    the first key tile that the rows see        stores dQ to the program's part of a workspace, which nobody clears
    key tiles between                           add to it, by a TMA reduction
    the last one                                loads it, adds its own in registers, rounds the sum and stores it

Rows of one key tile never touch the workspace.  The order of sums is fixed, so the results are bitwise reproducible.  The
workspace has rows for one sequence a program and stays in the L2; the producer loads the next key tile's queries meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, no_type_check

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from attnbench.kernels.hstu.dense.hopper.backward import KEYS, described, factors_of, refuse
from attnbench.kernels.hstu.dense.hopper.backward_serial_step import (
    ITEM_FIELDS,
    KeyTileItem,
    PublishedTile,
    SerialPlace,
    SerialSums,
)
from attnbench.kernels.hstu.dense.hopper.backward_step import Consumer, add_last_dq, clear_dscores, step
from attnbench.kernels.hstu.dense.hopper.tiles import BackwardMeta, BackwardRings, GridProblem, Mask, key_tile_at
from attnbench.kernels.hstu.tiles import COUNTS
from attnbench.kernels.shared.card import processors
from attnbench.kernels.shared.hopper import (
    END,
    ROWS,
    Argument,
    WorkQueue,
    aggregate,
    allocate_barriers,
    allocate_ring,
    allocate_work_queue,
    await_writes,
    coordinates,
    next_work,
    rows_of,
    store_tile,
    sync_warps,
)
from attnbench.kernels.shared.kept import clear, launch, zeros
from attnbench.kernels.shared.tiling import block_of

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.dense.configs import ColumnConfig
    from attnbench.kernels.hstu.dense.problem import Problem


@aggregate
class SerialProducer:
    """Arguments of the producer warp."""

    q_desc: tma.tensor_descriptor
    k_desc: tma.tensor_descriptor
    v_desc: tma.tensor_descriptor
    dout_desc: tma.tensor_descriptor
    rings: BackwardRings
    problem: GridProblem
    queue: WorkQueue
    counter_ptr: Argument
    "counter of the dynamic tile scheduler; None: a program has one pair"


@gluon.jit
@no_type_check
def done_from(mask, bounds, number, head, index):
    """First tile of queries to which no key tile before the index-th adds dQ."""
    found = 0
    if index > 0:
        lower = key_tile_at(mask, bounds, number, head, index - 1, KEYS)
        found = gl.maximum(lower.end, lower.front)
        if mask.HAS_TARGETS:
            # Keys before the targets may reach further than the targets between: all targets have one position.
            queries = bounds.keys - bounds.first_query
            every = (lower.start >= bounds.seen) & (bounds.seen > 0)
            found = gl.where(every, (queries + ROWS - 1) // ROWS, found)
    return found


@gluon.jit
@no_type_check
def produce(producer):
    """The producer warp: fetch a pair, publish its key tiles and load their tiles, until there are no more pairs."""
    rings, problem, queue = producer.rings, producer.problem, producer.queue
    mask = problem.mask
    pair = gl.program_id(0)
    count = 0
    turn = 0
    while pair < problem.pairs:
        number = pair // problem.heads
        head = pair - number * problem.heads
        bounds = problem.sequence_of(number)
        tiles = gl.minimum((bounds.keys + KEYS - 1) // KEYS, problem.tiles)
        front_before = 0
        begin_before = END
        for below in range(tiles):
            index = tiles - 1 - below
            tile = key_tile_at(mask, bounds, number, head, index, KEYS)
            item = KeyTileItem(
                head=tile.head,
                key_start=tile.key_start,
                query_start=tile.query_start,
                keys=tile.keys,
                first_query=tile.first_query,
                prefix=tile.prefix,
                seen=tile.seen,
                start=tile.start,
                front=tile.front,
                begin=tile.begin,
                whole=tile.whole,
                split=tile.split,
                end=tile.end,
                front_before=front_before,
                begin_before=begin_before,
                done_from=done_from(mask, bounds, number, head, index),
            )
            queue.publish(turn, item)
            front_before = tile.front
            begin_before = tile.begin
            steps = tile.steps()
            queries = tile.keys - tile.first_query
            # The first queries of this key tile before its keys, whose buffers the previous one's gradients must leave.
            if steps > 0:
                at = tile.query_tile(0, mask) * ROWS
                rings.q.fill(count, producer.q_desc, tile.query_start, queries, at, tile.head)
                rings.dout.fill(count, producer.dout_desc, tile.query_start, queries, at, tile.head)
            for which in gl.static_range(2):
                first = tile.start + which * ROWS
                rings.k.fill(2 * turn + which, producer.k_desc, tile.key_start, tile.keys, first, tile.head)
            for which in gl.static_range(2):
                first = tile.start + which * ROWS
                rings.v.fill(2 * turn + which, producer.v_desc, tile.key_start, tile.keys, first, tile.head)
            for later in range(1, steps):
                at = tile.query_tile(later, mask) * ROWS
                rings.q.fill(count + later, producer.q_desc, tile.query_start, queries, at, tile.head)
                rings.dout.fill(count + later, producer.dout_desc, tile.query_start, queries, at, tile.head)
            count += steps
            turn += 1
        pair = problem.pairs
        if producer.counter_ptr is not None:
            pair = next_work(producer.counter_ptr)
    queue.finish(turn)


@gluon.jit
@no_type_check
def consume(consumer, place, WARPGROUP: gl.constexpr):
    """A consumer warpgroup: 64 keys of each key tile, and half of the columns of dQ."""
    rings = consumer.rings
    queue = place.queue
    BLOCK_D: gl.constexpr = rings.k.COLUMNS
    BLOCK_V: gl.constexpr = rings.v.COLUMNS
    count = 0
    turn = 0
    queue.wait(0)
    while queue.has_work(turn):
        dk = gl.zeros([ROWS, BLOCK_D], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16]))
        dv = gl.zeros([ROWS, BLOCK_V], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_V, 16]))
        mine = 2 * turn + WARPGROUP
        for of in gl.static_range(2):
            rings.k.take(2 * turn + of)
        rings.v.take(mine)
        front = queue.number(turn, "front")
        begin = queue.number(turn, "begin")
        steps = front + queue.number(turn, "end") - begin
        if steps > 0:
            work = PublishedTile(queue, turn, front, begin)
            sums = SerialSums(place, count, turn, consumer.LAG)
            if consumer.LAG:
                clear_dscores(consumer, sums.stored(count), WARPGROUP)
            for at in range(count, count + steps):
                dk, dv = step(dk, dv, consumer, sums, work, at, WARPGROUP)
            count += steps
            if consumer.LAG:
                add_last_dq(consumer, sums, work, count, WARPGROUP)
        # This warpgroup has read the keys for the last time.
        mbarrier.arrive(consumer.done)
        mbarrier.wait(consumer.done, turn & 1)
        # Gradients are stored through the buffers of keys and values.
        rings.v.tile(mine).store((dv * consumer.dv_scale).to(consumer.dv_desc.dtype))
        rings.k.tile(mine).store((dk * (consumer.half_alpha * consumer.dv_scale)).to(consumer.dk_desc.dtype))
        fence_async_shared()
        sync_warps()
        key = queue.number(turn, "start") + WARPGROUP * ROWS
        keys = queue.number(turn, "keys")
        target = coordinates(queue.number(turn, "key_start"), keys, key, queue.number(turn, "head"))
        stage = mine % rings.k.STAGES
        store_tile(consumer.dv_desc, target, rings.v.tiles.index(stage))
        store_tile(consumer.dk_desc, target, rings.k.tiles.index(stage))
        if key >= KEYS:
            await_writes(2)  # the next key tile adds to this one's sums, and loads them
        tma.store_wait(0)
        rings.v.release(mine)
        rings.k.release(mine)
        queue.release(turn)
        turn += 1
        queue.wait(turn)


@gluon.jit(do_not_specialize=COUNTS)
@no_type_check
def hstu_hopper_backward_serial(
    q_desc,
    k_desc,
    v_desc,
    dout_desc,
    dk_desc,
    dv_desc,
    dq_desc,
    sums_desc,
    sequences,
    counter_ptr,
    half_alpha,
    hidden,
    dv_scale,
    dq_scale,
    heads,
    pairs,
    tiles,
    rows,
    contextual_len,
    window,
    META: gl.constexpr,
):
    """Allocate rings, tiles and barriers, and start the warps."""
    mask = Mask(
        window=window,
        CAUSAL=META.CAUSAL,
        HAS_PREFIX=META.HAS_PREFIX,
        HAS_TARGETS=META.HAS_TARGETS,
        HAS_WINDOW=META.HAS_WINDOW,
    )
    problem = GridProblem(
        sequences=sequences,
        contextual_len=contextual_len,
        mask=mask,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        group=pairs,
        HAS_CACHE=META.HAS_CACHE,
    )
    rings = BackwardRings(
        q=allocate_ring(q_desc, META.STAGES, CONSUMERS=2),
        k=allocate_ring(k_desc, STAGES=2 * META.KEY_STAGES, CONSUMERS=1),
        v=allocate_ring(v_desc, STAGES=2 * META.KEY_STAGES, CONSUMERS=1),
        dout=allocate_ring(dout_desc, META.STAGES, CONSUMERS=2),
    )
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * ROWS, ROWS], q_desc.dtype)
    queue = allocate_work_queue(2, ITEM_FIELDS)
    place = SerialPlace(
        sums_desc=sums_desc,
        dq_desc=dq_desc,
        staging=gl.allocate_shared_memory(gl.float32, [2] + sums_desc.block_shape, sums_desc.layout),
        rounded=gl.allocate_shared_memory(dq_desc.dtype, [2] + dq_desc.block_shape, dq_desc.layout),
        fetched=allocate_barriers(2, ARRIVALS=1),
        queue=queue,
        rows=rows,
        dq_scale=dq_scale,
    )
    producer = SerialProducer(
        q_desc=q_desc,
        k_desc=k_desc,
        v_desc=v_desc,
        dout_desc=dout_desc,
        rings=rings,
        problem=problem,
        queue=queue,
        counter_ptr=counter_ptr,
    )
    consumer = Consumer(
        dk_desc=dk_desc,
        dv_desc=dv_desc,
        rings=rings,
        dscores=gl.allocate_shared_memory(q_desc.dtype, [2, 2 * ROWS, ROWS], LAYOUT),
        filled=allocate_barriers(2, ARRIVALS=2),
        done=allocate_barriers(1, ARRIVALS=2).index(0),
        problem=problem,
        half_alpha=half_alpha,
        hidden=hidden,
        dv_scale=dv_scale,
        APPROXIMATE=META.APPROXIMATE,
        LAG=META.LAG,
    )
    fence_async_shared()
    gl.warp_specialize(
        [(consume, (consumer, place, 0)), (consume, (consumer, place, 1)), (produce, (producer,))], [4, 1], [240, 24]
    )


def programs_of(pairs: int, x: Tensor) -> int:
    """Programs for so many (sequence, head) pairs on the card of `x`: one per SM."""
    return min(pairs, processors(x))


def serial_workspace_shape(q: Tensor, problem: Problem) -> tuple[int, int, int]:
    """Shape of the fp32 workspace [rows, 1, D]: for each program, tiles of 64 rows for the longest sequence."""
    _, heads, attn_dim = q.shape
    return programs_of(problem.batch * heads, q) * _rows(problem), 1, attn_dim


def launch_serial_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    sums: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    problem: Problem,
    config: ColumnConfig,
) -> None:
    """Compute dq, dk and dv, rounded and with all factors; does not synchronize.

    Allocates the four-byte counter of the tile scheduler where there are more pairs than SMs.

    Args:
        q: [Tq, H, D], 16-bit, D at most 128.
        k: [Tk, H, D].
        v: [Tk, H, Dv], Dv at most 128.
        dout: [Tq, H, Dv].
        sums: fp32, shaped as `serial_workspace_shape`; whatever it contains.
        dq: like q; every row is written, also of the others.
        dk: like k.
        dv: like v.
        problem: sequences, mask and factors; already checked.
        config: pipeline stages, and how SiLU is computed.

    Raises:
        ValueError: as `launch_hopper_backward`.
    """
    (_, heads, attn_dim), pairs = q.shape, problem.batch * q.shape[1]
    tiles = -(-problem.max_seqlen // KEYS.value)
    if not q.numel():
        clear(dk)
        clear(dv)
    if tiles * pairs == 0 or not q.numel():
        return
    given = {"q": q, "k": k, "v": v, "dout": dout, "dk": dk, "dv": dv, "dq": dq}
    refuse(given, problem, config)
    programs = programs_of(pairs, q)
    launch(
        hstu_hopper_backward_serial,
        (programs,),
        **described(given),
        sums_desc=rows_of(sums, ROWS.value, max(32, block_of(attn_dim)) // 2),
        sequences=problem.sequences(),
        counter_ptr=zeros((1,), q, torch.int32) if pairs > programs else None,
        **factors_of(problem),
        dq_scale=problem.alpha / problem.scaling_seqlen / 2,
        heads=heads,
        pairs=pairs,
        tiles=tiles,
        rows=_rows(problem),
        contextual_len=problem.contextual_len,
        window=problem.max_attn_len or 0,
        META=BackwardMeta(
            **problem.flags(),
            STAGES=config.stages,
            APPROXIMATE=config.silu == "tanh",
            LAG=config.lag,
            SUMS=config.sums,
            KEY_STAGES=config.key_stages(attn_dim, v.shape[2]),
        ),
        num_warps=4,
    )


def _rows(problem: Problem) -> int:
    """Rows of a program in the workspace."""
    return -(-problem.max_seqlen_q // ROWS.value) * ROWS.value
