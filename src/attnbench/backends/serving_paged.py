"""``serving-paged``: a ranking step with our attention kernel, which reads pages and new tokens in one launch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from attnbench.backends.base import Machine
from attnbench.backends.our_triton import require_triton
from attnbench.backends.serving import ServingBackend
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.workloads.hstu_serving.case import ServingCase
LARGEST_DIM = 256


class ServingPaged(ServingBackend):
    """`hstu_paged_attention` and `hstu_paged_append` in every layer."""

    name = "serving-paged"
    title = "Ranking step, our paged attention (Triton)"
    distribution = "triton"
    compiles = ahead = True
    tested = "NVIDIA H200, torch 2.11"
    graphs = True

    def probe(self) -> None:
        """Check that Triton is installed; GPU builds of torch include it.

        Raises:
            Unavailable: it is not installed.
        """
        require_triton(self)

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse cases that the kernel does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if case.config.dim > LARGEST_DIM:
            raise Unsupported(refusal(self.name, "dim", case.config.dim, "is not supported", f"at most {LARGEST_DIM}"))

    def attention(self, case: ServingCase) -> AbstractContextManager[str]:
        """Return the kernel's attention."""
        return nullcontext("paged")
