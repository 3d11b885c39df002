"""The kind of an output decides how it is checked, whatever its name."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from attnbench.backends.base import Budget
from attnbench.check.compare import GRADIENT_SLACK, compare, limits, make_truth
from attnbench.check.examine import examine
from attnbench.check.inspection import Inspection
from attnbench.check.reference import References
from attnbench.errors import WorkerError
from attnbench.workloads.base import OutputKind
from attnbench.workloads.hstu import WORKLOAD as HSTU
from check.launches import Session, SumCase, SumWorkload, result_type

VALUE, GRADIENT, CHOICE = OutputKind.VALUE, OutputKind.GRADIENT, OutputKind.CHOICE


def truth_of(kinds, error=1e-3):
    right = torch.linspace(-1, 1, 256, dtype=torch.float64).reshape(4, 64)
    outputs = dict.fromkeys(kinds, right)
    return make_truth(
        outputs,
        dict.fromkeys(kinds, right + error),
        dict.fromkeys(kinds, torch.zeros_like(right)),
        torch.float32,
        kinds,
    )


@pytest.mark.parametrize("name", ["out", "lse", "scores", "dq"])
def test_a_gradient_has_twice_the_budget_of_a_value(name):
    value, gradient = (limits(name, truth_of({name: kind}), Budget()) for kind in (VALUE, GRADIENT))
    step = 2**-23
    assert value.element == pytest.approx(2e-3 + step)
    assert gradient.element == pytest.approx(GRADIENT_SLACK * 2e-3 + step)
    assert (value.by_design, gradient.by_design) == (0.0, step / 2)


def test_a_second_value_is_not_let_off_as_a_gradient():
    """What the old rule accepted: everything that is not called `out` had twice the budget."""
    truth = truth_of({"out": VALUE, "lse": VALUE, "dq": GRADIENT})
    off = {name: right + 3e-3 for name, right in truth.oracle.items()}
    assert set(compare(off, truth, Budget()).faults) == {"out", "lse"}


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (
            {"out": VALUE},
            r"oracle: outputs\[dq\]=None is no kind of an output that is compared; value or gradient; "
            r"declare it in Workload.outputs",
        ),
        ({"out": VALUE, "dq": CHOICE}, r"oracle: outputs\[dq\]=choice is no kind .*"),
    ],
)
def test_an_output_of_the_oracle_needs_a_kind_that_is_compared(kinds, words):
    right = torch.ones(2, 8, dtype=torch.float64)
    both = dict.fromkeys(("out", "dq"), right)
    with pytest.raises(WorkerError, match=f"^{words}$"):
        make_truth(both, both, both, torch.float32, kinds)


class Renamed(SumWorkload):
    """The same sums under other names: two values, and a gradient that is not called d-something."""

    def outputs(self, variant):
        return {"mean": VALUE, "half": VALUE, "slope": GRADIENT}

    def oracle(self, variant, case, inputs, *, dtype, draw):
        return renamed(super().oracle(variant, case, inputs, dtype=dtype, draw=draw))

    def expected_errors(self, variant, case, inputs, *, draw):
        return renamed(super().expected_errors(variant, case, inputs, draw=draw))

    def signs(self, case):
        return dict.fromkeys(("x", "mean", "half"), "x") | dict.fromkeys(("dout", "slope"), "dout")

    def suspects(self, variant, case, inputs, *, draw):
        return ()


def renamed(found):
    names = {"out": "mean", "dx": "slope"}
    return {names[name]: tensor for name, tensor in found.items()} | {"half": found["out"] / 2}


class RenamedSession(Session):
    def compute(self):
        return renamed(super().compute())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_a_workload_may_name_its_outputs_as_it_likes(mode):
    case, workload = SumCase(mode=mode), Renamed()
    group = References(workload, case, *(workload.inputs(case, seed=seed) for seed in (1, 2)))
    launch = RenamedSession(case, group.first.inputs).launch()
    outcome = examine(launch, group, variant="mean", budget=Budget())
    assert outcome.ok, outcome.reason
    assert set(outcome.errors) == ({"mean", "half"} if mode == "fwd" else {"mean", "half", "slope"})
    if mode == "bwd":
        # A backward reads what its forward left: only gradients may be spoiled between the two.
        look = Inspection(launch, group, variant="mean", budget=Budget())
        left = launch.outputs()
        look.prepare()
        spoiled = {name for name, tensor in left.items() if not tensor.isfinite().all()}
        assert spoiled == {"slope"}


def test_a_wrong_second_value_is_named():
    case, workload = SumCase(), Renamed()
    group = References(workload, case, *(workload.inputs(case, seed=seed) for seed in (1, 2)))

    class Off(RenamedSession):
        def compute(self):
            found = super().compute()
            found["half"] = found["half"].to(torch.float64).mul(1.01).to(result_type(self.case))
            return found

    outcome = examine(Off(case, group.first.inputs).launch(), group, variant="mean", budget=Budget())
    assert not outcome.ok
    assert outcome.reason.startswith("half: wrong values")


def test_a_choice_without_a_judge_is_the_workloads_mistake():
    class NoJudge(SumWorkload):
        def outputs(self, variant):
            return {**super().outputs(variant), "picked": CHOICE}

    case, workload = SumCase(), NoJudge()
    group = References(workload, case, *(workload.inputs(case, seed=seed) for seed in (1, 2)))
    launch = Session(case, group.first.inputs).launch()
    both = launch.outputs
    launch = dataclasses.replace(launch, outputs=lambda: {**both(), "picked": torch.zeros(1, dtype=torch.int32)})
    with pytest.raises(WorkerError, match=r"^workload: choice=mean declares an output of kind choice and no judge; "):
        examine(launch, group, variant="mean", budget=Budget())


@pytest.mark.parametrize("variant", HSTU.variants)
def test_a_variant_has_a_judge_where_it_has_a_choice(variant):
    choices = [name for name, kind in HSTU.outputs(variant).items() if kind is CHOICE]
    assert choices == (["blocks"] if variant == "hstu-bsa" else [])
    assert (HSTU.choice(variant) is not None) == bool(choices)
