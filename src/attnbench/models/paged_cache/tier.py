"""Bookkeeping of the users and pages of one memory (device or host); no tensor or page is accessed here.

An entry says that its pages hold the keys and values of the first `length` tokens of a user, and which tokens these
are.  Token ids serve as their own fingerprint: 8 bytes per token, against kilobytes of keys and values, compared in one
pass over memory, and without collisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

NO_TOKENS: np.ndarray = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Entry:
    """The tokens of one user in a tier."""

    pages: list[int] = field(default_factory=list)
    "in token order; may be more than `length` needs during a step"
    length: int = 0
    "tokens whose keys and values are stored"
    tokens: np.ndarray = field(default_factory=lambda: NO_TOKENS)
    "int64 [length]: their ids"
    pins: int = 0
    "number of running steps and transfers that use the pages; not evicted unless 0"

    def holds(self, tokens: np.ndarray) -> bool:
        """Return whether a history begins with the stored tokens."""
        return self.length <= len(tokens) and bool((self.tokens == tokens[: self.length]).all())


class Tier:
    """Pages of one memory and the users who hold them, least recently used first."""

    def __init__(self, pages: int, page_size: int, freed: Callable[[list[int]], None]) -> None:
        """Create a tier with all pages free.

        Args:
            pages: number of pages.
            page_size: tokens per page.
            freed: called with pages that become free, before they are reused.
        """
        self.pages, self.page_size = pages, page_size
        self.free = list(range(pages))[::-1]
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self._freed = freed

    def needed(self, tokens: int) -> int:
        """Return the number of pages for this many tokens."""
        return -(-tokens // self.page_size)

    def victims(self, wanted: int, keep: Collection[int]) -> list[int] | None:
        """Return users to evict so that `wanted` pages are free, least recently used first; None if impossible.

        Args:
            wanted: number of pages.
            keep: users not to evict, besides those in use.
        """
        found: list[int] = []
        missing = wanted - len(self.free)
        for user, entry in self._evictable(keep):
            if missing <= 0:
                break
            found.append(user)
            missing -= len(entry.pages)
        return found if missing <= 0 else None

    def _evictable(self, keep: Collection[int]) -> Iterator[tuple[int, Entry]]:
        return ((user, entry) for user, entry in self.entries.items() if not entry.pins and user not in keep)

    def grow(self, user: int, tokens: int) -> Entry:
        """Assign a user pages for this many tokens; there must be enough free pages."""
        entry = self.entries.get(user)
        if entry is None:
            entry = self.entries[user] = Entry()
        more = self.needed(tokens) - len(entry.pages)
        if more > 0:
            assert more <= len(self.free)
            entry.pages += self.free[: -more - 1 : -1]
            del self.free[-more:]
        return entry

    def shrink(self, user: int) -> None:
        """Free the pages after a user's `length`; if that is all of them, forget the user."""
        entry = self.entries[user]
        kept = self.needed(entry.length)
        self._free(entry.pages[kept:])
        del entry.pages[kept:]
        if not kept and not entry.pins:
            del self.entries[user]

    def drop(self, user: int) -> int:
        """Free all pages of an unused user, forget the user, and return the number of pages."""
        entry = self.entries[user]
        assert not entry.pins
        del self.entries[user]
        self._free(entry.pages)
        return len(entry.pages)

    def touch(self, user: int) -> None:
        """Make a user the most recently used."""
        self.entries.move_to_end(user)

    def _free(self, pages: list[int]) -> None:
        if pages:
            self._freed(pages)
            self.free += pages[::-1]
