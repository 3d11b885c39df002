"""Every backend of attention-cp on two GPUs joined by NCCL: odd lengths, GQA, jagged batches, HSTU."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.base import Machine
from attnbench.backends.registry import resolve
from attnbench.check.examine import examine
from attnbench.check.reference import References
from attnbench.errors import Unsupported
from attnbench.workloads.attention_cp import WORKLOAD

pytestmark = pytest.mark.gpu

CASES = {
    "even": {"batch": 1, "seqlen": 2048},
    "even-causal": {"batch": 2, "seqlen": 1024, "causal": True},
    "odd": {"batch": 1, "seqlen": 1003},
    "odd-causal": {"batch": 1, "seqlen": 1003, "causal": True},
    "shorter-than-its-chunks": {"batch": 1, "seqlen": 3, "causal": True},
    "grouped": {"batch": 1, "seqlen": 1000, "nheads": 8, "nheads_kv": 2, "causal": True},
    "jagged": {"batch": 5, "seqlen": 3000, "lengths": "3000:129:1:63:700", "causal": True},
    "jagged-full": {"batch": 3, "seqlen": 2000, "lengths": "2000:129:1"},
    "hstu": {"function": "hstu", "batch": 1, "seqlen": 1003, "causal": True},
    "hstu-full": {"function": "hstu", "batch": 1, "seqlen": 1001},
    "hstu-narrow": {"function": "hstu", "batch": 1, "seqlen": 1003, "headdim": 24, "causal": True},
    "hstu-portable": {"function": "hstu", "batch": 1, "seqlen": 1003, "headdim": 20, "dtype": "fp16", "causal": True},
    "hstu-jagged": {"function": "hstu", "batch": 4, "seqlen": 3000, "lengths": "3000:0:129:700", "causal": True},
}
NAMES = ("cp-one", "cp-ulysses", "cp-allgather", "cp-ring", "cp-torch")
TAKES_ALL = ("cp-one", "cp-ulysses", "cp-allgather", "cp-ring")


@pytest.mark.parametrize("name", NAMES)
def test_every_case_is_right_on_first_and_on_new_data(name):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    device = torch.device("cuda:0")
    machine = Machine("cuda", torch.cuda.get_device_capability(device))
    right, refused = [], []
    for words, values in CASES.items():
        case = WORKLOAD.case({"world": 2, "nheads": 4, "headdim": 128, "dtype": "bf16"} | values)
        backend = resolve(name, case)
        try:
            backend.probe()
            backend.check(case, machine)
        except Unsupported:
            refused.append(words)
            continue
        inputs, fresh = (WORKLOAD.inputs(case, seed=seed, kind="normal", device=device) for seed in (0, 1))
        references = References(WORKLOAD, case, inputs, fresh, seed=0)
        with backend.session(case, inputs) as launch:
            launch.forward()
            outcome = examine(
                launch, references, variant=case.function, budget=backend.budget(case), announce=lambda phase: None
            )
            assert outcome.ok, (words, outcome.reason)
            assert 0 < launch.reported_ms() < 1000
            for phase in launch.phases.values():
                phase.call()
                assert phase.reported_ms() > 0
        right.append(words)
    assert "even" in right
    if name in TAKES_ALL:
        assert not refused
