"""A paged cache of keys and values: one pool on the device, a page table per user, optionally a second tier in host memory.

A step of a batch runs as follows:

    with cache.step(users, histories, targets) as step:      # look up, evict, allocate; pins the users
        for layer in …: step.wait_layer(layer); append new history; attend over a table of step
                                                              # exit without an error: the new history is cached
                                                              # exit with an error: the cache is as before the step

A lookup finds a hit if the cached tokens on the device are the first tokens of the history; a host hit if those in
host memory are (their pages are copied in during the step); otherwise nothing.  If a history is shorter than the cached
entry, or begins with other tokens, the entry is dropped and the whole history computed again.

Whole users are evicted, least recently used first, but never a user of the batch, of a running step or with a pending
transfer.  Candidates are never cached.  Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.errors import UsageError, refusal
from attnbench.kernels.hstu.paged.problem import PAGE_SIZES
from attnbench.models.paged_cache.step import Ahead, CacheStep, Counts, Leaving, Moving
from attnbench.models.paged_cache.tier import Entry, Tier
from attnbench.models.paged_cache.transfers import Ticket, Transfers

WHO = "kv-cache"
Choice = Callable[[Sequence[Ahead]], bool]


class PagedCache:
    """Keys and values of users, in pages."""

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        dim: int,
        pages: int,
        page_size: int,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        host_pages: int = 0,
        reload: bool | Choice = True,
        offload_chunk: int = 1,
        poison: bool = False,
        owner: object = None,
        transfers: Any = Transfers,
    ) -> None:
        """Create an empty cache; all its memory is allocated here.

        Args:
            layers: layers of the model.
            heads: heads of keys and values.
            dim: dimension of a head.
            pages: pages in the pool.
            page_size: tokens per page: 32, 64 or 128.
            dtype: dtype of keys and values.
            device: device of the pool.
            host_pages: pages of host memory; 0: no offload.
            reload: whether to use host hits; if False, host memory is filled but its tokens are computed again.  Or a
                function that decides, called with the work of a step for each of its users.
            offload_chunk: new tokens of a user that trigger a copy to the host.
            poison: write NaN to all pages at first and to freed pages, so that a stale read is visible.
            owner: what the values depend on besides token ids; stored for the creator of the cache.
            transfers: creates the copies, as `Transfers` does.

        Raises:
            UsageError: a number is invalid.
        """
        numbers = {"layers": layers, "heads": heads, "dim": dim, "pages": pages, "offload_chunk": offload_chunk}
        for name, value in numbers.items():
            if type(value) is not int or value < 1:
                raise UsageError(refusal(WHO, name, value, "cannot be used", "a whole number from 1"))
        if type(host_pages) is not int or host_pages < 0:
            raise UsageError(refusal(WHO, "host_pages", host_pages, "cannot be used", "a whole number from 0"))
        if page_size not in PAGE_SIZES:
            raise UsageError(
                refusal(WHO, "page_size", page_size, "is not supported", f"one of {', '.join(map(str, PAGE_SIZES))}")
            )
        shape = (2, page_size, heads, dim)
        self.page_size, self.counts, self.owner = page_size, Counts(), owner
        self.pool = torch.zeros((layers, pages, *shape), dtype=dtype, device=device)
        "[layers, pages, 2, page_size, heads, dim]; kernels take [layer]"
        on = self.pool.device.type  # a pool without memory ("meta", to compile ahead) has no host memory either
        place: dict[str, Any] = {"pin_memory": on == "cuda", "device": on if on == "meta" else "cpu"}
        self.host = torch.zeros((host_pages, layers, *shape), dtype=dtype, **place)
        "[host_pages, layers, 2, page_size, heads, dim]: a page of all layers is one piece of memory"
        self._poison, self._chunk, self.reload = poison, offload_chunk, reload
        self._device_tier = Tier(pages, page_size, lambda freed: self._freed(self.pool, 1, freed))
        self._host_tier = Tier(host_pages, page_size, lambda freed: self._freed(self.host, 0, freed))
        self._transfers: Any = transfers(self.pool, self.host) if host_pages else None
        self._moving: list[Moving] = []
        self._running: set[int] = set()
        self._freed(self.pool, 1, list(range(pages)))
        self._freed(self.host, 0, list(range(host_pages)))

    def _freed(self, pool: Tensor, of_pages: int, pages: list[int]) -> None:
        if self._poison and pages:
            pool.index_fill_(of_pages, torch.tensor(pages, device=pool.device), torch.nan)

    @property
    def users(self) -> dict[int, int]:
        """Users on the device and the number of their cached tokens, least recently used first."""
        return {user: entry.length for user, entry in self._device_tier.entries.items()}

    def held(self, user: int) -> tuple[int, int]:
        """Tokens of a user on the device and in host memory, including pending copies to it."""
        entries = [tier.entries.get(user) for tier in (self._device_tier, self._host_tier)]
        arriving = [length for moving in self._moving for held, length, _ in moving.arrives or [] if held is entries[1]]
        device, host = (0 if entry is None else entry.length for entry in entries)
        return device, max([host, *arriving])

    @contextmanager
    def step(
        self, users: Sequence[int], histories: Sequence[np.ndarray], targets: Sequence[int]
    ) -> Iterator[CacheStep]:
        """Run a step: the new history is cached when the block ends, and dropped if it ends with an error.

        Args:
            users: users of the batch, each once.
            histories: int64 [tokens] for each user: ids of all tokens of the history, cached or not.
            targets: number of candidates of each user.

        Raises:
            UsageError: a user occurs twice or is in another running step, or the pool has too few pages; nothing has
                changed then.
        """
        if not len(users) == len(histories) == len(targets) or min(targets, default=0) < 0:
            raise UsageError(
                refusal(
                    WHO,
                    "targets",
                    list(targets)[:8],
                    f"does not fit {len(users)} users and {len(histories)} histories",
                    "a history and a number from 0 for each user",
                )
            )
        found = self.allocate(users, histories, targets, self.lookup(users, histories))
        try:
            yield found
        except BaseException:
            self.abort(found)
            raise
        self.commit(found, histories)

    @property
    def pending(self) -> int:
        """Number of transfers that are not over; does not wait."""
        return sum(not moving.ticket.done() for moving in self._moving)

    def settle(self) -> None:
        """Wait for all transfers."""
        for moving in self._moving:
            moving.ticket.wait()
        self._poll()

    def wait_layer(self, layer: int) -> None:
        """Let the device wait for one layer of all copies from host memory; may be captured in a CUDA graph."""
        if self._transfers is not None:
            self._transfers.wait_layer(layer)

    def copy_in(self, pages: int) -> None:
        """Copy this many pages from host memory and wait, to measure the time; only for an unused cache."""
        self._transfers.reload(list(range(pages)), list(range(pages))).wait()

    def truncate(self, user: int, tokens: int) -> None:
        """Forget all but a user's first tokens, on the device and in host memory; waits for its transfers.

        Raises:
            UsageError: the user is in a running step, or there is no such number of tokens.
        """
        if type(tokens) is not int or tokens < 0:
            raise UsageError(refusal(WHO, "tokens", repr(tokens), "cannot be used", "a whole number from 0"))
        self._idle(user)
        for tier in (self._device_tier, self._host_tier):
            entry = tier.entries.get(user)
            if entry is not None and entry.length > tokens:
                entry.length, entry.tokens = tokens, entry.tokens[:tokens]
                tier.shrink(user)

    def evict(self, user: int) -> None:
        """Free a user's pages on the device, but not those in host memory.  Waits for the user's transfers.

        Raises:
            UsageError: the user is in a running step.
        """
        self._idle(user)
        if user in self._device_tier.entries:
            self._device_tier.drop(user)
            self.counts.evicted_users += 1

    def _idle(self, user: int) -> None:
        """Wait until no transfer uses a user's pages; refuse a user in a running step."""
        if user in self._running:
            raise UsageError(refusal(WHO, "user", user, "is in a running step", "one that no step uses"))
        held = [tier.entries[user] for tier in (self._device_tier, self._host_tier) if user in tier.entries]
        for moving in self._moving:
            if any(one is entry for one in moving.pinned for entry in held):
                moving.ticket.wait()
        self._poll()

    # ── the parts of a step ────────────────────────────────────────────────────────────────────────

    def lookup(self, users: Sequence[int], histories: Sequence[np.ndarray]) -> list[int | None]:
        """Return the cached tokens of each history on the device; None if the history does not begin with them."""
        entries = self._device_tier.entries
        held = [entries.get(user) for user in users]
        return [
            0 if entry is None else entry.length if entry.holds(history) else None
            for entry, history in zip(held, histories, strict=True)
        ]

    def allocate(
        self, users: Sequence[int], histories: Sequence[np.ndarray], targets: Sequence[int], found: Sequence[int | None]
    ) -> CacheStep:
        """Assign pages to a batch and start copies from host memory: the first part of `step`.

        Args:
            users: see `step`.
            histories: see `step`.
            targets: see `step`.
            found: result of `lookup`.

        Raises:
            UsageError: see `step`.
        """
        self._poll()
        tier, keep = self._device_tier, set(users)
        if len(keep) < len(users):
            twice = next(user for user in users if list(users).count(user) > 1)
            raise UsageError(refusal(WHO, "user", twice, "is in the batch twice", "each user once"))
        for user in users:
            if user in self._running:
                raise UsageError(refusal(WHO, "user", user, "is in another running step", "one step of a user at once"))
        stale = [user for user, held in zip(users, found, strict=True) if held is None]
        victims = self._room(users, histories, stale)
        for user in stale:
            self._drop_stale(tier, user)
        for user in victims:
            tier.drop(user)
            self.counts.evicted_users += 1
        # From here on nothing raises a refusal.
        self._running |= keep
        try:
            return self._take(users, histories, targets)
        except BaseException:
            self._running -= keep
            for user in users:
                if user in tier.entries:
                    tier.shrink(user)
            raise

    def _take(self, users: Sequence[int], histories: Sequence[np.ndarray], targets: Sequence[int]) -> CacheStep:
        """Assign pages to the batch, start copies from the host, and only then pin and count."""
        tier = self._device_tier
        before: list[int] = []
        entries: list[Entry] = []
        for user, history in zip(users, histories, strict=True):
            entries.append(tier.grow(user, len(history)))
            tier.touch(user)
            before.append(entries[-1].length)
        if self.reload:
            self._bring(users, entries, histories, targets)
        tickets = [
            moving.ticket
            for moving in self._moving
            if moving.arrives is None and any(one is entry for one in moving.pinned for entry in entries)
        ]
        cached = [entry.length for entry in entries]
        lengths = [len(history) for history in histories]
        new = [length - held for length, held in zip(lengths, cached, strict=True)]
        pages = [list(entry.pages) for entry in entries]
        step = CacheStep(list(users), cached, new, list(targets), pages, tickets)
        for entry in entries:
            entry.pins += 1
        counts = self.counts
        counts.steps += 1
        counts.tokens += sum(lengths)
        counts.missed += sum(new)
        counts.hit += sum(before)
        counts.host_hit += sum(cached) - sum(before)
        return step

    def _room(self, users: Sequence[int], histories: Sequence[np.ndarray], stale: list[int]) -> list[int]:
        """Return the users to evict for the batch, or refuse without a change; waits for transfers if needed."""
        tier = self._device_tier
        whole = sum(tier.needed(len(history)) for history in histories)
        if whole > tier.pages:
            wrong = f"are too few for a batch that takes {whole}"
            raise UsageError(refusal(WHO, "pages", tier.pages, wrong, "a larger pool or a smaller batch"))
        while True:
            held = sum(len(entry.pages) for user in users if (entry := tier.entries.get(user)) and user not in stale)
            given = sum(len(tier.entries[user].pages) for user in stale)
            victims = tier.victims(whole - held - given, users)
            if victims is not None:
                return victims
            if not self._moving:
                raise UsageError(
                    refusal(
                        WHO,
                        "pages",
                        tier.pages,
                        f"are too few beside the steps that run: a batch takes {whole}",
                        "a larger pool or fewer steps at once",
                    )
                )
            self._moving[0].ticket.wait()
            self._poll()

    def commit(self, step: CacheStep, histories: Sequence[np.ndarray]) -> None:
        """Cache the new history of a completed step."""
        self._running -= set(step.users)
        self._poll()
        for user, history in zip(step.users, histories, strict=True):
            entry = self._device_tier.entries[user]
            if len(history) > entry.length:
                entry.length, entry.tokens = len(history), np.array(history, dtype=np.int64)
            entry.pins -= 1
            self._device_tier.shrink(user)
        if self._transfers is not None:
            self._offload(step.users)

    def abort(self, step: CacheStep) -> None:
        """Drop the new history of a step that failed."""
        self._running -= set(step.users)
        self.counts.failed_steps += 1
        for user in step.users:
            self._device_tier.entries[user].pins -= 1
            self._device_tier.shrink(user)

    def _drop_stale(self, tier: Tier, user: int) -> None:
        """Drop an entry that the history does not continue, after waiting for its transfers."""
        entry = tier.entries[user]
        for moving in self._moving:
            if any(one is entry for one in moving.pinned):
                moving.ticket.wait()
        self._poll()
        if user in tier.entries:
            tier.drop(user)
        self.counts.stale_users += 1

    # ── host memory ────────────────────────────────────────────────────────────────────────────────

    def _bring(
        self, users: Sequence[int], entries: Sequence[Entry], histories: Sequence[np.ndarray], targets: Sequence[int]
    ) -> None:
        """Start copies from host memory for some histories; an entry's length includes the tokens to come."""
        tier = self._host_tier
        found: list[tuple[Entry, Entry, int]] = []
        ahead: list[Ahead] = []
        for user, entry, history, count in zip(users, entries, histories, targets, strict=True):
            held = None if entry.length else tier.entries.get(user)
            if held is not None and not held.holds(history):
                self._drop_stale(tier, user)
                held = None
            on_host = 0 if held is None else held.length
            ahead.append(Ahead(entry.length, on_host, len(history) + count - entry.length - on_host))
            if held is not None:
                tier.touch(user)
                if on_host:
                    found.append((entry, held, tier.needed(on_host)))
        if not found or (callable(self.reload) and not self.reload(ahead)):
            return
        try:
            ticket = self._transfers.reload(
                [page for _, held, count in found for page in held.pages[:count]],
                [page for entry, _, count in found for page in entry.pages[:count]],
            )
        except RuntimeError:
            # A copy that has started must not overwrite values computed now.
            self._transfers.drain()
            self.counts.failed_transfers += 1
            return
        for entry, held, _ in found:
            entry.length, entry.tokens = held.length, held.tokens
        self._start(ticket, [one for entry, held, _ in found for one in (entry, held)], None)

    def _offload(self, users: Sequence[int]) -> None:
        """Start copies to host memory of the tokens of some users that it lacks."""
        leaving = [one for user in users if (one := self._leaving(user, users)) is not None]
        if not leaving:
            return
        try:
            ticket = self._transfers.offload(
                [page for one in leaving for page in one.source.pages[one.span]],
                [page for one in leaving for page in one.held.pages[one.span]],
            )
        except RuntimeError:
            self._transfers.drain()
            self.counts.failed_transfers += 1
            for one in leaving:
                # The partly filled page may be half written: only full pages before it still count.
                one.held.length -= one.held.length % self.page_size
                one.held.tokens = one.held.tokens[: one.held.length]
                self._host_tier.shrink(one.user)
            return
        self.counts.offloaded += sum(one.source.length - one.held.length for one in leaving)
        self._start(
            ticket,
            [entry for one in leaving for entry in (one.source, one.held)],
            [(one.held, one.source.length, one.source.tokens) for one in leaving],
        )

    def _leaving(self, user: int, keep: Sequence[int]) -> Leaving | None:
        """Assign host pages to a user's tokens to copy out; None if there are none, or no room for them."""
        source, tier = self._device_tier.entries.get(user), self._host_tier
        held = tier.entries.get(user)
        if source is None or any(one is held for moving in self._moving for one in moving.pinned):
            return None  # a later step of this user copies the rest
        if held is not None and not held.holds(source.tokens):
            self._drop_stale(tier, user)
            held = None
        before, have = (0, 0) if held is None else (held.length, len(held.pages))
        if source.length - before < self._chunk:
            return None
        victims = tier.victims(tier.needed(source.length) - have, keep)
        if victims is None:
            self.counts.not_offloaded += source.length - before
            return None
        for victim in victims:
            tier.drop(victim)
        held = tier.grow(user, source.length)
        tier.touch(user)
        # The partly filled page is copied again.
        return Leaving(user, source, held, slice(before // self.page_size, tier.needed(source.length)))

    def _start(self, ticket: Ticket, pinned: list[Entry], arrives: list[tuple[Entry, int, np.ndarray]] | None) -> None:
        for entry in pinned:
            entry.pins += 1
        self._moving.append(Moving(ticket, pinned, arrives))

    def _poll(self) -> None:
        """Handle finished transfers."""
        over = [moving for moving in self._moving if moving.ticket.done()]
        for moving in over:
            for entry in moving.pinned:
                entry.pins -= 1
            for held, length, tokens in moving.arrives or []:
                held.length, held.tokens = length, tokens
        if over:
            self._moving = [moving for moving in self._moving if not any(moving is one for one in over)]
