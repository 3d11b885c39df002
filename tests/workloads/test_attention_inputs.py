"""Inputs have the documented layout, are seeded, and are of the requested kind."""

from __future__ import annotations

import pytest
import torch

from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import torch_dtype

SHAPE = {"batch": 3, "seqlen": 63, "seqlen_k": 129, "nheads": 6, "nheads_kv": 2, "headdim": 48, "headdim_v": 40}


def make(seed=0, kind="normal", **values):
    return WORKLOAD.inputs(WORKLOAD.case(SHAPE | values), seed=seed, kind=kind, device="cpu")


def test_dense_layout():
    made = make(mode="bwd")
    shapes = {name: tuple(tensor.shape) for name, tensor in made.tensors().items()}
    assert shapes == {"q": (3, 63, 6, 48), "k": (3, 129, 2, 48), "v": (3, 129, 2, 40), "dout": (3, 63, 6, 40)}
    assert (made.max_seqlen_q, made.max_seqlen_k) == (63, 129)
    assert made.cu_seqlens_q is None
    assert made.cu_seqlens_k is None


def test_packed_layout():
    made = make(mode="fwd-bwd", lengths="9/100:63/1:5/7")
    shapes = {name: tuple(tensor.shape) for name, tensor in made.tensors().items()}
    assert shapes == {
        "q": (77, 6, 48),
        "k": (108, 2, 48),
        "v": (108, 2, 40),
        "dout": (77, 6, 40),
        "cu_seqlens_q": (4,),
        "cu_seqlens_k": (4,),
    }
    assert made.cu_seqlens_q.tolist() == [0, 9, 72, 77]
    assert made.cu_seqlens_k.tolist() == [0, 100, 101, 108]
    assert made.cu_seqlens_q.dtype == made.cu_seqlens_k.dtype == torch.int32
    assert (made.max_seqlen_q, made.max_seqlen_k) == (63, 100)


def test_forward_has_no_gradient_of_the_output_and_the_same_values():
    forward, backward = make(mode="fwd"), make(mode="bwd")
    assert forward.dout is None
    assert "dout" not in forward.tensors()
    assert all(torch.equal(forward.tensors()[name], backward.tensors()[name]) for name in "qkv")


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_seed_gives_its_values_again_and_another_seed_others(kind, dtype):
    first, again, other = (make(seed=seed, kind=kind, dtype=dtype, mode="bwd") for seed in (5, 5, 6))
    for name, tensor in first.tensors().items():
        assert tensor.dtype == torch_dtype(WORKLOAD.case({"dtype": dtype}))
        assert tensor.is_contiguous()
        assert torch.equal(tensor, again.tensors()[name])
        assert not torch.equal(tensor, other.tensors()[name])
    assert not torch.equal(first.k[..., :40], first.v)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_distributions(dtype):
    normal, uniform, zeros = (make(kind=kind, dtype=dtype).q.double() for kind in ("normal", "uniform", "zeros"))
    assert normal.mean().item() == pytest.approx(0, abs=0.02)
    assert normal.std().item() == pytest.approx(1, abs=0.02)
    assert normal.abs().max() < 8
    assert -1 <= uniform.min() < -0.98
    assert 0.98 < uniform.max() < 1
    assert uniform.std().item() == pytest.approx(3**-0.5, abs=0.02)
    assert not zeros.any()


def test_unknown_kind_lists_the_kinds():
    words = (
        r"^attention: input=norml is not known; one of channel-bias, normal, outliers, uniform, video, zeros; did "
        r"you mean normal\?$"
    )
    with pytest.raises(UsageError, match=words):
        make(kind="norml")


@pytest.mark.gpu
def test_on_the_card():
    case = WORKLOAD.case(SHAPE | {"mode": "bwd", "lengths": "9/100:63/1:5/7"})
    first, again = (WORKLOAD.inputs(case, seed=3, kind="normal", device="cuda") for _ in range(2))
    for name, tensor in first.tensors().items():
        assert tensor.is_cuda
        assert torch.equal(tensor, again.tensors()[name])
