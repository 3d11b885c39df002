"""Predictors: estimate from q and k which blocks matter, on the device, without read-back, in torch or our kernels.

A backend that takes a map can follow a predictor: ``sparse-flex[cdf0.98]``.  Prediction, conversion and kernel are one
timed call, and are also timed as phases.

    topk0.3         the share of a row's visible blocks with the largest products of block means
    cdf0.98         the fewest blocks whose softmax over these products sums to that share (SpargeAttn)
    sub0.95         the same with log Σ exp of the products of means of quarter blocks instead of one product
    anti0.9         the same with sums along anti-diagonals of stride 16 (XAttention), so that every token counts
    …-sim0.6        in addition, with topk and cdf: a block whose tokens have a lower mean cosine of pairs has no
                    useful mean, so its row or column is kept whole (SpargeAttn's gate)

Every row keeps a block, and with a causal mask those on the diagonal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from attnbench.errors import UsageError, refusal
from attnbench.workloads.sparse.patterns import on_diagonal, visible_pairs

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.workloads.sparse.case import SparseCase

FORM = re.compile(r"(topk|cdf|sub|anti)(0?\.\d+|1(?:\.0+)?)(?:-sim(0?\.\d+|[01](?:\.0+)?))?", re.ASCII)
NAMES = re.compile("topk|cdf|sub|anti")
ACCEPTED = "topkX, cdfX, subX or antiX with X above 0 and at most 1, topk and cdf also with -simY, such as cdf0.98"
STRIDE = 16
PARTS = 4


@dataclass(frozen=True, slots=True)
class Predictor:
    """A rule with its parameters."""

    rule: str
    share: float
    gate: float = 0.0
    "least mean cosine of the tokens of a block; 0 disables the gate"

    @classmethod
    def read(cls, who: str, text: str) -> Predictor:
        """Parse a short form.

        Raises:
            UsageError: it cannot be parsed.
        """
        match = FORM.fullmatch(text)
        if match is None or not float(match[2]) or (match[3] and match[1] in ("sub", "anti")):
            raise UsageError(refusal(who, "predictor", text, "cannot be read", ACCEPTED))
        return cls(match[1], float(match[2]), float(match[3] or 0))

    def on(self, case: SparseCase, device: device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function that predicts a case's map, bool [B, H, rows, columns], of q [B, H, S, D], k [B, G, S, D].

        Everything that depends only on the case is computed here: the call copies nothing to or from the device.
        """
        return self.by_torch(case, device) if device.type == "cpu" else partial(self._by_kernels, case)

    def by_torch(self, case: SparseCase, device: device) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the same without our kernels: for a CPU, and as their reference."""
        import torch

        possible = torch.from_numpy(visible_pairs(case) > 0).to(device)
        forced = torch.from_numpy(on_diagonal(case)).to(device)
        return lambda q, k: self._map(case, q, k, possible, forced)

    def _by_kernels(self, case: SparseCase, q: Tensor, k: Tensor) -> Tensor:
        """Predict with our kernels."""
        from attnbench.kernels.flash.sparse.predict import Rule, predict_blocks

        along = self.rule == "anti"
        rule = Rule(
            block=case.block_shape,
            share=self.share,
            by_number=self.rule == "topk",
            scale=case.scale / STRIDE if along else case.scale,
            parts=PARTS if self.rule == "sub" else 1,
            stride=STRIDE if along else 0,
            gate=self.gate,
            causal=case.causal,
        )
        return predict_blocks(q, k, rule)

    def _map(self, case: SparseCase, q: Tensor, k: Tensor, possible: Tensor, forced: Tensor) -> Tensor:
        k = _repeated(case, k)
        scores = {"sub": _parts, "anti": _antidiagonals}.get(self.rule, _means)(case, q, k)
        unknown = scores.isnan() | (scores == float("inf"))
        scores = scores.masked_fill(~possible | unknown, -float("inf"))
        kept = _largest(scores, possible, self.share) if self.rule == "topk" else _mass(scores, self.share)
        kept = kept | unknown
        if self.gate:
            rows, columns = (_similarity(x, size) < self.gate for x, size in zip((q, k), case.block_shape, strict=True))
            kept = kept | rows[..., :, None] | columns[..., None, :]
        return (kept | forced) & possible


def _repeated(case: SparseCase, k: Tensor) -> Tensor:
    """Repeat the keys for each query head."""
    return k.repeat_interleave(case.group_size, dim=1) if case.group_size > 1 else k


def _blocks(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return x [B, H, S, D] as [B, H, blocks, size, D] in fp32, zero-padded, and the tokens of each block [blocks]."""
    import torch

    rows = x.shape[2]
    count = -(-rows // size)
    whole = torch.nn.functional.pad(x, (0, 0, 0, count * size - rows)).unflatten(2, (count, size))
    tokens = (rows - torch.arange(count, device=x.device) * size).clamp(max=size)
    return whole, tokens


def _mean(x: Tensor, size: int) -> Tensor:
    """Return the mean of each block, NaN if it is infinite: its products say nothing, whatever their sign."""
    import torch

    whole, tokens = _blocks(x, size)
    mean = whole.sum(3, dtype=torch.float32) / tokens[:, None]
    return mean.masked_fill(mean.isinf(), float("nan"))


def _means(case: SparseCase, q: Tensor, k: Tensor) -> Tensor:
    q_mean, k_mean = (_mean(x, size) for x, size in zip((q, k), case.block_shape, strict=True))
    return q_mean @ k_mean.mT * case.scale


def _parts(case: SparseCase, q: Tensor, k: Tensor) -> Tensor:

    q_mean, k_mean = (_mean(x, size // PARTS) for x, size in zip((q, k), case.block_shape, strict=True))
    return _joined(case, q_mean @ k_mean.mT * case.scale)


def _joined(case: SparseCase, scores: Tensor) -> Tensor:
    """Log Σ exp of the scores of the parts of each pair of blocks."""
    import torch

    (rows, columns), lowest = case.blocks, -float("inf")
    room = (0, columns * PARTS - scores.shape[3], 0, rows * PARTS - scores.shape[2])
    parts = torch.nn.functional.pad(scores, room, value=lowest)
    return parts.unflatten(3, (columns, PARTS)).unflatten(2, (rows, PARTS)).logsumexp((3, 5))


def _antidiagonals(case: SparseCase, q: Tensor, k: Tensor) -> Tensor:
    """Return the logarithm of each block's share of the softmax over strides."""
    import torch

    (rows, columns), (block_q, block_k) = case.blocks, case.block_shape
    q_steps, k_steps = (_blocks(x, STRIDE)[0] for x in (q, k))
    # Along an anti-diagonal the query index decreases as the key index increases.
    scores = q_steps.flip(3).flatten(3).float() @ k_steps.flatten(3).float().mT
    weights = (scores * (case.scale / STRIDE)).softmax(-1)
    room = (0, columns * (block_k // STRIDE) - weights.shape[3], 0, rows * (block_q // STRIDE) - weights.shape[2])
    parts = torch.nn.functional.pad(weights, room)
    parts = parts.unflatten(3, (columns, block_k // STRIDE)).unflatten(2, (rows, block_q // STRIDE))
    return parts.sum((3, 5)).log()


def _similarity(x: Tensor, size: int) -> Tensor:
    """Return the mean cosine of all pairs of tokens of each block, [B, H, blocks]."""
    import torch

    unit = torch.nn.functional.normalize(x.float(), dim=-1)
    return _mean(unit, size).square().sum(-1)


def _largest(scores: Tensor, possible: Tensor, share: float) -> Tensor:
    import torch

    count = (possible.sum(-1) * share + 0.5).long().clamp(min=1)[:, None]
    order = scores.argsort(dim=-1, descending=True, stable=True)
    kept = (torch.arange(order.shape[-1], device=order.device) < count).expand_as(order)
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _mass(scores: Tensor, share: float) -> Tensor:
    weights, order = scores.softmax(-1).nan_to_num(nan=0.0).sort(dim=-1, descending=True, stable=True)
    # Blocks before which the share is not reached yet; the largest is always among them.
    kept = weights.cumsum(-1) - weights < share
    return kept.scatter(-1, order, kept)
