"""Calls on tensors without memory: shapes, gradients and FLOPs, on a machine without a card."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from torch.utils.flop_counter import FlopCounterMode

from attnbench import kernels
from attnbench.kernels.hstu.dense.api import hstu_attention_parts


def test_calls_on_meta_tensors_have_shapes_gradients_and_flops_without_a_card():
    x = torch.empty(1, 40, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    every = torch.empty(1, 2, 1, 1, dtype=torch.bool, device="meta")
    rows, blocks, pair = x[0], {"block": (64, 64)}, 2 * 2 * 64  # both heads
    packed, branches = {"cu_seqlens_q": ends, "max_seqlen_q": 30}, {"block_size": 16, "block_counts": 1}
    for run, count in (
        (lambda: kernels.flash_attention(x, x, x, causal=True)[0], 7 * pair * 40 * 40),
        (lambda: kernels.flash_attention(rows, rows, rows, **packed)[0], 7 * pair * 2 * 30 * 30),
        (lambda: kernels.hstu_attention(rows, rows, rows, ends, 30), 7 * pair * 2 * 30 * 30),
        (lambda: kernels.hstu_bsa_attention(rows, rows, rows, ends, 30, **branches)[0], 7 * pair * 2 * 30 * (1 + 16)),
        (lambda: kernels.flash_quant_attention(x, x, x)[0], 2 * pair * 40 * 40),
        (lambda: kernels.flash_sparse_attention(x, x, x, every, **blocks)[0], 2 * pair * 40 * 40),
        (lambda: kernels.flash_sparse_quant_attention(x, x, x, every, **blocks)[0], 2 * pair * 40 * 40),
    ):
        assert run().is_meta
        with FlopCounterMode(display=False) as counter:
            out = run()
            if out.requires_grad:
                (grad,) = torch.autograd.grad(out.sum(), x)
                assert grad.is_meta
        assert out.shape[-3:] == x.shape[1:]
        assert counter.get_total_flops() == count


def test_what_has_no_operator_is_refused_on_meta_tensors_in_one_line():
    x, ends = (
        torch.empty(40, 2, 64, dtype=torch.bfloat16, device="meta"),
        torch.empty(3, dtype=torch.int32, device="meta"),
    )
    with pytest.raises(ValueError, match=r"^hstu_attention: q.device=meta has no compiled kernels; a CUDA device$"):
        hstu_attention_parts(x, x, x, ends, 30)
    every = torch.empty(1, 2, 1, 1, dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match=r"^make_lists: is called in compiled code, or for meta tensors; "):
        kernels.make_lists(every, x[None], x[None], block=(64, 64))
