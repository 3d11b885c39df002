"""The oracle: straightforward softmax attention and its gradients, for any floating precision.

For one query group of R heads on one KV head, with c the softmax scale:

    S = c · Q Kᵀ, hidden keys at -∞        P = softmax(S)        O = P V
    dV = Σ_R Pᵀ dO       dP = dO Vᵀ        dS = c · P ∘ (dP - rowsum(P ∘ dP))
    dQ = dS K            dK = Σ_R dSᵀ Q

In fp64 this is the truth that a backend is compared with.  In the case's own precision it rounds where an
eager PyTorch implementation rounds (scores, probabilities and every product are stored in that
precision; softmax and its gradient are computed in fp32 internally), and its error determines the budget.

Rows are processed in chunks, each against only the keys it can reach, so memory does not grow with
Sq · Sk.  The contributions of chunks to dK and dV are summed in at least fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from attnbench.workloads.attention import parts
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import AttentionInputs
from attnbench.workloads.base import Draw
from attnbench.workloads.drawing import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Mask and scale of a computation.  The oracle uses those of the case; `suspects` varies them."""

    left: int | None
    right: int | None
    scale: float
    top_left: bool = False
    "query i is at key position i instead of i + Sk - Sq"

    @classmethod
    def of(cls, case: AttentionCase) -> Rule:
        """Return the right rule of a case."""
        left, right = case.reach
        return cls(left=left, right=right, scale=case.scale)

    def band(self, queries: int, keys: int) -> tuple[int, int]:
        """Return the least and largest j - i at which query i of a sequence sees its key j."""
        diagonal = 0 if self.top_left else keys - queries
        least, largest = 1 - queries, keys - 1
        if self.left is not None:
            least = max(least, diagonal - self.left)
        if self.right is not None:
            largest = min(largest, diagonal + self.right)
        return least, largest

    def mask(self, rows: range, columns: range, sizes: tuple[int, int], device: torch.device) -> Tensor | None:
        """Return which of these keys each of these queries sees, bool [..., rows, columns]; None if all.

        Args:
            rows: queries.
            columns: keys.
            sizes: queries and keys of the sequence.
            device: of the mask.
        """
        band = self.band(*sizes)
        return None if band == (1 - sizes[0], sizes[1] - 1) else visible(rows, columns, band, device)


def reachable(rows: range, keys: int, band: tuple[int, int]) -> range:
    """Return the keys of a sequence that any of these rows sees."""
    return range(max(0, rows.start + band[0]), min(keys, rows.stop + band[1]))


def visible(rows: range, columns: range, band: tuple[int, int], device: torch.device) -> Tensor:
    """Return the mask, bool [rows, columns]: which of these keys each of these queries sees."""
    i = torch.arange(rows.start, rows.stop, device=device)[:, None]
    j = torch.arange(columns.start, columns.stop, device=device)[None, :]
    return (j - i >= band[0]) & (j - i <= band[1])


def evaluate(
    case: AttentionCase,
    inputs: AttentionInputs,
    *,
    dtype: torch.dtype,
    draw: Draw,
    rule: Rule | None = None,
    workspace: int | None = None,
) -> dict[str, Tensor]:
    """Evaluate the drawn pairs.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        dtype: of every product and of the result.
        draw: which pairs.
        rule: mask and scale, if not the case's own.
        workspace: limit of intermediate results in bytes (at least one row is computed); None for a
            default of the device.

    Returns:
        out, and dq, dk, dv unless the mode is fwd, shaped as `parts.output_shapes` of the draw.
    """
    return in_blocks(
        case, inputs, partial(attend, rule=rule or Rule.of(case)), dtype=dtype, draw=draw, workspace=workspace
    )


def in_blocks(
    case: AttentionCase,
    inputs: AttentionInputs,
    answer: Callable[..., dict[str, Tensor]],
    *,
    dtype: torch.dtype,
    draw: Draw,
    workspace: int | None,
    beside: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Assemble the results of `answer` for the drawn pairs, with as many of equal lengths at a time as fit.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        answer: called with the tensors and the workspace as in `attend`, and returns results as it does.
        dtype: of the tensors it is called with, and of the result.
        draw: which pairs.
        workspace: as in `evaluate`.
        beside: further tensors that `answer` takes by name, [B, rows, H, size] by query heads, for a case that is
            not packed; it is called with [N, R, rows, size].
    """
    beside = beside or {}
    if workspace is None:
        workspace = parts.workspace_on(inputs.q.device)
    shapes = parts.output_shapes(case, draw)
    result = {name: torch.empty(shape, dtype=dtype, device=inputs.q.device) for name, shape in shapes.items()}
    views = {name: parts.result_pieces(case, name, tensor, draw) for name, tensor in result.items()}
    sources = {name: parts.pieces(case, name, getattr(inputs, name).detach(), draw) for name in parts.input_names(case)}
    aside = {name: parts.pieces(case, "q", tensor, draw) for name, tensor in beside.items()}
    for block in _blocks(case, parts.pairs_of(case, draw), workspace):
        stacked = {
            name: _heads_first(torch.stack([source[i] for i in block]).to(dtype)) for name, source in sources.items()
        }
        stacked |= {name: _heads_first(torch.stack([source[i] for i in block])) for name, source in aside.items()}
        for name, found in answer(**stacked, workspace=workspace).items():
            for i, piece in zip(block, _heads_first(found), strict=True):
                views[name][i].copy_(piece)
    return result


def _heads_first(tensor: Tensor) -> Tensor:
    """Convert [N, rows, R, size] to [N, R, rows, size] or back; tensors without R are returned unchanged."""
    return tensor.transpose(1, 2) if tensor.dim() == 4 else tensor


def _blocks(case: AttentionCase, pairs: Sequence[Part], workspace: int) -> Iterator[range]:
    """Split the pairs into runs of equal lengths that fit in the workspace together."""
    for _, run in groupby(range(len(pairs)), key=lambda i: case.sequences[pairs[i][0]]):
        indices = list(run)
        size = max(1, workspace // parts.work_bytes(case, pairs[indices[0]]))
        for start in range(indices[0], indices[-1] + 1, size):
            yield range(start, min(start + size, indices[-1] + 1))


@torch.no_grad()
def attend(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor | None = None, *, rule: Rule, workspace: int | None = None
) -> dict[str, Tensor]:
    """Attention of N pairs of the same lengths, in chunks of rows.

    Args:
        q: [N, R, Sq, D].
        k: [N, Sk, D].
        v: [N, Sk, Dv].
        dout: [N, R, Sq, Dv], or None for the forward only.
        rule: mask and scale.
        workspace: limit of intermediate results in bytes.

    Returns:
        out [N, R, Sq, Dv], and with `dout` dq [N, R, Sq, D], dk [N, Sk, D], dv [N, Sk, Dv].
    """
    if workspace is None:
        workspace = parts.workspace_on(q.device)
    count, heads, queries, _ = q.shape
    keys = k.shape[1]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros(count, heads, queries, v.shape[2])
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
    band = rule.band(queries, keys)
    step = max(1, min(queries, workspace // (parts.ITEM_BYTES * parts.SCORES * count * heads * keys)))
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        seen = reachable(range(start, stop), keys, band)
        if not seen:
            continue
        low, high = seen.start, seen.stop
        q_rows, k_seen, v_seen = q[:, :, start:stop], k[:, low:high], v[:, low:high]
        mask = rule.mask(range(start, stop), seen, (queries, keys), q.device)
        p = _probabilities(_product(q_rows, k_seen.mT) * rule.scale, mask)
        out[:, :, start:stop] = _product(p, v_seen)
        if dout is None:
            continue
        dout_rows = dout[:, :, start:stop]
        ds = _softmax_gradient(p, _product(dout_rows, v_seen.mT)) * rule.scale
        dq[:, :, start:stop] = _product(ds, k_seen)
        dk[:, low:high] += _matmul(ds.mT, q_rows).sum(1, dtype=wide)
        dv[:, low:high] += _matmul(p.mT, dout_rows).sum(1, dtype=wide)
    if dout is None:
        return {"out": out}
    return {"out": out, "dq": dq, "dk": dk.to(q.dtype), "dv": dv.to(q.dtype)}


def _product(rows: Tensor, shared: Tensor) -> Tensor:
    """[N, R, rows, x] @ [N, x, y] without copying the shared operand for each head."""
    return _matmul(rows.flatten(1, 2), shared).unflatten(1, rows.shape[1:3])


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.device.type == "cpu" and a.dtype.itemsize == 2:
        # The same result (summed in fp32, rounded once), many times faster than half-precision products on a CPU.
        return (a.float() @ b.float()).to(a.dtype)
    return a @ b


def _probabilities(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores.softmax(-1)
    p = scores.masked_fill_(~mask, -torch.inf).softmax(-1)
    # The softmax of a row that sees no key is 0/0; here it is 0.
    return p.masked_fill_(~mask.any(-1, keepdim=True), 0.0)


def _softmax_gradient(p: Tensor, dp: Tensor) -> Tensor:
    wide = torch.promote_types(p.dtype, torch.float32)
    weighted = p.to(wide) * dp.to(wide)
    return (weighted - p.to(wide) * weighted.sum(-1, keepdim=True)).to(p.dtype)
