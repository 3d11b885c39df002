"""Arrivals of returning users: each user has its own gaps between visits, drawn by seed."""

from __future__ import annotations

import numpy as np

from attnbench.errors import UsageError, refusal

WHO = "load"
USUAL_BURSTINESS = 0.5
"""Shape of the gamma distribution of gaps: 1 is a Poisson process per user; below 1 visits come in bursts; far
above 1 they are regular.  This is an assumption, because no published figures of gaps between visits were found."""
ACTIVITY_SIGMA = 1.0
"Standard deviation of the log-normal rate of a user's visits, like that of interactions in KuaiRand-1K."
MOST_REQUESTS = 20_000_000


def arrivals(
    *, users: int, rate: float, duration_s: float, burstiness: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the arrival times and users of a load.

    Args:
        users: number of users who return; the mean gap of a user is users / rate.
        rate: of all requests, per second.
        duration_s: of the load.
        burstiness: shape of the distribution of gaps.
        seed: of all draws.

    Returns:
        Nanoseconds from the start, ascending, and the user of each: round(rate * duration) arrivals, the last one at
        the end of the duration.

    Raises:
        UsageError: a number is invalid.
    """
    wanted = count_of(rate, duration_s)
    drawn = np.random.default_rng([seed, 4])
    activity = drawn.lognormal(0.0, ACTIVITY_SIGMA, users)
    share = activity / activity.sum()
    times: list[np.ndarray] = []
    whose: list[np.ndarray] = []
    for user in range(users):
        mean = 1.0 / (share[user] * wanted)  # in units of the duration
        # Enough gaps to fill the duration twice, whatever their sum turns out to be.
        count = int(4 + 2.5 / mean + 12 * np.sqrt((1 + 1 / burstiness) * (1 + 2 / mean)))
        gaps = drawn.gamma(burstiness, mean / burstiness, count)
        first = gaps[0] * drawn.random()  # the load starts at a random point of a gap
        at = first + np.concatenate([[0.0], gaps[1:].cumsum()])
        at = at[at < 2.0]
        times.append(at)
        whose.append(np.full(len(at), user))
    every, of = np.concatenate(times), np.concatenate(whose)
    order = np.argsort(every, kind="stable")[:wanted]
    every, of = every[order], of[order]
    if len(every) < wanted:  # few users who by chance return late: the missing arrivals are spaced evenly
        missing = wanted - len(every)
        every = np.concatenate([every, np.linspace(every[-1] if len(every) else 0.0, 2.0, missing + 1)[1:]])
        of = np.concatenate([of, drawn.choice(users, missing, p=share)])
    # Scaled so that exactly this many arrive in the duration: the rate is the requested one, without random deviation.
    due = np.round(every / every[-1] * duration_s * 1e9).astype(np.int64)
    return due, of.astype(np.int64)


def is_possible(rate: float, duration_s: float) -> bool:
    """Return whether a load of that rate has at least one request, and not too many to store."""
    return 1 <= round(rate * duration_s) <= MOST_REQUESTS


def count_of(rate: float, duration_s: float) -> int:
    """Return the number of requests of a load.

    Raises:
        UsageError: there would be none, or too many to store.
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
