"""What a running step may use, what transfers keep in place, and what a cache counts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from attnbench.models.paged_cache.tier import Entry
from attnbench.models.paged_cache.transfers import Ticket


@dataclass(slots=True)
class Counts:
    """What steps found, in tokens of history: hit + host_hit + missed = tokens, failed steps included."""

    steps: int = 0
    failed_steps: int = 0
    tokens: int = 0
    hit: int = 0
    host_hit: int = 0
    missed: int = 0
    evicted_users: int = 0
    stale_users: int = 0
    "dropped because a history had shrunk or differed, on the device or in host memory"
    offloaded: int = 0
    "tokens copied to host memory"
    not_offloaded: int = 0
    "tokens that host memory had no room for"
    failed_transfers: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True)
class CacheStep:
    """What a running step may use."""

    users: list[int]
    cached: list[int]
    "tokens of each user that need not be computed"
    new: list[int]
    "tokens of history that do"
    targets: list[int]
    "candidates"
    pages: list[list[int]]
    "of each user, for cached and new history"
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def max_new(self) -> int:
        """Most rows of a user: new history and candidates."""
        return max(map(sum, zip(self.new, self.targets, strict=True)), default=0)

    @property
    def max_cached(self) -> int:
        """Most cached tokens of a user."""
        return max(self.cached, default=0)

    def wait_layer(self, layer: int) -> None:
        """Let the device wait until what is copied in from the host is there, for one layer; the host goes on."""
        for ticket in self.tickets:
            ticket.wait_layer(layer)


class Ahead(NamedTuple):
    """What a step has to do for a user, as long as it is open whether tokens come from host memory."""

    cached: int
    "tokens on the device"
    on_host: int
    "tokens behind them that are in host memory"
    rows: int
    "new history and candidates, which are computed in any case"


@dataclass(slots=True)
class Moving:
    """A transfer under way and what it keeps from being evicted."""

    ticket: Ticket
    pinned: list[Entry]
    arrives: list[tuple[Entry, int, np.ndarray]] | None = None
    "of an offload: what entries of host memory hold when it is over; None: it goes to the device"


@dataclass(slots=True)
class Leaving:
    """What of a user is to be copied out."""

    user: int
    source: Entry
    held: Entry
    span: slice
    "pages, in the order of the tokens"
