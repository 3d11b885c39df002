"""Exact useful work of a serving step, or of a series of them, in closed form.  Imports without torch.

For each user, with m rows of new history (not found cached), T candidates, c cached tokens, d hidden, H heads of
D dims, w = H D, a multiply-add counting as 2:

    projection    (m + T) · 2 · d · 4 w           a layer
    attention     4 · w · pairs                   a layer; pairs = m c + m (m + 1)/2 + T (c + m + 1)
    output        (m + T) · 2 · w · d             a layer (three times that in Meta's layer, whose input is 3 w wide)
    embedding     the projection after a narrower table; for DLRMv3 the MLPs of item and action
    towers        T · 2 · (products of the sizes)

Elementwise functions are not counted.  Bytes are the least a step can move: weights once, the rows of the tables that
it reads, cached keys and values once, new ones once, logits once.  A host hit also moves its pages over the bus,
which is not counted, because it is not device memory traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attnbench.dtypes import DTYPES
from attnbench.models.hstu_ranking.config import ACTION_DIM, ACTION_HIDDEN, ModelConfig
from attnbench.record import Work
from attnbench.workloads.hstu_serving.case import ServingCase

Found = Sequence[Sequence[int]]


def work(case: ServingCase, found: Found | None = None) -> Work:
    """Return useful FLOPs and least bytes of all steps of a case.

    Args:
        case: the problem.
        found: tokens of each history that are found cached, for each step; None: as defined by the case.
    """
    config, flops = case.config, 0
    wide, targets = config.heads * config.dim, case.num_candidates
    moved = len(case.steps) * _weights(config)
    for history, hit in _histories(case, found):
        rows = history - hit + targets
        attention = 4 * wide * pairs(hit, history - hit, targets)
        flops += rows * _row_flops(config) + config.layers * (rows * layer_row_flops(config) + attention)
        flops += targets * _tower_flops(config)
        kept = config.layers * 2 * wide * history
        moved += rows * (config.width + config.hidden) + kept + targets * config.tasks
    return Work(flops=flops, bytes=DTYPES[case.dtype].bytes * moved)


def attention_flops(case: ServingCase, found: Found | None = None) -> int:
    """Return the part of these FLOPs that attention takes in all layers."""
    config = case.config
    seen = sum(pairs(hit, history - hit, case.num_candidates) for history, hit in _histories(case, found))
    return config.layers * 4 * config.heads * config.dim * seen


def _histories(case: ServingCase, found: Found | None) -> Iterator[tuple[int, int]]:
    """Yield the tokens of each visit's history, and how many of them are found cached."""
    for number, step in enumerate(case.steps):
        for place, visit in enumerate(step):
            yield case.history_of(visit), case.found_of(visit) if found is None else found[number][place]


def pairs(cached: int, new: int, candidates: int) -> int:
    """Return the number of (query, key) pairs that are visible to the rows of one user."""
    return new * cached + new * (new + 1) // 2 + candidates * (cached + new + 1)


def layer_row_flops(config: ModelConfig) -> int:
    """FLOPs of the products of one row in one layer, without attention."""
    wide = config.heads * config.dim
    return 2 * config.hidden * 4 * wide + 2 * (wide if config.variant == "hstu" else 3 * wide) * config.hidden


def _row_flops(config: ModelConfig) -> int:
    if config.recency:
        return 2 * (
            _products((2 * config.width, config.hidden, config.hidden))
            + _products((ACTION_DIM, ACTION_HIDDEN, config.hidden))
        )
    return 0 if config.width == config.hidden else 2 * config.width * config.hidden


def _tower_flops(config: ModelConfig) -> int:
    return 2 * config.towers * _products((config.hidden, *config.head))


def _weights(config: ModelConfig) -> int:
    wide = config.heads * config.dim
    layer = config.hidden * 4 * wide + (wide if config.variant == "hstu" else 3 * wide) * config.hidden
    return config.layers * layer + (_row_flops(config) + _tower_flops(config)) // 2


def _products(sizes: tuple[int, ...]) -> int:
    return sum(before * after for before, after in pairwise(sizes))
