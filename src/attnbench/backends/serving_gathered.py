"""``serving-gathered[NAME]``: a ranking step with any dense HSTU backend, which reads no pages, over gathered copies.

In every layer the cached keys and values are copied out of their pages beside the new ones, and the copies handed to
the backend: both are part of the step's time.  Without a name the attention is that of `hstu-eager`.
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
    compiles = True
    default = DEFAULT

    @property
    def inner(self) -> Backend:
        """Whose attention it is."""
        return all_backends()[self.config.values["attention"] if self.config else DEFAULT]

    def configs(self, case: ServingCase) -> Iterable[Config]:
        """Every dense backend for HSTU, with a cache and without, launch by launch or as a graph of just these lengths."""
        names = [name for name, one in all_backends().items() if (one.workload, one.variant) == ("hstu", "hstu")]
        ways = {
            "": {"cache": True},
            f"+{NO_CACHE}": {"cache": False},
            f"+{GRAPH}": {"cache": True, "graph": True},
            f"+{NO_CACHE}+{GRAPH}": {"cache": False, "graph": True},
        }
        return [Config(f"{name}{way}", {"attention": name, **values}) for name in names for way, values in ways.items()]

    def probe(self) -> None:
        """Ask for the backend's library.

        Raises:
            Unavailable: it is not installed.
        """
        self.inner.probe()

    def version(self) -> str | None:
        """Of the backend's library."""
        return self.inner.version()

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse what the backend does not take.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        super().check(case, machine)
        lengths = "has users of different lengths in a step"
        require(self.name, (case.cache != POOL, "cache", case.cache, lengths, "one shape in a step"))
        self.inner.check(self._problem(case), machine)

    def budget(self, case: ServingCase) -> Budget:
        """That of the backend for a layer's attention."""
        return self.inner.budget(self._problem(case))

    def _problem(self, case: ServingCase) -> Any:
        last = case.steps[-1][0]  # of a series that grows the longest
        found = case.found_of(last) if self.cached else 0
        return hstu_case(case, found, case.history_of(last) - found, case.num_candidates)

    def attention(self, case: ServingCase) -> AbstractContextManager[AttentionMaker]:
        """Sessions of the backend, opened as shapes come."""
        return gathered_attention(case, self.inner, graph=self.graph)
