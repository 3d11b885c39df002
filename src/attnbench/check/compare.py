"""Whether outputs are right: error budgets against the oracle.

**The rule** uses two estimates of the error that an implementation in the case's own precision may have, both
measured against fp64.  With ``E`` the largest error of the plain evaluation in that precision, ``ε`` its rounding step
(2⁻⁷ for bf16, 2⁻¹⁰ for fp16, 2⁻²³ for fp32), ``M`` the largest value of the truth and ``N`` the largest expected error,
an output may differ from the truth by

    max(factor · E + ε · M,  REACH · factor · N,  relative · rms,  largest · M,  element · rms)

``factor``, ``relative``, ``largest`` and ``element`` are the backend's `Budget`.

- ``E`` is the customary rule of FlashAttention's tests: it grows with the case as the error of any implementation
  does.  ``factor`` is 2 by default, because a kernel rounds as often as the plain evaluation but in other places.
  One rounding step is added because the result itself is stored rounded.
- ``N`` comes from an analysis of rounding errors (`workloads.rounding`; derived in each workload's `rounding.py`): the
  standard deviation of each element, for an evaluation that adds the terms of a sum one after another.  It includes
  what E contains only by chance or not at all: the length of every sum (keys for the output and dq, queries times
  heads of a group for dk and dv, head dim for the scores), the size of its terms where they cancel, the sizes of
  scores and, for weights that are recomputed from a stored logarithm, the size of that logarithm.  In a small case the
  plain evaluation may have almost no error by chance, and torch's own products add many short sums where a kernel has
  one long one.
- ``REACH · factor`` is 4 standard deviations.  N assumes the largest value of every rounding error and the worst order
  of every sum, so that none of millions of elements comes near the limit: in fp32 the largest simulated error is half
  of it.
- Gradients (outputs of that `workloads.base.OutputKind`) have twice both limits.  A gradient is a chain of products.
  It contains the small difference dP - rowsum(dO ∘ O), which fused kernels compute from a stored and rounded O, and a
  sum over the query heads of a KV head: some kernels store each term rounded, and torch on a CPU rounds each partial
  sum of 16-bit gradients.
- ``element`` is for 8-bit values: among a hundred million elements there is one whose largest term is off by nearly half
  a step of its value, and by its score's rounding.  Its row is not off as a whole, so the limit of a row does not grow.

**Relative L1.**  A kernel of lower precision by design has a wide budget for its largest error, in which a broken
scale can hide.  Its `Budget` may also bound Σ|x - t| / Σ|t|, of the whole output (``rel_l1``) and of its worst head
(``head_rel_l1``); gradients have twice both.

**Rows and slices.**  The largest error alone cannot reveal a wrong row of small values.  So every output is also
compared row by row and slice by slice (a head), as a ratio: the norm of the error over the norm of the errors that
rounding explains.  The limit of a row is factor times the larger of REACH and the plain evaluation's worst row.  The
limit of a slice, over which errors average out, is factor times the larger of 1 and the plain evaluation's worst slice.

`benchmarks/budgets.py` simulates how often correct outputs are rejected (none of those in
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
"Standard deviations per unit of `factor`."
COMPARED = (OutputKind.VALUE, OutputKind.GRADIENT)
"Kinds of outputs that are compared element by element with the oracle's."


@dataclass(frozen=True, slots=True)
class Truth:
    """The right outputs for one variant and one set of inputs, and the error of the plain evaluation."""

    oracle: Mapping[str, Tensor]
    "in fp64 or fp32; only the parts that were drawn"
    plain: Mapping[str, Deviation]
    "error of the evaluation in the case's own precision"
    expected: Mapping[str, Expected]
    "errors expected from rounding"
    dtype: Any
    "torch dtype of the outputs"
    kinds: Mapping[str, OutputKind]
    "of each output in `oracle`"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest errors accepted of one output."""

    element: float
    "largest absolute error"
    row: float
    "norm of the error over the norm of the expected errors"
    slice: float
    by_design: float
    "root mean square of the error that a backend of lower precision may have in any row or slice"
    rel_l1: float
    "of the whole output"
    head_rel_l1: float
    "of the worst head"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of comparing outputs with the truth."""

    errors: dict[str, Error]
    faults: dict[str, str]
    "message for each wrong output, by its name"

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
    """Build the truth of one set of inputs: measure the plain evaluation's error; its tensors are not kept.

    Args:
        oracle: the right outputs.
        plain: outputs of the plain evaluation in the precision of the case.
        expected: standard deviation of each element, from `Workload.expected_errors`.
        dtype: torch dtype of the outputs.
        kinds: kinds of the outputs, from `Workload.outputs`.

    Raises:
        WorkerError: the oracle is not finite or has an output without a kind (an error of the workload, not of a
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
        # An infinite limit would accept anything, so only the other estimate is used.
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
    """Compute the largest errors that the budget accepts of an output."""
    plain, is_gradient = truth.plain[name], truth.kinds[name] is OutputKind.GRADIENT
    slack = GRADIENT_SLACK if is_gradient else 1.0
    factor = budget.factor * slack
    absolute = max(budget.relative * plain.rms, budget.largest * plain.largest)
    # A row of a gradient sums few terms (one, at the last key of a causal mask), and its factors may cancel where the
    # derivation does not assume it: an error below half a rounding step of the largest element makes no row wrong.
    unseen = max(absolute, _step(truth.dtype) * plain.largest / 2) if is_gradient else absolute
    return Limits(
        element=max(
            factor * plain.max_abs + _step(truth.dtype) * plain.largest,
            factor * REACH * truth.expected[name].largest,
            absolute,
            budget.element * plain.rms,
        ),
        row=factor * max(plain.row.value, REACH),
        slice=factor * max(plain.slice.value if plain.slice else 0.0, 1.0),
        by_design=unseen,
        rel_l1=slack * (math.inf if budget.rel_l1 is None else budget.rel_l1),
        head_rel_l1=slack * (math.inf if budget.head_rel_l1 is None else budget.head_rel_l1),
    )


def compare(found: Mapping[str, Tensor], truth: Truth, budget: Budget) -> Comparison:
    """Compare outputs with the truth.

    Args:
        found: the drawn parts of the outputs, with every name of the truth.
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
            rel_l1_budget=_known(accepted.rel_l1),
            head_rel_l1_budget=_known(accepted.head_rel_l1),
            ok=not fault,
        )
    return Comparison(errors, faults)


def accepts_zeros(truth: Truth, budget: Budget) -> set[str]:
    """Return the names of the outputs for which the budget would also accept zeros.

    Args:
        truth: whose budget is used; outputs that are all zero in it are left out.
        budget: of the backend.
    """
    import torch

    names = {name for name, right in truth.oracle.items() if bool(right.any())}
    zeros = {name: torch.zeros_like(right) for name, right in truth.oracle.items()}
    return names - compare(zeros, truth, budget).faults.keys()


def matches(
    found: Mapping[str, Tensor], answer: Mapping[str, Tensor], truth: Truth, budget: Budget, names: Iterable[str]
) -> bool:
    """Return whether wrong outputs equal another known answer, within the budget.

    Args:
        found: outputs that are wrong.
        answer: the other answer.
        truth: whose budget is used.
        budget: of the backend.
        names: the outputs to compare: those known to be wrong.
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


def _known(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _step(dtype: Any) -> float:
    import torch

    return float(torch.finfo(dtype).eps)
