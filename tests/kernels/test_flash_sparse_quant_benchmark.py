"""The benchmark of block-sparse attention in 8 bits: its bars, and what it says of a measured group."""

from __future__ import annotations

import importlib
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("flash_sparse_quant")
    sys.modules.pop("flash_sparse_quant", None)


def row(what, density, ms):
    samples = [ms * (1 + 1e-4 * turn) for turn in range(20)]
    return {"what": what, "config": "", "density": density, "samples_ms": samples, "rounds": list(range(20))}


def lines(benchmark, op_ms, seqlen=32768):
    dense = [row("dense op", 1.0, 10.0), row("dense kernel", 1.0, 9.6), row("sparse", 1.0, 13.0)]
    own = [row("sparse", 0.3, 4.1), row("op", 0.3, op_ms), row("kernel", 0.3, op_ms - 0.4)]
    return benchmark.lines_of(asdict(benchmark.Sweep(seqlen=seqlen)) | {"rows": dense + own})


def test_ops_are_held_against_the_dense_op_and_the_16_bits_on_the_same_map(benchmark):
    good, slow, short = lines(benchmark, 3.4), lines(benchmark, 4.2), lines(benchmark, 4.2, 4096)
    assert good[0] == "32768 rows, dim 128, 128x128, full"
    assert "E 0.882 bar 0.85: reached  1.206 of flash-sparse, bar 1: reached" in good[5]
    assert "E 0.960" in good[6]
    assert "bar" not in good[6] + "".join(good[1:5]) + short[5]
    assert "E 0.714 bar 0.85: BELOW  0.976 of flash-sparse, bar 1: BELOW" in slow[5]


def test_every_group_is_a_case_with_a_default(benchmark):
    for sweep in benchmark.SWEEPS:
        short = benchmark.default_config(sweep.shape).short
        assert benchmark.fault(benchmark.SparseQuantConfig.parse(short), sweep.shape) is None
        assert sweep.case(0.3).block_shape == (sweep.shape.block_q, sweep.shape.block_k)
