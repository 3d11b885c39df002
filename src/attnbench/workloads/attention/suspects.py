"""Well-known wrong answers, so that the checker can say what a backend computed instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from attnbench.workloads.attention import parts
from attnbench.workloads.attention.case import AttentionCase
from attnbench.workloads.attention.inputs import AttentionInputs
from attnbench.workloads.attention.oracle import Rule, attend, evaluate
from attnbench.workloads.base import Draw

SWAPPED = (
    'heads and sequence swapped, as by layout [batch, seqlen, heads, dim] (a function\'s file says `layout = "bshd"`)'
)


def suspects(case: AttentionCase, inputs: AttentionInputs, *, draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield (description, outputs in fp32) for each mistake that would change the answer of this case."""
    right = Rule.of(case)
    for words, rule in _bent_rules(case):
        if rule.scale != right.scale or any(rule.band(*sizes) != right.band(*sizes) for sizes in set(case.sequences)):
            yield words, evaluate(case, inputs, dtype=torch.float32, draw=draw, rule=rule)
    if 1 < case.nheads_kv < case.nheads:
        yield "query head h reads KV head h % G instead of h // (H / G)", _dealt_round(case, inputs, draw)
    square = {(case.seqlen, case.seqlen)} == set(case.sequences)
    if square and 1 < case.nheads == case.nheads_kv and case.window is None:
        yield SWAPPED, _swapped(case, inputs, draw)


def _bent_rules(case: AttentionCase) -> Iterator[tuple[str, Rule]]:
    right = Rule.of(case)
    mask = "causal mask" if case.causal else "window"
    yield f"{mask} aligned top-left instead of bottom-right", replace(right, top_left=True)
    if case.causal and case.window is not None:
        yield "window ignored", replace(right, left=None)
        yield "causal mask ignored", replace(right, right=None)
        mask = "causal mask and window"
    yield f"{mask} ignored", replace(right, left=None, right=None)
    yield "softmax scale missing (1 instead of 1/sqrt(headdim))", replace(right, scale=1.0)


def _swapped(case: AttentionCase, inputs: AttentionInputs, draw: Draw) -> dict[str, Tensor]:
    """Evaluate the drawn pairs with heads as the sequence: a head at a row attends to the heads at that row."""
    result, views = _empty(case, inputs, draw)
    sources = {name: parts.by_sequence(case, name, getattr(inputs, name)) for name in parts.input_names(case)}

    @lru_cache(maxsize=1)
    def whole(sequence: int) -> dict[str, Tensor]:
        rows = {name: source[sequence].float() for name, source in sources.items()}
        own = {name: x[:, None] if name in parts.QUERY_SIDE else x for name, x in rows.items()}
        return attend(**own, rule=Rule.of(case))

    for i, (sequence, head) in enumerate(parts.pairs_of(case, draw)):
        for name, pieces in views.items():
            found = whole(sequence)[name]
            pieces[i].copy_(found[:, :, head] if name in parts.QUERY_SIDE else found[:, head])
    return result


def _dealt_round(case: AttentionCase, inputs: AttentionInputs, draw: Draw) -> dict[str, Tensor]:
    """Evaluate the drawn pairs, one at a time, with KV head h % G for query head h.

    The queries of a pair are then combined with other KV heads, and its keys with other queries, so the two sides of a
    pair come from two evaluations.
    """
    result, views = _empty(case, inputs, draw)
    sources = {name: parts.by_sequence(case, name, getattr(inputs, name)) for name in parts.input_names(case)}

    def met(sequence: int, query_heads: range, kv_heads: list[int]) -> dict[str, Tensor]:
        """Evaluate R query heads on one KV head, or one each on as many; queries [N, R, Sq, size]."""
        tensors = {}
        for name, source in sources.items():
            queries = name in parts.QUERY_SIDE
            heads = source[sequence][:, list(query_heads) if queries else kv_heads].float().transpose(0, 1)
            tensors[name] = heads.unflatten(0, (len(kv_heads), -1)) if queries else heads
        return attend(**tensors, rule=Rule.of(case))

    groups, size = case.nheads_kv, case.group_size
    for i, (sequence, group) in enumerate(parts.pairs_of(case, draw)):
        own = range(group * size, (group + 1) * size)
        of_queries = met(sequence, own, [head % groups for head in own])
        of_keys = met(sequence, range(group, case.nheads, groups), [group])
        for name, pieces in views.items():
            queries = name in parts.QUERY_SIDE
            pieces[i].copy_(of_queries[name][:, 0].transpose(0, 1) if queries else of_keys[name][0])
    return result


def _empty(
    case: AttentionCase, inputs: AttentionInputs, draw: Draw
) -> tuple[dict[str, Tensor], dict[str, Sequence[Tensor]]]:
    """The outputs of the drawn pairs, and views of them by pair."""
    shapes = parts.output_shapes(case, draw)
    result = {name: torch.empty(shape, device=inputs.q.device) for name, shape in shapes.items()}
    return result, {name: parts.result_pieces(case, name, tensor, draw) for name, tensor in result.items()}
