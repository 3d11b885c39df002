"""Waiting requests, with a queue for each user: selects the next batch."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.request import Request


@dataclass(slots=True)
class Waiting:
    """A waiting request."""

    place: int
    "index in the ledger: the order of arrival"
    number: int
    "assigned by the generator"
    request: Request
    issued_ns: int


class Queue:
    """First come, first served, except that one user's requests stay in order and never share a batch."""

    def __init__(self) -> None:
        self._of_user: dict[int, deque[Waiting]] = {}
        self._heads: list[tuple[int, int]] = []
        "(place, user) of the first request of each user, as a heap"
        self.length = 0

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self.length

    @property
    def users(self) -> int:
        """Number of different users among them: the largest batch that can be formed now."""
        return len(self._heads)

    @property
    def oldest_ns(self) -> int:
        """Issue time of the request that has waited longest."""
        user = self._heads[0][1]
        return self._of_user[user][0].issued_ns

    def add(self, waiting: Waiting) -> None:
        """Append a request to its user's queue."""
        user = waiting.request.user
        line = self._of_user.setdefault(user, deque())
        line.append(waiting)
        self.length += 1
        if len(line) == 1:
            heapq.heappush(self._heads, (waiting.place, user))

    def batch(self, most: int) -> list[Waiting]:
        """Remove and return at most `most` requests of different users, in order of arrival."""
        taken: list[Waiting] = []
        while self._heads and len(taken) < most:
            _, user = heapq.heappop(self._heads)
            taken.append(self._of_user[user].popleft())
        for one in taken:
            line = self._of_user[one.request.user]
            if line:
                heapq.heappush(self._heads, (line[0].place, one.request.user))
            else:
                del self._of_user[one.request.user]
        self.length -= len(taken)
        return taken
