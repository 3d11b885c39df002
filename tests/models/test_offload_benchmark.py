"""The benchmark of what offloading costs concurrent steps: in miniature, and what it says of made-up samples."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASE = {"batch": 1, "num_candidates": 8}


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_serving_offload", ROOT / "benchmarks/serving_offload.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(benchmark: ModuleType, cost: float, rounds: int = 40) -> dict[str, Any]:
    """Steps of 2 ms, longer by `cost` beside a copy; the first of each series takes as long as it likes."""
    plain = [[90.0, 2.0 + 0.001 * (place % 7), 2.0] for place in range(rounds)]
    beside = [[1.0, *(ms * (1 + cost) for ms in times[1:])] for times in plain]
    samples = {benchmark.WITHOUT: plain, benchmark.WITH: beside}
    return {"case": CASE, "samples_ms": samples, "steps_beside_a_copy": 80}


def test_in_miniature_it_copies_what_each_step_adds_and_keeps_every_sample(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "offload.json"
    words = "--device cpu --model tiny --rows 2x8 --cached 32 --new-tokens 16 --visits 3 --rounds 6"
    assert benchmark.main([*words.split(), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("2x8: p50 ")
    (found,) = json.loads(out.read_text("utf-8"))["rows"]
    assert found["offloaded_tokens"] == 6 * 3 * 2 * 16
    assert set(found["samples_ms"]) == {benchmark.WITH, benchmark.WITHOUT}
    for of_way in found["samples_ms"].values():
        assert [len(times) for times in of_way] == [3] * 6
        assert all(ms > 0 for times in of_way for ms in times)


def test_a_cache_without_host_memory_copies_nothing(benchmark: ModuleType) -> None:
    from attnbench.workloads.base import load_workload
    from attnbench.workloads.hstu_serving.inputs import make_inputs

    values = {**CASE, "cached": 32, "new_tokens": 16, "visits": 3, "cache": "growth", "model": "tiny", "dtype": "fp32"}
    inputs = make_inputs(load_workload("hstu-serving").case(values), seed=0, kind="normal", device="cpu")
    server = benchmark.Server(inputs, host_pages=0)
    first, again = server.series(), server.series()
    assert len(first) == len(again) == 3
    assert server.cache.counts.offloaded == server.cache.pending == 0
    # Every series begins in the same state: the same tokens are found each time.
    assert server.cache.counts.hit == 2 * (32 + 48 + 64)


@pytest.mark.parametrize(
    ("cost", "word"), [(0.02, "reached"), (0.2, "MISSED"), (-0.1, "reached"), (0.0502, "MISSED"), (0.0498, "reached")]
)
def test_the_cost_is_that_of_the_steps_after_the_first(benchmark: ModuleType, cost: float, word: str) -> None:
    made = row(benchmark, cost)
    found, low, high = benchmark.cost_of(made["samples_ms"])
    assert found == pytest.approx(cost, abs=1e-9)
    assert low == pytest.approx(cost, abs=1e-9)
    assert high == pytest.approx(cost, abs=1e-9)
    assert benchmark.line(made).endswith(f"80 of 80 steps began beside a copy; bar 5 %: {word}")


def test_an_interval_across_the_bar_decides_nothing(benchmark: ModuleType) -> None:
    made = row(benchmark, 0.0)
    for place, times in enumerate(made["samples_ms"][benchmark.WITH]):
        times[1:] = [ms * (1.0 if place % 2 else 1.12) for ms in times[1:]]
    _, low, high = benchmark.cost_of(made["samples_ms"])
    assert low <= benchmark.BAR < high
    assert benchmark.line(made).endswith("not decided")
    few = row(benchmark, 0.2, rounds=3)
    assert benchmark.cost_of(few["samples_ms"])[1:] == (None, None)
    assert benchmark.line(few).endswith("not decided")
