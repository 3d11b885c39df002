"""seed-000: the file and the blocks, exactly, written and read."""

from __future__ import annotations

import dataclasses
import json

import pytest

from attnbench.errors import RunFileError, UsageError
from attnbench.formats.layouts import load_layout, recognise
from attnbench.record import Memory, Settings, Status
from attnbench.store import runfile
from made_up_run import H200, make_case, make_lost, make_record, make_run, make_time

LAYOUT = load_layout("seed-000")
EXAMPLE = {
    "device_info": "GPU: NVIDIA GeForce RTX 3090",
    "num_warmup": 10,
    "num_iterations": 100,
    "results": [
        {
            "config": {
                "B": 2,
                "N": 128,
                "num_heads": 8,
                "attention_dim": 32,
                "linear_dim": 64,
                "block_size": 32,
                "block_counts": 4,
            },
            "baseline": {
                "mean_ms": 12.345,
                "std_ms": 0.123,
                "min_ms": 12.1,
                "max_ms": 12.8,
                "median_ms": 12.3,
                "p95_ms": 12.65,
                "p99_ms": 12.75,
                "mean_mem_allocated_mb": 45.67,
                "mean_mem_reserved_mb": 128.0,
            },
            "bsa": {
                "mean_ms": 8.901,
                "std_ms": 0.089,
                "min_ms": 8.7,
                "max_ms": 9.2,
                "median_ms": 8.85,
                "p95_ms": 9.1,
                "p99_ms": 9.18,
                "mean_mem_allocated_mb": 38.9,
                "mean_mem_reserved_mb": 120.0,
            },
            "speedup": 1.387,
            "baseline_slower_by": -27.9,
        }
    ],
}


def case_of(**changed):
    case = {
        "batch": 2,
        "seqlen": 128,
        "nheads": 8,
        "attn_dim": 32,
        "linear_dim": 64,
        "block_size": 32,
        "block_counts": 4,
        "causal": True,
        "dtype": "fp32",
        "mode": "fwd",
    }
    return case | changed


def record_of(case, backend, samples, memory=10.0):
    softmax = case | {"headdim": 32}
    made = make_record(
        softmax,
        backend,
        tflops=1.0,
        time=make_time(samples),
        memory=None if memory is None else Memory(peak_allocated_mb=memory, peak_reserved_mb=2 * memory),
    )
    return dataclasses.replace(made, workload="hstu", case=case)


def run_of(*records, **settings):
    run = make_run(list(records))
    return dataclasses.replace(run, settings=Settings(warmup=10, iterations=100, **settings), environments=(H200,))


def two(dense, bsa, name="hstu-triton", **changed):
    case = case_of(**changed)
    return [record_of(case, name, [dense] * 3, 40.0), record_of(case, "hstu-bsa-triton", [bsa] * 3, 30.0)]


def results(run, tmp_path):
    (path,) = LAYOUT.write(run, tmp_path)
    assert path == tmp_path / "benchmark_results.json"
    return json.loads(path.read_text())


def test_the_file_has_the_keys_and_signs_of_the_script(tmp_path):
    case = case_of()
    run = run_of(
        record_of(case, "hstu-meta-triton", [2.0, 3.0, 4.0], 45.67),
        record_of(case, "hstu-bsa-triton", [1.0, 2.0, 3.0], 38.9),
    )
    data = results(run, tmp_path)
    assert list(data) == list(EXAMPLE)
    assert (data["device_info"], data["num_warmup"], data["num_iterations"]) == ("GPU: NVIDIA H200", 10, 100)
    (row,) = data["results"]
    assert list(row) == list(EXAMPLE["results"][0])
    assert row["config"] == EXAMPLE["results"][0]["config"]
    assert list(row["bsa"]) == list(row["baseline"]) == list(EXAMPLE["results"][0]["bsa"])
    assert (row["baseline"]["mean_ms"], row["baseline"]["std_ms"], row["baseline"]["median_ms"]) == (3.0, 1.0, 3.0)
    assert (row["bsa"]["mean_mem_allocated_mb"], row["bsa"]["mean_mem_reserved_mb"]) == (38.9, 77.8)
    # Ratios of means; the sign is that of the block-sparse side.
    assert row["speedup"] == 1.5
    assert row["baseline_slower_by"] == pytest.approx(-100 / 3)
    assert LAYOUT.notes(run) == ()


def test_one_sample_has_a_deviation_of_0_and_unknown_memory_is_null(tmp_path):
    case = case_of()
    run = run_of(record_of(case, "hstu-triton", [2.0], None), record_of(case, "hstu-bsa-triton", [1.0]))
    side = results(run, tmp_path)["results"][0]["baseline"]
    assert (side["std_ms"], side["mean_mem_allocated_mb"], side["mean_mem_reserved_mb"]) == (0.0, None, None)
    assert "memory:     - MB" in LAYOUT.console(run)
    assert "gain: significant; memory: not known" in LAYOUT.console(run)


def test_a_missing_baseline_leaves_three_fields_null(tmp_path):
    case = case_of()
    lost = make_lost(case | {"headdim": 32}, "hstu-meta-triton", Status.SKIPPED, "hstu-meta-triton: no such folder")
    run = run_of(dataclasses.replace(lost, case=case, workload="hstu"), record_of(case, "hstu-bsa-triton", [1.0, 2.0]))
    (row,) = results(run, tmp_path)["results"]
    assert [row[name] for name in ("baseline", "speedup", "baseline_slower_by")] == [None] * 3
    assert row["bsa"]["mean_ms"] == 1.5
    text = LAYOUT.console(run)
    assert "HSTU dense (-): no time" in text
    assert "no speed-up: one of the two has no time\nhstu-meta-triton: skipped: no such folder\n" in text
    assert text.endswith("mean speed-up:   -\nbest speed-up:   -\nworst speed-up:  -\n")
    assert LAYOUT.notes(run) == ("seed-000: baseline was not measured",)


def test_who_stands_for_the_original_is_said():
    run = run_of(*two(2.0, 1.0))
    assert LAYOUT.notes(run) == ("seed-000: the baseline is hstu-triton: hstu-meta-triton was not measured",)
    both = [*two(2.0, 1.0), record_of(case_of(), "hstu-fbgemm", [4.0] * 3)]
    assert "HSTU dense (hstu-fbgemm):" in LAYOUT.console(run_of(*both, baseline="hstu-fbgemm"))
    assert "HSTU dense (hstu-triton):" in LAYOUT.console(run_of(*both, baseline="hstu-bsa-triton"))


BLOCK = """\
[1/2] configuration: B=1, N=64, H=4, ATTN_DIM=16, LINEAR_DIM=32
--------------------------------------------------------------------------------
HSTU dense (hstu-meta-triton):
  mean:       2.345 ms (±0.000)
  median:     2.345 ms
  min/max:    2.345 / 2.345 ms
  memory:     40.00 MB

HSTU BSA (hstu-bsa-triton):
  mean:       2.456 ms (±0.000)
  median:     2.456 ms
  min/max:    2.456 / 2.456 ms
  memory:     30.00 MB

✗ HSTU BSA slower: 0.95x (4.7% slower)
  gain: none; memory: 0.75x of the dense
"""


def test_the_console_has_a_block_a_configuration_and_a_summary():
    small = {"batch": 1, "seqlen": 64, "nheads": 4, "attn_dim": 16, "linear_dim": 32}
    run = run_of(*two(2.345, 2.456, "hstu-meta-triton", **small), *two(12.345, 8.901, "hstu-meta-triton"))
    text = LAYOUT.console(run)
    assert BLOCK in text
    assert text.startswith("=" * 80 + "\nHSTU attention: dense against block-sparse (BSA)\n")
    assert "\ndevice GPU: NVIDIA H200\n" in text
    assert "✓ HSTU BSA faster: 1.39x\n  gain: worth using; memory: 0.75x of the dense\n" in text
    assert text.endswith("mean speed-up:   1.17x\nbest speed-up:   1.39x\nworst speed-up:  0.95x\n")


@pytest.mark.parametrize(
    ("dense", "words"),
    [
        (0.5, "✗ HSTU BSA slower: 0.50x (100.0% slower)\n  gain: none"),
        (1.0, "= HSTU BSA as fast: 1.00x\n  gain: none"),
        (1.1, "✓ HSTU BSA faster: 1.10x\n  gain: little"),
        (1.2, "1.20x\n  gain: worth using"),
        (1.49, "gain: worth using"),
        (1.5, "gain: significant"),
        (2.0, "gain: significant"),
        (2.01, "✓ HSTU BSA faster: 2.01x\n  gain: large"),
    ],
)
def test_bands(dense, words):
    assert words in LAYOUT.console(run_of(*two(dense, 1.0)))


def test_cases_of_one_configuration_go_to_a_file_each(tmp_path):
    run = run_of(*two(2.0, 1.0), *two(3.0, 1.0, dtype="bf16"))
    paths = LAYOUT.write(run, tmp_path / "r.json")
    assert [path.name for path in paths] == ["r.dtype-fp32.json", "r.dtype-bf16.json"]
    assert [json.loads(path.read_text())["results"][0]["speedup"] for path in paths] == [2.0, 3.0]
    assert LAYOUT.console(run).count("summary") == 2
    assert [path.name for path in LAYOUT.write(run_of(*two(2.0, 1.0)), tmp_path / "table.txt")] == ["table.txt"]
    assert (tmp_path / "table.txt").read_text() == LAYOUT.console(run_of(*two(2.0, 1.0)))


def test_what_was_written_is_read_back(tmp_path):
    run = run_of(*two(2.0, 1.0), *two(0.1234567, 0.2, batch=4))
    data = results(run, tmp_path)
    for place in (tmp_path, tmp_path / "benchmark_results.json"):
        again = recognise(place).read(place)
        assert [record.backend for record in again.records] == ["baseline", "bsa"] * 2
        assert again.records[1].speedup.ratio == 2.0
        assert {record.workload for record in again.records} == {"hstu"}
        assert results(again, tmp_path / "again") == data
        assert runfile.loads(runfile.dumps(again)) == again


def test_the_example_of_the_script_is_read(tmp_path):
    path = tmp_path / "benchmark_results.json"
    path.write_text(json.dumps(EXAMPLE))
    run = recognise(path).read(path)
    assert run.records[0].case == {
        "batch": 2,
        "seqlen": 128,
        "nheads": 8,
        "attn_dim": 32,
        "linear_dim": 64,
        "block_size": 32,
        "block_counts": 4,
    }
    assert (run.records[0].time.p99_ms, run.records[0].time.num_samples, run.settings.warmup) == (12.75, 100, 10)
    again = results(run, tmp_path / "again")
    assert again["results"][0]["baseline_slower_by"] == pytest.approx(-27.9, abs=0.05)
    again["results"][0]["baseline_slower_by"] = -27.9
    assert again == EXAMPLE
    text = LAYOUT.console(run)
    assert "  mean:       12.345 ms (±0.123)\n" in text
    assert "✓ HSTU BSA faster: 1.39x\n  gain: worth using; memory: 0.85x of the dense" in text
    assert LAYOUT.notes(run) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_warmup": -1}, r"num_warmup=-1 is not a count; a whole number or null"),
        ({"results": {}}, r"is not seed-000; the keys device_info, num_warmup, num_iterations, results"),
        ({"results": [1]}, r"results\[0\] is not a result; an object with config, baseline, bsa"),
        ({"results": [EXAMPLE["results"][0] | {"config": {}}]}, r"results\[0\]\.config: B=None is not a size"),
        ({"results": [EXAMPLE["results"][0] | {"bsa": 3}]}, r"results\[0\]: bsa=3 is not a side; an object or null"),
        ({"results": [EXAMPLE["results"][0] | {"bsa": {"mean_ms": "1"}}]}, r"bsa: mean_ms=1 is not a number"),
        ({"results": [EXAMPLE["results"][0] | {"bsa": {"mean_ms": 10**400}}]}, r"is larger than any quantity"),
        ({"results": [EXAMPLE["results"][0] | {"bsa": {"mean_ms": 0}}]}, r"bsa: mean_ms=0.0 is not a time"),
        ({"results": [EXAMPLE["results"][0] | {"speedup": float("nan")}]}, r"NaN is not JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, change, message):
    path = tmp_path / "benchmark_results.json"
    path.write_text(json.dumps(EXAMPLE | change))
    with pytest.raises(RunFileError, match=message):
        LAYOUT.read(path)


def test_only_runs_of_hstu_fit():
    with pytest.raises(UsageError, match=r"seed-000: records=0 have a time; a run with at least one timed record"):
        LAYOUT.console(make_run([]))
    run = make_run([make_record(make_case(), "sdpa-flash")])
    with pytest.raises(UsageError, match=r"seed-000: workload=attention has no blocks; a run of hstu"):
        LAYOUT.console(run)
