"""Arrivals of users who return: each user has gaps of its own, drawn by seed."""

from __future__ import annotations

import numpy as np

from attnbench.errors import UsageError, refusal

WHO = "load"
USUAL_BURSTINESS = 0.5
"""Shape of the gamma distribution of gaps; 1 is a Poisson process of each user, below 1 visits come in bursts, far
above 1 they are regular.  No figure of the gaps between visits was found published: this is an assumption."""
ACTIVITY_SIGMA = 1.0
"How often a user returns is log-normal, as interactions of a user are in KuaiRand-1K."
MOST_REQUESTS = 20_000_000


def arrivals(
    *, users: int, rate: float, duration_s: float, burstiness: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """When who arrives.

    Args:
        users: how many return; the mean gap of a user is users / rate.
        rate: of all requests, a second.
        duration_s: of the load.
        burstiness: shape of the gaps' distribution.
        seed: of all that is drawn.

    Returns:
        Nanoseconds from the start, ascending, and the user of each: round(rate * duration) of them, the last one at the
        end of the duration.

    Raises:
        UsageError: a number cannot be used.
    """
    wanted = count_of(rate, duration_s)
    drawn = np.random.default_rng([seed, 4])
    activity = drawn.lognormal(0.0, ACTIVITY_SIGMA, users)
    share = activity / activity.sum()
    times: list[np.ndarray] = []
    whose: list[np.ndarray] = []
    for user in range(users):
        mean = 1.0 / (share[user] * wanted)  # in units of the duration
        # Enough of them to fill the duration twice, however the sum falls out.
        count = int(4 + 2.5 / mean + 12 * np.sqrt((1 + 1 / burstiness) * (1 + 2 / mean)))
        gaps = drawn.gamma(burstiness, mean / burstiness, count)
        first = gaps[0] * drawn.random()  # the load begins anywhere in a gap
        at = first + np.concatenate([[0.0], gaps[1:].cumsum()])
        at = at[at < 2.0]
        times.append(at)
        whose.append(np.full(len(at), user))
    every, of = np.concatenate(times), np.concatenate(whose)
    order = np.argsort(every, kind="stable")[:wanted]
    every, of = every[order], of[order]
    if len(every) < wanted:  # a few users who by chance return late: the rest comes evenly
        missing = wanted - len(every)
        every = np.concatenate([every, np.linspace(every[-1] if len(every) else 0.0, 2.0, missing + 1)[1:]])
        of = np.concatenate([of, drawn.choice(users, missing, p=share)])
    # Scaled so that exactly so many arrive in the duration: the rate is the one asked for, not one drawn about it.
    due = np.round(every / every[-1] * duration_s * 1e9).astype(np.int64)
    return due, of.astype(np.int64)


def is_possible(rate: float, duration_s: float) -> bool:
    """Whether a load of that rate has a request, and not more than can be held."""
    return 1 <= round(rate * duration_s) <= MOST_REQUESTS


def count_of(rate: float, duration_s: float) -> int:
    """Requests of a load.

    Raises:
        UsageError: there would be none, or more than can be held.
    """
    wanted = round(rate * duration_s)
    if not is_possible(rate, duration_s):
        raise UsageError(
            refusal(
                WHO,
                "--rate",
                f"{rate:g}",
                f"gives {wanted} requests in {duration_s:g} s",
                f"1 to {MOST_REQUESTS} requests",
            )
        )
    return wanted
