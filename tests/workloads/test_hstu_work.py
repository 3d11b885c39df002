"""FLOPs and bytes of HSTU against counting the masks of the oracles, and against figures by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from naive_hstu import sees

from attnbench.workloads.hstu import WORKLOAD, sparse_work
from attnbench.workloads.hstu.inputs import make_inputs
from attnbench.workloads.hstu.oracle import visible
from attnbench.workloads.hstu.oracle_bsa import branch_mask, select_blocks
from attnbench.workloads.hstu.work import sparse_pairs, visible_pairs

CPU = torch.device("cpu")


def of(**values):
    return WORKLOAD.case({"batch": 1, "seqlen": 8, "nheads": 1, "attn_dim": 4, "linear_dim": 2} | values)


@st.composite
def jagged(draw, *, dense):
    targets = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    lengths = [count + draw(st.integers(0, 35)) for count in targets]
    values = {
        "batch": len(targets),
        "seqlen": 60,
        "num_targets": ":".join(map(str, targets)),
        "lengths": ":".join(map(str, lengths)),
        "delta_q": draw(st.none() | st.integers(1, 45)),
    }
    if dense:
        return values | {
            "contextual_len": draw(st.integers(0, 6)),
            "causal": draw(st.booleans()),
            "max_attn_len": draw(st.none() | st.integers(1, 40)),
        }
    return values | {
        "block_size": (size := draw(st.sampled_from([1, 2, 4, 8]))),
        "block_counts": draw(st.integers(1, -(-60 // size))),
        "local_window": draw(st.none() | st.integers(1, 12)),
        "selection": draw(st.sampled_from(["head", "shared"])),
        "pairs": size > 1 and draw(st.booleans()),
    }


@given(jagged(dense=True))
def test_closed_form_and_mask_are_the_words_pair_by_pair(values):
    case = of(**values)
    total = 0
    for shape in case.sequences:
        mask = visible(case, shape, range(shape.queries), CPU)
        words = [
            [sees(case, shape, i, j) for j in range(shape.length)]
            for i in range(shape.length - shape.queries, shape.length)
        ]
        assert mask.tolist() == words
        total += int(mask.sum())
    assert visible_pairs(case) == total
    assert WORKLOAD.work(case).flops == 2 * (4 + 2) * total


@given(jagged(dense=False))
def test_sparse_work_counts_the_masks_of_the_branches(values):
    case = of(**values)
    chosen = select_blocks(case, make_inputs(case, seed=0, kind="normal", device="cpu"))
    counted = dict.fromkeys(("compressed", "selected", "sliding"), 0)
    for shape, blocks in zip(case.sequences, chosen.split([s.queries for s in case.sequences]), strict=True):
        for branch in case.branches:
            mask = branch_mask(case, shape, range(shape.queries), branch, blocks.transpose(0, 1))
            counted[branch] += int(mask.sum())
    assert sparse_pairs(case) == tuple(counted.values())
    assert sparse_work(case).flops == 2 * (4 + 2) * sum(counted.values())


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        ({}, 36),
        ({"causal": False}, 64),
        ({"num_targets": 3}, 15 + 3 * 6),
        ({"contextual_len": 2}, 2 * 8 + 3 + 4 + 5 + 6 + 7 + 8),
        ({"max_attn_len": 2}, 1 + 2 + 6 * 3),
        ({"max_attn_len": 2, "contextual_len": 2}, 2 * 8 + 3 + 4 + 3 * 4),
        ({"max_attn_len": 2, "num_targets": 3}, 1 + 2 + 3 * 3 + 3 * 3),
        ({"delta_q": 2}, 15),
        ({"delta_q": 1, "num_targets": 1}, 8),
        ({"batch": 3, "lengths": "0:1:2"}, 0 + 1 + 3),
        ({"seqlen": 131072}, 131072 * 131073 // 2),
    ],
)
def test_visible_pairs(values, pairs):
    assert visible_pairs(of(**values)) == pairs


def test_average_keys_of_a_query_are_those_of_the_literature():
    """Dense | compressed + selected keys at block 32, 4 blocks."""
    for seqlen, dense, sparse in ((128, 64.5, 66), (1024, 512.5, 122), (8192, 4096.5, 239), (16384, 8192.5, 368)):
        case = of(seqlen=seqlen, block_size=32, block_counts=4)
        assert visible_pairs(case) / seqlen == dense
        assert sum(sparse_pairs(case)) / seqlen == pytest.approx(sparse, abs=0.6)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_flops_and_bytes_by_mode(dtype):
    shape = {"nheads": 3, "dtype": dtype, "delta_q": 5, "batch": 2, "lengths": "7:3"}
    works = {
        mode: (WORKLOAD.work(of(mode=mode, **shape)), sparse_work(of(mode=mode, **shape)))
        for mode in ("fwd", "bwd", "fwd-bwd")
    }
    pairs = 3 * (3 + 4 + 5 + 6 + 7 + 6)
    assert works["fwd"][0].flops == 2 * (4 + 2) * pairs
    assert works["bwd"][0].flops == 2 * (3 * 4 + 2 * 2) * pairs
    sizes = {
        name: tensor.nbytes
        for name, tensor in make_inputs(of(mode="bwd", **shape), seed=0, kind="zeros", device="cpu").tensors().items()
    }
    qkv, out, gates = sizes["q"] + sizes["k"] + sizes["v"], sizes["dout"], sizes["gates"]
    assert [works["fwd"][i].bytes for i in (0, 1)] == [qkv + out, qkv + out + gates]
    assert [works["bwd"][i].bytes for i in (0, 1)] == [2 * qkv + out, 2 * qkv + out + 2 * gates]
    for forward, backward, both in zip(*works.values(), strict=True):
        assert both.flops == forward.flops + backward.flops
        assert both.bytes == forward.bytes + backward.bytes
