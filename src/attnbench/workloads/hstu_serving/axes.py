"""Spelling of the fields of a `ServingCase` on the command line and in suite files.

An axis that other workloads have too has the same default, because they share one flag.  Imports without torch.
"""

from __future__ import annotations

import math

from attnbench.models.hstu_ranking.config import CONFIGS
from attnbench.workloads.attention.axes import parse_size
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.base import Axis, one_number, one_of, precision
from attnbench.workloads.given_files import known_as
from attnbench.workloads.hstu.axes import parse_count
from attnbench.workloads.hstu_serving.case import CACHES, ON_HOST_HIT, PAGE_SIZES

NO_CACHE = "no-cache"


def parse_cache(text: str) -> str:
    """Parse where cached tokens are; the refusal also explains how to run without a cache."""
    if text == NO_CACHE:
        raise ValueError(
            f"one of {', '.join(CACHES)}; a step without a cache is the row BACKEND[{NO_CACHE}], "
            "beside the others of each case"
        )
    return one_of(*CACHES)(text)


def parse_share(text: str) -> float:
    """Parse a share above 0, at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1:
        raise ValueError("a number above 0, at most 1")
    return value


def parse_file(text: str) -> str:
    """Read the path of a file; the case says its name and hash."""
    try:
        return known_as(text)
    except ValueError as error:
        raise ValueError(f"a safetensors file: {error}") from None


AXES = (
    Axis("batch", parse_size, "users, each with one request", 2),
    Axis("num_candidates", parse_size, "candidates of each request", 128),
    Axis("cached", parse_count, "tokens of each history that an earlier step has computed", 1024),
    Axis("new_tokens", parse_count, "tokens of each history since then", 256),
    Axis("cache", parse_cache, f"where the cached tokens are: {', '.join(CACHES)}", CACHES[0]),
    Axis(
        "pool_share",
        parse_share,
        "share of them, or of all users, that the pool holds; default: 0.5 of partial and pool, else 1",
        None,
    ),
    Axis(
        "on_host_hit",
        one_of(*ON_HOST_HIT),
        "for tokens in host memory: reload, recompute, or auto (the faster one); default: reload",
        None,
    ),
    Axis("visits", parse_size, "steps of growth; default: 64, or as many as the model's history has room for", None),
    Axis("model", one_of(*CONFIGS), f"sizes of the model: {', '.join(CONFIGS)}", "bench"),
    Axis("checkpoint", parse_file, "safetensors file of the model's weights; default: random ones by seed", None),
    Axis("embedding_dim", parse_size, "columns of the embedding table; default: the model's width", None),
    Axis("page_size", one_number(*PAGE_SIZES), f"tokens of a page: {', '.join(map(str, PAGE_SIZES))}", 64),
    Axis("dtype", precision(*ACCEPTED_DTYPES), f"precision: {', '.join(ACCEPTED_DTYPES)}", "fp16"),
)
