"""Guess from q and k which blocks matter: means of blocks, and the selection of a row's largest scores.

Two launches; nothing waits for the device.  What makes scores of the means is the caller's: a product, or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.portable.predict import pool_blocks, select_blocks

LARGEST_WIDTH = 8192
"Columns of a map: a row lies in the registers of one program."


@dataclass(frozen=True, slots=True)
class Pooled:
    """Blocks of queries and of keys as `pool` sums them up, fp32."""

    q_mean: Tensor
    "[B, H, blocks of queries, D], times the scale"
    k_mean: Tensor
    "[B, G, blocks of keys, D]"
    q_alike: Tensor | None
    "[B, H, blocks of queries]: mean cosine of all pairs of rows of a block"
    k_alike: Tensor | None
    "[B, G, blocks of keys]"

    def scores(self) -> Tensor:
        """Products of the means, [B, H, blocks of queries, blocks of keys]."""
        q, k = self.q_mean, self.k_mean
        grouped = q.view(*k.shape[:2], -1, q.shape[-1]) @ k.mT
        return grouped.view(*q.shape[:-1], k.shape[2])


def pool(q: Tensor, k: Tensor, sizes: tuple[int, int], *, scale: float, alike: bool = False) -> Pooled:
    """Means of blocks in one launch.

    Args:
        q: [B, H, Sq, D], last dim contiguous.
        k: [B, G, Sk, D], the same.
        sizes: rows of a block of queries and of keys, powers of two.
        scale: what the means of queries are multiplied by.
        alike: besides, how alike the rows of a block are.
    """
    (batch, heads, seqlen_q, dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    rows, columns = -(-seqlen_q // sizes[0]), -(-seqlen_k // sizes[1])
    empty = partial(torch.empty, dtype=torch.float32, device=q.device)
    found = Pooled(
        empty(batch, heads, rows, dim),
        empty(batch, heads_kv, columns, dim),
        empty(batch, heads, rows) if alike else None,
        empty(batch, heads_kv, columns) if alike else None,
    )
    of_queries, of_keys = batch * heads * rows, batch * heads_kv * columns
    if of_queries + of_keys:
        with torch.cuda.device_of(q):  # Triton launches on the current device
            pool_blocks[(of_queries + of_keys,)](
                q,
                k,
                found.q_mean,
                found.k_mean,
                found.q_alike,
                found.k_alike,
                heads,
                heads_kv,
                seqlen_q,
                seqlen_k,
                of_queries,
                *q.stride()[:3],
                *k.stride()[:3],
                scale,
                dim,
                SIZE_Q=sizes[0],
                SIZE_K=sizes[1],
                WIDTH=max(16, triton.next_power_of_2(dim)),
                ALIKE=alike,
                num_warps=4,
            )
    return found


def select(
    scores: Tensor,
    lengths: tuple[int, int],
    block: tuple[int, int],
    *,
    share: float,
    by_number: bool,
    causal: bool = False,
    pooled: Pooled | None = None,
    gate: float = 0.0,
) -> Tensor:
    """The map of the largest scores of each row, in one launch: bool [B, H, rows, columns].

    Args:
        scores: [B, H, blocks of queries, blocks of keys]; NaN and +∞ say nothing, and their blocks are kept.
        lengths: queries and keys of a sequence.
        block: queries and keys of a block.
        share: of the visible blocks of a row, or of their softmax; each row keeps one at least.
        by_number: which of the two.
        causal: blocks that no query of a row sees are not kept, those on the diagonal are.
        pooled: with a gate, how alike the rows of the blocks are.
        gate: rows and columns of blocks less alike than this are kept whole; 0 is none.

    Raises:
        ValueError: more columns than a program holds.
    """
    batch, heads, rows, columns = scores.shape
    if columns > LARGEST_WIDTH:
        raise ValueError(f"select: columns={columns} are too many; at most {LARGEST_WIDTH}")
    scores = scores.float().contiguous()
    found = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    gated = pooled is not None and gate > 0
    if found.numel():
        width = max(32, triton.next_power_of_2(columns))
        with torch.cuda.device_of(scores):
            select_blocks[(batch * heads * rows,)](
                scores,
                pooled.q_alike if gated and pooled else None,
                pooled.k_alike if gated and pooled else None,
                found.view(torch.uint8),
                heads,
                pooled.k_mean.shape[1] if pooled else heads,
                rows,
                columns,
                *lengths,
                share,
                gate,
                BLOCK_Q=block[0],
                BLOCK_K=block[1],
                CAUSAL=causal,
                BY_NUMBER=by_number,
                GATED=gated,
                WIDTH=width,
                num_warps=1 if width <= 512 else width // 256,
            )
    return found
