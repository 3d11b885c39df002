"""A ranking model with its cache, in the form that the server calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnbench.errors import AttnbenchError, UsageError, out_of_memory, refusal
from attnbench.models.hstu_ranking.graphs import StepGraphs
from attnbench.models.hstu_ranking.staging import ladder

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.model import HstuRanking
    from attnbench.models.hstu_ranking.request import Request
    from attnbench.models.paged_cache import Choice, PagedCache

WHO = "load"
AHEAD = 2
"Batches in flight on a GPU: one runs while the host prepares the next."
SEEN, BUCKETS, SLACK = 2, 384, 1.6
"""Steps of equal sizes that run launch by launch before they are captured as a graph, number of graphs kept, and how many
times the rows of a step the graph of a larger one may have: launches take as long as kernels of thousands of rows."""


class ModelEngine:
    """Scores batches; on a GPU without waiting for it."""

    def __init__(self, model: HstuRanking, *, attention: str, cache: PagedCache | None, graph: bool = False) -> None:
        """Create the engine.

        Args:
            model: with its weights.
            attention: a name in `models.hstu_ranking.attention`.
            cache: None: every history is computed completely.
            graph: steps use the fixed buffers of a graph, on a GPU as CUDA graphs.
        """
        self.model, self.attention, self.cache = model, attention, cache
        how: dict[str, Any] = {"attention": attention, "after": SEEN, "most": BUCKETS, "slack": SLACK}
        self.graphs = StepGraphs(model, cache=cache, **how) if graph else None
        self._on_card = model.device.type == "cuda"
        self.depth = AHEAD if self._on_card else 1

    def launch(self, requests: Sequence[Request]) -> Scored:
        """See `serving.Engine`."""
        begin = end = None
        if self._on_card:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        if self.graphs is not None:
            logits = self.graphs(requests)
        else:
            logits = self.model(requests, cache=self.cache, attention=self.attention)
        if begin is not None and end is not None:
            scores = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
            scores.copy_(logits, non_blocking=True)
            end.record()
            logits = scores
        elif self.graphs is not None:
            logits = logits.clone()  # the next step of these sizes overwrites them
        return Scored(logits, sum(len(one.candidates) for one in requests), begin, end)

    def capture_ahead(self, requests: Sequence[Request], *, batch: int) -> None:
        """Capture graphs that cover most steps of a load, as many as fit into memory; only with graphs and a cache.

        Args:
            requests: served ones, of which at least one is still cached; the load has no more candidates than these.
            batch: most requests of a step.
        """
        cache = self.cache
        if self.graphs is None or cache is None:
            return
        held = [one for one in requests if self._is_cached(one, cache)]
        most = max((len(one.candidates) for one in requests), default=0)
        longest = max(cache.users.values(), default=0)
        rungs = ladder(batch=batch, candidates=most, cached=longest, page_size=cache.page_size) if held else []
        for sizes in rungs[:BUCKETS]:  # of very many small requests there are more, from the fewest users on
            if self.graphs.full:
                break
            self.graphs.prepare(sizes, held[-1:])

    def _is_cached(self, request: Request, cache: PagedCache) -> bool:
        """Whether a request is valid and its whole history is on the device."""
        try:
            (history,) = self.model.histories([request], cache)
        except UsageError:
            return False
        return cache.held(request.user)[0] == len(history)

    def settle(self) -> None:
        """Wait until no batch is in flight."""
        if self.cache is not None:
            self.cache.settle()
        if self._on_card:
            torch.cuda.synchronize(self.model.device)


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch in flight: its scores are in host memory once `end` has completed."""

    scores: Tensor
    "[candidates, tasks]"
    candidates: int
    begin: Any
    end: Any
    "events; None on a CPU, where the batch is already complete"

    def done(self) -> bool:
        """See `serving.Handle`."""
        return self.end is None or bool(self.end.query())

    def wait(self) -> float | None:
        """See `serving.Handle`."""
        if self.end is not None:
            self.end.synchronize()
        if len(self.scores) != self.candidates:
            raise AttnbenchError(
                refusal(WHO, "scores", len(self.scores), "are not one of each candidate", f"{self.candidates}")
            )
        if not bool(torch.isfinite(self.scores).all()):
            raise AttnbenchError(refusal(WHO, "scores", "nan", "are not all finite", "finite scores"))
        return None if self.begin is None else float(self.begin.elapsed_time(self.end))


def make_cache(
    model: HstuRanking,
    *,
    pages: int,
    page_size: int,
    host_pages: int,
    offload_chunk: int = 1,
    reload: bool | Choice = True,
) -> PagedCache:
    """Create a cache for a model, with the arguments of `PagedCache`.

    Raises:
        UsageError: there is not enough memory; the message is one line.
    """
    try:
        return model.make_cache(
            pages=pages, page_size=page_size, host_pages=host_pages, offload_chunk=offload_chunk, reload=reload
        )
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        config = model.config
        token_bytes = 2 * config.layers * config.heads * config.dim * model.dtype.itemsize
        sizes = " + ".join(f"{count * page_size * token_bytes / 1e9:.3g}" for count in (pages, host_pages))
        raise UsageError(
            refusal(
                WHO,
                "cache",
                f"{pages} pages + {host_pages} host pages",
                f"of {sizes} GB take more memory than there is",
                "fewer --pool-pages or --host-pages",
            )
        ) from None
