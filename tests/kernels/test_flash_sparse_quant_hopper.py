"""The block-sparse forward in 8 bits for Hopper against the recipe, on a machine that runs it without a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse_quant import api
from attnbench.kernels.flash.sparse_quant.config import TABLE, SparseQuantConfig
from attnbench.kernels.flash.sparse_quant.hopper import forward as hopper_forward

from .hopper_machine import machine_runs
from .quant_cases import held, inputs_of, quantised
from .sparse_cases import listed

WIDE, WIDE_APART = "m128n128w8s2-ws-beside", "m128n128w8s3-ws"
NARROW, HALF, SMALL = "m128n64w8s3-ws-beside", "m64n128w4s2-ws-beside-x2", "m64n64w4s2-ws-beside-x2"
HALF_APART = "m64n128w4s2-ws-x2"
CASES = {
    "one-query": ({"seqlen": 1, "seqlen_k": 129, "causal": True, "density": 1.0, "block": (64, 64)}, SMALL),
    "63": ({"seqlen": 63, "causal": True, "density": 1.0, "block": (128, 64)}, NARROW),
    "127": ({"seqlen": 127, "block": (64, 128), "batch": 2}, HALF),
    "129": ({"seqlen": 129, "causal": True, "heads": 2, "block": (128, 128)}, WIDE),
    "129-apart": ({"seqlen": 129, "causal": True, "heads": 2, "block": (128, 128)}, WIDE_APART),
    "1000": ({"seqlen": 1000, "block": (128, 128), "density": 0.3}, WIDE),
    "1000-causal": ({"seqlen": 1000, "block": (64, 64), "density": 0.3, "causal": True}, SMALL),
    "half-blocks": ({"seqlen": 290, "block": (128, 128)}, HALF),
    "half-apart": ({"seqlen": 200, "causal": True, "block": (128, 128)}, HALF_APART),
    "rows-without-keys": ({"seqlen": 300, "seqlen_k": 70, "causal": True, "block": (64, 128), "density": 1.0}, HALF),
    "grouped": ({"seqlen": 200, "heads": 4, "heads_kv": 2, "batch": 2, "block": (128, 64)}, NARROW),
    "nothing-listed": ({"seqlen": 150, "density": 0.0, "heads": 2, "block": (64, 64)}, SMALL),
    "no-keys": ({"seqlen": 70, "seqlen_k": 0, "block": (128, 128)}, WIDE),
    "128-dims": ({"seqlen": 140, "dim": 128, "block": (128, 128), "density": 0.8}, WIDE),
    "96-dims-fp16": ({"seqlen": 140, "dim": 96, "block": (64, 64), "dtype": torch.float16}, SMALL),
}


def attend(inputs, short, seed=0, spoil=lambda made: None):
    """Output and lse, written over NaN; parts of the kernel interleaved by a seed; what is quantised may be spoiled."""
    problem, dense = api.problems_of(inputs.q, inputs.k, inputs.v, block=inputs.block, causal=inputs.causal)
    made = quantised(inputs, api.allocate(inputs.q, inputs.k, dense))
    spoil(made)
    lists = api.BlockLists(
        **listed(inputs),
        share=1,
        unit=inputs.block[0],
        block=inputs.block,
        seqlen_q=problem.seqlen_q,
        seqlen_k=problem.seqlen_k,
        causal=inputs.causal,
    )
    out = torch.full_like(inputs.q, torch.nan)
    lse = torch.full((problem.batch, problem.heads, problem.seqlen_q), torch.nan)
    config = api.config_for(short, inputs.q, problem)
    with machine_runs(hopper_forward, "flash_sparse_quant_hopper_forward", seed=seed):
        api.launch_sparse_quant(made, out, lse, lists, problem, config)
    assert made.counter.item() == 0
    return out, lse


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_over_the_map(name):
    values, short = CASES[name]
    inputs = inputs_of(**values)
    held(inputs, *attend(inputs, short, seed=len(name)), tile=inputs.block[1], backwards=True)


@pytest.mark.parametrize("short", [SMALL, NARROW])
def test_the_bits_are_the_same_in_any_order_of_its_parts(short):
    inputs = inputs_of(140, 330, heads=2, block=(128 if short == NARROW else 64, 64))
    first, *others = [attend(inputs, short, seed)[0] for seed in range(4)]
    assert all(torch.equal(one, first) for one in others)


def test_a_row_never_looks_at_a_block_that_only_others_list():
    inputs = inputs_of(128, 300, density=0.0, block=(64, 64))
    inputs.block_map[:, :, 0, [0, 1, 4]] = True
    inputs.block_map[:, :, 1, [1, 3]] = True
    out, lse = attend(inputs, SMALL)
    found, sums = attend(inputs, SMALL, spoil=lambda made: made.k_scale[:, 1].fill_(torch.nan))  # of keys 128 to 255
    assert torch.equal(found[:, :64], out[:, :64])
    assert torch.equal(sums[:, :, :64], lse[:, :, :64])
    assert found[:, 64:].isnan().all()


def test_every_default_of_the_hopper_path_has_a_form_that_ran_here():
    tried = [SparseQuantConfig.parse(short) for _, short in CASES.values()]
    forms = {(config.groups, config.block_n, config.products) for config in tried}
    for row in TABLE.rows("forward"):
        config = SparseQuantConfig.parse(row["config"])
        assert config.order == "plain" or (config.groups, config.block_n, config.products) in forms
