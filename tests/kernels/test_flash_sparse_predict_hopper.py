"""Products of parts for Hopper beside torch, on a machine that runs the kernel without a GPU."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse.hopper import predict

from .hopper_machine import machine_runs

CASES = {
    "one-stride": {"q": 1, "k": 1},
    "tails": {"q": 5, "k": 19, "heads": 2},
    "grouped": {"q": 9, "k": 12, "heads": 4, "heads_kv": 2, "batch": 2, "dtype": torch.float16},
    "several-tiles": {"q": 131, "k": 270, "dim": 16, "parts": 8},
    "whole-tiles": {"q": 128, "k": 512, "dim": 16},
    "128-dims": {"q": 8, "k": 8, "dim": 128, "parts": 8},
    "96-dims": {"q": 8, "k": 8, "dim": 96},
    "means": {"q": 70, "k": 260, "stride": 0, "dim": 128},
    "means-of-two-heads": {"q": 20, "k": 9, "stride": 0, "heads": 2, "heads_kv": 1, "dim": 32},
}


def tokens(batch, heads, rows, dim, dtype, seed):
    """Rows [B, H, S, D] in the order [B, S, H, D] of memory."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(batch, rows, heads, dim, generator=random).to(dtype).transpose(1, 2)


def right(q, k, stride, parts, scale):
    """Σ 2ˣ over the parts of each block, fp64 [B, H, parts of q, blocks]."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    unit = stride or 2
    q, k = (x.double().unflatten(2, (-1, unit)) for x in (q, k))
    if stride:
        x = torch.einsum("bhmid,bhnid->bhmn", q.flip(3), k)
    else:
        x = q.sum(3) @ k.sum(3).mT - q[:, :, :, 1] @ k[:, :, :, 1].mT
    powers = (x * scale).exp2()
    room = -powers.shape[3] % parts
    return torch.nn.functional.pad(powers, (0, room)).unflatten(3, (-1, parts)).sum(4)


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_torch(name):
    values = {"batch": 1, "heads": 1, "dim": 64, "stride": 16, "parts": 4, "dtype": torch.bfloat16, **CASES[name]}
    stride, parts = values["stride"], values["parts"]
    unit = stride or 2
    heads = values["heads"], values.get("heads_kv", values["heads"])
    q, k = (
        tokens(values["batch"], of, unit * values[x], values["dim"], values["dtype"], seed)
        for seed, (x, of) in enumerate(zip("qk", heads, strict=True))
    )
    scale = 4 / math.sqrt(unit * values["dim"])
    assert all(predict.is_described(x, unit) for x in (q, k))
    shape = values["batch"], heads[0], values["q"]
    found = torch.full((*shape, -(-values["k"] // parts)), torch.nan)
    largest = torch.full((*shape, -(-values["k"] // predict.TILE_K)), torch.nan)
    with machine_runs(predict, "multiply_parts_hopper", seed=len(name)):
        predict.launch_hopper_products(q, k, found, largest, values["k"], stride=stride, parts=parts, scale=scale)
    factor = largest.double().exp2().repeat_interleave(predict.TILE_K // parts, 3)[..., : found.shape[3]]
    torch.testing.assert_close(found.double() * factor, right(q, k, stride, parts, scale), rtol=1e-4, atol=0)
    assert (found.amax(3) >= 1).all()


def test_a_key_that_is_no_number_stays_in_its_block():
    q, k = (tokens(1, 1, 128, 64, torch.bfloat16, seed) for seed in (1, 2))
    found, largest = torch.zeros(2, 1, 1, 8, 2), torch.zeros(2, 1, 1, 8, 1)
    for number in range(2):
        with machine_runs(predict, "multiply_parts_hopper", seed=number):
            predict.launch_hopper_products(q, k, found[number], largest[number], 8, stride=16, parts=4, scale=0.1)
        k[0, 0, 100, 5] = float("nan")
    assert found[1, ..., 1].isnan().all()
    totals = found * largest.exp2()
    torch.testing.assert_close(totals[1, ..., 0], totals[0, ..., 0])


def test_what_a_tensor_map_cannot_describe_is_told_apart():
    whole = torch.zeros(2, 2, 64, 32, dtype=torch.bfloat16)
    assert predict.is_described(whole, 16)
    assert not predict.is_described(whole.float(), 16)
    assert not predict.is_described(whole[:, :, :63], 16)
    assert not predict.is_described(torch.zeros(2, 2, 64, 33, dtype=torch.bfloat16)[..., :32], 16)
    assert not predict.is_described(whole.mT, 16)
    assert not predict.is_described(whole[:, :1].expand(2, 2, 64, 32), 16)
    assert predict.is_described(torch.zeros(65, 32, dtype=torch.bfloat16)[1:].view(1, 1, 64, 32), 16)
    assert not predict.is_described(torch.zeros(2049, dtype=torch.bfloat16)[1:].view(1, 1, 64, 32), 16)
