"""Rows of our kernels time the calls that a user makes: the public functions, with results of their own."""

from __future__ import annotations

import importlib

import pytest

from attnbench.backends.registry import resolve
from attnbench.workloads.base import load_workload

from .interpreter import interpreted

SOFTMAX = {"batch": 1, "seqlen": 40, "nheads": 2, "headdim": 16, "dtype": "fp16"}
SPARSE = SOFTMAX | {"seqlen": 150, "block": "64x64", "density": 0.67}
HSTU = {"batch": 1, "seqlen": 50, "nheads": 1, "attn_dim": 16, "linear_dim": 16, "dtype": "fp16"}
CALLS = {
    "flash-triton": ("flash.api", "flash_attention", SOFTMAX),
    "flash-quant": ("flash.quant.api", "flash_quant_attention", SOFTMAX),
    "flash-sparse": ("flash.sparse.api", "flash_sparse_attention", SPARSE),
    "flash-sparse-quant": ("flash.sparse_quant.api", "flash_sparse_quant_attention", SPARSE),
    "hstu-triton": ("hstu.dense.api", "hstu_attention", HSTU),
    "hstu-bsa-triton": ("hstu.bsa.api", "hstu_bsa_attention", HSTU | {"block_size": 16, "block_counts": 2}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_forward_is_one_public_call_of_defaults(name, monkeypatch):
    pytest.importorskip("triton")
    home, function, values = CALLS[name]
    workload = load_workload(resolve(name, None).workload)
    case = workload.case(values)
    inputs = workload.inputs(case, seed=1, kind="normal", device="cpu")
    with interpreted(), resolve(name, case).session(case, inputs) as launch:
        launch.forward()
        first = launch.outputs()["out"]
        api = importlib.import_module(f"attnbench.kernels.{home}")
        public, calls = getattr(api, function), []

        def call(*given, **named):
            calls.append(named)
            return public(*given, **named)

        monkeypatch.setattr(api, function, call)
        launch.forward()
        again = launch.outputs()["out"]
    assert len(calls) == 1
    assert not any(calls[0].get(option) for option in ("config", "forward", "backward"))
    assert again.equal(first)
    assert again.data_ptr() != first.data_ptr()
