"""Users with the distributions of KuaiRand-1K, drawn from a seed (`models.hstu_ranking.synthetic` has the sources).

Two further assumptions, for which no figures were found: the length of a video is log-normal (median 30 s, σ 0.8), and
the watched share is uniform from 0 to 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnbench.datasets.history import History
from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.config import config_of
from attnbench.models.hstu_ranking.synthetic import DAY_MS, FIRST_MS, draw_user

DURATION_MS, DURATION_SIGMA, WATCHED = 30_000, 0.8, 1.2
FIRST_DAY = np.datetime64("2022-04-08")
MOST_USERS = 1_000_000


def draw(users: int, seed: int) -> Iterator[History]:
    """Yield users in turn; each is independent of the others.

    Args:
        users: number of users.
        seed: of the data set.

    Raises:
        UsageError: a number cannot be used.
    """
    if type(users) is not int or not 1 <= users <= MOST_USERS:
        raise UsageError(refusal("synthetic users", "users", users, "cannot be used", f"1 to {MOST_USERS}"))
    config = config_of("kuairand")
    for user in range(users):
        log = draw_user(config, user, seed)
        drawn = np.random.default_rng([seed, user, 1])
        duration = np.exp(drawn.normal(np.log(DURATION_MS), DURATION_SIGMA, len(log.items))).astype(np.int64)
        play = (duration * drawn.uniform(0, WATCHED, len(log.items))).astype(np.int64)
        days = FIRST_DAY + (log.times - FIRST_MS) // DAY_MS
        date = np.char.replace(np.datetime_as_string(days), "-", "").astype(np.int64)
        yield History(
            user,
            tuple(int(one) + 1 for one in log.context[1:]),
            log.items,
            log.times,
            log.actions,
            play,
            duration,
            date,
        )
