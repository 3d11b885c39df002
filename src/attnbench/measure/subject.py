"""What is sampled: a closure and what the harness may do around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True, slots=True)
class Subject:
    """One competitor: a closure ready to be called again and again."""

    name: str
    call: Callable[[], Any]
    reset: Callable[[], None] | None = None
    "untimed, before each sample"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own figure for the last call"
    capturable: bool = True
    "may be recorded in a CUDA graph"
