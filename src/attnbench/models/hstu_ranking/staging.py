"""What a step takes from the host, in one buffer on the device: rows of all requests and the table of their pages.

A buffer is made for one step, or for a bucket of steps that a CUDA graph serves: it then has room for all of them, and
the bounds by which kernels are launched hold for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from attnbench.models.hstu_ranking.config import ModelConfig
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.rows import row_lengths, row_parts, rows_of
from attnbench.models.paged_cache import CacheStep
from attnbench.models.paged_cache.packing import Packing
from attnbench.models.paged_cache.tables import table_lengths, table_of, table_parts

LEAST_ROWS, LEAST_CACHED = 32, 512


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything a step has, or at most has."""

    batch: int
    rows: int
    candidates: int
    entries: int
    "pages of all users"
    max_new: int
    "rows of a user"
    max_cached: int
    "cached tokens of a user"

    @classmethod
    def of(cls, step: CacheStep) -> Sizes:
        """Those of one step."""
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
        """The same with bounds that many steps share, so that they share kept calls of kernels, and graphs.

        Too high a bound of new rows costs programs that end at once: it is rounded up by at most a quarter.  That of
        cached tokens only decides into how many parts keys are split: it is rounded up to a power of two.
        """
        return replace(self, max_new=rounded(self.max_new, 4), max_cached=max(LEAST_CACHED, _power(self.max_cached)))

    def bucket(self, page_size: int) -> Sizes:
        """Sizes of the bucket that a step of these sizes is in, and its bounds.

        Rows are rounded up by at most 1/32, as all work is in them, candidates by at most a quarter, users to a power
        of two.
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


def rounded(count: int, parts: int, least: int = LEAST_ROWS) -> int:
    """The count rounded up to a multiple of 1/parts of the power of two below it, or of `least` if that is more."""
    step = max(least, (1 << max(0, count.bit_length() - 1)) // parts)
    return -(-count // step) * step


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


class Staging:
    """A buffer, and what is in it."""

    def __init__(self, config: ModelConfig, sizes: Sizes, device: torch.device) -> None:
        """Nothing in it yet.

        Args:
            config: the model.
            sizes: what there is room for.
            device: where the buffer is.
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
        """Take a step, by one copy that the host does not wait for.

        Args:
            requests: of the step, checked.
            histories: token ids of each.
            step: what of them is cached, and in which pages.
        """
        self._packing.fill(
            {**row_parts(self._config, requests, histories, step.cached), **table_parts(step, self._sizes.batch)},
            self._buffer,
        )
