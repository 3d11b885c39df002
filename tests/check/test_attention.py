"""The examination with the real workload and plain torch launches, on odd shapes."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnbench.backends.base import Budget, Launch
from attnbench.check.examine import examine, recheck
from attnbench.check.reference import References
from attnbench.workloads.attention import WORKLOAD

pytestmark = pytest.mark.usefixtures("at_once")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def sdpa(q, k, v, case):
    bias = None
    if case.causal:
        bias = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(k.shape[2] - q.shape[2])
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=case.nheads != case.nheads_kv)


def eager(q, k, v, case):
    k, v = (x.repeat_interleave(case.group_size, 1) for x in (k, v))
    scores = q @ k.mT * case.scale
    if case.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(k.shape[2] - q.shape[2] + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ v


def top_left(q, k, v, case):
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=case.nheads != case.nheads_kv)


class Torch:
    """A launch of a function of q, k, v in torch's [B, H, S, D]."""

    def __init__(self, attend, case, inputs):
        self.attend, self.case, self.grads = attend, case, ()
        self.reload(inputs)

    def reload(self, inputs):
        self.leaves = [
            x.detach().transpose(1, 2).requires_grad_(self.case.has_backward) for x in (inputs.q, inputs.k, inputs.v)
        ]
        self.dout = None if inputs.dout is None else inputs.dout.transpose(1, 2)

    def forward(self):
        self.out = self.attend(*self.leaves, self.case)

    def backward(self):
        self.grads = torch.autograd.grad(self.out, self.leaves, self.dout, retain_graph=True)

    def outputs(self):
        return dict(zip(("out", "dq", "dk", "dv"), (x.transpose(1, 2) for x in (self.out, *self.grads)), strict=False))

    def launch(self):
        return Launch(forward=self.forward, backward=self.backward, outputs=self.outputs, reload=self.reload)


def run(attend, device="cpu", max_bytes=None, **values):
    case = WORKLOAD.case({"batch": 2, "nheads": 4, "headdim": 32, **values})
    inputs = (WORKLOAD.inputs(case, seed=seed, kind="normal", device=device) for seed in (0, 1))
    group = References(WORKLOAD, case, *inputs, max_bytes=max_bytes)
    launch = Torch(attend, case, group.first.inputs).launch()
    outcome = examine(launch, group, variant="softmax", budget=Budget())
    return outcome, recheck(launch, group, variant="softmax", budget=Budget()) if outcome.ok else None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attend", [sdpa, eager])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    "shape",
    [
        {"seqlen": 1, "seqlen_k": 1, "mode": "fwd-bwd"},
        {"seqlen": 1, "seqlen_k": 257, "mode": "fwd"},
        {"seqlen": 63, "seqlen_k": 127, "causal": True, "mode": "fwd-bwd"},
        {"seqlen": 129, "nheads_kv": 2, "causal": True, "mode": "bwd"},
        {"seqlen": 127, "headdim": 24, "headdim_v": 40, "mode": "fwd"},
    ],
)
def test_honest_torch_passes_before_and_after_timing(attend, dtype, shape, device):
    outcome, after = run(attend, device, dtype=dtype, **shape)
    assert outcome.ok, outcome.reason
    assert outcome.notes == ()
    assert after.ok, after.reason
    assert set(outcome.errors) == ({"out"} if shape["mode"] == "fwd" else {"out", "dq", "dk", "dv"})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["fwd", "fwd-bwd"])
def test_the_wrong_causal_corner_is_named(mode, device):
    outcome, _ = run(top_left, device, seqlen=65, seqlen_k=130, causal=True, mode=mode)
    assert re.match(
        r"out: wrong values: worst error .* at \[\d, \d+, \d, \d+\]; .* % of 16640 elements over budget", outcome.reason
    )
    assert outcome.reason.endswith("; matches causal mask aligned top-left instead of bottom-right")


def test_a_missing_mask_is_named():
    def full(q, k, v, case):
        return scaled_dot_product_attention(q, k, v)

    assert run(full, seqlen=65, causal=True)[0].reason.endswith("; matches causal mask ignored")


def test_one_row_of_one_head_off_by_a_percent_and_a_half():
    def off(q, k, v, case):
        out = sdpa(q, k, v, case)
        out[1, 3, 299] *= 1.015
        return out

    assert run(sdpa, seqlen=300, causal=True, dtype="fp16")[0].ok
    reason = run(off, seqlen=300, causal=True, dtype="fp16")[0].reason
    assert re.match(
        r"out: wrong values in a row: \d+(\.\d+)? times what rounding explains \(budget \d.*\) "
        r"at \[1, 299, 3\]",
        reason,
    ), reason


def test_a_drawn_part_of_real_attention():
    outcome, _ = run(sdpa, batch=3, seqlen=257, dtype="fp16", mode="fwd-bwd", max_bytes=1000)
    assert outcome.ok
    assert re.match(r"checked in part: \d+ \(sequence, head\) pairs drawn with seed 0", outcome.notes[0])


@pytest.mark.parametrize("device", DEVICES)
def test_zeros_pass_and_do_not_hide_a_cached_answer(device):
    case = WORKLOAD.case({"batch": 1, "nheads": 2, "seqlen": 63, "dtype": "fp16"})
    inputs = [WORKLOAD.inputs(case, seed=0, kind=kind, device=device) for kind in ("zeros", "normal")]
    group = References(WORKLOAD, case, *inputs)
    assert examine(Torch(sdpa, case, inputs[0]).launch(), group, variant="softmax", budget=Budget()).ok
    cached = Torch(sdpa, case, inputs[0])
    cached.forward()
    launch = cached.launch()
    launch.forward = lambda: None
    assert examine(launch, group, variant="softmax", budget=Budget()).reason.startswith("cached answer: ")
