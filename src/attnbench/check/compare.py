"""Whether outputs are right: error budgets against the oracle.

**The rule** has two measures of what an implementation in the case's own precision may be off by, both against
fp64.  With ``E`` the largest error of the plain evaluation in that precision, ``ε`` its rounding step (2⁻⁷ for
bf16, 2⁻¹⁰ for fp16, 2⁻²³ for fp32), ``M`` the largest value of the truth and ``N`` the largest expected error, an
output may be off by

    max(factor · E + ε · M,  REACH · factor · N,  relative · rms)     factor and relative: the backend's `Budget`

- ``E`` is the rule that FlashAttention's tests made customary: it grows with the case as any implementation's
  error must.  ``factor`` is 2 by default: a kernel rounds as often as the plain evaluation, elsewhere.  One step,
  because the result itself is stored rounded.
- ``N`` comes from an analysis of rounding errors (`workloads.rounding`; each workload's `rounding.py` has it
  derived): the standard deviation of each element of an evaluation that adds up its sums one term after another.  In it
  are what E has only by luck or not at all: the length of every sum (keys for the output and dq, queries times heads of
  a group for dk and dv, head dim for the scores), the size of its terms where they cancel, the sizes of scores and,
  for weights that are recomputed from a stored logarithm, of that.  The plain evaluation of a small case is off
  by next to nothing by luck, and torch's own products add in many short sums where a kernel has one long one.
- ``REACH · factor`` is 4 standard deviations.  N counts every rounding at its largest and every sum in its worst order,
  so that of millions of elements none comes near: in fp32 the simulation's largest error is half of that.
- Gradients (outputs of that `workloads.base.OutputKind`) have twice of both: a chain of products, with the small
  difference dP - rowsum(dO ∘ O) in it, which fused kernels compute from a stored and rounded O, and with the sum over
  the query heads of a KV head, each stored rounded by some, and by torch on a CPU each part of a sum of 16-bit
  gradients.

**Relative L1.**  A kernel of lower precision by design has a wide budget for its largest error, in which a broken
scale can hide.  Its `Budget` may also bound Σ|x - t| / Σ|t|, of the whole output (``rel_l1``) and of the head where it
is largest (``head_rel_l1``); gradients have twice of both.

**Rows and slices.**  The largest error alone cannot see a wrong row of small values.  So every output is also held row
by row and slice by slice (a head), in units of what rounding explains there: the norm of the error over the norm of
the expected errors.  A row may reach the larger of REACH and the plain evaluation's worst row, times factor; a
slice, over which errors average out, the larger of 1 and the plain evaluation's worst, times factor.

`benchmarks/budgets.py` simulates how often right problems are called wrong (none of those in
benchmarks/results/budgets.json) and which errors are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.check.deviation import Deviation, Expected, expected_of, measure, place
from attnbench.errors import WorkerError, refusal
from attnbench.record import Error
from attnbench.workloads.base import OutputKind

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.base import Budget

GRADIENT_SLACK = 2.0
REACH = 2.0
"Standard deviations by factor."
COMPARED = (OutputKind.VALUE, OutputKind.GRADIENT)
"Kinds of outputs that are compared element by element with the oracle's."


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right for one variant and one set of inputs, and how far plain evaluation is from it."""

    oracle: Mapping[str, Tensor]
    "in fp64 or fp32, the drawn part"
    plain: Mapping[str, Deviation]
    "of the evaluation in the case's own precision"
    expected: Mapping[str, Expected]
    "errors of rounding"
    dtype: Any
    "torch dtype of the outputs"
    kinds: Mapping[str, OutputKind]
    "of each output in `oracle`"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What is accepted of one output."""

    element: float
    "largest absolute error"
    row: float
    "norm of an error over that of the expected ones"
    slice: float
    by_design: float
    "root mean square of an error that a backend of lower precision may have anywhere"
    rel_l1: float
    "of the whole output"
    head_rel_l1: float
    "of the worst head"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outputs held against the truth."""

    errors: dict[str, Error]
    faults: dict[str, str]
    "words for each output that is wrong"

    @property
    def ok(self) -> bool:
        """Whether every output is within its budget."""
        return not self.faults


def make_truth(
    oracle: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    dtype: Any,
    kinds: Mapping[str, OutputKind],
) -> Truth:
    """Measure the plain evaluation; its tensors are not kept.

    Args:
        oracle: the right outputs.
        plain: those in the precision of the outputs.
        expected: standard deviation of each element, of `Workload.expected_errors`.
        dtype: of the outputs.
        kinds: of the outputs, of `Workload.outputs`.

    Raises:
        WorkerError: the oracle is not finite or has an output without a kind (a mistake of the workload, not of a
            backend).
    """
    deviations, errors, notes = {}, {}, []
    for name in oracle:
        if kinds.get(name) not in COMPARED:
            found = kinds[name].value if name in kinds else None
            raise WorkerError(
                refusal(
                    "oracle",
                    f"outputs[{name}]",
                    found,
                    "is no kind of an output that is compared",
                    " or ".join(kind.value for kind in COMPARED),
                    "declare it in Workload.outputs",
                )
            )
    if not all(right.isfinite().all() for right in oracle.values()):
        raise WorkerError(f"oracle: {', '.join(oracle)} not finite; no backend can be held against it")
    for name, right in oracle.items():
        found, explained = plain[name], expected[name]
        # What is infinite would accept anything: what is left is the other measure.
        if not found.isfinite().all():
            notes.append(f"{name}: the plain evaluation in {_short(dtype)} is not finite; the budget is rounding alone")
            found = right
        if not explained.isfinite().all():
            notes.append(f"{name}: the expected error is not finite; the budget is the plain evaluation's alone")
            explained = explained.new_zeros(()).expand_as(explained)
        errors[name] = expected_of(explained)
        deviations[name] = measure(found, right, expected=errors[name] if errors[name].largest else None)
    return Truth(oracle, deviations, errors, dtype, {name: kinds[name] for name in oracle}, tuple(notes))


def limits(name: str, truth: Truth, budget: Budget) -> Limits:
    """What the budget accepts of an output."""
    plain, is_gradient = truth.plain[name], truth.kinds[name] is OutputKind.GRADIENT
    slack = GRADIENT_SLACK if is_gradient else 1.0
    factor = budget.factor * slack
    absolute = budget.relative * plain.rms
    # Few terms make up a row of a gradient (one, at the last key of a causal mask), and their factors may cancel
    # where the derivation has none of it: what is less than a half step of the largest element is no wrong row.
    unseen = max(absolute, _step(truth.dtype) * plain.largest / 2) if is_gradient else absolute
    return Limits(
        element=max(
            factor * plain.max_abs + _step(truth.dtype) * plain.largest,
            factor * REACH * truth.expected[name].largest,
            absolute,
        ),
        row=factor * max(plain.row.value, REACH),
        slice=factor * max(plain.slice.value if plain.slice else 0.0, 1.0),
        by_design=unseen,
        rel_l1=slack * (math.inf if budget.rel_l1 is None else budget.rel_l1),
        head_rel_l1=slack * (math.inf if budget.head_rel_l1 is None else budget.head_rel_l1),
    )


def compare(found: Mapping[str, Tensor], truth: Truth, budget: Budget) -> Comparison:
    """Hold outputs against the truth.

    Args:
        found: the drawn part of the outputs, with every name of the truth.
        truth: of the same inputs.
        budget: of the backend.
    """
    errors, faults = {}, {}
    for name, right in truth.oracle.items():
        if found[name].shape != right.shape:
            faults[name] = f"{name}: shape={list(found[name].shape)} is wrong; {list(right.shape)}"
            continue
        accepted = limits(name, truth, budget)
        expected = truth.expected[name]
        off = measure(
            found[name],
            right,
            limit=accepted.element,
            expected=expected if expected.largest else None,
            by_design=accepted.by_design,
        )
        if not math.isfinite(off.rmse):
            faults[name] = f"{name}: wrong values: not all are finite"
            continue
        fault = _fault(name, off, accepted, tuple(right.shape))
        if fault:
            faults[name] = fault
        errors[name] = Error(
            max_abs=off.max_abs,
            rel_l1=off.rel_l1,
            head_rel_l1=off.head_rel_l1,
            rmse=off.rmse,
            cosine=off.cosine,
            budget=accepted.element,
            ok=not fault,
        )
    return Comparison(errors, faults)


def accepts_zeros(truth: Truth, budget: Budget) -> set[str]:
    """Names of the outputs that might as well be zeros, as far as the budget goes.

    Args:
        truth: whose budget is used; an output that is zeros indeed says nothing.
        budget: of the backend.
    """
    import torch

    names = {name for name, right in truth.oracle.items() if bool(right.any())}
    zeros = {name: torch.zeros_like(right) for name, right in truth.oracle.items()}
    return names - compare(zeros, truth, budget).faults.keys()


def matches(
    found: Mapping[str, Tensor], answer: Mapping[str, Tensor], truth: Truth, budget: Budget, names: Iterable[str]
) -> bool:
    """Whether outputs are, within the budget, another answer than the truth.

    Args:
        found: outputs that are wrong.
        answer: what they may be instead.
        truth: whose budget is used.
        budget: of the backend.
        names: the outputs that count: those known to be wrong.
    """
    shared = [name for name in names if name in answer]
    return bool(shared) and all(
        found[name].shape == answer[name].shape
        and measure(found[name], answer[name]).max_abs <= limits(name, truth, budget).element
        for name in shared
    )


def _fault(name: str, off: Deviation, accepted: Limits, shape: tuple[int, ...]) -> str | None:
    if off.max_abs > accepted.element:
        return (
            f"{name}: wrong values: worst error {off.max_abs:.3g} (budget {accepted.element:.3g}) "
            f"at {place(off.worst, shape)}; {_percent(off.over / off.numel)} of {off.numel} elements over budget"
        )
    if off.row.value > accepted.row:
        return (
            f"{name}: wrong values in a row: {off.row.value:.3g} times what rounding explains "
            f"(budget {accepted.row:.3g}) at {place(off.row.at, shape[:-1])}"
        )
    if off.slice is not None and off.slice.value > accepted.slice:
        where = f"[..., {off.slice.at}, :]" if len(shape) > 2 else "the whole"
        return (
            f"{name}: wrong values in a slice: {off.slice.value:.3g} times what rounding explains "
            f"(budget {accepted.slice:.3g}) at {where}"
        )
    for words, value, most in (
        ("", off.rel_l1, accepted.rel_l1),
        (" of a head", off.head_rel_l1, accepted.head_rel_l1),
    ):
        if value is not None and value > most:
            return f"{name}: wrong values: relative L1{words} {value:.3g} (budget {most:.3g})"
    return None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _step(dtype: Any) -> float:
    import torch

    return float(torch.finfo(dtype).eps)
