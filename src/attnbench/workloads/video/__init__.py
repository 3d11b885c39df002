"""Video diffusion with exchangeable attention: a launch is one denoising step of a whole model.

Imports without torch; the methods that make or read tensors import what they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.errors import unknown
from attnbench.record import Work
from attnbench.workloads.base import Choice, Draw, OutputKind, Workload, in_layout
from attnbench.workloads.video.axes import AXES
from attnbench.workloads.video.case import VideoCase
from attnbench.workloads.video.work import LARGE_FLOPS, work

if TYPE_CHECKING:
    from torch import Tensor, device
    from torch import dtype as torch_dtype

    from attnbench.workloads.video.inputs import VideoInputs

WARM_UP_STEPS = 10
"Steps of a warm-up generation, as in seed 003."
ROOM = 2**30
"Memory for results in bytes below which a large step is checked in part: the first data have more, others an eighth."
KEPT_ROWS = 64
"Copy of a constant of `models.video.attention`, which imports torch; a test compares the two."

__all__ = ["WORKLOAD", "VideoCase", "VideoWorkload"]


class VideoWorkload(Workload[VideoCase, "VideoInputs"]):
    """A denoising step: the transformer, guidance and the scheduler, from noise to the next latents."""

    name = "video"
    title = "Video diffusion step"
    axes = AXES
    variants = ("step", "sparse-step", "chosen-step")

    def outputs(self, variant: str) -> Mapping[str, OutputKind]:
        """Return prediction, next latents, rows of the first layer's attention, and predicted maps."""
        maps = {"block_map": OutputKind.CHOICE} if variant == "chosen-step" else {}
        return {**dict.fromkeys(("out", "latents", "attention"), OutputKind.VALUE), **maps}

    def choice(self, variant: str) -> Choice[VideoCase, VideoInputs] | None:
        """Return the judge of maps predicted by a launch."""
        if variant != "chosen-step":
            return None
        from attnbench.workloads.video.choice import ChosenMaps

        return ChosenMaps()

    def case(self, values: Mapping[str, Any]) -> VideoCase:
        """Build a case from axis values or from `VideoCase.to_dict`; missing values get the axis default.

        Raises:
            UsageError: an axis is unknown or a value is not allowed.
        """
        return VideoCase(**self.filled(values))

    def work(self, case: VideoCase) -> Work:
        """Return exact useful FLOPs and least bytes of a step; `work.py` says what is counted."""
        return work(case)

    def inputs(self, case: VideoCase, *, seed: int, kind: str, device: str | device) -> VideoInputs:
        """Return model, noise and embeddings; see `inputs.make_inputs`."""
        from attnbench.workloads.video.inputs import make_inputs

        return make_inputs(case, seed=seed, kind=kind, device=device)

    def oracle(
        self, variant: str, case: VideoCase, inputs: VideoInputs, *, dtype: torch_dtype, draw: Draw
    ) -> dict[str, Tensor]:
        """Return the same step with plain attention; every row depends on all others, so no rows are drawn."""
        from attnbench.workloads.video.oracle import evaluate

        self._known(variant)
        return evaluate(inputs, dtype=dtype, variant=variant, first=draw.parts is not None)

    def expected_errors(self, variant: str, case: VideoCase, inputs: VideoInputs, *, draw: Draw) -> dict[str, Tensor]:
        """Return the standard deviation of each element; `rounding.py` describes the method."""
        from attnbench.workloads.video.rounding import expected_errors

        self._known(variant)
        return expected_errors(inputs, variant, first=draw.parts is not None)

    def draw(self, case: VideoCase, *, seed: int, max_bytes: int) -> Draw:
        """Return everything; for a large step on further data (less room) only the first layer's attention."""
        if max_bytes >= ROOM or work(case).flops <= LARGE_FLOPS:
            return Draw()
        return Draw(parts=((0,),), unit="layers")

    def select(self, case: VideoCase, outputs: Mapping[str, Tensor], draw: Draw) -> dict[str, Tensor]:
        """Return prediction, latents and rows, in the workload's layout."""
        model = case.config
        rows = case.batch, min(KEPT_ROWS, case.tokens), model.heads, model.dim
        return in_layout(
            case.id, outputs, {"out": (case.batch, *case.latents[1:]), "latents": case.latents, "attention": rows}
        )

    def suspects(
        self, variant: str, case: VideoCase, inputs: VideoInputs, *, draw: Draw
    ) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
        """Answers of a model without attention, or whose attention hides the keys after a query."""
        import torch

        from attnbench.models.video.attention import plain
        from attnbench.workloads.video.oracle import SPARSE, causal, evaluator, nothing

        yield "attention that adds nothing", evaluator(inputs, dtype=torch.float32, attend=nothing)()
        yield "a causal mask, which a video has not", evaluator(inputs, dtype=torch.float32, attend=causal)()
        if variant == SPARSE:
            yield "a block map that is not read", evaluator(inputs, dtype=torch.float32, attend=plain)()

    def calls_after(self, case: VideoCase) -> int:
        """Return the steps of whole generations; the decoder is not counted."""
        if not case.generations:
            return 0
        return case.generations * case.steps + case.warm_ups * min(WARM_UP_STEPS, case.steps)

    def shrink(self, case: VideoCase, factor: float) -> VideoCase | None:
        """Return a case of fewer frames; None if there is only one."""
        frames = int((case.frames - 1) * factor) // 4 * 4 + 1
        return replace(case, frames=frames) if frames < case.frames else None

    def _known(self, variant: str) -> None:
        if variant not in self.variants:
            raise unknown(self.name, "variant", variant, self.variants)


WORKLOAD = VideoWorkload()
