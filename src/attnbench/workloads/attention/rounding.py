"""Errors that rounding explains in softmax attention, element by element: one standard deviation.

With the rules of `workloads.rounding`, u the half step of the case's precision, w that of fp32, and n keys, for one
row of scores s = c q·k, its log-sum-exp L, weights p = exp(s - L), and what follows from them:

    score        a sum of D products, scaled; stored in the case's precision by implementations that store it
                 σ² = D w²/6 (c² Σ(q∘k)² + s²) + u²/3 s²
    weight       relative η² = σ² + (8 w)² (the exponential) + 2/3 w² s² (its argument, scaled and subtracted from)
                 + u²/3 (stored)
    row          relative λ² = w²/3 (4 L² + n/3): maximum and logarithm are fp32 numbers of size L, and their error
                 is one of the exponent, so all weights of a row are off by the factor exp(w L); n/3 is the
                 sum of the weights.  It cancels in O, which is divided by the same sum, but not in gradients that
                 recompute weights from a stored L: so with large scores these have larger errors than the plain
                 evaluation, which keeps its weights
    O = Σ p v    Σ p² (η² + n w²/6) (v² + o²) + o² (n w²/6 + λ² + u²/3)
    dP = dO·v    Dv w²/6 (Σ(do∘v)² + dP²) + u²/3 dP²
    δ = dO·O     Σ do² variance of O, + Σ p² η² dP² (if it is a sum of weights), + Dv w²/6 (Σ(do∘o)² + δ²)
    dS = p (dP - δ)          dS² (η² + λ² + u²/3) + p² (variance of dP, and of δ, the same for all of a row)
    dQ, dK       c² times the variances of dS, with w²/6 times the length of the sum, times k² or q²; dQ takes δ's
                 for Σ p k, as all keys share one.  Then u²/3 of the result.  The same for dV with p and dO
    dK, dV       are sums over n = R Sq queries; each query head's share may be stored before they are added

Evaluated in fp32, because one significant digit is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.workloads.attention import parts
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import AttentionInputs, torch_dtype
from attnbench.workloads.attention.oracle import Rule, in_blocks, reachable
from attnbench.workloads.base import Draw
from attnbench.workloads.rounding import ADD, FUNCTION, SUM, Format


def expected_errors(
    case: AttentionCase, inputs: AttentionInputs, *, draw: Draw, workspace: int | None = None
) -> dict[str, Tensor]:
    """Standard deviation of each element of each output, fp32, shaped as `parts.output_shapes` of the draw.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        draw: which pairs.
        workspace: limit of intermediate results in bytes, as in the oracle.
    """
    numbers = Format.of(torch_dtype(case))

    def errors(workspace: int, **tensors: Tensor) -> dict[str, Tensor]:
        return deviations(**tensors, rule=Rule.of(case), numbers=numbers, workspace=workspace)

    return in_blocks(case, inputs, errors, dtype=torch.float32, draw=draw, workspace=workspace)


SMALLEST_WEIGHT = 1e-15
"Errors of smaller weights are as large as this one's; their squares would be 0 in fp32."


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of weights, and their contributions to the variances."""

    p: Tensor
    "0 where hidden"
    eta: Tensor
    "relative variance of a weight"
    common: Tensor
    "λ², common to a row's weights"
    out: Tensor
    out_variance: Tensor
    keys: int
    "number of terms of a row's sums"


@torch.no_grad()
def deviations(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None = None, *, rule: Rule, numbers: Format, workspace: int
) -> dict[str, Tensor]:
    """Standard deviations of N pairs, shapes as in `oracle.attend`."""
    count, heads, queries, _ = q.shape
    keys, band = k.shape[1], rule.band(queries, k.shape[1])
    k, v = k[:, None], v[:, None]
    out, dq = q.new_zeros(*q.shape[:3], v.shape[3]), None if dout is None else torch.zeros_like(q)
    # Variances, and the values contributed by each query head.
    sums = (
        {}
        if dout is None
        else {
            name: (q.new_zeros(count, keys, x.shape[3]), q.new_zeros(count, heads, keys, x.shape[3]))
            for name, x in (("dk", k), ("dv", v))
        }
    )
    step = max(1, min(queries, workspace // (2 * parts.ITEM_BYTES * parts.SCORES * count * heads * keys)))
    for start in range(0, queries, step):
        rows = range(start, min(start + step, queries))
        seen = reachable(rows, keys, band)
        if not seen:
            continue
        at, of = slice(rows.start, rows.stop), slice(seen.start, seen.stop)
        tensors = q[:, :, at], k[:, :, of], v[:, :, of]
        mask = rule.mask(rows, seen, (queries, keys), q.device)
        found = _forward(*tensors, mask, rule.scale, numbers)
        out[:, :, at] = found.out_variance
        if dout is not None and dq is not None:
            parted = {name: (variance[:, of], value[:, :, of]) for name, (variance, value) in sums.items()}
            dq[:, :, at] = _backward(*tensors, dout[:, :, at], found, parted, heads * queries, rule.scale, numbers)
    result = {"out": out} if dq is None else {"out": out, "dq": dq}
    for name, (variance, value) in sums.items():
        whole = value.sum(1).square() * (numbers.store + heads * queries * ADD)
        result[name] = variance + numbers.store * value.square().sum(1) + whole
    return {name: x.sqrt_() for name, x in result.items()}


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, numbers: Format) -> _Rows:
    n, of_dot = k.shape[2], ADD * q.shape[3]
    s = (q * scale) @ k.mT
    eta = (q.square() * (of_dot * scale**2)) @ k.square().mT
    eta.addcmul_(s, s, value=of_dot + numbers.store + 2 / 3 * SUM**2).add_(FUNCTION + numbers.store)
    if mask is not None:
        s.masked_fill_(~mask, -torch.inf)
    top = s.amax(-1, keepdim=True)
    empty = top == -torch.inf
    p = s.softmax(-1)
    # The largest weight is exp(top - lse).
    lse = (top - p.amax(-1, keepdim=True).log_()).masked_fill_(empty, 0.0)
    p.clamp_(min=SMALLEST_WEIGHT)
    if mask is not None:
        p.masked_fill_(~mask, 0.0)
    common = SUM**2 / 3 * (4 * lse.square() + n / 3)
    out = p @ v
    terms = (p * p).mul_(eta + n * ADD).add_(numbers.least)
    variance = terms @ v.square() + numbers.least
    variance += out.square() * (terms.sum(-1, keepdim=True) + n * ADD + common + numbers.store)
    # The output of a query that sees no key is exact.
    return _Rows(p, eta, common, out, variance.masked_fill_(empty, 0.0), n)


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    rows: _Rows,
    sums: dict[str, tuple[Tensor, Tensor]],
    queries: int,
    scale: float,
    numbers: Format,
) -> Tensor:
    """Return the variance of dQ; add variances and values of dK and dV to `sums`."""
    p, eta, n = rows.p, rows.eta, rows.keys
    squares = p * p
    dp = dout @ v.mT
    delta = (dout * rows.out).sum(-1, keepdim=True)
    of_delta = (dout.square() * rows.out_variance).sum(-1, keepdim=True)
    of_delta += (squares * eta).mul_(dp).mul_(dp).sum(-1, keepdim=True)
    of_delta += v.shape[3] * ADD * ((dout * rows.out).square().sum(-1, keepdim=True) + delta.square())
    of_dp = (dout.square() * (v.shape[3] * ADD)) @ v.square().mT
    of_dp.addcmul_(dp, dp, value=v.shape[3] * ADD + numbers.store)
    ds = dp.sub_(delta).mul_(p)
    ds_squares = ds * ds
    of_ds = of_dp.mul_(squares).addcmul_(ds_squares, eta + numbers.store).add_(numbers.least)
    dq = ds @ k * scale
    variance = scale**2 * ((of_ds + n * ADD * ds_squares) @ k.square() + of_delta * (p @ k).square())
    variance += dq.square() * (rows.common + numbers.store + n * ADD) + numbers.least
    of_ds.addcmul_(ds_squares, rows.common + queries * ADD).addcmul_(squares, of_delta)
    weights = squares.mul_(eta + (rows.common + queries * ADD)).add_(numbers.least)
    for name, of_terms, terms, of in (("dk", of_ds * scale**2, ds * scale, q), ("dv", weights, p, dout)):
        variance_sum, values = sums[name]
        variance_sum += (of_terms.mT @ of.square()).sum(1)
        values += terms.mT @ of
    return variance
