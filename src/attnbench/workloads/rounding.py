"""Errors that rounding explains: the laws that the workloads' `rounding.py` share.

**One rounding.**  A number rounded to nearest in a format of step ε (2⁻²³ for fp32, 2⁻¹⁰ for fp16, 2⁻⁷ for bf16)
is off by at most u = ε/2 of itself; over numbers of all sizes the error's variance is at most u²/3.  A number in
fp16 below 6·10⁻⁵ is a multiple of 2⁻²⁴ instead: the variance is 2⁻⁴⁸/12 whatever its size.

**A sum.**  n terms t are added in fp32, w = 2⁻²⁴, one after another, the worst order in use.  Each of the n
additions rounds the sum so far.  Rounding errors behave as independent with mean 0 (Higham and Mary 2019,
doi:10.1137/18M1226312: this is why √n is observed and not n), so variances add.  After k terms the sum so far is about
k/n of the whole sum s, plus a random walk of variance k/n Σt², so

    variance = w²/3 Σₖ (k²/n² s² + k/n Σt²) ≤ n w²/6 (s² + Σt²)        for n > 1; `ADD` n (s² + Σt²)

The error of a sum that cancels (s far below Σ|t|) is thus a share of its terms, not of itself: it depends on the length
and the terms of a sum, and neither follows from the largest value of the result.

**Propagation.**  A relative error of a term of variance η² adds η² t² to that of the sum.  A quantity that a
whole row shares, such as its log-sum-exp, adds the same relative error to all its terms.

Imports torch only where it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import dtype

SUM = 2.0**-24
"Half a step of fp32, in which sums are computed: w."

ADD = SUM**2 / 6
"Variance of a sum per term, relative to its square plus the sum of the terms' squares."

FUNCTION = (8 * SUM) ** 2
"""Relative variance of an exponential or a sigmoid in fp32: 4 steps.  GPU instructions are off by 2; torch's vectorised
exponential on a CPU (exp_u20, in its fused attention) is off by up to 10."""


@dataclass(frozen=True, slots=True)
class Format:
    """Storage format of the numbers of a case."""

    store: float
    "relative variance of rounding a number"
    least: float
    "variance of rounding a number so small that it has fewer digits"

    @classmethod
    def of(cls, dtype: dtype) -> Format:
        """Return the format of a precision."""
        import torch

        info = torch.finfo(dtype)
        return cls((info.eps / 2) ** 2 / 3, (info.tiny * info.eps) ** 2 / 12)
