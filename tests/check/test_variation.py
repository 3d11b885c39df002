"""Data with a known answer: the oracle of the changed inputs is the changed oracle, to the last bit of fp64."""

from __future__ import annotations

import pytest
import torch

from attnbench.check.variation import Variation
from attnbench.workloads.base import Draw, load_workload

CASES = [
    (
        "attention",
        "softmax",
        {
            "batch": 2,
            "seqlen": 33,
            "seqlen_k": 65,
            "nheads": 4,
            "nheads_kv": 2,
            "headdim": 8,
            "headdim_v": 5,
            "causal": True,
            "dtype": "fp32",
            "mode": "fwd-bwd",
        },
    ),
    (
        "attention",
        "softmax",
        {"batch": 3, "seqlen": 40, "nheads": 1, "headdim": 1, "lengths": "uniform", "dtype": "bf16", "mode": "fwd"},
    ),
    (
        "hstu",
        "hstu",
        {
            "batch": 2,
            "seqlen": 70,
            "nheads": 2,
            "attn_dim": 8,
            "linear_dim": 4,
            "num_targets": 3,
            "dtype": "fp16",
            "mode": "fwd-bwd",
        },
    ),
    (
        "hstu",
        "hstu-bsa",
        {
            "batch": 2,
            "seqlen": 130,
            "nheads": 2,
            "attn_dim": 8,
            "linear_dim": 8,
            "block_size": 16,
            "gates": True,
            "dtype": "fp32",
            "mode": "fwd-bwd",
        },
    ),
]


@pytest.mark.parametrize(("name", "variant", "values"), CASES)
def test_the_answer_is_known(name, variant, values):
    workload = load_workload(name)
    axes = {axis.name for axis in workload.axes}
    case = workload.case({key: value for key, value in values.items() if key in axes})
    inputs = workload.inputs(case, seed=3, kind="normal", device="cpu")
    before = {key: tensor.clone() for key, tensor in inputs.tensors().items()}
    versions = {key: tensor._version for key, tensor in inputs.tensors().items()}

    def oracle():
        return workload.oracle(variant, case, inputs, dtype=torch.float64, draw=Draw())

    right, variation = oracle(), Variation(workload, case, inputs)
    for _ in range(3):
        variation.apply()
        signed = workload.signs(case)
        assert {key for key, tensor in inputs.tensors().items() if not torch.equal(tensor, before[key])} == {
            key for key in before if key in signed
        }
        found = variation.unsigned(oracle())
        assert set(found) == set(right)
        for key, tensor in right.items():
            assert torch.equal(found[key], tensor), key
        variation.undo()
        variation.renew()
        assert all(torch.equal(tensor, before[key]) for key, tensor in inputs.tensors().items())
    # A backend that looks at version counters learns nothing.
    assert {key: tensor._version for key, tensor in inputs.tensors().items()} == versions


def test_signs_are_never_all_positive_and_differ():
    workload = load_workload("attention")
    case = workload.case({"batch": 1, "seqlen": 4, "nheads": 1, "headdim": 64, "dtype": "fp32"})
    inputs = workload.inputs(case, seed=0, kind="normal", device="cpu")
    first, second = Variation(workload, case, inputs), Variation(workload, case, inputs)
    first.apply()
    q = inputs.q.clone()
    first.undo()
    second.apply()
    assert not torch.equal(q, inputs.q)


@pytest.mark.parametrize("headdim", [1, 4])
def test_signs_come_again_only_when_there_are_no_others(headdim):
    workload = load_workload("attention")
    case = workload.case({"batch": 1, "seqlen": 4, "nheads": 1, "headdim": headdim, "dtype": "fp32"})
    inputs = workload.inputs(case, seed=0, kind="normal", device="cpu")
    variation, known = Variation(workload, case, inputs), inputs.q.clone()
    for _ in range(2):
        seen = set()
        for _ in range(2**headdim - 1):
            variation.apply()
            seen.add(inputs.q.numpy().tobytes())
            variation.undo()
            variation.renew()
        assert len(seen) == 2**headdim - 1
        assert known.numpy().tobytes() not in seen
