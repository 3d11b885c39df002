"""Well-known wrong answers of block-sparse kernels, so that the checker can say what a backend computed instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.workloads.base import Draw
from attnbench.workloads.sparse.case import SparseCase
from attnbench.workloads.sparse.inputs import SparseInputs
from attnbench.workloads.sparse.oracle import evaluate


def suspects(case: SparseCase, inputs: SparseInputs, *, draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield (description, outputs in fp32) for each mistake that would change the answer of this case."""

    def of(case: SparseCase, blocks: Tensor) -> dict[str, Tensor]:
        return evaluate(case, inputs, dtype=torch.float32, draw=draw, blocks=blocks)

    blocks = inputs.block_map
    yield "the block map ignored: dense attention", of(case, torch.ones_like(blocks))
    if case.causal:
        yield "causal mask ignored inside blocks", of(replace(case, causal=False), blocks)
    if case.nheads > 1:
        yield "the map of the first head for every head", of(case, blocks[:, :1].expand_as(blocks))
        yield "maps of heads in another order", of(case, blocks.roll(1, 1))
    if case.batch > 1:
        yield "the maps of the first sequence for every sequence", of(case, blocks[:1].expand_as(blocks))
    if blocks.shape[2] == blocks.shape[3]:
        yield "the map transposed", of(case, blocks.mT)
    last = blocks.clone()
    last[..., -1] = False
    yield "the last column of blocks left out", of(case, last)
