"""The benchmark of the flash kernels: its bars, what it says of rows, and one run of it on the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnbench.record import Status

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_flash", ROOT / "benchmarks/flash.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def record(backend, ms, *, headdim=128, seqlen=4096, mode="fwd", reason=None):
    passed = reason is None
    time = SimpleNamespace(median_ms=ms, rounds=range(20), samples_ms=[ms * (1 + 1e-4 * i) for i in range(20)])
    case = {"headdim": headdim, "seqlen": seqlen, "causal": True, "mode": mode}
    return SimpleNamespace(
        backend=backend,
        group="g",
        case=case,
        status=Status.PASSED if passed else Status.CRASHED,
        reason=reason,
        time=time if passed else None,
        rate=SimpleNamespace(tflops=600 / ms) if passed else None,
    )


@pytest.mark.parametrize(
    ("shape", "times", "words"),
    [
        ({}, (1.0, 1.01, 1.8, 0.971), "bar reached"),
        ({}, (1.0, 0.8, 0.9, 1.0001), "aim reached"),
        ({}, (1.0, 1.2, 1.8, 0.969), "BELOW THE BAR"),
        ({"headdim": 256}, (1.0, 0.91, 1.8, 0.971), "bar reached"),
        ({"headdim": 64}, (1.0, 1.2, 1.8, 0.969), "BELOW THE BAR"),
        *(({"headdim": dim}, (1.0, 1.2, 1.8, 0.951), "bar reached") for dim in (80, 96, 160, 192)),
        ({"headdim": 96}, (1.0, 1.2, 1.8, 0.949), "BELOW THE BAR"),
        ({"seqlen": 512}, (1.0, 0.8, 1.1, 0.981), "bar reached"),
        ({"seqlen": 2048, "headdim": 96}, (1.0, 1.2, 0.9, 0.979), "BELOW THE BAR"),
        ({"mode": "bwd"}, (1.0, 1.05, 0.5, 0.96), "bar reached"),
        ({"mode": "bwd"}, (1.0, 1.15, 0.5, 0.94), "BELOW THE BAR"),
        ({"mode": "bwd", "headdim": 64}, (1.0, 0.99, 0.5, 1.2), "BELOW THE BAR"),
        ({"mode": "bwd", "headdim": 256}, (1.0, 0.91, 0.5, 0.8), "bar reached"),
        ({"mode": "bwd", "headdim": 256}, (1.0, 0.89, 0.5, 1.2), "BELOW THE BAR"),
    ],
)
def test_a_row_is_held_against_its_bar(benchmark, shape, times, words):
    third = "flash-attn-3" if shape.get("mode") == "bwd" else "fa3-fwd"
    names = ("flash-triton", "sdpa-cudnn", "sdpa-flash", third)
    row = benchmark.row_of([record(name, ms, **shape) for name, ms in zip(names, times, strict=True)], "flash-triton")
    assert row.verdict == words
    assert row.peers["sdpa-cudnn"][1] == pytest.approx(times[1], rel=1e-3)


def test_a_bar_is_not_reached_without_its_peers(benchmark):
    def verdict(mode, **peers):
        records = [record(name.replace("_", "-"), ms, mode=mode) for name, ms in ({"us": 1.0} | peers).items()]
        return benchmark.row_of(records, "us").verdict

    assert verdict("fwd", sdpa_cudnn=2.0) == "bar not measured: no fa3-fwd"
    assert verdict("bwd", sdpa_cudnn=2.0) == "bar not measured: no flash-attn-3"
    assert verdict("bwd", sdpa_cudnn=0.99) == "BELOW THE BAR"
    assert {mode: benchmark.PEERS[mode][0] for mode in benchmark.PEERS} == dict.fromkeys(benchmark.PEERS, "sdpa-cudnn")
    assert all(set(benchmark.bar_of(mode, 128, 4096).least) <= set(benchmark.PEERS[mode]) for mode in benchmark.PEERS)


def test_the_table_has_a_ratio_for_each_peer_and_says_what_was_lost(benchmark):
    peers = ("fa3-fwd", "sdpa-flash")
    rows = [
        benchmark.row_of([record("us", 1.0), record("fa3-fwd", 0.9), record("sdpa-flash", 2.0)], "us"),
        benchmark.row_of([record("us", 1.0, reason="killed by SIGSEGV"), record("fa3-fwd", 0.9)], "us"),
    ]
    head, first, short, second, lost = benchmark.lines_of(rows, peers)
    assert head.split() == ["D", "S", "mask", "mode", "ours", "fa3-fwd", "ratio", "sdpa-flash", "ratio"]
    assert first.split()[4:] == ["600", "667", "0.900", "300", "2.000", "BELOW", "THE", "BAR", "us"]
    assert "fa3-fwd: 0.900 [0.9" in short
    assert short.endswith("wanted 0.97")
    assert "not measured" in second
    assert lost.strip() == "us: crashed: killed by SIGSEGV"


def test_of_several_of_ours_each_has_a_line_and_the_best_counts(benchmark):
    ours = ["us", "us[m1]", "us[m2]", "us[b1]"]
    assert benchmark.of_mode(ours, "fwd") == ["us", "us[m1]", "us[m2]"]
    assert benchmark.of_mode(ours, "bwd") == ["us", "us[b1]"]
    assert {form[0] for form in benchmark.FORMS} == {"m", "b"}
    skipped = record("us[m2]", 1.0, reason="config=m2 is not valid")
    skipped.status = Status.SKIPPED
    records = [record("us", 1.0), record("us[m1]", 0.92), skipped, record("fa3-fwd", 0.9)]
    rows = benchmark.rows_of(SimpleNamespace(records=records), ours[:3])
    assert [(row.name, row.verdict) for row in rows] == [("us", "BELOW THE BAR"), ("us[m1]", "bar reached")]
    assert [row.lost for row in rows] == [(), ()]
    assert [row.name for row in benchmark.best_of(rows)] == ["us[m1]"]


def test_every_form_is_valid_for_some_shape_of_the_suite_and_every_head_size_has_one(benchmark):
    from attnbench.kernels.flash.config.backward import parse_backward, why_not
    from attnbench.kernels.flash.config.forward import parse
    from attnbench.kernels.flash.config.space import Shape, fault

    def fits(form, dim):
        if form.startswith("b"):
            return why_not(parse_backward(form), (9, 0), 2, dim, dim) is None
        return fault(parse(form), Shape(dim=dim, dim_v=dim)) is None

    dims = {form: {dim for dim in (64, 128, 256) if fits(form, dim)} for form in benchmark.FORMS}
    assert all(dims.values())
    assert set.union(*(found for form, found in dims.items() if form.startswith("m"))) == {64, 128, 256}
    # Over 128 dims the backward is the portable kernel's.
    assert set.union(*(found for form, found in dims.items() if form.startswith("b"))) == {64, 128}


def test_it_runs_and_writes_a_run_file(benchmark, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = benchmark.main(
        [
            "--device",
            "cpu",
            "--ours",
            "eager",
            "--peers",
            "sdpa-flash",
            "--modes",
            "fwd",
            "--max-seconds",
            "0.2",
            "--out",
            "out.json",
        ]
    )
    assert code in (0, 1)
    written = json.loads(Path("out.json").read_text())
    assert [one["status"] for one in written["records"]] == ["passed"] * 4
    assert {one["case"]["mode"] for one in written["records"]} == {"fwd"}
    assert "2 rows, " in capsys.readouterr().out
