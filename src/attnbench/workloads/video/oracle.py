"""The right answer: the first step in `dtype`, with plain attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.models.video.attention import Attend, plain
from attnbench.workloads.video.inputs import VideoInputs


def evaluate(inputs: VideoInputs, *, dtype: torch.dtype, attend: Attend = plain) -> dict[str, Tensor]:
    """Prediction and next latents of the first step.

    With plain attention the answer is kept with the inputs: the check and `rounding.py` ask for the same one, which
    takes a card seconds at full size.

    Args:
        inputs: of the case.
        dtype: to compute in; other than the case's, of copies of the weights.
        attend: the attention of all layers.

    Returns:
        out [1 or 2, …] and latents [1, …], as `Denoiser.step` has them, and attention, rows of the first layer's, as of
        `Exchanged.rows`.
    """
    if attend is not plain:
        return evaluator(inputs, dtype=dtype, attend=attend)()
    if dtype not in inputs.answers:
        inputs.answers[dtype] = evaluator(inputs, dtype=dtype)()
    return dict(inputs.answers[dtype])


def evaluator(
    inputs: VideoInputs, *, dtype: torch.dtype, attend: Attend = plain
) -> Callable[[], dict[str, Tensor]]:
    """`evaluate` to be called several times, its weights converted once."""
    latents, embeds = inputs.latents.to(dtype), inputs.embeds.to(dtype)
    denoiser, exchanged = inputs.denoiser(attend, dtype=None if dtype == inputs.latents.dtype else dtype)

    def call() -> dict[str, Tensor]:
        denoiser.begin(inputs.case.steps)
        with torch.no_grad():
            prediction, after = denoiser.step(0, latents, embeds)
        assert exchanged.rows is not None
        return {"out": prediction, "latents": after, "attention": exchanged.rows}

    return call


def nothing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An attention that adds nothing: a well-known wrong answer."""
    return torch.zeros_like(v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An attention whose rows see no later ones: a well-known wrong answer."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)
