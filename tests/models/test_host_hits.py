"""The choice between tokens brought back from host memory and tokens computed again."""

from __future__ import annotations

import itertools

import pytest
import torch

from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.host_hits import HostHits
from attnbench.models.hstu_ranking.model import HstuRanking

from .test_hstu_ranking import held, request


def made_up(reload, recompute):
    return HostHits((100, 1000), tuple(reload), tuple(recompute), token_bytes=2000)


def test_the_quicker_one_is_chosen_for_the_lengths_at_hand():
    # Short ones are quicker computed, long ones quicker brought back.
    choice = made_up((2.0, 5.0), (1.0, 50.0))
    assert [choice([length]) for length in (1, 50, 100, 120, 300, 1000, 5000)] == [
        False,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert not choice([100, 100, 100])
    assert choice([100, 100, 1000])
    always, never = made_up((1.0, 2.0), (3.0, 4.0)), made_up((3.0, 4.0), (1.0, 2.0))
    for lengths in ([1], [999], [10**6], [1, 10**6]):
        assert always(lengths)
        assert not never(lengths)


def test_beyond_what_was_measured_a_token_costs_as_much_as_at_the_end():
    choice = made_up((1.0, 10.0), (1.0, 10.0))
    assert choice._seconds(choice.reload_s, [4000]) == pytest.approx(40.0)
    assert choice._seconds(choice.reload_s, [50, 550]) == pytest.approx(0.5 + 5.5)


def test_the_break_even_is_a_rate():
    choice = made_up((1.0, 4e-6), (1.0, 1e-6))
    assert choice.reload_gb_s == pytest.approx(500)
    assert choice.break_even_gb_s == pytest.approx(2000)
    assert choice.words() == (
        "of 1000 tokens a user in host memory: reload 0.004 ms (500 GB/s), recompute 0.001 ms; "
        "reload pays from 2e+03 GB/s on"
    )


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_both_are_measured_with_lengths_that_the_model_takes(name):
    ticks = itertools.count()
    model = HstuRanking(config_of(name), dtype=torch.float32)
    found = HostHits.measured(model, model, page_size=32, clock=lambda: float(next(ticks)))
    assert found.tokens == ((202,) if name == "tiny" else (512, 4096))
    assert found.token_bytes == 2 * 2 * model.config.heads * model.config.dim * 4
    # Each call takes one tick: a step with a history is no longer than one without.
    assert set(found.reload_s) == {1.0}
    assert set(found.recompute_s) == {1e-9}
    assert found.contiguous_gb_s == pytest.approx(-(-found.tokens[-1] // 32) * 32 * found.token_bytes / 1e9)
    assert ", 90 % of one copy), recompute" in found.words() or name == "small"


def test_steps_are_measured_in_the_way_they_are_carried_out():
    model = HstuRanking(config_of("tiny"), dtype=torch.float32)
    asked = []

    def score(requests):
        asked.append([(len(one.items), len(one.candidates)) for one in requests])

    HostHits.measured(model, score, page_size=32)
    assert asked == 6 * [[(0, 1)]] + 6 * [[(100, 0)]]


def test_a_cache_asks_for_each_step():
    asked = []

    def every_other(lengths):
        asked.append(list(lengths))
        return len(asked) % 2 == 1

    model = HstuRanking(config_of("tiny"), seed=2, dtype=torch.float32)
    cache = model.make_cache(pages=4, page_size=32, host_pages=20, reload=every_other, poison=True)
    for user, length in ((1, 40), (2, 30), (1, 41), (2, 31), (1, 41)):
        requests = [request(user, length)]
        held(model, model(requests, cache=cache), requests)
    assert asked == [[82], [62], [84]]
    assert cache.counts.host_hit == 82 + 84
