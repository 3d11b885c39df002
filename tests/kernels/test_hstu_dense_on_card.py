"""What only a card can show of the dense HSTU kernels: graphs, the same bits twice, and every cut there is."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends, resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.workloads.hstu import WORKLOAD
from attnbench.workloads.hstu.inputs import make_inputs

pytestmark = pytest.mark.gpu


def case_of(**values):
    return WORKLOAD.case(
        {
            "batch": 3,
            "seqlen": 1000,
            "nheads": 2,
            "attn_dim": 128,
            "dtype": "bf16",
            "mode": "fwd-bwd",
            "lengths": "1000:129:1",
        }
        | values
    )


def make(case, seed=1):
    return make_inputs(case, seed=seed, kind="normal", device="cuda")


def test_a_call_is_captured_in_a_graph_and_replayed_on_new_values():
    case = case_of(num_targets="20:5:0", contextual_len=3)
    first, second = make(case), make(case, seed=2)
    with resolve("hstu-triton[deterministic]", case).session(case, first) as launch:
        both = launch.call("fwd-bwd")
        both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            both()
        captured = launch.outputs()
        launch.reload(second)
        both()
        want = {name: tensor.clone() for name, tensor in launch.outputs().items()}
        for tensor in captured.values():
            tensor.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        for name, tensor in captured.items():
            assert torch.equal(tensor, want[name]), name


@pytest.mark.parametrize(
    "selector",
    [
        "hstu-triton",
        "hstu-triton[deterministic]",
        pytest.param("hstu-triton[a64x128w8s2-ws]", marks=pytest.mark.hopper),
        pytest.param("hstu-triton[a64x128w8s2-ws-lag]", marks=pytest.mark.hopper),
        pytest.param("hstu-triton[a64x128w8s2-ws-serial]", marks=pytest.mark.hopper),
        pytest.param("hstu-triton[a64x128w8s2-ws-lag-serial]", marks=pytest.mark.hopper),
    ],
)
def test_what_has_one_order_of_sums_has_the_same_bits_twice(selector):
    case = case_of(lengths="full")
    with resolve(selector, case).session(case, make(case)) as launch:
        runs = []
        for _ in range(2):
            launch.call("fwd-bwd")()
            runs.append({name: tensor.clone() for name, tensor in launch.outputs().items()})
    names = runs[0] if "deterministic" in selector or "serial" in selector else ("out", "dk", "dv")
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in names)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("mode", ["fwd", "fwd-bwd"])
def test_every_cut_is_right_or_does_not_fit_the_card(mode, dim):
    case = case_of(mode=mode, attn_dim=dim, num_targets="20:0:1")
    backend, inputs = all_backends()["hstu-triton"], [make(case, seed) for seed in (1, 2)]
    backend.check(case, Machine("cuda", torch.cuda.get_device_capability()))
    references, wrong, ran = References(WORKLOAD, case, *inputs), [], 0
    for config in backend.configs(case):
        try:
            type(backend)(config).check(case, Machine("cuda", torch.cuda.get_device_capability()))
            with type(backend)(config).session(case, inputs[0]) as launch:
                outcome = examine(launch, references, variant="hstu", budget=backend.budget(case))
        except Exception as error:
            # Triton's own word for too much shared memory or too many registers; ours for a kernel of another card.
            if type(error).__name__ not in ("OutOfResources", "Unsupported"):
                raise
            continue
        ran += 1
        wrong += [] if outcome.ok else [f"{config.short}: {outcome.reason}"]
    assert not wrong, "\n".join(wrong)
    assert ran > 5


def test_slices_of_one_tensor_need_no_copy():
    from attnbench.kernels.hstu.dense.api import hstu_attention

    offsets = torch.tensor([0, 700, 1001], device="cuda")
    fused = torch.randn(1001, 2, 3 * 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    q, k, v = fused.split(64, dim=2)
    out = hstu_attention(q, k, v, offsets, 700, validate=True, deterministic=True)
    (grad,) = torch.autograd.grad(out.float().square().sum(), fused)
    alone = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    want = hstu_attention(*alone, offsets, 700, deterministic=True)
    assert torch.equal(out, want)
    assert torch.equal(grad, torch.cat(torch.autograd.grad(want.float().square().sum(), alone), dim=2))


@pytest.mark.hopper
@pytest.mark.parametrize(
    "values",
    [
        {"num_targets": "70:20:1", "contextual_len": 130, "max_attn_len": 200},
        {"causal": False, "attn_dim": 64, "linear_dim": 64},
        {"attn_dim": 32, "linear_dim": 96, "delta_q": 150, "lengths": "1000:129:3"},
        {"attn_dim": 64, "linear_dim": 128, "dtype": "fp16", "lengths": "1000:0:127"},
        {"attn_dim": 24, "linear_dim": 40, "contextual_len": 3},
        {"attn_dim": 256, "linear_dim": 256, "num_targets": "70:20:1", "contextual_len": 130, "max_attn_len": 200},
        {"attn_dim": 160, "linear_dim": 64, "causal": False},
        # More pairs than SMs, so that a program has several.
        {"batch": 12, "nheads": 16, "lengths": "1000:129:1:0:63:127:512:300:64:128:999:256"},
        {"batch": 24, "nheads": 16, "seqlen": 256, "lengths": "full", "attn_dim": 32, "linear_dim": 32},
    ],
)
@pytest.mark.parametrize("order", ["ws", "ws-lag", "ws-serial", "ws-lag-serial", "ws-carried"])
def test_the_hopper_backward_is_right_for_every_mask(values, order):
    case = case_of(mode="bwd", **values)
    if any(word in order for word in (("lag", "serial") if case.attn_dim > 128 else ("carried",))):
        pytest.skip("lag and serial are for up to 128 dims, carried for more")
    inputs = [make(case, seed) for seed in (1, 2)]
    backend = resolve(f"hstu-triton[a64x{64 if case.attn_dim > 128 else 128}w8s2-{order}]", case)
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="hstu", budget=backend.budget(case))
    assert outcome.ok, outcome.reason


MASKS = {
    "causal": {},
    "whole": {"causal": False},
    "targets": {"num_targets": "300:20:1", "contextual_len": 3},
    "window": {"max_attn_len": 170, "num_targets": "7:0:1"},
    "cached": {"delta_q": 300, "num_targets": "5:0:1"},
    "narrow-values": {"linear_dim": 64},
    "odd-dims": {"attn_dim": 40, "linear_dim": 104},
    "fp16": {"dtype": "fp16"},
}


@pytest.mark.hopper
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("short", ["f128x64w8s3-ws", "f192x64w12s3-ws", "f128x128w8s2-ws"])
def test_the_hopper_forward_is_right_for_every_mask(short, mask):
    case = case_of(mode="fwd", **{"nheads": 16} | MASKS[mask])  # more jobs than an H200 has SMs: they are drawn
    inputs = [make(case, seed) for seed in (1, 2)]
    backend = resolve(f"hstu-triton[{short}]", case)
    with backend.session(case, inputs[0]) as launch:
        outcome = examine(launch, References(WORKLOAD, case, *inputs), variant="hstu", budget=backend.budget(case))
    assert outcome.ok, outcome.reason


@pytest.mark.hopper
@pytest.mark.parametrize("nheads", [2, 16])
@pytest.mark.parametrize("short", ["f128x128w8s2-ws", "f192x64w12s3-ws"])
def test_the_hopper_forward_has_the_same_bits_twice_and_in_a_graph(short, nheads):
    case = case_of(mode="fwd", num_targets="20:5:0", nheads=nheads)
    with resolve(f"hstu-triton[{short}]", case).session(case, make(case)) as launch:
        launch.forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch.forward()
        captured = launch.outputs()["out"]
        launch.reload(make(case, seed=2))
        launch.forward()
        want = launch.outputs()["out"].clone()
        launch.forward()
        assert torch.equal(launch.outputs()["out"], want)
        captured.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, want)
