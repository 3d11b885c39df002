"""One video to generate: the model, its shape, the number of steps, and how a step is run.

The backend decides which attention runs inside the model, so all of them are rows of one group.

Imports without torch.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any

from attnbench.errors import UsageError, refusal, unknown
from attnbench.models.video.config import PATCH, WHO, VideoModel, model_of
from attnbench.workloads.attention.case import ACCEPTED_DTYPES, AttentionCase
from attnbench.workloads.sparse.case import BLOCKS, SparseCase

COMPILE = ("none", "default", "max-autotune-no-cudagraphs")
DEFAULT_MODEL = "cogvideox-2b"
MOST_STEPS, MOST_FRAMES, MOST_PIXELS = 1000, 1025, 8192

_FOLLOWS: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoCase:
    """A frozen problem.

    Raises:
        UsageError: the value of a field is not allowed; the message names the field.
    """

    model: str = _FOLLOWS
    "default: cogvideox-2b"
    frames: int = _FOLLOWS
    "of the video, 4k + 1; default: the model's, as for height, width, steps and guidance"
    height: int = _FOLLOWS
    "pixels, a multiple of 16"
    width: int = _FOLLOWS
    "pixels, a multiple of 16"
    steps: int = _FOLLOWS
    "of a whole generation"
    guidance: float = _FOLLOWS
    "weight of the prompt; above 1 each step is computed without and with it, as a batch of two"
    dtype: str = "fp16"
    compile: str = "none"
    "torch.compile mode of the transformer's blocks"
    generations: int = 1
    "whole generations after the samples"
    warm_ups: int = 2
    "generations of ten steps before those"
    pattern: str = "random"
    "of the block map of sparse rows, the same in all layers, as in `sparse.case.SparseCase`; other rows ignore it"
    density: float | None = None
    block: str = BLOCKS[0]
    dense_steps: int = 0
    "number of first steps of a generation that sparse rows compute with torch's dense attention"
    weights: str | None = None
    "name and hash of a local folder of diffusers (`given_files`); None: random weights"
    prompt: str | None = None
    "name and hash of a safetensors file with embeddings; None: random ones"
    lpips: str | None = None
    "name and hash of a safetensors file with the network of LPIPS; None: LPIPS is not computed"

    def __post_init__(self) -> None:
        model = model_of(DEFAULT_MODEL if self.model is None else self.model)
        object.__setattr__(self, "model", model.name)
        for name in ("frames", "height", "width", "steps", "guidance"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(model, name))
        for name, least, most in (
            ("frames", 1, MOST_FRAMES),
            ("height", 16, MOST_PIXELS),
            ("width", 16, MOST_PIXELS),
            ("steps", 1, MOST_STEPS),
            ("generations", 0, 100),
            ("warm_ups", 0, 100),
            ("dense_steps", 0, MOST_STEPS),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise UsageError(refusal(WHO, name, value, "cannot be used", f"a whole number from {least} to {most}"))
        if self.dense_steps >= self.steps:
            wrong = f"leaves none of {self.steps} steps sparse"
            raise UsageError(refusal(WHO, "dense-steps", self.dense_steps, wrong, f"at most {self.steps - 1}"))
        model.check_shape(self.frames, self.height, self.width)
        for name, accepted in (("dtype", ACCEPTED_DTYPES), ("compile", COMPILE)):
            if getattr(self, name) not in accepted:
                raise unknown(WHO, name, getattr(self, name), accepted)
        if type(self.guidance) not in (int, float) or not 0 <= self.guidance < math.inf:
            raise UsageError(refusal(WHO, "guidance", self.guidance, "cannot be used", "a finite number from 0"))
        object.__setattr__(self, "guidance", float(self.guidance))
        for name in ("weights", "prompt", "lpips"):
            value = getattr(self, name)
            if value is not None and (type(value) is not str or not value):
                raise UsageError(refusal(WHO, name, value, "is no name", "the name and hash of a file, or none"))
        if self.lpips is not None and self.weights is None:
            wrong = "compares frames, and random weights make none that say anything"
            raise UsageError(
                refusal(WHO, "lpips", self.lpips.partition("@")[0], wrong, "beside --weights DIR, or none")
            )

    @property
    def config(self) -> VideoModel:
        """Sizes of the model."""
        return model_of(self.model)

    @property
    def mode(self) -> str:
        """Always fwd: a step has no backward."""
        return "fwd"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, height and width, in pixels."""
        return self.frames, self.height, self.width

    @property
    def batch(self) -> int:
        """Number of predictions in a step."""
        return 2 if self.guidance > 1 else 1

    @property
    def tokens(self) -> int:
        """Number of rows of the exchangeable attention."""
        return self.config.tokens(*self.shape)

    @property
    def attention(self) -> AttentionCase:
        """The attention of one layer as a case of the workload `attention`."""
        return AttentionCase(
            batch=self.batch, seqlen=self.tokens, nheads=self.config.heads, headdim=self.config.dim, dtype=self.dtype
        )

    @property
    def sparse(self) -> SparseCase:
        """The attention of one layer of sparse rows.

        Raises:
            UsageError: pattern, density or block do not fit the tokens.
        """
        frames, rows, columns = self.config.latents(*self.shape)
        return SparseCase(
            batch=self.batch,
            seqlen=self.tokens,
            nheads=self.config.heads,
            headdim=self.config.dim,
            dtype=self.dtype,
            block=self.block,
            pattern=self.pattern,
            density=self.density,
            grid=f"{frames}:{rows // PATCH}:{columns // PATCH}",
        )

    @property
    def latents(self) -> tuple[int, ...]:
        """Shape of the latents of one video, in the transformer's layout."""
        count, rows, columns = self.config.latents(*self.shape)
        first = (count, self.config.channels) if self.config.joint else (self.config.channels, count)
        return (1, *first, rows, columns)

    @property
    def id(self) -> str:
        """Short name such as ``cogvideox-2b-f49-480x720-s50-g6-bf16``."""
        parts = [
            self.model,
            f"f{self.frames}",
            f"{self.height}x{self.width}",
            f"s{self.steps}",
            f"g{self.guidance:g}".replace(".", "_"),
            self.dtype,
        ]
        parts += [f"compile_{self.compile}"] if self.compile != "none" else []
        parts += [f"n{self.generations}w{self.warm_ups}"] if (self.generations, self.warm_ups) != (1, 2) else []
        sparse = (self.pattern, self.density, self.block, self.dense_steps)
        parts += (
            ["-".join(str(one).replace("@", "_") for one in sparse if one is not None)]
            if sparse != ("random", None, BLOCKS[0], 0)
            else []
        )
        for name, path in (("weights", self.weights), ("prompt", self.prompt), ("lpips", self.lpips)):
            parts += [f"{name}{hashlib.sha256(path.encode()).hexdigest()[:8]}"] if path is not None else []
        return "-".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
