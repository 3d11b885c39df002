"""Errors that rounding explains in HSTU attention, element by element: one standard deviation.

With the rules of `workloads.rounding`, u the half step of the case's precision, w that of fp32, and n keys, for a score
s = α q·k, its weight a = SiLU(s) = s σ(s), c the inverse divisor, with the mask implied:

    score      σ² = D w²/6 (α² Σ(q∘k)² + s²) + (u²/3 + 2/3 w²) s²; for a stored mean + α² u²/3 Σ(q∘k̄)²
    weight     SiLU'(s)² σ² + a² ((8 w)² + u²/3) + s² (w² + u²/64)
               The last term: h + h tanh h, h = s/2, cancels for s < 0 if it is computed in this form, in fp32 or, for a
               16-bit case, with a hardware instruction that is off by 2⁻¹¹
    O = c Σ a v         c² (Σ (variance of a + n w²/6 a²) v² + o² (n w²/6 + 2 u²/3)), stored before and after c
    dA = dO·v           Dv w²/6 (Σ(do∘v)² + dA²) + u²/3 dA²
    dS = dA SiLU'(s)    SiLU'² variance of dA + dA² (SiLU''(s)² σ² + SiLU'² ((8 w)² + u²/3) + (1 + s²)(w² + u²/64)/4)
                        + u²/3 dS²
    dQ, dK, dV          as O, with dS and k, dS and q, a and dO

The block-sparse function adds branches: variances add, times squared gates.  Each branch's output may be stored
before it is added, and that of the selected branch once per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import oracle_bsa, parts
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.inputs import HstuInputs, torch_dtype
from attnbench.workloads.hstu.oracle import Mask, Sink, visible
from attnbench.workloads.rounding import ADD, FUNCTION, SUM, Format

Varied = dict[str, tuple[Tensor, Tensor]]
"Variance and value of each output."


def expected_errors(
    case: HstuCase, inputs: HstuInputs, *, draw: Draw, workspace: int | None = None
) -> dict[str, Tensor]:
    """Return the standard deviation of each element of the dense variant's outputs, fp32, in the draw's layout.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        draw: which pairs.
        workspace: limit of intermediate results in bytes, as in the oracle.
    """
    sink = Sink(case, "hstu", inputs, dtype=torch.float32, draw=draw)
    numbers = Format.of(torch_dtype(case))
    for number, heads in sink.runs():
        shape = case.sequences[number]

        def mask(rows: range, shape: Any = shape) -> Tensor:
            return visible(case, shape, rows, inputs.q.device)

        found = errors_of(
            **_sources(case, sink, number, heads),
            mask=mask,
            alpha=case.alpha,
            scale=1 / case.scaling_seqlen,
            numbers=numbers,
            workspace=workspace,
        )
        sink.store(number, heads, {name: variance.sqrt() for name, (variance, _) in found.items()})
    return sink.result


def expected_errors_bsa(
    case: HstuCase, inputs: HstuInputs, *, draw: Draw, workspace: int | None = None
) -> dict[str, Tensor]:
    """Return the same for the block-sparse variant and the oracle's own blocks: equally good ones have equal errors."""
    sink = Sink(case, "hstu-bsa", inputs, dtype=torch.float32, draw=draw)
    numbers = Format.of(torch_dtype(case))
    chosen = parts.by_sequence(case, "q", oracle_bsa.select_blocks(case, inputs, workspace=workspace))
    for number, heads in sink.runs():
        given = chosen[number].transpose(0, 1)
        given = given[given.new_tensor(heads)] if given.shape[0] > 1 else given
        found = _branches(case, sink, number, heads, given, numbers, workspace)
        sink.store(number, heads, {name: variance.sqrt() for name, (variance, _) in found.items()})
    return sink.result


def _sources(case: HstuCase, sink: Sink, number: int, heads: list[int]) -> dict[str, Any]:
    tensors: dict[str, Any] = {name: sink.source(name, number, heads) for name in ("q", "k", "v")}
    return tensors | {"dout": sink.source("dout", number, heads) if case.has_backward else None}


def _branches(
    case: HstuCase, sink: Sink, number: int, heads: list[int], chosen: Tensor, numbers: Format, workspace: int | None
) -> Varied:
    shape, store = case.sequences[number], numbers.store
    tensors = _sources(case, sink, number, heads)
    dout = tensors["dout"]
    gates = sink.source("gates", number, heads) if case.gates else None
    total: Varied = {}
    of_gates = []
    for i, branch in enumerate(case.branches):
        gate = torch.ones_like(tensors["q"][..., :1]) if gates is None else gates[:, :, i : i + 1]
        coarse = branch == "compressed"
        factor = case.block_size if coarse else 1

        def mask(rows: range, branch: str = branch) -> Tensor:
            return oracle_bsa.branch_mask(case, shape, rows, branch, chosen)

        keys = {
            name: oracle_bsa.block_means(x, shape, case) if coarse else x
            for name, x in tensors.items()
            if name in ("k", "v")
        }
        found = errors_of(
            tensors["q"],
            **keys,
            dout=None if dout is None else dout * gate,
            mask=mask,
            alpha=case.alpha,
            scale=factor / case.scaling_seqlen,
            numbers=numbers,
            coarse=coarse,
            workspace=workspace,
        )
        variance, value = found["out"]
        if dout is not None and gates is not None:
            dgate = (dout * value).sum(-1, keepdim=True)
            added = dout.shape[2] * ADD * ((dout * value).square().sum(-1, keepdim=True) + dgate.square())
            spread = (dout.square() * variance).sum(-1, keepdim=True)
            of_gates.append((spread + added + store * dgate.square() + numbers.least, dgate))
        found["out"] = variance * gate.square(), value * gate
        if coarse:
            found |= {
                name: (
                    oracle_bsa.spread(found[name][0], shape, case) / case.block_size,
                    oracle_bsa.spread(found[name][1], shape, case),
                )
                for name in ("dk", "dv")
                if name in found
            }
        for name, (variance, value) in found.items():
            before = total.get(name, (0.0, 0.0))
            # A branch is stored before it is added, and so is the sum of the branches.
            total[name] = (
                before[0] + variance + 2 * store * value.square() + store * (before[1] + value) ** 2,
                before[1] + value,
            )
    if of_gates:
        total["dgates"] = torch.cat([x for x, _ in of_gates], -1), torch.cat([x for _, x in of_gates], -1)
    return total


@dataclass(frozen=True, slots=True)
class _Weights:
    """Quantities derived from some rows of scores, and their variances, 0 where hidden."""

    a: Tensor
    of_a: Tensor
    slope: Tensor
    of_slope: Tensor


@torch.no_grad()
def errors_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None,
    *,
    mask: Mask,
    alpha: float,
    scale: float,
    numbers: Format,
    coarse: bool = False,
    workspace: int | None = None,
) -> Varied:
    """Return variances and values of one sequence under any mask; arguments as in `oracle.attend`.

    Args:
        q: [heads, queries, D].
        k: [heads, keys, D].
        v: [heads, keys, Dv].
        dout: [heads, queries, Dv], or None for the forward only.
        mask: which keys some rows see.
        alpha: factor of the scores.
        scale: factor of the output.
        numbers: storage format of the case's precision.
        coarse: keys and values are stored means.
        workspace: limit of intermediate results in bytes.
    """
    if workspace is None:
        workspace = parts.workspace_on(q.device)
    heads, queries, _ = q.shape
    keys = k.shape[1]
    names = ("out",) if dout is None else ("out", "dq", "dk", "dv")
    sums = {
        name: q.new_zeros(2, *like.shape[:2], size.shape[2])
        for name, like, size in (("out", q, v), ("dq", q, q), ("dk", k, k), ("dv", k, v))
        if name in names
    }
    k_squares, v_squares = k.square(), v.square()
    step = max(1, workspace // (2 * parts.ITEM_BYTES * parts.SCORES * heads * max(1, keys)))
    for start in range(0, queries, step):
        rows = range(start, min(start + step, queries))
        at = slice(rows.start, rows.stop)
        w = _weights(q[:, at], k, k_squares, mask(rows), alpha, numbers, coarse)
        _add(sums["out"][:, :, at], w.a, w.of_a + keys * ADD * w.a.square(), v, v_squares)
        if dout is None:
            continue
        do = dout[:, at]
        above = do @ v.mT
        of_above = v.shape[2] * ADD * (do.square() @ v_squares.mT + above.square()) + numbers.store * above.square()
        ds = above * w.slope
        of_ds = w.slope.square() * of_above + above.square() * w.of_slope + numbers.store * ds.square()
        of_ds += numbers.least * (w.of_slope > 0)
        _add(sums["dq"][:, :, at], ds, of_ds + keys * ADD * ds.square(), k, k_squares)
        _add(sums["dk"], ds.mT, (of_ds + queries * ADD * ds.square()).mT, q[:, at], q[:, at].square())
        _add(sums["dv"], w.a.mT, (w.of_a + queries * ADD * w.a.square()).mT, do, do.square())
    result = {}
    for name, (variance, value) in sums.items():
        factor = scale * (alpha if name in ("dq", "dk") else 1.0)
        n = keys if name in ("out", "dq") else queries
        whole = variance + value.square() * (n * ADD + 2 * numbers.store)
        result[name] = factor**2 * whole + numbers.least, factor * value
    return result


def _add(total: Tensor, weights: Tensor, variances: Tensor, of: Tensor, squares: Tensor) -> None:
    total[0] += variances @ squares
    total[1] += weights @ of


def _weights(
    q: Tensor, k: Tensor, k_squares: Tensor, mask: Tensor, alpha: float, numbers: Format, coarse: bool
) -> _Weights:
    s = q @ k.mT * alpha
    terms = alpha**2 * (q.square() @ k_squares.mT)
    of_s = q.shape[2] * ADD * (terms + s.square()) + (numbers.store + 2 / 3 * SUM**2) * s.square()
    if coarse:
        of_s += numbers.store * terms
    sigmoid = s.sigmoid()
    rest = 1 - sigmoid
    slope = sigmoid * (1 + s * rest)
    bend = sigmoid * rest * (2 + s * (rest - sigmoid))
    a = s * sigmoid
    relative, unit = FUNCTION + numbers.store * (2 if coarse else 1), SUM**2 + 3 * numbers.store / 64
    of_a = slope.square() * of_s + a.square() * relative + unit * s.square() + numbers.least
    of_slope = bend.square() * of_s + slope.square() * relative + unit * (1 + s.square()) / 4
    return _Weights(*(x.masked_fill(~mask, 0.0) for x in (a, of_a, slope, of_slope)))
