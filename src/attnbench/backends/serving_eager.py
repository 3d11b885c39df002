"""``serving-eager``: a ranking step with attention in PyTorch over the pages, sequence by sequence; runs anywhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from attnbench.backends.serving import ServingBackend


class ServingEager(ServingBackend):
    """What everything else is compared with."""

    name = "serving-eager"
    title = "Ranking step, attention in PyTorch"
    devices = ("cpu", "cuda")

    def attention(self, case: Any) -> AbstractContextManager[str]:
        """The plain one."""
        return nullcontext("reference")
