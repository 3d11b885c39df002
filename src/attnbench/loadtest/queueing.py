"""Requests that wait, a queue for each user: who goes into the next batch."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.request import Request


@dataclass(slots=True)
class Waiting:
    """A request that waits."""

    place: int
    "in the ledger: the order of arrival"
    number: int
    "the generator's"
    request: Request
    issued_ns: int


class Queue:
    """First come, first served, except that one user's requests stay in order and never share a batch."""

    def __init__(self) -> None:
        self._of_user: dict[int, deque[Waiting]] = {}
        self._heads: list[tuple[int, int]] = []
        "(place, user) of the first request of each user: a heap"
        self.length = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return self.length

    @property
    def users(self) -> int:
        """Different users among them: the largest batch that can be formed now."""
        return len(self._heads)

    @property
    def oldest_ns(self) -> int:
        """When the request that has waited longest was issued."""
        user = self._heads[0][1]
        return self._of_user[user][0].issued_ns

    def add(self, waiting: Waiting) -> None:
        """Put a request behind those of its user."""
        user = waiting.request.user
        line = self._of_user.setdefault(user, deque())
        line.append(waiting)
        self.length += 1
        if len(line) == 1:
            heapq.heappush(self._heads, (waiting.place, user))

    def batch(self, most: int) -> list[Waiting]:
        """Take at most so many requests of different users, in the order of their arrival."""
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
