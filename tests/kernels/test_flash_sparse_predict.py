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
}
RULES = ("topk0.5", "cdf0.9", "sub0.6", "anti0.5", "cdf0.5-sim0.016", "topk0.25-sim0.02", "topk1", "cdf1")


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("name", CASES)
def test_the_map_is_that_of_torch(kernels, monkeypatch, name, text):
    monkeypatch.setitem(sys.modules, "attnbench.kernels.flash.sparse.predict", kernels)
    case = case_of(**CASES[name])
    inputs = WORKLOAD.inputs(case, seed=1, kind="normal", device="cpu")
    q, k = (x.transpose(1, 2) for x in (inputs.q, inputs.k))
    predictor = Predictor.read("who", text)
    found = predictor._by_kernels(case, q, k)
    assert found.dtype == torch.bool
    assert torch.equal(found, predictor.on(case, q.device)(q, k))


def chosen(kernels, scores, **options):
    lengths = scores.shape[2] * 64, scores.shape[3] * 64
    return kernels.select(scores, lengths, kernels.Rule(block=(64, 64), scale=1.0, **options))


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
    with pytest.raises(ValueError, match="select: columns=8193 are too many; at most 8192"):
        chosen(kernels, torch.zeros(1, 1, 1, 8193), share=0.5, by_number=True)
