"""The data of a running step, of transfers, and the counters of a cache."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from attnbench.models.paged_cache.tier import Entry
from attnbench.models.paged_cache.transfers import Ticket


@dataclass(slots=True)
class Counts:
    """Results of lookups in tokens of history: hit + host_hit + missed = tokens, including failed steps."""

    steps: int = 0
    failed_steps: int = 0
    tokens: int = 0
    hit: int = 0
    host_hit: int = 0
    missed: int = 0
    evicted_users: int = 0
    stale_users: int = 0
    "dropped because a history was shorter or differed, on the device or in host memory"
    offloaded: int = 0
    "tokens copied to host memory"
    not_offloaded: int = 0
    "tokens for which host memory had no room"
    failed_transfers: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(slots=True)
class CacheStep:
    """The data of a running step."""

    users: list[int]
    cached: list[int]
    "tokens of each user that need not be computed"
    new: list[int]
    "tokens of history to compute"
    targets: list[int]
    "candidates"
    pages: list[list[int]]
    "of each user, for cached and new history"
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def max_new(self) -> int:
        """Maximum rows of a user: new history and candidates."""
        return max(map(sum, zip(self.new, self.targets, strict=True)), default=0)

    @property
    def max_cached(self) -> int:
        """Maximum cached tokens of a user."""
        return max(self.cached, default=0)

    def wait_layer(self, layer: int) -> None:
        """Let the device wait for the copies from host memory of one layer; the host does not wait."""
        for ticket in self.tickets:
            ticket.wait_layer(layer)


class Ahead(NamedTuple):
    """The work of a step for a user, before the decision whether to reload tokens from host memory."""

    cached: int
    "tokens on the device"
    on_host: int
    "tokens after them that are in host memory"
    rows: int
    "new history and candidates, computed in any case"


@dataclass(slots=True)
class Moving:
    """A pending transfer and the entries that it protects from eviction."""

    ticket: Ticket
    pinned: list[Entry]
    arrives: list[tuple[Entry, int, np.ndarray]] | None = None
    "for an offload: the contents of host entries once it is over; None for a copy to the device"


@dataclass(slots=True)
class Leaving:
    """Tokens of a user to copy to host memory."""

    user: int
    source: Entry
    held: Entry
    span: slice
    "pages, in the order of the tokens"
