"""``serving-eager``: a ranking step with attention in PyTorch over the pages, sequence by sequence; runs anywhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from attnbench.backends.serving import ServingBackend

if TYPE_CHECKING:
    from attnbench.workloads.hstu_serving.case import ServingCase


class ServingEager(ServingBackend):
    """The reference that all others are compared with."""

    name = "serving-eager"
    title = "Ranking step, attention in PyTorch"
    devices = ("cpu", "cuda")

    def attention(self, case: ServingCase) -> AbstractContextManager[str]:
        """Return the plain attention."""
        return nullcontext("reference")
