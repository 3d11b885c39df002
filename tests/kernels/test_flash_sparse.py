"""Block-sparse attention in Triton's interpreter: the lists of a map, the forward over them, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse import api as compiled

from .interpreter import interpreted
from .sparse_cases import held, inputs_of, listed, truth_of, visible

SMALL = "m64n32w4s1"


@pytest.fixture(scope="module")
def kernels():
    with interpreted(
        "attnbench.kernels.flash.sparse.api", "attnbench.kernels.flash.sparse.lists", "attnbench.kernels.flash.api"
    ) as modules:
        yield modules


def attend(kernels, inputs, config=SMALL, **options):
    return kernels[0].flash_sparse_attention(
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
    "one-query": {"seqlen": 1, "seqlen_k": 129, "causal": True, "density": 1.0},
    "63": {"seqlen": 63, "causal": True, "block": (128, 128), "density": 1.0},
    "127": {"seqlen": 127, "block": (64, 128), "batch": 2},
    "129": {"seqlen": 129, "causal": True, "block": (128, 64), "heads": 2},
    "1000": {"seqlen": 1000, "block": (128, 128), "density": 0.3},
    "1000-causal": {"seqlen": 1000, "causal": True, "density": 0.2, "seed": 3},
    "more-keys": {"seqlen": 140, "seqlen_k": 300, "causal": True},
    "rows-without-keys": {"seqlen": 300, "seqlen_k": 70, "causal": True, "block": (64, 128), "density": 1.0},
    "grouped": {"seqlen": 200, "heads": 4, "heads_kv": 2, "batch": 2, "block": (128, 64)},
    "odd-dims": {"seqlen": 100, "dim": 40, "heads": 2},
    "128-dims": {"seqlen": 100, "dim": 128},
    "nothing-listed": {"seqlen": 150, "density": 0.0},
    "no-keys": {"seqlen": 70, "seqlen_k": 0},
}


@pytest.mark.parametrize("name", CASES)
def test_right_for_every_mask_and_length(kernels, name):
    inputs = inputs_of(dtype=torch.float16, **CASES[name])
    held(inputs, *attend(kernels, inputs))


def test_right_in_fp32_by_another_tile_and_scale(kernels):
    inputs = inputs_of(190, 330, block=(128, 128), causal=True, dtype=torch.float32)
    held(inputs, *attend(kernels, inputs, "m128n64w4s1", scale=0.3), scale=0.3)


@pytest.mark.parametrize("causal", [False, True])
def test_a_full_map_is_dense_attention(kernels, causal):
    inputs = inputs_of(200, density=1.0, causal=causal, dtype=torch.float16)
    want, lse = kernels[2].flash_attention(inputs.q, inputs.k, inputs.v, causal=causal, forward="m64n32w4s1")
    found = attend(kernels, inputs)
    torch.testing.assert_close(found[0], want, rtol=2**-10, atol=2**-10)
    torch.testing.assert_close(found[1], lse)


def test_keys_permuted_by_blocks_with_the_map_change_nothing(kernels):
    inputs = inputs_of(130, 320, heads=2, dtype=torch.float16)
    out, lse = attend(kernels, inputs)
    order = torch.tensor([3, 0, 4, 2, 1])
    rows = (order[:, None] * 64 + torch.arange(64)).flatten()
    moved = replace(inputs, k=inputs.k[:, rows], v=inputs.v[:, rows], block_map=inputs.block_map[..., order])
    found = attend(kernels, moved)
    torch.testing.assert_close(found[0], out, rtol=2**-9, atol=2**-9)
    torch.testing.assert_close(found[1], lse)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_values_of_blocks_that_no_row_lists_change_nothing(kernels):
    inputs = inputs_of(130, 300, heads=2, dtype=torch.float16)
    inputs.block_map[:, :, :, 2] = False
    out, lse = attend(kernels, inputs)
    poison = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
    poison.k[:, 128:192], poison.v[:, 128:192] = torch.nan, torch.nan
    found = attend(kernels, poison)
    assert torch.equal(found[0], out)
    assert torch.equal(found[1], lse)


def test_heads_are_independent(kernels):
    inputs = inputs_of(150, heads=3, dtype=torch.float16)
    out, _ = attend(kernels, inputs)
    other = replace(inputs, block_map=inputs.block_map.clone())
    other.block_map[:, 1] = ~other.block_map[:, 1]
    found, _ = attend(kernels, other)
    assert torch.equal(found[:, :, [0, 2]], out[:, :, [0, 2]])
    assert not torch.equal(found[:, :, 1], out[:, :, 1])


def test_lists_are_made_once_for_many_calls(kernels):
    inputs = inputs_of(200, 260, heads=2, causal=True, dtype=torch.float16)
    lists = kernels[0].make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), causal=True, config=SMALL)
    again = attend(kernels, replace(inputs, block_map=lists))
    assert all(torch.equal(*pair) for pair in zip(again, attend(kernels, inputs), strict=True))


def check_lists(kernels, inputs, share, unit):
    api, lists, _ = kernels
    problem = api.sparse_problem_of(inputs.q, inputs.k, inputs.v, block=inputs.block, causal=inputs.causal)
    found = lists.lists_of(inputs.block_map, inputs.q, inputs.k, problem, share=share, unit=unit)
    want = listed(inputs, share=share, unit=unit)
    assert torch.equal(found.counts, want["counts"])
    # All heads here are of one section: longest first, and of equal ones in the order of the map.
    assert torch.equal(found.items, want["items"])
    for name, length in (
        ("indices", found.items[found.items[:, 0].argsort(), 1].view(want["indices"].shape[:3])),
        ("places", found.counts),
    ):
        mine, theirs = getattr(found, name), want[name]
        if theirs is not None:
            there = torch.arange(theirs.shape[-1]) < length[..., None]
            assert torch.equal(mine[there], theirs[there])


@settings(max_examples=25, derandomize=True, deadline=None)
@given(data=st.data())
def test_the_lists_hold_what_is_visible_in_order(kernels, data):
    draw = data.draw
    block = draw(st.sampled_from([(128, 128), (128, 64), (64, 128), (64, 64)]))
    share, unit = draw(st.sampled_from([(1, 0), (2, 0), (3, 64), (4, 0)]))
    inputs = inputs_of(
        draw(st.integers(1, 700)),
        draw(st.integers(1, 700)),
        dim=1,
        batch=2,
        heads=2,
        block=block,
        density=draw(st.sampled_from([0.0, 0.2, 0.7, 1.0])),
        causal=draw(st.booleans()),
        seed=draw(st.integers(0, 9)),
    )
    check_lists(kernels, inputs, share, unit)


def test_lists_of_a_map_that_is_wider_than_a_chunk_and_not_contiguous(kernels):
    inputs = inputs_of(65, 64 * 1100, dim=1, heads=2)
    turned = inputs.block_map.transpose(2, 3).contiguous().transpose(2, 3)
    check_lists(kernels, replace(inputs, block_map=turned), 2, 0)
    one = inputs.block_map[:, :1].expand(-1, 2, -1, -1)
    check_lists(kernels, replace(inputs, block_map=one), 1, 0)


def test_sections_keep_heads_together_and_the_longest_first(kernels, monkeypatch):
    api, lists, _ = kernels
    monkeypatch.setattr(lists, "SECTION_MIB", 0)
    inputs = inputs_of(64 * 140, 128, dim=1, heads=2)
    problem = api.sparse_problem_of(inputs.q, inputs.k, inputs.v, block=(64, 64))
    items = lists.lists_of(inputs.block_map, inputs.q, inputs.k, problem).items
    for head, rows in enumerate(items.view(2, 140, 3)):
        assert sorted(rows[:, 0].tolist()) == list(range(head * 140, head * 140 + 140))
        assert rows[:, 1].tolist() == sorted(rows[:, 1].tolist(), reverse=True)


def test_a_section_is_never_longer_than_can_be_sorted_by_comparing_all(kernels, monkeypatch):
    api, lists, _ = kernels
    monkeypatch.setattr(lists, "MOST", 128)
    inputs = inputs_of(64 * 150, 128, dim=1, heads=2)
    problem = api.sparse_problem_of(inputs.q, inputs.k, inputs.v, block=(64, 64))
    items = lists.lists_of(inputs.block_map, inputs.q, inputs.k, problem).items
    for begin in (0, 128, 256):
        rows = items[begin : begin + 128]
        assert sorted(rows[:, 0].tolist()) == list(range(begin, min(begin + 128, 300)))
        assert rows[:, 1].tolist() == sorted(rows[:, 1].tolist(), reverse=True)


def test_the_oracle_of_these_tests_knows_an_empty_row():
    inputs = inputs_of(70, density=0.0)
    out, lse = truth_of(inputs)
    assert not visible(inputs).any()
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


BAD = {
    "no-dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 0)), r"q\.shape=.* has no dims; 1 to 128 dims"),
    "many-dims": (dict.fromkeys("qkv", torch.zeros(1, 9, 1, 300)), r"q\.shape=.* has too many dims; 1 to 128 dims"),
    "packed": (
        dict.fromkeys("qkv", torch.zeros(9, 1, 64)),
        r"q\.shape=\(9, 1, 64\) does not fit; \[sequences, rows, heads, dims\]$",
    ),
    "map-of-numpy": ({"block_map": np.ones((1, 1, 2, 2), bool)}, "block_map=ndarray is no tensor; a bool tensor, or"),
    "no-q": ({"q": None}, r"q=NoneType is no tensor; \[sequences, rows, heads, dims\]"),
    "v-of-numpy": ({"v": np.ones((1, 128, 1, 64))}, "v=ndarray is no tensor"),
    "no-map": ({"block_map": None}, "block_map=NoneType is no tensor"),
    "block-of-floats": ({"block": (64.0, 64.0)}, r"block=\(64.0, 64.0\) is not supported"),
    "config-a-number": ({"config": 3}, "config=3 is not a configuration; a SparseConfig, its name or None"),
    "block": ({"block": (128, 32)}, r"block=\(128, 32\) is not supported; \(128, 128\), \(128, 64\), "),
    "shape": (
        {"block_map": torch.ones(1, 2, 3, 4, dtype=torch.bool)},
        r"block_map\.shape=\(1, 2, 3, 4\) does not fit; \(1, 1, 2, 2\), ",
    ),
    "dtype": ({"block_map": torch.ones(1, 1, 2, 2)}, r"block_map\.dtype=torch\.float32 is not supported; bool"),
    "device": (
        {"block_map": torch.ones(1, 1, 2, 2, dtype=torch.bool, device="meta")},
        r"block_map\.device=meta does not fit; cpu, q's",
    ),
    "dims": (
        {"q": torch.zeros(1, 100, 1, 136), "k": torch.zeros(1, 100, 1, 136), "v": torch.zeros(1, 100, 1, 136)},
        r"q\.shape=.* has too many dims; 1 to 128 dims",
    ),
    "value-dims": ({"v": torch.zeros(1, 100, 1, 32)}, r"v\.shape\[-1\]=32 does not fit; 64, q's dims"),
    "heads": ({"k": torch.zeros(1, 100, 3, 64), "v": torch.zeros(1, 100, 3, 64)}, r"k\.shape\[-2\]=3 does not divide"),
    "scale": ({"scale": 0.0}, r"scale=0\.0 cannot be used; a finite number over 0"),
    "config": ({"config": "m64n64"}, r"config=m64n64 is not a short form; such as .*; the nearest valid one is m"),
    "rule": ({"config": "m64n128w4s1"}, r"config=m64n128w4s1 is not valid, blocks: it has tiles of 128 keys, .*; n64"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_line(kernels, name):
    change, said = BAD[name]
    q, k, v = torch.zeros(3, 1, 100, 1, 64)
    given = {"q": q, "k": k, "v": v, "block_map": torch.ones(1, 1, 2, 2, dtype=torch.bool), "block": (64, 64)}
    with pytest.raises(ValueError, match=f"^flash_sparse_attention: {said}") as why:
        kernels[0].flash_sparse_attention(**(given | change))
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"causal": True}, r"block_map\.causal=False does not fit; True"),
        ({"block": (64, 128)}, r"block_map\.block=\(64, 64\) does not fit; \(64, 128\)"),
    ],
)
def test_lists_of_another_problem_are_refused(kernels, change, said):
    inputs = inputs_of(100, dtype=torch.float16)
    lists = kernels[0].make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), config=SMALL)
    with pytest.raises(ValueError, match=said):
        kernels[0].flash_sparse_attention(inputs.q, inputs.k, inputs.v, lists, **({"block": (64, 64)} | change))


def test_lists_for_items_of_several_rows_are_refused_where_a_row_is_one(kernels):
    inputs = inputs_of(300, dtype=torch.float16)
    lists = kernels[0].make_lists(inputs.block_map, inputs.q, inputs.k, block=(64, 64), config="m128n64w8s3-ws-lazy")
    with pytest.raises(ValueError, match=r"block_map\.share=2 of 64 queries does not fit; 1 of 64, as "):
        attend(kernels, replace(inputs, block_map=lists))


def test_values_other_than_0_and_1_are_found_where_asked(kernels):
    inputs = inputs_of(100, dtype=torch.float16)
    odd = replace(inputs, block_map=torch.tensor([[[[1, 7], [0, 1]]]], dtype=torch.uint8).view(torch.bool))
    with pytest.raises(ValueError, match="flash_sparse_attention: block_map=7 is neither True nor False; 0 and 1"):
        attend(kernels, odd, validate=True)
    attend(kernels, inputs, validate=True)


def test_a_cpu_is_refused_where_kernels_are_compiled():
    inputs = inputs_of(100)
    with pytest.raises(ValueError, match=r"^flash_sparse_attention: q\.device=cpu has no compiled kernels"):
        attend([compiled], inputs)
