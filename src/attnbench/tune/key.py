"""The key of a result: the bucket of shapes, the GPU, the versions, and the source of the kernels.

A stored result is used again if all of these are the same.  A changed line in a kernel, another driver or one more
configuration gives another key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from attnbench.errors import UsageError
from attnbench.record import Environment, Settings
from attnbench.stats.race_data import Rules
from attnbench.workloads.base import Case, Workload

ROUNDED = ("batch", "seqlen", "seqlen_k", "scaling_seqlen")
"""Axes whose values up to the next power of two share a bucket."""

SETTINGS = ("timer", "l2", "regime", "input", "seed", "lock_clocks")
"""The settings that can change which configuration is fastest."""


def bucket(workload: Workload, case: Case) -> Case:
    """Return the case that represents its bucket: batch and lengths rounded up to powers of two.

    A case that would contradict itself after rounding is a bucket of its own.
    """
    values = case.to_dict()
    rounded = {
        name: _power_of_two(value) if name in ROUNDED and isinstance(value, int) else value
        for name, value in values.items()
    }
    try:
        return workload.case(rounded)
    except UsageError:
        return case


def key(
    *,
    backend: str,
    bucket: Case,
    environment: Environment,
    source: str,
    configs: Iterable[str],
    settings: Settings,
    rules: Rules,
) -> dict[str, Any]:
    """Return everything on which a result depends, as plain data."""
    return {
        "backend": backend,
        "bucket": bucket.to_dict(),
        "source": source,
        "configs": hashlib.sha256("\n".join(sorted(configs)).encode()).hexdigest()[:12],
        "card": environment.gpu or environment.cpu,
        "power_limit_w": environment.power_limit_w,
        "driver": environment.driver,
        "cuda": environment.cuda,
        "torch": environment.torch,
        "triton": environment.triton,
        "packages": dict(environment.packages),
        "settings": {name: getattr(settings, name) for name in SETTINGS},
        "rules": asdict(rules),
    }


def digest(key: Mapping[str, Any]) -> str:
    """Return eight digits that identify a key in a file name."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length() if value > 0 else value
