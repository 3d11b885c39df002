"""The users of each step and their histories: one step of all users, a series in which all of them return every step,
or a series of steps in which users return at random.

The last is for a pool that does not hold all users.  The rate of a user's visits is log-normal, like the interactions
of users in KuaiRand-1K, and drawn once for each batch size; each user comes at least once.  Each visit adds new
tokens, which are part of the next visit's history.  A series is repeated, so its first visits find what
the last visits of the previous repetition have left in the pool.

Imports without torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

STEPS = 8
"Steps of a series."
USERS = 4
"Users of a series, as a multiple of the batch."
SIGMA = 1.0
"Standard deviation of the log-normal rate of visits."


@dataclass(frozen=True, slots=True)
class Visit:
    """A user in a step."""

    user: int
    "index in the inputs"
    earlier: int
    "number of this user's earlier visits in the series"


Step = tuple[Visit, ...]


@cache
def series(batch: int) -> tuple[Step, ...]:
    """Return the steps of a series, each with `batch` different users."""
    drawn = random.Random(batch)
    users = USERS * batch
    rates = [drawn.lognormvariate(0.0, SIGMA) for _ in range(users)]
    left = STEPS * batch - users
    visits = [1 + count for count in _dealt(left, rates, STEPS - 1, drawn)]
    count = [0] * users
    steps: list[Step] = []
    for number in range(STEPS):
        # Users with as many visits left as there are steps must come; others are drawn by the visits they have left.
        waiting = [user for user in range(users) if visits[user] > count[user]]
        waiting.sort(key=lambda user: drawn.random() ** (1 / (visits[user] - count[user])), reverse=True)
        must = [user for user in waiting if visits[user] - count[user] == STEPS - number]
        chosen = (must + [user for user in waiting if user not in must])[:batch]
        steps.append(tuple(Visit(user, count[user]) for user in sorted(chosen)))
        for user in chosen:
            count[user] += 1
    return tuple(steps)


def _dealt(visits: int, rates: list[float], most: int, drawn: random.Random) -> list[int]:
    """Distribute visits by rate, at most `most` per user."""
    found = [0] * len(rates)
    while sum(found) < visits:
        user = drawn.choices(range(len(rates)), rates)[0]
        found[user] += found[user] < most
    return found


def together(batch: int) -> tuple[Step, ...]:
    """One step of all users."""
    return (tuple(Visit(user, 0) for user in range(batch)),)


@cache
def growth(batch: int, visits: int) -> tuple[Step, ...]:
    """Return steps of all users, each as often as the others."""
    return tuple(tuple(Visit(user, earlier) for user in range(batch)) for earlier in range(visits))
