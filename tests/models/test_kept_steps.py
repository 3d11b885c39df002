"""Steps of ever new lengths launch kernels without Triton's launcher: calls are cached by rounded bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from attnbench.models.hstu_ranking.config import ModelConfig, config_of
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.operations import FUSED
from attnbench.models.hstu_ranking.request import Request
from kernels.launches import on_no_card

LAYERS = 2
BACK = replace(
    config_of("dlrm-v3"), layers=LAYERS, items=2000, hidden=64, dim=64, heads=2, head=(8, 1), max_history=900
)


def drawn_requests(config: ModelConfig, drawn: np.random.Generator, batch: int, most: int) -> list[Request]:
    found = []
    for user in range(batch):
        length = int(drawn.integers(most * 7 // 8, most))
        items, actions = drawn.integers(0, config.items, length), np.zeros(length, np.int64)
        context = np.zeros(len(config.context), np.int64)
        one = Request(user=user, items=items, actions=actions, candidates=np.arange(40), context=context)
        found.append(replace(one, times=np.arange(length) * 1000, now=10**6) if config.recency else one)
    return found


@pytest.mark.parametrize(("attention", "cached"), [("gathered", False), ("paged", False), ("paged", True)])
def test_steps_of_new_lengths_call_kept_kernels(attention, cached):
    config = config_of("small") if cached else BACK
    model, drawn = HstuRanking(config, dtype=torch.bfloat16), np.random.default_rng(0)
    model.operations = FUSED
    with on_no_card() as card:
        passed, rows = [], set()
        for _ in range(12):
            cache = model.make_cache(pages=600, page_size=64) if cached else None
            before = card.through_triton
            requests = drawn_requests(config, drawn, 4, 400)
            rows.add(sum(len(one.items) for one in requests))
            if cache is not None:  # half of each history first
                halves = [replace(one, items=one.items[:150], actions=one.actions[:150]) for one in requests]
                model(halves, cache=cache, attention=attention)
            model(requests, cache=cache, attention=attention)
            passed.append(card.through_triton - before)
            card.held.clear()
    assert len(rows) > 8
    assert passed[0] > 0
    assert sum(count > 0 for count in passed) <= 3, passed
