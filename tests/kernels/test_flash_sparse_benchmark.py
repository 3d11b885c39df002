"""The benchmark of the block-sparse kernels: its bars, and what it says of a measured group."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from pathlib import Path

import pytest

from attnbench.kernels.flash.sparse.config import Shape, SparseConfig, fault

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_flash_sparse", ROOT / "benchmarks/flash_sparse.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def samples(ms):
    return {"samples_ms": [ms * (1 + 1e-4 * turn) for turn in range(20)], "rounds": list(range(20))}


def group_of(benchmark, sparse_ms, **values):
    sweep = benchmark.Sweep(**{"name": "128-dims", "seqlen": 16384, "densities": (0.5,)} | values)
    made = {"density": 0.5, "pattern": "random", "kept": 0.5, "config": sweep.default}
    return asdict(sweep) | {
        "rows": [
            {"what": "dense", "config": "d", "kept": 1.0} | samples(4.0),
            made | {"what": "sparse"} | samples(sparse_ms),
            made | {"what": "lists"} | samples(0.02),
        ]
    }


def test_a_row_is_held_against_its_bar_and_the_lists_against_dense(benchmark):
    fast, slow = (group_of(benchmark, ms) for ms in (2.1, 2.5))
    head, row, lists = benchmark.lines_of(fast)
    assert head == "128-dims: 16384 rows, 16 heads of 128, 128x128, full; dense 4.004 ms, 549 TFLOP/s"
    assert "E 0.952 [0.952, 0.952]  bar 0.88: reached" in row
    assert lists.endswith("lists, 0.5% of dense")
    assert "E 0.800 [0.800, 0.800]  bar 0.88: BELOW" in benchmark.lines_of(slow)[1]
    assert benchmark.below([fast, slow]) == 1


def test_bars_depend_on_length_block_and_mask(benchmark):
    def bar(kept, **values):
        return benchmark.Sweep(**{"name": "x", "seqlen": 32768} | values).bar(kept)

    assert [bar(kept) for kept in (0.1, 0.2, 0.5, 1.0)] == [0.75, 0.85, 0.92, 0.97]
    assert bar(0.1, seqlen=16384, causal=True) == pytest.approx(0.60)
    assert bar(0.5, seqlen=16384, block="64x64") == 0.75
    assert bar(0.5, seqlen=16384, headdim=64, block="64x64") is None
    assert bar(0.5, seqlen=17776, headdim=64) == 0.85
    assert bar(1.0, seqlen=17776, headdim=64) is None
    assert bar(0.4) is None


def test_every_form_it_names_is_valid_where_it_is_measured(benchmark):
    for sweep in benchmark.SWEEPS:
        rows, keys = sweep.case(1, "full").block_shape
        for short in filter(None, sweep.forms):
            shape = Shape(dim=sweep.headdim, block_q=rows, block_k=keys)
            assert fault(SparseConfig.parse(short), shape) is None, short


def test_an_unknown_group_is_refused(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--out", "x.json", "--only", "nothing"])
    assert "--only=nothing is not known; of 128-dims, 128x64, " in capsys.readouterr().err
