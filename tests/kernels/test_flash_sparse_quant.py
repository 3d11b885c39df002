"""Block-sparse attention in 8 bits in Triton's interpreter: the recipe over a map, lists, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse_quant import api as compiled

from .interpreter import interpreted
from .quant_cases import distance, held, inputs_of, sample_of, truth_of

SMALL = "m64n64w4s2"


@pytest.fixture(scope="module")
def kernels():
    with interpreted(
        "attnbench.kernels.flash.sparse_quant.api",
        "attnbench.kernels.flash.sparse.api",
        "attnbench.kernels.flash.quant.api",
    ) as modules:
        yield modules


def attend(kernels, inputs, config=SMALL, **options):
    return kernels[0].flash_sparse_quant_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.block_map,
        block=inputs.block,
        causal=inputs.causal,
        config=config,
        **options,
    )


CASES = {
    "one-query": {"seqlen": 1, "seqlen_k": 129, "causal": True, "density": 1.0, "block": (64, 64)},
    "63": {"seqlen": 63, "causal": True, "block": (128, 128), "density": 1.0},
    "127": {"seqlen": 127, "block": (64, 128), "batch": 2},
    "129": {"seqlen": 129, "causal": True, "block": (128, 64), "heads": 2, "dim": 128},
    "1000": {"seqlen": 1000, "block": (128, 128), "density": 0.3},
    "1000-causal": {"seqlen": 1000, "causal": True, "block": (64, 64), "density": 0.2},
    "rows-without-keys": {"seqlen": 200, "seqlen_k": 70, "causal": True, "block": (64, 128), "density": 1.0},
    "grouped": {"seqlen": 200, "heads": 4, "heads_kv": 2, "batch": 2, "block": (128, 64)},
    "96-dims": {"seqlen": 70, "seqlen_k": 150, "dim": 96, "dtype": torch.float16, "block": (64, 64)},
    "odd-dims": {"seqlen": 70, "dim": 37, "block": (128, 128), "density": 1.0},
    "nothing-listed": {"seqlen": 150, "density": 0.0, "block": (64, 64)},
    "no-keys": {"seqlen": 70, "seqlen_k": 0, "block": (64, 64)},
    "outliers": {"seqlen": 100, "seqlen_k": 300, "kind": "outliers", "block": (64, 64)},
}


@pytest.mark.parametrize("name", CASES)
def test_the_recipe_over_the_map(kernels, name):
    inputs = inputs_of(**CASES[name])
    held(inputs, *attend(kernels, inputs), tile=64, off=0.09 if name == "outliers" else 0.05)


def test_right_by_another_tile_and_scale(kernels):
    inputs = inputs_of(190, 330, causal=True, dim=128, block=(128, 128))
    held(inputs, *attend(kernels, inputs, "m128n128w8s2", scale=0.2), scale=0.2)


@pytest.mark.parametrize("causal", [False, True])
def test_a_full_map_is_the_dense_kernel(kernels, causal):
    inputs = inputs_of(200, heads=2, causal=causal, density=1.0, block=(64, 64))
    want = kernels[2].flash_quant_attention(inputs.q, inputs.k, inputs.v, causal=causal, config=SMALL)
    assert all(torch.equal(*pair) for pair in zip(attend(kernels, inputs), want, strict=True))


@pytest.mark.parametrize(
    ("order", "off"), [([1, 2, 0], 1e-5), ([3, 0, 7, 4, 2, 6, 1, 5], 0.02)], ids=["every-row", "sample"]
)
def test_keys_permuted_by_blocks_with_the_map_change_nothing_but_roundings(kernels, order, off):
    """The mean of so few keys is that of every row; of more, another sample moves the roundings of scores too."""
    inputs = inputs_of(130, 128 * len(order), heads=2, block=(64, 128))
    order = torch.tensor(order)
    rows = (order[:, None] * 128 + torch.arange(128)).flatten()
    moved = replace(inputs, k=inputs.k[:, rows], v=inputs.v[:, rows], block_map=inputs.block_map[..., order])
    out, lse = attend(kernels, inputs)
    found, sums = attend(kernels, moved)
    torch.testing.assert_close(sums, lse, rtol=1e-5, atol=off)
    assert (found - out).abs().mean() < (0.01 + off) * out.abs().mean() + 0.002
    held(moved, found, sums, tile=64)


def test_a_block_that_no_row_lists_moves_roundings_alone(kernels):
    inputs = inputs_of(130, 300, heads=2, block=(64, 64), dim=64)
    inputs.block_map[:, :, :, 2] = False
    out, lse = attend(kernels, inputs)
    other = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    other.k[:, 128:192], other.v[:, 128:192] = 3.0, -2.0
    found, sums = attend(kernels, other)
    torch.testing.assert_close(sums, lse, rtol=1e-2, atol=0.02)  # scores of keys around another mean
    assert distance(found, out.double()) < 0.05
    held(other, found, sums, tile=64)


def test_heads_are_independent(kernels):
    inputs = inputs_of(150, heads=3, block=(64, 64))
    out, _ = attend(kernels, inputs)
    other = replace(inputs, block_map=inputs.block_map.clone())
    other.block_map[:, 1] = ~other.block_map[:, 1]
    found, _ = attend(kernels, other)
    assert torch.equal(found[:, :, [0, 2]], out[:, :, [0, 2]])
    assert not torch.equal(found[:, :, 1], out[:, :, 1])


def test_lists_of_the_sparse_kernel_serve_many_calls(kernels):
    inputs = inputs_of(200, 260, heads=2, causal=True, block=(64, 64))
    lists = kernels[1].make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), causal=True)
    again = attend(kernels, replace(inputs, block_map=lists))
    assert all(torch.equal(*pair) for pair in zip(again, attend(kernels, inputs), strict=True))
    with pytest.raises(ValueError, match=r"^flash_sparse_quant_attention: block_map\.causal=True does not fit; False"):
        attend(kernels, replace(inputs, block_map=lists, causal=False))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered", "ignore:All-NaN slice")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_makes_nan_only_where_it_is_said(kernels, value):
    inputs = inputs_of(80, 140, heads=2, block=(64, 64), density=1.0)
    inputs.block_map[:, :, 0, 2] = False
    out, _ = attend(kernels, inputs)
    for name in "qkv":
        odd = replace(inputs, **{name: getattr(inputs, name).clone()})
        getattr(odd, name)[0, 5, 1, 7] = value
        found, _ = attend(kernels, odd)
        there = torch.zeros(out.shape, dtype=torch.bool)
        there[0, {"q": 5}.get(name, slice(None)), 1, {"v": 7}.get(name, slice(None))] = True
        assert found[there].isnan().all()
        assert torch.equal(found[~there], out[~there])


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered", "ignore:All-NaN slice")
def test_a_key_that_is_not_finite_and_in_no_sample_makes_nan_of_rows_that_list_its_128_keys(kernels):
    inputs = inputs_of(200, 1100, heads=1, block=(64, 64), density=1.0)
    inputs.block_map[0, 0, :, 2:4] = torch.tensor([[True, False], [False, True], [False, False], [True, True]])
    out, _ = attend(kernels, inputs)
    row = next(row for row in range(128, 192) if row not in set(sample_of(1100).tolist()))
    odd = replace(inputs, k=inputs.k.clone())
    odd.k[0, row, 0, 7] = torch.inf
    found, _ = attend(kernels, odd)
    blocks = torch.arange(200) // 64
    assert torch.equal(found.isnan().all(-1)[0, :, 0], blocks != 2)
    assert torch.equal(found[0, blocks == 2], out[0, blocks == 2])


def test_the_error_is_that_of_8_bits_and_not_of_the_map(kernels):
    inputs = inputs_of(128, 2048, dim=128, density=0.3, block=(64, 128))
    out, _ = attend(kernels, inputs, "m64n64w4s2")
    assert 0.03 < distance(out, truth_of(inputs)[0]) < 0.043


BAD = {
    "fp64": (
        {name: torch.zeros(1, 9, 1, 64).double() for name in "qkv"},
        r"q\.dtype=torch\.float64 is not supported; bfloat16 or float16$",
    ),
    "no-dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 0).half()), r"q\.shape=.* has no dims; 1 to 128 dims"),
    "many-dims": (
        dict.fromkeys("qkv", torch.zeros(1, 9, 1, 300).half()),
        r"q\.shape=.* has too many dims; 1 to 128 dims",
    ),
    "packed": (
        dict.fromkeys("qkv", torch.zeros(9, 1, 64).half()),
        r"q\.shape=\(9, 1, 64\) does not fit; \[sequences, rows, heads, dims\]$",
    ),
    "fp32": (
        {name: torch.zeros(1, 9, 1, 64) for name in "qkv"},
        r"q\.dtype=torch\.float32 is not supported; bfloat16 or float16",
    ),
    "dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 136).half()), r"q\.shape=.* has too many dims; 1 to 128 dims"),
    "block": ({"block": (32, 64)}, r"block=\(32, 64\) is not supported; \(128, 128\), "),
    "map-dtype": (
        {"block_map": torch.ones(1, 1, 1, 1, dtype=torch.uint8)},
        r"block_map\.dtype=torch\.uint8 is not supported; bool",
    ),
    "map-shape": (
        {"block_map": torch.ones(1, 1, 2, 1, dtype=torch.bool)},
        r"block_map\.shape=\(1, 1, 2, 1\) does not fit; \(1, 1, 1, 1\), ",
    ),
    "map-values": (
        {"block_map": torch.full((1, 1, 1, 1), 3, dtype=torch.uint8).view(torch.bool), "validate": True},
        r"block_map=3 is neither True nor False; 0 and 1",
    ),
    "no-map": ({"block_map": None}, r"block_map=NoneType is no tensor; a bool tensor, or the lists of one"),
    "config": ({"config": "m64n64"}, r"config=m64n64 is not a short form; such as .*; the nearest valid one is m"),
    "rule": (
        {"config": "m128n64w8s2", "block": (64, 64)},
        r"config=m128n64w8s2 is not valid, blocks: it has tiles of 128 queries, and blocks have 64; m64; the nearest",
    ),
    "number": ({"config": 3}, "config=3 is not a configuration; a SparseQuantConfig, its name or None"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(kernels, name):
    change, said = BAD[name]
    q, k, v = torch.zeros(3, 1, 9, 1, 64).half()
    given = {"q": q, "k": k, "v": v, "block_map": torch.ones(1, 1, 1, 1, dtype=torch.bool), "block": (128, 128)}
    with pytest.raises(ValueError, match=f"^flash_sparse_quant_attention: {said}") as why:
        kernels[0].flash_sparse_quant_attention(**(given | change))
    assert "\n" not in str(why.value)


def test_a_cpu_is_refused_where_kernels_are_compiled():
    inputs = inputs_of(9, block=(64, 64))
    with pytest.raises(ValueError, match=r"^flash_sparse_quant_attention: q\.device=cpu has no compiled kernels"):
        attend((compiled,), inputs)
