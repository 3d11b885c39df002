"""The quantised forward for Hopper against the recipe, on a machine that runs it without a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.quant import api
from attnbench.kernels.flash.quant.config import TABLE, QuantConfig
from attnbench.kernels.flash.quant.hopper import forward as hopper_forward

from .hopper_machine import machine_runs
from .quant_cases import distance, e4m3_of, held, inputs_of, packed_of, quantised, recipe_of, truth_of

THREE, TWO, BESIDE = "m192n128w12s2-ws", "m128n128w8s2-ws", "m128n128w8s2-ws-beside"
ONE = "m64n128w4s2-ws-x2"
CASES = {
    "one-query": ({"seqlen": 1, "seqlen_k": 129, "causal": True}, TWO),
    "63": ({"seqlen": 63, "causal": True}, THREE),
    "127": ({"seqlen": 127, "batch": 2}, TWO),
    "129": ({"seqlen": 129, "causal": True, "heads": 2, "dim": 128}, THREE),
    "1000": ({"seqlen": 1000, "causal": True}, THREE),
    "rows-without-keys": ({"seqlen": 300, "seqlen_k": 70, "causal": True}, THREE),
    "grouped": ({"seqlen": 200, "heads": 4, "heads_kv": 2, "batch": 2, "causal": True}, TWO),
    "no-keys": ({"seqlen": 70, "seqlen_k": 0}, THREE),
    "96-dims-fp16": ({"seqlen": 140, "seqlen_k": 300, "dim": 96, "dtype": torch.float16}, THREE),
    "one-130": ({"seqlen": 130, "seqlen_k": 300, "causal": True, "dim": 128, "heads": 2}, ONE),
    "beside-1000": ({"seqlen": 1000, "causal": True}, BESIDE),
    "17776-keys": ({"seqlen": 130, "seqlen_k": 17_776}, THREE),
    "beside-129": ({"seqlen": 129, "seqlen_k": 140, "dim": 128, "heads": 2}, BESIDE),
    "40-dims": ({"seqlen": 70, "seqlen_k": 150, "dim": 40}, THREE),
}
LENGTHS = [(1, 129), (130, 3), (0, 5), (263, 64), (7, 0), (128, 300)]


def attend(inputs, short, seed=0, spoil=lambda made: None):
    """Output and lse, written over NaN; parts of the kernel interleaved by a seed; what is quantised may be spoiled."""
    problem = api.quant_problem_of(inputs.q, inputs.k, inputs.v, **inputs.options)
    made = quantised(inputs, api.allocate(inputs.q, inputs.k, problem))
    spoil(made)
    out = torch.full_like(inputs.q, torch.nan)
    lse = torch.full(api.lse_shape(inputs.q, problem), torch.nan)
    with machine_runs(hopper_forward, "flash_quant_hopper_forward", seed=seed):
        api.launch_quant(made, out, lse, problem, api.config_for(short, inputs.q))
    assert made.counter.item() == 0
    return out, lse


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_for_every_mask_and_length(name):
    values, short = CASES[name]
    inputs = inputs_of(**values)
    held(inputs, *attend(inputs, short, seed=len(name)), backwards=True)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_each_on_their_own(causal):
    inputs = packed_of(LENGTHS, heads=2, heads_kv=1, causal=causal)
    held(inputs, *attend(inputs, THREE), backwards=True)


@pytest.mark.parametrize("short", [TWO, THREE])
def test_the_bits_are_the_same_in_any_order_of_its_parts(short):
    inputs = inputs_of(140, 330, heads=2)
    first, *others = [attend(inputs, short, seed)[0] for seed in range(4)]
    assert all(torch.equal(one, first) for one in others)


@pytest.mark.parametrize("short", [THREE, BESIDE, ONE])
def test_a_scale_that_is_nan_makes_nan_of_the_64_rows_that_read_its_tile(short):
    """What a key leaves that is not finite and in no sample."""
    inputs = inputs_of(600, heads=2, causal=True)
    out, lse = attend(inputs, short)
    found, sums = attend(inputs, short, spoil=lambda made: made.k_scale[1, 2, 3].fill_(torch.nan))  # of keys 256 to 383
    there = torch.zeros(lse.shape, dtype=torch.bool)
    there[0, 1, 256:] = True
    assert sums[there].isnan().all()
    assert torch.equal(sums[~there], lse[~there])
    there = there.transpose(1, 2)
    assert found[there].isnan().all()
    assert torch.equal(found[~there], out[~there])


MOST = {"normal": (0.042, 0.040), "outliers": (0.043,) * 2, "channel-bias": (0.004,) * 2, "video": (0.010,) * 2}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kind", MOST)
def test_the_error_at_4096_keys_of_every_kind_of_values(kind, dim):
    inputs = inputs_of(128, 4096, heads=2, dim=dim, kind=kind)
    out, right = attend(inputs, THREE)[0], truth_of(inputs)[0]
    found = distance(out, right)
    assert found <= MOST[kind][dim == 128]
    assert found <= 1.1 * distance(recipe_of(inputs, backwards=True)[0].bfloat16(), right)
    assert found <= 0.85 * distance(e4m3_of(inputs).bfloat16(), right)


@pytest.mark.parametrize(("short", "keys"), [(THREE, 131_072), (BESIDE, 32_768)])
def test_the_error_does_not_grow_with_the_keys_where_values_have_a_mean(short, keys):
    few, many = (inputs_of(64, n, kind="channel-bias") for n in (4096, keys))
    found = [distance(attend(inputs, short)[0], truth_of(inputs)[0]) for inputs in (few, many)]
    assert found[1] <= 1.2 * found[0]  # one sum of 13 bits over 131,072 keys: 19 times


def test_every_default_of_the_hopper_path_has_a_form_that_ran_here():
    forms = {QuantConfig.parse(short).groups for _, short in CASES.values()}
    for row in TABLE.rows("forward"):
        config = QuantConfig.parse(row["config"])
        assert config.order == "plain" or config.groups in forms
