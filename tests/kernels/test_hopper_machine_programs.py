"""The Hopper machine with several programs at once: what they tell one another, and rows that threads copy."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_machine import BarrierMisuse, Deadlock, MissingFence, Race, Unfinished, run

copy_rows = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)
SEEDS = range(6)


@gluon.jit
def hand_round(values_ptr, turn_ptr, programs, rounds, SLIP: gl.constexpr):
    """Each program in turn adds its number to the values."""
    me = gl.program_id(0)
    at = gl.arange(0, 4)
    for turn in range(rounds):
        while gl.load(turn_ptr, volatile=True) < turn * programs + me:
            pass
        if SLIP != "no acquire":
            gl.atomic_add(turn_ptr, 0, sem="acquire")
        gl.store(values_ptr + at, gl.load(values_ptr + at) + me + 1)
        if SLIP != "nobody goes on":
            gl.atomic_add(turn_ptr, 1, sem="relaxed" if SLIP == "no release" else "release")


def handed_round(slip="", seed=0, programs=3, at_once=3, rounds=2):
    values, turn = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run(hand_round, (programs,), values, turn, programs, rounds, slip, seed=seed, at_once=at_once)
    return values


@pytest.mark.parametrize("seed", SEEDS)
def test_programs_that_hand_on_what_they_wrote(seed):
    assert handed_round(seed=seed).tolist() == [12] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("slip", "mistake", "words"),
    [
        (
            "no acquire",
            Race,
            "program [12]: load of global memory, and nothing puts it behind the write there by program",
        ),
        (
            "no release",
            Race,
            "program [12]: load of global memory, and nothing puts it behind the write there by program",
        ),
        ("nobody goes on", Deadlock, "program 2 waits for global memory to change at .0., where it is .0."),
    ],
)
def test_a_slip_between_programs_is_found_under_every_seed(slip, mistake, words, seed):
    with pytest.raises(mistake, match=words):
        handed_round(slip, seed)


def test_who_waits_for_a_program_that_has_not_started_hangs():
    assert handed_round(at_once=1, rounds=1).tolist() == [6] * 4
    with pytest.raises(Deadlock, match=r"^deadlock: program 0 waits for global memory to change"):
        handed_round(at_once=1)


@gluon.jit
def overwrite(values_ptr, ready_ptr, seen_ptr, ASKS: gl.constexpr):
    """Program 0 writes a place anew; what it may not do before program 1 has read it."""
    if gl.program_id(0) == 0:
        gl.store(values_ptr, 1)
        gl.atomic_add(ready_ptr, 1, sem="release")
        if ASKS:
            while gl.atomic_add(ready_ptr, 0, sem="acquire") < 2:
                pass
        gl.store(values_ptr, 2)
    else:
        while gl.atomic_add(ready_ptr, 0, sem="acquire") < 1:
            pass
        gl.store(seen_ptr, gl.load(values_ptr))
        gl.atomic_add(ready_ptr, 1, sem="release")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_place_written_anew_while_it_may_be_read(seed):
    values, ready, seen = (torch.zeros(1, dtype=torch.int32) for _ in range(3))
    run(overwrite, (2,), values, ready, seen, True, seed=seed, at_once=2)
    assert (values.item(), seen.item()) == (2, 1)
    ready.zero_()
    with pytest.raises(Race, match=r"(load|store) of global memory, and nothing puts it behind the (read|write) there"):
        run(overwrite, (2,), values, ready, seen, False, seed=seed, at_once=2)


@gluon.jit
def gather(x_ptr, rows_ptr, tile, full, count, SLIP: gl.constexpr):
    at = gl.arange(0, 64)
    row = gl.load(rows_ptr + at)
    copy_rows(tile, x_ptr + (row * 64)[:, None] + at[None, :], mask=(at < count)[:, None])
    if SLIP == "waits itself":
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        mbarrier.arrive(full)
    elif SLIP == "group not awaited":
        async_copy.commit_group()
        async_copy.wait_group(1)
        fence_async_shared()
        mbarrier.arrive(full)
    elif SLIP == "count raised":
        async_copy.mbarrier_arrive(full, increment_count=True)
        mbarrier.arrive(full)
    else:
        async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def square(out_ptr, tile, full, SLIP: gl.constexpr):
    if SLIP != "copy not awaited":
        mbarrier.wait(full, 0)
    if SLIP not in ("no fence", "waits itself"):
        fence_async_shared()
    acc = warpgroup_mma(tile, tile.permute([1, 0]), gl.zeros([64, 64], gl.float32), use_acc=False, is_async=True)
    acc = warpgroup_mma_wait(0, [acc])
    at = gl.arange(0, 64)
    gl.store(out_ptr + at[:, None] * 64 + at[None, :], acc)


@gluon.jit
def gathered(x_ptr, rows_ptr, out_ptr, count, SLIP: gl.constexpr):
    tile = gl.allocate_shared_memory(gl.bfloat16, [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16))
    full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    one_arrives = SLIP in ("waits itself", "group not awaited", "count raised")
    mbarrier.init(full.index(0), 1 if one_arrives else 64 if SLIP == "too few arrive" else 32)
    fence_async_shared()
    gl.warp_specialize(
        [(square, (out_ptr, tile, full.index(0), SLIP)), (gather, (x_ptr, rows_ptr, tile, full.index(0), count, SLIP))],
        [1],
        [24],
    )


def of_rows(slip="", seed=0, count=50):
    torch.manual_seed(0)
    x, rows = torch.randn(90, 64).bfloat16(), torch.randint(0, 90, (64,), dtype=torch.int32)
    out = torch.full((64, 64), torch.nan)
    run(gathered, (1,), x, rows, out, count, slip, seed=seed)
    tile = torch.where(torch.arange(64)[:, None] < count, x[rows], 0).float()
    return out, tile @ tile.mT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["", "waits itself", "count raised"])
def test_rows_that_threads_copy_are_multiplied(way, seed):
    out, expected = of_rows(way, seed)
    assert torch.allclose(out, expected, rtol=2**-8, atol=2**-16)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("slip", "mistake", "words"),
    [
        (
            "no fence",
            MissingFence,
            "warpgroup_mma of tile, and nobody called fence_async_shared .* the asynchronous copy",
        ),
        ("copy not awaited", (Race, Unfinished), "of tile, while (asynchronous copy|warpgroup_mma)"),
        ("group not awaited", (Race, MissingFence, Unfinished), "tile|loads nobody waited for"),
        ("too few arrive", Deadlock, "waits for parity 0 of full.0. .phase 0 is open: (32|64) of 64 arrivals"),
    ],
)
def test_a_slip_with_copies_is_found_under_every_seed(slip, mistake, words, seed):
    with pytest.raises(mistake, match=words):
        of_rows(slip, seed)


def test_more_lanes_arrive_than_the_barrier_takes():
    @gluon.jit
    def whole():
        full = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
        mbarrier.init(full.index(0), 33)
        async_copy.mbarrier_arrive(full.index(0), increment_count=False)
        mbarrier.wait(full.index(0), 0)

    with pytest.raises(BarrierMisuse, match=r"more arrivals than full.0. takes: 128 more"):
        run(whole, (1,))


@gluon.jit
def plus(left, right):
    return left + right


@gluon.jit
def scan(x_ptr, out_ptr):
    at = gl.arange(0, 8)
    gl.store(out_ptr + at, gl.associative_scan(gl.load(x_ptr + at), 0, plus))


def test_a_scan():
    x, out = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    run(scan, (1,), x, out)
    assert torch.equal(out, x.cumsum(0).int())
