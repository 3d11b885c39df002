"""A denoising loop: guidance, a scheduler of diffusers, the decoder; no step waits for the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from attnbench.models.video.attention import Exchanged
from attnbench.models.video.build import Parts

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""prediction = predict(latents, embeddings, timesteps): the transformer, one row of the batch each."""

RANGE = "Inference"
"Name of the profilers' range around a whole generation, as in seed 003."


def predictor(transformer: Any, attention: Exchanged | None = None) -> Predict:
    """Return the transformer as a function of tensors only; each call resets the layer count of `attention` to 0."""

    def predict(latents: Tensor, embeds: Tensor, timesteps: Tensor) -> Tensor:
        if attention is not None:
            attention.layer = 0
        return transformer(hidden_states=latents, encoder_hidden_states=embeds, timestep=timesteps, return_dict=False)[
            0
        ]

    return predict


@dataclass(slots=True)
class Generation:
    """One whole generation."""

    latents: Tensor
    frames: Tensor | None
    "[1, 3, frames, height, width], about -1 to 1; None without decoding"
    total_s: float
    decode_s: float


class Denoiser:
    """From noise to latents to frames, with one predictor."""

    def __init__(self, parts: Parts, predict: Predict, *, steps: int, guidance: float, device: torch.device) -> None:
        """Prepare `steps` steps; guidance over 1 computes each twice, without and with the prompt."""
        self.parts, self.predict, self.guidance, self.device = parts, predict, guidance, device
        self.scheduler = copy.deepcopy(parts.scheduler)
        self.begin(steps)

    @property
    def guided(self) -> bool:
        """Whether every step computes two predictions."""
        return self.guidance > 1

    def begin(self, steps: int) -> None:
        """Reset to the first of this many steps; the only work on the device is a copy of the time steps."""
        self.steps = steps
        # On the host: a scheduler that reads them from a device waits for it.
        self.scheduler.set_timesteps(steps, device="cpu")
        self.times = self.scheduler.timesteps.to(self.device)

    def step(self, index: int, latents: Tensor, embeds: Tensor) -> tuple[Tensor, Tensor]:
        """Execute one step.

        Args:
            index: from 0.
            latents: [1, …], in the precision of the model.
            embeds: [2, tokens, columns] without and with the prompt, or [1, …] without guidance.

        Returns:
            The transformer's prediction [1 or 2, …], and the next latents.
        """
        both = torch.cat([latents, latents]) if self.guided else latents
        prediction = self.predict(both, embeds, self.times[index].expand(len(both)))
        wide = prediction.to(torch.promote_types(prediction.dtype, torch.float32))
        if self.guided:
            without, given = wide.chunk(2)
            wide = without + self.guidance * (given - without)
        after = self.scheduler.step(wide, self.scheduler.timesteps[index], latents, return_dict=False)[0]
        return prediction, after.to(latents.dtype)

    def decode(self, latents: Tensor) -> Tensor:
        """Return the frames of final latents, [1, 3, frames, height, width]."""
        vae = self.parts.vae
        if self.parts.model.joint:
            scaled = latents.permute(0, 2, 1, 3, 4) / vae.config.scaling_factor
        else:
            mean, deviation = (
                torch.tensor(values, dtype=latents.dtype, device=latents.device).view(1, -1, 1, 1, 1)
                for values in (vae.config.latents_mean, vae.config.latents_std)
            )
            scaled = latents * deviation + mean
        return vae.decode(scaled, return_dict=False)[0]

    def generate(
        self,
        steps: int,
        latents: Tensor,
        embeds: Tensor,
        *,
        decode: bool = True,
        before: Callable[[int], None] = lambda number: None,
        after: Callable[[int, Tensor], None] = lambda number, latents: None,
    ) -> Generation:
        """Run all steps and the decoder, in the NVTX range `Inference`.

        Args:
            steps: number of steps.
            latents: initial noise.
            embeds: see `step`.
            decode: whether to produce frames.
            before: called with the number of each step, from 1, before it.
            after: called with the number of each step, from 1, and its latents; may wait for the device.
        """
        self.begin(steps)
        with torch.no_grad(), _in_range(self.device):
            self._wait()
            started = perf_counter()
            for index in range(steps):
                before(index + 1)
                _, latents = self.step(index, latents, embeds)
                after(index + 1, latents)
            self._wait()
            denoised = perf_counter()
            frames = self.decode(latents) if decode else None
            self._wait()
            ended = perf_counter()
        return Generation(latents, frames, ended - started, ended - denoised)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def _in_range(device: torch.device) -> Iterator[None]:
    """Open the range for nsys and ncu, and for torch.profiler."""
    with torch.profiler.record_function(RANGE):
        if device.type != "cuda":
            yield
            return
        torch.cuda.nvtx.range_push(RANGE)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
