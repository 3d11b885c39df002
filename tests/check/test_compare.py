"""Budgets with known answers: which errors are accepted, which not, and the resolution of the check."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, limits, make_truth, matches
from attnbench.check.deviation import CHUNK, expected_of, measure, place
from attnbench.errors import WorkerError
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.base import Draw

SHAPE = (2, 129, 3, 64)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def truth_of(right, plain, dtype, expected=0.0):
    """A truth whose elements rounding makes off by `expected` each, a number or a tensor."""
    errors = {name: torch.zeros_like(x) + expected for name, x in right.items()}
    return make_truth(right, plain, errors, dtype, WORKLOAD.outputs("softmax"))


def real_truth(case, inputs):
    """As `check.reference` makes it."""
    oracle, plain = (
        WORKLOAD.oracle("softmax", case, inputs, dtype=dtype, draw=Draw())
        for dtype in (torch.float64, DTYPES[case.dtype])
    )
    expected = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
    return make_truth(oracle, plain, expected, DTYPES[case.dtype], WORKLOAD.outputs("softmax"))


def truth_with_error(error: float, dtype=torch.float16, shape=SHAPE):
    """A truth, its direction of error, and a plain evaluation that is off by `error` at most; none is expected."""
    random = torch.Generator().manual_seed(0)
    right = torch.randn(shape, generator=random, dtype=torch.float64)
    direction = torch.rand(shape, generator=random, dtype=torch.float64) * 2 - 1
    direction /= direction.abs().max()
    return right, direction, truth_of({"out": right}, {"out": right + error * direction}, dtype)


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_twice_the_plain_error_is_the_line(dtype):
    error = 100 * torch.finfo(dtype).eps * 4
    right, direction, truth = truth_with_error(error, dtype)
    assert compare({"out": right + 1.9 * error * direction}, truth, Budget()).ok
    result = compare({"out": right + 4 * error * direction}, truth, Budget())
    assert result.faults["out"].startswith(f"out: wrong values: worst error {4 * error:.3g} (budget ")
    assert compare({"out": right + 4 * error * direction}, truth, Budget(factor=4)).ok


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_wrong(value):
    right, _, truth = truth_with_error(1.0)
    found = right.clone()
    found[0, -1] = value
    result = compare({"out": found}, truth, Budget())
    assert (result.ok, result.faults) == (False, {"out": "out: wrong values: not all are finite"})


def test_a_gradient_may_be_four_times_off():
    right, direction, truth = truth_with_error(1.0)
    truth = truth_of({"dq": right}, {"dq": right + direction}, torch.float16)
    assert compare({"dq": right + 3.9 * direction}, truth, Budget()).ok
    assert not compare({"dq": right + 4.1 * direction}, truth, Budget()).ok


def test_one_rounding_step_is_allowed_where_the_plain_evaluation_is_exact():
    right, _, truth = truth_with_error(0.0)
    assert limits("out", truth, Budget()).element == 2**-10 * right.abs().max().item()
    assert compare({"out": right.half()}, truth, Budget()).ok


@pytest.mark.parametrize(("name", "times"), [("out", 4), ("dq", 8)])
def test_four_expected_errors_are_the_line_of_an_element_and_of_a_row(name, times):
    """Of gradients eight; where the plain evaluation is exact by luck, and whatever the size of the values."""
    right, _, _ = truth_with_error(0.0)
    right *= 1e-3
    # A thousand times less in the row where the error is: the others cannot hide it.
    expected = torch.full_like(right, 1e-2)
    expected[1, 100, 2] = 1e-4
    truth = truth_of({name: right}, {name: right}, torch.float32, expected)
    assert limits(name, truth, Budget()).element == pytest.approx(times * 1e-2)
    for where, size in (((0, 5, 1, 7), times * 1e-2), ((1, 100, 2, 9), times * 1e-4 * 8)):
        found = right.clone()
        found[where] += 0.99 * size
        assert compare({name: found}, truth, Budget()).ok
        assert compare({name: found}, truth, Budget(factor=2)).ok
        found[where] += 0.03 * size
        assert not compare({name: found}, truth, Budget()).ok
        assert compare({name: found}, truth, Budget(factor=2.1)).ok
    fault = compare({name: found}, truth, Budget()).faults[name]
    words = f"{1.02 * times:.3g} times what rounding explains (budget {times})"
    assert fault == f"{name}: wrong values in a row: {words} at [1, 100, 2]"


def test_a_relative_budget_replaces_it_where_larger():
    right, direction, truth = truth_with_error(0.0)
    error = 0.05 * right.square().mean().sqrt() * direction
    assert not compare({"out": right + error}, truth, Budget(relative=0.04)).ok
    assert compare({"out": right + error}, truth, Budget(relative=0.06)).ok


def test_the_budget_of_an_element_is_not_that_of_its_row():
    right, _, _ = truth_with_error(0.0)
    truth = truth_of({"out": right}, {"out": right}, torch.float16, 1e-4)
    error = torch.zeros_like(right)
    error[1, 3, 0, 5] = 0.05 * right.square().mean().sqrt()
    assert not compare({"out": right + error}, truth, Budget(relative=0.04)).ok
    assert compare({"out": right + error}, truth, Budget(relative=0.04, element=0.06)).ok
    assert not compare({"out": right + error}, truth, Budget(relative=0.04, element=0.049)).ok
    error[1, 3, 0] = 0.05 * right.square().mean().sqrt()
    assert "in a row" in compare({"out": right + error}, truth, Budget(relative=0.04, element=0.06)).faults["out"]


@pytest.mark.parametrize(("dtype", "share"), [("fp32", 2e-5), ("fp16", 0.007), ("bf16", 0.05)])
def test_a_row_of_one_head_is_seen(dtype, share):
    """Values of a causal attention: the first rows are the largest, the wrong one is among the last."""
    case = WORKLOAD.case({"batch": 2, "seqlen": 400, "nheads": 3, "headdim": 64, "dtype": dtype, "causal": True})
    inputs = WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu")
    truth = real_truth(case, inputs)
    found = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v)), is_causal=True
    ).transpose(1, 2)
    assert compare({"out": found}, truth, Budget()).ok
    wrong = found.double()
    wrong[1, 371, 2] *= 1 + share
    result = compare({"out": wrong}, truth, Budget())
    assert "in a row" in result.faults["out"]
    assert "at [1, 371, 2" in result.faults["out"]
    assert not result.errors["out"].ok


def test_a_head_off_by_less_than_the_worst_row_is_seen():
    right = torch.randn(2, 129, 3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = 0.005 * right.abs() + 1e-4
    truth = truth_of({"out": right}, {"out": right * (1 + 0.005 * noise)}, torch.bfloat16, expected)
    wrong = right * (1 - 0.004 * noise)
    assert compare({"out": wrong}, truth, Budget()).ok
    wrong[:, :, 1] *= 1.015
    fault = compare({"out": wrong}, truth, Budget()).faults["out"]
    assert fault.startswith("out: wrong values in a slice: 3.0")
    assert fault.endswith("times what rounding explains (budget 2) at [..., 1, :]")


def test_an_answer_that_cancels_to_nothing_is_held_to_the_terms_it_is_made_of():
    """With one key dQ and dK are 0: what is left is the rounding of dP and of delta."""
    case = WORKLOAD.case(
        {"batch": 2, "seqlen": 9, "seqlen_k": 1, "nheads": 3, "headdim": 8, "dtype": "fp32", "mode": "bwd"}
    )
    truth = real_truth(case, WORKLOAD.inputs(case, seed=0, kind="normal", device="cpu"))
    right = truth.oracle
    assert right["dq"].abs().max() < 1e-15
    assert compare({**right, "dq": right["dq"] + 1e-8}, truth, Budget()).ok
    assert not compare({**right, "dq": right["dq"] + 1e-4}, truth, Budget()).ok


def test_zeros_are_right_as_zeros_and_wrong_as_anything():
    zero = torch.zeros(1, 100, 2, 8, dtype=torch.float64)
    truth = truth_of({"out": zero}, {"out": zero}, torch.float16)
    result = compare({"out": zero}, truth, Budget())
    assert (result.ok, result.errors["out"].cosine, result.errors["out"].rel_l1) == (True, 1.0, 0.0)
    off = compare({"out": zero + 1e-7}, truth, Budget()).errors["out"]
    assert (off.ok, off.cosine, off.rel_l1) == (False, 0.0, 1.0)


def test_rows_that_should_be_zero():
    """A causal mask with more queries than keys leaves most rows empty."""
    right = torch.zeros(1, 300, 2, 8, dtype=torch.float64)
    right[:, 200:] = torch.randn(1, 100, 2, 8, generator=torch.Generator().manual_seed(0))
    truth = truth_of({"out": right}, {"out": right.half()}, torch.float16, 2**-11 * right.abs())
    assert compare({"out": right.half()}, truth, Budget()).ok
    wrong = right.clone()
    wrong[0, 3, 1] += 1e-5
    assert "in a row" in compare({"out": wrong}, truth, Budget()).faults["out"]


def test_an_overflowing_plain_evaluation_widens_nothing():
    right, _, _ = truth_with_error(0.0)
    truth = truth_of({"out": right}, {"out": right * math.inf}, torch.float16)
    assert truth.notes == ("out: the plain evaluation in float16 is not finite; the budget is rounding alone",)
    assert limits("out", truth, Budget()).element == 2**-10 * right.abs().max().item()


def test_an_oracle_that_is_not_finite_is_our_own_mistake():
    right, _, _ = truth_with_error(0.0)
    with pytest.raises(WorkerError, match="not finite"):
        truth_of({"out": right * math.inf}, {"out": right}, torch.float16)


def test_another_answer_is_recognised_by_the_wrong_outputs_alone():
    right, _, truth = truth_with_error(0.0)
    truth = truth_of({"out": right, "dq": right}, {"out": right, "dq": right}, torch.float16)
    other = {"out": right * 2}
    assert matches({"out": right * 2, "dq": right}, other, truth, Budget(), ["out"])
    assert not matches({"out": right, "dq": right * 2}, other, truth, Budget(), ["dq"])
    assert not matches({"out": right * 3, "dq": right}, other, truth, Budget(), ["out"])


def plain_figures(x, t):
    error = x - t
    return {
        "max_abs": error.abs().max(),
        "rel_l1": error.abs().sum() / t.abs().sum(),
        "rmse": error.square().mean().sqrt(),
        "cosine": torch.nn.functional.cosine_similarity(x.flatten(), t.flatten(), dim=0),
    }


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 99))
def test_figures_are_those_of_the_formulas(shape, seed):
    random = torch.Generator().manual_seed(seed)
    x, t = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(2))
    off = measure(x, t, limit=0.5)
    for name, value in plain_figures(x, t).items():
        assert getattr(off, name) == pytest.approx(value.item(), rel=1e-9, abs=1e-12)
    error = (x - t).abs()
    assert error[tuple(place(off.worst, tuple(shape)))] == off.max_abs
    assert off.over == int((error > 0.5).sum())


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_the_size_of_a_chunk_changes_nothing(chunk, monkeypatch):
    random = torch.Generator().manual_seed(3)
    x, t = (torch.randn(3, 65, 5, 9, generator=random, dtype=torch.float64) for _ in range(2))
    whole = measure(x, t, limit=1.0, expected=expected_of(t.abs()))
    monkeypatch.setitem(CHUNK, "cpu", chunk)
    pieces = measure(x.transpose(0, 1).contiguous().transpose(0, 1), t, limit=1.0, expected=expected_of(t.abs()))
    for name in ("max_abs", "worst", "over", "rel_l1", "head_rel_l1", "rmse", "cosine", "largest", "rms"):
        assert getattr(pieces, name) == pytest.approx(getattr(whole, name), rel=1e-12)
    assert (pieces.row, pieces.slice) == (whole.row, whole.slice)


def test_the_first_of_equal_errors_is_the_worst():
    t = torch.zeros(4, 5, dtype=torch.float64)
    assert measure(t + 1, t).worst == 0
