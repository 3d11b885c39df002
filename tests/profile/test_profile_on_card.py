"""ncu and torch.profiler on a real GPU: results exist, are plausible, and belong to the right backend."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from attnbench.errors import Unavailable
from attnbench.machine.device import Device
from attnbench.machine.tools import counters_for_all
from attnbench.profile import sources
from attnbench.profile.job import Job
from attnbench.profile.roofline import points
from attnbench.profile.take import Options, probe, take
from attnbench.workloads.base import load_workload

pytestmark = pytest.mark.gpu


def make_job(*backends, marks, mode="fwd", launches=1):
    workload = load_workload("attention")
    case = workload.case({"batch": 2, "seqlen": 2048, "nheads": 16, "headdim": 128, "dtype": "bf16", "mode": mode})
    job = Job(
        workload="attention",
        case=case.to_dict(),
        case_id=case.id,
        backends=backends,
        device="cuda:0",
        marks=marks,
        launches=launches,
    )
    return job, case


def taken(tool, job, folder, rules, **options):
    found = take(tool, probe(tool, "cuda:0"), job, folder, Options(timeout_s=170.0, **options), rules)
    assert found.capture is not None, found.reason
    return found.capture


def test_torch_sees_every_launch_of_each_backend_and_nothing_else(tmp_path, rules):
    job, _ = make_job("sdpa-flash", "eager", marks="torch", launches=5)
    found = taken("torch", job, tmp_path, rules)
    flash = [row for row in found.kernels if row.backend == "sdpa-flash"]
    assert [(row.category, row.calls) for row in flash] == [("attention", 5)]
    eager = {row.category: row.calls for row in found.kernels if row.backend == "eager"}
    assert eager["matmul"] >= 5
    assert all(row.backend for row in found.kernels)
    assert all(row.calls % 5 == 0 for row in found.kernels)
    assert 0 < found.busy_ms <= found.window_ms
    assert {row.name for row in found.ranges} == {f"{name}/{job.case_id}" for name in job.backends}
    assert found.device == torch.cuda.get_device_name(0)
    assert found.tool_version == str(torch.__version__)


def test_torch_agrees_with_the_timer(tmp_path, rules):
    from attnbench.measure.plan import Plan
    from attnbench.measure.sampling import sample
    from attnbench.measure.subject import Subject

    job, _ = make_job("sdpa-flash", marks="torch", launches=30)
    (row,) = taken("torch", job, tmp_path, rules).kernels
    q, k, v = (torch.randn(2, 16, 2048, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def call():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)

    call()
    group = sample([Subject(name="a", call=call)], device=Device("cuda"), plan=Plan(l2="warm", max_seconds=0.5))
    ours = sorted(group.timings[0].samples_ms)[len(group.timings[0].samples_ms) // 2]
    assert row.median_ms == pytest.approx(ours, rel=0.1)


def test_a_backward_is_of_its_backend(tmp_path, rules):
    job, _ = make_job("sdpa-flash", marks="torch", mode="fwd-bwd", launches=3)
    found = taken("torch", job, tmp_path, rules)
    assert {row.backend for row in found.kernels} == {"sdpa-flash"}
    assert {row.range for row in found.kernels} == {f"sdpa-flash/{job.case_id}"}  # autograd's thread included
    assert any("bwd" in row.name for row in found.kernels)


@pytest.fixture
def ncu():
    """ncu, where it is installed."""
    try:
        return probe("ncu", "cuda:0")
    except Unavailable:
        pytest.skip("needs Nsight Compute")


def test_ncu_measures_its_counters(tmp_path, rules, ncu):
    job, case = make_job("sdpa-flash", marks="nvtx")
    found = take("ncu", ncu, job, tmp_path, Options(timeout_s=170.0), rules)
    if found.capture is None and counters_for_all() is False:
        assert "ERR_NVGPUCTRPERM" in found.reason
        return
    assert found.capture is not None, found.reason
    (row,) = found.capture.kernels
    assert (row.category, row.backend, row.calls) == ("attention", "sdpa-flash", 1)
    counters = row.counters
    wanted = (
        "duration_ms",
        "cycles",
        "registers",
        "theoretical_occupancy_percent",
        "achieved_occupancy_percent",
        "l2_hit_percent",
        "dram_percent",
        "sm_percent",
        "tensor_percent",
        "sm_mhz",
    )
    assert [name for name in wanted if counters.get(name) is None] == []
    assert 0 < counters["achieved_occupancy_percent"] <= counters["theoretical_occupancy_percent"] + 1
    assert all(0 <= counters[name] <= 100 for name in wanted if name.endswith("_percent"))
    assert counters["tensor_percent"] > 20
    assert counters["cycles"] / counters["duration_ms"] / 1e3 == pytest.approx(counters["sm_mhz"], rel=0.05)
    assert [name for name in counters if name.startswith("stall_")]
    (point,) = points([found.capture], {job.case_id: load_workload("attention").work(case)}, {}, launches=1)
    assert 50 < point.tflops < 1000
    assert (tmp_path / "profile_sdpa-flash.ncu-rep").is_file()
    again = sources.read(tmp_path / "profile_sdpa-flash.csv", rules)[0].of("sdpa-flash", job.case_id)
    assert again.kernels[0].counters == counters


def test_ncu_reads_its_own_report_back(tmp_path, rules, ncu):
    job, _ = make_job("sdpa-flash", marks="nvtx")
    found = take("ncu", ncu, job, tmp_path, Options(timeout_s=170.0, set="full"), rules)
    if found.capture is None and counters_for_all() is False:
        assert "ERR_NVGPUCTRPERM" in found.reason
        return
    assert found.capture is not None, found.reason
    (again,) = sources.read(tmp_path / "profile_sdpa-flash.ncu-rep", rules)
    row, first = again.kernels[0], found.capture.kernels[0]
    assert row.range == f"sdpa-flash/{job.case_id}"
    assert row.advice, "the full set runs ncu's rules"
    for name, value in row.counters.items():
        if value is not None and first.counters.get(name) is not None:
            assert value == pytest.approx(first.counters[name], rel=0.01), name


def test_a_kernel_that_is_not_there(tmp_path, rules, ncu):
    job, _ = make_job("sdpa-flash", marks="nvtx")
    found = take("ncu", ncu, job, tmp_path, Options(timeout_s=170.0, kernel="no_such_kernel"), rules)
    assert found.capture is None
    assert "no kernel was profiled" in found.reason or "ERR_NVGPUCTRPERM" in found.reason


def test_a_backend_that_cannot_run_leaves_the_other(tmp_path, rules):
    job, _ = make_job("no-such-backend", "sdpa-flash", marks="torch")
    found = take("torch", probe("torch", "cuda:0"), job, tmp_path, Options(timeout_s=170.0), rules)
    assert found.left_out[0].startswith("no-such-backend: ")
    assert {row.backend for row in found.capture.kernels} == {"sdpa-flash"}


def test_the_trace_names_no_folder(tmp_path, rules):
    job, _ = make_job("sdpa-flash", marks="torch")
    taken("torch", dataclasses.replace(job, launches=2), tmp_path, rules)
    text = (tmp_path / "profile_sdpa-flash.trace.json").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["attnbench"]["torch"] == str(torch.__version__)
