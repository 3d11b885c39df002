"""``serving-gathered[NAME]``: a ranking step with any dense HSTU backend, which reads no pages, over gathered copies.

Every layer copies the cached keys and values out of their pages next to the new ones, and passes the copies to the
backend; both are part of the step's time.  Without a name the attention is that of `hstu-eager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Budget, Config, Machine, require
from attnbench.backends.registry import all_backends
from attnbench.backends.serving import GRAPH, NO_CACHE, ServingBackend
from attnbench.backends.serving_attention import gathered_attention, hstu_case
from attnbench.workloads.hstu_serving.case import POOL

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.attention import AttentionMaker
    from attnbench.workloads.hstu_serving.case import ServingCase

DEFAULT = "hstu-eager"


class ServingGathered(ServingBackend):
    """The step is ours, its attention another backend's."""

    name = "serving-gathered"
    title = "Ranking step, HSTU backend over gathered copies"
    devices = ("cpu", "cuda")
    tested = "NVIDIA H200, torch 2.11"
    compiles = ahead = True
    default = DEFAULT

    @property
    def inner(self) -> Backend:
        """The backend whose attention is used."""
        return all_backends()[self.config.values["attention"] if self.config else DEFAULT]

    def configs(self, case: ServingCase) -> Iterable[Config]:
        """Every dense HSTU backend, with or without cache, launch by launch or as a CUDA graph of fixed lengths."""
        names = [name for name, one in all_backends().items() if (one.workload, one.variant) == ("hstu", "hstu")]
        ways = {
            "": {"cache": True},
            f"+{NO_CACHE}": {"cache": False},
            f"+{GRAPH}": {"cache": True, "graph": True},
            f"+{NO_CACHE}+{GRAPH}": {"cache": False, "graph": True},
        }
        return [Config(f"{name}{way}", {"attention": name, **values}) for name in names for way, values in ways.items()]

    def probe(self) -> None:
        """Check that the backend's library is installed.

        Raises:
            Unavailable: it is not installed.
        """
        self.inner.probe()

    def version(self) -> str | None:
        """Version of the backend's library."""
        return self.inner.version()

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse cases that the backend does not support.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        lengths = "has users of different lengths in a step"
        require(self.name, (case.cache != POOL, "cache", case.cache, lengths, "one shape in a step"))
        self.inner.check(self._problem(case), machine)

    def budget(self, case: ServingCase) -> Budget:
        """Return the backend's budget for a layer's attention."""
        return self.inner.budget(self._problem(case))

    def _problem(self, case: ServingCase) -> Any:
        last = case.steps[-1][0]  # the longest of a growing series
        found = case.found_of(last) if self.cached else 0
        return hstu_case(case, found, case.history_of(last) - found, case.num_candidates)

    def attention(self, case: ServingCase) -> AbstractContextManager[AttentionMaker]:
        """Return sessions of the backend, opened for each new shape."""
        return gathered_attention(case, self.inner, graph=self.graph)
