"""One step of HSTU ranking inference: a batch of users, their cached tokens, and the candidates to score.

A user's history has `cached` + `new_tokens` tokens.  Keys and values of the first `cached` ones were computed in an
earlier step and are where `cache` says; the others are new.  The step scores `num_candidates` candidates of each user.

    gpu-hit     all cached tokens are in pages on the device
    host-hit    all are in host memory, none on the device; `on_host_hit` says whether the step copies them back
    partial     the first `pool_share` of them are in pages on the device, the rest is lost and recomputed
    pool        what the eviction of least recently used users has left: not one step but a series, in which users
                return (`visits`), with a pool for `pool_share` of what all of these need; evictions are part of it
    growth      all tokens that earlier steps have computed: a series of `visits` steps of the same users, each with
                `new_tokens` more

The backend decides how the step is run (with which attention, with or without the cache, launch by launch or as a CUDA
graph), so all these ways are rows of one group.

Imports without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import Any

from attnbench.dtypes import DTYPES
from attnbench.errors import UsageError, refusal, unknown
from attnbench.models.hstu_ranking.config import ModelConfig, config_of
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.hstu_serving.visits import Step, Visit, growth, series, together

WHO = "hstu-serving"
POOL, GROWTH = "pool", "growth"
CACHES = ("gpu-hit", "host-hit", "partial", POOL, GROWTH)
SHARED = ("partial", POOL)
"Values of `cache` with a pool share."
SERIES = (POOL, GROWTH)
"Values of `cache` that mean several steps."
USUAL_VISITS, MOST_VISITS = 64, 1024
CACHED_STEP = "cached {}"
"Name of a phase of growth: the step whose users have this many tokens cached."
ON_HOST_HIT = ("reload", "recompute", "auto")
PAGE_SIZES = (32, 64, 128)
MOST_BATCH, MOST_TOKENS = 1024, 2**20
USUAL_SHARE = 0.5
LONGEST_STEM = 24
"Most characters of a checkpoint's name in the id of a case."

_FOLLOWS: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingCase:
    """A frozen problem.

    Raises:
        UsageError: the value of a field is not allowed, or fields contradict each other; the message names one.
    """

    batch: int
    "users, each with one request"
    num_candidates: int
    "of each request"
    cached: int
    "tokens of each history that an earlier step has computed"
    new_tokens: int
    "tokens of each history since then"
    cache: str = "gpu-hit"
    pool_share: float = _FOLLOWS
    """share of the cached tokens that the pool on the device still holds, or of what all users need that fits in the
    pool; default: 0.5 for partial and pool, else 1"""
    on_host_hit: str = _FOLLOWS
    "what a step does with tokens in host memory: reload, recompute, or the faster one as measured (auto)"
    visits: int | None = None
    "for growth: number of steps; default: 64, or as many as fit in the model's history"
    model: str = "bench"
    checkpoint: str | None = None
    "name and hash of a safetensors file of the model's weights (`given_files`); None: random ones by seed"
    embedding_dim: int | None = None
    "columns of the embedding table, projected to the model's width; None: as wide as the model"
    page_size: int = 64
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("batch", 1, MOST_BATCH),
            ("num_candidates", 1, MOST_TOKENS),
            ("cached", 0, MOST_TOKENS),
            ("new_tokens", 0, MOST_TOKENS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise _refuse(name, value, "cannot be used", f"a whole number from {least} to {most}")
        for name, accepted in (("cache", CACHES), ("dtype", ACCEPTED_DTYPES)):
            if getattr(self, name) not in accepted:
                raise unknown(WHO, name, getattr(self, name), accepted)
        width = self.embedding_dim
        if width is not None and (type(width) is not int or not 1 <= width <= MOST_TOKENS):
            raise _refuse(
                "embedding_dim", repr(width)[:40], "cannot be used", f"a whole number from 1 to {MOST_TOKENS}"
            )
        if self.checkpoint is not None and (type(self.checkpoint) is not str or not self.checkpoint):
            raise _refuse("checkpoint", repr(self.checkpoint)[:40], "names no file", "a safetensors file")
        if self.page_size not in PAGE_SIZES:
            raise _refuse("page_size", self.page_size, "is not supported", f"one of {', '.join(map(str, PAGE_SIZES))}")
        self._check_share()
        self._check_host_hit()
        self._check_visits(config_of(self.model))
        self._check_lengths(config_of(self.model))

    def _check_share(self) -> None:
        if self.pool_share is None:
            object.__setattr__(self, "pool_share", USUAL_SHARE if self.cache in SHARED else 1.0)
        share = self.pool_share
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise _refuse("pool_share", share, "cannot be used", "a number above 0, at most 1")
        object.__setattr__(self, "pool_share", float(share))
        if self.cache not in SHARED and share != 1:
            raise _refuse(
                "pool_share",
                share,
                f"does not go with cache={self.cache}, which finds all cached tokens",
                f"1, or cache={' or '.join(SHARED)}",
            )

    def _check_host_hit(self) -> None:
        if self.on_host_hit is None:
            object.__setattr__(self, "on_host_hit", ON_HOST_HIT[0])
        if self.on_host_hit not in ON_HOST_HIT:
            raise unknown(WHO, "on_host_hit", self.on_host_hit, ON_HOST_HIT)
        if self.cache != "host-hit" and self.on_host_hit != ON_HOST_HIT[0]:
            raise _refuse(
                "on_host_hit",
                self.on_host_hit,
                f"does not go with cache={self.cache}, which has nothing in host memory",
                "cache=host-hit",
            )

    def _check_visits(self, config: ModelConfig) -> None:
        if self.cache != GROWTH:
            if self.visits is not None:
                raise _refuse("visits", self.visits, f"does not go with cache={self.cache}", f"cache={GROWTH}")
            return
        if not self.new_tokens:
            raise _refuse("new_tokens", 0, f"does not go with cache={GROWTH}: nothing grows", "1 or more")
        if self.visits is None:
            room = (config.history_tokens - self.cached) // self.new_tokens
            object.__setattr__(self, "visits", max(1, min(USUAL_VISITS, room)))
        if type(self.visits) is not int or not 1 <= self.visits <= MOST_VISITS:
            raise _refuse("visits", self.visits, "cannot be used", f"a whole number from 1 to {MOST_VISITS}")

    def _check_lengths(self, config: ModelConfig) -> None:
        if self.num_candidates > config.max_candidates:
            raise _refuse(
                "num_candidates",
                self.num_candidates,
                f"is over what model={self.model} scores",
                f"at most {config.max_candidates}",
            )
        histories = {self.history_of(visit) for step in self.steps for visit in step}
        for name, tokens in (("cached", self.cached), *(("cached + new_tokens", one) for one in sorted(histories))):
            rest = tokens - len(config.context)
            if tokens and (rest < 0 or rest % config.item_tokens):
                context = f"{len(config.context)} of context and " if config.context else ""
                items = "an item" if config.item_tokens == 1 else "an item and its action"
                raise _refuse(
                    name,
                    tokens,
                    f"is no history of model={self.model}",
                    f"{context}a multiple of {config.item_tokens} ({items})",
                )
        longest = max(histories)
        if longest > config.history_tokens:
            raise _refuse(
                "cached + new_tokens" + (" of all visits" if self.cache in SERIES else ""),
                longest,
                f"is over the history of model={self.model}",
                f"at most {config.history_tokens}",
            )
        if self.history == 0 and config.context:
            raise _refuse(
                "cached + new_tokens",
                0,
                f"leaves out the context of model={self.model}",
                f"at least {len(config.context)}",
            )
        most = max(sum(self.pages_of(visit) for visit in step) for step in self.steps)
        if self.cache == POOL and self.pool_pages < most:
            raise _refuse(
                "pool_share",
                self.pool_share,
                f"of what all users need is {self.pool_pages} pages, a step takes {most}",
                f"at least {math.ceil(100 * most / self.needed_pages) / 100:g}",
            )

    @property
    def config(self) -> ModelConfig:
        """Sizes of the model."""
        found = config_of(self.model)
        return found if self.embedding_dim is None else replace(found, embedding_dim=self.embedding_dim)

    @property
    def table_bytes(self) -> int:
        """Bytes of the model's tables, which are there before any inputs."""
        return self.config.table_numbers * DTYPES[self.dtype].bytes

    @property
    def mode(self) -> str:
        """Always fwd: serving has no backward."""
        return "fwd"

    @property
    def history(self) -> int:
        """Tokens of each history, in a series at the first visit."""
        return self.cached + self.new_tokens

    @property
    def steps(self) -> tuple[Step, ...]:
        """The visits of each step."""
        if self.cache == GROWTH:
            return growth(self.batch, self.visits or 1)
        return series(self.batch) if self.cache == POOL else together(self.batch)

    @property
    def users(self) -> int:
        """Users of all steps."""
        return len({visit.user for step in self.steps for visit in step})

    def history_of(self, visit: Visit) -> int:
        """Tokens of the history that a user has at a visit."""
        return self.cached + (1 + visit.earlier) * self.new_tokens

    def found_of(self, visit: Visit) -> int:
        """Number of these that can be cached: in a series, all that were computed before."""
        return self.cached + visit.earlier * self.new_tokens if self.cache in SERIES else self.found

    def pages_of(self, visit: Visit) -> int:
        """Pages that a visit's history takes."""
        return -(-self.history_of(visit) // self.page_size)

    @property
    def needed_pages(self) -> int:
        """Pages that the histories of all users take at their last visit."""
        last = {visit.user: self.pages_of(visit) for step in self.steps for visit in step}
        return sum(last.values())

    @property
    def pool_pages(self) -> int:
        """Pages of the pool of a series."""
        return int(self.pool_share * self.needed_pages)

    @property
    def found(self) -> int:
        """Tokens of each history that a step finds cached: whole items, and the context with the first item.

        For a series this is what the first visit of a user can find.
        """
        config = self.config
        if self.cache in SERIES:
            return self.cached
        context, size = len(config.context), config.item_tokens
        tokens = int(self.pool_share * self.cached)
        return max(0, context + (tokens - context) // size * size) if tokens >= context else 0

    def items(self, tokens: int) -> int:
        """Number of items in a history of this many tokens."""
        return max(0, tokens - len(self.config.context)) // self.config.item_tokens

    @property
    def id(self) -> str:
        """Short name such as ``bench-b8-t1024-c4096-n256-gpu-hit-p64-bf16``."""
        how = f"{self.pool_share:g}".replace(".", "_") if self.cache in SHARED else ""
        how += str(self.visits) if self.cache == GROWTH else ""
        how += f"-{self.on_host_hit}" if self.on_host_hit != ON_HOST_HIT[0] else ""
        name, _, digest = (self.checkpoint or "").partition("@")
        stem = "".join(letter if letter.isalnum() else "_" for letter in PurePath(name).stem)[:LONGEST_STEM]
        weights = "".join(f"_{one}" for one in (stem, digest) if one)
        return "-".join(
            [
                self.model + weights + ("" if self.embedding_dim is None else f"_e{self.embedding_dim}"),
                f"b{self.batch}",
                f"t{self.num_candidates}",
                f"c{self.cached}",
                f"n{self.new_tokens}",
                self.cache + how,
                f"p{self.page_size}",
                self.dtype,
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _refuse(name: str, value: object, wrong: str, accepted: str) -> UsageError:
    return UsageError(refusal(WHO, name, value, wrong, accepted))
