"""Whole steps as CUDA graphs: a graph serves all steps of a bucket of sizes.

A graph reads rows and table from a buffer that stays where it is, and is launched by bounds that hold for its bucket;
so a step is one copy into that buffer and one launch, the towers of the candidates included.  The normaliser of the
attention is a constant of the model, rows beyond a step's own are in no sequence, and every other operation works row
by row: the scores do not depend on the bucket.

Without capture the same buffers are run launch by launch; this is how a CPU tests them.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.attention import CAPTURED, PADDED, AttentionMaker
from attnbench.models.hstu_ranking.config import WHO
from attnbench.models.hstu_ranking.model import USUAL_PAGE, HstuRanking, Prepared
from attnbench.models.hstu_ranking.request import Request
from attnbench.models.hstu_ranking.staging import Sizes, Staging
from attnbench.models.paged_cache import CacheStep, PagedCache

Lengths = tuple[tuple[int, ...], ...]
"Cached, new and candidates of each user; of a bucket that serves many, none."


@dataclass(slots=True)
class _Bucket:
    staging: Staging
    graph: Any = None
    reads: Prepared | None = None
    "what the graph was made of: it reads tensors that nothing else may keep alive"
    out: Tensor | None = None
    steps: int = 0
    "that were in it"


class StepGraphs:
    """The graphs of a model over a cache; not for several threads."""

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
    ) -> None:
        """No graph yet.

        Args:
            model: whose steps these are.
            cache: of the steps; None: nothing is cached.
            attention: one that takes all lengths from the table on the device.
            capture: make graphs; None: on a card.
            exact: a graph serves steps of the same lengths alone: for an attention that takes them from the host.
            after: steps of a bucket that run launch by launch before its graph is made: sizes that come once are not
                worth the time of a capture.
            most: buckets to keep, those used last.

        Raises:
            UsageError: the attention takes lengths from the host; a graph would repeat those of its first step.
        """
        self.model, self.cache, self.attention, self.exact, self.most = model, cache, attention, exact, most
        self.after = after
        self.capture = model.device.type == "cuda" if capture is None else capture
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
        self._memory: Any = torch.cuda.graph_pool_handle() if self.capture else None
        self.captured = 0

    @property
    def sizes(self) -> list[Sizes]:
        """Sizes of the buckets there are, the one used last at the end."""
        return [sizes for sizes, _ in self._buckets]

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request]) -> Tensor:
        """Score the candidates of a batch, as the model itself does.

        Raises:
            UsageError: a request or the cache cannot be used; one line says why.
        """
        histories = self.model.histories(requests, self.cache)
        if self.cache is None:
            return self.run(requests, histories, self.model.uncached(requests, histories))
        targets = [len(one.candidates) for one in requests]
        with self.cache.step([one.user for one in requests], histories, targets) as step:
            return self.run(requests, histories, step)

    @torch.no_grad()
    def run(self, requests: Sequence[Request], histories: Sequence[np.ndarray], step: CacheStep) -> Tensor:
        """Logits [candidates, tasks] of a step; the next step, whose graph shares the memory, may overwrite them.

        Args:
            requests: of the step, checked.
            histories: token ids of each.
            step: what of them is cached, and in which pages.
        """
        with torch.cuda.device_of(self.model.tokens.positions):  # streams and graphs are of the current device
            return self._run(requests, histories, step)

    def _run(self, requests: Sequence[Request], histories: Sequence[np.ndarray], step: CacheStep) -> Tensor:
        sizes = Sizes.of(step)
        if self.exact:
            bucket = self._bucket(sizes, (tuple(step.cached), tuple(step.new), tuple(step.targets)))
        else:
            bucket = self._bucket(sizes.bucket(self.cache.page_size if self.cache else USUAL_PAGE))
        bucket.staging.fill(requests, histories, step)
        bucket.steps += 1
        if not self.capture or (bucket.graph is None and bucket.steps <= self.after):
            bucket.out = self.model.run(self.model.prepared(bucket.staging, step, self.attention, self.cache))
        else:
            if bucket.graph is None:
                self._capture(bucket, step)
            bucket.graph.replay()
        assert bucket.out is not None
        return bucket.out[: sizes.candidates]

    def _bucket(self, sizes: Sizes, lengths: Lengths = ()) -> _Bucket:
        key = sizes, lengths
        found = self._buckets.get(key)
        if found is None:
            while len(self._buckets) >= self.most:
                self._buckets.popitem(last=False)
            found = self._buckets[key] = _Bucket(Staging(self.model.config, sizes, self.model.device))
        self._buckets.move_to_end(key)
        return found

    def _capture(self, bucket: _Bucket, step: CacheStep) -> None:
        """Make a bucket's graph, by a step that it holds; what is written to the cache is what this step writes."""
        prepared = self.model.prepared(bucket.staging, step, self.attention, self.cache).every_wait()

        def run() -> None:
            bucket.out = self.model.run(prepared)

        bucket.graph, bucket.reads = capture(run, self._memory), prepared
        self.captured += 1


def capture(call: Callable[[], object], memory: Any = None) -> Any:
    """A CUDA graph of what a call launches, which is called once before.

    Args:
        call: launches on the current stream and waits for nothing.
        memory: the pool that its tensors lie in; None: one of its own.
    """
    call()  # what a first call compiles or allocates must not be captured
    graph = torch.cuda.CUDAGraph()
    # Not `torch.cuda.graph`: it waits for the device and gives memory back, which a server that captures between two
    # steps would feel.  Objects that a garbage collection ended could call what cannot be captured.
    with torch.cuda.stream(_aside(torch.cuda.current_device())), _no_collection():
        # Other threads may go on with what cannot be captured.
        graph.capture_begin(*([] if memory is None else [memory]), capture_error_mode="thread_local")
        try:
            call()
        finally:
            graph.capture_end()
    return graph


@cache
def _aside(device: int) -> torch.cuda.Stream:
    """The stream that captures are of: the current one may be the default stream, which has none."""
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


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """A call as a CUDA graph; what it returns is overwritten by each call."""
    kept: list[Any] = []

    def once() -> None:
        kept[:] = [call()]

    graph = capture(once)

    def replay() -> Any:
        graph.replay()
        return kept[0]

    return replay
