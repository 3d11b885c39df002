"""Turns a backend for attention into that of a model: through its function, or its session and copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Launch, Preparing
from attnbench.backends.registry import all_backends
from attnbench.backends.sparse import MAP, Following
from attnbench.workloads.base import load_workload

if TYPE_CHECKING:
    from torch import Tensor, device

    from attnbench.models.video.attention import Exchanged, Spans

COPIES = 4
"Copies per call for a backend without a function: q, k and v into its session, and the output out of it."


class Copied:
    """A session fed by copies; records the time of the copies."""

    def __init__(self, launch: Launch, template: Any, spans: Spans) -> None:
        self.launch, self.template, self.spans = launch, template, spans
        self.found: Mapping[str, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `models.video.attention.Attend`."""
        launch, span, device = self.launch, self.spans.span, q.device
        with span("copies", device):
            launch.reload(replace(self.template, q=q.contiguous(), k=k.contiguous(), v=v.contiguous()))
        with span("attention", device):
            launch.forward()
        with span("copies", device):
            self.found = launch.outputs()
            return self.found["out"].clone()

    def chosen(self) -> Tensor:
        """The block map predicted by the last call."""
        return self.found[MAP]


@contextmanager
def attention_of(backend: Backend, problem: Any, device: device) -> Iterator[Exchanged]:
    """Yield the attention of all layers."""
    from attnbench.models.video.attention import Exchanged, Spans

    spans = Spans()
    # The first steps of a sparse generation may be dense.
    dense = all_backends()["sdpa"].attend(problem.dense, device) if backend.workload == "sparse" else None
    function = backend.attend(problem, device)
    if function is not None:
        if isinstance(function, Preparing):
            function.preparing = lambda: spans.span("preparation", device)
        chosen = function.chosen if isinstance(function, Following) else None
        yield Exchanged(function, spans, dense=dense, chosen=chosen)
        return
    template = load_workload(backend.workload).inputs(problem, seed=0, kind="zeros", device=device)
    with backend.session(problem, template) as launch:
        copied = Copied(launch, template, spans)
        chosen = copied.chosen if backend.workload == "sparse" and backend.variant_of(problem) == "chosen" else None
        yield Exchanged(copied, spans, timed=False, dense=dense, chosen=chosen)
