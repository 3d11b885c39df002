"""Sizes of the video models, and the named ones.

Imports without torch and diffusers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench.errors import UsageError, refusal, unknown

WHO = "video"
SPATIAL, TEMPORAL = 8, 4
"Pixels and frames per latent, in the VAEs of both families."
PATCH = 2
"Latents per token, in height and in width."
FRAMES_A_CYCLE = "4k + 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoModel:
    """A model's sizes."""

    name: str
    family: str
    "family of diffusers classes: cogvideox (joint attention over text and video) or wan (self and cross attention)"
    layers: int
    heads: int
    dim: int
    "of a head"
    feed_forward: int
    "columns between the two products of a block"
    time_dim: int
    "width of the time step embedding"
    text_tokens: int
    text_dim: int
    channels: int
    "of the latents"
    frames: int
    "default shape of a video, in pixels"
    height: int
    width: int
    guidance: float
    fps: int
    "frames per second of video, as published by the model's authors"
    steps: int = 50
    transformer: Mapping[str, Any] = field(default_factory=dict)
    "further arguments of the transformer's class"
    vae: Mapping[str, Any] = field(default_factory=dict)
    "arguments of the VAE's class; defaults of the class are the model's own"
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width_of_tokens(self) -> int:
        """Columns per token."""
        return self.heads * self.dim

    @property
    def joint(self) -> bool:
        """Whether text and video attend together."""
        return self.family == "cogvideox"

    def latents(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Return frames, rows and columns of the latents of a video."""
        return (frames - 1) // TEMPORAL + 1, height // SPATIAL, width // SPATIAL

    def video_tokens(self, frames: int, height: int, width: int) -> int:
        """Return the tokens of a video, without text."""
        count, rows, columns = self.latents(frames, height, width)
        return count * (rows // PATCH) * (columns // PATCH)

    def tokens(self, frames: int, height: int, width: int) -> int:
        """Return the rows of the exchangeable attention, including text for joint attention."""
        return self.video_tokens(frames, height, width) + (self.text_tokens if self.joint else 0)

    def check_shape(self, frames: int, height: int, width: int) -> None:
        """Refuse a shape that the VAE and the patches cannot produce.

        Raises:
            UsageError: naming the field.
        """
        multiple = SPATIAL * PATCH
        for name, value in (("height", height), ("width", width)):
            if type(value) is not int or value < multiple or value % multiple:
                near = max(multiple, round(value / multiple) * multiple) if type(value) is int else multiple
                raise UsageError(
                    refusal(
                        WHO,
                        name,
                        value,
                        f"cannot be used: {multiple} does not divide it",
                        f"a multiple of {multiple}",
                        f"the nearest is {near}",
                    )
                )
        if type(frames) is not int or frames < 1 or (frames - 1) % TEMPORAL:
            near = max(1, round((frames - 1) / TEMPORAL) * TEMPORAL + 1) if type(frames) is int else 1
            raise UsageError(
                refusal(
                    WHO,
                    "frames",
                    frames,
                    f"is not of the form {FRAMES_A_CYCLE}",
                    "1, 5, 9, …",
                    f"the nearest is {near}",
                )
            )


# CogVideoX: https://huggingface.co/THUDM/CogVideoX-2b, scheduler/scheduler_config.json.
_COG_SCHEDULER: Mapping[str, Any] = {
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "snr_shift_scale": 3.0,
    "timestep_spacing": "trailing",
}
# Wan: https://huggingface.co/Wan-AI/Wan2.1-T2V-1.3B-Diffusers, the same file.
_WAN_SCHEDULER: Mapping[str, Any] = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}

MODELS = {
    one.name: one
    for one in (
        VideoModel(
            name="cogvideox-2b",
            family="cogvideox",
            layers=30,
            heads=30,
            dim=64,
            feed_forward=7680,
            time_dim=512,
            text_tokens=226,
            text_dim=4096,
            channels=16,
            frames=49,
            height=480,
            width=720,
            guidance=6.0,
            fps=8,
            scheduler=_COG_SCHEDULER,
        ),
        VideoModel(
            name="wan-1.3b",
            family="wan",
            layers=30,
            heads=12,
            dim=128,
            feed_forward=8960,
            time_dim=1536,
            text_tokens=512,
            text_dim=4096,
            channels=16,
            frames=81,
            height=480,
            width=832,
            guidance=5.0,
            fps=16,
            transformer={"freq_dim": 256},
            scheduler=_WAN_SCHEDULER,
        ),
        # `cogvideox-2b` with few and small layers, fast enough for a CPU.
        VideoModel(
            name="tiny",
            family="cogvideox",
            layers=2,
            heads=4,
            dim=16,
            feed_forward=256,
            time_dim=32,
            text_tokens=16,
            text_dim=32,
            channels=4,
            frames=9,
            height=64,
            width=64,
            guidance=6.0,
            fps=8,
            steps=4,
            scheduler=_COG_SCHEDULER,
            vae={"latent_channels": 4, "block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 2},
        ),
        VideoModel(
            name="tiny-wan",
            family="wan",
            layers=2,
            heads=2,
            dim=24,
            feed_forward=96,
            time_dim=48,
            text_tokens=12,
            text_dim=32,
            channels=16,
            frames=9,
            height=64,
            width=64,
            guidance=5.0,
            fps=16,
            steps=4,
            transformer={"freq_dim": 32},
            scheduler=_WAN_SCHEDULER,
            vae={"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
        ),
    )
}


def model_of(name: str) -> VideoModel:
    """Return a model by name.

    Raises:
        UsageError: there is no model of that name.
    """
    if name not in MODELS:
        raise unknown(WHO, "model", name, MODELS)
    return MODELS[name]
