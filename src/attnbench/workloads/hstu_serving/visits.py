"""Who asks in which step, with which history: one step of all users, a series in which all of them come again and again,
or a series of steps of users who return as they like.

The last is for a pool that does not hold all users.  How often a user comes is log-normal, as interactions of a user
are in KuaiRand-1K, and drawn once for each size of the batch; each user comes at least once.  Each visit brings new
tokens: the next one's history has them, too.  A series is carried out again and again, so its first visits find what
the last ones of the series before have left in the pool.

Imports without torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

STEPS = 8
"Steps of a series."
USERS = 4
"Users of a series: so many times the batch."
SIGMA = 1.0
"Of the log-normal rate at which a user comes."


@dataclass(frozen=True, slots=True)
class Visit:
    """A user in a step."""

    user: int
    "place in the inputs"
    earlier: int
    "visits of this user before, in the series"


Step = tuple[Visit, ...]


@cache
def series(batch: int) -> tuple[Step, ...]:
    """The steps of a series, each of `batch` different users."""
    drawn = random.Random(batch)
    users = USERS * batch
    rates = [drawn.lognormvariate(0.0, SIGMA) for _ in range(users)]
    left = STEPS * batch - users
    visits = [1 + count for count in _dealt(left, rates, STEPS - 1, drawn)]
    count = [0] * users
    steps: list[Step] = []
    for number in range(STEPS):
        # Whoever has as many visits left as there are steps must come; the others as drawn, by what they have left.
        waiting = [user for user in range(users) if visits[user] > count[user]]
        waiting.sort(key=lambda user: drawn.random() ** (1 / (visits[user] - count[user])), reverse=True)
        must = [user for user in waiting if visits[user] - count[user] == STEPS - number]
        chosen = (must + [user for user in waiting if user not in must])[:batch]
        steps.append(tuple(Visit(user, count[user]) for user in sorted(chosen)))
        for user in chosen:
            count[user] += 1
    return tuple(steps)


def _dealt(visits: int, rates: list[float], most: int, drawn: random.Random) -> list[int]:
    """Visits dealt by rate, at most so many to a user."""
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
    """Steps of all users, each as often as the others."""
    return tuple(tuple(Visit(user, earlier) for user in range(batch)) for earlier in range(visits))
