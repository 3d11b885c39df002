"""``serving-paged``: a ranking step whose attention is our kernel that reads pages and new tokens in one launch."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from attnbench.backends.base import Config, Machine
from attnbench.backends.our_triton import require_triton
from attnbench.backends.serving import GRAPH, ServingBackend
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.workloads.hstu_serving.case import ServingCase
LARGEST_DIM = 256
FORMS = ("epilogue", "epilogue+early", "aside", "epilogue+aside")


class ServingPaged(ServingBackend):
    """`hstu_paged_attention` and `hstu_paged_append` in every layer."""

    name = "serving-paged"
    title = "Ranking step, our paged attention (Triton)"
    distribution = "triton"
    compiles = True
    tested = "NVIDIA H200, torch 2.11"
    graphs = True

    def probe(self) -> None:
        """Ask for Triton, which torch for a GPU brings.

        Raises:
            Unavailable: it is not installed.
        """
        require_triton(self)

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse what the kernel does not take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        if case.config.dim > LARGEST_DIM:
            raise Unsupported(refusal(self.name, "dim", case.config.dim, "is not supported", f"at most {LARGEST_DIM}"))

    def configs(self, case: ServingCase) -> Iterable[Config]:
        """Also steps of a graph whose append is in the product's epilogue, or beside attention."""
        forms = (f"{GRAPH}+{form}" for form in FORMS)
        return [
            *super().configs(case),
            *(Config(form, {"graph": True, "form": form.partition("+")[2]}) for form in forms),
        ]

    def attention(self, case: ServingCase) -> AbstractContextManager[str]:
        """The kernel's."""
        form = self.config.values.get("form") if self.config is not None else None
        return nullcontext(f"paged+{form}" if form else "paged")
