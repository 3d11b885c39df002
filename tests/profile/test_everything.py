"""`profile all`: the files of seed 004's script, and what SUMMARY.md says of tools that fail."""

from __future__ import annotations

import sys

import made_up_captures as made
import pytest

from attnbench.profile import everything
from attnbench.profile.job import Job
from attnbench.profile.take import Options
from waiting import PATIENCE_S

TARGET = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import made_up_captures as made; "
    "made.write_trace(Path(sys.argv[4]))"
)
SEED_004 = (
    "SUMMARY.md",
    "baseline_benchmark.txt",
    "comparison_results.txt",
    "gpu_info.txt",
    "flash_attn_nsys.nsys-rep",
    "flash_attn_ncu_full.ncu-rep",
    "nsys_stats.txt",
    "ncu_memory_metrics.txt",
    "ncu_compute_metrics.txt",
)


@pytest.fixture
def profiled(tmp_path, fake_tools, rules, monkeypatch):
    """Run everything with fake tools, `attnbench` replaced by echo and the target by one that writes a trace."""
    import torch

    folder = tmp_path / "profile_results"
    folder.mkdir()

    def command(module, *words):
        if module == "attnbench":
            return ["sh", "-c", 'echo "$@"; if [ "$1" = "$BROKEN" ]; then exit 3; fi', "attnbench", *words]
        return [sys.executable, "-c", TARGET, str(made.CAPTURES.parent), *words]

    monkeypatch.setattr("attnbench.machine.child.command", command)
    kinds = set(torch.profiler.ProfilerActivity.__members__.values())
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: kinds)
    job = Job(workload="attention", case={}, case_id=made.CASE, backends=("sdpa-flash",), device="cuda:0", marks="nvtx")
    request = everything.Request(
        job=job,
        run_words=("run", "minimal", "--no-save"),
        compare_words=("compare", "--no-save"),
        options=Options(timeout_s=PATIENCE_S),
        left_aside=("Not installed: flash-attn-2.",),
    )

    def run():
        heard = []
        done = everything.profile_all(
            request, folder, rules, on_step=heard.append, points=lambda captures, launches: []
        )
        return done, heard, (folder / "SUMMARY.md").read_text()

    run.folder = folder
    return run


def test_the_files_of_seed_004(profiled):
    done, heard, summary = profiled()
    there = {path.name for path in profiled.folder.iterdir()}
    assert {*SEED_004, "kernels.csv", "captures.json"} <= there
    assert [step.reason for step in done.steps] == [None] * 6
    assert heard == [
        "gpu_info.txt",
        "baseline_benchmark.txt",
        "comparison_results.txt",
        "flash_attn_nsys.nsys-rep",
        "flash_attn_ncu_full.ncu-rep",
        "flash_attn_torch.trace.json",
    ]
    assert (profiled.folder / "baseline_benchmark.txt").read_text() == "run minimal --no-save\n"
    assert "What failed" not in summary
    assert f"Launched: sdpa-flash on {made.CASE}." in summary
    assert "Not installed: flash-attn-2." in summary
    assert "| attention |" in summary
    assert "| Attn (%) | 60.0% |" in summary
    assert "TheoreticalOccupancy" in summary
    assert "NVIDIA H200" in summary


def test_without_a_kernel_of_attention_there_are_no_shares_of_it(profiled, rules, monkeypatch):
    of = type(rules).of
    monkeypatch.setattr(
        type(rules), "of", lambda self, name: "matmul" if of(self, name) == "attention" else of(self, name)
    )
    done, _, summary = profiled()
    assert [step.reason for step in done.steps] == [None] * 6
    assert "| matmul |" in summary
    assert "Attn (%)" not in summary


def test_the_texts_of_ncu(profiled):
    profiled()
    memory = (profiled.folder / "ncu_memory_metrics.txt").read_text().splitlines()
    assert memory[0] == "memory counters of flash_attn_ncu_full.ncu-rep"
    assert "L2 hits %" in memory[1]
    assert "registers" not in memory[1]
    compute = (profiled.folder / "ncu_compute_metrics.txt").read_text()
    assert "tensor pipe %" in compute
    assert "168" in compute


def test_it_goes_on_past_every_tool_that_fails(profiled, monkeypatch):
    monkeypatch.setenv("FAKE_NCU", "denied")
    monkeypatch.setenv("FAKE_NSYS", "silent")
    monkeypatch.setenv("BROKEN", "compare")
    done, _, summary = profiled()
    assert [step.title for step in done.steps if step.reason] == ["comparison", "Nsight Systems", "Nsight Compute"]
    assert [capture.tool for capture in done.captures] == ["torch"]
    assert "## What failed" in summary
    assert "- Nsight Compute: ncu: this user may not read the GPU's counters (ERR_NVGPUCTRPERM)" in summary
    assert "- Nsight Systems: nsys: ended with code 0; its last line was: Capture range was not started" in summary
    assert "- comparison: attnbench compare: ended with code 3" in summary
    assert "| Nsight Compute | flash_attn_ncu_full.ncu-rep | failed |" in summary
    assert "| torch.profiler | flash_attn_torch.trace.json | done |" in summary


def test_a_summary_is_there_after_the_first_step(profiled, monkeypatch):
    seen = []
    write = everything.write_text
    monkeypatch.setattr(everything, "write_text", lambda path, text: (seen.append(path.name), write(path, text)))
    profiled()
    assert seen.count("SUMMARY.md") == 6


def test_tools_that_are_not_installed(profiled, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("attnbench.machine.tools.FOLDERS", ())
    done, _, summary = profiled()
    assert [capture.tool for capture in done.captures] == ["torch"]
    assert "nsys not on the PATH, nor in the CUDA folders; install Nsight Systems" in summary
