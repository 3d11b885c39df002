"""Which user holds which pages of one memory (device or host).  Bookkeeping alone: no tensor, no page is touched here.

An entry says that its pages hold the keys and values of the first `length` tokens of a user, and which tokens these
were.  The ids themselves are kept as the fingerprint: 8 bytes a token beside kilobytes of keys and values, compared
by one pass over memory, and two histories never look the same by chance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

NO_TOKENS: np.ndarray = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Entry:
    """What a tier holds of one user."""

    pages: list[int] = field(default_factory=list)
    "in the order of the tokens; may be more than `length` needs while a step runs"
    length: int = 0
    "tokens whose keys and values are there"
    tokens: np.ndarray = field(default_factory=lambda: NO_TOKENS)
    "int64 [length]: their ids"
    pins: int = 0
    "running steps and transfers that use the pages: not evicted while there are any"

    def holds(self, tokens: np.ndarray) -> bool:
        """Whether a history begins with what is held: neither shorter nor different."""
        return self.length <= len(tokens) and bool((self.tokens == tokens[: self.length]).all())


class Tier:
    """Pages of one memory and the users who hold them, the least recently used first."""

    def __init__(self, pages: int, page_size: int, freed: Callable[[list[int]], None]) -> None:
        """All pages free.

        Args:
            pages: in all.
            page_size: tokens of a page.
            freed: called with pages that nobody holds any longer, before anyone else gets them.
        """
        self.pages, self.page_size = pages, page_size
        self.free = list(range(pages))[::-1]
        self.entries: OrderedDict[int, Entry] = OrderedDict()
        self._freed = freed

    def needed(self, tokens: int) -> int:
        """Pages that so many tokens take."""
        return -(-tokens // self.page_size)

    def victims(self, wanted: int, keep: Collection[int]) -> list[int] | None:
        """Users to evict so that `wanted` pages are free, the least recently used first; None: there are not so many.

        Args:
            wanted: pages.
            keep: users not to evict, beside those in use.
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
        """Give a user pages for so many tokens, out of the free ones, of which there must be enough."""
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
        """Take back the pages behind a user's `length`; all of them: the user is gone."""
        entry = self.entries[user]
        kept = self.needed(entry.length)
        self._free(entry.pages[kept:])
        del entry.pages[kept:]
        if not kept and not entry.pins:
            del self.entries[user]

    def drop(self, user: int) -> int:
        """Free all pages of a user that nothing uses, and forget the user; how many pages that were."""
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
