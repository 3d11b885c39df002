"""Every adapter whose library is installed, on every supported case of a grid, against fp64."""

import pytest

from attnbench.backends.base import Machine
from attnbench.backends.registry import all_backends
from attnbench.errors import Unavailable, Unsupported
from attnbench.workloads.attention.case import AttentionCase

from .reference import expected

pytestmark = pytest.mark.gpu

BASE = {"batch": 2, "seqlen": 129, "nheads": 4, "headdim": 64}
GRID = {
    "one": {"seqlen": 1},
    "odd": {"seqlen": 63},
    "plain": {},
    "plain-256": {"seqlen": 256},
    "causal": {"causal": True},
    "causal-256": {"causal": True, "seqlen": 256},
    "more-keys": {"causal": True, "seqlen_k": 193},
    "fewer-keys": {"causal": True, "seqlen_k": 65},
    "cross": {"seqlen_k": 193},
    "decode": {"seqlen": 1, "seqlen_k": 320, "causal": True},
    "grouped": {"nheads_kv": 2, "causal": True},
    "one-kv-head": {"nheads_kv": 1},
    "window": {"window": (30, 10)},
    "left-window": {"window": (30, -1)},
    "causal-window": {"window": (30, 0), "causal": True, "seqlen_k": 193},
    "headdim-40": {"headdim": 40},
    "headdim-96": {"headdim": 96, "causal": True},
    "headdim-128": {"headdim": 128},
    "headdim-256": {"headdim": 256, "causal": True},
    "headdim-192-128": {"headdim": 192, "headdim_v": 128, "causal": True},
    "ragged": {"batch": 3, "lengths": "129:1:64"},
    "ragged-causal": {"batch": 3, "lengths": "129:1:64", "causal": True},
    "ragged-cross": {"batch": 3, "seqlen_k": 193, "lengths": "129/193:1/64:63/128", "causal": True},
    "ragged-grouped-window": {"batch": 3, "lengths": "129:1:64", "nheads_kv": 2, "window": (20, 0), "causal": True},
}
NAMES = sorted(name for name, one in all_backends().items() if one.workload == "attention" and "cuda" in one.devices)


@pytest.fixture(scope="module")
def machine():
    import torch

    return Machine("cuda", torch.cuda.get_device_capability(), torch.cuda.get_device_properties(0).total_memory)


def cases(backend, mode):
    """The grid in bf16; in the other precisions too where no case costs seconds of compiling."""
    for dtype in ("bf16",) if backend.compiles else ("bf16", "fp16", "fp32"):
        for shape in GRID.values():
            yield AttentionCase(**{**BASE, **shape}, dtype=dtype, mode=mode)


def run(backend, case, on_cpu):
    import torch

    from attnbench.workloads.attention.inputs import AttentionInputs

    moved = {key: tensor.cuda() for key, tensor in on_cpu.tensors().items()}
    fields = {key: moved.get(key) for key in ("q", "k", "v", "dout", "cu_seqlens_q", "cu_seqlens_k")}
    inputs = AttentionInputs(**fields, max_seqlen_q=on_cpu.max_seqlen_q, max_seqlen_k=on_cpu.max_seqlen_k)
    with backend.session(case, inputs) as launch:
        for _ in range(2):
            launch.call(case.mode)()
        torch.cuda.synchronize()
        return {name: tensor.double().cpu() for name, tensor in launch.outputs().items()}


def faults(backend, case, got, want):
    """What is off, in words; beside a backend's own budget, a few roundings of the precision are granted."""
    step = {"fp32": 2e-5, "fp16": 2e-3, "bf16": 1.6e-2}[case.dtype]
    relative = backend.budget(case).relative
    for key, tensor in want.items():
        limit = max(step * max(1.0, tensor.abs().max().item()), relative * tensor.pow(2).mean().sqrt().item())
        worst = (got[key] - tensor).abs().max().item() if key in got else float("nan")
        if not worst <= limit:
            yield f"{case.id} {key}: off by {worst:.3g}, at most {limit:.3g}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["fwd", "fwd-bwd"])
@pytest.mark.parametrize("name", NAMES)
def test_against_fp64(name, mode, machine):
    from attnbench.workloads.attention.inputs import make_inputs

    backend = all_backends()[name]
    try:
        backend.probe()
    except Unavailable as why:
        pytest.skip(str(why))
    wrong, refused, ran = [], [], 0
    for case in cases(backend, mode):
        if name == "sage1" and not case.causal and any(keys % 64 for _, keys in case.sequences):
            continue  # it counts the padding of the last 64 keys, as its docstring says
        inputs = make_inputs(case, seed=1, kind="normal", device="cpu")
        try:
            backend.check(case, machine)
            got = run(backend, case, inputs)
        except Unsupported as why:
            refused.append(str(why))
            continue
        except Exception as error:  # an edge: one refusal the adapter does not know must not hide the others
            wrong.append(f"{case.id}: {type(error).__name__}: {error}")
            continue
        ran += 1
        wrong += faults(backend, case, got, expected(case, inputs))
    print(f"{name} {mode}: {ran} ran", *refused, sep="\n  ")
    assert not wrong, "\n".join(wrong)
    if not ran:
        pytest.skip(refused[0])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("sdpa-")])
def test_a_pinned_kernel_is_the_one_that_runs(name, machine):
    import torch

    from attnbench.workloads.attention.inputs import make_inputs

    case = AttentionCase(**{**BASE, "seqlen": 256}, dtype="bf16")
    words = {"sdpa-flash": "flash", "sdpa-efficient": "fmha", "sdpa-cudnn": "cudnn", "sdpa-math": "softmax"}[name]
    with (
        all_backends()[name].session(case, make_inputs(case, seed=1, kind="normal", device="cuda")) as launch,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen,
    ):
        launch.forward()
        torch.cuda.synchronize()
    kernels = [event.key.lower() for event in seen.key_averages() if event.device_time_total > 0]
    assert any(words in kernel for kernel in kernels), kernels
