"""Prediction of block maps compiled ahead of time, by both Tritons."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.kernels.flash.sparse import predict

from .aot import compile_with, recorded, tritons


def jobs_to_hold():
    """16 bits at 64 and 128 dims, and rows of as many columns as 32,768 and 262,144 keys have in blocks of 64."""
    with recorded(predict, "pool_blocks", "select_blocks", capability=90) as jobs:
        for dim, alike in ((64, False), (128, True)):
            q, k = (torch.empty(1, 512, heads, dim, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
            pooled = predict.pool(q.transpose(1, 2), k.transpose(1, 2), (128, 64), scale=0.1, alike=alike)
            for columns, by_number in ((512, True), (4096, False)):
                scores = torch.empty(1, 4, 4, columns, device="meta")
                predict.select(
                    scores,
                    (512, 64 * columns),
                    (128, 64),
                    share=0.5,
                    by_number=by_number,
                    causal=by_number,
                    pooled=pooled,
                    gate=0.1 if alike else 0.0,
                )
    return [replace(job, label=f"{job.label} {number}") for number, job in enumerate(jobs)]


def test_it_compiles_for_hopper_without_spills():
    jobs = jobs_to_hold()
    assert len(jobs) == 6
    for found in compile_with(tritons(), jobs).values():
        assert not [label for label, code in found.items() if code.spills]
