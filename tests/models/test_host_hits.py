"""The choice between reloading tokens from host memory and computing them again."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time

import pytest
import torch

from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.host_hits import HostHits
from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.paged_cache import Ahead, PagedCache

from .test_hstu_ranking import held, request


def made_up(reload, recompute):
    return HostHits((100, 1000), tuple(reload), tuple(recompute), token_bytes=2000, layers=8, least_s=0.0)


def alone(*lengths):
    """Users of whom host memory has all, without anything else to compute."""
    return [Ahead(0, length, 0) for length in lengths]


def test_the_quicker_one_is_chosen_for_the_lengths_at_hand():
    # Short ones are quicker computed, long ones quicker brought back.
    choice = made_up((2.0, 5.0), (1.0, 50.0))
    assert [choice(alone(length)) for length in (1, 50, 100, 300, 1000, 5000)] == [False] * 3 + [True] * 3
    # The copies of a batch are one: what is too short for one user alone pays for three of them.
    assert not choice(alone(100))
    assert choice(alone(100, 100, 100))
    always, never = made_up((1.0, 2.0), (3.0, 40.0)), made_up((3.0, 40.0), (1.0, 2.0))
    for lengths in ([999], [10**6], [100, 10**6]):
        assert always(alone(*lengths))
        assert not never(alone(*lengths))


def test_what_a_token_takes_is_on_a_line():
    choice = made_up((1.0, 10.0), (2.0, 110.0))  # 0.01 t + 0.0001 t²
    for length in (1, 50, 100, 400, 1000, 16_000):
        assert choice.recomputed_s(alone(length)) == pytest.approx(0.01 * length + 0.0001 * length**2)
        assert choice.reloaded_s(alone(length)) == pytest.approx(0.01 * length)
    # Rows behind what is cached see it, whoever holds it: 50 rows behind 1000 tokens.
    behind = 0.01 * 50 + 0.0001 * (1050**2 - 1000**2)
    assert choice.recomputed_s([Ahead(1000, 0, 50)]) == pytest.approx(behind)
    assert choice.reloaded_s([Ahead(0, 1000, 50)]) == pytest.approx(10.0 + behind / 8)
    assert choice.reloaded_s([Ahead(0, 1000, 5000)]) == pytest.approx(0.01 * 5000 + 0.0001 * (6000**2 - 1000**2))


def test_a_model_whose_launches_are_most_of_it_takes_longer_for_more():
    choice = made_up((1.0, 10.0), (20.0, 29.0))  # 19 + 0.01 t
    taken = [choice.recomputed_s(alone(length)) for length in (0, 1, 100, 500, 1000, 4000, 16_000)]
    assert taken == pytest.approx([0.0, 19.01, 20.0, 24.0, 29.0, 59.0, 179.0])


def test_a_measurement_that_was_delayed_is_no_longer_than_those_of_more_tokens(monkeypatch):
    seconds = iter([0.5, 9.0, 3.0, 4.0, 2.0, 1.0])  # least, then both steps, both copies, the whole
    monkeypatch.setattr("attnbench.models.hstu_ranking.host_hits._seconds", lambda *_: next(seconds))
    model = HstuRanking(config_of("small"), dtype=torch.float32)
    found = HostHits.measured(model, model, page_size=32)
    assert (found.least_s, found.recompute_s, found.reload_s) == (0.5, (2.5, 2.5), (2.0, 2.0))


class Machine:
    """Made up: what steps take where tokens cost a t + b t², and copies have a start and a rate for each layer."""

    def __init__(self, slowness):
        self.now, self.slowness = 0.0, slowness

    def computed(self, tokens):
        return 0.15e-6 * tokens + 1.2e-11 * tokens**2

    def copied(self, tokens):
        return 20e-6 + self.slowness * 0.25e-6 * tokens

    def step(self, users, *, reload):
        """A step's layers one after another, each no sooner than its keys and values are there."""
        layers = 8
        if not reload:
            return 0.25e-3 + sum(self.computed(sum(one)) - self.computed(one.cached) for one in users)
        own = 0.25e-3 + sum(self.computed(sum(one)) - self.computed(one.cached + one.on_host) for one in users)
        copied, done = self.copied(sum(one.on_host for one in users)), 0.0
        for layer in range(1, layers + 1):
            done = max(done, copied * layer / layers) + own / layers
        return done

    def measured(self, monkeypatch):
        """As the model's own steps and copies are measured, by a clock that they move."""
        model = HstuRanking(dataclasses.replace(config_of("small"), layers=8, heads=1, dim=16), dtype=torch.float32)

        def score(requests):
            self.now += self.step([Ahead(0, 0, 2 * len(one.items)) for one in requests], reload=False)

        def copy_in(cache, pages):
            self.now += self.copied(pages * cache.page_size)

        monkeypatch.setattr(PagedCache, "copy_in", copy_in)
        return HostHits.measured(model, score, page_size=64, clock=lambda: self.now)


@pytest.mark.parametrize("slowness", [0.1, 0.8, 1.0, 1.25, 1.5, 8.0])
def test_auto_is_within_a_twentieth_of_the_better(slowness, monkeypatch):
    """From a bus far too fast for computing again to one far too slow; steps of all kinds."""
    machine = Machine(slowness)
    auto, drawn = machine.measured(monkeypatch), random.Random(0)
    total = {True: 0.0, False: 0.0, None: 0.0}
    for _ in range(400):
        users = [
            Ahead(
                *drawn.choice([(0, drawn.randrange(64, 12_000)), (drawn.randrange(8000), 0)]), drawn.randrange(1, 1300)
            )
            for _ in range(drawn.randint(1, 8))
        ]
        if not any(one.on_host for one in users):
            continue
        taken = {how: machine.step(users, reload=how) for how in (True, False)}
        chosen = taken[auto(users)]
        assert chosen <= 1.05 * min(taken.values())
        for how, seconds in ((None, chosen), *taken.items()):
            total[how] += seconds
    assert total[None] <= 1.001 * min(total[True], total[False])
    if slowness in (1.25, 1.5):  # neither is always right
        assert total[None] < 0.999 * min(total[True], total[False])


@pytest.mark.gpu
def test_on_a_card_computing_again_takes_time_however_slow_the_host():
    model = HstuRanking(dataclasses.replace(config_of("small"), max_history=8192), device="cuda", dtype=torch.bfloat16)

    def score(requests):
        time.sleep(3e-3)  # longer than the device takes for a short history
        model(requests)

    found = HostHits.measured(model, score)
    assert 1e-6 < found.recompute_s[0] <= found.recompute_s[-1] < 1.0


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

    def every_other(users):
        asked.append(list(users))
        return len(asked) % 2 == 1

    model = HstuRanking(config_of("tiny"), seed=2, dtype=torch.float32)
    cache = model.make_cache(pages=4, page_size=32, host_pages=20, reload=every_other, poison=True)
    for user, length in ((1, 40), (2, 30), (1, 41), (2, 31), (1, 41)):
        requests = [request(user, length)]
        held(model, model(requests, cache=cache), requests)
    assert asked == [[Ahead(0, 82, 5)], [Ahead(0, 62, 5)], [Ahead(0, 84, 3)]]
    assert cache.counts.host_hit == 82 + 84
