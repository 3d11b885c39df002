"""Errors that rounding explains in a step, by Monte Carlo arithmetic over the model (`workloads.noise`).

For a step so large that this would take a GPU minutes, the plain evaluation in the case's own precision is the only
draw: its error comes from rounding alone.

The standard deviation is taken over draws, over the rows and columns of a frame's channel, and over the heads of a
row of the attention, because their errors have the same distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.dtypes import torch_dtype
from attnbench.models.video.attention import Attend
from attnbench.workloads.noise import Noise
from attnbench.workloads.rounding import Format
from attnbench.workloads.video.inputs import VideoInputs
from attnbench.workloads.video.oracle import evaluate, evaluator, right_attention
from attnbench.workloads.video.work import LARGE_FLOPS, work

DRAWS = 4


def expected_errors(inputs: VideoInputs, variant: str, *, first: bool = False) -> dict[str, Tensor]:
    """Return the standard deviation of each element of prediction, latents and rows of the attention, fp64."""
    truth = evaluate(inputs, dtype=torch.float64, variant=variant, first=first)
    if work(inputs.case).flops > LARGE_FLOPS:
        return _deviation(truth, [evaluate(inputs, dtype=inputs.latents.dtype, variant=variant, first=first)])
    return _deviation(truth, _moved(inputs, right_attention(variant, inputs)))


def expected_errors_of(inputs: VideoInputs, attend: Attend, *, first: bool = False) -> dict[str, Tensor]:
    """Return the same for a step with any right attention."""
    truth = evaluator(inputs, dtype=torch.float64, attend=attend, first=first)()
    if work(inputs.case).flops > LARGE_FLOPS:
        return _deviation(truth, [evaluator(inputs, dtype=inputs.latents.dtype, attend=attend, first=first)()])
    return _deviation(truth, _moved(inputs, attend))


def _deviation(truth: dict[str, Tensor], found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    variance = {name: sum((one[name] - x).square() for one in found) / len(found) for name, x in truth.items()}
    return {name: x.mean(dim=(-2, -1), keepdim=True).sqrt().expand_as(x) for name, x in variance.items()}


def _moved(inputs: VideoInputs, attend: Attend) -> list[dict[str, Tensor]]:
    """Return evaluations in fp64 with random errors."""
    call = evaluator(inputs, dtype=torch.float64, attend=attend)
    noise = Noise(Format.of(torch_dtype(inputs.case.dtype)), inputs.latents.device)
    found = []
    for _ in range(DRAWS):
        with noise:
            found.append(call())
    return found
