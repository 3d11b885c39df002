"""What an honest evaluation of a step may be off by: Monte Carlo arithmetic over the model (`workloads.noise`).

The standard deviation is taken over draws and over the rows and columns of a frame's channel, and over the heads of a
row of the attention, which are made alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.dtypes import torch_dtype
from attnbench.workloads.noise import Noise
from attnbench.workloads.rounding import Format
from attnbench.workloads.video.inputs import VideoInputs
from attnbench.workloads.video.oracle import evaluator
from attnbench.workloads.video.work import work

DRAWS, LARGE_FLOPS = 4, 10**13
"Evaluations; one where a step has so much work that each of them takes a card seconds."


def expected_errors(inputs: VideoInputs) -> dict[str, Tensor]:
    """Standard deviation of each element of prediction, latents and rows of the attention, fp64."""
    case, device = inputs.case, inputs.latents.device
    draws = 1 if work(case).flops > LARGE_FLOPS else DRAWS
    evaluate = evaluator(inputs, dtype=torch.float64)
    truth = evaluate()
    variance = {name: torch.zeros_like(x) for name, x in truth.items()}
    noise = Noise(Format.of(torch_dtype(case.dtype)), device)
    for _ in range(draws):
        with noise:
            found = evaluate()
        for name, x in truth.items():
            variance[name] += (found[name] - x).square() / draws
    return {name: x.mean(dim=(-2, -1), keepdim=True).sqrt().expand_as(x) for name, x in variance.items()}
