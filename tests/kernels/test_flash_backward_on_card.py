"""What only a card can show of the flash backward: graphs, the same bits twice, every cut there is."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Budget
from attnbench.check.compare import compare, make_truth
from attnbench.workloads.attention import WORKLOAD
from attnbench.workloads.attention.inputs import make_inputs, torch_dtype
from attnbench.workloads.base import Draw

pytest.importorskip("triton")
from attnbench.kernels.flash import backward as flash_backward
from attnbench.kernels.flash import problem as flash_problem
from attnbench.kernels.flash.config.backward import backward_config, backward_space, parse_backward

from .test_flash_backward import forward, problem_of

pytestmark = pytest.mark.gpu

MASKS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window": (300, 20)},
    "grouped": {"causal": True, "nheads": 4, "nheads_kv": 2},
    "more-keys": {"causal": True, "seqlen": 500},
    "more-queries": {"causal": True, "seqlen_k": 600},
    "packed": {"causal": True, "batch": 3, "lengths": "1000/1000:129/700:1/33", "nheads": 2, "nheads_kv": 1},
}
HOPPER = {64: "b128x128w8s2-atomic-tma-ws", 128: "b64x128w8s2-atomic-tma-ws", 256: "b64x64w8s2-atomic-tma-ws-carried"}
"By the most dims."
SUMS = [(dim, f"b64x64w8s2-atomic-tma-ws{sums}") for dim in (192, 256) for sums in ("", "-direct")]
"The ways of adding dQ that are no default."


def hopper(dim):
    return HOPPER[min(width for width in HOPPER if width >= dim)]


def case_of(**values):
    return WORKLOAD.case(
        {"batch": 2, "seqlen": 1000, "seqlen_k": 1000, "nheads": 2, "headdim": 128, "dtype": "bf16", "mode": "bwd"}
        | values
    )


class Session:
    """Buffers of one case and configuration."""

    def __init__(self, case, inputs, config):
        self.case, self.inputs, self.config = case, inputs, config
        self.problem = problem_of(flash_problem, case, inputs)
        self.out, lse = forward(case, inputs)
        self.lse = lse.to(inputs.q.device)
        self.grads = {f"d{name}": torch.full_like(getattr(inputs, name), torch.nan) for name in ("q", "k", "v")}
        self.workspace = flash_backward.workspace_of(inputs.q, self.problem, config)

    def __call__(self):
        x = self.inputs
        flash_backward.launch_backward(
            x.q, x.k, x.v, self.out, x.dout, self.lse, *self.grads.values(), self.problem, self.config, self.workspace
        )
        return {name: grad.clone() for name, grad in self.grads.items()}


def truth_of(case, inputs):
    plain = WORKLOAD.oracle("softmax", case, inputs, dtype=torch_dtype(case), draw=Draw())
    expected = WORKLOAD.expected_errors("softmax", case, inputs, draw=Draw())
    return make_truth(
        WORKLOAD.oracle("softmax", case, inputs, dtype=torch.float64, draw=Draw()),
        plain,
        expected,
        torch_dtype(case),
        WORKLOAD.outputs("softmax"),
    )


def default(dim, case, *, deterministic=False, item_bytes=2):
    return backward_config(
        torch.cuda.get_device_capability(),
        item_bytes,
        dim,
        deterministic=deterministic,
        packed=case.packed,
        hopper=True,
    )


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 96, 128, 256])
@pytest.mark.parametrize("mask", MASKS)
def test_the_defaults_are_right(mask, dim, deterministic):
    case = case_of(headdim=dim, **MASKS[mask])
    inputs = make_inputs(case, seed=1, kind="normal", device="cuda")
    session = Session(case, inputs, default(dim, case, deterministic=deterministic))
    outcome = compare({"out": session.out} | session(), truth_of(case, inputs), Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.hopper
@pytest.mark.parametrize(("dim", "short"), [*((dim, hopper(dim)) for dim in (40, 64, 96, 128, 192, 256)), *SUMS])
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_for_hopper_is_right(mask, dim, short):
    case = case_of(headdim=dim, **MASKS[mask])
    inputs = make_inputs(case, seed=6, kind="normal", device="cuda")
    session = Session(case, inputs, parse_backward(short))
    outcome = compare({"out": session.out} | session(), truth_of(case, inputs), Budget())
    assert outcome.ok, outcome.faults
    first = session()
    for _ in range(20):  # a race would show now and then
        again = session()
        assert all(torch.equal(again[name], first[name]) for name in ("dk", "dv"))
        torch.testing.assert_close(again["dq"], first["dq"], rtol=2e-2, atol=2e-2)


@pytest.mark.hopper
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_kernel_for_hopper_is_right_on_long_sequences_in_fp16(dim):
    case = case_of(headdim=dim, seqlen=4096, seqlen_k=4096, batch=1, causal=True, dtype="fp16")
    inputs = make_inputs(case, seed=7, kind="normal", device="cuda")
    session = Session(case, inputs, parse_backward(hopper(dim)))
    outcome = compare({"out": session.out} | session(), truth_of(case, inputs), Budget())
    assert outcome.ok, outcome.faults


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_call_is_captured_in_a_graph_and_replayed(deterministic):
    case = case_of(causal=True)
    session = Session(
        case, make_inputs(case, seed=2, kind="normal", device="cuda"), default(128, case, deterministic=deterministic)
    )
    want = session()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        session()
    for grad in session.grads.values():
        grad.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    for name, grad in session.grads.items():
        if deterministic or name != "dq":
            assert torch.equal(grad, want[name]), name
        else:
            torch.testing.assert_close(grad, want[name], rtol=1e-2, atol=1e-2)


def test_what_has_one_order_of_sums_has_the_same_bits_twice():
    case = case_of(causal=True, nheads=4, nheads_kv=2)
    inputs = make_inputs(case, seed=3, kind="normal", device="cuda")
    session = Session(case, inputs, default(128, case, deterministic=True))
    first, second = session(), session()
    assert all(torch.equal(first[name], second[name]) for name in first)
    session = Session(case, inputs, default(128, case))
    first, second = session(), session()
    assert all(torch.equal(first[name], second[name]) for name in ("dk", "dv"))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_every_cut_is_right_or_does_not_fit_the_card(dim, deterministic):
    case = case_of(headdim=dim, causal=True, seqlen=513, seqlen_k=513, batch=1)
    inputs = make_inputs(case, seed=4, kind="normal", device="cuda")
    truth, wrong, ran = truth_of(case, inputs), [], 0
    space = list(backward_space(torch.cuda.get_device_capability(), 2, dim, dim, deterministic=deterministic))
    # Every seventh, so that each rule's neighbourhood is met, the default first, and the kernel for Hopper.
    for config in dict.fromkeys([*space[::7], *(config for config in space if config.order == "ws")]):
        session = Session(case, inputs, config)
        try:
            found = session()
        except Exception as error:
            # Triton's own word for too much shared memory or too many registers.
            if type(error).__name__ != "OutOfResources":
                raise
            continue
        ran += 1
        outcome = compare({"out": session.out} | found, truth, Budget())
        wrong += [] if outcome.ok else [f"{config.short}: {outcome.faults}"]
    assert not wrong, "\n".join(wrong)
    assert ran >= 5


def test_fp32_is_right():
    case = case_of(dtype="fp32", headdim=64, seqlen=300, seqlen_k=300, causal=True)
    inputs = make_inputs(case, seed=5, kind="normal", device="cuda")
    session = Session(case, inputs, parse_backward(default(64, case, item_bytes=4).short))
    outcome = compare({"out": session.out} | session(), truth_of(case, inputs), Budget())
    assert outcome.ok, outcome.faults
