"""Synthetic users with the statistics of KuaiRand-1K, drawn by seed, and their requests in order of time.

Taken from the data set (counted in its standard logs of 2022-04-08 to 05-08): interactions per user are log-normal
(μ 8.94, σ 1.00), an item of popularity rank r has a share ∝ (r + 300)^-0.75 of 4,371,868 items, and several interactions
share one time (a page of the feed).

Assumed, because no figures were found: pages of 4 to 10 interactions; visits of a geometric number of pages, 5 on
average, a minute apart on average; visits uniform over the 31 days; each kind of action independent of the others, at
the rates below; context features uniform.  Hit rates of a cache depend on the visits: say so when reporting them.

Can be imported without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request

WHO = "synthetic users"
LOG_MEAN, LOG_SIGMA = 8.94, 1.00
CATALOGUE, HEAD, SLOPE = 4_371_868, 300, 0.75
FIRST_MS, DAYS = 1_649_376_000_000, 31
"2022-04-08 00:00 UTC"
DAY_MS = 86_400_000
PAGE_ROWS = (4, 10)
VISIT_PAGES, PAGE_GAP_MS = 5, 60_000
ACTION_RATES = (0.4, 0.02, 0.002, 0.003, 0.002, 0.001, 0.3, 0.01)
"Rates of the actions click, like, follow, comment, forward, hate, long view, profile enter, in the order of their bits."


@dataclass(frozen=True, slots=True)
class Log:
    """Interactions of one user, in order of time."""

    user: int
    items: np.ndarray
    "int64 [n] ids in the model's vocabulary"
    actions: np.ndarray
    "int64 [n] masks of `ACTION_RATES`' bits, in the model's vocabulary"
    times: np.ndarray
    "int64 [n] milliseconds; equal within a page"
    visits: np.ndarray
    "int64 [visits]: first interaction of each visit"
    context: np.ndarray
    "int64 [features]"


def draw_user(config: ModelConfig, user: int, seed: int) -> Log:
    """Draw one user, independently of all others.

    Args:
        config: the model to whose vocabularies ids are hashed.
        user: number, from 0.
        seed: of the data set.

    Raises:
        UsageError: a number is invalid.
    """
    for name, value in (("user", user), ("seed", seed)):
        if type(value) is not int or value < 0:
            raise UsageError(refusal(WHO, name, value, "cannot be used", "a whole number from 0"))
    drawn = np.random.default_rng([seed, user])
    count = max(1, round(drawn.lognormal(LOG_MEAN, LOG_SIGMA)))
    times, visits = _times(drawn, count)
    bits = drawn.random((count, len(ACTION_RATES))) < ACTION_RATES
    actions = (bits << np.arange(len(ACTION_RATES))).sum(axis=1)
    context = np.array(
        [user % size if feature == 0 else drawn.integers(size) for feature, size in enumerate(config.context)],
        dtype=np.int64,
    )
    return Log(user, hashed(draw_ranks(drawn, count), config.items), actions % config.actions, times, visits, context)


def draw_ranks(drawn: np.random.Generator, count: int) -> np.ndarray:
    """Popularity ranks from 0, by the inverse of the (continuous) distribution function."""
    power = 1 - SLOPE
    low, high = HEAD**power, (CATALOGUE + HEAD) ** power
    ranks = (low + drawn.random(count) * (high - low)) ** (1 / power) - HEAD
    return np.clip(ranks.astype(np.int64), 0, CATALOGUE - 1)


def _times(drawn: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Times of a user's interactions, and the first interaction of each visit."""
    sizes = drawn.integers(PAGE_ROWS[0], PAGE_ROWS[1] + 1, count // PAGE_ROWS[0] + 1)
    pages = int(np.searchsorted(sizes.cumsum(), count)) + 1
    lengths = drawn.geometric(1 / VISIT_PAGES, pages)
    visits = int(np.searchsorted(lengths.cumsum(), pages)) + 1
    starts = np.sort(drawn.integers(0, DAYS * DAY_MS, visits)) + FIRST_MS
    visit_of_page: np.ndarray = np.repeat(np.arange(visits), lengths[:visits])[:pages]
    gaps = drawn.exponential(PAGE_GAP_MS, pages).astype(np.int64) + 1
    first = np.searchsorted(visit_of_page, np.arange(visits))
    run = gaps.cumsum()
    # A visit that would overlap the next one delays it: time never goes back.
    when = np.maximum.accumulate(starts[visit_of_page] - run[first][visit_of_page]) + run
    times: np.ndarray = np.repeat(when, sizes[:pages])[:count]
    begins = np.concatenate([[0], sizes[:pages].cumsum()])[first]
    return times, begins[begins < count]


def hashed(ranks: np.ndarray, size: int) -> np.ndarray:
    """Ids below `size` from ranks by splitmix64, so that popular items are not neighbours."""
    x = ranks.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(size)).astype(np.int64)


def requests_of(log: Log, config: ModelConfig, num_candidates: int) -> Iterator[tuple[int, Request]]:
    """A request at the start of each visit: the history so far, with the items that follow as candidates.

    A history is truncated at the model's limit by keeping its *first* items, as NVIDIA's preprocessing does, so that each
    history continues the previous one.  If the oldest items were dropped, no cached history would be continued.

    Args:
        log: a user.
        config: the model.
        num_candidates: of each request; fewer where the log ends.

    Yields:
        Milliseconds, and the request.
    """
    seconds: np.ndarray = log.times // 1000  # computed once: the histories of all visits are prefixes of it
    for begin in log.visits.tolist():
        seen = min(begin, config.max_history)
        now = int(log.times[begin])
        yield (
            now,
            Request(
                user=log.user,
                items=log.items[:seen],
                actions=log.actions[:seen],
                context=log.context,
                candidates=log.items[begin : begin + min(num_candidates, config.max_candidates)],
                times=seconds[:seen],
                now=now // 1000,
            ),
        )
