"""HSTU ranking: scores of candidates after a user's history, with or without a cache of the history."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.errors import UsageError, refusal
from attnbench.models.hstu_ranking.attention import Attention, Sequences, attention_of
from attnbench.models.hstu_ranking.config import WHO, ModelConfig
from attnbench.models.hstu_ranking.layers import CountedBack, Layer, Tokens, Towers
from attnbench.models.hstu_ranking.request import Request, check, history_ids
from attnbench.models.hstu_ranking.rows import make_rows
from attnbench.models.paged_cache import CacheStep, PagedCache
from attnbench.models.paged_cache.tables import make_table

USUAL_PAGE = 64


class HstuRanking(nn.Module):
    """A ranking model."""

    def __init__(self, config: ModelConfig, *, seed: int = 0, dtype: torch.dtype = torch.bfloat16,
                 device: torch.device | str = "cpu") -> None:
        """A model with random weights: the same ones for a seed, a precision and a kind of device.

        Args:
            config: its sizes.
            seed: of the weights.
            dtype: of weights and activations.
            device: where it is.
        """
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.tokens = CountedBack(config) if config.recency else Tokens(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
            self.towers = Towers(config)
        self.to(dtype).to_empty(device=device)
        self.requires_grad_(False)
        self._fill(seed)
        self._weights = list(self.parameters())

    def _fill(self, seed: int) -> None:
        drawn = torch.Generator(self.device).manual_seed(seed)
        for name, weight in self.named_parameters():
            if "norm" in name:
                weight.normal_(1.0 if name.endswith("weight") else 0.0, 0.1, generator=drawn)
            elif weight.dim() == 2 and "." not in name.removeprefix("tokens."):
                weight.normal_(0.0, 1.0 / weight.shape[1] ** 0.5, generator=drawn)  # a table: rows of length one
            else:
                weight.normal_(0.0, 0.02 if weight.dim() == 1 else weight.shape[1] ** -0.5, generator=drawn)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.tokens.table.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.tokens.table.dtype

    def make_cache(self, *, pages: int, page_size: int = USUAL_PAGE, host_pages: int = 0, reload: bool = True,
                   offload_chunk: int = 1, poison: bool = False) -> PagedCache:
        """A cache that fits this model; arguments as of `PagedCache`.

        Raises:
            UsageError: this model cannot have a cache, or a number cannot be used.
        """
        config = self.config
        config.check_cache()
        return PagedCache(layers=config.layers, heads=config.heads, dim=config.dim, pages=pages, page_size=page_size,
                          dtype=self.dtype, device=self.device, host_pages=host_pages, reload=reload,
                          offload_chunk=offload_chunk, poison=poison, owner=self._state())

    def _state(self) -> tuple[int, int]:
        """What keys and values depend on beside token ids: this model, and how often its weights were written to."""
        return id(self), sum(weight._version for weight in self._weights)

    @torch.no_grad()
    def forward(self, requests: Sequence[Request], *, cache: PagedCache | None = None, attention: str = "reference"
                ) -> Tensor:
        """Score the candidates of a batch.

        Args:
            requests: of different users.
            cache: keys and values of earlier requests, and from now on of these; None: none.
            attention: reference, paged or gathered.

        Returns:
            [candidates, tasks] logits, request after request.

        Raises:
            UsageError: a request, the cache or the attention cannot be used; one line says why.
        """
        config = self.config
        check(config, requests)
        if cache is not None:
            config.check_cache()
            if cache.owner != self._state():
                raise UsageError(refusal(WHO, "cache", f"of {len(cache.users)} users", "was made for other weights",
                                         "one that make_cache of this model made, after its weights were loaded"))
        histories = [self._history(request) for request in requests]
        targets = [len(request.candidates) for request in requests]
        users = [request.user for request in requests]
        with nullcontext() if cache is None else cache.step(users, histories, targets) as step:
            if step is None:
                lengths = [len(history) for history in histories]
                nothing: list[list[int]] = [[] for _ in users]
                table = make_table([0] * len(users), lengths, targets, nothing, self.device)
                step = CacheStep(users, [0] * len(users), lengths, table, nothing)
            sequences = Sequences(
                step.table, step.cached, step.new, targets, step.pages, cache.page_size if cache else USUAL_PAGE,
                config.dim ** -0.5, config.scaling_seqlen)
            rows = make_rows(config, requests, histories, step.cached, self.device)
            x = self.tokens(rows)
            attends = attention_of(attention, sequences)
            for number, layer in enumerate(self.layers):
                x = layer(x, _Attending(attends, step, number, cache))
            return self.towers(x[rows.candidates])

    def _history(self, request: Request) -> np.ndarray:
        ids = history_ids(self.config, request)
        if not self.config.recency:
            return ids
        features = len(self.config.context)
        return np.concatenate([ids[:features], ids[features::2]])


class _Attending:
    """Attention of one layer in a step."""

    def __init__(self, attention: Attention, step: CacheStep, number: int, cache: PagedCache | None) -> None:
        self.attention, self.step, self.number = attention, step, number
        self.pool = None if cache is None else cache.pool[number]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.pool is not None:
            self.step.wait_layer(self.number)
            self.attention.append(self.pool, k, v)
        return self.attention.attend(self.pool, q, k, v)
