"""Expected errors have the size of those of honest evaluations, for any chunk size."""

from __future__ import annotations

import pytest
import torch

from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.rounding import expected_errors
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD as HSTU
from attnbench.workloads.hstu import rounding as hstu_rounding

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SOFTMAX = {"batch": 2, "seqlen": 70, "seqlen_k": 90, "nheads": 4, "nheads_kv": 2, "headdim": 32, "mode": "bwd"}
OF_HSTU = {"batch": 2, "seqlen": 90, "nheads": 2, "attn_dim": 32, "mode": "bwd", "block_size": 8}
CASES = {
    "softmax": (WORKLOAD, "softmax", SOFTMAX),
    "softmax-causal-packed": (WORKLOAD, "softmax", SOFTMAX | {"causal": True, "lengths": "70/90:33/12"}),
    "hstu": (HSTU, "hstu", OF_HSTU | {"num_targets": "5:0", "lengths": "90:31"}),
    "hstu-bsa": (HSTU, "hstu-bsa", OF_HSTU | {"local_window": 9}),
    "hstu-bsa-drawn": (HSTU, "hstu-bsa", OF_HSTU | {"gates": False, "selection": "shared"}),
}


def made(name, dtype="fp32", scale=1.0):
    workload, variant, values = CASES[name]
    case = workload.case(values | {"dtype": dtype})
    inputs = workload.inputs(case, seed=2, kind="normal", device="cpu")
    inputs.q.mul_(scale)
    return workload, variant, case, inputs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_plain_evaluation_is_off_by_about_as_much(name, dtype):
    """In 16 bits it rounds wherever errors are counted; in fp32 torch's sums are of many short pieces."""
    workload, variant, case, inputs = made(name, dtype)
    right, plain = (
        workload.oracle(variant, case, inputs, dtype=precision, draw=Draw())
        for precision in (torch.float64, DTYPES[dtype])
    )
    expected = workload.expected_errors(variant, case, inputs, draw=Draw())
    assert expected.keys() == right.keys()
    for output, errors in expected.items():
        assert errors.shape == right[output].shape
        share = float((plain[output].double() - right[output]).norm() / errors.double().norm())
        assert (0.01 if dtype == "fp32" else 0.2) < share < 1.5, (output, share)


@pytest.mark.parametrize("name", CASES)
def test_chunks_and_draws_change_nothing(name):
    workload, variant, case, inputs = made(name, "bf16")
    compute = {
        "softmax": expected_errors,
        "hstu": hstu_rounding.expected_errors,
        "hstu-bsa": hstu_rounding.expected_errors_bsa,
    }[variant]
    whole = compute(case, inputs, draw=Draw())
    for output, errors in compute(case, inputs, draw=Draw(), workspace=30_000).items():
        torch.testing.assert_close(errors, whole[output], rtol=1e-4, atol=0)
    draw = Draw(((0, 1), (1, 0)))
    part = compute(case, inputs, draw=draw)
    for output, errors in workload.select(case, whole, draw).items():
        torch.testing.assert_close(part[output], errors, rtol=1e-4, atol=0)


def test_where_nothing_is_computed_nothing_is_off():
    case = WORKLOAD.case(SOFTMAX | {"seqlen": 90, "seqlen_k": 20, "causal": True, "dtype": "fp16"})
    errors = WORKLOAD.expected_errors(
        "softmax", case, WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu"), draw=Draw()
    )
    assert not errors["out"][:, :70].any()
    assert errors["out"][:, 70:].all()
    zeros = WORKLOAD.expected_errors(
        "softmax", case, WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu"), draw=Draw()
    )
    # Half of the smallest number of fp16: a sum of nothing but zeros is not known to be one.
    assert zeros["out"].max() < 2**-24


def test_a_weight_from_a_stored_logarithm_is_off_by_as_much_as_that_is_large():
    """One query and one key: the weight is 1, the score and the logarithm are the same number."""
    for score in (10.0, 1000.0):
        case = WORKLOAD.case({"batch": 1, "seqlen": 1, "nheads": 1, "headdim": 1, "dtype": "fp32", "mode": "bwd"})
        inputs = WORKLOAD.inputs(case, seed=0, kind="zeros", device="cpu")
        inputs.q.fill_(score)
        inputs.k.fill_(1.0)
        inputs.dout.fill_(1.0)
        found = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
        # Twice the half step by √3 is of the logarithm, about as much of the score.
        assert 1.2 * score * 2**-24 < float(found["dv"]) < 2 * score * 2**-24 + 9 * 2**-24
