"""The benchmark of the dense HSTU kernels: what it plans, what it says of rows, and one run of it on the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.record import Status
from attnbench.suites.load import load_suite

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_hstu", ROOT / "benchmarks/hstu.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def record(backend, ms, tflops, *, shape=(4, 128, 1024), mode="fwd", reason=None):
    heads, dim, seqlen = shape
    passed = reason is None
    time = SimpleNamespace(median_ms=ms, rounds=range(20), samples_ms=[ms * (1 + 1e-4 * i) for i in range(20)])
    return SimpleNamespace(
        backend=backend,
        group="g",
        case={"nheads": heads, "attn_dim": dim, "seqlen": seqlen, "mode": mode},
        status=Status.PASSED if passed else Status.CRASHED,
        reason=reason,
        time=time if passed else None,
        rate=SimpleNamespace(tflops=tflops) if passed else None,
    )


def test_the_earlier_figures_are_of_the_rows_of_the_suite(benchmark):
    rows = {
        (one.values["nheads"], one.values["attn_dim"], one.values["seqlen"])
        for one in load_suite("hstu-dense", "cuda").cases
    }
    assert rows == set(benchmark.EARLIER)
    assert len(rows) == 13


@pytest.mark.parametrize(
    ("mode", "ms", "words"),
    [
        ("fwd", 0.9, "aim reached"),
        ("fwd", 0.99, "bar reached"),
        ("fwd", 1.01, "BELOW THE BAR"),
        ("bwd", 0.66, "aim reached"),
        ("bwd", 0.76, "bar reached"),
        ("bwd", 0.78, "BELOW THE BAR"),
    ],
)
def test_a_row_is_held_against_its_bar(benchmark, mode, ms, words):
    row = benchmark.row_of(
        [record("hstu-fbgemm", 1.0, 380, mode=mode), record("ours", ms, 380 / ms, mode=mode)], "hstu-fbgemm"
    )
    assert row.verdict == words
    assert row.ours["ours"][1] == pytest.approx(1 / ms, rel=1e-3)


def test_a_wide_head_has_a_lower_bar_forward(benchmark):
    shape = (4, 256, 2048)
    row = benchmark.row_of([record("n", 1.0, 526, shape=shape), record("o", 1.15, 457, shape=shape)], "n")
    assert (row.bar, row.verdict) == ((0.85, 1.1), "bar reached")


def test_the_table_says_what_was_lost_and_what_moved(benchmark):
    rows = [
        benchmark.row_of([record("n", 1.0, 300), record("o", 0.8, 375), record("o[x]", 0.7, 428)], "n"),
        benchmark.row_of([record("n", 1.0, 300, reason="killed by SIGABRT"), record("o", 0.8, 375)], "n"),
    ]
    text = "\n".join(benchmark.lines_of(rows, 2))
    assert "the peer is -21% from its earlier figure" in text
    assert "n: crashed: killed by SIGABRT" in text
    first = next(line for line in text.splitlines() if "o[x]" in line)
    assert "428" in first
    assert "1.429" in first
    assert first.endswith("aim reached")
    assert "not measured" in text


def test_a_search_is_over_every_cut(benchmark):
    assert benchmark.selectors("hstu-triton", "fwd", dim=None) == ["hstu-triton"]
    assert benchmark.selectors("hstu-triton", "bwd", dim=None) == ["hstu-triton", "hstu-triton[deterministic]"]
    assert len(benchmark.selectors("hstu-triton", "bwd", dim=128)) > 20
    assert len(benchmark.selectors("hstu-triton", "bwd", dim=256)) < 15
    for dim in (32, 64, 128, 256):
        found = benchmark.selectors("hstu-triton", "fwd", dim=dim)
        assert {f"hstu-triton[f128x64w8s{2 if dim == 256 else 3}-{order}]" for order in ("ws", "ahead")} <= {*found}


def test_a_search_is_for_one_dim(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--tune", "--out", "/dev/null"])
    assert "--attn-dim=all cannot be used; one number" in capsys.readouterr().err


def test_it_runs(benchmark, tmp_path, capsys):
    out = tmp_path / "run.json"
    code = benchmark.main(
        [
            "--device",
            "cpu",
            "--ours",
            "hstu-eager",
            "--peer",
            "hstu-bsa-eager",
            "--seqlen",
            "128",
            "--attn-dim",
            "32",
            "--modes",
            "fwd",
            "--max-seconds",
            "0.2",
            "--out",
            str(out),
        ]
    )
    said = capsys.readouterr().out
    assert code in (0, 1)
    assert "hstu-eager" in said
    assert "1 rows" in said
    records = json.loads(out.read_text("utf-8"))["records"]
    assert {one["backend"]: one["status"] for one in records} == {"hstu-eager": "passed", "hstu-bsa-eager": "passed"}


@pytest.mark.parametrize("seqlen", [512, 2048, 8192])
def test_uneven_lengths_are_as_much_work_as_the_whole_ones_they_are_held_against(seqlen):
    from attnbench.workloads.hstu import WORKLOAD

    def work(lengths, batch):
        return WORKLOAD.work(WORKLOAD.case({"seqlen": seqlen, "batch": batch, "lengths": lengths, "mode": "fwd"})).flops

    sequences = 262144 // seqlen
    assert work("uniform", 3 * sequences) == pytest.approx(work("full", sequences), rel=0.1)
