"""Whether tokens that lie in host memory are brought back or computed again: by what both take here, measured.

Both grow with the tokens of each user.  Bringing back costs its bytes over the bus; computing again costs what a step
takes longer for it, as the step is run for the new tokens in any case.  The rate of the bus at which both take the same
time, the break-even, is the bytes of the tokens over the time to compute them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request

LENGTHS = (512, 4096)
"Tokens of a history that both are measured with, as far as the model takes them."
TIMES = 5


@dataclass(frozen=True, slots=True)
class HostHits:
    """Called with the tokens of each user that host memory has: whether to bring them back."""

    tokens: tuple[int, ...]
    "rising, from above 0"
    reload_s: tuple[float, ...]
    "seconds to bring so many tokens of a user back"
    recompute_s: tuple[float, ...]
    "seconds by which a step is longer that computes them"
    token_bytes: int
    "keys and values of a token in all layers"
    contiguous_gb_s: float | None = None
    "of one copy from pinned memory, to compare with; None: not known"

    def __call__(self, lengths: Sequence[int]) -> bool:
        """Whether bringing back is the quicker one."""
        return self._seconds(self.reload_s, lengths) < self._seconds(self.recompute_s, lengths)

    def _seconds(self, measured: Sequence[float], lengths: Sequence[int]) -> float:
        """For all users together; beyond the longest measured length as much a token as there."""
        known = np.interp(lengths, (0, *self.tokens), (0.0, *measured))
        beyond = np.maximum(np.asarray(lengths) / self.tokens[-1], 1.0)
        return float((known * beyond).sum())

    @property
    def reload_gb_s(self) -> float:
        """Rate of bringing back the longest measured length."""
        return self.tokens[-1] * self.token_bytes / self.reload_s[-1] / 1e9

    @property
    def break_even_gb_s(self) -> float:
        """Rate from which on bringing back the longest measured length is quicker than computing it."""
        return self.tokens[-1] * self.token_bytes / self.recompute_s[-1] / 1e9

    def words(self) -> str:
        """One line for a report."""
        share = f", {100 * self.reload_gb_s / self.contiguous_gb_s:.0f} % of one copy" if self.contiguous_gb_s else ""
        return (
            f"of {self.tokens[-1]} tokens a user in host memory: reload {1e3 * self.reload_s[-1]:.3g} ms "
            f"({self.reload_gb_s:.3g} GB/s{share}), recompute {1e3 * self.recompute_s[-1]:.3g} ms; reload pays "
            f"from {self.break_even_gb_s:.3g} GB/s on"
        )

    @classmethod
    def measured(
        cls,
        model: HstuRanking,
        score: Callable[[Sequence[Request]], object],
        *,
        page_size: int = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> HostHits:
        """Measure both with one user of a model; takes a few steps.

        Args:
            model: whose keys and values these are.
            score: carries out a step without a cache, in the way that steps are carried out.
            page_size: tokens of a page.
            clock: seconds.
        """
        config = model.config
        context = len(config.context)
        items = sorted({min((tokens - context) // config.item_tokens, config.max_history) for tokens in LENGTHS})
        tokens = tuple(context + config.item_tokens * count for count in items)
        pages = -(-tokens[-1] // page_size)
        cache = model.make_cache(pages=pages, page_size=page_size, host_pages=pages)

        def seconds(call: Callable[[], object]) -> float:
            return _seconds(model, call, clock)

        def step_s(items: int, candidates: int) -> float:
            requests = [_request(model, items, candidates)]
            return seconds(lambda: score(requests))

        def reload_s(count: int) -> float:
            return seconds(lambda: cache.copy_in(-(-count // page_size)))

        least = step_s(0, 1)
        recompute = [max(1e-9, step_s(count, 0) - least) for count in items]
        reload = [max(1e-9, reload_s(count)) for count in tokens]
        token_bytes = 2 * config.layers * config.heads * config.dim * model.dtype.itemsize
        whole = seconds(lambda: cache.pool.copy_(cache.host, non_blocking=True))
        return cls(tokens, tuple(reload), tuple(recompute), token_bytes, cache.host.nbytes / max(1e-9, whole) / 1e9)


def _request(model: HstuRanking, items: int, candidates: int) -> Request:
    zeros: np.ndarray = np.zeros(max(items, candidates, len(model.config.context)), dtype=np.int64)
    return Request(
        user=0,
        items=zeros[:items],
        actions=zeros[:items],
        candidates=zeros[:candidates],
        context=zeros[: len(model.config.context)],
    )


def _seconds(model: HstuRanking, call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Median of some calls, each waited for; the first one, which may compile, is not among them."""
    taken = []
    for _ in range(TIMES + 1):
        started = clock()
        call()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        taken.append(clock() - started)
    return float(np.median(taken[1:]))
