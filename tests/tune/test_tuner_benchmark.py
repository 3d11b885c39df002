"""benchmarks/tuner.py as on a GPU, but on the CPU with drawn times and a known winner."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from tunable_timer import BEST, true_ms

from attnbench.machine.device import Device
from attnbench.stats.race_data import Rules

ROOT = Path(__file__).resolve().parents[2]
FILE = str(ROOT / "tests" / "fakes" / "tunable.py")
SHAPE = {"batch": 1, "seqlen": 15, "nheads": 1, "headdim": 8, "causal": True, "dtype": "fp32"}


@pytest.fixture
def benchmark(card, monkeypatch):
    spec = importlib.util.spec_from_file_location("benchmark_tuner", ROOT / "benchmarks/tuner.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_races_on_a_card_are_held_against_everyone_sampled_as_a_finalist(benchmark, monkeypatch, capsys):
    from attnbench.machine import devices

    monkeypatch.setattr(devices, "resolve", lambda device: Device("cuda"))
    found = benchmark.on_card(
        "tunable", SHAPE, 2, files=(FILE,), patterns=("c1?", "c20", "c30"), rules=Rules(final_rounds=40, heat=8)
    )
    assert (found["configurations"], found["right"]) == (13, 12)
    assert list(found["failures"]) == ["tunable[c30]"]
    for name, ratio in found["ratios"].items():
        assert ratio == pytest.approx(true_ms(name), rel=0.01), name
    assert found["near"] == 1
    assert found["within"] == len(found["trials"]) == 2
    assert {row["pick"] for row in found["trials"]} == {f"tunable[{BEST}]"}
    assert {row["seed"] for row in found["trials"]} == {0, 1}
    for row in found["trials"]:
        assert row["loss"] == pytest.approx(0.0, abs=0.01)
        assert 0 < row["share"] < 1
        assert row["wall_s"] >= row["sampling_wall_s"] > 0
    assert json.loads(json.dumps(found)) == found
    capsys.readouterr()


def test_the_table_of_a_card_says_what_was_reached_and_wanted(benchmark, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    row = {"loss": 0.004, "share": 0.12, "wall_s": 3.2}
    path = tmp_path / "tuner-h200.json"
    path.write_text(
        json.dumps(
            {
                "environment": {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11", "triton": "3.6"},
                "case_id": "b4-s4096",
                "backend": "flash-triton",
                "configurations": 160,
                "right": 150,
                "near": 7,
                "within": 20,
                "seconds": {"compile": 80.0, "check": 9.0},
                "trials": [row] * 20,
            }
        )
    )
    text = tables.tuner_card(str, path)
    assert "| configurations, right, within 1 % of the best | 160, 150, 7 |  |" in text
    assert "| pick within 1 % of the exhaustive best | 20 of 20, worst 0.4 % | at least 19 of 20 |" in text
    assert "| sampling, of exhaustive | 12 % at most | at most 20 % |" in text
    assert "flash-triton, b4-s4096." in text
