"""Errors that rounding explains in a whole model, by Monte Carlo arithmetic (`workloads.noise`).

An elementwise derivation, as in `workloads.rounding` for a single attention, is not feasible through layers of
products, norms and SiLU.  The standard deviation of a task's logits is taken over draws and over all candidates of a
user, whose sums have equal length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.dtypes import torch_dtype
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu_serving.inputs import ServingInputs
from attnbench.workloads.hstu_serving.oracle import evaluate, logits
from attnbench.workloads.hstu_serving.parts import WHOLE
from attnbench.workloads.noise import Noise
from attnbench.workloads.rounding import Format

DRAWS, FEW, MORE_DRAWS = 4, 16, 8
"Numbers of evaluations: the first, or the last if there are fewer candidates than the second."


def expected_errors(inputs: ServingInputs, *, draw: Draw = WHOLE) -> dict[str, Tensor]:
    """Return the standard deviation of each logit, fp64 [requests · num_candidates, tasks]."""
    case = inputs.case
    draws = DRAWS if case.num_candidates >= FEW else MORE_DRAWS
    model = inputs.model.in_precision(torch.float64)
    truth = evaluate(inputs, dtype=torch.float64, draw=draw)["out"]
    variance = torch.zeros_like(truth)
    noise = Noise(Format.of(torch_dtype(case.dtype)), truth.device)
    for _ in range(draws):
        with noise:
            found = logits(model, inputs, draw=draw)
        variance += (found - truth).square() / draws
    of_users = variance.view(-1, case.num_candidates, case.config.tasks).mean(dim=1, keepdim=True)
    return {"out": of_users.sqrt().expand(-1, case.num_candidates, -1).reshape(truth.shape)}
