"""Synthetic users have the published distributions of KuaiRand-1K, and their requests fit a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnbench.errors import UsageError
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import check
from attnbench.models.hstu_ranking.synthetic import (
    ACTION_RATES,
    CATALOGUE,
    DAY_MS,
    DAYS,
    FIRST_MS,
    PAGE_ROWS,
    draw_ranks,
    draw_user,
    requests_of,
)

KUAIRAND = config_of("kuairand")


def test_lengths_are_log_normal():
    logs = [np.log(len(draw_user(KUAIRAND, user, 0).items)) for user in range(150)]
    assert np.mean(logs) == pytest.approx(8.94, abs=0.25)
    assert np.std(logs) == pytest.approx(1.0, abs=0.2)


def test_popularity_is_the_measured_one():
    """Shares of the most popular ranks against the sum of the law itself."""
    ranks = draw_ranks(np.random.default_rng(1), 400_000)
    law = (np.arange(CATALOGUE) + 300.0) ** -0.75
    for top in (100, 10_000, 1_000_000):
        assert (ranks < top).mean() == pytest.approx(law[:top].sum() / law.sum(), rel=0.05)
    assert 0 <= ranks.min() <= ranks.max() < CATALOGUE


@pytest.mark.parametrize("user", range(6))
def test_a_log_is_in_order_and_in_pages(user):
    log = draw_user(KUAIRAND, user, 7)
    assert (np.diff(log.times) >= 0).all()
    assert FIRST_MS <= log.times[0] < FIRST_MS + DAYS * DAY_MS
    sizes = np.unique(log.times, return_counts=True)[1]
    assert sizes[:-1].min() >= PAGE_ROWS[0]
    assert np.median(sizes) <= PAGE_ROWS[1]
    assert log.visits[0] == 0
    assert (np.diff(log.visits) > 0).all()
    # A visit begins a page: what is before it is earlier.
    assert (log.times[log.visits[1:]] > log.times[log.visits[1:] - 1]).all()
    assert len(log.items) == len(log.actions) == len(log.times)
    again = draw_user(KUAIRAND, user, 7)
    assert all(np.array_equal(getattr(log, name), getattr(again, name)) for name in ("items", "actions", "times"))
    assert not np.array_equal(log.items[:50], draw_user(KUAIRAND, user, 8).items[:50])


def test_actions_come_at_their_rates():
    actions = np.concatenate([draw_user(KUAIRAND, user, 0).actions for user in range(8)])
    for bit, rate in enumerate(ACTION_RATES):
        assert (actions >> bit & 1).mean() == pytest.approx(rate, abs=0.01)


def test_requests_continue_one_another_and_fit_the_model():
    log = draw_user(KUAIRAND, 3, 0)
    before, length, count = -1, 0, 0
    for now, request in requests_of(log, KUAIRAND, 100):
        check(KUAIRAND, [request])
        assert now >= before
        assert len(request.items) >= length
        assert np.array_equal(request.items[:length], log.items[:length])
        before, length, count = now, len(request.items), count + 1
    assert count == len(log.visits)
    assert length == min(KUAIRAND.max_history, log.visits[-1])


def test_the_requests_of_a_user_share_one_history():
    """A copy of the times at each visit was ten megabytes a user: a load of some hundred users had no room."""
    requests = [request for _, request in requests_of(draw_user(KUAIRAND, 3, 0), KUAIRAND, 100)]
    whole = max(requests, key=lambda one: len(one.items))
    for one in requests:
        for ours, all_of_it in ((one.items, whole.items), (one.actions, whole.actions), (one.times, whole.times)):
            assert len(ours) == 0 or np.shares_memory(ours, all_of_it)


def test_a_small_model_serves_them_from_its_cache():
    config = replace(config_of("tiny"), max_history=100)
    model = HstuRanking(config, dtype=torch.float64)
    cache = model.make_cache(pages=30, page_size=32, poison=True)
    drawn = sorted(
        (
            (now, user, request)
            for user in range(3)
            for now, request in list(requests_of(draw_user(config, user, 1), config, 10))[:6]
        ),
        key=lambda one: one[:2],
    )
    for _, _, request in drawn:
        torch.testing.assert_close(model([request], cache=cache), model([request]), rtol=1e-9, atol=1e-12)
    assert cache.counts.stale_users == 0
    assert cache.counts.hit > cache.counts.missed


def test_numbers_that_cannot_be_used():
    for wrong in ({"user": -1}, {"seed": 1.5}):
        with pytest.raises(UsageError, match=f"synthetic users: {next(iter(wrong))}="):
            draw_user(KUAIRAND, **{"user": 0, "seed": 0} | wrong)
