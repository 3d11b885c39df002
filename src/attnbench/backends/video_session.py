"""A session of ``video[NAME]``: a denoising step is the launch, a whole generation follows after its samples."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import InPlace, Launch, Preparing
from attnbench.backends.compiled import with_own_code
from attnbench.backends.sparse import MAP
from attnbench.backends.video_attention import COPIES, Copied
from attnbench.errors import AttnbenchError, WorkerError, refusal

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.models.video.attention import Exchanged
    from attnbench.workloads.video.case import VideoCase
    from attnbench.workloads.video.inputs import VideoInputs

RANDOM = "random weights: times and memory hold, frames and which keys matter do not (docs/video.md)"


class VideoSession:
    """A model that takes the first step of a generation again and again."""

    def __init__(self, case: VideoCase, inputs: VideoInputs, attention: Exchanged, *, name: str) -> None:
        self.case, self.inputs, self.attention, self.name = case, inputs, attention, name
        compiled = None if case.compile == "none" else partial(compile_blocks, mode=case.compile)
        self.compiler = _Compiler() if compiled else None
        self.denoiser, _ = inputs.denoiser(attention, compiled=compiled)
        self.found: tuple[Tensor, Tensor] | None = None
        self.found_notes: tuple[str, ...] = ()
        self.taken: tuple[Tensor, Tensor, Tensor] | None = None
        "q, k and v of the middle layer, for the attention by itself"

    def forward(self) -> None:
        """One step; every layer must have called the attention.

        Raises:
            AttnbenchError: another number of calls was made.
        """
        import torch

        self.found = self.attention.rows = None
        before, layers = self.attention.calls, self.case.config.layers
        with torch.no_grad(), self._watched():
            self.found = self.denoiser.step(0, self.inputs.latents, self.inputs.embeds)
        _check_calls(self.name, self.attention.calls - before, layers)

    def _watched(self) -> AbstractContextManager[None]:
        return nullcontext() if self.compiler is None else self.compiler.watched()

    def outputs(self) -> Mapping[str, Tensor]:
        """Prediction, next latents and rows of the first layer's attention of the last step.

        Raises:
            WorkerError: there was none.
        """
        import torch

        if self.found is None or self.attention.rows is None:
            raise WorkerError("launch: outputs were asked for before forward")
        found = {"out": self.found[0], "latents": self.found[1], "attention": self.attention.rows}
        return found | ({MAP: torch.stack(self.attention.maps)} if self.attention.chosen else {})

    def load(self, inputs: VideoInputs) -> None:
        """Take other noise and embeddings."""
        self.found, self.inputs = None, inputs

    def reset(self) -> None:
        """Bring the scheduler back to its first step."""
        self.denoiser.begin(self.case.steps)

    def launch(self, counters: Mapping[str, float] | None = None) -> Launch:
        """What the harness calls; `counters` are further ones for the record."""
        copies = COPIES if isinstance(self.attention.attend, Copied) else 0
        weights = RANDOM if self.case.weights is None else "weights of a local folder"
        notes = [weights] + [f"{copies} copies a call: this backend has no function for tensors of others"] * bool(
            copies
        )
        phases: dict[str, Callable[[], Any] | InPlace]
        phases = {"attention": self._phase("attention"), "attention alone": self.alone}
        if isinstance(self.attention.attend, Preparing):
            phases["preparation"] = self._phase("preparation")
        if copies:
            phases["copies"] = self._phase("copies")
        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            reset=self.reset,
            capturable=False,
            phases=phases,
            marked=self.marked,
            whole=self.whole,
            found_out=lambda: self.found_notes,
            at_length=self.generate,
            notes=tuple(notes),
            counters={
                "denoising_steps": 1,
                "layers": self.case.config.layers,
                "tokens": self.case.tokens,
                "predictions": self.case.batch,
                "copies": copies * self.case.config.layers,
                **({} if self.attention.chosen is None else {"maps_predicted": self.case.config.layers}),
                **(counters or {}),
            },
        )

    def _phase(self, name: str) -> InPlace:
        spans = self.attention.spans

        def call() -> None:
            with spans.recorded():
                self.forward()

        return InPlace(call, lambda: spans.total_ms(name))

    def alone(self) -> None:
        """One call of the attention by itself, on the middle layer's own q, k and v: the micro-benchmark of this shape.

        They are taken from a step before the first call, which nobody times.
        """
        import torch

        if self.taken is None:
            self.taken = self._operands()
        attend = self.attention.attend
        with torch.no_grad():
            if isinstance(attend, Copied):
                attend.launch.forward()
            else:
                attend(*self.taken)

    def _operands(self) -> tuple[Tensor, Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor, Tensor]] = []

        def look(layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
            if layer == self.case.config.layers // 2:
                found.append((q, k, v))

        self.reset()
        self.attention.look = look
        try:
            self.forward()
        finally:
            self.attention.look = None
        self.reset()
        if isinstance(self.attention.attend, Copied):
            self.attention.attend(*found[0])
        return found[0]

    def marked(self, mark: Callable[[str], AbstractContextManager[Any]]) -> None:
        """Have a profiler's range around each call of the attention, and around its copies."""
        self.attention.spans.mark = mark

    def generate(self) -> Tensor:
        """One generation with the decoder, in the range `Inference`; its latents."""
        from attnbench.workloads.video.generation import generated

        return generated(self.case, self.inputs, self.denoiser, self.attention).latents

    def whole(self) -> dict[str, float | None]:
        """Generations as the case asks for them: their times, memory, calls, and how far their latents are.

        Raises:
            AttnbenchError: a call of the attention is missing, or a step has latents that are not finite.
        """
        from attnbench.workloads.video.generation import generate_all

        with self._watched():
            found = generate_all(self.case, self.inputs, self.denoiser, self.attention, who=self.name)
        if self.case.generations:
            _check_calls(self.name, found.calls, self.case.config.layers * self.case.steps)
        self.found_notes = found.notes
        graphs = {} if self.compiler is None else self.compiler.counted()
        return {**found.counters(), **graphs}


def _check_calls(who: str, calls: int, wanted: int) -> None:
    if calls != wanted:
        raise AttnbenchError(refusal(who, "attention calls", calls, "are not those of the model's layers", f"{wanted}"))


def compile_blocks(transformer: Any, *, mode: str, compiler: str = "inductor") -> None:
    """Have a transformer's repeated blocks compiled in a mode of torch.compile, apart from those of other sessions.

    All blocks of a kind are the same code, so one of them is compiled and the others use it; the whole at once takes as
    many times as long.  What lies before and behind the blocks is not compiled.
    """
    import torch

    compiled: dict[type, Callable[..., Any]] = {}
    for block in transformer.transformer_blocks if hasattr(transformer, "transformer_blocks") else transformer.blocks:
        kind = type(block)
        if kind not in compiled:
            compiled[kind] = torch.compile(
                with_own_code(kind.forward),
                backend=compiler,
                dynamic=False,
                mode=mode if compiler == "inductor" else None,
            )
        block.forward = types.MethodType(compiled[kind], block)


class _Compiler:
    """Counts what torch.compile does in a session's own calls: in its first step, and afterwards."""

    def __init__(self) -> None:
        self.breaks = self.graphs = self.later = 0
        self.stepped = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what the block compiles: other sessions of the process compile as well."""
        breaks, graphs = _compiled_so_far()
        yield
        breaks, graphs = (now - before for now, before in zip(_compiled_so_far(), (breaks, graphs), strict=True))
        self.breaks += breaks
        if self.stepped:
            self.later += graphs
        else:
            self.graphs, self.stepped = graphs, True

    def counted(self) -> dict[str, float]:
        """Graph breaks, graphs of the first step, and graphs that were compiled later."""
        return {"graph_breaks": self.breaks, "graphs": self.graphs, "recompiles": self.later}


def _compiled_so_far() -> tuple[int, int]:
    """Graph breaks and graphs of this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
