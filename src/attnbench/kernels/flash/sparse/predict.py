"""Predict a block map from q and k: three launches, cached and repeated, without synchronizing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.portable.predict import multiply_means, pool_blocks, select_blocks
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, facts_of, launch

LARGEST_WIDTH = 8192
"Most columns of a map: one program holds a row in registers."
ROWS = 128
"Queries or keys that a program pools, if blocks are no larger."
TILE = 64
CHUNK = 32
"Dims that a step of a tile's product sums."

_calls: Kept[Launches] = Kept()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """How blocks are selected."""

    block: tuple[int, int]
    "queries and keys of a block"
    share: float
    "fraction of the visible blocks of a row, or of their softmax; at least one block of each row is kept"
    by_number: bool
    "whether `share` counts blocks; otherwise it is a share of the softmax"
    scale: float
    "scale of the products of means"
    parts: int = 1
    "a block's score is log Σ exp of the products of the means of this many parts of its queries and of its keys"
    gate: float = 0.0
    "rows and columns of blocks whose rows are less similar than this are kept whole; 0: none"
    causal: bool = False
    "drop blocks that no query of a row sees, and keep those on the diagonal"


def predict_blocks(q: Tensor, k: Tensor, rule: Rule) -> Tensor:
    """The map of the largest scores: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)].

    Args:
        q: [B, H, Sq, D], last dim contiguous.
        k: [B, G, Sk, D], the same.
        rule: a gate requires parts=1.

    Raises:
        ValueError: the map has more columns than a program can hold.
    """
    key = rule, facts_of(q, k)
    launches = _calls.get(key) or _calls.keep(key, Launches(partial(_run, rule), ()))
    (found,) = launches(q, k)
    assert found is not None
    return found


def _run(rule: Rule, q: Tensor, k: Tensor) -> Results:
    (batch, heads, seqlen_q, dim), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    block_q, block_k = rule.block
    size_q, size_k = block_q // rule.parts, block_k // rule.parts
    (rows, columns), (parts_q, parts_k) = _blocks(q, k, block_q, block_k), _blocks(q, k, size_q, size_k)
    q_mean, k_mean = (
        empty((batch, each, parts, dim), q, torch.float32) for each, parts in ((heads, parts_q), (heads_kv, parts_k))
    )
    q_alike = k_alike = None
    if rule.gate:
        q_alike = empty((batch, heads, rows), q, torch.float32)
        k_alike = empty((batch, heads_kv, columns), q, torch.float32)
    scores = empty((batch, heads, rows, columns), q, torch.float32)
    width = max(16, triton.next_power_of_2(dim))
    group_q, group_k = (max(1, ROWS // size) for size in (size_q, size_k))
    of_queries = batch * heads * -(-parts_q // group_q)
    of_keys = batch * heads_kv * -(-parts_k // group_k)
    if scores.numel():
        launch(
            pool_blocks,
            (of_queries + of_keys,),
            q_ptr=q,
            k_ptr=k,
            q_mean_ptr=q_mean,
            k_mean_ptr=k_mean,
            q_alike_ptr=q_alike,
            k_alike_ptr=k_alike,
            heads=heads,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            of_queries=of_queries,
            q_batch=q.stride(0),
            q_head=q.stride(1),
            q_row=q.stride(2),
            k_batch=k.stride(0),
            k_head=k.stride(1),
            k_row=k.stride(2),
            scale=rule.scale,
            dim=dim,
            SIZE_Q=size_q,
            SIZE_K=size_k,
            GROUP_Q=group_q,
            GROUP_K=group_k,
            WIDTH=width,
            ALIKE=rule.gate > 0,
            num_warps=8,
        )
        launch(
            multiply_means,
            (batch * heads * -(-parts_q // TILE) * -(-parts_k // TILE),),
            q_mean_ptr=q_mean,
            k_mean_ptr=k_mean,
            scores_ptr=scores,
            heads=heads,
            heads_kv=heads_kv,
            parts_q=parts_q,
            parts_k=parts_k,
            rows=rows,
            columns=columns,
            dim=dim,
            PARTS=rule.parts,
            TILE=TILE,
            WIDTH=width,
            CHUNK=min(width, CHUNK),
            num_warps=4,
        )
    return (_selected(rule, scores, heads_kv, (seqlen_q, seqlen_k), q_alike, k_alike),)


def select(scores: Tensor, lengths: tuple[int, int], rule: Rule) -> Tensor:
    """The map of the largest of the given scores, [B, H, blocks of queries, blocks of keys].

    Args:
        scores: blocks whose score is NaN or +∞ are kept.
        lengths: queries and keys of a sequence.
        rule: without a gate.

    Raises:
        ValueError: the map has more columns than a program can hold.
    """
    scores = scores.float().contiguous()
    key = rule, lengths, facts_of(scores)

    def run(given: Tensor) -> Results:
        return (_selected(rule, given, given.shape[1], lengths, None, None),)

    (found,) = (_calls.get(key) or _calls.keep(key, Launches(run)))(scores)
    assert found is not None
    return found


def _selected(
    rule: Rule, scores: Tensor, heads_kv: int, lengths: tuple[int, int], q_alike: Tensor | None, k_alike: Tensor | None
) -> Tensor:
    (seqlen_q, seqlen_k), (block_q, block_k) = lengths, rule.block
    batch, heads, rows, columns = scores.shape
    if columns > LARGEST_WIDTH:
        raise ValueError(f"select: columns={columns} are too many; at most {LARGEST_WIDTH}")
    found = empty(tuple(scores.shape), scores, torch.bool)
    width = max(32, triton.next_power_of_2(columns))
    if found.numel():
        launch(
            select_blocks,
            (batch * heads * rows,),
            scores_ptr=scores,
            q_alike_ptr=q_alike,
            k_alike_ptr=k_alike,
            map_ptr=found.view(torch.uint8),
            heads=heads,
            heads_kv=heads_kv,
            rows=rows,
            columns=columns,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            share=rule.share,
            gate=rule.gate,
            BLOCK_Q=block_q,
            BLOCK_K=block_k,
            CAUSAL=rule.causal,
            BY_NUMBER=rule.by_number,
            GATED=rule.gate > 0,
            WIDTH=width,
            num_warps=1 if width <= 512 else width // 256,
        )
    return found


def _blocks(q: Tensor, k: Tensor, block_q: int, block_k: int) -> tuple[int, int]:
    """Number of blocks of the queries, and of the keys."""
    return -(-q.shape[2] // block_q), -(-k.shape[2] // block_k)
