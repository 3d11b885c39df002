"""Decide whether tokens in host memory are copied back or computed again, from measured times of both.

For a user with h tokens in host memory, c on the device and m rows that every step computes anyway, and with f(t) the
time that t computed tokens add to a step:

    recompute    least + sum f(c + h + m) - f(c)
    reload       the time of the layers, or of the copies plus the last layer, whichever is longer:
                 max(own, copy + own / layers)      own = least + sum f(c + h + m) - f(c + h)

The time of a token grows with the number of tokens before it, so f(t) / t is interpolated and extrapolated linearly
between the measured lengths (for a small model, where it falls, f itself); so is the copy of all tokens together.  The
break-even is the bus rate at which both take the same time: the bytes of the tokens over the time to compute them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attnbench.models.hstu_ranking.model import HstuRanking
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.paged_cache import Ahead

LENGTHS = (512, 4096)
"History lengths, in tokens, at which both are measured, up to the model's limit."
TIMES = 5
HEAD_START_CYCLES = 20_000_000
"A spin kernel before a step on a GPU, some 10 ms: longer than the host takes to launch the step."


@dataclass(frozen=True, slots=True)
class HostHits:
    """Called with the work of a step for each user; returns whether to reload the tokens in host memory."""

    tokens: tuple[int, ...]
    "measured lengths in tokens: ascending, above 0"
    reload_s: tuple[float, ...]
    "seconds to reload that many tokens of a user"
    recompute_s: tuple[float, ...]
    "seconds that computing that many tokens adds to a step"
    token_bytes: int
    "bytes of a token's keys and values in all layers"
    layers: int
    "of the model: the first ones run while the last ones are copied"
    least_s: float
    "seconds of a step that computes one candidate"
    contiguous_gb_s: float | None = None
    "rate of one copy from pinned memory, for comparison; None: unknown"

    def __call__(self, users: Sequence[Ahead]) -> bool:
        """Whether reloading is faster."""
        return self.reloaded_s(users) < self.recomputed_s(users)

    def recomputed_s(self, users: Sequence[Ahead]) -> float:
        """Return the seconds of a step that recomputes the tokens in host memory."""
        return self.least_s + sum(self._computed_s(sum(one)) - self._computed_s(one.cached) for one in users)

    def reloaded_s(self, users: Sequence[Ahead]) -> float:
        """Return the seconds of a step that reloads them while its layers run."""
        found = [(sum(one), one.cached + one.on_host) for one in users]
        own = self.least_s + sum(self._computed_s(whole) - self._computed_s(held) for whole, held in found)
        copied = _on_line(sum(one.on_host for one in users), self.tokens, self.reload_s)
        return max(own, copied + own / self.layers)

    def _computed_s(self, tokens: int) -> float:
        """Seconds to compute the first tokens of a history."""
        each = [taken / count for count, taken in zip(self.tokens, self.recompute_s, strict=True)]
        if each[-1] > each[0]:
            return tokens * _on_line(tokens, self.tokens, each)
        # In a small model launches dominate: the more tokens, the less time each takes.
        return _on_line(tokens, self.tokens, self.recompute_s) if tokens else 0.0

    @property
    def reload_gb_s(self) -> float:
        """Rate at which the longest measured length was reloaded."""
        return self.tokens[-1] * self.token_bytes / self.reload_s[-1] / 1e9

    @property
    def break_even_gb_s(self) -> float:
        """Rate above which reloading the longest measured length is faster than computing it."""
        return self.tokens[-1] * self.token_bytes / self.recompute_s[-1] / 1e9

    def words(self) -> str:
        """Return one line for a report."""
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
            model: model whose keys and values are copied or computed.
            score: runs a step without a cache, in the same way as the measured steps.
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
            if model.device.type == "cuda":
                return _device_seconds(model, lambda: score(requests))
            return seconds(lambda: score(requests))

        def reload_s(count: int) -> float:
            return seconds(lambda: cache.copy_in(-(-count // page_size)))

        least = step_s(0, 1)
        recompute = [max(1e-9, step_s(count, 0) - least) for count in items]
        reload = [max(1e-9, reload_s(count)) for count in tokens]
        token_bytes = 2 * config.layers * config.heads * config.dim * model.dtype.itemsize
        whole = seconds(lambda: cache.pool.view(-1).copy_(cache.host.view(-1), non_blocking=True))
        return cls(
            tokens=tokens,
            reload_s=_rising(reload),
            recompute_s=_rising(recompute),
            token_bytes=token_bytes,
            layers=config.layers,
            least_s=least,
            contiguous_gb_s=cache.host.nbytes / max(1e-9, whole) / 1e9,
        )


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """The measured times made non-decreasing: a longer time for fewer tokens was a delay."""
    return tuple(min(seconds[place:]) for place in range(len(seconds)))


def _on_line(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """Linear interpolation between known points, extrapolated by the outer segments; never below 0."""
    if len(places) == 1:
        return values[0] * at / places[0]
    after = min(max(bisect_left(places, at), 1), len(places) - 1)
    slope = (values[after] - values[after - 1]) / (places[after] - places[after - 1])
    return max(0.0, values[after] + slope * (at - places[after]))


def _request(model: HstuRanking, items: int, candidates: int) -> Request:
    zeros: np.ndarray = np.zeros(max(items, candidates, len(model.config.context)), dtype=np.int64)
    return Request(
        user=0,
        items=zeros[:items],
        actions=zeros[:items],
        candidates=zeros[:candidates],
        context=zeros[: len(model.config.context)],
    )


def _device_seconds(model: HstuRanking, call: Callable[[], object]) -> float:
    """Median time of the device for a call, without the first one.

    By the host's clock a short step takes as long as its launches, and so does one of many tokens on a slow host: their
    difference would be 0.
    """
    taken = []
    with torch.cuda.device(model.device):
        for _ in range(TIMES + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(HEAD_START_CYCLES)
            begin.record()
            call()
            end.record()
            end.synchronize()
            taken.append(1e-3 * begin.elapsed_time(end))
    return float(np.median(taken[1:]))


def _seconds(model: HstuRanking, call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Median of a few synchronized calls, without the first, which may compile."""
    taken = []
    for _ in range(TIMES + 1):
        started = clock()
        call()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        taken.append(clock() - started)
    return float(np.median(taken[1:]))
