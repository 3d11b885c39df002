"""The attention of a ranking step by a backend of the workload `hstu`: one session per shape, fed by copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Launch
from attnbench.backends.serving import GRAPH
from attnbench.errors import AttnbenchError, Unsupported, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.models.hstu_ranking.attention import AttentionMaker, Sequences
    from attnbench.workloads.hstu_serving.case import ServingCase


@contextmanager
def gathered_attention(case: ServingCase, inner: Backend, *, graph: bool) -> Iterator[AttentionMaker]:
    """Yield the attention of all layers by sessions of a backend, opened for each new shape, closed with the block.

    Args:
        case: of the step.
        inner: the backend.
        graph: the steps are CUDA graphs, so each launch must be capturable.
    """
    from attnbench.models.hstu_ranking.attention import Gathered

    with ExitStack() as closing:
        sessions = _Sessions(case, inner, closing, graph=graph)

        class Attention(Gathered):
            """Gathers keys and values for another backend."""

            def attend(self, pool: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                keys, values = self.gathered(pool, k, v)
                return sessions.attend(self.sequences, q, keys, values)

        def make(sequences: Sequences) -> Attention:
            return Attention(sequences)

        yield make


def hstu_case(case: ServingCase, cached: int, new: int, targets: int) -> Any:
    """Return the attention of one layer as a case of the workload `hstu`, with `cached` keys before the queries."""
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
        self.open: dict[tuple[tuple[int, int, int], int], tuple[Launch, Any]] = {}
        "by cached, new and candidate rows of a user, and the number of users"

    def attend(self, given: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute the attention of a layer.

        Raises:
            AttnbenchError: sequences of a step differ in their cached or new tokens.
        """
        shapes = set(zip(given.cached, given.new, given.targets, strict=True))
        if len(shapes) != 1:
            raise AttnbenchError(refusal(self.inner.name, "sequences", sorted(shapes), "differ", "one shape in a step"))
        (shape,), batch = shapes, len(given.cached)
        if (shape, batch) not in self.open:
            self.open[shape, batch] = self._session(shape, batch, q)
        launch, template = self.open[shape, batch]
        launch.reload(replace(template, q=q.contiguous(), k=k.contiguous(), v=v.contiguous()))
        launch.forward()
        return launch.outputs()["out"]

    def _session(self, shape: tuple[int, int, int], batch: int, q: Tensor) -> tuple[Launch, Any]:
        from attnbench.workloads.hstu.inputs import make_inputs

        if q.is_meta and not self.inner.ahead:
            raise Unsupported(refusal(self.inner.name, "device", "meta", "has no memory", "a device with memory"))
        problem = replace(hstu_case(self.case, *shape), batch=batch)
        template = make_inputs(problem, seed=0, kind="zeros", device=q.device)
        launch = self.closing.enter_context(self.inner.session(problem, template))
        if self.graph and not launch.capturable:
            raise Unsupported(
                refusal(self.inner.name, "config", GRAPH, "cannot be captured", "the same row without it")
            )
        return launch, template
