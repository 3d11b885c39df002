"""Whether outputs are right: error budgets against the oracle.

**The rule** is the one FlashAttention's tests made customary: a kernel may be off by a multiple of
what the plain evaluation in the case's own precision is off by, both held against fp64.  A fixed
tolerance is too tight for a long sequence in bf16 or too loose for a short one in fp32; the plain
error grows with the case as any implementation's must.  With ``E`` the largest error of the plain
evaluation, ``ε`` the precision's rounding step (2⁻⁷ for bf16, 2⁻¹⁰ for fp16, 2⁻²³ for fp32) and ``M``
the largest value of the truth, an output may be off by

    max(factor · E + steps · ε · M,  relative · rms)        factor and relative: the backend's `Budget`

- ``factor`` is 2 by default: the kernel rounds as often as the plain evaluation, elsewhere; luck in
  the worst of many elements makes up the rest.  One step, because the result itself is stored rounded.
- Gradients have twice the factor: a chain of products, with the small difference dP - rowsum(dO ∘ O)
  in it, which fused kernels compute from a stored and rounded O, and with the sum over the query heads
  of a KV head, each stored rounded by some.  (With 3 instead of 4, torch's own fused attention fails
  small cases of four query heads a KV head on a CPU.)
- In fp32 there are 16 steps: the plain evaluation is so close to exact that the order of sums and an
  exponent recomputed from a stored logarithm decide.  16 ε is 2·10⁻⁶, far under what TF32 would be.
- A gradient that cancels to nothing (one key: dQ = 0) takes M from the other outputs.

**Rows and slices.**  The largest error alone cannot see a wrong row of small values.  So the output
(not the gradients: a row of these may cancel) is also held row by row, and every output slice by
slice (a head), to ``factor ·`` the plain evaluation's worst row or slice ``+ steps · ε / 2``, each
relative to its own norm, or the median's if that is larger.  This resolves about 0.5 % of one row in
fp16 and 4 % in bf16, where the plain evaluation itself is off by 1 to 2 % in its worst row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.check.deviation import Deviation, Share, measure, place
from attnbench.errors import WorkerError
from attnbench.record import Error

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.backends.base import Budget

GRADIENT_SLACK = 2.0
FP32_STEPS = 16


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right for one variant and one set of inputs, and how far plain evaluation is from it."""

    oracle: Mapping[str, Tensor]
    "in fp64 or fp32, the drawn part"
    plain: Mapping[str, Deviation]
    "of the evaluation in the case's own precision"
    floor: Mapping[str, float]
    "size of an element to take rounding from where an output cancelled to nothing, else 0"
    dtype: Any
    "torch dtype of the case"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What is accepted of one output."""

    element: float
    "largest absolute error"
    row: float
    "share of a row's norm; inf where rows are not judged"
    slice: float


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


def make_truth(oracle: Mapping[str, Tensor], plain: Mapping[str, Tensor], dtype: Any) -> Truth:
    """Measure the plain evaluation; its tensors are not kept.

    Raises:
        WorkerError: the oracle is not finite (a mistake of the workload, not of a backend).
    """
    deviations, notes = {}, []
    sizes = {name: right.abs().max().item() if right.numel() else 0.0 for name, right in oracle.items()}
    top = max(sizes.values())
    if not math.isfinite(math.fsum(sizes.values())):
        raise WorkerError(f"oracle: {', '.join(oracle)} not finite; no backend can be held against it")
    floor = {name: top if size <= _step(dtype) * top else 0.0 for name, size in sizes.items()}
    for name, right in oracle.items():
        found = plain[name]
        if not found.isfinite().all():
            # An infinite plain error would accept anything: what is left is the rounding.
            notes.append(f"{name}: the plain evaluation in {_short(dtype)} is not finite; the budget is rounding alone")
            found = right
        deviations[name] = measure(found, right, floor=floor[name])
    return Truth(oracle, deviations, floor, dtype, tuple(notes))


def limits(name: str, truth: Truth, budget: Budget) -> Limits:
    """What the budget accepts of an output."""
    plain = truth.plain[name]
    gradient = name != "out"
    factor = budget.factor * (GRADIENT_SLACK if gradient else 1.0)
    step = _step(truth.dtype)
    absolute = budget.relative * plain.rms

    def share(worst: Share) -> float:
        by_design = absolute * math.sqrt(worst.elements) / worst.least if worst.least else 0.0
        return max(factor * worst.value + step / 2, by_design)

    return Limits(
        element=max(factor * plain.max_abs + step * max(plain.largest, truth.floor[name]), absolute),
        row=math.inf if gradient else share(plain.row),
        slice=math.inf if plain.slice is None else share(plain.slice),
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
        off = measure(found[name], right, limit=accepted.element, floor=truth.floor[name])
        if not math.isfinite(off.rmse):
            faults[name] = f"{name}: wrong values: not all are finite"
            continue
        fault = _fault(name, off, accepted, tuple(right.shape))
        if fault:
            faults[name] = fault
        errors[name] = Error(max_abs=off.max_abs, rel_l1=off.rel_l1, rmse=off.rmse, cosine=off.cosine,
                             budget=accepted.element, ok=not fault)
    return Comparison(errors, faults)


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
        return (f"{name}: wrong values: worst error {off.max_abs:.3g} (budget {accepted.element:.3g}) "
                f"at {place(off.worst, shape)}; {_percent(off.over / off.numel)} of {off.numel} elements over budget")
    if off.row.value > accepted.row:
        return (f"{name}: wrong values in a row: relative error {_percent(off.row.value)} "
                f"(budget {_percent(accepted.row)}) at {place(off.row.at, shape[:-1])}")
    if off.slice is not None and off.slice.value > accepted.slice:
        where = f"[..., {off.slice.at}, :]" if len(shape) > 2 else "the whole"
        return (f"{name}: wrong values in a slice: relative error {_percent(off.slice.value)} "
                f"(budget {_percent(accepted.slice)}) at {where}")
    return None


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _step(dtype: Any) -> float:
    import torch

    return float(torch.finfo(dtype).eps) * (FP32_STEPS if dtype == torch.float32 else 1)
