"""Base class of the adapters for a serving step: their configurations and common refusals.

A configuration is empty or words joined by +: ``no-cache`` answers the same requests without a cache, computing
everything; ``graph`` runs the whole step as one CUDA graph, if the attention reads all lengths on the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import Backend, Config, Launch, Machine
from attnbench.backends.serving_session import ServingSession
from attnbench.errors import Unsupported, refusal

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.attention import AttentionMaker
    from attnbench.workloads.hstu_serving.case import ServingCase
    from attnbench.workloads.hstu_serving.inputs import ServingInputs

NO_CACHE, GRAPH = "no-cache", "graph"


class ServingBackend(Backend["ServingCase", "ServingInputs"]):
    """An adapter for the workload `hstu-serving`, with an attention of its own inside the step."""

    workload = "hstu-serving"
    variant = "logits"
    install = "part of torch"
    graphs: ClassVar[bool] = False
    "whether the attention reads all lengths on the device, so that one CUDA graph serves other requests too"

    @property
    def cached(self) -> bool:
        """Whether this row uses a cache."""
        return self.config is None or bool(self.config.values.get("cache", True))

    @property
    def graph(self) -> bool:
        """Whether this row's steps are CUDA graphs."""
        return self.config is not None and bool(self.config.values.get("graph", False))

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse a cache for a model without one, and CUDA graphs where they do not exist.

        Raises:
            Unsupported: naming the model and the reason.
        """
        from attnbench.models.hstu_ranking.config import RECENCY_REASON

        if self.graph and machine.device != "cuda":
            raise Unsupported(refusal(self.name, "device", machine.device, "has no CUDA graphs", "cuda"))
        super().check(case, machine)
        if self.cached and case.config.recency:
            raise Unsupported(refusal(self.name, "model", case.model, RECENCY_REASON, f"{self.name}[{NO_CACHE}]"))

    def configs(self, case: ServingCase) -> Iterable[Config]:
        """Return the configurations: with or without cache, launch by launch or as a CUDA graph."""
        found = [Config(NO_CACHE, {"cache": False})]
        if self.graphs:
            found += [Config(GRAPH, {"graph": True}), Config(f"{NO_CACHE}+{GRAPH}", {"cache": False, "graph": True})]
        return found

    @abstractmethod
    def attention(self, case: ServingCase) -> AbstractContextManager[str | AttentionMaker]:
        """Return the attention of a step, in a form that `HstuRanking` accepts, while a session is open."""

    @contextmanager
    def session(self, case: ServingCase, inputs: ServingInputs) -> Iterator[Launch]:
        """Use a cache of its own, filled by the preceding step."""
        with self.attention(case) as attention:
            exact = not self.graphs
            yield ServingSession(case, inputs, attention, cached=self.cached, graph=self.graph, exact=exact).launch()
