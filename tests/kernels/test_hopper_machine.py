"""The Hopper machine: each mistake it knows caught under any seed, the version without it right under each."""

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from attnbench.kernels.shared.hopper import await_writes, load_tile, store_tile

from .hopper_machine import BarrierMisuse, Deadlock, MissingFence, Race, TooEarly, Unfinished, run
from .hopper_machine.schedule import Schedule

SEEDS = range(4)
SIDE = gl.constexpr(64)
BYTES = gl.constexpr(64 * 64 * 2)


def described(x):
    """Tiles [64, 64] of a matrix in bf16."""
    return TensorDescriptor.from_tensor(x, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))


# ── a loader and a worker: the sum of X Xᵀ over tiles X, with one slip or none ─────────────────────


@gluon.jit
def bring(desc, ring, full, empty, count, SLIP: gl.constexpr):
    for index in range(count):
        slot = index % 2
        if SLIP != "room not awaited":
            mbarrier.wait(empty.index(slot), (index // 2 & 1) ^ 1)
        EXPECTED: gl.constexpr = BYTES + 2 * (SLIP == "too many bytes") - 2 * (SLIP == "too few bytes")
        if SLIP != "nothing expected":
            mbarrier.expect(full.index(slot), EXPECTED)
        else:
            mbarrier.arrive(full.index(slot))
        load_tile(desc, [index * SIDE, 0], full.index(slot), ring.index(slot))
    if SLIP == "one load more":
        mbarrier.wait(empty.index(0), 0)
        mbarrier.expect(full.index(0), BYTES)
        load_tile(desc, [0, 0], full.index(0), ring.index(0))


@gluon.jit
def sum_up(out_desc, mine, ring, full, empty, count, SLIP: gl.constexpr):
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    acc = gl.zeros([SIDE, SIDE], gl.float32, SUM)
    for index in range(count):
        slot = index % 2
        if SLIP != "load not awaited":
            mbarrier.wait(full.index(slot), (index // 2 & 1) ^ (SLIP == "wrong parity"))
        tile = ring.index(slot)
        before = acc
        acc = warpgroup_mma(tile, tile.permute([1, 0]), acc, is_async=True)
        if SLIP == "given back early":
            mbarrier.arrive(empty.index(slot))
        if SLIP == "accumulator early":
            acc = before + 1.0
        if SLIP == "result early":
            acc = acc * 1.0
        if SLIP != "product left":
            acc = warpgroup_mma_wait(SLIP == "waits for less", [acc])
        if SLIP != "given back early":
            mbarrier.arrive(empty.index(slot))
        if SLIP == "given back twice":
            mbarrier.arrive(empty.index(slot))
    if SLIP != "product left":
        mine.store(acc.to(gl.bfloat16))
    if SLIP != "no fence":
        fence_async_shared()
    store_tile(out_desc, [0, 0], mine)
    if SLIP == "written while it leaves":
        mine.store(acc.to(gl.bfloat16))
    if SLIP != "store left":
        tma.store_wait(0)


@gluon.jit
def squares(desc, out_desc, count, SLIP: gl.constexpr):
    ring = gl.allocate_shared_memory(gl.bfloat16, [2, SIDE, SIDE], desc.layout)
    mine = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(2):
        mbarrier.init(full.index(slot), 1)
        if SLIP != "never made":
            mbarrier.init(empty.index(slot), 1)
        if SLIP == "made twice":
            mbarrier.init(empty.index(slot), 1)
        if SLIP == "two arrivals awaited":
            mbarrier.invalidate(full.index(slot))
            mbarrier.init(full.index(slot), 2)
    if SLIP == "written before the load":
        for slot in gl.static_range(2):
            ring.index(slot).store(gl.zeros([SIDE, SIDE], gl.bfloat16))
    gl.warp_specialize(
        [(sum_up, (out_desc, mine, ring, full, empty, count, SLIP)), (bring, (desc, ring, full, empty, count, SLIP))],
        [1],
        [24],
    )


def squared(slip="", seed=0, count=5):
    torch.manual_seed(0)
    x = torch.randn(64 * max(count, 1), 64).bfloat16()
    out = torch.full((64, 64), 7.0, dtype=torch.bfloat16)
    run(squares, (1,), described(x), described(out), count, slip, seed=seed)
    return x, out


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_kernel_without_slip_has_its_values(seed, count):
    x, out = squared(seed=seed, count=count)
    tiles = x.float()[: 64 * count].view(count, 64, 64)
    assert torch.allclose(out.float(), (tiles @ tiles.mT).sum(0), rtol=2**-8, atol=2**-16)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("slip", "count", "mistake", "words"),
    [
        ("room not awaited", 5, (Race, BarrierMisuse), "ring.[01]., while |more arrivals than full.[01]. takes"),
        ("load not awaited", 5, (Race, Deadlock), "ring.[01]., while |bring. waits for parity 1 of empty.0."),
        ("given back early", 5, Race, "bulk load of ring.[01]., while warpgroup_mma of ring.[01]. by .* is "),
        ("written while it leaves", 5, Race, "store of mine, while bulk store of mine"),
        ("no fence", 5, MissingFence, "bulk store of mine, and nobody called fence_async_shared between"),
        ("written before the load", 5, MissingFence, "bulk load of ring.0., and nobody .* the store of ring.0."),
        ("result early", 5, TooEarly, "warpgroup_mma_wait before it is used"),
        ("accumulator early", 5, TooEarly, "registers used that warpgroup_mma .* adds to"),
        ("waits for less", 1, TooEarly, "waited for less"),
        ("product left", 1, Unfinished, "sum_up. ended with 1 products not waited for"),
        ("store left", 5, Unfinished, "ended with 1 bulk stores not waited for"),
        ("one load more", 5, Unfinished, "1 (loads nobody waited for|copies in flight)"),
        ("never made", 5, BarrierMisuse, "empty.[01]. is used before its init"),
        ("made twice", 5, BarrierMisuse, "empty.0. is made a second time"),
        ("given back twice", 5, (Race, Deadlock), "ring.[01]., while |waits for parity [01] of"),
        ("too few bytes", 5, BarrierMisuse, "2 bytes more than full.0. expected in phase 0"),
        ("nothing expected", 5, (BarrierMisuse, Race), "bytes more than full|ring.[01]., while"),
        (
            "too many bytes",
            5,
            Deadlock,
            "sum_up. waits for parity 0 of full.0. .phase 0 is open: 0 of 1 arrivals and 2 by",
        ),
        ("two arrivals awaited", 5, Deadlock, "parity 0 of full.0. .phase 0 is open: 1 of 2 arrivals and 0 bytes"),
        ("wrong parity", 2, (Race, Deadlock), "ring.0., while |waits for parity 1 of (full|empty).0."),
    ],
)
def test_a_slip_is_found_under_every_seed(slip, count, mistake, words, seed):
    with pytest.raises(mistake, match=words):
        squared(slip, seed, count)


# ── who runs when ──────────────────────────────────────────────────────────────────────────────────


@gluon.jit
def stand_in_line(ticket_ptr, order_ptr, WHO: gl.constexpr, bar):
    for _index in range(4):
        mbarrier.arrive(bar.index(WHO))
        gl.store(order_ptr + gl.atomic_add(ticket_ptr, 1), WHO)


@gluon.jit
def line(ticket_ptr, order_ptr):
    bar = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bar.index(0), 1)
    mbarrier.init(bar.index(1), 1)
    gl.warp_specialize(
        [(stand_in_line, (ticket_ptr, order_ptr, 0, bar)), (stand_in_line, (ticket_ptr, order_ptr, 1, bar))], [4]
    )


def order(seed):
    ticket, found = torch.zeros(1, dtype=torch.int32), torch.full((8,), -1, dtype=torch.int32)
    run(line, (1,), ticket, found, seed=seed)
    assert sorted(found.tolist()) == [0] * 4 + [1] * 4
    return tuple(found.tolist())


def test_a_seed_gives_an_order_and_other_seeds_others():
    orders = [order(seed) for seed in range(8)]
    assert len(set(orders)) >= 4
    assert orders == [order(seed) for seed in range(8)]


def test_a_failure_ends_every_partition():
    schedule = Schedule("0")

    def whole():
        schedule.start("waits forever", 4, lambda: schedule.pause(lambda: False))
        schedule.pause()
        raise ValueError("one of them fails")

    with pytest.raises(ValueError, match="one of them fails"):
        schedule.run("program", 4, whole)
    assert len(schedule.tasks) == 2
    assert all(task.thread.dead for task in schedule.tasks)
    schedule.tasks.clear()
    with pytest.raises(Deadlock, match="program waits for nothing"):
        schedule.run("program", 4, lambda: schedule.pause(lambda: False))
    assert schedule.tasks[0].thread.dead


# ── shared memory between partitions ───────────────────────────────────────────────────────────────


@gluon.jit
def write_square(mine, bar, HANDED: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    mine.store(gl.full([SIDE, SIDE], 2.0, gl.bfloat16, LAYOUT))
    # Its own reading in between does not make the first store forgotten.
    mine.slice(0, 32, 1).store(mine.slice(0, 32, 1).load(LAYOUT) + 1.0)
    mine.load(LAYOUT)
    if HANDED:
        mbarrier.arrive(bar)


@gluon.jit
def read_square(mine, bar, out_ptr, HANDED: gl.constexpr, COLUMNS: gl.constexpr):
    if HANDED:
        mbarrier.wait(bar, 0)
    part = mine.slice(0, COLUMNS, 1)
    value = part.load(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
    gl.store(out_ptr, gl.max(value))


@gluon.jit
def hand_over(out_ptr, HANDED: gl.constexpr):
    LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    mine = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], LAYOUT)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    gl.warp_specialize([(write_square, (mine, bar, HANDED)), (read_square, (mine, bar, out_ptr, HANDED, 32))], [4])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_one_partition_writes_another_reads_behind_a_barrier_only(seed):
    out = torch.zeros(1)
    run(hand_over, (1,), out, True, seed=seed)
    assert out.item() == 3
    with pytest.raises(Race, match=r"of mine.*, while (store|load) of mine.* by partition . .* not put before it"):
        run(hand_over, (1,), out, False, seed=seed)


@gluon.jit
def halves(out_ptr, APART: gl.constexpr):
    mine = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    gl.warp_specialize([(fill_columns, (mine, 0)), (fill_columns, (mine, 32 if APART else 16))], [4])
    gl.store(out_ptr, gl.sum(mine.load(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])).to(gl.float32)))


@gluon.jit
def fill_columns(mine, FIRST: gl.constexpr):
    mine.slice(FIRST, 32, 1).store(gl.full([SIDE, 32], FIRST, gl.bfloat16))


def test_columns_side_by_side_are_not_the_same_memory():
    out = torch.zeros(1)
    run(halves, (1,), out, True)
    assert out.item() == 64 * 32 * 32
    with pytest.raises(Race, match="store of mine"):
        run(halves, (1,), out, False)


@gluon.jit
def look(mine, out_ptr, WRITES: gl.constexpr):
    value = mine.load(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
    if WRITES:
        mine.store(value)


@gluon.jit
def onlookers(out_ptr, WRITES: gl.constexpr):
    mine = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    gl.warp_specialize([(look, (mine, out_ptr, False)), (look, (mine, out_ptr, WRITES))], [4])


@pytest.mark.parametrize("seed", SEEDS)
def test_two_may_read_at_once_and_who_writes_knows_of_both(seed):
    run(onlookers, (1,), torch.zeros(1), False, seed=seed)
    with pytest.raises(Race, match=r"partition 0 \(look\)"):
        run(onlookers, (1,), torch.zeros(1), True, seed=seed)


@gluon.jit
def too_many(ONE_CALL: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    if ONE_CALL:
        mbarrier.arrive(bar, count=2)
    mbarrier.expect(bar, 16)
    mbarrier.arrive(bar)


@pytest.mark.parametrize("one_call", [False, True])
def test_a_barrier_takes_no_more_arrivals_than_it_was_made_for(one_call):
    with pytest.raises(BarrierMisuse, match="more arrivals than bar takes"):
        run(too_many, (1,), one_call)


@gluon.jit
def one_barrier():
    bar = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bar.index(0), 3)
    return bar


@gluon.jit
def stuck():
    bars = (one_barrier(), one_barrier())
    mbarrier.arrive(bars[1].index(0))
    mbarrier.wait(bars[1].index(0), 0)


def test_a_deadlock_says_who_waits_for_what():
    words = r"program waits for parity 0 of bar\[0\] of bars\[1\] \(phase 0 is open: 2 of 3 arrivals and 0 bytes"
    with pytest.raises(Deadlock, match=words):
        run(stuck, (1,))


@gluon.jit
def make_late(bar, HANDED: gl.constexpr):
    mbarrier.init(bar.index(1), 1)
    if HANDED:
        mbarrier.arrive(bar.index(0))


@gluon.jit
def use_soon(bar, HANDED: gl.constexpr):
    if HANDED:
        mbarrier.wait(bar.index(0), 0)
    mbarrier.arrive(bar.index(1))


@gluon.jit
def made_by_another(HANDED: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bar.index(0), 1)
    gl.warp_specialize([(make_late, (bar, HANDED)), (use_soon, (bar, HANDED))], [4])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_that_another_partition_makes_is_used_behind_a_barrier_only(seed):
    run(made_by_another, (1,), True, seed=seed)
    with pytest.raises(BarrierMisuse, match=r"bar\[1\] is used before its init"):
        run(made_by_another, (1,), False, seed=seed)


@gluon.jit
def expects(BYTES_TO_COME: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    mbarrier.expect(bar, BYTES_TO_COME)


def test_bytes_that_never_come_are_an_error_though_nobody_waits():
    run(expects, (1,), 0)
    with pytest.raises(Unfinished, match="0 of 1 arrivals and 16 bytes to come"):
        run(expects, (1,), 16)


@gluon.jit
def read_unwritten(out_ptr):
    SUM: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    mine = gl.allocate_shared_memory(gl.float16, [SIDE, SIDE], LAYOUT)
    acc = warpgroup_mma(mine, mine, gl.zeros([SIDE, SIDE], gl.float32, SUM), is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    gl.store(out_ptr + gl.arange(0, SIDE), gl.sum(acc, 1))


def test_memory_nobody_wrote_is_nan():
    out = torch.zeros(64)
    run(read_unwritten, (1,), out)
    assert out.isnan().all()


@gluon.jit
def back(desc, out_desc, AWAITED: gl.constexpr):
    """Zeros to a tile in global memory, and what is found there to another."""
    mine = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], desc.layout)
    found = gl.allocate_shared_memory(gl.bfloat16, [SIDE, SIDE], desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    mine.store(gl.zeros([SIDE, SIDE], gl.bfloat16))
    fence_async_shared()
    store_tile(desc, [0, 0], mine)
    if AWAITED == "written":
        await_writes(0)
    if AWAITED == "written, in Triton 3.6":
        WAIT: gl.constexpr = "cp.async.bulk.wait_group 0; mov.u32 $0, 0;"
        gl.inline_asm_elementwise(WAIT, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    if AWAITED == "read":
        tma.store_wait(0)
    mbarrier.expect(bar, BYTES)
    load_tile(desc, [0, 0], bar, found)
    mbarrier.wait(bar, 0)
    store_tile(out_desc, [0, 0], found)
    tma.store_wait(0)


@pytest.mark.parametrize("awaited", ["written", "written, in Triton 3.6", "read"])
def test_what_was_stored_is_loaded_behind_a_wait_for_the_write_only(awaited):
    stale = []
    for seed in range(16):
        x, out = (torch.ones(64, 64, dtype=torch.bfloat16) for _ in range(2))
        run(back, (1,), described(x), described(out), awaited, seed=seed)
        stale.append(bool(out.any()))
    assert any(stale) is (awaited == "read")
