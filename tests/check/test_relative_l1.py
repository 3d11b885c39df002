"""Relative L1, of an output and of its worst head: for kernels whose wide budget could hide a broken scale."""

from dataclasses import replace

import pytest
import torch

from attnbench.backends.base import Budget, RelL1
from attnbench.check.compare import compare, make_truth
from attnbench.check.deviation import CHUNK, measure
from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD


def truth_of(name, right):
    return make_truth(
        {name: right}, {name: right}, {name: torch.zeros_like(right)}, torch.bfloat16, WORKLOAD.outputs("softmax")
    )


def off_by(right, share):
    """Every element of the first of three heads is off by a share of itself, the signs in turn."""
    wrong = right.clone()
    wrong[:, :, 0] += share * right[:, :, 0].abs() * (torch.arange(right.shape[-1]) % 2 * 2 - 1)
    return wrong


@pytest.mark.parametrize("chunk", [1000, 2**18])
def test_the_worst_head_is_found_whatever_the_chunks(chunk, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", chunk)
    right = torch.randn(2, 64, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    off = measure(off_by(right, 0.06), right)
    assert off.head_rel_l1 == pytest.approx(0.06)
    assert off.rel_l1 == pytest.approx(0.06 * float(right[:, :, 0].abs().sum() / right.abs().sum()))
    assert measure(off_by(right, 0.06)[:1, :63], right[:1, :63]).head_rel_l1 is None


def test_a_head_that_should_be_zero_and_is_not_is_off_without_measure():
    right = torch.zeros(1, 64, 2, 4, dtype=torch.float64)
    right[:, :, 0] = 1.0
    assert measure(right.clone(), right).head_rel_l1 == 0.0
    wrong = right.clone()
    wrong[0, 3, 1, 2] = 1e-9
    assert measure(wrong, right).head_rel_l1 == float("inf")


@pytest.mark.parametrize(("name", "slack"), [("out", 1.0), ("dq", 2.0)])
def test_a_budget_bounds_the_output_and_its_worst_head(name, slack):
    right = torch.randn(2, 64, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth, share = truth_of(name, right), 0.06 * slack
    found = {name: off_by(right, share)}
    whole = measure(found[name], right).rel_l1 / slack

    def fault(**bounds):
        return compare(found, truth, Budget(relative=1.0, **bounds)).faults.get(name)

    assert fault() is None
    assert fault(rel_l1=1.01 * whole, head_rel_l1=0.061) is None
    assert fault(rel_l1=0.99 * whole) == (
        f"{name}: wrong values: relative L1 {whole * slack:.3g} (budget {0.99 * whole * slack:.3g})"
    )
    assert fault(head_rel_l1=0.059) == (
        f"{name}: wrong values: relative L1 of a head {share:.3g} (budget {0.059 * slack:.3g})"
    )
    record = compare(found, truth, Budget(relative=1.0)).errors[name]
    assert record.head_rel_l1 == pytest.approx(share)


@pytest.mark.parametrize("name", ["rel_l1", "head_rel_l1"])
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan"), True, "0.1"])
def test_a_bound_is_a_finite_number(name, value):
    with pytest.raises(UsageError, match=f"budget: {name}=.* cannot be used; a finite number, at least 0"):
        Budget(**{name: value})
    assert Budget(**{name: None}) == Budget()


def test_bounds_by_the_kind_of_inputs_replace_the_others():
    budget = Budget(relative=1.0, rel_l1=0.06, head_rel_l1=0.07, largest=0.3, by_input={"video": RelL1(0.01, 0.02)})
    found = {kind: budget.on(kind) for kind in ("video", "normal", "q.safetensors@1a2b3c4d")}
    assert found["video"] == Budget(relative=1.0, rel_l1=0.01, head_rel_l1=0.02)
    assert found["normal"] == found["q.safetensors@1a2b3c4d"] == replace(budget, by_input={})


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"vidoe": RelL1(0.01, 0.02)}, "by_input=vidoe is no kind of inputs; one of normal"),
        ({"video": RelL1(0.01, -1.0)}, r"head_rel_l1=-1.0 cannot be used; a finite number, at least 0"),
    ],
)
def test_bounds_of_an_unknown_kind_or_without_a_number_are_refused(bounds, words):
    with pytest.raises(UsageError, match=f"budget: {words}"):
        Budget(by_input=bounds)
