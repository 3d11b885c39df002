"""Sources of requests: users drawn by seed whose histories grow from visit to visit, or single requests.

A sample of a generator is a user, not a request: each time the sample is issued, the user's next visit is used, so a
user's requests stay in order, however the generator shuffles samples.  A user whose log is over returns as
another user with the same log, unknown to the cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from attnbench.errors import UsageError, refusal
from attnbench.loadtest.serving import Refused
from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.synthetic import draw_ranks, draw_user, hashed, requests_of

WHO = "load"
MOST_USERS, LONGEST = 1_000_000, 10**9
POLICIES = ("truncate", "refuse")
TIMESTAMPS, PRESENT, ITEMS_MEAN, ITEMS_SIGMA, ITEMS_LEAST, SECONDS = 100, 0.7, 100, 25, 33, 86_400
"""Parameters of MLPerf's DLRMv3 data (mlcommons/inference, recommendation/dlrm_v3/streaming_synthetic_data.py): the
probability that a user is present at a timestamp, and the distribution of the number of items seen then."""
FIRST_TIMESTAMP = 90
"Requests are drawn from the last ten timestamps; the model was trained on the others."


class Users:
    """Users who return: each sample is one of them, and its next request is the next visit."""

    returning = True
    "The cache is kept from one load to the next."

    def __init__(self, logs: Sequence[Sequence[Request]], starts: Sequence[int], policy: Policy) -> None:
        """Start at the first visits.

        Args:
            logs: requests of each user in order of time; none empty.
            starts: for each user, the index of the first visit to be used.
            policy: for histories that are too long.
        """
        self._logs, self._next = [list(log) for log in logs], list(starts)
        self._policy, self._lives = policy, [0] * len(self._logs)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._logs)

    def take(self, index: int) -> Request | Refused:
        """Return the next request of a user."""
        if not 0 <= index < len(self._logs):
            return Refused("unknown user", f"sample {index}")
        log, at = self._logs[index], self._next[index]
        if at >= len(log):
            self._lives[index] += 1
            at = 0
        self._next[index] = at + 1
        request = log[at]
        if self._lives[index]:
            request = dataclasses.replace(request, user=request.user + len(self._logs) * self._lives[index])
        return self._policy.fit(request)

    def numbers(self) -> list[int]:
        """Return all users, before any of them returns as another one."""
        return [log[0].user for log in self._logs]

    def before(self) -> list[Request]:
        """Return each user's last request without candidates, to bring the cache into a realistic state."""
        found = []
        for log, at in zip(self._logs, self._next, strict=True):
            if at and len(log[at - 1].items):
                fitted = self._policy.fit(dataclasses.replace(log[at - 1], candidates=log[at - 1].candidates[:0]))
                found += [] if isinstance(fitted, Refused) else [fitted]
        return found

    def tokens(self, config: ModelConfig) -> list[int]:
        """Return the tokens of each user's longest history, for the size of a pool."""
        items = [min(max(len(one.items) for one in log), config.max_history) for log in self._logs]
        return [len(config.context) + config.item_tokens * count for count in items]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """Handling of requests that the model cannot accept unchanged."""

    config: ModelConfig
    long_history: str = "truncate"
    "truncate: keep the first items, as NVIDIA's preprocessing does, so that a cache continues; refuse"

    def __post_init__(self) -> None:
        if self.long_history not in POLICIES:
            raise UsageError(
                refusal(WHO, "--long-history", self.long_history, "is not known", f"one of {', '.join(POLICIES)}")
            )

    def fit(self, request: Request) -> Request | Refused:
        """Return the request in a form that the model accepts."""
        most = self.config.max_history
        if len(request.items) <= most:
            return request
        if self.long_history == "refuse":
            return Refused("history over the maximum", f"{len(request.items)} items; at most {most}")
        times = None if request.times is None else request.times[:most]
        return dataclasses.replace(request, items=request.items[:most], actions=request.actions[:most], times=times)


def kuairand(
    config: ModelConfig, *, users: int, candidates: int, most_items: int | None, seed: int, policy: Policy
) -> Users:
    """Create users with the statistics of KuaiRand-1K, each at a visit drawn by seed while the history still grows.

    Args:
        config: of the model.
        users: number of users.
        candidates: of each request.
        most_items: limit of a history, of which later visits keep the first items; None: no limit but the policy.
        seed: of all draws.
        policy: for histories above the model's limit.

    Raises:
        UsageError: a number is invalid.
    """
    _check_users(users)
    logs, starts = [], []
    drawn = np.random.default_rng([seed, 2])
    longer = dataclasses.replace(config, max_history=most_items or LONGEST)
    grows = min(most_items or LONGEST, config.max_history)
    for user in range(users):
        log = [request for _, request in requests_of(draw_user(config, user, seed), longer, candidates)]
        growing = sum(len(one.items) < grows for one in log)
        logs.append(log)
        starts.append(int(drawn.integers(0, max(1, growing))))
    return Users(logs, starts, policy)


def dlrm(config: ModelConfig, *, users: int, candidates: int, seed: int, policy: Policy) -> Users:
    """Create a request per user with the statistics of MLPerf's DLRMv3 data: about 6,700 items of 100 timestamps.

    Args:
        config: of the model.
        users: number of users.
        candidates: of each request.
        seed: of all draws.
        policy: for histories above the model's limit.
    """
    _check_users(users)
    logs = []
    for user in range(users):
        drawn = np.random.default_rng([seed, user, 3])
        at = int(drawn.integers(FIRST_TIMESTAMP, TIMESTAMPS))
        counts = np.maximum(drawn.normal(ITEMS_MEAN, ITEMS_SIGMA, at).astype(np.int64), ITEMS_LEAST)
        counts *= drawn.random(at) < PRESENT
        length = int(counts.sum())
        items = hashed(draw_ranks(drawn, length + candidates), config.items)
        logs.append(
            [
                Request(
                    user=user,
                    items=items[:length],
                    actions=drawn.integers(0, config.actions, length),
                    candidates=items[length:],
                    context=np.array([user % size for size in config.context], dtype=np.int64),
                    times=np.repeat(np.arange(at), counts) * SECONDS,
                    now=at * SECONDS,
                )
            ]
        )
    return Users(logs, [0] * users, policy)


def _check_users(users: int) -> None:
    if not 1 <= users <= MOST_USERS:
        raise UsageError(refusal(WHO, "--users", users, "cannot be used", f"1 to {MOST_USERS}"))
