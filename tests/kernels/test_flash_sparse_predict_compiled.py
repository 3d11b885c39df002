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
    with recorded(predict, "pool_blocks", "multiply_means", "select_blocks", capability=90) as jobs:
        for dim, rule in (
            (64, predict.Rule(block=(64, 128), share=0.5, by_number=True, scale=0.1, parts=4)),
            (128, predict.Rule(block=(128, 64), share=0.5, by_number=False, scale=0.1, gate=0.1, causal=True)),
        ):
            q, k = (torch.empty(1, 512, heads, dim, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
            predict.predict_blocks(q.transpose(1, 2), k.transpose(1, 2), rule)
        for columns, by_number in ((512, True), (512, False), (4096, False)):
            rule = predict.Rule(block=(64, 64), share=0.5, by_number=by_number, scale=0.1)
            predict.select(torch.empty(1, 4, 4, columns, device="meta"), (256, 64 * columns), rule)
    return [replace(job, label=f"{job.label} {number}") for number, job in enumerate(jobs)]


def test_it_compiles_for_hopper_without_spills():
    jobs = jobs_to_hold()
    assert len(jobs) == 9
    for found in compile_with(tritons(), jobs).values():
        assert not [label for label, code in found.items() if code.spills]
        assert all(code.tensor_core for label, code in found.items() if label.startswith("multiply_means"))
