"""`run` and `check` of the suite hstu-bsa on a CPU, with real workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attnbench

SOURCE = Path(attnbench.__file__).parents[1]
CHEAT = """
from contextlib import contextmanager
from dataclasses import replace

from attnbench.backends.hstu_bsa_eager import HstuBsaEager


class LowestFirst(HstuBsaEager):
    name = "lowest-first"

    @contextmanager
    def session(self, case, inputs):
        with super().session(case, inputs) as launch:
            honest = launch.outputs

            def outputs():
                found = honest()
                blocks = found["blocks"]
                # The local block and the lowest one, whatever they score.
                blocks.copy_(blocks.sort(-1).values)
                blocks[48:, :, 0] = 0
                return found

            yield replace(launch, outputs=outputs)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hstu")


def attnbench_in(folder, *words):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "attnbench", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


def test_a_run_prints_the_blocks_of_its_script_and_exports_its_file(folder):
    done = attnbench_in(
        folder,
        "run",
        "hstu-bsa",
        "--seqlen",
        "64",
        "--device",
        "cpu",
        "--warmup",
        "1",
        "--iterations",
        "6",
        "--json",
        "run.json",
        "--layout",
        "seed-000",
    )
    assert done.returncode == 0, done.stderr
    assert "median ms" in done.stderr or "median µs" in done.stderr
    assert "[1/1] configuration: B=1, N=64, H=4, ATTN_DIM=16, LINEAR_DIM=32" in done.stdout
    assert "HSTU dense (hstu-eager):\n  mean: " in done.stdout
    assert "HSTU BSA (hstu-bsa-eager):\n  mean: " in done.stdout
    assert "worst speed-up:" in done.stdout
    exported = attnbench_in(folder, "export", "run.json", "--layout", "seed-000", "--to", "benchmark_results.json")
    assert exported.returncode == 0, exported.stderr
    data = json.loads((folder / "benchmark_results.json").read_text())
    assert (data["num_warmup"], data["num_iterations"], data["device_info"][:5]) == (1, 6, "CPU: ")
    (row,) = data["results"]
    assert row["config"] == {
        "B": 1,
        "N": 64,
        "num_heads": 4,
        "attention_dim": 16,
        "linear_dim": 32,
        "block_size": 16,
        "block_counts": 2,
    }
    assert row["speedup"] == row["baseline"]["mean_ms"] / row["bsa"]["mean_ms"]


def test_a_check_finds_the_selection_that_is_wrong_by_score(folder):
    (folder / "mine.py").write_text(CHEAT)
    done = attnbench_in(
        folder,
        "check",
        "hstu-bsa",
        "--seqlen",
        "64",
        "--device",
        "cpu",
        "--mode",
        "fwd-bwd",
        "--backends",
        "hstu-bsa-eager,./mine.py",
        "--no-save",
    )
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stdout.split())
    assert "blocks: sequence 0: a block chosen over one that scores higher" in words
    assert all(f" {name} " in words for name in ("out", "dq", "dk", "dv", "dgates"))
    assert "1 passed" in words
    assert "1 incorrect" in words


@pytest.mark.parametrize("suite", ["hstu-dense", "hstu-bsa"])
def test_a_suite_measures_the_steps_of_a_file_with_its_own_backends(folder, suite):
    steps = "{ batch = 2, seqlen = 48, nheads = 2, attn_dim = 16, num_targets = '8', delta_q = 12, dtype = 'fp32' }"
    (folder / "steps.toml").write_text(f"workload = 'hstu'\nbackends = ['hstu-compile']\ncases = [{steps}]\n", "utf-8")
    words = ["--cases", "steps.toml", "--warmup", "1", "--iterations", "3", "--device", "cpu"]
    done = attnbench_in(folder, "run", suite, *words, "--json", f"{suite}.json", "--no-save")
    assert done.returncode == 0, done.stderr
    run = json.loads((folder / f"{suite}.json").read_text("utf-8"))
    own = {"hstu-dense": ["hstu-eager"], "hstu-bsa": ["hstu-eager", "hstu-bsa-eager"]}[suite]
    assert [one["backend"] for one in run["records"]] == own
    assert {one["status"] for one in run["records"]} == {"passed"}
    assert {(one["case"]["seqlen"], one["case"]["delta_q"]) for one in run["records"]} == {(48, 12)}
    assert run["run"]["command"].startswith(f"attnbench run {suite} --cases steps.toml ")


def test_cases_of_another_workload_are_refused_with_the_suites_that_fit(folder):
    done = attnbench_in(folder, "run", "hstu-dense", "--cases", "serving-shapes", "--device", "cpu")
    assert done.returncode == 2
    assert "--cases=serving-shapes has cases of hstu-serving, hstu-dense measures hstu; such as" in done.stderr
    assert "serving-shapes-attention" in done.stderr
    assert done.stderr.count("\n") == 1
    done = attnbench_in(folder, "run", "hstu-dense", "--cases", "hstu-dens", "--device", "cpu")
    assert done.returncode == 2
    assert done.stderr.startswith("attnbench run: --cases=hstu-dens is not known; one of ")
