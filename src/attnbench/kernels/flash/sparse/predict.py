"""Predict a block map from q and k: two or three launches, cached and repeated, without synchronizing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from attnbench.kernels.flash.sparse.portable.predict import ProductsMeta, multiply_parts, pool_blocks, select_blocks
from attnbench.kernels.shared.card import capability_of, processors
from attnbench.kernels.shared.kept import Kept, Launches, Results, empty, facts_of, launch

LARGEST_WIDTH = 8192
"Most columns of a map: one program holds a row in registers."
LINES = 4
"Groups of rows that a program pools, if parts are no larger."
EACH = 16
"Rows that a thread adds."

LOG2_E = 1.4426950408889634

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
    "scale of the products of parts, above 0"
    parts: int = 1
    "a block's score is log Σ exp of the products of the means of this many parts of its queries and of its keys"
    stride: int = 0
    """0, or tokens of a part: the products are sums along the anti-diagonals of two parts, and a block's score is the
    logarithm of the sum of its parts' shares of the softmax over all keys; `parts` is then not used"""
    gate: float = 0.0
    "rows and columns of blocks whose rows are less similar than this are kept whole; 0: none; neither with parts nor stride"
    causal: bool = False
    "drop blocks that no query of a row sees, and keep those on the diagonal"

    @property
    def sizes(self) -> tuple[int, int]:
        """Queries and keys of a part."""
        block_q, block_k = self.block
        return (self.stride, self.stride) if self.stride else (block_q // self.parts, block_k // self.parts)


class Tile(NamedTuple):
    """A tile of products, and how it is computed."""

    q: int
    "parts of queries"
    k: int
    "parts of keys"
    chunk: int
    "dims that a step sums"
    warps: int
    stages: int


SMALL = Tile(64, 64, 64, 4, 3)
"Where larger tiles would not occupy the card."
LARGE = Tile(128, 128, 64, 8, 3)
"It fits the shared memory of every card since sm_80."
WIDE = Tile(128, 256, 64, 8, 4)
"For strides on Hopper that its own kernel does not take: the larger the tile, the less is read from the L2 for a product."
FULL = Tile(64, 64, 32, 4, 2)
"For strides of fp32: each product is three of tf32."


def tile_of(q: Tensor, rule: Rule, parts: tuple[int, int]) -> Tile:
    """The tile of products for queries [B, H, S, D], of so many parts of queries and of keys."""
    if rule.stride and q.dtype == torch.float32:
        return FULL
    if rule.stride and capability_of(q) == (9, 0):
        return WIDE
    tiles = q.shape[0] * q.shape[1] * triton.cdiv(parts[0], LARGE.q) * triton.cdiv(parts[1], LARGE.k)
    return LARGE if tiles >= 2 * processors(q) else SMALL


def is_launched_early(x: Tensor) -> bool:
    """Whether the selection is launched while the products run, and waits for their end: on Hopper."""
    return capability_of(x) == (9, 0)


def is_for_hopper(q: Tensor, k: Tensor, rule: Rule) -> bool:
    """Whether the kernel for Hopper multiplies these tokens or means: blocks of several parts, and whole strides."""
    if capability_of(q) != (9, 0) or rule.block[1] == rule.sizes[1]:
        return False
    from attnbench.kernels.flash.sparse.hopper.predict import is_described

    return all(is_described(x, rule.stride or 2) for x in (q, k))


def predict_blocks(q: Tensor, k: Tensor, rule: Rule) -> Tensor:
    """The map of the largest scores: bool [B, H, ceil(Sq / bq), ceil(Sk / bk)].

    Args:
        q: [B, H, Sq, D], last dim contiguous.
        k: [B, G, Sk, D], the same.
        rule: how they are selected.

    Raises:
        ValueError: the map has more columns than a program can hold.
    """
    key = rule, facts_of(q, k)
    launches = _calls.get(key) or _calls.keep(key, Launches(partial(_run, rule), ()))
    (found,) = launches(q, k)
    assert found is not None
    return found


def _run(rule: Rule, q: Tensor, k: Tensor) -> Results:
    (batch, heads, seqlen_q, _), (_, heads_kv, seqlen_k, _) = q.shape, k.shape
    if not (batch * heads * seqlen_q * seqlen_k):
        sizes = [-(-length // size) for length, size in zip((seqlen_q, seqlen_k), rule.block, strict=True)]
        return (empty((batch, heads, *sizes), q, torch.bool),)
    if rule.stride:
        return (_selected(rule, _products(rule, q, k, (seqlen_q, seqlen_k)), heads_kv, (seqlen_q, seqlen_k)),)
    (q_mean, q_alike), (k_mean, k_alike) = _means(rule, q, k)
    scores = _products(rule, q_mean, k_mean, (seqlen_q, seqlen_k))
    return (_selected(rule, scores, heads_kv, (seqlen_q, seqlen_k), q_alike, k_alike),)


def _means(rule: Rule, q: Tensor, k: Tensor) -> tuple[tuple[Tensor, Tensor | None], ...]:
    """Means of the parts of q and of k, as rows in pairs [B, H, 2 parts, width], and with a gate how alike theirs are."""
    dim = q.shape[3]
    width = max(16, triton.next_power_of_2(dim))
    each = min(EACH, *rule.sizes)
    lines = max(LINES, *(size // each for size in rule.sizes))
    made = []
    programs = []
    for x, size in zip((q, k), rule.sizes, strict=True):
        parts = -(-x.shape[2] // size)
        alike = empty((*x.shape[:2], parts), q, torch.float32) if rule.gate else None
        made.append((empty((*x.shape[:2], 2 * parts, width), q, torch.bfloat16), alike))
        programs.append(x.shape[0] * x.shape[1] * -(-parts * size // (lines * each)))
    (q_mean, q_alike), (k_mean, k_alike) = made
    size_q, size_k = rule.sizes
    launch(
        pool_blocks,
        (sum(programs),),
        q_ptr=q,
        k_ptr=k,
        q_mean_ptr=q_mean,
        k_mean_ptr=k_mean,
        q_alike_ptr=q_alike,
        k_alike_ptr=k_alike,
        heads=q.shape[1],
        heads_kv=k.shape[1],
        seqlen_q=q.shape[2],
        seqlen_k=k.shape[2],
        of_queries=programs[0],
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
        LINES=lines,
        EACH=each,
        WIDTH=width,
        ALIKE=rule.gate > 0,
        # A thread loads 16 bytes of a row.
        num_warps=max(1, min(8, lines * width * q.element_size() // (16 * 32))),
    )
    return tuple(made)


class Scores(NamedTuple):
    """Scores of each part of the queries with each block of keys."""

    found: Tensor
    "fp32 [B, H, parts, columns]: of a block of one part the product, otherwise a sum of exponentials, to base 2"
    largest: Tensor | None = None
    "fp32 [B, H, parts, tiles]: what was subtracted from the exponents"
    side: int = 0
    "columns of a tile, with `largest`"


def _products(rule: Rule, q: Tensor, k: Tensor, lengths: tuple[int, int]) -> Scores:
    """Multiply the parts of tokens or of means."""
    (batch, heads, rows_q, dim), (_, heads_kv, rows_k, _) = q.shape, k.shape
    parts_q, parts_k = (-(-length // size) for length, size in zip(lengths, rule.sizes, strict=True))
    columns = -(-lengths[1] // rule.block[1])
    parts = rule.block[1] // rule.sizes[1]
    found = empty((batch, heads, parts_q, columns), q, torch.float32)
    scale = LOG2_E * (rule.scale if rule.stride else 1.0)  # the means have it
    if is_for_hopper(q, k, rule):
        from attnbench.kernels.flash.sparse.hopper.predict import TILE_K, launch_hopper_products

        largest = empty((*found.shape[:3], triton.cdiv(parts_k, TILE_K)), q, torch.float32)
        launch_hopper_products(q, k, found, largest, parts_k, stride=rule.stride, parts=parts, scale=scale)
        return Scores(found, largest, TILE_K // parts)
    width = max(16, triton.next_power_of_2(dim))
    tile = tile_of(q, rule, (parts_q, parts_k))
    across = triton.cdiv(parts_k, tile.k)
    unit = rule.stride or 2
    scores = Scores(found)
    if parts > 1:
        scores = Scores(found, empty((*found.shape[:3], across), q, torch.float32), tile.k // parts)
    launch(
        multiply_parts,
        (batch * heads * triton.cdiv(parts_q, tile.q) * across,),
        q_ptr=q,
        k_ptr=k,
        scores_ptr=scores.found,
        largest_ptr=scores.largest,
        heads=heads,
        heads_kv=heads_kv,
        seqlen_q=rows_q,
        seqlen_k=rows_k,
        parts_q=parts_q,
        parts_k=parts_k,
        columns=columns,
        q_batch=q.stride(0),
        q_head=q.stride(1),
        q_row=q.stride(2),
        k_batch=k.stride(0),
        k_head=k.stride(1),
        k_row=k.stride(2),
        scale=scale,
        dim=dim,
        META=ProductsMeta(
            STRIDE=rule.stride,
            PARTS=parts,
            TILE_Q=tile.q,
            TILE_K=tile.k,
            WIDTH=width,
            CHUNK=min(width, tile.chunk),
            WHOLE=rows_q % unit == 0 and rows_k % unit == 0 and dim == width,
            DEPENDENT=is_launched_early(q),
        ),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return scores


def _selected(
    rule: Rule,
    scores: Scores,
    heads_kv: int,
    lengths: tuple[int, int],
    q_alike: Tensor | None = None,
    k_alike: Tensor | None = None,
) -> Tensor:
    """The map of the largest scores, of those of `_products`; blocks whose score is NaN or +∞ are kept."""
    (seqlen_q, seqlen_k), (block_q, block_k) = lengths, rule.block
    batch, heads, parts_q, columns = scores.found.shape
    rows = -(-seqlen_q // block_q)
    if columns > LARGEST_WIDTH:
        raise ValueError(f"predict_blocks: columns={columns} are too many; at most {LARGEST_WIDTH}")
    found = empty((batch, heads, rows, columns), scores.found, torch.bool)
    width = max(32, triton.next_power_of_2(columns))
    dependent = is_launched_early(found)
    launch(
        select_blocks,
        (batch * heads * rows,),
        scores_ptr=scores.found,
        largest_ptr=scores.largest,
        q_alike_ptr=q_alike,
        k_alike_ptr=k_alike,
        map_ptr=found.view(torch.uint8),
        heads=heads,
        heads_kv=heads_kv,
        rows=rows,
        parts_q=parts_q,
        columns=columns,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        share=rule.share,
        gate=rule.gate,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        PARTS=block_q // rule.sizes[0],
        SIDE=scores.side,
        SHARES=rule.stride > 0,
        CAUSAL=rule.causal,
        BY_NUMBER=rule.by_number,
        GATED=rule.gate > 0,
        WIDTH=width,
        DEPENDENT=dependent,
        num_warps=1 if width <= 512 else width // 256,
        **({"launch_pdl": True} if dependent else {}),
    )
    return found
