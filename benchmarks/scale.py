"""A sweep on one GPU and on two: wall time, spread of the GPUs, and pair ratios beside a busy neighbour.

    python benchmarks/scale.py OUT                   two GPUs of one host, about four minutes
    python benchmarks/scale.py OUT --ray HOST:PORT   one GPU: the sweep by the local engine and by Ray, in turn, twice

Writes the run files one.json, two.json and beside.json (or local-1.json, ray-1.json …) into OUT, and summary.json with
the figures printed. The cluster of HOST:PORT has this machine alone; of several GPUs it is measured with all of them too.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench.machine.device import Device
from attnbench.presentation.gpus import spread_of_gpus
from attnbench.record import Run, to_dict
from attnbench.store.environments import gpu_of
from attnbench.store.runfile import new_id, now
from attnbench.suites.load import load_suite
from attnbench.suites.plan import Request, build
from attnbench.sweep.executor import DeviceExecutor, Executor
from attnbench.sweep.ray_engine import ray_executors
from attnbench.sweep.run import Event, execute

SUITE = """
name = "scale"
title = "short groups of torch's own kernels"
workload = "attention"
backends = ["sdpa-cudnn", "sdpa-flash"]
baseline = "sdpa-flash"
axes = { batch = [1, 2], seqlen = [1024, 1536, 2048, 3072, 4096], nheads = [8, 16], headdim = [64, 128], dtype = ["bf16"] }
settings = { rel_ci = 0.0005, max_seconds = 2.5 }
"""
"""Groups take some three seconds, as those of the shipped suites at least do; workers start in seven."""
BESIDE = 10
"""Groups that are measured beside a busy neighbour."""
BURN = """
import torch
a, b, c = (torch.randn(8192, 8192, device="cuda:1", dtype=torch.bfloat16) for _ in range(3))
print("busy", flush=True)
while True:
    for _ in range(50):
        torch.matmul(a, b, out=c)
    torch.cuda.synchronize(1)
"""


def planned(folder: Path, device: Device) -> Run:
    path = folder / "scale.toml"
    path.write_text(SUITE)
    request = Request(suite=load_suite(str(path), device.kind), device=str(device))
    return build(request, run_id=new_id(), command="python benchmarks/scale.py", started=now())


def carried_out(run: Run, devices: Sequence[Device], path: Path) -> tuple[Run, float, float]:
    """The run on some devices, as `timed`."""
    return timed(run, [DeviceExecutor(device) for device in devices], path)


def timed(run: Run, executors: Sequence[Executor], path: Path) -> tuple[Run, float, float]:
    """The run with its records, its wall time in seconds, and that from the first group's end to the last's."""
    ends: list[float] = []

    def hear(event: Event) -> None:
        if event.kind == "group":
            ends.append(time.perf_counter())

    began = time.perf_counter()
    done = execute(run, path=path, on_event=hear, executors=executors)
    return done, time.perf_counter() - began, ends[-1] - ends[0]


def through_ray(folder: Path, device: Device, address: str, groups: int | None = None) -> None:
    """A sweep by either engine, local, Ray, Ray, local: what moves slowly falls on both alike."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = planned(folder, device)
    plan = dataclasses.replace(plan, plan=plan.plan[:groups])
    whole: dict[str, list[float]] = {"local": [], "ray": []}
    steady: dict[str, list[float]] = {"local": [], "ray": []}
    runs: dict[str, list[Run]] = {"local": [], "ray": []}
    for engine in ("local", "ray", "ray", "local"):
        began = time.perf_counter()
        executors: Sequence[Executor]
        executors = (
            [DeviceExecutor(device)] if engine == "local" else ray_executors(address, device, [], wait=False)[:1]
        )
        connected = time.perf_counter() - began  # with Ray also sending the code
        path = folder / f"{engine}-{len(runs[engine]) + 1}.json"
        run, wall, between = timed(plan, executors, path)
        runs[engine].append(run)
        whole[engine].append(connected + wall)
        steady[engine].append(between)

    def over(seconds: dict[str, list[float]]) -> float:
        return 100 * (sum(seconds["ray"]) / sum(seconds["local"]) - 1)

    every = [group.group for group in plan.plan]
    engines, locals_ = apart(runs["local"][0], runs["ray"][0], every), apart(runs["local"][0], runs["local"][1], every)
    several = ray_executors(address, device, [], wait=False)
    if len(several) > 1:
        _, wall, between = timed(plan, several, folder / "ray-all.json")
        one = sum(whole["ray"]) / 2, sum(steady["ray"]) / 2
        print(f"Ray on {len(several)}: {wall:.1f} s, {one[0] / wall:.2f} times as fast; between {one[1] / between:.2f}")
    passed = {engine: [sum(row.status == "passed" for row in run.records) for run in runs[engine]] for engine in runs}
    told = {
        "groups": len(every),
        "whole_s": whole,
        "steady_s": steady,
        "whole_percent": over(whole),
        "steady_percent": over(steady),
        "passed": passed,
        "engines_apart": engines,
        "locals_apart": locals_,
        **measured(**{f"{engine}-{turn}": run for engine in runs for turn, run in enumerate(runs[engine], 1)}),
    }
    (folder / "summary.json").write_text(json.dumps(told, indent=1) + "\n")
    for name, seconds in (("whole", whole), ("first group's end to the last's", steady)):
        each = (f"{engine} {' '.join(f'{one:.2f}' for one in seconds[engine])} s" for engine in seconds)
        print(f"{name}: {', '.join(each)}; Ray {over(seconds):+.2f} %")
    print(f"passed rows: {passed}")
    print(f"pair ratios, Ray against local: {words(engines)}; local twice: {words(locals_)}")


def measured(**runs: Run) -> dict[str, Any]:
    """The environment, and of each run its rows: group, backend, GPU, status, median in ms, ratio to the baseline."""
    rows = {
        name: [
            (
                item.group,
                item.backend,
                gpu_of(run, item),
                item.status,
                item.time.median_ms if item.time else None,
                item.speedup.ratio if item.speedup else None,
            )
            for item in run.records
        ]
        for name, run in runs.items()
    }
    return {"environments": to_dict(next(iter(runs.values())).environments), "rows": rows}


def ratios(run: Run) -> dict[str, float]:
    return {one.group: one.speedup.ratio for one in run.records if one.speedup and one.backend == "sdpa-cudnn"}


def apart(one: Run, other: Run, groups: Sequence[str]) -> list[float]:
    """By how many per cent the ratios of two runs differ, group by group."""
    a, b = ratios(one), ratios(other)
    return [100 * abs(b[group] / a[group] - 1) for group in groups if group in a and group in b]


def words(values: Sequence[float]) -> str:
    return f"median {statistics.median(values):.3f} %, most {max(values):.3f} % of {len(values)}" if values else "none"


def main(folder: Path, first: Device, second: Device, burn: str = BURN, groups: int | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plan = planned(folder, first)
    plan = dataclasses.replace(plan, plan=plan.plan[:groups])
    one, one_s, one_steady_s = carried_out(plan, [first], folder / "one.json")
    two, two_s, two_steady_s = carried_out(plan, [first, second], folder / "two.json")
    few = dataclasses.replace(plan, plan=plan.plan[:: max(1, len(plan.plan) // BESIDE)][:BESIDE])
    busy = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, text=True)
    try:
        assert busy.stdout is not None
        busy.stdout.readline()
        beside, _, _ = carried_out(few, [first], folder / "beside.json")
    finally:
        busy.kill()
        busy.wait()
    home = gpu_of(one, one.records[0])
    stayed = [item.group for item in two.records if gpu_of(two, item) == home]
    told = {
        "groups": len(plan.plan),
        "one_s": one_s,
        "two_s": two_s,
        "speedup": one_s / two_s,
        "one_steady_s": one_steady_s,
        "two_steady_s": two_steady_s,
        "passed": [sum(item.status == "passed" for item in run.records) for run in (one, two, beside)],
        "on_first_gpu": len(set(stayed)),
        "spread": spread_of_gpus(two),
        "two_gpus_apart": apart(one, two, sorted(set(stayed))),
        "beside_apart": apart(one, beside, [group.group for group in few.plan]),
        **measured(one=one, two=two, beside=beside),
    }
    (folder / "summary.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"{told['groups']} groups: one GPU {one_s:.1f} s, two {two_s:.1f} s, {one_s / two_s:.2f} times as fast")
    print(f"between the first group's end and the last's: {one_steady_s:.1f} s, {two_steady_s:.1f} s")
    print(f"passed rows: {told['passed']}; {told['on_first_gpu']} groups of the two-GPU run on the first GPU")
    print(*told["spread"], sep="\n")
    print(f"ratios, two GPUs against one, same GPU: {words(told['two_gpus_apart'])}")
    print(f"ratios beside a busy neighbour against alone: {words(told['beside_apart'])}")


if __name__ == "__main__":
    if sys.argv[2:3] == ["--ray"]:
        through_ray(Path(sys.argv[1]), Device("cuda", 0), sys.argv[3])
    else:
        main(Path(sys.argv[1]), Device("cuda", 0), Device("cuda", 1))
