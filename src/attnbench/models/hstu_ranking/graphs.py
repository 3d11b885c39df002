"""Whole steps as CUDA graphs: a graph serves all steps of a bucket of sizes.

A graph reads rows and table from a buffer at a fixed address, and its launches use bounds that hold for the whole bucket.
So a step is one copy into that buffer and one graph launch, including the towers of the candidates.  A step whose pages
are still being copied from host memory uses another graph, which waits for them layer by layer: waits in a graph take
time on the device even if what they wait for is long over.  The attention's
divisor is a constant of the model, padding rows belong to no sequence, and every other operation is row-wise: scores do
not depend on the bucket.

Without capture the same buffers are used launch by launch; this is how the tests run on a CPU.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.errors import UsageError, refusal
from attnbench.kernels.shared import card
from attnbench.kernels.shared.card import takes_compiled
from attnbench.models.hstu_ranking.attention import CAPTURED, PADDED, AttentionMaker
from attnbench.models.hstu_ranking.config import WHO
from attnbench.models.hstu_ranking.model import USUAL_PAGE, HstuRanking, Prepared
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.staging import Sizes, Staging
from attnbench.models.paged_cache import CacheStep, PagedCache

Lengths = tuple[tuple[int, ...], ...]
"Cached tokens, new tokens and candidates of each user; empty for a bucket that serves several such combinations."


@dataclass(frozen=True, slots=True)
class _Graph:
    replay: Callable[[], Tensor]
    reads: Prepared
    "the step that was captured, kept because the graph reads its tensors"


@dataclass(slots=True)
class _Bucket:
    staging: Staging
    graphs: dict[bool, _Graph] = field(default_factory=dict)
    "by whether they wait for copies from host memory"
    steps: int = 0
    "steps that were in this bucket"
    ready: bool = False
    "whether steps of smaller buckets may use it: its graph was captured, or would have been"


class StepGraphs:
    """The graphs of a model over a cache; not thread-safe."""

    def __init__(
        self,
        model: HstuRanking,
        *,
        cache: PagedCache | None = None,
        attention: str | AttentionMaker = "paged",
        capture: bool | None = None,
        exact: bool = False,
        after: int = 0,
        most: int = 64,
        slack: float = 1.0,
    ) -> None:
        """Create without any graph.

        Args:
            model: the model whose steps are captured.
            cache: cache of the steps; None: nothing is cached.
            attention: one that reads all lengths from the table on the device.
            capture: whether to capture graphs; None: on a GPU, or on tensors that stand in for those of one.
            exact: a graph serves only steps of the same lengths, for an attention that takes lengths from the host.
            after: how many steps of a bucket run launch by launch before its graph is captured: a capture does not pay
                for sizes that occur once.
            most: how many buckets to keep, the most recently used.
            slack: a step whose bucket has no graph uses that of a larger bucket with at most this many times its rows.

        Raises:
            UsageError: the attention takes lengths from the host, so a graph would repeat those of its first step.
        """
        self.model, self.cache, self.attention, self.exact, self.most = model, cache, attention, exact, most
        self.after, self.slack = after, slack
        self.capture = takes_compiled(model.tokens.positions) if capture is None else capture
        fitting = CAPTURED if self.capture else PADDED
        if isinstance(attention, str) and attention not in fitting and not exact:
            raise UsageError(
                refusal(
                    WHO,
                    "attention",
                    attention,
                    "does not go with graphs, it takes the lengths of one step from the host",
                    " or ".join(fitting),
                )
            )
        self._buckets: OrderedDict[tuple[Sizes, Lengths], _Bucket] = OrderedDict()
        self._larger: dict[Sizes, Sizes | None] = {}
        "for a bucket that is not ready the one to use instead, as long as none becomes ready or is dropped"
        self._memory: Any = torch.cuda.graph_pool_handle() if self.capture and card.stand_in is None else None
        self.captured = 0
        "graphs captured so far"
        self.full = False
        "no memory was left for a graph: from then on, steps that have none run launch by launch"

    @property
    def sizes(self) -> list[Sizes]:
        """Sizes of the existing buckets, the most recently used last."""
        return [sizes for sizes, _ in self._buckets]

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request]) -> Tensor:
        """Score the candidates of a batch, like the model itself.

        Raises:
            UsageError: a request or the cache is invalid; the message is one line.
        """
        histories = self.model.histories(requests, self.cache)
        if self.cache is None:
            return self.run(requests, histories, self.model.uncached(requests, histories))
        targets = [len(one.candidates) for one in requests]
        with self.cache.step([one.user for one in requests], histories, targets) as step:
            return self.run(requests, histories, step)

    def prepare(self, sizes: Sizes, requests: Sequence[Request]) -> None:
        """Capture the graph of a bucket by a step of these requests, whose sizes it covers.

        Raises:
            UsageError: a request or the cache is invalid; the message is one line.
        """
        assert self.cache is not None
        histories = self.model.histories(requests, self.cache)
        targets = [len(one.candidates) for one in requests]
        with self.cache.step([one.user for one in requests], histories, targets) as step:
            if not sizes.covers(Sizes.of(step)):
                raise UsageError(refusal(WHO, "sizes", sizes, "are too small for the step", str(Sizes.of(step))))
            bucket = self._bucket(sizes)
            self._on_device(requests, histories, step, bucket, after=0)
            if self.cache.reload and len(self.cache.host):
                with torch.cuda.device_of(self.model.tokens.positions):
                    self._graph(bucket, step, waits=True, new=True)

    def run(self, requests: Sequence[Request], histories: Sequence[np.ndarray], step: CacheStep) -> Tensor:
        """Return logits [candidates, tasks] of a step; the next step may overwrite them, because graphs share memory.

        Args:
            requests: requests of the step, already checked.
            histories: token ids of each request.
            step: cached tokens and pages of the requests.
        """
        sizes = Sizes.of(step)
        if self.exact:
            bucket = self._bucket(sizes, (tuple(step.cached), tuple(step.new), tuple(step.targets)))
        else:
            bucket = self._bucket(self._covering(sizes.bucket(self.cache.page_size if self.cache else USUAL_PAGE)))
        return self._on_device(requests, histories, step, bucket, self.after)[: sizes.candidates]

    @torch.no_grad()
    def _on_device(
        self, requests: Sequence[Request], histories: Sequence[np.ndarray], step: CacheStep, bucket: _Bucket, after: int
    ) -> Tensor:
        with torch.cuda.device_of(self.model.tokens.positions):  # streams and graphs belong to the current device
            bucket.staging.fill(requests, histories, step)
            bucket.steps += 1
            graph = self._graph(bucket, step, waits=bool(step.tickets), new=bucket.steps > after)
            if graph is not None:
                out = graph.replay()
            else:
                out = self.model.run(self.model.prepared(bucket.staging, step, self.attention, self.cache))
        if not bucket.ready and bucket.steps > after:
            bucket.ready = True
            self._larger.clear()
        return out

    def _covering(self, own: Sizes) -> Sizes:
        """Return the bucket for steps of a bucket: itself, or the smallest one that is ready and large enough."""
        found = self._buckets.get((own, ()))
        if self.slack <= 1.0 or (found is not None and found.ready):
            return own
        if own not in self._larger:
            fitting = [
                sizes
                for (sizes, _), bucket in self._buckets.items()
                if bucket.ready and sizes.rows <= self.slack * own.rows and sizes.covers(own)
            ]
            self._larger[own] = min(fitting, key=lambda sizes: (sizes.rows, sizes.max_new), default=None)
        return self._larger[own] or own

    def _bucket(self, sizes: Sizes, lengths: Lengths = ()) -> _Bucket:
        key = sizes, lengths
        found = self._buckets.get(key)
        if found is None:
            while len(self._buckets) >= self.most:
                self._buckets.popitem(last=False)
            self._larger.clear()
            found = self._buckets[key] = _Bucket(Staging(self.model.config, sizes, self.model.device))
        self._buckets.move_to_end(key)
        return found

    def _graph(self, bucket: _Bucket, step: CacheStep, *, waits: bool, new: bool) -> _Graph | None:
        """Return a graph of a bucket.

        Args:
            bucket: its staging buffer is filled.
            step: the step to run for a capture; the cache receives exactly what it writes.
            waits: whether the graph waits for copies from host memory.
            new: capture it if there is none.
        """
        found = bucket.graphs.get(waits)
        if found is None and new and self.capture and not self.full:
            prepared = self.model.prepared(bucket.staging, step, self.attention, self.cache).in_graph(waits=waits)
            try:
                replay = captured(lambda: self.model.run(prepared), self._memory)
            except torch.OutOfMemoryError:
                self.full = True
                return None
            found = bucket.graphs[waits] = _Graph(replay, prepared)
            self.captured += 1
        return found


def capture(call: Callable[[], object], memory: Any = None) -> Any:
    """Capture what a call launches as a CUDA graph, after one call outside of it.

    Args:
        call: launches on the current stream and does not synchronize.
        memory: memory pool of its tensors; None: a pool of its own.
    """
    call()  # the first call compiles and allocates, which must not be captured
    graph = torch.cuda.CUDAGraph()
    # Not `torch.cuda.graph`: it synchronizes and frees cached memory, which would delay a server that captures between
    # two steps.  No garbage collection: finalizers could make calls that cannot be captured.
    with torch.cuda.stream(_aside(torch.cuda.current_device())), _no_collection():
        # Other threads may still make calls that cannot be captured.
        graph.capture_begin(*([] if memory is None else [memory]), capture_error_mode="thread_local")
        try:
            call()
        except BaseException:
            with suppress(RuntimeError):  # it says only that the capture is not complete
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


@cache
def _aside(device: int) -> torch.cuda.Stream:
    """Return the stream to capture on: the current one may be the default stream, which cannot be captured."""
    return torch.cuda.Stream(device)


@contextmanager
def _no_collection() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def captured(call: Callable[[], Any], memory: Any = None) -> Callable[[], Any]:
    """Return a call as a CUDA graph; each call overwrites the results of the previous one.

    Where kernels are compiled ahead nothing is launched that could be captured: the call itself is returned.

    Args:
        call: see `capture`.
        memory: see `capture`.
    """
    if card.stand_in is not None:
        return call
    kept: list[Any] = []

    def once() -> None:
        kept[:] = [call()]

    graph = capture(once, memory)

    def replay() -> Any:
        graph.replay()
        return kept[0]

    return replay
