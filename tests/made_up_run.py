"""A run that nobody measured: H200-like figures with seeded noise, for tests of stores and reports."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections.abc import Sequence
from typing import Any

from attnbench.record import (
    Environment,
    Error,
    Memory,
    PlannedGroup,
    PowerSeries,
    Rate,
    Record,
    Run,
    Settings,
    Speedup,
    Status,
    Time,
    Work,
)

H200 = Environment(
    os="Linux 6.8",
    python="3.12.3",
    torch="2.11.0+cu130",
    triton="3.6.0",
    cuda="13.0",
    driver="580.95",
    cudnn="9.19.0",
    cpu="Xeon Platinum 8558",
    cores=16,
    ram_gb=128.0,
    gpu="NVIDIA H200",
    gpu_mem_gb=139.8,
    gpu_uuid="GPU-0",
    sm_count=132,
    sm_max_mhz=1980,
    l2_mb=60.0,
    power_limit_w=700.0,
    packages={"numpy": "2.5.0"},
)
PEAK = 989.0
TFLOPS = {"sdpa-flash": 349.0, "sdpa-cudnn": 607.0, "flex": 487.0, "flash-attn-3": 701.0, "sdpa-efficient": 175.0}


def make_case(**changed: Any) -> dict[str, Any]:
    """The values of an attention case."""
    case = {
        "batch": 1,
        "seqlen": 16384,
        "seqlen_k": 16384,
        "nheads": 16,
        "nheads_kv": 16,
        "headdim": 128,
        "headdim_v": 128,
        "causal": False,
        "window": None,
        "dtype": "bf16",
        "mode": "fwd",
    }
    return case | changed


def case_id(case: dict[str, Any]) -> str:
    causal = "-causal" if case["causal"] else ""
    shape = f"b{case['batch']}-s{case['seqlen']}-h{case['nheads']}-d{case['headdim']}"
    return f"{shape}{causal}-{case['dtype']}-{case['mode']}"


def make_work(case: dict[str, Any]) -> Work:
    tokens = case["batch"] * case["nheads"] * case["seqlen"]
    return Work(flops=4 * tokens * case["seqlen"] * case["headdim"], bytes=4 * tokens * case["headdim"] * 2)


def make_time(samples: list[float], **changed: Any) -> Time:
    """A time whose statistics are right to about a percent: loading works them out again."""
    ordered = sorted(samples)
    values: dict[str, Any] = {
        "timer": "cupti",
        "l2": "cold",
        "regime": "burst",
        "stopped_by": "rel-ci",
        "num_samples": len(samples),
        "median_ms": statistics.median(samples),
        "mean_ms": statistics.fmean(samples),
        "std_ms": statistics.stdev(samples) if len(samples) > 1 else None,
        "min_ms": ordered[0],
        "max_ms": ordered[-1],
        "p95_ms": ordered[int(0.95 * (len(samples) - 1))],
        "p99_ms": ordered[int(0.99 * (len(samples) - 1))],
        "ci_low_ms": ordered[len(samples) * 2 // 5] if len(samples) > 5 else None,
        "ci_high_ms": ordered[len(samples) * 3 // 5] if len(samples) > 5 else None,
        "host_ms": 0.021,
        "setup_ms": 3.2,
        "first_call_ms": 41.7,
        "samples_ms": tuple(samples),
        "rounds": tuple(range(len(samples))),
        "at_s": tuple(round(0.02 * i, 6) for i in range(len(samples))),
        "sm_mhz": tuple(1980.0 - 15 * (i % 3) for i in range(len(samples))),
    }
    return Time(**(values | changed))


def make_record(
    case: dict[str, Any],
    backend: str,
    *,
    tflops: float | None = None,
    samples: int = 60,
    noise: float = 0.004,
    baseline: Record | None = None,
    **changed: Any,
) -> Record:
    """A passed record at about `tflops`, with a speed-up against `baseline` where one is given."""
    work, name = make_work(case), case_id(case)
    median = work.flops / (tflops or TFLOPS[backend]) / 1e9
    source = random.Random(f"{name} {backend}")
    time = make_time([round(median * source.gauss(1.0, noise), 6) for _ in range(samples)])
    speedup = None
    if baseline is not None and baseline.time:
        ratio = baseline.time.median_ms / time.median_ms
        verdict = "faster" if ratio > 1 else "slower"
        speedup = Speedup(
            baseline=baseline.backend, ratio=ratio, ci_low=ratio * 0.999, ci_high=ratio * 1.001, verdict=verdict
        )
    tflops_got = work.flops / time.median_ms / 1e9
    values: dict[str, Any] = {
        "workload": "attention",
        "case": case,
        "case_id": name,
        "group": name,
        "backend": backend,
        "version": "2.11.0+cu130",
        "environment": 0,
        "status": Status.PASSED,
        "kernels": (f"{backend}_fwd_sm90",),
        "time": time,
        "power_w": PowerSeries(at_s=(0.0, 0.1), watts=(310.5, 655.25), celsius=(41.0, 44.0)),
        "memory": Memory(peak_allocated_mb=256.0, peak_reserved_mb=300.0),
        "work": work,
        "rate": Rate(
            tflops=tflops_got, gbps=work.bytes / time.median_ms / 1e6, percent_of_peak=100 * tflops_got / PEAK
        ),
        "errors": {"out": Error(max_abs=4.1e-4, rel_l1=2.2e-3, rmse=3.1e-5, cosine=0.999997, budget=1.6e-3, ok=True)},
        "ceilings": {"copy_gbps": 4270.0, "matmul_tflops": 745.0},
        "speedup": speedup,
        "repro": f"attnbench compare --seqlen {case['seqlen']} --backends {backend}",
    }
    return Record(**(values | changed))


def make_lost(case: dict[str, Any], backend: str, status: Status, reason: str) -> Record:
    name = case_id(case)
    return Record(
        workload="attention",
        case=case,
        case_id=name,
        group=name,
        backend=backend,
        environment=0,
        status=status,
        reason=reason,
    )


def make_group(case: dict[str, Any], backends: dict[str, float] = TFLOPS, **changed: Any) -> list[Record]:
    """Passed records of one case; the first backend is the baseline."""
    first, *others = backends
    baseline = make_record(case, first, tflops=backends[first], **changed)
    return [
        baseline,
        *(make_record(case, name, tflops=backends[name], baseline=baseline, **changed) for name in others),
    ]


def make_run(records: list[Record] | None = None, **changed: Any) -> Run:
    """A run of one case with everything that can happen to a backend, or of `records`."""
    if records is None:
        case = make_case()
        records = [
            *make_group(case),
            make_lost(
                case,
                "flash-attn-2",
                Status.SKIPPED,
                "flash-attn-2: module=flash_attn is not installed; MAX_JOBS=8 pip install flash-attn",
            ),
            make_lost(case, "eager", Status.OOM, "needs 48.0 GiB, 21.3 GiB free; seqlen=8192 would fit"),
            make_lost(case, "mine", Status.INCORRECT, "out: max_abs=0.31, budget 0.0016; top-left causal"),
        ]
    groups = {(item.group, item.replicate): [] for item in records}
    for item in records:
        groups[item.group, item.replicate].append(item)
    plan = tuple(
        PlannedGroup(
            group=group,
            workload=items[0].workload,
            case=items[0].case,
            case_id=items[0].case_id,
            backends=tuple(item.backend for item in items),
            replicate=replicate,
        )
        for (group, replicate), items in groups.items()
    )
    values: dict[str, Any] = {
        "id": "3f9a01bc",
        "suite": "compare",
        "command": "attnbench compare --seqlen 16384",
        "started": "2026-11-20T12:34:56Z",
        "plan": plan,
        "settings": Settings(device="cuda", baseline="sdpa-flash"),
        "environments": (H200,),
        "records": tuple(records),
    }
    return Run(**(values | changed))


def make_steps() -> Run:
    """A run of a whole model's steps: one backend's parts by phases, one's by category of kernels, one without any."""
    case = make_case()
    phases = {
        "base": {"attention": 60.0, "attention alone": 14.0},
        "quick": {"attention": 34.0, "attention alone": 8.0, "preparation": 4.0, "copies": 3.0},
        "captured": {"attention": 50.0, "attention alone": 12.0},
    }
    counters = {
        "base": {},
        "quick": {f"latents_rel_l1_{step}": 1e-3 * step for step in (1, 2, 10)},
        "captured": {f"latents_rel_l1_{step}": 0.0 for step in (1, 2, 10)}
        | {"launch_ms_attention": 48.0, "launch_ms_matmul": 30.0, "launch_ms_other": 1.0, "launch_ms_idle": 2.0},
    }
    records = []
    for name, step in {"base": 100.0, "quick": 80.0, "captured": 90.0}.items():
        one = make_record(case, name, tflops=500.0)
        timed = {part: make_time([ms] * 3) for part, ms in phases[name].items()}
        time = make_time([step] * 8, busy_ms=step - 2.0)
        beside = {"denoising_steps": 1, "layers": 4} | counters[name]
        records.append(dataclasses.replace(one, time=time, phases=timed, counters=beside))
    run = make_run([*records, make_record(case, "plain", tflops=500.0)])
    return dataclasses.replace(run, settings=dataclasses.replace(run.settings, baseline="base"))


def make_served() -> Run:
    """A run of ranking steps: two ways to run each, of 1 and 8 users with 128 candidates and three lengths cached."""
    records = []
    for batch in (1, 8):
        for cached in (0, 1024, 4096):
            case = {"batch": batch, "num_candidates": 128, "cached": cached, "new_tokens": 256, "dtype": "bf16"}
            name = f"b{batch}-c{cached}"
            for backend, each in (("serving-paged", 1e-4), ("serving-paged[no-cache]", 1e-3)):
                ms = batch * (0.2 + each * cached)
                records.append(
                    Record(
                        workload="hstu-serving",
                        case=case,
                        case_id=name,
                        group=name,
                        backend=backend,
                        environment=0,
                        status=Status.PASSED,
                        time=make_time([ms * (1 + 0.001 * place) for place in range(-10, 11)]),
                    )
                )
    return make_run(records)


def make_maps(densities: Sequence[float] = (0.1, 0.25, 1.0)) -> Run:
    """A run of block-sparse attention over density: a dense backend, and one whose time follows the map."""
    records = []
    for density in densities:
        case = {"seqlen": 4096, "pattern": "random", "causal": False, "density": density, "dtype": "bf16"}
        for backend, ms in (("dense[sdpa]", 4.0), ("flash-sparse", 0.4 + 3.6 * density)):
            records.append(
                Record(
                    workload="sparse",
                    case=case,
                    case_id=f"s4096-{density:g}",
                    group=f"s4096-{density:g}",
                    backend=backend,
                    environment=0,
                    status=Status.PASSED,
                    time=make_time([ms * (1 + 0.001 * place) for place in range(-10, 11)]),
                )
            )
    return make_run(records)
