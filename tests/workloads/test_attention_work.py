"""FLOPs and bytes against counting the oracle's mask and against figures computed by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.attention.oracle import Rule, visible
from attnbench.workloads.attention.work import visible_in_sequence, visible_pairs

bound = st.none() | st.integers(0, 45)


def of(**values):
    return WORKLOAD.case({"batch": 1, "seqlen": 4, "nheads": 1, "headdim": 8} | values)


def mask_of(case, queries, keys):
    return visible(range(queries), range(keys), Rule.of(case).band(queries, keys), torch.device("cpu"))


@given(st.integers(1, 40), st.integers(1, 40), bound, bound)
def test_closed_form_is_counting_pair_by_pair(queries, keys, left, right):
    counted = sum(
        (left is None or j >= i + keys - queries - left) and (right is None or j <= i + keys - queries + right)
        for i in range(queries)
        for j in range(keys)
    )
    assert visible_in_sequence(queries, keys, left, right) == counted


@given(
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.none() | st.tuples(st.integers(-1, 45), st.integers(-1, 45)),
    st.sampled_from(["full", "uniform", "zipf"]),
)
def test_work_counts_the_mask_of_the_oracle(batch, seqlen, seqlen_k, causal, window, lengths):
    case = of(batch=batch, seqlen=seqlen, seqlen_k=seqlen_k, causal=causal, window=window, lengths=lengths)
    counted = sum(int(mask_of(case, *sizes).sum()) for sizes in case.sequences)
    assert visible_pairs(case) == counted
    assert WORKLOAD.work(case).flops == 2 * (8 + 8) * counted


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        ({}, 16),
        ({"causal": True}, 10),
        ({"seqlen": 1, "seqlen_k": 9, "causal": True}, 9),
        ({"seqlen": 2, "seqlen_k": 4, "causal": True}, 3 + 4),
        ({"seqlen": 4, "seqlen_k": 2, "causal": True}, 0 + 0 + 1 + 2),
        ({"window": (1, 1)}, 2 + 3 + 3 + 2),
        ({"window": (1, 0), "causal": True}, 1 + 2 + 2 + 2),
        ({"window": (0, 0)}, 4),
        ({"seqlen": 10, "batch": 2, "lengths": "3:5", "causal": True}, 6 + 15),
        ({"seqlen": 10, "batch": 2, "lengths": "3/4:5/1"}, 12 + 5),
        ({"seqlen": 131072, "causal": True}, 131072 * 131073 // 2),
    ],
)
def test_visible_pairs(values, pairs):
    assert visible_pairs(of(**values)) == pairs


def test_flops_by_mode():
    shape = {"seqlen": 4, "nheads": 6, "nheads_kv": 2, "headdim": 8, "headdim_v": 16}
    flops = {mode: WORKLOAD.work(of(mode=mode, **shape)).flops for mode in ("fwd", "bwd", "fwd-bwd")}
    assert flops["fwd"] == 6 * 16 * 2 * (8 + 16)
    assert flops["bwd"] == 6 * 16 * 2 * (3 * 8 + 2 * 16)
    assert flops["fwd-bwd"] == flops["fwd"] + flops["bwd"]


def test_backward_is_two_and_a_half_forwards_where_the_head_dims_agree():
    forward, backward = (WORKLOAD.work(of(mode=mode, causal=True)).flops for mode in ("fwd", "bwd"))
    assert 2 * backward == 5 * forward


def test_seed_shape_gives_the_usual_figure():
    case = WORKLOAD.case({"batch": 2, "seqlen": 1024, "nheads": 8, "headdim": 64})
    assert WORKLOAD.work(case).flops == 4 * 2 * 8 * 1024**2 * 64


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("lengths", ["full", "5/2:3/9"])
def test_bytes_are_those_of_the_tensors(dtype, lengths):
    shape = {"batch": 2, "seqlen": 5, "seqlen_k": 9, "nheads": 6, "nheads_kv": 2, "headdim": 8, "headdim_v": 4}
    moved, sizes = {}, {}
    for mode in ("fwd", "bwd", "fwd-bwd"):
        case = of(**shape, dtype=dtype, lengths=lengths, mode=mode)
        inputs = make_inputs(case, seed=0, kind="zeros", device="cpu")
        sizes = {name: tensor.nbytes for name, tensor in inputs.tensors().items()}
        moved[mode] = WORKLOAD.work(case).bytes
    qkv = sizes["q"] + sizes["k"] + sizes["v"]
    assert moved["fwd"] == qkv + sizes["dout"]
    assert moved["bwd"] == 2 * qkv + 2 * sizes["dout"]
    assert moved["fwd-bwd"] == moved["fwd"] + moved["bwd"]
