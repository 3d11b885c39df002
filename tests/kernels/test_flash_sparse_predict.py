"""Prediction of block maps in Triton's interpreter, beside the predictor in torch; and scores that say nothing."""

from __future__ import annotations

import sys

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.predict import Predictor
from attnbench.workloads.sparse import WORKLOAD

from .interpreter import interpreted


@pytest.fixture(scope="module")
def kernels():
    with interpreted("attnbench.kernels.flash.sparse.predict") as modules:
        yield modules[0]


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "seqlen": 300, "nheads": 2, "headdim": 20, "dtype": "fp32", "block": "64x64", "pattern": "full"}
        | values
    )


CASES = {
    "tails": {},
    "causal": {"causal": True},
    "grouped": {"nheads": 4, "nheads_kv": 2},
    "wide-rows": {"block": "128x64", "causal": True},
    "wide-columns": {"block": "64x128"},
    "more-keys": {"seqlen_k": 500, "causal": True},
    "fewer-keys": {"seqlen": 500, "seqlen_k": 300, "causal": True, "block": "64x128"},
    "one-block": {"seqlen": 63},
    "one-more": {"seqlen": 65},
    "one-token": {"seqlen": 1},
    "one-query": {"seqlen": 1, "seqlen_k": 127, "causal": True, "nheads": 4, "nheads_kv": 1},
    "odd": {"seqlen": 127, "seqlen_k": 129, "block": "128x64", "dtype": "fp16"},
    "part-of-a-stride": {"seqlen": 129, "seqlen_k": 1000, "block": "64x128", "dtype": "bf16", "headdim": 48},
    "several-tiles": {"batch": 1, "seqlen": 1000, "seqlen_k": 2100, "dtype": "bf16", "headdim": 16, "causal": True},
    "whole-strides": {"batch": 1, "seqlen": 320, "block": "128x128", "dtype": "fp16", "headdim": 64, "nheads_kv": 1},
    "whole-bf16": {"batch": 1, "seqlen": 272, "dtype": "bf16", "headdim": 128, "causal": True},
}
RULES = ("topk0.5", "cdf0.9", "sub0.6", "anti0.5", "cdf0.5-sim0.016", "topk0.25-sim0.02", "topk1", "cdf1")


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("name", CASES)
def test_the_map_is_that_of_torch(kernels, monkeypatch, name, text):
    monkeypatch.setitem(sys.modules, "attnbench.kernels.flash.sparse.predict", kernels)
    case = case_of(**CASES[name])
    inputs = WORKLOAD.inputs(case, seed=1, kind="normal", device="cpu")
    # So large that the softmax over the scores is far from uniform; of all of it torch keeps what its sum does not lose.
    size = 1 if text == "cdf1" else 2 if text.startswith("anti") else 8
    q, k = (x.mul_(size).transpose(1, 2) for x in (inputs.q, inputs.k))
    predictor = Predictor.read("who", text)
    found = predictor._by_kernels(case, q, k)
    assert found.dtype == torch.bool
    assert torch.equal(found, predictor.on(case, q.device)(q, k))


@pytest.mark.parametrize("by", ["kernels", "torch"])
def test_an_anti_diagonal_is_followed_against_the_order_of_the_queries(kernels, monkeypatch, by):
    """Keys of odd blocks match the queries in reverse order, those of even blocks in the same order."""
    monkeypatch.setitem(sys.modules, "attnbench.kernels.flash.sparse.predict", kernels)
    case = case_of(batch=1, seqlen=320, headdim=16)
    token = torch.arange(320)
    q = 8.0 * torch.eye(16)[token % 16].expand(1, 2, 320, 16)
    k = 8.0 * torch.eye(16)[torch.where(token // 64 % 2 == 1, 15 - token % 16, token % 16)].expand(1, 2, 320, 16)
    predictor = Predictor.read("who", "anti0.9")
    found = predictor._by_kernels(case, q, k) if by == "kernels" else predictor.by_torch(case, q.device)(q, k)
    assert torch.equal(found, torch.tensor([False, True, False, True, False]).expand(1, 2, 5, 5))


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("by", ["_by_kernels", "by_torch"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("text", ["topk0.4", "cdf0.4", "sub0.4"])
def test_a_key_that_is_not_finite_keeps_its_column_and_leaves_the_choice_of_the_others(
    kernels, monkeypatch, text, value, by
):
    monkeypatch.setitem(sys.modules, "attnbench.kernels.flash.sparse.predict", kernels)
    case = case_of()
    inputs = WORKLOAD.inputs(case, seed=1, kind="normal", device="cpu")
    q, k = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k))
    predictor = Predictor.read("who", text)

    def predicted(case, k):
        return predictor._by_kernels(case, q, k) if by == "_by_kernels" else predictor.by_torch(case, q.device)(q, k)

    without = predicted(case_of(seqlen_k=256), k[:, :, :256])
    k[:, :, 270, 3] = value
    found = predicted(case, k)
    assert found[..., 4].all()
    assert torch.equal(found[..., :4], without)


def chosen(kernels, scores, **options):
    lengths = scores.shape[2] * 64, scores.shape[3] * 64
    rule = kernels.Rule(block=(64, 64), scale=1.0, **options)
    return kernels._selected(rule, kernels.Scores(scores), scores.shape[1], lengths)


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_says_nothing_keeps_its_block_and_no_other(kernels, by_number, value):
    scores = torch.randn(1, 2, 4, 9, generator=torch.Generator().manual_seed(1))
    plain = chosen(kernels, scores, share=0.4, by_number=by_number)
    place = (0, 1, 2, int(scores[0, 1, 2].argmin()))
    assert not plain[place]
    scores[place] = value
    found = chosen(kernels, scores, share=0.4, by_number=by_number)
    assert found[place]
    found[place] = False
    if by_number:
        assert torch.equal(found, plain)
    else:  # its share of the softmax is the others' now
        assert torch.equal(found[:, 0], plain[:, 0])
        assert not (found & ~plain)[0, 1, [0, 1, 3]].any()
        assert 1 <= found[0, 1, 2].sum() <= plain[0, 1, 2].sum()


@pytest.mark.parametrize("by_number", [False, True])
def test_rows_of_nothing_known_are_kept_whole(kernels, by_number):
    scores = torch.zeros(1, 1, 3, 5)
    scores[0, 0, 0] = float("nan")
    scores[0, 0, 1] = -float("inf")
    found = chosen(kernels, scores, share=0.2, by_number=by_number)
    assert found[0, 0, 0].all()
    assert found[0, 0, 1].sum() == (1 if by_number else 5)
    assert found[0, 0, 2].tolist() == [True, False, False, False, False]  # of equal ones the first


def test_more_columns_than_a_program_holds_are_refused(kernels):
    with pytest.raises(ValueError, match="predict_blocks: columns=8193 are too many; at most 8192"):
        chosen(kernels, torch.zeros(1, 1, 1, 8193), share=0.5, by_number=True)


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("columns", [1, 2, 37, 256])
def test_the_threshold_is_that_of_sorted_scores(kernels, by_number, columns):
    """Scores of one size, of all sizes, of few values, and all equal."""
    random = torch.Generator().manual_seed(columns)
    plain = torch.randn(4, columns, generator=random)
    sizes = torch.randn(4, columns, generator=random) * 10.0 ** torch.randint(-30, 3, (4, columns), generator=random)
    few = torch.randint(-1, 2, (4, columns), generator=random).float()
    scores = torch.cat([plain, plain + 50, sizes, few, torch.full((1, columns), -3.0)])[None, None]
    for share in (0.01, 0.3, 0.75):
        found = chosen(kernels, scores, share=share, by_number=by_number)
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        weights = torch.ones_like(ordered) if by_number else (ordered - ordered[..., :1]).double().exp2()
        wanted = max(1, int(columns * share + 0.5)) if by_number else weights.sum(-1, keepdim=True) * share
        first = weights.cumsum(-1) - weights < wanted
        assert torch.equal(found, torch.zeros_like(found).scatter(-1, order, first))
