"""Attention in Gluon on the Hopper machine, by a launcher as the project's own: values over lengths and seeds."""

import importlib
import math

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from attnbench.kernels.shared.hopper import Rings, allocate_ring, coordinates, flat, rows_of, store_tile, sync_warps

from .hopper_machine import machine_runs

SIDE = gl.constexpr(64)


@gluon.jit
def keys_end(first, queries, keys, CAUSAL: gl.constexpr, BLOCK: gl.constexpr):
    """Tiles of keys that BLOCK rows from `first` see."""
    seen = keys
    if CAUSAL:
        seen = gl.minimum(gl.maximum(first + BLOCK + keys - queries, 0), keys)
    return (seen + SIDE - 1) // SIDE


@gluon.jit
def bring_rows(descs, rings, queries, keys, tiles, pairs, CAUSAL: gl.constexpr, GROUPS: gl.constexpr):
    q_desc, k_desc, v_desc = descs
    count = 0
    turn = 0
    for program in range(gl.program_id(0), tiles * pairs, gl.num_programs(0)):
        first = program // pairs * (SIDE * GROUPS)
        pair = program % pairs
        for which in gl.static_range(GROUPS):
            rings.q[which].fill(turn, q_desc, 0, queries, first + which * SIDE, pair)
        turn += 1  # noqa: SIM113 (a run-time number)
        for index in range(keys_end(first, queries, keys, CAUSAL, SIDE * GROUPS)):
            rings.k.fill(count, k_desc, 0, keys, index * SIDE, pair)
            rings.v.fill(count, v_desc, 0, keys, index * SIDE, pair)
            count += 1


@gluon.jit
def attend(
    out_desc, rings, queries, keys, tiles, pairs, scale, WHICH: gl.constexpr, CAUSAL: gl.constexpr, GROUPS: gl.constexpr
):
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE, 16])
    COLUMN: gl.constexpr = gl.SliceLayout(1, MMA)
    count = 0
    turn = 0
    none = gl.zeros([SIDE, SIDE], gl.float32, MMA)
    for program in range(gl.program_id(0), tiles * pairs, gl.num_programs(0)):
        first = program // pairs * (SIDE * GROUPS)
        row = first + WHICH * SIDE
        acc = gl.zeros([SIDE, SIDE], gl.float32, MMA)
        top = gl.full([SIDE], float("-inf"), gl.float32, COLUMN)
        total = gl.zeros([SIDE], gl.float32, COLUMN)
        q = rings.q[WHICH].take(turn)
        for index in range(keys_end(first, queries, keys, CAUSAL, SIDE * GROUPS)):
            scores = warpgroup_mma(q, rings.k.take(count).permute([1, 0]), none, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, [scores])
            rings.k.release(count)
            columns = index * SIDE + gl.arange(0, SIDE, gl.SliceLayout(0, MMA))[None, :]
            see = columns < keys
            if CAUSAL:
                see &= columns <= row + keys - queries + gl.arange(0, SIDE, COLUMN)[:, None]
            scores = gl.where(see, scores * scale, float("-inf"))
            new_top = gl.maximum(top, gl.max(scores, 1))
            pivot = gl.where(new_top == float("-inf"), 0.0, new_top)
            weights = gl.exp2(scores - pivot[:, None])
            factor = gl.exp2(top - pivot)
            total = total * factor + gl.sum(weights, 1)
            top = new_top
            weights = gl.convert_layout(weights.to(out_desc.dtype), gl.DotOperandLayout(0, MMA, 2))
            acc = warpgroup_mma(weights, rings.v.take(count), acc * factor[:, None], is_async=True)
            acc = warpgroup_mma_wait(0, [acc])
            rings.v.release(count)
            count += 1
        out = rings.q[WHICH].tiles.index(0)
        flat(out).store((acc / gl.where(total == 0.0, 1.0, total)[:, None]).to(out_desc.dtype))
        fence_async_shared()
        sync_warps()
        store_tile(out_desc, coordinates(0, queries, row, program % pairs), out)
        tma.store_wait(0)
        rings.q[WHICH].release(turn)
        turn += 1  # noqa: SIM113 (a run-time number)


@gluon.jit
def attention(
    q_desc, k_desc, v_desc, out_desc, queries, keys, tiles, pairs, scale, CAUSAL: gl.constexpr, GROUPS: gl.constexpr
):
    q_rings = (allocate_ring(q_desc, 1, 1), allocate_ring(q_desc, 1, 1))
    if GROUPS == 3:
        q_rings = (q_rings[0], q_rings[1], allocate_ring(q_desc, 1, 1))
    rings = Rings(q_rings, allocate_ring(k_desc, 2, GROUPS), allocate_ring(v_desc, 2, GROUPS))
    fence_async_shared()
    descs = (q_desc, k_desc, v_desc)
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (attend, (out_desc, rings, queries, keys, tiles, pairs, scale, 0, CAUSAL, GROUPS)),
                (attend, (out_desc, rings, queries, keys, tiles, pairs, scale, 1, CAUSAL, GROUPS)),
                (bring_rows, (descs, rings, queries, keys, tiles, pairs, CAUSAL, GROUPS)),
            ],
            [4, 1],
            [232, 24],
        )
    else:
        gl.warp_specialize(
            [
                (attend, (out_desc, rings, queries, keys, tiles, pairs, scale, 0, CAUSAL, GROUPS)),
                (attend, (out_desc, rings, queries, keys, tiles, pairs, scale, 1, CAUSAL, GROUPS)),
                (attend, (out_desc, rings, queries, keys, tiles, pairs, scale, 2, CAUSAL, GROUPS)),
                (bring_rows, (descs, rings, queries, keys, tiles, pairs, CAUSAL, GROUPS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


def launch(q, k, v, *, causal, groups, programs):
    """Attention of [rows, heads, 64] by that many programs."""
    out = torch.full_like(q, float("nan"))
    tiles = -(-q.shape[0] // (64 * groups))
    attention[(min(programs, tiles * q.shape[1]),)](
        *(rows_of(x, 64, 64) for x in (q, k, v, out)),
        q.shape[0],
        k.shape[0],
        tiles,
        q.shape[1],
        64**-0.5 * math.log2(math.e),
        CAUSAL=causal,
        GROUPS=groups,
        num_warps=4,
        maxnreg=168,
    )
    return out


def plain(q, k, v, causal):
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) / 8
    if causal:
        hidden = torch.arange(len(k)) > torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0), v.float())


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "groups", "programs", "dtype"),
    [
        (1, 1, True, 2, 99, torch.bfloat16),
        (63, 127, False, 2, 99, torch.float16),
        (127, 129, True, 3, 1, torch.bfloat16),
        (129, 63, True, 2, 3, torch.float16),
        (300, 300, True, 2, 2, torch.bfloat16),
        (300, 300, False, 3, 99, torch.float16),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_attention_is_that_of_the_plain_sum(queries, keys, causal, groups, programs, dtype, seed):
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, 2, 64).to(dtype) for rows in (queries, keys, keys))
    here = importlib.import_module(__name__)
    with machine_runs(here, "attention", seed=seed):
        out = launch(q, k, v, causal=causal, groups=groups, programs=programs)
    assert isinstance(attention, gluon._runtime.GluonJITFunction)
    assert torch.allclose(out.float(), plain(q, k, v, causal), atol=2e-2 if dtype == torch.bfloat16 else 3e-3)
