"""The oracle: softmax attention over the visible keys of the blocks that a map keeps, for any floating precision.

It is the oracle of softmax attention (`attention.oracle`) with a mask that combines the map, block by block, and the
band of the causal mask, in chunks of rows, so that memory does not grow with Sq · Sk.  Rows without visible keys are 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnbench.workloads.attention import oracle as dense
from attnbench.workloads.attention import parts
from attnbench.workloads.attention.oracle import Rule, in_blocks, reachable
from attnbench.workloads.base import Draw
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.inputs import SparseInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRule(Rule):
    """A mask that combines a band and kept blocks."""

    blocks: Tensor = field(repr=False)
    "bool [N, R, rows, columns of blocks]"
    shape: tuple[int, int]
    "queries and keys of a block"

    def mask(self, rows: range, columns: range, sizes: tuple[int, int], device: torch.device) -> Tensor | None:
        """Return bool [N, R, rows, columns]: visible in the band, in a block that is kept."""
        # Not super(): the decorator of a dataclass with slots creates a new class, which the method does not know.
        band = Rule.mask(self, rows, columns, sizes, device)
        of_row, of_key = (
            torch.arange(span.start, span.stop, device=device) // size
            for span, size in zip((rows, columns), self.shape, strict=True)
        )
        kept = self.blocks[:, :, of_row][:, :, :, of_key]
        return kept if band is None else kept & band


def rule_of(case: SparseCase, blocks: Tensor) -> BlockRule:
    """Return the rule of a case for some pairs' maps, bool [N, R, rows, columns]."""
    left, right = case.dense.reach
    return BlockRule(left=left, right=right, scale=case.scale, blocks=blocks, shape=case.block_shape)


def evaluate(
    case: SparseCase,
    inputs: SparseInputs,
    *,
    dtype: torch.dtype,
    draw: Draw,
    blocks: Tensor | None = None,
    workspace: int | None = None,
) -> dict[str, Tensor]:
    """Evaluate the drawn pairs.

    Args:
        case: the problem.
        inputs: its tensors; the result is on their device.
        dtype: of every product and of the result.
        draw: which pairs.
        blocks: the map, bool [B, H, rows, columns]; None: that of the inputs.
        workspace: limit of intermediate results in bytes; None for a default of the device.

    Returns:
        out, shaped as `attention.parts.output_shapes` of the draw.
    """

    def answer(blocks: Tensor, workspace: int, **tensors: Tensor) -> dict[str, Tensor]:
        return dense.attend(**tensors, rule=rule_of(case, blocks), workspace=workspace)

    return in_blocks(
        case.dense,
        inputs.dense,
        answer,
        dtype=dtype,
        draw=draw,
        workspace=workspace,
        beside=beside(inputs.block_map if blocks is None else blocks),
    )


def beside(blocks: Tensor) -> dict[str, Tensor]:
    """Return a map [B, H, rows, columns] in the form that `in_blocks` takes."""
    return {"blocks": blocks.transpose(1, 2)}


def log_sum_exp(
    case: SparseCase,
    inputs: SparseInputs,
    *,
    dtype: torch.dtype,
    draw: Draw,
    blocks: Tensor | None = None,
    workspace: int | None = None,
) -> Tensor:
    """Return each row's log-sum-exp of scaled scores; -∞ if a query sees no key.

    Returns:
        One number per row in the layout of ``out``, whose last dimension is 1.
    """

    def answer(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor, workspace: int) -> dict[str, Tensor]:
        return {"out": _lse(q, k, rule_of(case, blocks), workspace).expand(*q.shape[:3], v.shape[2])}

    return in_blocks(
        case.dense,
        inputs.dense,
        answer,
        dtype=dtype,
        draw=draw,
        workspace=workspace,
        beside=beside(inputs.block_map if blocks is None else blocks),
    )["out"][..., :1]


@torch.no_grad()
def _lse(q: Tensor, k: Tensor, rule: BlockRule, workspace: int) -> Tensor:
    """Return [N, R, Sq, 1] for q [N, R, Sq, D] and k [N, Sk, D], computed in chunks of rows."""
    (count, heads, queries, _), keys = q.shape, k.shape[1]
    found = q.new_full((count, heads, queries, 1), -torch.inf)
    step = max(1, min(queries, workspace // (parts.ITEM_BYTES * parts.SCORES * count * heads * keys)))
    for start in range(0, queries, step):
        rows = range(start, min(start + step, queries))
        if seen := reachable(rows, keys, rule.band(queries, keys)):
            scores = q[:, :, start : rows.stop] @ k[:, None, seen.start : seen.stop].mT * rule.scale
            mask = rule.mask(rows, seen, (queries, keys), q.device)
            if mask is not None:
                scores.masked_fill_(~mask, -torch.inf)
            found[:, :, start : rows.stop] = scores.logsumexp(-1, keepdim=True)
    return found
