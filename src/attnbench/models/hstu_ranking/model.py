"""HSTU ranking: scores of candidates after a user's history, with or without a cache of the history."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.errors import UsageError, refusal
from attnbench.kernels.hstu.arguments import Parts
from attnbench.models.hstu_ranking.attention import Attention, AttentionMaker, Paged, Sequences, attention_of
from attnbench.models.hstu_ranking.config import WHO, ModelConfig
from attnbench.models.hstu_ranking.layers import CountedBack, Layer, Tokens, Towers
from attnbench.models.hstu_ranking.operations import PLAIN, Operations, operations_of
from attnbench.models.hstu_ranking.request import Request, check, history_ids
from attnbench.models.hstu_ranking.rows import Rows
from attnbench.models.hstu_ranking.staging import Sizes, Staging
from attnbench.models.paged_cache import CacheStep, Choice, PagedCache

USUAL_PAGE = 64
Mark = Callable[[str], AbstractContextManager[object]]
PREPROCESSING, EMBEDDING, FORWARD = "KV_Cache_Preprocessing", "Embedding", "GR_forward"
"NVTX ranges of NVIDIA's inference benchmark, used here too so that captures of both can be compared."


class HstuRanking(nn.Module):
    """A ranking model."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> None:
        """Create a model with random weights, which depend only on the seed, the precision and the kind of device.

        Args:
            config: sizes.
            seed: seed of the weights.
            dtype: dtype of weights and activations.
            device: device of the weights; on "meta" they have no memory, and steps only tell which kernels they launch.
        """
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.tokens = CountedBack(config) if config.recency else Tokens(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
            self.towers = Towers(config)
        self.to(dtype).to_empty(device=device)
        self.requires_grad_(False)
        if self.device.type != "meta":
            self._fill(seed)
        self._weights = list(self.parameters())
        self.operations: Operations = operations_of(self.tokens.positions)

    def _fill(self, seed: int) -> None:
        drawn = torch.Generator(self.device).manual_seed(seed)
        for name, weight in self.named_parameters():
            if "norm" in name:
                weight.normal_(1.0 if name.endswith("weight") else 0.0, 0.1, generator=drawn)
            else:  # embeddings have unit norm
                weight.normal_(0.0, 0.02 if "bias" in name else weight.shape[-1] ** -0.5, generator=drawn)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.tokens.positions.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and activations."""
        return self.tokens.positions.dtype

    def in_precision(self, dtype: torch.dtype) -> HstuRanking:
        """Return a copy that computes in another precision, entirely in torch.

        It shares the token table, of which it converts the rows it uses.
        """
        shared = self.tokens.table
        found = copy.deepcopy(self, {id(shared): shared})
        for weight in found._weights:
            if weight is not shared:
                weight.data = weight.data.to(dtype)
        found.operations = PLAIN
        return found

    def make_cache(
        self,
        *,
        pages: int,
        page_size: int = USUAL_PAGE,
        host_pages: int = 0,
        reload: bool | Choice = True,
        offload_chunk: int = 1,
        poison: bool = False,
    ) -> PagedCache:
        """A cache for this model; see `PagedCache` for the arguments.

        Raises:
            UsageError: this model does not support a cache, or a number is invalid.
        """
        config = self.config
        config.check_cache()
        return PagedCache(
            layers=config.layers,
            heads=config.heads,
            dim=config.dim,
            pages=pages,
            page_size=page_size,
            dtype=self.dtype,
            device=self.device,
            host_pages=host_pages,
            reload=reload,
            offload_chunk=offload_chunk,
            poison=poison,
            owner=self._state(),
        )

    def _state(self) -> tuple[object, int]:
        """What keys and values depend on besides token ids: this model, and the version counters of its weights.

        A weak reference, because another model may later be at this one's address.
        """
        return weakref.ref(self), sum(weight._version for weight in self._weights)

    @torch.no_grad()
    def forward(
        self,
        requests: Sequence[Request],
        *,
        cache: PagedCache | None = None,
        attention: str | AttentionMaker = "reference",
    ) -> Tensor:
        """Score the candidates of a batch.

        Args:
            requests: requests of different users.
            cache: keys and values of earlier requests, to which those of these requests are added; None: no cache.
            attention: a name in `attention.ATTENTIONS`, or a function that creates another for a step's sequences.

        Returns:
            [candidates, tasks] logits, request after request.

        Raises:
            UsageError: a request, the cache or the attention is invalid; the message is one line.
        """
        histories = self.histories(requests, cache)
        if cache is None:
            return self.run(self.prepare(requests, histories, self.uncached(requests, histories), attention))
        users, targets = [one.user for one in requests], [len(one.candidates) for one in requests]
        with cache.step(users, histories, targets) as step:
            return self.run(self.prepare(requests, histories, step, attention, cache))

    # ── the parts of a step: first on the host, then what is launched on the device ────────────────

    def histories(self, requests: Sequence[Request], cache: PagedCache | None = None) -> list[np.ndarray]:
        """Check the requests and the cache, and return the token ids of each request's history.

        Raises:
            UsageError: a request or the cache is invalid; the message is one line.
        """
        check(self.config, requests)
        if cache is not None:
            self.config.check_cache()
            if cache.owner != self._state():
                raise UsageError(
                    refusal(
                        WHO,
                        "cache",
                        f"of {len(cache.users)} users",
                        "was made for other weights",
                        "one that make_cache of this model made, after its weights were loaded",
                    )
                )
        return [self._history(request) for request in requests]

    def uncached(self, requests: Sequence[Request], histories: Sequence[np.ndarray]) -> CacheStep:
        """Return a step without cached tokens."""
        lengths, targets = [len(history) for history in histories], [len(one.candidates) for one in requests]
        nothing: list[list[int]] = [[] for _ in requests]
        return CacheStep([one.user for one in requests], [0] * len(lengths), lengths, targets, nothing)

    def prepare(
        self,
        requests: Sequence[Request],
        histories: Sequence[np.ndarray],
        step: CacheStep,
        attention: str | AttentionMaker,
        cache: PagedCache | None = None,
    ) -> Prepared:
        """Select the rows that are not cached, copy them to the device, and create the attention.

        Raises:
            UsageError: there is no such attention.
        """
        staging = Staging(self.config, Sizes.of(step).bounded(), self.device)
        staging.fill(requests, histories, step)
        return self.prepared(staging, step, attention, cache)

    def prepared(
        self, staging: Staging, step: CacheStep, attention: str | AttentionMaker, cache: PagedCache | None = None
    ) -> Prepared:
        """Return a step whose rows and table are in a staging buffer by the time it runs.

        Raises:
            UsageError: there is no such attention.
        """
        sequences = Sequences(
            staging.table,
            step.cached,
            step.new,
            step.targets,
            step.pages,
            cache.page_size if cache else USUAL_PAGE,
            self.config.dim**-0.5,
            self.config.scaling_seqlen,
        )
        found = attention_of(attention, sequences)
        joined = found if isinstance(found, Paged) and self.operations.joins else None
        silu = joined is not None and cache is not None and self.config.variant == "hstu"
        return Prepared(
            staging.rows, staging.table.offsets[-1:], found, step, cache, step.wait_layer, joined, appends_silu=silu
        )

    @torch.no_grad()
    def run(self, prepared: Prepared, mark: Mark = nullcontext) -> Tensor:
        """Return logits [candidates, tasks] of a prepared step; does not synchronize with the device.

        Args:
            prepared: the step.
            mark: marks a named range for profilers.
        """
        does = self.operations
        with mark(EMBEDDING), mark("embedding"):
            x = self.tokens(prepared.rows, does)
        with mark(FORWARD):
            for number, layer in enumerate(self.layers):
                with mark("projection"):
                    u, q, k, v = layer.project(x, does, silu=not prepared.appends_silu)
                with mark("append"):
                    prepared.append(number, q, k, v)
                with mark("attention"):
                    attended = prepared.attend(number, q, k, v)
                    prepared.join(q)
                with mark("output"):
                    x = layer.output(x, u, attended, does, prepared.count)
            with mark("head"):
                return self.towers(x, prepared.rows.candidates, does)

    def _history(self, request: Request) -> np.ndarray:
        ids = history_ids(self.config, request)
        if not self.config.recency:
            return ids
        features = len(self.config.context)
        return np.concatenate([ids[:features], ids[features::2]])


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that is ready to be launched on the device."""

    rows: Rows
    count: Tensor
    "int32 [1]: number of rows that belong to a sequence; padding follows them"
    attention: Attention
    step: CacheStep
    cache: PagedCache | None
    waits: Callable[[int], None]
    "makes the device wait until a layer's pages have been copied"
    joined: Paged | None = None
    "the attention, if it leaves the sum over split keys to the gate"
    appends_silu: bool = False
    "whether the append applies SiLU to q, k and v"
    aside: bool = False
    "whether the append is a branch of a captured graph, beside attention (`Paged.append_aside`)"

    def in_graph(self, *, waits: bool) -> Prepared:
        """Return a copy to be captured: it appends in parallel.

        Args:
            waits: whether it waits for all copies from host memory, layer by layer; without, it serves only steps for
                which none is pending.
        """
        if self.cache is None:
            return self
        wait = self.cache.wait_layer if waits else _no_wait
        return replace(self, waits=wait, appends_silu=False, aside=self.joined is not None)

    def append(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Write keys and values of the new history to a layer's pages, if there is a cache."""
        if self.cache is None:
            return
        self.waits(layer)
        if self.aside and self.joined is not None:
            self.joined.append_aside(self.cache.pool[layer], k, v)
        elif self.appends_silu and self.joined is not None:
            self.joined.silu_append(self.cache.pool[layer], q, k, v)
        else:
            self.attention.append(self.cache.pool[layer], k, v)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor | Parts:
        """Attention of the new rows; q, k, v and the result are [rows, heads, dim]."""
        attend = self.attention.attend if self.joined is None else self.joined.attend_parts
        return attend(None if self.cache is None else self.cache.pool[layer], q, k, v)

    def join(self, x: Tensor) -> None:
        """After attention: later launches on the device of x also wait for `append_aside`."""
        if self.aside and self.joined is not None:
            self.joined.join(x)


def _no_wait(layer: int) -> None:
    """Let the device wait for nothing."""
