"""The block-sparse forward for Hopper against its oracle, on a machine that runs it without a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse import api
from attnbench.kernels.flash.sparse.config import TABLE, SparseConfig
from attnbench.kernels.flash.sparse.hopper import forward as hopper_forward

from .hopper_machine import machine_runs
from .sparse_cases import held, inputs_of, listed, truth_of
from .test_flash_hopper_forward import attend as attend_densely

ONE, TWO, SHARED, THREE = "m64n64w4s2-ws-lazy-x2", "m128n64w8s2-ws", "m128n64w8s2-ws-lazy", "m192n64w12s3-ws-lazy"
WIDE = "m128n128w8s2-ws-deep-lazy"
RS = "m64n64w4s3-ws-lazy-rs-x2"
PAIRS, JOINT = "m64n128w4s2-ws-lazy-x2", "m64n128w4s3-ws-joint-lazy-x2"
CASES = {
    "one-query": ({"seqlen": 1, "seqlen_k": 129, "causal": True, "density": 1.0}, ONE),
    "63": ({"seqlen": 63, "causal": True, "density": 1.0, "block": (128, 64)}, TWO),
    "127": ({"seqlen": 127, "block": (64, 128)}, ONE),
    "129": ({"seqlen": 129, "causal": True, "block": (128, 128), "heads": 2}, WIDE),
    "half-blocks": ({"seqlen": 290, "block": (128, 64)}, ONE),
    "1000": ({"seqlen": 1000, "block": (128, 128), "density": 0.2}, WIDE),
    "rows-without-keys": ({"seqlen": 300, "seqlen_k": 70, "causal": True, "block": (64, 128), "density": 1.0}, ONE),
    "grouped": ({"seqlen": 200, "heads": 4, "heads_kv": 2, "batch": 2, "block": (128, 64)}, TWO),
    "nothing-listed": ({"seqlen": 150, "density": 0.0, "heads": 2}, ONE),
    "no-keys": ({"seqlen": 70, "seqlen_k": 0}, ONE),
    "128-dims": ({"seqlen": 140, "dim": 128, "block": (128, 128)}, WIDE),
    "96-dims-fp16": ({"seqlen": 140, "dim": 96, "block": (128, 128), "dtype": torch.float16}, WIDE),
    "double": ({"seqlen": 1000, "dim": 128, "block": (128, 128), "density": 0.4}, f"{WIDE}-double"),
    "double-causal": ({"seqlen": 500, "causal": True, "block": (128, 64), "heads": 2}, "m128n64w8s4-ws-lazy-double"),
    "double-one-group": ({"seqlen": 290, "block": (64, 128), "dtype": torch.float16}, "m64n64w4s2-ws-lazy-double-x2"),
    "double-nothing-listed": ({"seqlen": 150, "density": 0.0}, "m64n64w4s2-ws-lazy-double"),
    "shared": ({"seqlen": 330, "seqlen_k": 500, "causal": True, "heads": 2, "heads_kv": 1}, SHARED),
    "shared-far-apart": ({"seqlen": 130, "seqlen_k": 1700, "density": 0.25}, SHARED),
    "shared-one-query": ({"seqlen": 1, "seqlen_k": 200}, SHARED),
    "shared-parts": ({"seqlen": 200, "seqlen_k": 400, "block": (64, 128), "causal": True}, SHARED),
    "shared-three": ({"seqlen": 330, "seqlen_k": 900, "density": 0.3}, THREE),
    "shared-three-causal": ({"seqlen": 400, "causal": True, "density": 0.8, "heads": 2}, THREE),
    "shared-halves": ({"seqlen": 530, "seqlen_k": 600, "block": (128, 128), "causal": True}, "m192n128w12s2-ws-lazy"),
    "shared-four": ({"seqlen": 330, "block": (128, 64), "seqlen_k": 700}, "m256n64w16s3-ws-lazy"),
    "shared-no-keys": ({"seqlen": 70, "seqlen_k": 0, "heads": 2}, THREE),
    "shared-nothing-listed": ({"seqlen": 200, "density": 0.0}, SHARED),
    "pairs-one-query": ({"seqlen": 1, "seqlen_k": 129, "causal": True, "density": 1.0}, PAIRS),
    "pairs-63": ({"seqlen": 63, "causal": True, "density": 1.0, "block": (128, 64)}, WIDE),
    "pairs-129": ({"seqlen": 129, "causal": True, "block": (128, 64), "heads": 2, "density": 1.0}, WIDE),
    "pairs-1000": ({"seqlen": 1000, "block": (128, 64), "density": 0.3}, WIDE),
    "pairs-1000-causal": ({"seqlen": 1000, "causal": True, "density": 0.4}, PAIRS),
    "pairs-half-blocks": ({"seqlen": 290, "seqlen_k": 500, "block": (128, 64), "causal": True}, PAIRS),
    "pairs-grouped": ({"seqlen": 200, "seqlen_k": 460, "heads": 4, "heads_kv": 2, "batch": 2}, JOINT),
    "pairs-rows-without-keys": ({"seqlen": 300, "seqlen_k": 70, "causal": True, "density": 1.0}, JOINT),
    "pairs-nothing-listed": ({"seqlen": 150, "density": 0.0, "heads": 2}, JOINT),
    "pairs-no-keys": ({"seqlen": 70, "seqlen_k": 0}, JOINT),
    "pairs-128-dims": ({"seqlen": 140, "seqlen_k": 330, "dim": 128, "causal": True}, JOINT),
    "pairs-96-dims-fp16": ({"seqlen": 140, "dim": 96, "block": (128, 64), "dtype": torch.float16}, WIDE),
    "pairs-eager-fp16": ({"seqlen": 200, "causal": True, "dtype": torch.float16}, "m64n128w4s3-ws-joint"),
    "pairs-double": ({"seqlen": 700, "block": (128, 64), "causal": True}, "m128n128w8s3-ws-lazy-double"),
    "rs-grouped": ({"seqlen": 290, "seqlen_k": 500, "heads": 2, "heads_kv": 1, "causal": True}, RS),
    "rs-rows-without-keys": ({"seqlen": 300, "seqlen_k": 70, "causal": True, "density": 1.0, "batch": 2}, RS),
    "rs-nothing-listed": ({"seqlen": 150, "density": 0.0, "heads": 2}, RS),
    "rs-two-query-tiles": ({"seqlen": 400, "block": (128, 64), "dtype": torch.float16}, "m128n64w8s4-ws-lazy-rs"),
    "rs-pairs": ({"seqlen": 290, "dim": 128, "causal": True}, "m64n128w4s3-ws-joint-lazy-rs-x2"),
    "rs-parts": ({"seqlen": 200, "seqlen_k": 400, "block": (64, 128), "causal": True}, RS),
    "joint": ({"seqlen": 700, "causal": True, "density": 0.4}, "m64n64w4s6-ws-joint-lazy-x2"),
    "joint-two-groups": ({"seqlen": 500, "block": (128, 128), "causal": True}, "m128n64w8s3-ws-joint-lazy"),
}


def attend(inputs, short, seed=0):
    """Output and lse, written over NaN; parts of the kernel interleaved by a seed."""
    problem = api.sparse_problem_of(inputs.q, inputs.k, inputs.v, block=inputs.block, causal=inputs.causal)
    config = api.config_for(short, inputs.q, inputs.k, inputs.v, problem)
    share, unit = config.share(inputs.block[0]), config.unit(inputs.block[0])
    lists = api.BlockLists(
        **listed(inputs, share=share, unit=unit),
        share=share,
        unit=unit,
        block=inputs.block,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        causal=inputs.causal,
    )
    out = torch.full_like(inputs.q, torch.nan)
    lse = torch.full((problem.batch, problem.heads, problem.seqlen_q), torch.nan)
    with machine_runs(hopper_forward, "flash_sparse_hopper_forward", seed=seed):
        api.launch_sparse(inputs.q, inputs.k, inputs.v, out, lse, lists, problem, config)
    return out, lse


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask_and_length(name):
    values, short = CASES[name]
    inputs = inputs_of(**values)
    held(inputs, *attend(inputs, short, seed=len(name)))


@pytest.mark.parametrize("short", [ONE, SHARED, JOINT, RS])
def test_the_bits_are_the_same_in_any_order_of_its_parts(short):
    inputs = inputs_of(140, 330, heads=2, dim=40)
    first, *others = [attend(inputs, short, seed)[0] for seed in range(4)]
    assert all(torch.equal(one, first) for one in others)


@pytest.mark.parametrize(
    ("block", "dim", "short"), [((64, 64), 64, ONE), ((128, 128), 128, WIDE), ((64, 64), 64, JOINT)]
)
def test_each_row_is_as_near_as_the_dense_kernel_is_on_the_keys_of_its_blocks(block, dim, short):
    inputs = inputs_of(256, 1024, dim=dim, block=block, density=0.5)
    out, right = attend(inputs, short)[0], truth_of(inputs)[0]
    for row, kept in enumerate(inputs.block_map[0, 0]):
        rows = slice(row * block[0], (row + 1) * block[0])
        k, v = (x.unflatten(1, (-1, block[1]))[:, kept].flatten(1, 2) for x in (inputs.k, inputs.v))
        dense, _ = attend_densely(inputs.q[:, rows], k, v)
        mine, its = ((one.double() - right[:, rows]).abs().sum(-1) for one in (out[:, rows], dense))
        assert (mine <= 2 * its).all()


def test_a_video_of_17776_rows_is_right_at_both_ends():
    inputs = inputs_of(17_776, block=(128, 128), density=0.03)
    out, lse = attend(inputs, WIDE)
    assert out.isfinite().all()
    for row in (0, 70, 138):
        rows = slice(row * 128, (row + 1) * 128)
        part = replace(inputs, q=inputs.q[:, rows], block_map=inputs.block_map[:, :, row : row + 1])
        held(part, out[:, rows], lse[:, :, rows])


@pytest.mark.parametrize("short", [ONE, SHARED, PAIRS, JOINT, RS])
def test_a_row_never_looks_at_a_block_that_only_others_list(short):
    inputs = inputs_of(128, 300, dim=40, density=1.0)
    inputs.block_map[:, :, 0, 2] = False
    out, lse = attend(inputs, short)
    poison = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    poison.k[:, 128:192], poison.v[:, 128:192] = torch.nan, torch.nan
    found, sums = attend(poison, short)
    assert torch.equal(found[:, :64], out[:, :64])
    assert torch.equal(sums[:, :, :64], lse[:, :, :64])
    assert found[:, 64:].isnan().all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_of_128_keys_listed_as_two_halves_gives_the_same_bits(causal):
    inputs = inputs_of(390, 768, block=(128, 128), causal=causal)
    halves = replace(inputs, block=(128, 64), block_map=inputs.block_map.repeat_interleave(2, 3))
    for mine, theirs in zip(attend(halves, WIDE), attend(inputs, WIDE), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("short", [PAIRS, JOINT])
def test_keys_permuted_by_blocks_with_the_map_change_nothing(short):
    inputs = inputs_of(130, 448, heads=2, density=0.6)
    out, lse = attend(inputs, short)
    order = torch.tensor([3, 0, 6, 4, 2, 1, 5])
    rows = (order[:, None] * 64 + torch.arange(64)).flatten()
    moved = replace(inputs, k=inputs.k[:, rows], v=inputs.v[:, rows], block_map=inputs.block_map[..., order])
    found, sums = attend(moved, short)
    torch.testing.assert_close(found, out, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(sums, lse)


def test_a_tensor_it_cannot_describe_is_refused_by_name():
    inputs = inputs_of(100, dim=64)
    odd = replace(inputs, k=torch.zeros(1, 100, 1, 67).bfloat16()[..., :64])
    with pytest.raises(ValueError, match=r"^flash_sparse_attention: k\.stride=\(6700, 67, .* does not fit order=ws"):
        attend(odd, ONE)


def form_of(short, block):
    config = SparseConfig.parse(short)
    several = config.share(block[0]) > 1, config.block_n > block[1]
    return config.groups, *several, config.rings == "joint", config.scores


def test_every_default_of_the_hopper_path_has_a_form_that_ran_here():
    forms = {form_of(short, values.get("block", (64, 64))) for values, short in CASES.values()}
    for row in TABLE.rows("forward"):
        config = SparseConfig.parse(row["config"])
        if config.order == "ws":
            rows, keys = ([row[name]] if name in row else [64, 128] for name in ("block_q", "block_k"))
            assert {form_of(config.short, block) for block in product(rows, keys)} <= forms
