"""``serving-gathered[NAME]``: a ranking step with any dense HSTU backend, which reads no pages, over gathered copies.

In every layer the cached keys and values are copied out of their pages beside the new ones, and the copies handed to
the backend: both are part of the step's time.  Without a name the attention is that of `hstu-eager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Budget, Config, Launch, Machine
from attnbench.backends.registry import all_backends
from attnbench.backends.serving import GRAPH, NO_CACHE, ServingBackend
from attnbench.errors import AttnbenchError, Unsupported, refusal
from attnbench.workloads.hstu_serving.case import POOL

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.models.hstu_ranking.attention import AttentionMaker
    from attnbench.workloads.hstu_serving.case import ServingCase

DEFAULT = "hstu-eager"


class ServingGathered(ServingBackend):
    """The step is ours, its attention another backend's."""

    name = "serving-gathered"
    title = "Ranking step, HSTU backend over gathered copies"
    devices = ("cpu", "cuda")
    compiles = True

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
        if case.cache == POOL:
            raise Unsupported(
                refusal(
                    self.name, "cache", case.cache, "has users of different lengths in a step", "one shape in a step"
                )
            )
        inner = self.inner
        if machine.device not in inner.devices:
            raise Unsupported(
                refusal(inner.name, "device", machine.device, "is not supported", " and ".join(inner.devices))
            )
        inner.check(self._problem(case), machine)

    def budget(self, case: ServingCase) -> Budget:
        """That of the backend for a layer's attention."""
        return self.inner.budget(self._problem(case))

    def _problem(self, case: ServingCase) -> Any:
        last = case.steps[-1][0]  # of a series that grows the longest
        found = case.found_of(last) if self.cached else 0
        return hstu_case(case, found, case.history_of(last) - found, case.num_candidates)

    @contextmanager
    def attention(self, case: ServingCase) -> Iterator[AttentionMaker]:
        """Sessions of the backend, opened as shapes come."""
        from attnbench.models.hstu_ranking.attention import Gathered, Sequences

        with ExitStack() as closing:
            sessions = _Sessions(case, self.inner, closing, graph=self.graph)

            class Attention(Gathered):
                """Gathers for another backend."""

                def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                    keys, values = self.gathered(pool, k, v)
                    return sessions.attend(self.sequences, q, keys, values)

            def make(sequences: Sequences) -> Attention:
                return Attention(sequences)

            yield make


def hstu_case(case: ServingCase, cached: int, new: int, targets: int) -> Any:
    """The attention of one layer as a case of the workload `hstu`: rows see `cached` keys before them."""
    from attnbench.workloads.hstu.case import HstuCase

    config = case.config
    return HstuCase(
        batch=case.batch,
        seqlen=cached + new + targets,
        nheads=config.heads,
        attn_dim=config.dim,
        scaling_seqlen=config.scaling_seqlen,
        num_targets=str(targets),
        delta_q=new + targets if cached else None,
        dtype=case.dtype,
        gates=False,
    )


class _Sessions:
    """Open sessions of a backend, one for each shape."""

    def __init__(self, case: ServingCase, inner: Backend, closing: ExitStack, *, graph: bool) -> None:
        self.case, self.inner, self.closing, self.graph = case, inner, closing, graph
        self.open: dict[tuple[int, int, int], tuple[Launch, Any]] = {}

    def attend(self, given: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of a layer.

        Raises:
            AttnbenchError: sequences of a step differ in what is cached or new.
        """
        from dataclasses import replace

        shapes = set(zip(given.cached, given.new, given.targets, strict=True))
        if len(shapes) != 1:
            raise AttnbenchError(refusal(self.inner.name, "sequences", sorted(shapes), "differ", "one shape in a step"))
        (shape,) = shapes
        if shape not in self.open:
            self.open[shape] = self._session(shape, len(given.cached), q)
        launch, template = self.open[shape]
        launch.reload(replace(template, q=q.contiguous(), k=k.contiguous(), v=v.contiguous()))
        launch.forward()
        return launch.outputs()["out"]

    def _session(self, shape: tuple[int, int, int], batch: int, q: Tensor) -> tuple[Launch, Any]:
        from dataclasses import replace

        from attnbench.workloads.hstu.inputs import make_inputs

        problem = replace(hstu_case(self.case, *shape), batch=batch)
        template = make_inputs(problem, seed=0, kind="zeros", device=q.device)
        launch = self.closing.enter_context(self.inner.session(problem, template))
        if self.graph and not launch.capturable:
            raise Unsupported(
                refusal(self.inner.name, "config", GRAPH, "cannot be captured", "the same row without it")
            )
        return launch, template
