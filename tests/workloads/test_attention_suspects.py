"""Each suspect is the wrong result that it describes, and differs from the right one only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnbench.workloads.attention import WORKLOAD, suspects
from attnbench.workloads.attention.inputs import make_inputs
from attnbench.workloads.base import Draw

TOP_LEFT = "causal mask aligned top-left instead of bottom-right"
NO_CAUSAL = "causal mask ignored"
NO_WINDOW = "window ignored"
NO_MASK = "causal mask and window ignored"
WINDOW_TOP_LEFT = "window aligned top-left instead of bottom-right"
NO_SCALE = "softmax scale missing (1 instead of 1/sqrt(headdim))"
DEALT = "query head h reads KV head h % G instead of h // (H / G)"
SWAPPED = suspects.SWAPPED


def of(**values):
    return WORKLOAD.case({"batch": 2, "seqlen": 17, "nheads": 2, "headdim": 8, "dtype": "fp32", "mode": "bwd"} | values)


def suspects_of(case, inputs=None, draw=None):
    inputs = inputs or make_inputs(case, seed=0, kind="normal", device="cpu")
    return dict(WORKLOAD.suspects("softmax", case, inputs, draw=draw or Draw()))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, {NO_SCALE, SWAPPED}),
        ({"headdim": 1}, {SWAPPED}),
        ({"causal": True}, {NO_CAUSAL, NO_SCALE, SWAPPED}),
        ({"causal": True, "seqlen_k": 33}, {TOP_LEFT, NO_CAUSAL, NO_SCALE}),
        ({"causal": True, "seqlen": 1, "seqlen_k": 33}, {TOP_LEFT, NO_SCALE}),
        ({"causal": True, "lengths": "5/5:9/3"}, {TOP_LEFT, NO_CAUSAL, NO_SCALE}),
        ({"window": (3, 2)}, {NO_WINDOW, NO_SCALE}),
        ({"window": (99, 99)}, {NO_SCALE}),
        ({"window": (3, 2), "seqlen_k": 33}, {WINDOW_TOP_LEFT, NO_WINDOW, NO_SCALE}),
        ({"window": (3, 0), "causal": True}, {NO_WINDOW, NO_CAUSAL, NO_MASK, NO_SCALE}),
        ({"nheads": 4, "nheads_kv": 2}, {NO_SCALE, DEALT}),
        ({"nheads": 4, "nheads_kv": 1}, {NO_SCALE}),
        ({"nheads": 1}, {NO_SCALE}),
    ],
)
def test_which_apply(values, words):
    case = of(**values)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    found = suspects_of(case, inputs)
    assert set(found) == words
    right = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float32, draw=Draw())
    for outputs in found.values():
        assert {tensor.dtype for tensor in outputs.values()} == {torch.float32}
        assert (outputs["out"] - right["out"]).abs().max() > 0.01


@pytest.mark.parametrize(
    ("values", "words", "other"),
    [
        ({"causal": True}, NO_CAUSAL, {"causal": False}),
        ({"window": (3, 2), "seqlen_k": 33}, NO_WINDOW, {"window": None}),
        ({"window": (3, 0), "causal": True}, NO_WINDOW, {"window": None}),
        ({"window": (3, 0), "causal": True}, NO_CAUSAL, {"window": (3, -1), "causal": False}),
        ({"window": (3, 0), "causal": True}, NO_MASK, {"window": None, "causal": False}),
    ],
)
def test_an_ignored_mask_is_the_case_without_it(values, words, other):
    case = of(**values)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    expected = WORKLOAD.oracle("softmax", replace(case, **other), inputs, dtype=torch.float32, draw=Draw())
    same(suspects_of(case, inputs)[words], expected)


def test_top_left_is_the_square_case_on_the_first_keys():
    case = of(causal=True, seqlen_k=33)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    first = replace(inputs, k=inputs.k[:, :17], v=inputs.v[:, :17])
    expected = WORKLOAD.oracle("softmax", replace(case, seqlen_k=17), first, dtype=torch.float32, draw=Draw())
    got = suspects_of(case, inputs)[TOP_LEFT]
    same({name: got[name][:, :17] for name in got}, expected)
    assert not got["dk"][:, 17:].any()


def test_missing_scale_is_the_right_answer_to_scaled_queries():
    case = of()
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    expected = WORKLOAD.oracle("softmax", case, replace(inputs, q=inputs.q * 8**0.5), dtype=torch.float32, draw=Draw())
    got = suspects_of(case, inputs)[NO_SCALE]
    same({"out": got["out"], "dq": got["dq"] / 8**0.5, "dk": got["dk"], "dv": got["dv"]}, expected)


@pytest.mark.parametrize("values", [{"causal": True}, {"lengths": "5:17"}, {"mode": "fwd", "seqlen_k": 9}])
def test_heads_dealt_round_are_the_right_answer_to_reordered_queries(values):
    case = of(nheads=6, nheads_kv=2, **values)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    order = [0, 2, 4, 1, 3, 5]  # KV head 0 gets the even heads, KV head 1 the odd ones
    back = [order.index(head) for head in range(6)]
    dout = None if inputs.dout is None else inputs.dout[..., order, :]
    moved = replace(inputs, q=inputs.q[..., order, :], dout=dout)
    expected = WORKLOAD.oracle("softmax", case, moved, dtype=torch.float32, draw=Draw())
    expected = {name: tensor[..., back, :] if name in ("out", "dq") else tensor for name, tensor in expected.items()}
    same(suspects_of(case, inputs)[DEALT], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_swapped_are_the_right_answer_to_transposed_tensors(causal):
    case = of(causal=causal, nheads=3)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    names = ("q", "k", "v", "dout")
    turned = replace(inputs, **{name: getattr(inputs, name).transpose(1, 2) for name in names})
    other = replace(case, seqlen=3, seqlen_k=3, nheads=17, nheads_kv=17)
    expected = WORKLOAD.oracle("softmax", other, turned, dtype=torch.float32, draw=Draw())
    same(suspects_of(case, inputs)[SWAPPED], {name: tensor.transpose(1, 2) for name, tensor in expected.items()})


@pytest.mark.parametrize(
    ("values", "count"), [({"nheads": 6, "nheads_kv": 2, "seqlen_k": 33, "window": (5, 0)}, 6), ({"nheads": 6}, 3)]
)
def test_suspects_of_a_draw_are_the_drawn_part(values, count):
    case = of(causal=True, **values)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    draw = Draw(((0, 1), (1, 0)))
    whole, drawn = suspects_of(case, inputs), suspects_of(case, inputs, draw)
    assert list(whole) == list(drawn)
    assert len(whole) == count
    for words, outputs in drawn.items():
        same(outputs, WORKLOAD.select(case, whole[words], draw))


def same(got, expected):
    assert list(got) == list(expected)
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)
