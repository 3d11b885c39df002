"""A session of ``video[NAME]``: the launch is a denoising step; whole generations follow after its samples."""

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
    """A model that repeats the first step of a generation."""

    def __init__(self, case: VideoCase, inputs: VideoInputs, attention: Exchanged, *, name: str) -> None:
        self.case, self.inputs, self.attention, self.name = case, inputs, attention, name
        compiled = None if case.compile == "none" else partial(compile_blocks, mode=case.compile)
        self.compiler = _Compiler() if compiled else None
        self.denoiser, _ = inputs.denoiser(attention, compiled=compiled)
        self.found: tuple[Tensor, Tensor] | None = None
        self.found_notes: tuple[str, ...] = ()
        self.taken: tuple[Tensor, Tensor, Tensor] | None = None
        "q, k and v of the middle layer, for timing the attention by itself"

    def forward(self) -> None:
        """Run one step; every layer must call the attention.

        Raises:
            AttnbenchError: the number of calls differs.
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
        """Return prediction, next latents and rows of the first layer's attention of the last step.

        Raises:
            WorkerError: there was no step.
        """
        import torch

        if self.found is None or self.attention.rows is None:
            raise WorkerError("launch: outputs were asked for before forward")
        found = {"out": self.found[0], "latents": self.found[1], "attention": self.attention.rows}
        return found | ({MAP: torch.stack(self.attention.maps)} if self.attention.chosen else {})

    def load(self, inputs: VideoInputs) -> None:
        """Load other noise and embeddings."""
        self.found, self.inputs = None, inputs

    def reset(self) -> None:
        """Reset the scheduler to its first step."""
        self.denoiser.begin(self.case.steps)

    def launch(self, counters: Mapping[str, float] | None = None) -> Launch:
        """Return the launch for the harness; `counters` are additional ones for the record."""
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
        """Call the attention once by itself, on the middle layer's own q, k and v: the micro-benchmark of this shape.

        These come from an untimed step before the first call.
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
        """Mark each call of the attention, and its copies, with a profiler's range."""
        self.attention.spans.mark = mark

    def generate(self) -> Tensor:
        """Run one generation with the decoder, in the range `Inference`; return its latents."""
        from attnbench.workloads.video.generation import generated

        return generated(self.case, self.inputs, self.denoiser, self.attention).latents

    def whole(self) -> dict[str, float | None]:
        """Run the generations of the case: return their times, memory, calls, and the distance of their latents.

        Raises:
            AttnbenchError: a call of the attention is missing, or latents of a step are not finite.
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
    """Compile a transformer's repeated blocks in a mode of torch.compile, separately from other sessions' blocks.

    All blocks of a kind have the same code, so one of them is compiled and the others use it; compiling the whole
    model takes many times as long.  Modules before and after the blocks are not compiled.
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
        """Count what is compiled in the block: other sessions of the process compile as well."""
        breaks, graphs = _compiled_so_far()
        yield
        breaks, graphs = (now - before for now, before in zip(_compiled_so_far(), (breaks, graphs), strict=True))
        self.breaks += breaks
        if self.stepped:
            self.later += graphs
        else:
            self.graphs, self.stepped = graphs, True

    def counted(self) -> dict[str, float]:
        """Return graph breaks, graphs of the first step, and graphs compiled later."""
        return {"graph_breaks": self.breaks, "graphs": self.graphs, "recompiles": self.later}


def _compiled_so_far() -> tuple[int, int]:
    """Return the numbers of graph breaks and graphs of this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
