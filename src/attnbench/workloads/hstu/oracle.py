"""The oracle: straightforward dense HSTU attention and its gradients, for any floating precision.

For one sequence and head, with M the mask (`visible`) and c = 1 / scaling_seqlen:

    S = α Q Kᵀ        A = SiLU(S) ∘ M        O = c · A V
    dV = c · Aᵀ dO    dS = (dO Vᵀ) ∘ M ∘ σ(S)(1 + S(1 - σ(S)))    dQ = α c · dS K    dK = α c · dSᵀ Q

In fp64 this is the truth that a backend is compared with.  In the case's own precision it rounds where an
eager implementation rounds (scores, SiLU and every product are stored in that precision), and its
error determines the budget; c is applied last, so that fp16 does not lose small numbers.

Rows are processed in chunks, so memory does not grow with queries · keys.  The contributions of chunks to dK and dV
are summed in at least fp32.
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
"""Maps rows to a mask, bool [rows, keys] or [heads, rows, keys]."""


def visible(case: HstuCase, shape: SequenceShape, rows: range, device: torch.device) -> Tensor:
    """Return the mask of some query rows of a sequence, bool [rows, keys]; `case` describes the rule."""
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
    """Return the position of a row for the window: the prefix at one position, all targets at one position."""
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
        workspace: limit of intermediate results in bytes (at least one row is computed); None for a
            default of the device.

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
    """Tensors of an evaluation: reads the inputs of a sequence and some heads, and stores the results."""

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
        """Yield each sequence of the draw with its heads, one run of adjacent heads at a time."""
        for number, pairs in groupby(self.pairs, key=lambda pair: pair[0]):
            yield number, [head for _, head in pairs]

    def source(self, name: str, number: int, heads: list[int] | None = None) -> Tensor:
        """Return an input [heads, rows, size] of a sequence in the precision of the evaluation."""
        rows = self._sources[name][number]
        return (rows if heads is None else rows[:, heads]).transpose(0, 1).to(self.dtype)

    def store(self, number: int, heads: list[int], answer: dict[str, Tensor]) -> None:
        """Store results [heads, rows, size]."""
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
        dout: [heads, queries, Dv], or None for the forward only.
        mask: which keys some rows see.
        alpha: factor of the scores.
        scale: factor of the output.
        workspace: limit of intermediate results in bytes.

    Returns:
        out, and with `dout` dq, dk, dv, in the layout of v, q, k, v with the rows of each.
    """
    if workspace is None:
        workspace = parts.workspace_on(q.device)
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
        # The same result (summed in fp32, rounded once), many times faster than half-precision products on a CPU.
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


def silu_gradient(scores: Tensor, above: Tensor) -> Tensor:
    """Return the gradient of the scores from that of their SiLU, computed in at least fp32 and rounded once."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    s = scores.to(wide)
    sigmoid = s.sigmoid()
    return (above.to(wide) * sigmoid * (1 + s * (1 - sigmoid))).to(scores.dtype)
