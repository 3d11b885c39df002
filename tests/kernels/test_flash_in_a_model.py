"""Our kernels as functions of a model's own tensors: what a session gives, from projections as they lie."""

from __future__ import annotations

import pytest
import torch

from attnbench.backends.registry import all_backends
from attnbench.workloads.base import load_workload

from .interpreter import interpreted

DENSE = {"batch": 2, "seqlen": 40, "nheads": 2, "headdim": 16, "dtype": "fp16"}
SPARSE = ("flash-sparse", "flash-sparse-quant")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flash-triton", DENSE),
        *((name, DENSE | {"seqlen": 150, "batch": 1, "block": "64x64", "density": 0.67}) for name in SPARSE),
    ],
)
def test_a_function_gives_what_a_session_gives(name, values):
    pytest.importorskip("triton")
    backend = all_backends()[name]
    workload = load_workload(backend.workload)
    case = workload.case(values)
    given = workload.inputs(case, seed=3, kind="normal", device="cpu")
    with interpreted():
        with backend.session(case, given) as launch:
            launch.forward()
            wanted = launch.outputs()["out"].clone()
        attend = backend.attend(case, torch.device("cpu"))
        wide = torch.stack([given.q, given.k, given.v], dim=2)  # of any strides but the last
        first, second = (attend(*wide.unbind(2)) for _ in range(2))
    assert torch.equal(first, wanted)
    assert torch.equal(second, wanted)
    assert first.data_ptr() != second.data_ptr()
