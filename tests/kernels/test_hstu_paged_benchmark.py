"""The benchmark of the paged HSTU kernel: its count of work, its bars and what it says of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_hstu_paged", ROOT / "benchmarks/hstu_paged.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_flops_are_those_of_visible_pairs_counted_one_by_one(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "CACHED", 5)
    monkeypatch.setattr(benchmark, "NEW", 3)
    pairs = sum((key <= row if row < 8 else key < 8 or key == row) for row in range(5, 10) for key in range(10))
    assert benchmark.Row(2, 2, 16).flops == 2 * 4 * 16 * pairs * benchmark.HEADS


def test_a_bar_says_what_was_reached(benchmark):
    us, tflops = {"contiguous": 100.0, "paged-64": 110.0, "paged-64-sorted": 109.0}, {"paged-64": 500.0}
    ratio = benchmark.Bar("r", "paged-64", "ratio", 0.85, 0.95, "contiguous")
    assert ratio.line(us, tflops) == "r paged-64: 0.9091 ratio of contiguous; bar 0.85, aim 0.95: bar reached"
    assert benchmark.Bar("r", "paged-64", "us", 120, 110).line(us, tflops).endswith("aim reached")
    assert benchmark.Bar("r", "paged-64", "us", 100, 90).line(us, tflops).endswith("BELOW THE BAR")
    assert benchmark.Bar("r", "paged-64", "tflops", 450, 600).line(us, tflops).endswith(": bar reached")
    assert benchmark.Bar("r", "paged-32", "us", 1, 1).line(us, tflops) == "r paged-32: not measured"


def test_every_bar_is_of_a_row_that_is_measured(benchmark):
    rows = {row.name: row for row in benchmark.ROWS}
    assert len(rows) == len(benchmark.ROWS)
    for bar in benchmark.BARS:
        pages = rows[bar.row].pages
        assert bar.kernel == "contiguous" or any(bar.kernel == f"paged-{page}" for page in pages)


def test_the_stack_benchmark_counts_what_a_step_of_the_model_computes_in_its_layers():
    from attnbench.models.hstu_ranking.config import config_of
    from attnbench.workloads.base import load_workload
    from attnbench.workloads.hstu_serving.work import attention_flops, layer_row_flops

    spec = importlib.util.spec_from_file_location("benchmark_serving_stack", ROOT / "benchmarks/serving_stack.py")
    stack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stack)
    histories = stack.lengths()
    assert len(histories) == stack.BATCH
    assert sum(histories) == 1024 * stack.BATCH
    assert min(histories) < 700 < 1300 < max(histories)
    config, wanted = config_of("dlrm-v3"), 0
    for one in histories:
        values = {
            "model": "dlrm-v3",
            "batch": 1,
            "num_candidates": 2048,
            "cached": 0,
            "new_tokens": one,
            "dtype": "bf16",
        }
        wanted += attention_flops(load_workload("hstu-serving").case(values))
        wanted += config.layers * (one + 2048) * layer_row_flops(config)
    assert stack.flops(histories) == wanted
