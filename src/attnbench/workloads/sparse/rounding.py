"""Errors that rounding explains in block-sparse attention: those of softmax attention with the map's mask."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.workloads.attention.inputs import torch_dtype
from attnbench.workloads.attention.oracle import in_blocks
from attnbench.workloads.attention.rounding import deviations
from attnbench.workloads.base import Draw
from attnbench.workloads.rounding import Format
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.oracle import beside, rule_of


def expected_errors(
    case: SparseCase, inputs: SparseInputs, *, draw: Draw, blocks: Tensor, workspace: int | None = None
) -> dict[str, Tensor]:
    """Return the standard deviation of each element of the output, fp32; arguments as in `oracle.evaluate`."""
    numbers = Format.of(torch_dtype(case.dense))

    def errors(blocks: Tensor, workspace: int, **tensors: Tensor) -> dict[str, Tensor]:
        return deviations(**tensors, rule=rule_of(case, blocks), numbers=numbers, workspace=workspace)

    return in_blocks(
        case.dense, inputs.dense, errors, dtype=torch.float32, draw=draw, workspace=workspace, beside=beside(blocks)
    )
