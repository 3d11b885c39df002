"""Which kernels the defaults of dense HSTU attention are of: those for Hopper wherever they can run, and no refusal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from attnbench.backends.hstu_triton import HstuTriton
from attnbench.kernels.hstu.dense import api as hstu_dense
from attnbench.kernels.hstu.dense import backward as hstu_dense_backward
from attnbench.kernels.hstu.dense import calls
from attnbench.kernels.hstu.dense import configs as hstu_dense_configs
from attnbench.kernels.hstu.dense import forward as hstu_dense_forward
from attnbench.kernels.hstu.dense import problem as hstu_problem
from attnbench.kernels.hstu.dense.hopper import backward as hstu_hopper_backward
from attnbench.kernels.hstu.dense.hopper import backward_wide as hstu_hopper_backward_wide
from attnbench.kernels.hstu.dense.hopper.tiles import LEAST_ALPHA
from attnbench.kernels.shared.kept import Kept
from attnbench.workloads.hstu import WORKLOAD

from .aot import recorded

ROWS, HEADS = 24, 2
PORTABLE = tuple(f"hstu_dense_backward_{name}" for name in ("columns", "rows", "round", "round_tiles"))


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(calls, "_capability", lambda x: (9, 0))
    monkeypatch.setattr(calls, "CALLS", Kept())


def tensors(attn_dim, linear_dim, dtype=torch.bfloat16):
    return [torch.zeros(ROWS, HEADS, dim, dtype=dtype) for dim in (attn_dim, attn_dim, linear_dim)]


def off_by_two_bytes(x):
    """The same rows where no tensor map can describe them."""
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)


def launched(q, k, v, *, alpha=0.1, deterministic=False):
    """Names of the kernels that the defaults launch."""
    offsets = torch.tensor([0, ROWS])
    problem = hstu_dense.Problem(
        offsets=offsets,
        offsets_q=None,
        num_targets=None,
        max_seqlen=ROWS,
        max_seqlen_q=ROWS,
        alpha=alpha,
        scaling_seqlen=ROWS,
        causal=True,
        contextual_len=0,
        max_attn_len=None,
    )
    out, dout, dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype) for x in (v, v, q, k, v))
    forward = hstu_dense.default_forward(q, k, v, ROWS)
    backward = hstu_dense.default_backward(q, k, v, ROWS, deterministic=deterministic, alpha=alpha)
    with (
        recorded(hstu_dense_forward, "hstu_dense_forward", "hstu_hopper_forward", capability=90) as first,
        recorded(hstu_dense_backward, *PORTABLE, capability=90) as portable,
        recorded(hstu_hopper_backward, "hstu_hopper_backward", capability=90) as narrow,
        recorded(hstu_hopper_backward_wide, "hstu_hopper_backward_wide", capability=90) as wide,
    ):
        hstu_dense.launch_forward(q, k, v, out, problem, forward)
        hstu_dense.launch_backward(q, k, v, dout, dq, dk, dv, problem, backward, torch.empty(q.shape))
    return [
        {job.kernel.partition(":")[2] for job in jobs} - {*PORTABLE[2:]}
        for jobs in (first, [*portable, *narrow, *wide])
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attn_dim", [8, 32, 64, 72, 128, 136, 256])
@pytest.mark.parametrize("linear_dim", [8, 64, 104, 128, 256])
def test_they_are_of_the_kernels_for_hopper_at_every_dim_of_these(attn_dim, linear_dim, dtype):
    backward = "hstu_hopper_backward" + "_wide" * (max(attn_dim, linear_dim) > 128)
    assert launched(*tensors(attn_dim, linear_dim, dtype)) == [{"hstu_hopper_forward"}, {backward}]


@pytest.mark.parametrize(
    ("attn_dim", "linear_dim", "dtype"),
    [(36, 64, torch.bfloat16), (64, 1, torch.float16), (64, 64, torch.float32), (256, 256, torch.float32)],
)
def test_what_those_do_not_take_has_the_portable_ones(attn_dim, linear_dim, dtype):
    assert launched(*tensors(attn_dim, linear_dim, dtype)) == [{"hstu_dense_forward"}, {PORTABLE[0]}]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_tensor_that_no_map_can_describe_has_the_portable_ones(which):
    given = tensors(64, 64)
    given[which] = off_by_two_bytes(given[which])
    assert launched(*given) == [{"hstu_dense_forward"}, {PORTABLE[0]}]


@pytest.mark.parametrize("alpha", [LEAST_ALPHA / 2, -LEAST_ALPHA / 2])
def test_a_factor_too_small_to_hide_by_has_the_portable_backward(alpha):
    assert launched(*tensors(64, 64), alpha=alpha) == [{"hstu_hopper_forward"}, {PORTABLE[0]}]
    for other in (LEAST_ALPHA, 0.0):
        assert launched(*tensors(64, 64), alpha=other) == [{"hstu_hopper_forward"}, {"hstu_hopper_backward"}]


def test_a_deterministic_backward_is_the_portable_one():
    assert launched(*tensors(64, 64), deterministic=True) == [{"hstu_hopper_forward"}, {*PORTABLE[:2]}]


@pytest.mark.parametrize("capability", [(8, 0), (9, 1), (10, 0), (12, 0)])
def test_another_card_has_the_portable_ones(capability, monkeypatch):
    monkeypatch.setattr(calls, "_capability", lambda x: capability)
    assert launched(*tensors(64, 64)) == [{"hstu_dense_forward"}, {PORTABLE[0]}]


def test_a_gradient_that_no_map_can_describe_is_copied(monkeypatch):
    """Of the output autograd brings what it likes; the default was chosen before."""
    seen = []
    monkeypatch.setattr(calls, "check_device", lambda q, compiled: None)
    monkeypatch.setattr(calls, "launch_forward", lambda q, k, v, out, problem, config: out.zero_())
    monkeypatch.setattr(calls, "launch_backward", lambda *, dout, **others: seen.append(dout))
    q, k, v = (x.requires_grad_() for x in tensors(64, 64))
    for make in (off_by_two_bytes, torch.clone):
        out = hstu_dense.hstu_attention(q, k, v, torch.tensor([0, ROWS]), ROWS)
        dout = make(torch.randn(out.shape).to(out.dtype)).copy_(torch.randn(out.shape))
        torch.autograd.grad(out, q, dout)
        assert seen[-1].data_ptr() % 16 == 0
        assert torch.equal(seen[-1], dout)
        assert (seen[-1].data_ptr() == dout.data_ptr()) == (make is torch.clone)


def test_a_changed_cut_starts_from_the_portable_default():
    x = torch.zeros(ROWS, HEADS, 256, dtype=torch.bfloat16)
    forward, backward = hstu_dense.configs_of(x, x, x, ROWS, {"forward": {"section_mib": 8.0}})
    assert forward == replace(hstu_dense.forward_config((9, 0), 2, 256, ROWS), section_mib=8.0)
    assert backward.columns.hopper
    forward, backward = hstu_dense.configs_of(x, x, x, ROWS, {"atomic": {"stages": 2}})
    assert forward.hopper
    assert backward.columns == replace(
        hstu_dense.backward_config((9, 0), 2, 256, ROWS, deterministic=False).columns, stages=2
    )


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({}, 128),
        ({"seqlen": 4096}, 128),
        ({"seqlen": 12288}, 192),
        ({"pairs": 8, "seqlen": 8192}, 192),
        ({"processors": 64}, 192),
        # Tiles of other masks take equal times: whole rounds of larger ones may take less.
        ({"causal": False}, 192),
        ({"cached": True}, 192),
        ({"windowed": True}, 192),
    ],
)
@pytest.mark.parametrize("dim", [64, 128])
def test_few_tiles_of_a_triangle_are_small(dim, values, rows):
    given = {"pairs": 4, "seqlen": 8192, "causal": True, "cached": False, "windowed": False} | values
    grid = hstu_dense_configs.triangle_grid(**given)
    config = hstu_dense_configs.hopper_forward_config((9, 0), 2, dim, dim, given["seqlen"], grid)
    assert config.block_m == rows


def test_a_call_and_its_name_choose_by_the_same_grid(monkeypatch):
    """What a call of few tiles launches is what `hstu-triton` names as its default for the case."""
    case = WORKLOAD.case(
        {"batch": 1, "seqlen": 4096, "nheads": 4, "attn_dim": 128, "linear_dim": 128, "dtype": "bf16", "causal": True}
    )
    named = HstuTriton().shape(case, (9, 0))
    monkeypatch.setattr(hstu_problem, "processors", lambda x: 132)
    q, k, v = (torch.empty(4096, 4, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
    offsets = torch.empty(2, dtype=torch.int32, device="meta")
    problem = calls.problem_of(q, k, v, offsets, None, None, 4096, None, None, None, True, 0, None)
    config = hstu_dense.default_forward(q, k, v, 4096, grid=problem.grid(q))
    assert config == hstu_dense_configs.hopper_forward_config((9, 0), 2, 128, 128, 4096, named.grid)
    assert config.block_m == 128
