"""The oracle against torch's SDPA math and autograd, and against itself with other chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs, torch_dtype
from attnbench.workloads.attention.oracle import evaluate
from attnbench.workloads.attention.parts import output_shapes
from attnbench.workloads.base import Draw

SHAPES = {
    "one": {"seqlen": 1, "headdim": 1},
    "three": {"seqlen": 3, "headdim": 5},
    "square-63": {"seqlen": 63, "headdim": 16},
    "causal-127": {"seqlen": 127, "causal": True},
    "causal-129": {"seqlen": 129, "causal": True, "batch": 1},
    "more-keys": {"seqlen": 63, "seqlen_k": 129, "causal": True},
    "more-queries": {"seqlen": 129, "seqlen_k": 63, "causal": True},
    "decode": {"seqlen": 1, "seqlen_k": 127, "causal": True},
    "one-key": {"seqlen": 127, "seqlen_k": 1, "causal": True},
    "gqa": {"seqlen": 63, "nheads": 6, "nheads_kv": 2, "causal": True},
    "mqa": {"seqlen": 63, "nheads": 3, "nheads_kv": 1},
    "head-dims": {"seqlen": 63, "headdim": 24, "headdim_v": 40, "nheads": 4, "nheads_kv": 2},
    "window": {"seqlen": 127, "window": (16, 5)},
    "window-left": {"seqlen": 63, "seqlen_k": 127, "window": (7, -1)},
    "window-right": {"seqlen": 127, "seqlen_k": 63, "window": (-1, 3)},
    "window-causal": {"seqlen": 129, "window": (31, 0), "causal": True, "nheads_kv": 1},
    "window-empty-rows": {"seqlen": 129, "seqlen_k": 3, "window": (1, 1)},
    "diagonal": {"seqlen": 63, "window": (0, 0)},
    "packed": {"batch": 4, "seqlen": 129, "lengths": "129:1:63:3", "causal": True, "nheads": 4, "nheads_kv": 2},
    "packed-apart": {"batch": 3, "seqlen": 129, "seqlen_k": 127, "lengths": "129/3:1/127:63/64", "causal": True},
    "packed-window": {"batch": 3, "seqlen": 127, "lengths": "uniform", "window": (9, 4), "headdim_v": 8},
}


def of(name, **values):
    return WORKLOAD.case(
        {"batch": 2, "nheads": 2, "headdim": 16, "dtype": "fp32", "mode": "bwd"} | SHAPES[name] | values
    )


def literal_mask(case, queries, keys):
    """The mask as the words of the case say it, pair by pair."""
    left, right = case.window or (-1, -1)
    rows = []
    for i in range(queries):
        own = i + keys - queries
        rows.append(
            [
                (not case.causal or j <= own) and (left < 0 or j >= own - left) and (right < 0 or j <= own + right)
                for j in range(keys)
            ]
        )
    return torch.tensor(rows)


def by_torch(case, inputs):
    """SDPA math in fp64 with explicit masks, sequence by sequence, gradients by autograd."""
    leaves = {name: getattr(inputs, name).double().requires_grad_() for name in "qkv"}
    lengths_q, lengths_k = zip(*case.sequences, strict=True)
    outs = []
    rows = {name: leaves[name].flatten(0, -3).split(list(lengths_q if name == "q" else lengths_k)) for name in "qkv"}
    for s, sizes in enumerate(case.sequences):
        q, k, v = (rows[name][s].transpose(0, 1)[None] for name in "qkv")
        mask = literal_mask(case, *sizes)
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        outs.append(out.masked_fill(~mask.any(-1)[:, None], 0)[0].transpose(0, 1))
    out = torch.cat(outs).unflatten(0, inputs.dout.shape[:-2])
    grads = torch.autograd.grad(out, list(leaves.values()), inputs.dout.double())
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *grads), strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_agrees_with_sdpa_math_forward_and_backward(name):
    case = of(name)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    got = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    expected = by_torch(case, inputs)
    assert list(got) == ["out", "dq", "dk", "dv"]
    for which, tensor in got.items():
        assert tensor.dtype == torch.float64
        assert tuple(tensor.shape) == output_shapes(case)[which]
        torch.testing.assert_close(tensor, expected[which], rtol=1e-11, atol=1e-12)


def test_rows_without_a_key_are_zero_and_send_no_gradient():
    case = of("more-queries")
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    got = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    blind = 129 - 63
    assert not got["out"][:, :blind].any()
    assert not got["dq"][:, :blind].any()
    assert got["out"][:, blind:].abs().amin() > 0
    inputs.dout[:, :blind] = 1e30
    again = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    assert all(torch.equal(got[name], again[name]) for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("name", ["causal-127", "more-keys", "more-queries", "gqa", "window", "packed"])
@pytest.mark.parametrize("workspace", [1, 200_000, 1_000_000])
def test_chunks_change_nothing(name, workspace):
    case = of(name)
    inputs = make_inputs(case, seed=2, kind="uniform", device="cpu")
    whole = evaluate(case, inputs, dtype=torch.float64, draw=Draw())
    chunked = evaluate(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace)
    for which, tensor in whole.items():
        torch.testing.assert_close(chunked[which], tensor, rtol=1e-12, atol=1e-13)


def test_memory_stays_within_the_workspace():
    case = of("one", seqlen=1500, headdim=8, nheads=4, nheads_kv=2)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    workspace = 4 * 2**20
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU], acc_events=True) as taken:
        evaluate(case, inputs, dtype=torch.float64, draw=Draw(), workspace=workspace)
    held = peak = 0
    for event in taken.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    result = sum(8 * torch.Size(shape).numel() for shape in output_shapes(case).values())
    scores = 8 * 2 * 4 * 1500**2
    assert result < peak < result + 2 * workspace < scores / 4


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd-bwd"])
def test_names_by_mode(mode):
    case = of("three", mode=mode)
    inputs = make_inputs(case, seed=0, kind="normal", device="cpu")
    got = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    assert list(got) == (["out"] if mode == "fwd" else ["out", "dq", "dk", "dv"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", ["causal-127", "gqa", "packed"])
def test_own_precision_rounds_like_an_eager_implementation(name, dtype):
    """Its error against fp64 lies within a factor of two of eager PyTorch's, output by output."""
    case = of(name, dtype=dtype)
    inputs = make_inputs(case, seed=3, kind="normal", device="cpu")
    true = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    plain = WORKLOAD.oracle("softmax", case, inputs, dtype=torch_dtype(case), draw=Draw())
    eager = eagerly(case, inputs)
    for which, tensor in plain.items():
        assert tensor.dtype == torch_dtype(case)
        own, other = ((got.double() - true[which]).pow(2).mean().sqrt() for got in (tensor, eager[which]))
        assert 0.5 < own / other < 2, which
        assert own > 0


def eagerly(case, inputs):
    """Matmul, scale, mask, softmax, matmul in the case's own precision; gradients by autograd."""
    leaves = {name: getattr(inputs, name).clone().requires_grad_() for name in "qkv"}
    lengths_q, lengths_k = zip(*case.sequences, strict=True)
    rows = {name: leaves[name].flatten(0, -3).split(list(lengths_q if name == "q" else lengths_k)) for name in "qkv"}
    outs = []
    for s, sizes in enumerate(case.sequences):
        q, k, v = (rows[name][s].transpose(0, 1) for name in "qkv")
        k, v = (tensor.repeat_interleave(case.group_size, 0) for tensor in (k, v))
        scores = (q @ k.mT) * case.scale
        outs.append((scores.masked_fill(~literal_mask(case, *sizes), -torch.inf).softmax(-1) @ v).transpose(0, 1))
    out = torch.cat(outs).unflatten(0, inputs.dout.shape[:-2])
    grads = torch.autograd.grad(out, list(leaves.values()), inputs.dout)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *grads), strict=True))


def test_zeros_give_zeros():
    case = of("causal-127", dtype="fp16")
    inputs = make_inputs(case, seed=0, kind="zeros", device="cpu")
    got = WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw())
    assert not any(tensor.any() for tensor in got.values())


def test_unknown_variant_is_refused():
    case = of("three")
    inputs = make_inputs(case, seed=0, kind="zeros", device="cpu")
    with pytest.raises(UsageError, match=r"^attention: variant=softmx is not known; one of softmax; did you mean"):
        WORKLOAD.oracle("softmx", case, inputs, dtype=torch.float64, draw=Draw())


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_the_card_agrees_with_the_cpu(name):
    case = of(name)
    inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
    moved = type(inputs)(
        **{
            field: value.cuda() if isinstance(value, torch.Tensor) else value
            for field in inputs.__dataclass_fields__
            for value in [getattr(inputs, field)]
        }
    )
    here, there = (evaluate(case, held, dtype=torch.float64, draw=Draw()) for held in (inputs, moved))
    for which, tensor in here.items():
        torch.testing.assert_close(there[which].cpu(), tensor, rtol=1e-11, atol=1e-12)
