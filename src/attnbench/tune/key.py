"""What an answer holds for: the bucket of shapes, the card, the versions, and the source of the kernels.

A kept answer is used again where all of these are the same; a line changed in a kernel, another driver
or one configuration more make it another question.
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
"""Axes of which a bucket holds every value up to the next power of two."""

SETTINGS = ("timer", "l2", "regime", "input", "seed", "lock_clocks")
"""Of the settings what can change who is fastest."""


def bucket(workload: Workload, case: Case) -> Case:
    """The case that stands for its bucket: batch and lengths rounded up to powers of two.

    A case that would contradict itself there is a bucket of its own.
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
    """Everything an answer holds for, as plain data."""
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
    """Eight digits that stand for a key in a file's name."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length() if value > 0 else value
