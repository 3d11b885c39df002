"""The oracle of dense HSTU attention and its gradients, written out plainly, for any floating precision.

For one sequence and head, with M the mask (`visible`) and c = 1 / scaling_seqlen:

    S = α Q Kᵀ        A = SiLU(S) ∘ M        O = c · A V
    dV = c · Aᵀ dO    dS = (dO Vᵀ) ∘ M ∘ σ(S)(1 + S(1 - σ(S)))    dQ = α c · dS K    dK = α c · dSᵀ Q

In fp64 this is the truth a backend is held against.  In the case's own precision it rounds where an
eager implementation rounds (scores, SiLU and every product are stored in that precision), and its
error sets the budget; c comes last, so that it costs fp16 no small numbers.

Rows are processed in chunks, so memory does not grow with queries · keys.  The parts of dK and dV that
the chunks give are summed in at least fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import parts
from attnbench.workloads.hstu.case import HstuCase
from attnbench.workloads.hstu.inputs import HstuInputs
from attnbench.workloads.hstu.lengths import SequenceShape

Mask = Callable[[range], Tensor]
"""Rows to bool [rows, keys] or [heads, rows, keys]."""


def visible(case: HstuCase, shape: SequenceShape, rows: range, device: torch.device) -> Tensor:
    """Mask of some query rows of a sequence, bool [rows, keys]; `case` says the rule in words."""
    i = (torch.arange(rows.start, rows.stop, device=device) + shape.first_query)[:, None]
    j = torch.arange(shape.length, device=device)[None, :]
    of_prefix = i < shape.prefix
    see = (j < shape.seen) | (j == i)
    if case.causal:
        see &= (j <= i) | of_prefix
    if case.max_attn_len is not None:
        ahead = _window_position(j, shape) - _window_position(i, shape)
        near = ahead >= -case.max_attn_len
        if not case.causal:
            near &= ahead <= case.max_attn_len
        see &= near | of_prefix
    return see


def _window_position(row: Tensor, shape: SequenceShape) -> Tensor:
    """Where a row stands for the window: the prefix at one place, all targets at one place."""
    position = row.clamp(max=shape.seen)
    return (position - shape.prefix + 1).clamp(min=0) if shape.prefix else position


def evaluate(
    case: HstuCase, inputs: HstuInputs, *, dtype: torch.dtype, draw: Draw, workspace: int | None = None
) -> dict[str, Tensor]:
    """Evaluate the drawn pairs of the dense variant.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        dtype: of every product and of the result.
        draw: which pairs.
        workspace: bytes of intermediate results to stay under (one row is the least); None takes what
            suits the device.

    Returns:
        out, and dq, dk, dv unless the mode is fwd, shaped as `parts.output_shapes` of the draw.
    """
    sink = Sink(case, "hstu", inputs, dtype=dtype, draw=draw)
    for number, heads in sink.runs():
        shape = case.sequences[number]
        tensors = {name: sink.source(name, number, heads) for name in ("q", "k", "v")}
        dout = sink.source("dout", number, heads) if case.has_backward else None

        def mask(rows: range, shape: SequenceShape = shape) -> Tensor:
            return visible(case, shape, rows, inputs.q.device)

        sink.store(
            number,
            heads,
            attend(
                **tensors, dout=dout, mask=mask, alpha=case.alpha, scale=1 / case.scaling_seqlen, workspace=workspace
            ),
        )
    return sink.result


class Sink:
    """Tensors of an evaluation: reads the inputs of a sequence and some heads, keeps what came out."""

    def __init__(self, case: HstuCase, variant: str, inputs: HstuInputs, *, dtype: torch.dtype, draw: Draw) -> None:
        self.pairs, self.dtype = parts.pairs_of(case, draw), dtype
        self.result = {
            name: torch.empty(shape, dtype=dtype, device=inputs.q.device)
            for name, shape in parts.output_shapes(case, variant, draw).items()
        }
        self._views = {name: parts.result_pieces(case, name, tensor, draw) for name, tensor in self.result.items()}
        self._index = {pair: i for i, pair in enumerate(self.pairs)}
        self._sources = {
            name: parts.by_sequence(case, name, tensor.detach())
            for name, tensor in inputs.tensors().items()
            if name in ("q", "k", "v", "dout", "gates")
        }

    def runs(self) -> Iterator[tuple[int, list[int]]]:
        """Each sequence of the draw with its heads, a run of neighbours at a time."""
        for number, pairs in groupby(self.pairs, key=lambda pair: pair[0]):
            yield number, [head for _, head in pairs]

    def source(self, name: str, number: int, heads: list[int] | None = None) -> Tensor:
        """An input [heads, rows, size] of a sequence in the precision of the evaluation."""
        rows = self._sources[name][number]
        return (rows if heads is None else rows[:, heads]).transpose(0, 1).to(self.dtype)

    def store(self, number: int, heads: list[int], answer: dict[str, Tensor]) -> None:
        """Keep answers [heads, rows, size]."""
        for name, tensor in answer.items():
            for head, piece in zip(heads, tensor, strict=True):
                self._views[name][self._index[number, head]].copy_(piece)


@torch.no_grad()
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor | None,
    *,
    mask: Mask,
    alpha: float,
    scale: float,
    workspace: int | None = None,
) -> dict[str, Tensor]:
    """SiLU attention of one sequence under any mask, in chunks of rows.

    Args:
        q: [heads, queries, D].
        k: [heads, keys, D].
        v: [heads, keys, Dv].
        dout: [heads, queries, Dv], or None for the forward alone.
        mask: which keys some rows see.
        alpha: factor of the scores.
        scale: factor of the output.
        workspace: bytes of intermediate results to stay under.

    Returns:
        out, and with `dout` dq, dk, dv, laid out as v, q, k, v with the rows of each.
    """
    if workspace is None:
        workspace = parts.CPU_WORKSPACE if q.device.type == "cpu" else parts.WORKSPACE
    heads, queries, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    out, dq = q.new_zeros(heads, queries, v.shape[2]), torch.zeros_like(q)
    dk, dv = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    step = max(1, workspace // (parts.ITEM_BYTES * parts.SCORES * heads * max(1, k.shape[1])))
    for start in range(0, queries, step):
        rows = range(start, min(start + step, queries))
        span = slice(rows.start, rows.stop)
        hidden = ~mask(rows)
        scores = product(q[:, span], k.mT) * alpha
        weights = torch.nn.functional.silu(scores).masked_fill_(hidden, 0.0)
        out[:, span] = product(weights, v) * scale
        if dout is None:
            continue
        ds = silu_gradient(scores, product(dout[:, span], v.mT)).masked_fill_(hidden, 0.0)
        dq[:, span] = product(ds, k) * (alpha * scale)
        dk += product(ds.mT, q[:, span])
        dv += product(weights.mT, dout[:, span])
    if dout is None:
        return {"out": out}
    return {"out": out, "dq": dq, "dk": (dk * (alpha * scale)).to(q.dtype), "dv": (dv * scale).to(q.dtype)}


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product, rounded once to the precision of its operands."""
    if a.device.type == "cpu" and a.dtype.itemsize == 2:
        # The same numbers (summed in fp32, rounded once), many times faster than a CPU's half products.
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


def silu_gradient(scores: Tensor, above: Tensor) -> Tensor:
    """Gradient of the scores from that of their SiLU, computed in at least fp32 and rounded once."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    s = scores.to(wide)
    sigmoid = s.sigmoid()
    return (above.to(wide) * sigmoid * (1 + s * (1 - sigmoid))).to(scores.dtype)
