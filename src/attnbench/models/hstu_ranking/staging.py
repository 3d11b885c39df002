"""Input of a step from the host in one device buffer: the rows of all requests and their page table.

A buffer is created for one step, or for a bucket of steps that share a CUDA graph.  Then it has room for all of them, and
the bounds with which kernels are launched hold for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import torch

from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.rows import row_lengths, row_parts, rows_of
from attnbench.models.paged_cache import CacheStep
from attnbench.models.paged_cache.packing import Packing
from attnbench.models.paged_cache.tables import table_lengths, table_of, table_parts

LEAST_ROWS, LEAST_CACHED = 32, 512
MOST_ROWS, BETWEEN = 8192, 1.25
"Rows of the largest step in `ladder`, whose kernels take as long as their launches, and the ratio of two rungs."


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a step, or upper bounds of them."""

    batch: int
    rows: int
    candidates: int
    entries: int
    "pages of all users"
    max_new: int
    "most rows of a user"
    max_cached: int
    "most cached tokens of a user"

    @classmethod
    def of(cls, step: CacheStep) -> Sizes:
        """Sizes of one step."""
        candidates = sum(step.targets)
        return cls(
            len(step.users),
            sum(step.new) + candidates,
            candidates,
            sum(map(len, step.pages)),
            step.max_new,
            step.max_cached,
        )

    def bounded(self) -> Sizes:
        """The same with rounded bounds, so that more steps share cached kernel calls and graphs.

        A loose bound of new rows launches programs that exit at once, so it is rounded up by at most a quarter.  The bound
        of cached tokens only decides into how many parts keys are split, so it is rounded up to a power of two.
        """
        return replace(self, max_new=rounded(self.max_new, 4), max_cached=max(LEAST_CACHED, _power(self.max_cached)))

    def bucket(self, page_size: int) -> Sizes:
        """Sizes and bounds of the bucket for a step of these sizes.

        Rows are rounded up by at most 1/32, because all work is proportional to them, candidates by at most a quarter, and
        users to a power of two.
        """
        batch, given = _power(self.batch), self.bounded()
        pages = -(-(given.max_new + given.max_cached) // page_size)
        return replace(
            given,
            batch=batch,
            rows=rounded(self.rows, 32),
            candidates=rounded(self.candidates, 4),
            entries=batch * pages,
        )

    def covers(self, other: Sizes) -> bool:
        """Whether a buffer of these sizes holds every step of the other ones."""
        return all(mine >= its for mine, its in zip(astuple(self), astuple(other), strict=True))


def ladder(*, batch: int, candidates: int, cached: int, page_size: int) -> list[Sizes]:
    """Return buckets that together cover the steps of a server, except those of very many rows.

    A bucket has at most `BETWEEN` times the rows of the next smaller one.  For each number of rows there are two: one for
    users with similar numbers of new rows, one for a user who has almost all of them.

    Args:
        batch: most users of a step.
        candidates: most candidates of a user.
        cached: most cached tokens of a user.
        page_size: tokens of a page.
    """
    found: dict[Sizes, None] = {}
    users = 1
    while users < 2 * batch:
        rows = max(LEAST_ROWS, (users // 2 + 1) * candidates)
        while rows <= MOST_ROWS:
            for most in (rows, max(candidates, 3 * rows // (2 * users))):
                sizes = Sizes(users, rows, users * candidates, 0, min(rows, most), cached)
                found[sizes.bucket(page_size)] = None
            rows = int(rows * BETWEEN) + 1
        users *= 2
    return list(found)


def rounded(count: int, parts: int, least: int = LEAST_ROWS) -> int:
    """Round a count up to a multiple of 1/parts of the power of two below it, or of `least` if that is larger."""
    step = max(least, (1 << max(0, count.bit_length() - 1)) // parts)
    return -(-count // step) * step


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


class Staging:
    """A buffer and its contents."""

    def __init__(self, config: ModelConfig, sizes: Sizes, device: torch.device) -> None:
        """Create an empty buffer.

        Args:
            config: the model.
            sizes: capacity.
            device: of the buffer.
        """
        self._config, self._sizes = config, sizes
        self._packing = Packing(
            row_lengths(config, sizes.rows, sizes.candidates) | table_lengths(sizes.batch, sizes.entries)
        )
        self._buffer = self._packing.empty(device)
        arrays = self._packing.views(self._buffer)
        self.rows = rows_of(config, arrays)
        self.table = table_of(arrays, max_new=sizes.max_new, max_cached=sizes.max_cached)

    def fill(self, requests: Sequence[Request], histories: Sequence[np.ndarray], step: CacheStep) -> None:
        """Copy a step into the buffer by one asynchronous copy.

        Args:
            requests: of the step, already checked.
            histories: token ids of each request.
            step: what is cached of them, and in which pages.
        """
        self._packing.fill(
            {**row_parts(self._config, requests, histories, step.cached), **table_parts(step, self._sizes.batch)},
            self._buffer,
        )
